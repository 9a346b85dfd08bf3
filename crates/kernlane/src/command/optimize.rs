//! `kernlane optimize`: the whole road, from a workload to a faster kernel and the proof.
//!
//! Input: a workload and a built tree. Output: a directory with the result of each step, and a
//! table.

use crate::command::layout::search::{LayoutSearch, TriesArgs};
use crate::command::layout::{CallPaddingArgs, Ground, algorithms, extra_counts};
use crate::command::record::TimeLimitArgs;
use crate::command::replay::{replay_rows, simulation_scope, warn};
use crate::command::{record, workload};
use ::layout::Algorithm;
use anyhow::{Context, Result, bail};
use clap::Args;
use emit::kbuild::BuildTree;
use emit::relink;
use execution::part::RecordingPart;
use guest::record::is_made;
use guest::{self, GuestKernel, RecordingRequest};
use host::note;
use host::out;
use host::outln;
use host::progress::Progress;
use host::recording::Recording;
use host::{interrupt, output};
use image::map::PlacementMap;
use image::order::Layout;
use image::{Image, vmlinux};
use profile::collect;
use replay::results::{ResultFile, ResultRow};
use replay::{CpuOrder, SimulationScope, comparison, guard};
use report::{page, text};
use sim::MachineModel;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use trace::CpuCount;

/// Record a workload, lay the kernel out for it, relink, check, and measure the gain
///
/// Ends with a table: the original kernel, the prediction by replay, and the relinked kernel
/// recorded under the same workload. The output directory keeps the result of every step. A step
/// whose result exists is not repeated.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane optimize net --tree ~/linux -o net.optimized")]
pub struct OptimizeArgs {
    #[arg(help = guest::argument_help())]
    pub workload: String,

    /// The directory in which the kernel was built. It is only read
    #[arg(long, value_name = "DIR")]
    pub tree: PathBuf,

    /// The directory for recordings, layouts, kernels and the report
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,

    /// A layout algorithm; may be given several times
    #[arg(
        long,
        short,
        value_name = "ALGORITHM",
        default_values_t = [Algorithm::default()],
        value_parser = algorithms()
    )]
    pub layout: Vec<Algorithm>,

    /// A machine to simulate: a shipped one, or a file; may be given several times
    #[arg(
        long,
        short,
        value_name = "NAME|FILE.toml",
        default_values_t = ["server-32k", "ultrasparc-16k", "torrellas-8k"].map(str::to_owned)
    )]
    pub machine: Vec<String>,

    #[command(flatten)]
    pub padding: CallPaddingArgs,

    /// Where all randomness of the guest and of the layouts comes from
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    #[command(flatten)]
    pub tries: TriesArgs,

    /// CPUs of the guest, 1 to 8
    #[arg(long, value_name = "N", default_value_t = CpuCount::ONE, value_parser = record::cpus())]
    pub cpus: CpuCount,

    /// A variable for make, as given when the kernel was built
    #[arg(long = "make", value_name = "VAR=VALUE")]
    pub make: Vec<String>,

    #[command(flatten)]
    pub time_limit: TimeLimitArgs,

    /// Also predict branches, on machines that say how they do
    #[arg(long)]
    pub branches: bool,

    /// Print the result rows as JSON, as `kernlane report` takes them
    #[arg(long)]
    pub json: bool,
}

/// The road: record → attribute → order → place, emit → check → replay → report.
pub(crate) fn run(args: &OptimizeArgs) -> Result<ExitCode> {
    interrupt::catch()?;
    let machines: Vec<MachineModel> = machines::models(&args.machine)?;
    let scope = simulation_scope(args.branches, &machines)?;
    output::in_directory(&args.output, |_| along(args, machines, scope))
}

