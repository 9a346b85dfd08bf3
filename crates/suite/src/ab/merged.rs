//! Several results of one kernel, each of another boot, as one result.
//!
//! Each boot is one sample of where the kernel's own data lie. So the merged result has one value
//! for each boot, and an interval over boots.
//!
//! Input: results of single boots. Output: one result. This module measures nothing.

use crate::result::{Entry, MeasuredRounds, Outcome, Results};
use crate::statistics::median;
use anyhow::{Context, Result, ensure};

/// One result from several results of the same kernel. The value of a boot is the median of its
/// rounds.
///
/// # Errors
/// There is none, or they are of different kernels.
pub(crate) fn merged(boots: &[Results]) -> Result<Results> {
    let first = boots.first().context("no boot was measured")?;
    let kernel = |results: &Results| {
        let conditions = &results.conditions;
        (conditions.kernel_build_id.clone(), conditions.kernel_version.clone())
    };
    for boot in boots {
        ensure!(kernel(boot) == kernel(first), "the boots are of different kernels");
    }
    let benchmarks = first.benchmarks.iter().map(|entry| {
        let entries: Vec<&Entry> =
            boots.iter().filter_map(|boot| boot.entry(&entry.name)).collect();
        let outcome = of_boots(&entries, boots.len(), first.precision_percent);
        Entry { outcome, ..entry.clone() }
    });
    let mut conditions = first.conditions.clone();
    conditions.seconds = boots.iter().map(|boot| boot.conditions.seconds).sum();
    for boot in boots {
        for warning in &boot.conditions.warnings {
            if !conditions.warnings.contains(warning) {
                conditions.warnings.push(warning.clone());
            }
        }
    }
    conditions.warnings.push(format!("each round is the median of one boot, of {}", boots.len()));
    Ok(Results { conditions, benchmarks: benchmarks.collect(), ..first.clone() })
}

/// The value of every boot; or the first reason why a boot has none.
fn of_boots(entries: &[&Entry], boots: usize, precision_percent: f64) -> Outcome {
    let mut values = Vec::new();
    let mut operations = 0;
    for entry in entries {
        match &entry.outcome {
            Outcome::Measured(measured) => {
                values.push(median(&mut measured.rounds.clone()));
                operations = measured.operations;
            }
            other => return other.clone(),
        }
    }
    if values.len() < boots {
        return Outcome::NotRun { why: "a boot's result lacks it".into() };
    }
    Outcome::Measured(MeasuredRounds::new(values, operations, precision_percent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::examples::{entry, results};

    #[test]
    fn each_boot_is_one_value() {
        let boot = |nanoseconds: f64| results(vec![entry("call/getpid", nanoseconds, 0.5)]);
        let one = merged(&[boot(100.0), boot(104.0), boot(102.0)]).unwrap();
        let Outcome::Measured(measured) = &one.benchmarks[0].outcome else { panic!() };
        assert_eq!(measured.rounds, [100.0, 104.0, 102.0]);
        assert_eq!(one.conditions.warnings, ["each round is the median of one boot, of 3"]);
    }

    #[test]
    fn what_a_boot_lacks_is_named() {
        let why = "io_uring_setup: not permitted";
        let without =
            Entry { outcome: Outcome::NotRun { why: why.into() }, ..entry("uring/nop", 1.0, 0.1) };
        let with = entry("uring/nop", 1.0, 0.1);
        let one = merged(&[results(vec![with.clone()]), results(vec![without])]).unwrap();
        assert_eq!(one.benchmarks[0].outcome, Outcome::NotRun { why: why.into() });
        let one = merged(&[results(vec![with.clone()]), results(vec![])]).unwrap();
        let Outcome::NotRun { why } = &one.benchmarks[0].outcome else { panic!() };
        assert_eq!(why, "a boot's result lacks it");
        let mut other = results(vec![with.clone()]);
        other.conditions.kernel_build_id = Some("ab".into());
        let message = merged(&[results(vec![with]), other]).unwrap_err().to_string();
        assert_eq!(message, "the boots are of different kernels");
        assert!(merged(&[]).is_err());
    }
}
