//! A small kernel and recordings of it, for examples and tests.
//!
//! Output: a directory with the files. Everything is written by hand; no guest runs.

use object::Endianness;
use object::elf;
use object::write::elf::{FileHeader, ProgramHeader, SectionHeader, Sym, Writer};
use std::path::Path;
use tempfile::TempDir;
use trace::{RecordingHeader, RecordingWriter, RunAddr, StreamEvent, Translation, TranslationId};

/// The address of the kernel's code.
pub const TEXT: u64 = 0xffff_ffff_8100_0000;

/// The kernel's build id.
pub const BUILD_ID: &str = "00aea92ddb40c47d63853847ca25891e6796c7b0";

/// ```text
/// +00 f: test edi,edi      +20 g: nop
/// +02    je +09 ─┐         +21    ret
/// +04    call g  │
/// +09    nop ◄───┘
/// +0a    sysret
/// ```
fn code() -> Vec<u8> {
    let f = [0x85, 0xff, 0x74, 0x05, 0xe8, 0x17, 0, 0, 0, 0x90, 0x48, 0x0f, 0x07];
    let mut code = f.to_vec();
    code.resize(0x20, 0xcc);
    code.extend([0x90, 0xc3]);
    code
}

/// A directory with the kernel `vmlinux`, and the recordings `loop.rec` and `other.rec`, each of
/// the workload of its name. Both know where their kernel is.
///
/// # Panics
/// The directory cannot be written.
pub fn home() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    std::fs::write(at("vmlinux"), vmlinux()).unwrap();
    write_recording(&at("loop.rec"), &at("vmlinux"), "loop", 3);
    write_recording(&at("other.rec"), &at("vmlinux"), "other", 2);
    home
}

/// A user's loop makes 300 system calls; in the kernel, one of `every` calls skips `g`.
fn write_recording(directory: &Path, kernel: &Path, workload: &str, every: u32) {
    let translations: [(u64, &[u8], &[u8]); 6] = [
        (0x40_1000, &[1, 2], &[0x90, 0x0f, 0x05]), // nop; syscall
        (TEXT, &[2, 2], &[0x85, 0xff, 0x74, 0x05]),
        (TEXT + 4, &[5], &[0xe8, 0x17, 0, 0, 0]),
        (TEXT + 0x20, &[1, 1], &[0x90, 0xc3]),
        (TEXT + 9, &[1, 3], &[0x90, 0x48, 0x0f, 0x07]),
        (0x40_1003, &[2], &[0xeb, 0xfb]), // jmp back
    ];
    let header = RecordingHeader {
        build_id: BUILD_ID.into(),
        workload: workload.into(),
        seed: 7,
        conditions: vec![("qemu".into(), "10.0.2".into())],
        ..RecordingHeader::default()
    };
    let mut writer = RecordingWriter::new(Vec::new(), &header).unwrap();
    for (id, (addr, lengths, code)) in (0..).zip(translations) {
        let (id, addr) = (TranslationId(id), RunAddr(addr));
        let translation = Translation { id, addr, lengths: lengths.into(), code: code.into() };
        writer.translations(&[translation]).unwrap();
    }
    let mut words = Vec::new();
    for round in 0..300 {
        let path: &[u32] = if round % every == 0 { &[0, 1, 4, 5] } else { &[0, 1, 2, 3, 4, 5] };
        path.iter().for_each(|&id| StreamEvent::Executed(TranslationId(id)).append_to(&mut words));
    }
    writer.stream(&words).unwrap();
    std::fs::create_dir(directory).unwrap();
    std::fs::write(directory.join("trace.klt"), writer.end().unwrap().0).unwrap();
    let summary = serde_json::json!({
        "format": 2, "kernel": kernel, "kernel_release": "6.12.0-example",
        "kernel_build_id": BUILD_ID, "workload": workload, "workload_sha256": "00",
        "packages": [], "initramfs_sha256": "00", "seed": 7, "memory_mb": 512, "qemu": "10.0.2",
        "qemu_arguments": [],
        "totals": {
            "instructions": 1, "kernel_instructions": 1, "user_instructions": 0, "executions": 1,
            "translations": 1, "tasks": 0, "hash": "00", "trace_bytes": 1,
        },
    });
    let text = image::sealed::json(&serde_json::to_string_pretty(&summary).unwrap());
    std::fs::write(directory.join("recording.json"), text).unwrap();
}

