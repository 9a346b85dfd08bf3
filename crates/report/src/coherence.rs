//! What each CPU of a multiprocessor counted, as a table for a terminal.

use crate::text_table::TextTable;
use replay::results::{CoherenceResult, CpuResult};

/// A line for each CPU and mode, for each layout. Empty when no layout has such counters.
pub(crate) fn text(machine: &str, results: &[(String, &CoherenceResult)]) -> String {
    if results.is_empty() {
        return String::new();
    }
    let mut table = TextTable::new(&[
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
        "Mcycles",
        "coherence %",
    ]);
    for (layout, result) in results {
        for (cpu, counted) in result.cpus.iter().enumerate() {
            for (mode, counted) in [("kernel", &counted.kernel), ("user", &counted.user)] {
                let mut cells = vec![layout.clone(), cpu.to_string(), mode.to_owned()];
                cells.extend(of_cpu(counted));
                table.push(cells);
            }
        }
    }
    format!("\n{machine}: misses of each CPU, in the order of the recording\n{}", table.to_text())
}

fn of_cpu(counted: &CpuResult) -> Vec<String> {
    let counters = &counted.counters;
    let (data, supplied) = (&counters.l2_data, &counters.supplied);
    let coherence = data.coherence() + counters.l2_instructions.coherence() + counters.upgrades;
    let asked = supplied.total() + counters.upgrades;
    let cycles = counters.instructions as f64 + counted.stalls.iter().sum::<f64>();
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
    cells.push(format!("{:.2}", cycles / 1e6));
    cells.push(format!("{:.1}", 100.0 * coherence as f64 / asked.max(1) as f64));
    cells
}
