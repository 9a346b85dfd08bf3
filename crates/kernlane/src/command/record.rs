//! `kernlane record`: runs a workload on a kernel and records it.
//!
//! Input: a workload and a kernel. Output: a recording.

use crate::command::workload::WorkloadArgs;
use anyhow::{Context, Result};
use clap::Args;
use clap::builder::TypedValueParser;
use guest::record::{FinishedRecording, RecordedAmounts, RecordingSummary};
use guest::{self, GuestKernel, ProcessorRequest, RecordingConditions, RecordingRequest};
use host::interrupt;
use host::note;
use host::out;
use host::outln;
use road::likeness;
use road::record::TIME_LIMIT;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use trace::CpuCount;

/// Record every instruction that a kernel and a workload execute, in order
///
/// Runs the kernel and the workload under QEMU's emulation, on one CPU or on several. The guest's
/// clock counts executed instructions, so repeating a recording gives the same bytes. The guest is
/// made from Debian packages or an image; nothing is installed on this machine. The workload says
/// where counting starts and ends.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  kernlane record net --kernel ~/linux -o net.rec\n  kernlane record \
                  bench:call/getpid --kernel ~/linux -o getpid.rec\n  kernlane record --run \
                  './server --once' --copy ./build:/opt/app --kernel ~/linux -o server.rec"
)]
pub struct RecordArgs {
    #[command(flatten)]
    pub guest: GuestArgs,

    /// Start from a checkpoint of the same workload, kernel and seed
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,

    /// CPUs of the guest, 1 to 8
    #[arg(long, value_name = "N", default_value_t = CpuCount::ONE, value_parser = cpus())]
    pub cpus: CpuCount,

    /// With --cpus: the longest turn of a CPU while others wait. Short turns come nearer to CPUs
    /// that run side by side, and take longer to record [default: up to the guest's next timer]
    #[arg(long, value_name = "INSTRUCTIONS", value_parser = turn_range())]
    pub turn: Option<u32>,

    /// Also record data accesses and page mappings, for data caches and TLBs in `kernlane replay`
    #[arg(long)]
    pub data: bool,
}

/// Limits that also hold in a workload's file.
fn memory_range() -> clap::builder::RangedI64ValueParser<u32> {
    let (least, most) = guest::MEMORY_MB.into_inner();
    clap::value_parser!(u32).range(i64::from(least)..=i64::from(most))
}

/// Turns that QEMU can keep with some number of CPUs.
fn turn_range() -> clap::builder::RangedI64ValueParser<u32> {
    let (least, most) = guest::TURN.into_inner();
    clap::value_parser!(u32).range(i64::from(least)..=i64::from(most))
}

/// Reads a number of CPUs.
pub(crate) fn cpus() -> impl TypedValueParser<Value = CpuCount> {
    clap::value_parser!(u32)
        .range(1..=i64::from(CpuCount::MOST))
        .try_map(|cpus| CpuCount::new(cpus).context("from 1 to 8"))
}

/// How long a guest may run.
#[derive(Args)]
pub struct TimeLimitArgs {
    /// End the guest after this time if it is still running
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = TIME_LIMIT.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    time_limit: u64,
}

impl TimeLimitArgs {
    /// The longest time that a guest may run.
    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.time_limit)
    }
}

/// The guest: kernel, workload and conditions, and where the result goes.
#[derive(Args)]
pub struct GuestArgs {
    #[command(flatten)]
    pub what: BootedArgs,

    /// The directory to create
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,

    /// Replace an existing result
    #[arg(long)]
    pub force: bool,

    /// Print the conditions and totals as JSON
    #[arg(long)]
    pub json: bool,
}

/// A guest that can be booted: kernel, workload and conditions.
#[derive(Args)]
pub struct BootedArgs {
    #[command(flatten)]
    pub workload: WorkloadArgs,

    /// The kernel: its build tree, or a bzImage or vmlinuz
    #[arg(long, short, value_name = "TREE|BZIMAGE")]
    pub kernel: PathBuf,

