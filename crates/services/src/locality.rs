//! The locality of the kernel's code (Torrellas 1998, section 3): how much of it runs, why the
//! kernel is entered, how predictable its branches are, its loops, and how soon popular functions
//! are called again.
//!
//! Takes a profile, its image, and the totals of services and of the reuse of functions; gives the
//! numbers of one workload. Prints nothing. Blocks are blocks of the image. A block that calls has
//! an arc to the callee. Returns have no arcs, because a profile does not record where each return
//! leads.

use crate::annotations::ServiceKind;
use crate::reuse::Reuses;
use crate::table::ServiceTable;
use anyhow::Result;
use image::Image;
use layout::opts::{NaturalLoop, natural_loops};
use layout::{BlockId, Graph};
use profile::{Profile, graph};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The locality of one workload. Shares are from 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Locality {
    /// The recorded workload.
    pub workload: String,
    /// The build id of the recorded kernel.
    pub kernel: String,
    /// Table 1: bytes of blocks that ran.
    pub executed_bytes: u64,
    /// The share of code bytes that ran.
    pub executed_bytes_share: f64,
    /// The share of blocks that ran.
    pub executed_blocks_share: f64,
    /// Functions that ran at least in part.
    pub executed_functions: u64,
    /// The share of functions that ran at least in part.
    pub executed_functions_share: f64,
    /// Table 1: entries of the kernel by cause.
    pub invocations: EntryShares,
    /// Figure 3: the number of arcs.
    pub arcs: u64,
    /// The share of arcs with a probability of at least 0.99.
    pub arcs_nearly_always: f64,
    /// The share of arcs with a probability of at most 0.01.
    pub arcs_nearly_never: f64,
    /// Table 3 and figure 4.
    pub loops_without_calls: LoopStatistics,
    /// Figure 5. Sizes include all callees.
    pub loops_with_calls: LoopStatistics,
    /// Figure 6: the functions called most, with their share of all calls.
    pub popular: Vec<Popular>,
    /// Figure 7: shares of these functions' calls, averaged over the functions: called again within
    /// 100, 1000, 10000 words, later, and not again.
    pub reuse: [f64; 5],
}

/// The shares of entries of the kernel, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EntryShares {
    /// Interrupts, including those from other processors.
    pub interrupt: f64,
    /// Page faults.
    pub page_fault: f64,
    /// System calls.
    pub system_call: f64,
    /// Other exceptions.
    pub other: f64,
}

/// Statistics of the loops that ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LoopStatistics {
    /// The number of loops.
    pub loops: u64,
    /// The share of the bytes that are fetched in the kernel.
    pub dynamic_share: f64,
    /// The share of the executed code.
    pub executed_share: f64,
    /// The share of all code.
    pub static_share: f64,
    /// The median of iterations per invocation.
    pub median_iterations: f64,
    /// The share of loops with at most 6 iterations per invocation.
    pub up_to_6: f64,
    /// The share of loops with at most 25 iterations per invocation.
    pub up_to_25: f64,
    /// The median of bytes of the executed parts.
    pub median_bytes: u64,
    /// Bytes of the executed part of the largest loop.
    pub largest_bytes: u64,
}

/// One of the functions called most.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Popular {
    /// The function's name.
    pub name: String,
    /// How often it was called.
    pub calls: u64,
    /// Its share of the calls of all functions.
    pub share: f64,
    /// How soon it was called again.
    pub reuses: Reuses,
}

/// The number of popular functions, as in the paper.
pub(crate) const POPULAR: usize = 10;
/// The probability that counts as nearly certain, as in the paper.
const NEARLY: f64 = 0.99;

impl Locality {
    /// `popular`: the functions called most, with their calls and reuses. `all_calls`: the calls of
    /// all functions.
    ///
    /// # Errors
    /// The profile and the image belong to different kernels.
    pub(crate) fn new(
        image: &Image,
        profile: &Profile,
        table: &ServiceTable,
        popular: Vec<(String, u64, Reuses)>,
        all_calls: u64,
    ) -> Result<Locality> {
        let graph = graph::whole(image, profile)?.graph;
        let code = ExecutedCode::new(&graph);
        let (with, without): (Vec<NaturalLoop>, Vec<NaturalLoop>) =
            natural_loops(&graph).into_iter().partition(|l| code.calls(l));
        let (nearly_always, nearly_never, arcs) = arcs(&graph);
        let part = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let (executed, all): (u64, u64) = (code.executed, code.all);
        let blocks = graph.counts.iter().filter(|&&count| count > 0).count() as u64;
        let ran = |blocks: &std::ops::Range<u32>| {
            blocks.clone().any(|block| graph.counts[block as usize] > 0)
        };
        let functions = graph.functions.iter().filter(|blocks| ran(blocks)).count() as u64;
        Ok(Locality {
            workload: table.workload.clone(),
            kernel: table.kernel.clone(),
            executed_bytes: executed,
            executed_bytes_share: part(executed, all),
            executed_blocks_share: part(blocks, graph.len() as u64),
            executed_functions: functions,
            executed_functions_share: part(functions, graph.functions.len() as u64),
            invocations: invocations(table),
            arcs,
            arcs_nearly_always: part(nearly_always, arcs),
            arcs_nearly_never: part(nearly_never, arcs),
            loops_without_calls: code.loops(&without, |l| code.executed_bytes(&l.blocks)),
            loops_with_calls: code.loops(&with, |l| code.bytes_with_callees(l)),
            reuse: mean_reuse(&popular),
            popular: popular
                .into_iter()
                .map(|(name, calls, reuses)| Popular {
                    name,
                    calls,
                    share: part(calls, all_calls),
                    reuses,
                })
                .collect(),
        })
    }
}

