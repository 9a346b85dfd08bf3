//! Layouts by the time of the kernel, and which of them is faster by more than chance.
//!
//! Input: what a replay of the layouts counted. Output: the changes with their intervals, and the
//! best layout. This module replays nothing.

use crate::{Estimate, Replayed};
use anyhow::{Context, Result};
use execution::core_run::CoreCounts;
use serde::Serialize;

/// By how much the kernel's times of several layouts differ on one recording.
#[derive(Clone, Debug, PartialEq)]
pub struct PairedTimes {
    /// The workload of the recording.
    pub workload: String,
    /// By layout, then by layout: the time of the first minus that of the second, in per cent of
    /// the original's time. The first row and column are the original's.
    pub differences: Vec<Vec<Estimate>>,
}

impl PairedTimes {
    /// The differences on the first machine. The first layout is the original. Layouts that were
    /// sampled are compared at the same places, so what they have in common does not make an
    /// interval wider. Without samples an interval is 0.
    ///
    /// # Errors
    /// The machine describes no out-of-order core.
    pub fn new(replayed: &Replayed) -> Result<PairedTimes> {
        let core_of = |layout: &crate::LayoutCounts| layout.machines.first()?.core.clone();
        let cores: Option<Vec<CoreCounts>> = replayed.layouts.iter().map(core_of).collect();
        let cores = cores.context("a machine without an out-of-order core has no such times")?;
        let original = cores.first().map_or(1.0, slots).max(1.0);
        let difference = |own: &CoreCounts, other: &CoreCounts| {
            let within = match (&own.sampled, &other.sampled) {
                (Some(own), Some(other)) => {
                    let [kernel, ..] =
                        own.change(other).context("layouts were sampled at different places")?;
                    kernel.within * other.slots.kernel.value / original
                }
                _ => 0.0,
            };
            Ok(Estimate { value: 100.0 * (slots(own) - slots(other)) / original, within })
        };
        let row = |own: &CoreCounts| cores.iter().map(|other| difference(own, other)).collect();
        let differences = cores.iter().map(row).collect::<Result<_>>()?;
        Ok(PairedTimes { workload: replayed.header.workload.clone(), differences })
    }
}

/// The kernel's slots.
fn slots(core: &CoreCounts) -> f64 {
    match &core.sampled {
        Some(sampled) => sampled.slots.kernel.value,
        None => core.counters.kernel.slots.total() as f64,
    }
}

/// A layout that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimedLayout {
    /// The layout algorithm.
    pub algorithm: String,
    /// The seed of its search, if it has one.
    pub seed: u64,
    /// The change of the kernel's time against the original on each recording, in per cent.
    pub changes: Vec<Estimate>,
    /// The mean of the recordings.
    pub change: Estimate,
    /// How far it is ahead of the first layout: the difference of the means, in points.
    pub lead: Estimate,
}

/// All layouts that were tried, by the kernel's time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimedLayouts {
    /// The simulated machine.
    pub machine: String,
    /// The workload of each recording.
    pub workloads: Vec<String>,
    /// The layouts, in the order in which they were made.
    pub tries: Vec<TimedLayout>,
    /// The index of the best layout. A layout is better than the best one before it if its mean is
    /// smaller by more than the interval of their difference.
    pub best: usize,
    /// The index of the layout with the smallest mean.
    pub smallest: usize,
    /// How far the layout with the smallest mean is ahead of the best one, in points. If it is
    /// another layout, then the interval is at least as large as the lead.
    pub undecided: Estimate,
}

