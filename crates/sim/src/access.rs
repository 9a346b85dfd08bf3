//! What an access to a store of lines came to.
//!
//! Only data.

use crate::line::Line;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Hit,
    /// The line was not there and is now; `evicted` had to leave for it.
    Miss {
        evicted: Option<Line>,
    },
}

/// The line that a way holds; `None`: the way is empty.
pub(crate) fn occupied(line: Line) -> Option<Line> {
    (line != Line::NONE).then_some(line)
}
