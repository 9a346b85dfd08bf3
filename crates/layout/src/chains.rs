//! The engine of ext-TSP: joins nodes into chains, always the pair of chains that raises the score most.
//!
//! Takes nodes with sizes and counts, and the jumps between them; gives a permutation of the nodes. Knows nothing of blocks or functions.
//!
//! Newell and Pupyrev, "Improved basic block reordering" (IEEE Transactions on Computers 2020), section 4. Two chains X and Y join as
//! X Y, or, X being cut into X1 and X2, as X1 Y X2, Y X2 X1 or X2 X1 Y. The gain of a pair changes only when one of the two does, so gains
//! are computed when a chain is made and wait in a heap; a chain's version tells stale ones. Merging shifts whole segments: of the jumps
//! within X only those that cross the cut change their distance, by the same amount wherever the cut is. They are collected once for each
//! version of a chain, not for each pair.

use crate::ext_tsp::ExtTspParameters;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

pub(crate) struct Node {
    pub size: u64,
    pub count: u64,
}

/// A jump between two different nodes.
pub(crate) struct Jump {
    pub from: u32,
    pub to: u32,
    /// Bytes from the start of `from` to where the jump leaves it.
    pub from_end: u64,
    /// Bytes from the start of `to` to where it is reached.
    pub to_start: u64,
    pub count: u64,
    pub kind: JumpKind,
}

/// What a jump is worth, by its distance.
#[derive(Clone, Copy)]
pub(crate) enum JumpKind {
    /// Control that goes from one node to the other.
    Control { may_fall: bool, conditional: bool },
    /// No jump at all: two nodes of so many bytes together that miss one after the other. They are worth `worth` for each count when they
    /// touch, in either order, and less with each byte between them, down to nothing at `reach` bytes.
    Together { bytes: u64, worth: f64, reach: u64 },
}

impl Jump {
    /// What it adds to the score when it goes over `distance` bytes.
    pub fn score(&self, distance: i64, parameters: &ExtTspParameters) -> f64 {
        let count = self.count as f64;
        match self.kind {
            JumpKind::Control { may_fall, conditional } => parameters.jump_score(distance, count, may_fall, conditional),
            JumpKind::Together { bytes, worth, reach } => {
                // A distance backward reaches from the end of the later node to the start of the earlier one.
                let back = distance.unsigned_abs().saturating_sub(bytes);
                let between = if distance >= 0 { distance.unsigned_abs() } else { back };
                worth * count * (1.0 - between as f64 / reach as f64).max(0.0)
            }
        }
    }

    fn may_fall(&self) -> bool {
        matches!(self.kind, JumpKind::Control { may_fall: true, .. })
    }
}

/// How two chains X and Y are joined; X is cut before the node at the given position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merge {
    XY,
    X1YX2(usize),
    YX2X1(usize),
    X2X1Y(usize),
}

struct Chain {
    nodes: Vec<u32>,
    /// Jumps within the chain.
    jumps: Vec<u32>,
    /// Jumps to and from each other chain.
    neighbours: BTreeMap<u32, Vec<u32>>,
    /// What each cut does to the jumps within, by the position behind it; empty for a chain that is not cut everywhere.
    cuts: Vec<Cut>,
    size: u64,
    count: f64,
    /// Raised whenever the chain changes; `None` when it has gone into another.
    version: Option<u32>,
}

impl Chain {
    fn density(&self) -> f64 {
        self.count / self.size.max(1) as f64
    }
}

/// A place between two nodes of a chain.
#[derive(Clone, Default)]
struct Cut {
    /// The jumps that cross it, with their distances now.
    crossing: Vec<(u32, i64)>,
    /// What they add to the score now.
    kept: f64,
    /// What they would add if the two sides changed places.
    swapped: f64,
}

struct Gain {
    gain: f64,
    x: u32,
    y: u32,
    versions: (u32, u32),
    /// The first nodes of x and y.
    fronts: (u32, u32),
    merge: Merge,
}

/// What differs by less is equal: sums of the same terms in another order.
const LEAST_GAIN: f64 = 1e-8;

impl Ord for Gain {
    /// The largest gain first; among equals the pair whose first nodes are the lowest.
    fn cmp(&self, other: &Self) -> Ordering {
        self.gain.total_cmp(&other.gain).then(other.fronts.cmp(&self.fronts))
    }
}

