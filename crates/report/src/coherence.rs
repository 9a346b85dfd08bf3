//! What each CPU of a multiprocessor counted, and its time, as tables for a terminal.

use crate::order;
use host::table::TextTable;
use replay::results::{CoherenceResult, CpuResult};
use std::fmt::Write as _;

/// Lines for each CPU and mode, for each layout. Empty when no layout has such counters.
pub(crate) fn text(machine: &str, results: &[(String, &CoherenceResult)]) -> String {
    let Some((_, first)) = results.first() else { return String::new() };
    let mut misses = TextTable::new(&[
        "layout",
        "CPU",
        "",
        "instructions",
        "L1I",
        "L1D",
        "L2 instr.",
        "L2 data",
        "cold",
        "capacity",
        "true sharing",
        "false sharing",
        "upgrades",
        "from L3",
        "core",
        "cluster",
        "memory",
        "coherence %",
    ]);
    let mut times = TextTable::new(&[
        "layout",
        "CPU",
        "",
        "Mcycles",
        "busy",
        "stalled",
        "waiting",
        "for order",
        "idle",
    ]);
    for (layout, result) in results {
        for (cpu, counted) in result.cpus.iter().enumerate() {
            for (mode, counted) in [("kernel", &counted.kernel), ("user", &counted.user)] {
                let named = || vec![layout.clone(), cpu.to_string(), mode.to_owned()];
                misses.push([named(), misses_of(counted)].concat());
                times.push([named(), times_of(counted)].concat());
            }
        }
    }
    let order = order::title(first.order);
    let mut text = format!(
        "\n{machine}: misses of each CPU, {order}\n{}\n{machine}: time of each CPU, in millions of \
         cycles\n{}",
        misses.to_text(),
        times.to_text()
    );
    for (layout, result) in results {
        if let Some(ends) = &result.ends {
            let last = ends.iter().copied().fold(0.0, f64::max);
            let last = millions(last);
            let _ = writeln!(text, "  {layout}: the last CPU ends after {last} million cycles");
        }
        text += &held(layout, result);
    }
    text
}

/// Says so when CPUs had to wait for the replay.
fn held(layout: &str, result: &CoherenceResult) -> String {
    let of = |counted: &CpuResult| counted.waits.map_or(0.0, |waits| waits.held);
    let held: f64 = result.cpus.iter().map(|cpu| of(&cpu.kernel) + of(&cpu.user)).sum();
    if held == 0.0 {
        return String::new();
    }
    format!(
        "  {layout}: CPUs were held back for {} million cycles, because one lagged behind by more \
         than the replay keeps in memory; waiting contains them\n",
        millions(held)
    )
}

fn millions(cycles: f64) -> String {
    format!("{:.2}", cycles / 1e6)
}

fn times_of(counted: &CpuResult) -> Vec<String> {
    let busy = counted.counters.instructions as f64;
    let stalled: f64 = counted.stalls.iter().sum();
    let Some(waits) = counted.waits else {
        let unknown = || "-".to_owned();
        let all = [millions(busy + stalled), millions(busy), millions(stalled)];
        return all.into_iter().chain([unknown(), unknown(), unknown()]).collect();
    };
    let waiting = waits.waiting() + waits.held;
    [busy + stalled + waiting + waits.idle, busy, stalled, waiting, waits.order, waits.idle]
        .map(millions)
        .into()
}

fn misses_of(counted: &CpuResult) -> Vec<String> {
    let counters = &counted.counters;
    let (data, supplied) = (&counters.l2_data, &counters.supplied);
    let coherence = data.coherence() + counters.l2_instructions.coherence() + counters.upgrades;
    let asked = supplied.total() + counters.upgrades;
    let mut cells: Vec<String> = [
        counters.instructions,
        counters.l1i,
        counters.l1d,
        counters.l2_instructions.total(),
        data.total(),
        data.cold,
        data.capacity,
        data.true_sharing,
        data.false_sharing,
        counters.upgrades,
        supplied.last_level,
        supplied.core,
        supplied.cluster,
        supplied.memory,
    ]
    .map(|number| number.to_string())
    .into();
    cells.push(format!("{:.1}", 100.0 * coherence as f64 / asked.max(1) as f64));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use replay::results::{CpuOrder, CpuWaits};
    use sim::PerMode;
    use sim::coherent::CoreCounters;

    fn result(waits: Option<CpuWaits>) -> CoherenceResult {
        let counters = CoreCounters { instructions: 5_000_000, ..CoreCounters::default() };
        let kernel = CpuResult { counters, stalls: [1e6, 2e6, 0.0, 0.0], waits };
        let order = if waits.is_some() { CpuOrder::SideBySide } else { CpuOrder::Recorded };
        let ends = waits.map(|_| vec![17e6]);
        CoherenceResult { order, cpus: vec![PerMode { kernel, user: kernel }], ends }
    }

    #[test]
    fn times_add_up() {
        let waits = CpuWaits { value: 3e6, order: 1e6, idle: 5e6, held: 0.0 };
        let text = text("m", &[("original".to_owned(), &result(Some(waits)))]);
        assert!(text.contains("m: misses of each CPU, side by side in simulated time\n"), "{text}");
        let at = text.find("m: time").unwrap();
        let times = text[at..].lines().nth(2).unwrap().split_whitespace().collect::<Vec<_>>();
        let expected = ["original", "0", "kernel", "17.00", "5.00", "3.00", "4.00", "1.00", "5.00"];
        assert_eq!(times, expected);
        assert!(text.contains("original: the last CPU ends after 17.00 million cycles"), "{text}");
        assert!(!text.contains("held back"), "{text}");
    }

    #[test]
    fn held_cpus_are_named() {
        let waits = CpuWaits { held: 2e6, ..CpuWaits::default() };
        let text = text("m", &[("original".to_owned(), &result(Some(waits)))]);
        assert!(text.contains("original: CPUs were held back for 4.00 million cycles"), "{text}");
    }

    #[test]
    fn the_order_of_the_recording_has_no_waits() {
        let text = text("m", &[("original".to_owned(), &result(None))]);
        assert!(text.contains("m: misses of each CPU, in the order of the recording\n"), "{text}");
        let line = text.lines().rfind(|line| line.contains("user")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["original", "0", "user", "8.00", "5.00", "3.00", "-", "-", "-"]);
    }
}
