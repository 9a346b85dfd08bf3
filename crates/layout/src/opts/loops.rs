//! The loops of an image, and the number of iterations in each invocation.
//!
//! Input: a graph. Output: the natural loops of its executed edges, function by function (Aho,
//! Sethi, Ullman 1986, section 10.4: an edge whose target dominates its source closes a loop). A
//! ring of blocks with several entries, none of which dominates the others, is not a loop here.
//! Calls are not followed: a loop has only blocks of its own function.

use crate::graph::{BlockId, Edge, Graph};
use std::collections::BTreeMap;
use std::ops::Range;

pub(super) struct ScaledLoop {
    /// The smallest loop around this one.
    parent: Option<usize>,
    depth: usize,
    /// The factor from the counts of the loop's blocks to one iteration for each invocation, of
    /// this loop and of the loops around it.
    scale: f64,
    /// The iterations of each invocation, at least 1.
    pub iterations: f64,
    /// The blocks from which control goes back to the header.
    pub latches: Vec<BlockId>,
    /// The blocks of the loop, the header first.
    body: Vec<BlockId>,
}

/// A natural loop, as executed.
#[derive(Clone, Debug, PartialEq)]
pub struct NaturalLoop {
    /// The blocks, all of one function. The first is the header, where the loop is entered.
    pub blocks: Vec<BlockId>,
    /// The executions of the header for each entry from outside, at least 1.
    pub iterations: f64,
}

/// The natural loops of the executed edges: function by function, each loop before the loops within
/// it.
pub fn natural_loops(graph: &Graph) -> Vec<NaturalLoop> {
    let natural = |l: ScaledLoop| NaturalLoop { blocks: l.body, iterations: l.iterations };
    LoopForest::new(graph).loops.into_iter().map(natural).collect()
}

pub(super) struct LoopForest {
    pub loops: Vec<ScaledLoop>,
    /// The smallest loop around each block.
    innermost: Vec<Option<usize>>,
}

impl LoopForest {
    pub(super) fn new(graph: &Graph) -> Self {
        let mut found = LoopForest { loops: Vec::new(), innermost: vec![None; graph.len()] };
        for (function, flow) in function_flows(graph).iter().enumerate() {
            if !flow.edges.is_empty() {
                found.add_function(graph, graph.functions[function].start as usize, flow);
            }
        }
        found
    }

    /// The largest loop around a block with at least `iterations` iterations in each invocation.
    pub(super) fn outermost(&self, block: BlockId, iterations: f64) -> Option<usize> {
        let around =
            std::iter::successors(self.innermost[block.index()], |&l| self.loops[l].parent);
        around.filter(|&l| self.loops[l].iterations >= iterations).last()
    }

    /// The factor for the count of a block if each loop around it ran once for each invocation.
    pub(super) fn block_scale(&self, block: BlockId) -> f64 {
        self.innermost[block.index()].map_or(1.0, |l| self.loops[l].scale)
    }

    /// The same factor for an edge. An edge that leaves a loop is taken once in each invocation
    /// anyway.
    pub(super) fn edge_scale(&self, from: BlockId, to: BlockId) -> f64 {
        let (mut a, mut b) = (self.innermost[from.index()], self.innermost[to.index()]);
        while a != b {
            let depth = |l: Option<usize>| l.map_or(0, |l| self.loops[l].depth);
            let deeper = if depth(a) >= depth(b) { &mut a } else { &mut b };
            *deeper = deeper.and_then(|l| self.loops[l].parent);
        }
        a.map_or(1.0, |l| self.loops[l].scale)
    }

    /// The loops that an edge leaves, the smallest first.
    pub(super) fn left_by(&self, from: BlockId, to: BlockId) -> impl Iterator<Item = usize> {
        let around = |block: BlockId| {
            std::iter::successors(self.innermost[block.index()], |&l| self.loops[l].parent)
        };
        around(from).take_while(move |&l| around(to).all(|other| other != l))
    }

