//! Results: what was measured and simulated so far, in files, so that the command can go on where
//! it was ended.
//!
//! Input and output: `native.json`, for the points' program and the processor, and
//! `model-MACHINE.json`, for the points' program and the machine, in the command's directory.

use crate::judge_processor::model::Simulated;
use crate::judge_processor::native::{Counts, ProgramRun, Timed};
use crate::judge_processor::point::Point;
use crate::judge_processor::sampled::{ReturnCosts, Samples};
use crate::judge_processor::singles::IDENTIFY;
use crate::kept::{Figure, Kept};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use suite::Disturbances;
use suite::statistics::median;

/// What was measured on the processor.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Native {
    /// By point, the core cycles of an operation in each round.
    pub points: BTreeMap<String, Vec<f64>>,
    /// By program, its runs.
    pub programs: BTreeMap<String, Vec<ProgramRun>>,
    /// By program, where samples met it.
    #[serde(default)]
    pub samples: BTreeMap<String, Samples>,
    /// By program, what it executes that is not its own work.
    #[serde(default)]
    pub counts: BTreeMap<String, Counts>,
    /// What samples charge to user mode wrongly.
    #[serde(default)]
    pub returns: Option<ReturnCosts>,
    /// How much longer programs take because interrupts stop them, measured several times.
    #[serde(default)]
    pub interrupted: Vec<f64>,
    /// Rounds that gave nothing, because the frequency changed in them or a program could not be
    /// watched.
    pub disturbed: u64,
    /// Rounds that gave nothing, because the core's other thread, the L3 or the memory was busy.
    #[serde(default)]
    pub crowded: u64,
    /// The no-ops that the core took in a cycle, in the middle of each round.
    #[serde(default)]
    pub no_ops: Vec<f64>,
    /// The cycles of a load from the L3 near each program.
    #[serde(default)]
    pub far_loads: Vec<f64>,
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
    /// What was timed while the core's other thread did nothing; `None`, and the round is counted
    /// as one that gave nothing, if there is none.
    pub(super) fn alone<T: Copy>(&mut self, round: &[Timed<T>]) -> Option<Vec<T>> {
        let mut no_ops: Vec<f64> = round.iter().map(|timed| timed.no_ops).collect();
        if !no_ops.is_empty() {
            self.no_ops.push(median(&mut no_ops));
        }
        self.far_loads.extend(round.iter().map(|it| it.far_load).filter(|&cycles| cycles > 0.0));
        let (most, fewest) = (self.most_no_ops(), self.fewest_cycles());
        let alone = round.iter().filter(|timed| timed.alone(most, fewest));
        let times: Vec<T> = alone.map(|timed| timed.time).collect();
        if times.is_empty() {
            *if round.is_empty() { &mut self.disturbed } else { &mut self.crowded } += 1;
            return None;
        }
        Some(times)
    }

    /// The no-ops that the core takes in a cycle while its other thread does nothing. A single
    /// slice can say too many: a crowded core's chain takes longer, too. So one round in ten has
    /// more.
    pub(super) fn most_no_ops(&self) -> f64 {
        let mut no_ops = self.no_ops.clone();
        no_ops.sort_by(f64::total_cmp);
        no_ops.get(no_ops.len() * 9 / 10).copied().unwrap_or(0.0)
    }

    /// The cycles of a load from the L3 while others do not use it: one in ten programs has fewer.
    pub(super) fn fewest_cycles(&self) -> f64 {
        let mut cycles = self.far_loads.clone();
        cycles.sort_by(f64::total_cmp);
        cycles.get(cycles.len() / 10).copied().unwrap_or(0.0)
    }

    /// The core cycles of an operation of a point.
    pub(super) fn point(&self, name: &str) -> Option<Figure> {
        Figure::of(self.points.get(name)?)
    }

    /// The core cycles of a program that count as user mode, but are not its own: those of the
    /// `cpuid` of its start, for which a hypervisor may run, and the kernel's that samples charge
    /// to user mode. What was not measured takes nothing.
    pub(super) fn not_its_own(&self, name: &str) -> f64 {
        let counts = self.counts.get(name).copied().unwrap_or_default();
        let identify = self.point(IDENTIFY).map_or(0.0, |figure| figure.value);
        let returns = self.returns.unwrap_or_default();
        counts.identifications as f64 * identify
            + counts.calls as f64 * returns.call
            + self.faults(name) * returns.fault
    }

    /// The page faults of a program's run.
    fn faults(&self, name: &str) -> f64 {
        let runs = self.programs.get(name).into_iter().flatten();
        median(&mut runs.map(|run| run.faults as f64).collect::<Vec<_>>())
    }

    /// How much longer programs take because interrupts stop them; 1 if that was not measured.
    pub(super) fn lengthening(&self) -> f64 {
        Figure::of(&self.interrupted).map_or(1.0, |figure| figure.value)
    }

    /// The core cycles of a program in user mode, without those of interrupts and without those
    /// that are [`Native::not_its_own`]. The kernel counts both modes together, and interrupts with
    /// the mode that they stop. Samples say the share of user mode, and
    /// their error belongs to the interval.
    pub(super) fn program(&self, name: &str) -> Option<Figure> {
        let samples = self.samples.get(name).filter(|samples| samples.user > 0)?;
        let all = samples.all() as f64;
        let share = samples.user as f64 / all;
        let cycles: Vec<f64> = self.programs.get(name)?.iter().map(|run| run.cycles).collect();
        let share = share / self.lengthening();
        let figure = Figure::of(&cycles.iter().map(|cycles| cycles * share).collect::<Vec<_>>())?;
        // Laplace's rule of succession: where no sample met the kernel, the next one still can.
        let missed = (samples.kernel as f64 + 1.0) / (all + 2.0);
        let error = NORMAL_95 * (missed * (1.0 - missed) / (all + 2.0)).sqrt() / (1.0 - missed);
        figure.with_error(error).less(self.not_its_own(name))
    }
}

