//! The pages of the code that runs, for the instruction TLB.
//!
//! Takes translation blocks and their executions; gives the pages that the TLB looked up in vain.

use anyhow::Result;
use execution::numbering::{FetchUnit, Numbering};
use sim::{Hierarchy, ItlbDescription, LineId};
use trace::Translation;

/// The pages that the instruction TLB translates.
pub(super) struct InstructionPages {
    numbering: Numbering,
    /// For each translation block: the first page, the last page, and the bytes in the first.
    of: Vec<(LineId, LineId, u32)>,
    /// The page in which the last execution ended. While fetches stay there, the TLB has nothing to
    /// do.
    current: Option<LineId>,
}

impl InstructionPages {
    pub(super) fn new(itlb: &ItlbDescription) -> InstructionPages {
        InstructionPages {
            numbering: Numbering::new(FetchUnit::of_pages(itlb), itlb.geometry().sets()),
            of: Vec::new(),
            current: None,
        }
    }

    pub(super) fn define(&mut self, translation: &Translation) -> Result<()> {
        let (start, bytes) = (translation.addr, translation.code.len() as u32);
        let mut units = Vec::new();
        self.numbering.units(start, bytes, &mut |_| None, &mut units)?;
        if let (Some(first), Some(last)) = (units.first(), units.last()) {
            self.of.push((first.id, last.id, last.addr.0.wrapping_sub(start.0) as u32));
        }
        Ok(())
    }

    /// Translates the pages that an execution fetches, all of them or those of its first `bytes`;
    /// returns the number of misses.
    #[inline]
    pub(super) fn fetch(
        &mut self,
        translation: u32,
        bytes: impl FnOnce() -> Option<u64>,
        hierarchy: &mut Hierarchy,
    ) -> u32 {
        let (first, last, in_first) = self.of[translation as usize];
        if first == last && self.current == Some(first) {
            return 0;
        }
        let reaches_last = first != last && bytes().is_none_or(|bytes| bytes > in_first.into());
        let last = if reaches_last { last } else { first };
        let misses = u32::from(self.current != Some(first) && hierarchy.fetch_page_ahead(first))
            + u32::from(reaches_last && hierarchy.fetch_page_ahead(last));
        self.current = Some(last);
        misses
    }
}
