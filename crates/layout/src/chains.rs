//! The engine of ext-TSP: merges nodes into chains. It always merges the pair of chains that raises
//! the score most.
//!
//! Input: nodes with sizes and counts, and the jumps between them. Output: a permutation of the
//! nodes. The engine knows nothing of blocks or functions.
//!
//! Newell and Pupyrev, "Improved basic block reordering" (IEEE Transactions on Computers 2020),
//! section 4. Two chains X and Y can be merged to X Y. When X is cut into X1 and X2, they can also
//! be merged to X1 Y X2, Y X2 X1 or X2 X1 Y. The gain of a pair changes only when one of its chains
//! changes, so gains are kept in a heap. Before its gain is known, a pair has a bound of the gain
//! in the heap. The bound seldom changes. The gain is computed only when no other pair has a higher
//! bound, so it is never computed for most pairs.
//!
//! A merge shifts whole segments. Of the jumps within X, only those across the cut change their
//! distance, all by the same amount. The effect on the score is summed once for each version of a
//! chain, not for each pair (`cuts.rs`). The jumps between X and Y add at most the score that they
//! have at the shortest distance. If this does not make up for the cut, their score is not computed
//! (`gains.rs`).
//!
//! Equal gains are common in code that ran once. Then the choice between them is arbitrary, and no
//! way to choose is better on average. So there are two ([`NearTies`]).

mod cuts;
mod gains;
mod merging;

use crate::ext_tsp_parameters::ExtTspParameters;
use crate::forced::forced;
use crate::jumps::{ChainNode, ScoredJump};
use cuts::CutScore;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

/// How two chains X and Y are merged. X is cut before the node at the given position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChainMerge {
    XY,
    X1YX2(usize),
    YX2X1(usize),
    X2X1Y(usize),
}

struct ExtTspChain {
    nodes: Vec<u32>,
    /// The jumps within the chain.
    jumps: Vec<u32>,
    /// The pair with each other chain to which or from which jumps lead.
    neighbours: BTreeMap<u32, u32>,
    /// The effect of each cut on the jumps within the chain, by the position behind the cut. Empty
    /// for a chain that is not cut everywhere.
    cuts: Vec<CutScore>,
    /// The first and the last cut that each jump within the chain crosses; empty like `cuts`.
    spans: Vec<(u32, u32)>,
    /// The largest rise of the score of the jumps within the chain by a cut. 0 for a chain that is
    /// not cut everywhere.
    slack: f64,
    /// The pairs whose gains were computed since the pair or the chain changed.
    computed: Vec<u32>,
    size: u64,
    count: f64,
}

/// Two chains, and the jumps between them. There are no jumps when the chains were merged, or when
/// the pair became the same as another.
#[derive(Default)]
struct ChainPair {
    jumps: Vec<u32>,
    /// The largest score that the jumps can add.
    bound: f64,
    /// Counts the changes that make the pair's elements in the heap outdated.
    version: u32,
}

impl ExtTspChain {
    fn density(&self) -> f64 {
        self.count / self.size.max(1) as f64
    }
}

/// An element of the heap: a pair with its gain, or with a bound of the gain.
struct QueuedGain {
    gain: f64,
    pair: u32,
    version: u32,
    /// `None` when the gain is a bound.
    planned: Option<PlannedMerge>,
}

/// The best merge of a pair.
struct PlannedMerge {
    x: u32,
    y: u32,
    /// The first nodes of x and y.
    fronts: (u32, u32),
    merge: ChainMerge,
}

/// Smaller differences count as equal. They come from the order of summation.
const LEAST_GAIN: f64 = 1e-8;

/// How merging decides between gains that are equal, or nearly so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NearTies {
    /// The larger gain wins, by however little. A chain is cut from its front on.
    ByGain,
    /// As LLVM's `CodeLayout.cpp` does it: a small difference decides nothing, and a chain is cut
    /// first where a jump becomes a fall-through.
    AsLlvm,
}

/// With [`NearTies::AsLlvm`], gains are multiples of this.
const GAIN_STEP: f64 = 10.0 * LEAST_GAIN;

impl Ord for QueuedGain {
    /// The largest gain first. Among equals, bounds come first, because the gain may be as high.
    /// Then comes the pair with the lowest first nodes.
    fn cmp(&self, other: &Self) -> Ordering {
        let fronts = |gain: &QueuedGain| gain.planned.as_ref().map(|planned| planned.fronts);
        self.gain.total_cmp(&other.gain).then(fronts(other).cmp(&fronts(self)))
    }
}

