//! `cargo xtask services-test KERNEL`: tests whether counts of services agree with the guest's own
//! counts.
//!
//! The test boots the kernel with a program that does known work between the marks. The program
//! prints the kernel's own counters from before and after the work. The kernel also counts what
//! happens while the counters are read. The program therefore runs twice: with the marks directly
//! around the work, and with the marks around the readings. The kernel's counts lie between those
//! of the two recordings. Prints one line for each test.

use anyhow::{Context, Result, ensure};
use guest::{
    self, Boot, GuestClock, GuestContents, GuestEnd, GuestKernel, GuestOutcome, QemuPlugin,
};
use host::recording::Recording;
use lab::build_plugin;
use lab::plugin::PluginArguments;
use lab::score::TestScore;
use services::Attribution;
use services::annotations::ServiceKind;
use services::table::ServiceTable;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const PROGRAM: &str = include_str!("known.c");
const SEED: u64 = 3;
/// Numbers of repetitions in `known.c`.
const PAGES: u64 = 200;
const FORKS: u64 = 31;
const PAGES_OF_CHILDREN: u64 = 30 * 5;
const SLEEPS: u64 = 10;
/// The time of a sleep in nanoseconds, and how much longer it may take. The kernel joins timers
/// that are 50 µs apart; the rest is work.
const SLEEP: f64 = 1e6;
const SLEEP_MORE: f64 = 1e5;
/// The largest share of the kernel's work that may have no service.
const MOST_OTHER: f64 = 0.01;

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn services_test(kernel: &Path) -> Result<()> {
    let directory = tempfile::tempdir().context("making a temporary directory")?;
    let kernel = GuestKernel::open(kernel, None)?;
    let mut machine = RecordedMachine {
        cpus: 1,
        attribution: Attribution::open(&kernel.vmlinux, None, &[])?,
        plugin: build_plugin()?,
        program: lab::bare::compile("known.c", PROGRAM)?,
        directory: directory.path().into(),
        kernel,
    };
    let blind: Vec<&str> =
        machine.attribution.binding.blind.iter().map(|blind| blind.about.as_str()).collect();
    ensure!(blind.is_empty(), "the annotations do not find {blind:?} in this kernel");

    let (inner, inside) = machine.recorded("inner")?;
    let (outer, outside) = machine.recorded("outer")?;
    let mut score = TestScore::default();
    let mut compare = |what: &str,
                       exactly: bool,
                       guest: &dyn Fn(&ServiceCounts) -> Result<u64>,
                       ours: &dyn Fn(&ServiceTable) -> u64|
     -> Result<()> {
        let (least, most) = (ours(&inner), ours(&outer));
        let (counted, counted_outside) = (guest(&inside)?, guest(&outside)?);
        let right = least <= counted && most >= counted_outside && (!exactly || least == counted);
        let row = format!(
            "{what}: {least} recorded, {counted} by the guest; with the readings {most} recorded, \
             {counted_outside} by the guest"
        );
        score.holds(&row, right);
        Ok(())
    };
    compare("context switches", true, &|c| c.of("/proc/stat", "ctxt"), &|t| t.context_switches)?;
    compare("new tasks", true, &|c| c.of("/proc/stat", "processes"), &|t| t.counters["forks"])?;
    compare(
        "page faults",
        true,
        &|c| c.of("/proc/vmstat", "pgfault"),
        &|t| t.counters["faults handled"],
    )?;
    compare("interrupts", false, &|c| c.of("/proc/stat", "intr"), &|t| {
        begun(t, ServiceKind::Interrupt) + begun(t, ServiceKind::Ipi)
    })?;
    compare("timer interrupts", false, &|c| c.of("/proc/interrupts", "LOC:"), &|t| {
        calls(t, ServiceKind::Interrupt, "apic_timer_interrupt")
    })?;
    for (name, action) in [
        ("TIMER:", "run_timer_softirq"),
        ("SCHED:", "sched_balance_softirq"),
        ("RCU:", "rcu_core_si"),
        ("HRTIMER:", "hrtimer_run_softirq"),
    ] {
        // Before Linux 6.10 the softirq SCHED ran run_rebalance_domains.
        let or = if name == "SCHED:" { "run_rebalance_domains" } else { action };
        let ours = |table: &ServiceTable| {
            let first = calls(table, ServiceKind::Softirq, action);
            first + if or == action { 0 } else { calls(table, ServiceKind::Softirq, or) }
        };
        compare(&format!("softirqs {name}"), false, &|c| c.of("/proc/softirqs", name), &ours)?;
    }
    for (what, least, got) in [
        ("new tasks", FORKS, inner.counters["forks"]),
        ("demand zero", PAGES, calls(&inner, ServiceKind::PageFault, "demand zero")),
        (
            "copy on write",
            PAGES_OF_CHILDREN,
            calls(&inner, ServiceKind::PageFault, "copy on write"),
        ),
    ] {
        score.holds(&format!("{what}: {got}, at least {least}"), got >= least);
    }
    for (name, table) in [("inner", &inner), ("outer", &outer)] {
        let share = 100.0 * table.other_share;
        let row = format!("{name}: {share:.3} % of the kernel's instructions have no service");
        score.holds(&row, table.other_share <= MOST_OTHER);
    }
    sleeps_take_their_time(&inner, &mut score)?;
    machine.system_calls(&mut score)?;
    machine.cpus = 2;
    machine.several_cpus(&mut score)?;
    ensure!(score.failed() == 0, "{} counts differ from the guest's", score.failed());
    Ok(())
}

