//! Tables of an out-of-order core's time, for a terminal.
//!
//! Input: result rows. Output: text. Counts nothing.

use crate::text_table::TextTable;
use replay::results::CoreResult;
use sim::core::CoreCounters;
use std::fmt::Write as _;

/// Two tables of a machine's core, for layouts by name: where the slots go, and what the structures
/// counted. Empty without a core.
pub fn text(machine: &str, cores: &[(String, &CoreResult)]) -> String {
    let Some((_, first)) = cores.first() else { return String::new() };
    let mut text = format!(
        "\n{machine}: out-of-order core, where the slots go (top-down; data, instr., pipe: SimOS)\n{}",
        time(cores)
    );
    let _ =
        write!(text, "\n{machine}: out-of-order core, per 1000 instructions\n{}", events(cores));
    if !first.unknown.is_empty() {
        let mut names: Vec<(&String, &u64)> = first.unknown.iter().collect();
        names.sort_by(|a, b| b.1.cmp(a.1).then_with(|| a.0.cmp(b.0)));
        let named: Vec<String> =
            names.iter().take(8).map(|(name, times)| format!("{name} {times}")).collect();
        let more = names.len().saturating_sub(8);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        let _ = writeln!(
            text,
            "note: taken for one uop, because the table of uops lacks them: {}{more}",
            named.join(", ")
        );
    }
    text
}

/// Lines for kernel and user code.
fn time(cores: &[(String, &CoreResult)]) -> String {
    let mut table = TextTable::new(&[
        "layout",
        "",
        "Mcycles",
        "CPI",
        "retiring %",
        "bad spec. %",
        "fe lat. %",
        "fe bandw. %",
        "memory %",
        "core %",
        "data %",
        "instr. %",
        "pipe %",
    ]);
    for (layout, core) in cores {
        for (mode, counters) in modes(core) {
            let cycles = core.mode_cycles(counters);
            let slots = &counters.slots;
            let share =
                |part: u64, all: u64| format!("{:.1}", 100.0 * part as f64 / all.max(1) as f64);
            let mut cells = vec![
                layout.clone(),
                mode.to_owned(),
                format!("{:.2}", cycles / 1e6),
                format!("{:.3}", cycles / counters.instructions.max(1) as f64),
            ];
            let parts = [
                slots.retiring,
                slots.bad_speculation,
                slots.front_end_latency,
                slots.front_end_bandwidth,
                slots.memory,
                slots.core,
            ];
            cells.extend(parts.map(|part| share(part, slots.total())));
            let graduation = &counters.graduation;
            let parts = [graduation.data, graduation.instruction, graduation.pipeline];
            cells.extend(parts.map(|part| share(part, graduation.total())));
            table.push(cells);
        }
    }
    table.to_text()
}

/// Lines for kernel and user code.
fn events(cores: &[(String, &CoreResult)]) -> String {
    let mut table = TextTable::new(&[
        "layout",
        "",
        "mispred.",
        "resteers",
        "late BTB",
        "L1I misses",
        "late",
        "uop cache %",
        "iTLB",
        "L1D",
        "L2 data",
        "dTLB",
        "forwarded",
        "wrong path",
    ]);
    for (layout, core) in cores {
        for (mode, counters) in modes(core) {
            let rate = |count: u64| {
                format!("{:.2}", 1000.0 * count as f64 / counters.instructions.max(1) as f64)
            };
            let slots = (counters.uop_cache_slots + counters.decoded_slots).max(1);
            table.push(vec![
                layout.clone(),
                mode.to_owned(),
                rate(counters.branches.mispredictions()),
                rate(counters.branches.misfetches),
                rate(counters.late_targets),
                rate(counters.l1i_misses),
                rate(counters.l1i_late),
                format!("{:.1}", 100.0 * counters.uop_cache_slots as f64 / slots as f64),
                rate(counters.itlb_misses),
                rate(counters.l1d_misses),
                rate(counters.l2_data_misses),
                rate(counters.dtlb_misses),
                rate(counters.forwarded),
                rate(counters.wrong_path_targets),
            ]);
        }
    }
    table.to_text()
}

/// Kernel and user, without a mode that never ran.
fn modes(core: &CoreResult) -> impl Iterator<Item = (&'static str, &CoreCounters)> {
    [("kernel", &core.counters.kernel), ("user", &core.counters.user)]
        .into_iter()
        .filter(|(_, counters)| counters.slots.total() > 0)
}
