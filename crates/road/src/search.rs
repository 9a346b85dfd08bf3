//! Tries several seeds, and keeps the layout that is best on the recordings themselves.
//!
//! Input: the counts, and the recordings that they came from. Output: a layout, and how far the
//! layouts lie apart.

use crate::ground::Ground;
use crate::layout_file::placed;
use crate::replayed::ReplayRequest;
use anyhow::{Context, Result};
use execution::part::RecordingPart;
use host::progress::Progress;
use image::Image;
use image::order::Layout;
use layout::{Algorithm, Score};
use replay::ReplayLayout;
use replay::results::{ORIGINAL, ResultRow};
use replay::search::TriedLayouts;
use sim::MachineModel;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A search for the best of several layouts.
///
/// ```
/// use execution::part::RecordingPart;
/// use layout::Algorithm;
/// use profile::ProfileMerge;
/// use profile::collect::ExtraCounts;
/// use road::ground::Ground;
/// use road::search::LayoutSearch;
///
/// let home = road::examples::home();
/// let kernel = home.path().join("vmlinux");
/// let image = image::vmlinux::read(&kernel)?;
/// let recordings = [home.path().join("loop.rec")];
/// let part = RecordingPart::WHOLE;
/// let sum = ProfileMerge::Sum;
/// let profile = road::counts::profile(&recordings, &image, &part, sum, ExtraCounts::None)?;
/// let search = LayoutSearch {
///     algorithm: Algorithm::Random,
///     seeds: 1..4,
///     kernel: &kernel,
///     image: &image,
///     machine: machines::find("server-32k")?.model,
///     recordings: &recordings,
///     part: &part,
/// };
/// let (layout, _, tried) = search.run(&Ground::new(&image, &profile)?)?;
/// assert_eq!(layout.seed, tried.best);
/// # anyhow::Ok(())
/// ```
pub struct LayoutSearch<'a> {
    /// The algorithm, which depends on its seed.
    pub algorithm: Algorithm,
    /// The seeds.
    pub seeds: Range<u64>,
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
}

impl LayoutSearch<'_> {
    /// The best layout, its score, and the results of all layouts.
    ///
    /// # Errors
    /// There is no seed, or a recording is damaged or of another kernel.
    pub fn run(self, ground: &Ground<'_>) -> Result<(Layout, Score, TriedLayouts)> {
        let mut layouts = vec![ReplayLayout::original()];
        let mut made: Vec<(u64, Layout, Score)> = Vec::new();
        let progress = Progress::of(self.seeds.end.saturating_sub(self.seeds.start), "layouts");
        for seed in self.seeds.clone() {
            progress.say(format!("laying out by {}, seed {seed}", self.algorithm));
            let (layout, score) = ground.lay_out(self.algorithm, seed)?;
            let placement = placed(&layout, Some(self.kernel), Some(self.image))?;
            let kernel = self.image.build_id.clone();
            layouts.push(ReplayLayout::predicted(seed.to_string(), kernel, placement));
            made.push((seed, layout, score));
            progress.advance(1);
        }
        drop(progress);
        let machines = [self.machine];
        let replayed = |recording: &PathBuf| {
            ReplayRequest { part: *self.part, ..ReplayRequest::new(recording, &layouts, &machines) }
                .rows()
        };
        let rows: Vec<Vec<ResultRow>> =
            self.recordings.iter().map(replayed).collect::<Result<_>>()?;
        let of_layout = |name: &str| {
            rows.iter()
                .map(|rows| rows.iter().find(|row| row.layout == name))
                .map(|row| Ok(row.with_context(|| format!("no row of {name}"))?.counters.misses()))
                .collect::<Result<Vec<u64>>>()
        };
        let tries = made.iter().map(|(seed, ..)| Ok((*seed, of_layout(&seed.to_string())?)));
        let tried = TriedLayouts::new(
            machines[0].name.clone(),
            rows.iter().filter_map(|rows| Some(rows.first()?.workload.clone())).collect(),
            of_layout(ORIGINAL)?,
            tries.collect::<Result<_>>()?,
        );
        let best = made.into_iter().find(|(seed, ..)| *seed == tried.best);
        let (_, layout, score) = best.context("no layout was tried")?;
        Ok((layout, score, tried))
    }
}
