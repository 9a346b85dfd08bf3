//! Tests of the forms that a kernel's tables and files have in different kernels.

use super::KernelBuild;
use super::kallsyms::{self, KallsymsEntry};
use super::kernel::KernelFile;
use super::relocs::Relocs;
use super::tables;
use super::test_elf::{DATA, TestSymbol, elf};

const TEXT: u64 = 0xffff_ffff_8100_0000;
const TABLE: u64 = DATA + 0x1000;

fn near(at: u64, to: u64) -> [u8; 4] {
    (to.wrapping_sub(at) as u32).to_le_bytes()
}

/// A kernel with code and strings, a table in this section, and other sections.
fn with_table(name: &str, table: Vec<u8>, others: &[(&str, u64, u64, Vec<u8>)]) -> Vec<u8> {
    let mut sections = vec![
        (".text", TEXT, 0x6, vec![0x90; 0x40]),
        (".rodata", DATA, 0x2, vec![0; 0x40]),
        (name, TABLE, 0x2, table),
    ];
    sections.extend_from_slice(others);
    elf(&sections, &[TestSymbol("f", TEXT, 0x40)], 0)
}

#[test]
fn the_flags_of_a_trap_are_found_in_every_form() {
    // The offsets of the fields that refer to strings, and the size of an entry.
    for (strings, size) in [(&[4][..], 12), (&[4, 8], 16), (&[4], 10), (&[], 6)] {
        let mut table = vec![0; 3 * size as usize];
        for (i, flags) in [(0, 0x0901_u16), (1, 0x0900), (2, 1)] {
            let at = i * size;
            let put = |table: &mut Vec<u8>, field: u64, bytes: &[u8]| {
                let from = (at + field) as usize;
                table[from..from + bytes.len()].copy_from_slice(bytes);
            };
            put(&mut table, 0, &near(TABLE + at, TEXT + 2 * i));
            for &field in strings {
                put(&mut table, field, &near(TABLE + at + field, DATA + 8));
            }
            put(&mut table, size - 2, &flags.to_le_bytes());
        }
        let file = with_table("__bug_table", table, &[]);
        let kernel = KernelFile::parse(&file).unwrap();
        let found: Vec<u64> = tables::warnings(&kernel).collect();
        assert_eq!(found, [TEXT, TEXT + 4], "{size} bytes");
    }
    // Entries of no known size: sites outside of the code.
    let file = with_table("__bug_table", vec![0x41; 24], &[]);
    assert_eq!(tables::warnings(&KernelFile::parse(&file).unwrap()).count(), 0);
}

/// Linux 6.15 and later have zeros in the place of the sites of overridden weak functions.
#[test]
fn an_empty_entry_of_a_table_of_tracers_sites_says_nothing() {
    // The last word lies behind the table.
    let words = [0, 0, TEXT, TEXT + 0x20, 7];
    let table: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
    let sections = [(".text", TEXT, 0x6, vec![0x90; 0x40]), ("__mcount_loc", TABLE, 0x2, table)];
    let symbols = [
        TestSymbol("__start_mcount_loc", TABLE, 0),
        TestSymbol("__stop_mcount_loc", TABLE + 32, 0),
    ];
    let file = elf(&sections, &symbols, 0);
    let kernel = KernelFile::parse(&file).unwrap();
    let found = tables::entries_of("__mcount_loc", &kernel);
    let sites: Vec<u64> = found.iter().map(|entry| entry.values[0].0).collect();
    assert_eq!(sites, [TEXT, TEXT + 0x20]);
}

#[test]
fn alternatives_of_either_size_say_where_control_continues() {
    const NEW: u64 = DATA + 0x2000;
    for size in [14, 12] {
        // Sites of 3, 4 and 5 bytes: no-ops, a return and a no-op in their place.
        let mut table = vec![0; 3 * size as usize];
        for (i, (replacement, len)) in [(NEW + 2, 0), (NEW, 1), (NEW + 1, 1)].iter().enumerate() {
            let at = i as u64 * size;
            let entry = &mut table[at as usize..][..size as usize];
            entry[..4].copy_from_slice(&near(TABLE + at, TEXT + 8 * i as u64));
            entry[4..8].copy_from_slice(&near(TABLE + at + 4, *replacement));
            // The feature's number and flags, which are no lengths.
            entry[8..size as usize - 2].fill(0xff);
            entry[size as usize - 2] = 3 + i as u8;
            entry[size as usize - 1] = *len;
        }
        let code = (".altinstr_replacement", NEW, 0x6, vec![0xc3, 0x90]);
        let file = with_table(".altinstructions", table, &[code]);
        let kernel = KernelFile::parse(&file).unwrap();
        let ends: Vec<u64> = tables::ends_of_passable_alternatives(&kernel).collect();
        assert_eq!(ends, [TEXT + 3, TEXT + 0x10 + 5], "{size} bytes");
    }
}