    /// The vmlinux of a bzImage or vmlinuz, with symbols [default: where Debian's -dbg package has
    /// it]
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,

    /// Where all randomness of the guest comes from
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Memory of the guest, in MB [default: as the workload says]
    #[arg(long, value_name = "MB", value_parser = memory_range())]
    pub memory: Option<u32>,

    #[command(flatten)]
    pub processor: ProcessorArgs,

    #[command(flatten)]
    pub time_limit: TimeLimitArgs,
}

/// What the guest's kernel sees.
#[derive(Args)]
pub struct ProcessorArgs {
    /// Boot a guest whose kernel chooses the code that it would choose on this machine: thunks,
    /// indirect branches, copies. The guest is checked from within. MACHINE is a machine with a
    /// [guest] in its file, `host` for this host, or a directory with another host's /proc/cpuinfo
    /// and /sys/devices/system/cpu/vulnerabilities [default: all that QEMU emulates, without fast
    /// strings]
    #[arg(long, value_name = "MACHINE|host|DIR")]
    pub like: Option<String>,

    /// QEMU's option -cpu, instead of the one that belongs to --like
    #[arg(long, value_name = "MODEL")]
    pub cpu_model: Option<String>,

    /// Add words to the kernel's command line
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub append: Vec<String>,
}

impl ProcessorArgs {
    /// The processor that a recording asks for.
    ///
    /// # Errors
    /// The machine does not exist or says nothing of guests.
    pub fn request(&self) -> Result<ProcessorRequest> {
        let words = self.append.iter().flat_map(|words| words.split_whitespace());
        Ok(ProcessorRequest {
            like: self.like.as_deref().map(machines::guest_like).transpose()?,
            cpu_model: self.cpu_model.clone(),
            append: words.map(str::to_owned).collect(),
        })
    }
}

/// Warns of machines on which the recording's kernel would have executed other code.
///
/// # Errors
/// There is no such machine.
pub(crate) fn warn_unlike(recording: &Path, machines: &[String]) -> Result<()> {
    for name in machines {
        for difference in likeness::differences(recording, &[machines::find(name)?]) {
            note!(
                "warning: {difference}; so times on {name} are those of other code. Record with \
                 --like {name}"
            );
        }
    }
    Ok(())
}

impl GuestArgs {
    /// The part of a request that recordings and checkpoints share.
    ///
    /// # Errors
    /// The kernel or the workload cannot be read.
    pub fn request(&self) -> Result<RecordingRequest> {
        Ok(RecordingRequest {
            output: self.output.clone(),
            force: self.force,
            ..self.what.request()?
        })
    }
}

impl BootedArgs {
    /// A request without a place for its result.
    ///
    /// # Errors
    /// The kernel or the workload cannot be read.
    pub fn request(&self) -> Result<RecordingRequest> {
        Ok(RecordingRequest {
            workload: self.workload.open()?,
            kernel: GuestKernel::open(&self.kernel, self.vmlinux.as_deref())?,
            files: Vec::new(),
            output: PathBuf::new(),
            seed: self.seed,
            cpus: CpuCount::ONE,
            turn: None,
            processor: self.processor.request()?,
            data: false,
            memory_mb: self.memory,
            time_limit: self.time_limit.duration(),
            force: false,
            probes: None,
        })
    }
}

