//! Tests of what clang puts into an object when it has a profile, beside the sections of functions.
//! `fuzz` links such objects and checks them.

use super::Rewritten;
use super::order::hot_share_in_whole;
use super::tests::{ObjectBuilder, builder, reversed, rewritten};
use ::object::write::{Object, SectionId, Symbol, SymbolSection};
use ::object::{
    Architecture, BinaryFormat, Endianness, SectionFlags, SectionKind, SymbolFlags, SymbolKind,
    SymbolScope, elf,
};
use image::BuildId;
use image::address::LinkAddr;
use image::object::elf::Elf;
use image::object::linked::LinkAddresses;
use image::object::pieces::PieceExit;
use image::object::{KernelObject, ObjectHints};
use image::order::{Layout, Run};

/// `SHT_LLVM_CALL_GRAPH_PROFILE`.
const CALL_GRAPH: elf::SectionType = elf::SectionType(0x6fff_4c09);
const NAMES: [&str; 2] = [".llvm.call-graph-profile", ".rel.llvm.call-graph-profile"];

fn section(
    b: &mut ObjectBuilder,
    name: &str,
    kind: elf::SectionType,
    flags: elf::SectionFlags,
    bytes: &[u8],
) -> SectionId {
    let id = b.object.add_section(Vec::new(), name.as_bytes().to_vec(), SectionKind::Metadata);
    b.object.append_section_data(id, bytes, 8);
    b.object.section_mut(id).flags = SectionFlags::Elf { sh_type: kind, sh_flags: flags };
    id
}

pub(super) fn function(name: &str, section: SectionId, value: u64, size: u64) -> Symbol {
    Symbol {
        name: name.as_bytes().to_vec(),
        value,
        size,
        kind: SymbolKind::Text,
        scope: SymbolScope::Linkage,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    }
}

/// An object with the weight of one call, and the relocations that name caller and callee. `flags`
/// are those of the weight's section.
fn weighed(flags: elf::SectionFlags) -> Vec<u8> {
    let mut b = builder();
    section(&mut b, NAMES[0], CALL_GRAPH, flags, &7_u64.to_le_bytes());
    section(&mut b, NAMES[1], elf::SHT_REL, elf::SectionFlags(0), &[0; 32]);
    let mut bytes = b.object.write().unwrap();
    // The writer cannot say what a section relocates.
    let number = |name: &str| {
        let elf = ::object::File::parse(&*bytes).unwrap();
        use ::object::{Object as _, ObjectSection as _};
        elf.section_by_name(name).unwrap().index().0
    };
    let (weights, relocations) = (number(NAMES[0]), number(NAMES[1]));
    let table = u64::from_le_bytes(bytes[0x28..0x30].try_into().unwrap()) as usize;
    let info = table + 64 * relocations + 44;
    bytes[info..info + 4].copy_from_slice(&(weights as u32).to_le_bytes());
    bytes
}

#[test]
fn what_only_informs_the_linker_is_taken_out() {
    let data = weighed(elf::SHF_EXCLUDE);
    let old = Elf::parse(&data).unwrap();
    let plain = builder().object.write().unwrap();
    let new = rewritten(&data, reversed).bytes;
    let (new, expected) = (Elf::parse(&new).unwrap(), rewritten(&plain, reversed).bytes);
    let expected = Elf::parse(&expected).unwrap();
    for name in NAMES {
        let id = old.by_name(name).unwrap();
        assert!(old.section(id).size > 0);
        let section = new.section(id);
        assert_eq!((section.kind, section.size), (elf::SHT_NULL, 0), "{name}");
    }
    for name in [".text", "__jump_table", ".orc_unwind_ip"] {
        let [ours, theirs] = [&new, &expected].map(|elf| elf.bytes(elf.by_name(name).unwrap()));
        assert_eq!(ours, theirs, "{name}");
    }
}

