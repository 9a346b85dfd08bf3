//! The cost of an order of segments for a cache, and a search for an order with a low cost.
//!
//! Input: pieces with sizes and the epochs in which they ran, in segments that are not split.
//! Output: an order of the segments.
//!
//! In each epoch, a cache has to fetch every line with a needed byte. Their number depends on where
//! lines begin, which an order does not determine. The average over all beginnings is the needed
//! bytes plus the *waste*, in lines. The waste counts each stretch of unneeded bytes between two
//! needed ones with its length, up to a line less one byte. Only the ends of a longer stretch are
//! fetched.
//!
//! ```text
//! piece     a     b     c         needed in an epoch: a, c
//! bytes   |40   |16   |30   |     waste: 16, the bytes of b
//! ```

use crate::global::GlobalGraph;
use crate::random::SplitMix64;
use std::ops::Range;

/// The largest distance of a move in segments: `NEAR` for half of the moves, `FAR` for the others.
const NEAR: u64 = 10;
const FAR: u64 = 200;

pub(crate) struct Packing {
    /// The bytes of each node.
    sizes: Vec<u64>,
    /// The number of words for each node.
    words: usize,
    /// The epochs in which each node ran, node by node.
    epochs: Vec<u64>,
    segments: Vec<Vec<u32>>,
    /// The bytes of each segment.
    bytes: Vec<u64>,
    /// The largest number of bytes between two needed ones that are fetched with them.
    reach: u64,
}

impl Packing {
    /// `segments` has nodes of the graph, each in exactly one segment.
    pub(crate) fn new(global: &GlobalGraph, segments: Vec<Vec<u32>>, line_bytes: u64) -> Packing {
        let hot = &global.hot;
        let words =
            hot.graph.block_epochs.iter().map(|of_block| of_block.epochs.len()).max().unwrap_or(0);
        let mut epochs = vec![0; words * global.pieces.len()];
        for of_block in &hot.graph.block_epochs {
            let piece = hot.pieces.of_block(of_block.block);
            if hot.is_hot(piece) {
                let row = &mut epochs[words * global.node(piece) as usize..][..words];
                row.iter_mut().zip(&of_block.epochs).for_each(|(to, from)| *to |= from);
            }
        }
        let sizes = global.pieces.iter().map(|piece| hot.sizes[piece.index()]).collect();
        Packing::of_nodes(sizes, words, epochs, segments, line_bytes)
    }

    /// `epochs` has `words` words for each node, node by node.
    fn of_nodes(
        sizes: Vec<u64>,
        words: usize,
        epochs: Vec<u64>,
        segments: Vec<Vec<u32>>,
        line_bytes: u64,
    ) -> Packing {
        let bytes = segments
            .iter()
            .map(|nodes| nodes.iter().map(|&node| sizes[node as usize]).sum())
            .collect();
        Packing { sizes, words, epochs, segments, bytes, reach: line_bytes - 1 }
    }

    /// The nodes of a segment.
    pub(crate) fn segment(&self, segment: u32) -> &[u32] {
        &self.segments[segment as usize]
    }

    fn epochs(&self, node: u32) -> &[u64] {
        &self.epochs[self.words * node as usize..][..self.words]
    }

    /// Joins segments to paths. It always joins the end and the beginning that save the most waste
    /// (greedy matching, as for a travelling salesman). Each end is compared only with its
    /// likeliest beginnings. The paths whose bytes are needed most often come first.
    pub(crate) fn paths(&self, candidates: usize) -> Vec<u32> {
        let count = self.segments.len();
        let mut joins = self.joins(candidates);
        joins.sort_unstable_by_key(|&(saved, from, to)| (std::cmp::Reverse(saved), from, to));
        let mut next: Vec<Option<u32>> = vec![None; count];
        let mut has_previous = vec![false; count];
        // For the last segment of a path, its first one; for the first segment, its last one.
        let mut first: Vec<u32> = (0..count as u32).collect();
        let mut last = first.clone();
        for (_, from, to) in joins {
            let (at, behind) = (from as usize, to as usize);
            if next[at].is_some() || has_previous[behind] || first[at] == to {
                continue;
            }
            (next[at], has_previous[behind]) = (Some(to), true);
            let (begin, end) = (first[at], last[behind]);
            (first[end as usize], last[begin as usize]) = (begin, end);
        }
        let begins = (0..count as u32).filter(|&segment| !has_previous[segment as usize]);
        let path = |begin| {
            std::iter::successors(Some(begin), |&segment: &u32| next[segment as usize]).collect()
        };
        let mut paths: Vec<Vec<u32>> = begins.map(path).collect();
        paths.sort_by(|a, b| self.need(b).total_cmp(&self.need(a)));
        paths.concat()
    }

    /// The average number of epochs in which a byte of some segments is needed.
    fn need(&self, segments: &[u32]) -> f64 {
        let nodes = segments.iter().flat_map(|&segment| self.segment(segment));
        let needed: u64 =
            nodes.map(|&node| self.sizes[node as usize] * ones(self.epochs(node))).sum();
        let bytes: u64 = segments.iter().map(|&segment| self.bytes[segment as usize]).sum();
        needed as f64 / bytes.max(1) as f64
    }