/// A kernel whose kallsyms has `f` and `g`. `tables`: names of tables in their order; `offsets`
/// gives the entries of the table of offsets, from its address on.
fn with_kallsyms(tables: &[&'static str], offsets: impl Fn(u64) -> [i32; 2]) -> Vec<u8> {
    let mut tokens: Vec<u8> = Vec::new();
    let mut index: Vec<u8> = Vec::new();
    for code in 0..=255_u8 {
        index.extend((tokens.len() as u16).to_le_bytes());
        tokens.extend(Some(code).filter(u8::is_ascii_alphanumeric));
        tokens.push(0);
    }
    let mut bytes: Vec<u8> = Vec::new();
    let mut symbols = vec![TestSymbol("f", TEXT, 8), TestSymbol("g", TEXT + 0x10, 8)];
    for &name in tables {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let at = DATA + bytes.len() as u64;
        symbols.push(TestSymbol(name, at, 0));
        match name {
            "kallsyms_num_syms" => bytes.extend(2_u32.to_le_bytes()),
            "kallsyms_names" => bytes.extend_from_slice(b"\x02Tf\x02Tg"),
            "kallsyms_markers" => bytes.extend([0; 4]),
            "kallsyms_token_table" => bytes.extend_from_slice(&tokens),
            "kallsyms_token_index" => bytes.extend_from_slice(&index),
            "kallsyms_offsets" => bytes.extend(offsets(at).iter().flat_map(|o| o.to_le_bytes())),
            "kallsyms_relative_base" => bytes.extend(TEXT.to_le_bytes()),
            "kallsyms_seqs_of_names" => bytes.extend([0, 0, 0, 0, 0, 1]),
            other => panic!("{other}"),
        }
    }
    elf(&[(".text", TEXT, 0x6, vec![0x90; 0x20]), (".rodata", DATA, 0x2, bytes)], &symbols, 0)
}

/// The tables of Linux 7.3.
const NEWEST: [&str; 7] = [
    "kallsyms_num_syms",
    "kallsyms_names",
    "kallsyms_markers",
    "kallsyms_token_table",
    "kallsyms_token_index",
    "kallsyms_offsets",
    "kallsyms_seqs_of_names",
];
/// The tables of Linux 6.1.
const OLDEST: [&str; 8] = [
    "kallsyms_offsets",
    "kallsyms_relative_base",
    "kallsyms_num_syms",
    "kallsyms_names",
    "kallsyms_markers",
    "kallsyms_seqs_of_names",
    "kallsyms_token_table",
    "kallsyms_token_index",
];

#[test]
fn kallsyms_is_read_in_every_form() {
    let from_entry = |at: u64| {
        let distance = |to: u64, entry: u64| to.wrapping_sub(entry) as i32;
        [distance(TEXT, at), distance(TEXT + 0x10, at + 4)]
    };
    let files = [
        with_kallsyms(&NEWEST, from_entry),
        with_kallsyms(&OLDEST, |_| [-1, -0x11]),
        with_kallsyms(&OLDEST, |_| [0, 0x10]),
    ];
    for (form, file) in files.iter().enumerate() {
        let kernel = KernelFile::parse(file).unwrap();
        let found = kallsyms::read(&kernel).unwrap().unwrap();
        let entry = |addr, name: &[u8]| KallsymsEntry { addr, name: name.to_vec() };
        assert_eq!(found.entries, [entry(TEXT, b"Tf"), entry(TEXT + 0x10, b"Tg")], "form {form}");
        let whole = kernel.section(".rodata").unwrap();
        assert_eq!(found.stretch, (whole.addr, whole.end()), "form {form}");
    }
}

#[test]
fn kallsyms_with_addresses_is_refused_by_its_name() {
    let file = with_kallsyms(&OLDEST, |_| [0, 0x10]);
    let mut kernel = KernelFile::parse(&file).unwrap();
    assert!(kallsyms::read(&kernel).is_ok());
    let renamed = [&NEWEST[..], &["kallsyms_relative_base"]].concat();
    let file = with_kallsyms(&renamed[1..], |_| [0, 0]);
    kernel = KernelFile::parse(&file).unwrap();
    assert!(kallsyms::read(&kernel).unwrap().is_none(), "no number of symbols");
}

/// A kernel with per-CPU data at an address of its own.
fn with_percpu() -> Vec<u8> {
    let sections =
        [(".text", TEXT, 0x6, vec![0x90; 0x20]), (".data..percpu", DATA, 0x3, vec![0; 0x20])];
    let symbols = [TestSymbol("f", TEXT, 8), TestSymbol("__per_cpu_load", DATA, 0)];
    elf(&sections, &symbols, 0)
}

fn relocs(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|&word| (word as u32).to_le_bytes()).collect()
}

