//! A recording as the page shows it: services, execution over time, calls, functions, misses, and
//! the addresses of misses.
//!
//! Input: the results of attribution and replay. Output: the numbers to draw, reduced to what is
//! visible. This module draws nothing.

use crate::multiprocessor::MultiprocessorBeside;
use crate::services::OsShareBeside;
use crate::slices::{self, SlicedRecording};
use image::address::LinkAddr;
use image::place::Placement;
use memory::misses::table::{MissTable, StructureRow};
use memory::sizes::{Sizes, SlicedSizes};
use replay::SliceCounts;
use replay::results::ResultRow;
use serde::Serialize;
use services::ObservedRecording;
use services::calls::{CallTree, NodeId, ROOT};
use services::generations::Generations;
use services::share::OsShare;
use services::table::ServiceTable;
use services::timeline::Timeline;
use std::collections::{BTreeMap, BTreeSet};
use trace::RunAddr;

/// The largest number of cells in an address map.
const CELLS: u64 = 512;
const PAGE: u64 = 4096;

/// Everything that the page shows about one recording.
#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    /// The recorded workload.
    pub workload: String,
    /// Build id.
    pub kernel: String,
    /// The seed of the recording.
    pub seed: u64,
    /// The other conditions of the recording.
    pub conditions: BTreeMap<String, String>,
    /// The services.
    pub table: ServiceTable,
    /// The operating system's share, and the paper's numbers.
    pub os_share: OsShareBeside,
    /// Execution over time, in cycles of the first machine.
    pub timeline: Timeline,
    /// A row for each machine and layout.
    pub rows: Vec<ResultRow>,
    /// The kernel's functions.
    pub functions: Vec<FunctionCostRow>,
    /// What sections show of a range of time: their numbers in slices.
    pub slices: SlicedRecording,
    /// L1I misses by address, one map for each layout.
    pub maps: Vec<AddressMap>,
    /// Misses by cache size and associativity.
    pub sizes: Option<Sizes>,
    /// Misses by data structure on the first machine with a data cache; `None` without data
    /// accesses or such a machine.
    pub data: Option<StructureMisses>,
    /// Services on all machines, with the slots of cores; `None` when no machine has a core.
    pub generations: Option<Generations>,
    /// Services on several CPUs; `None` for one CPU or without data accesses.
    pub multiprocessor: Option<MultiprocessorBeside>,
}

/// What the page shows of some recordings only.
#[derive(Clone, Debug, Default)]
pub struct OverviewExtras {
    /// See [`Overview::sizes`].
    pub sizes: Option<Sizes>,
    /// The same misses in slices.
    pub sliced_sizes: Vec<SlicedSizes>,
    /// See [`Overview::data`].
    pub data: Option<StructureMisses>,
    /// See [`Overview::generations`].
    pub generations: Option<Generations>,
    /// See [`Overview::multiprocessor`].
    pub multiprocessor: Option<MultiprocessorBeside>,
}

/// Misses by data structure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StructureMisses {
    /// The simulated machine.
    pub machine: String,
    /// Rows, descending by L1D misses. Together they hold all misses of loads and stores.
    pub rows: Vec<StructureRow>,
    /// By row, then by slice with misses: the slice, the L1D's misses by mode (kernel and user) and
    /// cause (cold, self, other), then the misses of the L2 and of the L3 on data.
    pub slices: Vec<Vec<[u64; 9]>>,
    /// The share of the L1D's misses on data of unknown use.
    pub other_share: f64,
    /// Why the use of page frames is unknown; `None` when it is known.
    pub frames_unknown: Option<String>,
}

impl From<MissTable> for StructureMisses {
    fn from(table: MissTable) -> StructureMisses {
        StructureMisses {
            machine: table.machine,
            slices: table.structures.iter().map(slices::structure).collect(),
            rows: table.structures,
            other_share: table.other_share,
            frames_unknown: table.frames_unknown,
        }
    }
}

/// A kernel function. A thunk counts for the function that goes through it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FunctionCostRow {
    /// The function's name.
    pub name: String,
    /// How often it was called.
    pub calls: u64,
    /// Instructions of the function itself.
    pub instructions: u64,
    /// Instructions of the function and of all that it called.
    pub inclusive: u64,
    /// Its L1I misses.
    pub l1i: u64,
    /// Its L1D misses.
    pub l1d: u64,
    /// Its L2 misses.
    pub l2: u64,
}

/// L1I misses by the address of the code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AddressMap {
    /// The layout's name.
    pub layout: String,
    /// The simulated machine.
    pub machine: String,
    /// The first address of the first cell, in hex.
    pub start: String,
    /// Bytes in a cell.
    pub cell: u64,
    /// The misses in each cell.
    pub misses: Vec<u64>,
    /// By slice: the slice, then cells with misses, each with its number and its misses.
    pub slices: Vec<Vec<u64>>,
    /// The number of pages of 4 KB that hold nine tenths of the misses.
    pub pages: u64,
}

