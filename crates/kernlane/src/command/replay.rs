//! `kernlane replay`: a recording runs again over layouts and machines.
//!
//! Input: a recording, layouts and machines. Output: tables or result rows.

use crate::command::kernel::kernel_of;
use crate::command::text_file::text_of;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use emit::kbuild::BuildTree;
use emit::relink;
use exchange::kinds::FileKind;
use execution::opened::OpenedRecording;
use execution::part::RecordingPart;
use host::note;
use host::out;
use host::recording::Recording;
use image::estimate;
use image::map::PlacementMap;
use image::order;
use image::place::Placement;
use image::{BuildId, Image, vmlinux};
use replay::bound;
use replay::guard::{self, LayoutLoss};
use replay::results::{ORIGINAL, ResultFile, ResultRow};
use replay::{self, CpuOrder, ReplayLayout, ReplayTrial, Replayed, SimulationScope, rows};
use report::text;
use sim::MachineModel;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run a recorded execution again over layouts and machines
///
/// Prints counts of a simulated machine for each layout, the original first: L1I misses by cause,
/// iTLB misses, taken branches, fetched and touched bytes, and time by a simple model. Recordings
/// with data accesses add misses of data caches, second-level caches and TLBs, and time by SimOS'
/// in-order model. --branches adds mispredictions. Machines with an out-of-order core (golden-cove,
/// zen4, zen5, gracemont, simos-1996, simos-1998, pentium4) add its cycles, and what each slot of
/// them was for. A recording of several CPUs with data accesses, on a machine with several cores
/// (server-8, simos-1994-8), adds each CPU's misses by class, and its time. One pass over the
/// recording serves all layouts and machines.
#[derive(Args)]
#[command(after_help = "Examples:\n  kernlane replay net.rec --layout net.kll --machine \
                  server-32k --machine torrellas-8k\n  kernlane replay net.rec --layout net.kll \
                  --branches\n  kernlane replay four.rec --machine server-8 --order recorded")]
pub struct ReplayArgs {
    /// A recording (directory)
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,

    /// Another layout, from `kernlane layout` (*.kll), or the map of one from `kernlane relink`
    /// (*.klm); may be given several times
    #[arg(long, short, value_name = "FILE")]
    pub layout: Vec<PathBuf>,

    #[arg(long, short, value_name = "NAME|FILE.toml", default_value = "server-32k", help = machine_help())]
    pub machine: Vec<String>,

    /// The kernel that was recorded: its build tree, or its vmlinux [default: found by its build
    /// id: where it was recorded, in the cache, below /usr/lib/debug]. It is needed for *.kll, and
    /// names functions. With a tree, layouts are placed as `kernlane relink` would; with a vmlinux
    /// alone, nearly so
    #[arg(long, short, alias = "tree", value_name = "TREE|VMLINUX")]
    pub kernel: Option<PathBuf>,

    #[command(flatten)]
    pub part: RecordingPart,

    /// Also print the lower bound for any layout: the misses of a cache that wastes no byte, by
    /// Belady's policy and by LRU
    #[arg(long)]
    pub bound: bool,

    /// Also predict branches, on machines that say how they do
    #[arg(long)]
    pub branches: bool,

    /// How several CPUs run on a machine with several cores
    #[arg(long, value_enum, default_value = "side-by-side", value_name = "ORDER")]
    pub order: OrderArg,

    /// Print the result rows as JSON, as `kernlane report` takes them
    #[arg(long)]
    pub json: bool,
}

/// The value of `--order`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderArg {
    /// Each CPU follows its own clock, and only what shares data keeps the order of the recording
    SideBySide,
    /// As QEMU ran the CPUs, in long turns
    Recorded,
}

impl From<OrderArg> for CpuOrder {
    fn from(order: OrderArg) -> CpuOrder {
        match order {
            OrderArg::SideBySide => CpuOrder::SideBySide,
            OrderArg::Recorded => CpuOrder::Recorded,
        }
    }
}

fn machine_help() -> String {
    format!("A machine: {}, or a file; may be given several times", machines::names())
}

pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode> {
    let machines: Vec<MachineModel> = machines::models(&args.machine)?;
    let mut files: Vec<LayoutFile> = Vec::new();
    for path in &args.layout {
        let file = LayoutFile::read(path)?;
        if file.name == ORIGINAL || files.iter().any(|known| known.name == file.name) {
            bail!("{}: two layouts have the name {}", path.display(), file.name);
        }
        files.push(file);
    }
    let kernel = wanted_kernel(args, &files)?;
    let kernel = kernel.as_deref();
    let image = kernel.map(|kernel| vmlinux::read(&vmlinux::path(kernel))).transpose()?;
    let mut layouts = vec![ReplayLayout::original()];
    for file in files {
        layouts.push(file.placed(kernel, image.as_ref())?);
    }
    let scope = simulation_scope(args.branches, &machines)?;
    let mut rows = replay_rows(
        &args.recording,
        &layouts,
        &machines,
        scope,
        args.order.into(),
        image.as_ref(),
        &args.part,
    )?;
    if let (true, Some(image)) = (args.bound, &image) {
        add_bounds(&mut rows, &args.recording, image, &machines, &args.part)?;
    }
    let losses = guard::losses(&rows);
    if args.json {
        if image.is_none() {
            note!("no kernel was found, so functions have no names: give it with --kernel");
        }
        out!("{}", ResultFile::new(rows).to_json()?)?;
    } else {
        out!("{}", text::rows(&rows))?;
    }
    warn(&losses);
    Ok(ExitCode::SUCCESS)
}

/// The kernel, if there is one: without it, the functions of the recording have no names.
///
/// # Errors
/// There is none, and a layout or the bound needs it.
fn wanted_kernel(args: &ReplayArgs, layouts: &[LayoutFile]) -> Result<Option<PathBuf>> {
    let is_needed = args.bound
        || args.kernel.is_some()
        || layouts.iter().any(|layout| matches!(layout.content, LayoutContent::Order(_)));
    let kernel = kernel_of(args.kernel.as_deref(), &args.recording);
    match is_needed || !Recording::at(&args.recording).exists() {
        true => kernel.map(Some),
        false => Ok(kernel.ok()),
    }
}

/// The machines that can predict branches, for `--branches`.
///
/// # Errors
/// No machine says how it predicts branches.
pub(crate) fn simulation_scope(
    branches: bool,
    machines: &[MachineModel],
) -> Result<SimulationScope> {
    if !branches {
        return Ok(SimulationScope::Caches);
    }
    ensure!(
        machines.iter().any(|machine| machine.branch.is_some()),
        "--branches needs a --machine with a table [branch] in its file: server-32k, for example"
    );
    Ok(SimulationScope::CachesAndBranches)
}

/// Adds the lower bound for any layout to the original's row of each machine. Reads the recording
/// once for each machine.
fn add_bounds(
    rows: &mut [ResultRow],
    recording: &Path,
    image: &Image,
    machines: &[MachineModel],
    part: &RecordingPart,
) -> Result<()> {
    let recording = Recording::at(recording);
    for machine in machines {
        let opened = OpenedRecording::open(&recording, part, "bound")?.without_data();
        let found = opened.read(|reader| bound::bound(reader, image, machine))?;
        let rows =
            rows.iter_mut().filter(|row| row.machine == machine.name && row.layout == ORIGINAL);
        rows.for_each(|row| row.bound = Some(found));
    }
    Ok(())
}

/// Warns of layouts that are worse than the original.
pub(crate) fn warn(losses: &[LayoutLoss]) {
    losses.iter().for_each(|loss| note!("warning: {}", loss.text()));
}

/// A layout or a map from a file, whose name it bears.
pub(crate) struct LayoutFile {
    path: PathBuf,
    name: String,
    content: LayoutContent,
}

enum LayoutContent {
    Map(PlacementMap),
    Order(order::Layout),
}

impl LayoutFile {
    /// # Errors
    /// The file cannot be read or is damaged.
    pub(crate) fn read(path: &Path) -> Result<LayoutFile> {
        let named = || path.display().to_string();
        let text = text_of(path, &[FileKind::Layout, FileKind::Map])?;
        let name = path.file_stem().with_context(named)?.to_string_lossy().into_owned();
        let content = match PlacementMap::is_map(&text) {
            true => LayoutContent::Map(PlacementMap::from_text(&text).with_context(named)?),
            false => LayoutContent::Order(order::Layout::from_text(&text).with_context(named)?),
        };
        Ok(LayoutFile { path: path.to_owned(), name, content })
    }

