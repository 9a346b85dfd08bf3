//! What replay counted becomes result rows.

use crate::results::{
    Counters, FunctionDataMisses, FunctionMisses, Kind, Memory, ORIGINAL, Predictions, Row, Sides,
};
use crate::simulation::DataMisses;
use crate::{Layout, Replayed};
use image::address::LinkAddr;
use image::{BuildId, Function, Image};
use sim::MachineModel;
use std::collections::BTreeMap;
use trace::RunAddr;

/// So many functions stand in a row.
const FUNCTIONS: usize = 30;

/// One row for each layout and machine: all layouts on the first machine, then on the next. `image`
/// names functions.
pub fn rows(
    replayed: &Replayed,
    layouts: &[Layout],
    machines: &[MachineModel],
    image: Option<&Image>,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for (machine_at, machine) in machines.iter().enumerate() {
        for (layout, counts) in layouts.iter().zip(&replayed.layouts) {
            let on = &counts.machines[machine_at];
            let amounts = &counts.amounts;
            let instructions = amounts.instructions.kernel + amounts.instructions.user;
            let branches =
                machine.branch.as_ref().zip(on.branches).map(|(prediction, counters)| Sides {
                    kernel: Predictions::new(
                        prediction,
                        &counters.kernel,
                        amounts.instructions.kernel,
                    ),
                    user: Predictions::new(prediction, &counters.user, amounts.instructions.user),
                });
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
                    cycles: machine
                        .time
                        .cycles(instructions, on.l1i.kernel.total() + on.l1i.user.total()),
                    interruptions: replayed.interruptions.seen,
                    unresolved_branches: replayed.interruptions.unresolved,
                    breaks: amounts.breaks,
                    branches,
                    memory: on.memory.and_then(|counters| {
                        Some(Sides {
                            kernel: Memory::new(machine, &counters.kernel)?,
                            user: Memory::new(machine, &counters.user)?,
                        })
                    }),
                },
                bound: None,
                functions: image
                    .map(|image| top_functions(&on.misses_at, image, &replayed.kernel_code))
                    .unwrap_or_default(),
                data_functions: image
                    .map(|image| top_data_functions(&on.data_misses_at, image))
                    .unwrap_or_default(),
            });
        }
    }
    rows
}

/// The functions with the most misses; equals by name.
fn top_functions(
    misses_at: &[(RunAddr, u64)],
    image: &Image,
    ran: &[(RunAddr, RunAddr)],
) -> Vec<FunctionMisses> {
    let mut by_function: BTreeMap<usize, u64> = BTreeMap::new();
    for &(addr, misses) in misses_at {
        if let Some(index) = function_at(addr, image) {
            *by_function.entry(index).or_insert(0) += misses;
        }
    }
    let mut top: Vec<(&Function, u64)> =
        by_function.into_iter().map(|(index, misses)| (&image.functions[index], misses)).collect();
    top.sort_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then_with(|| a.name.cmp(&b.name)));
    top.truncate(FUNCTIONS);
    top.into_iter()
        .map(|(function, misses)| {
            let (hot_bytes, cold_bytes) = hot_and_cold(function, image, ran);
            FunctionMisses { name: function.name.clone(), misses, hot_bytes, cold_bytes }
        })
        .collect()
}

/// The functions with the most misses of the L1D; equals by name.
fn top_data_functions(
    misses_at: &[(RunAddr, DataMisses)],
    image: &Image,
) -> Vec<FunctionDataMisses> {
    let mut by_function: BTreeMap<usize, DataMisses> = BTreeMap::new();
    for &(addr, misses) in misses_at {
        if let Some(index) = function_at(addr, image) {
            let sum = by_function.entry(index).or_default();
            sum.l1d += misses.l1d;
            sum.l2 += misses.l2;
        }
    }
    let named = by_function.into_iter().map(|(index, misses)| FunctionDataMisses {
        name: image.functions[index].name.clone(),
        l1d: misses.l1d,
        l2: misses.l2,
    });
    let mut top: Vec<_> = named.collect();
    top.sort_by(|a, b| b.l1d.cmp(&a.l1d).then_with(|| a.name.cmp(&b.name)));
    top.truncate(FUNCTIONS);
    top
}

/// The number of the function that holds this address.
fn function_at(addr: RunAddr, image: &Image) -> Option<usize> {
    let after = image.functions.partition_point(|function| function.addr <= LinkAddr(addr.0));
    let index = after.checked_sub(1)?;
    let function = &image.functions[index];
    (addr.0 - function.addr.0 < function.size).then_some(index)
}

/// Bytes of the function's blocks of which something ran, and of the others.
fn hot_and_cold(function: &Function, image: &Image, ran: &[(RunAddr, RunAddr)]) -> (u64, u64) {
    let (mut hot, mut cold) = (0, 0);
    for block in &image.blocks[function.blocks.start as usize..function.blocks.end as usize] {
        let next = ran.partition_point(|(_, end)| end.0 <= block.addr.0);
        let overlaps = ran.get(next).is_some_and(|(start, _)| start.0 < block.end_addr().0);
        *(if overlaps { &mut hot } else { &mut cold }) += u64::from(block.size);
    }
    (hot, cold)
}
