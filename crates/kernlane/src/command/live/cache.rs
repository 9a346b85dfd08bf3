//! What `watch` and `auto` print about the instruction cache: whether it is a bottleneck, and how
//! hot blocks lie over its sets.

use anyhow::Result;
use host::outln;
use live::bottleneck;
use live::occupancy::{InstructionCacheGeometry, Occupancy};
use std::time::Duration;

/// How long the hardware counters count.
const ASKED: Duration = Duration::from_secs(1);

/// Reads the hardware counters, and prints what they show.
pub(super) fn ask() -> Result<()> {
    let counts = bottleneck::count(ASKED)?;
    outln!("{counts}")?;
    if counts.answer() == bottleneck::Answer::Unknown {
        outln!(
            "what follows about the cache is an estimate from where hot blocks lie (Tamches 2001, \
             figure 2)"
        )?;
    }
    Ok(())
}

/// The cache of this machine, or the assumed cache, with a warning, if the machine does not
/// describe it.
pub(super) fn geometry() -> Result<InstructionCacheGeometry> {
    let assumed = InstructionCacheGeometry::ASSUMED;
    let told = InstructionCacheGeometry::of_this_machine()?;
    if told.is_none() {
        outln!("this machine does not describe its instruction cache; assumed: {assumed}")?;
    }
    Ok(told.unwrap_or(assumed))
}

/// Draws where hot blocks lie in the kernel's own text.
pub(super) fn draw_original(drawn: &Occupancy) -> Result<()> {
    outln!("hot blocks over the sets of the instruction cache, as they are:\n{drawn}")?;
    if !drawn.is_tight() {
        outln!("  they fit into half of it: do not expect much of a new layout")?;
    }
    Ok(())
}
