//! Local search over a finished order: moves short segments where this raises the ext-TSP score.
//!
//! Input: the nodes of one function in an order, and the jumps between them. Output: an order that
//! scores at least as much. Greedy merging decides between equals by chance. This search repairs
//! bad decisions.

use crate::ext_tsp_parameters::ExtTspParameters;
use crate::jumps::{ChainNode, ScoredJump};
use std::ops::Range;

/// The largest number of nodes in a segment that is moved.
const LONGEST: usize = 3;

/// Moves segments until no move raises the score. Orders of more than `parameters.improve_up_to`
/// nodes stay as they are, because the time grows with the third power of their number. The node
/// `entry` stays first.
pub(crate) fn improve(
    order: Vec<u32>,
    nodes: &[ChainNode],
    jumps: &[ScoredJump],
    entry: Option<u32>,
    parameters: &ExtTspParameters,
) -> Vec<u32> {
    if order.len() < 3 || order.len() > parameters.improve_up_to {
        return order;
    }
    let first = usize::from(entry.is_some());
    let mut search = SegmentSearch::new(nodes, jumps, parameters);
    let mut order = order;
    while search.improve_each(&mut order, first) {}
    order
}

/// Whether an order scores more than another.
pub(crate) fn scores_more(
    order: &[u32],
    other: &[u32],
    nodes: &[ChainNode],
    jumps: &[ScoredJump],
    parameters: &ExtTspParameters,
) -> bool {
    let mut search = SegmentSearch::new(nodes, jumps, parameters);
    let least = search.begin(other);
    search.begin(order) > least + least.abs() * LEAST_SHARE
}

/// The least share by which the score must be higher. Smaller differences come from the order of
/// summation.
const LEAST_SHARE: f64 = 1e-12;

struct SegmentSearch<'a> {
    nodes: &'a [ChainNode],
    jumps: &'a [ScoredJump],
    parameters: &'a ExtTspParameters,
    /// The jumps from or to node n are `at[starts[n]..starts[n + 1]]`.
    at: Vec<u32>,
    starts: Vec<u32>,
    /// The start of each node in the scored order.
    addresses: Vec<u64>,
    /// The score of each jump in the order before a move, and after it.
    before: Vec<f64>,
    after: Vec<f64>,
}

impl<'a> SegmentSearch<'a> {
    fn new(
        nodes: &'a [ChainNode],
        jumps: &'a [ScoredJump],
        parameters: &'a ExtTspParameters,
    ) -> Self {
        let ends = |jump: &ScoredJump| [jump.from as usize, jump.to as usize];
        let mut starts = vec![0; nodes.len() + 1];
        jumps.iter().flat_map(ends).for_each(|node| starts[node + 1] += 1);
        (0..nodes.len()).for_each(|node| starts[node + 1] += starts[node]);
        let (mut at, mut free) = (vec![0; 2 * jumps.len()], starts.clone());
        for (number, jump) in jumps.iter().enumerate() {
            for node in ends(jump) {
                at[free[node] as usize] = number as u32;
                free[node] += 1;
            }
        }
        SegmentSearch {
            nodes,
            jumps,
            parameters,
            at,
            starts,
            addresses: vec![0; nodes.len()],
            before: vec![0.0; jumps.len()],
            after: vec![0.0; jumps.len()],
        }
    }

    /// Moves each segment that begins at `first` or later to where it raises the score most.
    /// Returns whether any moved.
    fn improve_each(&mut self, order: &mut Vec<u32>, first: usize) -> bool {
        let mut best = self.begin(order);
        let mut improved = false;
        let mut raised = vec![0.0; order.len()];
        for length in 1..=LONGEST {
            for from in first..=order.len().saturating_sub(length) {
                self.raise(order, from..from + length, first, &mut raised);
                let places = (first..=order.len() - length).filter(|&to| to != from);
                let Some(to) =
                    places.reduce(|to, other| if raised[other] > raised[to] { other } else { to })
                else {
                    continue;
                };
                // The rounding errors of the steps are smaller than the difference.
                if raised[to] <= best.abs() * LEAST_SHARE / 4.0 {
                    continue;
                }
                let mut moved = order.clone();
                match from < to {
                    true => moved[from..to + length].rotate_left(length),
                    false => moved[to..from + length].rotate_right(length),
                }
                let score = self.begin(&moved);
                if score > best + best.abs() * LEAST_SHARE {
                    (*order, best, improved) = (moved, score, true);
                } else {
                    self.begin(order);
                }
            }
        }
        improved
    }

    /// Makes `order` the order from which a move starts. Returns its score.
    fn begin(&mut self, order: &[u32]) -> f64 {
        self.place(order);
        self.before = self.jumps.iter().map(|jump| self.jump_score(jump)).collect();
        self.before.iter().sum()
    }

    /// The approximate rise of the score when a segment of the order moves to begin at each other
    /// position from `first` on. The segment passes one node in each step. Only the jumps of these
    /// nodes change.
    fn raise(&mut self, order: &[u32], segment: Range<usize>, first: usize, raised: &mut [f64]) {
        let (from, nodes) = (segment.start, &order[segment.clone()]);
        let behind = order[segment.end..].iter().enumerate();
        self.pass(nodes, behind.map(|(passed, &node)| (from + passed + 1, node)), true, raised);
        let before = order[first..from].iter().enumerate();
        self.pass(nodes, before.rev().map(|(passed, &node)| (first + passed, node)), false, raised);
    }

