//! Balanced partitioning: orders functions by recursive bisection, so that functions used together
//! are in the same half.
//!
//! L. Dhulipala and others, "Compressing graphs and indexes with recursive graph bisection" (KDD
//! 2016), algorithm 1; applied to functions by E. Hoag, K. Lee, J. Mestre, S. Pupyrev, "Optimizing
//! function layout for mobile applications" (LCTES 2023), as in LLVM's `BalancedPartitioning.cpp`.
//! Input: a graph. Output: its order. `docs/algorithms/balanced-partitioning.md` explains the idea
//! and our changes.

use crate::ext_tsp;
use crate::ext_tsp_parameters::ExtTspParameters;
use crate::graph::{FunctionId, Graph, Ordered};
use crate::hot::HotCode;
use crate::random::SplitMix64;
use crate::row::{AlgorithmRow, MakeOrder, Uses};
use crate::validate::{InputError, at_least, validate};

/// ext-TSP for blocks, balanced partitioning for functions, cold code behind.
pub(crate) const BALANCED_PARTITIONING: AlgorithmRow = AlgorithmRow {
    name: "balanced-partitioning",
    uses: Uses::Counts,
    order: MakeOrder::One(|graph| balanced_partitioning(graph, &Default::default())),
};

/// LLVM's `BalancedPartitioningConfig`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BalancedPartitioningParameters {
    /// The largest number of times that a part is halved.
    pub split_depth: u32,
    /// The largest number of rounds of exchanges in each halving.
    pub iterations_per_split: u32,
    /// The probability that an exchange with a gain is skipped, to leave a local optimum.
    pub skip_probability: f64,
    /// The order of each function's blocks.
    pub blocks: ExtTspParameters,
}

impl Default for BalancedPartitioningParameters {
    fn default() -> Self {
        BalancedPartitioningParameters {
            split_depth: 18,
            iterations_per_split: 40,
            skip_probability: 0.1,
            blocks: ExtTspParameters::default(),
        }
    }
}

/// Orders the blocks of each function by ext-TSP and the functions by balanced partitioning. Cold
/// code follows in its original order.
///
/// # Errors
/// The graph or a parameter breaks a rule.
pub(crate) fn balanced_partitioning(
    graph: &Graph,
    parameters: &BalancedPartitioningParameters,
) -> Result<Ordered, InputError> {
    validate(graph)?;
    at_least("skip_probability", parameters.skip_probability, 0.0)?;
    parameters.blocks.validate()?;
    let hot = HotCode::new(graph);
    let flows = hot.edge_transfers_by_function();
    let blocks = |f: FunctionId| ext_tsp::within(&hot, f, &flows[f.index()], &parameters.blocks);
    Ok(hot.finish(functions(&hot, parameters).into_iter().flat_map(blocks).collect()))
}

/// A function with its utilities: the callers that use it.
struct BisectedFunction {
    function: FunctionId,
    utilities: Vec<u32>,
    right: bool,
}

/// The number of functions of a utility in each half.
#[derive(Clone, Copy, Default)]
struct UtilitySignature {
    left: u32,
    right: u32,
}

/// Orders the functions that ran. Each calling function is a utility, of itself and of all its
/// callees.
fn functions(hot: &HotCode, parameters: &BalancedPartitioningParameters) -> Vec<FunctionId> {
    let mut utilities = vec![Vec::new(); hot.functions.len()];
    for (caller, callee) in hot.arcs().into_keys() {
        utilities[callee.index()].push(caller.0);
        if utilities[caller.index()].last() != Some(&caller.0) {
            utilities[caller.index()].push(caller.0);
        }
    }
    let node = |(number, utilities): (usize, Vec<u32>)| BisectedFunction {
        function: FunctionId(number as u32),
        utilities,
        right: false,
    };
    let ran = |node: &BisectedFunction| !hot.functions[node.function.index()].is_empty();
    let mut nodes: Vec<BisectedFunction> =
        utilities.into_iter().enumerate().map(node).filter(ran).collect();
    for node in &mut nodes {
        node.utilities.sort_unstable();
        node.utilities.dedup();
    }
    let mut bisection = Bisection {
        parameters,
        signatures: vec![UtilitySignature::default(); hot.functions.len()],
        order: Vec::new(),
    };
    bisection.halve(nodes, 0, 1);
    bisection.order
}

struct Bisection<'a> {
    parameters: &'a BalancedPartitioningParameters,
    /// By utility; zero outside of a halving.
    signatures: Vec<UtilitySignature>,
    order: Vec<FunctionId>,
}

