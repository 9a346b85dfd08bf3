//! When the operating system's core is free.
//!
//! CPUs come in the order of the recording, so a CPU may ask for an earlier time than the CPU
//! before it. The CPU gets the first gap that is long enough.
//!
//! Input: the time at which a CPU asks, and the time that it needs. Output: the time at which it
//! begins. This module knows no CPU.

use std::collections::BTreeMap;

/// The times at which a core is busy, in cycles.
#[derive(Clone, Debug, Default)]
pub(super) struct Calendar {
    /// Begin and end of each busy time. They neither meet nor overlap.
    busy: BTreeMap<u64, u64>,
}

impl Calendar {
    /// Takes `cycles` from the first gap at or after `from` that is long enough. Returns the begin.
    pub(super) fn take(&mut self, from: u64, cycles: u64) -> u64 {
        let mut begin = from;
        if let Some((_, &end)) = self.busy.range(..=from).next_back() {
            begin = begin.max(end);
        }
        for (&next, &end) in self.busy.range(begin..) {
            if next - begin >= cycles {
                break;
            }
            begin = end;
        }
        self.add(begin, begin + cycles);
        begin
    }

    /// Forgets what ended before `time`. Nobody may ask for an earlier time afterwards.
    pub(super) fn forget_before(&mut self, time: u64) {
        while let Some(first) = self.busy.first_entry()
            && *first.get() < time
        {
            first.remove();
        }
    }

    fn add(&mut self, mut begin: u64, mut end: u64) {
        if begin == end {
            return;
        }
        if let Some((&before, &its_end)) = self.busy.range(..=begin).next_back()
            && its_end == begin
        {
            begin = before;
        }
        if let Some(its_end) = self.busy.remove(&end) {
            end = its_end;
        }
        self.busy.insert(begin, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_used() {
        let mut calendar = Calendar::default();
        assert_eq!(calendar.take(100, 50), 100);
        assert_eq!(calendar.take(120, 10), 150);
        assert_eq!(calendar.take(300, 10), 300);
        assert_eq!(calendar.take(0, 100), 0);
        assert_eq!(calendar.take(10, 140), 160);
        assert_eq!(calendar.busy, BTreeMap::from([(0, 310)]));
        assert_eq!(calendar.take(5, 1), 310);
        calendar.forget_before(400);
        assert_eq!(calendar.busy, BTreeMap::new());
    }

    #[test]
    fn nothing_overlaps() {
        let mut calendar = Calendar::default();
        let (mut state, mut taken) = (1_u64, Vec::new());
        for _ in 0..500 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (from, cycles) = (state >> 33 & 0xfff, 1 + (state >> 50 & 0x1f));
            let begin = calendar.take(from, cycles);
            assert!(begin >= from);
            taken.push((begin, begin + cycles));
        }
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    }
}
