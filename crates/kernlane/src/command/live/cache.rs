//! What `watch` and `auto` print about the instruction cache: whether it is a bottleneck, and how
//! hot blocks lie over its sets.

use anyhow::Result;
use host::outln;
use image::linked::LinkedKernel;
use live::bottleneck;
use live::group::Group;
use live::hot;
use live::occupancy::{InstructionCacheGeometry, Occupancy};
use live::running::RunningKernel;
use profile::Profile;
use std::time::Duration;

/// How long the hardware counters count.
const ASKED: Duration = Duration::from_secs(1);

/// The instruction cache that is assumed where the kernel does not describe one (in most virtual
/// machines).
const ASSUMED: InstructionCacheGeometry = InstructionCacheGeometry { sets: 64, ways: 8, line: 64 };

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
    let told = InstructionCacheGeometry::of_this_machine()?;
    if told.is_none() {
        outln!("this machine does not describe its instruction cache; assumed: {ASSUMED}")?;
    }
    Ok(told.unwrap_or(ASSUMED))
}

/// Draws where the group's `hot` blocks lie in the kernel's own text.
pub(super) fn draw_original(
    group: &Group<'_, '_>,
    running: &RunningKernel,
    cache: InstructionCacheGeometry,
    hot: &[usize],
) -> Result<Occupancy> {
    let place = |&n: &usize| {
        let piece = &group.original.pieces[n];
        (running.address(group.original.kernel.link_address(piece.at)), piece.size)
    };
    let drawn = Occupancy::of(cache, hot.iter().map(place));
    outln!("hot blocks over the sets of the instruction cache, as they are:\n{drawn}")?;
    if !drawn.is_tight() {
        outln!("  they fit into half of it: do not expect much of a new layout")?;
    }
    Ok(drawn)
}

/// Like [`draw_original`], for what is hot when it is called `threshold` times as often as the
/// roots.
pub(super) fn draw_profile(
    kernel: &LinkedKernel<'_>,
    running: &RunningKernel,
    profile: &Profile,
    roots: &[usize],
    threshold: f64,
) -> Result<Occupancy> {
    let group = Group::new(kernel, running, &hot::groups(kernel, profile, roots, threshold))?;
    let hot = hot::blocks(&group, profile, hot::least_limit(kernel, profile, roots, threshold));
    draw_original(&group, running, geometry()?, &hot)
}
