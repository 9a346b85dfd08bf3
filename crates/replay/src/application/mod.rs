//! The application: user code that ran, of all programs and libraries, laid out as Torrellas' OptA
//! has it (1998, section 5).
//!
//! Takes what recordings saw of user code; gives a placement of it, by address in *spaces*, and the
//! spaces, by which replay finds a translation's code there. Of a program only what ran is known.
//! Never reads a program's file.
//!
//! ```text
//! recordings → recorded: translations, counts → spaces: addresses of their own → blocks: graph → placement
//! ```

mod blocks;
mod recorded;
mod spaces;
#[cfg(test)]
mod tests;

pub use recorded::{Recorded, recorded};
pub use spaces::Spaces;

use anyhow::{Context, Result};
use blocks::Blocks;
use image::address::LinkAddr;
use image::place::{PlaceError, PlacedBlock, place, placement};
use layout::graph::Ordered;
use layout::opts::{self, Iteration, LoopArea, OptSParameters};

/// Where application code is placed: in the users' half, far from the kernel's.
const START: LinkAddr = LinkAddr(1 << 40);

pub struct Application {
    pub spaces: Spaces,
    blocks: Blocks,
}

impl Application {
    /// The code that these recordings saw, its counts their average, as [`profile::merge`] has it.
    ///
    /// # Errors
    /// A translation lies where user code cannot, or code has more versions than can be kept apart.
    pub fn new(recorded: &[Recorded]) -> Result<Application> {
        let average = recorded::average(recorded)?;
        let spaces = Spaces::new(&average)?;
        let blocks = Blocks::new(&average, &spaces)?;
        Ok(Application { spaces, blocks })
    }

    /// Lays it out by sequences with the loops behind them and without a SelfConfFree area, for a
    /// cache of so many bytes. The kernel's begin at `kernel` and fill the cache upwards; the
    /// application's most popular end where that is in the cache, and fill it downwards:
    ///
    /// ```text
    /// kernel       │ area, popular … seldom →       │ …
    /// application  │ … ← loops, seldom … popular    │
    ///              0 of the kernel's logical cache  0
    /// ```
    pub fn placement(
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
        // Distances stay, and with them the lengths of branches.
        let shift = kernel.0.wrapping_sub(end.0) % cache_bytes;
        let mut placed = placement(&self.blocks.movables, &[], &places).blocks;
        placed.iter_mut().for_each(|block| block.new.0 += shift);
        Ok(placed)
    }
}

/// One class of seeds, so one BranchThresh for each row of table 4: that of the column that has one
/// in each.
fn parameters(cache_bytes: u64, line_bytes: u64) -> OptSParameters {
    let defaults = OptSParameters::default();
    let row = |row: &Iteration| Iteration::uniform(row.exec, row.interrupt.unwrap_or(0.0));
    OptSParameters {
        schedule: defaults.schedule.iter().map(row).collect(),
        cache_bytes,
        line_bytes,
        self_conf_free_bytes: 0,
        loop_area: LoopArea::Behind,
        ..defaults
    }
}
