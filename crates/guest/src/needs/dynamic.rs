//! What an ELF file says about its loading: its interpreter, the libraries that it needs, and where
//! they are.
//!
//! Input: the bytes of a file. Output: a `Dynamic`, or nothing if the file is not an ELF file for
//! x86-64 processors, or is damaged. Source: the ELF-64 object file format, sections 8 and 9.

use object::LittleEndian;
use object::elf::{
    DT_NEEDED, DT_NULL, DT_RPATH, DT_RUNPATH, DT_SONAME, DT_STRTAB, Dyn64, DynamicTag, EM_X86_64,
    FileHeader64, PT_DYNAMIC, PT_INTERP, PT_LOAD, ProgramHeader64,
};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::slice_from_bytes;

/// Real programs need at most a few hundred libraries.
const MOST_ENTRIES: usize = 65536;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dynamic {
    /// The absolute path of the loader. Only programs have it.
    pub interpreter: Option<String>,
    /// The name by which programs need the library.
    pub name: Option<String>,
    pub needed: Vec<String>,
    pub rpath: Vec<String>,
    pub runpath: Vec<String>,
}

impl Dynamic {
    pub(crate) fn read(file: &[u8]) -> Option<Dynamic> {
        let endian = LittleEndian;
        let header = FileHeader64::<LittleEndian>::parse(file).ok()?;
        if header.e_machine(endian) != EM_X86_64 || !header.is_little_endian() {
            return None;
        }
        let segments = header.program_headers(endian, file).ok()?;
        let bytes = |segment: &ProgramHeader64<LittleEndian>| segment.data(endian, file).ok();
        let mut found = Dynamic::default();
        for segment in segments {
            match segment.p_type(endian) {
                PT_INTERP => found.interpreter = Some(text(bytes(segment)?)?),
                PT_DYNAMIC => found.tables(segments, file, bytes(segment)?)?,
                _ => {}
            }
        }
        Some(found)
    }

    /// Reads the entries of the segment `dynamic`.
    fn tables(
        &mut self,
        segments: &[ProgramHeader64<LittleEndian>],
        file: &[u8],
        dynamic: &[u8],
    ) -> Option<()> {
        let endian = LittleEndian;
        let number = (dynamic.len() / size_of::<Dyn64<LittleEndian>>()).min(MOST_ENTRIES);
        let (entries, _) = slice_from_bytes::<Dyn64<LittleEndian>>(dynamic, number).ok()?;
        let entries: Vec<(DynamicTag, u64)> = entries
            .iter()
            .map(|entry| (entry.d_tag(endian), entry.d_val(endian)))
            .take_while(|(tag, _)| *tag != DT_NULL)
            .collect();
        let (_, table) = entries.iter().find(|(tag, _)| *tag == DT_STRTAB)?;
        let strings = segments.iter().find_map(|segment| {
            let inside = table.checked_sub(segment.p_vaddr(endian))?;
            let data = segment.data(endian, file).ok()?;
            let is_loaded = segment.p_type(endian) == PT_LOAD;
            data.get(usize::try_from(inside).ok()?..).filter(|_| is_loaded)
        })?;
        for (tag, value) in &entries {
            let string = || text(strings.get(usize::try_from(*value).ok()?..)?);
            let paths = || Some(string()?.split(':').map(str::to_owned).collect::<Vec<_>>());
            match *tag {
                DT_NEEDED => self.needed.push(string()?),
                DT_SONAME => self.name = Some(string()?),
                DT_RPATH => self.rpath.extend(paths()?),
                DT_RUNPATH => self.runpath.extend(paths()?),
                _ => {}
            }
        }
        Some(())
    }
}

/// The text up to NUL.
fn text(bytes: &[u8]) -> Option<String> {
    /// `PATH_MAX` of Linux.
    const LONGEST: usize = 4096;
    let end = bytes.iter().take(LONGEST).position(|byte| *byte == 0)?;
    Some(std::str::from_utf8(&bytes[..end]).ok()?.to_owned())
}
