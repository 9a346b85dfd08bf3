//! Makes recordings.
//!
//! Input: a workload, a kernel, a seed. Output: a directory with `trace.klt` (what ran,
//! `docs/reference/recording-format.md`), `recording.json` (the conditions), and `console.log` and
//! `output.log` (what the guest printed). The directory is made beside its final place. It is
//! renamed when everything in it has been read back without an error.

use crate::boot::HostCost;
use crate::checkpoint::Checkpoint;
use crate::configuration::QemuPlugin;
use crate::draft::OutputDirectory;
use crate::follow::{Followed, Follower};
use crate::judge::{all_cpus_came_up, explain, judge, warnings};
use crate::kernel_branches::KernelBranches;
use crate::like::{self, EarlyCheck};
use crate::plugin;
use crate::qemu::Qemu;
use crate::recorded_module::RecordedModule;
use crate::refused::RefusedRequest;
use crate::request::{ProbeFiles, RecordingConditions, RecordingRequest};
use crate::summary;
use crate::turn::check_turn;
use crate::user_programs;
use anyhow::{Context, Result, ensure};
use host::recording::Recording as Files;
use image::programs::UserPrograms;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trace::CpuCount;

/// A recording that was just made.
pub struct FinishedRecording {
    /// Its description.
    pub summary: RecordingSummary,
    /// How long the guest ran, by the host's clock, counted from its start.
    pub elapsed: Duration,
    /// How long the recording lasts by the guest's clock: executed and waited time, without the
    /// boot.
    pub guest_time: Duration,
    /// What QEMU used on the host.
    pub cost: HostCost,
    /// Possible faults of the recording.
    pub warnings: Vec<String>,
}

/// `recording.json`: the conditions of a recording, and its totals.
#[derive(Debug, Serialize, Deserialize)]
pub struct RecordingSummary {
    /// The version of the file's format.
    pub format: u32,
    /// The conditions.
    #[serde(flatten)]
    pub conditions: RecordingConditions,
    /// Where the kernel was when the recording was made: its build tree or its vmlinux. Recordings
    /// of earlier versions do not say it. It has no effect on the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<PathBuf>,
    /// The SHA-256, in hex, of the checkpoint's state; `None` if the guest was booted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_sha256: Option<String>,
    /// What the guest's kernel said of each vulnerability, by the name of its file, if the guest is
    /// like a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vulnerabilities: Option<BTreeMap<String, String>>,
    /// How the kernel's branches were executed. Recordings of earlier versions do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_branches: Option<KernelBranches>,
    /// The modules that were loaded when recording began or later, each build once at each place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<RecordedModule>,
    /// Where programs and libraries lay in the memory of tasks, in recordings with data accesses.
    /// `None`: the kernel does not say it, or the recording is of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs: Option<UserPrograms>,
    /// The totals.
    pub totals: RecordedAmounts,
}

/// The totals of the data accesses of a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DataAccessTotals {
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Mappings.
    pub mappings: u64,
    /// The CRC-32, in hex: equal accesses have equal checksums.
    pub checksum: String,
}

/// The totals of a recording.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct RecordedAmounts {
    /// Instructions.
    pub instructions: u64,
    /// Instructions of the kernel.
    pub kernel_instructions: u64,
    /// Instructions of user programs.
    pub user_instructions: u64,
    /// Executions of translation blocks.
    pub executions: u64,
    /// Translation blocks.
    pub translations: u64,
    /// Tasks.
    pub tasks: u64,
    /// How often another CPU went on, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// A hash, in hex, of the order of all executions: equal executions have equal hashes.
    pub hash: String,
    /// The bytes of `trace.klt`.
    pub trace_bytes: u64,
    /// The totals of data accesses, if they were recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataAccessTotals>,
}

/// Whether the request's output already holds this recording: the same workload, kernel, modules
/// and seed, recorded from the guest's boot, with a proper end.
pub fn is_made(request: &RecordingRequest) -> bool {
    RecordingSummary::read(&Files::at(&request.output)).is_ok_and(|made| {
        made.conditions.kernel_build_id == request.kernel.build_id.0
            && made.modules.iter().all(|module| {
                // Additional files may bring modules; the workload's digest knows these files.
                !request.files.is_empty() || request.kernel.has_module(&module.identity)
            })
            && made.conditions.workload_sha256 == request.workload.sha256
            && request.workload.brought().is_ok_and(|brought| {
                made.conditions.copied_sha256 == brought.copied_sha256
                    && made.conditions.image_sha256 == brought.image_sha256
            })
            && made.conditions.seed == request.seed
            && made.checkpoint_sha256.is_none()
            && made.totals.data.is_some() == request.data
            && made.conditions.cpus == request.cpus.get()
            && made.conditions.turn == request.turn
            && made.conditions.are_of_processor(request)
            && request.memory_mb.is_none_or(|memory_mb| made.conditions.memory_mb == memory_mb)
    })
}

