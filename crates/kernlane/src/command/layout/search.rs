//! Tries several seeds, and keeps the layout that is best on the recordings themselves.
//!
//! Input: the counts, and the recordings that they came from. Output: a layout, and how far the
//! layouts lie apart.

use super::Ground;
use crate::command::replay::{placed, replay_rows};
use ::layout::{Algorithm, Score};
use anyhow::{Context, Result};
use clap::Args;
use execution::part::RecordingPart;
use host::progress::Progress;
use image::Image;
use image::order::Layout;
use replay::results::{ORIGINAL, ResultRow};
use replay::search::TriedLayouts;
use replay::{CpuOrder, ReplayLayout, SimulationScope};
use sim::MachineModel;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The seeds that are tried.
#[derive(Args)]
pub struct TriesArgs {
    /// Make the layout with as many seeds, replay the recordings over each, and take the one with
    /// the fewest L1I misses of kernel and user
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=100)
    )]
    pub tries: u64,
}

/// A search for the best of several layouts.
pub(crate) struct LayoutSearch<'a> {
    pub algorithm: Algorithm,
    /// The seeds.
    pub seeds: Range<u64>,
    /// The kernel's tree or its vmlinux.
    pub kernel: &'a Path,
    pub image: &'a Image,
    pub machine: MachineModel,
    pub recordings: &'a [PathBuf],
    pub part: &'a RecordingPart,
}

impl LayoutSearch<'_> {
    /// The best layout, its score, and how all are.
    ///
    /// # Errors
    /// A recording is damaged or of another kernel.
    pub(crate) fn run(self, ground: &Ground<'_>) -> Result<(Layout, Score, TriedLayouts)> {
        let mut layouts = vec![ReplayLayout::original()];
        let mut made: Vec<(u64, Layout, Score)> = Vec::new();
        let progress = Progress::of(self.seeds.end - self.seeds.start, "layouts");
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
            let (scope, order) = (SimulationScope::Caches, CpuOrder::SideBySide);
            replay_rows(recording, &layouts, &machines, scope, order, None, self.part)
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