    /// The saving of laying one segment behind another, for the likeliest pairs: (saved bytes of
    /// waste, first segment, second segment).
    fn joins(&self, candidates: usize) -> Vec<(u64, u32, u32)> {
        let heads: Vec<Vec<u64>> =
            self.segments.iter().map(|nodes| self.any(nodes.iter())).collect();
        let mut joins = Vec::new();
        for (from, nodes) in self.segments.iter().enumerate() {
            let tail = self.any(nodes.iter().rev());
            let others = (0..heads.len()).filter(|&to| to != from);
            let shared = others.map(|to| (common_epochs(&tail, &heads[to]), to));
            let mut shared: Vec<(u64, usize)> = shared.filter(|&(common, _)| common > 0).collect();
            if shared.len() > candidates {
                shared.select_nth_unstable_by_key(candidates, |&(common, to)| {
                    (std::cmp::Reverse(common), to)
                });
                shared.truncate(candidates);
            }
            let saved = |(_, to): (u64, usize)| {
                (self.saved(nodes, &self.segments[to]), from as u32, to as u32)
            };
            joins.extend(shared.into_iter().map(saved).filter(|&(saved, ..)| saved > 0));
        }
        joins
    }

    fn nodes(&self, segments: &[u32]) -> Vec<u32> {
        segments.iter().flat_map(|&segment| self.segment(segment)).copied().collect()
    }

    /// The epochs in which any of the first nodes ran, within the reach of one line.
    fn any<'n>(&self, nodes: impl Iterator<Item = &'n u32>) -> Vec<u64> {
        let (mut any, mut before) = (vec![0; self.words], 0);
        for &node in nodes {
            if before >= self.reach.max(1) {
                break;
            }
            any.iter_mut().zip(self.epochs(node)).for_each(|(any, ran)| *any |= ran);
            before += self.sizes[node as usize];
        }
        any
    }

    /// The bytes of waste that are saved when `to` follows `from` instead of being far from it.
    fn saved(&self, from: &[u32], to: &[u32]) -> u64 {
        let mut saved = 0;
        let mut nearer = vec![0u64; self.words];
        let mut behind = 0;
        for &node in from.iter().rev() {
            if behind >= self.reach {
                break;
            }
            let ran = self.epochs(node);
            let mut waiting: Vec<u64> =
                ran.iter().zip(&nearer).map(|(ran, nearer)| ran & !nearer).collect();
            let mut gap = behind;
            for &node in to {
                if gap >= self.reach {
                    break;
                }
                saved += (self.reach - gap) * meet(&mut waiting, self.epochs(node));
                gap += self.sizes[node as usize];
            }
            nearer.iter_mut().zip(ran).for_each(|(nearer, ran)| *nearer |= ran);
            behind += self.sizes[node as usize];
        }
        saved
    }

    /// The waste of the nodes in this order, over all epochs.
    fn waste(&self, nodes: &[u32]) -> u64 {
        let mut waiting = vec![0u64; self.words];
        let from = |at: usize| {
            waiting.copy_from_slice(self.epochs(nodes[at]));
            let (mut waste, mut gap) = (0, 0);
            for &node in &nodes[at + 1..] {
                if gap >= self.reach {
                    break;
                }
                waste += gap * meet(&mut waiting, self.epochs(node));
                gap += self.sizes[node as usize];
            }
            waste + self.reach * ones(&waiting)
        };
        (0..nodes.len()).map(from).sum()
    }

    /// Tries `moves` moves for each segment: to another place, or an exchange with another segment.
    /// Moves that reduce the waste stay.
    pub(crate) fn improve(&self, order: &mut [u32], moves: u64, seed: u64) {
        let count = order.len() as u64;
        let mut random = SplitMix64::new(seed);
        for _ in 0..moves.saturating_mul(count) {
            let from = random.below(count);
            let farthest = if random.below(2) == 0 { NEAR } else { FAR };
            let far = 1 + random.below(farthest);
            let to = match random.below(2) {
                0 => from.saturating_sub(far),
                _ => (from + far).min(count - 1),
            };
            let swap = random.below(2) == 0;
            if from != to {
                self.attempt(order, from as usize, to as usize, swap);
            }
        }
    }

    fn attempt(&self, order: &mut [u32], from: usize, to: usize, swap: bool) {
        let (low, high) = (from.min(to), from.max(to));
        let (near_low, near_high) = (self.around(order, low), self.around(order, high));
        // The segments between two distant places stay as they are. They only shift by one place
        // when a segment moves past them.
        let apart = near_low.end < near_high.start;
        let stretches = match apart {
            true => [near_low.clone(), near_high.clone()],
            false => [near_low.start..near_high.end, 0..0],
        };
        let moved = match (apart && !swap, from < to) {
            (false, _) => stretches.clone(),
            (true, true) => [near_low.start..near_low.end - 1, near_high.start - 1..near_high.end],
            (true, false) => [near_low.start..near_low.end + 1, near_high.start + 1..near_high.end],
        };
        let waste = |order: &[u32], stretches: [Range<usize>; 2]| -> u64 {
            let one = |range: Range<usize>| self.waste(&self.nodes(&order[range]));
            stretches.into_iter().map(one).sum()
        };
        let before = waste(order, stretches);
        apply(order, from, to, swap);
        let after = waste(order, moved);
        if after >= before {
            match swap {
                true => apply(order, from, to, true),
                false => apply(order, to, from, false),
            }
        }
    }

    /// The segments from one line before a place to one line behind it.
    fn around(&self, order: &[u32], at: usize) -> Range<usize> {
        let reach = |segments: &mut dyn Iterator<Item = &u32>| {
            let mut bytes = 0;
            let mut within = 0;
            for &segment in segments {
                within += 1;
                bytes += self.bytes[segment as usize];
                if bytes >= self.reach {
                    break;
                }
            }
            within
        };
        at - reach(&mut order[..at].iter().rev())..at + 1 + reach(&mut order[at + 1..].iter())
    }
}

