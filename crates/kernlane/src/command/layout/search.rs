//! Tries several seeds, and keeps the layout that is best on the recordings themselves.
//!
//! Input: the counts, and the recordings that they came from. Output: a layout, and how far the
//! layouts lie apart.

use super::{Ground, LayoutArgs};
use crate::command::replay::{placed, replay_rows};
use ::layout::Score;
use anyhow::{Context, Result, bail};
use execution::machine;
use host::progress::Progress;
use image::Image;
use image::order::Layout;
use replay::results::{ORIGINAL, ResultRow};
use replay::search::TriedLayouts;
use replay::{CpuOrder, ReplayLayout, SimulationScope};
use std::path::Path;

/// The best of the layouts with `--tries` seeds from `--seed` on, its score, and all of them.
///
/// # Errors
/// The algorithm searches nothing, an input is no recording, or the recordings are of another
/// kernel.
pub(super) fn search(
    args: &LayoutArgs,
    ground: &Ground<'_>,
    image: &Image,
) -> Result<(Layout, Score, TriedLayouts)> {
    let input = &args.input;
    if let Some(profile) = input.recordings.iter().find(|path| !path.is_dir()) {
        bail!(
            "{}: no recording; --tries replays the recordings that the counts come from",
            profile.display()
        );
    }
    let machine = machine::find(&args.machine)?;
    let mut layouts = vec![ReplayLayout::original()];
    let mut made: Vec<(u64, Layout, Score)> = Vec::new();
    let progress = Progress::of(args.tries, "layouts");
    for seed in (0..args.tries).map(|number| args.seed.wrapping_add(number)) {
        progress.say(format!("laying out by {}, seed {seed}", args.algorithm));
        let (layout, score) = ground.lay_out(args.algorithm, seed)?;
        if made.first().is_some_and(|(_, first, _)| first.runs == layout.runs) {
            bail!("{} gives the same layout for every seed: leave --tries out", args.algorithm);
        }
        layouts.push(ReplayLayout {
            name: seed.to_string(),
            kernel: Some(image.build_id.clone()),
            placement: placed(&layout, Some(&input.kernel), Some(image))?,
        });
        made.push((seed, layout, score));
        progress.advance(1);
    }
    drop(progress);
    let machines = [machine];
    let replayed = |recording: &Path| {
        let (scope, order) = (SimulationScope::Caches, CpuOrder::SideBySide);
        replay_rows(recording, &layouts, &machines, scope, order, None, &input.part)
    };
    let rows: Vec<Vec<ResultRow>> =
        input.recordings.iter().map(|path| replayed(path)).collect::<Result<_>>()?;
    let of_layout = |name: &str| {
        rows.iter()
            .map(|rows| rows.iter().find(|row| row.layout == name))
            .map(|row| Ok(row.with_context(|| format!("no row of {name}"))?.counters.misses()))
            .collect::<Result<Vec<u64>>>()
    };
    let tried = TriedLayouts::new(
        machines[0].name.clone(),
        rows.iter().filter_map(|rows| Some(rows.first()?.workload.clone())).collect(),
        of_layout(ORIGINAL)?,
        made.iter()
            .map(|(seed, ..)| Ok((*seed, of_layout(&seed.to_string())?)))
            .collect::<Result<_>>()?,
    );
    let best = made.into_iter().find(|(seed, ..)| *seed == tried.best);
    let (_, layout, score) = best.context("no layout was tried")?;
    Ok((layout, score, tried))
}
