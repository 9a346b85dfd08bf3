//! The counts of inlined code.
//!
//! Input: the graph of the functions' own copies with the counts of a profile, and what share of a
//! function's executions each copy of its code has. Output: the graph with the blocks of inlined
//! code.

use emit::module::{InPlace, Original};
use image::address::LinkAddr;
use image::object::pieces::Piece;
use layout::graph::{BlockId, Call, Edge, EdgeKind, Graph};
use std::collections::HashMap;

/// What share of a function's executions each copy of its code has.
#[derive(Clone, Debug, Default)]
pub(crate) struct InlineShares {
    /// Per function of the group: its own copy.
    pub(crate) own: Vec<f64>,
    /// Per inlined call: the code in its place.
    pub(crate) inlined: Vec<f64>,
}

/// Adds the blocks of inlined code to the graph of a group's own copies, with their share of the
/// counts.
pub(crate) fn expand(original: &Original<'_, '_>, shares: &InlineShares, own: Graph) -> Graph {
    let (pieces, inlining) = (&original.pieces, &original.inlining);
    let own_pieces = &pieces[..own.sizes.len()];
    let share_of = |function: u32| shares.own[function as usize];
    let scaled = |count: u64, share: f64| (count as f64 * share).round() as u64;
    let mut graph = own.clone();
    let sizes = |piece: &Piece| piece.size.max(1);
    graph.sizes.extend(pieces[own.sizes.len()..].iter().map(sizes));
    graph.counts.resize(pieces.len(), 0);
    graph.glued.resize(pieces.len(), false);
    graph.alignments.resize(pieces.len(), 1);
    for (count, piece) in graph.counts.iter_mut().zip(own_pieces) {
        *count = scaled(*count, share_of(piece.function));
    }
    for edge in &mut graph.edges {
        edge.count = scaled(edge.count, share_of(pieces[edge.from.index()].function));
    }
    for call in &mut graph.calls {
        call.count = scaled(call.count, share_of(pieces[call.from.index()].function));
    }
    let edges = by_block(own.sizes.len(), own.edges.iter().map(|e| (e.from, *e)));
    let calls = by_block(own.sizes.len(), own.calls.iter().map(|c| (c.from, *c)));
    for (n, _) in (0u32..).zip(inlining.calls()) {
        let (context, share) = (n + 1, shares.inlined[n as usize]);
        let range = inlining.pieces(context, pieces.len());
        let copy_of: HashMap<BlockId, BlockId> = range
            .clone()
            .filter_map(|copy| Some((own_piece(own_pieces, &pieces[copy])?, BlockId(copy as u32))))
            .collect();
        for (&of, &copy) in &copy_of {
            graph.counts[copy.index()] = scaled(own.counts[of.index()], share);
            graph.edges.extend(edges[of.index()].iter().filter_map(|edge| {
                let to = *copy_of.get(&edge.to)?;
                Some(Edge { from: copy, to, count: scaled(edge.count, share), ..*edge })
            }));
            graph.calls.extend(calls[of.index()].iter().map(|call| Call {
                from: copy,
                count: scaled(call.count, share),
                ..*call
            }));
        }
        graph.functions.push(range.start as u32..range.end as u32);
    }
    join(original, &mut graph);
    graph.edges.sort_by_key(|edge| (edge.from.0, edge.to.0));
    graph.calls.sort_by_key(|call| (call.from.0, call.to.0));
    graph
}

/// Leads each inlined call into its code, and the code's returns behind the call. An indirect call
/// keeps what does not go to the function that was promoted.
fn join(original: &Original<'_, '_>, graph: &mut Graph) {
    let (pieces, inlining) = (&original.pieces, &original.inlining);
    let mut callee_of: HashMap<BlockId, (BlockId, Option<BlockId>)> = HashMap::new();
    let mut left: HashMap<(BlockId, BlockId), u64> = HashMap::new();
    for (n, call) in (0u32..).zip(inlining.calls()) {
        let (caller, behind) = inlining.joint(n);
        let callee = match call.code {
            InPlace::Code(callee) => Some(graph.functions[callee as usize].start),
            InPlace::Call(target) => own_entry(original, target),
        };
        callee_of.insert(BlockId(caller), (BlockId(behind), callee.map(BlockId)));
        if let Some(unlikely) = inlining.unlikely(n) {
            let promoted = graph.counts[inlining.entry(n) as usize];
            left.insert((BlockId(caller), BlockId(unlikely)), promoted);
            left.insert((BlockId(unlikely), BlockId(behind)), promoted);
            let count = &mut graph.counts[unlikely as usize];
            *count = count.saturating_sub(promoted);
        }
    }
    for edge in &mut graph.edges {
        let promoted = left.get(&(edge.from, edge.to)).copied().unwrap_or(0);
        edge.count = edge.count.saturating_sub(promoted);
    }
    graph.edges.retain(|edge| callee_of.get(&edge.from).is_none_or(|&(to, _)| edge.to != to));
    graph.calls.retain(|call| callee_of.get(&call.from).is_none_or(|&(_, to)| to != Some(call.to)));
    for (n, call) in (0u32..).zip(inlining.calls()) {
        let (caller, behind) = inlining.joint(n);
        let range = inlining.pieces(n + 1, pieces.len());
        let (entry, kind) = (inlining.entry(n), EdgeKind::Jump);
        let counted = if inlining.unlikely(n).is_some() { entry } else { caller };
        let mut jump = |from: u32, to: u32, count| {
            graph.edges.push(Edge { from: BlockId(from), to: BlockId(to), count, kind });
        };
        jump(caller, entry, graph.counts[counted as usize]);
        for piece in range.filter(|&piece| original.leaves_inlined(piece)) {
            jump(piece as u32, behind, graph.counts[piece]);
        }
        if let InPlace::Call(target) = call.code
            && let Some(to) = own_entry(original, target)
        {
            let count = graph.counts[entry as usize];
            graph.calls.push(Call { from: BlockId(entry), to: BlockId(to), count });
        }
    }
}

/// The piece of the group's own copies that begins at an address.
fn own_entry(original: &Original<'_, '_>, at: LinkAddr) -> Option<u32> {
    let offset = u32::try_from(at.0.checked_sub(original.kernel.text.start)?).ok()?;
    let own = original.inlining.pieces(0, original.pieces.len());
    Some(original.pieces[own].binary_search_by_key(&offset, |piece| piece.at).ok()? as u32)
}

/// The piece of a function's own copy of which a piece of inlined code is another copy.
fn own_piece(own: &[Piece], inlined: &Piece) -> Option<BlockId> {
    let index = own.partition_point(|piece| piece.at <= inlined.at).checked_sub(1)?;
    (own[index].end() == inlined.end()).then_some(BlockId(index as u32))
}

fn by_block<T>(blocks: usize, elements: impl Iterator<Item = (BlockId, T)>) -> Vec<Vec<T>> {
    let mut found: Vec<Vec<T>> = (0..blocks).map(|_| Vec::new()).collect();
    elements.for_each(|(block, element)| found[block.index()].push(element));
    found
}
