//! Pettis and Hansen's code positioning: chains of blocks, procedure splitting, and procedures by
//! "closest is best".
//!
//! K. Pettis, R. C. Hansen, "Profile guided code positioning" (PLDI 1990). Input: a graph. Output:
//! its order. `docs/algorithms/pettis-hansen.md` explains the idea and our changes.

use crate::closest::Closest;
use crate::graph::{FunctionId, Graph, Ordered};
use crate::hot::{HotCode, PieceTransfer};
use crate::pieces::PieceId;
use crate::row::{AlgorithmRow, MakeOrder, Uses};
use crate::validate::{InputError, validate};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Pettis and Hansen's chains, splitting and "closest is best".
pub(crate) const PETTIS_HANSEN: AlgorithmRow = AlgorithmRow {
    name: "pettis-hansen",
    uses: Uses::Counts,
    order: MakeOrder::One(|graph| pettis_hansen(graph, &Default::default())),
};

/// The parameters of Pettis and Hansen's layout. The paper has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PettisHansenParameters {}

/// Orders the blocks of each function in chains, then the functions by their calls. Cold code
/// ("fluff") follows in its original order.
///
/// # Errors
/// The graph breaks a rule.
pub(crate) fn pettis_hansen(
    graph: &Graph,
    _: &PettisHansenParameters,
) -> Result<Ordered, InputError> {
    validate(graph)?;
    let hot = HotCode::new(graph);
    let flows = hot.edge_transfers_by_function();
    let functions = procedures(&hot);
    let blocks = |function: FunctionId| blocks(&hot, function, &flows[function.index()]);
    Ok(hot.finish(functions.into_iter().flat_map(blocks).collect()))
}

/// Section 4: the hot pieces of one function, in chains.
fn blocks(hot: &HotCode, function: FunctionId, flows: &[PieceTransfer]) -> Vec<PieceId> {
    chained(&hot.functions[function.index()], hot, hot.entry_is_hot(function), flows)
}

/// Some pieces of one function in chains. `pieces` ascend. If the first is the entry, it comes
/// first.
pub(crate) fn chained(
    pieces: &[PieceId],
    hot: &HotCode,
    entry_first: bool,
    flows: &[PieceTransfer],
) -> Vec<PieceId> {
    let mut arcs: BTreeMap<(usize, usize), u128> = BTreeMap::new();
    let mut chainable: BTreeMap<(usize, usize), u128> = BTreeMap::new();
    for flow in flows {
        let (Ok(from), Ok(to)) = (pieces.binary_search(&flow.from), pieces.binary_search(&flow.to))
        else {
            continue;
        };
        *arcs.entry((from, to)).or_insert(0) += u128::from(flow.count);
        if flow.may_fall && hot.adjoining(flow) && !(entry_first && to == 0) {
            *chainable.entry((from, to)).or_insert(0) += u128::from(flow.count);
        }
    }
    let chains = chains(pieces.len(), chainable);
    chain_order(chains, &arcs).into_iter().map(|node| pieces[node]).collect()
}

/// Section 4.2, "bottom-up": takes the arcs from the heaviest down. An arc from the tail of one
/// chain to the head of another joins the two.
pub(crate) fn chains(nodes: usize, arcs: BTreeMap<(usize, usize), u128>) -> Vec<Vec<usize>> {
    let mut by_weight: Vec<((usize, usize), u128)> = arcs.into_iter().collect();
    by_weight.sort_by_key(|&(arc, weight)| (Reverse(weight), arc));
    let mut next: Vec<Option<usize>> = vec![None; nodes];
    let mut is_head = vec![true; nodes];
    // For the tail of a chain, its head. For the head, its tail.
    let mut other_end: Vec<usize> = (0..nodes).collect();
    for ((from, to), _) in by_weight {
        if next[from].is_none() && is_head[to] && other_end[from] != to {
            next[from] = Some(to);
            is_head[to] = false;
            let (head, tail) = (other_end[from], other_end[to]);
            other_end[head] = tail;
            other_end[tail] = head;
        }
    }
    let chain = |head: usize| std::iter::successors(Some(head), |&node| next[node]).collect();
    (0..nodes).filter(|&node| is_head[node]).map(chain).collect()
}

/// The chain of the entry comes first (it has the lowest node). Next comes the chain that control
/// reaches most often from the placed ones, so that branches between chains go forward. If none is
/// reached, the chain with the lowest first node is next.
fn chain_order(chains: Vec<Vec<usize>>, arcs: &BTreeMap<(usize, usize), u128>) -> Vec<usize> {
    let mut chain_of = vec![0; chains.iter().map(Vec::len).sum()];
    for (number, chain) in chains.iter().enumerate() {
        chain.iter().for_each(|&node| chain_of[node] = number);
    }
    let mut between: Vec<BTreeMap<usize, u128>> = vec![BTreeMap::new(); chains.len()];
    for (&(from, to), &weight) in arcs {
        *between[chain_of[from]].entry(chain_of[to]).or_insert(0) += weight;
    }
    let mut reached = vec![0u128; chains.len()];
    let mut placed = vec![false; chains.len()];
    let mut heap: BinaryHeap<(u128, Reverse<usize>)> =
        (0..chains.len()).map(|chain| (0, Reverse(chain))).collect();
    let mut order = Vec::with_capacity(chain_of.len());
    while let Some((weight, Reverse(chain))) = heap.pop() {
        if placed[chain] || weight != reached[chain] {
            continue;
        }
        placed[chain] = true;
        order.extend(&chains[chain]);
        for (&to, &weight) in &between[chain] {
            reached[to] += weight;
            heap.push((reached[to], Reverse(to)));
        }
    }
    order
}

