//! Pairs of nodes for which the engine of ext-TSP (`chains.rs`) has no choice.
//!
//! Input: nodes and jumps. Output: for each node, the node that must follow it.

use crate::jumps::{ChainNode, JumpKind, ScoredJump};

/// The pairs of nodes that every best order keeps together: the first has no other successor, the
/// second no other predecessor (section 4, "forced" pairs). A cycle of such pairs loses the pair
/// that leads back to its smallest node.
pub(crate) fn forced(
    nodes: &[ChainNode],
    jumps: &[ScoredJump],
    entry: Option<u32>,
) -> Vec<Option<u32>> {
    #[derive(Clone, Copy, PartialEq)]
    enum SoleNeighbour {
        None,
        One(u32),
        Several,
    }
    let mut successor = vec![SoleNeighbour::None; nodes.len()];
    let mut predecessor = vec![SoleNeighbour::None; nodes.len()];
    let mut falls = vec![false; nodes.len()];
    let add = |only: &mut SoleNeighbour, node: u32| {
        *only = if *only == SoleNeighbour::None || *only == SoleNeighbour::One(node) {
            SoleNeighbour::One(node)
        } else {
            SoleNeighbour::Several
        };
    };
    let control = |jump: &&ScoredJump| matches!(jump.kind, JumpKind::Control { .. });
    for jump in jumps.iter().filter(control) {
        add(&mut successor[jump.from as usize], jump.to);
        add(&mut predecessor[jump.to as usize], jump.from);
        let adjoining = jump.from_end == nodes[jump.from as usize].size && jump.to_start == 0;
        falls[jump.from as usize] |= jump.may_fall() && adjoining;
    }
    let mut forced: Vec<Option<u32>> = (0..nodes.len())
        .map(|node| match successor[node] {
            SoleNeighbour::One(to)
                if predecessor[to as usize] == SoleNeighbour::One(node as u32)
                    && falls[node]
                    && Some(to) != entry =>
            {
                Some(to)
            }
            _ => None,
        })
        .collect();
    break_cycles(&mut forced);
    forced
}

/// Removes one pair from every cycle. A node is the second of at most one pair. So a node that is
/// not reached from the start of a row of pairs is on a cycle.
fn break_cycles(forced: &mut [Option<u32>]) {
    let mut follows = vec![false; forced.len()];
    forced.iter().flatten().for_each(|&to| follows[to as usize] = true);
    let mut reached = vec![false; forced.len()];
    let (beginnings, others): (Vec<usize>, Vec<usize>) =
        (0..forced.len()).partition(|&node| !follows[node]);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    const NODES: u64 = 8;

    fn graph(random: &mut SplitMix64) -> (Vec<ChainNode>, Vec<ScoredJump>) {
        let nodes: Vec<ChainNode> = (0..NODES).map(|_| ChainNode { size: 16, count: 1 }).collect();
        let jump = |random: &mut SplitMix64| ScoredJump {
            from: random.below(NODES) as u32,
            to: random.below(NODES) as u32,
            from_end: if random.below(12) == 0 { 8 } else { 16 },
            to_start: if random.below(12) == 0 { 8 } else { 0 },
            count: 1,
            kind: match random.below(12) {
                0 => JumpKind::Together { bytes: 32, worth: 0.3, reach: 64 },
                kind => JumpKind::Control { may_fall: kind > 1, conditional: false },
            },
        };
        let jumps = (0..1 + random.below(NODES + 2)).map(|_| jump(random)).collect::<Vec<_>>();
        (nodes, jumps.into_iter().filter(|jump| jump.from != jump.to).collect())
    }

    /// Finds each pair by its definition, then follows each cycle from its smallest node. Also
    /// returns the number of cycles.
    fn by_definition(jumps: &[ScoredJump], entry: Option<u32>) -> (Vec<Option<u32>>, usize) {
        let control: Vec<&ScoredJump> =
            jumps.iter().filter(|j| matches!(j.kind, JumpKind::Control { .. })).collect();
        let alone = |jump: &ScoredJump| {
            control.iter().all(|other| (other.from == jump.from) == (other.to == jump.to))
        };
        let falls =
            |jump: &ScoredJump| jump.may_fall() && jump.from_end == 16 && jump.to_start == 0;
        let (mut pairs, mut cycles) = (vec![None; NODES as usize], 0);
        for jump in
            control.iter().filter(|jump| alone(jump) && falls(jump) && Some(jump.to) != entry)
        {
            pairs[jump.from as usize] = Some(jump.to);
        }
        for smallest in 0..NODES as u32 {
            let row: Vec<u32> = std::iter::successors(Some(smallest), |&node| pairs[node as usize])
                .take(NODES as usize)
                .collect();
            if let Some(&last) = row.iter().find(|&&node| pairs[node as usize] == Some(smallest)) {
                pairs[last as usize] = None;
                cycles += 1;
            }
        }
        (pairs, cycles)
    }

    #[test]
    fn forced_pairs_are_those_of_the_definition() {
        let mut random = SplitMix64::new(3);
        let (mut pairs, mut cycles) = (0, 0);
        for _ in 0..20_000 {
            let (nodes, jumps) = graph(&mut random);
            let entry = [None, Some(0)][random.below(2) as usize];
            let (expected, broken) = by_definition(&jumps, entry);
            assert_eq!(forced(&nodes, &jumps, entry), expected);
            pairs += expected.iter().flatten().count();
            cycles += broken;
        }
        assert!(pairs > 1000 && cycles > 100, "{pairs} pairs, {cycles} cycles");
    }
}
