//! CDSort, cache-directed sort: orders functions so that callers are near callees and hot code is
//! on few pages.
//!
//! S. Pupyrev, "Optimizing function layout for mobile and data-center applications" as in LLVM's
//! `CodeLayout.cpp` (class `CDSortImpl`, LLVM 17 and later) and lld. Input: functions with sizes,
//! counts and calls. Output: their order. `docs/algorithms/ext-tsp-cdsort.md` explains the idea and
//! the parameters.

use crate::call_graph::CallGraph;
use crate::ext_tsp;
use crate::ext_tsp_parameters::ExtTspParameters;
use crate::graph::{Graph, Ordered};
use crate::hot::HotCode;
use crate::row::{AlgorithmRow, MakeOrder, Uses};
use crate::validate::{InputError, at_least, validate};
use std::collections::{BTreeMap, BTreeSet};

/// ext-TSP for blocks, CDSort for functions, cold code behind.
pub(crate) const EXT_TSP_CDSORT: AlgorithmRow = AlgorithmRow {
    name: "ext-tsp-cdsort",
    uses: Uses::Counts,
    order: MakeOrder::One(|graph| ext_tsp_cdsort(graph, &Default::default(), &Default::default())),
};

/// LLVM's `CDSortConfig`.
#[derive(Clone, Debug, PartialEq)]
pub struct CdSortParameters {
    /// The entries of the cache whose misses are estimated. LLVM means a TLB, or pages in use.
    pub cache_entries: u32,
    /// The bytes of an entry.
    pub entry_bytes: u64,
    /// The largest number of functions in a chain.
    pub max_chain: usize,
    /// A call over d bytes has the worth count × d to the power of minus this.
    pub distance_power: f64,
    /// The weight of saved misses relative to nearness.
    pub frequency_scale: f64,
}

impl Default for CdSortParameters {
    fn default() -> Self {
        CdSortParameters {
            cache_entries: 16,
            entry_bytes: 2048,
            max_chain: 128,
            distance_power: 0.25,
            frequency_scale: 0.25,
        }
    }
}

impl CdSortParameters {
    fn validate(&self) -> Result<(), InputError> {
        at_least("distance_power", self.distance_power, 0.0)?;
        at_least("frequency_scale", self.frequency_scale, 0.0)
    }
}

/// Orders the blocks of each function by ext-TSP and the functions by CDSort. Cold code follows in
/// its original order.
///
/// # Errors
/// The graph or a parameter breaks a rule.
pub(crate) fn ext_tsp_cdsort(
    graph: &Graph,
    blocks: &ExtTspParameters,
    functions: &CdSortParameters,
) -> Result<Ordered, InputError> {
    validate(graph)?;
    blocks.validate()?;
    functions.validate()?;
    let hot = HotCode::new(graph);
    let flows = hot.edge_transfers_by_function();
    let (calls, ran) = CallGraph::of(&hot);
    let order = arrange(&calls, functions).into_iter().map(|f| ran[f as usize]);
    let pieces = order.flat_map(|f| ext_tsp::within(&hot, f, &flows[f.index()], blocks)).collect();
    Ok(hot.finish(pieces))
}

/// The least gain that counts: LLVM's tolerance.
const LEAST_GAIN: f64 = 1e-8;

/// The order of all functions of a call graph by CDSort.
pub fn arrange(graph: &CallGraph, parameters: &CdSortParameters) -> Vec<u32> {
    let mut chains = CdSortChains::new(graph, parameters);
    chains.join_best();
    chains.concatenate()
}

/// How two chains are placed side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CdSortMerge {
    SourceFirst,
    TargetFirst,
}

struct CdSortChain {
    functions: Vec<u32>,
    size: u64,
    count: u128,
    /// The edge to each other chain.
    edges: BTreeMap<u32, u32>,
}

impl CdSortChain {
    /// The identity of the chain among equals: its first function.
    fn id(&self) -> u32 {
        self.functions[0]
    }

