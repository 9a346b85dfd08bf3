//! The section of a module of copies that lists which copy belongs to which function, and which
//! copies run another function's code without a call.
//!
//! Input: the module's number, the places of the copies, and the holders of such code. Output:
//! `struct kernlane_pairs` of kmod/kernlane.h. The kernel's loader turns its fields into addresses,
//! and `kmod/pairs.c` refuses a request that names other ones. This module writes no code.

use super::elf::{ModuleRelocation, ModuleSection, RelocationBase};
use super::{ModuleWriter, READ_ONLY, ReferenceTarget, TEXT, section};
use object::elf::R_X86_64_PC32;

/// Bytes of a module's number: `KERNLANE_NUMBER`, kmod/kernlane.h.
pub const NUMBER: usize = 16;

/// The section's first bytes: `KERNLANE_PAIRS`.
const MAGIC: &[u8; 16] = b"kernlane's pairs";

impl ModuleWriter<'_, '_, '_> {
    /// The section. Each pair has two fields of four bytes, relative to themselves: the function's
    /// entry in the kernel, and the entry of its copy. The functions ascend. Behind them stand the
    /// `holders`, as numbers of pairs.
    pub(super) fn pairs(&self, number: [u8; NUMBER], holders: &[(u32, u32)]) -> ModuleSection {
        let copies = self.entries();
        let pairs = self.paired();
        let mut table = section(".kernlane", READ_ONLY, 16, MAGIC.to_vec());
        table.data.extend(number);
        table.data.extend((pairs.len() as u64).to_le_bytes());
        table.data.extend((holders.len() as u64).to_le_bytes());
        for &function in &pairs {
            let at = table.data.len() as u32;
            let entry = ReferenceTarget::Kernel(self.entry_of(function));
            table.relocations.push(self.relocation(at, 0, entry));
            table.relocations.push(ModuleRelocation {
                offset: u64::from(at) + 4,
                kind: R_X86_64_PC32,
                base: RelocationBase::Section(TEXT),
                addend: i64::from(copies[function as usize]),
            });
            table.data.extend([0; 8]);
        }
        // Functions that are inlined or called have pairs.
        let pair = |function: u32| pairs.partition_point(|&other| other < function) as u32;
        for &(inlined, holder) in holders {
            table.data.extend(pair(inlined).to_le_bytes());
            table.data.extend(pair(holder).to_le_bytes());
        }
        table
    }

    /// The functions that can be called, ascending by their entries.
    fn paired(&self) -> Vec<u32> {
        let skipped = (0u32..).zip(&self.original.skip);
        skipped.filter(|&(_, &skip)| skip > 0).map(|(function, _)| function).collect()
    }

    /// The address of a function in the kernel.
    pub(super) fn entry_of(&self, function: u32) -> image::address::LinkAddr {
        self.original.kernel.link_address(self.original.functions[function as usize].at)
    }
}
