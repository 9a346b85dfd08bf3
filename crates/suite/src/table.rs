//! Results and comparisons as text for people.
//!
//! Input: results. Output: text. Measures nothing.

use crate::benchmark::Benchmark;
use crate::compare::{Comparison, LEVEL, Verdict};
use crate::public::list::Public;
use crate::result::{Outcome, Results};
use host::table::{Column, TextTable};
use std::fmt::Write;

/// Appends a line.
macro_rules! line {
    ($text:ident, $($part:tt)*) => {{
        // Writing to a string cannot fail.
        let _ = writeln!($text, $($part)*);
    }};
}
pub(crate) use line;

/// A time with four digits and its unit.
pub(crate) fn time(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds {
        t if t < 1e3 => (t, "ns"),
        t if t < 1e6 => (t / 1e3, "µs"),
        t if t < 1e9 => (t / 1e6, "ms"),
        t => (t / 1e9, "s"),
    };
    // Four digits and a point, also of what is rounded up to a further digit.
    let mut texts = (0..=3).rev().map(|decimals| format!("{value:.decimals$}"));
    let text = texts.find(|text| text.len() <= 5).unwrap_or_else(|| format!("{value:.0}"));
    format!("{text} {unit}")
}

/// The column of the benchmarks' names.
fn names(title: &str) -> Column {
    Column::left(title).at_least("benchmark".len())
}

/// A run.
pub(crate) fn results(results: &Results) -> String {
    let mut text = String::new();
    let mut table = TextTable::of([
        names("benchmark"),
        Column::right("time").fixed(10),
        Column::right("± 95 %").fixed(8),
        Column::right("rounds").fixed(6),
        Column::left(""),
    ]);
    let (mut measured, mut noisy, mut without) = (0, 0, Vec::new());
    for entry in &results.benchmarks {
        match &entry.outcome {
            Outcome::Measured(figure) => {
                measured += 1;
                noisy += usize::from(figure.noisy);
                let half = figure
                    .half_width_percent
                    .map_or("unknown".to_owned(), |half| format!("{half:.2} %"));
                let rounds = figure.rounds.len().to_string();
                let remark = if figure.noisy { "too noisy" } else { "" }.to_owned();
                let time = time(figure.nanoseconds);
                table.push(vec![entry.name.clone(), time, half, rounds, remark]);
            }
            Outcome::NotRun { why } => without.push(format!("not run: {}: {why}", entry.name)),
            Outcome::Wrong { why } => without.push(format!("wrong: {}: {why}", entry.name)),
        }
    }
    text += &table.to_text();
    for said in without {
        line!(text, "{said}");
    }
    for entry in &results.benchmarks {
        if let Some(used) = &entry.program {
            line!(text, "{}: {} [{}]", entry.name, used.command_line, used.version);
        }
    }
    let conditions = &results.conditions;
    line!(text, "");
    line!(
        text,
        "measured {measured} of {} benchmarks in {:.0} s on Linux {}, CPU {}",
        results.benchmarks.len(),
        conditions.seconds,
        conditions.kernel_release,
        conditions.cpu.map_or("not pinned".to_owned(), |cpu| cpu.to_string())
    );
    if noisy > 0 {
        line!(
            text,
            "too noisy: {noisy} of {measured} intervals are wider than ± {} %; the machine is too \
             noisy for the time given: stop other work, or give more by --time",
            results.precision_percent
        );
    }
    for warning in &conditions.warnings {
        line!(text, "warning: {warning}");
    }
    text
}

