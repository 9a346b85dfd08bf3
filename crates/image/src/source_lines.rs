//! The source lines of code, from a vmlinux' DWARF.
//!
//! Input: the bytes of a vmlinux, and addresses. Output: `file.c:line`. A file without DWARF has
//! no lines. Reads only the units whose addresses are asked for.

use addr2line::Context as Lines;
use addr2line::gimli::{DebugFrame, Dwarf, EndianSlice, LittleEndian, Reader, SectionId};
use anyhow::{Context, Result};
use object::{Object, ObjectSection, SectionKind};
use std::collections::BTreeMap;
use std::ops::Range;

pub(crate) type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Gives source lines.
pub struct SourceLines<'a> {
    pub(crate) lines: Option<Lines<Slice<'a>>>,
    /// Where frames lie.
    pub(crate) frames: Option<DebugFrame<Slice<'a>>>,
    /// The sections of code. What the linker dropped has lines at addresses near 0.
    code: Vec<Range<u64>>,
}

impl<'a> SourceLines<'a> {
    /// Reads the DWARF of a file, if it has any.
    ///
    /// # Errors
    /// The file is not an ELF file that can be read, or its DWARF is damaged or compressed.
    pub fn read(bytes: &'a [u8]) -> Result<SourceLines<'a>> {
        let elf = object::File::parse(bytes).context("not an ELF file that can be read")?;
        if elf.section_by_name(".debug_line").is_none() {
            return Ok(SourceLines { lines: None, frames: None, code: Vec::new() });
        }
        let section = |id: SectionId| -> Result<Slice<'a>> {
            let data = match elf.section_by_name(id.name()) {
                None => &[][..],
                Some(section) => section.data().with_context(|| id.name().to_owned())?,
            };
            Ok(EndianSlice::new(data, LittleEndian))
        };
        let dwarf = Dwarf::load(section).context("its DWARF cannot be read")?;
        let lines = Some(Lines::from_dwarf(dwarf).context("its DWARF cannot be read")?);
        let code = elf.sections().filter(|section| section.kind() == SectionKind::Text);
        let code = code.map(|it| it.address()..it.address().saturating_add(it.size())).collect();
        let frames = section(SectionId::DebugFrame)?;
        let frames = (!frames.is_empty()).then(|| {
            let mut frames = DebugFrame::from(frames);
            frames.set_address_size(8);
            frames
        });
        Ok(SourceLines { lines, frames, code })
    }

    /// Whether the file has DWARF.
    pub fn known(&self) -> bool {
        self.lines.is_some()
    }

    /// The source line of an address: `net/ipv4/tcp.c:1234`, without the directory in which the
    /// compiler ran. `None`: the file does not say.
    pub fn line(&self, addr: u64) -> Option<String> {
        let lines = self.lines.as_ref()?;
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

    /// By line, ascending: the first address of each stretch of code that a source file's line has,
    /// ascending. `file`: the end of its path, as `tcp.c` or `ipv4/tcp.c`. Reads all units.
    ///
    /// # Errors
    /// The DWARF is damaged.
    pub fn lines_of(&self, file: &str) -> Result<BTreeMap<u32, Vec<u64>>> {
        let mut found: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        let Some(lines) = &self.lines else { return Ok(found) };
        let ranges = lines.find_location_range(0, u64::MAX).context("its lines cannot be read")?;
        let is_wanted = |path: &str| {
            path.strip_suffix(file).is_some_and(|front| front.is_empty() || front.ends_with('/'))
        };
        // The line before, and where its code ends.
        let mut last = (0, 0);
        for (start, bytes, location) in ranges {
            let line = match (location.file, location.line) {
                // A row without bytes says only where a statement begins.
                (Some(path), Some(line)) if line > 0 && bytes > 0 && is_wanted(path) => line,
                _ => 0,
            };
            let is_loaded = self.code.iter().any(|code| code.contains(&start));
            if line > 0 && is_loaded && last != (line, start) {
                found.entry(line).or_default().push(start);
            }
            last = (line, start + bytes);
        }
        found.values_mut().for_each(|addresses| addresses.sort_unstable());
        Ok(found)
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
    fn lines_of_a_file_have_their_code() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let lines = SourceLines::read(&bytes).unwrap();
        let own = lines.lines_of("image/src/source_lines.rs").unwrap();
        assert!(!own.is_empty());
        for (line, addresses) in own {
            for at in addresses {
                let found = lines.line(at).unwrap();
                assert!(
                    found.ends_with(&format!("source_lines.rs:{line}")),
                    "{at:#x} {line}: {found}"
                );
            }
        }
        assert!(lines.lines_of("ource_lines.rs").unwrap().is_empty());
    }

    #[test]
    fn a_file_without_dwarf_has_no_lines() {
        let error = SourceLines::read(b"text").err().unwrap().to_string();
        assert!(error.contains("not an ELF file"), "{error}");
    }
}
