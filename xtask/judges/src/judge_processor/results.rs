//! Results: what was measured and simulated so far, in files, so that the command can go on where
//! it was ended.
//!
//! Input and output: `native.json`, for the points' program and the processor, and
//! `model-MACHINE.json`, for the points' program and the machine, in the command's directory.

use crate::judge_processor::model::Simulated;
use crate::judge_processor::native::{Counts, ProgramRun};
use crate::judge_processor::point::Point;
use crate::judge_processor::sampled::{ReturnCosts, Samples};
use crate::judge_processor::singles::IDENTIFY;
use anyhow::Result;
use lab::kept::{Figure, Kept};
use lab::timed::{self, Timed};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use suite::Disturbances;
use suite::statistics::median;

/// The measurements on the processor.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Native {
    /// For each point, the core cycles of an operation in each round.
    pub points: BTreeMap<String, Vec<f64>>,
    /// For each program, all its runs. Which of them count is decided after all have been seen,
    /// because only then is known what a quiet host is.
    pub programs: BTreeMap<String, Vec<Timed<ProgramRun>>>,
    /// For each program, where samples met it.
    #[serde(default)]
    pub samples: BTreeMap<String, Samples>,
    /// For each program, the instructions that it executes beside its own work.
    #[serde(default)]
    pub counts: BTreeMap<String, Counts>,
    /// The time that samples wrongly charge to user mode.
    #[serde(default)]
    pub returns: Option<ReturnCosts>,
    /// How much longer programs take because interrupts stop them, measured several times.
    #[serde(default)]
    pub interrupted: Vec<f64>,
    /// Rounds that gave nothing, because the frequency changed in them or a program could not be
    /// watched.
    pub disturbed: u64,
    /// Rounds of points that gave nothing, because the core's other thread was busy.
    #[serde(default)]
    pub crowded: u64,
    /// The no-ops that the core took in a cycle, in the middle of each round.
    #[serde(default)]
    pub no_ops: Vec<f64>,
    /// How long was measured.
    pub seconds: f64,
    /// The disturbances of the last run of the command.
    pub disturbances: Disturbances,
    /// The lowest and the highest frequency of the core that was seen, in Hz.
    pub hertz: Option<[f64; 2]>,
}

/// The results of the model.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Model {
    pub points: BTreeMap<String, Simulated>,
    pub programs: BTreeMap<String, Simulated>,
}

/// The processor's results in a directory.
pub(super) fn native(directory: &Path, made_for: &str) -> Result<Kept<Native>> {
    Kept::open(directory.join("native.json"), made_for)
}

/// The results of a machine's model in a directory.
pub(super) fn model(directory: &Path, machine: &str, made_for: &str) -> Result<Kept<Model>> {
    Kept::open(directory.join(format!("model-{machine}.json")), made_for)
}

impl Model {
    /// The core cycles of an operation of a point.
    pub(super) fn point(&self, point: &Point) -> Option<f64> {
        Some(self.points.get(&point.name)?.cycles / point.operations as f64)
    }
}

impl Native {
    /// Adds a round of a point: its slices.
    pub(super) fn add_point(&mut self, name: &str, slices: &[Timed<f64>]) {
        if let Some(cycles) = self.alone(slices) {
            self.points.entry(name.to_owned()).or_default().push(cycles);
        }
    }

    /// Adds how much longer interrupts made a program; `None`: it could not be measured.
    pub(super) fn add_interrupted(&mut self, longer: Option<Timed<f64>>) {
        let longer = self.alone(longer.as_slice());
        self.interrupted.extend(longer);
    }

    /// The median of what was timed while the core's other thread did nothing. If there is nothing,
    /// the round is counted as one that gave nothing.
    fn alone(&mut self, round: &[Timed<f64>]) -> Option<f64> {
        self.no_ops_of(round);
        let most = self.most_no_ops();
        let alone = round.iter().filter(|timed| timed.alone(most));
        let mut times: Vec<f64> = alone.map(|timed| timed.time).collect();
        if times.is_empty() {
            *if round.is_empty() { &mut self.disturbed } else { &mut self.crowded } += 1;
            return None;
        }
        Some(median(&mut times))
    }

