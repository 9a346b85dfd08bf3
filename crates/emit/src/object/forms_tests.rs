//! Tests of the forms that side tables have in different kernels, on a small object with one table.

use super::tests::{ObjectBuilder, builder, builder_with, reversed, rewritten};
use super::*;
use ::object::elf;
use image::object::elf::Elf;
use image::object::tables::AlternativeSite;
use image::object::{KernelObject, ObjectHints};

/// An object whose table `name` has `entries` of `size` bytes. Each entry names a site in `.text`
/// by its first field; `set` lists (offset in the entry, byte), and `filled` the offsets of further
/// relocations, to data.
fn with_table(
    name: &str,
    size: usize,
    sites: &[i64],
    site: elf::RelocationType,
    set: &[(usize, u8)],
    filled: &[u64],
) -> Vec<u8> {
    let mut b: ObjectBuilder = builder_with(false);
    let mut bytes = vec![0; size * sites.len()];
    for entry in bytes.chunks_exact_mut(size) {
        set.iter().for_each(|&(at, byte)| entry[at] = byte);
    }
    let table = b.section(name, &bytes);
    for (i, &target) in sites.iter().enumerate() {
        let at = (i * size) as u64;
        b.refer(table, at, b.text, target, site);
        for field in filled {
            let data = b.data_symbol();
            b.refer(table, at + field, data, 0, elf::R_X86_64_PC32);
        }
    }
    b.object.write().unwrap()
}

fn read(data: &[u8]) -> anyhow::Result<KernelObject<'_>> {
    KernelObject::read(data, &ObjectHints::default())
}

fn refusal(data: &[u8]) -> String {
    format!("{:#}", read(data).err().expect("a table of an unknown form is refused"))
}

/// `test edi, edi` at 05 and `xor eax, eax` at 10.
const OVERWRITTEN: [AlternativeSite; 2] =
    [AlternativeSite { at: 0x05, len: 2 }, AlternativeSite { at: 0x10, len: 2 }];

#[test]
fn alternatives_of_either_size_say_how_much_is_overwritten() {
    let near = elf::R_X86_64_PC32;
    for (size, length) in [(14, 12), (12, 10)] {
        // The length of the replacement behind it is another.
        let set = [(length, 2), (length + 1, 9)];
        let data = with_table(".altinstructions", size, &[0x10, 0x05], near, &set, &[4]);
        assert_eq!(read(&data).unwrap().alternatives, OVERWRITTEN, "{size} bytes");
    }
    let error = refusal(&with_table(".altinstructions", 20, &[0x10], near, &[], &[4]));
    let expected = ".altinstructions: the form of its entries is not understood (Kernlane knows \
                    entries of 14 or 12 bytes); nothing was changed";
    assert_eq!(error, expected);
}

/// Linux before 6.8 overwrites calls through `pv_ops` by a table of its own.
#[test]
fn paravirt_sites_are_overwritten_and_move() {
    let absolute = elf::R_X86_64_64;
    let data = with_table(".parainstructions", 16, &[0x05, 0x10], absolute, &[(8, 7), (9, 2)], &[]);
    let object = read(&data).unwrap();
    assert_eq!(object.alternatives, OVERWRITTEN);
    let order: Vec<u32> = (0..object.pieces.len() as u32).rev().collect();
    let plan = RewritePlan {
        order: &order,
        hot: order.len(),
        base: LinkAddr(0),
        names: PartNames::Readable,
        counters: &[],
    };
    let new = rewrite(&object, &plan).unwrap();
    let new = KernelObject::read(&new.bytes, &ObjectHints::default()).unwrap();
    let code = new.elf.bytes(new.text);
    let found: Vec<&[u8]> =
        new.alternatives.iter().map(|a| &code[a.at as usize..][..usize::from(a.len)]).collect();
    assert_eq!(found.len(), 2);
    assert!(found.contains(&&[0x85, 0xff][..]) && found.contains(&&[0x31, 0xc0][..]));
    assert_ne!(new.alternatives, OVERWRITTEN);
    let error = refusal(&with_table(".parainstructions", 12, &[0x05], absolute, &[], &[]));
    assert!(error.starts_with(".parainstructions: the form"), "{error}");
}

/// A function that ends with `ud2` at 2a, behind which `ret` is reached only if the trap is a WARN.
#[test]
fn a_trap_of_every_form_says_whether_control_continues() {
    for (size, filled) in [(12, &[4][..]), (16, &[4, 8]), (10, &[4]), (6, &[])] {
        for (flags, continues) in [(1, true), (0, false)] {
            let near = elf::R_X86_64_PC32;
            let set = [(size - 2, flags)];
            // Three entries: the size of one does not fit twice.
            let sites = [0x2a, 0x2a, 0x2a];
            let data = with_table("__bug_table", size, &sites, near, &set, filled);
            let object = read(&data).unwrap();
            let trap = object.piece_at(0x2a).map(|i| &object.pieces[i]).unwrap();
            assert_eq!(trap.end() > 0x2c, continues, "{size} bytes, flags {flags}");
        }
    }
    let data = with_table("__bug_table", 18, &[0x2a], elf::R_X86_64_PC32, &[], &[4]);
    assert!(refusal(&data).contains("entries of 12 or 16 or 10 or 6 bytes"));
}

/// gcc 12 puts the target of a static key of Linux 6.1 into `.text.unlikely`.
#[test]
fn a_static_key_may_jump_into_another_section() {
    let key = |site: i64| {
        let mut b = builder_with(true);
        let unlikely = b.code_section(".text.unlikely", &[0xc3]);
        let keys = b.section("__jump_table", &[0; 16]);
        b.refer(keys, 0, b.text, site, elf::R_X86_64_PC32);
        b.refer(keys, 4, unlikely, 0, elf::R_X86_64_PC32);
        b.object.write().unwrap()
    };
    let whole = |data: &[u8]| -> Vec<bool> {
        read(data).unwrap().functions.iter().map(|f| f.whole.is_some()).collect()
    };
    // A no-op of five bytes can become that jump wherever its function goes.
    assert_eq!(whole(&key(0x00)), [false, false]);
    // Neither two bytes nor another instruction than a no-op.
    assert_eq!(whole(&key(0x05)), [true, false]);
}

#[test]
fn an_unknown_table_that_points_into_code_is_refused_by_name() {
    let mut b = builder();
    b.table("__new_table", &[0; 8], &[(0, 5)]);
    let data = b.object.write().unwrap();
    let error = KernelObject::read(&data, &ObjectHints::default()).err().unwrap();
    assert!(format!("{error:#}").contains("__new_table"), "{error:#}");
    // A table may point to the first byte of a function: the reference moves with the function.
    let mut b = builder();
    b.table("__new_table", &[0; 8], &[(0, 0x20)]);
    let data = b.object.write().unwrap();
    let new = rewritten(&data, reversed).bytes;
    let object = Elf::parse(&new).unwrap();
    let list = object.relocations(object.by_name("__new_table").unwrap()).unwrap();
    assert_eq!(list[0].addend, 0x10);
}
