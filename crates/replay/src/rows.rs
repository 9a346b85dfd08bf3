//! Turns the counts of a replay into result rows.
//!
//! Input: what each simulation counted, and the conditions of the recording. Output: rows. This
//! module simulates nothing.

use crate::module_places::ModulePlaces;
use crate::results::{
    CoherenceResult, CoreResult, CpuOrder, CpuResult, FunctionDataMisses, FunctionMisses,
    FunctionSlots, MemoryCounters, ModuleMisses, ORIGINAL, OTHER_CODE, Predictions, ResultCounters,
    ResultRow, SampledResult, USER_CODE,
};
use crate::simulation::DataMissCounts;
use crate::{CoherenceCounts, ReplayLayout, Replayed, Sampled};
use image::address::LinkAddr;
use image::module::ImageModuleSection;
use image::{BuildId, Image, ImageFunction};
use sim::coherent::CoreCounters;
use sim::core::CoreSlots;
use sim::{MachineModel, PerMode};
use std::collections::BTreeMap;
use trace::RunAddr;

/// The largest number of functions in a row.
const FUNCTIONS: usize = 30;

/// The names of a recording's code.
#[derive(Clone, Copy)]
pub struct CodeNames<'a> {
    /// The functions of the kernel and of modules.
    pub image: &'a Image,
    /// Where the recording has the code of modules.
    pub places: &'a ModulePlaces,
    /// Where it has copies of functions, ascending and disjoint. Code of a copy counts as its
    /// original's.
    pub copies: &'a [CopyPlace],
}

/// Where a recording has a copy of a function, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPlace {
    /// The address of its first byte.
    pub ran: RunAddr,
    /// Bytes.
    pub size: u64,
    /// The link address of the function.
    pub original: LinkAddr,
}

/// One row for each layout and machine: all layouts on the first machine, then all on the next.
/// `names`: those of functions and modules.
pub fn rows(
    replayed: &Replayed,
    layouts: &[ReplayLayout],
    machines: &[MachineModel],
    names: Option<CodeNames<'_>>,
) -> Vec<ResultRow> {
    let mut rows = Vec::new();
    let kernel_code = names.map_or_else(Vec::new, |names| names.linked(&replayed.kernel_code));
    let original = |machine: usize| {
        let at = layouts.iter().position(|layout| layout.name == ORIGINAL)?;
        replayed.layouts[at].machines[machine].core.as_ref()?.sampled.as_ref()
    };
    for (machine_at, machine) in machines.iter().enumerate() {
        for (layout, counts) in layouts.iter().zip(&replayed.layouts) {
            let machine_counts = &counts.machines[machine_at];
            let amounts = &counts.amounts;
            let instructions = amounts.instructions.kernel + amounts.instructions.user;
            let branches = machine.branch.as_ref().zip(machine_counts.branches).map(
                |(prediction, counters)| PerMode {
                    kernel: Predictions::new(
                        prediction,
                        &counters.kernel,
                        amounts.instructions.kernel,
                    ),
                    user: Predictions::new(prediction, &counters.user, amounts.instructions.user),
                },
            );
            rows.push(ResultRow {
                workload: replayed.header.workload.clone(),
                kernel: BuildId(replayed.header.build_id.clone()),
                layout: layout.name.clone(),
                machine: machine.name.clone(),
                seed: replayed.header.seed,
                kind: layout.kind,
                conditions: replayed.header.conditions.iter().cloned().collect(),
                counters: ResultCounters {
                    instructions: amounts.instructions,
                    fetched_bytes: amounts.fetched_bytes,
                    l1i: machine_counts.l1i,
                    itlb: machine_counts.itlb,
                    taken: amounts.taken,
                    touched_lines: machine_counts.touched_lines,
                    touched_pages: amounts.touched_pages,
                    cycles: machine.time.cycles(
                        instructions,
                        machine_counts.l1i.kernel.total() + machine_counts.l1i.user.total(),
                    ),
                    interruptions: replayed.interruptions.seen,
                    unresolved_branches: replayed.interruptions.unresolved,
                    breaks: amounts.breaks,
                    branches,
                    core: machine.core.as_ref().zip(machine_counts.core.as_ref()).map(
                        |(core, counts)| CoreResult {
                            widths: [core.window.dispatch, core.window.retire],
                            cycles: counts.cycles,
                            counters: counts.counters,
                            unknown: counts.unknown.clone(),
                            functions: names
                                .map(|names| function_slots(&counts.slots_at, names))
                                .unwrap_or_default(),
                            sampled: counts
                                .sampled
                                .as_ref()
                                .map(|sampled| of_samples(sampled, original(machine_at))),
                        },
                    ),
                    coherence: coherence(machine, machine_counts.coherence.as_ref()),
                    memory: machine_counts.memory.and_then(|counters| {
                        Some(PerMode {
                            kernel: MemoryCounters::new(machine, &counters.kernel)?,
                            user: MemoryCounters::new(machine, &counters.user)?,
                        })
                    }),
                },
                bound: None,
                // Which blocks of a copy ran says nothing of the original's bytes.
                functions: names
                    .filter(|names| names.copies.is_empty())
                    .map(|names| top_functions(&machine_counts.misses_at, names, &kernel_code))
                    .unwrap_or_default(),
                modules: names
                    .map(|names| of_modules(&machine_counts.misses_at, names))
                    .unwrap_or_default(),
                data_functions: names
                    .map(|names| top_data_functions(&machine_counts.data_misses_at, names))
                    .unwrap_or_default(),
            });
        }
    }
    rows
}

