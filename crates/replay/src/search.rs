//! Several layouts of one search, and which of them is best on the recordings that it was made for.
//!
//! Input: the misses or the times of each layout on each recording, and those of the original.
//! Output: the changes, the best layout, and how far the layouts lie apart. This module replays
//! nothing.

mod time;

pub use time::{PairedTimes, TimedLayout, TimedLayouts};

use serde::Serialize;

/// All layouts of a search.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "objective", rename_all = "kebab-case")]
pub enum SearchedLayouts {
    /// Layouts by several seeds; the best has the fewest L1I misses.
    Misses(TriedLayouts),
    /// Layouts by several algorithms and seeds; the best has the least time of the kernel.
    Time(TimedLayouts),
}

/// A layout that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TriedLayout {
    /// The seed of the search.
    pub seed: u64,
    /// L1I misses of kernel and user on each recording.
    pub misses: Vec<u64>,
    /// The change of these misses against the original, in per cent: the mean of the recordings.
    pub change: f64,
}

/// All layouts that were tried, by their misses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TriedLayouts {
    /// The simulated machine.
    pub machine: String,
    /// The workload of each recording.
    pub workloads: Vec<String>,
    /// L1I misses of kernel and user on each recording with the original order.
    pub original: Vec<u64>,
    /// The layouts, in the order of their seeds.
    pub tries: Vec<TriedLayout>,
    /// The seed of the best layout; of equal ones the smallest seed.
    pub best: u64,
    /// The mean of the layouts' changes, in per cent.
    pub mean: f64,
    /// The standard deviation of the layouts' changes, in points.
    pub deviation: f64,
}

impl TriedLayouts {
    /// `tries`: each seed with the misses of its layout on each recording. There is at least one.
    pub fn new(
        machine: String,
        workloads: Vec<String>,
        original: Vec<u64>,
        tries: Vec<(u64, Vec<u64>)>,
    ) -> TriedLayouts {
        let tried = |(seed, misses): (u64, Vec<u64>)| {
            let changes = misses.iter().zip(&original).map(|(&after, &before)| {
                // A recording without any misses has no change.
                100.0 * (after as f64 / before.max(1) as f64 - f64::from(before != 0))
            });
            let change = changes.sum::<f64>() / misses.len().max(1) as f64;
            TriedLayout { seed, misses, change }
        };
        let tries: Vec<TriedLayout> = tries.into_iter().map(tried).collect();
        let best = tries.iter().min_by(|a, b| a.change.total_cmp(&b.change));
        let count = tries.len() as f64;
        let mean = tries.iter().map(|tried| tried.change).sum::<f64>() / count;
        let squares = tries.iter().map(|tried| (tried.change - mean).powi(2)).sum::<f64>();
        TriedLayouts {
            machine,
            workloads,
            original,
            best: best.map_or(0, |tried| tried.seed),
            mean,
            deviation: (squares / (count - 1.0).max(1.0)).sqrt(),
            tries,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_on_the_mean_of_the_recordings_wins() {
        let tries = vec![(1, vec![90, 2000]), (2, vec![70, 1900]), (3, vec![60, 2000])];
        let tried =
            TriedLayouts::new("m".into(), vec!["a".into(), "b".into()], vec![100, 2000], tries);
        let changes: Vec<f64> = tried.tries.iter().map(|one| one.change.round()).collect();
        // The means of -10 and 0, of -30 and -5, of -40 and 0.
        assert_eq!(changes, [-5.0, -18.0, -20.0]);
        assert_eq!((tried.best, tried.mean.round()), (3, -14.0));
        // Of -5, -17.5 and -20: the root of (9.17² + 3.33² + 5.83²) / 2.
        assert!((tried.deviation - 8.036).abs() < 0.001, "{}", tried.deviation);
    }

    #[test]
    fn of_equal_layouts_the_first_wins() {
        let tries = vec![(4, vec![5]), (5, vec![5])];
        let tried = TriedLayouts::new("m".into(), vec!["a".into()], vec![10], tries);
        assert_eq!((tried.best, tried.mean, tried.deviation), (4, -50.0, 0.0));
    }

    #[test]
    fn a_recording_without_misses_changes_nothing() {
        let tried = TriedLayouts::new("m".into(), vec!["a".into()], vec![0], vec![(1, vec![0])]);
        assert_eq!((tried.best, tried.mean, tried.deviation), (1, 0.0, 0.0));
    }
}
