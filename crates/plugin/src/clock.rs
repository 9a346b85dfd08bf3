//! The guest's clock: what the kernel read from its processor's time stamp counter, and where in
//! the execution.
//!
//! The plugin API has no clock. But where the guest's clock follows its instructions (`-icount`)
//! the counter is that clock, and the kernel reads it on both sides of every halt. Takes the
//! registers behind such an instruction; gives by how many ticks the clock went on.

use crate::qemu::Register;
use std::collections::HashSet;

/// Follows the readings.
#[derive(Default)]
pub struct Clock {
    /// Addresses behind translations of the kernel that end with a reading.
    behind: HashSet<u64>,
    /// Where a reading is found: its upper and lower half. Looked up when first needed: there are
    /// no registers before the vCPU runs.
    halves: Option<[Register; 2]>,
    last: Option<u64>,
}

impl Clock {
    /// A translation that ends with a reading is followed in memory by `behind`.
    pub fn read_before(&mut self, behind: u64) {
        self.behind.insert(behind);
    }

    /// Whether the code at `addr` may follow a reading.
    pub fn is_behind(&self, addr: u64) -> bool {
        self.behind.contains(&addr)
    }

    /// In a callback that reads registers, at the first instruction behind a reading: how many
    /// ticks have passed since the reading before; 0 for the first.
    pub fn ticks(&mut self) -> Option<u64> {
        let find = || Some([Register::find(c"rdx")?, Register::find(c"rax")?]);
        self.halves = self.halves.or_else(find);
        let [upper, lower] = self.halves?;
        let now = upper.value()? << 32 | lower.value()? & 0xffff_ffff;
        let last = self.last.replace(now).unwrap_or(now);
        Some(now.saturating_sub(last))
    }
}
