//! `cargo xtask judge-processor`: compares the model of a processor with this machine's processor.
//!
//! The same programs run natively, in slices, and in a guest, where they are recorded with their
//! data accesses and run on the model: *points*, each of which shows one structure of a processor,
//! and programs of Debian. All figures are core cycles in user mode.
//!
//! ```text
//! points, programs → recorded → model  ─┐
//!                  └→ native → results ─┴→ steps, tables
//! ```
//!
//! Results are kept in a directory. The command goes on where it was ended.

mod inlined;
mod measured;
mod memory_here;
pub(crate) mod model;
mod native;
mod point;
mod points;
mod programs;
mod random_bits;
pub(crate) mod recorded;
mod results;
mod sampled;
mod singles;
mod steps;
mod tables;
mod thunks;
mod window;

use anyhow::{Result, ensure};
use host::recording::Recording;
use lab::kept::{Figure, Kept};
use lab::kernel::{self, Compiler};
use lab::processor::{self, Processor};
use lab::session::{self, Minutes, Session, percent};
use lab::timed;
use machines::Machine;
use measured::{Earlier, ProcessorFigures};
use memory_here::{MemoryHere, PointCosts};
use point::Point;
use programs::{GROUPS, Group, Program};
use recorded::Recorder;
use results::{Model, Native};
use sampled::ReturnCosts;
use sim::MachineModel;
use singles::IDENTIFY;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tables::{Conditions, INTERVAL_TARGET, Tables};

/// Where results are kept by default.
pub const DIRECTORY: &str = "target/judge-processor";
/// Where the tables are kept in a checkout, as text and as JSON.
const KEPT: &str = "bench/judge-processor";
/// How long is measured by default.
pub const MINUTES: Minutes = Minutes::new(20.0);
/// How often a round measures what interrupts cost.
const INTERRUPTED: u32 = 5;
/// With this number of samples, the share of user mode has an error of about 1 % or less.
const ENOUGH_SAMPLES: u64 = 20_000;
/// Each figure has at least this number of rounds.
const LEAST: usize = 6;

/// Where, how long, and what to compare.
pub struct Options {
    /// Where results are kept.
    pub directory: PathBuf,
    /// The machine to compare with. `None`: the described one that is nearest to this processor.
    pub machine: Option<String>,
    /// How long to measure.
    pub minutes: Minutes,
    /// Leave the programs out.
    pub points: bool,
    /// Leave the points out.
    pub programs: bool,
    /// If there are any: only the points with these names before the slash, and no programs.
    pub curves: Vec<String>,
    /// The JSON output of an earlier run (`bench/judge-processor*.json`). `None`: measure.
    pub measured: Option<PathBuf>,
    /// Print JSON.
    pub json: bool,
}

/// The described machine that is nearest to a processor, and whether the processor is of this kind.
/// Families and models: AMD, "Revision Guide" of each family; Linux,
/// arch/x86/include/asm/intel-family.h.
pub(crate) fn nearest(processor: &Processor) -> (&'static str, bool) {
    match (processor.vendor.as_str(), processor.family, processor.model) {
        ("AuthenticAMD", 25, 0x10..=0x1f | 0x60..=0x7f | 0xa0..=0xaf) => ("zen4", true),
        // EPYC 9005, Ryzen 9000 and Ryzen AI 300; later ones of the family are not known here.
        ("AuthenticAMD", 26, model) => {
            ("zen5", matches!(model, 0..=0x2f | 0x40..=0x4f | 0x60..=0x7f))
        }
        ("AuthenticAMD" | "HygonGenuine", _, _) => ("zen4", false),
        // Alder Lake, Raptor Lake and the Xeons of their kind.
        ("GenuineIntel", 6, 0x8f | 0x97 | 0x9a | 0xb7 | 0xba | 0xbf | 0xcf) => {
            ("golden-cove", true)
        }
        ("GenuineIntel", 6, 0xbe) => ("gracemont", true),
        _ => ("golden-cove", false),
    }
}

