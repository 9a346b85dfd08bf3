//! What a module must know about the kernel to be loaded: exported symbols with their checksums,
//! the version string, and `struct module`.
//!
//! Input: a vmlinux. This module never looks at code.

use super::LinkedKernel;
use super::raw_table::relative;
use crate::address::LinkAddr;
use crate::btf::Btf;
use anyhow::{Context, Result, ensure};
use std::collections::HashMap;

/// An exported symbol.
#[derive(Clone, Debug)]
pub struct ExportedSymbol {
    /// Its name.
    pub name: String,
    /// Its link address.
    pub addr: LinkAddr,
    /// The checksum of its type if the kernel has `CONFIG_MODVERSIONS`.
    pub crc: Option<u32>,
}

/// `struct module` as this kernel has it.
#[derive(Clone, Copy, Debug)]
pub struct ModuleStructure {
    /// The size of the structure in bytes.
    pub size: u64,
    /// The offset of the field `name`, which has 56 bytes.
    pub name: u64,
}

/// The bytes of a `struct kernel_symbol` with relative references
/// (include/linux/export-internal.h): value, name, namespace.
const ENTRY: usize = 12;

impl LinkedKernel<'_> {
    /// The exported symbol with that name.
    ///
    /// # Errors
    /// The kernel does not export the symbol, or its tables are damaged.
    pub fn export(&self, name: &str) -> Result<ExportedSymbol> {
        for (table, crcs) in [("__ksymtab", "__kcrctab"), ("__ksymtab_gpl", "__kcrctab_gpl")] {
            let Some(section) = self.section(table) else { continue };
            for (index, entry) in section.bytes.chunks_exact(ENTRY).enumerate() {
                let at = section.addr + (index * ENTRY) as u64;
                let field = |n: usize| {
                    let value =
                        i32::from_le_bytes([entry[n], entry[n + 1], entry[n + 2], entry[n + 3]]);
                    (at + n as u64).wrapping_add_signed(i64::from(value))
                };
                if self.string_at(field(4)) == Some(name.as_bytes()) {
                    let crc =
                        self.section(crcs).and_then(|s| s.bytes.get(index * 4..index * 4 + 4));
                    return Ok(ExportedSymbol {
                        name: name.into(),
                        addr: LinkAddr(field(0)),
                        crc: crc.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])),
                    });
                }
            }
        }
        anyhow::bail!(
            "the kernel does not export {name}: either it was built without modules, or Kernlane \
             does not support this kernel"
        )
    }

    /// The addresses of all exported symbols, by name.
    pub(super) fn exports(&self) -> HashMap<&str, LinkAddr> {
        let mut exports = HashMap::new();
        for section in ["__ksymtab", "__ksymtab_gpl"].iter().filter_map(|name| self.section(name)) {
            for (index, entry) in section.bytes.chunks_exact(ENTRY).enumerate() {
                let at = section.addr + (index * ENTRY) as u64;
                let name = self.string_at(relative(at, entry, 4)).map(std::str::from_utf8);
                if let Some(Ok(name)) = name {
                    exports.insert(name, LinkAddr(relative(at, entry, 0)));
                }
            }
        }
        exports
    }

    /// The string that the kernel compares with a module's `vermagic`.
    ///
    /// # Errors
    /// The kernel was built without modules.
    pub fn version_magic(&self) -> Result<&str> {
        let at = self
            .address_of("vermagic")
            .context("has no string `vermagic`: the kernel was built without modules")?;
        let bytes = self.string_at(at.0).context("its `vermagic` is not a string")?;
        std::str::from_utf8(bytes).context("its `vermagic` is not text")
    }

    /// The layout of `struct module`.
    ///
    /// # Errors
    /// The kernel has no BTF, or its BTF does not describe `struct module`.
    pub fn module_structure(&self) -> Result<ModuleStructure> {
        let section =
            self.section(".BTF").context("has no .BTF: Kernlane reads `struct module` from it")?;
        let btf = Btf::parse(section.bytes)?;
        ensure_known_use(&btf)?;
        Ok(ModuleStructure {
            size: btf.size("module")?,
            name: btf.offset("module", "name")?.context("struct module has no field `name`")?,
        })
    }

    /// The string at an address, without the zero at its end.
    pub(super) fn string_at(&self, at: u64) -> Option<&[u8]> {
        let index = self.sections.partition_point(|s| s.addr <= at).checked_sub(1)?;
        let section = &self.sections[index];
        let rest = section.bytes.get(usize::try_from(at - section.addr).ok()?..)?;
        let end = rest.iter().position(|&b| b == 0)?;
        Some(&rest[..end])
    }
}

/// The fields of `struct module_use`, with their offsets. Later kernels do not show this structure
/// to modules, so kmod/features.h defines it anew.
const USE: [(&str, u64); 4] =
    [("source_list", 0), ("target_list", 16), ("source", 32), ("target", 40)];

/// Checks that `struct module_use` is as Kernlane's module has it. A description that leaves it out
/// says nothing: it is in none that is made from one file of the kernel.
fn ensure_known_use(btf: &Btf<'_>) -> Result<()> {
    if btf.size("module_use").is_err() {
        return Ok(());
    }
    for (field, known) in USE {
        let found = btf.offset("module_use", field)?;
        ensure!(
            found == Some(known),
            "struct module_use has its field `{field}` at {found:?}, not at {known}: Kernlane's \
             module does not know this structure"
        );
    }
    Ok(())
}
