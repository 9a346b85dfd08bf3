//! Nodes between which the engine of ext-TSP (`chains.rs`) has no choice.
//!
//! Takes nodes and jumps; gives for each node the one that it must precede.

use crate::jumps::{Jump, JumpKind, Node};

/// Pairs of nodes that every best order keeps together: the first has no other successor, the
/// second no other predecessor (section 4, "forced" pairs). In a cycle of such pairs the one that
/// leads back to the smallest node is given up.
pub(crate) fn forced(nodes: &[Node], jumps: &[Jump], entry: Option<u32>) -> Vec<Option<u32>> {
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
            Only::One(to)
                if predecessor[to as usize] == Only::One(node as u32)
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

/// Gives up one pair of every cycle. A node is the second of one pair at most, so what is not
/// reached from the node that begins a row of pairs lies on a cycle.
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

    fn graph(random: &mut SplitMix64) -> (Vec<Node>, Vec<Jump>) {
        let nodes: Vec<Node> = (0..NODES).map(|_| Node { size: 16, count: 1 }).collect();
        let jump = |random: &mut SplitMix64| Jump {
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

    /// Each pair by its definition, then each cycle followed from its smallest node; and how many
    /// cycles there were.
    fn by_definition(jumps: &[Jump], entry: Option<u32>) -> (Vec<Option<u32>>, usize) {
        let control: Vec<&Jump> =
            jumps.iter().filter(|j| matches!(j.kind, JumpKind::Control { .. })).collect();
        let alone = |jump: &Jump| {
            control.iter().all(|other| (other.from == jump.from) == (other.to == jump.to))
        };
        let falls = |jump: &Jump| jump.may_fall() && jump.from_end == 16 && jump.to_start == 0;
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
