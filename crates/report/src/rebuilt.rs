//! Kernels built and laid out in several ways, one beside the other, as text.
//!
//! Input: comparisons with the original. Output: a table for each workload and machine, with a row
//! for each recorded kernel. This module computes nothing.

use crate::text::{changed, number};
use host::table::TextTable;
use replay::comparison::{ComparedLayout, Comparison, Metric};
use std::fmt::Write;

/// The metrics of a row, by their names in a [`Comparison`], each with the head of its column.
const COLUMNS: [(&str, &str); 5] = [
    ("kernel cycles, out-of-order core", "kernel cycles"),
    ("kernel instructions", "instructions"),
    ("kernel returns", "returns"),
    ("kernel L1I misses", "L1I misses"),
    ("kernel taken jumps (conditional and direct)", "taken jumps"),
];

/// A table for each workload and machine.
pub fn text(comparisons: &[Comparison]) -> String {
    let mut text = String::new();
    for comparison in comparisons {
        let Comparison { workload, machine, seed, original, .. } = comparison;
        let like = original.conditions.get("like");
        let guest = like.map_or(String::new(), |like| format!(", in a guest like {like}"));
        let _ = writeln!(text, "{workload} on {machine}{guest}, seed {seed}; the kernel");
        let recorded = || comparison.layouts.iter().filter(|layout| layout.recorded.is_some());
        let Some(first) = recorded().next() else { continue };
        // Machines without an out-of-order core have no time.
        let has = |(name, _): &(&str, &str)| first.metrics.iter().any(|it| it.name == *name);
        let columns: Vec<_> = COLUMNS.into_iter().filter(has).collect();
        let heads: Vec<&str> = [""].into_iter().chain(columns.iter().map(|it| it.1)).collect();
        let mut table = TextTable::new(&heads);
        table.push(row("original", first, &columns, |metric| number(Some(metric.original))));
        for layout in recorded() {
            table.push(row(&layout.layout, layout, &columns, |metric| {
                changed(metric.recorded_change, metric.recorded_within)
            }));
        }
        let _ = writeln!(text, "{}", table.to_text());
    }
    text
}

fn row(
    name: &str,
    layout: &ComparedLayout,
    columns: &[(&str, &str)],
    cell: impl Fn(&Metric) -> String,
) -> Vec<String> {
    let metric = |name: &str| layout.metrics.iter().find(|metric| metric.name == name);
    let cells = columns.iter().map(|(name, _)| metric(name).map_or("-".to_owned(), &cell));
    [name.to_owned()].into_iter().chain(cells).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use replay::comparison::compare;
    use replay::examples::{original, predicted, recorded};

    #[test]
    fn each_recorded_kernel_has_a_row() {
        let profiled = replay::results::ResultRow { layout: "profiled".into(), ..recorded() };
        let rows = [original(), predicted(), recorded(), profiled];
        let text = text(&compare(&rows).unwrap());
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        let row = |name: &str| lines.iter().find(|line| line.first() == Some(&name)).unwrap();
        assert!(row("original").contains(&"1000"), "{text}");
        assert!(!text.contains("cycles"), "the machine has no out-of-order core: {text}");
        assert!(row("ext-tsp").contains(&"-50.00"), "{text}");
        assert!(row("profiled").contains(&"-50.00"), "{text}");
        assert_eq!(lines.iter().filter(|line| line.first() == Some(&"ext-tsp")).count(), 1);
    }
}