impl Bisection<'_> {
    /// Algorithm 1. `bucket` numbers the parts like a heap, and seeds the random choices in this
    /// part.
    fn halve(&mut self, mut nodes: Vec<BisectedFunction>, depth: u32, bucket: u64) {
        nodes.sort_by_key(|node| node.function);
        if nodes.len() <= 1 || depth >= self.parameters.split_depth {
            self.order.extend(nodes.into_iter().map(|node| node.function));
            return;
        }
        let middle = nodes.len().div_ceil(2);
        nodes.iter_mut().enumerate().for_each(|(at, node)| node.right = at >= middle);
        self.drop_useless(&mut nodes);
        for node in &nodes {
            node.utilities.iter().for_each(|&u| self.signatures[u as usize].add(node.right, 1));
        }
        let mut random = SplitMix64::new(bucket);
        for _ in 0..self.parameters.iterations_per_split {
            if !self.exchange(&mut nodes, &mut random) {
                break;
            }
        }
        self.clear(&nodes);
        let (right, left): (Vec<BisectedFunction>, Vec<BisectedFunction>) =
            nodes.into_iter().partition(|node| node.right);
        self.halve(left, depth + 1, bucket.wrapping_mul(2));
        self.halve(right, depth + 1, bucket.wrapping_mul(2).wrapping_add(1));
    }

    /// Drops the utilities that have one function, or all: no halving changes their cost.
    fn drop_useless(&mut self, nodes: &mut [BisectedFunction]) {
        for node in nodes.iter() {
            node.utilities.iter().for_each(|&u| self.signatures[u as usize].left += 1);
        }
        let counts: Vec<Vec<u32>> = nodes
            .iter()
            .map(|node| node.utilities.iter().map(|&u| self.signatures[u as usize].left).collect())
            .collect();
        self.clear(nodes);
        let all = nodes.len() as u32;
        for (node, counts) in nodes.iter_mut().zip(counts) {
            let mut counts = counts.into_iter();
            node.utilities.retain(|_| counts.next().is_some_and(|count| count > 1 && count < all));
        }
    }

    fn clear(&mut self, nodes: &[BisectedFunction]) {
        for &utility in nodes.iter().flat_map(|node| &node.utilities) {
            self.signatures[utility as usize] = UtilitySignature::default();
        }
    }

    /// One round. The functions with the largest gains change sides, pair by pair, as long as a
    /// pair gains. Returns whether any did.
    fn exchange(&mut self, nodes: &mut [BisectedFunction], random: &mut SplitMix64) -> bool {
        let mut gains: Vec<(f64, usize)> =
            nodes.iter().enumerate().map(|(at, node)| (self.gain(node), at)).collect();
        gains.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let (right, left): (Vec<_>, Vec<_>) =
            gains.into_iter().partition(|&(_, at)| nodes[at].right);
        let mut moved = false;
        for (from_left, from_right) in left.into_iter().zip(right) {
            if from_left.0 + from_right.0 <= 0.0 {
                break;
            }
            for at in [from_left.1, from_right.1] {
                let chance = random.next_u64() as f64 / u64::MAX as f64;
                if chance > self.parameters.skip_probability {
                    self.change_side(&mut nodes[at]);
                    moved = true;
                }
            }
        }
        moved
    }

    fn change_side(&mut self, node: &mut BisectedFunction) {
        for &utility in &node.utilities {
            self.signatures[utility as usize].add(node.right, -1);
            self.signatures[utility as usize].add(!node.right, 1);
        }
        node.right = !node.right;
    }

    /// The decrease of the cost when a function changes sides.
    fn gain(&self, node: &BisectedFunction) -> f64 {
        let one = |&utility: &u32| {
            let now = self.signatures[utility as usize];
            let mut then = now;
            then.add(node.right, -1);
            then.add(!node.right, 1);
            now.cost() - then.cost()
        };
        node.utilities.iter().map(one).sum()
    }
}

impl UtilitySignature {
    fn add(&mut self, right: bool, change: i32) {
        let side = if right { &mut self.right } else { &mut self.left };
        *side = side.wrapping_add_signed(change);
    }

    /// The logarithmic gap. It is high when the functions of a utility are spread over both halves.
    fn cost(self) -> f64 {
        let side = |count: u32| f64::from(count) * f64::from(count + 1).log2();
        -(side(self.left) + side(self.right))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{BlockId, Call};

    /// ```text
    ///     0 calls 2 and 4, 1 calls 3 and 5: the two families are separated
    /// ```
    #[test]
    fn functions_that_share_a_caller_lie_together() {
        let call = |from, to| Call { from: BlockId(from), to: BlockId(to), count: 1 };
        let graph = Graph {
            sizes: vec![8; 6],
            counts: vec![1; 6],
            glued: vec![false; 6],
            alignments: vec![1; 6],
            functions: (0..6).map(|n| n..n + 1).collect(),
            calls: vec![call(0, 2), call(0, 4), call(1, 3), call(1, 5)],
            ..Graph::default()
        };
        let order = functions(&HotCode::new(&graph), &BalancedPartitioningParameters::default());
        let mut halves = [order[..3].to_vec(), order[3..].to_vec()];
        halves.iter_mut().for_each(|half| half.sort());
        halves.sort();
        let f = |n| FunctionId(n);
        assert_eq!(halves, [vec![f(0), f(2), f(4)], vec![f(1), f(3), f(5)]]);
    }
}