/// Checks the time of sleeps. During a sleep the processor is halted, so instructions do not show
/// its length.
fn sleeps_take_their_time(table: &ServiceTable, score: &mut TestScore) -> Result<()> {
    let mut rows = table.rows.iter();
    let sleep = rows.find(|row| row.kind == ServiceKind::SystemCall && row.name == "nanosleep");
    let sleep = sleep.context("no nanosleep is recorded")?;
    let halted = table.halted.context("the recording has no clock")? as f64;
    let (latency, blocked) = (sleep.latency.total, sleep.latency.blocked.unwrap_or(0.0));
    let right = sleep.calls == SLEEPS
        && (SLEEP..SLEEP + SLEEP_MORE).contains(&latency)
        && blocked <= latency
        && SLEEPS as f64 * blocked >= 0.9 * halted
        && halted >= 0.9 * SLEEPS as f64 * SLEEP;
    let row = format!(
        "{} sleeps of {SLEEP:.0} ns take {latency:.0} ns each, {blocked:.0} blocked; the processor \
         was halted for {halted:.0} ns",
        sleep.calls
    );
    score.holds(&row, right);
    Ok(())
}

fn begun(table: &ServiceTable, kind: ServiceKind) -> u64 {
    table.begun.get(&kind).copied().unwrap_or(0)
}

fn calls(table: &ServiceTable, kind: ServiceKind, name: &str) -> u64 {
    let row = table.rows.iter().find(|row| row.kind == kind && row.name == name);
    row.map_or(0, |row| row.calls)
}

struct RecordedMachine {
    cpus: u8,
    kernel: GuestKernel,
    attribution: Attribution,
    plugin: PathBuf,
    /// The compiled `known.c`.
    program: Vec<u8>,
    directory: PathBuf,
}

/// The differences of the kernel's counters. The key is the file and the first word of a line; the
/// value is the sum of the numbers behind that word.
struct ServiceCounts(BTreeMap<(String, String), u64>);

impl ServiceCounts {
    fn of(&self, file: &str, name: &str) -> Result<u64> {
        let key = (file.to_owned(), name.to_owned());
        self.0.get(&key).copied().with_context(|| format!("{file} has no {name}"))
    }

    /// `cpus`: files about interrupts have a number for each.
    fn parse(output: &str, cpus: u8) -> Result<ServiceCounts> {
        let mut read: [BTreeMap<(String, String), u64>; 2] = Default::default();
        let (mut when, mut file) = (0, String::new());
        for line in output.lines() {
            if let Some(title) = line.strip_prefix("== ") {
                let (which, name) = title.split_once(' ').context("a title without a file")?;
                (when, file) = (usize::from(which == "after"), name.to_owned());
                continue;
            }
            let mut words = line.split_ascii_whitespace();
            let Some(name) = words.next() else { continue };
            let by_cpu = ["/proc/interrupts", "/proc/softirqs"].contains(&file.as_str());
            let columns = if by_cpu { cpus.into() } else { 1 };
            let numbers: Vec<u64> =
                words.take(columns).map_while(|number| number.parse().ok()).collect();
            if numbers.len() == columns {
                read[when].insert((file.clone(), name.to_owned()), numbers.iter().sum());
            }
        }
        let [before, after] = read;
        ensure!(!before.is_empty(), "the program showed no counters: {output}");
        let differences = after.into_iter().filter_map(|(key, after)| {
            let before = before.get(&key).copied()?;
            Some((key, after.saturating_sub(before)))
        });
        Ok(ServiceCounts(differences.collect()))
    }
}

impl RecordedMachine {
    fn contents(&self, script: &str, packages: &[&str]) -> GuestContents {
        let mut contents = GuestContents::of_script(&format!("sleep 5\n{script}\n"), Vec::new());
        packages.iter().for_each(|package| contents.package(package));
        contents.file("/kernlane/known", 0o755, self.program.as_slice());
        contents
    }

