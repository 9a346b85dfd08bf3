//! A linked kernel as the checker reads it: sections by address, symbols by address and by name.
//!
//! Input: the bytes of a `vmlinux`. Output: borrowed views of them. Every lookup of an address
//! checks bounds, so a damaged file gives an error or no value, never a panic. This module does not
//! use Kernlane's other readers on purpose.

use anyhow::{Context, Result, bail};
use image::address::LinkAddr;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{LittleEndian, SectionIndex};
use std::collections::{HashMap, HashSet};

const LE: LittleEndian = LittleEndian;

/// A section that the running kernel has in memory.
#[derive(Clone, Debug)]
pub struct KernelSection<'d> {
    /// Its name.
    pub name: &'d str,
    /// Its link address.
    pub addr: u64,
    /// Bytes in memory.
    pub size: u64,
    /// The bytes in the file; empty for a section without bytes there (`.bss`).
    pub data: &'d [u8],
    /// Whether it holds code.
    pub executable: bool,
    /// How it comes into memory.
    pub loaded: SectionLoad,
}

/// Where the kernel maps physical address 0 (`__START_KERNEL_map`).
pub(crate) const START_KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// How a section comes into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionLoad {
    /// A segment loads it.
    By {
        /// The flags of the segment (`PF_R`, `PF_W`, `PF_X`).
        flags: u32,
        /// The physical minus the virtual address.
        bias: u64,
    },
    /// No segment has the section at its address and file offset.
    Nowhere,
}

impl KernelSection<'_> {
    /// The address behind its last byte.
    pub fn end(&self) -> u64 {
        self.addr.saturating_add(self.size)
    }
}

/// A symbol of a section in memory, or an absolute symbol.
#[derive(Clone, Debug)]
pub struct KernelSymbol<'d> {
    /// Its name.
    pub name: &'d str,
    /// Its address.
    pub addr: LinkAddr,
    /// The size in bytes, 0 if it has none.
    pub size: u64,
    /// An index into `KernelFile::sections`; `None` for an absolute symbol and for a symbol of an
    /// empty section.
    pub section: Option<usize>,
    /// Whether it names a function.
    pub function: bool,
}

/// The most fields of an entry of a table.
pub(crate) const MOST_FIELDS: usize = 5;
/// The fields of an entry of a table, each as (address, other bits).
pub(crate) type EntryValues = [(u64, u128); MOST_FIELDS];

/// What a kernel has in addition, whose calls were inlined in its bytes.
#[derive(Debug, Default)]
pub(crate) struct Additions {
    /// The calls that are gone.
    pub gone: HashSet<u64>,
    /// The entries of inlined code, by the table's name, in the order of the calls.
    pub entries: HashMap<&'static str, Vec<EntryValues>>,
    /// The unwinder's states of inlined code, ascending.
    pub states: Vec<(u64, [u8; 6])>,
    /// Where inlined code begins, ascending, and the address of the call in a function of the
    /// kernel.
    pub owners: Vec<(u64, u64)>,
    /// The addresses behind inlined functions.
    pub ends: HashSet<u64>,
}

/// A linked kernel.
pub struct KernelFile<'d> {
    /// The address of the entry point.
    pub entry: u64,
    /// The sections, ascending by address.
    pub sections: Vec<KernelSection<'d>>,
    /// The symbols, ascending by address, then by name.
    pub symbols: Vec<KernelSymbol<'d>>,
    by_name: HashMap<&'d str, Vec<u32>>,
    /// The PC-relative relocations outside code, if the file keeps its relocations: address and
    /// bytes of each field.
    pub pc_relative: Option<Vec<(u64, u8)>>,
    pub(crate) additions: Option<&'d Additions>,
}

