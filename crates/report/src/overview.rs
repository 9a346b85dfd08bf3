//! What a recording came to, as a page shows it: services, what went on over time, calls,
//! functions, misses, and where in the kernel's code they are.
//!
//! Takes what `services` and `replay` counted; gives numbers to be drawn, cut down to what can be
//! seen. Draws nothing.

use attribution::ObservedRecording;
use attribution::misses::table::{MissTable, StructureRow};
use attribution::services::annotations::ServiceKind;
use attribution::services::calls::{CallTree, NodeId, ROOT, ServiceCalls};
use attribution::services::share::OsShare;
use attribution::services::table::ServiceTable;
use attribution::services::timeline::Timeline;
use attribution::sizes::Sizes;
use image::address::LinkAddr;
use image::place::Placement;
use replay::results::ResultRow;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use trace::RunAddr;

/// A frame of the flame graph is at least this part of all.
const NARROWEST: f64 = 1.0 / 5000.0;
/// An address map has so many cells at most.
const CELLS: u64 = 512;
const PAGE: u64 = 4096;

#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    pub workload: String,
    /// Build id.
    pub kernel: String,
    pub seed: u64,
    /// What else the recording depends on.
    pub conditions: BTreeMap<String, String>,
    pub table: ServiceTable,
    pub os_share: OsShare,
    /// In cycles of the first machine.
    pub timeline: Timeline,
    /// One for each machine, and for each layout on it.
    pub rows: Vec<ResultRow>,
    pub functions: Vec<FunctionCostRow>,
    pub flame: FlameGraph,
    pub maps: Vec<AddressMap>,
    pub sizes: Sizes,
    /// Of the first machine with a data cache; `None`: the recording has no data accesses, or no
    /// machine such a cache.
    pub data: Option<StructureMisses>,
}

/// Misses by data structure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StructureMisses {
    pub machine: String,
    /// Descending by misses of the L1D; together they are all misses of loads and stores.
    pub rows: Vec<StructureRow>,
    /// Part of the L1D's misses on data of which nothing says what it is.
    pub other_share: f64,
    /// Why it is not known what frames are used for, if it is not.
    pub frames_unknown: Option<String>,
}

impl From<MissTable> for StructureMisses {
    fn from(table: MissTable) -> StructureMisses {
        StructureMisses {
            machine: table.machine,
            rows: table.structures,
            other_share: table.other_share,
            frames_unknown: table.frames_unknown,
        }
    }
}

/// A function of the kernel; thunks are in the function that goes through them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FunctionCostRow {
    pub name: String,
    pub calls: u64,
    /// Its own.
    pub instructions: u64,
    /// With all that it called.
    pub inclusive: u64,
    pub l1i: u64,
    pub l1d: u64,
    pub l2: u64,
}

/// Chains of calls by their instructions: mode, service, functions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlameGraph {
    pub names: Vec<String>,
    /// Each before what it called: depth from 0, index of the name, instructions with all that it
    /// called. What is left out is too narrow to be seen.
    pub frames: Vec<(u32, u32, u64)>,
}

/// Misses of the L1I by where the code lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AddressMap {
    pub layout: String,
    pub machine: String,
    /// The first cell's first address, hex.
    pub start: String,
    /// Bytes in a cell.
    pub cell: u64,
    pub misses: Vec<u64>,
    /// So few pages of 4 KB have nine tenths of the misses.
    pub pages: u64,
}

/// A layout's misses, by old addresses; on the first machine.
pub struct LayoutMisses<'a> {
    pub layout: &'a str,
    pub machine: &'a str,
    pub placement: &'a Placement,
    pub misses_at: &'a [(RunAddr, u64)],
}

