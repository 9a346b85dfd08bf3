//! Tests of reading and rewriting objects, on a small object that is made here. Its code is written
//! as bytes with the assembly beside it.

use super::*;
use crate::counting::callees::through_registers;
use crate::counting::plan::{ObjectFlow, plan};
use ::object::write::{Object, Relocation, SectionId, Symbol, SymbolSection};
use ::object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind,
    SymbolScope, elf,
};
use image::object::elf::{Elf, ElfSymbol};
use image::object::orc::OrcSections;
use image::object::{KernelObject, ObjectHints};
use image::place::CallPadding;
use layout::random::SplitMix64;

const BASE: LinkAddr = LinkAddr(0xffff_ffff_8100_0000);

/// Two functions, the second with a static key and a WARN.
#[rustfmt::skip]
const TEXT: &[u8] = &[
    // f:
    0x0f, 0x1f, 0x44, 0x00, 0x00, // 00 nop (the tracer's site)
    0x85, 0xff,                   // 05 test edi, edi
    0x74, 0x07,                   // 07 je 10
    0xe8, 0x00, 0x00, 0x00, 0x00, // 09 call g (relocated)
    0xeb, 0x02,                   // 0e jmp 12
    0x31, 0xc0,                   // 10 xor eax, eax
    0xc3,                         // 12 ret
    0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
    // g:
    0xb8, 0x01, 0x00, 0x00, 0x00, // 20 mov eax, 1
    0x66, 0x90,                   // 25 static key: no-op, or jmp 2a
    0xc3,                         // 27 ret
    0xcc,                         // 28 int3
    0x90,                         // 29 padding
    0x0f, 0x0b,                   // 2a ud2 (WARN)
    0xc3,                         // 2c ret
];
const CALLING: [u8; 6] = [0x08, 0, 0, 0, 0x05, 0x01];
const OTHER: [u8; 6] = [0x10, 0, 0, 0, 0x05, 0x01];

pub(super) struct ObjectBuilder {
    pub(super) object: Object<'static>,
    pub(super) text: ::object::write::SymbolId,
    pub(super) code: SectionId,
    pub(super) keys: SectionId,
    data: SectionId,
}

impl ObjectBuilder {
    pub(super) fn section(&mut self, name: &str, bytes: &[u8]) -> SectionId {
        let kind = if name == ".text" { SectionKind::Text } else { SectionKind::Data };
        let id = self.object.add_section(Vec::new(), name.as_bytes().to_vec(), kind);
        self.object.append_section_data(id, bytes, 16);
        id
    }

    pub(super) fn refer(
        &mut self,
        section: SectionId,
        offset: u64,
        symbol: ::object::write::SymbolId,
        addend: i64,
        r_type: elf::RelocationType,
    ) {
        let flags = RelocationFlags::Elf { r_type };
        self.object.add_relocation(section, Relocation { offset, symbol, addend, flags }).unwrap();
    }

    /// The symbol of a new section of code.
    pub(super) fn code_section(&mut self, name: &str, code: &[u8]) -> ::object::write::SymbolId {
        let name = name.as_bytes().to_vec();
        let id = self.object.add_section(Vec::new(), name, SectionKind::Text);
        self.object.append_section_data(id, code, 1);
        self.object.section_symbol(id)
    }

    /// The symbol of the data.
    pub(super) fn data_symbol(&mut self) -> ::object::write::SymbolId {
        self.object.section_symbol(self.data)
    }

    /// A table with this number of bytes and 32-bit relative references to `.text`.
    pub(super) fn table(
        &mut self,
        name: &str,
        bytes: &[u8],
        references: &[(u64, i64)],
    ) -> SectionId {
        let id = self.section(name, bytes);
        for &(offset, target) in references {
            self.refer(id, offset, self.text, target, elf::R_X86_64_PC32);
        }
        id
    }
}

/// The object, as a builder to which tests can add.
pub(super) fn builder() -> ObjectBuilder {
    builder_with(true)
}

