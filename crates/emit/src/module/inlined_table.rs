//! The section of a module of copies that says where inlined code lies, for people and their tools.
//!
//! Input: the places of the copies. Output: a section that nothing in the kernel reads; the program
//! reads it from the kernel's memory. This module writes no code.
//!
//! ```text
//!  0  "kernlane inlined"
//! 16  the module's number
//! 32  numbers of calls and of ranges, size of .text in bytes, and zero, each in 4 bytes
//! 48  inlined calls of 12 bytes: the context of the call (0 in the copies of functions, n in the
//!     code of call n - 1), and two addresses in the kernel, each relative to its own field: that
//!     of the called function, and that of the call
//!  …  ranges of 12 bytes, ascending: offset in .text, size, context of the code
//! ```

use super::elf::ModuleSection;
use super::{ModuleWriter, NUMBER, READ_ONLY, ReferenceTarget, section};

/// The name of the section.
pub const INLINED_SECTION: &str = ".kernlane.inlined";
/// The section's first bytes.
pub const INLINED_MAGIC: &[u8; 16] = b"kernlane inlined";

impl ModuleWriter<'_, '_, '_> {
    /// The section; `None` if nothing was inlined.
    pub(super) fn inlined_table(
        &self,
        number: [u8; NUMBER],
        text_size: usize,
    ) -> Option<ModuleSection> {
        let original = self.original;
        let numbers = self.inlined_numbers();
        let inlined = original.inlining.calls().iter();
        let calls: Vec<(u32, u32, u32)> = inlined
            .filter_map(|call| Some((numbers[call.context as usize], call.inlined()?, call.at)))
            .collect();
        if calls.is_empty() {
            return None;
        }
        let ranges = self.inlined_ranges(&numbers);
        let mut table = section(INLINED_SECTION, READ_ONLY, 16, INLINED_MAGIC.to_vec());
        table.data.extend(number);
        let counts = [calls.len() as u32, ranges.len() as u32, text_size as u32, 0];
        table.data.extend(counts.map(u32::to_le_bytes).concat());
        for (context, callee, at) in calls {
            table.data.extend(context.to_le_bytes());
            for at in [self.entry_of(callee), original.kernel.link_address(at)] {
                let offset = table.data.len() as u32;
                table.relocations.push(self.relocation(offset, 0, ReferenceTarget::Kernel(at)));
                table.data.extend([0; 4]);
            }
        }
        let words = ranges.into_iter().flatten();
        table.data.extend(words.flat_map(u32::to_le_bytes));
        Some(table)
    }

    /// The number in the table of each context: a call that is only promoted is code of the context
    /// in which it stands.
    fn inlined_numbers(&self) -> Vec<u32> {
        let (mut numbers, mut inlined) = (vec![0], 0);
        for call in self.original.inlining.calls() {
            inlined += u32::from(call.inlined().is_some());
            numbers.push(match call.inlined() {
                Some(_) => inlined,
                None => numbers[call.context as usize],
            });
        }
        numbers
    }

    /// Offset, size and context of each stretch of inlined code, ascending. Pieces of one context
    /// that touch are one stretch. `numbers`: the context's number in the table.
    fn inlined_ranges(&self, numbers: &[u32]) -> Vec<[u32; 3]> {
        let mut pieces: Vec<[u32; 3]> = (0..)
            .zip(self.extents())
            .map(|(n, (at, size))| [at, size, numbers[self.original.inlining.context(n) as usize]])
            .filter(|&[_, size, context]| size > 0 && context > 0)
            .collect();
        pieces.sort_unstable();
        let mut ranges: Vec<[u32; 3]> = Vec::new();
        for [at, size, context] in pieces {
            match ranges.last_mut() {
                Some(last) if last[0] + last[1] == at && last[2] == context => last[1] += size,
                _ => ranges.push([at, size, context]),
            }
        }
        ranges
    }
}