    fn density(&self) -> f64 {
        self.count as f64 / self.size as f64
    }
}

/// The arcs between two chains, in both directions.
struct CdSortEdge {
    source: u32,
    target: u32,
    arcs: Vec<u32>,
    gain: f64,
    join: CdSortMerge,
}

/// A key in the queue: the largest gain first, as the bits of a positive number, then the lowest
/// chains.
type QueueKey = (std::cmp::Reverse<u64>, u32, u32, u32);

struct CdSortChains<'a> {
    graph: &'a CallGraph,
    parameters: &'a CdSortParameters,
    chains: Vec<CdSortChain>,
    chain_of: Vec<u32>,
    /// The bytes before each function in its chain.
    offsets: Vec<u64>,
    edges: Vec<CdSortEdge>,
    queue: BTreeSet<QueueKey>,
    /// The number of entries into all functions, and the bytes of the functions that were entered.
    all_counts: f64,
    all_bytes: u64,
}

impl<'a> CdSortChains<'a> {
    fn new(graph: &'a CallGraph, parameters: &'a CdSortParameters) -> Self {
        let counts = counts(graph);
        let chain = |function: usize| CdSortChain {
            functions: vec![function as u32],
            size: graph.sizes[function].max(1),
            count: counts[function],
            edges: BTreeMap::new(),
        };
        let entered = (0..graph.len()).filter(|&f| graph.counts[f] > 0);
        let mut chains = CdSortChains {
            graph,
            parameters,
            chains: (0..graph.len()).map(chain).collect(),
            chain_of: (0..graph.len() as u32).collect(),
            offsets: vec![0; graph.len()],
            edges: Vec::new(),
            queue: BTreeSet::new(),
            all_counts: graph.counts.iter().map(|&count| u128::from(count)).sum::<u128>() as f64,
            all_bytes: entered.map(|f| graph.sizes[f].max(1)).sum(),
        };
        chains.add_arcs();
        chains
    }

    /// Adds the arcs in the order of their callers. The direction of an edge is the direction of
    /// its first arc.
    fn add_arcs(&mut self) {
        let mut arcs: Vec<u32> = (0..self.graph.arcs.len() as u32).collect();
        arcs.sort_by_key(|&arc| self.graph.arcs[arc as usize].from);
        for number in arcs {
            let arc = self.graph.arcs[number as usize];
            if arc.from == arc.to || arc.count == 0 {
                continue;
            }
            if let Some(&edge) = self.chains[arc.from as usize].edges.get(&arc.to) {
                self.edges[edge as usize].arcs.push(number);
                continue;
            }
            let edge = self.edges.len() as u32;
            self.chains[arc.from as usize].edges.insert(arc.to, edge);
            self.chains[arc.to as usize].edges.insert(arc.from, edge);
            self.edges.push(CdSortEdge {
                source: arc.from,
                target: arc.to,
                arcs: vec![number],
                gain: 0.0,
                join: CdSortMerge::SourceFirst,
            });
        }
    }

    fn join_best(&mut self) {
        (0..self.edges.len() as u32).for_each(|edge| self.enqueue(edge));
        while let Some((_, _, _, edge)) = self.queue.pop_first() {
            let (source, target) =
                (self.edges[edge as usize].source, self.edges[edge as usize].target);
            let stale: Vec<u32> = [source, target]
                .iter()
                .flat_map(|&c| self.chains[c as usize].edges.values())
                .copied()
                .collect();
            for edge in stale {
                let place = self.place(edge);
                self.queue.remove(&place);
            }
            self.join(source, target, self.edges[edge as usize].join);
            let longest = self.parameters.max_chain;
            let length = |chain: u32| self.chains[chain as usize].functions.len();
            let fits = |&(&other, _): &(&u32, &u32)| length(source) + length(other) <= longest;
            let renewed: Vec<u32> = self.chains[source as usize]
                .edges
                .iter()
                .filter(fits)
                .map(|(_, &edge)| edge)
                .collect();
            renewed.into_iter().for_each(|edge| self.enqueue(edge));
        }
    }

