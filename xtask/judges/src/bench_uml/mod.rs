//! `cargo xtask bench-uml`: what layouts bring on the processor itself, in slices.
//!
//! A kernel for User Mode Linux runs its own code natively, as a process. A counting kernel gives
//! the profile. Kernels relinked with that profile, and BOLT's kernel from the same profile, are
//! alive at once. In each round each of them runs a slice of each load of `load.c`, two
//! milliseconds long, in random order, on one CPU. A slice is compared with the original kernel's
//! of the same round. Where a kernel's pages lie, its start decides, so kernels start again and
//! again: a start has one ratio, the median of its rounds.
//!
//! ```text
//! kernels ─┬→ served: slices → ratios by start → Kept ─┬→ table
//!          └→ recorded in a guest → simulated ─────────┘
//! ```
//!
//! With `--profile`, the kernels are those of the compiler's profile and a layout, each alone and
//! both together (`profiled`).
//!
//! With `--inline`, they are those of a layout and of inlined calls, each alone and both together,
//! with safe returns and with plain ones (`inlined`).
//!
//! With `--simulate`, the model of a processor says what it expects. Its figures stand beside the
//! measured ones.
//!
//! Kernels and ratios are kept in a directory. The command goes on where it was ended.

mod agreement;
mod inlined;
mod kernels;
mod profiled;
mod served;
mod shares;
mod simulated;
mod tables;

use crate::judge_processor::nearest;
use anyhow::Result;
use kernels::{MeasuredKernel, ORIGINAL};
use lab::kept::{Figure, Kept};
use lab::kernel::{self, Compiler};
use lab::processor::Processor;
use lab::session::{self, Minutes, Session, percent};
use lab::timed::{self, ALONE, Timed};
use lab::uml;
use serde::{Deserialize, Serialize};
use served::ServedKernel;
use shares::Shares;
use sim::MachineModel;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use suite::Disturbances;
use suite::random::Random;
use suite::statistics::median;
use tables::Tables;

/// The loads, and the rounds of each that take two milliseconds. pktgen is left out, because it
/// sleeps whenever it starts.
const LOADS: [(&str, u32); 5] =
    [("mmsg", 5), ("uring", 48), ("files", 2), ("database", 10), ("web", 3)];
/// The name of the column of all loads together: the geometric mean.
const ALL: &str = "all";
/// How long is measured by default.
pub const MINUTES: Minutes = Minutes::new(15.0);
/// The rounds of a start, and those before them that do not count.
const ROUNDS: usize = 20;
const WARM: usize = 4;
/// A start has the speed of a kernel with at least this number of slices that count.
const LEAST_SLICES: usize = 5;
/// Each figure has at least this number of starts, and at most this half-width.
const LEAST: usize = 6;
const INTERVAL_TARGET: f64 = 0.005;

/// What is compared with the original kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Layouts of the kernel that gcc built.
    Layouts,
    /// The compiler's profile and a layout, alone and together, of the kernel that clang built.
    Profile,
    /// A layout and inlined calls, alone and together, of the kernel that gcc built with return
    /// thunks; with safe returns and with plain ones.
    Inlined,
}

impl Comparison {
    /// Where results are kept by default.
    pub fn directory(self) -> &'static Path {
        Path::new(match self {
            Self::Layouts => "target/bench-uml",
            Self::Profile => "target/bench-uml-profile",
            Self::Inlined => "target/bench-uml-inlined",
        })
    }

    /// Where the table is kept in a checkout.
    fn kept(self) -> &'static str {
        match self {
            Self::Layouts => "bench/uml.txt",
            Self::Profile => "bench/uml-profile.txt",
            Self::Inlined => "bench/uml-inlined.txt",
        }
    }

    /// The kernels in `directory`, the original first.
    fn kernels(self, directory: &Path) -> Result<Vec<MeasuredKernel>> {
        match self {
            Self::Layouts => kernels::kernels(&kernel::tree(Compiler::GccUserMode)?, directory),
            Self::Profile => profiled::kernels(&kernel::tree(Compiler::ClangUserMode)?, directory),
            Self::Inlined => {
                inlined::kernels(&kernel::tree(Compiler::GccUserModeLikeX86)?, directory)
            }
        }
    }

    /// The kernels that are also compared with one another, as (kernel, other one).
    fn pairs(self, kernels: &[MeasuredKernel]) -> Vec<(&'static str, &'static str)> {
        match self {
            Self::Layouts => Vec::new(),
            Self::Profile => {
                let names = kernels.iter().map(|kernel| kernel.name);
                names
                    .filter(|&name| name != profiled::BOTH)
                    .map(|it| (profiled::BOTH, it))
                    .collect()
            }
            Self::Inlined => inlined::PAIRS.to_vec(),
        }
    }
}

