//! Which piece control can reach from which, within functions.
//!
//! Input: pieces and the sites in them. Output: the edges between pieces, by kind. Calls and
//! returns are not edges. This module never looks at counts.

use super::pieces::{CodeSite, Piece, PieceExit, SiteKind};
use layout::graph::EdgeKind;

/// The edges between pieces by the pieces' ascending numbers, including those of static keys. An
/// edge is left out if no piece begins at its target.
pub fn edges(pieces: &[Piece], sites: &[CodeSite]) -> Vec<(u32, u32, EdgeKind)> {
    let find = |at: u32| pieces.binary_search_by_key(&at, |p| p.at).ok().map(|i| i as u32);
    let mut edges = Vec::new();
    for (i, piece) in (0u32..).zip(pieces) {
        let next =
            pieces.get(i as usize + 1).filter(|n| n.function == piece.function).map(|_| i + 1);
        let falls = matches!(piece.exit, PieceExit::Runs | PieceExit::Branch(_));
        if let (true, Some(next)) = (falls, next) {
            edges.push((i, next, EdgeKind::FallThrough));
        }
        match piece.exit {
            PieceExit::Jump(to) => edges.extend(find(to).map(|to| (i, to, EdgeKind::Jump))),
            PieceExit::Branch(to) => edges.extend(find(to).map(|to| (i, to, EdgeKind::Branch))),
            PieceExit::Stop | PieceExit::Runs => {}
        }
        let from = sites.partition_point(|s| s.at < piece.at);
        let own = sites[from..].iter().take_while(|s| s.at < piece.end());
        let keys = own.filter(|s| matches!(s.kind, SiteKind::StaticKey { .. }));
        edges.extend(keys.filter_map(|s| Some((i, find(s.target)?, EdgeKind::Branch))));
    }
    edges
}

/// For each piece: whether every way out of it is one of `edges`.
pub fn leaves_by_edges(pieces: &[Piece], edges: &[(u32, u32, EdgeKind)]) -> Vec<bool> {
    let mut outs = vec![0; pieces.len()];
    edges.iter().for_each(|&(from, _, _)| outs[from as usize] += 1);
    let complete = |(piece, outs): (&Piece, u32)| match piece.exit {
        PieceExit::Stop => false,
        PieceExit::Runs | PieceExit::Jump(_) => outs >= 1,
        PieceExit::Branch(_) => outs >= 2,
    };
    pieces.iter().zip(outs).map(complete).collect()
}
