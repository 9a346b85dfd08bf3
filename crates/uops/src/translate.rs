//! Turns instructions that follow one another into uops.
//!
//! An instruction becomes its loads, then its computing uops, then its stores. The value of a load
//! goes to the first computing uop and all others; the last one has the results. Uops of moves that
//! only load or store have no computing uop. The stack pointer's changes by pushes, pops, calls and
//! returns cost nothing and delay nothing, as in the stack engines of processors.
//!
//! Input: decoded instructions and a table. Output: uops in program order.

use crate::class;
use crate::facts::Facts;
use crate::fusion::Fusion;
use crate::registers;
use crate::table::{ComputingUop, Entry, UopTable};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
};
use sim::core::{
    AddressForm, MnemonicId, RegisterFiles, TranslatedInstruction, Uop, UopKind, UopLatencies,
    UopMaker, UopRegister,
};

/// The most uops of an instruction.
const MOST_UOPS: usize = 64;

impl UopMaker for UopTable {
    fn translate(
        &self,
        addr: u64,
        code: &[&[u8]],
        latencies: UopLatencies,
        into: &mut Vec<Uop>,
    ) -> Vec<TranslatedInstruction> {
        UopTable::translate(self, addr, code, latencies, into)
    }

    fn mnemonic(&self, MnemonicId(number): MnemonicId) -> String {
        let mnemonic = Mnemonic::try_from(usize::from(number)).unwrap_or_default();
        format!("{mnemonic:?}").to_lowercase()
    }
}

impl UopTable {
    /// Turns the instructions at `addr`, each given by its bytes, into uops, and appends these.
    /// Bytes that are not an instruction become one uop without effect.
    pub fn translate(
        &self,
        addr: u64,
        code: &[&[u8]],
        latencies: UopLatencies,
        into: &mut Vec<Uop>,
    ) -> Vec<TranslatedInstruction> {
        let mut at = addr;
        let decoded: Vec<Instruction> = code
            .iter()
            .map(|bytes| {
                let decoded = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
                at = at.wrapping_add(bytes.len() as u64);
                decoded
            })
            .collect();
        let mut info = InstructionInfoFactory::new();
        let mut made = Vec::with_capacity(decoded.len());
        let mut fused = 0;
        for (index, instruction) in decoded.iter().enumerate() {
            let first_uop = into.len() as u32;
            if fused > 0 {
                fused -= 1;
                made.push(TranslatedInstruction { first_uop, uops: 0, slots: 0, unknown: None });
                continue;
            }
            let rest = &decoded[index + 1..];
            let (mut uops, unknown) = self.uops(instruction, rest.first(), &mut info, latencies);
            fused = usize::from(uops.jumps);
            if let [next, later @ ..] = rest
                && self.fusion.joins(instruction, next)
            {
                let (mut second, _) = self.uops(next, later.first(), &mut info, latencies);
                second.all.iter_mut().take(1).for_each(|uop| uop.begins_slot = false);
                fused = 1 + usize::from(second.jumps);
                uops.all.append(&mut second.all);
            }
            let slots = uops.all.iter().filter(|uop| uop.begins_slot).count() as u8;
            made.push(TranslatedInstruction {
                first_uop,
                uops: uops.all.len() as u8,
                slots,
                unknown: unknown.then(|| MnemonicId(instruction.mnemonic() as u16)),
            });
            into.extend(uops.all);
        }
        made
    }

    /// The uops of an instruction, and whether the table has no entry for it. `next`: the
    /// instruction behind it.
    fn uops(
        &self,
        instruction: &Instruction,
        next: Option<&Instruction>,
        info: &mut InstructionInfoFactory,
        latencies: UopLatencies,
    ) -> (Fusing, bool) {
        let mut translation = Translation {
            table: self,
            instruction,
            facts: Facts::new(instruction, info),
            latencies,
            uops: Vec::new(),
        };
        let unknown = translation.run();
        if class::is_repeated_string(instruction) && !self.simple {
            let microcode = Uop::new(UopKind::Microcode, 0);
            let begins_slot = translation.uops.is_empty();
            translation.uops.push(Uop { begins_slot, ..microcode });
        }
        let jumps =
            next.is_some_and(|next| self.fusion.fuses(instruction, next)) && translation.fuse();
        translation.uops.iter_mut().for_each(take_registers);
        (Fusing { all: translation.uops, jumps }, unknown)
    }
}