/// The kernel as an ELF file, with its code at [`TEXT`].
fn vmlinux() -> Vec<u8> {
    let code = code();
    let id = (0..BUILD_ID.len()).step_by(2).map(|at| &BUILD_ID[at..at + 2]);
    let id = id.map(|byte| u8::from_str_radix(byte, 16).unwrap());
    let mut note = [4_u32, 20, 3].map(u32::to_le_bytes).concat();
    note.extend(b"GNU\0".iter().copied().chain(id));

    let mut file = Vec::new();
    let mut writer = Writer::new(Endianness::Little, true, &mut file);
    writer.reserve_file_header();
    writer.reserve_program_headers(2);
    writer.reserve_null_section_index();
    let names = [writer.add_section_name(b".text"), writer.add_section_name(b".note.gnu.build-id")];
    let text = writer.reserve_section_index();
    writer.reserve_section_index();
    writer.reserve_symtab_section_index();
    writer.reserve_strtab_section_index();
    writer.reserve_shstrtab_section_index();
    let functions = [("f", TEXT, 13), ("g", TEXT + 0x20, 2)];
    writer.reserve_null_symbol_index();
    let symbols = functions.map(|(name, addr, size)| {
        writer.reserve_symbol_index(Some(text));
        (writer.add_string(name.as_bytes()), addr, size)
    });
    let places =
        [(&code, 16), (&note, 4)].map(|(bytes, align)| writer.reserve(bytes.len() as u64, align));
    writer.reserve_symtab();
    writer.reserve_strtab().unwrap();
    writer.reserve_shstrtab().unwrap();
    writer.reserve_section_headers();

    let header = FileHeader {
        os_abi: elf::ELFOSABI_SYSV,
        abi_version: 0,
        e_type: elf::ET_EXEC,
        e_machine: elf::EM_X86_64,
        e_entry: TEXT,
        e_flags: elf::FileFlags(0),
    };
    writer.write_file_header(&header).unwrap();
    let addresses = [TEXT, TEXT + 0x1000];
    for ((&place, &addr), bytes) in places.iter().zip(&addresses).zip([&code, &note]) {
        writer.write_program_header(&ProgramHeader {
            p_type: elf::PT_LOAD,
            p_flags: elf::PF_R | elf::PF_X,
            p_offset: place,
            p_vaddr: addr,
            p_paddr: addr & 0x7fff_ffff,
            p_filesz: bytes.len() as u64,
            p_memsz: bytes.len() as u64,
            p_align: 16,
        });
    }
    for (place, bytes) in places.iter().zip([&code, &note]) {
        writer.pad_until(*place);
        writer.write(bytes);
    }
    writer.write_null_symbol();
    for (name, st_value, st_size) in symbols {
        let st_name = writer.string_offset(Some(name));
        writer.write_symbol(&Sym {
            section: Some(text.0),
            st_name,
            st_info: elf::SymbolInfo::new(elf::STB_GLOBAL, elf::STT_FUNC),
            st_other: elf::STV_DEFAULT.into(),
            st_shndx: elf::SymbolSection(0),
            st_value,
            st_size,
        });
    }
    writer.write_strtab();
    writer.write_shstrtab();
    writer.write_null_section_header();
    let kinds = [
        (elf::SHT_PROGBITS, elf::SHF_ALLOC | elf::SHF_EXECINSTR, addresses[0], code.len(), 16),
        (elf::SHT_NOTE, elf::SHF_ALLOC, addresses[1], note.len(), 4),
    ];
    for ((name, place), (kind, flags, addr, size, align)) in names.iter().zip(places).zip(kinds) {
        let sh_name = writer.section_name_offset(Some(*name));
        writer.write_section_header(&SectionHeader {
            sh_name,
            sh_type: kind,
            sh_flags: flags,
            sh_addr: addr,
            sh_offset: place,
            sh_size: size as u64,
            sh_link: 0,
            sh_info: 0,
            sh_addralign: align,
            sh_entsize: 0,
        });
    }
    writer.write_symtab_section_header(1);
    writer.write_strtab_section_header();
    writer.write_shstrtab_section_header();
    file
}
