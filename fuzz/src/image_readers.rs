//! ELF files and BTF: what the targets use of the readers of `kernlane-image`.

use crate::elf::{self, ALLOC, CODE, SectionSpec, SymbolSpec, SymbolSpecKind, WRITABLE};
use crate::linker;
use crate::program::GeneratedProgram;
use crate::source::{ByteSource, stretch};
use image::btf::Btf;
use image::linked::LinkedKernel;
use image::object::linked::LinkAddresses;
use image::object::{KernelObject, ObjectHints};
use image::sites::PatchableCode;
use image::{Image, vmlinux};

/// A relocatable object, byte by byte.
pub fn objects(bytes: &[u8]) {
    let Ok(object) = KernelObject::read(bytes, &ObjectHints::default()) else { return };
    let mut end = 0;
    for piece in &object.pieces {
        assert!(end <= piece.at - piece.lead, "pieces overlap at {:#x}", piece.at);
        end = piece.end();
        object.sites_in(piece);
    }
    assert!(u64::from(end) <= object.elf.section(object.text).size);
}

/// A linked kernel, byte by byte: as analyses read it.
pub fn vmlinux_files(bytes: &[u8]) {
    let _ = LinkAddresses::read(bytes).and_then(|linked| linked.types().map(drop));
    let Ok(image) = vmlinux::parse(bytes) else { return };
    for pair in image.blocks.windows(2) {
        assert!(pair[0].end_addr() <= pair[1].addr, "blocks overlap at {}", pair[1].addr);
    }
    for block in &image.blocks {
        let index = image.block_at(block.addr).expect("a block is found by its address");
        assert_eq!(image.block(index).addr, block.addr);
        image.function_of(index);
    }
    patchable_code(bytes, &image);
}

/// What a patched kernel may do, at each block.
fn patchable_code(bytes: &[u8], image: &Image) {
    let code = PatchableCode::parse(bytes).expect("the image was read");
    for block in &image.blocks {
        let (from, end) = (block.addr.0, block.end_addr().0);
        let last = code.last_instruction(from, end);
        assert!((from..end).contains(&last), "{last:#x} is outside of the block");
        for at in from..end.min(from + 64) {
            code.forms(at);
            code.may_return_to(at);
        }
        code.may_run_on(last, end);
    }
}

/// A linked kernel, byte by byte: as live replacement reads it.
pub fn linked_kernels(bytes: &[u8]) {
    let Ok(kernel) = LinkedKernel::parse(bytes) else { return };
    read_all_of(&kernel);
}

pub(crate) fn read_all_of(kernel: &LinkedKernel<'_>) {
    let _ = (kernel.export("printk"), kernel.version_magic(), kernel.module_structure());
    for (index, function) in kernel.functions.iter().enumerate() {
        kernel.function_name(function);
        let at = kernel.link_address(function.at);
        assert!(kernel.function_at(at).is_some());
        kernel.apart(at);
        kernel.branches_out(function);
        kernel.cut(&[index]);
    }
    let all: Vec<usize> = (0..kernel.functions.len()).collect();
    kernel.cut(&all);
}

/// Code and side tables in a right ELF file: for each section of [`SECTIONS`] a stretch, then four
/// bytes for each symbol of a function.
pub fn kernel_tables(bytes: &[u8]) {
    let file = kernel_of(&mut ByteSource::new(bytes));
    vmlinux_files(&file);
    linked_kernels(&file);
}

