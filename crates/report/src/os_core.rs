//! What a core for the operating system brings, as text.
//!
//! Input: the tables of `coherence::os_core`. Output: text. Counts nothing.

use coherence::os_core::table::{OsCoreTable, PolicyRow, WorkRow};
use host::table::TextTable;
use sim::PerMode;
use std::fmt::Write;

/// The characters of a bar for the time without a core for the operating system.
const BAR: f64 = 50.0;
/// The characters of the longest bar.
const LONGEST: usize = 70;

/// The policies of one recording on one machine, with the best ones and Nellans' claims.
pub fn text(table: &OsCoreTable) -> String {
    let mut out = String::new();
    // Writing to a `String` never fails.
    let _ = write(table, &mut out);
    out
}

fn write(table: &OsCoreTable, out: &mut String) -> std::fmt::Result {
    let OsCoreTable { workload, kernel_build_id, seed, machine, cpus, .. } = table;
    let cpus = if *cpus == 1 { "1 CPU".to_owned() } else { format!("{cpus} CPUs") };
    writeln!(
        out,
        "a core for the operating system: {workload}, kernel {kernel_build_id}, seed {seed}, \
         {cpus}, simulated on {machine}; {} cycles to move there, and as many back\n",
        table.move_cycles
    )?;
    let PerMode { kernel, user } = table.instructions;
    writeln!(
        out,
        "{:.1} M instructions, {:.1} % in the kernel\n",
        (kernel + user) as f64 / 1e6,
        100.0 * kernel as f64 / (kernel + user).max(1) as f64
    )?;
    let Some(nothing) = table.policies.first() else { return Ok(()) };
    let mut rows = TextTable::new(&[
        "what moves",
        "moves",
        "of the kernel",
        "Mcycles",
        "change",
        "waited",
        "user L1 misses",
        "user mispredictions",
        "energy",
        "energy x time",
    ]);
    for row in &table.policies {
        rows.push(cells(row, nothing));
    }
    out.push_str(&rows.to_text());
    writeln!(out, "\ncycles until the last CPU ended, against nothing moved:")?;
    let width = table.policies.iter().map(|row| row.policy.chars().count()).max().unwrap_or(0);
    for row in &table.policies {
        let share = 1.0 + row.cycles_change;
        let bar = "#".repeat(((BAR * share).round() as usize).min(LONGEST));
        writeln!(out, "  {:<width$}  {bar} {:.1} %", row.policy, 100.0 * share)?;
    }
    for (what, best) in [
        ("fastest", table.best(|row| row.cycles_change)),
        ("least energy x time", table.best(|row| row.energy_delay_change)),
    ] {
        if let Some(best) = best {
            writeln!(
                out,
                "{what}: {} (time {}, energy {}, energy x time {})",
                best.policy,
                signed(best.cycles_change),
                signed(best.energy_change),
                signed(best.energy_delay_change)
            )?;
        }
    }
    claims(table, nothing, out)
}

fn cells(row: &PolicyRow, nothing: &PolicyRow) -> Vec<String> {
    let user =
        |of: fn(&WorkRow) -> u64| signed(relative(of(&row.application), of(&nothing.application)));
    vec![
        row.policy.clone(),
        row.moves.to_string(),
        format!("{:.1} %", 100.0 * row.moved_share),
        format!("{:.3}", row.cycles as f64 / 1e6),
        signed(row.cycles_change),
        format!("{:.3}", row.waiting_cycles as f64 / 1e6),
        user(user_l1),
        user(|work| work.mispredictions.user),
        signed(row.energy_change),
        signed(row.energy_delay_change),
    ]
}

fn user_l1(work: &WorkRow) -> u64 {
    work.l1i_misses.user + work.l1d_misses.user
}

/// What Nellans expects, beside what the recording shows with every stay moved.
fn claims(table: &OsCoreTable, nothing: &PolicyRow, out: &mut String) -> std::fmt::Result {
    let everything = table.policies.iter().find(|row| row.threshold == Some(0));
    let Some(everything) = everything else { return Ok(()) };
    let user = |of: fn(&WorkRow) -> u64| {
        signed(relative(of(&everything.application), of(&nothing.application)))
    };
    let kernel_and_user = |of: fn(&WorkRow) -> PerMode<u64>| {
        let sum = |row: &PolicyRow| of(&row.application).total() + of(&row.os_core).total();
        signed(relative(sum(everything), sum(nothing)))
    };
    writeln!(
        out,
        "\nwhat Nellans 2005 expects, and this recording with everything moved:\n\
         \x20 4.1  user code finds its caches and predictors as it left them:\n\
         \x20      user L1I misses {}, L1D {}, L2 {}, mispredictions {}\n\
         \x20 4.3  caches do not become cold for the operating system:\n\
         \x20      all L1I misses {}, L1D {}, L2 {}\n\
         \x20 4.2  better energy x time: {}\n\
         \x20 4    the gain exceeds the cost of communication:\n\
         \x20      time {}, coherence misses {}",
        user(|work| work.l1i_misses.user),
        user(|work| work.l1d_misses.user),
        user(|work| work.l2_misses.user),
        user(|work| work.mispredictions.user),
        kernel_and_user(|work| work.l1i_misses),
        kernel_and_user(|work| work.l1d_misses),
        kernel_and_user(|work| work.l2_misses),
        signed(everything.energy_delay_change),
        signed(everything.cycles_change),
        coherence(everything, nothing),
    )
}

fn coherence(everything: &PolicyRow, nothing: &PolicyRow) -> String {
    let of = |row: &PolicyRow| {
        row.application.coherence_misses.total() + row.os_core.coherence_misses.total()
    };
    format!("{} instead of {}", of(everything), of(nothing))
}

fn relative(now: u64, before: u64) -> f64 {
    if before == 0 { 0.0 } else { now as f64 / before as f64 - 1.0 }
}

fn signed(change: f64) -> String {
    format!("{:+.1} %", 100.0 * change)
}
