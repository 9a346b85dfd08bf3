//! What a replacement policy is: how the sets of one cache know what has to leave.

use crate::access::CacheAccess;
use crate::line::LineId;

/// The sets of one cache under one policy.
pub(crate) trait Policy {
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
