//! Measured and simulated figures side by side, as text and as JSON. They never share a column.
//!
//! Input: results. Output: rows and text. This module measures nothing.

use crate::judge_processor::measured::ProcessorFigures;
use crate::judge_processor::point::Point;
use crate::judge_processor::points::operation;
use crate::judge_processor::programs::GROUPS;
use crate::judge_processor::results::Model;
use crate::judge_processor::steps::{STEPS, capacity};
use host::table::{Column, TextTable};
use lab::kept::Figure;
use serde::Serialize;
use sim::MachineModel;
use std::fmt::Write;

/// The intended mean absolute error of cycles per instruction.
const ERROR_TARGET: f64 = 0.10;
/// The intended rank correlation.
const RANK_TARGET: f64 = 0.95;
/// The intended difference of capacities.
const CAPACITY_TARGET: f64 = 0.10;
/// The intended half-width of intervals.
pub(super) const INTERVAL_TARGET: f64 = 0.01;

/// A point: core cycles of an operation.
#[derive(Debug, Serialize)]
struct PointRow {
    point: String,
    operation: &'static str,
    native: Option<Figure>,
    model: Option<f64>,
    /// Model by native.
    ratio: Option<f64>,
}

/// The size at which a curve steps.
#[derive(Debug, Serialize)]
struct StepRow {
    structure: &'static str,
    unit: &'static str,
    /// The size that the machine's file states.
    described: Option<f64>,
    native: Option<f64>,
    model: Option<f64>,
    ratio: Option<f64>,
    within_target: Option<bool>,
}

/// A program: core cycles of an instruction in user mode.
#[derive(Debug, Serialize)]
struct ProgramRow {
    program: &'static str,
    /// User instructions of the recording.
    instructions: Option<u64>,
    native: Option<Figure>,
    model: Option<f64>,
    /// Model by native, less one.
    error: Option<f64>,
    /// The same with the memory that the points found.
    memory_here: Option<f64>,
    memory_here_error: Option<f64>,
}

/// How well the model does on all programs together.
#[derive(Debug, Serialize)]
struct Verdict {
    programs: usize,
    mean_absolute_error: f64,
    error_target: f64,
    rank_correlation: f64,
    rank_target: f64,
}

/// How the figures came about, in sentences.
#[derive(Debug)]
pub(super) struct Conditions {
    pub measured: Vec<String>,
    pub simulated: Vec<String>,
}

/// Everything that the command found.
#[derive(Debug, Serialize)]
pub(super) struct Tables {
    /// The machine that was simulated.
    machine: String,
    /// How it was measured: processor and disturbances, in sentences.
    measured: Vec<String>,
    /// How it was simulated, in sentences.
    simulated: Vec<String>,
    points: Vec<PointRow>,
    capacities: Vec<StepRow>,
    programs: Vec<ProgramRow>,
    /// `None`: fewer than two programs have both figures.
    verdict: Option<Verdict>,
    /// With the memory that the points found.
    memory_here_verdict: Option<Verdict>,
}

fn ratio(model: Option<f64>, native: Option<f64>) -> Option<f64> {
    Some(model? / native?)
}

