//! What replay counted becomes result rows.

use crate::image::address::LinkAddr;
use crate::image::{BuildId, Image};
use crate::replay::{Layout, Replayed};
use crate::results::{Counters, FunctionMisses, Kind, ORIGINAL, Row};
use sim::Machine;
use std::collections::BTreeMap;
use trace::RunAddr;

/// So many functions stand in a row.
const FUNCTIONS: usize = 30;

/// One row for each layout and machine: all layouts on the first machine, then on the next. `image` names functions.
pub fn rows(replayed: &Replayed, layouts: &[Layout], machines: &[Machine], image: Option<&Image>) -> Vec<Row> {
    let mut rows = Vec::new();
    for (machine_at, machine) in machines.iter().enumerate() {
        for (layout, counts) in layouts.iter().zip(&replayed.layouts) {
            let on = &counts.machines[machine_at];
            let amounts = &counts.amounts;
            let instructions = amounts.instructions.kernel + amounts.instructions.user;
            rows.push(Row {
                workload: replayed.header.workload.clone(),
                kernel: BuildId(replayed.header.build_id.clone()),
                layout: layout.name.clone(),
                machine: machine.name.clone(),
                seed: replayed.header.seed,
                kind: if layout.name == ORIGINAL { Kind::Recorded } else { Kind::Predicted },
                conditions: replayed.header.conditions.iter().cloned().collect(),
                counters: Counters {
                    instructions: amounts.instructions.into(),
                    fetched_bytes: amounts.fetched_bytes.into(),
                    l1i: on.l1i.into(),
                    itlb: on.itlb.map(Into::into),
                    taken: amounts.taken.into(),
                    touched_lines: on.touched_lines.into(),
                    touched_pages: amounts.touched_pages.into(),
                    cycles: machine.time.cycles(instructions, on.l1i.kernel.total() + on.l1i.user.total()),
                    interruptions: replayed.interruptions.seen,
                    unresolved_branches: replayed.interruptions.unresolved,
                    breaks: amounts.breaks,
                },
                functions: image.map(|image| top_functions(&on.misses_at, image)).unwrap_or_default(),
            });
        }
    }
    rows
}

/// The functions with the most misses; equals by name.
fn top_functions(misses_at: &[(RunAddr, u64)], image: &Image) -> Vec<FunctionMisses> {
    let mut by_function: BTreeMap<usize, u64> = BTreeMap::new();
    for &(addr, misses) in misses_at {
        let after = image.functions.partition_point(|function| function.addr <= LinkAddr(addr.0));
        let Some(index) = after.checked_sub(1) else { continue };
        let function = &image.functions[index];
        if addr.0 - function.addr.0 < function.size {
            *by_function.entry(index).or_insert(0) += misses;
        }
    }
    let mut top: Vec<FunctionMisses> = by_function
        .into_iter()
        .map(|(index, misses)| FunctionMisses {
            name: image.functions[index].name.clone(),
            misses,
            hot_bytes: None,
            cold_bytes: None,
        })
        .collect();
    top.sort_by(|a, b| b.misses.cmp(&a.misses).then_with(|| a.name.cmp(&b.name)));
    top.truncate(FUNCTIONS);
    top
}