/// What to compare, where, how long, and whether to simulate.
pub struct Options {
    /// What to compare.
    pub comparison: Comparison,
    /// Where kernels and ratios are kept.
    pub directory: PathBuf,
    /// How long to measure.
    pub minutes: Minutes,
    /// Also simulate the kernels on the described machine that is nearest to this processor.
    pub simulate: bool,
    /// Simulate on this machine.
    pub machine: Option<String>,
    /// Print JSON.
    pub json: bool,
}

/// What was measured.
#[derive(Debug, Default, Serialize, Deserialize)]
struct LayoutMeasurements {
    starts: Vec<Start>,
    /// For each load: whose code ran under the original kernel.
    shares: BTreeMap<String, Shares>,
    /// Slices that gave nothing, because the frequency changed in them, or because the core's other
    /// thread was busy; and all slices.
    disturbed: u64,
    crowded: u64,
    slices: u64,
    /// How long was measured.
    seconds: f64,
    /// The disturbances of the last run of the command.
    disturbances: Disturbances,
}

/// What all kernels, started once, gave.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Start {
    /// The no-ops in a cycle near a slice, the most that were seen ([`timed::most`]).
    no_ops: f64,
    /// For each kernel and load: the original's cycles divided by the kernel's.
    speeds: BTreeMap<String, BTreeMap<String, f64>>,
}

impl LayoutMeasurements {
    /// The speed of a kernel over the original's.
    fn figure(&self, kernel: &str, load: &str) -> Option<Figure> {
        self.figure_over(kernel, ORIGINAL, load)
    }

    /// The speed of a kernel over that of another one, both of the same starts.
    fn figure_over(&self, kernel: &str, other: &str, load: &str) -> Option<Figure> {
        let starts = self.starts.iter().filter(|start| start.no_ops >= ALONE * self.most_no_ops());
        let speed = |start: &Start, of: &str| match of == ORIGINAL {
            true => Some(1.0),
            false => start.speeds.get(of)?.get(load).copied(),
        };
        let ratios = starts.filter_map(|start| Some(speed(start, kernel)? / speed(start, other)?));
        Figure::of(&ratios.collect::<Vec<_>>())
    }

    /// The no-ops in a cycle of the start that had the most. A start that has far fewer had no
    /// slice alone on its core.
    fn most_no_ops(&self) -> f64 {
        self.starts.iter().map(|start| start.no_ops).fold(0.0, f64::max)
    }

    /// Adds the start of kernels that gave `rounds`, and counts what gave nothing.
    fn add(&mut self, kernels: &[MeasuredKernel], rounds: &[Round<Timed<f64>>]) {
        let slices = || rounds.iter().flatten().flatten();
        let no_ops = timed::most(slices().flatten().map(|slice| slice.no_ops).collect());
        let most = no_ops.max(self.most_no_ops());
        self.slices += slices().count() as u64;
        self.disturbed += slices().filter(|slice| slice.is_none()).count() as u64;
        self.crowded += slices().flatten().filter(|slice| !slice.alone(most)).count() as u64;
        let cycles = |slice: Option<Timed<f64>>| Some(slice.filter(|it| it.alone(most))?.time);
        let alone: Vec<Round<f64>> = rounds
            .iter()
            .map(|round| round.iter().map(|loads| loads.map(cycles)).collect())
            .collect();
        let by_load = |speeds: [Option<f64>; LOADS.len() + 1]| {
            columns().zip(speeds).filter_map(|(load, speed)| Some((load.to_owned(), speed?)))
        };
        let speeds = speeds(kernels, &alone, LEAST_SLICES)
            .into_iter()
            .map(|(kernel, speeds)| (kernel.to_owned(), by_load(speeds).collect()))
            .collect();
        self.starts.push(Start { no_ops, speeds });
    }