/// `original`: the samples of the original's layout, if it was replayed.
fn of_samples(sampled: &Sampled, original: Option<&Sampled>) -> SampledResult {
    let Sampled { plan, units, slots, all, .. } = sampled;
    let within = PerMode { kernel: slots.kernel.percent(), user: slots.user.percent() };
    let other = original.filter(|original| !std::ptr::eq(*original, sampled));
    let change = other.and_then(|original| sampled.change(original));
    SampledResult { plan: *plan, units: *units, within, within_all: all.percent(), change }
}

fn coherence(machine: &MachineModel, counts: Option<&CoherenceCounts>) -> Option<CoherenceResult> {
    let CoherenceCounts { cpus, times, .. } = counts?;
    let of_mode = |counters: CoreCounters, waits| {
        let stalls = crate::stalls(machine, &counters)?;
        let stalls = [stalls.l2, stalls.beyond, stalls.upgrades, stalls.tlb];
        Some(CpuResult { counters, stalls, waits })
    };
    let of_cpu = |(cpu, counters): (usize, &PerMode<CoreCounters>)| {
        let waits = times.as_ref().and_then(|times| Some(times.get(cpu)?.1));
        Some(PerMode {
            kernel: of_mode(counters.kernel, waits.map(|waits| waits.kernel))?,
            user: of_mode(counters.user, waits.map(|waits| waits.user))?,
        })
    };
    let ends = |times: &Vec<(f64, _)>| times.iter().map(|&(ends, _)| ends).collect();
    Some(CoherenceResult {
        order: if times.is_some() { CpuOrder::SideBySide } else { CpuOrder::Recorded },
        cpus: cpus.iter().enumerate().map(of_cpu).collect::<Option<_>>()?,
        ends: times.as_ref().map(ends),
    })
}

/// The functions with the most misses. Functions with equally many misses are ordered by name.
fn top_functions(
    misses_at: &[(RunAddr, u64)],
    names: CodeNames<'_>,
    kernel_code: &[(LinkAddr, LinkAddr)],
) -> Vec<FunctionMisses> {
    let image = names.image;
    let mut by_function: BTreeMap<usize, u64> = BTreeMap::new();
    for &(addr, misses) in misses_at {
        if let Some(index) = names.function_at(addr) {
            *by_function.entry(index).or_insert(0) += misses;
        }
    }
    let mut top: Vec<(&ImageFunction, u64)> =
        by_function.into_iter().map(|(index, misses)| (&image.functions[index], misses)).collect();
    top.sort_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then_with(|| a.name.cmp(&b.name)));
    top.truncate(FUNCTIONS);
    top.into_iter()
        .map(|(function, misses)| {
            let (hot_bytes, cold_bytes) = hot_and_cold(function, image, kernel_code);
            FunctionMisses { name: function.name.clone(), misses, hot_bytes, cold_bytes }
        })
        .collect()
}