/// The uops of an instruction, and whether the last computing one is also the jump behind it.
struct Fusing {
    all: Vec<Uop>,
    jumps: bool,
}

struct Translation<'a> {
    table: &'a UopTable,
    instruction: &'a Instruction,
    facts: Facts,
    latencies: UopLatencies,
    uops: Vec<Uop>,
}

impl Translation<'_> {
    /// Makes the uops. Returns true if the table has no entry.
    fn run(&mut self) -> bool {
        let instruction = self.instruction;
        if let Some(class) = class::serialising(instruction) {
            let mut uop = Uop::new(UopKind::Serialising(class), 0);
            uop.reads = operands(self.facts.reads.iter());
            uop.writes = results(self.facts.writes.iter());
            self.uops.push(uop);
            return false;
        }
        if instruction.is_invalid() || class::is_no_op(instruction) {
            self.uops.push(Uop::new(UopKind::Eliminated, 0));
            return false;
        }
        let (zeroing, moved) =
            (class::is_zeroing(instruction), class::is_eliminated_move(instruction));
        if (zeroing || moved) && !self.table.simple {
            let mut uop = Uop::new(UopKind::Eliminated, 0);
            uop.writes = results(self.facts.writes.iter());
            if moved {
                uop.reads = operands(self.facts.reads.iter());
            }
            self.uops.push(uop);
            return false;
        }
        let memory = (0..instruction.op_count())
            .any(|operand| instruction.op_kind(operand) == iced_x86::OpKind::Memory);
        let table = self.table;
        // An address is computed where an addition is: LLVM's model of Golden Cove has one port for
        // it, the processor has five.
        if instruction.mnemonic() == Mnemonic::Lea {
            let mut entry = Entry { latency: 1, ..table.default.clone() };
            if class::has_three_parts(instruction) {
                entry.latency = self.latencies.three_part_address;
                if let Some(ports) = table.three_part_address {
                    entry.computing = vec![ComputingUop { ports, kept: 0 }];
                }
            }
            self.make(&entry);
            return false;
        }
        let entry = table.entry(instruction.code(), memory);
        if table.simple && entry.is_none() {
            if zeroing {
                self.facts.reads.clear();
            }
            // A push and a pop name no operand in memory.
            let accesses = self.facts.loads + self.facts.stores > 0;
            match accesses && class::only_moves(instruction) {
                true => self.make(&Entry { computing: Vec::new(), ..table.default.clone() }),
                false => self.make(&table.default),
            }
            return false;
        }
        // LLVM's model of Golden Cove has no uop for direct jumps.
        if entry.is_none() && instruction.flow_control() == FlowControl::UnconditionalBranch {
            let ports = table.branch;
            let computing = vec![ComputingUop { ports, kept: 0 }];
            self.make(&Entry { slots: 1, latency: 1, computing });
            return false;
        }
        self.make(entry.unwrap_or(&table.default));
        entry.is_none()
    }

    fn make(&mut self, entry: &Entry) {
        let facts = std::mem::take(&mut self.facts);
        let branches = self.instruction.flow_control() != FlowControl::Next;
        let mut computing = entry.computing.clone();
        // A call's model says only what it stores.
        let adds_branch = branches && computing.is_empty();
        if adds_branch {
            computing.push(ComputingUop { ports: self.table.branch, kept: 0 });
        }
        // A load that keeps a part of its register is merged with it. An instruction that neither
        // loads nor stores also computes if the model names no port.
        let merges = facts.loads > 0 && !facts.reads.is_empty();
        if computing.is_empty() && facts.stores == 0 && (facts.loads == 0 || merges) {
            computing.extend(self.table.default.computing.first());
        }
        let UopLatencies { vector_load, scaled_load, .. } = self.latencies;
        let (ports, vector) = match class::uses_vectors(self.instruction) {
            true => (self.table.vector_load, vector_load),
            false => (self.table.load, 0),
        };
        let scaled = if self.instruction.memory_index_scale() > 1 { scaled_load } else { 0 };
        let more = vector + scaled;
        let form = class::address_form(self.instruction);
        let loaded: Vec<UopRegister> = (0..facts.loads.min(8)).map(registers::loaded).collect();
        let atomic = facts.loads > 0
            && facts.stores > 0
            && (self.instruction.has_lock_prefix()
                || self.instruction.mnemonic() == Mnemonic::Xchg);
        for value in &loaded {
            let mut uop = Uop::new(UopKind::Load, ports);
            uop.latency = more;
            uop.waits_for_stores = atomic;
            uop.form = match class::is_renamable_load(
                self.instruction,
                facts.stores > 0,
                self.table.renamed_operands,
            ) {
                true => form,
                false => AddressForm::NONE,
            };
            uop.reads = operands(facts.address.iter());
            uop.writes = match computing.is_empty() {
                true => results(facts.writes.iter().chain([value])),
                false => results([value].into_iter()),
            };
            self.uops.push(uop);
        }
        // What comes first is kept: loaded values, then registers.
        let values: Vec<&UopRegister> = loaded.iter().chain(&facts.reads).collect();
        let result = registers::result();
        let last = computing.len().saturating_sub(1);
        for (place, ComputingUop { ports, kept }) in computing.iter().enumerate() {
            let mut uop = Uop::new(UopKind::Compute, *ports);
            uop.reads = operands(values.iter().copied());
            // A unit has the number of its first port.
            (uop.unit, uop.unit_cycles) = (ports.trailing_zeros() as u8 & 7, *kept);
            if place == last {
                uop.latency = if atomic { self.latencies.atomic } else { entry.latency };
                uop.writes = match facts.stores {
                    0 => results(facts.writes.iter()),
                    _ => results([&result].into_iter().chain(&facts.writes)),
                };
            }
            self.uops.push(uop);
        }
        let stored = if computing.is_empty() || branches { values } else { vec![&result] };
        for _ in 0..facts.stores.min(8) {
            let mut address = Uop::new(UopKind::StoreAddress, self.table.store_address);
            address.form = form;
            address.reads = operands(facts.address.iter());
            let mut data = Uop::new(UopKind::StoreData, self.table.store_data);
            data.reads = operands(stored.iter().copied());
            self.uops.extend([address, data]);
        }
        self.uops.truncate(MOST_UOPS);
        let beside = adds_branch && self.table.fusion == Fusion::Intel;
        self.begin_slots(usize::from(entry.slots) + usize::from(beside));
    }

    /// Chooses the uops that begin a slot, so that there are `slots`. Stores get slots of their own
    /// first, then the computing uops behind the first, then the first one. Further slots, which
    /// the model does not explain, do nothing.
    fn begin_slots(&mut self, slots: usize) {
        if self.table.simple {
            let begins = |kind| !matches!(kind, UopKind::StoreData);
            self.uops.iter_mut().for_each(|uop| uop.begins_slot = begins(uop.kind));
            return;
        }
        self.uops.iter_mut().for_each(|uop| uop.begins_slot = false);
        let computing =
            self.uops.iter().position(|uop| uop.kind == UopKind::Compute).unwrap_or(usize::MAX);
        let order = |place: usize, uop: &Uop| match uop.kind {
            _ if place == 0 => 0,
            UopKind::StoreAddress => 1,
            UopKind::Load => 2,
            UopKind::Compute if place != computing => 3,
            UopKind::Compute => 4,
            _ => 5,
        };
        let mut places: Vec<usize> = (0..self.uops.len()).collect();
        places.sort_by_key(|&place| order(place, &self.uops[place]));
        for &place in places.iter().take(slots) {
            self.uops[place].begins_slot = true;
        }
        let missing = slots.saturating_sub(self.uops.len()).min(MOST_UOPS - self.uops.len());
        self.uops.extend((0..missing).map(|_| Uop::new(UopKind::Eliminated, 0)));
    }

    /// Makes the last computing uop also jump. Returns false if there is no computing uop.
    fn fuse(&mut self) -> bool {
        let last = self.uops.iter_mut().rfind(|uop| uop.kind == UopKind::Compute);
        let Some(last) = last else { return false };
        last.ports = self.table.branch;
        true
    }
}

