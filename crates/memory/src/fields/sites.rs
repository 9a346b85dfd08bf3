//! Which field of which structure an instruction of the kernel accesses, by its code alone.
//!
//! Input: the kernel's code and its BTF. Output: for instructions, the structure that a register
//! points to, and the place in it. Registers get types where functions begin (from the types of
//! their parameters), where a field that is a pointer is loaded, and where a function returns a
//! pointer. The types follow moves and constant offsets, block by block. Where two ways meet, only
//! what both say is kept. An instruction with an index register gets no type. Where C code casts a
//! pointer to another structure, the type is that from before the cast.

use crate::misses::variables::Variables;
use anyhow::{Context, Result};
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};
use image::btf::Btf;
use image::btf::fields::TypeNumber;
use image::btf::shapes::{FunctionType, TypeShape};
use image::{BlockEnd, Image};
use object::{Object, ObjectSection};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

/// A place in a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SitePlace {
    /// The structure.
    pub structure: TypeNumber,
    /// Bytes from its beginning.
    pub offset: u64,
}

/// The places that instructions access, by the address of the instruction.
pub(super) type TypedSites = HashMap<u64, SitePlace>;

/// The registers that pass arguments, in order.
const ARGUMENTS: [Register; 6] =
    [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];
/// The registers that a call keeps.
const KEPT: [Register; 6] =
    [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];
/// The longest structure whose fields are looked for.
const LONGEST: i64 = 1 << 20;

/// What a register holds: the structure it points to, and how far behind its beginning.
type Pointer = Option<(TypeNumber, i64)>;

/// What all registers hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Registers([Pointer; 16]);

impl Registers {
    fn of(&self, register: Register) -> Pointer {
        register.is_gpr64().then(|| self.0[register.number() % 16]).flatten()
    }

    fn set(&mut self, register: Register, to: Pointer) {
        if register.is_gpr() {
            self.0[register.full_register().number() % 16] = to;
        }
    }

    /// What both know.
    fn meet(&self, other: &Registers) -> Registers {
        let mut both = *self;
        for (own, other) in both.0.iter_mut().zip(&other.0) {
            if own != other {
                *own = None;
            }
        }
        both
    }
}

/// Finds the places that the instructions of a kernel access.
///
/// # Errors
/// The vmlinux cannot be read, or its BTF is damaged.
pub(super) fn typed_sites(
    vmlinux: &[u8],
    image: &Image,
    btf: &Btf<'_>,
    variables: &Variables,
) -> Result<TypedSites> {
    let elf = object::File::parse(vmlinux).context("not an ELF file that can be read")?;
    let mut sections = Vec::new();
    for section in elf.sections().filter(|section| section.address() != 0) {
        if section.name().is_ok_and(|name| name.contains("text")) {
            sections.push((section.address(), section.data()?));
        }
    }
    let names = image.functions.iter().map(|function| (function.addr.0, function.name.as_str()));
    let mut search = SiteSearch {
        btf,
        variables,
        functions: btf.functions()?,
        names: names.collect(),
        sections,
        pointers: RefCell::default(),
        per_cpu: RefCell::default(),
        factory: RefCell::new(InstructionInfoFactory::new()),
        sites: HashMap::new(),
    };
    for function in &image.functions {
        search.function(image, function.blocks.clone(), &function.name)?;
    }
    Ok(search.sites)
}

struct SiteSearch<'a> {
    btf: &'a Btf<'a>,
    variables: &'a Variables,
    functions: HashMap<String, FunctionType>,
    names: HashMap<u64, &'a str>,
    sections: Vec<(u64, &'a [u8])>,
    /// The structures that fields point to.
    pointers: RefCell<HashMap<(TypeNumber, i64), Option<TypeNumber>>>,
    /// The types of per-CPU variables, by their offset.
    per_cpu: RefCell<HashMap<u64, Option<TypeNumber>>>,
    factory: RefCell<InstructionInfoFactory>,
    sites: TypedSites,
}

