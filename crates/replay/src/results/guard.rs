//! Finds layouts that lose on the replayed recordings.
//!
//! Input: result rows. Output: layouts that miss more, or jump more, than the original on the same
//! recording and machine. Replay counts the original as recorded and every layout as predicted. A
//! relinked kernel that was recorded itself executes another number of instructions, so every
//! number is compared per instruction. Where an out-of-order core tells the time, a kernel that
//! takes less of it does not lose. A layout made from other work can lose: code that did not
//! run in that work lies with the cold code. This module only warns, and never refuses a layout.

use super::{ORIGINAL, ResultCounters, ResultKind, ResultRow};
use serde::Serialize;

/// A layout loses when it is worse than the original by more than this share. Smaller differences
/// are chance.
const NOTABLE: f64 = 0.005;

/// A layout that is worse than the original.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayoutLoss {
    /// The layout's name.
    pub layout: String,
    /// The recorded workload.
    pub workload: String,
    /// The simulated machine.
    pub machine: String,
    /// Whether the layout's numbers are predicted or recorded.
    pub kind: ResultKind,
    /// What there is more of.
    pub more: Vec<Excess>,
}

/// A count that is higher than the original's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Excess {
    /// What was counted.
    pub what: &'static str,
    /// By which share: 0.1 means 10 % more for each instruction.
    pub share: f64,
}

impl LayoutLoss {
    /// A sentence with the reason to look for.
    pub fn text(&self) -> String {
        let LayoutLoss { layout, workload, machine, more, .. } = self;
        let kind = match self.kind {
            ResultKind::Predicted => "predicted",
            ResultKind::Recorded => "recorded",
        };
        let percent =
            |excess: &Excess| format!("{:.1} % more {}", 100.0 * excess.share, excess.what);
        let more: Vec<String> = more.iter().map(percent).collect();
        format!(
            "{layout} loses against the original on {workload} ({machine}, {kind}): {}. Was it \
             made from a profile of other work, or of too few samples?",
            more.join(", ")
        )
    }
}

/// The layouts that lose, in the order of the rows.
pub fn losses(rows: &[ResultRow]) -> Vec<LayoutLoss> {
    let layouts = rows.iter().filter(|row| row.layout != ORIGINAL);
    layouts.filter_map(|row| loss(row, original_of(row, rows)?)).collect()
}

fn original_of<'a>(row: &ResultRow, rows: &'a [ResultRow]) -> Option<&'a ResultRow> {
    rows.iter().find(|other| other.layout == ORIGINAL && row.same_conditions(other))
}

/// The compared counts.
const COUNTS: [(&str, fn(&ResultCounters) -> u64); 2] = [
    ("L1I misses, of kernel and user together", ResultCounters::misses),
    ("kernel jumps taken", ResultCounters::kernel_jumps),
];

fn loss(row: &ResultRow, original: &ResultRow) -> Option<LayoutLoss> {
    // A layout adds and drops jumps, which are also instructions. Predicted numbers are of the same
    // execution.
    let scale = match row.kind {
        ResultKind::Predicted => 1.0,
        ResultKind::Recorded => {
            let executed = |row: &ResultRow| row.counters.instructions.total().max(1) as f64;
            executed(original) / executed(row)
        }
    };
    let share = |count: fn(&ResultCounters) -> u64| {
        scale * count(&row.counters) as f64 / count(&original.counters).max(1) as f64 - 1.0
    };
    let cycles = |row: &ResultRow| row.counters.core.as_ref().map(|core| core.cycles);
    if cycles(row).zip(cycles(original)).is_some_and(|(row, original)| row < original) {
        // Where the time is known, it decides: a jump in place of a call is not a loss.
        return None;
    }
    let more = COUNTS.map(|(what, count)| Excess { what, share: share(count) });
    let more: Vec<_> = more.into_iter().filter(|excess| excess.share > NOTABLE).collect();
    (!more.is_empty()).then(|| LayoutLoss {
        layout: row.layout.clone(),
        workload: row.workload.clone(),
        machine: row.machine.clone(),
        kind: row.kind,
        more,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{original, row};
    use crate::results::CoreResult;
    use sim::PerMode;
    use std::collections::BTreeMap;

    /// As [`crate::rows::rows`] makes them: the original is recorded, layouts are predicted.
    fn replayed(layout: &str, misses: u64) -> ResultRow {
        row(layout, ResultKind::Predicted, misses, &[])
    }

    #[test]
    fn what_is_faster_does_not_lose() {
        let with_cycles = |mut row: ResultRow, cycles: u64| {
            row.counters.core = Some(CoreResult {
                widths: [6, 8],
                cycles,
                counters: PerMode::default(),
                unknown: BTreeMap::new(),
                functions: Vec::new(),
                sampled: None,
            });
            row
        };
        let rows = |cycles| {
            let rows = [with_cycles(original(), 100), with_cycles(replayed("new", 5000), cycles)];
            losses(&rows).len()
        };
        assert_eq!([rows(99), rows(100)], [0, 1]);
    }

    #[test]
    fn a_predicted_layout_loses_against_the_recorded_original() {
        let rows = [
            original(),
            replayed("better", 800),
            replayed("as-good", 1004),
            replayed("worse", 1100),
            replayed("random", 3200),
        ];
        let losses = losses(&rows);
        let found: Vec<_> = losses.iter().map(|loss| loss.layout.as_str()).collect();
        assert_eq!(found, ["worse", "random"]);
        assert!((losses[1].more[0].share - 2.2).abs() < 1e-9, "{losses:?}");
        assert!(losses[0].text().starts_with(
            "worse loses against the original on net (server-32k, predicted): 10.0 % more L1I \
             misses, of kernel and user together, 10.0 % more kernel jumps taken."
        ));
    }

    #[test]
    fn a_recorded_kernel_is_compared_for_each_instruction() {
        let recorded = |misses, instructions| {
            let mut row = row("relinked", ResultKind::Recorded, misses, &[]);
            row.counters.instructions.kernel = instructions;
            row
        };
        // 2 % more misses in 2 % more instructions: 102 000 instead of 100 000.
        assert!(losses(&[original(), recorded(1020, 92_000)]).is_empty());
        assert_eq!(losses(&[original(), recorded(1020, 90_000)]).len(), 1);
    }

    #[test]
    fn without_its_original_no_layout_is_named() {
        let mut other = original();
        other.machine = "another".to_owned();
        assert!(losses(&[other, replayed("worse", 1100)]).is_empty());
    }

    #[test]
    fn the_original_never_loses() {
        assert!(losses(&[original(), original()]).is_empty());
    }
}
