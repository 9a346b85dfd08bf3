//! The interface of `/dev/kernlane`, as in `kmod/kernlane.h`.
//!
//! Input: addresses of the running kernel. The kernel module checks each request itself. It answers
//! a bad request with an error and the address at fault.

mod holding;
mod placing;

use crate::identity::{GroupId, ModuleNumber};
use crate::owners;
use anyhow::{Context, Result, bail, ensure};
use emit::module::{NUMBER, TextPage};
use rustix::io::Errno;
use rustix::ioctl::{self, Updater, opcode};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) const PATH: &str = "/dev/kernlane";
const NAME: usize = 56;
const GROUP: u8 = 0xb7;
/// The version of the interface, as the device prints it.
const VERSION: &str = "kernlane 8";

/// `struct kernlane_function`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawFunction {
    /// The address of the function.
    pub entry: u64,
    /// The address of the copy.
    pub copy: u64,
    /// Bytes from the entry to the instruction behind the tracer's site, where the jump is written.
    pub patch_at: u8,
    /// The bytes that must be there.
    pub expected: [u8; 5],
    /// 1 if only copies call the copy, and nothing is written at the entry; else 0.
    pub carried: u8,
    /// Zero.
    pub reserved: u8,
}

/// `struct kernlane_call`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawCall {
    /// The address of the instruction.
    pub site: u64,
    /// The called function: an index into the group's functions.
    pub function: u32,
    /// Zero.
    pub reserved: u32,
}

/// `struct kernlane_group`.
#[repr(C)]
struct RawGroup {
    module: [u8; NAME],
    number: [u8; NUMBER],
    functions: u64,
    calls: u64,
    nr_functions: u32,
    nr_calls: u32,
    reserved: u64,
    bad_address: u64,
}

/// `struct kernlane_counters`.
#[repr(C)]
struct RawCounters {
    module: [u8; NAME],
    number: [u8; NUMBER],
    sums: u64,
    nr: u32,
    reserved: u32,
}

/// `struct kernlane_time`: the sums over the invocations of one function.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FunctionTime {
    /// Invocations that began during the measurement.
    pub entered: u64,
    /// The invocations of these that also ended during the measurement. The times belong to them.
    pub returned: u64,
    /// Invocations that were not followed, for lack of room for tasks.
    pub missed: u64,
    /// Nanoseconds from entry to return.
    pub ns: u64,
    /// The part of `ns` in which the task was switched out.
    pub out_ns: u64,
}

impl FunctionTime {
    /// Nanoseconds of an invocation with the task on a CPU; `None` without one that ended.
    pub fn mean_on_cpu(&self) -> Option<f64> {
        (self.returned > 0)
            .then(|| self.ns.saturating_sub(self.out_ns) as f64 / self.returned as f64)
    }

    /// Nanoseconds of an invocation from entry to return, switched out or not.
    pub fn mean(&self) -> Option<f64> {
        (self.returned > 0).then(|| self.ns as f64 / self.returned as f64)
    }
}

/// `struct kernlane_timing`.
#[repr(C)]
struct RawTiming {
    entries: u64,
    times: u64,
    nr: u32,
    milliseconds: u32,
    missed: u64,
}

/// How often and how long functions ran.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// One element per function.
    pub functions: Vec<FunctionTime>,
    /// Invocations of all functions together that the kernel's probe did not show. They are in no
    /// function's counts.
    pub missed: u64,
}

/// How long an undo waits for tasks to leave the copies, and its pause between two requests.
const LEAVE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// The limit of functions that are measured at once: `KERNLANE_MAX_TIMED`, kmod/kernlane.h.
const MOST_TIMED: usize = 512;

/// The open device.
pub struct Device {
    file: File,
    page: TextPage,
}

/// The state of a group after an undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undone {
    /// The kernel's code is restored, and no task is in a copy.
    Clean,
    /// The kernel's code is restored. A task may still be in a copy, so the module stays for now.
    Stays,
    /// There is no such group any more: another program has undone it.
    Gone,
}

/// Whether the kernel's calls go to the copies of a group.
#[derive(Clone, Copy, Debug, serde::Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum GroupState {
    /// Calls go to the copies.
    Installed,
    /// The kernel's code is restored. A task may still be in a copy.
    Leaving,
}

impl fmt::Display for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GroupState::Installed => "installed",
            GroupState::Leaving => "leaving",
        })
    }
}