    fn place(&self, edge: u32) -> QueueKey {
        let CdSortEdge { source, target, gain, .. } = self.edges[edge as usize];
        let id = |chain: u32| self.chains[chain as usize].id();
        (std::cmp::Reverse(gain.to_bits()), id(source), id(target), edge)
    }

    /// Finds the better way to merge the chains of an edge, and queues the edge if it gains
    /// anything.
    fn enqueue(&mut self, edge: u32) {
        let (gain, join) = self.best(&self.edges[edge as usize]);
        let found = &mut self.edges[edge as usize];
        (found.gain, found.join) = (gain, join);
        if gain > LEAST_GAIN {
            self.queue.insert(self.place(edge));
        }
    }

    /// The better way to merge. Among equals, the one that keeps the original order.
    fn best(&self, edge: &CdSortEdge) -> (f64, CdSortMerge) {
        let in_order =
            self.chains[edge.source as usize].id() < self.chains[edge.target as usize].id();
        let (mut gain, mut join) = (-1.0, CdSortMerge::SourceFirst);
        for (attempt, keeps_order) in
            [(CdSortMerge::SourceFirst, in_order), (CdSortMerge::TargetFirst, !in_order)]
        {
            let found = self.gain(edge, attempt);
            let equal = (found - gain).abs() < LEAST_GAIN;
            if (equal && keeps_order) || (!equal && found > gain + LEAST_GAIN) {
                (gain, join) = (found, attempt);
            }
        }
        (gain, join)
    }

    /// The gain of a merge for each byte of the smaller chain. So small chains come first.
    fn gain(&self, edge: &CdSortEdge, join: CdSortMerge) -> f64 {
        let (source, target) =
            (&self.chains[edge.source as usize], &self.chains[edge.target as usize]);
        let misses = |count: u128, density: f64| count as f64 * self.miss_probability(density);
        let joined_count = source.count + target.count;
        let apart = misses(source.count, source.density()) + misses(target.count, target.density());
        let joined = misses(joined_count, joined_count as f64 / (source.size + target.size) as f64);
        let gain = self.nearness(edge, join) + self.parameters.frequency_scale * (apart - joined);
        if gain >= 0.0 { gain / source.size.min(target.size) as f64 } else { gain }
    }

    /// The probability that no entry of the cache holds a chain. The share of one entry is the
    /// chain's share of all executions.
    fn miss_probability(&self, density: f64) -> f64 {
        let in_entry = density * self.parameters.entry_bytes as f64;
        if in_entry >= self.all_counts {
            return 0.0;
        }
        (1.0 - in_entry / self.all_counts).powf(f64::from(self.parameters.cache_entries))
    }

    /// The worth of the arcs between two chains when they are side by side, minus their worth at
    /// the largest possible distance.
    fn nearness(&self, edge: &CdSortEdge, join: CdSortMerge) -> f64 {
        let (mut near, mut far) = (0.0, 0.0);
        let shift = |function: u32| {
            let in_source = self.chain_of[function as usize] == edge.source;
            match (join, in_source) {
                (CdSortMerge::SourceFirst, false) => self.chains[edge.source as usize].size,
                (CdSortMerge::TargetFirst, true) => self.chains[edge.target as usize].size,
                _ => 0,
            }
        };
        for &arc in &edge.arcs {
            let arc = self.graph.arcs[arc as usize];
            let from = self.offsets[arc.from as usize] + shift(arc.from) + arc.offset;
            let to = self.offsets[arc.to as usize] + shift(arc.to);
            near += self.worth(from.abs_diff(to), arc.count);
            far += self.worth(self.all_bytes, arc.count);
        }
        near - far
    }

    fn worth(&self, distance: u64, count: u64) -> f64 {
        let distance = if distance == 0 { 0.1 } else { distance as f64 };
        count as f64 * distance.powf(-self.parameters.distance_power)
    }

