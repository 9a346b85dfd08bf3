//! Several CPUs: `report --sharing` finds the lines that `pinned.c` shares, and counts them
//! exactly.
//!
//! The processes increment the counters in turn: each has the token of a ring. So every count is
//! known. A process's first increment misses the line for the first time; every later one misses it
//! because another process took it. Each store, except the very first, finds the line shared with
//! the process before.

use super::TestedMachine;
use super::cpus::{ROUNDS, WITH_DATA};
use anyhow::{Context, Result, ensure};
use coherence::sharing::table::{AccessCounts, Cure, LineRow, SharingTable};
use host::recording::Recording;
use replay::{CpuOrder, ReplayLayout, ReplayTrial, SimulationScope};
use services::Attribution;
use sim::coherent::ClassCounts;
use std::fs::File;
use std::io::BufReader;
use trace::RecordingReader;

const MACHINE: &str = "server-8";
/// As `SHARED` in `pinned.c`.
const COUNTERS: u64 = 0x5000_0000;
const COMMON: u64 = COUNTERS + 64;
/// Lines to look through.
const TOP: usize = 500;

/// Expects the recording of [`super::cpus::accesses_have_their_cpu`].
pub(super) fn counters_are_named(machine: &TestedMachine, cpus: u8) -> Result<()> {
    let recording = machine.out(&format!("cpus-{cpus}.rec"));
    std::fs::create_dir_all(&recording)?;
    let trace = Recording::at(&recording).trace();
    std::fs::copy(machine.out(WITH_DATA), &trace)?;
    let kernel = &machine.kernel.vmlinux;
    let attribution = Attribution::open(kernel, None, &[MACHINE.to_owned()])?;
    let mut tables = coherence::sharing(&attribution, &recording, kernel, TOP)?;
    let table = tables.pop().context("there is no table")?;
    let cpus = u64::from(cpus);

    let own = line(&table, COUNTERS)?;
    let false_sharing = cpus * (ROUNDS - 1);
    has(own, ClassCounts { cold: cpus, false_sharing, ..ClassCounts::default() }, cpus)?;
    ensure!(own.fields.len() as u64 == cpus, "the counters are {} fields", own.fields.len());
    for (cpu, field) in own.fields.iter().enumerate() {
        ensure!((field.offset, field.size) == (8 * cpu as u32, 8), "{field:?}");
        for (other, accesses) in field.cpus.iter().enumerate() {
            let times = if other == cpu { ROUNDS } else { 0 };
            ensure!(*accesses == AccessCounts { reads: times, writes: times }, "{field:?}");
        }
    }
    let cure_is_right = match cpus {
        2 => matches!(own.cure, Cure::MoveField { .. }),
        _ => matches!(own.cure, Cure::PerCpu { .. }),
    };
    ensure!(cure_is_right, "the cure is {:?}", own.cure);

    let common = line(&table, COMMON)?;
    let true_sharing = cpus * (ROUNDS - 1);
    has(common, ClassCounts { cold: cpus, true_sharing, ..ClassCounts::default() }, cpus)?;
    ensure!(common.cure == Cure::TrueSharing, "the cure is {:?}", common.cure);
    as_replay_counts(&trace, &table)
}

fn line(table: &SharingTable, addr: u64) -> Result<&LineRow> {
    let addr = format!("{addr:016x}");
    let found = table.lines.iter().find(|line| line.addr == addr);
    found.with_context(|| format!("no line at {addr} among the first {TOP}"))
}

fn has(line: &LineRow, misses: ClassCounts, cpus: u64) -> Result<()> {
    let upgrades = cpus * ROUNDS - 1;
    let counts = &line.counts;
    ensure!(
        (counts.misses, counts.upgrades) == (misses, upgrades),
        "the line at {} has {counts:?}, not {misses:?} and {upgrades} upgrades",
        line.addr
    );
    Ok(())
}

/// `replay` runs the fetches of a turn's last execution later, so evictions can differ.
fn as_replay_counts(trace: &std::path::Path, table: &SharingTable) -> Result<()> {
    let reader = RecordingReader::new(BufReader::new(File::open(trace)?))?;
    let machines = [machines::find(MACHINE)?.model];
    let layout = ReplayLayout::original();
    let mut trial = ReplayTrial::new(&layout, &machines, SimulationScope::Caches);
    trial.order = CpuOrder::Recorded;
    let replayed = replay::replay_trials(reader, &[trial])?;
    let counted = replayed.layouts[0].machines[0].coherence.as_ref().context("no coherence")?;
    let (mut coherence, mut upgrades) = (0, 0);
    for counters in counted.cpus.iter().flat_map(|cpu| [&cpu.kernel, &cpu.user]) {
        coherence += counters.l2_data.coherence() + counters.l2_instructions.coherence();
        upgrades += counters.upgrades;
    }
    let own = (table.total.all_misses().coherence(), table.total.upgrades.total());
    for (replayed, own) in [(coherence, own.0), (upgrades, own.1)] {
        ensure!(
            own > 0 && own.abs_diff(replayed) * 1000 <= own,
            "{own} coherence misses or upgrades, and {replayed} in replay"
        );
    }
    Ok(())
}