    /// Moves a segment past nodes, one after the other. Each comes with the position where the
    /// segment then begins.
    fn pass(
        &mut self,
        segment: &[u32],
        passed: impl Iterator<Item = (usize, u32)>,
        forward: bool,
        raised: &mut [f64],
    ) {
        let bytes: i64 = segment.iter().map(|&node| self.nodes[node as usize].size as i64).sum();
        let mut sum = 0.0;
        self.after.copy_from_slice(&self.before);
        let addresses = self.addresses.clone();
        for (begin, node) in passed {
            let size = self.nodes[node as usize].size as i64;
            let (by_segment, by_node) = if forward { (size, -bytes) } else { (-size, bytes) };
            let moves = segment.iter().map(|&moved| (moved, by_segment)).chain([(node, by_node)]);
            for (moved, by) in moves {
                let address = &mut self.addresses[moved as usize];
                *address = address.wrapping_add_signed(by);
            }
            sum += segment.iter().chain([&node]).map(|&moved| self.score_again(moved)).sum::<f64>();
            raised[begin] = sum;
        }
        self.addresses = addresses;
    }

    /// The rise of the score of a node's jumps since they were last scored.
    fn score_again(&mut self, node: u32) -> f64 {
        let mut raised = 0.0;
        for number in self.starts[node as usize]..self.starts[node as usize + 1] {
            let jump = self.at[number as usize] as usize;
            let score = self.jump_score(&self.jumps[jump]);
            raised += score - std::mem::replace(&mut self.after[jump], score);
        }
        raised
    }

    fn place(&mut self, order: &[u32]) {
        let mut address = 0;
        for &node in order {
            self.addresses[node as usize] = address;
            address += self.nodes[node as usize].size;
        }
    }

    fn jump_score(&self, jump: &ScoredJump) -> f64 {
        let source = self.addresses[jump.from as usize] + jump.from_end;
        let target = self.addresses[jump.to as usize] + jump.to_start;
        jump.score(target as i64 - source as i64, self.parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jumps::JumpKind;
    use crate::random::SplitMix64;

    /// ```text
    ///     0 ──10──▶ 1 ──10──▶ 2      given as 0 2 1
    /// ```
    #[test]
    fn a_node_moves_to_where_it_is_a_fall_through() {
        let nodes: Vec<ChainNode> = (0..3).map(|_| ChainNode { size: 16, count: 10 }).collect();
        let jump = |from, to| ScoredJump {
            from,
            to,
            from_end: 16,
            to_start: 0,
            count: 10,
            kind: JumpKind::Control { may_fall: true, conditional: false },
        };
        let jumps = [jump(0, 1), jump(1, 2)];
        let parameters = ExtTspParameters::default();
        assert_eq!(improve(vec![0, 2, 1], &nodes, &jumps, Some(0), &parameters), [0, 1, 2]);
        let off = ExtTspParameters { improve_up_to: 2, ..parameters };
        assert_eq!(improve(vec![0, 2, 1], &nodes, &jumps, Some(0), &off), [0, 2, 1]);
    }

    /// Nodes in a row, and jumps of every kind between them.
    fn random_search(random: &mut SplitMix64) -> (Vec<ChainNode>, Vec<ScoredJump>) {
        let sizes: Vec<u64> = (0..9).map(|_| 1 + random.below(200)).collect();
        let jump = |random: &mut SplitMix64| {
            let (from, to) = (random.below(9) as u32, random.below(9) as u32);
            ScoredJump {
                from,
                to,
                from_end: 1 + random.below(sizes[from as usize]),
                to_start: [0, random.below(sizes[to as usize])][random.below(2) as usize],
                count: random.below(50),
                kind: JumpKind::Control {
                    may_fall: random.below(2) == 0,
                    conditional: random.below(2) == 0,
                },
            }
        };
        let jumps = (0..25).map(|_| jump(random)).filter(|jump| jump.from != jump.to).collect();
        (sizes.into_iter().map(|size| ChainNode { size, count: 1 }).collect(), jumps)
    }

    #[test]
    fn a_step_raises_the_score_by_the_difference_of_both_orders() {
        let mut random = SplitMix64::new(7);
        let parameters = ExtTspParameters::default();
        let (mut rises, mut falls) = (0, 0);
        for _ in 0..100 {
            let (nodes, jumps) = random_search(&mut random);
            let mut order: Vec<u32> = (0..9).collect();
            random.shuffle(&mut order);
            let mut search = SegmentSearch::new(&nodes, &jumps, &parameters);
            let (length, first) = (1 + random.below(3) as usize, random.below(2) as usize);
            let from = first + random.below((10 - length - first) as u64) as usize;
            let base = search.begin(&order);
            let mut raised = vec![0.0; 9];
            search.raise(&order, from..from + length, first, &mut raised);
            for (to, raised) in raised.iter().enumerate().take(10 - length).skip(first) {
                let mut moved = order.clone();
                let segment: Vec<u32> = moved.drain(from..from + length).collect();
                moved.splice(to..to, segment);
                let expected = search.begin(&moved) - base;
                assert!(
                    (raised - expected).abs() < 1e-9 * (1.0 + base),
                    "{raised}, not {expected}"
                );
                rises += usize::from(expected > 0.0);
                falls += usize::from(expected < 0.0);
            }
        }
        assert!(rises > 100 && falls > 100, "{rises} rise, {falls} fall");
    }
}
