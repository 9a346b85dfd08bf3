//! The difference of two recordings, for a terminal.
//!
//! Input: changes with their causes. Output: text. Counts nothing.

use crate::core_time;
use host::table::TextTable;
use services::difference::{CostChange, EstimatedChange, RecordingDifference};
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
    let columns =
        Columns { is_estimated: difference.total.estimated.is_some(), on_core: difference.on_core };
    let mut services = columns.table("service");
    services.push(columns.row(&difference.total));
    difference.services.iter().take(most).for_each(|change| services.push(columns.row(change)));
    text += &services.to_text();
    if columns.is_estimated {
        text += "note: estimated from samples; ±: half of the 95 % interval of the change. Each \
                 recording has samples of its own: the two errors are independent\n";
    }
    let mut functions = columns.table("function");
    difference.functions.iter().take(most).for_each(|change| functions.push(columns.row(change)));
    let [before, after] = difference.context_switches;
    let _ = write!(text, "\n{}\ncontext switches: {before}, {after}", functions.to_text());
    for (name, [before, after]) in &difference.counters {
        let _ = write!(text, "; {name}: {before}, {after}");
    }
    text.push('\n');
    text
}

/// The columns of the tables.
#[derive(Clone, Copy)]
struct Columns {
    /// With intervals.
    is_estimated: bool,
    /// Parts by cycles for each instruction, not by misses.
    on_core: bool,
}

impl Columns {
    fn table(self, first: &str) -> TextTable {
        let last = if self.on_core { "CPI" } else { "misses" };
        let mut titles = vec![
            first, "before", "after", "change", "", "calls", "", "a call", "", "by calls",
            "instr.", last, "why",
        ];
        titles.splice(4..4, self.is_estimated.then_some("±"));
        TextTable::new(&titles)
    }

    fn row(self, change: &CostChange) -> Vec<String> {
        let mean = |cost: f64, calls: u64| {
            if calls == 0 { "-".to_owned() } else { format!("{:.0}", cost / calls as f64) }
        };
        let kind = change.kind.map_or(String::new(), |kind| format!("{} ", kind.title()));
        let parts = &change.parts;
        let last = if self.on_core { parts.cycles_an_instruction } else { parts.misses_a_call };
        let mut cells = vec![
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
            format!("{last:+.0}"),
            change.why.clone(),
        ];
        cells.splice(4..4, self.is_estimated.then(|| within(change)));
        cells
    }
}

/// Half of the 95 % interval of a change; or that there is none, and why.
fn within(change: &CostChange) -> String {
    let Some(EstimatedChange { before, after, within }) = change.estimated else {
        return String::new();
    };
    if let Some(within) = within {
        return format!("{within:.0}");
    }
    let without = [before, after].into_iter().flatten().find(|of| of.within.is_none());
    without.map_or(String::new(), |of| core_time::within(&of))
}

#[cfg(test)]
mod tests {
    use super::*;
    use services::core_time::EstimatedTime;
    use services::difference::{CallAmounts, ChangeParts};

    fn change(name: &str, estimated: Option<EstimatedChange>) -> CostChange {
        let amounts = CallAmounts { calls: 10, instructions: 1000, l1i_misses: 0 };
        CostChange {
            kind: None,
            name: name.to_owned(),
            before: amounts,
            after: amounts,
            cost_before: 700.0,
            cost_after: 900.0,
            parts: ChangeParts { cycles_an_instruction: 200.0, ..ChangeParts::default() },
            why: "more cycles an instruction".to_owned(),
            estimated,
        }
    }

    #[test]
    fn estimated_changes_stand_with_their_intervals() {
        let of = |samples, within| Some(EstimatedTime { samples, within });
        let known = EstimatedChange {
            before: of(90, Some(3.0)),
            after: of(80, Some(4.0)),
            within: Some(41.7),
        };
        let rare = EstimatedChange { before: of(9, Some(3.0)), after: of(0, None), within: None };
        let difference = RecordingDifference {
            workload_before: "net".to_owned(),
            workload_after: "net".to_owned(),
            kernel_before: "0a".to_owned(),
            kernel_after: "0b".to_owned(),
            unit: "cycles on zen4".to_owned(),
            on_core: true,
            total: change("the kernel", Some(known)),
            services: vec![change("rare", Some(rare))],
            functions: Vec::new(),
            context_switches: [1, 2],
            counters: Default::default(),
        };
        let of_rows = text(&difference, 5);
        let line = |start: &str| -> Vec<&str> {
            let mut lines = of_rows.lines().map(str::trim);
            lines.find(|line| line.starts_with(start)).unwrap().split_whitespace().collect()
        };
        assert_eq!(line("service")[..5], ["service", "before", "after", "change", "±"]);
        assert!(line("service").contains(&"CPI") && !line("service").contains(&"misses"));
        assert_eq!(line("the kernel")[2..8], ["700", "900", "+200", "42", "+28.6", "%"]);
        assert_eq!(line("rare")[1..6], ["700", "900", "+200", "no", "sample"], "{of_rows}");
        assert!(of_rows.contains("the two errors are independent"), "{of_rows}");
        let exact = RecordingDifference { total: change("the kernel", None), ..difference };
        assert!(!text(&exact, 5).contains('±'));
    }
}
