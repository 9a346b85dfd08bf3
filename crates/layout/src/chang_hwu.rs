//! Chang and Hwu's layout: traces of blocks, functions trace by trace, and functions in the order
//! of a weighted depth-first search.
//!
//! W. W. Hwu, P. P. Chang, "Achieving high instruction cache performance with an optimizing
//! compiler" (ISCA 1989), steps 3 to 5. Torrellas (1998, section 5) compares with this layout as
//! C-H. Input: a graph. Output: its order. `docs/algorithms/chang-hwu.md` explains the idea and our
//! changes.

use crate::graph::{FunctionId, Graph, Ordered};
use crate::hot::{HotCode, PieceTransfer};
use crate::pieces::PieceId;
use crate::row::{AlgorithmRow, MakeOrder, Uses};
use crate::validate::{InputError, at_least, validate};
use std::collections::BTreeMap;

/// Chang and Hwu's traces and depth-first order of functions (C-H).
pub(crate) const CHANG_HWU: AlgorithmRow = AlgorithmRow {
    name: "chang-hwu",
    uses: Uses::Counts,
    order: MakeOrder::One(|graph| chang_hwu(graph, &Default::default())),
};

/// The parameters of Chang and Hwu's layout.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChangHwuParameters {
    /// A trace grows along an arc only when the arc has at least this share of the executions that
    /// leave its source and of those that enter its target (MIN_PROB).
    pub min_probability: f64,
}

impl Default for ChangHwuParameters {
    fn default() -> Self {
        ChangHwuParameters { min_probability: 0.7 }
    }
}

/// Orders the blocks of each function in traces, then the functions by their calls. Cold code
/// follows in its original order.
///
/// # Errors
/// The graph or a parameter breaks a rule.
pub(crate) fn chang_hwu(
    graph: &Graph,
    parameters: &ChangHwuParameters,
) -> Result<Ordered, InputError> {
    validate(graph)?;
    at_least("min_probability", parameters.min_probability, 0.0)?;
    let hot = HotCode::new(graph);
    let flows = hot.edge_transfers_by_function();
    let blocks =
        |f: FunctionId| FunctionArcs::new(&hot, f, &flows[f.index()], parameters).lay_out();
    Ok(hot.finish(functions(&hot).into_iter().flat_map(blocks).collect()))
}

/// The arcs between pieces of a function that could be fall-throughs: out of each piece, and into
/// it.
struct FunctionArcs<'a> {
    hot: &'a HotCode<'a>,
    pieces: &'a [PieceId],
    /// Whether the first piece is the entry. No trace may run into the entry.
    entry_first: bool,
    out: Vec<Vec<(usize, u128)>>,
    into: Vec<Vec<(usize, u128)>>,
    parameters: &'a ChangHwuParameters,
}

impl<'a> FunctionArcs<'a> {
    fn new(
        hot: &'a HotCode<'a>,
        function: FunctionId,
        flows: &[PieceTransfer],
        parameters: &'a ChangHwuParameters,
    ) -> Self {
        let pieces = &hot.functions[function.index()];
        let mut arcs: BTreeMap<(usize, usize), u128> = BTreeMap::new();
        for flow in flows.iter().filter(|flow| flow.may_fall && hot.adjoining(flow)) {
            *arcs.entry((hot.local(flow.from), hot.local(flow.to))).or_insert(0) +=
                u128::from(flow.count);
        }
        let mut out = vec![Vec::new(); pieces.len()];
        let mut into = vec![Vec::new(); pieces.len()];
        for (&(from, to), &count) in &arcs {
            out[from].push((to, count));
            into[to].push((from, count));
        }
        let entry_first = hot.entry_is_hot(function);
        FunctionArcs { hot, pieces, entry_first, out, into, parameters }
    }

    fn count(&self, node: usize) -> f64 {
        self.hot.count(self.pieces[node]) as f64
    }

    /// "Function layout": the trace of the entry comes first. Next comes the trace whose head is
    /// reached most often from the last tail. If none is reached, the trace that ran most is next.
    fn lay_out(&self) -> Vec<PieceId> {
        let traces = self.traces();
        let mut led_by = vec![None; self.pieces.len()];
        traces.iter().enumerate().for_each(|(number, trace)| led_by[trace[0]] = Some(number));
        let mut placed = vec![false; traces.len()];
        let mut order: Vec<usize> = Vec::with_capacity(self.pieces.len());
        let mut next = led_by.first().copied().flatten().filter(|_| self.entry_first);
        let mut waiting = 0..traces.len();
        while let Some(number) = next.or_else(|| waiting.find(|&number| !placed[number])) {
            placed[number] = true;
            order.extend(&traces[number]);
            let tail = traces[number].last().copied();
            let reached = tail.iter().flat_map(|&tail| &self.out[tail]);
            let reached = reached
                .filter_map(|&(to, count)| Some((count, led_by[to].filter(|&n| !placed[n])?)));
            next = reached
                .max_by_key(|&(count, number)| (count, std::cmp::Reverse(number)))
                .map(|(_, number)| number);
        }
        order.into_iter().map(|node| self.pieces[node]).collect()
    }

