//! Tries several layouts, and keeps the one that is best on the recordings themselves.
//!
//! Input: the counts, and the recordings that they came from. Output: a layout, and how far the
//! layouts lie apart.

use crate::ground::Ground;
use crate::layout_file::placed;
use crate::replayed::ReplayRequest;
use crate::sampling::Sampling;
use anyhow::{Context, Result, ensure};
use execution::part::RecordingPart;
use host::progress::Progress;
use image::Image;
use image::order::Layout;
use layout::{Algorithm, Score};
use replay::search::{PairedTimes, SearchedLayouts, TimedLayouts, TriedLayouts};
use replay::{LayoutCounts, ReplayLayout, Replayed};
use sim::MachineModel;
use std::path::{Path, PathBuf};

/// What is best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SearchObjective {
    /// The fewest L1I misses of kernel and user, the mean of the recordings.
    #[default]
    Misses,
    /// The least time of the kernel on an out-of-order core, the mean of the recordings. A layout
    /// must be faster than those before it by more than the 95 % interval of the difference.
    Time,
}

impl SearchObjective {
    /// Checks that a machine can tell.
    ///
    /// # Errors
    /// The objective is time, and the machine describes no out-of-order core.
    pub fn check(self, machine: &MachineModel) -> Result<()> {
        ensure!(
            self == SearchObjective::Misses || machine.core.is_some(),
            "the machine {} describes no out-of-order core, so it does not tell the kernel's time: \
             name one that does ({}), or search by misses",
            machine.name,
            machines::names_with_core()
        );
        Ok(())
    }
}

/// A layout to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutCandidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The seed of its search.
    pub seed: u64,
}

/// The algorithms that use counts, the fastest first: by their mean in the first table of
/// `docs/results/layouts.md`.
const BY_TIME: [Algorithm; 14] = [
    Algorithm::ExtTsp,
    Algorithm::ExtTspGlobal,
    Algorithm::ExtTspCdSort,
    Algorithm::Packed,
    Algorithm::Codestitcher,
    Algorithm::BalancedPartitioning,
    Algorithm::ChangHwu,
    Algorithm::Joint,
    Algorithm::PettisHansen,
    Algorithm::GloySmith,
    Algorithm::KernInst,
    Algorithm::Call,
    Algorithm::OptS,
    Algorithm::OptL,
];

impl LayoutCandidate {
    /// One algorithm with `tries` seeds from `first` on.
    pub fn seeds(algorithm: Algorithm, first: u64, tries: u64) -> Vec<LayoutCandidate> {
        let seeds = (0..tries).map(|further| first.wrapping_add(further));
        seeds.map(|seed| LayoutCandidate { algorithm, seed }).collect()
    }

    /// The `named` algorithms, all others that use counts, the fastest first, and then further
    /// seeds of those that depend on their seed: `tries` layouts, or all named ones if these are
    /// more. An algorithm that needs temporal-relationship edges must be named, because few
    /// profiles have them.
    ///
    /// ```
    /// use layout::Algorithm;
    /// use road::search::LayoutCandidate;
    ///
    /// let candidates = LayoutCandidate::algorithms(&[Algorithm::Packed], 1, 20);
    /// let of = |at: usize| (candidates[at].algorithm.name(), candidates[at].seed);
    /// assert_eq!([of(0), of(1)], [("packed", 1), ("ext-tsp", 1)]);
    /// assert_eq!([of(13), of(19)], [("packed", 2), ("packed", 8)]);
    /// ```
    pub fn algorithms(named: &[Algorithm], first: u64, tries: u64) -> Vec<LayoutCandidate> {
        let mut algorithms: Vec<Algorithm> = Vec::new();
        let others = BY_TIME.iter().filter(|algorithm| !algorithm.uses_temporal_edges());
        for &algorithm in named.iter().chain(others) {
            if !algorithms.contains(&algorithm) {
                algorithms.push(algorithm);
            }
        }
        let count = named.len().max(usize::try_from(tries).unwrap_or(usize::MAX));
        let seeds = (0..tries).map(|further| first.wrapping_add(further));
        let candidates = seeds.flat_map(|seed| {
            let of_seed = algorithms.iter().filter(move |it| seed == first || it.depends_on_seed());
            of_seed.map(move |&algorithm| LayoutCandidate { algorithm, seed })
        });
        candidates.take(count).collect()
    }
}