/// The sections of a kernel that is made of stretches, with the symbols around them.
const SECTIONS: [(&str, u64, &str, &str); 13] = [
    (".text", CODE, "_stext", "_etext"),
    ("__ex_table", ALLOC, "__start___ex_table", "__stop___ex_table"),
    ("__jump_table", WRITABLE, "__start___jump_table", "__stop___jump_table"),
    ("__bug_table", WRITABLE, "__start___bug_table", "__stop___bug_table"),
    (".altinstructions", ALLOC, "__alt_instructions", "__alt_instructions_end"),
    (".altinstr_replacement", CODE, "", ""),
    (".static_call_sites", ALLOC, "__start_static_call_sites", "__stop_static_call_sites"),
    (".return_sites", ALLOC, "__return_sites", "__return_sites_end"),
    (".orc_unwind_ip", ALLOC, "__start_orc_unwind_ip", "__stop_orc_unwind_ip"),
    (".orc_unwind", ALLOC, "__start_orc_unwind", "__stop_orc_unwind"),
    ("__mcount_loc", ALLOC, "__start_mcount_loc", "__stop_mcount_loc"),
    (".BTF", ALLOC, "__start_BTF", "__stop_BTF"),
    (".rodata", ALLOC, "vermagic", "__end_rodata"),
];

/// Where the section with this number of a kernel made of stretches begins.
fn address_of(section: usize) -> u64 {
    linker::TEXT + 0x10_0000 * section as u64
}

/// The bytes of a kernel made of what `source` gives.
pub fn kernel_of(source: &mut ByteSource<'_>) -> Vec<u8> {
    let mut sections = vec![SectionSpec {
        name: elf::NOTES.to_owned(),
        address: linker::TEXT + 0x1000_0000,
        flags: ALLOC,
        bytes: elf::build_id_note(),
    }];
    let mut symbols = Vec::new();
    for (number, &(name, flags, start, stop)) in SECTIONS.iter().enumerate() {
        let (address, bytes) = (address_of(number), source.stretch().to_vec());
        for (mark, at) in [(start, address), (stop, address + bytes.len() as u64)] {
            symbols.push(label(mark, at, number + 1));
        }
        sections.push(SectionSpec { name: name.to_owned(), address, flags, bytes });
    }
    symbols.retain(|symbol| !symbol.name.is_empty());
    let rodata = sections.len() - 1;
    for name in KALLSYMS {
        symbols.push(label(name, sections[rodata].address + u64::from(source.word()), rodata));
    }
    for number in 0..source.below(16) {
        let (address, size) = (linker::TEXT + u64::from(source.word()), source.byte().into());
        let name = format!("f{number}");
        symbols.push(SymbolSpec {
            name,
            address,
            size,
            section: 1,
            kind: SymbolSpecKind::Function,
            global: true,
        });
    }
    elf::executable(&sections, &symbols)
}

/// The tables of kallsyms, which lie in `.rodata` of a kernel made of stretches.
const KALLSYMS: [&str; 8] = [
    "kallsyms_num_syms",
    "kallsyms_names",
    "kallsyms_markers",
    "kallsyms_token_table",
    "kallsyms_token_index",
    "kallsyms_offsets",
    "kallsyms_relative_base",
    "kallsyms_seqs_of_names",
];

fn label(name: &str, address: u64, section: usize) -> SymbolSpec {
    SymbolSpec {
        name: name.to_owned(),
        address,
        size: 0,
        section,
        kind: SymbolSpecKind::Label,
        global: true,
    }
}

pub fn btf(bytes: &[u8]) {
    let Ok(btf) = Btf::parse(bytes) else { return };
    for structure in ["module", "task"] {
        let _ = (btf.size(structure), btf.offset(structure, "name"), btf.enumerator(structure));
        if let Ok(Some(kind)) = btf.variable(structure) {
            let _ = (btf.field_at(kind, 5, 1), btf.field_named(kind, "name[2]"));
        }
    }
}

pub fn object_seeds() -> Vec<Vec<u8>> {
    programs().map(|program| program.object()).collect()
}

/// The seeds of every reader of whole kernels.
pub fn linked_seeds() -> Vec<Vec<u8>> {
    let linked = programs().map(|program| linker::link(&program.object()).file);
    linked.chain(table_seeds().iter().map(|seed| kernel_of(&mut ByteSource::new(seed)))).collect()
}

fn programs() -> impl Iterator<Item = GeneratedProgram> {
    GeneratedProgram::seeds()
        .into_iter()
        .map(|seed| GeneratedProgram::new(&mut ByteSource::new(&seed)))
}