/// A layout's L1I misses on one machine.
pub struct LayoutMisses<'a> {
    /// The layout's name.
    pub layout: &'a str,
    /// The simulated machine.
    pub machine: &'a str,
    /// The layout's placement.
    pub placement: &'a Placement,
    /// Misses by old address.
    pub misses_at: &'a [(RunAddr, u64)],
    /// The same in slices.
    pub slices: &'a [SliceCounts],
}

impl Overview {
    /// `rows`: one row for each machine and layout, with its slices. `misses`: one entry for each
    /// layout.
    pub fn new(
        observed: ObservedRecording,
        conditions: BTreeMap<String, String>,
        rows: Vec<(ResultRow, &[SliceCounts])>,
        misses: &[LayoutMisses<'_>],
        extras: OverviewExtras,
    ) -> Overview {
        let ObservedRecording { table, calls, timeline } = observed;
        let OverviewExtras { sizes, sliced_sizes, data, generations, multiprocessor } = extras;
        let (rows, sliced_rows): (Vec<ResultRow>, Vec<_>) = rows.into_iter().unzip();
        Overview {
            workload: table.workload.clone(),
            kernel: table.kernel.clone(),
            seed: table.seed,
            conditions,
            os_share: OsShare::new(&table).into(),
            rows,
            functions: functions(&calls),
            slices: SlicedRecording {
                misses: sliced_rows.into_iter().map(slices::misses).collect(),
                sizes: slices::sizes(&sliced_sizes),
                slots: generations.as_ref().map(slices::slots).unwrap_or_default(),
                ..SlicedRecording::new(&calls, &timeline)
            },
            maps: maps(misses),
            sizes,
            data,
            generations,
            multiprocessor,
            timeline,
            table,
        }
    }
}

/// The kernel's functions, the most instructions first.
pub(crate) fn functions(tree: &CallTree) -> Vec<FunctionCostRow> {
    let mut rows: BTreeMap<u32, FunctionCostRow> = BTreeMap::new();
    let mut inclusive = vec![0; tree.nodes.len()];
    for (node, cost) in
        tree.services.iter().flat_map(|service| &service.costs).filter(|(node, _)| *node != ROOT)
    {
        let function = tree.nodes[node.0 as usize].function;
        let row = rows.entry(function).or_default();
        row.calls += cost.calls;
        row.instructions += cost.instructions;
        row.l1i += cost.misses.l1i;
        row.l1d += cost.misses.l1d;
        row.l2 += cost.misses.l2;
        inclusive[node.0 as usize] += cost.instructions;
    }
    for (number, node) in tree.nodes.iter().enumerate().skip(1).rev() {
        inclusive[node.parent.0 as usize] += inclusive[number];
        if !is_above(tree, node.parent, node.function) {
            rows.entry(node.function).or_default().inclusive += inclusive[number];
        }
    }
    let mut rows: Vec<FunctionCostRow> = rows
        .into_iter()
        .map(|(function, row)| FunctionCostRow {
            name: tree.functions[function as usize].clone(),
            ..row
        })
        .collect();
    rows.sort_by(|a, b| b.instructions.cmp(&a.instructions).then_with(|| a.name.cmp(&b.name)));
    rows
}

/// Whether the function is part of this chain.
fn is_above(tree: &CallTree, chain: NodeId, function: u32) -> bool {
    let mut at = chain;
    while at != ROOT {
        let node = tree.nodes[at.0 as usize];
        if node.function == function {
            return true;
        }
        at = node.parent;
    }
    false
}

impl LayoutMisses<'_> {
    /// The kernel's misses by new address.
    fn placed(&self, misses_at: &[(RunAddr, u64)]) -> impl Iterator<Item = (u64, u64)> {
        let kernel = misses_at.iter().filter(|(addr, _)| addr.is_kernel());
        kernel.map(|&(addr, misses)| {
            let new = self.placement.new_address(LinkAddr(addr.0));
            (new.map_or(addr.0, |new| new.0), misses)
        })
    }
}

