//! Small random programs as relocatable objects, the way a compiler writes them.
//!
//! Input: a fuzzer's bytes. Output: functions of basic blocks with branches, calls, static keys,
//! faults, warnings, the unwinder's states, and data that points into the code.

use crate::source::ByteSource;
use object::elf as types;
use object::write::{Object, Relocation, SectionId, Symbol, SymbolId, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind,
    SymbolScope,
};

/// The parts of a program.
pub struct GeneratedProgram {
    functions: Vec<GeneratedFunction>,
    /// What `.data` points to: function and block.
    pointers: Vec<(usize, usize)>,
    /// With a profile, a compiler puts the first functions into `.text.hot.`, up to the first of
    /// these numbers, and those from the second number on into `.text.unlikely.`.
    split: Option<[usize; 2]>,
}

/// The sections of the functions of a program that was compiled with a profile.
pub const SPLIT: [&str; 3] = [".text.hot.", ".text", ".text.unlikely."];
/// The section of the code that runs first.
pub const HEAD: &str = ".head.text";

struct GeneratedFunction {
    blocks: Vec<GeneratedBlock>,
    /// How many int3 or no-ops stand between it and the next one, beyond what aligning takes.
    padding: usize,
}

struct GeneratedBlock {
    /// The unwinder's state from here on, if it changes.
    state: Option<OrcEntry>,
    operations: Vec<Operation>,
    end: End,
}

impl GeneratedFunction {
    /// Whether a path reaches a return, if of the functions that it calls these return.
    fn returns(&self, returning: &[bool]) -> bool {
        let mut seen = vec![false; self.blocks.len()];
        let mut todo = vec![0];
        while let Some(number) = todo.pop() {
            if std::mem::replace(&mut seen[number], true) {
                continue;
            }
            let block = &self.blocks[number];
            if !block.reaches_its_end(returning, &mut todo) {
                continue;
            }
            match block.end {
                End::Return { .. } => return true,
                End::RunsOn => todo.push(number + 1),
                End::Jump { target, .. } => todo.push(target),
                End::Branch { target, .. } => todo.extend([target, number + 1]),
                End::Bug => {}
            }
        }
        false
    }
}

impl GeneratedBlock {
    /// Whether control passes all operations. The blocks to which it may go before that come to
    /// `exits`.
    fn reaches_its_end(&self, returning: &[bool], exits: &mut Vec<usize>) -> bool {
        for operation in &self.operations {
            match *operation {
                Operation::Key { target, .. } | Operation::Fault(target) => exits.push(target),
                Operation::Call(function) if !returning[function] => return false,
                _ => {}
            }
        }
        true
    }
}

type OrcEntry = [u8; 6];

#[derive(Clone, Copy)]
enum Operation {
    Plain(&'static [u8]),
    /// `mov slot(%rip), %rax`
    Load(u8),
    /// `movl $7, slot(%rip)`, with an immediate behind the operand
    Store(u8),
    /// `lea function(%rip), %rax`
    TakeAddress(usize),
    Call(usize),
    /// A no-op, or a jump to a block that a static key patches.
    Key {
        near: bool,
        target: usize,
    },
    /// `mov (%rdi), %rax`; a fault goes to a block.
    Fault(usize),
    /// `ud2` of a WARN.
    Warn,
}

#[derive(Clone, Copy)]
enum End {
    RunsOn,
    Return {
        guard: bool,
    },
    Jump {
        near: bool,
        target: usize,
    },
    Branch {
        near: bool,
        condition: u8,
        target: usize,
    },
    /// `ud2` of a BUG.
    Bug,
}

const PLAIN: [&[u8]; 8] = [
    &[0x31, 0xc0],                               // xor %eax, %eax
    &[0x85, 0xff],                               // test %edi, %edi
    &[0x48, 0x83, 0xc7, 0x08],                   // add $8, %rdi
    &[0xb8, 1, 0, 0, 0],                         // mov $1, %eax
    &[0x50],                                     // push %rax
    &[0xff, 0xd0],                               // call *%rax
    &[0x48, 0x8b, 0x47, 0x10],                   // mov 0x10(%rdi), %rax
    &[0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0xad, 0xde], // movabs $0xdead000000000000, %rax
];
const STATES: [OrcEntry; 4] =
    [[8, 0, 0, 0, 5, 2], [16, 0, 0, 0, 5, 2], [16, 0, 0xf0, 0xff, 0x15, 2], [24, 0, 0, 0, 5, 10]];
/// Bytes of `.data`, of which the pointers take the first ones.
const DATA: usize = 64;
const RETURN: u8 = 0xc3;
const INT3: u8 = 0xcc;
const TRAP: [u8; 2] = [0x0f, 0x0b];
const BUG: u16 = 0;
const WARNING: u16 = 1;

impl GeneratedProgram {
    pub fn new(source: &mut ByteSource<'_>) -> GeneratedProgram {
        let counts: Vec<usize> = (0..1 + source.below(5)).map(|_| 1 + source.below(6)).collect();
        let function = |&blocks: &usize, source: &mut ByteSource<'_>| GeneratedFunction {
            blocks: (0..blocks).map(|n| block(n, blocks, counts.len(), source)).collect(),
            padding: [0, 0, 1, 5, 16][source.below(5)],
        };
        let functions = counts.iter().map(|blocks| function(blocks, source)).collect();
        let pointers = (0..source.below(5))
            .map(|_| {
                let function = source.below(counts.len());
                (function, source.below(counts[function]))
            })
            .collect();
        let split = (source.below(3) > 0).then(|| {
            let hot = source.below(counts.len());
            [hot, hot + 1 + source.below(counts.len() - hot)]
        });
        GeneratedProgram { functions, pointers, split }
    }