    /// Where the file puts the code.
    ///
    /// # Errors
    /// The file names code that `kernel` does not have; or a layout has no `kernel`.
    pub(crate) fn placed(
        self,
        kernel: Option<&Path>,
        image: Option<&Image>,
    ) -> Result<ReplayLayout> {
        let LayoutFile { path, name, content } = self;
        let named = || path.display().to_string();
        match content {
            LayoutContent::Map(map) => {
                // Another kernel's map gets a message of its own, see `replay_trials`.
                if let (Some(kernel), Some(image)) = (kernel, image)
                    && image.build_id == map.build_id
                {
                    let code = vmlinux::code_ranges(&vmlinux::path(kernel))?;
                    map.ensure_within(&code).with_context(named)?;
                }
                Ok(ReplayLayout::predicted(name, map.build_id, map.placement))
            }
            LayoutContent::Order(order) => {
                let placement = placed(&order, kernel, image).with_context(named)?;
                Ok(ReplayLayout::predicted(name, order.build_id, placement))
            }
        }
    }
}

/// Where a layout puts the code: as `kernlane relink` would, if `kernel` is a tree; nearly so, if
/// there is only its image.
///
/// # Errors
/// There is neither, or the layout names code that the kernel does not have.
pub(crate) fn placed(
    order: &order::Layout,
    kernel: Option<&Path>,
    image: Option<&Image>,
) -> Result<Placement> {
    match (kernel, image) {
        (Some(tree), _) if tree.join("vmlinux.o").exists() => {
            relink::predicted_placement(&BuildTree::open(tree, &[])?, order)
        }
        (_, Some(image)) => estimate::placement(image, order),
        _ => bail!("give --kernel: a layout names blocks of its kernel"),
    }
}

/// The result rows of a part of a recording, see [`rows::rows`]. Shows progress on a terminal.
///
/// # Errors
/// The recording is damaged, or `layouts` or `image` are of another kernel.
pub(crate) fn replay_rows(
    recording: &Path,
    layouts: &[ReplayLayout],
    machines: &[MachineModel],
    scope: SimulationScope,
    order: CpuOrder,
    image: Option<&Image>,
    part: &RecordingPart,
) -> Result<Vec<ResultRow>> {
    let trials = layouts.iter().map(|layout| ReplayTrial::new(layout, machines, scope));
    let trials: Vec<_> = trials.map(|trial| ReplayTrial { order, ..trial }).collect();
    let build_id = image.map(|image| &image.build_id);
    let replayed = replay_trials(recording, &trials, build_id, part)?;
    let mut rows = rows::rows(&replayed, layouts, machines, image);
    if !part.is_whole() {
        let named =
            |row: &mut ResultRow| row.conditions.insert("part".to_owned(), part.to_string());
        rows.iter_mut().for_each(|row| drop(named(row)));
    }
    Ok(rows)
}

/// What replay counted of a part of a recording, each layout on its own machines. Shows progress on a
/// terminal.
///
/// # Errors
/// As [`replay_rows`]; `kernel`: that of `--kernel`.
pub(crate) fn replay_trials(
    recording: &Path,
    trials: &[ReplayTrial<'_>],
    kernel: Option<&BuildId>,
    part: &RecordingPart,
) -> Result<Replayed> {
    let mut opened = OpenedRecording::open(&Recording::at(recording), part, "replay")?;
    if !part.is_whole() {
        opened = opened.without_data();
    }
    ensure_recorded(&opened, trials, kernel)?;
    opened.read(|reader| replay::replay_trials(reader, trials))
}

/// Checks that layouts and kernel are those of the recording.
///
/// # Errors
/// One is not. `kernel`: that of `--kernel`.
pub(crate) fn ensure_recorded(
    opened: &OpenedRecording,
    trials: &[ReplayTrial<'_>],
    kernel: Option<&BuildId>,
) -> Result<()> {
    let recorded = &opened.header().build_id;
    let kernels = trials
        .iter()
        .filter_map(|trial| Some((trial.layout.name.as_str(), trial.layout.kernel.as_ref()?)));
    for (what, kernel) in kernels.chain(kernel.map(|kernel| ("--kernel", kernel))) {
        if kernel.0 != *recorded {
            bail!(
                "{what} is of the kernel with build id {}, but {} of {recorded}",
                kernel.0,
                opened.name()
            );
        }
    }
    Ok(())
}
