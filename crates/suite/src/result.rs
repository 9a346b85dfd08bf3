//! The file of a run: conditions, and a figure or the reason why there is none for each benchmark.
//!
//! JSON, with the number of its format. To add a field: with `#[serde(default)]`; a change that old
//! readers would misread raises `FORMAT`.
//!
//! Input: a result, or the text of a file. Output: the reverse.

use crate::conditions::Conditions;
use crate::statistics::Estimate;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The format of the file.
pub(crate) const FORMAT: u64 = 1;

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    pub format: u64,
    /// The suite's version.
    pub suite: String,
    pub seed: u64,
    /// The half width of an interval at which a benchmark is done, in percent.
    pub precision_percent: f64,
    pub conditions: Conditions,
    pub benchmarks: Vec<Entry>,
}

/// One benchmark's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub name: String,
    /// The version of the benchmark. Results of different versions are not compared.
    pub version: u32,
    /// The program of another project that measured, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramUsed>,
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// A program of another project.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProgramUsed {
    /// The version, as the program prints it.
    pub version: String,
    pub command_line: String,
    /// The server that it talked to.
    pub server: Option<String>,
}

/// The outcome of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub(crate) enum Outcome {
    Measured(MeasuredRounds),
    NotRun {
        why: String,
    },
    /// Its check failed.
    Wrong {
        why: String,
    },
}

/// A figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MeasuredRounds {
    /// Nanoseconds an operation.
    pub nanoseconds: f64,
    /// The ends of its 95 % interval; `None`: too few rounds.
    pub interval: Option<[f64; 2]>,
    /// Half of the interval's width, in percent of the figure.
    pub half_width_percent: Option<f64>,
    /// Whether the interval is wider than requested.
    pub noisy: bool,
    /// Operations in a slice.
    pub operations: u64,
    /// Nanoseconds an operation, of each round: the median of its slices.
    pub rounds: Vec<f64>,
    /// Seconds of the processor in user and in kernel mode, of all its processes from their start
    /// to their end, in all rounds. The kernel splits them by its ticks, so that small ones are
    /// rough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_seconds: Option<[f64; 2]>,
}

impl MeasuredRounds {
    /// The figure of these values of rounds, in nanoseconds an operation.
    pub(crate) fn new(rounds: Vec<f64>, operations: u64, precision_percent: f64) -> MeasuredRounds {
        let estimate = Estimate::of(&rounds);
        let half_width_percent = estimate.map(|estimate| 100.0 * estimate.half_width());
        let (nanoseconds, interval) = match estimate {
            Some(estimate) => {
                let [figure, low, high] = estimate.figure();
                (figure, Some([low, high]))
            }
            None => (crate::statistics::median(&mut rounds.clone()), None),
        };
        MeasuredRounds {
            nanoseconds,
            interval,
            half_width_percent,
            noisy: half_width_percent.is_none_or(|half| half > precision_percent),
            operations,
            rounds,
            processor_seconds: None,
        }
    }
}

impl Results {
    /// Reads a file that `--output` wrote.
    ///
    /// # Errors
    /// The file cannot be read, is not a result, or has a format of another version.
    pub(crate) fn read(path: &Path) -> Result<Results> {
        let named = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(named)?;
        Results::parse(&text).with_context(named)
    }

    fn parse(text: &str) -> Result<Results> {
        let value: serde_json::Value =
            serde_json::from_str(text).context("no result of `kernlane bench`: it is no JSON")?;
        let format = value.get("format").and_then(serde_json::Value::as_u64);
        let format = format.context("no result of `kernlane bench`: it has no format number")?;
        ensure!(
            format == FORMAT,
            "its format is {format}, and this version of the suite reads {FORMAT}: measure again, \
             or compare with the version that made it"
        );
        let results: Results =
            serde_json::from_value(value).context("no result of `kernlane bench`")?;
        for entry in &results.benchmarks {
            if let Outcome::Measured(measured) = &entry.outcome {
                let sound = |value: &f64| value.is_finite() && *value > 0.0;
                ensure!(
                    !measured.rounds.is_empty() && measured.rounds.iter().all(sound),
                    "{}: a round's time is not above zero",
                    entry.name
                );
            }
        }
        Ok(results)
    }