/// The functions with the most L1D misses. Functions with equally many misses are ordered by name.
fn top_data_functions(
    misses_at: &[(RunAddr, DataMissCounts)],
    names: CodeNames<'_>,
) -> Vec<FunctionDataMisses> {
    let image = names.image;
    let mut by_function: BTreeMap<usize, DataMissCounts> = BTreeMap::new();
    for &(addr, misses) in misses_at {
        if let Some(index) = names.function_at(addr) {
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

/// The functions with the most slots, then all other code. Functions with equally many slots are
/// ordered by name.
fn function_slots(slots_at: &[(RunAddr, CoreSlots)], names: CodeNames<'_>) -> Vec<FunctionSlots> {
    let image = names.image;
    let mut by_function: BTreeMap<&str, CoreSlots> = BTreeMap::new();
    let (mut user, mut other) = (CoreSlots::default(), CoreSlots::default());
    for &(addr, slots) in slots_at {
        match names.function_at(addr).map(|index| image.functions[index].name.as_str()) {
            _ if !addr.is_kernel() => user += slots,
            Some(name) => *by_function.entry(name).or_default() += slots,
            None => other += slots,
        }
    }
    let mut top: Vec<(&str, CoreSlots)> = by_function.into_iter().collect();
    top.sort_by_key(|(name, slots)| (std::cmp::Reverse(slots.dispatch.total()), *name));
    let rest = top.split_off(FUNCTIONS.min(top.len()));
    rest.into_iter().for_each(|(_, slots)| other += slots);
    top.extend([(USER_CODE, user), (OTHER_CODE, other)]);
    let ran = top.into_iter().filter(|(_, slots)| *slots != CoreSlots::default());
    ran.map(|(name, slots)| FunctionSlots { name: name.to_owned(), slots }).collect()
}

/// The misses in the code of each module that ran, by name.
fn of_modules(misses_at: &[(RunAddr, u64)], names: CodeNames<'_>) -> Vec<ModuleMisses> {
    let mut by_module: BTreeMap<&str, u64> = BTreeMap::new();
    for &(addr, misses) in misses_at {
        if let Some(module) = names.module_at(addr) {
            *by_module.entry(module).or_insert(0) += misses;
        }
    }
    let named = |(name, misses): (&str, u64)| ModuleMisses { name: name.to_owned(), misses };
    by_module.into_iter().map(named).collect()
}

impl<'a> CodeNames<'a> {
    /// The link address of code; in a copy that of the original's entry.
    fn link_address(&self, addr: RunAddr) -> LinkAddr {
        let after = self.copies.partition_point(|copy| copy.ran <= addr);
        let copy = after.checked_sub(1).map(|at| self.copies[at]);
        match copy.filter(|copy| addr.0 - copy.ran.0 < copy.size) {
            Some(copy) => copy.original,
            None => self.places.linked(addr),
        }
    }

    /// The index of the function that holds this address.
    fn function_at(&self, addr: RunAddr) -> Option<usize> {
        let addr = self.link_address(addr);
        let functions = &self.image.functions;
        let after = functions.partition_point(|function| function.addr <= addr);
        let index = after.checked_sub(1)?;
        let function = &functions[index];
        (addr.0 - function.addr.0 < function.size).then_some(index)
    }

    /// The name of the module that holds this address.
    fn module_at(&self, addr: RunAddr) -> Option<&'a str> {
        let addr = self.link_address(addr);
        let holds = |section: &ImageModuleSection| {
            addr.0.checked_sub(section.addr.0).is_some_and(|offset| offset < section.size)
        };
        let mut modules = self.image.modules.iter();
        let module = modules.find(|module| module.sections.iter().any(holds))?;
        Some(&module.identity.name)
    }

    /// Ranges of code at link addresses, ascending. Modules are loaded far from each other and from
    /// the kernel, so no range has code of two.
    fn linked(&self, ranges: &[(RunAddr, RunAddr)]) -> Vec<(LinkAddr, LinkAddr)> {
        let linked = |&(start, end): &(RunAddr, RunAddr)| {
            let from = self.places.linked(start);
            (from, LinkAddr(from.0 + (end.0 - start.0)))
        };
        let mut ranges: Vec<_> = ranges.iter().map(linked).collect();
        ranges.sort_unstable();
        ranges
    }
}

/// Bytes of the function's blocks that ran at least in part, and of its other blocks.
fn hot_and_cold(
    function: &ImageFunction,
    image: &Image,
    kernel_code: &[(LinkAddr, LinkAddr)],
) -> (u64, u64) {
    let (mut hot, mut cold) = (0, 0);
    for block in &image.blocks[function.blocks.start as usize..function.blocks.end as usize] {
        let next = kernel_code.partition_point(|(_, end)| end.0 <= block.addr.0);
        let overlaps = kernel_code.get(next).is_some_and(|(start, _)| start.0 < block.end_addr().0);
        *(if overlaps { &mut hot } else { &mut cold }) += u64::from(block.size);
    }
    (hot, cold)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::ResultKind;
    use crate::tests::guest::{GuestMemory, record};
    use image::place::Placement;
    use sim::core::Slots;
    use trace::RecordingReader;

    /// The name of a layout says nothing of it: a relinked kernel that was recorded has a name, and
    /// a layout may be called `original`.
    #[test]
    fn a_row_is_recorded_or_predicted_as_its_layout_says() {
        let base = 0xffff_ffff_8100_0000;
        let mut memory = GuestMemory::default();
        memory.put(base, &[0x90]);
        let recording = record(&memory, &[base], 1);
        let machines = [machines::find("server-32k").unwrap().model];
        let kernel = BuildId("5f3c".into());
        let layouts = [
            ReplayLayout::original(),
            ReplayLayout::recorded("ext-tsp"),
            ReplayLayout::predicted("original", kernel, Placement::default()),
        ];
        let reader = RecordingReader::new(&recording[..]).unwrap();
        let replayed = crate::replay(reader, &layouts, &machines).unwrap();
        let rows = rows(&replayed, &layouts, &machines, None);
        let kinds: Vec<_> = rows.iter().map(|row| (row.layout.as_str(), row.kind)).collect();
        let expected = [
            ("original", ResultKind::Recorded),
            ("ext-tsp", ResultKind::Recorded),
            ("original", ResultKind::Predicted),
        ];
        assert_eq!(kinds, expected);
    }

    /// User code, two functions, and code of the kernel between and behind them.
    #[test]
    fn slots_of_functions_keep_their_sum() {
        let base = 0xffff_ffff_8100_0000;
        let image = image::examples::caller_and_callee(LinkAddr(base));
        let slots = |retiring| CoreSlots {
            dispatch: Slots { retiring, ..Slots::default() },
            ..CoreSlots::default()
        };
        let at = [
            (RunAddr(0x40_0000), slots(5)),
            (RunAddr(base), slots(10)),
            (RunAddr(base + 9), slots(20)),
            (RunAddr(base + 12), slots(3)),
            (RunAddr(base + 0x20), slots(40)),
            (RunAddr(base + 0x100), slots(4)),
        ];
        let places = ModulePlaces::default();
        let functions =
            function_slots(&at, CodeNames { image: &image, places: &places, copies: &[] });
        let named: Vec<(&str, u64)> = functions
            .iter()
            .map(|function| (function.name.as_str(), function.slots.dispatch.total()))
            .collect();
        assert_eq!(named, [("g", 40), ("f", 30), (USER_CODE, 5), (OTHER_CODE, 7)]);
        // The code of a copy is its original's.
        let copy = |offset, size, original| CopyPlace {
            ran: RunAddr(base + offset),
            size,
            original: LinkAddr(base + original),
        };
        let copies = [copy(0x80, 0x10, 0), copy(0x100, 1, 0x20)];
        let names = CodeNames { image: &image, places: &places, copies: &copies };
        let found = [0x7f, 0x80, 0x8f, 0x90, 0x100, 0x101]
            .map(|offset| names.function_at(RunAddr(base + offset)));
        assert_eq!(found, [None, Some(0), Some(0), None, Some(1), None]);
    }
}
