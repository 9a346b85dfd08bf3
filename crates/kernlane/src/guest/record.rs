//! A kernel and a workload become a recording.
//!
//! Takes a workload, a kernel, a seed; gives a directory with `trace.klt` (what ran, `docs/trace-format.md`), `recording.json` (on what
//! conditions), `console.log` and `output.log` (what the guest printed). The directory is made beside its final place and renamed when
//! everything in it has been read back and found whole.

use crate::guest::boot::{self, Boot, Clock, Cost, End, Outcome, Plugin};
use crate::guest::follow::Follower;
use crate::guest::initramfs::{Contents, Initramfs};
use crate::guest::kernel::Kernel;
use crate::guest::qemu::{self, Qemu};
use crate::guest::workload::Workload;
use crate::guest::{cache, plugin};
use crate::scratch;
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const TRACE: &str = "trace.klt";
pub const CONDITIONS: &str = "recording.json";
const FILES: [&str; 4] = [TRACE, CONDITIONS, qemu::CONSOLE, qemu::OUTPUT];

/// What is to be recorded, and where to.
pub struct Request {
    pub workload: Workload,
    pub kernel: Kernel,
    /// The directory to make. Its parents are made, too.
    pub output: PathBuf,
    pub seed: u64,
    /// Data accesses, too.
    pub data: bool,
    /// Else what the workload says.
    pub memory_mb: Option<u32>,
    pub time_limit: Duration,
    /// Whether an existing recording may be replaced.
    pub force: bool,
}

/// A recording that has been made.
pub struct Recording {
    pub conditions: Conditions,
    /// How long the guest ran, by the host's clock.
    pub elapsed: Duration,
    pub cost: Cost,
}

