//! The gain of merging a pair of chains, and the best merge of the pair.
//!
//! Input: two chains and the jumps between them. Output: the best merge and its gain. This module
//! changes no chain.

use super::{
    ChainMerge, ChainPair, ExtTspChain, ExtTspChains, LEAST_GAIN, NearTies, PlannedMerge,
    QueuedGain,
};
use crate::jumps::ScoredJump;

/// A jump between two chains x and y, and its ends in them.
pub(super) struct JumpBetween<'a> {
    pub(super) jump: &'a ScoredJump,
    /// Whether the jump goes from x to y. Otherwise it goes from y to x.
    pub(super) leaves_x: bool,
    /// The position of the node in x.
    pub(super) position_x: usize,
    /// The bytes from the start of x to the end of the jump in x, and the same for y.
    pub(super) place_x: i64,
    pub(super) place_y: i64,
}

/// A way to merge y with x, which is cut at the given position.
type CutMerge = fn(usize) -> ChainMerge;

impl<'a> ExtTspChains<'a> {
    /// Queues a pair with the better of its two merges (either chain may be cut), if that has a
    /// gain.
    pub(super) fn queue_gain(&mut self, pair: u32) {
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
            Some(QueuedGain {
                gain: self.ranked(gain),
                pair,
                version: self.pairs[pair as usize].version,
                planned: Some(PlannedMerge { x, y, fronts, merge }),
            })
        });
        self.heap.extend(gains.into_iter().flatten().max());
    }

    /// The best merge of x and y, and its gain, if the gain is positive.
    pub(super) fn best_merge(&self, x: u32, y: u32, pair: &ChainPair) -> Option<(f64, ChainMerge)> {
        let (chain_x, chain_y) = (&self.chains[x as usize], &self.chains[y as usize]);
        let across = self.jumps_between(x, pair);
        let mut best: Option<(f64, ChainMerge)> = None;
        let better = |gain: f64, best: Option<(f64, ChainMerge)>| {
            gain > best.map_or(0.0, |(gain, _)| gain) + LEAST_GAIN
        };
        let mut attempt = |merge: ChainMerge, most_within: f64, within: &dyn Fn() -> f64| {
            if better(pair.bound + most_within, best)
                && self.entry_stays(chain_x.nodes[0], chain_y.nodes[0], merge)
            {
                let between = self.score_between(chain_x, chain_y, merge, &across);
                if better(between + most_within, best) {
                    let gain = between + within();
                    if better(gain, best) {
                        best = Some((gain, merge));
                    }
                }
            }
        };
        attempt(ChainMerge::XY, 0.0, &|| 0.0);
        let mut attempt_cut = |at: usize, ways: &[CutMerge]| {
            let cut = self.cut(chain_x, at);
            if self.forced[chain_x.nodes[at - 1] as usize] == Some(chain_x.nodes[at]) {
                return;
            }
            let swapped = cut.swapped - cut.kept;
            for merge in ways.iter().map(|way| way(at)) {
                match merge {
                    ChainMerge::X1YX2(_) => attempt(merge, cut.parted - cut.kept, &|| {
                        self.score_parted(chain_x, at, chain_y.size) - cut.kept
                    }),
                    _ => attempt(merge, swapped, &|| swapped),
                }
            }
        };
        if self.near_ties == NearTies::AsLlvm {
            let cuts = self.cuts_for_falls(chain_x, chain_y, pair);
            cuts.into_iter().for_each(|(at, ways)| attempt_cut(at, &ways));
        }
        let mut attempt_all = |at: usize| {
            attempt_cut(at, &[ChainMerge::X1YX2, ChainMerge::YX2X1, ChainMerge::X2X1Y]);
        };
        // A short chain is cut everywhere. A long one is cut only where a jump to the front of y,
        // or from its end, becomes a fall-through.
        match self.cut_everywhere(chain_x) {
            true => (1..chain_x.nodes.len()).for_each(attempt_all),
            false => {
                let cuts = self.cuts_at_jumps(chain_x, chain_y, pair);
                cuts.into_iter().for_each(&mut attempt_all);
            }
        }
        best
    }

    /// Whether an entry at the start of x or y is also the start of the merged chain.
    pub(super) fn entry_stays(&self, front_x: u32, front_y: u32, merge: ChainMerge) -> bool {
        let Some(entry) = self.entry else { return true };
        match merge {
            ChainMerge::XY | ChainMerge::X1YX2(_) => entry != front_y,
            ChainMerge::YX2X1(_) => entry != front_x,
            ChainMerge::X2X1Y(_) => entry != front_x && entry != front_y,
        }
    }

    pub(super) fn cut_everywhere(&self, chain: &ExtTspChain) -> bool {
        chain.nodes.len() <= self.parameters.split_threshold
    }

    pub(super) fn cuts_at_jumps(
        &self,
        chain_x: &ExtTspChain,
        chain_y: &ExtTspChain,
        pair: &ChainPair,
    ) -> Vec<usize> {
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

    /// The cuts of x at which a jump to the front of y becomes a fall-through, then those at which
    /// a jump from the end of y does. Each comes with the ways to merge that make it one. The order
    /// is that of the jumps.
    fn cuts_for_falls(
        &self,
        chain_x: &ExtTspChain,
        chain_y: &ExtTspChain,
        pair: &ChainPair,
    ) -> Vec<(usize, [CutMerge; 2])> {
        let (first, last) = (chain_y.nodes[0], chain_y.nodes[chain_y.nodes.len() - 1]);
        let mut numbers = pair.jumps.clone();
        numbers.sort_unstable();
        let jumps = || numbers.iter().map(|&jump| &self.jumps[jump as usize]);
        let to_first = jumps().filter(|jump| jump.to == first).map(|jump| {
            let ways: [CutMerge; 2] = [ChainMerge::X1YX2, ChainMerge::X2X1Y];
            (self.positions[jump.from as usize] + 1, ways)
        });
        let from_last = jumps().filter(|jump| jump.from == last).map(|jump| {
            let ways: [CutMerge; 2] = [ChainMerge::X1YX2, ChainMerge::YX2X1];
            (self.positions[jump.to as usize], ways)
        });
        let inside = |&(cut, _): &(usize, _)| cut > 0 && cut < chain_x.nodes.len();
        to_first.chain(from_last).filter(inside).collect()
    }

    /// The jumps between x and y.
    pub(super) fn jumps_between(&self, x: u32, pair: &ChainPair) -> Vec<JumpBetween<'a>> {
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
            JumpBetween { jump, leaves_x, position_x: self.positions[node_x], place_x, place_y }
        });
        jumps.collect()
    }

    /// The score of the jumps between x and y after the merge.
    pub(super) fn score_between(
        &self,
        chain_x: &ExtTspChain,
        chain_y: &ExtTspChain,
        merge: ChainMerge,
        across: &[JumpBetween],
    ) -> f64 {
        let (size_x, size_y) = (chain_x.size as i64, chain_y.size as i64);
        let bytes_before = |cut: usize| self.offsets[chain_x.nodes[cut] as usize] as i64;
        // The bytes added to the offsets of the nodes in X1, X2 and Y.
        let (cut, to_x1, to_x2, to_y) = match merge {
            ChainMerge::XY => (usize::MAX, 0, 0, size_x),
            ChainMerge::X1YX2(cut) => (cut, 0, size_y, bytes_before(cut)),
            ChainMerge::YX2X1(cut) => {
                (cut, size_y + size_x - bytes_before(cut), size_y - bytes_before(cut), 0)
            }
            ChainMerge::X2X1Y(cut) => (cut, size_x - bytes_before(cut), -bytes_before(cut), size_x),
        };
        let scores = across.iter().map(|across| {
            let to_x = if across.position_x < cut { to_x1 } else { to_x2 };
            let from_x_to_y = across.place_y + to_y - across.place_x - to_x;
            let distance = if across.leaves_x { from_x_to_y } else { -from_x_to_y };
            across.jump.score(distance, self.parameters)
        });
        scores.sum()
    }
}
