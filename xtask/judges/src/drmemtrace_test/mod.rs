//! `cargo xtask drmemtrace-test LAUNCHER RECORDING`: tests whether DynamoRIO takes what `kernlane
//! export --format drmemtrace` writes, and misses in its caches as often as Kernlane.
//!
//! LAUNCHER is DynamoRIO's `drmemtrace_launcher`. Its invariant checker must find nothing, its
//! counts of instructions must be those of `kernlane replay`, and the misses of its cache simulator
//! must be within 1 %. RECORDING is of one CPU, with data accesses; all of it runs.

mod peer;

use anyhow::{Context, Result, ensure};
use host::recording::Recording;
use lab::processor::user_seconds;
use lab::score::TestScore;
use peer::Launcher;
use replay::ReplayLayout;
use sim::{MachineCounters, MachineModel, MemoryDescription};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use trace::RecordingReader;

/// The caches.
const MACHINE: &str = include_str!("machine.toml");
/// The difference of misses that passes, in percent.
const TOLERANCE: u64 = 1;

/// Compares what this module describes.
///
/// # Errors
/// The numbers differ, or something cannot run.
pub fn drmemtrace_test(launcher: &Path, recording: &Path) -> Result<()> {
    let scratch = tempfile::tempdir().context("no scratch directory can be made")?;
    let own = replayed(recording, &machine(scratch.path())?)?;
    let launcher = Launcher::new(launcher);
    let whole = export(recording, "drmemtrace", scratch.path())?;
    let mut table = Table::default();
    table.exact("violations of the invariant checker", 0, launcher.violations(&whole.0)?);
    let counts = launcher.counts(&whole.0)?;
    table.exact("instructions of the kernel", own.instructions[0], counts.kernel);
    table.exact("instructions of users", own.instructions[1], counts.user);
    std::fs::remove_file(&whole.0).context("the trace cannot be removed")?;
    let serial = export(recording, "drmemtrace-serial", scratch.path())?;
    let memory = memory(&own.machine)?;
    let (misses, simulated) = user_seconds(|| launcher.misses(&serial.0, &memory))?;
    for (at, level) in ["L1I", "L1D", "LL"].into_iter().enumerate() {
        table.near(&format!("misses of the {level}"), own.misses[at], misses[at]);
    }
    println!(
        "CPU seconds in user mode: kernlane export {:.1}, the cache simulator {simulated:.1}",
        whole.1
    );
    table.judge()
}

/// Kernlane's counts.
struct OwnCounts {
    machine: MachineModel,
    /// Instructions of the kernel and of users.
    instructions: [u64; 2],
    /// Misses of the L1I, the L1D and the L2.
    misses: [u64; 3],
}

/// The machine, by a file in `scratch`.
fn machine(scratch: &Path) -> Result<MachineModel> {
    let path = scratch.join("machine.toml");
    std::fs::write(&path, MACHINE).with_context(|| path.display().to_string())?;
    Ok(machines::find(&path.display().to_string())?.model)
}

fn memory(machine: &MachineModel) -> Result<peer::Caches> {
    let memory: &MemoryDescription =
        machine.memory.as_ref().context("the machine has no data caches")?;
    let last = memory.l2.context("the machine has no second level")?;
    let lines = [memory.l1d.line, last.line];
    ensure!(lines == [machine.l1i_line; 2], "the machine has lines of several lengths");
    let (l1d, last) = (memory.l1d.geometry, last.geometry);
    Ok(peer::Caches { line: machine.l1i_line, l1i: machine.l1i, l1d, last })
}

fn replayed(recording: &Path, machine: &MachineModel) -> Result<OwnCounts> {
    let path = Recording::at(recording).trace();
    let named = || path.display().to_string();
    let file = BufReader::new(File::open(&path).with_context(named)?);
    let reader = RecordingReader::new(file).with_context(named)?;
    let machines = std::slice::from_ref(machine);
    let replayed =
        replay::replay(reader, &[ReplayLayout::original()], machines).with_context(named)?;
    let counters = replayed.layouts[0].machines[0].memory;
    let counters = counters.context("the recording has no data accesses")?;
    let sum = |count: fn(&MachineCounters) -> u64| count(&counters.kernel) + count(&counters.user);
    let totals = &replayed.totals;
    Ok(OwnCounts {
        machine: machine.clone(),
        instructions: [totals.kernel_instructions, totals.user_instructions],
        misses: [
            sum(|counters| counters.l1i.total()),
            sum(|counters| counters.l1d.total()),
            sum(|counters| counters.l2i.total() + counters.l2d.total()),
        ],
    })
}

/// The file, and the CPU time in user mode in seconds.
fn export(recording: &Path, format: &str, scratch: &Path) -> Result<(PathBuf, f64)> {
    let path = scratch.join(format!("{format}.trace"));
    // The program is timed.
    let mut command = Command::new(lab::kernlane()?);
    command.arg("export").arg(recording).args(["--format", format, "--output"]).arg(&path);
    let ((), seconds) = user_seconds(|| lab::run(command.stdout(Stdio::null())))?;
    Ok((path, seconds))
}

/// The compared counts.
#[derive(Default)]
struct Table(TestScore);

impl Table {
    fn exact(&mut self, what: &str, own: u64, peer: u64) {
        self.0.holds(&format!("{what}: Kernlane {own}, DynamoRIO {peer}"), own == peer);
    }

    fn near(&mut self, what: &str, own: u64, peer: u64) {
        let percent = 100.0 * (peer as f64 / own as f64 - 1.0);
        let row = format!("{what}: kernlane replay {own}, DynamoRIO {peer} ({percent:+.2} %)");
        self.0.holds(&row, 100 * own.abs_diff(peer) <= TOLERANCE * own);
    }

    fn judge(&self) -> Result<()> {
        ensure!(self.0.failed() == 0, "{} rows failed", self.0.failed());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_two_levels() {
        let scratch = tempfile::tempdir().unwrap();
        let caches = memory(&machine(scratch.path()).unwrap()).unwrap();
        assert_eq!(caches.l1i.sets() * caches.l1i.ways() * 64, 32768);
        assert_eq!(caches.last.sets() * caches.last.ways() * 64, 1 << 20);
    }

    #[test]
    fn misses_may_differ_by_one_percent_and_counts_not_at_all() {
        let judged = |compare: &dyn Fn(&mut Table)| {
            let mut table = Table::default();
            compare(&mut table);
            table.judge().is_ok()
        };
        assert!(judged(&|table| table.near("misses", 1000, 1010)));
        assert!(!judged(&|table| table.near("misses", 1000, 1011)));
        assert!(!judged(&|table| table.near("misses", 0, 1)));
        assert!(judged(&|table| table.exact("instructions", 1000, 1000)));
        assert!(!judged(&|table| table.exact("instructions", 1000, 1001)));
    }
}
