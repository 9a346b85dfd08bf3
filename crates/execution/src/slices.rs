//! Slices of a recording: in which slice each instruction ran.
//!
//! Input: the number of instructions before each slice, then instructions as they run. Output: the
//! slice of each execution. Which times slices are is not known here.

/// The number of instructions before each slice but the first, ascending. A slice in which no
/// instruction ran begins where the next slice does. Empty: the recording is one slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceStarts(pub Vec<u64>);

/// Follows the instructions of a recording from slice to slice.
#[derive(Clone, Debug)]
pub struct SliceClock {
    starts: SliceStarts,
    ran: u64,
    slice: u32,
    /// The number of instructions before the next slice.
    next: u64,
}

impl SliceClock {
    /// Before the first instruction.
    pub fn new(starts: &SliceStarts) -> SliceClock {
        let mut clock = SliceClock { starts: starts.clone(), ran: 0, slice: 0, next: 0 };
        clock.advance();
        clock
    }

    /// These instructions run as one. Returns the slice in which the first of them runs.
    #[inline]
    pub fn run(&mut self, instructions: u64) -> u32 {
        let slice = self.slice;
        self.ran += instructions;
        if self.ran >= self.next {
            self.advance();
        }
        slice
    }

    /// The slice of the next instruction.
    pub fn slice(&self) -> u32 {
        self.slice
    }

    /// These instructions run in their order. Gives each slice in which some of them run, with
    /// their number.
    pub fn run_through(&mut self, instructions: u64, mut part: impl FnMut(u32, u64)) {
        let mut left = instructions;
        while left > 0 {
            let here = left.min(self.next - self.ran);
            part(self.run(here), here);
            left -= here;
        }
    }

    fn advance(&mut self) {
        let begun = self.starts.0.partition_point(|&start| start <= self.ran);
        self.slice = begun as u32;
        self.next = self.starts.0.get(begun).copied().unwrap_or(u64::MAX);
    }
}

/// One slice for the whole recording.
impl Default for SliceClock {
    fn default() -> SliceClock {
        SliceClock::new(&SliceStarts::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_execution_belongs_to_the_slice_of_its_first_instruction() {
        let mut clock = SliceClock::new(&SliceStarts(vec![0, 10, 10, 15]));
        let slices: Vec<u32> = [4, 8, 2, 1, 7].into_iter().map(|ran| clock.run(ran)).collect();
        assert_eq!(slices, [1, 1, 3, 3, 4]);
        assert_eq!(clock.slice(), 4);
    }

    #[test]
    fn instructions_of_a_stretch_are_in_their_slices() {
        let mut clock = SliceClock::new(&SliceStarts(vec![3, 5, 5]));
        let mut parts = Vec::new();
        clock.run_through(2, |slice, ran| parts.push((slice, ran)));
        clock.run_through(0, |slice, ran| parts.push((slice, ran)));
        clock.run_through(9, |slice, ran| parts.push((slice, ran)));
        assert_eq!(parts, [(0, 2), (0, 1), (1, 2), (3, 6)]);
    }

    #[test]
    fn without_starts_there_is_one_slice() {
        let mut clock = SliceClock::default();
        assert_eq!((clock.run(u64::from(u32::MAX)), clock.run(1)), (0, 0));
    }
}
