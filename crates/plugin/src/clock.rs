//! The guest's clock: the values that the kernel read from the processor's time stamp counter, and
//! where it read them.
//!
//! The plugin API has no clock. But when the guest's clock follows its instructions (`-icount`),
//! the counter is that clock, and the kernel reads it before and after every halt. Input: the
//! registers behind a reading. Output: the ticks since the last reading.

use crate::qemu::Register;
use std::collections::HashSet;

/// Follows the readings of the clock.
#[derive(Default)]
pub(crate) struct ClockReader {
    /// The addresses behind the kernel's translations that end with a reading.
    behind: HashSet<u64>,
    /// The registers with the upper and the lower half of a reading. They are looked up at the
    /// first use: there are no registers before the vCPU runs.
    halves: Option<[Register; 2]>,
    last: Option<u64>,
}

impl ClockReader {
    /// Notes that a translation that ends with a reading stands right before the address `behind`.
    pub(crate) fn read_before(&mut self, behind: u64) {
        self.behind.insert(behind);
    }

    /// Whether the code at `addr` can follow a reading.
    pub(crate) fn is_behind(&self, addr: u64) -> bool {
        self.behind.contains(&addr)
    }

    /// The ticks since the last reading; 0 for the first. Must be called at the first instruction
    /// behind a reading, in a callback that reads registers.
    pub(crate) fn ticks(&mut self) -> Option<u64> {
        let find = || Some([Register::find(c"rdx")?, Register::find(c"rax")?]);
        self.halves = self.halves.or_else(find);
        let [upper, lower] = self.halves?;
        let now = upper.value()? << 32 | lower.value()? & 0xffff_ffff;
        let last = self.last.replace(now).unwrap_or(now);
        Some(now.saturating_sub(last))
    }
}