/// What the device prints about a group.
#[derive(Clone, Debug, serde::Serialize, PartialEq, Eq)]
pub struct GroupStatus {
    /// The group: the name and the number of its module.
    #[serde(flatten)]
    pub id: GroupId,
    /// Whether calls go to its copies.
    pub state: GroupState,
    /// Seconds since 1970.
    pub since: i64,
    /// The number of the group's calls.
    pub calls: u32,
    /// The number of these calls that go directly to a copy now.
    pub direct: u32,
    /// The duration of writing to the kernel's code, in microseconds.
    pub poke_us: i64,
    /// The duration of the whole installation, in microseconds.
    pub total_us: i64,
    /// The size of the pages in which the copies lie, in bytes.
    pub page: u64,
    /// The group's functions.
    pub functions: Vec<FunctionStatus>,
}

impl GroupStatus {
    /// Seconds from the installation to `now`.
    pub fn age(&self, now: SystemTime) -> i64 {
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64);
        now.saturating_sub(self.since)
    }
}

/// The state of a function of a group.
#[derive(Clone, Debug, serde::Serialize, PartialEq, Eq)]
pub struct FunctionStatus {
    /// The address of the function.
    pub entry: u64,
    /// The address of its copy.
    pub copy: u64,
    /// A tracer is attached: calls go to the entry first.
    pub traced: bool,
    /// A tracer has been attached to a function whose code is in the copy: calls go to the
    /// original, for good.
    pub away: bool,
    /// Only copies call the copy.
    pub carried: bool,
}

/// A group of which a part is installed and stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the group {group} was being installed when another tool (a kprobe, say) came to {place}, so \
     that a part of it is installed and stays: it does the same as the kernel's own code. Remove \
     that tool, then undo the group"
)]
pub struct PartlyInstalled {
    /// The name of the group.
    pub group: String,
    /// The place in the kernel's code that the other tool changed.
    pub place: String,
}

impl Device {
    /// Opens the device.
    ///
    /// # Errors
    /// The module is not loaded, is of another version, or this is not root.
    pub fn open() -> Result<Device> {
        let open = File::options().read(true).write(true).open(PATH);
        let mut file = open.with_context(|| {
            format!(
                "opening {PATH}: load Kernlane's module first, as root (docs/how-to/live.md \
                 says how it is built and what secure boot means for it)"
            )
        })?;
        let mut text = String::new();
        file.read_to_string(&mut text).with_context(|| format!("reading {PATH}"))?;
        let mut lines = text.lines();
        let version = lines.next().unwrap_or_default();
        ensure!(
            version == VERSION,
            "the loaded module says {version:?}, this program speaks {VERSION:?}: install both \
             from one version"
        );
        let line = lines.next().unwrap_or_default();
        let bytes: usize = line.strip_prefix("page ").unwrap_or_default().parse()?;
        let is_large = bytes >= TextPage::Large.bytes();
        Ok(Device { file, page: if is_large { TextPage::Large } else { TextPage::Small } })
    }

    /// The largest pages that modules' text can be put into.
    pub fn page(&self) -> TextPage {
        self.page
    }

    /// Installs a group.
    ///
    /// # Errors
    /// The module refuses the group. The message says why and where. The kernel's code is what it
    /// was.
    pub(crate) fn install(
        &self,
        id: &GroupId,
        functions: &[RawFunction],
        calls: &[RawCall],
    ) -> Result<()> {
        let mut group = raw_group(id)?;
        group.functions = functions.as_ptr() as u64;
        group.calls = calls.as_ptr() as u64;
        group.nr_functions = u32::try_from(functions.len())?;
        group.nr_calls = u32::try_from(calls.len())?;
        let done = until_ready(BPF_PATIENCE, || {
            // SAFETY: the opcode belongs to this structure, and the arrays that it points to live
            // until the call returns.
            unsafe {
                ioctl::ioctl(
                    &self.file,
                    Updater::<{ opcode::read_write::<RawGroup>(GROUP, 1) }, RawGroup>::new(
                        &mut group,
                    ),
                )
            }
        });
        if done == Err(Errno::UCLEAN) {
            bail!(PartlyInstalled {
                group: id.to_string(),
                place: owners::place(group.bad_address),
            });
        }
        done.map_err(|error| match error {
            Errno::NOENT => anyhow::anyhow!(
                "the module that was loaded for it is gone, or is another's: another program has \
                 removed it"
            ),
            error => refusal(error, group.bad_address),
        })
        .with_context(|| {
            format!("the group {id} was not installed, and the kernel's code is what it was")
        })
    }