/// The same with or without the table that says that g's trap is a WARN.
pub(super) fn builder_with(bugs: bool) -> ObjectBuilder {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let text = object.add_section(Vec::new(), b".text".to_vec(), SectionKind::Text);
    object.append_section_data(text, TEXT, 16);
    let section_symbol = object.section_symbol(text);
    let data = object.add_section(Vec::new(), b".data".to_vec(), SectionKind::Data);
    object.append_section_data(data, &[0; 16], 16);
    let mut b = ObjectBuilder { object, text: section_symbol, code: text, keys: data, data };
    let function = |b: &mut ObjectBuilder, name: &str, value, size| {
        b.object.add_symbol(Symbol {
            name: name.as_bytes().to_vec(),
            value,
            size,
            kind: SymbolKind::Text,
            scope: SymbolScope::Linkage,
            weak: false,
            section: SymbolSection::Section(text),
            flags: SymbolFlags::None,
        })
    };
    function(&mut b, "f", 0, 0x13);
    let g = function(&mut b, "g", 0x20, 0xd);
    b.refer(text, 0xa, g, -4, elf::R_X86_64_PLT32);
    b.refer(data, 0, section_symbol, 0x10, elf::R_X86_64_64);
    let key = b.object.section_symbol(data);
    let keys = b.table("__jump_table", &[0; 16], &[(0, 0x25), (4, 0x2a)]);
    b.refer(keys, 8, key, 8, elf::R_X86_64_64);
    b.keys = keys;
    let mut bug = [0u8; 12];
    bug[10] = 1;
    if bugs {
        let bugs = b.table("__bug_table", &bug, &[(0, 0x2a)]);
        b.refer(bugs, 4, key, 0, elf::R_X86_64_PC32);
    }
    let tracer = b.section("__mcount_loc", &[0; 8]);
    b.refer(tracer, 0, section_symbol, 0, elf::R_X86_64_64);
    b.table(".orc_unwind_ip", &[0; 16], &[(0, 0), (4, 0x13), (8, 0x20), (12, 0x2d)]);
    b.section(".orc_unwind", &[CALLING, [0; 6], OTHER, [0; 6]].concat());
    b
}

fn bytes() -> Vec<u8> {
    builder().object.write().unwrap()
}

/// The object of a kernel with call-depth tracking. g has eight bytes of call padding; the kernel
/// patches five of them.
fn padded() -> Vec<u8> {
    let mut b = builder();
    let (text, data) = (b.code, b.data);
    let mut name = |name: &[u8], value, size, section, kind| {
        b.object.add_symbol(Symbol {
            name: name.to_vec(),
            value,
            size,
            kind,
            scope: SymbolScope::Linkage,
            weak: false,
            section: SymbolSection::Section(section),
            flags: SymbolFlags::None,
        });
    };
    name(b"__pfx_g", 0x18, 8, text, SymbolKind::Text);
    name(b"skl_call_thunk_template", 4, 0, data, SymbolKind::Data);
    name(b"skl_call_thunk_tail", 9, 0, data, SymbolKind::Data);
    b.object.write().unwrap()
}

pub(super) fn rewritten(data: &[u8], order: impl Fn(usize) -> Vec<u32>) -> Rewritten {
    rewritten_as(data, order, &ObjectHints::default())
}

fn rewritten_as(data: &[u8], order: impl Fn(usize) -> Vec<u32>, hints: &ObjectHints) -> Rewritten {
    let object = KernelObject::read(data, hints).unwrap();
    let order = order(object.pieces.len());
    rewrite(
        &object,
        &RewritePlan {
            order: &order,
            hot: 0,
            base: BASE,
            names: PartNames::Readable,
            counters: &[],
        },
    )
    .unwrap()
}

fn in_order(count: usize) -> Vec<u32> {
    (0..count as u32).collect()
}

pub(super) fn reversed(count: usize) -> Vec<u32> {
    (0..count as u32).rev().collect()
}

/// A kernel for User Mode Linux begins with code of the C library, and describes its functions for
/// debuggers.
#[test]
fn text_that_begins_within_a_page_does_not_change() {
    let mut b = builder();
    let text = b.code;
    b.object.add_symbol(Symbol {
        name: b"inside_f".to_vec(),
        value: 5,
        size: 0,
        kind: SymbolKind::Label,
        scope: SymbolScope::Compilation,
        weak: false,
        section: SymbolSection::Section(text),
        flags: SymbolFlags::None,
    });
    b.table(".eh_frame", &[0; 16], &[(0, 0), (8, 0x10)]);
    let data = b.object.write().unwrap();
    let object = KernelObject::read(&data, &ObjectHints::default()).unwrap();
    assert!(object.functions[0].whole.is_some());
    let order = in_order(object.pieces.len());
    let plan = RewritePlan {
        order: &order,
        hot: 0,
        base: LinkAddr(0x6002_0d80),
        names: PartNames::Readable,
        counters: &[],
    };
    let summary = rewrite(&object, &plan).unwrap().summary;
    assert_eq!(summary.text_after, summary.text_before);
}

