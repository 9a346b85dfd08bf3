//! The interface of a replacement policy: the sets of one cache, and the line that leaves each set.
//!
//! Input: the lines that are used, in order. Output: hit, or miss with the line that left. A policy
//! knows no modes, counters or time.

use crate::access::CacheAccess;
use crate::line::LineId;

/// The sets of one cache under one policy.
pub(crate) trait Policy {
    /// What it is called in machine files.
    const NAME: &str;

    /// What the policy asks of the number of ways, for messages.
    const WAYS: &str = "at least 1";

    /// Whether the policy works with this number of ways.
    fn allows(_ways: u64) -> bool {
        true
    }

    /// Sets whose ways are empty.
    fn new(sets: usize, ways: usize) -> Self;

    /// Uses `line`, which belongs to `set`: the `ways` of `lines` from `set * ways` on. The line is
    /// not the one that was used last in its set.
    fn access(
        &mut self,
        lines: &mut [LineId],
        set: usize,
        ways: usize,
        line: LineId,
    ) -> CacheAccess;
}
