//! A recorded execution runs again over any number of layouts and machines.
//!
//! Takes a recording, placements and machines; gives counters: L1I misses by cause, iTLB misses, taken branches, what was fetched
//! and touched, and time by Torrellas' simple model. Reads the recording once. Never changes a layout, never looks at ELF.
//!
//! ```text
//! trace → flow: fragments ─┬→ moved: fetches of layout A → numbering → simulation on machines 1, 2, …
//!                          └→ moved: fetches of layout B → …
//! ```

pub(crate) mod code;
mod flow;
mod moved;
pub(crate) mod numbering;
pub mod rows;
mod simulation;
#[cfg(test)]
mod tests;

use crate::image::BuildId;
use crate::place::Placement;
use anyhow::{Context, Result};
use flow::{Flow, Interruptions};
use rayon::prelude::*;
use sim::Machine;
use simulation::{Amounts, MachineCounts, Simulation};
use std::io::Read;
use trace::{Chunk, Header, Reader, RunAddr, Totals};

/// A layout to run over.
#[derive(Clone, Debug)]
pub struct Layout {
    pub name: String,
    /// The kernel whose blocks it places; `None` for the original, which places none.
    pub kernel: Option<BuildId>,
    pub placement: Placement,
}

impl Layout {
    pub fn original() -> Layout {
        Layout {
            name: crate::results::ORIGINAL.to_owned(),
            kernel: None,
            placement: Placement::default(),
        }
    }
}

/// What one layout came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutCounts {
    pub amounts: Amounts,
    /// One for each machine, in their order.
    pub machines: Vec<MachineCounts>,
}

/// What the whole recording came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    pub header: Header,
    pub totals: Totals,
    pub interruptions: Interruptions,
    /// Kernel code that ran, as (start, end), ascending and apart.
    pub kernel_code: Vec<(RunAddr, RunAddr)>,
    /// One for each layout, in their order.
    pub layouts: Vec<LayoutCounts>,
}

/// Runs a recording over `layouts` on `machines`.
pub fn replay<R: Read>(mut reader: Reader<R>, layouts: &[Layout], machines: &[Machine]) -> Result<Replayed> {
    let mut flow = Flow::default();
    let mut simulations: Vec<Simulation<'_>> = layouts.iter().map(|layout| Simulation::new(&layout.placement, machines)).collect();
    let mut ran = Vec::new();
    let mut totals = None;
    while let Some(chunk) = reader.next_chunk().context("the recording is damaged")? {
        ran.clear();
        match chunk {
            Chunk::Translations(defined) => defined.iter().try_for_each(|translation| flow.define(translation))?,
            Chunk::Tasks(_) => {}
            Chunk::Stream(words) => flow.follow(trace::events(&words), &mut ran)?,
            Chunk::End(end) => {
                flow.finish(&mut ran);
                totals = Some(end);
            }
        }
        simulations.par_iter_mut().try_for_each(|simulation| -> Result<()> {
            simulation.learn(&flow)?;
            simulation.run(&ran);
            Ok(())
        })?;
    }
    let layouts = simulations.iter().map(|simulation| LayoutCounts {
        amounts: simulation.amounts(&flow.counts),
        machines: simulation.machine_counts(),
    });
    Ok(Replayed {
        header: reader.header().clone(),
        totals: totals.context("the recording has no clean end")?,
        interruptions: flow.interruptions,
        kernel_code: flow.kernel_code(),
        layouts: layouts.collect(),
    })
}