impl PartialOrd for QueuedGain {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for QueuedGain {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for QueuedGain {}

/// The order of `nodes` that greedy merging finds. If there is an `entry`, it comes first.
pub(crate) fn arrange(
    nodes: &[ChainNode],
    jumps: &[ScoredJump],
    entry: Option<u32>,
    parameters: &ExtTspParameters,
) -> Vec<u32> {
    ExtTspChains::new(nodes, jumps, entry, parameters).merge_all()
}

/// The order that LLVM's merging finds. It differs from that of [`arrange`] in decisions between
/// nearly equal gains, and in densities: a node counts at least as often as the jumps to it or from
/// it, which only matters for counts that do not balance.
pub(crate) fn arrange_as_llvm(
    nodes: &[ChainNode],
    jumps: &[ScoredJump],
    entry: Option<u32>,
    parameters: &ExtTspParameters,
) -> Vec<u32> {
    let mut chains = ExtTspChains::new(nodes, jumps, entry, parameters);
    chains.near_ties = NearTies::AsLlvm;
    let (mut entered, mut left) = (vec![0.0; nodes.len()], vec![0.0; nodes.len()]);
    for jump in jumps {
        entered[jump.to as usize] += jump.count as f64;
        left[jump.from as usize] += jump.count as f64;
    }
    for (chain, (entered, left)) in chains.chains.iter_mut().zip(entered.into_iter().zip(left)) {
        chain.count = chain.count.max(entered).max(left);
    }
    chains.merge_all()
}

struct ExtTspChains<'a> {
    nodes: &'a [ChainNode],
    jumps: &'a [ScoredJump],
    entry: Option<u32>,
    parameters: &'a ExtTspParameters,
    chains: Vec<ExtTspChain>,
    pairs: Vec<ChainPair>,
    chain_of: Vec<u32>,
    /// The position of each node in its chain, and the bytes before it.
    positions: Vec<usize>,
    offsets: Vec<u64>,
    /// The node that must follow each node: its only successor, of which the node is the only
    /// predecessor.
    forced: Vec<Option<u32>>,
    heap: BinaryHeap<QueuedGain>,
    near_ties: NearTies,
}

impl<'a> ExtTspChains<'a> {
    fn new(
        nodes: &'a [ChainNode],
        jumps: &'a [ScoredJump],
        entry: Option<u32>,
        parameters: &'a ExtTspParameters,
    ) -> Self {
        let chain = |(number, node): (usize, &ChainNode)| ExtTspChain {
            nodes: vec![number as u32],
            jumps: Vec::new(),
            neighbours: BTreeMap::new(),
            cuts: Vec::new(),
            spans: Vec::new(),
            slack: 0.0,
            computed: Vec::new(),
            size: node.size,
            count: node.count as f64,
        };
        let mut chains: Vec<ExtTspChain> = nodes.iter().enumerate().map(chain).collect();
        let mut pairs: Vec<ChainPair> = Vec::new();
        for (number, jump) in jumps.iter().enumerate() {
            let pair =
                *chains[jump.from as usize].neighbours.entry(jump.to).or_insert(pairs.len() as u32);
            chains[jump.to as usize].neighbours.insert(jump.from, pair);
            if pair as usize == pairs.len() {
                pairs.push(ChainPair::default());
            }
            let pair = &mut pairs[pair as usize];
            pair.jumps.push(number as u32);
            pair.bound += jump.most(parameters);
        }
        ExtTspChains {
            nodes,
            jumps,
            entry,
            parameters,
            chains,
            pairs,
            chain_of: (0..nodes.len() as u32).collect(),
            positions: vec![0; nodes.len()],
            offsets: vec![0; nodes.len()],
            forced: forced(nodes, jumps, entry),
            heap: BinaryHeap::new(),
            near_ties: NearTies::ByGain,
        }
    }

    fn merge_all(mut self) -> Vec<u32> {
        self.merge_forced();
        self.merge_best();
        self.merge_ends();
        self.concatenate()
    }

    fn merge_forced(&mut self) {
        for node in 0..self.nodes.len() {
            if let Some(successor) = self.forced[node] {
                self.merge_chains(
                    self.chain_of[node],
                    self.chain_of[successor as usize],
                    ChainMerge::XY,
                );
            }
        }
    }

    fn merge_best(&mut self) {
        (0..self.pairs.len() as u32).for_each(|pair| self.queue_bound(pair));
        while let Some((_, planned)) = self.next_merge() {
            let chain = self.merge_chains(planned.x, planned.y, planned.merge);
            self.requeue_changed(chain);
        }
    }

