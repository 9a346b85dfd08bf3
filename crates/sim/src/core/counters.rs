//! The counters of a core, for one mode.
//!
//! This module has only data and sums.

use super::slots::{GraduationSlots, Slots};
use crate::branch_counters::BranchCounters;

counters! {
    /// The counters of a core for one mode.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    pub struct CoreCounters {
        /// Instructions that ran.
        pub instructions: u64,
        /// Uops that ran.
        pub uops: u64,
        /// The slots of the dispatch: their sum is its width × cycles.
        pub slots: Slots,
        /// The slots of the graduation: their sum is its width × cycles.
        pub graduation: GraduationSlots,
        /// Branches and failed predictions. A misfetch is a resteer: the decoder found the branch.
        pub branches: BranchCounters,
        /// Taken branches that only a target buffer behind the first one had.
        pub late_targets: u64,
        /// Cycles without a new fetch target because of these branches.
        pub bubble_cycles: u64,
        /// The upper bound of the fetch targets that wrong paths can have requested.
        pub wrong_path_targets: u64,
        /// Slots that the uop cache delivered.
        pub uop_cache_slots: u64,
        /// Slots that the decoders delivered.
        pub decoded_slots: u64,
        /// Lines that were requested from the L1I.
        pub l1i_requests: u64,
        /// Of these, lines that the L1I did not have.
        pub l1i_misses: u64,
        /// Of the misses, lines that came later than the front end needed them.
        pub l1i_late: u64,
        /// Of the misses, lines that the L2 did not have.
        pub l2_instruction_misses: u64,
        /// Misses of the first-level TLB of code.
        pub itlb_misses: u64,
        /// Of these, page walks.
        pub itlb_walks: u64,
        /// Loads.
        pub loads: u64,
        /// Stores.
        pub stores: u64,
        /// Loads that took their data from an earlier store.
        pub forwarded: u64,
        /// 64 bytes that repeated string instructions loaded or stored, beyond the first of each.
        #[serde(default)]
        pub string_accesses: u64,
        /// Lines that loads and stores requested and that the L1D did not have.
        pub l1d_misses: u64,
        /// Of these, lines that the L2 did not have.
        pub l2_data_misses: u64,
        /// Of these, lines that the L3 did not have.
        pub l3_data_misses: u64,
        /// Misses of the first-level TLB of data.
        pub dtlb_misses: u64,
        /// Of these, page walks.
        pub dtlb_walks: u64,
        /// Lines that prefetchers brought into the L1D.
        pub l1d_prefetches: u64,
        /// Instructions that waited for all others.
        pub serialising: u64,
    }
}
