//! A cycle, together with its cause.
//!
//! Each result of an instruction has the cycle from which it can be used. When the cycle was
//! determined by data that the L1D lacked, the lowest bit is set. The larger of two values is the
//! later one; of two in the same cycle, the one that waited for memory. So one `max` finds both the
//! cycle and its cause.
//!
//! This module has only data and comparisons.

/// A cycle and whether memory determined it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct When(u64);

impl When {
    /// Cycle 0.
    pub(super) const START: When = When(0);

    #[inline]
    pub(super) fn new(cycle: u64, of_memory: bool) -> When {
        When(cycle << 1 | u64::from(of_memory))
    }

    #[inline]
    pub(super) fn cycle(self) -> u64 {
        self.0 >> 1
    }

    #[inline]
    pub(super) fn of_memory(self) -> bool {
        self.0 & 1 != 0
    }

    /// The number by which values are compared: 2 × cycle, and 1 more if memory determined it.
    #[inline]
    pub(super) fn value(self) -> u64 {
        self.0
    }

    /// The value with this number.
    #[inline]
    pub(super) fn of_value(number: u64) -> When {
        When(number)
    }

    /// The same cause, in `cycle` if the value is not later. A later cycle than the value's own has
    /// another cause than memory.
    #[inline]
    pub(super) fn delayed_to(self, cycle: u64) -> When {
        if cycle > self.cycle() { When::new(cycle, false) } else { self }
    }

    /// The same cause, `cycles` later.
    #[inline]
    pub(super) fn after(self, cycles: u64) -> When {
        When(self.0 + (cycles << 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_cycle_wins_and_memory_breaks_ties() {
        let (early, late) = (When::new(4, true), When::new(5, false));
        assert_eq!(early.max(late), late);
        assert_eq!(When::new(5, true).max(late), When::new(5, true));
        assert_eq!((early.cycle(), early.of_memory()), (4, true));
        assert_eq!(early.delayed_to(4), early);
        assert_eq!(early.delayed_to(6), When::new(6, false));
        assert_eq!(early.after(3), When::new(7, true));
    }
}
