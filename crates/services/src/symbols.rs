//! The names of a kernel's code, to which annotations are bound.
//!
//! Takes a vmlinux or a System.map; gives every symbol in executable sections, including all names
//! of an address. Never looks into code.

use anyhow::{Context, Result, bail, ensure};
use image::BuildId;
use image::address::LinkAddr;
use image::mapping::map_file;
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::collections::HashSet;
use std::path::Path;
use trace::RecordingHeader;

/// A name of an address in the kernel's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeSymbol {
    /// Its address.
    pub addr: LinkAddr,
    /// Bytes; a symbol without a size reaches to the next symbol.
    pub size: u64,
    /// Its name.
    pub name: String,
}

impl CodeSymbol {
    /// The name without what compilers append: `wp_page_copy` of `wp_page_copy.isra.0`. `None` for
    /// `.cold` and `.warm` parts, which are not entries.
    pub fn base_name(&self) -> Option<&str> {
        match self.name.split_once('.') {
            None => Some(&self.name),
            Some((_, endings))
                if endings.split('.').any(|ending| ending == "cold" || ending == "warm") =>
            {
                None
            }
            Some((base, _)) => Some(base),
        }
    }
}

/// All code symbols, ascending by address. Names of one address are ordered by rank, the best
/// first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSymbols {
    /// `None` for a System.map.
    pub build_id: Option<BuildId>,
    symbols: Vec<CodeSymbol>,
    /// Those of modules, ascending by address, at the addresses at which they ran.
    modules: Vec<CodeSymbol>,
}

impl KernelSymbols {
    /// Names the code of modules, by symbols that are ascending by address, and forgets the modules
    /// that were named before. Annotations are not bound to these symbols.
    pub fn set_modules(&mut self, modules: Vec<CodeSymbol>) {
        self.modules = modules;
    }

    /// Reads a vmlinux, or a file of lines `address type name` (System.map, /proc/kallsyms).
    ///
    /// # Errors
    /// The file cannot be read, has neither form, or names no code.
    pub fn read(path: &Path) -> Result<KernelSymbols> {
        let bytes = map_file(path)?;
        let symbols = match bytes.starts_with(b"\x7fELF") {
            true => KernelSymbols::from_elf(&bytes),
            false => KernelSymbols::from_map(&String::from_utf8_lossy(&bytes)),
        };
        symbols.with_context(|| path.display().to_string())
    }

