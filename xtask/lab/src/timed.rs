//! What was timed, and how crowded the core was meanwhile.
//!
//! A processor's core may have a second thread, which in a virtual machine belongs to others. While
//! it is busy, a program takes up to 1.7 times as long. Nothing says so but the number of
//! instructions that the core takes in a cycle. So programs that time themselves also time no-ops
//! (`bare/timing.h`). Input: lines of such programs. Output: cycles.

use crate::processor::{CHAIN, slice_cycles};
use serde::{Deserialize, Serialize};

/// The no-ops that a program times before and behind each slice.
pub const NO_OPS: f64 = 16_000.0;
/// With a smaller share of the most no-ops in a cycle, the core's other thread was busy.
pub const ALONE: f64 = 0.9;
/// When a load takes more than this number of times the fewest cycles, others use the L3 or the
/// memory.
pub const QUIET: f64 = 1.3;

/// What was timed, and how crowded the core was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed<T> {
    pub time: T,
    /// No-ops in a cycle, the fewest of those before, behind and during it.
    pub no_ops: f64,
    /// The cycles of a load from the L3, the most of before and behind it; 0 for slices, near which
    /// no loads are timed.
    pub far_load: f64,
}

impl<T> Timed<T> {
    /// Whether the core's other thread did nothing near what was timed. `most`: the most no-ops
    /// that the core takes in a cycle.
    pub fn alone(&self, most: f64) -> bool {
        self.no_ops >= ALONE * most
    }

    /// Whether others did not use the L3. `fewest`: the fewest cycles of a load from it.
    pub fn quiet(&self, fewest: f64) -> bool {
        self.far_load <= QUIET * fewest
    }
}

/// The cycles of a slice, from a line of a program: what [`slice_cycles`] reads, and the ticks of
/// no-ops before and behind. `Some(None)`: the slice was disturbed; `None`: the line is not a
/// slice.
pub fn slice(line: &str) -> Option<Option<Timed<f64>>> {
    let mut words = line.rsplitn(3, ' ');
    let no_ops: [f64; 2] = [words.next()?.parse().ok()?, words.next()?.parse().ok()?];
    let line = words.next()?;
    let chain: f64 = line.split(' ').nth(2)?.parse().ok()?;
    let no_ops = in_a_cycle(NO_OPS, no_ops[0].max(no_ops[1]), chain);
    Some(slice_cycles(line)?.map(|time| Timed { time, no_ops, far_load: 0.0 }))
}

/// No-ops in a cycle, of the ticks of `no_ops` and of a chain.
pub fn in_a_cycle(no_ops: f64, ticks: f64, chain: f64) -> f64 {
    no_ops / ticks * chain / f64::from(CHAIN)
}

/// The no-ops that the core takes in a cycle while its other thread does nothing. A single slice
/// can give too many, because the chain of a crowded core also takes longer. So the result is the
/// number that one slice in ten exceeds.
pub fn most(mut no_ops: Vec<f64>) -> f64 {
    no_ops.sort_by(f64::total_cmp);
    no_ops.get(no_ops.len() * 9 / 10).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_says_how_crowded_the_core_was() {
        // Two ticks for each of three cycles. The core takes 8 no-ops in a cycle, and behind the
        // slice 4.
        let found = slice("2 1000 42667 42667 0 1333 2667").unwrap().unwrap();
        assert!((found.time - 750.0).abs() < 0.1, "{found:?}");
        assert!((found.no_ops - 4.0).abs() < 0.01, "{found:?}");
        assert!(!found.alone(8.0) && found.alone(4.0));
        assert_eq!(slice("2 1000 42667 52667 0 1333 1333"), Some(None));
        assert_eq!(slice("2 1000 42667 42667 0"), None);
    }

    #[test]
    fn one_slice_in_ten_may_say_too_many() {
        let mut no_ops = vec![8.0; 15];
        no_ops.extend([4.0, 4.5, 5.0, 5.5, 24.0]);
        assert!((most(no_ops) - 8.0).abs() < 1e-9);
        assert!(most(Vec::new()).abs() < 1e-9);
    }
}
