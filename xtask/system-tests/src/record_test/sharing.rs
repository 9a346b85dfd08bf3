//! Several CPUs: `report sharing` finds the lines that `pinned.c` shares, and counts them
//! exactly.
//!
//! The processes increment the counters in turn: each has the token of a ring. So every count is
//! known. A process's first increment misses the line for the first time; every later one misses it
//! because another process took it. Each store, except the very first, finds the line shared with
//! the process before.

use super::TestedMachine;
use super::cpus::{ROUNDS, WITH_DATA};
use anyhow::{Context, Result, ensure};
use coherence::sharing::table::{AccessCounts, Cure, LineCounts, LineRow, SharingTable};
use execution::coherent_run;
use host::recording::Recording;
use image::programs::UserPrograms;
use replay::{CpuOrder, ReplayLayout, ReplayTrial, SimulationScope};
use services::Attribution;
use sim::coherent::{ClassCounts, SharingCounts};
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use trace::RecordingReader;

const MACHINE: &str = "server-8";
/// As `SHARED` in `pinned.c`.
const COUNTERS: u64 = 0x5000_0000;
const COMMON: u64 = COUNTERS + 64;
/// Lines to look through.
const TOP: usize = 1000;

/// Expects the recording of [`super::cpus::accesses_have_their_cpu`]. The token gives the processes
/// one order, which both orders of the CPUs keep.
pub(super) fn counters_are_named(machine: &TestedMachine, cpus: u8) -> Result<()> {
    let recording = machine.out(&format!("cpus-{cpus}.rec"));
    std::fs::create_dir_all(&recording)?;
    let trace = Recording::at(&recording).trace();
    std::fs::copy(machine.out(WITH_DATA), &trace)?;
    for order in [CpuOrder::SideBySide, CpuOrder::Recorded] {
        let table = sharing(&recording, &machine.kernel.vmlinux, order)?;
        are_exact(&table, cpus).with_context(|| format!("{order:?}"))?;
        as_replay_counts(&trace, &table)?;
    }
    Ok(())
}

/// The first lines of a recording.
pub(super) fn sharing(recording: &Path, kernel: &Path, order: CpuOrder) -> Result<SharingTable> {
    let attribution = Attribution::open(kernel, None, &[MACHINE.to_owned()])?;
    let programs = UserPrograms::default();
    let mut tables = coherence::sharing(&attribution, order, recording, kernel, &programs, TOP)?;
    tables.pop().context("there is no table")
}

fn are_exact(table: &SharingTable, cpus: u8) -> Result<()> {
    let cpus = u64::from(cpus);

    let own = line(table, COUNTERS)?;
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

    let common = line(table, COMMON)?;
    let true_sharing = cpus * (ROUNDS - 1);
    has(common, ClassCounts { cold: cpus, true_sharing, ..ClassCounts::default() }, cpus)?;
    ensure!(common.cure == Cure::TrueSharing, "the cure is {:?}", common.cure);
    Ok(())
}

/// The line with this virtual address.
pub(super) fn line(table: &SharingTable, addr: u64) -> Result<&LineRow> {
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

/// The counts of each line and of all of them are those of `replay`, and the costs are the stalls.
pub(super) fn as_replay_counts(trace: &Path, table: &SharingTable) -> Result<()> {
    let reader = RecordingReader::new(BufReader::new(File::open(trace)?))?;
    let machines = [machines::find(MACHINE)?.model];
    let layout = ReplayLayout::original();
    let mut trial = ReplayTrial::new(&layout, &machines, SimulationScope::Caches);
    trial.order = table.totals.order;
    let replayed = replay::replay_trials(reader, &[trial])?;
    let counted = replayed.layouts[0].machines[0].coherence.as_ref().context("no coherence")?;
    let (mut misses, mut upgrades, mut stalls) = (ClassCounts::default(), 0, 0.0);
    for counters in counted.cpus.iter().flat_map(|cpu| [&cpu.kernel, &cpu.user]) {
        misses += counters.l2_data;
        misses += counters.l2_instructions;
        upgrades += counters.upgrades;
        stalls += coherent_run::stalls(&machines[0], counters).context("one core")?.total();
    }
    let total = &table.totals.total;
    let (own, replayed) =
        ((total.all_misses(), total.upgrades.total(), total.stalls), (misses, upgrades, stalls));
    ensure!(own == replayed, "{own:?}, and {replayed:?} in replay");
    ensure!(misses.coherence() > 0 && total.cycles < stalls, "{total:?}");

    let by_physical: HashMap<u64, SharingCounts> = (counted.lines.iter())
        .map(|line| {
            let mut counts = line.counts.kernel;
            counts += line.counts.user;
            (line.physical.0, counts)
        })
        .collect();
    for line in &table.lines {
        let LineCounts { misses, upgrades, cycles, served } = &line.counts;
        let own = SharingCounts {
            true_sharing: misses.true_sharing,
            false_sharing: misses.false_sharing,
            upgrades: *upgrades,
        };
        let physical = u64::from_str_radix(&line.physical, 16)?;
        let replayed = by_physical.get(&physical).copied().unwrap_or_default();
        // Replay does not count the upgrades of a line before a core lost the line.
        ensure!(
            (own.true_sharing, own.false_sharing)
                == (replayed.true_sharing, replayed.false_sharing)
                && own.upgrades >= replayed.upgrades,
            "the line at {}: {own:?}, and {replayed:?} in replay",
            line.addr
        );
        ensure!(served.total() == own.total(), "the line at {}: {served:?}", line.addr);
        ensure!(line.share == cycles / total.cycles, "the line at {}: {}", line.addr, line.share);
    }
    let of_functions: f64 = table.functions.iter().map(|row| row.stalls).sum();
    ensure!(of_functions == stalls, "{stalls} cycles of stalls, {of_functions} of functions");
    Ok(())
}
