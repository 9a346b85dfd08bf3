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
//! With `--simulate`, the model of a processor says what it expects. Its figures stand beside those
//! that were measured.
//!
//! Kernels and ratios are kept in a directory. The command goes on where it was ended.

mod agreement;
mod kernels;
mod served;
mod shares;
mod simulated;

use crate::judge_processor::nearest;
use crate::kept::{Figure, Kept};
use crate::kernel::{self, Compiler};
use crate::processor::{self, Processor};
use agreement::Agreement;
use anyhow::{Context, Result, bail};
use execution::machine;
use kernels::{MeasuredKernel, ORIGINAL};
use serde::{Deserialize, Serialize};
use serde_json::json;
use served::ServedKernel;
use shares::Shares;
use sim::MachineModel;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use suite::random::Random;
use suite::statistics::median;
use suite::{Disturbances, Usage};

/// The loads, and the rounds of each that take two milliseconds. pktgen is none of them, because it
/// sleeps whenever it starts.
const LOADS: [(&str, u32); 5] =
    [("mmsg", 5), ("uring", 48), ("files", 2), ("database", 10), ("web", 3)];
/// The name of the column of all loads together: the geometric mean.
const ALL: &str = "all";
/// Where results are kept if nothing else is said.
const DIRECTORY: &str = "target/bench-uml";
/// Where the table is kept, in a checkout.
const KEPT: &str = "bench/uml.txt";
/// How long is measured if nothing else is said.
const MINUTES: f64 = 15.0;
/// The rounds of a start, and those before them that do not count.
const ROUNDS: usize = 20;
const WARM: usize = 4;
/// Each figure has at least this number of starts, and at most this half-width.
const LEAST: usize = 6;
const INTERVAL_TARGET: f64 = 0.005;

/// What was typed.
#[derive(Debug, PartialEq)]
struct Options {
    directory: PathBuf,
    minutes: f64,
    /// Whether to simulate the kernels; the machine, if it is named.
    simulate: bool,
    machine: Option<String>,
    json: bool,
}

impl Options {
    fn parse(words: &[&str]) -> Result<Options> {
        let mut options = Options {
            directory: DIRECTORY.into(),
            minutes: MINUTES,
            simulate: false,
            machine: None,
            json: false,
        };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match word {
                "--json" => options.json = true,
                "--simulate" => options.simulate = true,
                "--machine" => {
                    let name = words.next().context("--machine needs a name")?;
                    (options.simulate, options.machine) = (true, Some((*name).to_owned()));
                }
                "--minutes" => {
                    let minutes = words.next().and_then(|minutes| minutes.parse().ok());
                    let minutes = minutes.filter(|minutes: &f64| *minutes >= 0.0);
                    options.minutes = minutes.context("--minutes needs a number")?;
                }
                _ if word.starts_with('-') => bail!("bench-uml has no option {word}"),
                _ => options.directory = word.into(),
            }
        }
        Ok(options)
    }
}

/// What was measured.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Measured {
    /// By kernel and load: the original's cycles divided by the kernel's, for each start.
    speeds: BTreeMap<String, BTreeMap<String, Vec<f64>>>,
    /// By load: whose code ran under the original kernel.
    shares: BTreeMap<String, Shares>,
    /// Slices that gave nothing, because the frequency changed in them, and all slices.
    disturbed: u64,
    slices: u64,
    /// How long was measured.
    seconds: f64,
    /// Of the last run of the command.
    disturbances: Disturbances,
}

