//! `cargo xtask slowdown-test`: whether the suite finds a system call that became 2 % slower, and
//! nothing else.
//!
//! Four kernels for User Mode Linux are alive at once: the demo kernel twice, and twice a kernel
//! whose umask(2) adds numbers for nothing (`slower-umask.patch`): no time, and 2 % of the time of
//! `call/umask`. In each start the kernels run slices of the suite's benchmarks in random order, on
//! one CPU. A start gives one value for each kernel and benchmark, the median of its slices.
//!
//! ```text
//! kernels → calibrated → served: slices → results → `kernlane bench --compare` → judged
//! ```
//!
//! Results are kept in a directory. The command goes on where it was ended.

mod benchmarks;
mod calibration;
mod judged;
mod served;

use anyhow::Result;
use calibration::Calibration;
use judged::Verdicts;
use lab::kept::Kept;
use lab::kernel::{self, Compiler};
use lab::processor::{self, Processor};
use lab::session::{self, Minutes, Session};
use serde::{Deserialize, Serialize};
use served::{SuiteServer, TestKernel};
use std::collections::BTreeMap;
use std::path::Path;
use suite::Disturbances;
use suite::random::Random;
use suite::served::ServedRounds;
use suite::statistics::{Estimate, median};

/// Where results are kept by default.
pub const DIRECTORY: &str = "target/slowdown-test";
/// Where the tables are kept in a checkout.
const KEPT: &str = "bench/slowdown.txt";
/// How long is measured by default.
pub const MINUTES: Minutes = Minutes::new(10.0);
/// The benchmark whose system call is slowed, and by how much.
const SLOWED: &str = "call/umask";
const SHARE: f64 = 0.02;
/// The slices of a start, and those before them that do not count.
const SLICES: usize = 12;
const WARM: usize = 1;
/// Nanoseconds of a slice.
const SLICE: f64 = 1e6;
/// Each figure has at least this number of starts, and at most this half-width.
const LEAST: usize = 12;
const INTERVAL_TARGET: f64 = 0.003;
const PATCH: &str = include_str!("slower-umask.patch");
/// The kernels: the demo kernel twice, and the patched one with and without additions.
const ORIGINAL: &str = "original";
const AGAIN: &str = "original again";
const PATCHED: &str = "patched";
const SLOWER: &str = "slowed";

/// What was measured.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SlowdownMeasurements {
    calibration: Option<Calibration>,
    /// For each benchmark: operations in a slice.
    operations: BTreeMap<String, u64>,
    /// For each kernel, benchmark and start: core cycles of an operation.
    cycles: BTreeMap<String, BTreeMap<String, Vec<f64>>>,
    /// Benchmarks that cannot run, and why.
    not_run: BTreeMap<String, String>,
    /// Slices that gave nothing, because the frequency changed in them, and all slices.
    disturbed: u64,
    slices: u64,
    /// How long was measured.
    seconds: f64,
    /// Core cycles in a nanosecond, at the beginning.
    gigahertz: f64,
    /// The disturbances of the last run of the command.
    disturbances: Disturbances,
}

impl SlowdownMeasurements {
    fn starts(&self) -> usize {
        self.cycles.values().flat_map(BTreeMap::values).map(Vec::len).max().unwrap_or(0)
    }

    /// Whether a figure needs more starts.
    fn lacks(&self) -> bool {
        let narrow = |cycles: &Vec<f64>| {
            let half = Estimate::of(cycles).map(|estimate| estimate.half_width());
            cycles.len() >= LEAST && half.is_some_and(|half| half <= INTERVAL_TARGET)
        };
        self.starts() < LEAST || !self.cycles.values().flat_map(BTreeMap::values).all(narrow)
    }

    /// What a kernel's benchmarks took, as the suite writes it.
    fn rounds(&self, kernel: &str) -> BTreeMap<String, ServedRounds> {
        let of = |(name, cycles): (&String, &Vec<f64>)| {
            let rounds = cycles.iter().map(|cycles| cycles / self.gigahertz).collect();
            let operations = self.operations.get(name).copied().unwrap_or(0);
            (name.clone(), ServedRounds { operations, rounds })
        };
        self.cycles.get(kernel).into_iter().flatten().map(of).collect()
    }
}

