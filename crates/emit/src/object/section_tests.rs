//! Tests of objects in which each function has a section of its own, as linkers make them with LTO:
//! of more sections than 16 bits can number, and of sections that no name of their own places.

use super::profiled_tests::{function, linked};
use super::tests::{ObjectBuilder, builder, reversed, rewritten};
use super::{PartNames, RewritePlan, Rewritten, rewrite};
use ::object::write::SectionId as NewSection;
use ::object::{SectionKind, SymbolScope, elf};
use image::object::elf::{Elf, SectionId, SymbolPlace};
use image::object::gathered::GatheredText;
use image::object::linked::LinkAddresses;
use image::object::{KernelObject, ObjectHints};

const RETURN: u8 = 0xc3;

fn code_section(b: &mut ObjectBuilder, name: &str, code: &[u8]) -> NewSection {
    let id = b.object.add_section(Vec::new(), name.as_bytes().to_vec(), SectionKind::Text);
    b.object.append_section_data(id, code, 16);
    id
}

/// An object with h in `.text.h`, behind 66 000 sections of data. `last` is in the last of these.
fn numerous() -> Vec<u8> {
    let mut b = builder();
    for _ in 0..66_000 {
        let data = SectionKind::Data;
        let id = b.object.add_section(Vec::new(), b".data.x".to_vec(), data);
        b.object.append_section_data(id, &[1], 1);
    }
    let last = b.object.add_section(Vec::new(), b".data.last".to_vec(), SectionKind::Data);
    b.object.append_section_data(last, &[0; 8], 8);
    b.object.add_symbol(function("last", last, 4, 4));
    let h = code_section(&mut b, ".text.h", &[RETURN]);
    b.object.add_symbol(function("h", h, 0, 1));
    b.object.write().unwrap()
}

#[test]
fn an_object_that_only_holds_bitcode_says_what_to_give() {
    for magic in [&b"BC\xc0\xde5\x14"[..], &[0xde, 0xc0, 0x17, 0x0b, 0, 0]] {
        let message = Elf::parse(magic).err().unwrap().to_string();
        assert!(message.contains("bitcode") && message.contains("linked from it"), "{message}");
    }
}

fn place_of(elf: &Elf<'_>, name: &str) -> (String, u64) {
    let symbol = elf.symbols.iter().find(|s| elf.name(s) == name).unwrap();
    (elf.section(symbol.section().unwrap()).name.clone(), symbol.value)
}

fn reordered(data: &[u8], gathered: Option<&GatheredText>) -> Rewritten {
    let object = KernelObject::read_gathered(data, gathered, &ObjectHints::default()).unwrap();
    let order = reversed(object.pieces.len());
    let (base, names) = (super::LinkAddr(0), PartNames::Readable);
    rewrite(&object, &RewritePlan { order: &order, hot: 0, base, names, counters: &[] }).unwrap()
}

/// ```text
/// 00 cold: ret     10 h: jmp cold (a static key); ret     20 f     40 g
/// ```
/// The compiler put what is rare in h into a section of its own, and left the jump to the linker.
#[test]
fn a_static_key_may_jump_into_another_section_that_moves() {
    let mut b = builder();
    let cold = code_section(&mut b, ".text.split.h", &[RETURN]);
    let cold_symbol = b.object.add_symbol(function("cold", cold, 0, 1));
    let jump = [0xe9, 0, 0, 0, 0, RETURN];
    let h = code_section(&mut b, ".text.hot.h", &jump);
    b.object.add_symbol(function("h", h, 0, 6));
    b.refer(h, 1, cold_symbol, -4, elf::R_X86_64_PLT32);
    let keys = b.keys;
    let entry = b.object.append_section_data(keys, &[0; 16], 1);
    let symbols = [h, cold].map(|section| b.object.section_symbol(section));
    b.refer(keys, entry, symbols[0], 0, elf::R_X86_64_PC32);
    b.refer(keys, entry + 4, symbols[1], 0, elf::R_X86_64_PC32);
    let key = b.data_symbol();
    b.refer(keys, entry + 8, key, 0, elf::R_X86_64_64);
    let data = b.object.write().unwrap();

    let elf = Elf::parse(&data).unwrap();
    let text = elf.by_name(".text").unwrap();
    let size = elf.section(text).size as usize;
    let mut code = vec![0xcc; 0x20 + size];
    code[0] = RETURN;
    code[0x10..0x16].copy_from_slice(&[0xe9, 0xeb, 0xff, 0xff, 0xff, RETURN]);
    code[0x20..].copy_from_slice(elf.bytes(text));
    let kernel = linked(&code, &[("cold", 0), ("h", 0x10), ("f", 0x20), ("g", 0x40)]);
    let kernel = LinkAddresses::read(&kernel).unwrap();
    let gathered = kernel.gathered_text(&elf).unwrap().unwrap();
    let object = KernelObject::read_gathered(&data, Some(&gathered), &ObjectHints::default());
    let object = object.unwrap();
    let of = |name| object.functions.iter().find(|f| object.function_name(f) == name).unwrap();
    assert_eq!([of("h").whole, of("cold").whole], [None, None]);
    let new = reordered(&data, Some(&gathered)).bytes;
    let new = Elf::parse(&new).unwrap();
    let [(_, h), (_, cold)] = ["h", "cold"].map(|name| place_of(&new, name));
    let code = &new.bytes(new.by_name(".text").unwrap())[h as usize..];
    let (length, distance) = match code[0] {
        0xeb => (2, i64::from(code[1] as i8)),
        _ => (5, i64::from(i32::from_le_bytes(code[1..5].try_into().unwrap()))),
    };
    assert_eq!(h as i64 + length + distance, cold as i64);
}