impl Tables {
    pub(super) fn new(
        conditions: Conditions,
        points: &[Point],
        native: &ProcessorFigures,
        [model, memory_here]: [Option<&Model>; 2],
        machine: &MachineModel,
    ) -> Tables {
        let simulated = |point: &Point| model?.point(point);
        let figure = |point: &Point| native.points.get(&point.name).copied();
        let measured = |point: &Point| Some(figure(point)?.value);
        let point_rows = points.iter().map(|point| PointRow {
            point: point.name.clone(),
            operation: operation(point),
            native: figure(point),
            model: simulated(point),
            ratio: ratio(simulated(point), measured(point)),
        });
        let steps = STEPS.iter().map(|step| {
            let curve = || points.iter().filter(|point| point.curve() == step.curve);
            let step_of = |cost: &dyn Fn(&Point) -> Option<f64>| {
                let costs = curve().filter_map(|point| Some((point.size?, cost(point)?)));
                capacity(step, &costs.collect::<Vec<_>>())
            };
            let (native, model) = (step_of(&measured), step_of(&simulated));
            let ratio = ratio(model, native);
            StepRow {
                structure: step.structure,
                unit: step.unit,
                described: (step.described)(machine),
                native,
                model,
                ratio,
                within_target: ratio.map(|ratio| (ratio - 1.0).abs() <= CAPACITY_TARGET),
            }
        });
        let program_rows = GROUPS.iter().flat_map(|group| group.programs).map(|program| {
            let simulated = model.and_then(|model| model.programs.get(program.name));
            let instructions = simulated.map(|simulated| simulated.counters.instructions);
            let native = native.programs.get(program.name).zip(instructions);
            let native = native.map(|(cycles, all)| cycles.times(1.0 / all as f64));
            let model = simulated.map(|simulated| simulated.cpi());
            let error = |model| Some(ratio(model, Some(native?.value))? - 1.0);
            let memory_here = memory_here.and_then(|model| model.programs.get(program.name));
            let memory_here = memory_here.map(|simulated| simulated.cpi());
            ProgramRow {
                program: program.name,
                instructions,
                native,
                model,
                error: error(model),
                memory_here,
                memory_here_error: error(memory_here),
            }
        });
        let programs: Vec<ProgramRow> = program_rows.collect();
        Tables {
            machine: machine.name.clone(),
            measured: conditions.measured,
            simulated: conditions.simulated,
            points: point_rows.collect(),
            capacities: steps.collect(),
            verdict: verdict(&programs, |row| row.model),
            memory_here_verdict: verdict(&programs, |row| row.memory_here),
            programs,
        }
    }

    /// The tables as text.
    pub(super) fn text(&self) -> String {
        let conditions = [&self.measured[..], &self.simulated[..]].concat();
        let mut text = conditions.join("\n") + "\n\n";
        text += "Points, in core cycles of one operation\n";
        let figure = || {
            [("measured", 9), ("±", 7), ("rounds", 6)]
                .map(|(title, wide)| Column::right(title).fixed(wide).gap(1))
        };
        let count = |title, wide| Column::right(title).fixed(wide).gap(1);
        let ratio = || [count("simulated", 9), count("sim./meas.", 12)];
        let mut points = TextTable::of(
            [Column::left("").fixed(28)]
                .into_iter()
                .chain(figure())
                .chain(ratio())
                .chain([Column::left("operation")]),
        );
        for row in &self.points {
            let mut cells = vec![row.point.to_string()];
            cells.extend(measured(row.native.as_ref()));
            cells.extend([number(row.model, 3), number(row.ratio, 2), row.operation.to_string()]);
            points.push(cells);
        }
        text += &points.to_text();
        text += "\nCapacities: the size at which the curve begins to step\n";
        let mut capacities = TextTable::of(
            [Column::left("").fixed(36), count("described", 9), count("measured", 9)]
                .into_iter()
                .chain(ratio())
                .chain([Column::left("unit")]),
        );
        for row in &self.capacities {
            let far = row.within_target == Some(false);
            let missed = if far { ", off by more than 10 %" } else { "" };
            capacities.push(vec![
                row.structure.to_string(),
                number(row.described, 0),
                number(row.native, 0),
                number(row.model, 0),
                number(row.ratio, 2),
                format!("{}{missed}", row.unit),
            ]);
        }
        text += &capacities.to_text();
        text += "\nPrograms, in core cycles of an instruction in user mode\n";
        let mut programs = TextTable::of(
            [Column::left("").fixed(16), count("M instr.", 13)].into_iter().chain(figure()).chain(
                [
                    count("simulated", 9),
                    count("error", 8),
                    count("memory here", 12),
                    count("error", 8),
                ],
            ),
        );
        for row in &self.programs {
            let millions = row.instructions.map(|count| count as f64 / 1e6);
            let mut cells = vec![row.program.to_string(), number(millions, 1)];
            cells.extend(measured(row.native.as_ref()));
            cells.extend([number(row.model, 3), percent(row.error)]);
            cells.extend([number(row.memory_here, 3), percent(row.memory_here_error)]);
            programs.push(cells);
        }
        text += &programs.to_text();
        text += "\n";
        let verdicts = [("", &self.verdict), (", memory here", &self.memory_here_verdict)];
        for (memory, verdict) in verdicts {
            let Some(verdict) = verdict else { continue };
            let _ = writeln!(
                text,
                "{} programs{memory}: mean absolute error {:.1} % (target {:.0} %), Spearman's rank \
                 correlation {:.3} (target {})",
                verdict.programs,
                100.0 * verdict.mean_absolute_error,
                100.0 * ERROR_TARGET,
                verdict.rank_correlation,
                RANK_TARGET
            );
        }
        text
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:+.0} %", 100.0 * share))
}

