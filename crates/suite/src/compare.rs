//! Compares two results: differences, intervals, verdicts.
//!
//! Input: the results of two runs. Output: a row for each benchmark that both have measured, and
//! the reason for each benchmark that is left out. This module never compares different versions of
//! a benchmark.

use crate::result::{Entry, MeasuredRounds, Outcome, ProgramUsed, Results};
use crate::statistics::{Difference, Estimate, compare, holm};
use serde::Serialize;

/// The probability of a wrong verdict among all benchmarks together.
pub(crate) const LEVEL: f64 = 0.05;

/// The verdict of a comparison on a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    Faster,
    Slower,
    NoDifferenceFound,
}

impl Verdict {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifferenceFound => "no difference found",
        }
    }
}

/// A benchmark in two results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub name: String,
    /// Nanoseconds an operation, before and after.
    pub nanoseconds: [f64; 2],
    /// After by before, less 100 %, and the ends of its 95 % interval.
    pub percent: [f64; 3],
    /// The probability of such a difference without a cause, corrected for the number of benchmarks
    /// (Holm).
    pub probability: f64,
    pub verdict: Verdict,
    /// Whether the interval of one of the figures is wider than requested.
    pub noisy: bool,
}

/// Two results side by side.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    pub rows: Vec<Row>,
    /// Benchmarks without a verdict, and why.
    pub left_out: Vec<(String, String)>,
    /// Conditions that the runs do not share: name, before, after.
    pub conditions: Vec<(&'static str, String, String)>,
    /// The warnings of each run.
    pub warnings: [Vec<String>; 2],
}

/// The figure of a benchmark, or why it has none to compare.
fn figure(entry: Option<&Entry>) -> Result<(&MeasuredRounds, Estimate), String> {
    match entry.map(|entry| &entry.outcome) {
        None => Err("not in this result".into()),
        Some(Outcome::NotRun { why }) => Err(format!("not run: {why}")),
        Some(Outcome::Wrong { why }) => Err(format!("wrong: {why}")),
        Some(Outcome::Measured(measured)) => match Estimate::of(&measured.rounds) {
            Some(estimate) => Ok((measured, estimate)),
            None => Err(format!("only {} rounds: measure longer", measured.rounds.len())),
        },
    }
}