    /// Which functions return: those in which some path reaches a return. A path ends at a call of
    /// a function that never returns.
    pub fn returning(&self) -> Vec<bool> {
        let mut returns = vec![false; self.functions.len()];
        loop {
            let now: Vec<bool> = self.functions.iter().map(|f| f.returns(&returns)).collect();
            if now == returns {
                return returns;
            }
            returns = now;
        }
    }

    /// Bytes of which programs of every kind are made.
    pub fn seeds() -> Vec<Vec<u8>> {
        let mut random = layout::random::SplitMix64::new(14);
        let bytes = |length: usize| (0..length).map(|_| random.next_u64() as u8).collect();
        [24, 60, 120, 200].map(bytes).into()
    }

    /// The object's bytes.
    pub fn object(&self) -> Vec<u8> {
        let mut writer = ProgramWriter::new();
        for (number, function) in self.functions.iter().enumerate() {
            writer.function(number, function);
        }
        let start = |number: usize| writer.sizes.get(number).map_or(writer.at(), |size| size.0);
        let bounds = self.split.map(|split| split.map(start));
        writer.finish(&self.pointers, bounds)
    }
}

fn block(
    number: usize,
    blocks: usize,
    functions: usize,
    source: &mut ByteSource<'_>,
) -> GeneratedBlock {
    let state = (number == 0 || source.below(4) == 0).then(|| STATES[source.below(STATES.len())]);
    let operations = (0..source.below(5)).map(|_| operation(blocks, functions, source)).collect();
    let near = source.below(2) == 1;
    let target = source.below(blocks);
    let end = match source.below(8) {
        0 | 1 => End::Return { guard: near },
        2 => End::Jump { near, target },
        3 => End::Bug,
        _ if number + 1 == blocks => End::Return { guard: near },
        4 => End::RunsOn,
        _ => End::Branch { near, condition: source.below(16) as u8, target },
    };
    GeneratedBlock { state, operations, end }
}

fn operation(blocks: usize, functions: usize, source: &mut ByteSource<'_>) -> Operation {
    match source.below(12) {
        0 => Operation::Load(source.below(DATA / 8) as u8 * 8),
        1 => Operation::Store(source.below(DATA / 8) as u8 * 8),
        2 => Operation::TakeAddress(source.below(functions)),
        3 | 4 => Operation::Call(source.below(functions)),
        5 => Operation::Key { near: source.below(2) == 1, target: source.below(blocks) },
        6 => Operation::Fault(source.below(blocks)),
        7 => Operation::Warn,
        _ => Operation::Plain(PLAIN[source.below(PLAIN.len())]),
    }
}

/// What another section refers to: a place in code.
struct Reference {
    field: u64,
    target: u64,
}