#[test]
fn sections_whose_numbers_do_not_fit_into_16_bits_are_read_and_written() {
    let data = numerous();
    let old = Elf::parse(&data).unwrap();
    let own = old.by_name(".text.h").unwrap();
    assert!(own.0 > 66_000 && old.symtab_shndx.is_some());
    assert_eq!(place_of(&old, "h"), (".text.h".to_owned(), 0));

    let new = rewritten(&data, reversed).bytes;
    let new = Elf::parse(&new).unwrap();
    assert_eq!(new.sections.len(), old.sections.len());
    assert_eq!(new.section(new.section_names).name, ".shstrtab");
    for name in ["h", "last"] {
        assert_eq!(place_of(&new, name), place_of(&old, name));
    }
    let undefined = SymbolPlace::Elsewhere(elf::SHN_UNDEF);
    assert_eq!((old.symbols[0].place, new.symbols[0].place), (undefined, undefined));

    // h lies behind f and g in the kernel, so it becomes a part of their section.
    let text = old.bytes(old.by_name(".text").unwrap());
    let mut code = vec![0xcc; 0x31];
    code[..text.len()].copy_from_slice(text);
    code[0x30] = RETURN;
    let kernel = linked(&code, &[("f", 0), ("g", 0x20), ("h", 0x30)]);
    let kernel = LinkAddresses::read(&kernel).unwrap();
    let gathered = kernel.gathered_text(&old).unwrap().unwrap();
    assert!(gathered.holds(own));
    let new = reordered(&data, Some(&gathered)).bytes;
    let new = Elf::parse(&new).unwrap();
    assert_eq!(place_of(&new, "last"), place_of(&old, "last"));
    let (section, at) = place_of(&new, "h");
    assert_eq!((section.as_str(), new.section(own).size), (".text", 0));
    assert_eq!(new.bytes(new.by_name(".text").unwrap())[at as usize], RETURN);
}

#[test]
fn a_section_number_that_nothing_has_is_refused() {
    let data = numerous();
    let elf = Elf::parse(&data).unwrap();
    let table = elf.section(elf.symtab_shndx.unwrap()).range.clone();
    let count = elf.sections.len() as u32;
    let mut damaged = data.clone();
    for number in damaged[table].as_chunks_mut::<4>().0 {
        if *number != [0; 4] {
            *number = count.to_le_bytes();
        }
    }
    let message = Elf::parse(&damaged).err().unwrap().to_string();
    assert!(message.contains(&format!("is in section {count}, which does not exist")), "{message}");
}

/// The code of two local functions of one name, each in its own section.
const SAME: [[u8; 3]; 2] = [[0x31, 0xc0, RETURN], [0x31, 0xdb, RETURN]];

/// f and g in `.text`, and then the two functions called `same`.
fn same_names() -> Vec<u8> {
    let mut b = builder();
    for (section, code) in [".text.same", ".text.same.1"].into_iter().zip(SAME) {
        let id = code_section(&mut b, section, &code);
        let mut symbol = function("same", id, 0, 3);
        symbol.scope = SymbolScope::Compilation;
        b.object.add_symbol(symbol);
    }
    b.object.write().unwrap()
}

/// What becomes one section if the kernel has this code behind f and g.
fn gathered_with(data: &[u8], behind: &[[u8; 3]]) -> (Vec<SectionId>, Option<GatheredText>) {
    let elf = Elf::parse(data).unwrap();
    let text = elf.bytes(elf.by_name(".text").unwrap());
    let mut code = vec![0xcc; 0x60];
    code[..text.len()].copy_from_slice(text);
    let mut functions = vec![("f", 0), ("g", 0x20)];
    for (same, at) in behind.iter().zip([0x30, 0x40]) {
        code[at..at + 3].copy_from_slice(same);
        functions.push(("same", at as u64));
    }
    let kernel = linked(&code, &functions);
    let gathered = LinkAddresses::read(&kernel).unwrap().gathered_text(&elf).unwrap();
    let ids = [".text", ".text.same", ".text.same.1"].map(|name| elf.by_name(name).unwrap());
    (ids.into(), gathered)
}

