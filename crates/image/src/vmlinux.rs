//! Reads a final `vmlinux`: symbols, side tables, blocks. This needs no relocations, because every
//! reference between code and side tables is relative or already resolved.
//!
//! Input: the path of a vmlinux. Output: an [`crate::Image`]. This module never changes the file.

use crate::address::LinkAddr;
use crate::blocks::{self, Landmarks};
use crate::forms::without_linker_fill;
use crate::linked::LinkedKernel;
use crate::linked::sites::ThunkUse;
use crate::linked::tables::LinkedTables;
use crate::mapping::map_file;
use crate::ordinary::{self, ReservedCode, ReservedParts};
use crate::place::CallPadding;
use crate::symbols::{self, FunctionExtent};
use crate::{BuildId, Image, ImageFunction};
use anyhow::{Context, Result, bail};
use object::{Object, ObjectSection, ObjectSymbol};
use rayon::prelude::*;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The vmlinux of a kernel. `kernel` is the vmlinux itself, or a build tree that contains it.
pub fn path(kernel: &Path) -> PathBuf {
    match kernel.is_dir() {
        true => kernel.join("vmlinux"),
        false => kernel.to_owned(),
    }
}

/// Reads the vmlinux at `path`.
///
/// # Errors
/// The file cannot be read, is not an ELF file for x86-64, has no symbols, or has no build id.
pub fn read(path: &Path) -> Result<Image> {
    let bytes = map_file(path)?;
    parse(&bytes).with_context(|| path.display().to_string())
}

/// Reads the bytes of a vmlinux.
///
/// # Errors
/// The same errors as `read`.
pub fn parse(bytes: &[u8]) -> Result<Image> {
    let elf = object::File::parse(bytes).context("not a readable ELF file")?;
    if elf.architecture() != object::Architecture::X86_64 {
        bail!("made for {:?}; Kernlane reads kernels for x86-64", elf.architecture());
    }
    let build_id = match elf.build_id().context("its notes cannot be read")? {
        Some(id) => BuildId::from_bytes(id),
        None => bail!("has no build id; link the kernel with --build-id, as kbuild does"),
    };
    let extents = symbols::functions(&elf);
    if extents.is_empty() {
        bail!(
            "has no function symbols (was it stripped?): use the vmlinux of the build tree or of \
             the -dbg package"
        );
    }
    let tables = LinkedKernel::tables_of_code(build_id.clone(), &elf)?;
    let landmarks = landmarks(&tables);
    let reserved = reserved_parts(&elf);
    let sections = executable_sections(&elf)?;

    let cut: Vec<_> = extents
        .par_iter()
        .map(|extent| blocks::cut(extent.addr, code_of(&sections, extent), &landmarks))
        .collect();
    Ok(assemble(build_id, entry_padding(&elf), extents, cut, &sections, &reserved))
}

/// The addresses of the executable sections of the vmlinux at `path`.
///
/// # Errors
/// The file cannot be read, or is not a readable ELF file.
pub fn code_ranges(path: &Path) -> Result<Vec<Range<u64>>> {
    let named = || path.display().to_string();
    let bytes = map_file(path)?;
    let elf =
        object::File::parse(&*bytes).context("not a readable ELF file").with_context(named)?;
    let sections = executable_sections(&elf).with_context(named)?;
    let range = |section: &CodeSection<'_>| {
        section.addr..section.addr.saturating_add(section.data.len() as u64)
    };
    Ok(sections.values().map(range).collect())
}

/// The number of instructions of each of these blocks of the vmlinux at `path`, in their order.
///
/// # Errors
/// The file cannot be read, or does not have the bytes of a block.
pub fn instruction_counts<'b>(
    path: &Path,
    blocks: impl Iterator<Item = &'b crate::Block>,
) -> Result<Vec<u32>> {
    let named = || path.display().to_string();
    let bytes = map_file(path)?;
    let elf =
        object::File::parse(&*bytes).context("not a readable ELF file").with_context(named)?;
    let mut sections: Vec<CodeSection<'_>> =
        executable_sections(&elf).with_context(named)?.into_values().collect();
    sections.sort_by_key(|section| section.addr);
    let count = |block: &crate::Block| {
        let section = sections[..sections.partition_point(|s| s.addr <= block.addr.0)].last()?;
        let from = usize::try_from(block.addr.0 - section.addr).ok()?;
        let code = section.data.get(from..from.checked_add(block.size as usize)?)?;
        Some(blocks::instructions(code))
    };
    let count = |block: &crate::Block| {
        count(block).with_context(|| format!("{}: has no code at {}", path.display(), block.addr))
    };
    blocks.map(count).collect()
}

/// An executable section.
struct CodeSection<'a> {
    name: String,
    addr: u64,
    data: &'a [u8],
}

fn executable_sections<'a>(elf: &object::File<'a>) -> Result<HashMap<usize, CodeSection<'a>>> {
    elf.sections()
        .filter(|section| section.kind() == object::SectionKind::Text)
        .map(|section| {
            let name = section.name().context("a section's name cannot be read")?.to_owned();
            let data = section.data().with_context(|| format!("section {name} cannot be read"))?;
            let addr = section.address();
            Ok((section.index().0, CodeSection { name, addr, data }))
        })
        .collect()
}

