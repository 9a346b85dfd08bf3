//! Gains as text: the group as in Tamches 2001, figure 3, and the gain as in figure 4.
//!
//! Input: what `measure` gives. Output: text. Counts nothing.

use crate::live_gain::measure::{BenchmarkGain, FunctionInvocations, OnMachine};
use host::table::{Column, TextTable};
use live::chunks;
use std::fmt::Write;

pub(super) fn tables(gain: &BenchmarkGain) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\n== {}: Linux {}, {} times \"{}\"\n\n{}",
        gain.benchmark,
        gain.kernel,
        gain.operations,
        gain.operation,
        chunks::Table(&gain.group)
    );
    for (before, after) in gain.before.iter().zip(&gain.after) {
        machine(&mut text, gain, before, after);
    }
    text
}

fn machine(text: &mut String, gain: &BenchmarkGain, before: &OnMachine, after: &OnMachine) {
    let _ = writeln!(text, "\nthe kernel per {}, {} simulated", gain.operation, before.machine);
    let mut table = figures(["original", "optimized", "change"]);
    let per_operation = |value: f64| value / gain.operations as f64;
    let rows: [(&str, fn(&OnMachine) -> f64); 6] = [
        ("instructions (recorded)", |on| on.instructions as f64),
        ("taken jumps (recorded)", |on| on.jumps as f64),
        ("L1I misses", |on| on.l1i_misses as f64),
        ("L1I stall, cycles", |on| on.stall),
        ("cycles", |on| on.cycles),
        ("iTLB misses", |on| on.itlb_misses as f64),
    ];
    for (name, value) in rows {
        row(&mut table, name, per_operation(value(before)), per_operation(value(after)));
    }
    text.push_str(&table.to_text());
    for (before, after) in before.functions.iter().zip(&after.functions) {
        function(text, before, after);
    }
}

fn function(text: &mut String, before: &FunctionInvocations, after: &FunctionInvocations) {
    if before.calls == 0 || after.calls == 0 {
        // A tail call whose jump the layout dropped falls through into its callee.
        let _ = writeln!(
            text,
            "{}: entered by calls and jumps {} and {} times, so nothing can be compared",
            before.function, before.calls, after.calls
        );
        return;
    }
    let _ = writeln!(
        text,
        "per invocation of {} ({} and {} calls)",
        before.function, before.calls, after.calls
    );
    let rows: [(&str, fn(&FunctionInvocations) -> f64); 4] = [
        ("  instructions (recorded)", |f| f.instructions as f64),
        ("  L1I misses", |f| f.l1i_misses as f64),
        ("  L1I stall, cycles", |f| f.stall),
        ("  cycles", |f| f.cycles),
    ];
    let mut table = figures([""; 3]);
    for (name, value) in rows {
        let each = |f: &FunctionInvocations| value(f) / f.calls as f64;
        row(&mut table, name, each(before), each(after));
    }
    text.push_str(&table.to_text());
}

/// A table of figures before and after.
fn figures([before, after, change]: [&str; 3]) -> TextTable {
    TextTable::of([
        Column::left("").fixed(32),
        Column::right(before).fixed(12).gap(1),
        Column::right(after).fixed(12).gap(1),
        Column::right(change).fixed(8).gap(1),
    ])
}

fn row(table: &mut TextTable, name: &str, before: f64, after: f64) {
    let change = match before > 0.0 {
        true => format!("{:+.1} %", 100.0 * (after / before - 1.0)),
        false => "-".into(),
    };
    table.push(vec![name.to_owned(), format!("{before:.2}"), format!("{after:.2}"), change]);
}
