//! Codestitcher: chains blocks of all functions, and collocates the chains level by level: within a
//! page, then within a large page.
//!
//! R. Lavaee, J. Criswell, C. Ding, "Codestitcher: inter-procedural basic block layout
//! optimization" (CC 2019), section 2. Input: a graph. Output: its order.
//! `docs/algorithms/codestitcher.md` explains the idea and our changes.

use crate::graph::{Graph, Ordered};
use crate::hot::{HotCode, PieceTransfer};
use crate::pettis_hansen::chains;
use crate::pieces::PieceId;
use crate::returns::calls_and_returns;
use crate::row::{AlgorithmRow, MakeOrder, Uses};
use crate::validate::{InputError, validate};
use std::collections::{BTreeMap, BinaryHeap};

/// Codestitcher's chains across functions, collocated by page and large page.
pub(crate) const CODESTITCHER: AlgorithmRow = AlgorithmRow {
    name: "codestitcher",
    uses: Uses::Counts,
    order: MakeOrder::One(|graph| codestitcher(graph, &Default::default())),
};

/// The parameters of Codestitcher.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CodestitcherParameters {
    /// The distances in bytes within which control transfers are brought, from the nearest level to
    /// the farthest.
    pub distances: Vec<u64>,
    /// Up to this distance, a shorter transfer is worth more. Beyond, all transfers within the
    /// level's distance are worth the same.
    pub graded: u64,
}

impl Default for CodestitcherParameters {
    fn default() -> Self {
        CodestitcherParameters { distances: vec![4096, 2 << 20], graded: 4096 }
    }
}

/// Chains the blocks of all functions, collocates the chains, and orders them by executions per
/// byte. Cold code follows in its original order.
///
/// # Errors
/// The graph or a parameter breaks a rule.
pub(crate) fn codestitcher(
    graph: &Graph,
    parameters: &CodestitcherParameters,
) -> Result<Ordered, InputError> {
    validate(graph)?;
    let hot = HotCode::new(graph);
    let pieces: Vec<PieceId> = hot.pieces.all().filter(|&p| hot.is_hot(p)).collect();
    let transfers = transfers(graph, &hot);
    let mut level = CollocationLevel::new(&hot, &pieces, &transfers);
    for &distance in &parameters.distances {
        level.collocate(distance, distance <= parameters.graded);
    }
    Ok(hot.finish(level.by_density()))
}

/// Every edge, call and return between hot pieces.
fn transfers(graph: &Graph, hot: &HotCode) -> Vec<PieceTransfer> {
    let calls = calls_and_returns(graph).into_iter().filter_map(|(from, to, count)| {
        let (from_piece, to_piece) = (hot.pieces.of_block(from), hot.pieces.of_block(to));
        let between_hot = from_piece != to_piece && hot.is_hot(from_piece) && hot.is_hot(to_piece);
        between_hot.then(|| PieceTransfer {
            from: from_piece,
            to: to_piece,
            from_end: hot.end_in_piece(from),
            to_start: hot.start_in_piece(to),
            count,
            may_fall: false,
            conditional: true,
        })
    });
    hot.edge_transfers().into_iter().chain(calls).collect()
}

/// Section 2.1: a path cover of each function's flow graph, heaviest arcs first. Then tail calls
/// join the paths of different functions.
fn paths(hot: &HotCode, pieces: &[PieceId], transfers: &[PieceTransfer]) -> Vec<Vec<usize>> {
    let number = |piece: PieceId| pieces.partition_point(|&p| p < piece);
    let aligned =
        |piece: PieceId| hot.graph.alignments[hot.pieces.blocks(piece).start as usize] > 1;
    let (mut within, mut tail_calls) = (BTreeMap::new(), BTreeMap::new());
    for flow in transfers.iter().filter(|flow| flow.may_fall && hot.adjoining(flow)) {
        let same = hot.function_of(flow.from) == hot.function_of(flow.to);
        // An aligned block begins behind padding. Nothing may run into padding.
        if same || !aligned(flow.to) {
            let arcs = if same { &mut within } else { &mut tail_calls };
            *arcs.entry((number(flow.from), number(flow.to))).or_insert(0u128) +=
                u128::from(flow.count);
        }
    }
    let paths = chains(pieces.len(), within);
    let (mut head, mut tail) = (BTreeMap::new(), BTreeMap::new());
    for (path, nodes) in paths.iter().enumerate() {
        head.insert(nodes[0], path);
        tail.insert(nodes[nodes.len() - 1], path);
    }
    let ends = |((from, to), count): ((usize, usize), u128)| {
        Some(((*tail.get(&from)?, *head.get(&to)?), count))
    };
    let joins: BTreeMap<(usize, usize), u128> = tail_calls.into_iter().filter_map(ends).collect();
    let joined = chains(paths.len(), joins).into_iter();
    joined.map(|row| row.into_iter().flat_map(|path| paths[path].clone()).collect()).collect()
}

