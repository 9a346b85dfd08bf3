//! Result rows as tables for a terminal.
//!
//! Input: comparisons. Output: text. Counts nothing.

use crate::{coherence, core_time};
use host::table::TextTable;
use replay::comparison::Comparison;
use replay::results::{MemoryCounters, Predictions, ResultKind, ResultRow, modules_by_misses};
use sim::{MissCounts, PerMode, TakenBranches};
use std::fmt::Write as _;
use std::iter;

/// The note for a recording without the uses of page frames: what its tables lack, and why.
pub(crate) fn frames_unknown(why: &str) -> String {
    format!(
        "this recording does not say what page frames are used for ({why}), so most data has no name"
    )
}

/// One table of misses for each machine, then the amounts that do not depend on a machine.
pub fn rows(rows: &[ResultRow]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let instructions = first.counters.instructions;
    let share = 100.0 * instructions.kernel as f64 / instructions.total().max(1) as f64;
    let mut text = format!(
        "workload {}, kernel {}, seed {}: {} instructions, {share:.1} % in the kernel\n",
        first.workload,
        first.kernel.0,
        first.seed,
        instructions.total()
    );
    let machines = in_order(rows, |row| &row.machine);
    for machine in machines {
        let on: Vec<&ResultRow> = rows.iter().filter(|row| row.machine == *machine).collect();
        let _ = write!(text, "\n{machine}\n{}", misses(&on));
        text += &on.iter().filter_map(|row| bound(row)).collect::<String>();
        text += &modules(machine, &on);
        if on.iter().any(|row| row.counters.memory.is_some()) {
            let _ = write!(
                text,
                "\n{machine}: data accesses, and misses behind the L1\n{}",
                memory(&on)
            );
            text += &data_functions(&on);
        }
        if on.iter().any(|row| row.counters.branches.is_some()) {
            let _ = write!(text, "\n{machine}: mispredictions\n{}", branches(&on));
        }
        let cores: Vec<_> =
            on.iter().filter_map(|row| Some((name(row), row.counters.core.as_ref()?))).collect();
        text += &core_time::text(machine, &cores);
        let several =
            on.iter().filter_map(|row| Some((name(row), row.counters.coherence.as_ref()?)));
        text += &coherence::text(machine, &several.collect::<Vec<_>>());
    }
    let any: Vec<&ResultRow> = rows.iter().filter(|row| row.machine == first.machine).collect();
    let _ = write!(
        text,
        "\non any machine: taken branches, bytes fetched, 4 KB pages touched\n{}",
        amounts(&any)
    );
    text + &warnings(&any)
}

/// The lower bound for any layout.
fn bound(row: &ResultRow) -> Option<String> {
    let bound = row.bound?;
    let misses = row.counters.misses().max(1) as f64;
    let line = |what: &str, least: PerMode<u64>| {
        let change = 100.0 * (least.total() as f64 / misses - 1.0);
        format!(
            "{what}: kernel {}, user {}, together {change:+.1} % of the original\n",
            least.kernel, least.user
        )
    };
    let belady = line("lower bound for any layout (Belady, packed to the byte)", bound.belady);
    Some(belady + &line("a cache that wastes no byte (LRU, packed to the byte)", bound.lru))
}

fn misses(rows: &[&ResultRow]) -> String {
    let mut table = TextTable::new(&[
        "layout",
        "kernel L1I",
        "self",
        "other",
        "cold",
        "user L1I",
        "self",
        "other",
        "cold",
        "iTLB k",
        "iTLB u",
        "lines k",
        "lines u",
        "Mcycles",
    ]);
    for row in rows {
        let counters = &row.counters;
        let mut cells = vec![name(row)];
        cells.extend(by_cause(&counters.l1i.kernel));
        cells.extend(by_cause(&counters.l1i.user));
        match counters.itlb {
            Some(itlb) => cells.extend(kernel_and_user(itlb)),
            None => cells.extend(["-".to_owned(), "-".to_owned()]),
        }
        cells.extend(kernel_and_user(counters.touched_lines));
        cells.push(format!("{:.2}", counters.cycles / 1e6));
        table.push(cells);
    }
    table.to_text()
}

/// The misses of vmlinux and of each module; nothing if no module ran.
fn modules(machine: &str, rows: &[&ResultRow]) -> String {
    let modules = modules_by_misses(rows);
    if modules.is_empty() {
        return String::new();
    }
    let names: Vec<String> = rows.iter().map(|row| name(row)).collect();
    let titles = iter::once("kernel L1I").chain(names.iter().map(String::as_str));
    let mut table = TextTable::new(&titles.collect::<Vec<_>>());
    let mut push = |code: &str, misses: &dyn Fn(&ResultRow) -> u64| {
        let cells = rows.iter().map(|row| misses(row).to_string());
        table.push(iter::once(code.to_owned()).chain(cells).collect());
    };
    push("vmlinux", &ResultRow::misses_in_vmlinux);
    modules.into_iter().for_each(|module| push(module, &|row| row.misses_in_module(module)));
    format!("\n{machine}: misses in the code of vmlinux and of each module\n{}", table.to_text())
}

