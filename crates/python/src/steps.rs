//! The steps of the road: recording, laying out, replaying.
//!
//! Input: what the command of the same name takes. Output: files, and what the command prints with
//! `--json`, as a dictionary.

use crate::machine::MachineInput;
use crate::recording::Recording;
use crate::work::{exception, from_json, run};
use anyhow::{Context, Result, anyhow, ensure};
use host::{note, output};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use road::execution::cpu_order::CpuOrder;
use road::execution::part::RecordingPart;
use road::guest::{self, GuestKernel, ProcessorRequest, RecordingRequest, TypedWorkload, Workload};
use road::host::progress::Progress;
use road::image::vmlinux;
use road::kernel::{kernel_of, kernel_of_all};
use road::laid_out::LaidOut;
use road::layout::Algorithm;
use road::layout_file::LayoutFile;
use road::profile::ProfileMerge;
use road::replay::results::ResultFile;
use road::replay::{ReplayLayout, SimulationScope};
use road::replayed::ReplayRequest;
use road::sampling::Sampling;
use road::trace::CpuCount;
use road::{counts, ground::Ground, likeness, modules, workload};
use std::path::PathBuf;
use std::time::Duration;

/// A recording: one that is open, or its directory.
pub(crate) struct RecordingInput {
    path: PathBuf,
    kernel: Option<PathBuf>,
}

impl<'py> FromPyObject<'_, 'py> for RecordingInput {
    type Error = PyErr;

    fn extract(input: Borrowed<'_, 'py, PyAny>) -> PyResult<RecordingInput> {
        if let Ok(recording) = input.cast::<Recording>() {
            let recording = recording.get();
            let kernel = recording.named_kernel().cloned();
            return Ok(RecordingInput { path: recording.directory().clone(), kernel });
        }
        match input.extract() {
            Ok(path) => Ok(RecordingInput { path, kernel: None }),
            Err(_) => Err(PyTypeError::new_err(format!(
                "a recording is its directory, or what kernlane.open returns, not {}",
                &*input
            ))),
        }
    }
}

/// One recording or several.
pub(crate) struct RecordingInputs(Vec<RecordingInput>);

impl<'py> FromPyObject<'_, 'py> for RecordingInputs {
    type Error = PyErr;

    fn extract(input: Borrowed<'_, 'py, PyAny>) -> PyResult<RecordingInputs> {
        if let Ok(one) = input.extract() {
            return Ok(RecordingInputs(vec![one]));
        }
        let all = input.try_iter()?.map(|one| one?.extract());
        all.collect::<PyResult<Vec<_>>>().map(RecordingInputs)
    }
}

fn part(bounds: (f64, f64)) -> Result<RecordingPart> {
    let part = RecordingPart { from: bounds.0, until: bounds.1 };
    part.validate().with_context(|| format!("part=({}, {})", part.from, part.until))?;
    Ok(part)
}