impl TimedLayouts {
    /// `layouts`: algorithm and seed of each layout but the original. There is at least one.
    /// `recordings`: the times of the original and of these layouts on each.
    pub fn new(
        machine: String,
        layouts: Vec<(String, u64)>,
        recordings: &[PairedTimes],
    ) -> TimedLayouts {
        // Row 0 of the differences is the original's.
        let changes = |layout: usize, other: usize| {
            recordings.iter().map(move |recording| recording.differences[layout][other])
        };
        let lead = |layout: usize, other: usize| mean(changes(other + 1, layout + 1));
        let tried = |(index, (algorithm, seed))| TimedLayout {
            algorithm,
            seed,
            changes: changes(index + 1, 0).collect(),
            change: mean(changes(index + 1, 0)),
            lead: lead(index, 0),
        };
        let tries: Vec<TimedLayout> = layouts.into_iter().enumerate().map(tried).collect();
        let best = (1..tries.len()).fold(0, |best, layout| {
            let ahead = lead(layout, best);
            if ahead.value > ahead.within { layout } else { best }
        });
        let means = tries.iter().enumerate();
        let smallest = means.min_by(|(_, a), (_, b)| a.change.value.total_cmp(&b.change.value));
        let smallest = smallest.map_or(0, |(index, _)| index);
        let undecided = if smallest == best { Estimate::default() } else { lead(smallest, best) };
        let workloads = recordings.iter().map(|recording| recording.workload.clone()).collect();
        TimedLayouts { machine, workloads, tries, best, smallest, undecided }
    }
}

/// The mean of estimates from different recordings, whose errors have nothing in common.
fn mean(estimates: impl ExactSizeIterator<Item = Estimate>) -> Estimate {
    let count = estimates.len().max(1) as f64;
    let (value, squares) = estimates.fold((0.0, 0.0), |(value, squares), estimate| {
        (value + estimate.value, squares + estimate.within * estimate.within)
    });
    Estimate { value: value / count, within: squares.sqrt() / count }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times in per cent of the original's, whose differences are all known as exactly as `within`
    /// says.
    fn paired(times: &[f64], within: f64) -> PairedTimes {
        let row = |own: &f64| {
            times.iter().map(|other| Estimate { value: own - other, within }).collect::<Vec<_>>()
        };
        PairedTimes { workload: "w".into(), differences: times.iter().map(row).collect() }
    }

    fn timed(recordings: &[PairedTimes]) -> TimedLayouts {
        let layouts = recordings[0].differences.len() as u64 - 1;
        let names = (1..=layouts).map(|seed| ("packed".to_owned(), seed));
        TimedLayouts::new("zen4".into(), names.collect(), recordings)
    }

    #[test]
    fn the_fastest_on_the_mean_of_the_recordings_wins() {
        let tried = timed(&[paired(&[100.0, 90.0, 86.0], 3.0), paired(&[100.0, 98.0, 96.0], 4.0)]);
        assert_eq!((tried.best, tried.smallest, tried.undecided), (1, 1, Estimate::default()));
        // -14 and -4 %; the errors of 3 and 4 add up to 5, half of which is the mean's.
        assert_eq!(tried.tries[1].change, Estimate { value: -9.0, within: 2.5 });
        assert_eq!(tried.tries[1].lead, Estimate { value: 3.0, within: 2.5 });
        assert_eq!(tried.tries[0].lead.value, 0.0);
        assert_eq!(tried.tries[0].changes[0], Estimate { value: -10.0, within: 3.0 });
        assert_eq!(tried.workloads, ["w", "w"]);
    }

    #[test]
    fn chance_does_not_choose() {
        // The second is ahead by less than the interval, the fourth of the first by more.
        let tried = timed(&[paired(&[100.0, 90.0, 89.5, 91.0, 88.5, 88.4], 1.0)]);
        assert_eq!((tried.best, tried.smallest), (3, 4));
        assert!((tried.undecided.value - 0.1).abs() < 1e-9 && tried.undecided.within == 1.0);
        let tried = timed(&[paired(&[100.0, 90.0, 89.0], 1.0)]);
        assert_eq!((tried.best, tried.smallest), (0, 1), "a lead as large as the interval");
    }

    #[test]
    fn without_intervals_the_first_of_equal_layouts_wins() {
        let tried = timed(&[paired(&[100.0, 90.0, 80.0, 80.0], 0.0)]);
        assert_eq!((tried.best, tried.smallest), (1, 1));
        assert_eq!(timed(&[paired(&[100.0, 101.0], 0.0)]).best, 0);
    }
}