fn apply(order: &mut [u32], from: usize, to: usize, swap: bool) {
    match (swap, from < to) {
        (true, _) => order.swap(from, to),
        (false, true) => order[from..=to].rotate_left(1),
        (false, false) => order[to..=from].rotate_right(1),
    }
}

fn ones(epochs: &[u64]) -> u64 {
    epochs.iter().map(|word| u64::from(word.count_ones())).sum()
}

fn common_epochs(a: &[u64], b: &[u64]) -> u64 {
    a.iter().zip(b).map(|(a, b)| u64::from((a & b).count_ones())).sum()
}

/// The number of epochs in both sets. They are removed from `waiting`.
fn meet(waiting: &mut [u64], ran: &[u64]) -> u64 {
    let mut met = 0;
    for (waiting, &ran) in waiting.iter_mut().zip(ran) {
        met += u64::from((*waiting & ran).count_ones());
        *waiting &= !ran;
    }
    met
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments of one to three nodes, of random sizes, in 64 random epochs.
    fn packing(random: &mut SplitMix64, count: u32) -> Packing {
        let mut nodes = 0;
        let mut segments = Vec::new();
        for _ in 0..count {
            let next = nodes + 1 + random.below(3) as u32;
            segments.push((nodes..next).collect::<Vec<u32>>());
            nodes = next;
        }
        let sizes = (0..nodes).map(|_| 1 + random.below(40)).collect();
        let epochs = (0..nodes).map(|_| random.next_u64() & random.next_u64()).collect();
        Packing::of_nodes(sizes, 1, epochs, segments, 64)
    }

    /// The fetched bytes on average over all beginnings of lines, by counting lines.
    fn fetched(packing: &Packing, nodes: &[u32]) -> u64 {
        let one = |epoch: u32, shift: u64| {
            let mut at = shift;
            let mut lines = std::collections::BTreeSet::new();
            for &node in nodes {
                let end = at + packing.sizes[node as usize];
                if packing.epochs(node)[0] >> epoch & 1 == 1 {
                    lines.extend(at / 64..=(end - 1) / 64);
                }
                at = end;
            }
            lines.len() as u64
        };
        (0..64)
            .flat_map(|epoch| (0..64).map(move |shift| (epoch, shift)))
            .map(|(t, s)| one(t, s))
            .sum()
    }

    #[test]
    fn the_waste_and_the_needed_bytes_are_the_fetched_lines() {
        let mut random = SplitMix64::new(1);
        for count in [1, 2, 7, 30] {
            let packing = packing(&mut random, count);
            let nodes = packing.nodes(&(0..count).collect::<Vec<_>>());
            let needed: u64 = nodes
                .iter()
                .map(|&node| packing.sizes[node as usize] * ones(packing.epochs(node)))
                .sum();
            assert_eq!(needed + packing.waste(&nodes), fetched(&packing, &nodes));
        }
    }

    #[test]
    fn the_saving_of_a_join_is_the_decrease_of_the_waste() {
        let mut random = SplitMix64::new(2);
        let packing = packing(&mut random, 60);
        for pair in (0..60).collect::<Vec<u32>>().chunks(2) {
            let (from, to) = (packing.segment(pair[0]), packing.segment(pair[1]));
            let apart = packing.waste(from) + packing.waste(to);
            assert_eq!(packing.waste(&[from, to].concat()), apart - packing.saved(from, to));
        }
    }

    #[test]
    fn paths_have_every_segment_once_and_no_move_adds_waste() {
        let mut random = SplitMix64::new(3);
        for count in [1, 2, 3, 40, 300] {
            let packing = packing(&mut random, count);
            let mut order = packing.paths(4);
            for seed in 0..20 {
                let before = packing.waste(&packing.nodes(&order));
                packing.improve(&mut order, 1, seed);
                assert!(packing.waste(&packing.nodes(&order)) <= before);
            }
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..count).collect::<Vec<_>>());
        }
    }
}
