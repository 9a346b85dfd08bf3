//! The part of a program or library that is loaded: no sections, no symbols, no debugging
//! information.
//!
//! Input: the bytes of an ELF file for x86-64 processors. Output: fewer of them.

use anyhow::{Context, Result, ensure};
use object::LittleEndian;
use object::elf::{EM_X86_64, FileHeader64, PT_INTERP, PT_LOAD, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};

const ENDIAN: LittleEndian = LittleEndian;

fn segments(program: &[u8]) -> Result<&[ProgramHeader64<LittleEndian>]> {
    let header = FileHeader64::<LittleEndian>::parse(program).context("it is not a program")?;
    ensure!(header.e_machine(ENDIAN) == EM_X86_64, "it is not a program for x86-64 processors");
    header.program_headers(ENDIAN, program).context("it is not a program")
}

/// Whether the kernel starts the program by another one, which loads its libraries.
///
/// # Errors
/// The bytes are not an ELF file for x86-64 processors.
pub(crate) fn needs_loader(program: &[u8]) -> Result<bool> {
    Ok(segments(program)?.iter().any(|segment| segment.p_type(ENDIAN) == PT_INTERP))
}

/// The file up to the end of what is loaded, without a table of sections.
///
/// # Errors
/// The bytes are not an ELF file for x86-64 processors, or are cut off.
pub(crate) fn of(mut program: Vec<u8>) -> Result<Vec<u8>> {
    let loaded = segments(&program)?.iter().filter(|segment| segment.p_type(ENDIAN) == PT_LOAD);
    let end = loaded
        .map(|segment| segment.p_offset(ENDIAN).saturating_add(segment.p_filesz(ENDIAN)))
        .max()
        .unwrap_or(0);
    let end = usize::try_from(end).ok().filter(|end| (64..=program.len()).contains(end));
    program.truncate(end.context("it is cut off")?);
    // e_shoff, then e_shentsize, e_shnum and e_shstrndx (ELF-64 object file format, figure 2).
    program[40..48].fill(0);
    program[58..64].fill(0);
    Ok(program)
}