/// Judges.
///
/// # Errors
/// Something cannot be recorded, simulated or measured.
pub fn judge_processor(options: &Options) -> Result<()> {
    let here = Processor::here()?;
    let earlier = options.measured.as_deref().map(Earlier::read).transpose()?;
    let (near, same) = nearest(&here);
    let near = earlier.as_ref().map_or(near, |earlier| &earlier.machine);
    let name = options.machine.as_deref().unwrap_or(near);
    let machine = machines::find(name)?.model;
    let points = points::of(&options.curves)?;
    // A program of other points has its own results.
    let directory = session::directory(&options.directory.join(options.curves.join("+")))?;
    let program = Built::new(&directory, &points)?;
    let mut judge = Judge {
        native: results::native(&directory, &format!("{} {here:?}", program.hash))?,
        model: results::model(
            &directory,
            &machine.name,
            &image::sealed::sha256(format!("{} {machine:?}", program.hash).as_bytes()),
        )?,
        points: if options.programs { Vec::new() } else { points },
        groups: if options.points || !options.curves.is_empty() { &[] } else { &GROUPS },
        program,
        machine,
        directory,
    };
    judge.simulate()?;
    let (measured, sentences) = match &earlier {
        Some(earlier) => {
            let (measured, left_out) = earlier.figures(&judge.model.results);
            let mut sentences = earlier.measured.clone();
            if !left_out.is_empty() {
                sentences.push(format!("With another input, left out: {}.", left_out.join(", ")));
            }
            (measured, sentences)
        }
        None => {
            let roots = judge.roots()?;
            // The thread that measures stays on one CPU.
            std::thread::scope(|scope| {
                lab::joined(scope.spawn(|| judge.measure(&roots, options.minutes)), "measuring")
            })?;
            let measured = ProcessorFigures::here(&judge.points, &judge.native.results);
            let sentences = judge.measuring_conditions(&here, &measured);
            (measured, sentences)
        }
    };
    let found = judge.with_memory_here(name, &measured)?;
    let simulated = judge.simulated_how(name == near && same, earlier.is_some(), found.as_ref());
    let models = [Some(&judge.model.results), found.as_ref().map(|found| &found.model)];
    let conditions = Conditions { measured: sentences, simulated };
    let tables = Tables::new(conditions, &judge.points, &measured, models, &judge.machine);
    let json = serde_json::to_string_pretty(&tables)? + "\n";
    let whole =
        !options.points && !options.programs && options.curves.is_empty() && earlier.is_none();
    if whole {
        session::keep_in_checkout(&format!("{KEPT}.txt"), &tables.text())?;
        session::keep_in_checkout(&format!("{KEPT}.json"), &json)?;
    }
    print!("{}", if options.json { json } else { tables.text() });
    Ok(())
}

/// The program that runs the points.
struct Built {
    path: PathBuf,
    bytes: Vec<u8>,
    /// Of its source.
    hash: String,
}

