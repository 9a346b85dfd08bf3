//! A run: rounds of slices in shuffled order, until every figure is narrow enough or time is over.
//!
//! Input: benchmarks and settings. Output: [`Results`]. In each round, every benchmark that is not
//! done has a new process (`worker.rs`). The slices of all benchmarks come in an order that the
//! seed shuffles, so that a drift of the machine affects all alike. This module itself measures
//! only the clocks.

use crate::benchmark::Benchmark;
use crate::clock::Moment;
use crate::random::Random;
use crate::result::{Entry, FORMAT, MeasuredRounds, Outcome, Results};
use crate::statistics::{Estimate, median};
use crate::sys::children_seconds;
use crate::watch::Watch;
use crate::worker::{self, Trouble, Worker};
use anyhow::{Result, anyhow};
use host::progress::Progress;
use host::{interrupt, scratch};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Nanoseconds of a slice. Long against an interrupt's few microseconds.
const SLICE: u64 = 1_000_000;
/// Slices of a benchmark in a round: an odd number has a median that was measured.
const SLICES: usize = 5;
/// Rounds before an interval is trusted.
const FEWEST: usize = 10;

/// What to measure, and how well.
pub(crate) struct Settings {
    pub benchmarks: Vec<&'static Benchmark>,
    pub seed: u64,
    /// The half width of an interval at which a benchmark is done, in percent.
    pub precision_percent: f64,
    /// No new round begins that would end behind this time.
    pub budget: Duration,
    /// Where files are made.
    pub directory: PathBuf,
    /// The CPU that the user wants.
    pub cpu: Option<usize>,
    /// The words that start this program so that it reads the suite's options.
    pub program: Vec<OsString>,
}

/// A benchmark under way.
struct BenchmarkProgress {
    benchmark: &'static Benchmark,
    /// Operations in a slice, once calibrated.
    operations: u64,
    /// Ticks an operation, of each round.
    rounds: Vec<f64>,
    /// Seconds of the processor in user and in kernel mode, of all its processes.
    processor_seconds: [f64; 2],
    trouble: Option<Trouble>,
}

impl BenchmarkProgress {
    fn new(benchmark: &'static Benchmark) -> BenchmarkProgress {
        BenchmarkProgress {
            benchmark,
            operations: 0,
            rounds: Vec::new(),
            processor_seconds: [0.0; 2],
            trouble: None,
        }
    }

    /// Whether no further round is needed.
    fn done(&self, precision_percent: f64) -> bool {
        let narrow = |estimate: Estimate| 100.0 * estimate.half_width() <= precision_percent;
        self.trouble.is_some()
            || self.rounds.len() >= FEWEST && Estimate::of(&self.rounds).is_some_and(narrow)
    }

    fn entry(self, ticks_per_nanosecond: f64, precision_percent: f64) -> Entry {
        let outcome = match self.trouble {
            Some(Trouble::Lacks(why)) => Outcome::NotRun { why },
            Some(Trouble::Wrong(why)) => Outcome::Wrong { why },
            None if self.rounds.is_empty() => Outcome::NotRun {
                why: "the time was over before its first round ended: give more by --time".into(),
            },
            None => {
                let rounds = self.rounds.iter().map(|ticks| ticks / ticks_per_nanosecond);
                let rounds = rounds.collect();
                let measured = MeasuredRounds::new(rounds, self.operations, precision_percent);
                let processor_seconds = Some(self.processor_seconds);
                Outcome::Measured(MeasuredRounds { processor_seconds, ..measured })
            }
        };
        let Benchmark { name, version, .. } = *self.benchmark;
        Entry { name: name.into(), version, program: None, outcome }
    }
}

/// Measures.
///
/// # Errors
/// As for [`Run::begin`] and [`Run::round`].
pub(crate) fn measure(settings: &Settings) -> Result<Results> {
    let mut run = Run::begin(settings)?;
    let progress = Progress::new("measuring");
    while !run.is_done() {
        progress.say(run.next_round());
        let before = Moment::now().map_err(|failure| anyhow!("{failure}"))?;
        run.round()?;
        if !run.watch.has_time_for_a_round_as_since(before, settings.budget)? {
            break;
        }
    }
    drop(progress);
    run.end()
}

/// A run under way, round by round.
pub(crate) struct Run<'a> {
    settings: &'a Settings,
    watch: Watch,
    states: Vec<BenchmarkProgress>,
    random: Random,
    cpu: Option<usize>,
    rounds: usize,
}