/// Records every instruction that a kernel and a workload execute, in order, and opens the
/// recording.
///
/// `workload`: a shipped workload, `bench:NAME`, or the path of a file; or in its place `run`, a
/// shell command, with `set_up`, `copy`, `packages` and `image`. `kernel`: its build tree, or a
/// bzImage or vmlinuz, whose `vmlinux` has symbols. `output`: the directory to create. `memory` is
/// in MB, `time_limit` in seconds. All keywords are options of `kernlane record`; `from_checkpoint`
/// is its `--from`. Raises `Error` if the guest cannot be made, or its workload fails.
///
///     >>> rec = kernlane.record("net", kernel="linux", output="net.rec", data=True)
#[pyfunction]
#[pyo3(signature = (
    workload=None, *, kernel, output, run=None, set_up=None, copy=Vec::new(), packages=Vec::new(),
    image=None, vmlinux=None, data=false, cpus=1, turn=None, seed=1, memory=None, like=None,
    cpu_model=None, append=Vec::new(), time_limit=900, from_checkpoint=None, force=false
))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn record(
    py: Python<'_>,
    workload: Option<PathBuf>,
    kernel: PathBuf,
    output: PathBuf,
    run: Option<String>,
    set_up: Option<String>,
    copy: Vec<String>,
    packages: Vec<String>,
    image: Option<String>,
    vmlinux: Option<PathBuf>,
    data: bool,
    cpus: u32,
    turn: Option<u32>,
    seed: u64,
    memory: Option<u32>,
    like: Option<String>,
    cpu_model: Option<String>,
    append: Vec<String>,
    time_limit: u64,
    from_checkpoint: Option<PathBuf>,
    force: bool,
) -> PyResult<Recording> {
    crate::work::run(py, || {
        let cpus = CpuCount::new(cpus).with_context(|| format!("cpus={cpus}: from 1 to 8"))?;
        if let Some(turn) = turn {
            ensure!(guest::TURN.contains(&turn), "turn={turn}: from {:?}", guest::TURN);
            guest::check_turn(turn, cpus)?;
        }
        if let Some(memory) = memory {
            let limits = guest::MEMORY_MB;
            ensure!(limits.contains(&memory), "memory={memory}: from {limits:?} MB");
        }
        let workload = match (workload, run) {
            (Some(workload), None) => workload::open(&workload.to_string_lossy())?,
            (None, Some(run)) => Workload::of_command(&TypedWorkload {
                run,
                set_up: set_up.unwrap_or_default(),
                copies: copy,
                packages,
                image,
            })?,
            _ => return Err(anyhow!("give either a workload or run=COMMAND")),
        };
        let words = append.iter().flat_map(|words| words.split_whitespace());
        let request = RecordingRequest {
            seed,
            cpus,
            turn,
            processor: ProcessorRequest {
                like: like.as_deref().map(road::machines::guest_like).transpose()?,
                cpu_model,
                append: words.map(str::to_owned).collect(),
            },
            data,
            memory_mb: memory,
            time_limit: Duration::from_secs(time_limit),
            force,
            ..road::record::request(
                workload,
                GuestKernel::open(&kernel, vmlinux.as_deref())?,
                output.clone(),
            )
        };
        road::record::record(&request, from_checkpoint.as_deref()).map(drop)
    })?;
    Recording::open(py, output, None, None)
}

/// Lays the kernel's blocks out for recordings, and writes the order to `output` (`*.kll`), which
/// `kernlane.replay` and `kernlane relink` take.
///
/// Returns what `kernlane layout --json` prints: scores of the original and of the layout, what the
/// counts cover, warnings. `recordings`: one or several, or profiles (`*.klp`). `merge`: "sum" or
/// "average". `part`: the shares of each recording's instructions between which it counts. Raises
/// `Error` if there is no such algorithm, or the kernel is not found.
///
///     >>> made = kernlane.layout(rec, output="net.kll", algorithm="ext-tsp")
///     >>> made["scores"]["layout"]["lines"]
///     5123
#[pyfunction]
#[pyo3(signature = (
    recordings, *, output, algorithm="ext-tsp", seed=1, merge="sum", kernel=None, part=(0.0, 1.0),
    drop_call_padding=false
))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn layout<'py>(
    py: Python<'py>,
    recordings: RecordingInputs,
    output: PathBuf,
    algorithm: &str,
    seed: u64,
    merge: &str,
    kernel: Option<PathBuf>,
    part: (f64, f64),
    drop_call_padding: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let json = run(py, || {
        let part = self::part(part)?;
        let algorithm: Algorithm = algorithm.parse()?;
        let merge = match merge {
            "sum" => ProfileMerge::Sum,
            "average" => ProfileMerge::Average,
            other => return Err(anyhow!("merge={other:?}: \"sum\" or \"average\"")),
        };
        let named = kernel.or_else(|| recordings.0.iter().find_map(|one| one.kernel.clone()));
        let recordings: Vec<PathBuf> = recordings.0.into_iter().map(|one| one.path).collect();
        let kernel = kernel_of_all(named.as_deref(), &recordings)?;
        let mut image = vmlinux::read(&vmlinux::path(&kernel))?;
        if drop_call_padding {
            image.drop_call_padding();
        }
        modules::attach(&mut image, &kernel, &recordings)?;
        let extra = counts::extra_counts(&[algorithm]);
        let profile = counts::profile(&recordings, &image, &part, merge, extra)?;
        let ground = Ground::new(&image, &profile)?;
        let made = {
            let _progress = Progress::new(format!("laying out by {algorithm}"));
            ground.lay_out(algorithm, seed)?
        };
        output::write(&output, made.0.to_text().as_bytes())?;
        let made = LaidOut::judge(made, None, &ground, &kernel, &image, &profile)?;
        made.judged.doubts.iter().for_each(|doubt| note!("warning: {doubt}"));
        Ok(made.to_json()?.to_string())
    })?;
    from_json(py, &json)
}