struct ProgramWriter {
    text: Vec<u8>,
    /// Start of each block of each function.
    blocks: Vec<Vec<u64>>,
    /// (place of a call's or operand's field, function, bytes from the field to the instruction's
    /// end, whether it is a call)
    functions_used: Vec<(u64, usize, bool)>,
    /// (field, place in `.data`, bytes from the field to the instruction's end)
    data_used: Vec<(u64, u64, i64)>,
    keys: Vec<(u64, u64)>,
    faults: Vec<(u64, u64)>,
    traps: Vec<(u64, u16)>,
    states: Vec<(u64, OrcEntry)>,
    sizes: Vec<(u64, u64)>,
}

/// A field that a branch within a function leaves for later.
struct Open {
    field: usize,
    near: bool,
    target: usize,
}

impl ProgramWriter {
    fn new() -> ProgramWriter {
        ProgramWriter {
            text: Vec::new(),
            blocks: Vec::new(),
            functions_used: Vec::new(),
            data_used: Vec::new(),
            keys: Vec::new(),
            faults: Vec::new(),
            traps: Vec::new(),
            states: Vec::new(),
            sizes: Vec::new(),
        }
    }

    fn function(&mut self, number: usize, function: &GeneratedFunction) {
        self.text.resize(self.text.len().next_multiple_of(16), 0x90);
        let start = self.text.len() as u64;
        // Short forms reach 127 bytes: only where the whole function is smaller.
        let short =
            function.blocks.iter().map(|b| 10 * b.operations.len() + 10).sum::<usize>() < 128;
        let (mut open, mut keys, mut faults, mut starts) = (vec![], vec![], vec![], vec![]);
        for block in &function.blocks {
            starts.push(self.at());
            if let Some(state) = block.state {
                // An empty block in front of it begins at the same place.
                let is_here = |last: &(u64, OrcEntry)| last.0 == self.text.len() as u64;
                self.states.pop_if(|last| is_here(last) && last.1 != [0; 6]);
                self.states.push((self.at(), state));
            }
            for &operation in &block.operations {
                match operation {
                    Operation::Key { target, .. } => keys.push((self.at(), target)),
                    Operation::Fault(target) => faults.push((self.at(), target)),
                    _ => {}
                }
                self.operation(operation, short);
            }
            open.extend(self.end(block.end, short));
        }
        for branch in open {
            let width = if branch.near { 4 } else { 1 };
            let end = branch.field + width;
            let distance = (starts[branch.target] as i64 - end as i64) as i32;
            self.text[branch.field..end].copy_from_slice(&distance.to_le_bytes()[..width]);
        }
        self.keys.extend(keys.into_iter().map(|(at, target)| (at, starts[target])));
        self.faults.extend(faults.into_iter().map(|(at, target)| (at, starts[target])));
        self.states.push((self.at(), [0; 6]));
        self.sizes.push((start, self.at() - start));
        self.blocks.push(starts);
        let filling = if number.is_multiple_of(2) { INT3 } else { 0x90 };
        self.text.resize(self.text.len() + function.padding, filling);
    }

    fn at(&self) -> u64 {
        self.text.len() as u64
    }

    fn operation(&mut self, operation: Operation, short: bool) {
        match operation {
            Operation::Plain(bytes) => self.text.extend(bytes),
            Operation::Load(slot) => {
                self.text.extend([0x48, 0x8b, 0x05, 0, 0, 0, 0]);
                self.data_used.push((self.at() - 4, slot.into(), 4));
            }
            Operation::Store(slot) => {
                self.text.extend([0xc7, 0x05, 0, 0, 0, 0, 7, 0, 0, 0]);
                self.data_used.push((self.at() - 8, slot.into(), 8));
            }
            Operation::TakeAddress(function) => {
                self.text.extend([0x48, 0x8d, 0x05, 0, 0, 0, 0]);
                self.functions_used.push((self.at() - 4, function, false));
            }
            Operation::Call(function) => {
                self.text.extend([0xe8, 0, 0, 0, 0]);
                self.functions_used.push((self.at() - 4, function, true));
            }
            Operation::Key { near, .. } if near || !short => {
                self.text.extend([0x0f, 0x1f, 0x44, 0, 0]);
            }
            Operation::Key { .. } => self.text.extend([0x66, 0x90]),
            Operation::Fault(_) => self.text.extend([0x48, 0x8b, 0x07]),
            Operation::Warn => self.trap(WARNING),
        }
    }

