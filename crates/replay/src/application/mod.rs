//! The application: user code that ran, of all programs and libraries, laid out as in Torrellas'
//! OptA (1998, section 5).
//!
//! Input: the user code of recordings. Output: a placement of it, by address in *spaces*, and the
//! spaces, in which replay finds the code of a translation block. Only code that ran is known. This
//! module never reads a program's file.
//!
//! ```text
//! recordings → recorded: translations, counts → spaces: an address space for each program
//!            → blocks: graph → placement
//! ```

mod blocks;
mod recorded;
mod spaces;
#[cfg(test)]
mod tests;

pub use recorded::{UserCode, recorded};
pub use spaces::Spaces;

use anyhow::{Context, Result};
use blocks::ApplicationBlocks;
use image::address::LinkAddr;
use image::place::{PlaceError, PlacedBlock, place, placement};
use layout::graph::Ordered;
use layout::opts::{self, LoopArea, OptSParameters, ScheduleRow};

/// Where application code is placed: in the user half of the address space, far from the kernel.
const START: LinkAddr = LinkAddr(1 << 40);

/// The blocks of the application, and the spaces that they lie in.
pub struct Application {
    /// Where the code of each translation block lies.
    pub spaces: Spaces,
    blocks: ApplicationBlocks,
}

impl Application {
    /// The user code of these recordings, with average counts, as in [`profile::merge`].
    ///
    /// # Errors
    /// A translation block lies where user code cannot lie, or code has too many versions at the
    /// same addresses.
    pub fn new(recorded: &[UserCode]) -> Result<Application> {
        let average = recorded::average(recorded)?;
        let spaces = Spaces::new(&average)?;
        let blocks = ApplicationBlocks::new(&average, &spaces)?;
        Ok(Application { spaces, blocks })
    }

    /// Lays out the application for a cache of `cache_bytes`: by sequences, with loops behind them
    /// and without a SelfConfFree area. The kernel's blocks begin at `kernel` and fill the cache
    /// upwards. The application's most popular blocks end at the same place of the cache and fill
    /// it downwards:
    ///
    /// ```text
    /// kernel       │ area, popular … seldom →       │ …
    /// application  │ … ← loops, seldom … popular    │
    ///              0 of the kernel's logical cache  0
    /// ```
    ///
    /// # Errors
    /// The counts make no graph, or the blocks cannot be placed.
    pub(crate) fn placement(
        &self,
        cache_bytes: u64,
        line_bytes: u64,
        kernel: LinkAddr,
    ) -> Result<Vec<PlacedBlock>> {
        let graph = &self.blocks.graph;
        let ordered = opts::opts(graph, &parameters(cache_bytes, line_bytes))
            .context("the application's counts make no graph")?;
        layout::check(graph, &ordered.order).context("the application's order breaks a rule")?;
        self.placed(&ordered, cache_bytes, kernel).context("the application cannot be placed")
    }

    fn placed(
        &self,
        ordered: &Ordered,
        cache_bytes: u64,
        kernel: LinkAddr,
    ) -> Result<Vec<PlacedBlock>, PlaceError> {
        let order = self.blocks.downwards(ordered);
        let places = place(&self.blocks.movables, &[], &order, START)?;
        let end = match order.get(ordered.hot) {
            Some(&cold) => places.new[cold as usize],
            None => places.end,
        };
        // Distances do not change, so the lengths of branches do not change.
        let shift = kernel.0.wrapping_sub(end.0) % cache_bytes;
        let mut placed = placement(&self.blocks.movables, &[], &places).blocks;
        placed.iter_mut().for_each(|block| block.new.0 += shift);
        Ok(placed)
    }
}

/// There is one class of seeds, so each row of table 4 has one BranchThresh: that of the only
/// column with a value in each row.
fn parameters(cache_bytes: u64, line_bytes: u64) -> OptSParameters {
    let defaults = OptSParameters::default();
    let row = |row: &ScheduleRow| ScheduleRow::uniform(row.exec, row.interrupt.unwrap_or(0.0));
    OptSParameters {
        schedule: defaults.schedule.iter().map(row).collect(),
        cache_bytes,
        line_bytes,
        self_conf_free_bytes: 0,
        loop_area: LoopArea::Behind,
        ..defaults
    }
}