    /// "Trace selection": a trace starts at the piece that ran most and grows forward and backward
    /// along likely arcs. The next trace starts at the next piece that is in no trace.
    fn traces(&self) -> Vec<Vec<usize>> {
        let mut by_count: Vec<usize> = (0..self.pieces.len()).collect();
        by_count.sort_by(|&a, &b| self.count(b).total_cmp(&self.count(a)).then(a.cmp(&b)));
        let mut taken = vec![false; self.pieces.len()];
        let mut traces = Vec::new();
        for seed in by_count {
            if std::mem::replace(&mut taken[seed], true) {
                continue;
            }
            let mut trace = std::collections::VecDeque::from([seed]);
            let mut end = seed;
            while let Some(next) =
                self.likely(&self.out[end], end, &taken).filter(|&n| !(self.entry_first && n == 0))
            {
                taken[next] = true;
                trace.push_back(next);
                end = next;
            }
            let mut start = seed;
            while let Some(before) = Some(start)
                .filter(|&s| !(self.entry_first && s == 0))
                .and_then(|s| self.likely(&self.into[s], s, &taken))
            {
                taken[before] = true;
                trace.push_front(before);
                start = before;
            }
            traces.push(Vec::from(trace));
        }
        traces
    }

    /// The other end of a node's heaviest arc, if the arc is likely for both ends and the other end
    /// is in no trace.
    fn likely(&self, arcs: &[(usize, u128)], node: usize, taken: &[bool]) -> Option<usize> {
        let heaviest = arcs.iter().map(|&(_, count)| count).max()?;
        let &(other, count) = arcs.iter().find(|&&(_, count)| count == heaviest)?;
        let likely = |of: usize| count as f64 >= self.parameters.min_probability * self.count(of);
        (!taken[other] && likely(node) && likely(other)).then_some(other)
    }
}

/// "Global layout": a depth-first search of the call graph that follows the most frequent calls
/// first. A function is placed where it is first reached. The search begins at the functions at
/// which the kernel is entered, the most frequent first, and then continues with those it has not
/// reached.
fn functions(hot: &HotCode) -> Vec<FunctionId> {
    let mut callees: Vec<Vec<(FunctionId, u128)>> = vec![Vec::new(); hot.functions.len()];
    for ((caller, callee), count) in hot.arcs() {
        callees[caller.index()].push((callee, count));
    }
    callees.iter_mut().for_each(|callees| {
        callees.sort_by_key(|&(callee, count)| (std::cmp::Reverse(count), callee))
    });
    let mut placed = vec![false; hot.functions.len()];
    let mut order = Vec::new();
    for root in hot.roots() {
        let mut waiting = vec![root];
        while let Some(function) = waiting.pop() {
            if !std::mem::replace(&mut placed[function.index()], true) {
                order.push(function);
                waiting.extend(callees[function.index()].iter().rev().map(|&(callee, _)| callee));
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{BlockId, Edge, EdgeKind};

    /// ```text
    ///     0 ──90──▶ 2 ──60──▶ 3      60 of 90 executions of 2 go to 3: the trace 0 2 ends
    ///     │10       │30       ▲
    ///     ▼         ▼         │
    ///     1         4 ────────┘ 30
    /// ```
    #[test]
    fn a_trace_ends_where_no_way_on_is_likely() {
        let edge = |from, to, count| Edge {
            from: BlockId(from),
            to: BlockId(to),
            count,
            kind: EdgeKind::Jump,
        };
        let graph = Graph {
            sizes: vec![8; 5],
            counts: vec![100, 10, 90, 90, 30],
            glued: vec![false; 5],
            alignments: vec![1; 5],
            functions: std::iter::once(0..5).collect(),
            edges: vec![
                edge(0, 1, 10),
                edge(0, 2, 90),
                edge(2, 3, 60),
                edge(2, 4, 30),
                edge(4, 3, 30),
            ],
            ..Graph::default()
        };
        let hot = HotCode::new(&graph);
        let parameters = ChangHwuParameters::default();
        let function = FunctionArcs::new(
            &hot,
            FunctionId(0),
            &hot.edge_transfers_by_function()[0],
            &parameters,
        );
        assert_eq!(function.traces(), [vec![0, 2], vec![3], vec![4], vec![1]]);
        let ordered = chang_hwu(&graph, &parameters).unwrap();
        assert_eq!(ordered.order.0, [0, 2, 3, 4, 1].map(BlockId));
    }
}
