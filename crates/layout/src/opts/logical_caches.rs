//! Section 4.2: the most popular pieces get cache lines that no other code uses.
//!
//! Memory is divided into logical caches: stretches of the size of the cache. The first
//! `SelfConfFree` bytes of the first one hold the most popular pieces. In the others, they hold
//! seldom executed code:
//!
//! ```text
//!            logical cache 0    logical cache 1    logical cache 2
//! end       ┌────────────────┐ ┌────────────────┐ ┌────────────────┐
//!           │ sequences      │ │ sequences      │ │ sequences      │
//! area      ├────────────────┤ ├────────────────┤ ├────────────────┤
//!           │ most popular   │ │ seldom executed│ │ seldom executed│
//! 0         └────────────────┘ └────────────────┘ └────────────────┘
//! ```
//!
//! Input: the sequences. Output: the order of all hot pieces, filled up with cold pieces.

use super::transitions::Transitions;
use super::{LoopArea, OptSParameters, conflict_grid};
use crate::filling::Filling;
use crate::graph::BlockId;
use crate::hot::HotCode;
use crate::pieces::PieceId;

pub(super) fn place(
    hot: &HotCode,
    transitions: &Transitions,
    sequences: Vec<PieceId>,
    parameters: &OptSParameters,
) -> Vec<PieceId> {
    let popular = popular(hot, transitions, &sequences, parameters);
    let (first, others): (Vec<PieceId>, Vec<PieceId>) =
        sequences.into_iter().partition(|p| popular[p.index()]);
    let mut layout = Filling::new(hot);
    first.into_iter().for_each(|piece| layout.put(piece));
    // The area has whole lines, because lines conflict.
    let area = layout.address.next_multiple_of(parameters.line_bytes);
    let cache = parameters.cache_bytes;
    let (others, grid) = match parameters.loop_area {
        LoopArea::InSequences => (others, Vec::new()),
        LoopArea::Behind => {
            (loops_behind(hot, transitions, others, parameters.min_iterations), Vec::new())
        }
        LoopArea::WithCallees => {
            conflict_grid::pull_out(hot, transitions, others, area, parameters)
        }
    };
    for piece in others {
        let (start, end) = layout.range(piece);
        if let Some(area_end) = touched_area(start, end, cache, area) {
            layout.fill(area_end, parameters.line_bytes);
        }
        layout.put(piece);
    }
    for own in grid {
        let base = layout.address.next_multiple_of(cache);
        for (offset, pieces) in own {
            layout.fill(base + offset, parameters.line_bytes);
            pieces.into_iter().for_each(|piece| layout.put(piece));
        }
    }
    layout.order
}

/// Section 4.3: moves the pieces of loops with many iterations from the sequences to their end, in
/// the same order.
fn loops_behind(
    hot: &HotCode,
    transitions: &Transitions,
    sequences: Vec<PieceId>,
    iterations: f64,
) -> Vec<PieceId> {
    let in_loop = |piece: &PieceId| in_loop(hot, transitions, *piece, iterations);
    let (loops, mut rest): (Vec<PieceId>, Vec<PieceId>) = sequences.into_iter().partition(in_loop);
    rest.extend(loops);
    rest
}

/// Whether a piece belongs to a loop with at least this number of iterations.
pub(super) fn in_loop(
    hot: &HotCode,
    transitions: &Transitions,
    piece: PieceId,
    iterations: f64,
) -> bool {
    let mut blocks = hot.pieces.blocks(piece).map(BlockId);
    blocks.any(|block| transitions.loops.outermost(block, iterations).is_some())
}

/// The end of the SelfConfFree area that a piece from `start` to `end` would touch, in a logical
/// cache behind the first. `None` when the piece touches no area, or does not fit between two
/// areas.
fn touched_area(start: u64, end: u64, cache: u64, area: u64) -> Option<u64> {
    let own = start / cache * cache;
    let inside = own > 0 && start < own + area;
    let touched = if inside { own } else { own.saturating_add(cache) };
    (area > 0 && end > touched && end - start <= cache - area)
        .then_some(touched.saturating_add(area))
}

/// The pieces of the SelfConfFree area: from the most popular down to the cut-off, as many as fit.
pub(super) fn popular(
    hot: &HotCode,
    transitions: &Transitions,
    sequences: &[PieceId],
    parameters: &OptSParameters,
) -> Vec<bool> {
    let popularity = |p: PieceId| transitions.popularity[p.index()];
    let mut candidates: Vec<PieceId> = sequences
        .iter()
        .copied()
        .filter(|&p| popularity(p) >= parameters.self_conf_free_cutoff)
        .collect();
    candidates.sort_by(|&a, &b| popularity(b).total_cmp(&popularity(a)).then(a.cmp(&b)));
    let mut popular = vec![false; hot.pieces.len()];
    let mut used = 0;
    for piece in candidates {
        let bytes = hot.most_bytes(piece);
        if used + bytes <= parameters.self_conf_free_bytes {
            popular[piece.index()] = true;
            used += bytes;
        }
    }
    popular
}

#[cfg(test)]
mod tests {
    use super::touched_area;

    #[test]
    fn areas_begin_every_logical_cache_but_the_first() {
        let touched = |start, end| touched_area(start, end, 8192, 1024);
        assert_eq!(touched(1000, 1100), None);
        assert_eq!(touched(8000, 8192), None);
        assert_eq!(touched(8000, 8193), Some(9216));
        assert_eq!(touched(8192, 8200), Some(9216));
        assert_eq!(touched(9215, 9300), Some(9216));
        assert_eq!(touched(9216, 16384), None);
        assert_eq!(touched(9217, 16385), Some(17408));
        assert_eq!(touched(9216, 16385), None, "larger than the room between two areas");
        assert_eq!(touched_area(8000, 8300, 8192, 0), None, "no area");
    }
}