    /// Merges the target into the source.
    fn join(&mut self, source: u32, target: u32, join: CdSortMerge) {
        let mut first = std::mem::take(&mut self.chains[source as usize].functions);
        let mut second = std::mem::take(&mut self.chains[target as usize].functions);
        if join == CdSortMerge::TargetFirst {
            std::mem::swap(&mut first, &mut second);
        }
        first.extend(second);
        let mut offset = 0;
        for &function in &first {
            self.chain_of[function as usize] = source;
            self.offsets[function as usize] = offset;
            offset += self.graph.sizes[function as usize].max(1);
        }
        let (size, count) = (self.chains[target as usize].size, self.chains[target as usize].count);
        let chain = &mut self.chains[source as usize];
        chain.functions = first;
        chain.size += size;
        chain.count += count;
        self.join_edges(source, target);
    }

    /// Gives the edges of the target to the source. The edge between the two is removed, because it
    /// has no gain any more.
    fn join_edges(&mut self, source: u32, target: u32) {
        self.chains[source as usize].edges.remove(&target);
        for (other, edge) in std::mem::take(&mut self.chains[target as usize].edges) {
            if other == source {
                continue;
            }
            self.chains[other as usize].edges.remove(&target);
            if let Some(&kept) = self.chains[source as usize].edges.get(&other) {
                let arcs = std::mem::take(&mut self.edges[edge as usize].arcs);
                self.edges[kept as usize].arcs.extend(arcs);
                continue;
            }
            let moved = &mut self.edges[edge as usize];
            let end = if moved.source == target { &mut moved.source } else { &mut moved.target };
            *end = source;
            self.chains[source as usize].edges.insert(other, edge);
            self.chains[other as usize].edges.insert(source, edge);
        }
    }

    /// Concatenates the chains, the densest first.
    fn concatenate(self) -> Vec<u32> {
        let mut chains: Vec<CdSortChain> =
            self.chains.into_iter().filter(|c| !c.functions.is_empty()).collect();
        chains.sort_by(|a, b| b.density().total_cmp(&a.density()).then(a.id().cmp(&b.id())));
        chains.into_iter().flat_map(|c| c.functions).collect()
    }
}

/// How often each function ran: its entries, or the calls that enter or leave it, whichever is
/// more.
fn counts(graph: &CallGraph) -> Vec<u128> {
    let mut into = vec![0u128; graph.len()];
    let mut out = vec![0u128; graph.len()];
    for arc in graph.arcs.iter().filter(|arc| arc.from != arc.to) {
        into[arc.to as usize] += u128::from(arc.count);
        out[arc.from as usize] += u128::from(arc.count);
    }
    let all = graph.counts.iter().map(|&count| u128::from(count)).zip(into).zip(out);
    all.map(|((count, into), out)| count.max(into).max(out)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_graph::CallArc;

    /// ```text
    ///     0 ──100──▶ 3      1 ──1──▶ 2      the pair with most calls is joined, and comes first
    /// ```
    #[test]
    fn callers_and_callees_are_joined_and_the_hottest_come_first() {
        let arc = |from, to, count| CallArc { from, to, count, offset: 16 };
        let graph = CallGraph {
            sizes: vec![64; 4],
            counts: vec![100, 1, 1, 100],
            arcs: vec![arc(0, 3, 100), arc(1, 2, 1)],
        };
        assert_eq!(arrange(&graph, &CdSortParameters::default()), [0, 3, 1, 2]);
    }

    #[test]
    fn chains_stop_at_their_largest_length() {
        let arcs = (0..9).map(|f| CallArc { from: f, to: f + 1, count: 10, offset: 8 });
        let graph = CallGraph { sizes: vec![16; 10], counts: vec![10; 10], arcs: arcs.collect() };
        let pairs = CdSortParameters { max_chain: 2, ..CdSortParameters::default() };
        let chains = CdSortChains::new(&graph, &pairs);
        let mut joined = chains;
        joined.join_best();
        assert!(joined.chains.iter().all(|chain| chain.functions.len() <= 2));
    }
}