    fn trap(&mut self, flags: u16) {
        self.traps.push((self.at(), flags));
        self.text.extend(TRAP);
    }

    fn end(&mut self, end: End, short: bool) -> Option<Open> {
        let (opcode, near, target): (&[u8], bool, usize) = match end {
            End::RunsOn => return None,
            End::Bug => {
                self.trap(BUG);
                return None;
            }
            End::Return { guard } => {
                self.text.push(RETURN);
                self.text.extend(guard.then_some(INT3));
                return None;
            }
            End::Jump { near, target } if near || !short => (&[0xe9], true, target),
            End::Jump { target, .. } => (&[0xeb], false, target),
            End::Branch { near, condition, target } if near || !short => {
                (&[0x0f, 0x80 | condition], true, target)
            }
            End::Branch { condition, target, .. } => (&[0x70 | condition], false, target),
        };
        self.text.extend(opcode);
        let field = self.text.len();
        self.text.resize(field + if near { 4 } else { 1 }, 0);
        Some(Open { field, near, target })
    }

    /// `bounds`: where `.text` begins and ends between the sections that a profile makes.
    fn finish(self, pointers: &[(usize, usize)], bounds: Option<[u64; 2]>) -> Vec<u8> {
        let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let code = CodeSections::new(&mut object, &self.text, bounds);
        let data = section(&mut object, ".data", &[0x5a; DATA]);
        let mut b = Tables { code, object };
        let sizes = self.sizes.iter().enumerate();
        let functions: Vec<SymbolId> = sizes
            .map(|(n, &(at, size))| {
                let (part, at) = b.code.place(at);
                b.symbol(&format!("f{n}"), part.section, at, size)
            })
            .collect();
        b.symbol("data", data, 0, DATA as u64);
        if bounds.is_some() {
            let head = section(&mut b.object, HEAD, &[RETURN]);
            b.symbol("startup", head, 0, 1);
        }
        let data_symbol = b.object.section_symbol(data);
        for &(field, function, is_call) in &self.functions_used {
            let kind = if is_call { types::R_X86_64_PLT32 } else { types::R_X86_64_PC32 };
            let (part, field) = b.code.place(field);
            b.relocate(part.section, field, functions[function], -4, kind);
        }
        for &(field, slot, behind) in &self.data_used {
            let (part, field) = b.code.place(field);
            let addend = slot as i64 - behind;
            b.relocate(part.section, field, data_symbol, addend, types::R_X86_64_PC32);
        }
        for (number, &(function, block)) in pointers.iter().enumerate() {
            let (part, target) = b.code.place(self.blocks[function][block]);
            let field = 8 * number as u64;
            b.relocate(data, field, part.symbol, target as i64, types::R_X86_64_64);
        }
        self.tables(&mut b, data_symbol);
        b.object.write().expect("the object is right")
    }

    fn tables(&self, b: &mut Tables, data: SymbolId) {
        let pairs = |list: &[(u64, u64)], size: u64| {
            let at = |(n, &(site, target)): (usize, &(u64, u64))| {
                let field = size * n as u64;
                [Reference { field, target: site }, Reference { field: field + 4, target }]
            };
            list.iter().enumerate().flat_map(at).collect::<Vec<_>>()
        };
        let faults = [0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0].repeat(self.faults.len());
        b.table("__ex_table", &faults, &pairs(&self.faults, 12));
        let keys =
            b.table("__jump_table", &[0; 16].repeat(self.keys.len()), &pairs(&self.keys, 16));
        for n in 0..self.keys.len() as u64 {
            b.relocate(keys, 16 * n + 8, data, 8, types::R_X86_64_PC64);
        }
        let traps: Vec<u8> = (self.traps.iter())
            .flat_map(|(_, flags)| [&[0; 8][..], &[1, 0], &flags.to_le_bytes()].concat())
            .collect();
        let sites: Vec<Reference> = (self.traps.iter().enumerate())
            .map(|(n, &(target, _))| Reference { field: 12 * n as u64, target })
            .collect();
        let bugs = b.table("__bug_table", &traps, &sites);
        for n in 0..self.traps.len() as u64 {
            b.relocate(bugs, 12 * n + 4, data, 0, types::R_X86_64_PC32);
        }
        let ips = b.table(".orc_unwind_ip", &[0; 4].repeat(self.states.len()), &[]);
        for (n, &(at, state)) in self.states.iter().enumerate() {
            // The end of a function is in the section of the function.
            let (part, target) = if state == [0; 6] { b.code.end(at) } else { b.code.place(at) };
            b.relocate(ips, 4 * n as u64, part.symbol, target as i64, types::R_X86_64_PC32);
        }
        let states: Vec<u8> = self.states.iter().flat_map(|(_, state)| *state).collect();
        b.table(".orc_unwind", &states, &[]);
    }
}