    /// Whether a figure of these kernels needs more starts.
    fn lacks(&self, kernels: &[MeasuredKernel]) -> bool {
        kernels.iter().skip(1).any(|kernel| {
            columns().any(|load| {
                self.figure(kernel.name, load).is_none_or(|figure| {
                    figure.rounds < LEAST || figure.half_width() > INTERVAL_TARGET
                })
            })
        })
    }
}

fn columns() -> impl Iterator<Item = &'static str> {
    LOADS.iter().map(|(load, _)| *load).chain([ALL])
}

/// Measures.
///
/// # Errors
/// A kernel cannot be made or fails.
pub fn bench(options: &Options) -> Result<()> {
    let here = Processor::here()?;
    let directory = session::directory(&options.directory)?;
    host::interrupt::catch()?;
    let kernels = options.comparison.kernels(&directory)?;
    let build_id = image::vmlinux::read(&kernels[0].program)?.build_id;
    let load = image::sealed::sha256(&uml::load()?);
    let made_for = format!("{build_id:?} {load} {here:?}");
    let mut kept = Kept::<LayoutMeasurements>::open(directory.join("measured.json"), &made_for)?;
    // A thread of its own: it stays on one CPU, and what follows does not.
    std::thread::scope(|scope| {
        let measuring = scope.spawn(|| measure(&kernels, &directory, &mut kept, options.minutes));
        lab::joined(measuring, "measuring")
    })?;
    let mut conditions = conditions(&kept.results, &kernels, &here);
    let model = match options.simulate || options.machine.is_some() {
        false => None,
        true => {
            let name = options.machine.as_deref().unwrap_or(nearest(&here).0);
            let machine = machines::find(name)?.model;
            let describes = nearest(&here) == (name, true);
            conditions.push(format!(
                "Simulated: {name}, {}.",
                if describes { "which describes it" } else { "another processor" }
            ));
            let user_mode = model_speeds(&kernels, &machine, &directory)?;
            let with_host = with_host(&user_mode, &kept.results.shares);
            Some([user_mode, with_host])
        }
    };
    let (measured, pairs) = (&kept.results, options.comparison.pairs(&kernels));
    let tables = Tables { measured, model, kernels: &kernels, pairs, conditions };
    let text = tables.text();
    session::keep_in_checkout(options.comparison.kept(), &text)?;
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&tables.document())?),
        false => print!("{text}"),
    }
    Ok(())
}

/// Starts all kernels again and again, until every interval is narrow or the time has passed.
fn measure(
    kernels: &[MeasuredKernel],
    directory: &Path,
    kept: &mut Kept<LayoutMeasurements>,
    minutes: Minutes,
) -> Result<()> {
    let session = Session::begin(minutes, kept.results.seconds)?;
    if kept.results.shares.is_empty() && session.has_time() {
        kept.results.shares = shares::measure(&kernels[0], directory)?;
        kept.save()?;
    }
    let mut random = session.random();
    while session.has_time() && kept.results.lacks(kernels) {
        host::interrupt::check()?;
        let mut served = ServedKernel::start_all(kernels, directory)?;
        let timed = rounds(&mut served, &mut random)?;
        let results = &mut kept.results;
        results.add(kernels, &timed);
        results.seconds = session.seconds();
        if let Some(disturbances) = session.disturbances() {
            results.disturbances = disturbances;
        }
        kept.save()?;
        eprintln!("{} starts, {:.0} s", kept.results.starts.len(), kept.results.seconds);
    }
    Ok(())
}

/// A round: what was timed, or its cycles, by kernel and load; `None`: the slice gave nothing.
type Round<T> = Vec<[Option<T>; LOADS.len()]>;

/// The rounds of a start.
fn rounds(kernels: &mut [ServedKernel], random: &mut Random) -> Result<Vec<Round<Timed<f64>>>> {
    let mut order: Vec<(usize, usize)> =
        (0..kernels.len()).flat_map(|kernel| (0..LOADS.len()).map(move |n| (kernel, n))).collect();
    let mut all = Vec::new();
    for round in 0..WARM + ROUNDS {
        random.shuffle(&mut order);
        let mut slices = vec![[None; LOADS.len()]; kernels.len()];
        for &(kernel, n) in &order {
            let (load, times) = LOADS[n];
            slices[kernel][n] = kernels[kernel].slice(load, times)?;
        }
        if round >= WARM {
            all.push(slices);
        }
    }
    Ok(all)
}