/// A linked kernel: its code, and its functions by offset.
pub(super) fn linked(code: &[u8], functions: &[(&str, u64)]) -> Vec<u8> {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let text = object.add_section(Vec::new(), b".text".to_vec(), SectionKind::Text);
    object.append_section_data(text, code, 16);
    for &(name, at) in functions {
        object.add_symbol(function(name, text, at, 1));
    }
    let note = [&[4, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &[0xab, 0xcd, 0, 0]].concat();
    let notes = object.add_section(Vec::new(), b".notes".to_vec(), SectionKind::Note);
    object.append_section_data(notes, &note, 4);
    object.write().unwrap()
}

/// An object with h in `.text.hot.`, f and g in `.text`, s in `.text.startup`.
fn scattered() -> Vec<u8> {
    let mut b = builder();
    for (section, name) in [(".text.hot.", "h"), (".text.startup", "s")] {
        let id = b.object.add_section(Vec::new(), section.as_bytes().to_vec(), SectionKind::Text);
        b.object.append_section_data(id, &[0xc3], 16);
        b.object.add_symbol(function(name, id, 0, 1));
    }
    b.object.write().unwrap()
}

/// ```text
/// 00 startup: ret     10 h: ret     20 f     40 g     50 other: ret     60 s: ret
/// ```
#[test]
fn only_sections_beside_text_become_a_part_of_it() {
    let data = scattered();
    let elf = Elf::parse(&data).unwrap();
    let (text, hot) = (elf.by_name(".text").unwrap(), elf.by_name(".text.hot.").unwrap());
    let startup = elf.by_name(".text.startup").unwrap();
    let mut code = vec![0xcc; 0x61];
    let size = elf.section(text).size as usize;
    code[0x20..0x20 + size].copy_from_slice(elf.bytes(text));
    [0, 0x10, 0x50, 0x60].iter().for_each(|&at| code[at] = 0xc3);
    let functions =
        [("startup", 0), ("h", 0x10), ("f", 0x20), ("g", 0x40), ("other", 0x50), ("s", 0x60)];
    let kernel = linked(&code, &functions);
    let kernel = LinkAddresses::read(&kernel).unwrap();
    let found = kernel.gathered_text(&elf).unwrap().unwrap();
    assert_eq!([hot, text, startup].map(|id| found.holds(id)), [true, true, false]);
    assert_eq!(found.linked, 0x10..0x20 + size as u64);
    assert_eq!(kernel.moving_code(&elf, Some(&found)).unwrap(), found.linked);
    // Code of something else lies behind h.
    code[0x18] = 0xc3;
    let kernel = linked(&code, &functions);
    let kernel = LinkAddresses::read(&kernel).unwrap();
    assert!(kernel.gathered_text(&elf).unwrap().is_none());
    assert_eq!(kernel.moving_code(&elf, None).unwrap(), 0x20..0x20 + size as u64);
}

/// A map of blocks says how far blocks lie from their function's entry.
#[test]
fn a_map_of_blocks_does_not_outlive_a_move() {
    const MAP: &str = ".llvm_bb_addr_map";
    let mut b = builder();
    section(&mut b, MAP, elf::SectionType(0x6fff_4c0a), elf::SectionFlags(0), &[2, 0, 0, 9]);
    let data = b.object.write().unwrap();
    let kept = |new: Rewritten| {
        let elf = Elf::parse(&new.bytes).unwrap();
        elf.bytes(elf.by_name(MAP).unwrap()).to_vec()
    };
    assert_eq!(kept(rewritten(&data, |count| (0..count as u32).collect())), [2, 0, 0, 9]);
    assert!(kept(rewritten(&data, reversed)).is_empty());
}

#[test]
fn relocations_without_addends_of_what_is_linked_are_refused() {
    let data = weighed(elf::SectionFlags(0));
    let message = Elf::parse(&data).err().unwrap().to_string();
    let expected = "relocations without addends, which x86-64 does not use";
    assert_eq!(message, format!("{}: {expected}", NAMES[1]));
}

/// h stays whole: it has a branch that only has a short form.
#[test]
fn hot_code_inside_of_a_function_that_stays_whole_is_known() {
    let mut b = builder();
    let code = [0x85, 0xff, 0xe2, 0xfc, 0xc3]; // test edi, edi; loop; ret
    let at = b.object.append_section_data(b.code, &code, 16);
    b.object.add_symbol(function("h", b.code, at, code.len() as u64));
    let data = b.object.write().unwrap();
    let object = KernelObject::read(&data, &ObjectHints::default()).unwrap();
    let base = LinkAddr(0xffff_ffff_8100_0000);
    let run = |at, size| Run { start: LinkAddr(base.0 + at), size, name: String::new() };
    let share = |runs: Vec<Run>| {
        let layout = Layout { hot: 2, runs, ..Layout::original(BuildId("ab".into())) };
        hot_share_in_whole(&layout, &object, base)
    };
    assert_eq!(share(vec![run(0, 9), run(at + 4, 1), run(at, 4)]), 0.1);
    assert_eq!(share(vec![run(0, 9), run(at, 5)]), 0.0);
}

/// gcc puts `ud2` where it proved that a program divides by zero, and other cold parts behind it:
/// control does not go on from one to the other.
#[test]
fn control_does_not_pass_a_trap_that_no_table_names() {
    let mut b = builder();
    #[rustfmt::skip]
    let code = [
        0x85, 0xff, // 00 test edi, edi
        0x74, 0x02, // 02 je 06
        0x0f, 0x0b, // 04 ud2
        0xc3,       // 06 ret
    ];
    let at = b.object.append_section_data(b.code, &code, 16);
    b.object.add_symbol(function("h", b.code, at, code.len() as u64));
    let data = b.object.write().unwrap();
    let object = KernelObject::read(&data, &ObjectHints::default()).unwrap();
    let at = at as u32;
    let of_h = object.pieces.iter().filter(|piece| piece.at >= at);
    let found: Vec<(u32, PieceExit)> = of_h.map(|piece| (piece.at - at, piece.exit)).collect();
    let expected = [(0, PieceExit::Branch(at + 6)), (4, PieceExit::Stop), (6, PieceExit::Stop)];
    assert_eq!(found, expected);
}