#[test]
fn functions_are_cut_at_branches_and_their_targets() {
    let data = bytes();
    let object = KernelObject::read(&data, &ObjectHints::default()).unwrap();
    let pieces: Vec<(u32, u32)> = object.pieces.iter().map(|p| (p.at, p.end())).collect();
    // Control continues behind the WARN, so 2a and 2c are one piece. The int3 stays with its
    // return.
    assert_eq!(pieces, [(0, 9), (9, 0x10), (0x10, 0x12), (0x12, 0x13), (0x20, 0x29), (0x2a, 0x2d)]);
    assert!(object.functions.iter().all(|f| f.whole.is_none()));
}

#[test]
fn the_old_order_gives_the_old_code_and_tables() {
    let data = bytes();
    let new = rewritten(&data, in_order).bytes;
    let (old, new) = (Elf::parse(&data).unwrap(), Elf::parse(&new).unwrap());
    for id in old.ids() {
        let section = old.section(id);
        assert_eq!(section.name, new.section(id).name);
        assert_eq!(old.bytes(id), new.bytes(id), "{}", section.name);
    }
}

/// Every jump, branch and displacement gets its new target, and so does every table: the new
/// `.text`, instruction by instruction.
#[test]
fn the_reversed_order_is_the_same_program() {
    let data = bytes();
    let new = rewritten(&data, reversed).bytes;
    let object = Elf::parse(&new).unwrap();
    let text = object.by_name(".text").unwrap();
    #[rustfmt::skip]
    assert_eq!(object.bytes(text), [
        0x0f, 0x0b, 0xc3,                               // 00 g.cold: ud2; ret
        0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
        0xb8, 0x01, 0x00, 0x00, 0x00, 0x66, 0x90, 0xc3, 0xcc, // 10 g: a near static key
        0xc3,                                           // 19 f.cold: ret
        0x31, 0xc0, 0xeb, 0xfb,                         // 1a xor eax, eax; jmp 19
        0xe8, 0x00, 0x00, 0x00, 0x00, 0xeb, 0xf4,       // 1e call g; jmp 19
        0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
        0x0f, 0x1f, 0x44, 0x00, 0x00, 0x85, 0xff,       // 30 f
        0x74, 0xe1,                                     // 37 je 1a
        0xeb, 0xe3,                                     // 39 jmp 1e
    ]);
    let targets = |name: &str| -> Vec<i64> {
        let list = object.relocations(object.by_name(name).unwrap()).unwrap();
        list.iter()
            .filter(|r| object.symbol(r.symbol).section() == Some(text))
            .map(|r| object.symbol(r.symbol).value as i64 + r.addend)
            .collect()
    };
    assert_eq!(targets("__jump_table"), [0x15, 0x00]);
    assert_eq!(targets("__bug_table"), [0x00]);
    assert_eq!(targets("__mcount_loc"), [0x30]);
    assert_eq!(targets(".data"), [0x1a]);
    assert_eq!(targets(".text"), [0x10 - 4], "the call's field moved and still refers to g");
    assert_eq!(object.relocations(text).unwrap()[0].offset, 0x1f);
}

/// h is one jump. The symbol of a function names at least one byte, so the jump stays even where it
/// goes to the next byte.
#[test]
fn a_function_that_is_one_jump_keeps_it() {
    // 30 jmp 20
    let (h, g, code) = placed_h_and_g(&[0xeb, 0xee], &[0, 1, 2, 3, 6, 4, 5], 7);
    assert_eq!((h.size, h.value + 2), (2, g.value));
    assert_eq!(code[..2], [0xeb, 0]);
}

/// h is two jumps, the second to cold code that follows. Without the first one, h had no bytes.
#[test]
fn a_function_that_only_jumps_keeps_the_first_jump() {
    // 30 jmp 33; 32 ret; 33 jmp 32
    let order = [0, 1, 2, 3, 4, 5, 6, 8, 7];
    let (h, _, code) = placed_h_and_g(&[0xeb, 1, 0xc3, 0xeb, 0xfd], &order, 8);
    assert_eq!((h.size, &code[..3]), (2, &[0xeb, 0, 0xc3][..]));
}