/// The speed of each kernel but the first: the median of the original's slices over that of its
/// own, for each load, and the geometric mean of these; `None` with fewer than `least` slices of
/// either.
fn speeds<'k>(
    kernels: &'k [MeasuredKernel],
    rounds: &[Round<f64>],
    least: usize,
) -> Vec<(&'k str, [Option<f64>; LOADS.len() + 1])> {
    let middle = |at: usize, n: usize| {
        let mut cycles: Vec<f64> = rounds.iter().filter_map(|round| round[at][n]).collect();
        (cycles.len() >= least).then(|| median(&mut cycles))
    };
    let of = |at: usize, n: usize| Some(middle(0, n)? / middle(at, n)?);
    let speeds = |at: usize| {
        let mut all = [None; LOADS.len() + 1];
        for (n, speed) in all[..LOADS.len()].iter_mut().enumerate() {
            *speed = of(at, n);
        }
        all[LOADS.len()] = mean(&all[..LOADS.len()]);
        all
    };
    (1..kernels.len()).map(|at| (kernels[at].name, speeds(at))).collect()
}

/// The geometric mean; `None` if a speed is missing.
fn mean(speeds: &[Option<f64>]) -> Option<f64> {
    let logarithms: Option<f64> = speeds.iter().map(|speed| speed.map(f64::ln)).sum();
    Some((logarithms? / speeds.len() as f64).exp())
}

fn conditions(
    measured: &LayoutMeasurements,
    kernels: &[MeasuredKernel],
    here: &Processor,
) -> Vec<String> {
    let figures: Vec<Figure> = kernels
        .iter()
        .flat_map(|kernel| columns().filter_map(|load| measured.figure(kernel.name, load)))
        .collect();
    let narrow = figures.iter().filter(|it| it.half_width() <= INTERVAL_TARGET).count();
    let shares = measured.disturbances;
    let own: Vec<String> = LOADS
        .iter()
        .filter_map(|(load, _)| {
            let own = measured.shares.get(*load)?.kernel;
            Some(format!("{load} {:.0} %", 100.0 * own))
        })
        .collect();
    let own = own.join(", ");
    vec![
        format!("Processor: {here}."),
        format!(
            "Measured for {:.0} s: {narrow} of {} intervals (95 %) are within ±{} %. Of {} slices, \
             {} gave nothing because the frequency changed, and {} because the core's other thread \
             was busy (fewer than {:.1} no-ops in a cycle).",
            measured.seconds,
            figures.len(),
            100.0 * INTERVAL_TARGET,
            measured.slices,
            measured.disturbed,
            measured.crowded,
            ALONE * measured.most_no_ops()
        ),
        format!(
            "Of the time of the measured CPU the hypervisor took {}; the other CPUs were busy for \
             {}.",
            percent(shares.steal_percent),
            percent(shares.other_cpus_percent)
        ),
        format!("Of a load's time under the original kernel, the kernel's own code had: {own}."),
    ]
}

/// The speed of each kernel by load on the model, in user mode, as [`speeds`] has it of the
/// processor.
type ModelSpeeds = BTreeMap<&'static str, [Option<f64>; LOADS.len() + 1]>;

fn model_speeds(
    kernels: &[MeasuredKernel],
    machine: &MachineModel,
    directory: &Path,
) -> Result<ModelSpeeds> {
    // A kernel is simulated while the next one is recorded.
    let round: Round<f64> = std::thread::scope(|scope| {
        let mut running = Vec::new();
        for kernel in kernels {
            let recording = simulated::recording(kernel, directory)?;
            running.push(scope.spawn(move || simulated::cycles(&recording, machine)));
        }
        let cycles = running
            .into_iter()
            .zip(kernels)
            .map(|(running, kernel)| Ok(lab::joined(running, kernel.name)?.map(Some)));
        cycles.collect::<Result<_>>()
    })?;
    let names = kernels.iter().skip(1).map(|kernel| kernel.name);
    let speeds = speeds(kernels, &[round], 1).into_iter().map(|(_, speeds)| speeds);
    Ok(names.zip(speeds).collect())
}