/// A figure, half of its interval, and its rounds.
fn measured(figure: Option<&Figure>) -> [String; 3] {
    let half = figure.map(|figure| format!("{:.1} %", 100.0 * figure.half_width()));
    let rounds = figure.map(|figure| figure.rounds.to_string());
    let or_none = |text: Option<String>| text.unwrap_or("-".to_owned());
    [number(figure.map(|figure| figure.value), 3), or_none(half), or_none(rounds)]
}

/// `model`: the simulated figure that is judged.
fn verdict(programs: &[ProgramRow], model: impl Fn(&ProgramRow) -> Option<f64>) -> Option<Verdict> {
    let both = |row: &ProgramRow| Some((row.native?.value, model(row)?));
    let (native, model): (Vec<f64>, Vec<f64>) = programs.iter().filter_map(both).unzip();
    if native.len() < 2 {
        return None;
    }
    let errors = native.iter().zip(&model).map(|(native, model)| (model / native - 1.0).abs());
    Some(Verdict {
        programs: native.len(),
        mean_absolute_error: errors.sum::<f64>() / native.len() as f64,
        error_target: ERROR_TARGET,
        rank_correlation: correlation(&ranks(&native), &ranks(&model)),
        rank_target: RANK_TARGET,
    })
}

/// The rank of each value, from 1; equal values share the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        below as f64 + (equal as f64 + 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

/// Pearson's correlation; of ranks it is Spearman's.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let product: f64 = a.iter().zip(b).map(|(a, b)| (a - mean_a) * (b - mean_b)).sum();
    let square = |values: &[f64], mean: f64| values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    product / (square(a, mean_a) * square(b, mean_b)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_their_correlation() {
        assert_eq!(ranks(&[0.3, 0.1, 0.3, 0.2]), [3.5, 1.0, 3.5, 2.0]);
        let correlated = |a: &[f64], b: &[f64]| correlation(&ranks(a), &ranks(b));
        assert!((correlated(&[1.0, 2.0, 9.0], &[0.1, 0.5, 0.6]) - 1.0).abs() < 1e-12);
        // Ranks 1 to 5 against 5 1 2 3 4: 1 - 6 × 20 / (5 × 24).
        let found = correlated(&[1.0, 2.0, 3.0, 4.0, 5.0], &[50.0, 10.0, 20.0, 30.0, 40.0]);
        assert!(found.abs() < 1e-12, "{found}");
    }

    #[test]
    fn the_verdict_is_that_of_programs_with_both_figures() {
        let row = |native: f64, model: Option<f64>| ProgramRow {
            program: "p",
            instructions: Some(1),
            native: Some(Figure { value: native, low: native, high: native, rounds: 5 }),
            model,
            error: None,
            memory_here: None,
            memory_here_error: None,
        };
        let rows = [row(1.0, Some(1.1)), row(2.0, Some(1.4)), row(3.0, None)];
        let found = verdict(&rows, |row| row.model).unwrap();
        assert_eq!(found.programs, 2);
        assert!((found.mean_absolute_error - 0.2).abs() < 1e-12);
        assert!((found.rank_correlation - 1.0).abs() < 1e-12);
        assert!(verdict(&rows[1..], |row| row.model).is_none());
    }
}
