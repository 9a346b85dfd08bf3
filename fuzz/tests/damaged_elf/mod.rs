//! ELF files with addresses, offsets and sizes whose sums overflow. Each reader refuses them with a
//! message, or reads what is whole. No reader panics.

use check::kernel::KernelFile;
use image::linked::LinkedKernel;
use image::object::elf::Elf;
use image::vmlinux;
use kernlane_fuzz::elf::{self, ALLOC, CODE, NOTES, SectionSpec, SymbolSpec, SymbolSpecKind};
use kernlane_fuzz::program::GeneratedProgram;
use kernlane_fuzz::source::ByteSource;

const TEXT: u64 = 0xffff_ffff_8100_0000;
const TABLES: u64 = TEXT + 0x10_0000;
/// Offsets of fields in a section's header (elf(5)).
const SH_TYPE: usize = 4;
const SH_OFFSET: usize = 24;
const SH_SIZE: usize = 32;
const SHT_NOBITS: u32 = 8;

fn section(name: &str, address: u64, flags: u64, bytes: &[u8]) -> SectionSpec {
    SectionSpec { name: name.to_owned(), address, flags, bytes: bytes.to_vec() }
}

fn symbol(name: &str, address: u64, size: u64, section: usize) -> SymbolSpec {
    let kind = if size > 0 { SymbolSpecKind::Function } else { SymbolSpecKind::Label };
    SymbolSpec { name: name.to_owned(), address, size, section, kind, global: true }
}

/// A kernel: 16 no-ops at `text`, a table at `table`, a build id, and these symbols besides `f`,
/// the function of all no-ops. The sections have the numbers 0, 1 and 2.
fn kernel(text: u64, table: u64, symbols: Vec<SymbolSpec>) -> Vec<u8> {
    let sections = [
        section(".text", text, CODE, &[0x90; 16]),
        section(".rodata", table, ALLOC, &[0; 28]),
        section(NOTES, TABLES + 0x10_0000, ALLOC, &elf::build_id_note()),
    ];
    let mut all = vec![symbol("f", text, 16, 0), symbol("_stext", text, 0, 0)];
    all.extend(symbols);
    elf::executable(&sections, &all)
}

/// Where the header of a section stands. The null section has number 0.
fn header_of(file: &[u8], number: usize) -> usize {
    let table = file[40..48].try_into().map(u64::from_le_bytes).unwrap();
    table as usize + 64 * number
}

fn set(file: &mut [u8], at: usize, value: &[u8]) {
    file[at..at + value.len()].copy_from_slice(value);
}

/// The messages of the readers of a linked kernel: `check`'s, `live`'s, `replay`'s.
fn messages(file: &[u8]) -> [Option<String>; 3] {
    [
        KernelFile::parse(file).err().map(|error| format!("{error:#}")),
        LinkedKernel::parse(file).err().map(|error| format!("{error:#}")),
        vmlinux::parse(file).err().map(|error| format!("{error:#}")),
    ]
}

#[track_caller]
fn assert_refused(message: Option<&String>, reason: &str) {
    assert!(message.is_some_and(|message| message.contains(reason)), "{message:?}, not {reason}");
}

#[test]
fn a_whole_kernel_is_read() {
    let file = kernel(TEXT, TABLES, Vec::new());
    let found = messages(&file);
    assert!(found.iter().all(Option::is_none), "{found:?}");
    assert_eq!(vmlinux::parse(&file).unwrap().functions.len(), 1);
}

#[test]
fn a_section_that_ends_beyond_the_address_space_is_refused() {
    let of_text = messages(&kernel(u64::MAX - 7, TABLES, Vec::new()));
    assert_refused(of_text[0].as_ref(), "section .text ends beyond the address space");
    assert_refused(of_text[1].as_ref(), "section .text ends beyond the address space");
    let of_data = messages(&kernel(TEXT, u64::MAX - 7, Vec::new()));
    assert_refused(of_data[0].as_ref(), "section .rodata ends beyond the address space");
    assert_refused(of_data[1].as_ref(), "section .rodata ends beyond the address space");
}

#[test]
fn a_section_whose_offset_and_size_overflow_is_refused() {
    for (offset, size) in [(u64::MAX - 7, 16), (64, u64::MAX - 7), (1 << 40, 16)] {
        let mut file = kernel(TEXT, TABLES, Vec::new());
        let header = header_of(&file, 1);
        set(&mut file, header + SH_OFFSET, &offset.to_le_bytes());
        set(&mut file, header + SH_SIZE, &size.to_le_bytes());
        let found = messages(&file);
        assert_refused(found[0].as_ref(), "section .text reaches beyond the file");
        assert_refused(found[1].as_ref(), ".text");
        assert!(found[2].is_some(), "the code of no function can be read");
    }
}

