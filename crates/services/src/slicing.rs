//! Splits what was counted in a stretch of time among slices of equal time.
//!
//! Takes a stretch and its counts; gives the counts of each slice. Counts nothing itself.

/// Where a stretch lies, in slices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stretch {
    begin: f64,
    end: f64,
}

impl Stretch {
    /// From and until when, in slices since the recording began.
    pub(crate) fn new(begin: f64, end: f64) -> Stretch {
        Stretch { begin, end }
    }

    /// Splits counts among the slices of the stretch, by their shares of its time. The parts of a
    /// count add up to it.
    pub(crate) fn split<const N: usize>(
        self,
        counts: [u64; N],
        mut part: impl FnMut(u32, [u64; N]),
    ) {
        let last = self.last();
        let first = last.min(self.begin as u32);
        let mut given = [0; N];
        for slice in first..last {
            let share = self.share_before(slice + 1);
            let mut here = [0; N];
            for ((count, given), here) in counts.iter().zip(&mut given).zip(&mut here) {
                let until = (*count as f64 * share) as u64;
                *here = until.max(*given) - *given;
                *given = until.max(*given);
            }
            part(slice, here);
        }
        let mut rest = counts;
        rest.iter_mut().zip(given).for_each(|(count, given)| *count -= given);
        part(last, rest);
    }

    /// The share of its time before a slice that begins in it.
    pub(crate) fn share_before(self, slice: u32) -> f64 {
        ((f64::from(slice) - self.begin) / (self.end - self.begin)).clamp(0.0, 1.0)
    }

    /// The slice in which it ends. What ends where the next slice begins is not in that slice.
    pub(crate) fn last(self) -> u32 {
        (self.end.ceil() as u32).saturating_sub(1)
    }
}
