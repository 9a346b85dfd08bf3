//! Nodes between which the engine of ext-TSP (`chains.rs`) has no choice.
//!
//! Takes nodes and jumps; gives for each node the one that it must precede.

use crate::jumps::{Jump, JumpKind, Node};

/// Pairs of nodes that every best order keeps together: the first has no other successor, the second no other predecessor (section 4,
/// "forced" pairs). In a cycle of such pairs the one that leads back to the smallest node is given up.
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