    fn add_function(&mut self, graph: &Graph, start: usize, flow: &FunctionFlow) {
        let dominators = Dominators::new(flow);
        let mut latches: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut back: BTreeMap<usize, u128> = BTreeMap::new();
        for &(from, to, count) in &flow.edges {
            if dominators.dominates(to, from) {
                latches.entry(to).or_default().push(from);
                *back.entry(to).or_insert(0) += u128::from(count);
            }
        }
        let mut bodies: Vec<(Vec<usize>, usize)> = latches
            .iter()
            .map(|(&header, latches)| (body(flow, header, latches), header))
            .collect();
        // A loop around another has more blocks. So parents come first.
        bodies.sort_by_key(|(body, header)| (usize::MAX - body.len(), *header));
        for (body, header) in bodies {
            let parent = self.innermost[start + header];
            let iterations =
                iterations(graph.counts[start + header], back[&header], flow, header, &dominators);
            let around = parent.map(|l| &self.loops[l]);
            let found = ScaledLoop {
                parent,
                depth: around.map_or(1, |l| l.depth + 1),
                scale: around.map_or(1.0, |l| l.scale) / iterations,
                iterations,
                latches: latches[&header].iter().map(|&b| BlockId((start + b) as u32)).collect(),
                body: body.iter().map(|&b| BlockId((start + b) as u32)).collect(),
            };
            body.iter().for_each(|&block| self.innermost[start + block] = Some(self.loops.len()));
            self.loops.push(found);
        }
    }
}

/// The executed edges of a function. Blocks are numbered from its start.
struct FunctionFlow {
    blocks: usize,
    edges: Vec<(usize, usize, u64)>,
    predecessors: Vec<Vec<usize>>,
    successors: Vec<Vec<usize>>,
    /// Where control enters: the entry, and the blocks reached by calls or jumps from elsewhere.
    entries: Vec<usize>,
}

fn function_flows(graph: &Graph) -> Vec<FunctionFlow> {
    let empty = |f: &Range<u32>| FunctionFlow {
        blocks: f.len(),
        edges: Vec::new(),
        predecessors: Vec::new(),
        successors: Vec::new(),
        entries: vec![0],
    };
    let mut flows: Vec<FunctionFlow> = graph.functions.iter().map(empty).collect();
    let place = |block: BlockId| {
        let function = graph.functions.partition_point(|f| f.end <= block.0);
        (function, (block.0 - graph.functions[function].start) as usize)
    };
    for &Edge { from, to, count, .. } in graph.edges.iter().filter(|e| e.count > 0) {
        let ((function, from), (target, to)) = (place(from), place(to));
        let flow = &mut flows[target];
        match function == target {
            true => flow.edges.push((from, to, count)),
            false => flow.entries.push(to),
        }
    }
    for call in graph.calls.iter().filter(|c| c.count > 0) {
        let (function, block) = place(call.to);
        flows[function].entries.push(block);
    }
    for flow in flows.iter_mut().filter(|flow| !flow.edges.is_empty()) {
        flow.predecessors = vec![Vec::new(); flow.blocks];
        flow.successors = vec![Vec::new(); flow.blocks];
        for &(from, to, _) in &flow.edges {
            flow.successors[from].push(to);
            flow.predecessors[to].push(from);
        }
    }
    flows
}

/// The iterations of each invocation: the executions of the header over those that did not come
/// from within. At least 1, for any counts.
fn iterations(
    count: u64,
    back: u128,
    flow: &FunctionFlow,
    header: usize,
    dominators: &Dominators,
) -> f64 {
    let balance = u128::from(count).saturating_sub(back);
    let entries = match balance {
        0 => {
            let into = flow
                .edges
                .iter()
                .filter(|&&(from, to, _)| to == header && !dominators.dominates(header, from));
            into.map(|&(_, _, count)| u128::from(count)).sum::<u128>().max(1)
        }
        balance => balance,
    };
    (count as f64 / entries as f64).max(1.0)
}

/// The header, and the blocks that reach a latch without passing the header.
fn body(flow: &FunctionFlow, header: usize, latches: &[usize]) -> Vec<usize> {
    let mut inside = vec![false; flow.blocks];
    inside[header] = true;
    let mut body = vec![header];
    let mut waiting = latches.to_vec();
    while let Some(block) = waiting.pop() {
        if !std::mem::replace(&mut inside[block], true) {
            body.push(block);
            waiting.extend(&flow.predecessors[block]);
        }
    }
    body
}