impl PartialOrd for Gain {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Gain {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Gain {}

/// The order of `nodes` that greedy merging finds. When there is an `entry`, it comes first.
pub(crate) fn arrange(nodes: &[Node], jumps: &[Jump], entry: Option<u32>, parameters: &ExtTspParameters) -> Vec<u32> {
    let mut chains = Chains::new(nodes, jumps, entry, parameters);
    chains.join_forced();
    chains.join_best();
    chains.join_ends();
    chains.concatenate()
}

struct Chains<'a> {
    nodes: &'a [Node],
    jumps: &'a [Jump],
    entry: Option<u32>,
    parameters: &'a ExtTspParameters,
    chains: Vec<Chain>,
    chain_of: Vec<u32>,
    /// Position of each node in its chain, and bytes before it.
    positions: Vec<usize>,
    offsets: Vec<u64>,
    /// The node that each one must precede: its only successor, whose only predecessor it is.
    forced: Vec<Option<u32>>,
    heap: BinaryHeap<Gain>,
}

impl<'a> Chains<'a> {
    fn new(nodes: &'a [Node], jumps: &'a [Jump], entry: Option<u32>, parameters: &'a ExtTspParameters) -> Self {
        let chain = |(number, node): (usize, &Node)| Chain {
            nodes: vec![number as u32],
            jumps: Vec::new(),
            neighbours: BTreeMap::new(),
            cuts: Vec::new(),
            size: node.size,
            count: node.count as f64,
            version: Some(0),
        };
        let mut chains: Vec<Chain> = nodes.iter().enumerate().map(chain).collect();
        for (number, jump) in jumps.iter().enumerate() {
            chains[jump.from as usize]
                .neighbours
                .entry(jump.to)
                .or_default()
                .push(number as u32);
            chains[jump.to as usize]
                .neighbours
                .entry(jump.from)
                .or_default()
                .push(number as u32);
        }
        Chains {
            nodes,
            jumps,
            entry,
            parameters,
            chains,
            chain_of: (0..nodes.len() as u32).collect(),
            positions: vec![0; nodes.len()],
            offsets: vec![0; nodes.len()],
            forced: forced(nodes, jumps, entry),
            heap: BinaryHeap::new(),
        }
    }

    fn join_forced(&mut self) {
        for node in 0..self.nodes.len() {
            if let Some(successor) = self.forced[node] {
                self.join(self.chain_of[node], self.chain_of[successor as usize], Merge::XY);
            }
        }
    }

    fn join_best(&mut self) {
        for x in 0..self.chains.len() as u32 {
            let neighbours: Vec<u32> = self.chains[x as usize].neighbours.range(x..).map(|(&y, _)| y).collect();
            neighbours.into_iter().for_each(|y| self.consider_both(x, y));
        }
        while let Some(best) = self.heap.pop() {
            let versions = (self.chains[best.x as usize].version, self.chains[best.y as usize].version);
            if versions != (Some(best.versions.0), Some(best.versions.1)) {
                continue;
            }
            self.join(best.x, best.y, best.merge);
            let neighbours: Vec<u32> = self.chains[best.x as usize].neighbours.keys().copied().collect();
            neighbours.into_iter().for_each(|y| self.consider_both(best.x, y));
        }
    }

    /// Joins what greedy merging left apart because the densities differ too much, but where one chain's last node goes on at the first
    /// of another: that costs nothing and saves a jump (LLVM's pass 3). Of several ways on the last named is taken.
    fn join_ends(&mut self) {
        let mut ways_on: Vec<Vec<u32>> = vec![Vec::new(); self.nodes.len()];
        for jump in self.jumps.iter().filter(|jump| self.may_fall(jump) && Some(jump.to) != self.entry) {
            ways_on[jump.from as usize].push(jump.to);
        }
        for (from, ways_on) in ways_on.into_iter().enumerate() {
            for to in ways_on.into_iter().rev() {
                let (x, y) = (self.chain_of[from], self.chain_of[to as usize]);
                let last = self.chains[x as usize].nodes.last() == Some(&(from as u32));
                if x != y && last && self.chains[y as usize].nodes.first() == Some(&to) {
                    self.join(x, y, Merge::XY);
                }
            }
        }
    }

    /// Whether a jump becomes a fall-through when its target is placed behind its source.
    fn may_fall(&self, jump: &Jump) -> bool {
        jump.may_fall() && jump.from_end == self.nodes[jump.from as usize].size && jump.to_start == 0
    }

