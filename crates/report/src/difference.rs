//! The difference of two recordings, for a terminal.
//!
//! Input: changes with their causes. Output: text. Counts nothing.

use host::table::TextTable;
use services::difference::{CostChange, RecordingDifference};
use std::fmt::Write as _;

/// The `most` largest changes of services, and of functions.
pub fn text(difference: &RecordingDifference, most: usize) -> String {
    let mut text = format!(
        "before: workload {}, kernel {}\nafter:  workload {}, kernel {}\n{}\n\n",
        difference.workload_before,
        difference.kernel_before,
        difference.workload_after,
        difference.kernel_after,
        difference.unit
    );
    let mut services = table("service");
    services.push(row(&difference.total));
    difference.services.iter().take(most).for_each(|change| services.push(row(change)));
    text += &services.to_text();
    let mut functions = table("function");
    difference.functions.iter().take(most).for_each(|change| functions.push(row(change)));
    let [before, after] = difference.context_switches;
    let _ = write!(text, "\n{}\ncontext switches: {before}, {after}", functions.to_text());
    for (name, [before, after]) in &difference.counters {
        let _ = write!(text, "; {name}: {before}, {after}");
    }
    text.push('\n');
    text
}

fn table(first: &str) -> TextTable {
    TextTable::new(&[
        first, "before", "after", "change", "", "calls", "", "a call", "", "by calls", "instr.",
        "misses", "why",
    ])
}

fn row(change: &CostChange) -> Vec<String> {
    let mean = |cost: f64, calls: u64| {
        if calls == 0 { "-".to_owned() } else { format!("{:.0}", cost / calls as f64) }
    };
    let kind = change.kind.map_or(String::new(), |kind| format!("{} ", kind.title()));
    let parts = &change.parts;
    vec![
        format!("{kind}{}", change.name),
        format!("{:.0}", change.cost_before),
        format!("{:.0}", change.cost_after),
        format!("{:+.0}", change.cost_after - change.cost_before),
        change.growth().map_or("-".to_owned(), |growth| format!("{:+.1} %", 100.0 * growth)),
        change.before.calls.to_string(),
        change.after.calls.to_string(),
        mean(change.cost_before, change.before.calls),
        mean(change.cost_after, change.after.calls),
        format!("{:+.0}", parts.calls),
        format!("{:+.0}", parts.instructions_a_call),
        format!("{:+.0}", parts.misses_a_call),
        change.why.clone(),
    ]
}
