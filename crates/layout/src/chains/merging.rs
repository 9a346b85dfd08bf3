//! Merges two chains into one.
//!
//! Input: two chains and the way to merge them. Output: the new chain, with its nodes, jumps,
//! neighbours and cuts. This module chooses nothing.

use super::cuts::CutScore;
use super::{ChainMerge, ExtTspChains};

impl ExtTspChains<'_> {
    /// Merges two chains. The new chain has the number of the one with more neighbours. So the
    /// neighbours of a chain with many are never copied again.
    pub(super) fn merge_chains(&mut self, x: u32, y: u32, merge: ChainMerge) -> u32 {
        let more = |a: u32, b: u32| {
            self.chains[a as usize].neighbours.len() >= self.chains[b as usize].neighbours.len()
        };
        let (kept, gone) = if more(x, y) { (x, y) } else { (y, x) };
        let nodes_y = std::mem::take(&mut self.chains[y as usize].nodes);
        let nodes_x = std::mem::take(&mut self.chains[x as usize].nodes);
        let cut = |cut: usize| nodes_x.split_at(cut);
        let segments = match merge {
            ChainMerge::XY => [&nodes_x[..], &nodes_y, &[]],
            ChainMerge::X1YX2(at) => [cut(at).0, &nodes_y, cut(at).1],
            ChainMerge::YX2X1(at) => [&nodes_y, cut(at).1, cut(at).0],
            ChainMerge::X2X1Y(at) => [cut(at).1, cut(at).0, &nodes_y],
        };
        let nodes = segments.concat();
        let mut offset = 0;
        for (position, &node) in nodes.iter().enumerate() {
            self.chain_of[node as usize] = kept;
            self.positions[node as usize] = position;
            self.offsets[node as usize] = offset;
            offset += self.nodes[node as usize].size;
        }
        let jumps = self.merge_jumps(x, y);
        let merged = self.merge_neighbours(kept, gone, kept == x);
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

    pub(super) fn measure_cuts(&mut self, chain: u32) {
        let measured = &self.chains[chain as usize];
        let everywhere = self.cut_everywhere(measured);
        let (cuts, spans) = if everywhere { self.cuts(measured) } else { Default::default() };
        let raised = |cut: &CutScore| cut.swapped.max(cut.parted) - cut.kept;
        let slack = cuts.iter().map(raised).fold(0.0, f64::max);
        let measured = &mut self.chains[chain as usize];
        (measured.cuts, measured.spans, measured.slack) = (cuts, spans, slack);
    }

    /// The jumps within the merged chain of x and y.
    pub(super) fn merge_jumps(&mut self, x: u32, y: u32) -> Vec<u32> {
        let pair = self.chains[x as usize].neighbours.get(&y);
        let between = pair.map(|&pair| std::mem::take(&mut self.pairs[pair as usize].jumps));
        let gone = std::mem::take(&mut self.chains[y as usize].jumps);
        let mut jumps = std::mem::take(&mut self.chains[x as usize].jumps);
        jumps.extend(gone);
        jumps.extend(between.into_iter().flatten());
        jumps
    }

    /// Gives the neighbours of the chain `gone` to the chain `kept`. Returns the pairs that have
    /// become one with another. `behind`: the jumps of `gone` come behind those of `kept`.
    pub(super) fn merge_neighbours(&mut self, kept: u32, gone: u32, behind: bool) -> Vec<u32> {
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
                there.bound += come.bound;
                merged.push(into);
            }
        }
        merged
    }
}
