//! Turns a layout, which names old link addresses, into an order of pieces.
//!
//! Input: a layout and the object. Output: a permutation of the pieces, and how many of them are
//! hot. This module places nothing and writes nothing.

use ::layout::random::SplitMix64;
use image::address::LinkAddr;
use image::object::KernelObject;
use image::order::{Layout, Run};
use image::runs::LayoutRuns;

/// The ascending offsets at which a layout's runs begin and end, in a `.text` of `size` bytes at
/// `base`.
pub(crate) fn cuts_of(layout: &Layout, base: LinkAddr, size: u64) -> Vec<u32> {
    let ends = layout.runs.iter().flat_map(|r| [r.start.0, r.start.0 + r.size]);
    let mut cuts: Vec<u32> =
        ends.filter(|&a| a >= base.0 && a - base.0 < size).map(|a| (a - base.0) as u32).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// The order of the object's pieces according to a layout, and the number of pieces in its hot
/// runs. A piece goes with the run that holds its first byte. A nameless piece stays behind the
/// piece that it followed. Pieces without a run keep their order behind all others.
pub(crate) fn order_of(
    layout: &Layout,
    object: &KernelObject<'_>,
    base: LinkAddr,
) -> (Vec<u32>, usize) {
    let runs = LayoutRuns::of(layout);
    let mut run_of_each: Vec<usize> = Vec::with_capacity(object.pieces.len());
    for piece in &object.pieces {
        let nameless = object.functions[piece.function as usize].symbol.is_none();
        let run_before = run_of_each.last().copied().filter(|_| nameless);
        let run = run_before.unwrap_or_else(|| runs.run_of(LinkAddr(base.0 + u64::from(piece.at))));
        run_of_each.push(run);
    }
    runs.order(run_of_each.into_iter())
}

/// The share of the bytes of a layout's hot runs that begin inside of functions which stay whole:
/// there they keep their place.
pub(crate) fn hot_share_in_whole(
    layout: &Layout,
    object: &KernelObject<'_>,
    base: LinkAddr,
) -> f64 {
    let hot = &layout.runs[..layout.hot.min(layout.runs.len())];
    let is_kept = |run: &&Run| {
        let offset = run.start.0.checked_sub(base.0).and_then(|at| u32::try_from(at).ok());
        let piece = offset.zip(offset.and_then(|at| object.piece_at(at)));
        piece.is_some_and(|(at, piece)| {
            let piece = &object.pieces[piece];
            let is_inside = piece.at < at && at < piece.end();
            is_inside && object.functions[piece.function as usize].whole.is_some()
        })
    };
    let all: u64 = hot.iter().map(|run| run.size).sum();
    let kept: u64 = hot.iter().filter(is_kept).map(|run| run.size).sum();
    kept as f64 / all.max(1) as f64
}

/// A random order that splits every function into two parts: one with its entry, and one far away.
/// The order of the functions, the part of each block, and the order of blocks within a part are
/// random. Returns the order and the number of pieces in the first region.
pub fn two_regions(object: &KernelObject<'_>, seed: u64) -> (Vec<u32>, usize) {
    let mut random = SplitMix64::new(seed);
    let mut functions: Vec<Vec<u32>> = vec![Vec::new(); object.functions.len()];
    for (i, piece) in object.pieces.iter().enumerate() {
        functions[piece.function as usize].push(i as u32);
    }
    random.shuffle(&mut functions);
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for pieces in functions.iter().filter(|p| !p.is_empty()) {
        let (mut here, mut there): (Vec<u32>, Vec<u32>) =
            pieces[1..].iter().partition(|_| random.below(2) == 0);
        random.shuffle(&mut here);
        random.shuffle(&mut there);
        near.push(pieces[0]);
        near.extend(here);
        far.extend(there);
    }
    let hot = near.len();
    near.extend(far);
    (near, hot)
}
