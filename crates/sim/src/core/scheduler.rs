//! A scheduler: the places in which uops wait for their operands.
//!
//! Uops enter in program order and leave in the cycle in which they begin, in any order. So the
//! next uop takes the place that becomes free first. A heap of the cycles in which the places
//! become free finds it.

use super::when::When;

#[derive(Clone, Debug)]
pub(crate) struct Scheduler {
    /// A heap: no place is free later than those at 2 × index + 1 and 2 × index + 2.
    free: Vec<When>,
}

impl Scheduler {
    /// `entries` must be at least 1.
    pub(super) fn new(entries: u32) -> Scheduler {
        Scheduler { free: vec![When::START; entries as usize] }
    }

    /// The cycle from which a place is free.
    #[inline]
    pub(super) fn free(&self) -> When {
        self.free[0]
    }

    /// Takes the place that is free first, until `leaves`.
    #[inline]
    pub(super) fn enter(&mut self, leaves: When) {
        let heap = &mut self.free[..];
        let mut at = 0;
        loop {
            let mut child = 2 * at + 1;
            if child >= heap.len() {
                break;
            }
            if child + 1 < heap.len() && heap[child + 1] < heap[child] {
                child += 1;
            }
            if heap[child] >= leaves {
                break;
            }
            heap[at] = heap[child];
            at = child;
        }
        heap[at] = leaves;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_that_is_free_first_is_taken() {
        let mut scheduler = Scheduler::new(3);
        let mut enter = |leaves| {
            let free = scheduler.free().cycle();
            scheduler.enter(When::new(leaves, false));
            free
        };
        // Three places are free at once. Then the uops leave in the cycles 4, 7, 9, 11.
        assert_eq!([9, 4, 7, 11, 20, 21].map(&mut enter), [0, 0, 0, 4, 7, 9]);
    }

    #[test]
    fn agrees_with_a_sorted_list() {
        let (mut scheduler, mut naive) = (Scheduler::new(7), vec![0; 7]);
        let mut state = 1_u64;
        for _ in 0..1000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let leaves = state >> 50;
            naive.sort_unstable();
            assert_eq!(scheduler.free().cycle(), naive[0]);
            naive[0] = leaves;
            scheduler.enter(When::new(leaves, false));
        }
    }
}