/// Runs `kernlane record`.
pub(crate) fn run(args: &RecordArgs) -> Result<ExitCode> {
    if let Some(turn) = args.turn {
        guest::check_turn(turn, args.cpus)?;
    }
    let mut request = args.guest.request()?;
    request.data = args.data;
    request.cpus = args.cpus;
    request.turn = args.turn;
    interrupt::catch()?;
    let recording = road::record::record(&request, args.from.as_deref())?;
    match args.guest.json {
        true => outln!("{}", serde_json::to_string_pretty(&recording.summary)?)?,
        false => print(args, &recording)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(args: &RecordArgs, recording: &FinishedRecording) -> Result<()> {
    let RecordingSummary { conditions, totals, .. } = &recording.summary;
    outln!("{}: {}", args.guest.output.display(), on(conditions))?;
    out!("{}", amounts(totals, recording.guest_time, recording.elapsed))?;
    if let Some(number) = totals.turns {
        out!("{}", turns(totals.instructions, number))?;
    }
    if let Some(data) = &totals.data {
        outln!(
            "{:.1} M loads, {:.1} M stores, {} mappings of pages",
            data.loads as f64 / 1e6,
            data.stores as f64 / 1e6,
            data.mappings
        )?;
    }
    Ok(())
}

/// The amounts of a recording, what counts as a task, and the two times: guest and host.
fn amounts(totals: &RecordedAmounts, guest_time: Duration, elapsed: Duration) -> String {
    let (instructions, bytes) = (totals.instructions as f64, totals.trace_bytes as f64);
    format!(
        "{:.1} M instructions, {:.1} % of them the kernel's; {:.1} MB, {:.2} bit an instruction\n\
         {:.3} s by the guest's clock; {:.0} s by this machine's, with the guest's boot\n\
         {} task records: one for each task_struct, pid and name that was seen; a thread has one \
         for each of its names\n",
        instructions / 1e6,
        100.0 * totals.kernel_instructions as f64 / instructions,
        bytes / 1e6,
        8.0 * bytes / instructions,
        guest_time.as_secs_f64(),
        elapsed.as_secs_f64(),
        totals.tasks,
    )
}

/// How long the turns of several CPUs were on the average. A CPU that is alone in not being halted
/// has one long turn.
fn turns(instructions: u64, turns: u64) -> String {
    let mean = instructions as f64 / turns.max(1) as f64;
    format!("{turns} turns of the CPUs, {mean:.0} instructions on the average\n")
}

/// The conditions of a result, in one line.
pub(crate) fn on(conditions: &RecordingConditions) -> String {
    let cpus = match (conditions.cpus, conditions.turn) {
        (1, _) => String::new(),
        (cpus, None) => format!(", {cpus} CPUs"),
        (cpus, Some(turn)) => format!(", {cpus} CPUs in turns of at most {turn} instructions"),
    };
    format!(
        "{} on {} (build id {}), seed {}{cpus}",
        conditions.workload, conditions.kernel_release, conditions.kernel_build_id, conditions.seed
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn the_guests_time_and_this_machines_are_told_apart() {
        let totals = RecordedAmounts {
            instructions: 2_000_000,
            kernel_instructions: 500_000,
            tasks: 39,
            trace_bytes: 1_000_000,
            ..RecordedAmounts::default()
        };
        let text = amounts(&totals, Duration::from_micros(352_400), Duration::from_millis(9_700));
        let expected = [
            "2.0 M instructions, 25.0 % of them the kernel's; 1.0 MB, 4.00 bit an instruction",
            "0.352 s by the guest's clock; 10 s by this machine's, with the guest's boot",
            "39 task records: one for each task_struct, pid and name that was seen; a thread has \
             one for each of its names",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn turns_have_a_mean_length() {
        let text = "4 turns of the CPUs, 500 instructions on the average\n";
        assert_eq!(turns(2_000, 4), text);
        assert!(turns(2_000, 0).contains("2000 instructions"));
    }

    #[test]
    fn the_memory_of_a_guest_has_the_same_limits_as_in_a_workload() {
        let parse = |megabytes: &str| {
            let line = ["kernlane", "record", "net", "-o", "x", "-k", "y", "--memory", megabytes];
            crate::cli::Cli::try_parse_from(line).map(drop).map_err(|error| error.to_string())
        };
        let (least, most) = guest::MEMORY_MB.into_inner();
        assert!(parse(&least.to_string()).is_ok() && parse(&most.to_string()).is_ok());
        for wrong in [least - 1, most + 1] {
            let message = parse(&wrong.to_string()).unwrap_err();
            assert!(message.contains(&format!("{least}..={most}")), "{message}");
        }
    }
}
