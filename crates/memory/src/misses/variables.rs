//! The names of the kernel's data. Takes a vmlinux; says which static symbol or per-CPU variable
//! holds an address.

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

/// A symbol: its address (or its offset in a CPU's area), its bytes and its name.
pub type Variable = (u64, u64, String);

/// The symbols of data in a vmlinux.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    /// Symbols of the image, ascending by address.
    image: Vec<Variable>,
    /// Variables of the per-CPU area, ascending by offset.
    per_cpu: Vec<Variable>,
    /// Bytes of the static part of a CPU's area.
    per_cpu_bytes: u64,
    /// The link address of the per-CPU area: 0 until Linux 6.14 (`__per_cpu_start`).
    per_cpu_start: u64,
}

impl Variables {
    /// Reads the data symbols of a vmlinux.
    ///
    /// # Errors
    /// The vmlinux is not an ELF file that can be read, or has no symbols of data.
    pub fn read(vmlinux: &[u8]) -> Result<Variables> {
        let elf = object::File::parse(vmlinux).context(
            "not an ELF file that can be read: the names of data need the kernel's vmlinux",
        )?;
        let area = elf.section_by_name(".data..percpu");
        let mut variables = Variables {
            per_cpu_bytes: area.as_ref().map_or(0, |area| area.size()),
            per_cpu_start: area.as_ref().map_or(0, |area| area.address()),
            ..Variables::default()
        };
        for symbol in elf.symbols() {
            let names =
                matches!(symbol.kind(), SymbolKind::Data | SymbolKind::Text) && symbol.size() > 0;
            let Some(name) = symbol.name().ok().filter(|name| names && !name.is_empty()) else {
                continue;
            };
            let found = |addr| (addr, symbol.size(), base_name(name).to_owned());
            let addr = symbol.address();
            match area.as_ref().is_some_and(|area| symbol.section_index() == Some(area.index())) {
                true => {
                    let offset = addr.wrapping_sub(variables.per_cpu_start);
                    variables.per_cpu.push(found(offset));
                }
                false => variables.image.push(found(addr)),
            }
        }
        ensure!(
            !variables.image.is_empty(),
            "has no symbols of data (stripped?): take the vmlinux of the build tree or of the -dbg \
             package"
        );
        variables.image.sort();
        variables.per_cpu.sort();
        Ok(variables)
    }

    /// Where a CPU's area lies that has this entry in the kernel's `__per_cpu_offset`.
    pub(super) fn area_at(&self, per_cpu_offset: u64) -> u64 {
        per_cpu_offset.wrapping_add(self.per_cpu_start)
    }

    /// The static symbol that holds an address of the image.
    pub(super) fn in_image(&self, addr: u64) -> Option<&str> {
        self.image_variable(addr).map(|(.., name)| name.as_str())
    }

    /// The symbol that holds an address of the image.
    pub(crate) fn image_variable(&self, addr: u64) -> Option<&Variable> {
        containing(&self.image, addr)
    }

    /// The variable that holds an offset in a CPU's area.
    pub(crate) fn per_cpu_variable(&self, offset: u64) -> Option<&Variable> {
        containing(&self.per_cpu, offset).filter(|_| offset < self.per_cpu_bytes)
    }

    /// The addresses of the image's symbols of this name.
    pub(super) fn image_named(&self, name: &str) -> impl Iterator<Item = u64> {
        starts(&self.image, name)
    }

    /// The offsets of the per-CPU variables of this name.
    pub(super) fn per_cpu_named(&self, name: &str) -> impl Iterator<Item = u64> {
        starts(&self.per_cpu, name)
    }

    /// The variable at an offset in a CPU's area; `None` behind the static part.
    pub fn per_cpu(&self, offset: u64) -> Option<&str> {
        let name = || self.per_cpu_variable(offset).map_or("(no symbol)", |(.., name)| name);
        self.is_per_cpu(offset).then(name)
    }

    /// Whether an offset lies in the static part of a CPU's area.
    pub(super) fn is_per_cpu(&self, offset: u64) -> bool {
        offset < self.per_cpu_bytes
    }
}