/// Lines for kernel and user code.
fn memory(rows: &[&ResultRow]) -> String {
    let mut table = TextTable::new(&[
        "layout",
        "",
        "loads",
        "stores",
        "L1D",
        "self",
        "other",
        "cold",
        "L2 instr.",
        "L2 data",
        "self",
        "other",
        "cold",
        "L3",
        "dTLB",
        "Mcycles",
        "CPI",
        "L1I %",
        "L1D %",
        "L2I %",
        "L2D %",
        "TLB %",
    ]);
    for row in rows {
        let (Some(memory), instructions) = (row.counters.memory, row.counters.instructions) else {
            continue;
        };
        for (mode, memory, instructions) in [
            ("kernel", memory.kernel, instructions.kernel),
            ("user", memory.user, instructions.user),
        ] {
            let mut cells = vec![
                name(row),
                mode.to_owned(),
                memory.loads.to_string(),
                memory.stores.to_string(),
            ];
            cells.extend(by_cause(&memory.l1d));
            cells.push(memory.l2_instructions.total().to_string());
            cells.extend(by_cause(&memory.l2_data));
            cells.push((memory.l3_instructions.total() + memory.l3_data.total()).to_string());
            cells.push(memory.dtlb.to_string());
            cells.extend(time(&memory, instructions));
            table.push(cells);
        }
    }
    table.to_text()
}

/// Lines for kernel and user code.
fn branches(rows: &[&ResultRow]) -> String {
    let mut table = TextTable::new(&[
        "layout",
        "",
        "directions",
        "targets",
        "returns",
        "all",
        "per 1000",
        "misfetches",
        "Mcycles",
    ]);
    for row in rows {
        let Some(branches) = row.counters.branches else { continue };
        for (mode, branches) in [("kernel", branches.kernel), ("user", branches.user)] {
            let mut cells = vec![name(row), mode.to_owned()];
            cells.extend(wrong(&branches));
            table.push(cells);
        }
    }
    table.to_text()
}

fn wrong(branches: &Predictions) -> [String; 7] {
    [
        branches.wrong_directions.to_string(),
        branches.wrong_targets.to_string(),
        branches.wrong_returns.to_string(),
        branches.mispredictions().to_string(),
        format!("{:.3}", branches.per_thousand),
        branches.misfetches.to_string(),
        branches.stall.map_or("?".to_owned(), |stall| format!("{:.2}", stall / 1e6)),
    ]
}

/// Cycles, cycles per instruction, and each kind of stall as a share of the cycles.
fn time(memory: &MemoryCounters, instructions: u64) -> Vec<String> {
    let cycles = memory.cycles.max(1.0);
    let stalls =
        [memory.stall_l1i, memory.stall_l1d, memory.stall_l2i, memory.stall_l2d, memory.stall_tlb];
    let mut cells = vec![
        format!("{:.2}", memory.cycles / 1e6),
        format!("{:.3}", memory.cycles / instructions.max(1) as f64),
    ];
    cells.extend(stalls.map(|stall| format!("{:.1}", 100.0 * stall / cycles)));
    cells
}

/// The number of printed functions.
const FUNCTIONS: usize = 10;

fn data_functions(rows: &[&ResultRow]) -> String {
    let Some(row) = rows.first().filter(|row| !row.data_functions.is_empty()) else {
        return String::new();
    };
    let mut table = TextTable::new(&["data misses of kernel functions", "L1D", "L2"]);
    for function in row.data_functions.iter().take(FUNCTIONS) {
        table.push(vec![function.name.clone(), function.l1d.to_string(), function.l2.to_string()]);
    }
    format!("\n{}", table.to_text())
}

fn amounts(rows: &[&ResultRow]) -> String {
    let mut table = TextTable::new(&[
        "layout",
        "jcc k",
        "jmp k",
        "call k",
        "ret k",
        "indirect k",
        "jcc u",
        "jmp u",
        "call u",
        "ret u",
        "indirect u",
        "bytes k",
        "bytes u",
        "pages k",
        "pages u",
    ]);
    for row in rows {
        let counters = &row.counters;
        let mut cells = vec![name(row)];
        cells.extend(by_kind(&counters.taken.kernel));
        cells.extend(by_kind(&counters.taken.user));
        cells.extend(kernel_and_user(counters.fetched_bytes));
        cells.extend(kernel_and_user(counters.touched_pages));
        table.push(cells);
    }
    table.to_text()
}