impl<'d> KernelFile<'d> {
    /// Reads an x86-64 `vmlinux`.
    ///
    /// # Errors
    /// The file is damaged or is not a linked kernel. The error names the broken rule.
    pub fn parse(file: &'d [u8]) -> Result<Self> {
        let header =
            FileHeader64::<LittleEndian>::parse(file).context("this is not a 64-bit ELF file")?;
        if !header.is_little_endian() || header.e_machine(LE) != elf::EM_X86_64 {
            bail!("this is not an ELF file for x86-64");
        }
        if header.e_type(LE) == elf::ET_REL {
            bail!(
                "this is an object file, not a linked kernel: give the vmlinux that the build \
                 linked"
            );
        }
        let table = header.sections(LE, file).context("its section headers are damaged")?;
        let segments =
            header.program_headers(LE, file).context("its program headers are damaged")?;
        let mut sections = Vec::new();
        let mut rela = Vec::new();
        let mut keeps_relocations = false;
        let mut by_index: Vec<(SectionIndex, Option<usize>)> = Vec::new();
        for (index, section) in table.enumerate() {
            let name = table.section_name(LE, section).context("a section name is damaged")?;
            let name = std::str::from_utf8(name).context("a section name is not text")?;
            if section.sh_type(LE) == elf::SHT_RELA && section.sh_addr(LE) == 0 {
                keeps_relocations |= name == ".rela.rodata";
                rela.push(section);
                continue;
            }
            if !section.sh_flags(LE).contains(elf::SHF_ALLOC) {
                continue;
            }
            if section.sh_size(LE) == 0 {
                // Symbols of an empty section mark places.
                by_index.push((index, None));
                continue;
            }
            let data = section
                .data(LE, file)
                .with_context(|| format!("section {name} reaches beyond the file"))?;
            if section.sh_addr(LE).checked_add(section.sh_size(LE)).is_none() {
                bail!("section {name} ends beyond the address space");
            }
            by_index.push((index, Some(sections.len())));
            sections.push(KernelSection {
                name,
                addr: section.sh_addr(LE),
                size: section.sh_size(LE),
                data,
                executable: section.sh_flags(LE).contains(elf::SHF_EXECINSTR),
                loaded: loaded_by(section, segments),
            });
        }
        let mut order: Vec<usize> = (0..sections.len()).collect();
        order.sort_by_key(|&i| sections[i].addr);
        let mut rank = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            rank[old] = new;
        }
        let place: HashMap<usize, Option<usize>> =
            by_index.iter().map(|&(index, at)| (index.0, at.map(|at| rank[at]))).collect();
        sections.sort_by_key(|s| s.addr);