/// 95 % of a normal distribution lie within this number of standard deviations.
const NORMAL_95: f64 = 1.96;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_timed_on_a_crowded_core_does_not_count() {
        let timed = |time, no_ops| Timed { time, no_ops, far_load: 0.0 };
        let mut native = Native { no_ops: vec![8.0; 20], ..Native::default() };
        let round = [timed(1, 8.0), timed(2, 4.5), timed(3, 7.5)];
        assert_eq!(native.alone(&round), Some(vec![1, 3]));
        assert_eq!(native.alone(&[timed(4, 5.0)]), None);
        assert_eq!(native.alone::<u8>(&[]), None);
        assert_eq!((native.crowded, native.disturbed), (1, 1));
        // Loads took 60 cycles near twenty programs.
        native.far_loads = vec![60.0; 20];
        let round = [70.0, 90.0].map(|far_load| Timed { far_load, ..timed(5, 8.0) });
        assert_eq!(native.alone(&round), Some(vec![5]));
    }

    #[test]
    fn a_program_has_the_cycles_of_its_user_mode() {
        let run = ProgramRun { cycles: 100.0, faults: 4 };
        let mut native = Native::default();
        native.programs.insert("p".into(), vec![run; 2]);
        assert_eq!(native.program("p"), None);
        native.samples.insert("p".into(), Samples::default());
        assert_eq!(native.program("p"), None);
        native.samples.insert("p".into(), Samples { user: 375, kernel: 125 });
        let figure = native.program("p").unwrap();
        assert!((figure.value - 75.0).abs() < 1e-9);
        // 500 samples, a quarter of them in the kernel: 1.96 × √(0.25 × 0.75 / 500) / 0.75 is
        // 5 %.
        assert!((figure.high / 75.0 - 1.05).abs() < 0.002, "{figure:?}");
        assert!((figure.low / 75.0 - 0.95).abs() < 0.002, "{figure:?}");
        assert_eq!(native.program("q"), None);
        // Without two `cpuid` of 10 cycles.
        native.counts.insert("p".into(), Counts { identifications: 2, calls: 3 });
        native.points.insert(IDENTIFY.into(), vec![10.0; 9]);
        assert!((native.program("p").unwrap().value - 55.0).abs() < 1e-9);
        // Without the returns from 4 faults and 3 calls.
        native.returns = Some(ReturnCosts { fault: 2.0, call: 1.0 });
        assert!((native.program("p").unwrap().value - 44.0).abs() < 1e-9);
        // Interrupts made it half as long again.
        native.interrupted = vec![1.5; 2];
        assert!((native.program("p").unwrap().value - 19.0).abs() < 1e-9);
        // They cannot take more than there is.
        native.counts.insert("p".into(), Counts { identifications: 20, calls: 3 });
        assert_eq!(native.program("p"), None);
    }
}
