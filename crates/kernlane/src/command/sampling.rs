//! The options `--within` and `--exact`: which instructions out-of-order cores simulate in detail.

use anyhow::{Context, Result};
use clap::Args;
use road::sampling::Sampling;

/// How near the times of out-of-order cores come to those of simulating every instruction.
#[derive(Args)]
pub struct SamplingArgs {
    /// On machines with an out-of-order core, simulate samples of a long recording in detail, as
    /// many as make the 95 % intervals of the kernel's and the user's cycles as narrow as ± this
    /// percentage. Everything is simulated where that takes hardly longer
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, conflicts_with = "exact")]
    pub within: f64,

    /// On machines with an out-of-order core, simulate every instruction in detail
    #[arg(long)]
    pub exact: bool,
}

impl SamplingArgs {
    /// What they ask for.
    ///
    /// # Errors
    /// The percentage is not above 0.
    pub(crate) fn sampling(&self) -> Result<Sampling> {
        match self.exact {
            true => Ok(Sampling::Exact),
            false => {
                let within = self.within;
                Sampling::within(within).with_context(|| format!("--within {within}"))
            }
        }
    }
}