    /// The file's text.
    ///
    /// # Errors
    /// Never in practice: every field has a form in JSON.
    pub(crate) fn text(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The result of the benchmark of this name.
    pub(crate) fn entry(&self, name: &str) -> Option<&Entry> {
        self.benchmarks.iter().find(|entry| entry.name == name)
    }
}

/// Results for tests.
#[cfg(test)]
pub(crate) mod examples {
    use super::*;

    /// A benchmark whose rounds lie evenly around a figure, up to `percent` away.
    pub(crate) fn entry(name: &str, figure: f64, percent: f64) -> Entry {
        let rounds: Vec<f64> =
            (-10..=10).map(|at| figure * (1.0 + percent / 1000.0 * f64::from(at))).collect();
        let outcome = Outcome::Measured(MeasuredRounds::new(rounds, 1000, 1.0));
        Entry { name: name.into(), version: 1, program: None, outcome }
    }

    pub(crate) fn results(benchmarks: Vec<Entry>) -> Results {
        Results {
            format: FORMAT,
            suite: "0.1.0".into(),
            seed: 0,
            precision_percent: 1.0,
            conditions: Conditions::default(),
            benchmarks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let not_run = Outcome::NotRun { why: "io_uring_setup: not permitted".into() };
        // Numbers that have a short decimal form.
        let measured = MeasuredRounds {
            nanoseconds: 100.5,
            interval: Some([100.25, 100.75]),
            half_width_percent: Some(0.25),
            noisy: false,
            operations: 10_000,
            rounds: vec![100.25, 100.5],
            processor_seconds: Some([0.25, 0.5]),
        };
        let outcome = Outcome::Measured(measured);
        let results = examples::results(vec![
            Entry {
                name: "call/getpid".into(),
                version: 1,
                program: Some(ProgramUsed {
                    version: "7".into(),
                    command_line: "getpid -n 3".into(),
                    server: None,
                }),
                outcome,
            },
            Entry { name: "uring/nop".into(), version: 1, program: None, outcome: not_run },
        ]);
        assert_eq!(Results::parse(&results.text().unwrap()).unwrap(), results);
    }

    #[test]
    fn what_is_no_result_is_named() {
        let said = |text: &str| format!("{:#}", Results::parse(text).unwrap_err());
        assert!(said("hello").starts_with("no result of `kernlane bench`: it is no JSON"));
        assert_eq!(said("{}"), "no result of `kernlane bench`: it has no format number");
        assert!(said("{\"format\": 2}").starts_with("its format is 2, and this version"));
        assert!(said("{\"format\": 1}").contains("missing field"));
        let mut results = examples::results(vec![examples::entry("call/getpid", 100.0, 0.5)]);
        let Outcome::Measured(measured) = &mut results.benchmarks[0].outcome else { panic!() };
        measured.rounds[3] = -1.0;
        let text = results.text().unwrap();
        assert_eq!(said(&text), "call/getpid: a round's time is not above zero");
    }

    #[test]
    fn a_figure_is_noisy_when_its_interval_is_wide_or_missing() {
        assert!(!MeasuredRounds::new(vec![100.0, 100.1, 99.9, 100.0, 100.2], 1, 1.0).noisy);
        assert!(MeasuredRounds::new(vec![100.0, 150.0, 60.0, 100.0, 200.0], 1, 1.0).noisy);
        let one = MeasuredRounds::new(vec![100.0], 1, 1.0);
        assert!(one.noisy && one.interval.is_none());
        assert_eq!(one.nanoseconds, 100.0);
    }
}