fn code_of<'a>(sections: &HashMap<usize, CodeSection<'a>>, extent: &FunctionExtent) -> &'a [u8] {
    let Some(section) = sections.get(&extent.section) else {
        return &[];
    };
    let from = (extent.addr - section.addr) as usize;
    let to = (extent.end - section.addr) as usize;
    without_linker_fill(section.data.get(from..to).unwrap_or(&[]))
}

fn assemble(
    build_id: BuildId,
    entry_padding: u32,
    extents: Vec<FunctionExtent>,
    cut: Vec<Vec<crate::Block>>,
    sections: &HashMap<usize, CodeSection<'_>>,
    reserved: &ReservedParts,
) -> Image {
    let mut image = Image {
        build_id,
        entry_padding,
        call_padding: CallPadding::Kept,
        entry_alignment: alignment(&extents),
        functions: Vec::with_capacity(extents.len()),
        blocks: Vec::with_capacity(cut.iter().map(Vec::len).sum()),
        modules: Vec::new(),
    };
    for (extent, blocks) in extents.into_iter().zip(cut) {
        let Some(last) = blocks.last() else {
            continue;
        };
        let section = sections[&extent.section].name.clone();
        let stays = stays(&extent, &section, reserved);
        let first = image.blocks.len() as u32;
        image.functions.push(ImageFunction {
            addr: LinkAddr(extent.addr),
            size: last.end_addr().0 - extent.addr,
            blocks: first..first + blocks.len() as u32,
            stays,
            section,
            name: extent.name,
        });
        image.blocks.extend(blocks);
    }
    image
}

/// How many bytes of the padding in front of an entry must stay there. The first `__pfx_` symbol's
/// distance from its function's entry gives the padding, which is the same for all functions. If
/// the kernel says how many of these bytes it patches, that number is used instead
/// (arch/x86/kernel/callthunks.c).
fn entry_padding(elf: &object::File<'_>) -> u32 {
    let [from, to] = ["skl_call_thunk_template", "skl_call_thunk_tail"]
        .map(|name| elf.symbol_by_name(name).map(|s| s.address()));
    let patched =
        from.zip(to).and_then(|(from, to)| to.checked_sub(from)).filter(|&length| length > 0);
    let padding = elf.symbols().find(|symbol| {
        symbol.size() > 0 && symbol.name().is_ok_and(|name| name.starts_with("__pfx_"))
    });
    let named = padding.map_or(0, |symbol| symbol.size());
    patched.map_or(named, |patched| named.min(patched)) as u32
}

/// The alignment of entries: the largest power of two up to 64 that nine in ten entries have. The
/// tenth may be assembly, which is not aligned.
fn alignment(extents: &[FunctionExtent]) -> u32 {
    let keeps = |alignment: &u32| {
        let aligned =
            extents.iter().filter(|extent| extent.addr % u64::from(*alignment) == 0).count();
        aligned * 10 >= extents.len() * 9
    };
    [64, 32, 16, 8, 4, 2].into_iter().find(keeps).unwrap_or(1)
}

/// Why a layout may not move a function; `None` if it may.
fn stays(extent: &FunctionExtent, section: &str, reserved: &ReservedParts) -> Option<ReservedCode> {
    if section != ordinary::TEXT {
        return Some(ReservedCode::OtherSection);
    }
    let thunk = || ThunkUse::of(&extent.name).map(|_| ReservedCode::Thunks);
    reserved.at(extent.addr).or_else(thunk)
}

fn reserved_parts(elf: &object::File<'_>) -> ReservedParts {
    let addresses = named_addresses(elf, ReservedParts::symbols());
    ReservedParts::new(|name| addresses.get(name).copied())
}

fn named_addresses<'n>(
    elf: &object::File<'_>,
    names: impl Iterator<Item = &'n str>,
) -> HashMap<&'n str, u64> {
    let wanted: std::collections::HashSet<&str> = names.collect();
    elf.symbols()
        .filter_map(|symbol| Some((*wanted.get(symbol.name().ok()?)?, symbol.address())))
        .collect()
}

/// What the side tables say about where control can enter a function. A missing table has no
/// entries.
fn landmarks(tables: &LinkedTables) -> Landmarks {
    let mut landmarks = Landmarks::default();
    landmarks.starts.extend(tables.exceptions.iter().map(|e| e.fixup));
    for key in &tables.jumps {
        landmarks.sites.push(key.site);
        landmarks.starts.push(key.target);
    }
    let alternatives = tables.alternatives.iter();
    landmarks.opaque.extend(alternatives.map(|e| e.site..e.site.saturating_add(e.len.into())));
    landmarks.sort();
    landmarks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thunks_and_code_of_other_sections_stay() {
        let extent = |name: &str| FunctionExtent {
            addr: 0x100,
            end: 0x110,
            name: name.to_owned(),
            section: 1,
        };
        let nothing = ReservedParts::default();
        let of = |name, section| stays(&extent(name), section, &nothing);
        assert_eq!(of("vfs_read", ".text"), None);
        assert_eq!(of("__x86_indirect_thunk_rax", ".text"), Some(ReservedCode::Thunks));
        assert_eq!(of("vfs_read", ".init.text"), Some(ReservedCode::OtherSection));
        let locks = ReservedParts::new(|name| {
            [("__lock_text_start", 0), ("__lock_text_end", 0x200)]
                .iter()
                .find(|(symbol, _)| *symbol == name)
                .map(|&(_, addr)| addr)
        });
        let of_locks = stays(&extent("_raw_spin_lock"), ".text", &locks);
        assert_eq!(of_locks, Some(ReservedCode::Locks));
    }
}