/// Sets the files in which a uop takes registers. A uop that is done when it is renamed takes none.
fn take_registers(uop: &mut Uop) {
    if !matches!(uop.kind, UopKind::Eliminated | UopKind::Microcode) {
        let files = uop.writes.iter().map(|result| registers::files(*result));
        uop.files = files.fold(RegisterFiles::NONE, RegisterFiles::and);
    }
}

fn operands<'a>(all: impl Iterator<Item = &'a UopRegister>) -> [UopRegister; 3] {
    filled(all, UopRegister::NONE)
}

fn results<'a>(all: impl Iterator<Item = &'a UopRegister>) -> [UopRegister; 3] {
    filled(all, UopRegister::DISCARD)
}

/// The first three elements, filled up with `none`.
fn filled<'a>(all: impl Iterator<Item = &'a UopRegister>, none: UopRegister) -> [UopRegister; 3] {
    let mut three = [none; 3];
    three.iter_mut().zip(all).for_each(|(place, register)| *place = *register);
    three
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::Register;
    use sim::core::RegisterFile;
    use std::sync::Arc;

    const LATENCIES: UopLatencies =
        UopLatencies { atomic: 18, vector_load: 3, scaled_load: 1, three_part_address: 2 };

    fn table() -> Arc<UopTable> {
        UopTable::find("sapphirerapids").unwrap()
    }

    /// The uops of one instruction.
    fn uops_of(table: &UopTable, bytes: &[u8]) -> Vec<Uop> {
        let mut uops = Vec::new();
        table.translate(0x1000, &[bytes], LATENCIES, &mut uops);
        uops
    }

    fn kinds(uops: &[Uop]) -> Vec<(UopKind, bool)> {
        uops.iter().map(|uop| (uop.kind, uop.begins_slot)).collect()
    }

    fn register(register: Register) -> UopRegister {
        registers::of(register).unwrap()
    }

    #[test]
    fn loads_computations_and_stores() {
        use UopKind::{Compute, Eliminated, Load, StoreAddress, StoreData};
        let table = table();
        let cases: [(&[u8], &[(UopKind, bool)]); 14] = [
            (&[0x48, 0x01, 0xc8], &[(Compute, true)]), // add rax, rcx
            (&[0x48, 0x8b, 0x00], &[(Load, true)]),    // mov rax, [rax]
            (&[0x48, 0x03, 0x00], &[(Load, true), (Compute, false)]), // add rax, [rax]
            (&[0x48, 0x03, 0x03], &[(Load, true), (Compute, false)]), // add rax, [rbx]
            (
                &[0x48, 0x01, 0x03], // add [rbx], rax
                &[(Load, true), (Compute, false), (StoreAddress, true), (StoreData, false)],
            ),
            (&[0x48, 0x89, 0x03], &[(StoreAddress, true), (StoreData, false)]), // mov [rbx], rax
            (&[0x48, 0x8b, 0x03], &[(Load, true)]),                             // mov rax, [rbx]
            (&[0x50], &[(StoreAddress, true), (StoreData, false)]),             // push rax
            (&[0x58], &[(Load, true)]),                                         // pop rax
            (&[0xc3], &[(Load, true), (Compute, false)]),                       // ret
            (&[0x90], &[(Eliminated, true)]),                                   // nop
            (&[0x31, 0xc0], &[(Eliminated, true)]),                             // xor eax, eax
            (&[0x48, 0x89, 0xc8], &[(Eliminated, true)]),                       // mov rax, rcx
            (&[0x06], &[(Eliminated, true)]),                                   // no instruction
        ];
        for (bytes, expected) in cases {
            assert_eq!(kinds(&uops_of(&table, bytes)), expected, "{bytes:02x?}");
        }
        let call = uops_of(&table, &[0xe8, 0, 0, 0, 0]);
        let count = |kind| call.iter().filter(|uop| uop.kind == kind).count();
        assert_eq!([count(Compute), count(StoreAddress), count(StoreData)], [1; 3]);
    }

    #[test]
    fn addresses_of_three_parts_have_ports_of_their_own() {
        let zen4 = UopTable::find("znver4").unwrap();
        let [two, three] = [&[0x48, 0x8d, 0x04, 0x08][..], &[0x48, 0x8d, 0x44, 0x08, 0x08]]
            .map(|bytes| uops_of(&zen4, bytes)[0]);
        assert_eq!((two.ports.count_ones(), two.latency), (4, 1));
        assert_eq!((three.ports.count_ones(), three.latency), (2, 2));
        // Those of rotations.
        assert_eq!(three.ports, uops_of(&zen4, &[0x48, 0xc1, 0xc8, 0x03])[0].ports);
    }

    #[test]
    fn repeated_string_instructions_have_microcode() {
        let microcode = |bytes: &[u8]| {
            uops_of(&table(), bytes).iter().filter(|uop| uop.kind == UopKind::Microcode).count()
        };
        assert_eq!(microcode(&[0xf3, 0x48, 0xab]), 1); // rep stosq
        assert_eq!(microcode(&[0x48, 0xab]), 0); // stosq
        assert_eq!(microcode(&[0xf3, 0x90]), 0); // pause
    }

    #[test]
    fn operands_and_results() {
        let table = table();
        let (rax, rcx, rbx) =
            (register(Register::RAX), register(Register::RCX), register(Register::RBX));
        let add = uops_of(&table, &[0x48, 0x01, 0xc8]);
        let sorted = |mut all: [UopRegister; 3]| {
            all.sort_unstable();
            all
        };
        assert_eq!(sorted(add[0].reads), sorted([rax, rcx, UopRegister::NONE]));
        assert_eq!(sorted(add[0].writes), sorted([rax, registers::flags(), UopRegister::DISCARD]));
        assert_eq!(add[0].latency, 1);
        // The load's address is rbx; the addition waits for the loaded value and rax.
        let add = uops_of(&table, &[0x48, 0x03, 0x03]);
        assert_eq!(add[0].reads[0], rbx);
        assert_eq!(add[0].writes[0], registers::loaded(0));
        assert_eq!(sorted(add[1].reads), sorted([registers::loaded(0), rax, UopRegister::NONE]));
        // A load keeps what it does not write of a register: mov al, [rbx].
        let part = uops_of(&table, &[0x8a, 0x03]);
        assert!(part.iter().any(|uop| uop.reads.contains(&rax)), "{part:?}");
        // The store of `add [rbx], rax` stores the sum.
        let store = uops_of(&table, &[0x48, 0x01, 0x03]);
        assert_eq!(store[3].reads[0], registers::result());
        assert!(store[1].writes.contains(&registers::result()));
        // pop changes the stack pointer for nothing.
        let pop = uops_of(&table, &[0x58]);
        assert_eq!(pop[0].writes[0], rax);
        assert!(!pop[0].writes.contains(&register(Register::RSP)));
        // A multiplication takes three cycles on one port.
        let multiply = uops_of(&table, &[0x48, 0x0f, 0xaf, 0xc1]);
        assert_eq!((multiply[0].latency, multiply[0].ports.count_ones()), (3, 1));
        // An atomic addition takes what the machine says.
        let atomic = uops_of(&table, &[0xf0, 0x48, 0x01, 0x03]);
        let slowest = atomic.iter().map(|uop| uop.latency).max();
        assert_eq!(slowest, Some(18));
        // Its load waits for the stores before it. That of `add [rbx], rax` does not.
        let waits = |uops: &[Uop]| uops.iter().filter(|uop| uop.waits_for_stores).count();
        assert_eq!((waits(&atomic), waits(&store)), (1, 0));
        // movdqu xmm0, [rbx] takes longer than mov rax, [rbx].
        let latency = |bytes: &[u8]| uops_of(&table, bytes)[0].latency;
        assert_eq!(latency(&[0xf3, 0x0f, 0x6f, 0x03]), 3);
        assert_eq!(latency(&[0x48, 0x8b, 0x03]), 0);
        // mov rax, [rbx + 8 * rcx]; mov rax, [rbx + rcx]
        assert_eq!(latency(&[0x48, 0x8b, 0x04, 0xcb]), 1);
        assert_eq!(latency(&[0x48, 0x8b, 0x04, 0x0b]), 0);
        // lea rax, [rbx + rcx + 1]; lea rax, [rbx + 8 * rcx]
        assert_eq!(latency(&[0x48, 0x8d, 0x44, 0x0b, 0x01]), 2);
        assert_eq!(latency(&[0x48, 0x8d, 0x04, 0xcb]), 1);
    }

    /// Loads, computations and stores are operations of a simple machine.
    #[test]
    fn each_operation_of_a_simple_machine_is_a_slot() {
        use UopKind::{Compute, Eliminated, Load, StoreAddress, StoreData};
        let table = UopTable::find("r10000").unwrap();
        let cases: [(&[u8], &[(UopKind, bool)]); 9] = [
            (&[0x48, 0x01, 0xc8], &[(Compute, true)]), // add rax, rcx
            (&[0x48, 0x89, 0xc8], &[(Compute, true)]), // mov rax, rcx
            (&[0x31, 0xc0], &[(Compute, true)]),       // xor eax, eax
            (&[0x48, 0x8b, 0x03], &[(Load, true)]),    // mov rax, [rbx]
            (&[0x48, 0x03, 0x03], &[(Load, true), (Compute, true)]), // add rax, [rbx]
            (&[0x48, 0x89, 0x03], &[(StoreAddress, true), (StoreData, false)]), // mov [rbx], rax
            (&[0x50], &[(StoreAddress, true), (StoreData, false)]), // push rax
            (&[0x0f, 0x1f, 0x00], &[(Eliminated, true)]), // nop
            (
                &[0x48, 0x01, 0x03], // add [rbx], rax
                &[(Load, true), (Compute, true), (StoreAddress, true), (StoreData, false)],
            ),
        ];
        for (bytes, expected) in cases {
            assert_eq!(kinds(&uops_of(&table, bytes)), expected, "{bytes:02x?}");
        }
        // A register set to zero waits for nothing; a comparison and its jump are two operations.
        assert_eq!(uops_of(&table, &[0x31, 0xc0])[0].reads, [UopRegister::NONE; 3]);
        let code: [&[u8]; 2] = [&[0x48, 0x39, 0xc8], &[0x74, 0x00]];
        let made = table.translate(0, &code, LATENCIES, &mut Vec::new());
        assert_eq!([made[0].slots, made[1].slots], [1, 1]);
        let multiply = uops_of(&table, &[0x48, 0x0f, 0xaf, 0xc1]);
        assert_eq!(multiply[0].latency, 10);
    }

    #[test]
    fn serialising_instructions_have_their_class() {
        use sim::core::Serialising;
        let table = table();
        let cases: [(&[u8], Serialising); 9] = [
            (&[0x0f, 0x05], Serialising::SystemCall),
            (&[0x48, 0x0f, 0x07], Serialising::SystemReturn),
            (&[0x48, 0xcf], Serialising::InterruptReturn),
            (&[0x0f, 0x01, 0xf8], Serialising::SwapBase),
            (&[0xfa], Serialising::InterruptsOff),
            (&[0xfb], Serialising::InterruptsOn),
            (&[0x0f, 0x22, 0xd8], Serialising::WriteAddressSpace),
            (&[0x0f, 0x22, 0xe0], Serialising::Other),
            (&[0x0f, 0xa2], Serialising::Identify),
        ];
        for (bytes, class) in cases {
            assert_eq!(uops_of(&table, bytes)[0].kind, UopKind::Serialising(class), "{bytes:02x?}");
        }
    }

    #[test]
    fn a_comparison_and_its_jump_are_one_uop() {
        let table = table();
        let code: [&[u8]; 3] = [&[0x48, 0x39, 0xc8], &[0x74, 0x00], &[0x74, 0x00]];
        let mut uops = Vec::new();
        let made = table.translate(0, &code, LATENCIES, &mut uops);
        assert_eq!(made.iter().map(|it| it.slots).collect::<Vec<_>>(), [1, 0, 1]);
        assert_eq!(uops[0].ports, table.branch);
        assert_eq!(uops[0].reads.iter().filter(|it| **it != UopRegister::NONE).count(), 2);
    }

    #[test]
    fn a_move_and_what_changes_its_result_are_one_slot() {
        let table = UopTable::find("znver5").unwrap();
        let mut uops = Vec::new();
        // mov rax, rcx; sub rax, rdx; jne; shl rax, 3
        let code: [&[u8]; 4] =
            [&[0x48, 0x89, 0xc8], &[0x48, 0x29, 0xd0], &[0x75, 0], &[0x48, 0xc1, 0xe0, 3]];
        let made = table.translate(0, &code, LATENCIES, &mut uops);
        let counts: Vec<_> = made.iter().map(|it| (it.uops, it.slots)).collect();
        assert_eq!(counts, [(2, 1), (0, 0), (0, 0), (1, 1)]);
        assert_eq!(kinds(&uops[..2]), [(UopKind::Eliminated, true), (UopKind::Compute, false)]);
        assert_eq!(uops[1].ports, table.branch);
    }

    #[test]
    fn results_take_registers_of_their_files() {
        use RegisterFile::{Any, Integer, Vector};
        let table = UopTable::find("znver4").unwrap();
        let set = |files: &[RegisterFile]| {
            files.iter().fold(RegisterFiles::NONE, |set, file| set.with(*file))
        };
        let cases: [(&[u8], &[&[RegisterFile]]); 7] = [
            (&[0x48, 0x01, 0xc8], &[&[Integer, Any]]), // add rax, rcx
            (&[0x48, 0x39, 0xc8], &[&[Any]]),          // cmp rax, rcx
            (&[0x48, 0x8b, 0x06], &[&[Integer, Any]]), // mov rax, [rsi]
            // add rax, [rsi]: what was loaded, and the sum
            (&[0x48, 0x03, 0x06], &[&[Any], &[Integer, Any]]),
            (&[0xf2, 0x0f, 0x58, 0xc1], &[&[Vector, Any]]), // addsd xmm0, xmm1
            (&[0x48, 0x89, 0xc8], &[&[]]),                  // mov rax, rcx: renamed
            (&[0x48, 0x89, 0x06], &[&[], &[]]),             // mov [rsi], rax
        ];
        for (bytes, files) in cases {
            let uops = uops_of(&table, bytes);
            let found: Vec<_> = uops.iter().map(|uop| uop.files).collect();
            assert_eq!(
                found,
                files.iter().map(|files| set(files)).collect::<Vec<_>>(),
                "{bytes:x?}"
            );
        }
    }

    /// Whatever the bytes: no panic, at least one slot unless it is fused, and few uops.
    #[test]
    fn any_bytes_are_translated() {
        let table = table();
        let mut state = 3_u64;
        let mut uops = Vec::new();
        for _ in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let bytes = state.to_le_bytes();
            uops.clear();
            let made = table.translate(0, &[&bytes[1..], &bytes], LATENCIES, &mut uops);
            assert!(made[0].slots > 0 && usize::from(made[0].uops) <= MOST_UOPS);
            assert_eq!(made[0].uops + made[1].uops, uops.len() as u8);
        }
    }
}