/// Two runs.
pub(crate) fn comparison(comparison: &Comparison) -> String {
    let mut text = String::new();
    let mut table = TextTable::of([
        names("benchmark"),
        Column::right("before").fixed(10),
        Column::right("after").fixed(10),
        Column::right("change").fixed(9),
        Column::right("95 % interval").fixed(19),
        Column::left("verdict"),
    ]);
    for row in &comparison.rows {
        let [before, after] = row.nanoseconds.map(time);
        let [change, low, high] = row.percent;
        let remark = if row.noisy { " (too noisy)" } else { "" };
        table.push(vec![
            row.name.clone(),
            before,
            after,
            format!("{change:+.2} %"),
            format!("{low:+.2} … {high:+.2} %"),
            format!("{}{remark}", row.verdict.title()),
        ]);
    }
    text += &table.to_text();
    for (name, why) in &comparison.left_out {
        line!(text, "not compared: {name}: {why}");
    }
    line!(text, "");
    line!(
        text,
        "{} faster, {} slower, {} with no difference found, {} not compared (Holm's correction, \
         {} % for all verdicts together)",
        comparison.count(Verdict::Faster),
        comparison.count(Verdict::Slower),
        comparison.count(Verdict::NoDifferenceFound),
        comparison.left_out.len(),
        100.0 * LEVEL
    );
    for (name, before, after) in &comparison.conditions {
        line!(text, "other conditions: {name}: {before:?} before, {after:?} after");
    }
    for (which, warnings) in ["before", "after"].iter().zip(&comparison.warnings) {
        for warning in warnings {
            line!(text, "warning ({which}): {warning}");
        }
    }
    text
}

/// The benchmarks, for `--list`.
pub(crate) fn list(benchmarks: &[&Benchmark]) -> String {
    let mut table = TextTable::of([names(""), Column::left("")]);
    for Benchmark { name, stresses, source, .. } in benchmarks {
        table.push(vec![(*name).to_owned(), format!("{stresses} [{}]", source.title())]);
    }
    table.to_text()
}

/// The public suites, for `--list --public`.
pub(crate) fn public(suites: &[&Public]) -> String {
    let mut table = TextTable::of([names(""), Column::left("")]);
    for Public { name, stresses, line, .. } in suites {
        table.push(vec![(*name).to_owned(), format!("{stresses} [{}]", line.join(" "))]);
    }
    table.to_text()
}

/// The benchmarks as a table of Markdown, for `docs/reference/bench.md`.
#[cfg(test)]
pub(crate) fn markdown(benchmarks: &[&Benchmark]) -> String {
    let mut text = "| benchmark | stresses | source |\n|---|---|---|\n".to_owned();
    for Benchmark { name, stresses, source, .. } in benchmarks {
        line!(text, "| `{name}` | {stresses} | {} |", source.title());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Entry;
    use crate::result::examples::{self, entry};

    #[test]
    fn times_have_four_digits() {
        let said = [0.5, 99.95, 123.45, 4567.8, 2.5e6, 3e9].map(time);
        assert_eq!(said, ["0.500 ns", "99.95 ns", "123.5 ns", "4.568 µs", "2.500 ms", "3.000 s"]);
    }

    #[test]
    fn a_run_as_text() {
        let not_run = Outcome::NotRun { why: "io_uring_setup: not permitted".into() };
        let mut run = examples::results(vec![
            entry("call/getpid", 100.0, 0.5),
            entry("mix/web", 9e6, 20.0),
            Entry { name: "uring/nop".into(), version: 1, program: None, outcome: not_run },
        ]);
        run.conditions.seconds = 12.3;
        run.conditions.kernel_release = "6.12.0".into();
        run.conditions.cpu = Some(1);
        run.conditions.warnings.push("the other CPUs were busy for 50.0 % of the time".into());
        assert_eq!(
            results(&run),
            "\
benchmark          time    ± 95 %  rounds
call/getpid    100.0 ns    0.19 %      21
mix/web        8.975 ms    7.60 %      21  too noisy
not run: uring/nop: io_uring_setup: not permitted

measured 2 of 3 benchmarks in 12 s on Linux 6.12.0, CPU 1
too noisy: 1 of 2 intervals are wider than ± 1 %; the machine is too noisy for the time given: \
             stop other work, or give more by --time
warning: the other CPUs were busy for 50.0 % of the time
"
        );
    }

    #[test]
    fn a_comparison_as_text() {
        let before = examples::results(vec![entry("call/getpid", 100.0, 0.5)]);
        let mut after = examples::results(vec![entry("call/getpid", 105.0, 0.5)]);
        after.conditions.microcode = Some("0x2".into());
        let text = comparison(&Comparison::new(&before, &after));
        let mut lines = text.lines().skip(1);
        let row = lines.next().unwrap();
        assert!(row.contains("+5.00 %") && row.ends_with("  slower"), "{row}");
        assert!(text.contains("0 faster, 1 slower, 0 with no difference found, 0 not compared"));
        assert!(text.contains("other conditions: microcode: \"unknown\" before, \"0x2\" after"));
    }
}