/// Section 3, "closest is best": joins the two groups of functions that call each other most, until
/// no two groups have calls between them. The ends that call each other most become adjacent.
fn procedures(hot: &HotCode) -> Vec<FunctionId> {
    let mut calls: BTreeMap<(FunctionId, FunctionId), u128> = BTreeMap::new();
    for ((caller, callee), count) in hot.arcs() {
        *calls.entry((caller.min(callee), caller.max(callee))).or_insert(0) += count;
    }
    let weights = calls.iter().map(|(&(a, b), &weight)| ((a.index(), b.index()), weight));
    let mut closest = Closest::new(hot.functions.len(), weights);
    let mut groups = ProcedureGroups::new(hot, calls);
    while let Some((a, b)) = closest.pair() {
        let joined = groups.joined(a, b);
        groups.functions[closest.join(a, b)] = joined;
    }
    groups.order(hot)
}

struct ProcedureGroups {
    /// The original calls between functions, the lower function first.
    calls: BTreeMap<(FunctionId, FunctionId), u128>,
    /// The functions of each group. Empty when the group was joined to another.
    functions: Vec<Vec<FunctionId>>,
}

impl ProcedureGroups {
    fn new(hot: &HotCode, calls: BTreeMap<(FunctionId, FunctionId), u128>) -> Self {
        let alone = |f: usize| {
            if hot.functions[f].is_empty() { Vec::new() } else { vec![FunctionId(f as u32)] }
        };
        ProcedureGroups { calls, functions: (0..hot.functions.len()).map(alone).collect() }
    }

    /// Removes two groups and returns the group of both.
    fn joined(&mut self, a: usize, b: usize) -> Vec<FunctionId> {
        let mut joined = std::mem::take(&mut self.functions[a]);
        let mut other = std::mem::take(&mut self.functions[b]);
        self.turn(&mut joined, &mut other);
        joined.extend(other);
        joined
    }

    /// Reverses one or both of two groups so that the two ends with most calls meet: the last of
    /// the first group and the first of the second. Among equals, the fewest groups are reversed.
    fn turn(&self, first: &mut [FunctionId], second: &mut [FunctionId]) {
        let ends = |group: &[FunctionId]| Some((*group.first()?, *group.last()?));
        let (Some((first_head, first_tail)), Some((second_head, second_tail))) =
            (ends(first), ends(second))
        else {
            return;
        };
        let weight = |a: FunctionId, b: FunctionId| {
            self.calls.get(&(a.min(b), a.max(b))).copied().unwrap_or(0)
        };
        let ways = [
            (weight(first_tail, second_head), false, false),
            (weight(first_tail, second_tail), false, true),
            (weight(first_head, second_head), true, false),
            (weight(first_head, second_tail), true, true),
        ];
        let most = ways.iter().map(|way| way.0).max();
        if let Some(&(_, turn_first, turn_second)) = ways.iter().find(|way| Some(way.0) == most) {
            if turn_first {
                first.reverse();
            }
            if turn_second {
                second.reverse();
            }
        }
    }

    /// The groups one behind the other, the one with most fetched bytes for each byte first.
    fn order(self, hot: &HotCode) -> Vec<FunctionId> {
        let mut groups: Vec<(f64, Vec<FunctionId>)> = self
            .functions
            .into_iter()
            .filter(|group| !group.is_empty())
            .map(|group| (hot.density(&group), group))
            .collect();
        groups.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1[0].cmp(&b.1[0])));
        groups.into_iter().flat_map(|(_, group)| group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arcs(arcs: &[(usize, usize, u128)]) -> BTreeMap<(usize, usize), u128> {
        arcs.iter().map(|&(from, to, weight)| ((from, to), weight)).collect()
    }

    /// ```text
    ///     0 ─10▶ 1 ─100▶ 2 ─99▶ 1
    ///     a loop 1 2, entered at 1: the heaviest arc joins, the arc back would close a ring
    /// ```
    #[test]
    fn an_arc_back_to_the_head_of_its_own_chain_joins_nothing() {
        assert_eq!(chains(3, arcs(&[(0, 1, 10), (1, 2, 100), (2, 1, 99)])), [[0, 1, 2]]);
    }

    #[test]
    fn chains_follow_the_one_that_reaches_them_most() {
        let order = chain_order(
            vec![vec![0, 1], vec![2], vec![3]],
            &arcs(&[(0, 1, 50), (1, 2, 5), (1, 3, 9)]),
        );
        assert_eq!(order, [0, 1, 3, 2]);
    }

    /// ```text
    ///     A ══10══ B      C ══8══ D
    ///     then A ──4── D: A B and C D are joined with A beside D: B A D C or its mirror image
    /// ```
    #[test]
    fn groups_join_where_they_are_closest() {
        let f = |n| FunctionId(n);
        let graph = Graph {
            sizes: vec![1; 4],
            counts: vec![1; 4],
            glued: vec![false; 4],
            alignments: vec![1; 4],
            functions: (0..4).map(|n| n..n + 1).collect(),
            calls: [(0, 1, 10), (2, 3, 8), (0, 3, 4)]
                .map(|(from, to, count)| crate::graph::Call {
                    from: crate::graph::BlockId(from),
                    to: crate::graph::BlockId(to),
                    count,
                })
                .to_vec(),
            ..Graph::default()
        };
        assert_eq!(procedures(&HotCode::new(&graph)), [f(1), f(0), f(3), f(2)]);
    }
}
