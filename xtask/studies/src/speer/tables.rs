//! The tables as Markdown.

use crate::speer::layouts::{ALGORITHMS, AVERAGE, layout_name};
use crate::speer::paper::{self, GROUPS, Group};
use anyhow::{Context, Result};
use replay::per_operation::OperationCost;
use replay::results::ORIGINAL;
use std::fmt::Write;

/// All tables.
///
/// # Errors
/// A benchmark or a kernel is missing in `costs`.
pub(super) fn markdown(costs: &[OperationCost]) -> Result<String> {
    let mut text = String::new();
    for algorithm in ALGORITHMS {
        kernels(&mut text, costs, algorithm)?;
    }
    for group in GROUPS {
        rows(&mut text, costs, &group)?;
    }
    Ok(text)
}

fn cost<'a>(
    costs: &'a [OperationCost],
    benchmark: &str,
    layout: &str,
) -> Result<&'a OperationCost> {
    let is = |cost: &&OperationCost| {
        cost.layout == layout && cost.workload.strip_prefix("bench:") == Some(benchmark)
    };
    let found = costs.iter().find(is);
    found.with_context(|| format!("nothing was measured of {benchmark} on {layout}"))
}

/// Speer's measure: how much longer the original takes, in percent of the optimized time.
fn improvement(original: f64, optimized: f64) -> f64 {
    100.0 * (original / optimized - 1.0)
}

/// The improvement of a group by its mean: geometric, so that each benchmark weighs the same.
fn of_group(costs: &[OperationCost], group: &Group, layout: &str) -> Result<f64> {
    let mut sum = 0.0;
    let benchmarks = group.benchmarks();
    for benchmark in &benchmarks {
        let original = cost(costs, benchmark.name, ORIGINAL)?.cycles;
        sum += (original / cost(costs, benchmark.name, layout)?.cycles).ln();
    }
    Ok(improvement((sum / benchmarks.len() as f64).exp(), 1.0))
}

/// Every kernel on every group.
fn kernels(text: &mut String, costs: &[OperationCost], algorithm: &str) -> Result<()> {
    let names: Vec<&str> = GROUPS.iter().map(|group| group.name).chain([AVERAGE]).collect();
    let _ = writeln!(text, "Kernels by `{algorithm}`:\n");
    let _ = writeln!(text, "| tested on | {} | Speer, own kernel |", names.join(" | "));
    let _ = writeln!(text, "|---|{}---|", "---|".repeat(names.len()));
    for group in GROUPS {
        let _ = write!(text, "| {}, {} benchmarks |", group.name, group.benchmarks().len());
        for name in &names {
            let percent = of_group(costs, &group, &layout_name(name, algorithm))?;
            let own = if *name == group.name { "**" } else { "" };
            let _ = write!(text, " {own}{percent:.1} %{own} |");
        }
        let _ = writeln!(text, " {} |", group.whole);
    }
    text.push('\n');
    Ok(())
}

/// The benchmarks of a group, one by one.
fn rows(text: &mut String, costs: &[OperationCost], group: &Group) -> Result<()> {
    let [algorithm, other] = ALGORITHMS;
    let _ = writeln!(text, "{}, an operation:\n", group.name);
    let _ = writeln!(
        text,
        "| benchmark | instructions | taken branches | L1I misses | cycles | own kernel, \
         `{algorithm}` | average kernel | own kernel, `{other}` | Speer's row | Speer |"
    );
    let _ = writeln!(text, "|---|---|---|---|---|---|---|---|---|---|");
    for benchmark in group.benchmarks() {
        let of = |layout: &str| cost(costs, benchmark.name, layout);
        let original = of(ORIGINAL)?;
        let own = of(&layout_name(group.name, algorithm))?;
        let change = |layout: &OperationCost| {
            format!("{:.1} %", improvement(original.cycles, layout.cycles))
        };
        let (row, percent) = match paper::row(benchmark.name) {
            Some((row, "*")) => (row, "*".to_owned()),
            Some((row, percent)) => (row, format!("{percent} %")),
            None => ("", String::new()),
        };
        let _ = writeln!(
            text,
            "| `{}` | {:.0} | {:.1} → {:.1} | {:.1} → {:.1} | {:.0} → {:.0} | {} | {} | {} | \
             {row} | \
             {percent} |",
            benchmark.name,
            original.kernel_instructions + original.user_instructions,
            original.taken_branches,
            own.taken_branches,
            original.l1i_misses,
            own.l1i_misses,
            original.cycles,
            own.cycles,
            change(own),
            change(of(&layout_name(AVERAGE, algorithm))?),
            change(of(&layout_name(group.name, other))?),
        );
    }
    text.push('\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use replay::results::ResultKind;

    /// Every benchmark on every kernel: the original takes 1,100 cycles, KBX' own kernels 1,000,
    /// all others 1,100 too.
    fn costs() -> Vec<OperationCost> {
        let mut layouts = vec![ORIGINAL.to_owned()];
        for algorithm in ALGORITHMS {
            let names = GROUPS.iter().map(|group| group.name).chain([AVERAGE]);
            layouts.extend(names.map(|name| layout_name(name, algorithm)));
        }
        let names = GROUPS.iter().flat_map(Group::benchmarks).map(|benchmark| benchmark.name);
        let cost = |benchmark: &str, layout: &String| OperationCost {
            workload: format!("bench:{benchmark}"),
            layout: layout.clone(),
            machine: "server-32k".into(),
            kind: ResultKind::Predicted,
            operations: 10,
            kernel_instructions: 600.0,
            user_instructions: 100.0,
            taken_branches: 30.0,
            l1i_misses: 5.0,
            itlb_misses: None,
            cycles: if layout.starts_with("kbx.") { 1000.0 } else { 1100.0 },
        };
        names
            .flat_map(|name| layouts.iter().map(move |l| cost(name, l)).collect::<Vec<_>>())
            .collect()
    }

    #[test]
    fn improvements_are_speers() {
        // KBX, ioctl: 39.7 µs on the base system and 32.3 µs on the optimized one are 23 %.
        assert_eq!(improvement(39.7, 32.3).round(), 23.0);
        let text = markdown(&costs()).unwrap();
        let kbx = GROUPS[2].benchmarks().len();
        let row =
            format!("| kbx, {kbx} benchmarks | 0.0 % | 0.0 % | **10.0 %** | 0.0 % | 0.0 % | 4 %");
        assert!(text.contains(&row), "{text}");
        let row = "| `call/ioctl-terminal` | 700 | 30.0 → 30.0 | 5.0 → 5.0 | 1100 → 1000 | 10.0 % \
                   | \
                   0.0 % | 10.0 % | ioctl(0, TCGETA, &termio) | 23 % |";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut costs = costs();
        costs.retain(|cost| cost.workload != "bench:call/brk" || cost.layout == ORIGINAL);
        let message = markdown(&costs).unwrap_err().to_string();
        assert_eq!(message, "nothing was measured of call/brk on mckusick.pettis-hansen");
    }
}
