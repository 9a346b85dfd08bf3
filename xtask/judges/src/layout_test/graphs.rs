//! The graphs for comparing layouts: generated ones, and functions and call graphs of a profiled
//! kernel.
//!
//! Input: a seed, or a profile and its kernel. Output: graphs. Orders nothing.

#[path = "../../../../crates/layout/tests/generator/mod.rs"]
mod generator;

use generator::{KernelShape, SMALL, kernel};
use kernlane_layout::call_graph::{CallArc, CallGraph};
use kernlane_layout::random::SplitMix64;
use kernlane_layout::{BlockId, Edge, EdgeKind, Graph};
use std::collections::{BTreeMap, BTreeSet};

/// A call graph whose functions are numbered in the order in which arcs mention them first, because
/// lld numbers them so.
pub(super) struct LinkedCallGraph {
    pub calls: CallGraph,
}

/// Functions of generated kernels with at least three executed blocks, and equally many functions
/// with arbitrary jumps.
pub(super) fn generated_blocks(least: usize) -> Vec<Graph> {
    let mut found: Vec<Graph> =
        (0..least as u64 / 2).flat_map(|seed| blocks_of(&tangled(seed))).collect();
    for seed in 0.. {
        if found.len() >= least {
            break;
        }
        found.extend(blocks_of(&kernel(SMALL, seed)));
    }
    found
}

/// A function of up to eighty blocks. Each block falls through, jumps or branches to any other.
/// Counts come from walks.
fn tangled(seed: u64) -> Graph {
    let mut random = SplitMix64::new(seed);
    let blocks = 4 + random.below(4 + seed % 80) as u32;
    let ends: Vec<(u32, u64)> = (0..blocks)
        .map(|_| {
            let likelihood = [0, 1, 50, 200, 500, 800, 950, 999, 1000][random.below(9) as usize];
            (random.below(u64::from(blocks)) as u32, likelihood)
        })
        .collect();
    let mut counts = vec![0; blocks as usize];
    let mut taken: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for _ in 0..50 {
        let mut block = 0;
        for _ in 0..200 {
            counts[block as usize] += 1;
            let (target, likelihood) = ends[block as usize];
            let next = if random.below(1000) < likelihood { target } else { block + 1 };
            if next == blocks {
                break;
            }
            *taken.entry((block, next)).or_insert(0) += 1;
            block = next;
        }
    }
    let edge = |((from, to), count): ((u32, u32), u64)| Edge {
        from: BlockId(from),
        to: BlockId(to),
        count,
        kind: EdgeKind::Jump,
    };
    Graph {
        sizes: (0..blocks).map(|_| 3 + (random.below(20) + random.below(20)) as u32).collect(),
        counts,
        glued: vec![false; blocks as usize],
        alignments: vec![1; blocks as usize],
        functions: std::iter::once(0..blocks).collect(),
        edges: taken.into_iter().map(edge).collect(),
        ..Graph::default()
    }
}

/// Each function with at least three executed blocks, as its own graph of these blocks and the
/// edges between them.
pub(super) fn blocks_of(graph: &Graph) -> Vec<Graph> {
    let mut numbers = vec![None; graph.len()];
    let mut functions: Vec<Graph> = Vec::new();
    for function in &graph.functions {
        let ran: Vec<u32> = function.clone().filter(|&b| graph.counts[b as usize] > 0).collect();
        // A reference that ignores glue would lay out something else.
        let glued = function.clone().any(|b| graph.glued[b as usize]);
        if ran.len() < 3 || ran[0] != function.start || glued {
            continue;
        }
        for (number, &block) in ran.iter().enumerate() {
            numbers[block as usize] = Some((functions.len(), BlockId(number as u32)));
        }
        functions.push(Graph {
            sizes: ran.iter().map(|&b| graph.sizes[b as usize]).collect(),
            counts: ran.iter().map(|&b| graph.counts[b as usize]).collect(),
            glued: vec![false; ran.len()],
            alignments: vec![1; ran.len()],
            functions: std::iter::once(0..ran.len() as u32).collect(),
            ..Graph::default()
        });
    }
    let mut sums: BTreeMap<(usize, BlockId, BlockId), u64> = BTreeMap::new();
    for edge in graph.edges.iter().filter(|edge| edge.count > 0 && edge.kind != EdgeKind::Indirect)
    {
        if let (Some((a, from)), Some((b, to))) =
            (numbers[edge.from.index()], numbers[edge.to.index()])
            && a == b
        {
            *sums.entry((a, from, to)).or_insert(0) += edge.count;
        }
    }
    for ((function, from, to), count) in sums {
        let kind = EdgeKind::Jump;
        functions[function].edges.push(Edge { from, to, count, kind });
    }
    functions
}

