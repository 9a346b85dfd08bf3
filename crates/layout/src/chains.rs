//! The engine of ext-TSP: joins nodes into chains, always the pair of chains that raises the score
//! most.
//!
//! Takes nodes with sizes and counts, and the jumps between them; gives a permutation of the nodes.
//! Knows nothing of blocks or functions.
//!
//! Newell and Pupyrev, "Improved basic block reordering" (IEEE Transactions on Computers 2020),
//! section 4. Two chains X and Y join as X Y, or, X being cut into X1 and X2, as X1 Y X2, Y X2 X1
//! or X2 X1 Y. The gain of a pair changes only when one of the two does, so gains wait in a heap.
//! Before its gain, a pair waits there with a bound of it, which seldom changes; the gain is
//! computed when no pair has a higher bound, which most pairs never come to. Merging shifts whole
//! segments: of the jumps within X only those that cross the cut change their distance, by the same
//! amount wherever the cut is. What that does to the score is summed once for each version of a
//! chain, not for each pair. The jumps between X and Y add no more than when all of them are as
//! short as can be: where that does not make up for the cut, they are not looked at.

use crate::ext_tsp_parameters::ExtTspParameters;
use crate::forced::forced;
use crate::jumps::{Jump, Node};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

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
    /// The pair that it is with each other chain that jumps lead to or come from.
    neighbours: BTreeMap<u32, u32>,
    /// What each cut does to the jumps within, by the position behind it; empty for a chain that is
    /// not cut everywhere.
    cuts: Vec<Cut>,
    /// The first and the last cut that each of the jumps within crosses; empty like `cuts`.
    spans: Vec<(u32, u32)>,
    /// The most that a cut raises the score of the jumps within; of a chain that is not cut
    /// everywhere it is taken to be 0.
    slack: f64,
    /// The pairs whose gains were computed since they or it changed.
    computed: Vec<u32>,
    size: u64,
    count: f64,
}

/// Two chains, and the jumps between them; none when they were joined, or became the same pair as
/// others.
#[derive(Default)]
struct Pair {
    jumps: Vec<u32>,
    /// The most that its jumps can add to the score.
    most: f64,
    /// Raised when what waits in the heap for it is no longer true.
    version: u32,
}

/// A jump between two chains x and y, and where its ends lie in them.
struct Across<'a> {
    jump: &'a Jump,
    /// Whether it goes from x to y, and not from y to x.
    leaves_x: bool,
    /// Of the node in x.
    position_x: usize,
    /// Bytes from the start of x, and of y, to the end that lies there.
    place_x: i64,
    place_y: i64,
}

impl Chain {
    fn density(&self) -> f64 {
        self.count / self.size.max(1) as f64
    }
}

/// What the jumps across a place between two nodes of a chain add to the score.
#[derive(Clone, Copy, Default)]
struct Cut {
    /// Now.
    kept: f64,
    /// If the two sides changed places.
    swapped: f64,
    /// If there were a byte between the two sides. With more bytes it is never more.
    parted: f64,
}

impl Cut {
    fn add(&mut self, jump: &Cut) {
        self.kept += jump.kept;
        self.swapped += jump.swapped;
        self.parted += jump.parted;
    }
}

/// What a pair waits in the heap with.
struct Gain {
    gain: f64,
    pair: u32,
    version: u32,
    /// `None` when the gain is a bound.
    join: Option<Join>,
}

/// How a pair is joined.
struct Join {
    x: u32,
    y: u32,
    /// The first nodes of x and y.
    fronts: (u32, u32),
    merge: Merge,
}

/// What differs by less is equal: sums of the same terms in another order.
const LEAST_GAIN: f64 = 1e-8;

