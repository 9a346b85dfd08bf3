//! The clocks and the conditions of a run, from its beginning to its end.
//!
//! Input: the CPU that is measured and the directory for files. Output: [`Conditions`] and the rate
//! of the time stamp counter, and whether there is time for another round.

use crate::clock::{self, Moment};
use crate::conditions::{Conditions, Disturbances, Usage};
use crate::sys::Failure;
use crate::worker;
use anyhow::{Result, anyhow, ensure};
use std::path::Path;
use std::time::Duration;

/// How long the clocks are compared before a run.
const CALIBRATION: Duration = Duration::from_millis(50);

/// A run under way.
pub(crate) struct Watch {
    conditions: Conditions,
    start: Moment,
    rate: f64,
    usage: Option<Usage>,
    cpu: Option<usize>,
}

fn failed(failure: Failure) -> anyhow::Error {
    anyhow!("{failure}")
}

impl Watch {
    /// Begins a run. `warning`: a sentence that a reader of the result should know.
    ///
    /// # Errors
    /// The processor has no usable counter, or the directory is not there.
    pub(crate) fn begin(
        cpu: Option<usize>,
        directory: &Path,
        warning: Option<String>,
    ) -> Result<Watch> {
        ensure!(
            clock::counter().usable,
            "this processor has no RDTSCP instruction, with which the suite measures time"
        );
        ensure!(
            directory.is_dir(),
            "{}: there is no such directory; --directory says where files are made",
            directory.display()
        );
        let mut conditions = Conditions::before(cpu, worker::allowed().len(), directory);
        conditions.warnings.extend(warning);
        let start = Moment::now().map_err(failed)?;
        std::thread::sleep(CALIBRATION);
        let rate = Moment::now().map_err(failed)?.rate_since(start);
        Ok(Watch { conditions, start, rate, usage: Usage::now(cpu), cpu })
    }

    /// Ticks a nanosecond at the beginning.
    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    /// Whether a round that takes as long as the one since `before` ends in the budget.
    ///
    /// # Errors
    /// The kernel has no monotonic clock.
    pub(crate) fn has_time_for_a_round_as_since(
        &self,
        before: Moment,
        budget: Duration,
    ) -> Result<bool> {
        let now = Moment::now().map_err(failed)?;
        let (all, round) = (now.nanoseconds_since(self.start), now.nanoseconds_since(before));
        Ok(u128::from(all) + u128::from(round) <= budget.as_nanos())
    }

    /// Ends the run. Returns the conditions, and the ticks a nanosecond of the whole run.
    ///
    /// # Errors
    /// The kernel has no monotonic clock.
    pub(crate) fn end(mut self) -> Result<(Conditions, f64)> {
        let end = Moment::now().map_err(failed)?;
        let rate = end.rate_since(self.start);
        let disturbances = match (self.usage, Usage::now(self.cpu)) {
            (Some(before), Some(after)) => after.since(before),
            _ => Disturbances::default(),
        };
        let seconds = end.nanoseconds_since(self.start) as f64 / 1e9;
        self.conditions.complete(disturbances, [self.rate, rate], seconds);
        Ok((self.conditions, rate))
    }
}