/// A search for the best of several layouts.
///
/// ```
/// use execution::part::RecordingPart;
/// use layout::Algorithm;
/// use profile::ProfileMerge;
/// use profile::collect::ExtraCounts;
/// use replay::search::SearchedLayouts;
/// use road::ground::Ground;
/// use road::sampling::Sampling;
/// use road::search::{LayoutCandidate, LayoutSearch, SearchObjective};
///
/// let home = road::examples::home();
/// let kernel = home.path().join("vmlinux");
/// let image = image::vmlinux::read(&kernel)?;
/// let recordings = [home.path().join("loop.rec")];
/// let part = RecordingPart::WHOLE;
/// let sum = ProfileMerge::Sum;
/// let profile = road::counts::profile(&recordings, &image, &part, sum, ExtraCounts::None)?;
/// let search = LayoutSearch {
///     candidates: &LayoutCandidate::seeds(Algorithm::Random, 1, 3),
///     objective: SearchObjective::Misses,
///     kernel: &kernel,
///     image: &image,
///     machine: machines::find("server-32k")?.model,
///     recordings: &recordings,
///     part: &part,
///     sampling: Sampling::default(),
/// };
/// let (layout, _, searched) = search.run(&Ground::new(&image, &profile)?)?;
/// let SearchedLayouts::Misses(tried) = searched else { panic!("by misses") };
/// assert_eq!(layout.seed, tried.best);
/// # anyhow::Ok(())
/// ```
pub struct LayoutSearch<'a> {
    /// The layouts to try. If the best is to have the fewest misses, they are of one algorithm,
    /// each with a seed of its own.
    pub candidates: &'a [LayoutCandidate],
    /// What is best.
    pub objective: SearchObjective,
    /// The kernel's tree or its vmlinux.
    pub kernel: &'a Path,
    /// The kernel's functions and blocks.
    pub image: &'a Image,
    /// The machine on which the layouts are replayed.
    pub machine: MachineModel,
    /// The recordings (directories) that the counts come from.
    pub recordings: &'a [PathBuf],
    /// The part of each recording.
    pub part: &'a RecordingPart,
    /// Which instructions an out-of-order core simulates in detail.
    pub sampling: Sampling,
}

impl LayoutSearch<'_> {
    /// The best layout, its score, and the results of all layouts. Each recording is read in one
    /// pass for all layouts.
    ///
    /// # Errors
    /// There is no layout to try, the machine cannot tell which is best, or a recording is damaged
    /// or of another kernel.
    pub fn run(self, ground: &Ground<'_>) -> Result<(Layout, Score, SearchedLayouts)> {
        self.objective.check(&self.machine)?;
        ensure!(!self.candidates.is_empty(), "a search needs a layout to try");
        let (layouts, mut made) = self.layouts(ground)?;
        let machines = [self.machine];
        let replayed = |recording: &PathBuf| {
            let usual = ReplayRequest::new(recording, &layouts, &machines);
            let (part, sampling, image) = (*self.part, self.sampling, Some(self.image));
            ReplayRequest { part, sampling, image, ..usual }.counts()
        };
        let recordings: Vec<Replayed> =
            self.recordings.iter().map(replayed).collect::<Result<_>>()?;
        let machine = machines[0].name.clone();
        let (best, searched) = match self.objective {
            SearchObjective::Misses => {
                let tried = by_misses(machine, self.candidates, &recordings);
                let best =
                    self.candidates.iter().position(|candidate| candidate.seed == tried.best);
                (best.context("the best layout was not tried")?, SearchedLayouts::Misses(tried))
            }
            SearchObjective::Time => {
                let times = recordings.iter().map(PairedTimes::new).collect::<Result<Vec<_>>>()?;
                let name = |it: &LayoutCandidate| (it.algorithm.name().to_owned(), it.seed);
                let names = self.candidates.iter().map(name).collect();
                let tried = TimedLayouts::new(machine, names, &times);
                (tried.best, SearchedLayouts::Time(tried))
            }
        };
        let (layout, score) = made.swap_remove(best);
        Ok((layout, score, searched))
    }

    /// Makes and places the layouts. The places begin with the original's.
    fn layouts(&self, ground: &Ground<'_>) -> Result<(Vec<ReplayLayout>, Vec<(Layout, Score)>)> {
        let mut layouts = vec![ReplayLayout::original()];
        let mut made = Vec::new();
        let progress = Progress::of(self.candidates.len() as u64, "layouts");
        for LayoutCandidate { algorithm, seed } in self.candidates {
            progress.say(format!("laying out by {algorithm}, seed {seed}"));
            let (layout, score) = ground.lay_out(*algorithm, *seed)?;
            let placement = placed(&layout, Some(self.kernel), Some(self.image))?;
            let (name, kernel) = (format!("{algorithm}, {seed}"), self.image.build_id.clone());
            layouts.push(ReplayLayout::predicted(name, kernel, placement));
            made.push((layout, score));
            progress.advance(1);
        }
        Ok((layouts, made))
    }
}

