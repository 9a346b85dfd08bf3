//! Keeps the use of frames up to date while a recording runs.
//!
//! Input: the changes of frame use in a stream, and every execution. Output: the changes, applied
//! to [`DataOwners`] when their execution begins. This module names nothing.

use super::owners::{DataOwners, StructureId};
use trace::{Accesses, FrameUseChange};

/// The changes of frame use in a stream, and how many of them have been applied.
#[derive(Default)]
pub struct FrameUses {
    changes: Vec<(u32, FrameUseChange)>,
    past: usize,
    execution: u32,
}

impl FrameUses {
    /// A stream begins. `settled`: as for [`DataOwners::change`].
    pub fn stream(
        &mut self,
        accesses: &Accesses,
        owners: &mut DataOwners,
        settled: impl FnMut(u64, StructureId),
    ) {
        // The changes behind the last execution of a stream apply before the next stream.
        self.execution = u32::MAX;
        self.apply(owners, settled);
        owners.slab_caches(&accesses.slab_caches);
        self.changes.clone_from(&accesses.uses);
        (self.past, self.execution) = (0, u32::MAX);
    }

    /// The next execution begins.
    #[inline]
    pub fn executed(&mut self, owners: &mut DataOwners, settled: impl FnMut(u64, StructureId)) {
        self.execution = self.execution.wrapping_add(1);
        if self.changes.get(self.past).is_some_and(|(from, _)| *from <= self.execution) {
            self.apply(owners, settled);
        }
    }

    /// Applies the changes up to the current execution.
    #[cold]
    fn apply(&mut self, owners: &mut DataOwners, mut settled: impl FnMut(u64, StructureId)) {
        while let Some((_, change)) =
            self.changes.get(self.past).filter(|(from, _)| *from <= self.execution)
        {
            owners.change(change, &mut settled);
            self.past += 1;
        }
    }
}