struct StitchedChain {
    nodes: Vec<usize>,
    size: u64,
    count: f64,
    /// The transfers to and from each other chain.
    neighbours: BTreeMap<usize, Vec<usize>>,
    /// Counts the changes of the chain.
    version: u32,
}

/// A candidate: `right` is placed directly behind `left`.
struct StitchCandidate {
    worth: f64,
    left: usize,
    right: usize,
    versions: (u32, u32),
}

impl Ord for StitchCandidate {
    /// The candidate with the highest worth first; among equals, the one with the lowest chains.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.worth
            .total_cmp(&other.worth)
            .then((other.left, other.right).cmp(&(self.left, self.right)))
    }
}

impl PartialOrd for StitchCandidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for StitchCandidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for StitchCandidate {}

/// Section 2.2, hierarchical collocation: the chains after the levels done so far.
struct CollocationLevel<'a> {
    hot: &'a HotCode<'a>,
    pieces: &'a [PieceId],
    transfers: &'a [PieceTransfer],
    /// The nodes at the ends of each transfer.
    ends: Vec<(usize, usize)>,
    chains: Vec<StitchedChain>,
    chain_of: Vec<usize>,
    /// The bytes before each node in its chain.
    offsets: Vec<u64>,
    heap: BinaryHeap<StitchCandidate>,
}

impl<'a> CollocationLevel<'a> {
    fn new(hot: &'a HotCode<'a>, pieces: &'a [PieceId], transfers: &'a [PieceTransfer]) -> Self {
        let number = |piece: PieceId| pieces.partition_point(|&p| p < piece);
        let mut level = CollocationLevel {
            hot,
            pieces,
            transfers,
            ends: transfers.iter().map(|t| (number(t.from), number(t.to))).collect(),
            chains: Vec::new(),
            chain_of: vec![0; pieces.len()],
            offsets: vec![0; pieces.len()],
            heap: BinaryHeap::new(),
        };
        for nodes in paths(hot, pieces, transfers) {
            let chain = level.chains.len();
            level.chains.push(StitchedChain {
                nodes,
                size: 0,
                count: 0.0,
                neighbours: BTreeMap::new(),
                version: 0,
            });
            level.renumber(chain);
        }
        for transfer in 0..transfers.len() {
            let (from, to) = level.ends[transfer];
            let (from, to) = (level.chain_of[from], level.chain_of[to]);
            if from != to {
                level.chains[from].neighbours.entry(to).or_default().push(transfer);
                level.chains[to].neighbours.entry(from).or_default().push(transfer);
            }
        }
        level
    }

    fn size(&self, node: usize) -> u64 {
        self.hot.sizes[self.pieces[node].index()]
    }

    /// Updates the data of a chain's nodes from their order.
    fn renumber(&mut self, chain: usize) {
        let (mut size, mut count) = (0, 0.0);
        for at in 0..self.chains[chain].nodes.len() {
            let node = self.chains[chain].nodes[at];
            self.chain_of[node] = chain;
            self.offsets[node] = size;
            size += self.size(node);
            count += self.hot.count(self.pieces[node]) as f64;
        }
        (self.chains[chain].size, self.chains[chain].count) = (size, count);
    }