impl SiteSearch<'_> {
    fn function(&mut self, image: &Image, blocks: std::ops::Range<u32>, name: &str) -> Result<()> {
        let Some(entry) = image.blocks.get(blocks.start as usize) else { return Ok(()) };
        let numbers: HashMap<u64, u32> =
            blocks.clone().map(|at| (image.blocks[at as usize].addr.0, at)).collect();
        let mut begins: HashMap<u32, Registers> = HashMap::new();
        begins.insert(blocks.start, self.arguments(name)?);
        let mut waiting = vec![numbers[&entry.addr.0]];
        let mut seen = HashSet::new();
        while let Some(at) = waiting.pop() {
            let block = image.blocks[at as usize];
            let Some(code) = self.code(block.addr.0, block.size) else { continue };
            let end = self.block(block.addr.0, code, begins[&at], None)?;
            seen.insert(at);
            let after_call = |callee| self.after_call(end, callee);
            let next = Some(block.end_addr().0);
            let ways = match block.end {
                BlockEnd::FallThrough => [(next, end), (None, end)],
                BlockEnd::Branch(target) => [(next, end), (Some(target.0), end)],
                BlockEnd::Jump(target) => [(Some(target.0), end), (None, end)],
                BlockEnd::Call(callee) => [(next, after_call(callee.map(|it| it.0))?), (None, end)],
                BlockEnd::Stop => [(None, end), (None, end)],
            };
            for (to, registers) in ways {
                let Some(&to) = to.and_then(|to| numbers.get(&to)) else { continue };
                let met = begins.get(&to).map_or(registers, |known| known.meet(&registers));
                if begins.insert(to, met) != Some(met) || !seen.contains(&to) {
                    waiting.push(to);
                }
            }
        }
        let mut sites = std::mem::take(&mut self.sites);
        for at in seen {
            let block = image.blocks[at as usize];
            if let Some(code) = self.code(block.addr.0, block.size) {
                self.block(block.addr.0, code, begins[&at], Some(&mut sites))?;
            }
        }
        self.sites = sites;
        Ok(())
    }

    fn code(&self, addr: u64, bytes: u32) -> Option<&[u8]> {
        self.sections.iter().find_map(|(start, data)| {
            let at = usize::try_from(addr.checked_sub(*start)?).ok()?;
            data.get(at..at + bytes as usize)
        })
    }

    /// What registers hold where a function begins.
    fn arguments(&self, name: &str) -> Result<Registers> {
        let mut registers = Registers::default();
        let Some(function) = self.functions.get(name) else { return Ok(registers) };
        for ((_, of), register) in function.parameters.iter().zip(ARGUMENTS) {
            // A structure that is passed by value may take other registers.
            if matches!(self.btf.shape(*of)?, TypeShape::Structure(_)) {
                break;
            }
            registers.set(register, self.btf.pointed_structure(*of)?.map(|to| (to, 0)));
        }
        Ok(registers)
    }

    fn after_call(&self, before: Registers, callee: Option<u64>) -> Result<Registers> {
        let name = callee.and_then(|callee| self.names.get(&callee)).copied();
        if name == Some("__fentry__") {
            return Ok(before);
        }
        let mut after = Registers::default();
        KEPT.into_iter().for_each(|register| after.set(register, before.of(register)));
        if let Some(returns) = name.and_then(|it| self.functions.get(it)).and_then(|it| it.returns)
        {
            let to = self.btf.pointed_structure(returns)?;
            after.set(Register::RAX, to.map(|to| (to, 0)));
        }
        Ok(after)
    }

    /// Follows a block. `sites`: where to note its accesses.
    fn block(
        &self,
        addr: u64,
        code: &[u8],
        begin: Registers,
        mut sites: Option<&mut TypedSites>,
    ) -> Result<Registers> {
        let mut registers = begin;
        let mut factory = self.factory.borrow_mut();
        let decoder = Decoder::with_ip(64, code, addr, DecoderOptions::NONE);
        for instruction in decoder {
            let place = self.place(&instruction, &registers)?;
            if let (Some(sites), Some(place)) = (sites.as_deref_mut(), place) {
                sites.insert(instruction.ip(), place);
            }
            self.step(&instruction, place, &mut registers, &mut factory)?;
        }
        Ok(registers)
    }

    /// The place that an instruction's memory operand names.
    fn place(&self, instruction: &Instruction, registers: &Registers) -> Result<Option<SitePlace>> {
        let has = (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::Memory);
        let computes = instruction.mnemonic() == Mnemonic::Lea;
        if !has || computes || instruction.memory_index() != Register::None {
            return Ok(None);
        }
        let displacement = instruction.memory_displacement64() as i64;
        let base = instruction.memory_base();
        let in_per_cpu = instruction.segment_prefix() == Register::GS;
        if in_per_cpu && matches!(base, Register::None | Register::RIP) {
            return self.per_cpu_variable(instruction.memory_displacement64());
        }
        let Some((structure, offset)) = registers.of(base) else { return Ok(None) };
        let offset = offset.wrapping_add(displacement);
        let inside =
            (0..LONGEST).contains(&offset) && (offset as u64) < self.btf.size_of(structure)?.max(1);
        Ok(inside.then_some(SitePlace { structure, offset: offset as u64 }))
    }

    fn per_cpu_variable(&self, offset: u64) -> Result<Option<SitePlace>> {
        let Some((start, _, name)) = self.variables.per_cpu_variable(offset) else {
            return Ok(None);
        };
        let known = self.per_cpu.borrow().get(start).copied();
        let kind = match known {
            Some(kind) => kind,
            None => {
                let kind = self.btf.variable(name)?;
                self.per_cpu.borrow_mut().insert(*start, kind);
                kind
            }
        };
        Ok(kind.map(|structure| SitePlace { structure, offset: offset - start }))
    }

    fn step(
        &self,
        instruction: &Instruction,
        place: Option<SitePlace>,
        registers: &mut Registers,
        factory: &mut InstructionInfoFactory,
    ) -> Result<()> {
        let to = match instruction.op_count() {
            0 => Register::None,
            _ if instruction.op_kind(0) == OpKind::Register => instruction.op_register(0),
            _ => Register::None,
        };
        let from = match instruction.op_count() {
            2 if instruction.op_kind(1) == OpKind::Register => instruction.op_register(1),
            _ => Register::None,
        };
        let constant = || -> Option<i64> {
            let by = matches!(
                instruction.op1_kind(),
                OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate64
            );
            by.then(|| instruction.immediate(1) as i64)
        };
        let is_pointer = to.is_gpr64();
        let new: Option<Pointer> = match instruction.mnemonic() {
            Mnemonic::Mov if is_pointer && from.is_gpr64() => Some(registers.of(from)),
            Mnemonic::Mov if is_pointer && instruction.op1_kind() == OpKind::Memory => {
                Some(match place {
                    None => None,
                    Some(place) => self.pointer(place)?.map(|structure| (structure, 0)),
                })
            }
            Mnemonic::Lea if is_pointer && instruction.memory_index() == Register::None => {
                let by = instruction.memory_displacement64() as i64;
                let base = registers.of(instruction.memory_base());
                Some(base.map(|(structure, at)| (structure, at.wrapping_add(by))))
            }
            Mnemonic::Add if is_pointer && instruction.op1_kind() == OpKind::Memory => {
                // A pointer to a variable of each CPU, and where the area of a CPU lies.
                let area = instruction.segment_prefix() == Register::GS
                    || instruction.memory_base() == Register::None
                        && instruction.memory_index_scale() == 8;
                Some(registers.of(to).filter(|_| area))
            }
            Mnemonic::Add | Mnemonic::Sub if is_pointer && constant().is_some() => {
                let by = constant().unwrap_or_default();
                let by = if instruction.mnemonic() == Mnemonic::Sub { -by } else { by };
                Some(registers.of(to).map(|(structure, at)| (structure, at.wrapping_add(by))))
            }
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push => return Ok(()),
            Mnemonic::Cmovae | Mnemonic::Cmove | Mnemonic::Cmovne if is_pointer => {
                Some(registers.of(to).filter(|_| registers.of(to) == registers.of(from)))
            }
            _ => None,
        };
        if let Some(new) = new {
            registers.set(to, new);
            return Ok(());
        }
        for used in factory.info(instruction).used_registers() {
            let writes = matches!(
                used.access(),
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            );
            if writes {
                registers.set(used.register(), None);
            }
        }
        Ok(())
    }

    /// The structure to which the pointer at a place points.
    fn pointer(&self, place: SitePlace) -> Result<Option<TypeNumber>> {
        let key = (place.structure, place.offset as i64);
        if let Some(&known) = self.pointers.borrow().get(&key) {
            return Ok(known);
        }
        let found = self.btf.pointer_at(place.structure, place.offset)?;
        self.pointers.borrow_mut().insert(key, found);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::misses::variables;
    use image::examples::btf_section;

    const START: u64 = 0xffff_ffff_8100_0000;

    /// `struct list { struct list *next; u64 n; }; u64; struct list *list (a variable of each CPU)`
    fn section() -> Vec<u8> {
        let strings = b"\0list\0next\0n\0u64\0";
        let types = [
            vec![1, 4 << 24 | 2, 16, 6, 2, 0, 11, 3, 64], // 1: struct list
            vec![0, 2 << 24, 1],                          // 2: a pointer to it
            vec![13, 1 << 24, 8, 64],                     // 3: u64
            vec![1, 14 << 24, 2, 1],                      // 4: the variable
        ];
        btf_section(&types, strings)
    }

    /// The places of the instructions of a block that begins with a list in `rdi`.
    fn places(code: &[u8]) -> Vec<(u64, u64)> {
        let section = section();
        let btf = Btf::parse(&section).unwrap();
        let variables = variables::of(&[(0x100, 8, "x")], &[(0x40, 8, "list")]);
        let search = SiteSearch {
            btf: &btf,
            variables: &variables,
            functions: HashMap::new(),
            names: HashMap::new(),
            sections: Vec::new(),
            pointers: RefCell::default(),
            per_cpu: RefCell::default(),
            factory: RefCell::new(InstructionInfoFactory::new()),
            sites: HashMap::new(),
        };
        let mut begin = Registers::default();
        let list = btf.type_of_structure("list").unwrap().unwrap();
        begin.set(Register::RDI, Some((list, 0)));
        let mut sites = TypedSites::new();
        search.block(START, code, begin, Some(&mut sites)).unwrap();
        let mut found: Vec<_> = sites.iter().map(|(at, it)| (at - START, it.offset)).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn types_follow_pointers_moves_and_offsets() {
        let code = [
            &[0x48, 0x8b, 0x07][..],   // 0: mov (%rdi),%rax
            &[0x48, 0x89, 0xc3],       // 3: mov %rax,%rbx
            &[0x48, 0x8b, 0x43, 0x08], // 6: mov 8(%rbx),%rax: no pointer
            &[0x48, 0x8b, 0x00],       // 10: mov (%rax),%rax: nothing known
            &[0x48, 0x83, 0xc3, 0x08], // 13: add $8,%rbx
            &[0x48, 0x89, 0x03],       // 17: mov %rax,(%rbx): n
            &[0x48, 0x89, 0x43, 0x08], // 20: mov %rax,8(%rbx): behind the list
            &[0x48, 0x8d, 0x57, 0x08], // 24: lea 8(%rdi),%rdx
            &[0x48, 0x8b, 0x4a, 0xf8], // 28: mov -8(%rdx),%rcx: next
            &[0x48, 0x8b, 0x04, 0xc7], // 32: mov (%rdi,%rax,8),%rax: an index
            &[0x31, 0xff],             // 36: xor %edi,%edi
            &[0x48, 0x8b, 0x07],       // 38: mov (%rdi),%rax: nothing known
        ];
        assert_eq!(places(&code.concat()), [(0, 0), (6, 8), (17, 8), (28, 0)]);
    }

    #[test]
    fn a_variable_of_each_cpu_gives_its_type() {
        let code = [
            &[0x65, 0x48, 0x8b, 0x04, 0x25, 0x40, 0, 0, 0][..], // 0: mov %gs:0x40,%rax
            &[0x48, 0x8b, 0x48, 0x08],                          // 9: mov 8(%rax),%rcx
            &[0x65, 0x48, 0x8b, 0x04, 0x25, 0x50, 0, 0, 0],     // 13: another variable
            &[0x48, 0x8b, 0x48, 0x08],                          // 22: nothing known
        ];
        assert_eq!(places(&code.concat()), [(0, 0), (9, 8)]);
    }

    #[test]
    fn what_two_ways_do_not_both_know_is_unknown() {
        let section = section();
        let btf = Btf::parse(&section).unwrap();
        let list = btf.type_of_structure("list").unwrap().unwrap();
        let (mut one, mut other) = <(Registers, Registers)>::default();
        one.set(Register::RAX, Some((list, 0)));
        one.set(Register::RBX, Some((list, 8)));
        other.set(Register::RAX, Some((list, 0)));
        let both = one.meet(&other);
        assert_eq!([both.of(Register::RAX), both.of(Register::RBX)], [Some((list, 0)), None]);
    }
}