        let symbols = read_symbols(&table, file, &place)?;
        if symbols.is_empty() {
            bail!(
                "it has no symbols: the checker pairs code and data that did not move by their \
                 names, so give an unstripped vmlinux"
            );
        }
        let mut kernel = KernelFile::of_parts(sections, symbols, None);
        kernel.entry = header.e_entry(LE);
        if keeps_relocations {
            kernel.pc_relative = Some(kernel.read_pc_relative(&rela, file)?);
        }
        Ok(kernel)
    }

    /// A kernel of parts that were read already: its sections, its symbols, and the PC-relative
    /// words of its data.
    pub(crate) fn of_parts(
        mut sections: Vec<KernelSection<'d>>,
        mut symbols: Vec<KernelSymbol<'d>>,
        pc_relative: Option<Vec<(u64, u8)>>,
    ) -> Self {
        sections.sort_by_key(|s| s.addr);
        symbols.sort_by(|a, b| (a.addr, a.name).cmp(&(b.addr, b.name)));
        let mut by_name: HashMap<&str, Vec<u32>> = HashMap::with_capacity(symbols.len());
        for (index, symbol) in symbols.iter().enumerate() {
            by_name.entry(symbol.name).or_default().push(index as u32);
        }
        KernelFile { entry: 0, sections, symbols, by_name, pc_relative, additions: None }
    }

    fn read_pc_relative(
        &self,
        rela: &[&elf::SectionHeader64<LittleEndian>],
        file: &[u8],
    ) -> Result<Vec<(u64, u8)>> {
        let mut places = Vec::new();
        for section in rela {
            let Some((entries, _)) =
                section.rela(LE, file).context("a relocation section is damaged")?
            else {
                continue;
            };
            for entry in entries {
                let width = match entry.r_type(LE, false) {
                    elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 => 4,
                    elf::R_X86_64_PC64 => 8,
                    _ => continue,
                };
                let place = entry.r_offset.get(LE);
                if self.section_at(place).is_some_and(|s| !s.executable) {
                    places.push((place, width));
                }
            }
        }
        places.sort_unstable();
        Ok(places)
    }

    /// These words, which a file beside the kernel names.
    ///
    /// # Errors
    /// A word does not lie in data.
    pub(crate) fn in_data(&self, words: &[(u64, u8)]) -> Result<Vec<(u64, u8)>> {
        for &(place, bytes) in words {
            let section = self.section_at(place).filter(|section| !section.executable);
            if section.is_none_or(|section| place + u64::from(bytes) > section.end()) {
                bail!("the word of {bytes} bytes at {place:#x} does not lie in data");
            }
        }
        Ok(words.to_vec())
    }

    /// The section that holds `addr`.
    pub(crate) fn section_at(&self, addr: u64) -> Option<&KernelSection<'d>> {
        self.section_index(addr).map(|i| &self.sections[i])
    }

    /// The number of the section that holds `addr`.
    pub(crate) fn section_index(&self, addr: u64) -> Option<usize> {
        let after = self.sections.partition_point(|s| s.addr <= addr);
        let index = after.checked_sub(1)?;
        (addr < self.sections[index].end()).then_some(index)
    }

    /// The section with this name.
    pub(crate) fn section(&self, name: &str) -> Option<&KernelSection<'d>> {
        self.sections.iter().find(|s| s.name == name)
    }

    /// The bytes from `addr` to the end of its section's bytes in the file.
    pub(crate) fn tail(&self, addr: u64) -> Option<&'d [u8]> {
        let section = self.section_at(addr)?;
        section.data.get((addr - section.addr) as usize..)
    }

    /// The `len` bytes at `addr`. `None` if they do not all lie in one section.
    pub fn bytes(&self, addr: u64, len: u64) -> Option<&'d [u8]> {
        self.tail(addr)?.get(..usize::try_from(len).ok()?)
    }

    /// The little-endian 32-bit value at `addr`.
    pub fn u32_at(&self, addr: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(addr, 4)?.try_into().ok()?))
    }

    /// The little-endian 64-bit value at `addr`.
    pub fn u64_at(&self, addr: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(addr, 8)?.try_into().ok()?))
    }

    /// Every symbol with this name, ascending by address.
    pub fn named(&self, name: &str) -> impl Iterator<Item = &KernelSymbol<'d>> {
        self.by_name.get(name).into_iter().flatten().map(|&i| &self.symbols[i as usize])
    }

    /// The address of the symbol with this name. `None` if there is no such symbol or more than
    /// one.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        let mut found = self.named(name);
        let first = found.next()?;
        found.next().is_none().then_some(first.addr.0)
    }

    /// The symbols at exactly `addr`.
    pub(crate) fn symbols_at(&self, addr: u64) -> &[KernelSymbol<'d>] {
        let from = self.symbols.partition_point(|s| s.addr.0 < addr);
        let count = self.symbols[from..].iter().take_while(|s| s.addr.0 == addr).count();
        &self.symbols[from..from + count]
    }

    /// The address in a function that inlined code belongs to; other addresses are their own.
    pub(crate) fn in_function(&self, addr: u64) -> u64 {
        let owners = self.additions.map_or(&[][..], |additions| &additions.owners);
        let own = owners.partition_point(|&(start, _)| start <= addr);
        own.checked_sub(1).map_or(addr, |own| owners[own].1)
    }

    /// Whether a section holds inlined code, which no new section corresponds to.
    pub(crate) fn is_inlined(&self, section: &KernelSection<'_>) -> bool {
        let owners = self.additions.and_then(|additions| additions.owners.first());
        owners.is_some_and(|&(start, _)| section.end() > start)
    }

    /// The symbols at the last address, up to and including `addr`, that has a symbol of a section
    /// in memory.
    pub fn nearest(&self, addr: u64) -> Option<&[KernelSymbol<'d>]> {
        let addr = self.in_function(addr);
        let mut after = self.symbols.partition_point(|s| s.addr.0 <= addr);
        loop {
            let symbols = self.symbols_at(self.symbols[after.checked_sub(1)?].addr.0);
            if symbols.iter().any(|s| s.section.is_some()) {
                return Some(symbols);
            }
            after -= symbols.len();
        }
    }

    /// Describes an address for people, for example `vfs_read+0x1c`.
    pub fn describe(&self, addr: u64) -> String {
        match self.nearest(addr).and_then(|symbols| symbols.iter().find(|s| s.section.is_some())) {
            Some(symbol) if self.in_function(addr) != addr => format!("inlined in {}", symbol.name),
            Some(symbol) => format!("{}+{:#x}", symbol.name, addr - symbol.addr.0),
            None => format!("{addr:#x}"),
        }
    }

    /// The GNU build id in `.notes`. A note has a name size, a descriptor size, a type, the name
    /// and the descriptor; name and descriptor are padded to 4 bytes each (elf(5)).
    pub fn build_id(&self) -> Option<String> {
        let mut rest = self.section(".notes")?.data;
        while let Some((header, behind)) = rest.split_at_checked(12) {
            let word = |at: usize| {
                u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
            };
            let (name, behind) = behind.split_at_checked((word(0) as usize).next_multiple_of(4))?;
            let id = behind.get(..word(4) as usize)?;
            if word(8) == elf::NT_GNU_BUILD_ID.0 && name == b"GNU\0" {
                return Some(id.iter().map(|byte| format!("{byte:02x}")).collect());
            }
            rest = behind.get(id.len().next_multiple_of(4)..).unwrap_or_default();
        }
        None
    }

    /// The addresses from the lowest to the highest section that is linked at a kernel address.
    pub fn image(&self) -> std::ops::Range<u64> {
        let kernel = || self.sections.iter().filter(|s| s.addr >> 63 == 1 && !self.is_inlined(s));
        let start = kernel().map(|s| s.addr).min().unwrap_or(0);
        start..kernel().map(KernelSection::end).max().unwrap_or(0)
    }
}

