//! The result of an access to a set-associative store of lines: hit, or miss with the evicted line.
//!
//! This module has only data.

use crate::line::LineId;

/// The result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheAccess {
    /// The line was there.
    Hit,
    /// The line was not there, and is there now.
    Miss {
        /// The line that left to make room, if the way was not empty.
        evicted: Option<LineId>,
    },
}

/// The line that a way holds; `None` when the way is empty.
pub(crate) fn occupied(line: LineId) -> Option<LineId> {
    (line != LineId::NONE).then_some(line)
}