/// The symbols of h and g, and the code from h on, when the pieces with h behind them, which is
/// `code`, are placed in an order whose first `hot` pieces are hot.
fn placed_h_and_g(code: &[u8], order: &[u32], hot: usize) -> (ElfSymbol, ElfSymbol, Vec<u8>) {
    let mut b = builder();
    b.object.append_section_data(b.code, &[&[0x90; 3], code].concat(), 1);
    b.object.add_symbol(Symbol {
        name: b"h".to_vec(),
        value: 0x30,
        size: code.len() as u64,
        kind: SymbolKind::Text,
        scope: SymbolScope::Linkage,
        weak: false,
        section: SymbolSection::Section(b.code),
        flags: SymbolFlags::None,
    });
    let data = b.object.write().unwrap();
    let object = KernelObject::read(&data, &ObjectHints::default()).unwrap();
    let names = PartNames::Readable;
    let plan = RewritePlan { order, hot, base: BASE, names, counters: &[] };
    let new = rewrite(&object, &plan).unwrap().bytes;
    let new = Elf::parse(&new).unwrap();
    let text = new.bytes(new.by_name(".text").unwrap());
    let symbol = |name: &str| *new.symbols.iter().find(|s| new.name(s) == name).unwrap();
    let (h, g) = (symbol("h"), symbol("g"));
    (h, g, text[h.value as usize..].to_vec())
}

/// The patched padding moves with its function. The rest stays, and its symbol shrinks. If the
/// template's length is unknown, all padding moves.
#[test]
fn call_padding_is_cut_to_what_the_kernel_patches() {
    let data = padded();
    let symbol = |data: &[u8], name: &str| {
        let object = Elf::parse(data).unwrap();
        let found = object.symbols.iter().find(|s| object.name(s) == name).unwrap();
        (found.value, found.size)
    };
    let new = rewritten(&data, reversed).bytes;
    let (g, size) = symbol(&new, "g");
    assert_eq!((symbol(&new, "__pfx_g"), size), ((g - 5, 5), 9));
    let object = Elf::parse(&new).unwrap();
    let text = object.bytes(object.by_name(".text").unwrap());
    assert_eq!(text[g as usize - 6..g as usize], [0xcc, 0x90, 0x90, 0x90, 0x90, 0x90]);

    let same = rewritten(&data, in_order).bytes;
    assert_eq!(symbol(&same, "__pfx_g"), (0x18, 8));
    let old = Elf::parse(&data).unwrap();
    let (same, text) = (Elf::parse(&same).unwrap(), old.by_name(".text").unwrap());
    assert_eq!(same.bytes(text), old.bytes(text));

    let at = data.windows(19).position(|w| w == b"skl_call_thunk_tail").unwrap();
    let mut data = data;
    data[at] = b'x';
    let new = rewritten(&data, reversed).bytes;
    assert_eq!(symbol(&new, "__pfx_g"), (symbol(&new, "g").0 - 8, 8));
}

/// Padding that is dropped loses its name, and nothing else changes. Padding of a function that
/// did not move stays.
#[test]
fn dropped_call_padding_has_no_name() {
    let data = padded();
    let hints = ObjectHints { call_padding: CallPadding::Dropped, ..ObjectHints::default() };
    let new = rewritten_as(&data, reversed, &hints);
    assert_eq!(new.placement.call_padding, CallPadding::Dropped);
    let object = Elf::parse(&new.bytes).unwrap();
    let named = |name: &str| object.symbols.iter().find(|s| object.name(s) == name);
    assert!(named("__pfx_g").is_none());
    let text = object.by_name(".text").unwrap();
    let g = named("g").unwrap().value as usize;
    assert_eq!(object.bytes(text)[g - 3..g + 5], [0xcc, 0xcc, 0xcc, 0xb8, 0x01, 0, 0, 0]);
    let call = &object.relocations(text).unwrap()[0];
    assert_eq!(object.symbol(call.symbol).value as i64 + call.addend, g as i64 - 4);

    let same = rewritten_as(&data, in_order, &hints).bytes;
    let (same, old) = (Elf::parse(&same).unwrap(), Elf::parse(&data).unwrap());
    assert_eq!(same.bytes(text), old.bytes(text));
    assert!(same.symbols.iter().any(|s| same.name(s) == "__pfx_g" && s.size == 8));
}