impl Built {
    fn new(directory: &Path, points: &[Point]) -> Result<Built> {
        let source = points::source(points);
        let hash = points::hash(&source);
        let path = directory.join(format!("judged-{}", &hash[..12]));
        if !path.is_file() {
            host::output::write(&path, &points::compile(&source)?)?;
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        Ok(Built { bytes: std::fs::read(&path)?, path, hash })
    }
}

struct Judge {
    directory: PathBuf,
    machine: MachineModel,
    program: Built,
    points: Vec<Point>,
    groups: &'static [Group],
    native: Kept<Native>,
    model: Kept<Model>,
}

/// The machine with the memory that the points found, and what its model gave.
struct WithMemoryHere {
    name: String,
    memory: MemoryHere,
    model: Model,
}

/// Records and simulates the programs that the model of `machine` has not run.
fn simulate_programs(
    groups: &[Group],
    directory: &Path,
    machine: &MachineModel,
    model: &mut Kept<Model>,
) -> Result<()> {
    let has = |model: &Model, group: &Group| {
        group.programs.iter().all(|program| model.programs.contains_key(program.name))
    };
    let lacking: Vec<&Group> = groups.iter().filter(|group| !has(&model.results, group)).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let tree = kernel::tree(Compiler::Gcc)?;
    let recorder = Recorder { tree: &tree, directory };
    let recordings: Vec<Recording> =
        lacking.iter().map(|group| recorder.group(group)).collect::<Result<_>>()?;
    std::thread::scope(|scope| {
        let simulated = |recording| scope.spawn(move || model::simulated(recording, machine));
        let running: Vec<_> = recordings.iter().map(simulated).collect();
        for (group, running) in lacking.iter().zip(running) {
            let found = lab::joined(running, group.name)?;
            ensure!(found.len() == group.programs.len(), "{}: other programs", group.name);
            let names = group.programs.iter().map(|program| program.name.to_owned());
            model.results.programs.extend(names.zip(found));
            model.save()?;
        }
        Ok(())
    })
}

/// Where perf's data lie until they are read.
fn perf_data(driver: &Path) -> PathBuf {
    driver.with_extension("perf")
}

/// A thing to measure in a round.
#[derive(Clone, Copy)]
enum Subject<'a> {
    Point(&'a Point),
    Program(&'a Path, &'a Program),
}

impl Judge {
    /// Records and simulates what the model has not run.
    fn simulate(&mut self) -> Result<()> {
        if self.points.iter().any(|point| !self.model.results.points.contains_key(&point.name)) {
            let tree = kernel::tree(Compiler::Gcc)?;
            let recorder = Recorder { tree: &tree, directory: &self.directory };
            let found = self.simulated(&recorder.points(&self.program.bytes)?)?;
            ensure!(found.len() == self.points.len(), "the recording has other points");
            let names = self.points.iter().map(|point| point.name.clone());
            self.model.results.points = names.zip(found).collect();
            self.model.save()?;
        }
        simulate_programs(self.groups, &self.directory, &self.machine, &mut self.model)
    }

    fn simulated(&self, recording: &Recording) -> Result<Vec<model::Simulated>> {
        model::simulated(recording, &self.machine)
    }

    /// Writes the machine with the memory that the points found here, and simulates the programs
    /// on it. `None`: the points do not say enough. `name`: the described machine's.
    fn with_memory_here(
        &self,
        name: &str,
        measured: &ProcessorFigures,
    ) -> Result<Option<WithMemoryHere>> {
        let cost = |name: &str| {
            let point = self.points.iter().find(|point| point.name == name)?;
            Some(PointCosts {
                measured: measured.points.get(name)?.value,
                simulated: self.model.results.point(point)?,
            })
        };
        let Some(memory) = MemoryHere::new(&self.machine, cost) else { return Ok(None) };
        let described = machines::find(name)?;
        let name = format!("{}-here", self.machine.name);
        let text = memory.file(&described.text, &name)?;
        let path = self.directory.join(format!("{name}.toml"));
        host::output::write(&path, text.as_bytes())?;
        let machine = Machine::parse(&text, &path.display().to_string())?.model;
        let hash = image::sealed::sha256(format!("{} {machine:?}", self.program.hash).as_bytes());
        let mut model = results::model(&self.directory, &name, &hash)?;
        simulate_programs(self.groups, &self.directory, &machine, &mut model)?;
        Ok(Some(WithMemoryHere { name, memory, model: model.results }))
    }

    /// For each group, the root file system in which its programs run natively.
    fn roots(&self) -> Result<Vec<PathBuf>> {
        if self.groups.is_empty() {
            return Ok(Vec::new());
        }
        let tree = kernel::tree(Compiler::Gcc)?;
        let recorder = Recorder { tree: &tree, directory: &self.directory };
        let root = |group| recorder.root(group, &recorder.group(group)?);
        self.groups.iter().map(root).collect()
    }