/// The speeds that the model predicts of what was measured: `speeds` of user mode, and the time of
/// the host's kernel as it is under the original kernel.
fn with_host(speeds: &ModelSpeeds, shares: &BTreeMap<String, Shares>) -> ModelSpeeds {
    let of_load = |load: &str, speed: Option<f64>| {
        let host = shares.get(load)?.host;
        Some(1.0 / (host + (1.0 - host) / speed?))
    };
    let of_kernel = |speeds: &[Option<f64>; LOADS.len() + 1]| {
        let mut all = [None; LOADS.len() + 1];
        for (n, (load, _)) in LOADS.iter().enumerate() {
            all[n] = of_load(load, speeds[n]);
        }
        all[LOADS.len()] = mean(&all[..LOADS.len()]);
        all
    };
    speeds.iter().map(|(&name, speeds)| (name, of_kernel(speeds))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn kernel(name: &'static str) -> MeasuredKernel {
        MeasuredKernel { name, program: PathBuf::new() }
    }

    #[test]
    fn a_start_has_the_medians_of_its_slices() {
        let kernels = [kernel(ORIGINAL), kernel("fast"), kernel("never")];
        let slice = |time, no_ops| Some(Timed { time, no_ops, far_load: 0.0 });
        let slices = |first, others| {
            let mut all = [others; LOADS.len()];
            all[0] = first;
            all
        };
        let round = |original: f64| {
            vec![
                slices(slice(original, 8.0), slice(original, 8.0)),
                slices(slice(100.0, 8.0), slice(50.0, 8.0)),
                slices(slice(10.0, 8.0), None),
            ]
        };
        let mut rounds: Vec<_> = [100.0, 180.0, 200.0, 220.0, 300.0, 900.0].map(round).into();
        // In the last round the original's slice of the first load was disturbed.
        rounds[5][0][0] = None;
        let mut measured = LayoutMeasurements::default();
        measured.add(&kernels, &rounds);
        let first = LOADS[0].0;
        let start = &measured.starts[0];
        let fast = &start.speeds["fast"];
        assert!(columns().all(|load| load == ALL || load == first || fast[load] == 4.2));
        assert_eq!(fast[first], 2.0);
        let count = LOADS.len() as f64;
        let mean = ((2.0f64.ln() + (count - 1.0) * 4.2f64.ln()) / count).exp();
        assert!((fast[ALL] - mean).abs() < 1e-12);
        assert_eq!(start.speeds["never"], BTreeMap::from([(first.to_owned(), 20.0)]));
        let given = (measured.slices, measured.disturbed, measured.crowded);
        assert_eq!(given, (6 * 3 * LOADS.len() as u64, 6 * (LOADS.len() as u64 - 1) + 1, 0));
        // In two rounds the core's other thread was busy: four slices are too few.
        rounds[0][1][0] = slice(400.0, 5.0);
        measured.add(&kernels, &rounds);
        assert_eq!(measured.starts[1].speeds["fast"][first], 2.0);
        rounds[1][1][0] = slice(400.0, 5.0);
        measured.add(&kernels, &rounds);
        assert!(!measured.starts[2].speeds["fast"].contains_key(first));
        assert_eq!(measured.crowded, 1 + 2);
    }

    /// Starts of the kernel "fast" whose speeds under each load are `speed`.
    fn starts(speed: f64, no_ops: f64, number: usize) -> impl Iterator<Item = Start> {
        let by_load = columns().map(|load| (load.to_owned(), speed)).collect();
        let speeds = BTreeMap::from([("fast".to_owned(), by_load)]);
        (0..number).map(move |_| Start { no_ops, speeds: speeds.clone() })
    }

    #[test]
    fn starts_go_on_until_all_intervals_are_narrow() {
        let kernels = [kernel(ORIGINAL), kernel("fast")];
        let mut measured = LayoutMeasurements::default();
        assert!(measured.lacks(&kernels));
        measured.starts.extend(starts(1.1, 8.0, LEAST));
        assert!(!measured.lacks(&kernels));
        // Starts that were never alone on their core do not count.
        measured.starts.extend(starts(1.5, 5.0, LEAST));
        assert!((measured.figure("fast", ALL).unwrap().value - 1.1).abs() < 1e-12);
        measured.starts.extend(starts(1.2, 8.0, LEAST));
        assert!(measured.lacks(&kernels));
    }

    #[test]
    fn a_kernel_is_compared_with_another_one_start_by_start() {
        let kernels = [kernel(ORIGINAL), kernel("alone"), kernel("both")];
        // Both kernels differ much from start to start, and little from each other.
        let start = |speed: f64, no_ops| {
            let by_load = |speed| columns().map(|load| (load.to_owned(), speed)).collect();
            let speeds = [("alone", speed), ("both", 1.02 * speed)];
            let speeds = speeds.map(|(name, speed)| (name.to_owned(), by_load(speed)));
            Start { no_ops, speeds: speeds.into() }
        };
        let mut measured = LayoutMeasurements::default();
        measured.starts.extend([0.9, 1.0, 1.1, 1.2, 1.3, 1.4].map(|speed| start(speed, 8.0)));
        // Never alone on its core.
        measured.starts.push(start(9.0, 5.0));
        let alone = measured.figure("alone", ALL).unwrap();
        let both = measured.figure("both", ALL).unwrap();
        assert!(both.low < alone.high, "each for itself, nothing is told apart");
        let over = measured.figure_over("both", "alone", ALL).unwrap();
        assert!((over.low - 1.02).abs() < 1e-12 && (over.high - 1.02).abs() < 1e-12, "{over:?}");
        assert_eq!(over.rounds, 6);
        assert_eq!(measured.figure_over("both", "missing", ALL), None);

        let tables = Tables {
            measured: &measured,
            model: None,
            kernels: &kernels,
            pairs: vec![("both", "alone")],
            conditions: Vec::new(),
        };
        let text = tables.text();
        let (_, pairs) = text.split_once("speed relative to another kernel").unwrap();
        let row: Vec<&str> = pairs.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(row[..5], ["both", "/", "alone", "1.020", "±0.00"]);
        let document = tables.document();
        let pair = &document["pairs"][0];
        assert_eq!((&pair["kernel"], &pair["over"]), (&"both".into(), &"alone".into()));
        let over = &pair["measured"][ALL];
        assert!((over["value"].as_f64().unwrap() - 1.02).abs() < 1e-12, "{over}");
    }

    #[test]
    fn comparisons_keep_their_results_apart() {
        let all = [Comparison::Layouts, Comparison::Profile, Comparison::Inlined];
        let count =
            |of: &dyn Fn(&Comparison) -> String| all.iter().map(of).collect::<BTreeSet<_>>();
        assert_eq!(count(&|it| it.directory().display().to_string()).len(), all.len());
        assert_eq!(count(&|it| it.kept().to_owned()).len(), all.len());
        let kernels = [ORIGINAL, "profiled, ext-tsp"].map(kernel);
        let pairs = all.map(|it| it.pairs(&kernels));
        assert_eq!(pairs[..2], [vec![], vec![("profiled, ext-tsp", ORIGINAL)]]);
        assert!(pairs[2].contains(&("plain both", "plain layout")));
    }

    #[test]
    fn the_model_has_the_time_of_the_hosts_kernel() {
        let kernels = [kernel(ORIGINAL), kernel("fast")];
        let mut measured = LayoutMeasurements::default();
        measured.starts.extend(starts(1.1, 8.0, LEAST));
        let user_mode = BTreeMap::from([("fast", [Some(1.25); LOADS.len() + 1])]);
        let shares = Shares { kernel: 0.5, load: 0.25, host: 0.25 };
        let shares = LOADS.iter().map(|(load, _)| ((*load).to_owned(), shares)).collect();
        // 0.75 / 1.25 + 0.25 = 0.85.
        let with_host = with_host(&user_mode, &shares);
        let model = Some([user_mode, with_host]);
        let conditions = vec!["Processor.".to_owned()];
        let kernels = &kernels;
        let pairs = Vec::new();
        let tables = Tables { measured: &measured, model, kernels, pairs, conditions };
        let text = tables.text();
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("fast")).collect();
        assert!(rows[0].contains("1.100 ±0.00 %"), "{text}");
        assert!(rows[1].ends_with(" 1.250") && rows[2].ends_with(" 1.176"), "{text}");
        let fast = &tables.document()["kernels"][0];
        assert_eq!(fast["simulated_user_mode"]["all"], 1.25);
        assert!((fast["simulated"]["web"].as_f64().unwrap() - 1.0 / 0.85).abs() < 1e-12);
    }
}
