//! The section of a module of copies that lists which copy belongs to which function.
//!
//! Input: the module's number, and the places of the copies. Output: `struct kernlane_pairs` of
//! kmod/kernlane.h. The kernel's loader turns its fields into addresses, and `kmod/pairs.c` refuses
//! a request that names other ones. This module writes no code.

use super::elf::{ModuleRelocation, ModuleSection, RelocationBase};
use super::{ModuleWriter, READ_ONLY, ReferenceTarget, TEXT, section};
use object::elf::R_X86_64_PC32;

/// Bytes of a module's number: `KERNLANE_NUMBER`, kmod/kernlane.h.
pub const NUMBER: usize = 16;

/// The section's first bytes: `KERNLANE_PAIRS`.
const MAGIC: &[u8; 16] = b"kernlane's pairs";

impl ModuleWriter<'_, '_, '_> {
    /// The section. Each pair has two fields of four bytes, relative to themselves: the function's
    /// entry in the kernel, and the entry of its copy. The functions ascend.
    pub(super) fn pairs(&self, number: [u8; NUMBER]) -> ModuleSection {
        let original = self.original;
        let copies = self.entries();
        let mut pairs: Vec<_> = (original.functions.iter().zip(&original.skip).zip(&copies))
            .filter(|&((_, &skip), _)| skip > 0)
            .map(|((function, _), &copy)| (original.kernel.link_address(function.at), copy))
            .collect();
        pairs.sort_unstable();
        let mut table = section(".kernlane", READ_ONLY, 16, MAGIC.to_vec());
        table.data.extend(number);
        table.data.extend((pairs.len() as u64).to_le_bytes());
        for (entry, copy) in pairs {
            let at = table.data.len() as u32;
            table.relocations.push(self.relocation(at, 0, ReferenceTarget::Kernel(entry)));
            table.relocations.push(ModuleRelocation {
                offset: u64::from(at) + 4,
                kind: R_X86_64_PC32,
                base: RelocationBase::Section(TEXT),
                addend: i64::from(copy),
            });
            table.data.extend([0; 8]);
        }
        table
    }
}