    /// Measures in rounds until every interval is narrow or the time has passed.
    fn measure(&mut self, roots: &[PathBuf], minutes: Minutes) -> Result<()> {
        let Judge { native, points, groups, program, .. } = self;
        let session = Session::begin(minutes, native.results.seconds)?;
        // Programs need the cost of a cpuid, also without the other points.
        let identify = points::all().into_iter().find(|point| point.name == IDENTIFY);
        let alone = identify.iter().filter(|_| points.is_empty());
        let all: Vec<Subject<'_>> = points
            .iter()
            .chain(alone)
            .map(Subject::Point)
            .chain(groups.iter().zip(roots).flat_map(|(group, root)| {
                group.programs.iter().map(move |program| Subject::Program(root.as_path(), program))
            }))
            .collect();
        for (group, root) in groups.iter().zip(roots) {
            for it in group.programs {
                let counts = &mut native.results.counts;
                if !counts.contains_key(it.name) {
                    let counted = native::counts(&program.path, root, it)?;
                    counts.insert(it.name.to_owned(), counted);
                }
            }
        }
        if native.results.returns.is_none() && !groups.is_empty() {
            let costs = sampled::return_costs(&program.path, &perf_data(&program.path))?;
            native.results.returns = Some(costs);
        }
        let mut random = session.random();
        while session.has_time() {
            let mut round: Vec<Subject<'_>> =
                all.iter().copied().filter(|it| it.lacks(&native.results)).collect();
            if round.is_empty() {
                break;
            }
            random.shuffle(&mut round);
            for _ in 0..if groups.is_empty() { 0 } else { INTERRUPTED } {
                native.results.add_interrupted(native::interrupted(&program.path)?);
            }
            eprintln!("measuring: {} of {} intervals are wide", round.len(), all.len());
            for measured in round {
                if !session.has_time() {
                    break;
                }
                measured.once(&program.path, &mut native.results)?;
            }
            native.results.seconds = session.seconds();
            if let Some(disturbances) = session.disturbances() {
                native.results.disturbances = disturbances;
            }
            native.save()?;
        }
        Ok(())
    }

    /// How the figures were measured, in sentences.
    fn measuring_conditions(&self, here: &Processor, measured: &ProcessorFigures) -> Vec<String> {
        let native = &self.native.results;
        let figures: Vec<&Figure> =
            measured.points.values().chain(measured.programs.values()).collect();
        let narrow = figures.iter().filter(|figure| figure.half_width() <= INTERVAL_TARGET).count();
        let shares = native.disturbances;
        let mut sentences = vec![
            format!("Processor: {here}."),
            format!(
                "Measured for {:.0} s: {narrow} of {} intervals (95 %) are within ±1 %. Rounds \
                 gave nothing: {} because the frequency changed or a program was not watched, {} \
                 because others used the core's other thread (fewer than {:.1} no-ops in a cycle) \
                 or, near a program, the L3 (more than {:.0} cycles for a load of 4 MB).",
                native.seconds,
                figures.len(),
                native.disturbed,
                native.crowded(),
                timed::ALONE * native.most_no_ops(),
                timed::QUIET * native.fewest_cycles()
            ),
            format!(
                "Of the time of the measured CPU the hypervisor took {}, and other programs {}; \
                 the other CPUs were busy for {}.",
                percent(shares.steal_percent),
                percent(shares.other_load_percent),
                percent(shares.other_cpus_percent)
            ),
        ];
        if let Some([low, high]) = native.hertz {
            sentences.push(format!("The core ran at {:.2} to {:.2} GHz.", low / 1e9, high / 1e9));
        }
        sentences.extend(self.foreign_time_conditions());
        sentences
    }