#[test]
fn moved_parts_are_named_after_their_function_and_have_sizes() {
    let data = bytes();
    let new = rewritten(&data, reversed).bytes;
    let object = Elf::parse(&new).unwrap();
    let text = object.by_name(".text");
    let mut symbols: Vec<(&str, u64, u64)> = object
        .symbols
        .iter()
        .filter(|s| s.section() == text && s.size > 0)
        .map(|s| (object.name(s), s.value, s.size))
        .collect();
    symbols.sort_unstable();
    assert_eq!(
        symbols,
        [("f", 0x30, 0xb), ("f.cold", 0x19, 0xc), ("g", 0x10, 9), ("g.cold", 0, 3)]
    );
}

#[test]
fn the_unwinder_has_a_state_for_every_instruction_and_appended_jump() {
    let data = bytes();
    let new = rewritten(&data, reversed).bytes;
    let object = Elf::parse(&new).unwrap();
    let text = object.by_name(".text").unwrap();
    let count = |id| object.relocations(id).unwrap().len();
    let orc = OrcSections::find(&object, count).unwrap().unwrap();
    let table = orc.table(&object, &object.relocations(orc.ip).unwrap(), text).unwrap();
    let none = [0; 6];
    let expected = [
        (0, OTHER),
        (3, none),
        (0x10, OTHER),
        (0x19, CALLING),
        (0x25, none),
        (0x30, CALLING),
        (0x3b, none),
    ];
    assert_eq!(table, expected);
}

#[test]
fn the_map_has_the_new_place_of_every_piece() {
    let data = bytes();
    let map = rewritten(&data, reversed).placement;
    let new = |old: u64| map.new_address(LinkAddr(BASE.0 + old)).map(|a| a.0 - BASE.0);
    assert_eq!(
        [0, 9, 0x10, 0x12, 0x20, 0x27, 0x2a].map(new),
        [0x30, 0x1e, 0x1a, 0x19, 0x10, 0x17, 0].map(Some)
    );
    assert_eq!(new(0x13), None, "padding has no new place");
}

#[test]
fn a_stripped_object_is_refused() {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let text = object.add_section(Vec::new(), b".text".to_vec(), SectionKind::Text);
    object.append_section_data(text, TEXT, 16);
    object.section_symbol(text);
    let data = object.write().unwrap();
    let error = KernelObject::read(&data, &ObjectHints::default()).err().unwrap();
    assert!(error.to_string().contains("stripped"), "{error}");
}

#[test]
fn one_thread_and_many_give_the_same_bytes() {
    let data = bytes();
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let many = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    let one = alone.install(|| rewritten(&data, reversed).bytes);
    assert_eq!(one, many.install(|| rewritten(&data, reversed).bytes));
    assert_eq!(one, rewritten(&data, reversed).bytes);
}

/// The object with a `.bss` for counts.
fn countable() -> Vec<u8> {
    let mut b = builder();
    let bss = b.object.add_section(Vec::new(), b".bss".to_vec(), SectionKind::UninitializedData);
    b.object.append_section_bss(bss, 100, 32);
    b.object.section_symbol(bss);
    b.object.write().unwrap()
}

fn counting(object: &KernelObject<'_>, counters: &[BlockCounter]) -> anyhow::Result<Rewritten> {
    let order = in_order(object.pieces.len());
    rewrite(
        object,
        &RewritePlan { order: &order, hot: 0, base: BASE, names: PartNames::Readable, counters },
    )
}