/// Records, from the guest's boot or from a checkpoint. `progress` gets the current step and the
/// number of recorded instructions a few times a second.
///
/// # Errors
/// QEMU or the plugin is missing. The guest cannot be made. The checkpoint belongs to another
/// guest. The workload fails or does not end. The disk is full. The user interrupts. After an error
/// nothing is left behind, and an existing recording is unchanged.
pub fn record(
    request: &RecordingRequest,
    from: Option<&Path>,
    progress: &mut dyn FnMut(&str, u64),
) -> Result<FinishedRecording> {
    let qemu = Qemu::find()?;
    if request.cpus != CpuCount::ONE {
        ensure!(from.is_none(), RefusedRequest::CheckpointOfOneCpu);
        qemu.repeats_several_cpus()?;
    }
    if let Some(turn) = request.turn {
        check_turn(turn, request.cpus)?;
        qemu.shortens_turns()?;
    }
    let library = plugin::find()?;
    let draft = OutputDirectory::reserve(&request.output, request.force, Files::FILES)?;

    progress("making the guest from Debian packages", 0);
    let checkpoint = from.map(Checkpoint::open).transpose()?;
    let mut guest = request.prepare(&qemu, checkpoint.as_ref().map(Checkpoint::state))?;
    let conditions = guest.conditions.clone();
    if let Some(checkpoint) = &checkpoint {
        checkpoint.fits(&conditions)?;
    }
    let files = Files::at(&draft.work);
    let trace = files.trace();
    let mapped = draft.scratch("mappings");
    guest.boot.plugin = Some(recording_plugin(library, &trace, &mapped, request, &conditions)?);
    let follower = Follower::start(trace.clone(), request.kernel.branch_code()?);
    let mut early = request.processor.like.as_ref().map(EarlyCheck::new);
    let outcome = guest.boot.run(&qemu, &draft.work, &mut |news| {
        progress(&format!("guest: {}", news.phase), follower.instructions());
        early.as_mut().map_or(Ok(()), |early| early.hear(news.messages))
    })?;
    judge(&guest.boot, &outcome)?;
    all_cpus_came_up(request.cpus, &outcome.console)?;
    let vulnerabilities = match (&request.processor.like, &checkpoint) {
        (None, _) => None,
        (Some(processor), None) => Some(like::check(&outcome.console, processor)?),
        (Some(_), Some(checkpoint)) => checkpoint.summary.vulnerabilities.clone(),
    };
    let followed =
        follower.finish().with_context(|| explain("the recording is not whole", &outcome))?;
    ensure!(followed.totals.instructions() > 0, "the workload executed nothing between its marks");
    if let Some(processor) = &request.processor.like {
        let place = |form: &_| {
            let addr = followed.branch_places.get(form)?;
            Some(request.kernel.place_of(*addr))
        };
        followed.branches.check_naming(processor, place)?;
    }
    let programs = mapped.exists().then(|| user_programs::read(&mapped, &guest.boot.initramfs));
    let summary = RecordingSummary {
        format: summary::FORMAT,
        conditions,
        kernel: Some(request.kernel.place()?),
        checkpoint_sha256: checkpoint.map(|checkpoint| checkpoint.summary.state_sha256),
        vulnerabilities,
        kernel_branches: Some(followed.branches.clone()),
        modules: followed.modules.iter().cloned().collect(),
        programs: programs.transpose()?,
        totals: RecordedAmounts::new(&followed, request.cpus, std::fs::metadata(&trace)?.len()),
    };
    std::fs::write(files.summary(), summary::to_json(&summary)?)
        .context("writing the conditions")?;
    draft.publish()?;
    Ok(FinishedRecording {
        summary,
        elapsed: outcome.elapsed,
        guest_time: followed.guest_time,
        cost: outcome.cost,
        warnings: [guest.warnings, warnings(&outcome.qemu)].concat(),
    })
}