impl Run<'_> {
    /// Notes the conditions, and starts the clocks.
    ///
    /// # Errors
    /// The processor has no usable counter, the wanted CPU or the directory is not there.
    pub(crate) fn begin(settings: &Settings) -> Result<Run<'_>> {
        let (cpu, warning) = choose_cpu(settings.cpu)?;
        let watch = Watch::begin(cpu, &settings.directory, warning)?;
        let states =
            settings.benchmarks.iter().map(|benchmark| BenchmarkProgress::new(benchmark)).collect();
        Ok(Run { settings, watch, states, random: Random::new(settings.seed), cpu, rounds: 0 })
    }

    /// Whether every figure is as narrow as asked for, or cannot be had.
    pub(crate) fn is_done(&self) -> bool {
        self.states.iter().all(|state| state.done(self.settings.precision_percent))
    }

    /// What the next round does, for people.
    pub(crate) fn next_round(&self) -> String {
        let open =
            self.states.iter().filter(|state| !state.done(self.settings.precision_percent)).count();
        format!("round {}: {open} benchmarks", self.rounds + 1)
    }

    /// Runs every benchmark that is not done once more.
    ///
    /// # Errors
    /// The program cannot start itself, or the user has interrupted.
    pub(crate) fn round(&mut self) -> Result<()> {
        let Run { settings, states, random, .. } = self;
        let mut active: Vec<&mut BenchmarkProgress> =
            states.iter_mut().filter(|state| !state.done(settings.precision_percent)).collect();
        let directory = scratch::directory(&settings.directory, ".kernlane-bench-");
        let place = Place {
            directory: match &directory {
                Ok(directory) => directory.path(),
                // Benchmarks that need no files run, and the others say why they cannot.
                Err(_) => &settings.directory,
            },
            unwritable: directory.as_ref().err().map(|error| format!("{error:#}")),
            cpu: self.cpu,
            program: &settings.program,
        };
        let slice_ticks = (SLICE as f64 * self.watch.rate()) as u64;
        one_round(&mut active, &place, slice_ticks, random)?;
        self.rounds += 1;
        Ok(())
    }

    /// The results, and the conditions of the run.
    ///
    /// # Errors
    /// The kernel has no monotonic clock.
    pub(crate) fn end(self) -> Result<Results> {
        let precision_percent = self.settings.precision_percent;
        let (conditions, rate) = self.watch.end()?;
        let entries = self.states.into_iter().map(|state| state.entry(rate, precision_percent));
        Ok(Results {
            format: FORMAT,
            suite: env!("CARGO_PKG_VERSION").into(),
            seed: self.settings.seed,
            precision_percent,
            conditions,
            benchmarks: entries.collect(),
        })
    }
}

/// Where a round's workers run.
struct Place<'a> {
    directory: &'a Path,
    /// Why the directory cannot be written to.
    unwritable: Option<String>,
    cpu: Option<usize>,
    program: &'a [OsString],
}

/// Starts the workers in a random order, and lets them run their slices in another.
fn one_round(
    active: &mut [&mut BenchmarkProgress],
    place: &Place<'_>,
    slice_ticks: u64,
    random: &mut Random,
) -> Result<()> {
    let mut order: Vec<usize> = (0..active.len()).collect();
    random.shuffle(&mut order);
    let mut workers: Vec<Option<Worker>> = active.iter().map(|_| None).collect();
    for at in order {
        interrupt::check()?;
        match start(active[at], place, slice_ticks)? {
            Ok(worker) => workers[at] = Some(worker),
            Err(trouble) => active[at].trouble = Some(trouble),
        }
    }
    let mut slices: Vec<usize> = (0..active.len()).flat_map(|at| [at; SLICES]).collect();
    random.shuffle(&mut slices);
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); active.len()];
    for at in slices {
        interrupt::check()?;
        let Some(worker) = &mut workers[at] else { continue };
        match worker.slice(active[at].operations)? {
            Ok(ticks) => values[at].push(ticks as f64 / active[at].operations as f64),
            Err(trouble) => {
                active[at].trouble = Some(trouble);
                workers[at] = None;
            }
        }
    }
    let mut spent = children_seconds();
    for (state, worker) in active.iter_mut().zip(workers) {
        // Waits until the worker and all that it started have ended.
        drop(worker);
        let now = children_seconds();
        if let (Ok(before), Ok(now)) = (&spent, &now) {
            for ((sum, before), now) in state.processor_seconds.iter_mut().zip(before).zip(now) {
                *sum += now - before;
            }
        }
        spent = now;
    }
    for (state, mut values) in active.iter_mut().zip(values) {
        if state.trouble.is_none() {
            state.rounds.push(median(&mut values));
        }
    }
    Ok(())
}

/// Starts one worker in a directory of its own, and calibrates the benchmark in its first round.
fn start(
    state: &mut BenchmarkProgress,
    place: &Place<'_>,
    slice_ticks: u64,
) -> Result<std::result::Result<Worker, Trouble>> {
    let directory = place.directory.join(state.benchmark.name.replace('/', "-"));
    let unwritable = place.unwritable.clone().or_else(|| {
        let error = std::fs::create_dir(&directory).err()?;
        Some(format!("{}: cannot be made: {error}", directory.display()))
    });
    let mut worker = match Worker::start(place.program, state.benchmark, &directory, place.cpu)? {
        Ok(worker) => worker,
        Err(Trouble::Lacks(why)) => {
            let reason = unwritable.map_or(String::new(), |reason| format!("; {reason}"));
            return Ok(Err(Trouble::Lacks(why + &reason)));
        }
        Err(trouble) => return Ok(Err(trouble)),
    };
    if state.operations == 0 {
        match worker.calibrate(slice_ticks)? {
            Ok(operations) => state.operations = operations,
            Err(trouble) => return Ok(Err(trouble)),
        }
    }
    Ok(Ok(worker))
}

/// The CPU to measure on: the requested one, otherwise the last that is allowed, which serves the
/// fewest interrupts. `None`, with the reason: the process may not choose.
fn choose_cpu(wanted: Option<usize>) -> Result<(Option<usize>, Option<String>)> {
    let allowed = worker::allowed();
    // A thread tries, so that this process may go on running on every CPU.
    let attempt = |cpu: usize| {
        std::thread::spawn(move || worker::pin(cpu)).join().expect("pinning does not panic")
    };
    if let Some(cpu) = wanted {
        attempt(cpu).map_err(|failure| {
            anyhow!("--cpu {cpu}: {failure}; this process may run on the CPUs {allowed:?}")
        })?;
        return Ok((Some(cpu), None));
    }
    let Some(cpu) = allowed.last().copied() else {
        return Ok((None, Some("the kernel does not say which CPUs may be used".into())));
    };
    match attempt(cpu) {
        Ok(()) => Ok((Some(cpu), None)),
        Err(failure) => Ok((None, Some(format!("CPU {cpu} cannot be pinned: {failure}")))),
    }
}
