//! What a study found out.
//!
//! Input: the files of results. Output: a row for each workload, kernel, seed, machine and layout;
//! a table that takes the seeds of each together; and one of the means over workloads.

use super::file::Study;
use super::jobs::{Cell, Plan};
use anyhow::{Context, Result};
use host::table::{Column, TextTable};
use replay::comparison::{self, ComparedLayout, Metric};
use replay::results::{ORIGINAL, ResultFile};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

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
    /// The file with everything that was counted, in the study's directory, and the layout's name
    /// there.
    results: PathBuf,
    layout_in_results: String,
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

    /// The tables. The first has the original's numbers, and the changes of the layouts. The seeds
    /// of a row are taken together: their mean, the lowest and the highest. If there are several
    /// workloads, the second has the means of the changes.
    pub(super) fn text(&self) -> String {
        let seeds: BTreeSet<u64> = self.rows.iter().map(|row| row.seed).collect();
        let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
        let heading = match self.description.is_empty() {
            true => String::new(),
            false => format!("{}\n\n", self.description),
        };
        let rows: Vec<&StudyRow> = self.rows.iter().collect();
        let mut text = format!(
            "{heading}simulated, seed {}; layouts: changes against the original\n\n{}",
            seeds.join(", "),
            table(&rows, StudyRow::place, cell)
        );
        let workloads: BTreeSet<&str> = rows.iter().map(|row| &*row.workload).collect();
        let layouts: Vec<&StudyRow> =
            self.rows.iter().filter(|row| row.layout != ORIGINAL).collect();
        if workloads.len() > 1 && !layouts.is_empty() {
            let means = table(&layouts, StudyRow::place_of_all_workloads, mean_change);
            text += &format!("\nmeans of the changes of {} workloads\n\n{means}", workloads.len());
        }
        text
    }
}

/// A line for all rows that have the same place: titles and cells of the first columns.
fn table<'a, const N: usize>(
    rows: &[&'a StudyRow],
    place: fn(&'a StudyRow) -> [(&'static str, &'a str); N],
    cell: fn(&[&StudyRow], &str) -> String,
) -> String {
    let mut groups: Vec<([(&str, &str); N], Vec<&StudyRow>)> = Vec::new();
    for &row in rows {
        match groups.iter_mut().find(|(known, _)| *known == place(row)) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((place(row), vec![row])),
        }
    }
    // One kernel needs no column.
    let kernels: BTreeSet<&str> = rows.iter().map(|row| &*row.kernel).collect();
    let is_wanted = |title: &str| title != "kernel" || kernels.len() > 1;
    let shown = SHOWN.iter().filter(|(name, _)| rows.iter().any(|row| row.metric(name).is_some()));
    let titles = groups.first().map(|(place, _)| place.map(|(title, _)| title));
    let wanted = titles.into_iter().flatten().filter(|title| is_wanted(title));
    let mut columns: Vec<Column> = wanted.map(Column::left).collect();
    if let Some(first) = columns.first_mut() {
        *first = first.clone().gap(2);
    }
    columns.extend(shown.clone().map(|(_, title)| Column::right(title)));
    let mut table = TextTable::of(columns);
    for (place, rows) in &groups {
        let wanted = place.iter().filter(|(title, _)| is_wanted(title));
        let mut cells: Vec<String> = wanted.map(|(_, text)| (*text).to_owned()).collect();
        cells.extend(shown.clone().map(|(name, _)| cell(rows, name)));
        table.push(cells);
    }
    table.to_text()
}

impl StudyRow {
    /// All but the seed.
    fn place(&self) -> [(&'static str, &str); 4] {
        let [kernel, machine, layout] = self.place_of_all_workloads();
        [("workload", &*self.workload), kernel, machine, layout]
    }

    /// All but the workload and the seed.
    fn place_of_all_workloads(&self) -> [(&'static str, &str); 3] {
        [("kernel", &*self.kernel), ("machine", &*self.machine), ("layout", &*self.layout)]
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

/// The mean of the changes of layouts, each of which weighs the same.
fn mean_change(rows: &[&StudyRow], name: &str) -> String {
    let found: Vec<f64> = rows.iter().filter_map(|row| row.value(name)).collect();
    match found.len() {
        0 => "-".to_owned(),
        count => format!("{:+.1} %", found.iter().sum::<f64>() / count as f64),
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
        let row = |layout: &str, in_results: &str, metrics: Vec<Metric>| StudyRow {
            workload: cell.workload.clone(),
            kernel: cell.kernel.display().to_string(),
            build_id: comparison.original.kernel.0.clone(),
            seed: cell.seed,
            machine: cell.machine.clone(),
            layout: layout.to_owned(),
            results: cell.results.clone(),
            layout_in_results: in_results.to_owned(),
            conditions: comparison.original.conditions.clone(),
            metrics,
        };
        rows.push(row(ORIGINAL, ORIGINAL, comparison.original_metrics()));
        for (name, path) in &cell.layouts {
            let is_it = |layout: &&ComparedLayout| {
                path.file_stem().is_some_and(|stem| *stem == *layout.layout)
            };
            let layout = comparison.layouts.iter().find(is_it);
            let layout = layout.with_context(|| format!("no row of {}", path.display()))?;
            rows.push(row(name, &layout.layout, layout.metrics.clone()));
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
            results: "results/net.json".into(),
            layout_in_results: layout.into(),
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
        // One kernel needs no column, one workload no mean.
        assert!(!text.contains("linux") && !text.contains("means"), "{text}");
    }

    #[test]
    fn workloads_have_a_mean_of_their_changes() {
        let web = |row: StudyRow| StudyRow { workload: "web".into(), ..row };
        let rows = vec![
            row(1, ORIGINAL, 2e6, None),
            row(1, "call", 2e6, Some(-0.2)),
            web(row(1, ORIGINAL, 8e6, None)),
            web(row(1, "call", 8e6, Some(-0.4))),
        ];
        let text = Results { description: String::new(), rows }.text();
        let (_, means) = text.split_once("\nmeans of the changes of 2 workloads\n\n").unwrap();
        let lines: Vec<Vec<&str>> =
            means.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.last().unwrap()[..], ["zen4", "call", "-30.0", "%"]);
        // The originals have no change.
        assert_eq!(lines.iter().filter(|line| line.contains(&"zen4")).count(), 1);
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