fn invocations(table: &ServiceTable) -> EntryShares {
    let begun = |kinds: &[ServiceKind]| -> f64 {
        kinds.iter().filter_map(|kind| table.begun.get(kind)).sum::<u64>() as f64
    };
    let interrupt = begun(&[ServiceKind::Interrupt, ServiceKind::Ipi]);
    let (page_fault, system_call, other) = (
        begun(&[ServiceKind::PageFault]),
        begun(&[ServiceKind::SystemCall]),
        begun(&[ServiceKind::Exception]),
    );
    let all = (interrupt + page_fault + system_call + other).max(1.0);
    EntryShares {
        interrupt: interrupt / all,
        page_fault: page_fault / all,
        system_call: system_call / all,
        other: other / all,
    }
}

/// The numbers of arcs with a probability of at least 0.99, of arcs with at most 0.01, and of all
/// arcs. Arcs that were never taken do not count.
fn arcs(graph: &Graph) -> (u64, u64, u64) {
    let mut out: BTreeMap<BlockId, BTreeMap<BlockId, u64>> = BTreeMap::new();
    let calling: BTreeSet<BlockId> =
        graph.calls.iter().filter(|call| call.count > 0).map(|call| call.from).collect();
    let edges = graph.edges.iter().filter(|edge| !calling.contains(&edge.from));
    let edges = edges.map(|edge| (edge.from, edge.to, edge.count));
    for (from, to, count) in
        edges.chain(graph.calls.iter().map(|call| (call.from, call.to, call.count)))
    {
        if count > 0 {
            *out.entry(from).or_default().entry(to).or_insert(0) += count;
        }
    }
    let (mut always, mut never, mut all) = (0, 0, 0);
    for arcs in out.values() {
        let leaving: u64 = arcs.values().sum();
        for &count in arcs.values() {
            let probability = count as f64 / leaving as f64;
            always += u64::from(probability >= NEARLY);
            never += u64::from(probability <= 1.0 - NEARLY);
            all += 1;
        }
    }
    (always, never, all)
}

fn mean_reuse(popular: &[(String, u64, Reuses)]) -> [f64; 5] {
    let mut means = [0.0; 5];
    for (_, _, reuses) in popular {
        let [a, b, c] = reuses.within;
        for (mean, count) in means.iter_mut().zip([a, b, c, reuses.later, reuses.last]) {
            *mean += count as f64 / reuses.calls().max(1) as f64 / popular.len() as f64;
        }
    }
    means
}

/// The code that ran, and its calls.
struct ExecutedCode<'a> {
    graph: &'a Graph,
    all: u64,
    executed: u64,
    fetched: f64,
    /// Called functions by function.
    callees: BTreeMap<usize, BTreeSet<usize>>,
    /// Called functions by block.
    called_from: BTreeMap<BlockId, Vec<usize>>,
    /// Executed bytes by function.
    bytes: Vec<u64>,
}