    /// Undoes a group. Waits for up to five seconds for tasks to leave the copies.
    ///
    /// # Errors
    /// Another tool has changed or probes one of its places.
    pub fn undo(&self, id: &GroupId) -> Result<Undone> {
        let begun = Instant::now();
        // The first request may itself come through a copy of ioctl(), so it cannot wait there.
        let mut undone = self.ask_to_undo(id)?;
        while undone == Undone::Stays && begun.elapsed() < LEAVE {
            std::thread::sleep(PAUSE);
            undone = self.ask_to_undo(id)?;
            if undone == Undone::Gone {
                // The group has gone by itself meanwhile.
                return Ok(Undone::Clean);
            }
        }
        Ok(undone)
    }

    /// One request to undo a group.
    fn ask_to_undo(&self, id: &GroupId) -> Result<Undone> {
        let mut group = raw_group(id)?;
        // SAFETY: the opcode belongs to this structure, which points to nothing.
        let done = unsafe {
            ioctl::ioctl(
                &self.file,
                Updater::<{ opcode::read_write::<RawGroup>(GROUP, 2) }, RawGroup>::new(&mut group),
            )
        };
        match done {
            Ok(()) => Ok(Undone::Clean),
            Err(Errno::AGAIN) => Ok(Undone::Stays),
            Err(Errno::NOENT) => Ok(Undone::Gone),
            Err(error) => Err(refusal(error, group.bad_address))
                .with_context(|| format!("the group {id} was not undone")),
        }
    }

    /// The sums over all CPUs of a group's first `count` counters.
    ///
    /// # Errors
    /// There is no such group, or it has fewer counters.
    pub(crate) fn counters(&self, id: &GroupId, count: usize) -> Result<Vec<u64>> {
        let mut sums = vec![0u64; count];
        let mut counters = RawCounters {
            module: raw_group(id)?.module,
            number: id.number.0,
            sums: sums.as_mut_ptr() as u64,
            nr: u32::try_from(count)?,
            reserved: 0,
        };
        // SAFETY: the opcode belongs to this structure, and `sums` has room for what it asks for.
        let done = unsafe {
            ioctl::ioctl(
                &self.file,
                Updater::<{ opcode::write::<RawCounters>(GROUP, 3) }, RawCounters>::new(
                    &mut counters,
                ),
            )
        };
        done.map_err(|error| match error {
            Errno::NOENT => anyhow::anyhow!("another program has undone the group meanwhile"),
            error => error.into(),
        })
        .with_context(|| format!("reading the counters of {id}"))?;
        Ok(sums)
    }

    /// Measures for `time` how long functions take. `entries`: the addresses of their entries,
    /// ascending. Leaves nothing behind, even if this process is killed.
    ///
    /// # Errors
    /// There are too many functions, a function has no site of the function tracer, another process
    /// is measuring, or a signal came.
    pub fn time(&self, entries: &[u64], time: Duration) -> Result<Times> {
        ensure!(
            entries.len() <= MOST_TIMED,
            "{} functions to measure, and at most {MOST_TIMED} can be at once",
            entries.len()
        );
        let mut times = vec![FunctionTime::default(); entries.len()];
        let mut timing = RawTiming {
            entries: entries.as_ptr() as u64,
            times: times.as_mut_ptr() as u64,
            nr: u32::try_from(entries.len())?,
            milliseconds: u32::try_from(time.as_millis())?,
            missed: 0,
        };
        // SAFETY: the opcode belongs to this structure; `entries` holds and `times` has room for as
        // many as it says.
        let done = unsafe {
            ioctl::ioctl(
                &self.file,
                Updater::<{ opcode::read_write::<RawTiming>(GROUP, 4) }, RawTiming>::new(
                    &mut timing,
                ),
            )
        };
        done.map_err(|error| match error {
            Errno::BUSY => anyhow::anyhow!("another process is measuring: wait until it is done"),
            Errno::INTR => anyhow::anyhow!("interrupted"),
            Errno::NODEV => anyhow::anyhow!(
                "the function tracer is switched off: set sysctl kernel.ftrace_enabled to 1"
            ),
            Errno::OPNOTSUPP => {
                anyhow::anyhow!("the kernel was built without fprobes or without tracepoints")
            }
            Errno::INVAL => anyhow::anyhow!(
                "a function has no site of the function tracer, or the \
                 time is not between 1 ms and an hour"
            ),
            error => error.into(),
        })
        .context("nothing was measured")?;
        Ok(Times { functions: times, missed: timing.missed })
    }
}

/// How long, and how often, installing is tried again while a BPF program is being attached or
/// detached.
const BPF_PATIENCE: Duration = Duration::from_secs(5);
const BPF_PAUSE: Duration = Duration::from_millis(20);