    /// The entry's chain, then the others by density; among equals in the order of their first node.
    fn concatenate(self) -> Vec<u32> {
        let entry = self.entry.map(|node| self.chain_of[node as usize]);
        let mut order: Vec<u32> = (0..self.chains.len() as u32)
            .filter(|&c| self.chains[c as usize].version.is_some())
            .collect();
        let density = |c: u32| self.chains[c as usize].density();
        order.sort_by(|&a, &b| {
            let entry_first = (Some(b) == entry).cmp(&(Some(a) == entry));
            let first = |c: u32| self.chains[c as usize].nodes[0];
            entry_first.then(density(b).total_cmp(&density(a))).then(first(a).cmp(&first(b)))
        });
        order
            .into_iter()
            .flat_map(|c| self.chains[c as usize].nodes.iter().copied())
            .collect()
    }

    fn consider_both(&mut self, x: u32, y: u32) {
        self.consider(x, y);
        self.consider(y, x);
    }

    /// Puts the best way to join x and y (x may be cut, y may not) into the heap, if it gains anything.
    fn consider(&mut self, x: u32, y: u32) {
        let (chain_x, chain_y) = (&self.chains[x as usize], &self.chains[y as usize]);
        let (Some(version_x), Some(version_y)) = (chain_x.version, chain_y.version) else {
            return;
        };
        if chain_x.nodes.len() + chain_y.nodes.len() > self.parameters.max_chain {
            return;
        }
        let (low, high) = (chain_x.density().min(chain_y.density()), chain_x.density().max(chain_y.density()));
        if high > low * self.parameters.max_density_ratio {
            return;
        }
        let mut best: Option<(f64, Merge)> = None;
        let mut attempt = |merge: Merge, within: f64| {
            if self.entry_stays(chain_x.nodes[0], chain_y.nodes[0], merge) {
                let gain = self.between(x, y, merge) + within;
                if gain > best.map_or(0.0, |(gain, _)| gain) + LEAST_GAIN {
                    best = Some((gain, merge));
                }
            }
        };
        attempt(Merge::XY, 0.0);
        for at in self.cut_positions(x, y) {
            let cut = self.cut(chain_x, at);
            attempt(Merge::X1YX2(at), self.apart(&cut, chain_y.size) - cut.kept);
            attempt(Merge::YX2X1(at), cut.swapped - cut.kept);
            attempt(Merge::X2X1Y(at), cut.swapped - cut.kept);
        }
        if let Some((gain, merge)) = best {
            self.heap.push(Gain {
                gain,
                x,
                y,
                versions: (version_x, version_y),
                fronts: (chain_x.nodes[0], chain_y.nodes[0]),
                merge,
            });
        }
    }

    /// Where x is cut for y: everywhere in a short chain; in a long one only where a jump to the front or from the back of y would become
    /// a fall-through.
    fn cut_positions(&self, x: u32, y: u32) -> Vec<usize> {
        let chain_x = &self.chains[x as usize];
        let mut cuts = match chain_x.cuts.is_empty() {
            false => (1..chain_x.nodes.len()).collect(),
            true => self.cuts_at_jumps(chain_x, y),
        };
        cuts.retain(|&cut| self.forced[chain_x.nodes[cut - 1] as usize] != Some(chain_x.nodes[cut]));
        cuts
    }

    /// Whether the entry, if one of two chains begins with it, also begins what they become.
    fn entry_stays(&self, front_x: u32, front_y: u32, merge: Merge) -> bool {
        let Some(entry) = self.entry else { return true };
        match merge {
            Merge::XY | Merge::X1YX2(_) => entry != front_y,
            Merge::YX2X1(_) => entry != front_x,
            Merge::X2X1Y(_) => entry != front_x && entry != front_y,
        }
    }