#[test]
fn sections_without_a_name_of_their_own_lie_behind_the_one_in_front() {
    let data = same_names();
    let (ids, gathered) = gathered_with(&data, &SAME);
    let gathered = gathered.unwrap();
    assert!(ids.iter().all(|&id| gathered.holds(id)));
    assert_eq!(gathered.linked, 0..0x43);
    let new = reordered(&data, Some(&gathered)).bytes;
    let elf = Elf::parse(&new).unwrap();
    let all = elf.bytes(elf.by_name(".text").unwrap());
    for code in SAME {
        assert_eq!(all.windows(3).filter(|bytes| *bytes == code).count(), 1);
    }

    // The linker left the first of them out: only the second has the bytes that are there.
    let (ids, gathered) = gathered_with(&data, &SAME[1..]);
    let gathered = gathered.unwrap();
    let held: Vec<bool> = ids.iter().map(|&id| gathered.holds(id)).collect();
    assert_eq!(held, [true, false, true]);
    // Other code lies there.
    assert!(gathered_with(&data, &[[0x31, 0xc9, RETURN]; 2]).1.is_none());
}

/// The offsets of the two functions called `same`, if the linker put `caller`, which calls the
/// second one, behind f and g, the two behind it, and `last` at the end. `second` says where the
/// second one lies. Their bytes are equal. `calls`: the object says that `caller` calls it.
fn offsets_of_twins(second: u64, calls: bool) -> Vec<u64> {
    let mut b = builder();
    let caller = code_section(&mut b, ".text.caller", &[0xe8, 0, 0, 0, 0, RETURN]);
    b.object.add_symbol(function("caller", caller, 0, 6));
    for (section, is_called) in [(".text.same", false), (".text.same.1", true)] {
        let id = code_section(&mut b, section, &SAME[0]);
        let mut symbol = function("same", id, 0, 3);
        symbol.scope = SymbolScope::Compilation;
        let symbol = b.object.add_symbol(symbol);
        if is_called && calls {
            b.refer(caller, 1, symbol, -4, elf::R_X86_64_PLT32);
        }
    }
    let last = code_section(&mut b, ".text.last", &[RETURN]);
    b.object.add_symbol(function("last", last, 0, 1));
    let data = b.object.write().unwrap();
    let read = Elf::parse(&data).unwrap();
    let text = read.bytes(read.by_name(".text").unwrap());
    let mut code = vec![0xcc; 0x61];
    code[0x60] = RETURN;
    code[..text.len()].copy_from_slice(text);
    code[0x30] = 0xe8;
    if calls {
        code[0x31..0x35].copy_from_slice(&(second as i32 - 0x35).to_le_bytes());
    } else {
        code[0x31..0x35].fill(0);
    }
    code[0x35] = RETURN;
    for at in [0x40, 0x50] {
        code[at..at + 3].copy_from_slice(&SAME[0]);
    }
    let placed = [("f", 0), ("g", 0x20), ("caller", 0x30), ("last", 0x60)];
    let functions = [&placed[..], &[("same", 0x40), ("same", 0x50)]].concat();
    let kernel = linked(&code, &functions);
    let gathered = LinkAddresses::read(&kernel).unwrap().gathered_text(&read).unwrap().unwrap();
    let hints = ObjectHints::default();
    let object = KernelObject::read_gathered(&data, Some(&gathered), &hints).unwrap();
    let same = object.elf.symbols.iter().filter(|symbol| object.elf.name(symbol) == "same");
    same.map(|symbol| symbol.value).collect()
}

#[test]
fn a_call_tells_functions_of_one_name_apart() {
    assert_eq!(offsets_of_twins(0x50, true), [0x40, 0x50]);
    assert_eq!(offsets_of_twins(0x40, true), [0x50, 0x40]);
    // Without a call, the order of the object counts.
    assert_eq!(offsets_of_twins(0x40, false), [0x40, 0x50]);
}

#[test]
fn functions_that_a_linker_scatters_are_refused() {
    let mut b = builder();
    let names: Vec<String> = (0..80).map(|n| format!("s{n}")).collect();
    for name in &names {
        let id = code_section(&mut b, &format!(".text.{name}"), &[RETURN]);
        b.object.add_symbol(function(name, id, 0, 1));
    }
    let data = b.object.write().unwrap();
    let elf = Elf::parse(&data).unwrap();
    let text = elf.bytes(elf.by_name(".text").unwrap());
    // Other code lies between all of them.
    let mut code = vec![RETURN; 0x1000];
    code[..text.len()].copy_from_slice(text);
    let functions = names.iter().enumerate().map(|(n, name)| (&**name, 0x100 + 32 * n as u64));
    let functions: Vec<(&str, u64)> =
        [("f", 0), ("g", 0x20)].into_iter().chain(functions).collect();
    let kernel = linked(&code, &functions);
    let message = LinkAddresses::read(&kernel).unwrap().gathered_text(&elf).err().unwrap();
    assert!(message.to_string().starts_with("80 of 81 sections of functions"), "{message}");
}

/// Sites of kCFI's traps stand in a section for each function. Control goes on behind a trap.
#[test]
fn traps_may_stand_in_a_section_for_each_function() {
    let mut b = builder();
    for at in [0x20_i64, 0x2a] {
        b.table(".kcfi_traps", &[0; 4], &[(0, at)]);
    }
    let data = b.object.write().unwrap();
    assert!(KernelObject::read(&data, &ObjectHints::default()).is_ok());
}