impl<'a> ExecutedCode<'a> {
    fn new(graph: &'a Graph) -> ExecutedCode<'a> {
        let mut code = ExecutedCode {
            graph,
            all: graph.sizes.iter().map(|&size| u64::from(size)).sum(),
            executed: 0,
            fetched: 0.0,
            callees: BTreeMap::new(),
            called_from: BTreeMap::new(),
            bytes: vec![0; graph.functions.len()],
        };
        for block in
            (0..graph.len() as u32).map(BlockId).filter(|block| graph.counts[block.index()] > 0)
        {
            let size = u64::from(graph.sizes[block.index()]);
            code.executed += size;
            code.fetched += size as f64 * graph.counts[block.index()] as f64;
            code.bytes[function(graph, block)] += size;
        }
        for call in graph.calls.iter().filter(|call| call.count > 0) {
            let callee = function(graph, call.to);
            code.callees.entry(function(graph, call.from)).or_default().insert(callee);
            code.called_from.entry(call.from).or_default().push(callee);
        }
        code
    }

    fn calls(&self, l: &NaturalLoop) -> bool {
        l.blocks.iter().any(|block| self.called_from.contains_key(block))
    }

    fn executed_bytes(&self, blocks: &[BlockId]) -> u64 {
        let ran = blocks.iter().filter(|block| self.graph.counts[block.index()] > 0);
        ran.map(|block| u64::from(self.graph.sizes[block.index()])).sum()
    }

    /// Executed bytes of the loop and of all that it calls, directly or indirectly.
    fn bytes_with_callees(&self, l: &NaturalLoop) -> u64 {
        let from = l.blocks.iter().filter_map(|block| self.called_from.get(block)).flatten();
        let mut waiting: Vec<usize> = from.copied().collect();
        let mut reached = BTreeSet::new();
        while let Some(function) = waiting.pop() {
            if reached.insert(function) {
                waiting.extend(self.callees.get(&function).into_iter().flatten());
            }
        }
        let own = l.blocks.first().map(|&block| function(self.graph, block));
        let callees = reached.into_iter().filter(|&callee| Some(callee) != own);
        self.executed_bytes(&l.blocks) + callees.map(|callee| self.bytes[callee]).sum::<u64>()
    }

    fn loops(&self, loops: &[NaturalLoop], size: impl Fn(&NaturalLoop) -> u64) -> LoopStatistics {
        let blocks: BTreeSet<BlockId> =
            loops.iter().flat_map(|l| l.blocks.iter().copied()).collect();
        let blocks: Vec<BlockId> = blocks.into_iter().collect();
        let fetched: f64 = blocks
            .iter()
            .map(|block| {
                f64::from(self.graph.sizes[block.index()]) * self.graph.counts[block.index()] as f64
            })
            .sum();
        let executed = self.executed_bytes(&blocks) as f64;
        let mut iterations: Vec<f64> = loops.iter().map(|l| l.iterations).collect();
        iterations.sort_by(f64::total_cmp);
        let mut sizes: Vec<u64> = loops.iter().map(size).collect();
        sizes.sort_unstable();
        let up_to = |limit: f64| {
            iterations.partition_point(|&n| n <= limit) as f64 / loops.len().max(1) as f64
        };
        LoopStatistics {
            loops: loops.len() as u64,
            dynamic_share: fetched / self.fetched.max(1.0),
            executed_share: executed / self.executed.max(1) as f64,
            static_share: executed / self.all.max(1) as f64,
            median_iterations: iterations.get(iterations.len() / 2).copied().unwrap_or(0.0),
            up_to_6: up_to(6.0),
            up_to_25: up_to(25.0),
            median_bytes: sizes.get(sizes.len() / 2).copied().unwrap_or(0),
            largest_bytes: sizes.last().copied().unwrap_or(0),
        }
    }
}

fn function(graph: &Graph, block: BlockId) -> usize {
    graph.functions.partition_point(|blocks| blocks.end <= block.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::{Call, Edge, EdgeKind};

    /// f: 0 → 1 ⟲ (9 of 10) → 2; block 2 calls g (3) in a loop of its own: 2 ⟲ (4 of 5) → 4. Block
    /// 5 never ran.
    fn graph() -> Graph {
        let edge =
            |from, to, count, kind| Edge { from: BlockId(from), to: BlockId(to), count, kind };
        Graph {
            sizes: vec![10, 20, 30, 40, 10, 50],
            counts: vec![1, 10, 5, 5, 1, 0],
            glued: vec![false; 6],
            alignments: vec![1; 6],
            functions: vec![0..3, 3..4, 4..6],
            edges: vec![
                edge(0, 1, 1, EdgeKind::FallThrough),
                edge(1, 1, 9, EdgeKind::Branch),
                edge(1, 2, 1, EdgeKind::FallThrough),
                edge(2, 2, 4, EdgeKind::Branch),
            ],
            calls: vec![Call { from: BlockId(2), to: BlockId(3), count: 5 }],
            seeds: Vec::new(),
            joint_misses: Vec::new(),
            temporal_edges: Vec::new(),
            block_epochs: Vec::new(),
        }
    }

    #[test]
    fn loops_with_and_without_calls() {
        let graph = graph();
        let code = ExecutedCode::new(&graph);
        let (with, without): (Vec<_>, Vec<_>) =
            natural_loops(&graph).into_iter().partition(|l| code.calls(l));
        assert_eq!((with.len(), without.len()), (1, 1));
        let plain = code.loops(&without, |l| code.executed_bytes(&l.blocks));
        assert_eq!((plain.median_bytes, plain.median_iterations), (20, 10.0));
        // 10 + 200 + 150 + 200 + 10 bytes are fetched, 200 of them in this loop.
        assert!((plain.dynamic_share - 200.0 / 570.0).abs() < 1e-9);
        assert!((plain.executed_share - 20.0 / 110.0).abs() < 1e-9);
        assert_eq!((plain.up_to_6, plain.up_to_25), (0.0, 1.0));
        let calling = code.loops(&with, |l| code.bytes_with_callees(l));
        assert_eq!((calling.median_bytes, calling.median_iterations), (30 + 40, 5.0));
    }

    #[test]
    fn arcs_are_certain_or_not() {
        // 0 → 1 always, 1 → 1 with 0.9, 1 → 2 with 0.1, the call always.
        assert_eq!(arcs(&graph()), (2, 0, 4));
    }
}
