//! Results: what was measured and simulated so far, in files, so that the command can go on where
//! it was ended.
//!
//! Input and output: `native.json`, for the points' program and the processor, and
//! `model-MACHINE.json`, for the points' program and the machine, in the command's directory.

use crate::judge_processor::model::Simulated;
use crate::judge_processor::native::ProgramRun;
use crate::judge_processor::point::Point;
use crate::kept::{Figure, Kept};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use suite::Disturbances;

/// What was measured on the processor.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Native {
    /// By point, the core cycles of an operation in each round.
    pub points: BTreeMap<String, Vec<f64>>,
    /// By program, its runs.
    pub programs: BTreeMap<String, Vec<ProgramRun>>,
    /// Rounds that gave nothing, because the frequency changed in them.
    pub disturbed: u64,
    /// How long was measured.
    pub seconds: f64,
    /// Of the last run of the command.
    pub disturbances: Disturbances,
    /// The lowest and the highest frequency of the core that was seen, in Hz.
    pub hertz: Option<[f64; 2]>,
}

/// What the model gave.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Model {
    pub points: BTreeMap<String, Simulated>,
    pub programs: BTreeMap<String, Simulated>,
}

impl Kept<Native> {
    /// The results in a directory.
    pub(super) fn native(directory: &Path, made_for: &str) -> Result<Kept<Native>> {
        Kept::open(directory.join("native.json"), made_for)
    }
}

impl Kept<Model> {
    /// The results of a machine in a directory.
    pub(super) fn model(directory: &Path, machine: &str, made_for: &str) -> Result<Kept<Model>> {
        Kept::open(directory.join(format!("model-{machine}.json")), made_for)
    }
}

impl Model {
    /// The core cycles of an operation of a point.
    pub(super) fn point(&self, point: &Point) -> Option<f64> {
        Some(self.points.get(&point.name)?.cycles / point.operations as f64)
    }
}

impl Native {
    /// The core cycles of an operation of a point.
    pub(super) fn point(&self, name: &str) -> Option<Figure> {
        Figure::of(self.points.get(name)?)
    }

    /// The core cycles of a program in user mode. The kernel counts both modes together exactly,
    /// but tells them apart by ticks. So the share of user mode is that of all runs.
    pub(super) fn program(&self, name: &str) -> Option<Figure> {
        let runs = self.programs.get(name)?;
        let seconds = |mode: usize| runs.iter().map(|run| run.seconds[mode]).sum::<f64>();
        let share = seconds(0) / (seconds(0) + seconds(1));
        Figure::of(&runs.iter().map(|run| run.cycles * share).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_the_cycles_of_its_user_mode() {
        let run = |cycles, user, kernel| ProgramRun { cycles, seconds: [user, kernel] };
        let mut native = Native::default();
        native.programs.insert("p".into(), vec![run(100.0, 1.0, 0.0), run(100.0, 0.5, 0.5)]);
        let figure = native.program("p").unwrap();
        assert!((figure.value - 75.0).abs() < 1e-9 && figure.half_width() < 1e-9);
        assert_eq!(native.program("q"), None);
    }
}