    fn cuts_at_jumps(&self, chain_x: &Chain, y: u32) -> Vec<usize> {
        let nodes_y = &self.chains[y as usize].nodes;
        let (first, last) = (nodes_y[0], nodes_y[nodes_y.len() - 1]);
        let between = chain_x.neighbours.get(&y).into_iter().flatten();
        let mut cuts: Vec<usize> = between
            .filter_map(|&jump| {
                let jump = &self.jumps[jump as usize];
                let behind_source = (jump.to == first).then(|| self.positions[jump.from as usize] + 1);
                let before_target = (jump.from == last).then(|| self.positions[jump.to as usize]);
                behind_source.or(before_target)
            })
            .filter(|&cut| cut > 0 && cut < chain_x.nodes.len())
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    /// What the jumps between x and y add to the score when the two are joined.
    fn between(&self, x: u32, y: u32, merge: Merge) -> f64 {
        let (chain_x, chain_y) = (&self.chains[x as usize], &self.chains[y as usize]);
        let (size_x, size_y) = (chain_x.size as i64, chain_y.size as i64);
        let bytes_before = |cut: usize| self.offsets[chain_x.nodes[cut] as usize] as i64;
        // Bytes added to the offsets of the nodes in X1, X2 and Y.
        let (cut, to_x1, to_x2, to_y) = match merge {
            Merge::XY => (usize::MAX, 0, 0, size_x),
            Merge::X1YX2(cut) => (cut, 0, size_y, bytes_before(cut)),
            Merge::YX2X1(cut) => (cut, size_y + size_x - bytes_before(cut), size_y - bytes_before(cut), 0),
            Merge::X2X1Y(cut) => (cut, size_x - bytes_before(cut), -bytes_before(cut), size_x),
        };
        let place = |node: u32| {
            let shift = match (self.chain_of[node as usize] == y, self.positions[node as usize] < cut) {
                (true, _) => to_y,
                (false, true) => to_x1,
                (false, false) => to_x2,
            };
            self.offsets[node as usize] as i64 + shift
        };
        let jumps = chain_x.neighbours.get(&y).into_iter().flatten();
        jumps.map(|&jump| self.jump_score(jump, self.distance(jump, place))).sum()
    }

    /// What the jumps across a cut add to the score when `size` bytes come between.
    fn apart(&self, cut: &Cut, size: u64) -> f64 {
        let apart = |distance: i64| {
            if distance >= 0 {
                distance + size as i64
            } else {
                distance - size as i64
            }
        };
        cut.crossing
            .iter()
            .map(|&(jump, distance)| self.jump_score(jump, apart(distance)))
            .sum()
    }

    /// One cut of a chain.
    fn cut<'c>(&self, chain: &'c Chain, at: usize) -> Cow<'c, Cut> {
        if let Some(cut) = chain.cuts.get(at) {
            return Cow::Borrowed(cut);
        }
        let mut cut = Cut::default();
        for &jump in chain.jumps.iter().filter(|&&jump| self.crossed(jump).contains(&at)) {
            self.cross(&mut cut, jump, chain.size);
        }
        Cow::Owned(cut)
    }

    /// All cuts of a chain.
    fn cuts(&self, chain: &Chain) -> Vec<Cut> {
        let mut cuts = vec![Cut::default(); chain.nodes.len()];
        for &jump in &chain.jumps {
            self.crossed(jump).for_each(|at| self.cross(&mut cuts[at], jump, chain.size));
        }
        cuts
    }

    /// The cuts between the two ends of a jump within a chain.
    fn crossed(&self, jump: u32) -> std::ops::RangeInclusive<usize> {
        let ends = &self.jumps[jump as usize];
        let (from, to) = (self.positions[ends.from as usize], self.positions[ends.to as usize]);
        from.min(to) + 1..=from.max(to)
    }

    fn cross(&self, cut: &mut Cut, jump: u32, size: u64) {
        let distance = self.distance(jump, |node| self.offsets[node as usize] as i64);
        let ends = &self.jumps[jump as usize];
        let forward = self.positions[ends.from as usize] < self.positions[ends.to as usize];
        let swapped = if forward { distance - size as i64 } else { distance + size as i64 };
        cut.crossing.push((jump, distance));
        cut.kept += self.jump_score(jump, distance);
        cut.swapped += self.jump_score(jump, swapped);
    }

    /// Bytes from where a jump leaves to where it goes, when each node starts at `place`.
    fn distance(&self, jump: u32, place: impl Fn(u32) -> i64) -> i64 {
        let jump = &self.jumps[jump as usize];
        place(jump.to) + jump.to_start as i64 - place(jump.from) - jump.from_end as i64
    }

    fn jump_score(&self, jump: u32, distance: i64) -> f64 {
        self.jumps[jump as usize].score(distance, self.parameters)
    }

