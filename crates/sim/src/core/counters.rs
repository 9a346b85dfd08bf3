//! The counters of a core, for one mode.
//!
//! This module has only data and sums.

use super::slots::{GraduationSlots, Slots};
use crate::branch_counters::BranchCounters;
use std::ops::{AddAssign, Sub};

/// Makes [`CoreCounters`] and its sums of one list of fields.
macro_rules! counters {
    ($($(#[$attribute:meta])* $field:ident: $type:ty,)*) => {
        /// The counters of a core for one mode.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub struct CoreCounters {
            $($(#[$attribute])* pub $field: $type,)*
        }

        impl AddAssign for CoreCounters {
            fn add_assign(&mut self, other: CoreCounters) {
                $(self.$field += other.$field;)*
            }
        }

        /// What happened between an earlier state of the counters and a later one.
        impl Sub for CoreCounters {
            type Output = CoreCounters;

            fn sub(self, earlier: CoreCounters) -> CoreCounters {
                CoreCounters { $($field: self.$field - earlier.$field,)* }
            }
        }
    };
}

counters! {
    /// Instructions that ran.
    instructions: u64,
    /// Uops that ran.
    uops: u64,
    /// The slots of the dispatch: their sum is its width × cycles.
    slots: Slots,
    /// The slots of the graduation: their sum is its width × cycles.
    graduation: GraduationSlots,
    /// Branches and failed predictions. A misfetch is a resteer: the decoder found the branch.
    branches: BranchCounters,
    /// Taken branches that only a target buffer behind the first one had.
    late_targets: u64,
    /// Cycles without a new fetch target because of them.
    bubble_cycles: u64,
    /// The upper bound of the fetch targets that wrong paths can have requested.
    wrong_path_targets: u64,
    /// Slots that the uop cache delivered.
    uop_cache_slots: u64,
    /// Slots that the decoders delivered.
    decoded_slots: u64,
    /// Lines that were requested from the L1I.
    l1i_requests: u64,
    /// Of these, lines that the L1I did not have.
    l1i_misses: u64,
    /// Of the misses, lines that came later than the front end needed them.
    l1i_late: u64,
    /// Of the misses, lines that the L2 did not have.
    l2_instruction_misses: u64,
    /// Misses of the first-level TLB of code.
    itlb_misses: u64,
    /// Of these, page walks.
    itlb_walks: u64,
    /// Loads.
    loads: u64,
    /// Stores.
    stores: u64,
    /// Loads that took their data from an earlier store.
    forwarded: u64,
    /// Lines that loads and stores requested and that the L1D did not have.
    l1d_misses: u64,
    /// Of these, lines that the L2 did not have.
    l2_data_misses: u64,
    /// Of these, lines that the L3 did not have.
    l3_data_misses: u64,
    /// Misses of the first-level TLB of data.
    dtlb_misses: u64,
    /// Of these, page walks.
    dtlb_walks: u64,
    /// Lines that prefetchers brought into the L1D.
    l1d_prefetches: u64,
    /// Instructions that waited for all others.
    serialising: u64,
}