fn section(object: &mut Object<'static>, name: &str, bytes: &[u8]) -> SectionId {
    aligned_section(object, name, bytes, 16)
}

fn aligned_section(
    object: &mut Object<'static>,
    name: &str,
    bytes: &[u8],
    align: u64,
) -> SectionId {
    let is_code = SPLIT.contains(&name) || name == HEAD;
    let kind = if is_code { SectionKind::Text } else { SectionKind::Data };
    let id = object.add_section(Vec::new(), name.as_bytes().to_vec(), kind);
    object.append_section_data(id, bytes, align);
    id
}

/// A section of code, and where it begins in the code of the whole program.
#[derive(Clone, Copy)]
struct CodeSection {
    section: SectionId,
    symbol: SymbolId,
    from: u64,
}

/// The sections of code in the order of their code.
struct CodeSections(Vec<CodeSection>);

impl CodeSections {
    fn new(object: &mut Object<'static>, text: &[u8], bounds: Option<[u64; 2]>) -> CodeSections {
        let [from, to] = bounds.unwrap_or([0, text.len() as u64]);
        let parts = [0..from, from..to, to..text.len() as u64];
        let mut found = Vec::new();
        for (name, part) in SPLIT.into_iter().zip(parts) {
            if part.is_empty() && name != ".text" {
                continue;
            }
            // A kernel's `.text` has the alignment of a page.
            let align = if bounds.is_some() && name == ".text" { 64 } else { 16 };
            let bytes = &text[part.start as usize..part.end as usize];
            let section = aligned_section(object, name, bytes, align);
            let symbol = object.section_symbol(section);
            found.push(CodeSection { section, symbol, from: part.start });
        }
        CodeSections(found)
    }

    /// The section of the code that begins at `at`, and the offset in that section.
    fn place(&self, at: u64) -> (CodeSection, u64) {
        let part = self.0.iter().rev().find(|part| part.from <= at).expect("the first begins at 0");
        (*part, at - part.from)
    }

    /// The section of the code that ends at `at`, and the offset in that section.
    fn end(&self, at: u64) -> (CodeSection, u64) {
        let part = self.0.iter().rev().find(|part| part.from < at).unwrap_or(&self.0[0]);
        (*part, at - part.from)
    }
}

/// The object that is being written.
struct Tables {
    object: Object<'static>,
    code: CodeSections,
}

impl Tables {
    fn symbol(&mut self, name: &str, section: SectionId, value: u64, size: u64) -> SymbolId {
        let kind = if name == "data" { SymbolKind::Data } else { SymbolKind::Text };
        self.object.add_symbol(Symbol {
            name: name.as_bytes().to_vec(),
            value,
            size,
            kind,
            scope: SymbolScope::Linkage,
            weak: false,
            section: SymbolSection::Section(section),
            flags: SymbolFlags::None,
        })
    }

    fn relocate(
        &mut self,
        section: SectionId,
        offset: u64,
        to: SymbolId,
        addend: i64,
        r_type: types::RelocationType,
    ) {
        let flags = RelocationFlags::Elf { r_type };
        let relocation = Relocation { offset, symbol: to, addend, flags };
        self.object.add_relocation(section, relocation).expect("the relocation is known");
    }

    /// A section of a side table, with 32-bit distances to places in code.
    fn table(&mut self, name: &str, bytes: &[u8], references: &[Reference]) -> SectionId {
        let id = section(&mut self.object, name, bytes);
        for reference in references {
            let (part, target) = self.code.place(reference.target);
            self.relocate(id, reference.field, part.symbol, target as i64, types::R_X86_64_PC32);
        }
        id
    }
}
