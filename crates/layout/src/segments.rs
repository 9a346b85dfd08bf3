//! Local search over a finished order: short segments move where the ext-TSP score rises.
//!
//! Takes the nodes of one function in an order, and the jumps between them; gives an order that scores at least as much. Greedy merging
//! decides between equals by chance; this takes back what chance got wrong.

use crate::ext_tsp::ExtTspParameters;
use crate::jumps::{Jump, Node};

/// Segments of up to so many nodes are moved.
const LONGEST: usize = 3;

/// Moves segments until no move raises the score. Orders of more than `parameters.improve_up_to` nodes stay as they are: the time grows
/// with the third power of their number. The node `entry` stays first.
pub(crate) fn improve(order: Vec<u32>, nodes: &[Node], jumps: &[Jump], entry: Option<u32>, parameters: &ExtTspParameters) -> Vec<u32> {
    if order.len() < 3 || order.len() > parameters.improve_up_to {
        return order;
    }
    let first = usize::from(entry.is_some());
    let mut search = Search {
        nodes,
        jumps,
        parameters,
        addresses: vec![0; nodes.len()],
    };
    let mut best = search.score(&order);
    let mut order = order;
    while let Some((moved, score)) = search.better(&order, first, best) {
        (order, best) = (moved, score);
    }
    order
}

struct Search<'a> {
    nodes: &'a [Node],
    jumps: &'a [Jump],
    parameters: &'a ExtTspParameters,
    /// Where each node starts in the order that is scored.
    addresses: Vec<u64>,
}

impl Search<'_> {
    /// The first move that raises the score, and the score.
    fn better(&mut self, order: &[u32], first: usize, best: f64) -> Option<(Vec<u32>, f64)> {
        // What is less than this share is the order of summing.
        let least = best + best.abs() * 1e-12;
        let mut moved = order.to_vec();
        for length in 1..=LONGEST {
            for from in first..=order.len().saturating_sub(length) {
                for to in (first..=order.len() - length).filter(|&to| to != from) {
                    moved.copy_from_slice(order);
                    match from < to {
                        true => moved[from..to + length].rotate_left(length),
                        false => moved[to..from + length].rotate_right(length),
                    }
                    let score = self.score(&moved);
                    if score > least {
                        return Some((moved, score));
                    }
                }
            }
        }
        None
    }

    fn score(&mut self, order: &[u32]) -> f64 {
        let mut address = 0;
        for &node in order {
            self.addresses[node as usize] = address;
            address += self.nodes[node as usize].size;
        }
        let one = |jump: &Jump| {
            let source = self.addresses[jump.from as usize] + jump.from_end;
            let target = self.addresses[jump.to as usize] + jump.to_start;
            let distance = target as i64 - source as i64;
            jump.score(distance, self.parameters)
        };
        self.jumps.iter().map(one).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jumps::JumpKind;

    /// ```text
    ///     0 ──10──▶ 1 ──10──▶ 2      given as 0 2 1
    /// ```
    #[test]
    fn a_node_moves_to_where_it_falls_through() {
        let nodes: Vec<Node> = (0..3).map(|_| Node { size: 16, count: 10 }).collect();
        let jump = |from, to| Jump {
            from,
            to,
            from_end: 16,
            to_start: 0,
            count: 10,
            kind: JumpKind::Control {
                may_fall: true,
                conditional: false,
            },
        };
        let jumps = [jump(0, 1), jump(1, 2)];
        let parameters = ExtTspParameters::default();
        assert_eq!(improve(vec![0, 2, 1], &nodes, &jumps, Some(0), &parameters), [0, 1, 2]);
        let off = ExtTspParameters {
            improve_up_to: 2,
            ..parameters
        };
        assert_eq!(improve(vec![0, 2, 1], &nodes, &jumps, Some(0), &off), [0, 2, 1]);
    }
}