/// Measures and judges.
///
/// # Errors
/// Something else than the slowed call was found, or nothing.
pub fn slowdown_test(directory: &Path, minutes: Minutes) -> Result<()> {
    let here = Processor::here()?;
    // What the program finds is judged.
    let kernlane = lab::kernlane()?;
    let original = kernel::tree(Compiler::GccUserMode)?.join("vmlinux");
    let patched = kernel::patched(Compiler::GccUserMode, "slower-umask", PATCH)?.join("vmlinux");
    let directory = session::directory(directory)?;
    let guest = served::guest(&directory)?;
    let build_ids = [&original, &patched]
        .map(|program| image::vmlinux::read(program).map(|image| format!("{:?}", image.build_id)));
    let [before, after] = build_ids;
    let made_for = format!("{} {} {here:?}", before?, after?);
    let mut kept = Kept::<SlowdownMeasurements>::open(directory.join("measured.json"), &made_for)?;
    processor::pin(processor::last_cpu()?)?;
    let calibration = match kept.results.calibration {
        Some(calibration) => calibration,
        None => {
            let calibration = Calibration::measure(&patched, &guest)?;
            kept.results.calibration = Some(calibration);
            kept.results.gigahertz = processor::hertz() / 1e9;
            kept.save()?;
            calibration
        }
    };
    let kernel = |name, program: &Path, parameters| TestKernel {
        name,
        program: program.to_owned(),
        parameters,
    };
    let kernels = [
        kernel(ORIGINAL, &original, Vec::new()),
        kernel(AGAIN, &original, Vec::new()),
        kernel(PATCHED, &patched, vec![calibration::parameter(0)]),
        kernel(SLOWER, &patched, vec![calibration::parameter(calibration.additions)]),
    ];
    let session = Session::begin(minutes, kept.results.seconds)?;
    let mut random = session.random();
    while session.has_time() && kept.results.lacks() {
        start(&kernels, &guest, &mut random, &mut kept.results)?;
        kept.results.seconds = session.seconds();
        if let Some(disturbances) = session.disturbances() {
            kept.results.disturbances = disturbances;
        }
        kept.save()?;
        eprintln!("{} starts, {:.0} s", kept.results.starts(), kept.results.seconds);
    }
    let verdicts = Verdicts::compare(&kernlane, &directory, &kept.results)?;
    let text = verdicts.text(&kept.results, &here);
    session::keep_in_checkout(KEPT, &text)?;
    print!("{text}");
    verdicts.judge()
}

/// Boots all kernels, runs slices of all benchmarks in random order, and adds each median.
fn start(
    kernels: &[TestKernel],
    guest: &lab::uml::UmlGuest,
    random: &mut Random,
    measured: &mut SlowdownMeasurements,
) -> Result<()> {
    let mut servers = SuiteServer::start_all(kernels, guest)?;
    let mut prepared = Vec::new();
    for name in benchmarks::chosen() {
        if measured.not_run.contains_key(name) {
            continue;
        }
        match servers.iter_mut().map(|server| server.prepare(name)).collect::<Result<Vec<_>>>()? {
            answers if answers.iter().all(Result::is_ok) => prepared.push(name),
            answers => {
                let why = answers.into_iter().find_map(Result::err).unwrap_or_default();
                measured.not_run.insert(name.to_owned(), why);
            }
        }
    }
    for &name in &prepared {
        if !measured.operations.contains_key(name) {
            let ticks = (SLICE * processor::ticks_per_nanosecond()) as u64;
            let operations = servers[0].calibrate(name, ticks)?;
            measured.operations.insert(name.to_owned(), operations);
        }
    }
    let mut order: Vec<(usize, usize)> =
        (0..servers.len()).flat_map(|at| (0..prepared.len()).map(move |n| (at, n))).collect();
    let mut values = vec![vec![Vec::new(); prepared.len()]; servers.len()];
    for round in 0..WARM + SLICES {
        random.shuffle(&mut order);
        for &(at, n) in &order {
            let cycles = servers[at].slice(prepared[n], measured.operations[prepared[n]])?;
            if round >= WARM {
                measured.slices += 1;
                measured.disturbed += u64::from(cycles.is_none());
                values[at][n].extend(cycles);
            }
        }
    }
    for (kernel, values) in kernels.iter().zip(values) {
        let of_kernel = measured.cycles.entry(kernel.name.to_owned()).or_default();
        for (name, mut cycles) in prepared.iter().zip(values) {
            // Without half of its slices, a start says too little.
            if cycles.len() > SLICES / 2 {
                of_kernel.entry((*name).to_owned()).or_default().push(median(&mut cycles));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_go_on_until_all_intervals_are_narrow() {
        let mut measured =
            SlowdownMeasurements { gigahertz: 4.0, ..SlowdownMeasurements::default() };
        assert!(measured.lacks());
        let cycles = BTreeMap::from([(SLOWED.to_owned(), vec![400.0; LEAST])]);
        measured.cycles.insert(ORIGINAL.to_owned(), cycles.clone());
        assert!(!measured.lacks());
        assert_eq!(measured.rounds(ORIGINAL)[SLOWED].rounds, vec![100.0; LEAST]);
        measured.cycles.insert(AGAIN.to_owned(), cycles);
        let again = measured.cycles.get_mut(AGAIN).unwrap().get_mut(SLOWED).unwrap();
        again.iter_mut().step_by(2).for_each(|cycles| *cycles = 410.0);
        assert!(measured.lacks());
    }
}
