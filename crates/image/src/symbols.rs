//! Which symbols of an ELF file are functions, and where each function ends.
//!
//! If an address has several names, this module keeps one. A `__pfx_` symbol names the padding in
//! front of an entry, not a function.
//!
//! Input: an ELF file. Output: functions, ascending by address. This module never looks at code.

use object::{Object, ObjectSection, ObjectSymbol, SymbolFlags, SymbolKind};

/// A function as the symbol table describes it: `[addr, end)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FunctionExtent {
    pub addr: u64,
    pub end: u64,
    pub name: String,
    pub section: usize,
}

/// A symbol that may name a function.
struct SymbolCandidate<'a> {
    addr: u64,
    size: u64,
    /// Among several names for one address, the name with the smallest rank is kept.
    rank: (bool, bool, u8, usize),
    name: &'a str,
    section: usize,
}

/// The functions in the executable sections: ascending, disjoint, none empty.
///
/// A symbol without a type or a size (assembly) is a function if no symbol with a size covers its
/// address. Such a function ends where the next one begins.
pub(super) fn functions(elf: &object::File<'_>) -> Vec<FunctionExtent> {
    let mut candidates: Vec<SymbolCandidate<'_>> =
        elf.symbols().filter_map(|symbol| candidate(elf, &symbol)).collect();
    candidates.sort_by(|a, b| (a.addr, a.rank, a.name).cmp(&(b.addr, b.rank, b.name)));
    candidates.dedup_by(|later, first| {
        let same = later.addr == first.addr;
        if same {
            first.size = first.size.max(later.size);
        }
        same
    });

    let mut covered = 0;
    candidates.retain(|candidate| {
        let inside = candidate.addr < covered;
        let keep = !inside || candidate.size > 0;
        covered = covered.max(candidate.addr.saturating_add(candidate.size));
        keep
    });

    let next_starts: Vec<u64> =
        candidates.iter().skip(1).map(|c| c.addr).chain([u64::MAX]).collect();
    candidates
        .into_iter()
        .zip(next_starts)
        .filter_map(|(candidate, next)| extent(elf, candidate, next))
        .collect()
}

fn candidate<'a>(
    elf: &object::File<'a>,
    symbol: &object::Symbol<'a, '_>,
) -> Option<SymbolCandidate<'a>> {
    let section = symbol.section_index()?;
    let name = symbol.name().ok()?;
    let is_function = symbol.kind() == SymbolKind::Text;
    let labels_code =
        is_function || symbol.kind() == SymbolKind::Label || symbol.kind() == SymbolKind::Unknown;
    if !labels_code || name.is_empty() || name.starts_with("__pfx_") || name.starts_with(".L") {
        return None;
    }
    let SymbolFlags::Elf { st_info, .. } = symbol.flags() else {
        return None;
    };
    if !is_executable(elf, section) {
        return None;
    }
    let binding_rank = match st_info.st_bind() {
        object::elf::STB_GLOBAL => 0,
        object::elf::STB_WEAK => 1,
        _ => 2,
    };
    Some(SymbolCandidate {
        addr: symbol.address(),
        size: if is_function { symbol.size() } else { 0 },
        rank: (
            !is_function,
            is_mark(name),
            binding_rank,
            name.len() - name.trim_start_matches('_').len(),
        ),
        name,
        section: section.0,
    })
}

/// Whether the linker's script marks with this symbol where a part of the code begins or ends. The
/// function there has a name of its own: `__x86_indirect_thunk_rax`, for example, behind
/// `__softirqentry_text_end`.
fn is_mark(name: &str) -> bool {
    name.ends_with("_text_start") || name.ends_with("_text_end")
}

fn is_executable(elf: &object::File<'_>, section: object::SectionIndex) -> bool {
    elf.section_by_index(section).is_ok_and(|section| section.kind() == object::SectionKind::Text)
}

fn extent(
    elf: &object::File<'_>,
    candidate: SymbolCandidate<'_>,
    next: u64,
) -> Option<FunctionExtent> {
    let section = elf.section_by_index(object::SectionIndex(candidate.section)).ok()?;
    let section_end = section.address().checked_add(section.size())?;
    let limit = next.min(section_end);
    let end = match candidate.size {
        0 => limit,
        size => candidate.addr.checked_add(size)?.min(limit),
    };
    (candidate.addr >= section.address() && candidate.addr < end).then(|| FunctionExtent {
        addr: candidate.addr,
        end,
        name: candidate.name.to_owned(),
        section: candidate.section,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::write::{Object as Written, Symbol, SymbolSection};
    use object::{Architecture, BinaryFormat, Endianness, SectionKind, SymbolScope};

    /// The names of the functions of a section of 0x40 bytes with these symbols: name, address,
    /// bytes.
    fn names(symbols: &[(&str, u64, u64)]) -> Vec<(u64, String)> {
        let mut file = Written::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let text = file.add_section(Vec::new(), b".text".to_vec(), SectionKind::Text);
        file.append_section_data(text, &[0xcc; 0x40], 16);
        for &(name, value, size) in symbols {
            file.add_symbol(Symbol {
                name: name.as_bytes().to_vec(),
                value,
                size,
                kind: if size > 0 { SymbolKind::Text } else { SymbolKind::Label },
                scope: SymbolScope::Linkage,
                weak: false,
                section: SymbolSection::Section(text),
                flags: SymbolFlags::None,
            });
        }
        let bytes = file.write().unwrap();
        let found = functions(&object::File::parse(&*bytes).unwrap());
        found.into_iter().map(|function| (function.addr, function.name)).collect()
    }

    #[test]
    fn a_mark_of_the_linker_s_script_does_not_name_the_code_behind_it() {
        let symbols = [
            ("__softirqentry_text_start", 0x00, 0),
            ("__do_softirq", 0x00, 0x10),
            ("__softirqentry_text_end", 0x10, 0),
            ("__x86_indirect_thunk_rax", 0x10, 0),
            ("__x86_indirect_thunk_rcx", 0x20, 0),
            ("_text_end", 0x30, 0),
        ];
        let found = names(&symbols);
        let found: Vec<(u64, &str)> = found.iter().map(|(at, name)| (*at, name.as_str())).collect();
        let expected = [
            (0x00, "__do_softirq"),
            (0x10, "__x86_indirect_thunk_rax"),
            (0x20, "__x86_indirect_thunk_rcx"),
            (0x30, "_text_end"),
        ];
        assert_eq!(found, expected);
    }
}
