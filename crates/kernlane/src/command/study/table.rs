//! What a study found out.
//!
//! Input: the files of results. Output: a row for each workload, kernel, seed, machine and layout,
//! and a table that takes the seeds of each together.

use super::file::Study;
use super::jobs::{Cell, Plan};
use anyhow::{Context, Result};
use host::table::{Column, TextTable};
use replay::comparison::{self, ComparedLayout, Metric};
use replay::results::{ORIGINAL, ResultFile};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The numbers of the table, by their names in comparisons, and their titles. What a machine does
/// not have stays empty.
const SHOWN: [(&str, &str); 5] = [
    ("kernel cycles, out-of-order core", "kernel cycles"),
    ("cycles, simple model", "cycles, simple model"),
    ("kernel L1I misses", "kernel L1I misses"),
    ("kernel iTLB misses", "kernel iTLB misses"),
    ("kernel taken jumps (conditional and direct)", "kernel taken jumps"),
];

/// All rows of a study.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    /// What the study is for.
    description: String,
    rows: Vec<StudyRow>,
}

/// The original, or a layout beside it.
#[derive(Debug, Serialize)]
struct StudyRow {
    workload: String,
    kernel: String,
    /// The build id.
    build_id: String,
    seed: u64,
    machine: String,
    layout: String,
    /// The conditions of the recording.
    conditions: BTreeMap<String, String>,
    metrics: Vec<Metric>,
}

impl Results {
    /// The results of a plan that is done.
    ///
    /// # Errors
    /// A file is missing or damaged.
    pub(super) fn read(study: &Study, plan: &Plan, directory: &Path) -> Result<Results> {
        let mut rows = Vec::new();
        for cell in &plan.cells {
            let path = directory.join(&cell.results);
            let file = ResultFile::read(&path)?;
            rows.extend(of_cell(cell, &file).with_context(|| path.display().to_string())?);
        }
        Ok(Results { description: study.description.clone(), rows })
    }

    /// The table: the original's numbers, and the changes of the layouts. The seeds of a row are
    /// taken together: their mean, the lowest and the highest.
    pub(super) fn text(&self) -> String {
        let mut groups: Vec<(&StudyRow, Vec<&StudyRow>)> = Vec::new();
        for row in &self.rows {
            match groups.iter_mut().find(|(first, _)| first.place() == row.place()) {
                Some((_, rows)) => rows.push(row),
                None => groups.push((row, vec![row])),
            }
        }
        let has = |name: &str| self.rows.iter().any(|row| row.metric(name).is_some());
        let shown: Vec<_> = SHOWN.into_iter().filter(|(name, _)| has(name)).collect();
        let several = |of: fn(&StudyRow) -> &str| {
            self.rows.first().is_some_and(|first| self.rows.iter().any(|row| of(row) != of(first)))
        };
        let kernels = several(|row| &row.kernel);
        let mut columns = vec![Column::left("workload").gap(2)];
        columns.extend(kernels.then(|| Column::left("kernel")));
        columns.extend([Column::left("machine"), Column::left("layout")]);
        columns.extend(shown.iter().map(|(_, title)| Column::right(title)));
        let mut table = TextTable::of(columns);
        for (first, rows) in &groups {
            let mut cells = vec![first.workload.clone()];
            cells.extend(kernels.then(|| first.kernel.clone()));
            cells.extend([first.machine.clone(), first.layout.clone()]);
            cells.extend(shown.iter().map(|(name, _)| cell(rows, name)));
            table.push(cells);
        }
        let seeds: std::collections::BTreeSet<u64> = self.rows.iter().map(|row| row.seed).collect();
        let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
        let heading = match self.description.is_empty() {
            true => String::new(),
            false => format!("{}\n\n", self.description),
        };
        format!(
            "{heading}simulated, seed {}; layouts: changes against the original\n\n{}",
            seeds.join(", "),
            table.to_text()
        )
    }
}

impl StudyRow {
    /// All but the seed.
    fn place(&self) -> [&str; 4] {
        [&self.workload, &self.kernel, &self.machine, &self.layout]
    }