#[test]
fn counters_are_in_the_code_and_their_counts_behind_bss() {
    let data = countable();
    let object = KernelObject::read(&data, &ObjectHints::default()).unwrap();
    let counter = |at, keeps_flags| BlockCounter { at, keeps_flags };
    let new = counting(&object, &[counter(5, false), counter(0x10, true)]).unwrap();
    let elf = Elf::parse(&new.bytes).unwrap();
    let text = elf.bytes(elf.by_name(".text").unwrap());
    assert_eq!(text[5..12], [0x48, 0xff, 0x05, 0, 0, 0, 0], "incq 0(%rip)");
    assert_eq!(
        text[0xc..0x10],
        [0x85, 0xff, 0x74, 0x07],
        "the branch goes to the counter of its target"
    );
    assert_eq!(text[0x15..0x17], [0xeb, 0x18], "the jump skips the counter");
    assert_eq!(
        text[0x17..0x1d],
        [0x48, 0x8d, 0x64, 0x24, 0x80, 0x9c],
        "the flags are saved below the red zone"
    );
    assert_eq!(text[0x2d..0x30], [0x31, 0xc0, 0xc3]);
    let relocations = elf.relocations(elf.by_name(".text").unwrap()).unwrap();
    let of_counts: Vec<(u64, i64)> = (relocations.iter())
        .filter(|r| elf.symbol(r.symbol).section() == elf.by_name(".bss"))
        .map(|r| (r.offset, r.addend))
        .collect();
    assert_eq!(of_counts, [(8, 128 - 4), (0x20, 136 - 4)]);
    let room = elf.symbols.iter().find(|s| elf.name(s) == COUNTS).unwrap();
    assert_eq!((room.value, room.size), (128, 16));
    assert_eq!(elf.section(elf.by_name(".bss").unwrap()).size, 144);
    assert_eq!(new.placement.new_address(LinkAddr(BASE.0 + 5)), Some(LinkAddr(BASE.0 + 5)));
    assert_eq!(new.placement.new_address(LinkAddr(BASE.0 + 7)), Some(LinkAddr(BASE.0 + 14)));
}

#[test]
fn an_object_without_bss_cannot_have_counters() {
    let data = bytes();
    let object = KernelObject::read(&data, &ObjectHints::default()).unwrap();
    let counter = BlockCounter { at: 5, keeps_flags: false };
    let error = counting(&object, &[counter]).err().unwrap().to_string();
    assert!(error.contains("no .bss section"), "{error}");
}

#[test]
fn counters_are_planned_only_where_they_are_needed() {
    let data = countable();
    let object = KernelObject::read(&data, &ObjectHints::default()).unwrap();
    let flow = ObjectFlow::of(&object);
    let planned = plan(&object, &flow);
    // Counters stand at f's entry, whose first instruction is the tracer's site, and at two of
    // these three blocks: its two arms and its end. The third count follows from the other two.
    assert_eq!(planned[0].0, BlockCounter { at: 5, keeps_flags: false });
    let of_f =
        planned.iter().filter(|&&(_, piece)| object.pieces[piece as usize].function == 0).count();
    assert_eq!(of_f, 3);
    let mut counts = vec![None; object.pieces.len()];
    for &(_, piece) in &planned {
        counts[piece as usize] = Some([10, 4, 7, 11][(piece as usize).min(3)]);
    }
    assert_eq!(flow.flow.fill(&mut counts), 0);
    assert_eq!(counts[..4], [Some(10), Some(4), Some(7), Some(11)]);
    let counters: Vec<BlockCounter> = planned.iter().map(|&(counter, _)| counter).collect();
    assert!(counting(&object, &counters).is_ok());
}

/// A damaged object gives an error or a result, never a panic.
#[test]
fn damaged_objects_never_panic() {
    let sound = countable();
    let mut random = SplitMix64::new(7);
    let mut read = 0;
    for _ in 0..4000 {
        let mut data = sound.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(data.len() as u64) as usize;
            data[at] = match random.below(3) {
                0 => random.below(256) as u8,
                1 => data[at] ^ (1 << random.below(8)),
                _ => 0xff,
            };
        }
        if random.below(8) == 0 {
            data.truncate(random.below(data.len() as u64) as usize);
        }
        let Ok(object) = KernelObject::read(&data, &ObjectHints::default()) else {
            continue;
        };
        read += 1;
        let order = reversed(object.pieces.len());
        let _ = rewrite(
            &object,
            &RewritePlan {
                order: &order,
                hot: 0,
                base: BASE,
                names: PartNames::Joinable,
                counters: &[],
            },
        );
        let flow = ObjectFlow::of(&object);
        let _ = through_registers(&object, &flow);
        let counters: Vec<BlockCounter> =
            plan(&object, &flow).into_iter().map(|(counter, _)| counter).collect();
        let _ = counting(&object, &counters);
    }
    assert!(read > 400, "only {read} damaged objects could be read");
}