fn warnings(rows: &[&ResultRow]) -> String {
    let mut text = String::new();
    for row in rows {
        let (counters, executed) = (&row.counters, row.counters.instructions.total().max(1) as f64);
        for (count, what) in [
            (
                counters.breaks,
                "steps that no processor could make: the code does not lie where the placement \
                 says. Places from a vmlinux alone are estimates: give the kernel's build tree, \
                 or the map of the relinked kernel (*.klm)",
            ),
            (counters.unresolved_branches, "branches whose direction the recording does not show"),
        ] {
            // Below 0.01 %, no shown digit of the numbers above changes.
            if count as f64 / executed > 1e-4 {
                let _ = writeln!(text, "warning: {}: {count} {what}", row.layout);
            }
        }
    }
    text
}

/// Original, predicted, recorded and their differences, for each workload, machine and layout.
pub fn comparisons(comparisons: &[Comparison]) -> String {
    let mut text = String::new();
    for comparison in comparisons {
        for layout in &comparison.layouts {
            let Comparison { workload, machine, seed, .. } = comparison;
            let _ =
                writeln!(text, "{workload} on {machine}, layout {}, seed {seed}", layout.layout);
            let mut table =
                TextTable::new(&["", "original", "predicted", "", "recorded", "", "difference"]);
            for metric in &layout.metrics {
                table.push(vec![
                    metric.name.to_string(),
                    number(Some(metric.original)),
                    number(metric.predicted),
                    changed(metric.predicted_change, metric.predicted_within),
                    number(metric.recorded),
                    changed(metric.recorded_change, metric.recorded_within),
                    percent(metric.difference),
                ]);
            }
            let _ = writeln!(text, "{}", table.to_text());
        }
    }
    text
}

fn name(row: &ResultRow) -> String {
    match row.kind {
        ResultKind::Recorded => row.layout.clone(),
        ResultKind::Predicted => format!("{} (predicted)", row.layout),
    }
}

fn by_cause(misses: &MissCounts) -> [String; 4] {
    [misses.total(), misses.own, misses.other, misses.cold].map(|count| count.to_string())
}

fn by_kind(taken: &TakenBranches) -> [String; 5] {
    [taken.conditional, taken.jump, taken.call, taken.ret, taken.indirect]
        .map(|count| count.to_string())
}

fn kernel_and_user(modes: PerMode<u64>) -> [String; 2] {
    [modes.kernel, modes.user].map(|count| count.to_string())
}

/// Fractions below 1000 have three decimal places.
pub(crate) fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.fract() != 0.0 && value < 1000.0 => format!("{value:.3}"),
        Some(value) => format!("{value:.0}"),
    }
}

/// A change, with half of its 95 % interval if it is an estimate.
pub(crate) fn changed(share: Option<f64>, within: Option<f64>) -> String {
    match share.zip(within) {
        None => percent(share),
        Some((share, within)) => format!("{:+.2} ±{:.2} %", 100.0 * share, 100.0 * within),
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:+.2} %", 100.0 * share))
}

/// The distinct values of a field, in the order of the rows.
pub(super) fn in_order<'a, T>(
    rows: &'a [T],
    field: impl Fn(&'a T) -> &'a String,
) -> Vec<&'a String> {
    let mut found = Vec::new();
    for row in rows {
        if !found.contains(&field(row)) {
            found.push(field(row));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use replay::examples::{original, predicted};
    use replay::results::ModuleMisses;

    #[test]
    fn misses_of_modules_have_lines_of_their_own() {
        let with = |row: ResultRow, misses: &[(&str, u64)]| {
            let module = |&(name, misses): &(&str, u64)| {
                let name = name.to_owned();
                ModuleMisses { name, misses }
            };
            ResultRow { modules: misses.iter().map(module).collect(), ..row }
        };
        let text = rows(&[
            with(original(), &[("nf_tables", 100), ("veth", 300)]),
            with(predicted(), &[("veth", 150)]),
        ]);
        let lines = text.lines().skip_while(|line| !line.contains("of each module")).skip(2);
        let words: Vec<Vec<&str>> =
            lines.take(3).map(|line| line.split_whitespace().collect()).collect();
        let expected = [
            vec!["vmlinux", "600", "450"],
            vec!["veth", "300", "150"],
            vec!["nf_tables", "100", "0"],
        ];
        assert_eq!(words, expected);
        assert!(!rows(&[original()]).contains("of each module"));
    }
}