impl RecordingSummary {
    /// The description of a recording on disk.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn read(recording: &Files) -> Result<RecordingSummary> {
        let path = recording.summary();
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| format!("reading {}", path.display()))?;
        summary::from_json(&text).with_context(|| path.display().to_string())
    }
}

impl RecordedAmounts {
    fn new(followed: &Followed, cpus: CpuCount, trace_bytes: u64) -> RecordedAmounts {
        let totals = &followed.totals;
        RecordedAmounts {
            instructions: totals.instructions(),
            kernel_instructions: totals.kernel_instructions,
            user_instructions: totals.user_instructions,
            executions: totals.executions,
            translations: totals.translations,
            tasks: totals.tasks,
            turns: (cpus != CpuCount::ONE).then_some(followed.turns),
            hash: format!("{:016x}", totals.hash),
            trace_bytes,
            data: totals.data.map(|data| DataAccessTotals {
                loads: data.loads,
                stores: data.stores,
                mappings: data.mappings,
                checksum: format!("{:08x}", data.checksum),
            }),
        }
    }
}

fn recording_plugin(
    library: PathBuf,
    trace: &Path,
    mapped: &Path,
    request: &RecordingRequest,
    conditions: &RecordingConditions,
) -> Result<QemuPlugin> {
    let task = request.kernel.task_facts()?;
    let mut arguments: Vec<(String, String)> = Vec::new();
    let mut add = |key: &str, value: String| arguments.push((key.into(), value));
    add("out", trace.to_str().context("the output directory's path is not UTF-8")?.into());
    add("build_id", conditions.kernel_build_id.clone());
    add("workload", conditions.workload.clone());
    add("seed", conditions.seed.to_string());
    if request.cpus != CpuCount::ONE {
        let place = request.kernel.per_cpu_offset()?;
        add("cpus", request.cpus.get().to_string());
        add("per_cpu_offset", format!("{:#x}", place.0));
    }
    add("switch_to", format!("{:#x}", task.switch_to.0));
    if let Some(set_comm) = task.set_comm {
        add("set_comm", format!("{:#x}", set_comm.0));
    }
    if !task.wakes.is_empty() {
        let wakes: Vec<String> = task.wakes.iter().map(|addr| format!("{:#x}", addr.0)).collect();
        add("wakes", wakes.join("+"));
    }
    if let [Some(finalize), cleanup] = request.kernel.module_functions()? {
        add("module_finalize", format!("{:#x}", finalize.0));
        if let Some(cleanup) = cleanup {
            add("module_cleanup", format!("{:#x}", cleanup.0));
        }
        if let Some(page_offset_base) = task.page_offset_base.filter(|_| !request.data) {
            add("page_offset_base", format!("{:#x}", page_offset_base.0));
        }
    }
    add("comm", task.comm.to_string());
    add("clock", "on".into());
    if let Some(pid) = task.pid {
        add("pid", pid.to_string());
    }
    if let Some(ProbeFiles { program, values }) = &request.probes {
        for (key, path) in [("probes", program), ("probes_out", values)] {
            add(key, path.to_str().context("the path of the probes is not UTF-8")?.into());
        }
    }
    if request.data {
        for (key, value) in plugin::data_arguments(&request.kernel, &task)? {
            add(&key, value);
        }
        // Without these places, users' data has no names.
        if let Ok(places) = request.kernel.program_places() {
            add("programs", places);
            add("programs_out", mapped.to_str().context("the output's path is not UTF-8")?.into());
        }
    }
    add("condition.kernel_release", conditions.kernel_release.clone());
    add("condition.workload_sha256", conditions.workload_sha256.clone());
    for (name, digest) in [
        ("condition.copied_sha256", &conditions.copied_sha256),
        ("condition.image_sha256", &conditions.image_sha256),
    ] {
        if let Some(digest) = digest {
            add(name, digest.clone());
        }
    }
    if let Some(operations) = conditions.operations {
        add("condition.operations", operations.to_string());
    }
    add("condition.initramfs_sha256", conditions.initramfs_sha256.clone());
    add("condition.memory_mb", conditions.memory_mb.to_string());
    if let Some(turn) = conditions.turn {
        add("condition.turn", turn.to_string());
    }
    if let Some(machine) = &conditions.like {
        add("condition.like", machine.clone());
    }
    add("condition.qemu", conditions.qemu.clone());
    add("condition.qemu_arguments", conditions.qemu_arguments.join(" "));
    Ok(QemuPlugin { library, arguments })
}