    /// Merges chains as long as a merge brings transfers within `distance`.
    fn collocate(&mut self, distance: u64, graded: bool) {
        self.heap.clear();
        for left in 0..self.chains.len() {
            let neighbours: Vec<usize> = self.chains[left].neighbours.keys().copied().collect();
            neighbours.into_iter().for_each(|right| self.consider(left, right, distance, graded));
        }
        while let Some(join) = self.heap.pop() {
            let (left, right) = (join.left, join.right);
            if self.chains[left].nodes.is_empty() || self.chains[right].nodes.is_empty() {
                continue;
            }
            if join.versions != (self.chains[left].version, self.chains[right].version) {
                // A larger chain is worth less for each byte, unless it gained transfers. Those
                // pairs were queued when it did.
                if !graded {
                    self.consider(left, right, distance, graded);
                }
                continue;
            }
            let gained = self.join(left, right);
            let renewed: Vec<usize> = match graded {
                true => self.chains[left].neighbours.keys().copied().collect(),
                false => gained,
            };
            for other in renewed {
                self.consider(left, other, distance, graded);
                self.consider(other, left, distance, graded);
            }
        }
    }

    fn consider(&mut self, left: usize, right: usize, distance: u64, graded: bool) {
        let (l, r) = (&self.chains[left], &self.chains[right]);
        if l.size >= distance || r.size >= distance || l.nodes.is_empty() || r.nodes.is_empty() {
            return;
        }
        let Some(transfers) = l.neighbours.get(&right) else { return };
        let worth: f64 = transfers.iter().map(|&t| self.worth(t, left, distance, graded)).sum();
        if worth > 0.0 {
            let join = StitchCandidate {
                worth: worth / (1 + l.size + r.size) as f64,
                left,
                right,
                versions: (l.version, r.version),
            };
            self.heap.push(join);
        }
    }

    /// The worth of a transfer when its other chain is placed behind `left`.
    fn worth(&self, transfer: usize, left: usize, distance: u64, graded: bool) -> f64 {
        let (from, to) = self.ends[transfer];
        let PieceTransfer { from_end, to_start, count, .. } = self.transfers[transfer];
        let shift =
            |node: usize| if self.chain_of[node] == left { 0 } else { self.chains[left].size };
        let source = self.offsets[from] + shift(from) + from_end;
        let target = self.offsets[to] + shift(to) + to_start;
        match distance.checked_sub(source.abs_diff(target)) {
            None | Some(0) => 0.0,
            Some(spare) if graded => count as f64 * spare as f64,
            Some(_) => count as f64,
        }
    }

    /// Appends `right` to `left`. Returns the chains that have transfers with the new part.
    fn join(&mut self, left: usize, right: usize) -> Vec<usize> {
        let nodes = std::mem::take(&mut self.chains[right].nodes);
        let before = self.chains[left].size;
        for &node in &nodes {
            self.chain_of[node] = left;
            self.offsets[node] += before;
        }
        let (size, count) = (self.chains[right].size, self.chains[right].count);
        let chain = &mut self.chains[left];
        chain.nodes.extend(nodes);
        chain.size += size;
        chain.count += count;
        chain.version += 1;
        chain.neighbours.remove(&right);
        let mut gained = Vec::new();
        for (other, transfers) in std::mem::take(&mut self.chains[right].neighbours) {
            if other != left {
                let back = self.chains[other].neighbours.remove(&right).unwrap_or_default();
                self.chains[other].neighbours.entry(left).or_default().extend(back);
                self.chains[left].neighbours.entry(other).or_default().extend(transfers);
                gained.push(other);
            }
        }
        gained
    }

    /// Concatenates the chains, those with most executions per byte first.
    fn by_density(self) -> Vec<PieceId> {
        let density = |chain: &StitchedChain| chain.count / chain.size.max(1) as f64;
        let mut chains: Vec<&StitchedChain> =
            self.chains.iter().filter(|chain| !chain.nodes.is_empty()).collect();
        chains.sort_by(|a, b| density(b).total_cmp(&density(a)).then(a.nodes[0].cmp(&b.nodes[0])));
        chains.into_iter().flat_map(|chain| &chain.nodes).map(|&node| self.pieces[node]).collect()
    }
}