    fn from_elf(bytes: &[u8]) -> Result<KernelSymbols> {
        let elf = object::File::parse(bytes).context("not an ELF file that can be read")?;
        ensure!(
            elf.architecture() == object::Architecture::X86_64,
            "made for {:?}; Kernlane reads kernels for x86-64",
            elf.architecture()
        );
        let id = elf.build_id().context("its notes cannot be read")?;
        let id = id.context("has no build id; link the kernel with --build-id, as kbuild does")?;
        let code: HashSet<_> = elf
            .sections()
            .filter(|section| section.kind() == object::SectionKind::Text)
            .map(|section| section.index())
            .collect();
        let symbols = elf.symbols().filter_map(|symbol| {
            let labels =
                matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Label | SymbolKind::Unknown);
            let in_code = symbol.section_index().is_some_and(|section| code.contains(&section));
            let name = symbol.name().ok().filter(|_| labels && in_code)?;
            Some((
                symbol.address(),
                symbol.size(),
                name.to_owned(),
                symbol.kind() != SymbolKind::Text,
            ))
        });
        let symbols = KernelSymbols {
            build_id: Some(BuildId::from_bytes(id)),
            symbols: sorted(
                symbols.collect(),
                elf.symbols().map(|symbol| symbol.address()).collect(),
            ),
            modules: Vec::new(),
        };
        symbols.or_none(
            "has no symbols of functions (stripped?); take the vmlinux of the build \
             tree or of the -dbg package",
        )
    }

    fn from_map(text: &str) -> Result<KernelSymbols> {
        let (mut found, mut all) = (Vec::new(), Vec::new());
        for (number, line) in text.lines().enumerate() {
            let mut words = line.split_ascii_whitespace();
            let (Some(addr), Some(kind), Some(name)) = (words.next(), words.next(), words.next())
            else {
                bail!("line {}: neither an ELF file nor lines \"address type name\"", number + 1);
            };
            let addr = u64::from_str_radix(addr, 16)
                .with_context(|| format!("line {}: {addr:?} is not an address", number + 1))?;
            all.push(addr);
            // nm(1): t and T are code, w and W weak.
            if matches!(kind, "t" | "T" | "w" | "W") {
                found.push((addr, 0, name.to_owned(), false));
            }
        }
        ensure!(
            found.iter().any(|(addr, ..)| *addr != 0) || found.is_empty(),
            "all addresses are 0: read it as root"
        );
        let symbols = KernelSymbols { symbols: sorted(found, all), ..KernelSymbols::default() };
        symbols.or_none("names no code")
    }

    fn or_none(self, problem: &'static str) -> Result<KernelSymbols> {
        ensure!(!self.symbols.is_empty(), problem);
        Ok(self)
    }

    /// All symbols, ascending by address.
    pub fn iter(&self) -> impl Iterator<Item = &CodeSymbol> {
        self.symbols.iter()
    }

    /// The symbol with the best name at exactly this address.
    pub(crate) fn at(&self, addr: LinkAddr) -> Option<&CodeSymbol> {
        let first = self.symbols.partition_point(|symbol| symbol.addr < addr);
        self.symbols.get(first).filter(|symbol| symbol.addr == addr)
    }

    /// The symbol that holds the address.
    pub fn containing(&self, addr: LinkAddr) -> Option<&CodeSymbol> {
        let after = self.symbols.partition_point(|symbol| symbol.addr <= addr);
        let nearest = after.checked_sub(1).and_then(|last| self.symbols.get(last));
        let own = nearest.and_then(|nearest| self.at(nearest.addr));
        let holds = |symbol: &&CodeSymbol| addr.0 - symbol.addr.0 < symbol.size;
        own.filter(holds).or_else(|| {
            let after = self.modules.partition_point(|symbol| symbol.addr <= addr);
            self.modules.get(after.checked_sub(1)?).filter(holds)
        })
    }
}

/// Makes symbols from (address, size, name, is a label). A symbol without a size ends at the next
/// of `bounds`.
fn sorted(mut found: Vec<(u64, u64, String, bool)>, mut bounds: Vec<u64>) -> Vec<CodeSymbol> {
    found.retain(|(addr, _, name, _)| {
        *addr >> 63 == 1
            && !name.is_empty()
            && !name.starts_with("__pfx_")
            && !name.starts_with(".L")
    });
    found.sort_by(|(a, a_size, a_name, a_label), (b, b_size, b_name, b_label)| {
        let underscores = |name: &str| name.len() - name.trim_start_matches('_').len();
        let rank = |label: bool, size: u64, name: &str| (label, size == 0, underscores(name));
        (a, rank(*a_label, *a_size, a_name), a_name).cmp(&(
            b,
            rank(*b_label, *b_size, b_name),
            b_name,
        ))
    });
    bounds.sort_unstable();
    let symbols = found.into_iter().map(|(addr, size, name, _)| {
        let next = bounds.get(bounds.partition_point(|&bound| bound <= addr));
        let size = match (size, next) {
            (0, Some(next)) => next - addr,
            (0, None) => 1,
            (size, _) => size,
        };
        CodeSymbol { addr: LinkAddr(addr), size, name }
    });
    symbols.collect()
}