fn by_misses(
    machine: String,
    candidates: &[LayoutCandidate],
    recordings: &[Replayed],
) -> TriedLayouts {
    let misses = |layout: &LayoutCounts| -> u64 {
        let machines = layout.machines.iter();
        machines.map(|counts| counts.l1i.kernel.total() + counts.l1i.user.total()).sum()
    };
    let of_layout =
        |index: usize| recordings.iter().map(|it| misses(&it.layouts[index])).collect::<Vec<_>>();
    let tries = candidates.iter().zip(1..).map(|(it, index)| (it.seed, of_layout(index)));
    TriedLayouts::new(
        machine,
        recordings.iter().map(|it| it.header.workload.clone()).collect(),
        of_layout(0),
        tries.collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::ProfileMerge;
    use profile::collect::ExtraCounts;

    fn names(candidates: &[LayoutCandidate]) -> Vec<(&'static str, u64)> {
        candidates.iter().map(|it| (it.algorithm.name(), it.seed)).collect()
    }

    #[test]
    fn every_algorithm_with_counts_has_its_place() {
        let mut with_counts: Vec<Algorithm> =
            Algorithm::ALL.into_iter().filter(|algorithm| algorithm.uses_counts()).collect();
        let mut known = BY_TIME.to_vec();
        with_counts.sort();
        known.sort();
        assert_eq!(known, with_counts);
        assert_eq!(BY_TIME[0], Algorithm::default());
    }

    #[test]
    fn algorithms_come_before_seeds() {
        let usual = LayoutCandidate::algorithms(&[Algorithm::ExtTsp], 5, 15);
        let of_seed = |seed: u64| usual.iter().filter(move |candidate| candidate.seed == seed);
        assert_eq!(names(&usual)[..2], [("ext-tsp", 5), ("ext-tsp-global", 5)]);
        assert_eq!(of_seed(5).count(), 13, "all but gloy-smith, which needs more counts");
        assert_eq!(names(&usual)[13..], [("packed", 6), ("packed", 7)]);
        // What is named is tried, whatever its place.
        let named = [Algorithm::GloySmith, Algorithm::Random, Algorithm::GloySmith];
        let few = LayoutCandidate::algorithms(&named[..2], 1, 3);
        assert_eq!(names(&few), [("gloy-smith", 1), ("random", 1), ("ext-tsp", 1)]);
        assert_eq!(LayoutCandidate::algorithms(&named, 1, 2).len(), 3);
        let seeds = LayoutCandidate::algorithms(&named[1..2], 1, 16);
        assert_eq!(names(&seeds)[14..], [("random", 2), ("packed", 2)]);
    }

    /// Tries candidates on both example recordings.
    fn searched(
        candidates: &[LayoutCandidate],
        objective: SearchObjective,
        machine: &str,
    ) -> Result<(Layout, SearchedLayouts)> {
        let home = crate::examples::home();
        let kernel = home.path().join("vmlinux");
        let image = image::vmlinux::read(&kernel)?;
        let recordings = ["loop.rec", "other.rec"].map(|name| home.path().join(name));
        let (part, sum) = (RecordingPart::WHOLE, ProfileMerge::Sum);
        let profile = crate::counts::profile(&recordings, &image, &part, sum, ExtraCounts::None)?;
        let search = LayoutSearch {
            candidates,
            objective,
            kernel: &kernel,
            image: &image,
            machine: machines::find(machine)?.model,
            recordings: &recordings,
            part: &part,
            sampling: Sampling::default(),
        };
        let (layout, _, searched) = search.run(&Ground::new(&image, &profile)?)?;
        Ok((layout, searched))
    }

    #[test]
    fn the_fastest_layout_is_kept() {
        let of = |algorithm| LayoutCandidate { algorithm, seed: 1 };
        let candidates = [of(Algorithm::Reverse), of(Algorithm::ExtTsp), of(Algorithm::Original)];
        let (layout, searched) = searched(&candidates, SearchObjective::Time, "zen4").unwrap();
        let SearchedLayouts::Time(tried) = searched else { panic!("{searched:?}") };
        let best = &tried.tries[tried.best];
        assert_eq!(layout.algorithm, best.algorithm);
        assert_eq!(tried.workloads, ["loop", "other"]);
        assert_eq!(tried.smallest, tried.best, "short recordings are simulated in detail");
        // Both orders of the two functions are there, and one is faster.
        let means: Vec<f64> = tried.tries.iter().map(|tried| tried.change.value).collect();
        assert_eq!(best.change.value, means.iter().copied().fold(f64::INFINITY, f64::min));
        assert!(means.iter().any(|mean| *mean > best.change.value + 0.1), "{means:?}");
    }

    #[test]
    fn a_machine_without_a_core_does_not_tell_time() {
        let candidates = LayoutCandidate::algorithms(&[Algorithm::ExtTsp], 1, 2);
        let refused = searched(&candidates, SearchObjective::Time, "server-32k").unwrap_err();
        let message = refused.to_string();
        assert!(message.starts_with("the machine server-32k describes no out-of"), "{message}");
        assert!(message.contains("golden-cove") && message.contains("zen4"), "{message}");
        let none = searched(&[], SearchObjective::Misses, "server-32k").unwrap_err();
        assert!(none.to_string().contains("needs a layout to try"), "{none}");
    }
}