/// Runs a recorded execution again over layouts and machines.
///
/// Returns what `kernlane replay --json` prints: `rows` has a row for each layout on each machine,
/// the original first. `layouts`: files of `kernlane.layout` (`*.kll`) or maps of `kernlane relink`
/// (`*.klm`). `machines`: one or several, by name, file or `Machine`. `order`: how several CPUs run
/// on a machine with several cores, "side-by-side" or "recorded". Other keywords are options of
/// `kernlane replay`. Raises `Error` if a layout is of another kernel.
///
///     >>> result = kernlane.replay(rec, layouts=["net.kll"], machines="server-32k")
///     >>> [row["layout"] for row in result["rows"]]
///     ['original', 'net']
#[pyfunction]
#[pyo3(signature = (
    recording, *, layouts=Vec::new(), machines=None, kernel=None, part=(0.0, 1.0), bound=false,
    branches=false, within=1.0, exact=false, order="side-by-side"
))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn replay<'py>(
    py: Python<'py>,
    recording: RecordingInput,
    layouts: Vec<PathBuf>,
    machines: Option<MachineInput>,
    kernel: Option<PathBuf>,
    part: (f64, f64),
    bound: bool,
    branches: bool,
    within: f64,
    exact: bool,
    order: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let machines = match machines {
        Some(machines) => machines.files(),
        None => vec![road::machines::find("server-32k").map_err(exception)?],
    };
    let json = run(py, || {
        let part = self::part(part)?;
        let order = match order {
            "side-by-side" => CpuOrder::SideBySide,
            "recorded" => CpuOrder::Recorded,
            other => return Err(anyhow!("order={other:?}: \"side-by-side\" or \"recorded\"")),
        };
        let sampling = if exact { Sampling::Exact } else { Sampling::within(within)? };
        let models: Vec<_> = machines.iter().map(|machine| machine.model.clone()).collect();
        ensure!(!models.is_empty(), "name a machine");
        let scope = match branches {
            false => SimulationScope::Caches,
            true => SimulationScope::CachesAndBranches,
        };
        ensure!(
            !branches || models.iter().any(|machine| machine.branch.is_some()),
            "branches=True needs a machine with a table [branch]: server-32k, for example"
        );
        let path = &recording.path;
        let files = LayoutFile::read_all(&layouts)?;
        let named = kernel.or(recording.kernel);
        let is_needed = bound || named.is_some() || files.iter().any(LayoutFile::needs_kernel);
        let kernel = match kernel_of(named.as_deref(), path) {
            Ok(kernel) => Some(kernel),
            Err(error) if is_needed || !path.is_dir() => return Err(error),
            // Only the names of functions are missing.
            Err(_) => None,
        };
        let kernel = kernel.as_deref();
        let recordings = std::slice::from_ref(path);
        let image = kernel.map(|kernel| modules::image_of(kernel, recordings)).transpose()?;
        let mut layouts = vec![ReplayLayout::original()];
        for file in files {
            layouts.push(file.placed(kernel, image.as_ref())?);
        }
        let usual = ReplayRequest::new(path, &layouts, &models);
        let replay = ReplayRequest { scope, order, image: image.as_ref(), part, sampling, ..usual };
        let mut rows = replay.rows()?;
        if let (true, Some(image)) = (bound, &image) {
            replay.add_bounds(&mut rows, image)?;
        }
        for difference in likeness::differences(path, &machines) {
            note!("warning: {difference}; so times on this machine are those of other code");
        }
        ResultFile::new(rows).to_json()
    })?;
    from_json(py, &json)
}
