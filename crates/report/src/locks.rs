//! The kernel's locks, as text.
//!
//! Input: the tables of `coherence::locks`. Output: text. Counts nothing.

use crate::order;
use crate::text::frames_unknown;
use crate::top::TopRows;
use coherence::locks::table::{KindRow, LockKind, LockRow, LockTable, LockUser, WaitRow};
use host::table::TextTable;
use papers::rosenblum;
use std::fmt::Write;

/// The largest number of functions and of waits that a lock shows.
const FUNCTIONS: usize = 3;
const WAITS: usize = 6;

/// The locks of one machine: each kind, the first locks, and who waited for whom.
pub fn text(table: &LockTable, top: TopRows) -> String {
    let mut out = String::new();
    // Writing to a `String` never fails.
    let _ = write(table, top, &mut out);
    out
}

fn write(table: &LockTable, top: TopRows, out: &mut String) -> std::fmt::Result {
    let LockTable { workload, kernel_build_id, seed, machine, cpus, .. } = table;
    let cpus = if *cpus == 1 { "1 CPU".to_owned() } else { format!("{cpus} CPUs") };
    writeln!(
        out,
        "locks in {workload}, kernel {kernel_build_id}, seed {seed}: {cpus}, simulated on \
         {machine}, {}\n",
        order::title(table.totals.order)
    )?;
    out.push_str(&order::moved(&table.totals));
    writeln!(
        out,
        "{:.3} Mcycles in the kernel, {:.3} in user mode\n",
        table.cycles.kernel / 1e6,
        table.cycles.user / 1e6
    )?;
    kinds(table, out)?;
    let shown = &table.locks[..table.locks.len().min(top.most)];
    ranked(shown, out)?;
    for lock in shown {
        details(lock, out)?;
    }
    if table.locks.len() > shown.len() {
        write!(out, "\n{}", top.rest(table.locks.len()))?;
    }
    remarks(table, out)
}

fn kinds(table: &LockTable, out: &mut String) -> std::fmt::Result {
    let mut rows = TextTable::new(&[
        "kind",
        "acquired",
        "contended",
        "slept",
        "tries failed",
        "wait kcycles",
        "awaited",
        "kcycles",
        "hold kcycles",
        "functions kcycles",
        "of kernel",
    ]);
    for KindRow { kind, totals, function_cycles, of_kernel } in &table.kinds {
        let cells = match kind {
            LockKind::Seq => [String::new(), String::new()],
            _ => [thousands(*function_cycles), percent(*of_kernel)],
        };
        let mut row = vec![
            kind.title().to_owned(),
            totals.acquisitions.to_string(),
            totals.contended.to_string(),
            totals.slept.to_string(),
            totals.failed.to_string(),
            thousands(totals.wait_cycles),
            totals.awaited.to_string(),
            thousands(totals.awaited_cycles),
            thousands(totals.hold_cycles),
        ];
        row.extend(cells);
        rows.push(row);
    }
    out.push_str(&rows.to_text());
    let spin = table.kinds.iter().find(|row| row.kind == LockKind::Spin);
    if let Some(KindRow { of_kernel, .. }) = spin {
        writeln!(
            out,
            "\nspin locks take {} of the kernel's cycles; Rosenblum 1995, section 5.2: {} \
             of the time\nof the four largest services of program development (8 CPUs of 1994, \
             IRIX)",
            percent(*of_kernel),
            rosenblum::SPIN_LOCKS
        )?;
    }
    Ok(())
}

fn ranked(locks: &[LockRow], out: &mut String) -> std::fmt::Result {
    let mut rows = TextTable::new(&[
        "lock",
        "kind",
        "locks",
        "acquired",
        "contended",
        "wait kcycles",
        "longest",
        "awaited",
        "kcycles",
        "hold kcycles",
        "longest",
        "coherence misses",
        "upgrades",
    ]);
    for (at, lock) in locks.iter().enumerate() {
        let totals = &lock.totals;
        rows.push(vec![
            format!("{:>3}  {}", at + 1, lock.title),
            lock.kind.title().to_owned(),
            lock.locks.to_string(),
            totals.acquisitions.to_string(),
            totals.contended.to_string(),
            thousands(totals.wait_cycles),
            thousands(totals.longest_wait_cycles),
            totals.awaited.to_string(),
            thousands(totals.awaited_cycles),
            thousands(totals.hold_cycles),
            thousands(totals.longest_hold_cycles),
            lock.coherence_misses.to_string(),
            lock.upgrades.to_string(),
        ]);
    }
    writeln!(out)?;
    out.push_str(&rows.to_text());
    Ok(())
}

fn details(lock: &LockRow, out: &mut String) -> std::fmt::Result {
    let functions = lock.functions.iter().take(FUNCTIONS);
    let functions: Vec<String> =
        functions.map(|by| format!("{} {}", by.function, by.acquisitions)).collect();
    let more = lock.functions.len().saturating_sub(FUNCTIONS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    writeln!(out, "\n{} ({}): by {}{more}", lock.title, lock.kind.title(), functions.join(", "))?;
    for WaitRow { waiter, holder, waits, cycles } in lock.waits.iter().take(WAITS) {
        let holder = holder.as_ref().map_or("an unknown holder".to_owned(), user);
        let times = if *waits == 1 { "once".to_owned() } else { format!("{waits} times") };
        writeln!(
            out,
            "  {} waited {times} for {holder}: {} kcycles",
            user(waiter),
            thousands(*cycles)
        )?;
    }
    if lock.waits.len() > WAITS {
        writeln!(out, "  and {} more", lock.waits.len() - WAITS)?;
    }
    Ok(())
}

fn user(user: &LockUser) -> String {
    format!("{} ({})", user.function, user.task)
}

fn remarks(table: &LockTable, out: &mut String) -> std::fmt::Result {
    writeln!(out)?;
    let tries = table.functions.iter().filter(|row| row.tries);
    let (runs, attempts) =
        tries.fold((0, 0), |(runs, attempts), row| (runs + row.runs, attempts + row.attempts));
    writeln!(
        out,
        "trylock functions ran {runs} times; {} times they saw the lock held and tried nothing",
        runs - attempts
    )?;
    let sum = |of: fn(&KindRow) -> u64| -> u64 { table.kinds.iter().map(of).sum() };
    writeln!(
        out,
        "held when the recording began: {}; when it ended: {}; still waiting: {}; release not \
         seen: {}",
        sum(|kind| kind.totals.held_before),
        sum(|kind| kind.totals.held_behind),
        table.waiting_behind,
        sum(|kind| kind.totals.lost)
    )?;
    for row in table.functions.iter().filter(|row| row.must_reach && row.attempts == 0) {
        writeln!(
            out,
            "{} ran {} times, and no atomic instruction of it was found: its locks are missing",
            row.function, row.runs
        )?;
    }
    if !table.unknown_functions.is_empty() {
        writeln!(
            out,
            "not followed, although named like lock functions: {}",
            table.unknown_functions.join(", ")
        )?;
    }
    for kind in &table.missing_kinds {
        writeln!(out, "the kernel has no function that acquires a {}", kind.title())?;
    }
    if !table.types_known {
        writeln!(out, "the kernel has no BTF: fields are offsets in their objects")?;
    }
    if let Some(why) = &table.frames_unknown {
        writeln!(out, "{}", frames_unknown(why))?;
    }
    Ok(())
}

fn thousands(cycles: f64) -> String {
    format!("{:.1}", cycles / 1e3)
}

fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}