    /// Records the program in one of its modes.
    fn record(&self, how: &str) -> Result<(ServiceTable, GuestOutcome)> {
        let recording = self.directory.join(format!("{how}-{}", self.cpus));
        std::fs::create_dir(&recording)?;
        let plugin = self.plugin(&Recording::at(&recording).trace())?;
        let contents = self.contents(&format!("/kernlane/known {how}"), &[]);
        let outcome = guest::run(&self.kernel.boot_image, &contents, |boot: &mut Boot| {
            boot.clock = GuestClock::Instructions { seed: SEED };
            boot.cpus = self.cpus.into();
            boot.plugin = Some(plugin);
        })?;
        lab::bare::exited_well(&outcome)?;
        Ok((self.attribution.table(&recording, None)?, outcome))
    }

    fn recorded(&self, how: &str) -> Result<(ServiceTable, ServiceCounts)> {
        let (table, outcome) = self.record(how)?;
        Ok((table, ServiceCounts::parse(&outcome.output, self.cpus)?))
    }

    fn plugin(&self, out: &Path) -> Result<QemuPlugin> {
        let task = self.kernel.task_facts()?;
        let wakes: Vec<String> = task.wakes.iter().map(|addr| format!("{:#x}", addr.0)).collect();
        let mut arguments = PluginArguments::new(&self.kernel, "known", out)?
            .with("seed", SEED)
            .with("clock", "on")
            .with("wakes", wakes.join("+"));
        if let Some(set_comm) = task.set_comm {
            arguments = arguments.with("set_comm", format!("{:#x}", set_comm.0));
        }
        if self.cpus > 1 {
            let place = self.kernel.per_cpu_offset()?;
            arguments = arguments.with("cpus", self.cpus);
            arguments = arguments.with("per_cpu_offset", format!("{:#x}", place.0));
        }
        if let Some(pid) = task.pid {
            arguments = arguments.with("pid", pid);
        }
        Ok(arguments.plugin(self.plugin.clone()))
    }

    /// Compares counts of several CPUs with the guest's. The other CPU also works
    /// while the counters are read, so the guest's counts only lie between those of the recordings.
    fn several_cpus(&self, score: &mut TestScore) -> Result<()> {
        let (inner, inside) = self.recorded("inner")?;
        let (outer, outside) = self.recorded("outer")?;
        type Ours = fn(&ServiceTable) -> u64;
        let counts: [(&str, [&str; 2], Ours); 5] = [
            ("context switches", ["/proc/stat", "ctxt"], |t| t.context_switches),
            ("new tasks", ["/proc/stat", "processes"], |t| t.counters["forks"]),
            ("page faults", ["/proc/vmstat", "pgfault"], |t| t.counters["faults handled"]),
            ("timer interrupts", ["/proc/interrupts", "LOC:"], |t| {
                calls(t, ServiceKind::Interrupt, "apic_timer_interrupt")
            }),
            ("softirqs TIMER:", ["/proc/softirqs", "TIMER:"], |t| {
                calls(t, ServiceKind::Softirq, "run_timer_softirq")
            }),
        ];
        for (what, [file, name], ours) in counts {
            let ([least, most], [counted, counted_outside]) =
                ([ours(&inner), ours(&outer)], [inside.of(file, name)?, outside.of(file, name)?]);
            let right = (1..=counted).contains(&least) && counted_outside <= most;
            let row = format!(
                "{} CPUs: {what}: {least} recorded, {counted} by the guest; with the readings \
                 {most} recorded, {counted_outside} by the guest",
                self.cpus
            );
            score.holds(&row, right);
        }
        self.system_calls(score)
    }

    /// Compares the counts of system calls with those of `strace -c` in the guest. The
    /// program's own execve and its last exit lie outside of the marks, and strace does not count
    /// calls that never return.
    fn system_calls(&self, score: &mut TestScore) -> Result<()> {
        let (table, _) = self.record("work")?;
        let contents = self.contents(
            "strace -f -c -U name,calls -o /run/calls /kernlane/known work\ncat /run/calls",
            &["strace"],
        );
        let outcome = guest::run(&self.kernel.boot_image, &contents, |boot: &mut Boot| {
            boot.cpus = self.cpus.into();
        })?;
        ensure!(
            outcome.end == GuestEnd::Exited(0),
            "strace: {:?}: {}",
            outcome.end,
            outcome.output
        );
        let mut counted = BTreeMap::new();
        for line in outcome.output.lines() {
            if let [name, calls] = line.split_ascii_whitespace().collect::<Vec<_>>()[..]
                && let Ok(calls) = calls.parse::<u64>()
                && !["total", "execve", "exit"].contains(&name)
            {
                counted.insert(name.to_owned(), calls);
            }
        }
        ensure!(counted.len() > 5, "strace counted too little: {}", outcome.output);
        let recorded: BTreeMap<String, u64> = table
            .rows
            .iter()
            .filter(|row| row.kind == ServiceKind::SystemCall && row.name != "exit")
            .map(|row| (row.name.clone(), row.calls))
            .collect();
        let row = format!(
            "{} CPUs: system calls: recorded {recorded:?}, by strace {counted:?}",
            self.cpus
        );
        score.holds(&row, recorded == counted);
        Ok(())
    }
}
