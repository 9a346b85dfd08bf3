//! The policy "first in, first out", which manuals also call round robin: the line that came in
//! first leaves, however often it was used.
//!
//! Input: the lines that are used. Output: hit, or miss with the line that left.

use crate::access::{CacheAccess, occupied};
use crate::line::LineId;
use crate::policy::Policy;

/// For each set, the way that is filled next. All other ways were filled later than it, or are
/// filled in turn behind it.
#[derive(Clone, Debug)]
pub(crate) struct Fifo {
    next: Vec<u32>,
}

impl Policy for Fifo {
    const NAME: &str = "fifo";

    fn new(sets: usize, _ways: usize) -> Fifo {
        Fifo { next: vec![0; sets] }
    }

    fn access(
        &mut self,
        lines: &mut [LineId],
        set: usize,
        ways: usize,
        line: LineId,
    ) -> CacheAccess {
        let held = &mut lines[set * ways..(set + 1) * ways];
        if held.contains(&line) {
            return CacheAccess::Hit;
        }
        let next = self.next[set] as usize;
        self.next[set] = if next + 1 == ways { 0 } else { next as u32 + 1 };
        CacheAccess::Miss { evicted: occupied(std::mem::replace(&mut held[next], line)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Mode;

    #[test]
    fn a_line_that_is_used_again_leaves_all_the_same() {
        let [a, b, c] = [1, 2, 3].map(|index| LineId::new(Mode::Kernel, index).unwrap());
        let mut lines = [LineId::NONE; 2];
        let mut fifo = Fifo::new(1, 2);
        let mut access = |line| fifo.access(&mut lines, 0, 2, line);
        for (line, answer) in [
            (a, CacheAccess::Miss { evicted: None }),
            (b, CacheAccess::Miss { evicted: None }),
            (a, CacheAccess::Hit),
            (c, CacheAccess::Miss { evicted: Some(a) }),
            (b, CacheAccess::Hit),
            (a, CacheAccess::Miss { evicted: Some(b) }),
        ] {
            assert_eq!(access(line), answer, "{line:?}");
        }
    }
}
