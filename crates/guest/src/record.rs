//! A kernel and a workload become a recording.
//!
//! Takes a workload, a kernel, a seed; gives a directory with `trace.klt` (what ran,
//! `docs/reference/recording-format.md`), `recording.json` (on what conditions), `console.log` and
//! `output.log` (what the guest printed). The directory is made beside its final place and renamed
//! when everything in it has been read back and found whole.

use crate::boot::Cost;
use crate::checkpoint::Checkpoint;
use crate::configuration::Plugin;
use crate::draft::Draft;
use crate::follow::{Followed, Follower};
use crate::judge::{explain, judge};
use crate::plugin;
use crate::qemu::Qemu;
use crate::request::{Conditions, Request};
use crate::summary;
use anyhow::{Context, Result, ensure};
use host::recording::Recording as Files;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A recording that has been made.
pub struct Recording {
    pub summary: Summary,
    /// How long the guest ran, from its start, by the host's clock.
    pub elapsed: Duration,
    /// How long the recording lasts by the guest's clock: what was executed and what was waited
    /// for, without the guest's boot.
    pub guest_time: Duration,
    pub cost: Cost,
}

/// `recording.json`: on what a recording depends, and what it amounts to.
#[derive(Debug, Serialize, Deserialize)]
pub struct Summary {
    pub format: u32,
    #[serde(flatten)]
    pub conditions: Conditions,
    /// Of the state that the guest ran on from; none when it was booted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_sha256: Option<String>,
    pub totals: Totals,
}

/// What the data accesses of a recording amount to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DataTotals {
    pub loads: u64,
    pub stores: u64,
    pub mappings: u64,
    /// CRC-32, hex: equal checksums, equal accesses.
    pub checksum: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    pub instructions: u64,
    pub kernel_instructions: u64,
    pub user_instructions: u64,
    pub executions: u64,
    pub translations: u64,
    pub tasks: u64,
    /// Of the order of everything that ran, hex: equal hashes, equal executions.
    pub hash: String,
    pub trace_bytes: u64,
    /// Of a recording with data accesses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataTotals>,
}

/// Whether the request's output holds this recording already: the same workload, kernel and seed,
/// from the guest's boot, ended cleanly.
pub fn is_made(request: &Request) -> bool {
    let summary = || -> Option<Summary> {
        summary::from_json(&std::fs::read_to_string(Files::at(&request.output).summary()).ok()?)
            .ok()
    };
    summary().is_some_and(|made| {
        made.conditions.kernel_build_id == request.kernel.build_id.0
            && made.conditions.workload_sha256 == request.workload.sha256
            && made.conditions.seed == request.seed
            && made.checkpoint_sha256.is_none()
            && made.totals.data.is_some() == request.data
            && request.memory_mb.is_none_or(|memory_mb| made.conditions.memory_mb == memory_mb)
    })
}

/// Records, from the start of the guest or from a checkpoint. `progress` is told, a few times a
/// second, what is being done and how many instructions have been recorded.
///
/// # Errors
/// QEMU or the plugin is missing, the guest cannot be made, the checkpoint is of another guest, the
/// workload fails or does not end, the disk is full, the user interrupts: then nothing is left
/// behind, and an existing recording is as it was.
pub fn record(
    request: &Request,
    from: Option<&Path>,
    progress: &mut dyn FnMut(&str, u64),
) -> Result<Recording> {
    let qemu = Qemu::find()?;
    let library = plugin::find()?;
    let draft = Draft::reserve(&request.output, request.force, Files::FILES)?;

    progress("making the guest from Debian packages", 0);
    let checkpoint = from.map(Checkpoint::open).transpose()?;
    let (mut boot, conditions) =
        request.prepare(&qemu, checkpoint.as_ref().map(Checkpoint::state))?;
    if let Some(checkpoint) = &checkpoint {
        checkpoint.fits(&conditions)?;
    }
    let files = Files::at(&draft.work);
    let trace = files.trace();
    boot.plugin = Some(told(library, &trace, request, &conditions)?);
    let follower = Follower::start(trace.clone());
    let outcome = boot.run(&qemu, &draft.work, &mut |phase| {
        progress(&format!("guest: {phase}"), follower.instructions())
    })?;
    judge(&boot, &outcome)?;
    let Followed { totals, guest_time } =
        follower.finish().with_context(|| explain("the recording is not whole", &outcome))?;
    ensure!(totals.instructions() > 0, "the workload executed nothing between its marks");
    let summary = Summary {
        format: summary::FORMAT,
        conditions,
        checkpoint_sha256: checkpoint.map(|checkpoint| checkpoint.summary.state_sha256),
        totals: Totals::new(&totals, std::fs::metadata(&trace)?.len()),
    };
    std::fs::write(files.summary(), summary::to_json(&summary)?)
        .context("writing the conditions")?;
    draft.publish()?;
    Ok(Recording { summary, elapsed: outcome.elapsed, guest_time, cost: outcome.cost })
}

impl Totals {
    fn new(totals: &trace::Totals, trace_bytes: u64) -> Totals {
        Totals {
            instructions: totals.instructions(),
            kernel_instructions: totals.kernel_instructions,
            user_instructions: totals.user_instructions,
            executions: totals.executions,
            translations: totals.translations,
            tasks: totals.tasks,
            hash: format!("{:016x}", totals.hash),
            trace_bytes,
            data: totals.data.map(|data| DataTotals {
                loads: data.loads,
                stores: data.stores,
                mappings: data.mappings,
                checksum: format!("{:08x}", data.checksum),
            }),
        }
    }
}

fn told(
    library: PathBuf,
    trace: &Path,
    request: &Request,
    conditions: &Conditions,
) -> Result<Plugin> {
    let task = request.kernel.task_facts()?;
    let mut arguments: Vec<(String, String)> = Vec::new();
    let mut add = |key: &str, value: String| arguments.push((key.into(), value));
    add("out", trace.to_str().context("the output directory's path is not UTF-8")?.into());
    add("build_id", conditions.kernel_build_id.clone());
    add("workload", conditions.workload.clone());
    add("seed", conditions.seed.to_string());
    add("switch_to", format!("{:#x}", task.switch_to.0));
    if let Some(set_comm) = task.set_comm {
        add("set_comm", format!("{:#x}", set_comm.0));
    }
    if !task.wakes.is_empty() {
        let wakes: Vec<String> = task.wakes.iter().map(|addr| format!("{:#x}", addr.0)).collect();
        add("wakes", wakes.join("+"));
    }
    add("comm", task.comm.to_string());
    add("clock", "on".into());
    if let Some(pid) = task.pid {
        add("pid", pid.to_string());
    }
    if request.data {
        for (key, value) in plugin::data_arguments(&request.kernel, &task)? {
            add(&key, value);
        }
    }
    add("condition.kernel_release", conditions.kernel_release.clone());
    add("condition.workload_sha256", conditions.workload_sha256.clone());
    add("condition.initramfs_sha256", conditions.initramfs_sha256.clone());
    add("condition.memory_mb", conditions.memory_mb.to_string());
    add("condition.qemu", conditions.qemu.clone());
    add("condition.qemu_arguments", conditions.qemu_arguments.join(" "));
    Ok(Plugin { library, arguments })
}