    /// Adds a run of a program; `None`: one that gave nothing.
    pub(super) fn add_run(&mut self, name: &str, run: Option<Timed<ProgramRun>>) {
        self.no_ops_of(run.as_slice());
        self.disturbed += u64::from(run.is_none());
        self.programs.entry(name.to_owned()).or_default().extend(run);
    }

    /// Remembers the no-ops of a cycle of a round.
    fn no_ops_of<T>(&mut self, round: &[Timed<T>]) {
        let mut no_ops: Vec<f64> = round.iter().map(|timed| timed.no_ops).collect();
        if !no_ops.is_empty() {
            self.no_ops.push(median(&mut no_ops));
        }
    }

    /// The runs of a program near which others did nothing.
    fn runs(&self, name: &str) -> impl Iterator<Item = &ProgramRun> {
        let (most, fewest) = (self.most_no_ops(), self.fewest_cycles());
        let runs = self.programs.get(name).into_iter().flatten();
        runs.filter(move |run| run.alone(most) && run.quiet(fewest)).map(|run| &run.time)
    }

    /// The rounds that gave nothing, because the core's other thread, the L3 or the memory was
    /// busy.
    pub(super) fn crowded(&self) -> u64 {
        let all: usize = self.programs.values().map(Vec::len).sum();
        let counted: usize = self.programs.keys().map(|name| self.runs(name).count()).sum();
        self.crowded + (all - counted) as u64
    }

    /// The no-ops that the core takes in a cycle while its other thread does nothing.
    pub(super) fn most_no_ops(&self) -> f64 {
        timed::most(self.no_ops.clone())
    }

    /// The cycles of a load from the L3 while others do not use it: one in ten runs has fewer.
    pub(super) fn fewest_cycles(&self) -> f64 {
        let runs = self.programs.values().flatten();
        let mut cycles: Vec<f64> = runs.map(|run| run.far_load).collect();
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
        median(&mut self.runs(name).map(|run| run.faults as f64).collect::<Vec<_>>())
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
        let cycles: Vec<f64> = self.runs(name).map(|run| run.cycles).collect();
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

    fn run(cycles: f64, no_ops: f64, far_load: f64) -> Timed<ProgramRun> {
        Timed { time: ProgramRun { cycles, faults: 4 }, no_ops, far_load }
    }

    #[test]
    fn what_was_timed_on_a_crowded_core_does_not_count() {
        let slice = |time, no_ops| Timed { time, no_ops, far_load: 0.0 };
        let mut native = Native { no_ops: vec![8.0; 20], ..Native::default() };
        native.add_point("p", &[slice(1.0, 8.0), slice(2.0, 4.5), slice(3.0, 7.5)]);
        native.add_point("p", &[slice(4.0, 5.0)]);
        native.add_point("p", &[]);
        assert_eq!(native.points["p"], [2.0]);
        assert_eq!((native.crowded(), native.disturbed), (1, 1));
    }

    #[test]
    fn what_a_quiet_host_is_the_later_runs_say_too() {
        let mut native = Native { no_ops: vec![8.0; 20], ..Native::default() };
        let cycles = |native: &Native| native.runs("p").map(|run| run.cycles).collect::<Vec<_>>();
        native.add_run("p", Some(run(300.0, 8.0, 200.0)));
        assert_eq!(cycles(&native), [300.0]);
        native.add_run("p", Some(run(100.0, 8.0, 60.0)));
        native.add_run("p", Some(run(150.0, 4.5, 60.0)));
        native.add_run("p", None);
        assert_eq!(cycles(&native), [100.0]);
        assert_eq!((native.crowded(), native.disturbed), (2, 1));
    }

    #[test]
    fn a_program_has_the_cycles_of_its_user_mode() {
        let mut native = Native::default();
        native.programs.insert("p".into(), vec![run(100.0, 8.0, 60.0); 2]);
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
