//! Tables of two generations, for people.
//!
//! Input: the comparison of two results. Output: text. Counts nothing.

use super::split::{Generations, Share, Speedup};
use crate::table::{line, time};
use host::table::{Column, TextTable};
use papers::nellans::{KERNEL, TECHNOLOGY, WHOLE};
use std::fmt::Write;

/// How wide the longest bar of figure 1 is.
const BAR: usize = 40;

/// A speedup with its interval.
fn speedup([middle, low, high]: Speedup) -> String {
    format!("{} ({} … {})", digits(middle), digits(low), digits(high))
}

/// Three digits.
fn digits(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

fn or_dash(value: Option<f64>) -> String {
    value.map_or("-".into(), digits)
}

/// The tables.
pub(crate) fn text(found: &Generations) -> String {
    let mut text = String::new();
    let [old, new] = &found.processors;
    let named = |name: &Option<String>| name.clone().unwrap_or_else(|| "unknown".into());
    line!(text, "older: {}, Linux {}", named(old), found.kernels[0]);
    line!(text, "newer: {}, Linux {}", named(new), found.kernels[1]);
    line!(text, "T = {}, the ratio of technology", found.technology);
    line!(text, "P = T × A: P is how many times faster the newer machine is, A the part of the");
    line!(
        text,
        "architecture. In brackets: 95 % intervals. Columns \"paper\": Nellans 2005, from a"
    );
    line!(text, "486 at 33 MHz to a Pentium 4 at 3.0 GHz, T = 11.");
    programs(&mut text, found);
    calls(&mut text, found);
    switches(&mut text, found);
    for (name, why) in &found.left_out {
        line!(text, "left out: {name}: {why}");
    }
    for (which, warnings) in ["older", "newer"].iter().zip(&found.warnings) {
        for warning in warnings {
            line!(text, "warning ({which}): {warning}");
        }
    }
    text
}

fn programs(text: &mut String, found: &Generations) {
    line!(text, "\nTable 3: speedup of programs, by real, user and system time");
    let theirs_columns = ["real", "user", "system"].map(|it| Column::right(it).fixed(6).gap(1));
    let ours = [
        Column::left("benchmark").fixed(16),
        Column::right("older").fixed(9).gap(1),
        Column::right("newer").fixed(9).gap(1),
        Column::right("P real").fixed(22),
        Column::right("user").fixed(6).gap(1),
        Column::right("system").fixed(6).gap(1),
        Column::left("paper").fixed(21),
    ];
    let mut table = TextTable::of(ours.into_iter().chain(theirs_columns));
    for program in &found.programs {
        let [old, new] = program.real.nanoseconds.map(time);
        let (name, theirs) = match program.nellans {
            Some((name, speedups)) => (name, speedups.map(digits)),
            None => ("-", ["-"; 3].map(String::from)),
        };
        let ours = [
            program.real.benchmark.to_string(),
            old,
            new,
            speedup(program.real.speedup),
            or_dash(program.user),
            or_dash(program.system),
            name.to_owned(),
        ];
        table.push(ours.into_iter().chain(theirs).collect());
    }
    *text += &table.to_text();
    share(text, "whole programs", found.whole, Some(WHOLE));
    share(text, "their part in the kernel", found.kernel, Some(KERNEL));
}

fn share(text: &mut String, what: &str, share: Option<Share>, paper: Option<f64>) {
    match share {
        Some(share) => line!(
            text,
            "{what}, mean of {}: P = {} = {} × A, A = {}",
            share.rows,
            digits(share.speedup),
            share.technology,
            digits(share.architecture)
        ),
        None => line!(text, "{what}: no row was measured on both machines"),
    }
    if let Some(paper) = paper {
        let architecture = digits(paper / TECHNOLOGY);
        line!(text, "    paper: P = {} = {TECHNOLOGY} × A, A = {architecture}", digits(paper));
    }
}

fn calls(text: &mut String, found: &Generations) {
    line!(text, "\nTable 4: speedup of system calls");
    let mut table = TextTable::of([
        Column::left("benchmark").fixed(20),
        Column::right("older").fixed(9).gap(1),
        Column::right("newer").fixed(9).gap(1),
        Column::right("P").fixed(22),
        Column::right("A").fixed(22).gap(1),
        Column::left("paper").fixed(15),
        Column::right("P").fixed(6).gap(1),
        Column::right("A").fixed(6).gap(1),
    ]);
    for call in &found.calls {
        let [old, new] = call.ours.nanoseconds.map(time);
        let (name, theirs) = call.nellans;
        let [their_speedup, their_architecture] = theirs.map(digits);
        table.push(vec![
            call.ours.benchmark.to_string(),
            old,
            new,
            speedup(call.ours.speedup),
            speedup(call.ours.architecture),
            name.to_owned(),
            their_speedup,
            their_architecture,
        ]);
    }
    *text += &table.to_text();
    share(text, "all of them, geometrically", found.all_calls, None);
}

fn switches(text: &mut String, found: &Generations) {
    line!(text, "\nFigure 1: a switch, the older machine's time divided by T; shorter is better.");
    line!(text, "The paper's figure has no numbers: at 3.0 GHz a switch took more cycles than at");
    line!(text, "33 MHz, so its A is below 1.");
    let longest = found.switches.iter().flat_map(|switch| switch.normalized).fold(0.0, f64::max);
    for switch in &found.switches {
        for (which, nanoseconds) in ["older", "newer"].iter().zip(switch.normalized) {
            let name = if *which == "older" { switch.ours.benchmark } else { "" };
            let bar = "█".repeat((nanoseconds / longest * BAR as f64).round() as usize);
            line!(text, "{name:<24} {which} {:>9} {bar}", time(nanoseconds));
        }
        line!(text, "{:<24} A = {}", "", speedup(switch.ours.architecture));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generations::split::tests::run;

    #[test]
    fn the_tables_have_our_numbers_and_the_papers() {
        let found = Generations::new([&run(2000.0, [4.0, 1.0]), &run(100.0, [2.0, 2.0])], 4.0);
        let text = text(&found);
        let row = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(row("user/search").ends_with("32.0 8.00 crafty 241 251 14.0"), "{text}");
        assert!(row("mix/shell").ends_with("32.0 8.00 - - - -"));
        assert!(row("process/fork-exit").ends_with("fork 2.00 0.18"));
        for said in [
            "whole programs, mean of 5: P = 20.0 = 4 × A, A = 5.00",
            "    paper: P = 192 = 11 × A, A = 17.5",
            "their part in the kernel, mean of 5: P = 8.00 = 4 × A, A = 2.00",
            "    paper: P = 46.0 = 11 × A, A = 4.19",
            "all of them, geometrically, mean of 25: P = 20.0 = 4 × A, A = 5.00",
        ] {
            assert!(text.lines().any(|line| line == said), "{said} is not in {text}");
        }
        // 2,000 ns at 4 times the technology are 500 ns; the newer machine takes a fifth.
        assert!(
            text.contains(&format!(
                "switch/threads           older  500.0 ns {}\n",
                "█".repeat(40)
            ))
        );
        assert!(text.contains(&format!("newer  100.0 ns {}\n", "█".repeat(8))));
    }

    #[test]
    fn nothing_measured_is_said() {
        let nothing = crate::result::examples::results(vec![]);
        let text = text(&Generations::new([&nothing, &nothing], 1.0));
        assert!(text.contains("whole programs: no row was measured on both machines"));
        assert!(text.contains("left out: user/search: before: not in this result; after:"));
    }
}