    fn metric(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    /// The original's number, or a layout's change from it in per cent.
    fn value(&self, name: &str) -> Option<f64> {
        let metric = self.metric(name)?;
        match self.layout == ORIGINAL {
            true => Some(metric.original),
            false => Some(100.0 * metric.predicted_change?),
        }
    }
}

/// A number of the table, over seeds.
fn cell(rows: &[&StudyRow], name: &str) -> String {
    let found: Vec<f64> = rows.iter().filter_map(|row| row.value(name)).collect();
    let written = |value: f64| match rows[0].layout == ORIGINAL {
        true => in_millions(value),
        false => format!("{value:+.1} %"),
    };
    let mean = found.iter().sum::<f64>() / found.len() as f64;
    match &found[..] {
        [] => "-".to_owned(),
        [one] => match rows[0].metric(name).and_then(|metric| metric.predicted_within) {
            Some(within) => format!("{one:+.1} ± {:.1} %", 100.0 * within),
            None => written(*one),
        },
        _ => {
            let least = found.iter().copied().fold(f64::INFINITY, f64::min);
            let most = found.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            format!("{} ({} to {})", written(mean), written(least), written(most))
        }
    }
}

/// A count, with three digits or more.
fn in_millions(count: f64) -> String {
    match count {
        0.0..1e5 => format!("{count:.0}"),
        1e5..1e8 => format!("{:.2} M", count / 1e6),
        _ => format!("{:.1} M", count / 1e6),
    }
}

/// The rows of one file.
fn of_cell(cell: &Cell, file: &ResultFile) -> Result<Vec<StudyRow>> {
    let mut rows = Vec::new();
    for comparison in comparison::compare(&file.rows)? {
        let row = |layout: &str, metrics: Vec<Metric>| StudyRow {
            workload: cell.workload.clone(),
            kernel: cell.kernel.display().to_string(),
            build_id: comparison.original.kernel.0.clone(),
            seed: cell.seed,
            machine: cell.machine.clone(),
            layout: layout.to_owned(),
            conditions: comparison.original.conditions.clone(),
            metrics,
        };
        rows.push(row(ORIGINAL, comparison.original_metrics()));
        for (algorithm, path) in &cell.layouts {
            let is_it = |layout: &&ComparedLayout| {
                path.file_stem().is_some_and(|stem| *stem == *layout.layout)
            };
            let layout = comparison.layouts.iter().find(is_it);
            let layout = layout.with_context(|| format!("no row of {}", path.display()))?;
            rows.push(row(algorithm, layout.metrics.clone()));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seed: u64, layout: &str, original: f64, change: Option<f64>) -> StudyRow {
        StudyRow {
            workload: "net".into(),
            kernel: "linux".into(),
            build_id: "00".into(),
            seed,
            machine: "zen4".into(),
            layout: layout.into(),
            conditions: BTreeMap::new(),
            metrics: vec![Metric {
                name: "kernel L1I misses".into(),
                original,
                predicted: change.map(|change| original * (1.0 + change)),
                recorded: None,
                predicted_change: change,
                recorded_change: None,
                predicted_within: None,
                recorded_within: None,
                difference: None,
            }],
        }
    }

    #[test]
    fn seeds_are_taken_together() {
        let rows = vec![
            row(1, ORIGINAL, 2e6, None),
            row(1, "call", 2e6, Some(-0.2)),
            row(2, ORIGINAL, 4e6, None),
            row(2, "call", 4e6, Some(-0.4)),
        ];
        let results = Results { description: "What it brings.".into(), rows };
        let text = results.text();
        assert!(text.starts_with("What it brings.\n\nsimulated, seed 1, 2;"), "{text}");
        assert!(text.contains(" original     3.00 M (2.00 M to 4.00 M)\n"), "{text}");
        assert!(text.contains(" call      -30.0 % (-40.0 % to -20.0 %)\n"), "{text}");
        // One kernel needs no column.
        assert!(!text.contains("linux"), "{text}");
    }

    #[test]
    fn an_interval_stands_beside_its_change() {
        let mut layout = row(1, "call", 2e6, Some(-0.25));
        layout.metrics[0].predicted_within = Some(0.004);
        assert_eq!(cell(&[&layout], "kernel L1I misses"), "-25.0 ± 0.4 %");
        assert_eq!(cell(&[&layout], "kernel cycles"), "-");
        assert_eq!(in_millions(99_999.0), "99999");
        assert_eq!(in_millions(123_456_789.0), "123.5 M");
    }
}
