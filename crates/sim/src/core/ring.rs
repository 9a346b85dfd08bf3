//! The last values of a stream, for a queue with a fixed number of entries.
//!
//! Input: one value after the other. Output: the value that was pushed N steps ago, for a queue of
//! N entries.

#[derive(Clone, Debug)]
pub(crate) struct Ring<T> {
    values: Vec<T>,
    next: usize,
}

impl<T: Copy> Ring<T> {
    /// `entries` must be at least 1. Before the first push, all values are `first`.
    pub(super) fn new(entries: u32, first: T) -> Ring<T> {
        Ring { values: vec![first; entries as usize], next: 0 }
    }

    /// The oldest value in the queue. The next push replaces it.
    #[inline]
    pub(super) fn oldest(&self) -> T {
        self.values[self.next]
    }

    #[inline]
    pub(super) fn push(&mut self, value: T) {
        self.values[self.next] = value;
        self.next += 1;
        if self.next == self.values.len() {
            self.next = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_entries() {
        let mut ring = Ring::new(3, 0);
        let mut push = |value| {
            let oldest = ring.oldest();
            ring.push(value);
            oldest
        };
        assert_eq!([1, 2, 3, 4, 5].map(&mut push), [0, 0, 0, 1, 2]);
    }
}