    /// The time that counts as user mode but is not a program's own, in sentences.
    fn foreign_time_conditions(&self) -> Vec<String> {
        let native = &self.native.results;
        let counts = native.counts.values().map(|counts| counts.identifications);
        let identify = native.point(IDENTIFY).map(|figure| figure.value);
        let mut sentences = Vec::new();
        if let (Some(cost), Some(fewest), Some(most)) =
            (identify, counts.clone().min(), counts.max())
        {
            let executed = match fewest == most {
                true => most.to_string(),
                false => format!("{fewest} to {most}"),
            };
            sentences.push(format!(
                "A cpuid took {cost:.0} cycles, for which a hypervisor may have run. Programs \
                 execute {executed} of them when they start; these cycles are not counted."
            ));
        }
        if !native.interrupted.is_empty() {
            sentences.push(format!(
                "Interrupts made programs {:.1} % longer, as chains of known length say; these \
                 cycles are not counted.",
                (native.lengthening() - 1.0) * 100.0
            ));
        }
        if let Some(ReturnCosts { fault, call }) = native.returns {
            sentences.push(format!(
                "Samples charge the kernel's last instructions before a return to user mode: \
                 {fault:.0} cycles of a page fault, {call:.0} of a system call. These cycles are \
                 not counted."
            ));
        }
        sentences
    }

    /// How the figures were simulated, in sentences. `describes`: the machine describes this
    /// processor.
    fn simulated_how(
        &self,
        describes: bool,
        earlier: bool,
        found: Option<&WithMemoryHere>,
    ) -> Vec<String> {
        let name = &self.machine.name;
        let mut sentences = vec![match (earlier, describes) {
            (true, _) => format!("Simulated: {name}. The measured figures are of an earlier run."),
            (false, true) => format!("Simulated: {name}, which describes the processor."),
            (false, false) => format!("Simulated: {name}, another processor."),
        }];
        if let Some(WithMemoryHere { name, memory, .. }) = found {
            sentences.push(format!(
                "The points find another memory than described: {}. Programs are simulated with \
                 it, too: {name}.",
                memory.text()
            ));
        }
        sentences
    }
}

impl Subject<'_> {
    /// Whether more rounds are needed.
    fn lacks(&self, native: &Native) -> bool {
        let figure = match self {
            Subject::Point(point) => native.point(&point.name),
            Subject::Program(_, program) => native.program(program.name),
        };
        figure.is_none_or(|it| it.rounds < LEAST || it.half_width() > INTERVAL_TARGET)
    }

    /// Measures one round.
    fn once(&self, driver: &Path, native: &mut Native) -> Result<()> {
        let hertz = processor::hertz();
        let [low, high] = native.hertz.unwrap_or([hertz; 2]);
        native.hertz = Some([low.min(hertz), high.max(hertz)]);
        match self {
            Subject::Point(point) => {
                let slices = native::point(driver, point)?;
                native.add_point(&point.name, &slices);
            }
            Subject::Program(root, program) => {
                native.add_run(program.name, native::program(driver, root, program)?);
                let samples = native.samples.entry(program.name.to_owned()).or_default();
                if samples.all() < ENOUGH_SAMPLES {
                    *samples += sampled::samples(driver, root, program, &perf_data(driver))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_machine_is_known() {
        let of = |vendor: &str, family, model| {
            let name = String::new();
            nearest(&Processor { vendor: vendor.to_owned(), family, model, name })
        };
        assert_eq!(of("AuthenticAMD", 25, 17), ("zen4", true));
        assert_eq!(of("AuthenticAMD", 25, 1), ("zen4", false));
        assert_eq!(of("AuthenticAMD", 26, 2), ("zen5", true));
        assert_eq!(of("AuthenticAMD", 26, 0x50), ("zen5", false));
        assert_eq!(of("GenuineIntel", 6, 207), ("golden-cove", true));
        assert_eq!(of("GenuineIntel", 6, 0xbe), ("gracemont", true));
        assert_eq!(of("", 0, 0), ("golden-cove", false));
        for name in ["zen4", "zen5", "golden-cove", "gracemont"] {
            assert!(machines::find(name).unwrap().model.core.is_some());
        }
    }
}