/// Removes the number that the compiler appends, which changes from build to build: `__key.12` is
/// `__key`.
fn base_name(name: &str) -> &str {
    name.split_once('.').map_or(name, |(base, _)| if base.is_empty() { name } else { base })
}

fn starts(symbols: &[Variable], name: &str) -> impl Iterator<Item = u64> {
    symbols.iter().filter(move |(.., known)| known == name).map(|(start, ..)| *start)
}

fn containing(symbols: &[Variable], addr: u64) -> Option<&Variable> {
    let after = symbols.partition_point(|(start, ..)| *start <= addr);
    // Symbols may nest: the innermost is the nearest one that reaches the address.
    let near = symbols[..after].iter().rev().take(8);
    near.into_iter().find(|(start, bytes, _)| addr - start < *bytes)
}

/// Variables at these addresses, with their bytes and names, and at these offsets of a CPU's area.
#[cfg(any(test, feature = "examples"))]
pub fn of(image: &[(u64, u64, &str)], per_cpu: &[(u64, u64, &str)]) -> Variables {
    let named = |symbols: &[(u64, u64, &str)]| {
        symbols.iter().map(|(addr, bytes, name)| (*addr, *bytes, (*name).to_owned())).collect()
    };
    Variables {
        image: named(image),
        per_cpu: named(per_cpu),
        per_cpu_bytes: 0x1000,
        per_cpu_start: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vmlinux whose per-CPU area has this address, with a variable in it and one in the image.
    fn vmlinux(per_cpu: u64) -> Vec<u8> {
        use object::write::{Object, StandardSegment, Symbol, SymbolSection};
        use object::{
            Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolScope,
        };
        let mut elf = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let data = elf.segment_name(StandardSegment::Data).to_vec();
        for (section, symbol, value) in
            [(".data", "init_task", 0x1000), (".data..percpu", "runqueues", per_cpu + 0x40)]
        {
            let id = elf.add_section(data.clone(), section.into(), SectionKind::Data);
            elf.append_section_data(id, &[0; 0x100], 1);
            elf.add_symbol(Symbol {
                name: symbol.into(),
                value,
                size: 8,
                kind: SymbolKind::Data,
                scope: SymbolScope::Linkage,
                weak: false,
                section: SymbolSection::Section(id),
                flags: SymbolFlags::None,
            });
        }
        let mut bytes = elf.write().unwrap();
        // The addresses of sections are those of a linked file.
        let at = |bytes: &[u8], place: usize| {
            u64::from_le_bytes(*bytes[place..].first_chunk().unwrap()) as usize
        };
        let headers = at(&bytes, 40);
        let addr = headers + 2 * 64 + 16;
        bytes[addr..addr + 8].copy_from_slice(&per_cpu.to_le_bytes());
        bytes
    }

    /// Until Linux 6.14 the area has link address 0.
    #[test]
    fn variables_of_a_cpu_have_offsets_wherever_the_area_is_linked() {
        for start in [0, 0xffff_ffff_83e0_c000] {
            let variables = Variables::read(&vmlinux(start)).unwrap();
            assert_eq!(variables.per_cpu(0x44), Some("runqueues"), "{start:#x}");
            assert_eq!(variables.per_cpu(0x100), None);
            assert_eq!(variables.in_image(0x1004), Some("init_task"));
            let area: u64 = 0xffff_8880_1f80_0000;
            assert_eq!(variables.area_at(area.wrapping_sub(start)), area);
        }
    }

    #[test]
    fn a_variable_holds_its_bytes() {
        let variables = of(
            &[(0x100, 0x80, "outer"), (0x110, 8, "inner"), (0x200, 4, "last")],
            &[(0, 8, "first")],
        );
        let image = [0xff, 0x100, 0x110, 0x117, 0x118, 0x180, 0x203, 0x204]
            .map(|addr| variables.in_image(addr));
        let expected = [
            None,
            Some("outer"),
            Some("inner"),
            Some("inner"),
            Some("outer"),
            None,
            Some("last"),
            None,
        ];
        assert_eq!(image, expected);
        assert_eq!(
            [7, 8, 0x1000].map(|at| variables.per_cpu(at)),
            [Some("first"), Some("(no symbol)"), None]
        );
        assert_eq!((base_name("__key.12"), base_name(".x")), ("__key", ".x"));
    }
}