/// A benchmark that two results have measured: the two figures with their estimates, or why they
/// cannot be compared.
pub(crate) fn comparable<'a>(
    [before, after]: [&'a Results; 2],
    name: &str,
) -> Result<([&'a MeasuredRounds; 2], [Estimate; 2]), String> {
    let (old, new) = (before.entry(name), after.entry(name));
    if let (Some(old), Some(new)) = (old, new)
        && old.version != new.version
    {
        return Err(format!("version {} before, version {} after", old.version, new.version));
    }
    if let (Some(old), Some(new)) =
        (old.and_then(|old| old.program.as_ref()), new.and_then(|new| new.program.as_ref()))
        && old != new
    {
        let program = |used: &ProgramUsed| format!("{} by {}", used.command_line, used.version);
        return Err(format!("{} before, {} after", program(old), program(new)));
    }
    match (figure(old), figure(new)) {
        (Ok((old, was)), Ok((new, is))) => Ok(([old, new], [was, is])),
        (Err(why), Ok(_)) => Err(format!("before: {why}")),
        (Ok(_), Err(why)) => Err(format!("after: {why}")),
        (Err(was), Err(is)) => Err(format!("before: {was}; after: {is}")),
    }
}

impl Comparison {
    pub(crate) fn new(before: &Results, after: &Results) -> Comparison {
        let mut found: Vec<(&str, [&MeasuredRounds; 2], Difference)> = Vec::new();
        let mut left_out = Vec::new();
        let only_after = after.benchmarks.iter().filter(|e| before.entry(&e.name).is_none());
        for Entry { name, .. } in before.benchmarks.iter().chain(only_after) {
            match comparable([before, after], name) {
                Ok((measured, [was, is])) => found.push((name, measured, compare(&was, &is))),
                Err(why) => left_out.push((name.clone(), why)),
            }
        }
        let probabilities: Vec<f64> =
            found.iter().map(|(.., difference)| difference.probability).collect();
        let rows = found.into_iter().zip(holm(&probabilities)).map(|(found, probability)| {
            let (name, measured, difference) = found;
            Row {
                name: name.to_owned(),
                nanoseconds: measured.map(|measured| measured.nanoseconds),
                percent: difference.ratio.map(|ratio| 100.0 * ratio),
                probability,
                verdict: match probability < LEVEL {
                    false => Verdict::NoDifferenceFound,
                    true if difference.ratio[0] < 0.0 => Verdict::Faster,
                    true => Verdict::Slower,
                },
                noisy: measured.iter().any(|measured| measured.noisy),
            }
        });
        let mut conditions = before.conditions.differences(&after.conditions);
        if before.suite != after.suite {
            conditions.insert(0, ("suite's version", before.suite.clone(), after.suite.clone()));
        }
        Comparison {
            rows: rows.collect(),
            left_out,
            conditions,
            warnings: [before, after].map(|results| results.conditions.warnings.clone()),
        }
    }

    /// How many benchmarks have this verdict.
    pub(crate) fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    /// Benchmarks that are slower by more than `percent`.
    pub(crate) fn over(&self, percent: f64) -> impl Iterator<Item = &Row> {
        self.rows
            .iter()
            .filter(move |row| row.verdict == Verdict::Slower && row.percent[0] > percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::examples::{entry, results};

    #[test]
    fn verdicts_are_as_the_figures() {
        let before = results(vec![
            entry("call/getpid", 100.0, 0.5),
            entry("call/umask", 80.0, 0.5),
            entry("file/stat", 500.0, 0.5),
            entry("mix/web", 9e6, 20.0),
        ]);
        let after = results(vec![
            entry("call/getpid", 102.0, 0.5),
            entry("call/umask", 76.0, 0.5),
            entry("file/stat", 500.1, 0.5),
            entry("mix/web", 9.1e6, 20.0),
        ]);
        let comparison = Comparison::new(&before, &after);
        let verdicts: Vec<Verdict> = comparison.rows.iter().map(|row| row.verdict).collect();
        let same = Verdict::NoDifferenceFound;
        assert_eq!(verdicts, [Verdict::Slower, Verdict::Faster, same, same]);
        let [difference, low, high] = comparison.rows[0].percent;
        assert!((difference - 2.0).abs() < 1e-6 && low > 1.0 && high < 3.0);
        assert_eq!(
            comparison.over(1.0).map(|row| row.name.as_str()).collect::<Vec<_>>(),
            ["call/getpid"]
        );
        assert_eq!(comparison.over(2.5).count(), 0);
        assert_eq!(comparison.count(same), 2);
    }

    #[test]
    fn what_cannot_be_compared_is_named() {
        let not_run = |why: &str| Outcome::NotRun { why: why.into() };
        let without =
            |name: &str, outcome| Entry { name: name.into(), version: 1, program: None, outcome };
        let mut newer = entry("tcp/bulk-1m", 5.0, 0.5);
        newer.version = 2;
        let before = results(vec![
            entry("tcp/bulk-1m", 5.0, 0.5),
            without("uring/nop", not_run("io_uring_setup: not permitted")),
            entry("call/brk", 50.0, 0.5),
        ]);
        let after = results(vec![
            newer,
            entry("uring/nop", 50.0, 0.5),
            without("call/brk", Outcome::Wrong { why: "brk: got 1, expected 2".into() }),
            entry("call/uname", 50.0, 0.5),
        ]);
        let (mut before, mut after) = (before, after);
        for (results, version) in [(&mut before, "wrk 1"), (&mut after, "wrk 2")] {
            let (version, command_line) = (version.into(), "wrk -t 1".into());
            let program = Some(ProgramUsed { version, command_line, server: None });
            results.benchmarks.insert(0, Entry { program, ..entry("wrk/page", 5.0, 0.5) });
        }
        let comparison = Comparison::new(&before, &after);
        assert!(comparison.rows.is_empty());
        let said: Vec<String> =
            comparison.left_out.iter().map(|(name, why)| format!("{name}: {why}")).collect();
        assert_eq!(
            said,
            [
                "wrk/page: wrk -t 1 by wrk 1 before, wrk -t 1 by wrk 2 after",
                "tcp/bulk-1m: version 1 before, version 2 after",
                "uring/nop: before: not run: io_uring_setup: not permitted",
                "call/brk: after: wrong: brk: got 1, expected 2",
                "call/uname: before: not in this result",
            ]
        );
    }

    #[test]
    fn a_result_compared_with_itself_shows_no_difference() {
        let all: Vec<Entry> =
            (0..50).map(|at| entry(&format!("group/{at}"), 10.0 + f64::from(at), 1.0)).collect();
        let same = results(all);
        let comparison = Comparison::new(&same, &same);
        assert_eq!(comparison.count(Verdict::NoDifferenceFound), 50);
        assert!(comparison.conditions.is_empty());
    }
}
