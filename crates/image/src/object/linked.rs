//! Finds where an object's sections lie in the kernel that was linked from it.
//!
//! Input: the object, and the bytes of the `vmlinux`. Output: the addresses. They are returned only
//! if the two files belong together: every global function lies where the object says, and every
//! byte of code that the linker does not fill in is equal. This module never changes anything.

use super::KernelObject;
use super::elf::{ElfSymbol, SectionId};
use crate::BuildId;
use crate::address::LinkAddr;
use crate::place::Placement;
use anyhow::{Context, Result, bail, ensure};
use object::{Object, ObjectSection, ObjectSymbol};
use std::collections::HashMap;
use std::ops::Range;

/// The addresses in a linked kernel of an object's symbols and sections.
pub struct LinkAddresses<'a> {
    elf: object::File<'a>,
    /// The kernel's build id.
    pub build_id: BuildId,
    /// Symbols whose name occurs exactly once.
    globals: HashMap<&'a str, GlobalSymbol>,
}

#[derive(Clone, Copy)]
struct GlobalSymbol {
    address: u64,
    weak: bool,
}

impl<'a> LinkAddresses<'a> {
    /// Reads a vmlinux.
    ///
    /// # Errors
    /// The bytes are not an ELF file, or it has no build id or no symbols.
    pub fn read(bytes: &'a [u8]) -> Result<LinkAddresses<'a>> {
        let elf = object::File::parse(bytes).context("not an ELF file")?;
        let id =
            elf.build_id().context("its notes cannot be read")?.context("it has no build id")?;
        let build_id = BuildId::from_bytes(id);
        let mut globals: HashMap<&str, Option<GlobalSymbol>> = HashMap::new();
        for symbol in elf.symbols().filter(|s| s.is_global()) {
            if let Ok(name) = symbol.name() {
                let global = GlobalSymbol { address: symbol.address(), weak: symbol.is_weak() };
                globals.entry(name).and_modify(|a| *a = None).or_insert(Some(global));
            }
        }
        ensure!(!globals.is_empty(), "it has no symbols (was it stripped?)");
        let globals =
            globals.into_iter().filter_map(|(name, global)| Some((name, global?))).collect();
        Ok(LinkAddresses { elf, build_id, globals })
    }

    /// The address of a global symbol of the object. `None` if the kernel does not have the symbol.
    /// Also `None` if another object's definition replaced a weak one, as the C library's `abort`
    /// replaces that of a kernel for User Mode Linux.
    fn address_of(&self, object: &KernelObject<'_>, symbol: &ElfSymbol) -> Option<u64> {
        let global = self.globals.get(object.elf.name(symbol))?;
        (symbol.is_weak() == global.weak).then_some(global.address)
    }

    /// The kernel's sections of code, each from its first address to its end. Padding between the
    /// object's sections belongs to them.
    pub fn code(&self) -> Vec<Range<u64>> {
        (self.elf.sections())
            .filter(|section| section.kind() == object::SectionKind::Text)
            .map(|section| section.address()..section.address().saturating_add(section.size()))
            .collect()
    }

    /// The bytes of the kernel's BTF, if it has BTF.
    ///
    /// # Errors
    /// The section cannot be read.
    pub fn types(&self) -> Result<Option<&'a [u8]>> {
        let section = self.elf.section_by_name(".BTF");
        section
            .map(|section| section.data().context("vmlinux: its .BTF cannot be read"))
            .transpose()
    }

    /// The address of a section of the object, on which all its global symbols must agree. `None`
    /// if the kernel has none of these symbols.
    ///
    /// # Errors
    /// The symbols disagree: the kernel was not linked from this object.
    pub fn base_of(
        &self,
        object: &KernelObject<'_>,
        section: SectionId,
    ) -> Result<Option<LinkAddr>> {
        let mut base = None;
        for symbol in
            object.elf.symbols.iter().filter(|s| !s.is_local() && s.section() == Some(section))
        {
            let Some(address) = self.address_of(object, symbol) else { continue };
            let name = object.elf.name(symbol);
            let here = address.wrapping_sub(symbol.value);
            match base {
                None => base = Some(here),
                Some(base) if base == here => {}
                Some(_) => {
                    bail!(
                        "{name} does not lie where vmlinux.o says: vmlinux was not linked from \
                         this vmlinux.o; run make in the tree"
                    )
                }
            }
        }
        Ok(base.map(LinkAddr))
    }

    /// How far the linker put a rewritten `.text` from the expected address. `placement` was made
    /// for a `.text` at `base`. The result is 0 as long as the code in front of `.text` has not
    /// changed.
    ///
    /// # Errors
    /// A global symbol does not lie where the placement says.
    pub fn text_shift(
        &self,
        object: &KernelObject<'_>,
        placement: &Placement,
        base: LinkAddr,
    ) -> Result<u64> {
        let mut shift = None;
        for symbol in
            object.elf.symbols.iter().filter(|s| !s.is_local() && s.section() == Some(object.text))
        {
            let Some(address) = self.address_of(object, symbol) else { continue };
            let name = object.elf.name(symbol);
            let Some(expected) = placement.new_address(LinkAddr(base.0 + symbol.value)) else {
                continue;
            };
            let here = address.wrapping_sub(expected.0);
            let agreed = *shift.get_or_insert(here);
            ensure!(
                agreed == here,
                "{name} lies at {address:x} in the new kernel, not where it was put: {expected}"
            );
        }
        shift.context("no symbol of .text is in the new kernel")
    }

    /// The address of the object's `.text`, after every byte was compared with the kernel's.
    ///
    /// # Errors
    /// The kernel was not linked from this object.
    pub fn text_base(&self, object: &KernelObject<'_>) -> Result<LinkAddr> {
        let base = self
            .base_of(object, object.text)?
            .context("no symbol of vmlinux.o's .text is in vmlinux")?;
        let section =
            self.elf.sections().find(|s| s.address() <= base.0 && base.0 < s.address() + s.size());
        let section = section
            .with_context(|| format!("vmlinux has no section at {base}, where .text should be"))?;
        let all = section.uncompressed_data().context("vmlinux: its .text cannot be read")?;
        let ours = object.elf.bytes(object.text);
        let theirs = (base.0 - section.address()) as usize;
        let theirs = all
            .get(theirs..theirs + ours.len())
            .context("vmlinux's .text is shorter than vmlinux.o's")?;
        let mut from = 0;
        for r in &object.relocations[object.text.0 as usize] {
            let field = r.offset as usize;
            compare(ours, theirs, from, field)?;
            let width = if r.kind == object::elf::R_X86_64_64 { 8 } else { 4 };
            from = (field + width).min(ours.len());
        }
        compare(ours, theirs, from, ours.len())?;
        Ok(base)
    }
}

fn compare(ours: &[u8], theirs: &[u8], from: usize, to: usize) -> Result<()> {
    let equal = from >= to || ours[from..to] == theirs[from..to];
    ensure!(
        equal,
        "vmlinux differs from vmlinux.o near .text+{from:#x}: vmlinux was not linked from this \
         vmlinux.o; run make in the tree"
    );
    Ok(())
}