#[test]
fn relocations_of_a_kernel_whose_per_cpu_data_moves_have_two_lists() {
    let file = with_percpu();
    let kernel = KernelFile::parse(&file).unwrap();
    let parse = |words: &[u64]| Relocs::parse(&relocs(words), &kernel);
    let two = parse(&[0, DATA + 8, TEXT + 8, 0, TEXT + 2]).unwrap();
    let expected =
        |inverse32| Relocs { abs64: vec![TEXT + 8, DATA + 8], abs32: vec![TEXT + 2], inverse32 };
    assert_eq!(two, expected(Vec::new()));
    let three = parse(&[0, DATA + 8, TEXT + 8, 0, TEXT + 4, 0, TEXT + 2]).unwrap();
    assert_eq!(three, expected(vec![TEXT + 4]));
    let refusal = |words: &[u64]| parse(words).unwrap_err().to_string();
    assert_eq!(refusal(&[0, TEXT]), "it has 1 lists, and the checker knows files of 2 or 3");
    assert_eq!(refusal(&[0, 0, 0, 0]), "it has 4 lists, and the checker knows files of 2 or 3");
}

#[test]
fn per_cpu_data_that_is_linked_at_zero_is_named_by_its_offsets() {
    let sections =
        [(".text", TEXT, 0x6, vec![0x90; 0x40]), (".data..percpu", 0, 0x3, vec![0; 0x20])];
    let file = elf(&sections, &[TestSymbol("__per_cpu_load", TEXT + 0x20, 0)], 0);
    let kernel = KernelFile::parse(&file).unwrap();
    let found = Relocs::parse(&relocs(&[0, TEXT + 0x28, 0, 0]), &kernel).unwrap();
    assert_eq!(found.abs64, [8]);
}

/// A link with code, data, `.modinfo`, and relocations of the places given.
fn link(code: u8, modinfo: bool, places: &[u64]) -> Vec<u8> {
    let mut sections =
        vec![(".text", TEXT, 0x6, vec![code; 0x20]), (".rodata", DATA, 0x2, vec![0; 0x20])];
    if modinfo {
        sections.push((".modinfo", DATA + 0x1000, 0x2, vec![0; 0x10]));
    }
    if !places.is_empty() {
        const PC32: u64 = 2;
        let entry = |place: &u64| [*place, PC32, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
        let entries: Vec<Vec<u8>> = places.iter().map(entry).collect();
        sections.push((".rela.rodata", 0, 0, entries.concat()));
    }
    elf(&sections, &[TestSymbol("f", TEXT, 8)], 0)
}

#[test]
fn the_kernel_before_it_was_stripped_says_which_words_are_distances() {
    let tree = tempfile::tempdir().unwrap();
    let write = |name: &str, file: &[u8]| std::fs::write(tree.path().join(name), file).unwrap();
    let words = || KernelBuild::read(tree.path()).unwrap().kernel().unwrap().kernel.pc_relative;
    write("vmlinux", &link(0x90, false, &[]));
    assert_eq!(words(), None);
    write(".tmp_vmlinux2", &link(0x90, true, &[DATA + 4]));
    assert_eq!(words(), Some(vec![(DATA + 4, 4)]));
    // The kernel has no word of a section that was removed.
    write("vmlinux.unstripped", &link(0x90, true, &[DATA + 8, DATA + 0x1008]));
    assert_eq!(words(), Some(vec![(DATA + 8, 4)]));
    // Of an older link.
    write("vmlinux.unstripped", &link(0xcc, true, &[DATA + 8]));
    assert_eq!(words(), Some(vec![(DATA + 4, 4)]));
    // Linux before 6.6 keeps the relocations in the kernel itself.
    write("vmlinux", &link(0x90, false, &[DATA + 12]));
    assert_eq!(words(), Some(vec![(DATA + 12, 4)]));
}
