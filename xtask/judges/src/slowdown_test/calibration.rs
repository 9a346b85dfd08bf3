//! How many additions make a system call slower by a wanted share.
//!
//! Input: the patched kernel. Output: a number, from the measured time of the benchmark with and
//! without additions.

use super::served::{SuiteServer, TestKernel};
use super::{SHARE, SLICE, SLOWED};
use anyhow::{Context, Result, ensure};
use lab::processor;
use lab::uml::UmlGuest;
use serde::{Deserialize, Serialize};
use std::path::Path;
use suite::random::Random;
use suite::statistics::median;

/// The additions of the second kernel that is measured. Many, so that they show above the noise.
const PROBE: u32 = 4000;
const STARTS: usize = 4;
const SLICES: usize = 60;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Calibration {
    /// Core cycles of the benchmark's operation without additions.
    pub operation: f64,
    /// Core cycles of one addition.
    pub addition: f64,
    /// The additions that take the wanted share of the operation.
    pub additions: u32,
}

/// The word of the kernel's command line that sets the additions.
pub(super) fn parameter(additions: u32) -> String {
    format!("umask_slowed_by={additions}")
}

impl Calibration {
    /// Measures the benchmark without additions and with [`PROBE`], in slices by turns.
    pub(super) fn measure(patched: &Path, guest: &UmlGuest) -> Result<Calibration> {
        let kernel = |name, additions| TestKernel {
            name,
            program: patched.to_owned(),
            parameters: vec![parameter(additions)],
        };
        let kernels = [kernel("without additions", 0), kernel("with additions", PROBE)];
        let mut values = [Vec::new(), Vec::new()];
        let mut random = Random::new(0);
        for _ in 0..STARTS {
            let mut servers = SuiteServer::start_all(&kernels, guest)?;
            for server in &mut servers {
                server.prepare(SLOWED)?.map_err(anyhow::Error::msg).context(SLOWED)?;
            }
            let ticks = (SLICE * processor::ticks_per_nanosecond()) as u64;
            let operations = servers[0].calibrate(SLOWED, ticks)?;
            let mut of_start = [Vec::new(), Vec::new()];
            for _ in 0..SLICES {
                let mut order = [0, 1];
                random.shuffle(&mut order);
                for at in order {
                    of_start[at].extend(servers[at].slice(SLOWED, operations)?);
                }
            }
            for (values, mut of_start) in values.iter_mut().zip(of_start) {
                ensure!(
                    !of_start.is_empty(),
                    "every slice was disturbed: measure on a quieter CPU"
                );
                values.push(median(&mut of_start));
            }
        }
        let [mut without, mut with] = values;
        Calibration::new(median(&mut without), median(&mut with))
    }

    /// From the cycles of an operation without additions and with [`PROBE`].
    fn new(without: f64, with: f64) -> Result<Calibration> {
        let addition = (with - without) / f64::from(PROBE);
        ensure!(
            addition > 0.1,
            "{PROBE} additions took {:.0} cycles: the kernel does not make them",
            with - without
        );
        let additions = (SHARE * without / addition).round() as u32;
        ensure!(additions > 0, "{SLOWED} takes only {without:.0} cycles");
        Ok(Calibration { operation: without, addition, additions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_are_a_share_of_the_operation() {
        let found = Calibration::new(10_000.0, 18_000.0).unwrap();
        assert_eq!(found, Calibration { operation: 10_000.0, addition: 2.0, additions: 100 });
        assert!(Calibration::new(10_000.0, 10_010.0).is_err());
    }
}
