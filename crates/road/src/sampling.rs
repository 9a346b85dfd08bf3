//! Which instructions of a recording an out-of-order core simulates in detail: all of them, or as
//! many samples as an interval needs.
//!
//! Input: a recording and a wish. Output: what a simulation of the samples, or of everything,
//! counted. This module changes no file.

use anyhow::{Result, ensure};
use execution::opened;
use execution::part::RecordingPart;
use host::note;
use host::recording::Recording;
use replay::{Replayed, SamplePlan, Sampled};
use sim::MachineModel;
use std::path::Path;

/// Which instructions out-of-order cores simulate in detail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// All of them.
    Exact,
    /// As many samples as make half of the 95 % interval at most this many per cent: of the
    /// kernel's cycles, of those of user code, and of both. A mode with less than a twentieth of
    /// the cycles does not count.
    Within(f64),
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling::Within(1.0)
    }
}

/// How many samples make the interval as narrow as one per cent in most recordings.
const UNITS: f64 = 20_000.0;

/// A factor of the samples that seem to be needed: the spread between units is itself an estimate.
const SPARE: f64 = 1.2;

/// How often samples are added before everything is simulated.
const ROUNDS: u32 = 2;

/// Where the places of samples come from.
const SEED: u64 = 1;

impl Sampling {
    /// Samples until the interval is as narrow as this.
    ///
    /// ```
    /// use road::sampling::Sampling;
    ///
    /// assert_eq!(Sampling::within(0.5)?, Sampling::Within(0.5));
    /// assert!(Sampling::within(0.0).is_err());
    /// # anyhow::Ok(())
    /// ```
    ///
    /// # Errors
    /// The number is not positive, or not a percentage.
    pub fn within(percent: f64) -> Result<Sampling> {
        ensure!(
            percent.is_finite() && percent > 0.0 && percent <= 100.0,
            "an interval of ±{percent} % cannot be reached by samples: give a percentage above 0, \
             or simulate everything"
        );
        Ok(Sampling::Within(percent))
    }

    /// Replays with the samples that are needed. `replay`: replays with samples at the places of a
    /// plan, or everything in detail.
    pub(crate) fn replayed(
        self,
        recording: &Path,
        part: &RecordingPart,
        machines: &[MachineModel],
        replay: impl Fn(Option<SamplePlan>) -> Result<Replayed>,
    ) -> Result<Replayed> {
        let widest =
            |replayed: &Replayed| sampled(replayed).map(Sampled::widest).fold(0.0, f64::max);
        self.until_narrow(recording, part, machines, replay, widest)
    }

    /// Simulates with the samples that are needed. `simulate`: with samples at the places of a
    /// plan, or everything in detail. `widest`: the widest interval of what was simulated, in per
    /// cent.
    ///
    /// # Errors
    /// The recording cannot be read, or `simulate` fails.
    pub(crate) fn until_narrow<T>(
        self,
        recording: &Path,
        part: &RecordingPart,
        machines: &[MachineModel],
        simulate: impl Fn(Option<SamplePlan>) -> Result<T>,
        widest: impl Fn(&T) -> f64,
    ) -> Result<T> {
        let Sampling::Within(percent) = self else { return simulate(None) };
        if machines.iter().all(|machine| machine.core.is_none()) {
            return simulate(None);
        }
        let all = opened::instructions_of(&Recording::at(recording), part)?;
        let mut units = UNITS / (percent * percent);
        for _ in 0..=ROUNDS {
            let Some(plan) = SamplePlan::new(all, units as u64, SEED) else { break };
            let simulated = simulate(Some(plan))?;
            let widest = widest(&simulated);
            if widest <= percent {
                return Ok(simulated);
            }
            units *= SPARE * (widest / percent).powi(2);
        }
        // Nobody expects an interval of a recording that is too short for the usual one.
        if SamplePlan::new(all, UNITS as u64, SEED).is_some() {
            note!(
                "samples of a part do not make the interval as narrow as ±{percent} %, so \
                 everything is simulated in detail, and no interval is printed"
            );
        }
        simulate(None)
    }
}

/// The samples of all layouts on all machines.
fn sampled(replayed: &Replayed) -> impl Iterator<Item = &Sampled> {
    let machines = replayed.layouts.iter().flat_map(|layout| &layout.machines);
    machines.filter_map(|machine| machine.core.as_ref()?.sampled.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replayed::ReplayRequest;
    use replay::ReplayLayout;

    #[test]
    fn an_interval_needs_a_width() {
        for percent in [0.0, -1.0, 101.0, f64::NAN, f64::INFINITY] {
            let refused = Sampling::within(percent).unwrap_err().to_string();
            assert!(refused.contains("simulate everything"), "{refused}");
        }
    }

    #[test]
    fn short_recordings_and_machines_in_order_are_simulated_in_detail() {
        let home = crate::examples::home();
        let recording = home.path().join("loop.rec");
        let layouts = [ReplayLayout::original()];
        let machines = machines::models(&["zen4", "server-32k"]).unwrap();
        let replay = ReplayRequest::new(&recording, &layouts, &machines);
        let rows = replay.rows().unwrap();
        assert!(rows[0].counters.core.as_ref().unwrap().sampled.is_none());
        assert!(rows[1].counters.core.is_none());
        let exact = ReplayRequest { sampling: Sampling::Exact, ..replay };
        assert_eq!(exact.rows().unwrap(), rows);
    }
}
