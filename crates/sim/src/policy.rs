//! What a replacement policy is: the sets of one cache, and the line that leaves each.
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

    /// Uses `line`, which belongs into `set`: the `ways` of `lines` from `set * ways` on. It is not
    /// the line that was used last of its set.
    fn access(
        &mut self,
        lines: &mut [LineId],
        set: usize,
        ways: usize,
        line: LineId,
    ) -> CacheAccess;
}
