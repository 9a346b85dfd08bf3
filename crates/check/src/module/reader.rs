//! Reads a module of copies, and resolves its relocations.
//!
//! Input: the module's bytes, and the kernel whose symbols it names. Output: its code, and what
//! each of its fields refers to. This module compares nothing.

use super::CopyClaim;
use anyhow::{Context, Result, bail, ensure};
use image::linked::LinkedKernel;
use object::elf::RelocationType;
use object::{
    Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionIndex,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// A place that a field of the module refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NamedPlace {
    /// An offset in its `.text`.
    Copy(u32),
    /// A link address of the kernel.
    Kernel(u64),
    /// An offset in another of its sections.
    Own(usize, u64),
}

/// The module's file, with its relocations resolved.
pub(super) struct ModuleReader<'a> {
    pub(super) text: &'a [u8],
    pub(super) text_index: usize,
    /// Per section and offset of a field: what the field refers to, and the relocation's type. The
    /// addend is as written, relative to the field.
    fields: BTreeMap<usize, BTreeMap<u64, (NamedPlace, RelocationType)>>,
    /// The fields that were compared, by section and offset.
    used: RefCell<BTreeSet<(usize, u64)>>,
    pub(super) elf: object::File<'a>,
}

pub(super) const PC32: RelocationType = object::elf::R_X86_64_PC32;
pub(super) const PC64: RelocationType = object::elf::R_X86_64_PC64;
pub(super) const ABSOLUTE: RelocationType = object::elf::R_X86_64_64;
/// The longest instruction, in bytes. A field that is relative to the end of its instruction names
/// a place that is at most this number of bytes too low.
const LONGEST: i64 = 15;

impl<'a> ModuleReader<'a> {
    pub(super) fn new(kernel: &LinkedKernel<'_>, module: &'a [u8]) -> Result<ModuleReader<'a>> {
        let elf = object::File::parse(module).context("the module is not an ELF file")?;
        let section = elf.section_by_name(".text").context("the module has no .text")?;
        let (text, text_index) = (section.data()?, section.index().0);
        let mut fields: BTreeMap<usize, BTreeMap<u64, (NamedPlace, RelocationType)>> =
            BTreeMap::new();
        let mut imports: BTreeMap<&str, u64> = BTreeMap::new();
        for section in elf.sections() {
            for (offset, relocation) in section.relocations() {
                let RelocationFlags::Elf { r_type } = relocation.flags() else {
                    continue;
                };
                let RelocationTarget::Symbol(symbol) = relocation.target() else {
                    bail!("a relocation without a symbol");
                };
                let symbol = elf.symbol_by_index(symbol)?;
                let addend = relocation.addend();
                let inside = |index: SectionIndex| {
                    let size = elf.section_by_index(index)?.size();
                    offset_in(size, symbol.address(), addend)
                        .with_context(|| format!("the relocation at {offset:#x}"))
                };
                let place = match symbol.section_index() {
                    Some(index) if index.0 == text_index => NamedPlace::Copy(inside(index)? as u32),
                    Some(index) => NamedPlace::Own(index.0, inside(index)? as u64),
                    None => {
                        let name = symbol.name()?;
                        let base = match imports.get(name) {
                            Some(&base) => base,
                            None => *imports.entry(name).or_insert(
                                kernel
                                    .address_of(name)
                                    .with_context(|| format!("the kernel has no single {name}"))?
                                    .0,
                            ),
                        };
                        NamedPlace::Kernel(base.wrapping_add_signed(addend))
                    }
                };
                let known = matches!(r_type, PC32 | PC64 | ABSOLUTE);
                ensure!(known, "a relocation of type {r_type} at {offset:#x}");
                let before =
                    fields.entry(section.index().0).or_default().insert(offset, (place, r_type));
                ensure!(before.is_none(), "two relocations at {offset:#x}");
            }
        }
        ensure!(u32::try_from(text.len()).is_ok(), "the module's .text is larger than 4 GB");
        Ok(ModuleReader { text, text_index, fields, used: RefCell::default(), elf })
    }

    /// What a field refers to.
    pub(super) fn field(&self, section: usize, at: u64) -> Option<(NamedPlace, RelocationType)> {
        let field = self.fields.get(&section)?.get(&at).copied();
        if field.is_some() {
            self.used.borrow_mut().insert((section, at));
        }
        field
    }

    /// Checks that a claim names bytes that can exist. So sums of its numbers do not overflow.
    pub(super) fn check_claim(&self, claim: &CopyClaim) -> Result<()> {
        let end = claim.new.checked_add(claim.new_size);
        ensure!(
            end.is_some_and(|end| end as usize <= self.text.len()),
            "the copy of the block at {} lies beyond the module's .text",
            claim.old
        );
        ensure!(
            claim.old.0.checked_add(u64::from(claim.old_size)).is_some()
                && claim.skip <= claim.old_size,
            "the block at {} ends beyond the address space, or before its copy begins",
            claim.old
        );
        Ok(())
    }

    /// Checks that the loader changes nothing that was not compared.
    pub(super) fn check_all_used(&self) -> Result<()> {
        let used = self.used.borrow();
        for (&index, fields) in &self.fields {
            if let Some(at) = fields.keys().find(|&&at| !used.contains(&(index, at))) {
                let section = self.elf.section_by_index(SectionIndex(index))?;
                bail!("{}: a relocation at {at:#x} that was not compared", section.name()?);
            }
        }
        Ok(())
    }
}

/// The offset that a symbol and an addend name in a section of `size` bytes.
fn offset_in(size: u64, symbol: u64, addend: i64) -> Result<i64> {
    let offset = i64::try_from(symbol).ok().and_then(|symbol| symbol.checked_add(addend));
    let size = i64::try_from(size).context("a section without end")?;
    offset
        .filter(|offset| (-LONGEST..=size).contains(offset))
        .context("names a place outside of its section")
}