/// One map for each layout, over the same addresses.
fn maps(layouts: &[LayoutMisses<'_>]) -> Vec<AddressMap> {
    let placed: Vec<Vec<(u64, u64)>> =
        layouts.iter().map(|layout| layout.placed(layout.misses_at).collect()).collect();
    let pages: BTreeSet<u64> = placed.iter().flatten().map(|(addr, _)| addr / PAGE).collect();
    // Modules lie far behind the kernel: the gap would fill the whole map.
    let (Some(first), Some(last)) = (pages.first(), image_end(&pages)) else {
        return Vec::new();
    };
    let start = first * PAGE;
    let bytes = (last + 1) * PAGE - start;
    let cell = bytes.div_ceil(CELLS).next_power_of_two().max(PAGE);
    let cells = bytes.div_ceil(cell);
    let map = |(layout, misses): (&LayoutMisses<'_>, Vec<(u64, u64)>)| {
        let mut sums = vec![0; cells as usize];
        let mut by_page: BTreeMap<u64, u64> = BTreeMap::new();
        for (addr, misses) in misses {
            if let Some(sum) = sums.get_mut(((addr - start) / cell) as usize) {
                *sum += misses;
            }
            *by_page.entry(addr / PAGE).or_insert(0) += misses;
        }
        let sliced = |of: &SliceCounts| {
            let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
            for (addr, misses) in layout.placed(&of.misses_at) {
                let at = (addr - start) / cell;
                if at < cells {
                    *sums.entry(at).or_default() += misses;
                }
            }
            let sums = sums.into_iter().flat_map(|(at, misses)| [at, misses]);
            std::iter::once(u64::from(of.slice)).chain(sums).collect()
        };
        AddressMap {
            slices: layout.slices.iter().map(sliced).collect(),
            layout: layout.layout.to_owned(),
            machine: layout.machine.to_owned(),
            start: format!("{start:x}"),
            cell,
            misses: sums,
            pages: pages_of_most(by_page.into_values().collect()),
        }
    };
    layouts.iter().zip(placed).map(map).collect()
}

/// The last page before a gap of 256 MB.
fn image_end(pages: &BTreeSet<u64>) -> Option<u64> {
    let mut last = *pages.first()?;
    for &page in pages {
        if page - last > (256 << 20) / PAGE {
            break;
        }
        last = page;
    }
    Some(last)
}

/// The number of pages that hold nine tenths of all misses.
fn pages_of_most(mut misses: Vec<u64>) -> u64 {
    misses.sort_unstable_by(|a, b| b.cmp(a));
    let all: u64 = misses.iter().sum();
    let mut sum = 0;
    let enough = misses.iter().take_while(|&&misses| {
        let before = sum;
        sum += misses;
        10 * before < 9 * all
    });
    enough.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use services::LevelMisses;
    use services::annotations::ServiceKind;
    use services::calls::{CallCost, CallNode, ServiceCalls};

    fn cost(calls: u64, instructions: u64) -> CallCost {
        let misses = LevelMisses { l1i: instructions / 10, l1d: 0, l2: 0 };
        CallCost { calls, instructions, misses, stall: 0 }
    }

    /// read → f → g → f; f → h, which is too narrow; user mode.
    fn tree() -> CallTree {
        let node = |parent, function| CallNode { parent: NodeId(parent), function };
        let service = |kind, name: &str, costs: &[(u32, CallCost)]| ServiceCalls {
            kind,
            name: name.to_owned(),
            costs: costs.iter().map(|&(at, cost)| (NodeId(at), cost)).collect(),
        };
        CallTree {
            functions: ["f", "g", "h"].map(str::to_owned).to_vec(),
            nodes: vec![node(0, 0), node(0, 0), node(1, 1), node(2, 0), node(1, 2)],
            services: vec![
                service(
                    ServiceKind::SystemCall,
                    "read",
                    &[(1, cost(2, 5000)), (2, cost(3, 2000)), (3, cost(1, 1000)), (4, cost(1, 1))],
                ),
                service(ServiceKind::User, "sh", &[(0, cost(0, 1999))]),
            ],
        }
    }

    #[test]
    fn recursion_is_counted_once() {
        let functions = functions(&tree());
        let of: Vec<(&str, u64, u64, u64)> = functions
            .iter()
            .map(|row| (row.name.as_str(), row.calls, row.instructions, row.inclusive))
            .collect();
        assert_eq!(of, [("f", 3, 6000, 8001), ("g", 3, 2000, 3000), ("h", 1, 1, 1)]);
    }

    #[test]
    fn maps_of_all_layouts_cover_the_same_addresses() {
        let base = 0xffff_ffff_8100_0000;
        let at = |page: u64| RunAddr(base + page * PAGE);
        let original = [(RunAddr(0x40_0000), 99), (at(0), 60), (at(1), 39), (at(9), 1)];
        let other = [(at(2), 10)];
        let placement = Placement::default();
        let in_slice = |slice, misses_at: &[_]| SliceCounts {
            slice,
            l1i: Default::default(),
            memory: None,
            misses_at: misses_at.to_vec(),
        };
        let slices = [in_slice(0, &original[..2]), in_slice(4, &original[2..])];
        let layout = |layout, misses_at| LayoutMisses {
            layout,
            machine: "m",
            placement: &placement,
            misses_at,
            slices: &slices,
        };
        let maps = maps(&[layout("original", &original[..]), layout("new", &other[..])]);
        assert_eq!(maps[0].slices, [vec![0, 0, 60], vec![4, 1, 39, 9, 1]]);
        assert_eq!(maps[0].misses, [60, 39, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(maps[1].misses, [0, 0, 10, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((maps[0].pages, maps[1].pages, maps[0].cell), (2, 1, PAGE));
        assert_eq!(maps[0].start, "ffffffff81000000");
        assert!(super::maps(&[]).is_empty());
    }
}