impl Ord for Gain {
    /// The largest gain first; among equals bounds, for the gain may be as high, then the pair
    /// whose first nodes are the lowest.
    fn cmp(&self, other: &Self) -> Ordering {
        let fronts = |gain: &Gain| gain.join.as_ref().map(|join| join.fronts);
        self.gain.total_cmp(&other.gain).then(fronts(other).cmp(&fronts(self)))
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
pub(crate) fn arrange(
    nodes: &[Node],
    jumps: &[Jump],
    entry: Option<u32>,
    parameters: &ExtTspParameters,
) -> Vec<u32> {
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
    pairs: Vec<Pair>,
    chain_of: Vec<u32>,
    /// Position of each node in its chain, and bytes before it.
    positions: Vec<usize>,
    offsets: Vec<u64>,
    /// The node that each one must precede: its only successor, whose only predecessor it is.
    forced: Vec<Option<u32>>,
    heap: BinaryHeap<Gain>,
}

impl<'a> Chains<'a> {
    fn new(
        nodes: &'a [Node],
        jumps: &'a [Jump],
        entry: Option<u32>,
        parameters: &'a ExtTspParameters,
    ) -> Self {
        let chain = |(number, node): (usize, &Node)| Chain {
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
        let mut chains: Vec<Chain> = nodes.iter().enumerate().map(chain).collect();
        let mut pairs: Vec<Pair> = Vec::new();
        for (number, jump) in jumps.iter().enumerate() {
            let pair =
                *chains[jump.from as usize].neighbours.entry(jump.to).or_insert(pairs.len() as u32);
            chains[jump.to as usize].neighbours.insert(jump.from, pair);
            if pair as usize == pairs.len() {
                pairs.push(Pair::default());
            }
            let pair = &mut pairs[pair as usize];
            pair.jumps.push(number as u32);
            pair.most += jump.most(parameters);
        }
        Chains {
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
        (0..self.pairs.len() as u32).for_each(|pair| self.wait(pair));
        while let Some((_, join)) = self.best_join() {
            let chain = self.join(join.x, join.y, join.merge);
            self.wait_again(chain);
        }
    }

    /// Of all that may be joined what gains most, and how much.
    fn best_join(&mut self) -> Option<(f64, Join)> {
        while let Some(best) = self.heap.pop() {
            let pair = &self.pairs[best.pair as usize];
            if pair.jumps.is_empty() || pair.version != best.version {
                continue;
            }
            match best.join {
                None => self.compute(best.pair),
                Some(join) => return Some((best.gain, join)),
            }
        }
        None
    }

    /// Puts a pair that has jumps into the heap, with a bound of its gain.
    fn wait(&mut self, pair: u32) {
        if self.pairs[pair as usize].jumps.is_empty() {
            return;
        }
        let (x, y) = self.chains_of(pair);
        let slack = self.chains[x as usize].slack.max(self.chains[y as usize].slack);
        let pair_of = &mut self.pairs[pair as usize];
        pair_of.version += 1;
        self.heap.push(Gain {
            gain: pair_of.most + slack,
            pair,
            version: pair_of.version,
            join: None,
        });
    }

    /// Lets those pairs of a chain wait whose gains, or bounds, are others since it changed; none
    /// of a chain that may not grow.
    fn wait_again(&mut self, chain: u32) {
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
        pairs.into_iter().for_each(|pair| self.wait(pair));
    }

    /// The two chains of a pair that has jumps.
    fn chains_of(&self, pair: u32) -> (u32, u32) {
        let jump = &self.jumps[self.pairs[pair as usize].jumps[0] as usize];
        (self.chain_of[jump.from as usize], self.chain_of[jump.to as usize])
    }

    /// Joins what greedy merging left apart because the densities differ too much, but where one
    /// chain's last node goes on at the first of another: that costs nothing and saves a jump
    /// (LLVM's pass 3). Of several ways on the last named is taken.
    fn join_ends(&mut self) {
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
                    self.join(x, y, Merge::XY);
                }
            }
        }
    }

    /// Whether a jump becomes a fall-through when its target is placed behind its source.
    fn may_fall(&self, jump: &Jump) -> bool {
        jump.may_fall()
            && jump.from_end == self.nodes[jump.from as usize].size
            && jump.to_start == 0
    }

    /// The entry's chain, then the others by density; among equals in the order of their first
    /// node.
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

    /// Puts a pair into the heap with the better of the two ways to join it (either may be cut), if
    /// that gains anything.
    fn compute(&mut self, pair: u32) {
        let (x, y) = self.chains_of(pair);
        let (chain_x, chain_y) = (&self.chains[x as usize], &self.chains[y as usize]);
        if chain_x.nodes.len() + chain_y.nodes.len() > self.parameters.max_chain {
            return;
        }
        self.chains[x as usize].computed.push(pair);
        self.chains[y as usize].computed.push(pair);
        let (density_x, density_y) =
            (self.chains[x as usize].density(), self.chains[y as usize].density());
        if density_x.max(density_y) > density_x.min(density_y) * self.parameters.max_density_ratio {
            return;
        }
        let gains = [(x, y), (y, x)].map(|(x, y)| {
            let (gain, merge) = self.best_merge(x, y, &self.pairs[pair as usize])?;
            let fronts = (self.chains[x as usize].nodes[0], self.chains[y as usize].nodes[0]);
            Some(Gain {
                gain,
                pair,
                version: self.pairs[pair as usize].version,
                join: Some(Join { x, y, fronts, merge }),
            })
        });
        self.heap.extend(gains.into_iter().flatten().max());
    }

    /// The best way to join x and y, and what it gains: more than nothing.
    fn best_merge(&self, x: u32, y: u32, pair: &Pair) -> Option<(f64, Merge)> {
        let (chain_x, chain_y) = (&self.chains[x as usize], &self.chains[y as usize]);
        let across = self.across(x, pair);
        let mut best: Option<(f64, Merge)> = None;
        let better = |gain: f64, best: Option<(f64, Merge)>| {
            gain > best.map_or(0.0, |(gain, _)| gain) + LEAST_GAIN
        };
        let mut attempt = |merge: Merge, most_within: f64, within: &dyn Fn() -> f64| {
            if better(pair.most + most_within, best)
                && self.entry_stays(chain_x.nodes[0], chain_y.nodes[0], merge)
            {
                let between = self.between(chain_x, chain_y, merge, &across);
                if better(between + most_within, best) {
                    let gain = between + within();
                    if better(gain, best) {
                        best = Some((gain, merge));
                    }
                }
            }
        };
        attempt(Merge::XY, 0.0, &|| 0.0);
        let attempt_cut = |at: usize| {
            let cut = self.cut(chain_x, at);
            if self.forced[chain_x.nodes[at - 1] as usize] != Some(chain_x.nodes[at]) {
                let swapped = cut.swapped - cut.kept;
                attempt(Merge::X1YX2(at), cut.parted - cut.kept, &|| {
                    self.apart(chain_x, at, chain_y.size) - cut.kept
                });
                attempt(Merge::YX2X1(at), swapped, &|| swapped);
                attempt(Merge::X2X1Y(at), swapped, &|| swapped);
            }
        };
        // A short chain is cut everywhere; a long one only where a jump to the front or from the
        // back of y would become a fall-through.
        match self.cut_everywhere(chain_x) {
            true => (1..chain_x.nodes.len()).for_each(attempt_cut),
            false => self.cuts_at_jumps(chain_x, chain_y, pair).into_iter().for_each(attempt_cut),
        }
        best
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

    fn cut_everywhere(&self, chain: &Chain) -> bool {
        chain.nodes.len() <= self.parameters.split_threshold
    }

    fn cuts_at_jumps(&self, chain_x: &Chain, chain_y: &Chain, pair: &Pair) -> Vec<usize> {
        let (first, last) = (chain_y.nodes[0], chain_y.nodes[chain_y.nodes.len() - 1]);
        let between = pair.jumps.iter();
        let mut cuts: Vec<usize> = between
            .filter_map(|&jump| {
                let jump = &self.jumps[jump as usize];
                let behind_source =
                    (jump.to == first).then(|| self.positions[jump.from as usize] + 1);
                let before_target = (jump.from == last).then(|| self.positions[jump.to as usize]);
                behind_source.or(before_target)
            })
            .filter(|&cut| cut > 0 && cut < chain_x.nodes.len())
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    /// The jumps between x and y.
    fn across(&self, x: u32, pair: &Pair) -> Vec<Across<'a>> {
        let jumps = pair.jumps.iter().map(|&jump| {
            let jump = &self.jumps[jump as usize];
            let (from, to) = (jump.from as usize, jump.to as usize);
            let leaves_x = self.chain_of[from] == x;
            let from_place = (self.offsets[from] + jump.from_end) as i64;
            let to_place = (self.offsets[to] + jump.to_start) as i64;
            let (node_x, place_x, place_y) = match leaves_x {
                true => (from, from_place, to_place),
                false => (to, to_place, from_place),
            };
            Across { jump, leaves_x, position_x: self.positions[node_x], place_x, place_y }
        });
        jumps.collect()
    }

    /// What the jumps between x and y add to the score when the two are joined.
    fn between(&self, chain_x: &Chain, chain_y: &Chain, merge: Merge, across: &[Across]) -> f64 {
        let (size_x, size_y) = (chain_x.size as i64, chain_y.size as i64);
        let bytes_before = |cut: usize| self.offsets[chain_x.nodes[cut] as usize] as i64;
        // Bytes added to the offsets of the nodes in X1, X2 and Y.
        let (cut, to_x1, to_x2, to_y) = match merge {
            Merge::XY => (usize::MAX, 0, 0, size_x),
            Merge::X1YX2(cut) => (cut, 0, size_y, bytes_before(cut)),
            Merge::YX2X1(cut) => {
                (cut, size_y + size_x - bytes_before(cut), size_y - bytes_before(cut), 0)
            }
            Merge::X2X1Y(cut) => (cut, size_x - bytes_before(cut), -bytes_before(cut), size_x),
        };
        let scores = across.iter().map(|across| {
            let to_x = if across.position_x < cut { to_x1 } else { to_x2 };
            let from_x_to_y = across.place_y + to_y - across.place_x - to_x;
            let distance = if across.leaves_x { from_x_to_y } else { -from_x_to_y };
            across.jump.score(distance, self.parameters)
        });
        scores.sum()
    }

    /// What the jumps across a cut add to the score when `size` bytes come between.
    fn apart(&self, chain: &Chain, at: usize, size: u64) -> f64 {
        let crosses = |number: usize, jump: u32| match chain.spans.get(number) {
            Some(&(first, last)) => first as usize <= at && at <= last as usize,
            None => self.crossed(jump).contains(&at),
        };
        let crossing =
            chain.jumps.iter().enumerate().filter(|&(number, &jump)| crosses(number, jump));
        crossing
            .map(|(_, &jump)| self.jump_score(jump, parted(self.distance_now(jump), size)))
            .sum()
    }

    /// One cut of a chain.
    fn cut(&self, chain: &Chain, at: usize) -> Cut {
        if let Some(&cut) = chain.cuts.get(at) {
            return cut;
        }
        let mut cut = Cut::default();
        for &jump in chain.jumps.iter().filter(|&&jump| self.crossed(jump).contains(&at)) {
            cut.add(&self.cut_of(jump, chain.size));
        }
        cut
    }

    /// All cuts of a chain, by the position behind each, and which of them each jump crosses.
    fn cuts(&self, chain: &Chain) -> (Vec<Cut>, Vec<(u32, u32)>) {
        let mut cuts = vec![Cut::default(); chain.nodes.len()];
        let spans = chain.jumps.iter().map(|&jump| {
            let (crossed, alone) = (self.crossed(jump), self.cut_of(jump, chain.size));
            let span = (*crossed.start() as u32, *crossed.end() as u32);
            cuts[crossed].iter_mut().for_each(|cut| cut.add(&alone));
            span
        });
        let spans = spans.collect();
        (cuts, spans)
    }

    /// The cuts between the two ends of a jump within a chain.
    fn crossed(&self, jump: u32) -> std::ops::RangeInclusive<usize> {
        let ends = &self.jumps[jump as usize];
        let (from, to) = (self.positions[ends.from as usize], self.positions[ends.to as usize]);
        from.min(to) + 1..=from.max(to)
    }

    /// A cut that one jump alone crosses, in a chain of `size` bytes.
    fn cut_of(&self, jump: u32, size: u64) -> Cut {
        let distance = self.distance_now(jump);
        let ends = &self.jumps[jump as usize];
        let forward = self.positions[ends.from as usize] < self.positions[ends.to as usize];
        let swapped = if forward { distance - size as i64 } else { distance + size as i64 };
        Cut {
            kept: self.jump_score(jump, distance),
            swapped: self.jump_score(jump, swapped),
            parted: self.jump_score(jump, parted(distance, 1)),
        }
    }

    fn distance_now(&self, jump: u32) -> i64 {
        self.distance(jump, |node| self.offsets[node as usize] as i64)
    }

    /// Bytes from where a jump leaves to where it goes, when each node starts at `place`.
    fn distance(&self, jump: u32, place: impl Fn(u32) -> i64) -> i64 {
        let jump = &self.jumps[jump as usize];
        place(jump.to) + jump.to_start as i64 - place(jump.from) - jump.from_end as i64
    }

    fn jump_score(&self, jump: u32, distance: i64) -> f64 {
        self.jumps[jump as usize].score(distance, self.parameters)
    }

    /// Joins two chains to one, which has the number of that with more neighbours, so that a chain
    /// with many is never gone through again.
    fn join(&mut self, x: u32, y: u32, merge: Merge) -> u32 {
        let more = |a: u32, b: u32| {
            self.chains[a as usize].neighbours.len() >= self.chains[b as usize].neighbours.len()
        };
        let (kept, gone) = if more(x, y) { (x, y) } else { (y, x) };
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
            self.chain_of[node as usize] = kept;
            self.positions[node as usize] = position;
            self.offsets[node as usize] = offset;
            offset += self.nodes[node as usize].size;
        }
        let jumps = self.join_jumps(x, y);
        let merged = self.join_neighbours(kept, gone, kept == x);
        let computed = std::mem::take(&mut self.chains[gone as usize].computed);
        let count = self.chains[gone as usize].count;
        let chain = &mut self.chains[kept as usize];
        chain.nodes = nodes;
        chain.jumps = jumps;
        chain.size = offset;
        chain.count += count;
        chain.computed.extend(computed);
        chain.computed.extend(merged);
        self.measure_cuts(kept);
        kept
    }

    fn measure_cuts(&mut self, chain: u32) {
        let measured = &self.chains[chain as usize];
        let everywhere = self.cut_everywhere(measured);
        let (cuts, spans) = if everywhere { self.cuts(measured) } else { Default::default() };
        let raised = |cut: &Cut| cut.swapped.max(cut.parted) - cut.kept;
        let slack = cuts.iter().map(raised).fold(0.0, f64::max);
        let measured = &mut self.chains[chain as usize];
        (measured.cuts, measured.spans, measured.slack) = (cuts, spans, slack);
    }

    /// The jumps within what x and y become.
    fn join_jumps(&mut self, x: u32, y: u32) -> Vec<u32> {
        let pair = self.chains[x as usize].neighbours.get(&y);
        let between = pair.map(|&pair| std::mem::take(&mut self.pairs[pair as usize].jumps));
        let gone = std::mem::take(&mut self.chains[y as usize].jumps);
        let mut jumps = std::mem::take(&mut self.chains[x as usize].jumps);
        jumps.extend(gone);
        jumps.extend(between.into_iter().flatten());
        jumps
    }

    /// Makes the neighbours of a chain those of another; gives the pairs that have become one with
    /// another. `behind`: whether the jumps that come are named behind those that are there.
    fn join_neighbours(&mut self, kept: u32, gone: u32, behind: bool) -> Vec<u32> {
        let mut merged = Vec::new();
        self.chains[kept as usize].neighbours.remove(&gone);
        for (other, pair) in std::mem::take(&mut self.chains[gone as usize].neighbours) {
            let back = &mut self.chains[other as usize].neighbours;
            back.remove(&gone);
            if other == kept {
                continue;
            }
            let into = *back.entry(kept).or_insert(pair);
            self.chains[kept as usize].neighbours.insert(other, into);
            if into != pair {
                let mut come = std::mem::take(&mut self.pairs[pair as usize]);
                let there = &mut self.pairs[into as usize];
                if !behind {
                    std::mem::swap(&mut come.jumps, &mut there.jumps);
                }
                there.jumps.extend(come.jumps);
                there.most += come.most;
                merged.push(into);
            }
        }
        merged
    }
}

/// A distance when `size` bytes come between.
fn parted(distance: i64, size: u64) -> i64 {
    if distance >= 0 { distance + size as i64 } else { distance - size as i64 }
}

#[cfg(test)]
mod tests;