/// The new section with the same name. Among sections with the same name, the ranks must be equal.
pub(crate) fn twin_of<'k, 'd>(
    old: &KernelFile<'d>,
    new: &'k KernelFile<'d>,
    index: usize,
) -> Option<&'k KernelSection<'d>> {
    let name = old.sections[index].name;
    let rank = old.sections[..index].iter().filter(|s| s.name == name).count();
    new.sections.iter().filter(|s| s.name == name).nth(rank)
}

fn loaded_by(
    section: &elf::SectionHeader64<LittleEndian>,
    segments: &[elf::ProgramHeader64<LittleEndian>],
) -> SectionLoad {
    let (addr, size) = (section.sh_addr(LE), section.sh_size(LE));
    for segment in segments.iter().filter(|s| s.p_type(LE) == elf::PT_LOAD) {
        let inside = addr
            .checked_sub(segment.p_vaddr(LE))
            .filter(|at| at.checked_add(size).is_some_and(|end| end <= segment.p_memsz(LE)));
        let Some(at) = inside else { continue };
        let in_file = section.sh_type(LE) == elf::SHT_NOBITS
            || (segment.p_offset(LE).checked_add(at) == Some(section.sh_offset(LE))
                && at + size <= segment.p_filesz(LE));
        if in_file {
            let bias = segment.p_paddr(LE).wrapping_sub(segment.p_vaddr(LE));
            return SectionLoad::By { flags: segment.p_flags(LE).0, bias };
        }
    }
    SectionLoad::Nowhere
}

fn read_symbols<'d>(
    table: &object::read::elf::SectionTable<'d, FileHeader64<LittleEndian>>,
    file: &'d [u8],
    place: &HashMap<usize, Option<usize>>,
) -> Result<Vec<KernelSymbol<'d>>> {
    let symtab = table.symbols(LE, file, elf::SHT_SYMTAB).context("its symbol table is damaged")?;
    let mut symbols = Vec::with_capacity(symtab.len());
    for (index, symbol) in symtab.enumerate() {
        if matches!(symbol.st_type(), elf::STT_FILE | elf::STT_SECTION) {
            continue;
        }
        let section = symtab
            .symbol_section(LE, symbol, index)
            .context("a symbol's section index is damaged")?;
        let section = match section {
            Some(index) => match place.get(&index.0) {
                Some(&at) => at,
                None => continue,
            },
            None if symbol.st_shndx(LE) == elf::SHN_ABS => None,
            None => continue,
        };
        let name = symtab.symbol_name(LE, symbol).context("a symbol name is damaged")?;
        symbols.push(KernelSymbol {
            name: std::str::from_utf8(name).context("a symbol name is not text")?,
            addr: LinkAddr(symbol.st_value(LE)),
            size: symbol.st_size(LE),
            section,
            function: symbol.st_type() == elf::STT_FUNC,
        });
    }
    symbols.sort_by(|a, b| (a.addr, a.name).cmp(&(b.addr, b.name)));
    Ok(symbols)
}
