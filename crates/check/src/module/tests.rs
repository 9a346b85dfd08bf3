//! Proves a small module of copies, and finds each deliberate fault in it.
//!
//! The kernel has one function, of three blocks:
//!
//! ```text
//! 00 f: call __fentry__              the tracer's site
//! 05    test %rdi,%rdi
//! 08    je 30
//! 0a    mov DATA(%rip),%rax          an exception; its fixup is 30
//! 11    nop                          a static key; its target is 30
//! 16    lock incl (%rdi)             a lock prefix
//! 19    call g                       a static call
//! 1e    nop                          an alternative: lfence
//! 21    jmp __x86_return_thunk       a return
//! 30    xor %eax,%eax
//! 32    ud2                          a BUG
//! 40 g: ret
//! 50 __x86_return_thunk: ret
//! ```
//!
//! The module has its blocks in another order: 00, 30, 0a. So the branch is inverted.

use super::*;
use crate::test_elf::{DATA, TestSymbol, elf};
use image::linked::tables::{
    AlternativeEntry, BugEntry, ExceptionEntry, JumpEntry, LinkedTables, ParavirtEntry,
    StaticCallEntry,
};
use object::elf::{R_X86_64_32, R_X86_64_32S, RelocationType, SHF_ALLOC, SHT_PROGBITS};
use object::write::{Object as Written, Relocation, SectionId, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionFlags, SectionKind,
    SymbolFlags, SymbolKind, SymbolScope,
};

const TEXT: u64 = 0xffff_ffff_8100_0000;
const G: u64 = TEXT + 0x40;
const THUNK: u64 = TEXT + 0x50;
const REPLACEMENT: u64 = DATA + 0x100;
const KEY: u64 = DATA + 0x20;
const CALL_KEY: u64 = DATA + 0x30;
const FILE_NAME: u64 = DATA + 8;
const LFENCE: [u8; 3] = [0x0f, 0xae, 0xe8];
/// The frame lies 8 bytes above the stack pointer, and 16 behind a push.
const STATE: [u8; 6] = [8, 0, 0, 0, 5, 2];
const PUSHED: [u8; 6] = [16, 0, 0, 0, 5, 2];

/// The blocks: old offset, size, skipped bytes.
const BLOCKS: [(u64, u32, u32); 3] = [(0, 0xa, 5), (0xa, 0x1c, 0), (0x30, 4, 0)];
/// Offset of the first copy.
const FIRST: usize = 16;

fn near(opcode: u8, at: u64, to: u64) -> Vec<u8> {
    [&[opcode][..], &(to.wrapping_sub(at + 5) as u32).to_le_bytes()].concat()
}

/// The instructions by their offsets.
fn code() -> Vec<(u64, Vec<u8>)> {
    let displacement = (DATA.wrapping_sub(TEXT + 0x11) as u32).to_le_bytes();
    vec![
        (0, near(0xe8, TEXT, TEXT + 0x1000)),
        (5, vec![0x48, 0x85, 0xff]),
        (8, vec![0x74, 0x26]),
        (0xa, [&[0x48, 0x8b, 0x05][..], &displacement].concat()),
        (0x11, vec![0x0f, 0x1f, 0x44, 0, 0]),
        (0x16, vec![0xf0, 0xff, 0x07]),
        (0x19, near(0xe8, TEXT + 0x19, G)),
        (0x1e, vec![0x0f, 0x1f, 0]),
        (0x21, near(0xe9, TEXT + 0x21, THUNK)),
        (0x30, vec![0x31, 0xc0]),
        (0x32, vec![0x0f, 0x0b]),
        (0x40, vec![0xc3]),
        (0x50, vec![0xc3]),
    ]
}

