//! The tables as Markdown.

use crate::layout_times::Tested;
use crate::layout_times::at_hand::AT_HAND;
use anyhow::{Context, Result};
use replay::results::{CoreResult, ORIGINAL, ResultRow};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What a core did in the kernel under one layout.
struct KernelTime {
    cycles: f64,
    /// Half of the 95 % interval of the change against the original, in per cent; `None`: exact.
    within: Option<f64>,
    /// The slots lost to the front end: latency and bandwidth.
    front_end: f64,
    /// Taken branches that the first target buffer did not have.
    late_or_missing_targets: f64,
    mispredictions: f64,
    instructions: f64,
    /// Direct jumps that were taken.
    jumps: f64,
    misses: f64,
}

impl KernelTime {
    fn new(row: &ResultRow) -> Result<KernelTime> {
        let core: &CoreResult = row.counters.core.as_ref().context("a machine without a core")?;
        let counters = &core.counters.kernel;
        let slots = &counters.slots;
        Ok(KernelTime {
            cycles: core.mode_cycles(counters),
            within: core.sampled.as_ref().and_then(|it| it.change).map(|change| change[0].within),
            front_end: (slots.front_end_latency + slots.front_end_bandwidth) as f64
                / slots.total().max(1) as f64,
            late_or_missing_targets: (counters.late_targets + counters.branches.misfetches) as f64,
            mispredictions: counters.branches.mispredictions() as f64,
            instructions: counters.instructions.max(1) as f64,
            jumps: row.counters.kernel_jumps() as f64,
            misses: row.counters.l1i.kernel.total() as f64,
        })
    }
}

/// A table for each machine: every layout against the original, the fastest first. The last lines
/// are the bounds: the default layout with all code at hand, and the original without the slots
/// that are lost to the front end.
///
/// # Errors
/// A machine has no core, or a row of the original is missing.
pub(super) fn markdown(tested: &Tested<'_>) -> Result<String> {
    let Tested { workload, rows, .. } = tested;
    let mut text = String::new();
    for machine in machines(rows) {
        let (original, mut times) = times(workload, machine, rows)?;
        times.sort_by(|(_, a), (_, b)| a.cycles.total_cmp(&b.cycles));
        let _ = writeln!(
            text,
            "\n`{workload}` on `{machine}`, layouts made for the other workloads; the kernel:\n\n\
             | layout | time | front-end-bound slots | late or missing targets, 1000 instr. | \
             mispredictions, 1000 instr. | L1I misses | taken jumps |\n|---|---|---|---|---|---|---|"
        );
        let layouts = times.iter().map(|(layout, time)| (*layout, time));
        for (layout, time) in std::iter::once((ORIGINAL, &original)).chain(layouts) {
            let name = algorithm(layout);
            let thousand = |count: f64| 1000.0 * count / time.instructions;
            let change = |new: f64, old: f64| format!("{:+.1} %", 100.0 * (new / old - 1.0));
            let changes = match layout == ORIGINAL {
                true => [String::new(), String::new(), String::new()],
                false => [
                    match time.within {
                        None => change(time.cycles, original.cycles),
                        Some(within) => {
                            format!(
                                "{:+.2} ± {within:.2} %",
                                100.0 * (time.cycles / original.cycles - 1.0)
                            )
                        }
                    },
                    change(time.misses, original.misses.max(1.0)),
                    change(time.jumps, original.jumps.max(1.0)),
                ],
            };
            let _ = writeln!(
                text,
                "| `{name}` | {} | {:.1} % | {:.2} | {:.2} | {} | {} |",
                changes[0],
                100.0 * time.front_end,
                thousand(time.late_or_missing_targets),
                thousand(time.mispredictions),
                changes[1],
                changes[2],
            );
        }
        let (algorithm, placed) = at_hand(tested, machine)?;
        let _ = writeln!(
            text,
            "| bound: `{algorithm}` with all code at hand | {:+.1} % | {:.1} % | | | | |",
            100.0 * (placed.cycles / original.cycles - 1.0),
            100.0 * placed.front_end,
        );
        let _ = writeln!(
            text,
            "| bound: no front-end stalls | {:+.1} % | 0.0 % | | | | |",
            -100.0 * original.front_end
        );
    }
    Ok(text)
}

/// The machines of the rows, in their names' order.
fn machines(rows: &[ResultRow]) -> Vec<&str> {
    let mut machines: Vec<&str> = rows.iter().map(|row| row.machine.as_str()).collect();
    machines.sort_unstable();
    machines.dedup();
    machines
}

/// The kernel's time in the original and under each layout, on a machine.
fn times<'a>(
    workload: &str,
    machine: &str,
    rows: &'a [ResultRow],
) -> Result<(KernelTime, Vec<(&'a str, KernelTime)>)> {
    let of_machine = rows.iter().filter(|row| row.machine == machine);
    let mut times: Vec<(&str, KernelTime)> = of_machine
        .map(|row| Ok((row.layout.as_str(), KernelTime::new(row)?)))
        .collect::<Result<_>>()?;
    let at = times.iter().position(|(layout, _)| *layout == ORIGINAL);
    let (_, original) =
        times.remove(at.with_context(|| format!("{workload}: no row of the original"))?);
    Ok((original, times))
}

/// The algorithm of the layout that ran on a machine with all code at hand, and its time there.
fn at_hand<'a>(tested: &'a Tested<'_>, machine: &str) -> Result<(&'a str, KernelTime)> {
    let (_, mut times) = times(tested.workload, &format!("{machine}{AT_HAND}"), &tested.at_hand)?;
    let (layout, time) = times.pop().context("no layout ran with all code at hand")?;
    Ok((algorithm(layout), time))
}