/// What a recording depends on, and what it amounts to. Holds no path and no time of the host.
#[derive(Debug, Serialize, Deserialize)]
pub struct Conditions {
    pub format: u32,
    pub kernel_release: String,
    pub kernel_build_id: String,
    pub workload: String,
    pub workload_sha256: String,
    /// `NAME_VERSION_ARCHITECTURE.deb`, sorted.
    pub packages: Vec<String>,
    pub initramfs_sha256: String,
    pub seed: u64,
    pub memory_mb: u32,
    pub qemu: String,
    pub qemu_arguments: Vec<String>,
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

impl Request {
    /// Whether `output` holds this recording already: the same workload, kernel and seed, ended cleanly.
    pub fn is_made(&self) -> bool {
        let conditions = || -> Option<Conditions> { serde_json::from_slice(&std::fs::read(self.output.join(CONDITIONS)).ok()?).ok() };
        conditions().is_some_and(|made| {
            made.kernel_build_id == self.kernel.build_id.0
                && made.workload_sha256 == self.workload.sha256
                && made.seed == self.seed
                && made.totals.data.is_some() == self.data
                && self.memory_mb.is_none_or(|memory_mb| made.memory_mb == memory_mb)
        })
    }
}

/// Records. `progress` is told, a few times a second, what is being done and how many instructions have been recorded.
///
/// # Errors
/// QEMU or the plugin is missing, the guest cannot be made, the workload fails or does not end, the disk is full, the user interrupts:
/// then nothing is left behind, and an existing recording is as it was.
pub fn record(request: &Request, progress: &mut dyn FnMut(&str, u64)) -> Result<Recording> {
    let (workload, kernel) = (&request.workload, &request.kernel);
    let qemu = Qemu::find()?;
    let library = plugin::find()?;
    let place = Place::reserve(&request.output, request.force)?;

    progress("making the guest from Debian packages", 0);
    let cache = cache::directory()?;
    let initramfs = Contents::of_workload(workload, kernel)?.build(&cache, &cache.join("guest"))?;

    let mut boot = Boot::new(kernel.boot_image.clone(), initramfs.path.clone());
    boot.clock = Clock::Instructions { seed: request.seed };
    boot.memory_mb = request.memory_mb.unwrap_or(workload.memory_mb);
    boot.time_limit = request.time_limit;
    // Where user programs lie would differ with any change of the kernel that draws one random number more or less.
    boot.command_line.push("norandmaps".into());
    let mut conditions = conditions(&boot, kernel, workload, &initramfs, &qemu, request.seed)?;
    boot.plugin = Some(plugin(library, &place.work.join(TRACE), request, &conditions)?);

    let follower = Follower::start(place.work.join(TRACE));
    let outcome = boot.run(&qemu, &place.work, &mut |phase| {
        progress(&format!("guest: {phase}"), follower.instructions())
    })?;
    judge(&boot, &outcome)?;
    let totals = follower.finish().with_context(|| explain("the recording is not whole", &outcome))?;
    ensure!(totals.instructions() > 0, "the workload executed nothing between its marks");
    conditions.totals = Totals::new(&totals, std::fs::metadata(place.work.join(TRACE))?.len());
    place.publish(&conditions)?;
    Ok(Recording {
        conditions,
        elapsed: outcome.elapsed,
        cost: outcome.cost,
    })
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

fn conditions(boot: &Boot, kernel: &Kernel, workload: &Workload, initramfs: &Initramfs, qemu: &Qemu, seed: u64) -> Result<Conditions> {
    Ok(Conditions {
        format: 1,
        kernel_release: kernel.release.clone(),
        kernel_build_id: kernel.build_id.0.clone(),
        workload: workload.name.clone(),
        workload_sha256: workload.sha256.clone(),
        packages: initramfs.packages.iter().map(|package| package.file.clone()).collect(),
        initramfs_sha256: initramfs.sha256.clone(),
        seed,
        memory_mb: boot.memory_mb,
        qemu: qemu.version.to_string(),
        qemu_arguments: qemu::arguments(boot)?,
        totals: Totals::default(),
    })
}

fn plugin(library: PathBuf, trace: &Path, request: &Request, conditions: &Conditions) -> Result<Plugin> {
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
    add("comm", task.comm.to_string());
    if let Some(pid) = task.pid {
        add("pid", pid.to_string());
    }
    if request.data {
        add("data", "on".into());
        if let Some(page_offset_base) = task.page_offset_base {
            add("page_offset_base", format!("{:#x}", page_offset_base.0));
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

/// An error unless the guest did all that it should.
fn judge(boot: &Boot, outcome: &Outcome) -> Result<()> {
    match outcome.end {
        End::Exited(0) => Ok(()),
        End::Exited(status) => {
            let what = failed_in(&outcome.console).unwrap_or("before it was set up");
            bail!(explain(&format!("the workload failed {what} (status {status})"), outcome))
        }
        End::Stopped => match (plugin_failure(&outcome.qemu), panic(&outcome.console)) {
            (Some(failure), _) => bail!(failure.to_string()),
            (None, Some(reason)) => bail!(explain(&format!("the kernel panicked: {reason}"), outcome)),
            (None, None) => bail!(explain("the guest stopped before the workload had ended", outcome)),
        },
        End::TimeLimit => bail!(explain(
            &format!(
                "the guest was not done after {} seconds (--time-limit); it was ended",
                boot.time_limit.as_secs()
            ),
            outcome
        )),
    }
}

/// The plugin ends QEMU when it cannot write.
fn plugin_failure(messages: &str) -> Option<&str> {
    let mut said = messages.lines().filter_map(|line| line.strip_prefix("kernlane: "));
    said.find(|message| message.contains("failed"))
}

/// Why the kernel panicked, if it did (kernel/panic.c).
fn panic(console: &str) -> Option<&str> {
    console
        .lines()
        .find_map(|line| line.split_once("Kernel panic - not syncing: "))
        .map(|(_, reason)| reason)
}

/// "in run", from the line that `workload.sh` prints.
fn failed_in(console: &str) -> Option<&str> {
    let line = console
        .lines()
        .rev()
        .find_map(|line| line.split_once("kernlane: failed "))
        .map(|(_, text)| text)?;
    line.split(" with status").next()
}

/// The message, and the last lines of all that the guest and QEMU said.
fn explain(message: &str, outcome: &Outcome) -> String {
    let mut text = message.to_string();
    for (name, lines) in [
        ("kernel's console", &outcome.console),
        ("workload's output", &outcome.output),
        ("QEMU", &outcome.qemu),
    ] {
        let lines = boot::last_lines(lines, 12);
        if !lines.is_empty() {
            text.push_str(&format!("\n--- {name}, last lines:\n{lines}"));
        }
    }
    text
}

/// The directory that is being made, and where it will stand.
struct Place {
    /// Removed, with what is in it, when the command ends.
    holder: tempfile::TempDir,
    work: PathBuf,
    output: PathBuf,
}

impl Place {
    /// # Errors
    /// `output` exists and may not be replaced, or nothing can be made beside it.
    fn reserve(output: &Path, force: bool) -> Result<Place> {
        if let Ok(metadata) = std::fs::symlink_metadata(output) {
            ensure!(metadata.is_dir(), "{} exists and is not a directory", output.display());
            let entries = std::fs::read_dir(output).with_context(|| format!("reading {}", output.display()))?;
            for entry in entries {
                let name = entry?.file_name();
                ensure!(force, "{} is not empty: --force replaces a recording", output.display());
                ensure!(
                    FILES.iter().any(|file| name == *file),
                    "{} holds {name:?}, which is not part of a recording: --force does not remove it",
                    output.display()
                );
            }
        }
        let parent = match output.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        std::fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
        let holder = scratch::directory(parent, ".kernlane-record-")?;
        let work = std::path::absolute(holder.path())?.join("recording");
        std::fs::create_dir(&work).with_context(|| format!("making {}", work.display()))?;
        Ok(Place {
            holder,
            work,
            output: output.into(),
        })
    }

    fn publish(&self, conditions: &Conditions) -> Result<()> {
        let mut text = serde_json::to_string_pretty(conditions)?;
        text.push('\n');
        std::fs::write(self.work.join(CONDITIONS), text).context("writing the conditions")?;
        for file in FILES {
            let path = self.work.join(file);
            std::fs::File::open(&path)
                .and_then(|file| file.sync_all())
                .with_context(|| format!("writing {}", path.display()))?;
        }
        let old = self.holder.path().join("replaced");
        let replaces = self.output.exists();
        if replaces {
            std::fs::rename(&self.output, &old).with_context(|| format!("replacing {}", self.output.display()))?;
        }
        std::fs::rename(&self.work, &self.output)
            .inspect_err(|_| {
                if replaces {
                    // If this fails, too, the error below tells of it all the same.
                    let _ = std::fs::rename(&old, &self.output);
                }
            })
            .with_context(|| format!("naming the recording {}", self.output.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(end: End, console: &str) -> Outcome {
        Outcome {
            end,
            console: console.into(),
            output: "said\n".into(),
            qemu: String::new(),
            elapsed: Duration::ZERO,
            cost: boot::Cost::default(),
        }
    }

    fn judged(end: End, console: &str) -> String {
        let boot = Boot::new("k".into(), "i".into());
        format!("{:#}", judge(&boot, &outcome(end, console)).unwrap_err())
    }

    #[test]
    fn what_went_wrong_is_said_with_the_last_lines() {
        let message = judged(
            End::Exited(3),
            "[ 1.0] a\n[ 2.0] kernlane: failed in run with status 3\n[ 2.0] kernlane: exit 3\n",
        );
        assert!(
            message.contains("failed in run (status 3)") && message.contains("output, last lines:\nsaid"),
            "{message}"
        );
        assert!(judged(End::Stopped, "[ 1.0] Kernel panic - not syncing: VFS\n[ 1.1] x").contains("panicked: VFS"));
        let full = "kernlane: writing the recording failed: No space left on device (os error 28)\nkernlane: stopping the guest\n";
        assert!(plugin_failure(full).unwrap().ends_with("(os error 28)"));
        assert_eq!(
            plugin_failure("kernlane: QEMU ends, and the workload has not executed marker 2\n"),
            None
        );
        assert!(judged(End::TimeLimit, "").contains("--time-limit"));
        let boot = Boot::new("k".into(), "i".into());
        assert!(judge(&boot, &outcome(End::Exited(0), "")).is_ok());
    }

    #[test]
    fn existing_directories_are_respected() {
        let parent = tempfile::tempdir().unwrap();
        let output = parent.path().join("r");
        drop(Place::reserve(&output, false).unwrap());
        std::fs::create_dir(&output).unwrap();
        drop(Place::reserve(&output, false).unwrap());
        std::fs::write(output.join(TRACE), "x").unwrap();
        assert!(Place::reserve(&output, false).is_err());
        drop(Place::reserve(&output, true).unwrap());
        std::fs::write(output.join("thesis.tex"), "x").unwrap();
        assert!(Place::reserve(&output, true).is_err());
        std::fs::write(parent.path().join("file"), "x").unwrap();
        assert!(Place::reserve(&parent.path().join("file"), true).is_err());
        let left: Vec<_> = std::fs::read_dir(parent.path()).unwrap().collect();
        assert_eq!(left.len(), 2, "nothing temporary stays: {left:?}");
    }
}
