//! The source lines of code, from a vmlinux' DWARF.
//!
//! Input: the bytes of a vmlinux, and addresses. Output: `file.c:line`. A file without DWARF has
//! no lines. Reads only the units whose addresses are asked for.

use addr2line::Context as Lines;
use addr2line::gimli::{Dwarf, EndianSlice, LittleEndian, SectionId};
use anyhow::{Context, Result};
use object::{Object, ObjectSection};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Gives source lines.
pub struct SourceLines<'a>(Option<Lines<Slice<'a>>>);

impl<'a> SourceLines<'a> {
    /// Reads the DWARF of a file, if it has any.
    ///
    /// # Errors
    /// The file is not an ELF file that can be read, or its DWARF is damaged or compressed.
    pub fn read(bytes: &'a [u8]) -> Result<SourceLines<'a>> {
        let elf = object::File::parse(bytes).context("not an ELF file that can be read")?;
        if elf.section_by_name(".debug_line").is_none() {
            return Ok(SourceLines(None));
        }
        let section = |id: SectionId| -> Result<Slice<'a>> {
            let data = match elf.section_by_name(id.name()) {
                None => &[][..],
                Some(section) => section.data().with_context(|| id.name().to_owned())?,
            };
            Ok(EndianSlice::new(data, LittleEndian))
        };
        let dwarf = Dwarf::load(section).context("its DWARF cannot be read")?;
        Ok(SourceLines(Some(Lines::from_dwarf(dwarf).context("its DWARF cannot be read")?)))
    }

    /// Whether the file has DWARF.
    pub fn known(&self) -> bool {
        self.0.is_some()
    }

    /// The source line of an address: `net/ipv4/tcp.c:1234`, without the directory in which the
    /// compiler ran. `None`: the file does not say.
    pub fn line(&self, addr: u64) -> Option<String> {
        let lines = self.0.as_ref()?;
        let location = lines.find_location(addr).ok()??;
        let file = location.file?;
        let unit = lines.find_dwarf_and_unit(addr).skip_all_loads();
        let directory = unit.and_then(|unit| unit.comp_dir);
        let directory = directory.and_then(|it| std::str::from_utf8(it.slice()).ok());
        let inside = directory.and_then(|directory| file.strip_prefix(directory));
        let file =
            inside.map_or(file, |file| file.trim_start_matches("/./").trim_start_matches('/'));
        Some(match location.line {
            Some(line) => format!("{file}:{line}"),
            None => file.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::ObjectSymbol;

    #[test]
    fn this_program_has_lines() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let lines = SourceLines::read(&bytes).unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        let own = elf.symbols().find(|symbol| {
            symbol.name().is_ok_and(|name| name.contains("this_program_has_lines"))
                && symbol.size() > 0
        });
        let line = lines.line(own.unwrap().address()).unwrap();
        assert!(line.contains("source_lines.rs:"), "{line}");
        assert_eq!((lines.known(), lines.line(1 << 60)), (true, None));
    }

    #[test]
    fn a_file_without_dwarf_has_no_lines() {
        let error = SourceLines::read(b"text").err().unwrap().to_string();
        assert!(error.contains("not an ELF file"), "{error}");
    }
}