impl Overview {
    /// `rows`: one for each machine and layout; `misses`: one for each layout.
    pub fn new(
        observed: ObservedRecording,
        conditions: BTreeMap<String, String>,
        rows: Vec<ResultRow>,
        misses: &[LayoutMisses<'_>],
        sizes: Sizes,
        data: Option<StructureMisses>,
    ) -> Overview {
        let ObservedRecording { table, calls, timeline } = observed;
        Overview {
            workload: table.workload.clone(),
            kernel: table.kernel.clone(),
            seed: table.seed,
            conditions,
            os_share: OsShare::new(&table),
            timeline,
            rows,
            functions: functions(&calls),
            flame: flame(&calls),
            maps: maps(misses),
            sizes,
            data,
            table,
        }
    }
}

/// The most instructions first.
pub fn functions(tree: &CallTree) -> Vec<FunctionCostRow> {
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

/// Whether the function is in this chain.
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

pub fn flame(tree: &CallTree) -> FlameGraph {
    let total = |service: &ServiceCalls| -> u64 {
        service.costs.iter().map(|(_, cost)| cost.instructions).sum()
    };
    let all: u64 = tree.services.iter().map(total).sum();
    let least = (all as f64 * NARROWEST).ceil() as u64;
    let mut flame = FlameDrawing::default();
    for (mode, wanted) in [
        (
            "kernel",
            (|kind| !matches!(kind, ServiceKind::User | ServiceKind::Idle))
                as fn(ServiceKind) -> bool,
        ),
        ("user", |kind| kind == ServiceKind::User),
        ("idle", |kind| kind == ServiceKind::Idle),
    ] {
        let services = tree.services.iter().filter(|service| wanted(service.kind));
        let mut services: Vec<(u64, &ServiceCalls)> =
            services.map(|service| (total(service), service)).collect();
        services.sort_by(|(a, of_a), (b, of_b)| {
            b.cmp(a).then_with(|| (of_a.kind, &of_a.name).cmp(&(of_b.kind, &of_b.name)))
        });
        let sum: u64 = services.iter().map(|(total, _)| total).sum();
        if sum < least.max(1) {
            continue;
        }
        flame.frame(0, mode, sum);
        for (total, service) in services.into_iter().filter(|(total, _)| *total >= least) {
            flame.frame(1, &format!("{} {}", service.kind.title(), service.name), total);
            flame.chains(tree, service, least);
        }
    }
    FlameGraph { names: flame.names, frames: flame.frames }
}

#[derive(Default)]
struct FlameDrawing {
    names: Vec<String>,
    numbers: BTreeMap<String, u32>,
    frames: Vec<(u32, u32, u64)>,
}

impl FlameDrawing {
    fn frame(&mut self, depth: u32, name: &str, total: u64) {
        let next = self.names.len() as u32;
        let number = *self.numbers.entry(name.to_owned()).or_insert(next);
        if number == next {
            self.names.push(name.to_owned());
        }
        self.frames.push((depth, number, total));
    }

    fn chains(&mut self, tree: &CallTree, service: &ServiceCalls, least: u64) {
        let mut totals: BTreeMap<NodeId, u64> =
            service.costs.iter().map(|(node, cost)| (*node, cost.instructions)).collect();
        let mut called: BTreeMap<NodeId, Vec<(u64, NodeId)>> = BTreeMap::new();
        // A parent has a smaller number: from the last on, each node's total is whole when it
        // comes.
        while let Some((node, total)) = totals.pop_last().filter(|(node, _)| *node != ROOT) {
            let parent = tree.nodes[node.0 as usize].parent;
            *totals.entry(parent).or_insert(0) += total;
            if total >= least {
                called.entry(parent).or_default().push((total, node));
            }
        }
        let name = |node: NodeId| &tree.functions[tree.nodes[node.0 as usize].function as usize];
        let mut waiting = vec![(1, ROOT, 0)];
        while let Some((depth, node, total)) = waiting.pop() {
            if node != ROOT {
                self.frame(depth, name(node), total);
            }
            let mut below = called.remove(&node).unwrap_or_default();
            below.sort_by(|(a, of_a), (b, of_b)| {
                a.cmp(b).then_with(|| name(*of_b).cmp(name(*of_a)))
            });
            waiting.extend(below.into_iter().map(|(total, node)| (depth + 1, node, total)));
        }
    }
}

/// One for each layout, over the same addresses.
fn maps(layouts: &[LayoutMisses<'_>]) -> Vec<AddressMap> {
    let placed: Vec<Vec<(u64, u64)>> = layouts
        .iter()
        .map(|layout| {
            let kernel = layout.misses_at.iter().filter(|(addr, _)| addr.is_kernel());
            let new = |addr: RunAddr| {
                layout.placement.new_address(LinkAddr(addr.0)).map_or(addr.0, |new| new.0)
            };
            kernel.map(|&(addr, misses)| (new(addr), misses)).collect()
        })
        .collect();
    let pages: BTreeSet<u64> = placed.iter().flatten().map(|(addr, _)| addr / PAGE).collect();
    // Modules lie far behind the kernel: one gap would be the whole map.
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
        AddressMap {
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

/// How many pages it takes for nine tenths of all.
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
pub mod tests {
    use super::*;
    use attribution::services::LevelMisses;
    use attribution::services::calls::{CallCost, CallNode};

    fn cost(calls: u64, instructions: u64) -> CallCost {
        let misses = LevelMisses { l1i: instructions / 10, l1d: 0, l2: 0 };
        CallCost { calls, instructions, misses }
    }

    /// read → f → g → f, and f → h, which is too narrow; user mode.
    pub fn tree() -> CallTree {
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
    fn the_flame_is_as_wide_as_the_whole_and_leaves_out_what_is_narrow() {
        let flame = flame(&tree());
        let name = |at: u32| flame.names[at as usize].as_str();
        let frames: Vec<(u32, &str, u64)> =
            flame.frames.iter().map(|&(depth, at, total)| (depth, name(at), total)).collect();
        assert_eq!(
            frames,
            [
                (0, "kernel", 8001),
                (1, "system call read", 8001),
                (2, "f", 8001),
                (3, "g", 3000),
                (4, "f", 1000),
                (0, "user", 1999),
                (1, "user sh", 1999),
            ]
        );
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
    fn maps_of_all_layouts_are_over_the_same_addresses() {
        let base = 0xffff_ffff_8100_0000;
        let at = |page: u64| RunAddr(base + page * PAGE);
        let original = [(RunAddr(0x40_0000), 99), (at(0), 60), (at(1), 39), (at(9), 1)];
        let other = [(at(2), 10)];
        let placement = Placement::default();
        let layout = |layout, misses_at| LayoutMisses {
            layout,
            machine: "m",
            placement: &placement,
            misses_at,
        };
        let maps = maps(&[layout("original", &original[..]), layout("new", &other[..])]);
        assert_eq!(maps[0].misses, [60, 39, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(maps[1].misses, [0, 0, 10, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((maps[0].pages, maps[1].pages, maps[0].cell), (2, 1, PAGE));
        assert_eq!(maps[0].start, "ffffffff81000000");
        assert!(super::maps(&[]).is_empty());
    }
}