/// The kernel says EAGAIN while a BPF trampoline of one of the functions is changed.
fn until_ready(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<(), Errno>,
) -> Result<(), Errno> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(Errno::AGAIN) if begun.elapsed() < patience => std::thread::sleep(BPF_PAUSE),
            done => return done,
        }
    }
}

/// The groups that are installed or leaving.
///
/// # Errors
/// The module is not loaded, or prints an unknown line.
pub fn status() -> Result<Vec<GroupStatus>> {
    Device::open()?;
    let text = std::fs::read_to_string(PATH).with_context(|| format!("reading {PATH}"))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<GroupStatus>> {
    let mut groups: Vec<GroupStatus> = Vec::new();
    for line in text.lines().skip(2) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let hex = |word: &str| u64::from_str_radix(word, 16).with_context(|| format!("{line:?}"));
        match words[..] {
            [
                "group",
                module,
                state,
                "since",
                since,
                "functions",
                _,
                "calls",
                calls,
                "direct",
                direct,
                "poke_us",
                poke,
                "total_us",
                total,
                "page",
                page,
                "number",
                number,
            ] => {
                groups.push(GroupStatus {
                    id: GroupId { module: module.into(), number: ModuleNumber::parse(number)? },
                    state: match state {
                        "installed" => GroupState::Installed,
                        "leaving" => GroupState::Leaving,
                        _ => bail!("{PATH} says {line:?}"),
                    },
                    since: since.parse()?,
                    calls: calls.parse()?,
                    direct: direct.parse()?,
                    poke_us: poke.parse()?,
                    total_us: total.parse()?,
                    page: page.parse()?,
                    functions: Vec::new(),
                });
            }
            [kind @ ("function" | "carried"), entry, copy, state] => {
                let group = groups.last_mut().context("a function before its group")?;
                group.functions.push(FunctionStatus {
                    entry: hex(entry)?,
                    copy: hex(copy)?,
                    traced: state == "traced",
                    away: state == "away",
                    carried: kind == "carried",
                });
            }
            _ => bail!("{PATH} says {line:?}"),
        }
    }
    Ok(groups)
}

/// A module's name with a zero at its end.
fn name_field(module: &str) -> Result<[u8; NAME]> {
    let mut name = [0; NAME];
    ensure!(module.len() < NAME, "{module}: a module's name has fewer than {NAME} characters");
    name[..module.len()].copy_from_slice(module.as_bytes());
    Ok(name)
}

fn raw_group(id: &GroupId) -> Result<RawGroup> {
    Ok(RawGroup {
        module: name_field(&id.module)?,
        number: id.number.0,
        functions: 0,
        calls: 0,
        nr_functions: 0,
        nr_calls: 0,
        reserved: 0,
        bad_address: 0,
    })
}

fn refusal(error: Errno, address: u64) -> anyhow::Error {
    let why = match error {
        Errno::ADDRINUSE => format!(
            "a kprobe is registered at {}, armed or not: remove it \
             (/sys/kernel/tracing/kprobe_events lists those of the tracer), then repeat the \
             command",
            owners::place(address)
        ),
        Errno::USERS => format!(
            "a tracer or a BPF program is attached to {}: detach it while the group is being \
             installed (`bpftool prog` lists BPF programs); afterwards it may come again",
            owners::place(address)
        ),
        Errno::BUSY if address != 0 => format!(
            "the code at {} ({address:x}) is not what it was: another tool (a tracer, a livepatch, \
             another group) has changed it",
            owners::place(address)
        ),
        Errno::BUSY => "another user of the function tracer (a livepatch, say) owns one of the \
            functions, a livepatch is being loaded, or the tracer is switched off (sysctl \
            kernel.ftrace_enabled)"
            .into(),
        Errno::PERM if address != 0 => {
            format!("{} ({address:x}) is in code that must not be replaced", owners::place(address))
        }
        Errno::AGAIN => format!(
            "for {} s BPF programs were being attached to the functions, or detached: wait until \
             that is over, then repeat the command",
            BPF_PATIENCE.as_secs()
        ),
        Errno::PERM => "this needs root (CAP_SYS_ADMIN and CAP_SYS_MODULE)".into(),
        Errno::NOMEM => "the kernel has too little memory (for counters it needs eight bytes a \
            block on each CPU): count fewer functions at a time"
            .into(),
        Errno::EXIST => "it is installed already, or still leaving".into(),
        Errno::INTR => "interrupted".into(),
        Errno::INVAL => {
            format!("the module refuses the request because of the address {address:x}")
        }
        _ => error.to_string(),
    };
    anyhow::anyhow!(why)
}

#[cfg(test)]
mod tests;