fn vmlinux() -> Vec<u8> {
    let mut text = vec![0xcc; 0x60];
    for (at, bytes) in code() {
        text[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
    }
    let note = [&[4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &[0x5f; 20]].concat();
    elf(
        &[
            (".text", TEXT, 6, text),
            (".data", DATA, 3, vec![0; 0x40]),
            (".altinstr_replacement", REPLACEMENT, 6, LFENCE.to_vec()),
            (".notes", DATA + 0x200, 2, note),
        ],
        &[TestSymbol("f", TEXT, 0x34), TestSymbol("g", G, 1), TestSymbol("thunk", THUNK, 1)],
        0,
    )
}

fn tables() -> LinkedTables {
    let at = |offset: u64| TEXT + offset;
    let alternative = AlternativeEntry {
        site: at(0x1e),
        replacement: REPLACEMENT,
        flags: 0x11,
        len: 3,
        replacement_len: 3,
    };
    LinkedTables {
        tracer_sites: vec![TEXT],
        jumps: vec![JumpEntry { site: at(0x11), target: at(0x30), key: KEY }],
        static_calls: vec![StaticCallEntry { site: at(0x19), key: CALL_KEY }],
        exceptions: vec![ExceptionEntry { site: at(0xa), fixup: at(0x30), data: 3 }],
        bugs: vec![BugEntry { site: at(0x32), format: None, file: FILE_NAME, line: 7, flags: 0 }],
        alternatives: vec![alternative],
        paravirt: vec![ParavirtEntry { site: at(0x19), operation: 9, len: 3 }],
        returns: vec![at(0x21)],
        locks: vec![at(0x16)],
        orc: vec![(TEXT, STATE)],
        ..LinkedTables::default()
    }
}

/// What a relocation names.
#[derive(Clone, Copy)]
enum Named {
    Section(&'static str),
    /// The symbol `g` of the kernel.
    G,
}

struct Field {
    section: &'static str,
    at: u64,
    kind: RelocationType,
    to: Named,
    addend: i64,
}

struct TestModule {
    sections: Vec<(&'static str, Vec<u8>)>,
    fields: Vec<Field>,
    claims: Vec<CopyClaim>,
    /// The offset of each instruction's copy, by its old offset.
    sites: BTreeMap<u64, u64>,
    /// Where the counters stand, ascending.
    counters: Vec<u64>,
}

impl TestModule {
    /// The copy, with counters in front of the instructions with these old offsets.
    fn new(counted: &[u64]) -> TestModule {
        let mut module = TestModule {
            sections: Vec::new(),
            fields: Vec::new(),
            claims: Vec::new(),
            sites: BTreeMap::new(),
            counters: Vec::new(),
        };
        let mut text = vec![0x90; FIRST];
        for block in [0, 2, 1] {
            let (old, size, skip) = BLOCKS[block];
            let new = text.len() as u32;
            let range = old + u64::from(skip)..old + u64::from(size);
            for (at, bytes) in code().into_iter().filter(|(at, _)| range.contains(at)) {
                if counted.contains(&at) {
                    module.counter(&mut text);
                }
                module.sites.insert(at, text.len() as u64);
                module.fields.extend(field_of(at, text.len() as u64));
                text.extend(copy_of(at, bytes));
            }
            let new_size = text.len() as u32 - new;
            module.claims.push(CopyClaim {
                context: 0,
                old: LinkAddr(TEXT + old),
                old_size: size,
                skip,
                new,
                new_size,
            });
        }
        let branch = module.sites[&8] as usize;
        text[branch + 1] = (u64::from(module.claims[2].new) - branch as u64 - 2) as u8;
        module.sections.push((".text", text));
        module.sections.push((".altinstr_replacement", LFENCE.to_vec()));
        module.sections.push((".data", cookies(module.counters.len())));
        module.tables();
        module
    }

    fn counter(&mut self, text: &mut Vec<u8>) {
        let (at, number) = (text.len() as u64, self.counters.len() as u32);
        text.extend([0x50, 0x48, 0x8b, 0x05, 0, 0, 0, 0, 0x65, 0x48, 0xff, 0x80]);
        text.extend((8 * number).to_le_bytes());
        text.push(0x58);
        self.add(".text", at + 4, Named::Section(".data"), 24 - 4);
        self.counters.push(at);
    }

    fn add(&mut self, section: &'static str, at: u64, to: Named, addend: i64) {
        self.fields.push(Field { section, at, kind: PC32, to, addend });
    }

    /// A table of one entry: each place with its offset in the entry.
    fn table(&mut self, name: &'static str, bytes: &[u8], places: &[(u64, Named, i64)]) {
        self.sections.push((name, bytes.to_vec()));
        for &(at, to, addend) in places {
            self.add(name, at, to, addend);
        }
    }

    fn tables(&mut self) {
        let site = |offset: u64| (Named::Section(".text"), self.sites[&offset] as i64);
        let kernel = |at: u64| (Named::G, at.wrapping_sub(G) as i64);
        let field = |at: u64, (to, addend): (Named, i64)| (at, to, addend);
        let bug = [&[0; 8][..], &7u16.to_le_bytes(), &[0; 2]].concat();
        let alternative = [&[0; 8][..], &0x11u32.to_le_bytes(), &[3, 3]].concat();
        let paravirt = [&[0; 8][..], &[9, 3, 0, 0, 0, 0, 0, 0]].concat();
        // A counter's code would stand in front of the fixup's first instruction.
        let fixup = (Named::Section(".text"), i64::from(self.claims[1].new));
        let entry = (Named::Section(".text"), i64::from(self.claims[0].new));
        let replacement = (Named::Section(".altinstr_replacement"), 0);
        let pairs = [&b"kernlane's pairs"[..], &[0; 16], &[1, 0, 0, 0, 0, 0, 0, 0], &[0; 16]];
        let mut states = vec![(FIRST as u64, STATE)];
        for &at in &self.counters {
            states.extend([(at, STATE), (at + 1, PUSHED), (at + 17, STATE)]);
        }
        let tables = [
            (".return_sites", vec![0; 4], vec![field(0, site(0x21))]),
            (".smp_locks", vec![0; 4], vec![field(0, site(0x16))]),
            (
                "__jump_table",
                vec![0; 16],
                vec![field(0, site(0x11)), field(4, fixup), field(8, kernel(KEY))],
            ),
            (
                ".static_call_sites",
                vec![0; 8],
                vec![field(0, site(0x19)), field(4, kernel(CALL_KEY))],
            ),
            (
                "__ex_table",
                [[0; 8].as_slice(), &3u32.to_le_bytes()].concat(),
                vec![field(0, site(0xa)), field(4, fixup)],
            ),
            ("__bug_table", bug, vec![field(0, site(0x32)), field(4, kernel(FILE_NAME))]),
            (".altinstructions", alternative, vec![field(0, site(0x1e)), field(4, replacement)]),
            (".parainstructions", paravirt, vec![field(0, site(0x19))]),
            (".kernlane", pairs.concat(), vec![field(48, kernel(TEXT)), field(52, entry)]),
            (
                ".orc_unwind_ip",
                vec![0; 4 * states.len()],
                (0..)
                    .zip(&states)
                    .map(|(n, &(at, _))| (4 * n, Named::Section(".text"), at as i64))
                    .collect(),
            ),
            (".orc_unwind", states.iter().flat_map(|&(_, state)| state).collect(), Vec::new()),
        ];
        for (name, bytes, places) in tables {
            self.table(name, &bytes, &places);
        }
        self.field("__jump_table", 8).kind = PC64;
        self.field(".parainstructions", 0).kind = ABSOLUTE;
    }

    fn without_claim(&mut self, number: usize) {
        self.claims.remove(number);
    }

    fn bytes(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self.sections.iter_mut().find(|(found, _)| *found == name).unwrap().1
    }

    fn field(&mut self, section: &str, at: u64) -> &mut Field {
        let is_it = |field: &&mut Field| field.section == section && field.at == at;
        self.fields.iter_mut().find(is_it).unwrap()
    }

    /// The field of the instruction with an old offset.
    fn operand(&mut self, old: u64) -> &mut Field {
        let at = self.sites[&old];
        let is_it = |field: &&mut Field| (at..at + 7).contains(&field.at);
        self.fields.iter_mut().filter(|field| field.section == ".text").find(is_it).unwrap()
    }

    /// A byte of the instruction with an old offset.
    fn code(&mut self, old: u64, byte: usize) -> &mut u8 {
        let at = self.sites[&old] as usize + byte;
        &mut self.bytes(".text")[at]
    }

    fn file(&self) -> Vec<u8> {
        let mut file = Written::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let mut ids: BTreeMap<&str, SectionId> = BTreeMap::new();
        for (name, bytes) in &self.sections {
            let id = file.add_section(Vec::new(), name.as_bytes().to_vec(), SectionKind::Data);
            file.set_section_data(id, bytes, 1);
            file.section_mut(id).flags =
                SectionFlags::Elf { sh_type: SHT_PROGBITS, sh_flags: SHF_ALLOC };
            ids.insert(name, id);
        }
        let import = file.add_symbol(Symbol {
            name: b"g".to_vec(),
            value: 0,
            size: 0,
            kind: SymbolKind::Text,
            scope: SymbolScope::Unknown,
            weak: false,
            section: SymbolSection::Undefined,
            flags: SymbolFlags::None,
        });
        for &Field { section, at, kind, to, addend } in &self.fields {
            let symbol = match to {
                Named::Section(name) => file.section_symbol(ids[name]),
                Named::G => import,
            };
            let flags = RelocationFlags::Elf { r_type: kind };
            let relocation = Relocation { offset: at, symbol, addend, flags };
            file.add_relocation(ids[section], relocation).unwrap();
        }
        file.write().unwrap()
    }

    fn proven(&self) -> Result<usize> {
        let vmlinux = vmlinux();
        let mut kernel = LinkedKernel::parse(&vmlinux)?;
        kernel.tables = tables();
        check_module(&kernel, 0, &self.file(), &self.claims, &[])
    }
}

/// The relocation of an instruction with an old offset, whose copy stands at `new`.
fn field_of(old: u64, new: u64) -> Option<Field> {
    let (behind, target) = match old {
        0xa => (3, DATA),
        0x19 => (1, G),
        0x21 => (1, THUNK),
        _ => return None,
    };
    let addend = target.wrapping_sub(G) as i64 - 4;
    Some(Field { section: ".text", at: new + behind, kind: PC32, to: Named::G, addend })
}

/// The copy of an instruction: relocated fields are zero, the branch is inverted.
fn copy_of(old: u64, mut bytes: Vec<u8>) -> Vec<u8> {
    match old {
        8 => bytes[0] = 0x75,
        0xa => bytes[3..].fill(0),
        0x19 | 0x21 => bytes[1..].fill(0),
        _ => {}
    }
    bytes
}

fn cookies(counters: usize) -> Vec<u8> {
    match counters {
        0 => Vec::new(),
        n => [&b"kernlane cookies"[..], &n.to_le_bytes(), &[0; 8], b"kernlane cookies"].concat(),
    }
}

/// A fault, and a part of the message that must name it.
type Fault = (&'static str, fn(&mut TestModule));

fn each_is_found(counted: &[u64], faults: &[Fault]) {
    let missed = faults.iter().enumerate().filter_map(|(number, (message, change))| {
        let mut module = TestModule::new(counted);
        change(&mut module);
        let found = match module.proven() {
            Ok(_) => "the proof holds".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        (!found.contains(message)).then(|| format!("fault {number}: {found}, and not {message}"))
    });
    let missed: Vec<String> = missed.collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn a_faithful_copy_is_proven() {
    assert_eq!(TestModule::new(&[]).proven().unwrap(), 0);
    assert_eq!(TestModule::new(&[0x30]).proven().unwrap(), 1);
    assert_eq!(TestModule::new(&[0xa, 0x30]).proven().unwrap(), 2);
}

#[test]
fn faults_in_code_are_found() {
    each_is_found(
        &[],
        &[
            ("byte 1 differs", |m| *m.code(5, 1) = 0x39),
            ("became je", |m| *m.code(8, 0) = 0x74),
            ("became jne", |m| *m.code(8, 1) += 1),
            ("became jns", |m| *m.code(8, 0) = 0x79),
            ("goes to a place outside of .text", |m| *m.code(8, 1) = 0x80),
            ("names", |m| m.operand(0xa).addend += 8),
            ("not the form of a static key", |m| *m.code(0x11, 3) = 1),
            ("of another length", |m| *m.code(0x16, 0) = 0x90),
            ("byte 2 differs", |m| *m.code(0x16, 2) = 0x0f),
            ("goes to", |m| m.operand(0x19).addend += 0x10),
            ("another instruction", |m| *m.code(0x19, 0) = 0xe9),
            ("byte 2 differs", |m| *m.code(0x1e, 2) = 1),
            ("goes to", |m| m.operand(0x21).addend -= 0x10),
            ("byte 1 differs", |m| *m.code(0x30, 1) = 0xc1),
            ("of another length", |m| *m.code(0x32, 0) = 0xcc),
        ],
    );
}

/// Loading the module would write to the key.
#[test]
fn keys_in_read_only_memory_are_found() {
    let (vmlinux, module) = (vmlinux(), TestModule::new(&[]));
    let mut kernel = LinkedKernel::parse(&vmlinux).unwrap();
    for (key, seals_keys, holds) in
        [(KEY, false, false), (KEY, true, true), (CALL_KEY, true, false)]
    {
        kernel.tables = LinkedTables { read_only: key..key + 1, seals_keys, ..tables() };
        let proof = check_module(&kernel, 0, &module.file(), &module.claims, &[]);
        assert_eq!(proof.is_ok(), holds, "{key:x}, {seals_keys}: {proof:?}");
    }
}

#[test]
fn faults_in_relocations_are_found() {
    each_is_found(
        &[],
        &[
            ("goes to", |m| {
                m.fields.retain(|f| f.section != ".text" || f.at != m.sites[&0x19] + 1)
            }),
            ("a relocation of type", |m| m.operand(0xa).kind = R_X86_64_32),
            ("a relocation of type", |m| m.operand(0xa).kind = R_X86_64_32S),
            ("names Some", |m| m.operand(0xa).kind = PC64),
            ("two relocations at", |m| {
                let at = m.operand(0xa).at;
                m.add(".text", at, Named::G, 0);
            }),
            // What the loader would write over code that was compared.
            (".text: a relocation at 0x0 that was not compared", |m| {
                m.add(".text", 0, Named::G, 0);
            }),
            ("that no instruction has", |m| m.add(".text", m.sites[&0x16], Named::G, 0)),
            ("that was not compared", |m| m.add(".text", m.sites[&0x16] + 1, Named::G, 0)),
            ("__ex_table: a relocation at 0x8", |m| m.add("__ex_table", 8, Named::G, 0)),
            (".altinstr_replacement: a relocation", |m| {
                m.add(".altinstr_replacement", 0, Named::G, 0);
            }),
            // A sum that is cut off to 32 bits would name the right place.
            ("outside of its section", |m| m.field(".return_sites", 0).addend += 1 << 32),
            ("outside of its section", |m| m.field(".return_sites", 0).addend = i64::MAX),
            ("outside of its section", |m| m.field(".altinstructions", 4).addend = -16),
            ("is cut short", |m| m.field(".altinstructions", 4).addend = -1),
            ("names Some(Own(", |m| {
                let field = m.operand(0xa);
                (field.to, field.addend) = (Named::Section(".data"), -4);
            }),
        ],
    );
}

#[test]
fn wrong_claims_are_found() {
    each_is_found(
        &[],
        &[
            ("lies beyond the module's .text", |m| m.claims[2].new_size = u32::MAX),
            ("lies beyond the module's .text", |m| m.claims[2].new = u32::MAX),
            ("lies beyond the module's .text", |m| m.claims[2].new_size += 1),
            ("ends beyond the address space", |m| m.claims[2].old = LinkAddr(u64::MAX)),
            ("before its copy begins", |m| m.claims[2].skip = 0x1d),
            ("two blocks at .text", |m| m.claims[0].new_size += 1),
            ("leaves out more than the tracer's site", |m| m.claims[0].skip = 8),
            ("leaves out more than the tracer's site", |m| m.claims[1].skip = 2),
            ("1 bytes too many in the copy", |m| {
                m.claims[2].new_size += 1;
                m.bytes(".text").push(0xcc);
            }),
            ("the copy does not decode", |m| m.claims[2].new_size -= 1),
            ("does not run on into that of", |m| {
                m.claims[1].new += 2;
                m.claims[1].new_size -= 2;
            }),
            ("another instruction", |m| m.without_claim(1)),
            ("became jne", |m| m.without_claim(2)),
            (".kernlane has not the 0 pairs", |m| m.without_claim(0)),
        ],
    );
}

#[test]
fn faults_in_tables_are_found() {
    each_is_found(
        &[],
        &[
            (".return_sites: 1 entries", |m| m.field(".return_sites", 0).addend += 1),
            (".return_sites: 0 entries, 1 expected", |m| {
                m.bytes(".return_sites").clear();
                m.fields.retain(|field| field.section != ".return_sites");
            }),
            (".return_sites: 2 entries, 1 expected", |m| {
                m.bytes(".return_sites").resize(8, 0);
                m.add(".return_sites", 4, Named::Section(".text"), FIRST as i64);
            }),
            (".return_sites is not made of whole entries", |m| m.bytes(".return_sites").push(0)),
            (".return_sites: entry 1 names nothing", |m| m.bytes(".return_sites").resize(8, 0)),
            (".return_sites: entry 0 has no room for a field of 8 bytes at 0", |m| {
                m.field(".return_sites", 0).kind = PC64;
            }),
            ("__jump_table: entry 0 has no room for a field of 8 bytes at 4", |m| {
                m.field("__jump_table", 4).kind = PC64;
            }),
            (".retpoline_sites: 1 entries, 0 expected", |m| {
                m.table(".retpoline_sites", &[0; 4], &[(0, Named::Section(".text"), 16)]);
            }),
            (".call_sites: 1 entries, 0 expected", |m| {
                m.table(".call_sites", &[0; 4], &[(0, Named::Section(".text"), 16)]);
            }),
            (".parainstructions: 1 entries", |m| m.field(".parainstructions", 0).addend += 1),
            (".parainstructions: 1 entries", |m| m.bytes(".parainstructions")[8] = 8),
            (".parainstructions: 1 entries", |m| m.bytes(".parainstructions")[9] = 4),
            (".parainstructions: 1 entries", |m| m.bytes(".parainstructions")[15] = 1),
            (".parainstructions: a relocation of type", |m| {
                m.field(".parainstructions", 0).kind = PC64;
            }),
            (".return_sites: a relocation of type", |m| {
                m.field(".return_sites", 0).kind = ABSOLUTE;
            }),
            (".smp_locks", |m| m.field(".smp_locks", 0).addend -= 1),
            ("__jump_table", |m| m.field("__jump_table", 0).addend += 1),
            ("__jump_table", |m| m.field("__jump_table", 4).addend += 2),
            ("__jump_table", |m| m.field("__jump_table", 8).addend += 1),
            (".static_call_sites", |m| m.field(".static_call_sites", 0).addend += 1),
            (".static_call_sites", |m| m.field(".static_call_sites", 4).addend += 1),
            ("__ex_table", |m| m.field("__ex_table", 0).addend += 1),
            ("__ex_table", |m| m.field("__ex_table", 4).addend += 2),
            ("__ex_table", |m| m.bytes("__ex_table")[8] = 4),
            ("__bug_table", |m| m.field("__bug_table", 0).addend += 1),
            ("__bug_table", |m| m.field("__bug_table", 4).addend += 1),
            ("__bug_table", |m| m.bytes("__bug_table")[8] = 8),
            ("__bug_table", |m| m.bytes("__bug_table")[10] = 1),
            (".altinstructions: an entry too many", |m| {
                m.field(".altinstructions", 0).addend += 1;
            }),
            (".altinstructions: the entry of ffffffff8100001e", |m| {
                m.bytes(".altinstructions")[8] = 0x12;
            }),
            (".altinstructions: the entry of ffffffff8100001e", |m| {
                m.bytes(".altinstructions")[12] = 2;
            }),
            ("the replacement of ffffffff8100001e: lfence differs", |m| {
                m.bytes(".altinstr_replacement")[2] = 0xf0;
            }),
            ("the replacement of ffffffff8100001e: is cut short", |m| {
                m.bytes(".altinstr_replacement").pop();
            }),
            ("the unwinder's state at", |m| m.bytes(".orc_unwind")[0] = 16),
            ("the unwinder's state at", |m| m.field(".orc_unwind_ip", 0).addend += 1),
            ("do not fit together", |m| m.bytes(".orc_unwind").truncate(5)),
            (".kernlane begins with other bytes", |m| m.bytes(".kernlane")[3] = b'x'),
            (".kernlane has not the 1 pairs", |m| m.bytes(".kernlane")[32] = 2),
            (".kernlane has not the 1 pairs and 0 holders", |m| m.bytes(".kernlane")[40] = 1),
            (".kernlane has not the 1 pairs", |m| m.bytes(".kernlane").push(0)),
            (".kernlane: a field is not zero", |m| m.bytes(".kernlane")[52] = 1),
            (".kernlane: pair 0 names", |m| m.field(".kernlane", 48).addend += 1),
            (".kernlane: pair 0 names", |m| m.field(".kernlane", 52).addend += 1),
        ],
    );
}

#[test]
fn faults_in_counters_are_found() {
    // `je` reads a flag that a counter changes.
    let needed = format!("{:#}", TestModule::new(&[8]).proven().unwrap_err());
    assert!(needed.contains("je short") && needed.contains("needs a flag"), "{needed}");
    each_is_found(
        &[0xa, 0x30],
        &[
            ("two counters have one number", |m| {
                let at = m.counters[1] as usize + 12;
                m.bytes(".text")[at] = 0;
            }),
            ("a number has no counter", |m| {
                let at = m.counters[1] as usize + 12;
                m.bytes(".text")[at] = 16;
            }),
            ("do not say that it has 2 counters", |m| m.bytes(".data")[16] = 3),
            ("do not say that it has 2 counters", |m| m.bytes(".data")[24] = 1),
            ("the unwinder's state in the counter in front of", |m| m.bytes(".orc_unwind")[12] = 8),
            // No counter's code, so it is compared with the instruction of the original.
            ("became push", |m| {
                let at = m.counters[0] + 4;
                m.field(".text", at).addend += 4;
            }),
            ("outside of its section", |m| {
                let at = m.counters[0] + 4;
                m.field(".text", at).addend += 1 << 60;
            }),
        ],
    );
}