/// Checks that the symbols belong to the recorded kernel. A System.map has no build id to check.
///
/// # Errors
/// They belong to another kernel.
pub fn check(header: &RecordingHeader, symbols: &KernelSymbols) -> Result<()> {
    let recorded = &header.build_id;
    if let Some(build_id) = &symbols.build_id {
        ensure!(
            *recorded == build_id.0,
            "the recording is of the kernel with build id {recorded}, the symbols of {}: give the \
             vmlinux that was recorded",
            build_id.0
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 T startup_64
ffffffff81000010 t __pfx_vfs_read
ffffffff81000020 T __vfs_read_alias
ffffffff81000020 T vfs_read
ffffffff81000040 t wp_page_copy.isra.0
ffffffff81000060 t do_wp_page.cold
ffffffff81000080 t do_wp_page.warm.3
ffffffff82000000 D jiffies
";

    #[test]
    fn code_of_modules_has_names_where_the_kernel_has_none() {
        let text = "ffffffff81000000 T f\nffffffff81000010 T g\nffffffff81000020 D data\n";
        let mut symbols = KernelSymbols::from_map(text).unwrap();
        let module =
            |addr, name: &str| CodeSymbol { addr: LinkAddr(addr), size: 8, name: name.into() };
        let at = |symbols: &KernelSymbols, addr| {
            symbols.containing(LinkAddr(addr)).map(|symbol| symbol.name.clone())
        };
        symbols.set_modules(vec![
            module(0xffff_ffff_8100_0004, "never"),
            module(0xffff_ffff_c000_0000, "veth_xmit [veth]"),
        ]);
        assert_eq!(at(&symbols, 0xffff_ffff_8100_0004).as_deref(), Some("f"));
        assert_eq!(at(&symbols, 0xffff_ffff_c000_0007).as_deref(), Some("veth_xmit [veth]"));
        assert_eq!(at(&symbols, 0xffff_ffff_c000_0008), None);
        assert_eq!(symbols.iter().count(), 2, "annotations are not bound to modules");
        symbols.set_modules(Vec::new());
        assert_eq!(at(&symbols, 0xffff_ffff_c000_0000), None);
    }

    #[test]
    fn a_system_map_names_code() {
        let symbols = KernelSymbols::from_map(MAP).unwrap();
        let at = |addr| symbols.at(LinkAddr(addr)).map(|symbol| symbol.name.as_str());
        assert_eq!(at(0xffff_ffff_8100_0020), Some("vfs_read"));
        assert_eq!(at(0xffff_ffff_8100_0021), None);
        assert_eq!(at(0xffff_ffff_8200_0000), None);
        let containing =
            |addr| symbols.containing(LinkAddr(addr)).map(|symbol| symbol.name.as_str());
        assert_eq!(containing(0xffff_ffff_8100_003f), Some("vfs_read"));
        assert_eq!(containing(0xffff_ffff_8100_0040), Some("wp_page_copy.isra.0"));
        assert_eq!(containing(0xffff_ffff_80ff_ffff), None);
        assert_eq!(
            symbols.iter().filter(|symbol| symbol.addr.0 == 0xffff_ffff_8100_0020).count(),
            2
        );
    }

    #[test]
    fn names_have_no_endings_and_parts_are_not_entries() {
        let symbols = KernelSymbols::from_map(MAP).unwrap();
        let base = |addr| symbols.at(LinkAddr(addr)).unwrap().base_name();
        assert_eq!(base(0xffff_ffff_8100_0040), Some("wp_page_copy"));
        assert_eq!(base(0xffff_ffff_8100_0060), None);
        assert_eq!(base(0xffff_ffff_8100_0080), None);
    }

    #[test]
    fn files_without_code_symbols_are_refused() {
        let error = |text: &str| format!("{:#}", KernelSymbols::from_map(text).unwrap_err());
        assert!(error("").contains("names no code"));
        assert!(error("hello\n").contains("line 1"));
        assert!(error("xyz T f\n").contains("line 1: \"xyz\" is not an address"));
        assert!(error("0000000000000000 T vfs_read\n").contains("as root"));
        assert!(KernelSymbols::from_elf(b"\x7fELF").is_err());
    }

    #[test]
    fn a_damaged_map_gives_an_error_or_symbols_that_are_found_again() {
        for (number, line) in (1..).zip(MAP.lines()) {
            let damaged = MAP.replacen(line, &format!("x{line}"), 1);
            let error = format!("{:#}", KernelSymbols::from_map(&damaged).unwrap_err());
            assert!(error.contains(&format!("line {number}:")), "{error}");
        }
        let mut state = 11_u64;
        for _ in 0..3000 {
            let mut bytes = MAP.as_bytes().to_vec();
            for _ in 0..2 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 20) as u8;
            }
            if let Ok(symbols) = KernelSymbols::from_map(&String::from_utf8_lossy(&bytes)) {
                for symbol in symbols.iter() {
                    assert!(
                        symbols
                            .containing(symbol.addr)
                            .is_none_or(|found| found.addr == symbol.addr)
                    );
                }
            }
        }
    }
}