    /// Joins y into x, which becomes a new version.
    fn join(&mut self, x: u32, y: u32, merge: Merge) {
        let nodes_y = std::mem::take(&mut self.chains[y as usize].nodes);
        let nodes_x = std::mem::take(&mut self.chains[x as usize].nodes);
        let cut = |cut: usize| nodes_x.split_at(cut);
        let segments = match merge {
            Merge::XY => [&nodes_x[..], &nodes_y, &[]],
            Merge::X1YX2(at) => [cut(at).0, &nodes_y, cut(at).1],
            Merge::YX2X1(at) => [&nodes_y, cut(at).1, cut(at).0],
            Merge::X2X1Y(at) => [cut(at).1, cut(at).0, &nodes_y],
        };
        let nodes = segments.concat();
        let mut offset = 0;
        for (position, &node) in nodes.iter().enumerate() {
            self.chain_of[node as usize] = x;
            self.positions[node as usize] = position;
            self.offsets[node as usize] = offset;
            offset += self.nodes[node as usize].size;
        }
        self.join_jumps(x, y);
        let gone = &mut self.chains[y as usize];
        let (size, count) = (gone.size, gone.count);
        gone.version = None;
        gone.cuts = Vec::new();
        let chain = &mut self.chains[x as usize];
        chain.nodes = nodes;
        chain.size += size;
        chain.count += count;
        chain.version = chain.version.map(|v| v + 1);
        let chain = &self.chains[x as usize];
        let everywhere = chain.nodes.len() <= self.parameters.split_threshold;
        self.chains[x as usize].cuts = if everywhere { self.cuts(chain) } else { Vec::new() };
    }

    /// Hands the jumps of y to x: those between the two are now within x, the others lead from x to y's neighbours.
    fn join_jumps(&mut self, x: u32, y: u32) {
        let mut neighbours = std::mem::take(&mut self.chains[y as usize].neighbours);
        let mut within = std::mem::take(&mut self.chains[y as usize].jumps);
        within.extend(neighbours.remove(&x).unwrap_or_default());
        self.chains[x as usize].jumps.extend(within);
        self.chains[x as usize].neighbours.remove(&y);
        for (other, jumps) in neighbours {
            let back = &mut self.chains[other as usize].neighbours;
            let moved = back.remove(&y).unwrap_or_default();
            back.entry(x).or_default().extend(moved);
            self.chains[x as usize].neighbours.entry(other).or_default().extend(jumps);
        }
    }
}

/// Pairs of nodes that every best order keeps together: the first has no other successor, the second no other predecessor (section 4,
/// "forced" pairs). In a cycle of such pairs the one that leads back to the smallest node is given up.
fn forced(nodes: &[Node], jumps: &[Jump], entry: Option<u32>) -> Vec<Option<u32>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Only {
        None,
        One(u32),
        Several,
    }
    let mut successor = vec![Only::None; nodes.len()];
    let mut predecessor = vec![Only::None; nodes.len()];
    let mut falls = vec![false; nodes.len()];
    let add = |only: &mut Only, node: u32| {
        *only = if *only == Only::None || *only == Only::One(node) {
            Only::One(node)
        } else {
            Only::Several
        };
    };
    let control = |jump: &&Jump| matches!(jump.kind, JumpKind::Control { .. });
    for jump in jumps.iter().filter(control) {
        add(&mut successor[jump.from as usize], jump.to);
        add(&mut predecessor[jump.to as usize], jump.from);
        let adjoining = jump.from_end == nodes[jump.from as usize].size && jump.to_start == 0;
        falls[jump.from as usize] |= jump.may_fall() && adjoining;
    }
    let mut forced: Vec<Option<u32>> = (0..nodes.len())
        .map(|node| match successor[node] {
            Only::One(to) if predecessor[to as usize] == Only::One(node as u32) && falls[node] && Some(to) != entry => Some(to),
            _ => None,
        })
        .collect();
    break_cycles(&mut forced);
    forced
}

/// Gives up one pair of every cycle. A node is the second of one pair at most, so what is not reached from the node that begins a row of
/// pairs lies on a cycle.
fn break_cycles(forced: &mut [Option<u32>]) {
    let mut follows = vec![false; forced.len()];
    forced.iter().flatten().for_each(|&to| follows[to as usize] = true);
    let mut reached = vec![false; forced.len()];
    let (beginnings, others): (Vec<usize>, Vec<usize>) = (0..forced.len()).partition(|&node| !follows[node]);
    for start in beginnings.into_iter().chain(others) {
        let mut node = start;
        while !std::mem::replace(&mut reached[node], true) {
            match forced[node] {
                Some(to) if to as usize == start => forced[node] = None,
                Some(to) => node = to as usize,
                None => {}
            }
        }
    }
}