/// `not-net.packed` is the layout of `packed` for all but `net`.
fn algorithm(layout: &str) -> &str {
    layout.rsplit('.').next().unwrap_or(layout)
}

/// A table of each layout's change of the kernel's time in per cent: workloads and machines, and
/// their mean. The best mean comes first.
///
/// # Errors
/// As of [`markdown`].
pub(super) fn means(workloads: &[Tested<'_>]) -> Result<String> {
    let mut columns = Vec::new();
    let mut changes: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let (mut placed, mut bounds) = (Vec::new(), Vec::new());
    for tested in workloads {
        let Tested { workload, rows, .. } = tested;
        for machine in machines(rows) {
            let (original, times) = times(workload, machine, rows)?;
            columns.push(format!("`{workload}`, `{machine}`"));
            bounds.push(-100.0 * original.front_end);
            let (_, at_hand) = at_hand(tested, machine)?;
            placed.push(100.0 * (at_hand.cycles / original.cycles - 1.0));
            for (layout, time) in times {
                let change = 100.0 * (time.cycles / original.cycles - 1.0);
                changes.entry(algorithm(layout)).or_default().push(change);
            }
        }
    }
    let mean = |changes: &[f64]| changes.iter().sum::<f64>() / changes.len().max(1) as f64;
    let mut rows: Vec<(&str, Vec<f64>)> = changes.into_iter().collect();
    rows.sort_by(|(_, a), (_, b)| mean(a).total_cmp(&mean(b)));
    rows.push(("bound: the default with all code at hand", placed));
    rows.push(("bound: no front-end stalls", bounds));
    let mut text = format!(
        "\nThe kernel's time, change in per cent, layouts made for the other workloads:\n\n\
         | layout | mean | {} |\n|---|---|{}\n",
        columns.join(" | "),
        "---|".repeat(columns.len())
    );
    for (layout, changes) in &rows {
        let _ = write!(text, "| {layout} | {:+.1}", mean(changes));
        for change in changes {
            let _ = write!(text, " | {change:+.1}");
        }
        text += " |\n";
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use replay::examples;
    use replay::results::ResultKind;
    use sim::PerMode;
    use sim::core::{CoreCounters, Slots};

    /// A kernel that loses these slots to the front end, and uses 600.
    fn row(layout: &str, front_end_latency: u64) -> ResultRow {
        let kernel = CoreCounters {
            instructions: 1000,
            slots: Slots { retiring: 600, front_end_latency, ..Slots::default() },
            late_targets: 4,
            ..CoreCounters::default()
        };
        let mut row = examples::row(layout, ResultKind::Predicted, 500, &[]);
        row.counters.core = Some(CoreResult {
            widths: [6, 8],
            cycles: 0,
            counters: PerMode { kernel, user: CoreCounters::default() },
            unknown: BTreeMap::new(),
            functions: Vec::new(),
            sampled: None,
        });
        row
    }

    /// The original and two layouts. With all code at hand, the fast one loses 100 slots.
    fn tested(workload: &'static str, slow: u64, fast: u64) -> Tested<'static> {
        let name = |layout: &str| format!("not-{workload}.{layout}");
        let at_hand = |layout: &str, lost| {
            let row = row(layout, lost);
            ResultRow { machine: format!("{}{AT_HAND}", row.machine), ..row }
        };
        Tested {
            workload,
            rows: vec![row(ORIGINAL, 400), row(&name("slow"), slow), row(&name("fast"), fast)],
            at_hand: vec![at_hand(ORIGINAL, 200), at_hand(&name("fast"), 100)],
        }
    }

    #[test]
    fn the_fastest_layout_comes_first() {
        let text = markdown(&tested("net", 300, 200)).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        assert_eq!(
            lines,
            [
                "| `original` |  | 40.0 % | 4.00 | 0.00 |  |  |",
                "| `fast` | -20.0 % | 25.0 % | 4.00 | 0.00 | +0.0 % | +0.0 % |",
                "| `slow` | -10.0 % | 33.3 % | 4.00 | 0.00 | +0.0 % | +0.0 % |",
                "| bound: `fast` with all code at hand | -30.0 % | 14.3 % | | | | |",
                "| bound: no front-end stalls | -40.0 % | 0.0 % | | | | |",
            ]
        );
    }

    #[test]
    fn the_best_mean_comes_first() {
        let text = means(&[tested("net", 300, 200), tested("web", 350, 400)]).unwrap();
        let lines: Vec<&str> = text.lines().skip(5).collect();
        assert_eq!(
            lines,
            [
                "| fast | -10.0 | -20.0 | +0.0 |",
                "| slow | -7.5 | -10.0 | -5.0 |",
                "| bound: the default with all code at hand | -30.0 | -30.0 | -30.0 |",
                "| bound: no front-end stalls | -40.0 | -40.0 | -40.0 |",
            ]
        );
    }

    #[test]
    fn without_the_original_there_is_nothing_to_compare_with() {
        let mut tested = tested("net", 300, 200);
        tested.rows.remove(0);
        let message = markdown(&tested).unwrap_err().to_string();
        assert_eq!(message, "net: no row of the original");
    }
}
