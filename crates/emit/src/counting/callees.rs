//! The callees of calls through registers, where the code names them. A kernel for User Mode Linux
//! is compiled for any distance (`-mcmodel=large`): it loads the callee's address into a register,
//! sometimes many blocks before the call.
//!
//! Input: an object and its flow graph. Output: calls and jumps with their callees. The method is
//! forward constant propagation over the pieces. Where the flow graph does not show how control
//! arrives, the registers are unknown.

use crate::counting::plan::ObjectFlow;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register, UsedRegister,
};
use image::object::KernelObject;
use image::object::elf::ElfRelocation;
use object::elf::R_X86_64_64;

/// A call or jump through a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThroughRegister {
    /// Offset of the instruction in `.text`.
    pub at: u32,
    /// Offset of the function that it enters.
    pub callee: u32,
    /// A call; otherwise a jump.
    pub is_call: bool,
}

/// Per general register, by number: the offset in `.text` that it holds.
type Registers = [Option<u32>; 16];

/// The registers that a called function may overwrite: rax, rcx, rdx, rsi, rdi, r8 to r11 (System V
/// ABI, section 3.2.1).
const CALL_CLOBBERED: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

/// The calls and jumps whose callee is known, ascending.
pub(crate) fn through_registers(
    object: &KernelObject<'_>,
    flow: &ObjectFlow,
) -> Vec<ThroughRegister> {
    let mut scan = Scan { object, factory: InstructionInfoFactory::new(), found: Vec::new() };
    let mut before: Vec<Option<Registers>> =
        flow.flow.open_in.iter().map(|&open| open.then_some([None; 16])).collect();
    let mut successors: Vec<Vec<u32>> = vec![Vec::new(); object.pieces.len()];
    for &(from, to) in &flow.flow.edges {
        successors[from as usize].push(to);
    }
    let mut work: Vec<u32> =
        (0..object.pieces.len() as u32).rev().filter(|&n| before[n as usize].is_some()).collect();
    while let Some(n) = work.pop() {
        let Some(mut registers) = before[n as usize] else { continue };
        scan.piece(n as usize, &mut registers);
        for &to in &successors[n as usize] {
            let met = meet(before[to as usize], &registers);
            if before[to as usize] != Some(met) {
                before[to as usize] = Some(met);
                work.push(to);
            }
        }
    }
    scan.found.clear();
    for (n, registers) in before.into_iter().enumerate() {
        if let Some(mut registers) = registers {
            scan.piece(n, &mut registers);
        }
    }
    scan.found
}

/// Keeps the registers that hold the same address on both ways.
fn meet(before: Option<Registers>, other: &Registers) -> Registers {
    let Some(before) = before else { return *other };
    std::array::from_fn(|r| before[r].filter(|_| before[r] == other[r]))
}

struct Scan<'o, 'a> {
    object: &'o KernelObject<'a>,
    factory: InstructionInfoFactory,
    found: Vec<ThroughRegister>,
}

impl Scan<'_, '_> {
    /// Runs a piece: `registers` holds the values before the piece, and afterwards the values
    /// behind it.
    fn piece(&mut self, n: usize, registers: &mut Registers) {
        let piece = &self.object.pieces[n];
        let code =
            &self.object.elf.bytes(self.object.text)[piece.at as usize..piece.end() as usize];
        let relocations = &self.object.relocations[self.object.text.0 as usize];
        let mut next = relocations.partition_point(|r| r.offset < u64::from(piece.at));
        for i in &mut Decoder::with_ip(64, code, u64::from(piece.at), DecoderOptions::NONE) {
            while relocations.get(next).is_some_and(|r| r.offset < i.ip()) {
                next += 1;
            }
            let relocation = relocations.get(next).filter(|r| r.offset < i.next_ip());
            self.note(&i, registers);
            self.step(&i, relocation, registers);
        }
    }

    fn note(&mut self, i: &Instruction, registers: &Registers) {
        let is_call = i.flow_control() == FlowControl::IndirectCall;
        if !is_call && i.flow_control() != FlowControl::IndirectBranch
            || i.op0_kind() != OpKind::Register
        {
            return;
        }
        if let Some(callee) = number(i.op0_register()).and_then(|r| registers[r]) {
            let at = i.ip() as u32;
            self.found.push(ThroughRegister { at, callee, is_call });
        }
    }

    fn step(
        &mut self,
        i: &Instruction,
        relocation: Option<&ElfRelocation>,
        registers: &mut Registers,
    ) {
        let moved = (i.mnemonic() == Mnemonic::Mov
            && i.op0_kind() == OpKind::Register
            && i.op0_register().is_gpr64())
        .then(|| match i.op1_kind() {
            OpKind::Immediate64 => relocation.and_then(|r| self.function(r)),
            OpKind::Register => number(i.op1_register()).and_then(|r| registers[r]),
            _ => None,
        })
        .flatten();
        let used = self.factory.info(i).used_registers();
        for register in used.iter().filter(|u| writes(u)).filter_map(|u| number(u.register())) {
            registers[register] = None;
        }
        if matches!(i.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
            CALL_CLOBBERED.iter().for_each(|&r| registers[r] = None);
        }
        if let (Some(callee), Some(register)) = (moved, number(i.op0_register())) {
            registers[register] = Some(callee);
        }
    }

    /// The function of `.text` whose address a relocation writes.
    fn function(&self, r: &ElfRelocation) -> Option<u32> {
        let symbol = self.object.elf.symbol(r.symbol);
        if r.kind != R_X86_64_64 || symbol.section() != Some(self.object.text) {
            return None;
        }
        let at = u32::try_from((symbol.value as i64).wrapping_add(r.addend)).ok()?;
        self.object.functions.binary_search_by_key(&at, |f| f.at).is_ok().then_some(at)
    }
}

fn number(register: Register) -> Option<usize> {
    register.is_gpr().then(|| register.full_register().number())
}

fn writes(used: &UsedRegister) -> bool {
    !matches!(
        used.access(),
        OpAccess::None | OpAccess::NoMemAccess | OpAccess::Read | OpAccess::CondRead
    )
}
