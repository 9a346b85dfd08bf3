//! Locks: `report locks` counts what `pinned.c` is known to acquire, and misses no run of a lock
//! function.
//!
//! Each process writes a byte to a pipe in each round, and the pipe is never full: so `pipe_write`
//! acquires the mutex of a pipe once for each write. The runs of lock functions are counted here
//! from the recording alone.

use super::cpus::{ROUNDS, WITH_DATA};
use super::{TestedMachine, WholeRecording};
use anyhow::{Context, Result, ensure};
use coherence::locks::table::{FunctionRow, KindRow, LockKind, LockTable};
use execution::cpu_order::CpuOrder;
use services::Attribution;
use services::symbols::KernelSymbols;
use std::collections::BTreeMap;
use trace::StreamEvent;

const MACHINE: &str = "server-8";

/// Expects the recordings of [`super::sharing::counters_are_named`].
pub(super) fn are_counted(machine: &TestedMachine, cpus: u8) -> Result<()> {
    let kernel = &machine.kernel.vmlinux;
    let attribution = Attribution::open(kernel, None, &[MACHINE.to_owned()])?;
    let recording = machine.out(&format!("cpus-{cpus}.rec"));
    let table = coherence::locks(&attribution, CpuOrder::SideBySide, &recording, kernel)?
        .pop()
        .context("there is no table")?;

    let written = acquired_by(&table, LockKind::Mutex, "pipe_write");
    let expected = u64::from(cpus) * ROUNDS;
    ensure!(written == expected, "pipe_write acquired {written} mutexes, not {expected}");
    let read = acquired_by(&table, LockKind::Mutex, "pipe_read");
    ensure!(read >= expected - 1, "pipe_read acquired {read} mutexes for {expected} reads");

    let whole = WholeRecording::read(&machine.out(WITH_DATA))?;
    let runs = runs(&whole, &attribution.symbols);
    for FunctionRow { function, runs: counted, attempts, must_reach, .. } in &table.functions {
        let ran = runs.get(function.as_str()).copied().unwrap_or(0);
        ensure!(*counted == ran, "{function} ran {ran} times, and {counted} were counted");
        ensure!(
            !must_reach || attempts == counted,
            "{function} ran {ran} times, and reached its lock {attempts} times"
        );
    }
    ensure!(table.waiting_behind <= cpus.into(), "{} still wait", table.waiting_behind);
    for KindRow { kind, totals, .. } in &table.kinds {
        ensure!(totals.lost == 0, "of {} {} releases were not seen", totals.lost, kind.title());
        // A process that ends holds nothing; the others are in the middle of something at most.
        ensure!(
            totals.held_behind <= 8 && totals.held_before <= 8,
            "{}: {} held at the begin, {} at the end",
            kind.title(),
            totals.held_before,
            totals.held_behind
        );
    }
    let spin = table.kinds.iter().find(|row| row.kind == LockKind::Spin).context("no row")?;
    let attempts: u64 = table
        .functions
        .iter()
        .filter(|row| row.function.starts_with("_raw_spin_") && !row.function.contains("unlock"))
        .map(|row| row.attempts)
        .sum();
    let of_table = spin.totals.acquisitions + spin.totals.failed;
    ensure!(
        (of_table..=of_table + table.waiting_behind).contains(&attempts),
        "{attempts} attempts at spin locks became {of_table}"
    );
    let slow = runs.get("native_queued_spin_lock_slowpath").copied().unwrap_or(0);
    let waited = spin.totals.contended..=spin.totals.contended + table.waiting_behind;
    ensure!(waited.contains(&slow), "{slow} slow paths, and {waited:?} contended acquisitions");
    ensure!(attempts > 5 * expected, "{attempts} attempts: the test shows nothing");
    Ok(())
}

fn acquired_by(table: &LockTable, kind: LockKind, function: &str) -> u64 {
    let rows = table.locks.iter().filter(|lock| lock.kind == kind);
    let users = rows.flat_map(|lock| &lock.functions).filter(|by| by.function == function);
    users.map(|by| by.acquisitions).sum()
}

/// How often each function was entered at its first instruction.
fn runs<'a>(whole: &WholeRecording, symbols: &'a KernelSymbols) -> BTreeMap<&'a str, u64> {
    let mut executions = vec![0_u64; whole.translations.len()];
    for event in &whole.events {
        if let StreamEvent::Executed(id) | StreamEvent::Left { translation: id, .. } = event {
            executions[id.0 as usize] += 1;
        }
    }
    let mut entered = BTreeMap::<u64, u64>::new();
    for translation in &whole.translations {
        *entered.entry(translation.addr.0).or_default() += executions[translation.id.0 as usize];
    }
    let mut runs = BTreeMap::new();
    for symbol in symbols.iter() {
        let times = entered.get(&symbol.addr.0).copied().unwrap_or(0);
        if let Some(name) = symbol.base_name() {
            *runs.entry(name).or_default() += times;
        }
    }
    runs
}