pub(super) fn generated_functions(count: usize) -> Vec<LinkedCallGraph> {
    let shape = |functions| KernelShape { functions, steps: 4000, seeds: 2, glued: 0 };
    let one = |seed: usize| {
        let graph = kernel(shape(12 + (seed % 80) as u32), seed as u64);
        let mut functions = whole(&graph, &(0..graph.functions.len()).collect());
        // Without calls of a function to itself, which a walk never makes.
        let mut random = SplitMix64::new(seed as u64);
        if !functions.calls.is_empty() {
            let function = random.below(functions.calls.len() as u64) as u32;
            let count = 1 + random.below(50);
            functions.calls.arcs.push(CallArc {
                from: function,
                to: function,
                count,
                offset: functions.calls.sizes[function as usize].div_ceil(2),
            });
        }
        functions
    };
    (0..count).map(one).collect()
}

/// The largest number of functions in a part of the real call graph.
const LARGEST_PART: usize = 500;

/// For each of the functions with the most calls: everything that it reaches, as its own call
/// graph, unless that is nearly everything. Also the whole call graph.
pub(super) fn functions_of(graph: &Graph, count: usize) -> Vec<LinkedCallGraph> {
    let function = |block: BlockId| graph.functions.partition_point(|f| f.end <= block.0);
    let mut callees: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let mut calls: BTreeMap<usize, u64> = BTreeMap::new();
    for call in graph.calls.iter().filter(|call| call.count > 0) {
        callees.entry(function(call.from)).or_default().insert(function(call.to));
        *calls.entry(function(call.from)).or_default() += call.count;
    }
    let mut roots: Vec<usize> = callees.keys().copied().filter(|f| callees[f].len() > 3).collect();
    roots.sort_by_key(|f| (std::cmp::Reverse(calls[f]), *f));
    let reached = |&root: &usize| {
        let mut found = BTreeSet::new();
        let mut waiting = vec![root];
        while let Some(function) = waiting.pop() {
            if found.insert(function) {
                waiting.extend(callees.get(&function).into_iter().flatten());
            }
        }
        (found.len() <= LARGEST_PART).then(|| whole(graph, &found))
    };
    let everything = (0..graph.functions.len()).collect();
    let parts = roots.iter().filter_map(reached).take(count);
    parts.chain(std::iter::once_with(|| whole(graph, &everything))).collect()
}

/// The calls between some functions. Sizes are those of whole functions, every call is in the
/// middle of its caller, and counts are those of the calls. lld knows no more.
fn whole(graph: &Graph, functions: &BTreeSet<usize>) -> LinkedCallGraph {
    let function = |block: BlockId| graph.functions.partition_point(|f| f.end <= block.0);
    let mut sums: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for call in graph.calls.iter().filter(|call| call.count > 0) {
        let (from, to) = (function(call.from), function(call.to));
        if from != to && functions.contains(&from) && functions.contains(&to) {
            *sums.entry((from, to)).or_insert(0) += call.count;
        }
    }
    let size = |f: usize| {
        graph.functions[f].clone().map(|b| u64::from(graph.sizes[b as usize])).sum::<u64>()
    };
    let mut calls = CallGraph::default();
    let mut numbers: BTreeMap<usize, u32> = BTreeMap::new();
    for ((from, to), count) in sums {
        let mut number = |f: usize| {
            *numbers.entry(f).or_insert_with(|| {
                calls.sizes.push(size(f));
                calls.counts.push(0);
                calls.sizes.len() as u32 - 1
            })
        };
        let (from, to) = (number(from), number(to));
        let offset = calls.sizes[from as usize].div_ceil(2);
        calls.counts[to as usize] += count;
        calls.arcs.push(CallArc { from, to, count, offset });
    }
    LinkedCallGraph { calls }
}