fn along(
    args: &OptimizeArgs,
    machines: Vec<MachineModel>,
    scope: SimulationScope,
) -> Result<ExitCode> {
    let tree = BuildTree::open(&args.tree, &args.make)?;
    let mut image = vmlinux::read(&tree.file("vmlinux"))?;
    args.padding.apply(&mut image);
    let road = Road { args, scope, tree, machines, image };

    let original = road.record("original", &args.tree, None)?;
    let kernels = road.relinked(&original)?;
    let mut rows = road.predict(&original, &kernels)?;
    for kernel in &kernels {
        rows.extend(road.measure(kernel)?);
    }
    road.report(rows)
}

struct Road<'a> {
    args: &'a OptimizeArgs,
    scope: SimulationScope,
    tree: BuildTree,
    machines: Vec<MachineModel>,
    image: Image,
}

/// A kernel that was relinked by one algorithm's layout.
struct Relinked {
    algorithm: Algorithm,
    directory: PathBuf,
    map: PlacementMap,
}

impl Road<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.args.output.join(name)
    }

    /// An interrupted command ends here, between two steps.
    fn say(&self, what: &str) -> Result<()> {
        interrupt::check()?;
        note!("{what}");
        Ok(())
    }

    /// The recording of one kernel under the workload.
    fn record(&self, name: &str, kernel: &Path, vmlinux: Option<&Path>) -> Result<PathBuf> {
        let directory = self.path(&format!("{name}.rec"));
        let request = RecordingRequest {
            workload: workload::open(&self.args.workload)?,
            kernel: GuestKernel::open(kernel, vmlinux)?,
            files: Vec::new(),
            output: directory.clone(),
            seed: self.args.seed,
            cpus: self.args.cpus,
            turn: None,
            data: false,
            memory_mb: None,
            time_limit: self.args.time_limit.duration(),
            force: true,
        };
        if is_made(&request) {
            self.say(&format!("using the existing recording {}", directory.display()))?;
            return Ok(directory);
        }
        self.say(&format!("recording {} on the {name} kernel", request.workload.name))?;
        record::with_progress(&request, None)?;
        Ok(directory)
    }

    /// Lays out, relinks and checks, once for each algorithm.
    fn relinked(&self, original: &Path) -> Result<Vec<Relinked>> {
        self.say("counting blocks, edges and calls")?;
        let profile = collect::of_recording(
            &Recording::at(original),
            &self.image,
            &RecordingPart::WHOLE,
            extra_counts(&self.args.layout),
        )?;
        output::write(&self.path("profile.klp"), profile.to_json().as_bytes())?;
        let ground = Ground::new(&self.image, &profile)?;
        let mut kernels = Vec::new();
        for &algorithm in &self.args.layout {
            self.say(&format!("laying the kernel out by {algorithm}"))?;
            let layout = self.laid_out(&ground, algorithm, original)?;
            let text = layout.to_text();
            output::write(&self.path(&format!("{algorithm}.kll")), text.as_bytes())?;
            kernels.push(self.relink(algorithm, &layout, &text)?);
        }
        Ok(kernels)
    }

    /// The layout by an algorithm: the best of several, if they are wanted and the algorithm
    /// depends on its seed.
    fn laid_out(
        &self,
        ground: &Ground<'_>,
        algorithm: Algorithm,
        original: &Path,
    ) -> Result<Layout> {
        let (first, tries) = (self.args.seed, self.args.tries.tries);
        if tries == 1 || !algorithm.depends_on_seed() {
            return Ok(ground.lay_out(algorithm, first)?.0);
        }
        let search = LayoutSearch {
            algorithm,
            seeds: first..first.saturating_add(tries),
            kernel: &self.args.tree,
            image: &self.image,
            machine: self.machines.first().context("no machine is named")?.clone(),
            recordings: &[original.to_owned()],
            part: &RecordingPart::WHOLE,
        };
        let (layout, _, tried) = search.run(ground)?;
        note!("{}", report::search::text(&tried).trim_end());
        Ok(layout)
    }

    fn relink(&self, algorithm: Algorithm, layout: &Layout, text: &str) -> Result<Relinked> {
        let directory = self.path(&format!("{algorithm}.kernel"));
        let done = directory.join("layout.kll");
        if fs::read_to_string(&done).is_ok_and(|known| known == text) {
            self.say(&format!("using the existing kernel {}", directory.display()))?;
            let map = read_map(&directory)?;
            Ok(Relinked { algorithm, directory, map })
        } else {
            self.say("relinking")?;
            // Until it is whole and checked, it is not there already.
            match fs::remove_file(&done) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| done.display().to_string());
                }
                _ => {}
            }
            let progress = Progress::new("reading the kernel");
            let destination = relink::Destination::Directory(&directory);
            let made =
                relink::relink(&self.tree, layout, &destination, &|step| progress.say(step))?;
            drop(progress);
            let map = made.map.context("nothing was linked")?;
            self.check(algorithm, &directory, &map)?;
            // Written last, so that only a checked kernel is reused.
            output::write(&done, text.as_bytes())?;
            Ok(Relinked { algorithm, directory, map })
        }
    }

    fn check(&self, algorithm: Algorithm, directory: &Path, map: &PlacementMap) -> Result<()> {
        self.say("checking that the relinked kernel is the old program")?;
        let (old, new) =
            (check::KernelBuild::read(&self.args.tree)?, check::KernelBuild::read(directory)?);
        let (old, new) = (old.kernel()?, new.kernel()?);
        let findings = check::check(&old, &new, &map.placement)?;
        if !findings.equal() {
            let text = findings.text(&old.kernel, &new.kernel, 3);
            bail!(
                "the kernel relinked by {algorithm} is not the old program; do not use the kernel \
                 in {}\n{text}",
                directory.display()
            );
        }
        Ok(())
    }

    /// The original's recording replayed over every layout.
    fn predict(&self, original: &Path, kernels: &[Relinked]) -> Result<Vec<ResultRow>> {
        self.say("replaying the recording over each layout")?;
        let mut layouts = vec![replay::ReplayLayout::original()];
        layouts.extend(kernels.iter().map(|Relinked { algorithm, map, .. }| {
            let placement = map.placement.clone();
            replay::ReplayLayout::predicted(algorithm.name(), map.build_id.clone(), placement)
        }));
        replay_rows(
            original,
            &layouts,
            &self.machines,
            self.scope,
            CpuOrder::SideBySide,
            Some(&self.image),
            &RecordingPart::WHOLE,
        )
    }

    /// The relinked kernel under the same workload.
    fn measure(&self, kernel: &Relinked) -> Result<Vec<ResultRow>> {
        let vmlinux = kernel.directory.join("vmlinux");
        let name = kernel.algorithm.to_string();
        let recording =
            self.record(&name, &kernel.directory.join("arch/x86/boot/bzImage"), Some(&vmlinux))?;
        self.say(&format!("measuring the {name} kernel"))?;
        let image = vmlinux::read(&vmlinux)?;
        replay_rows(
            &recording,
            &[replay::ReplayLayout::recorded(name)],
            &self.machines,
            self.scope,
            CpuOrder::SideBySide,
            Some(&image),
            &RecordingPart::WHOLE,
        )
    }

    fn report(&self, rows: Vec<ResultRow>) -> Result<ExitCode> {
        let results = ResultFile::new(rows);
        let json = results.to_json()?;
        let comparisons = comparison::compare(&results.rows)?;
        let report = self.path("report.html");
        output::write(&self.path("results.json"), json.as_bytes())?;
        output::write(&report, page::page(&[], &comparisons)?.as_bytes())?;
        if self.args.json {
            out!("{json}")?;
        } else {
            out!("{}", text::comparisons(&comparisons))?;
            outln!("\nthe report is {}", report.display())?;
        }
        warn(&guard::losses(&results.rows));
        Ok(ExitCode::SUCCESS)
    }
}

fn read_map(directory: &Path) -> Result<PlacementMap> {
    let path = directory.join("vmlinux.klm");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    PlacementMap::from_text(&text).with_context(|| path.display().to_string())
}