impl Measured {
    fn figure(&self, kernel: &str, load: &str) -> Option<Figure> {
        Figure::of(self.speeds.get(kernel)?.get(load)?)
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

/// Measures. `words`: see `Options`.
pub(crate) fn bench(words: &[&str]) -> Result<()> {
    let options = Options::parse(words)?;
    let here = Processor::here()?;
    let kernlane = crate::kernlane()?;
    let tree = kernel::tree(Compiler::GccUserMode)?;
    std::fs::create_dir_all(&options.directory)
        .with_context(|| format!("making {}", options.directory.display()))?;
    let directory = options.directory.canonicalize()?;
    let kernels = kernels::kernels(&kernlane, &tree, &directory)?;
    let build_id = image::vmlinux::read(&kernels[0].program)?.build_id;
    let made_for = format!("{build_id:?} {here:?}");
    let mut kept = Kept::<Measured>::open(directory.join("measured.json"), &made_for)?;
    measure(&kernels, &directory, &mut kept, Duration::from_secs_f64(60.0 * options.minutes))?;
    let mut conditions = conditions(&kept.results, &kernels, &here);
    let model = match options.simulate {
        false => None,
        true => {
            let name = options.machine.as_deref().unwrap_or(nearest(&here).0);
            let machine = machine::find(name)?;
            let describes = nearest(&here) == (name, true);
            conditions.push(format!(
                "Simulated: {name}, {}.",
                if describes { "which describes it" } else { "another processor" }
            ));
            Some(model_speeds(&kernels, &machine, &directory)?)
        }
    };
    let tables = Tables { measured: &kept.results, model, kernels: &kernels, conditions };
    let text = tables.text();
    if Path::new(KEPT).parent().is_some_and(Path::is_dir) {
        host::output::write(Path::new(KEPT), text.as_bytes())?;
    }
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
    kept: &mut Kept<Measured>,
    budget: Duration,
) -> Result<()> {
    let cpu = processor::last_cpu()?;
    processor::pin(cpu)?;
    let (begun, before) = (Instant::now(), Usage::now(Some(cpu)));
    if kept.results.shares.is_empty() && !budget.is_zero() {
        kept.results.shares = shares::measure(&kernels[0], directory)?;
        kept.save()?;
    }
    let spent = kept.results.seconds;
    let mut random = Random::new(spent.to_bits());
    while begun.elapsed() < budget && kept.results.lacks(kernels) {
        let mut served = ServedKernel::start_all(kernels, directory)?;
        let rounds = rounds(&mut served, &mut random, &mut kept.results)?;
        for (kernel, speeds) in speeds(kernels, &rounds) {
            let of_kernel = kept.results.speeds.entry(kernel.to_owned()).or_default();
            for (load, speed) in columns().zip(speeds) {
                of_kernel.entry(load.to_owned()).or_default().push(speed);
            }
        }
        let results = &mut kept.results;
        results.seconds = spent + begun.elapsed().as_secs_f64();
        if let (Some(before), Some(after)) = (before, Usage::now(Some(cpu))) {
            results.disturbances = after.since(before);
        }
        kept.save()?;
        let starts = kept.results.speeds.values().flat_map(BTreeMap::values).map(Vec::len).max();
        eprintln!("{} starts, {:.0} s", starts.unwrap_or(0), kept.results.seconds);
    }
    Ok(())
}

/// The cycles of a round: by kernel and load; `None`: the slice was disturbed.
type Round = Vec<[Option<f64>; LOADS.len()]>;

/// The rounds of a start.
fn rounds(
    kernels: &mut [ServedKernel],
    random: &mut Random,
    measured: &mut Measured,
) -> Result<Vec<Round>> {
    let mut order: Vec<(usize, usize)> =
        (0..kernels.len()).flat_map(|kernel| (0..LOADS.len()).map(move |n| (kernel, n))).collect();
    let mut all = Vec::new();
    for round in 0..WARM + ROUNDS {
        random.shuffle(&mut order);
        let mut cycles = vec![[None; LOADS.len()]; kernels.len()];
        for &(kernel, n) in &order {
            let (load, times) = LOADS[n];
            cycles[kernel][n] = kernels[kernel].slice(load, times)?;
        }
        if round >= WARM {
            let slices = || cycles.iter().flatten();
            measured.slices += slices().count() as u64;
            measured.disturbed += slices().filter(|cycles| cycles.is_none()).count() as u64;
            all.push(cycles);
        }
    }
    Ok(all)
}

/// The speed of each kernel but the first: the median of its rounds for each load, and the
/// geometric mean of these. A kernel without undisturbed rounds is left out.
fn speeds<'k>(
    kernels: &'k [MeasuredKernel],
    rounds: &[Round],
) -> Vec<(&'k str, [f64; LOADS.len() + 1])> {
    let of = |at: usize, n: usize| {
        let ratio = |round: &Round| Some(round[0][n]? / round[at][n]?);
        let mut ratios: Vec<f64> = rounds.iter().filter_map(ratio).collect();
        (!ratios.is_empty()).then(|| median(&mut ratios))
    };
    let speeds = |at: usize| {
        let mut all = [0.0; LOADS.len() + 1];
        for (n, speed) in all[..LOADS.len()].iter_mut().enumerate() {
            *speed = of(at, n)?;
        }
        let logarithms = all[..LOADS.len()].iter().map(|speed| speed.ln()).sum::<f64>();
        all[LOADS.len()] = (logarithms / LOADS.len() as f64).exp();
        Some(all)
    };
    (1..kernels.len()).filter_map(|at| Some((kernels[at].name, speeds(at)?))).collect()
}

fn conditions(measured: &Measured, kernels: &[MeasuredKernel], here: &Processor) -> Vec<String> {
    let percent = |share: Option<f64>| {
        share.map_or("an unknown share".to_owned(), |share| format!("{share:.1} %"))
    };
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
        format!("Processor: {} (family {}, model {}).", here.name, here.family, here.model),
        format!(
            "Measured for {:.0} s: {narrow} of {} intervals (95 %) are within ±{} %; {} of {} \
             slices gave nothing, because the frequency changed.",
            measured.seconds,
            figures.len(),
            100.0 * INTERVAL_TARGET,
            measured.disturbed,
            measured.slices
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

/// The speed of each kernel by load on the model, as [`speeds`] has it of the processor.
type ModelSpeeds = BTreeMap<&'static str, [f64; LOADS.len() + 1]>;

fn model_speeds(
    kernels: &[MeasuredKernel],
    machine: &MachineModel,
    directory: &Path,
) -> Result<ModelSpeeds> {
    // A kernel is simulated while the next one is recorded.
    let round: Round = std::thread::scope(|scope| {
        let mut running = Vec::new();
        for kernel in kernels {
            let recording = simulated::recording(kernel, directory)?;
            running.push(scope.spawn(move || simulated::cycles(&recording, machine)));
        }
        let cycles = running
            .into_iter()
            .zip(kernels)
            .map(|(running, kernel)| Ok(crate::joined(running, kernel.name)?.map(Some)));
        cycles.collect::<Result<_>>()
    })?;
    let names = kernels.iter().skip(1).map(|kernel| kernel.name);
    let speeds = speeds(kernels, &[round]).into_iter().map(|(_, speeds)| speeds);
    Ok(names.zip(speeds).collect())
}

/// Measured and simulated figures side by side. They never share a column.
struct Tables<'a> {
    measured: &'a Measured,
    /// `None`: nothing was simulated.
    model: Option<ModelSpeeds>,
    kernels: &'a [MeasuredKernel],
    conditions: Vec<String>,
}

impl Tables<'_> {
    fn document(&self) -> serde_json::Value {
        let row = |kernel: &MeasuredKernel| {
            let loads: BTreeMap<&str, Option<Figure>> =
                columns().map(|load| (load, self.measured.figure(kernel.name, load))).collect();
            let simulated: Option<BTreeMap<&str, f64>> = self
                .model
                .as_ref()
                .and_then(|model| Some(columns().zip(*model.get(kernel.name)?).collect()));
            json!({ "kernel": kernel.name, "measured": loads, "simulated": simulated })
        };
        json!({
            "conditions": self.conditions,
            "unit": "core cycles of the original kernel over those of this one; of what was \
                     measured the ends of the 95 % interval over starts",
            "kernels": self.kernels.iter().skip(1).map(row).collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{}\n\nMeasured speed relative to the kernel \"{ORIGINAL}\", in core cycles, with \
             half of the 95 % interval\n",
            self.conditions.join("\n")
        );
        text += &self.rows(|kernel, load| {
            let figure = self.measured.figure(kernel, load)?;
            Some(format!("{:.3} ±{:.2} %", figure.value, 100.0 * figure.half_width()))
        });
        if let Some(model) = &self.model {
            text += "\nSimulated\n";
            text += &self.rows(|kernel, load| {
                let at = columns().position(|column| column == load)?;
                Some(format!("{:.3}", model.get(kernel)?[at]))
            });
            text += "\n";
            for (at, load) in columns().enumerate() {
                let both = |kernel: &MeasuredKernel| {
                    let simulated = model.get(kernel.name)?[at];
                    Some((self.measured.figure(kernel.name, load)?, simulated))
                };
                let kernels: Vec<_> = self.kernels.iter().skip(1).filter_map(both).collect();
                text += &Agreement::new(&kernels).text(load);
            }
        }
        text
    }

    fn rows(&self, cell: impl Fn(&str, &str) -> Option<String>) -> String {
        let mut text = format!("{:<18}", "kernel");
        columns().for_each(|load| text += &format!(" {load:>16}"));
        for kernel in self.kernels.iter().skip(1) {
            text += &format!("\n{:<18}", kernel.name);
            for load in columns() {
                let cell = cell(kernel.name, load).unwrap_or("-".to_owned());
                text += &format!(" {cell:>16}");
            }
        }
        text + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_options() {
        let options = Options::parse(&["here", "--minutes", "2.5", "--json"]).unwrap();
        assert_eq!((options.directory, options.minutes), ("here".into(), 2.5));
        assert!(options.json);
        for words in [&["--minutes"][..], &["--minutes", "-1"], &["--colour"]] {
            assert!(Options::parse(words).unwrap_err().to_string().contains(words[0]));
        }
    }

    fn kernel(name: &'static str) -> MeasuredKernel {
        MeasuredKernel { name, program: PathBuf::new() }
    }

    #[test]
    fn a_start_has_the_median_of_its_rounds() {
        let kernels = [kernel(ORIGINAL), kernel("fast"), kernel("never")];
        let cycles = |first, others| {
            let mut all = [others; LOADS.len()];
            all[0] = first;
            all
        };
        let round = |original: f64| {
            vec![
                cycles(Some(original), Some(original)),
                cycles(Some(100.0), Some(50.0)),
                cycles(Some(1.0), None),
            ]
        };
        let mut rounds = vec![round(100.0), round(200.0), round(900.0)];
        // In the last round the original's slice of the first load was disturbed.
        rounds[2][0][0] = None;
        let found = speeds(&kernels, &rounds);
        assert_eq!(found.len(), 1);
        let (name, [first, others @ .., all]) = found[0];
        assert_eq!((name, first, others), ("fast", 1.5, [4.0; LOADS.len() - 1]));
        let count = LOADS.len() as f64;
        let mean = ((1.5f64.ln() + (count - 1.0) * 4.0f64.ln()) / count).exp();
        assert!((all - mean).abs() < 1e-12);
    }

    #[test]
    fn starts_go_on_until_all_intervals_are_narrow() {
        let kernels = [kernel(ORIGINAL), kernel("fast")];
        let mut measured = Measured::default();
        assert!(measured.lacks(&kernels));
        let speeds = columns().map(|load| (load.to_owned(), vec![1.1; LEAST])).collect();
        measured.speeds.insert("fast".to_owned(), speeds);
        assert!(!measured.lacks(&kernels));
        let all = measured.speeds.get_mut("fast").unwrap().get_mut(ALL).unwrap();
        all.iter_mut().step_by(2).for_each(|speed| *speed = 1.2);
        assert!(measured.lacks(&kernels));
        let model = Some(BTreeMap::from([("fast", [1.25; LOADS.len() + 1])]));
        let conditions = vec!["Processor.".to_owned()];
        let tables = Tables { measured: &measured, model, kernels: &kernels, conditions };
        let said = tables.text();
        let rows: Vec<&str> = said.lines().filter(|line| line.starts_with("fast")).collect();
        assert!(rows[0].contains("1.100 ±0.00 %") && rows[1].ends_with(" 1.250"), "{said}");
        assert_eq!(tables.document()["kernels"][0]["simulated"]["all"], 1.25);
    }
}
