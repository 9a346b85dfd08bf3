//! Tests of what clang puts into an object when it has a profile, beside the sections of functions.
//! `fuzz` links such objects and checks them.

use super::tests::{ObjectBuilder, builder, reversed, rewritten};
use ::object::write::{SectionId, Symbol, SymbolSection};
use ::object::{SectionFlags, SectionKind, SymbolFlags, SymbolKind, SymbolScope, elf};
use image::object::elf::Elf;
use image::object::pieces::PieceExit;
use image::object::{KernelObject, ObjectHints};

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
        use ::object::{Object, ObjectSection};
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

#[test]
fn relocations_without_addends_of_what_is_linked_are_refused() {
    let data = weighed(elf::SectionFlags(0));
    let message = Elf::parse(&data).err().unwrap().to_string();
    let expected = "relocations without addends, which x86-64 does not use";
    assert_eq!(message, format!("{}: {expected}", NAMES[1]));
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
    let section = SymbolSection::Section(b.code);
    b.object.add_symbol(Symbol {
        name: b"h".to_vec(),
        value: at,
        size: code.len() as u64,
        kind: SymbolKind::Text,
        scope: SymbolScope::Linkage,
        weak: false,
        section,
        flags: SymbolFlags::None,
    });
    let data = b.object.write().unwrap();
    let object = KernelObject::read(&data, &ObjectHints::default()).unwrap();
    let at = at as u32;
    let of_h = object.pieces.iter().filter(|piece| piece.at >= at);
    let found: Vec<(u32, PieceExit)> = of_h.map(|piece| (piece.at - at, piece.exit)).collect();
    let expected = [(0, PieceExit::Branch(at + 6)), (4, PieceExit::Stop), (6, PieceExit::Stop)];
    assert_eq!(found, expected);
}
