//! Programs whose sharing is known (`known.c`), on four CPUs in short turns: side by side, their
//! lines move as often as the programs say, the counts of each line are those of `replay`, and the
//! parts of the cost are those of the stalls.

use super::cpus::boot_program;
use super::sharing::{as_replay_counts, line, sharing};
use super::{TestedMachine, WholeRecording};
use anyhow::{Context, Result, ensure};
use coherence::sharing::table::{LineCounts, SharingTable};
use execution::cpu_order::CpuOrder;
use host::recording::Recording;
use std::path::Path;

pub(super) const PROGRAM: &str = include_str!("known.c");
/// As in `known.c`.
const CPUS: u8 = 4;
const TIMES: u64 = 5000;
const ROUNDS: u64 = 200;
const SHARED: u64 = 0x5000_0000;
const ONE_LINE: u64 = SHARED;
const OWN_LINES: u64 = SHARED + 0x1000;
const BALL: u64 = SHARED + 0x2000;
const GUARDED: u64 = SHARED + 0x3040;
const READ: u64 = SHARED + 0x4000;
/// The longest turn, in instructions.
const TURN: u32 = 2000;

/// Records the programs, and counts their lines in both orders.
pub(super) fn programs_share_what_they_say(machine: &TestedMachine) -> Result<()> {
    let recording = machine.out("known.rec");
    std::fs::create_dir_all(&recording)?;
    let trace = Recording::at(&recording).trace();
    let facts = machine.kernel.task_facts()?;
    let base = facts.page_offset_base.context("the kernel has no page_offset_base")?;
    let base = format!("{:#x}", base.0);
    let data = [("data", "on"), ("page_offset_base", base.as_str())];
    let program = ("known", machine.known.as_slice());
    boot_program(machine, CPUS, program, "", Some(TURN), &trace, &data)?;
    ensure!(WholeRecording::read(&trace)?.header.cpus.get() == CPUS, "not {CPUS} CPUs");
    are_counted(&recording, &machine.kernel.vmlinux)
}

/// Checks a recording of the programs.
fn are_counted(recording: &Path, kernel: &Path) -> Result<()> {
    let [side_by_side, recorded] =
        [CpuOrder::SideBySide, CpuOrder::Recorded].map(|order| sharing(recording, kernel, order));
    let (side_by_side, recorded) = (side_by_side?, recorded?);
    for table in [&side_by_side, &recorded] {
        as_replay_counts(&Recording::at(recording).trace(), table)?;
    }
    let beside = side_by_side.totals.recorded.context("the other order is missing")?;
    ensure!(beside == recorded.totals.total, "{beside:?} is not {:?}", recorded.totals.total);

    // Each of four CPUs increments, and between two of its increments another CPU takes the line.
    let increments = u64::from(CPUS) * TIMES;
    let one = &line(&side_by_side, ONE_LINE)?.counts;
    ensure!(10 * one.misses.false_sharing >= 6 * increments, "one line: {one:?}");
    ensure!(one.misses.false_sharing <= increments, "one line: {one:?}");
    let in_turns = counts(&recorded, ONE_LINE);
    ensure!(20 * in_turns.events() < one.events(), "in turns: {in_turns:?}");
    for cpu in 0..CPUS {
        let own = counts(&side_by_side, OWN_LINES + 64 * u64::from(cpu));
        ensure!(own.events() <= 2, "a line of its own: {own:?}");
    }
    // Each of two processes takes the ball ROUNDS times, but for the first time.
    for table in [&side_by_side, &recorded] {
        let ball = counts(table, BALL);
        let moves = 2 * ROUNDS - 1;
        ensure!((moves - 1..=moves + 2).contains(&ball.misses.true_sharing), "ball: {ball:?}");
        ensure!(ball.misses.false_sharing == 0, "ball: {ball:?}");
    }
    // Who increments after whom is the same in both orders.
    let guarded = [&side_by_side, &recorded].map(|table| counts(table, GUARDED));
    ensure!(guarded[0].misses == guarded[1].misses, "behind a lock: {guarded:?}");
    ensure!(guarded[0].misses.true_sharing > 3, "behind a lock: {guarded:?}");
    ensure!(guarded[0].misses.false_sharing == 0, "behind a lock: {guarded:?}");
    // The reader loads nothing of what the writers write.
    let read = &line(&side_by_side, READ)?;
    let [reader, writers @ ..] = &read.cpus[..] else { anyhow::bail!("{read:?}") };
    let reader = reader.user.misses;
    ensure!(reader.true_sharing == 0 && 2 * reader.false_sharing >= TIMES, "{reader:?}");
    for writer in writers {
        let writer = writer.user.misses;
        ensure!(writer.true_sharing == 0 && 2 * writer.false_sharing >= TIMES, "{writer:?}");
    }
    Ok(())
}

/// Nothing when the line is not among those that cost most.
fn counts(table: &SharingTable, addr: u64) -> LineCounts {
    line(table, addr).map_or(LineCounts::default(), |line| line.counts)
}