/// For each block, the blocks on every path to it (Cooper, Harvey, Kennedy, "A simple, fast
/// dominance algorithm", 2001). A root above all entries stands for the rest of the image. Blocks
/// that no entry reaches are entered at the lowest one.
struct Dominators {
    /// The position of each block in postorder.
    position: Vec<Option<usize>>,
    /// The blocks that each block dominates, by its position in postorder: a range of numbers that
    /// begins with its own.
    dominated: Vec<Range<usize>>,
}

impl Dominators {
    fn new(flow: &FunctionFlow) -> Self {
        let (postorder, entered) = postorder(flow);
        let mut position = vec![None; flow.blocks];
        postorder.iter().enumerate().for_each(|(at, &block)| position[block] = Some(at));
        let root = postorder.len();
        let mut above: Vec<Option<usize>> = vec![None; root + 1];
        above[root] = Some(root);
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for at in (0..root).rev() {
                let block = postorder[at];
                let before = flow.predecessors[block].iter().filter_map(|&p| position[p]);
                let before =
                    before.chain(entered[block].then_some(root)).filter(|&p| above[p].is_some());
                let nearest = before.reduce(|a, b| nearest_common(&above, a, b));
                if above[at] != nearest {
                    above[at] = nearest;
                    changed = true;
                }
            }
        }
        let above: Vec<usize> = above.into_iter().map(|a| a.unwrap_or(root)).collect();
        Dominators { position, dominated: dominated(&above) }
    }

    fn dominates(&self, dominator: usize, block: usize) -> bool {
        let (Some(dominator), Some(block)) = (self.position[dominator], self.position[block])
        else {
            return false;
        };
        self.dominated[dominator].contains(&self.dominated[block].start)
    }
}

/// Numbers the tree of dominators so that the nodes that a node dominates have the numbers behind
/// its own. `above` gives the parent of each node, always a higher position. The last node is the
/// root.
fn dominated(above: &[usize]) -> Vec<Range<usize>> {
    let mut sizes = vec![1; above.len()];
    for at in 0..above.len().saturating_sub(1) {
        sizes[above[at]] += sizes[at];
    }
    let mut ranges = vec![0..0; above.len()];
    // For each node, the first number not yet given to a child.
    let mut free = vec![1; above.len()];
    for at in (0..above.len()).rev() {
        let start = if above[at] == at { 0 } else { free[above[at]] };
        free[above[at]] = start + sizes[at];
        ranges[at] = start..start + sizes[at];
        free[at] = start + 1;
    }
    ranges
}

fn nearest_common(above: &[Option<usize>], mut a: usize, mut b: usize) -> usize {
    while a != b {
        let lower = if a < b { &mut a } else { &mut b };
        // Both have a dominator, and the chain of dominators ends at the root.
        *lower = above[*lower].unwrap_or(above.len() - 1);
    }
    a
}

