//! Counts of each interval of time, for tracks of counters.
//!
//! Input: amounts of stretches of time, in their order. Output: the values of each interval, which
//! add up to all amounts. An amount is spread evenly over its stretch.

/// The nanoseconds between two values of a counter.
pub(crate) const INTERVAL: u64 = 100_000;

/// Some counters over time.
#[derive(Clone, Debug)]
pub(crate) struct Intervals<const COUNTERS: usize> {
    /// When the current interval began.
    begin: u64,
    values: [u64; COUNTERS],
    /// The values that were written last.
    written: [u64; COUNTERS],
}

impl<const COUNTERS: usize> Intervals<COUNTERS> {
    pub(crate) fn new() -> Intervals<COUNTERS> {
        Intervals { begin: 0, values: [0; COUNTERS], written: [0; COUNTERS] }
    }

    /// Adds the amounts of a stretch, without losing any. `write` takes the values of the intervals
    /// that have ended: their begin, the number of the counter, the value.
    pub(crate) fn add(
        &mut self,
        begin: u64,
        end: u64,
        amounts: [u64; COUNTERS],
        mut write: impl FnMut(u64, usize, u64),
    ) {
        let mut put = [0; COUNTERS];
        loop {
            // Between two stretches the processor may have halted. Such intervals have no counts.
            let until = end.min(self.begin + INTERVAL);
            for ((sum, put), all) in self.values.iter_mut().zip(&mut put).zip(amounts) {
                let by_now = u128::from(all) * u128::from(until.saturating_sub(begin))
                    / u128::from((end - begin).max(1));
                *sum += by_now as u64 - *put;
                *put = by_now as u64;
            }
            if until == end {
                break;
            }
            self.end(&mut write);
        }
    }

    /// Ends the current interval.
    pub(crate) fn end(&mut self, mut write: impl FnMut(u64, usize, u64)) {
        for (at, (value, written)) in self.values.iter_mut().zip(&mut self.written).enumerate() {
            let value = std::mem::take(value);
            // A value holds until the next one, so a single zero is enough for a long halt.
            if (value, *written) != (0, 0) {
                *written = value;
                write(self.begin, at, value);
            }
        }
        self.begin += INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_add_up_and_a_long_halt_has_one_zero() {
        let (mut intervals, mut written) = (Intervals::<2>::new(), Vec::new());
        let mut write = |begin, counter, value| written.push((begin / INTERVAL, counter, value));
        intervals.add(0, 10, [7, 0], &mut write);
        intervals.add(INTERVAL / 2, 5 * INTERVAL / 2, [8, 4], &mut write);
        intervals.add(9 * INTERVAL, 9 * INTERVAL + 1, [1, 1], &mut write);
        intervals.end(&mut write);
        let first = [(0, 0, 9), (0, 1, 1), (1, 0, 4), (1, 1, 2), (2, 0, 2), (2, 1, 1)];
        assert_eq!(written[..6], first);
        assert_eq!(written[6..], [(3, 0, 0), (3, 1, 0), (9, 0, 1), (9, 1, 1)]);
    }
}