/// A kernel of stretches with one right entry in most of its tables: f at 0 with a static key, a
/// fault, an alternative and a warning, and g at 0x20.
pub fn table_seeds() -> Vec<Vec<u8>> {
    let text = [
        &[0x66, 0x90, 0x48, 0x8b, 0x07, 0x0f, 0x0b, 0x90, 0x90, 0x90, 0xc3, 0xcc][..],
        &[0x90; 20],
        &[0xe8, 0xdb, 0xff, 0xff, 0xff, 0x31, 0xc0, 0xc3],
    ];
    let near = |section: usize, field: u64, to: u64| {
        ((linker::TEXT + to).wrapping_sub(address_of(section) + field) as u32)
            .to_le_bytes()
            .to_vec()
    };
    let far = (address_of(12).wrapping_sub(address_of(2) + 8)).to_le_bytes().to_vec();
    let tables = [
        text.concat(),
        [near(1, 0, 2), near(1, 4, 10), vec![3, 0, 0, 0]].concat(),
        [near(2, 0, 0), near(2, 4, 10), far].concat(),
        [near(3, 0, 5), near(3, 4, 0), vec![1, 0, 1, 0]].concat(),
        [near(4, 0, 7), near(4, 4, 0x50_0000), vec![0, 0, 0, 0, 3, 3]].concat(),
        vec![0x0f, 0xae, 0xe8],
        Vec::new(),
        near(7, 0, 10),
        [near(8, 0, 0), near(8, 4, 0xc), near(8, 8, 0x20), near(8, 12, 0x28)].concat(),
        [8, 0, 0, 0, 5, 2, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 5, 2, 0, 0, 0, 0, 0, 0].to_vec(),
        (linker::TEXT + 0x20).to_le_bytes().to_vec(),
        btf_seeds().concat(),
        kallsyms(),
    ];
    let mut seed: Vec<u8> = tables.iter().flat_map(|table| stretch(table)).collect();
    let places: [u16; 8] = [0, 8, 16, 24, 40, 552, 560, 568];
    seed.extend(places.iter().flat_map(|place| place.to_le_bytes()));
    seed.push(2);
    seed.extend([0, 0, 12, 0x20, 0, 8]);
    vec![seed]
}

/// Tables for two names, "Ta" and "Tb", at the places of `table_seeds`.
fn kallsyms() -> Vec<u8> {
    let mut bytes = vec![0; 576];
    bytes[0] = 2;
    bytes[8..14].copy_from_slice(&[2, 0, 1, 2, 0, 2]);
    bytes[24..30].copy_from_slice(b"T\0a\0b\0");
    bytes[40..46].copy_from_slice(&[0, 0, 2, 0, 4, 0]);
    bytes[552..560].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xdf, 0xff, 0xff, 0xff]);
    bytes[560..568].copy_from_slice(&linker::TEXT.to_le_bytes());
    bytes[568..574].copy_from_slice(&[0, 0, 0, 0, 0, 1]);
    bytes
}

/// `struct module { int a; char name[4]; } module;` (Documentation/bpf/btf.rst).
pub fn btf_seeds() -> Vec<Vec<u8>> {
    let strings = b"\0int\0module\0a\0name\0task\0one\0";
    let at = |name: &str| {
        let wanted = format!("\0{name}\0");
        strings.windows(wanted.len()).position(|w| w == wanted.as_bytes()).unwrap_or(0) as u32 + 1
    };
    let types: Vec<u32> = [
        vec![at("int"), 1 << 24, 4, 32],
        vec![0, 3 << 24, 0, 1, 1, 4],
        vec![at("module"), 4 << 24 | 2, 8, at("a"), 1, 0, at("name"), 2, 32],
        vec![at("task"), 6 << 24 | 1, 4, at("one"), 5],
        vec![at("module"), 14 << 24, 3, 1],
    ]
    .concat();
    let head =
        [0x1_eb9f, 24, 0, types.len() as u32 * 4, types.len() as u32 * 4, strings.len() as u32];
    let bytes =
        |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    vec![[bytes(&head), bytes(&types), strings.to_vec()].concat()]
}