/// The blocks with edges. Each comes after all blocks to which its edges lead, except for backward
/// edges. Also whether control enters at each.
fn postorder(flow: &FunctionFlow) -> (Vec<usize>, Vec<bool>) {
    let mut order = Vec::new();
    let mut seen = vec![false; flow.blocks];
    let mut entered = vec![false; flow.blocks];
    flow.entries.iter().for_each(|&block| entered[block] = true);
    let entries = flow.entries.iter().copied();
    let others = (0..flow.blocks).filter(|&block| !flow.successors[block].is_empty());
    for entry in entries.chain(others) {
        if std::mem::replace(&mut seen[entry], true) {
            continue;
        }
        entered[entry] = true;
        let mut path = vec![(entry, 0)];
        while let Some((block, next)) = path.last_mut() {
            match flow.successors[*block].get(*next) {
                Some(&successor) => {
                    *next += 1;
                    if !std::mem::replace(&mut seen[successor], true) {
                        path.push((successor, 0));
                    }
                }
                None => {
                    order.push(*block);
                    path.pop();
                }
            }
        }
    }
    (order, entered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::EdgeKind;

    fn graph(counts: &[u64], edges: &[(u32, u32, u64)]) -> Graph {
        let edge = |&(from, to, count)| Edge {
            from: BlockId(from),
            to: BlockId(to),
            count,
            kind: EdgeKind::Jump,
        };
        Graph {
            sizes: vec![1; counts.len()],
            counts: counts.to_vec(),
            glued: vec![false; counts.len()],
            alignments: vec![1; counts.len()],
            functions: std::iter::once(0..counts.len() as u32).collect(),
            edges: edges.iter().map(edge).collect(),
            ..Graph::default()
        }
    }

    fn once(graph: &Graph) -> Vec<f64> {
        let loops = LoopForest::new(graph);
        (0..graph.len())
            .map(|b| graph.counts[b] as f64 * loops.block_scale(BlockId(b as u32)))
            .collect()
    }

    /// ```text
    ///                ┌──────90──────┐
    ///                ▼              │
    ///     0 ──10──▶  1 ──100──▶  2 ─┴─10──▶  3       ten iterations per invocation
    /// ```
    #[test]
    fn a_loop_counts_as_one_iteration_per_invocation() {
        let graph = graph(&[10, 100, 100, 10], &[(0, 1, 10), (1, 2, 100), (2, 1, 90), (2, 3, 10)]);
        assert_eq!(once(&graph), [10.0, 10.0, 10.0, 10.0]);
        let loops = LoopForest::new(&graph);
        assert_eq!(loops.edge_scale(BlockId(1), BlockId(2)), 0.1);
        assert_eq!(loops.edge_scale(BlockId(2), BlockId(3)), 1.0);
        assert_eq!(loops.left_by(BlockId(2), BlockId(3)).collect::<Vec<_>>(), [0]);
        assert_eq!(loops.left_by(BlockId(2), BlockId(1)).count(), 0);
        assert_eq!(loops.loops[0].latches, [BlockId(2)]);
    }

    /// ```text
    ///           ┌────────────40─────────────┐
    ///           │    ┌────150────┐          │
    ///           ▼    ▼           │          │
    ///     0 ──▶ 1 ─▶ 2 ──200──▶  3 ──50──▶  4 ──10──▶ 5     inner loop: 4 times, outer: 5
    /// ```
    #[test]
    fn loops_in_loops_are_scaled_by_both() {
        let edges =
            [(0, 1, 10), (1, 2, 50), (2, 3, 200), (3, 2, 150), (3, 4, 50), (4, 1, 40), (4, 5, 10)];
        let graph = graph(&[10, 50, 200, 200, 50, 10], &edges);
        assert!(once(&graph).iter().all(|&count| (count - 10.0).abs() < 1e-9));
        let loops = LoopForest::new(&graph);
        assert_eq!(loops.left_by(BlockId(3), BlockId(5)).count(), 2);
        assert_eq!(loops.left_by(BlockId(3), BlockId(4)).count(), 1);
    }

    /// ```text
    ///     0 ──▶ 1 ◀──▶ 2 ◀── 0       entered at 1 and at 2: neither dominates the other
    /// ```
    #[test]
    fn a_ring_with_two_entries_is_no_loop() {
        let graph = graph(&[10, 100, 100], &[(0, 1, 5), (0, 2, 5), (1, 2, 95), (2, 1, 95)]);
        assert_eq!(once(&graph), [10.0, 100.0, 100.0]);
    }

    #[test]
    fn a_ring_without_a_known_entry_is_a_loop_at_its_lowest_block() {
        let graph = graph(&[1, 8, 8], &[(1, 2, 8), (2, 1, 8)]);
        assert_eq!(once(&graph), [1.0, 1.0, 1.0]);
    }

    #[test]
    fn a_block_that_jumps_to_itself_is_a_loop() {
        let graph = graph(&[2, 200, 2], &[(0, 1, 2), (1, 1, 198), (1, 2, 2)]);
        assert_eq!(once(&graph), [2.0, 2.0, 2.0]);
    }

    #[test]
    fn unbalanced_counts_never_raise_a_count() {
        let graph = graph(
            &[u64::MAX, 3, u64::MAX],
            &[(0, 1, u64::MAX), (1, 0, u64::MAX), (1, 2, 1), (2, 1, u64::MAX)],
        );
        let once = once(&graph);
        assert!(
            once.iter()
                .zip(&graph.counts)
                .all(|(&scaled, &count)| scaled > 0.0 && scaled <= count as f64)
        );
    }
}