    /// The merge with the largest gain, and the gain.
    fn next_merge(&mut self) -> Option<(f64, PlannedMerge)> {
        while let Some(best) = self.heap.pop() {
            let pair = &self.pairs[best.pair as usize];
            if pair.jumps.is_empty() || pair.version != best.version {
                continue;
            }
            match best.planned {
                None => self.queue_gain(best.pair),
                Some(planned) => return Some((best.gain, planned)),
            }
        }
        None
    }

    /// Queues a pair that has jumps, with a bound of its gain.
    fn queue_bound(&mut self, pair: u32) {
        if self.pairs[pair as usize].jumps.is_empty() {
            return;
        }
        let (x, y) = self.chains_of(pair);
        let slack = self.chains[x as usize].slack.max(self.chains[y as usize].slack);
        let gain = self.ranked(self.pairs[pair as usize].bound + slack);
        let pair_of = &mut self.pairs[pair as usize];
        pair_of.version += 1;
        self.heap.push(QueuedGain { gain, pair, version: pair_of.version, planned: None });
    }

    /// A gain, or a bound of one, as the heap compares it.
    fn ranked(&self, gain: f64) -> f64 {
        match self.near_ties {
            NearTies::ByGain => gain,
            NearTies::AsLlvm => (gain / GAIN_STEP).round() * GAIN_STEP,
        }
    }

    /// Re-queues the pairs of a chain whose gain or bound changed with it. A chain of the largest
    /// length has none.
    fn requeue_changed(&mut self, chain: u32) {
        let changed = &mut self.chains[chain as usize];
        let mut pairs = std::mem::take(&mut changed.computed);
        if changed.nodes.len() >= self.parameters.max_chain {
            pairs.into_iter().for_each(|pair| self.pairs[pair as usize].version += 1);
            return;
        }
        if changed.slack > 0.0 {
            pairs.extend(changed.neighbours.values());
        }
        pairs.sort_unstable();
        pairs.dedup();
        pairs.into_iter().for_each(|pair| self.queue_bound(pair));
    }

    /// The two chains of a pair that has jumps.
    fn chains_of(&self, pair: u32) -> (u32, u32) {
        let jump = &self.jumps[self.pairs[pair as usize].jumps[0] as usize];
        (self.chain_of[jump.from as usize], self.chain_of[jump.to as usize])
    }

    /// Merges chains that greedy merging left apart because their densities differ too much, when
    /// the last node of one goes on at the first node of the other. Such a merge costs nothing and
    /// saves a jump (LLVM's pass 3). Of several successors, the last one is taken.
    fn merge_ends(&mut self) {
        let mut ways_on: Vec<Vec<u32>> = vec![Vec::new(); self.nodes.len()];
        for jump in
            self.jumps.iter().filter(|jump| self.may_fall(jump) && Some(jump.to) != self.entry)
        {
            ways_on[jump.from as usize].push(jump.to);
        }
        for (from, ways_on) in ways_on.into_iter().enumerate() {
            for to in ways_on.into_iter().rev() {
                let (x, y) = (self.chain_of[from], self.chain_of[to as usize]);
                let last = self.chains[x as usize].nodes.last() == Some(&(from as u32));
                if x != y && last && self.chains[y as usize].nodes.first() == Some(&to) {
                    self.merge_chains(x, y, ChainMerge::XY);
                }
            }
        }
    }

    /// Whether a jump becomes a fall-through when its target is placed behind its source.
    fn may_fall(&self, jump: &ScoredJump) -> bool {
        jump.may_fall()
            && jump.from_end == self.nodes[jump.from as usize].size
            && jump.to_start == 0
    }

    /// The chain of the entry, then the others by density. Equals are ordered by their first node.
    fn concatenate(self) -> Vec<u32> {
        let entry = self.entry.map(|node| self.chain_of[node as usize]);
        let mut order: Vec<u32> = (0..self.chains.len() as u32)
            .filter(|&c| !self.chains[c as usize].nodes.is_empty())
            .collect();
        let density = |c: u32| self.chains[c as usize].density();
        order.sort_by(|&a, &b| {
            let entry_first = (Some(b) == entry).cmp(&(Some(a) == entry));
            let first = |c: u32| self.chains[c as usize].nodes[0];
            entry_first.then(density(b).total_cmp(&density(a))).then(first(a).cmp(&first(b)))
        });
        order.into_iter().flat_map(|c| self.chains[c as usize].nodes.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests;
