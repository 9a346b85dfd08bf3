//! The workload that a name means: a shipped one, a file, or a benchmark of the suite.
//!
//! Input: a name or a path. Output: a checked workload. This module runs nothing.

use anyhow::{Context, Result};
use guest::{Workload, benchmark};
use std::path::Path;
use suite::{counted, list};

/// The suite has no benchmark of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no benchmark {0:?}: take a name from the suite's list")]
pub struct UnknownBenchmark(pub String);

/// Opens a workload: the name of a shipped one, the path of a file, or `bench:NAME` and
/// `bench:NAME:OPERATIONS` for a benchmark.
///
/// ```
/// assert_eq!(road::workload::open("net")?.name, "net");
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// There is no such workload or benchmark; for a benchmark, the suite's static program is missing.
pub fn open(what: &str) -> Result<Workload> {
    opened(what, benchmark::program)
}

/// Opens a workload as [`open`] does. `suite`: the suite's static program, for benchmarks.
///
/// ```
/// let suite = "kernlane-bench".as_ref();
/// assert_eq!(road::workload::open_with("net", suite)?.name, "net");
/// let missing = road::workload::open_with("bench:call/getpid", suite).unwrap_err();
/// assert!(missing.to_string().contains("kernlane-bench"), "{missing}");
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// As [`open`]; or `suite` is no static program.
pub fn open_with(what: &str, suite: &Path) -> Result<Workload> {
    opened(what, || benchmark::program_at(suite))
}

fn opened(what: &str, program: impl FnOnce() -> Result<Vec<u8>>) -> Result<Workload> {
    let Some(words) = what.strip_prefix(benchmark::PREFIX) else { return Workload::open(what) };
    let (name, operations) = match words.split_once(':') {
        Some((name, number)) => (name, Some(number)),
        None => (words, None),
    };
    let found = list::named(name).ok_or_else(|| UnknownBenchmark(name.to_owned()))?;
    let operations = match operations {
        Some(number) => {
            number.parse().ok().filter(|operations| *operations > 0).with_context(|| {
                format!("{what}: {number:?} is not a number of operations above 0")
            })?
        }
        None => counted::operations(found),
    };
    benchmark::workload(name, operations, &program()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmarks_and_their_operations_are_checked_first() {
        let message = |what: &str| format!("{:#}", open(what).unwrap_err());
        assert!(message("bench:call/nosuch").contains("there is no benchmark \"call/nosuch\""));
        assert!(
            message("bench:call/getpid:0").contains("\"0\" is not a number of operations above 0")
        );
        assert!(message("bench:call/getpid:x").contains("\"x\" is not a number of operations"));
        assert!(message("nosuch").contains("there is no workload \"nosuch\""));
        assert_eq!(open("net").unwrap().name, "net");
    }

    #[test]
    fn the_recorder_knows_the_marks_of_the_suite() {
        assert_eq!([counted::START, counted::END], guest::MARKS);
    }
}