#[test]
fn text_without_bytes_is_refused() {
    let mut file = kernel(TEXT, TABLES, Vec::new());
    let header = header_of(&file, 1);
    set(&mut file, header + SH_TYPE, &SHT_NOBITS.to_le_bytes());
    assert_refused(messages(&file)[1].as_ref(), "does not have all of its bytes in the file");
}

#[test]
fn a_symbol_that_ends_beyond_the_address_space_does_no_harm() {
    let far = vec![symbol("far", TEXT + 4, u64::MAX - 7, 0), symbol("last", u64::MAX, 16, 0)];
    let file = kernel(TEXT, TABLES, far);
    assert_eq!(vmlinux::parse(&file).unwrap().functions[0].addr.0, TEXT);
    assert_eq!(LinkedKernel::parse(&file).unwrap().functions[0].at, 0);
}

#[test]
fn a_table_that_ends_before_it_starts_has_no_entries() {
    let marks = |start, stop| {
        vec![symbol("__start___ex_table", start, 0, 1), symbol("__stop___ex_table", stop, 0, 1)]
    };
    let whole = vmlinux::parse(&kernel(TEXT, TABLES, marks(TABLES, TABLES + 24))).unwrap();
    let turned = vmlinux::parse(&kernel(TEXT, TABLES, marks(TABLES + 24, TABLES))).unwrap();
    assert_eq!((whole.functions.len(), turned.functions.len()), (1, 1));
}

/// A call and three no-ops, all of them an alternative, and a return. Entries of 14 bytes, and of
/// 12 as before Linux 6.3.
#[test]
fn alternatives_of_both_formats_hold_their_code_together() {
    let text = [0xe8, 3, 0, 0, 0, 0x90, 0x90, 0x90, 0xc3];
    let site = (TEXT.wrapping_sub(TABLES) as u32).to_le_bytes();
    for flags in [&[0; 4][..], &[0; 2]] {
        let entry = [&site[..], &site, flags, &[8, 0]].concat();
        let sections = [
            section(".text", TEXT, CODE, &text),
            section(".altinstructions", TABLES, ALLOC, &entry),
            section(NOTES, TABLES + 0x10_0000, ALLOC, &elf::build_id_note()),
        ];
        let file = elf::executable(&sections, &[symbol("f", TEXT, 9, 0)]);
        let image = vmlinux::parse(&file).unwrap();
        let glued: Vec<bool> = image.blocks.iter().map(|block| block.glued).collect();
        // The no-ops and the return are one block, which stays behind the call.
        assert_eq!(glued, [false, true], "{} bytes", entry.len());
        let code = image::sites::PatchableCode::parse(&file).unwrap();
        assert!(code.may_run_on(TEXT, TEXT + 5), "{} bytes", entry.len());
    }
}

/// The site of the alternative is the last address, and the alternative has 255 bytes.
#[test]
fn an_alternative_that_ends_beyond_the_address_space_does_no_harm() {
    let marks = |at| {
        vec![
            symbol("__alt_instructions", at, 0, 1),
            symbol("__alt_instructions_end", at + 14, 0, 1),
        ]
    };
    let at = u64::MAX - 0x1000;
    let mut file = kernel(TEXT, at, marks(at));
    let entry = elf::offset_of_sections(3) + 16;
    set(&mut file, entry, &0x1000_u32.to_le_bytes());
    set(&mut file, entry + 12, &[255]);
    assert_eq!(vmlinux::parse(&file).unwrap().functions.len(), 1);
}

#[test]
fn an_object_with_a_section_outside_of_the_file_is_refused() {
    let seed = GeneratedProgram::seeds().remove(0);
    let object = GeneratedProgram::new(&mut ByteSource::new(&seed)).object();
    assert!(Elf::parse(&object).is_ok());
    for (offset, size) in [(u64::MAX - 7, 16), (64, u64::MAX - 7), (1 << 40, 16)] {
        let mut file = object.clone();
        let header = header_of(&file, 1);
        set(&mut file, header + SH_OFFSET, &offset.to_le_bytes());
        set(&mut file, header + SH_SIZE, &size.to_le_bytes());
        let message = Elf::parse(&file).err().map(|error| format!("{error:#}"));
        assert_refused(message.as_ref(), "a section lies outside the file");
    }
}
