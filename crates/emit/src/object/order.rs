//! A layout, which speaks of old link addresses, as an order of pieces.

use ::layout::random::SplitMix64;
use image::address::LinkAddr;
use image::object::KernelObject;
use image::order::Layout;

/// The offsets in `.text` (which lies at `base`, `size` bytes long) at which a layout's runs begin
/// and end, ascending.
pub fn cuts_of(layout: &Layout, base: LinkAddr, size: u64) -> Vec<u32> {
    let ends = layout.runs.iter().flat_map(|r| [r.start.0, r.start.0 + r.size]);
    let mut cuts: Vec<u32> =
        ends.filter(|&a| a >= base.0 && a - base.0 < size).map(|a| (a - base.0) as u32).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// The order of the object's pieces that a layout asks for, and how many of them are in its hot
/// runs. A piece goes where its first byte goes, a nameless one behind the piece that it followed;
/// pieces that no run names stay in their order behind all that are named.
pub fn order_of(layout: &Layout, object: &KernelObject<'_>, base: LinkAddr) -> (Vec<u32>, usize) {
    let mut runs: Vec<(u64, u64, usize)> =
        layout.runs.iter().enumerate().map(|(n, r)| (r.start.0, r.size, n)).collect();
    runs.sort_unstable();
    let run_of = |at: u32| {
        let address = base.0 + u64::from(at);
        let index = runs.partition_point(|r| r.0 <= address).checked_sub(1);
        index
            .map(|i| runs[i])
            .filter(|&(start, size, _)| address - start < size)
            .map_or(usize::MAX, |(_, _, n)| n)
    };
    let mut keyed: Vec<(usize, u32)> = Vec::with_capacity(object.pieces.len());
    for (i, piece) in object.pieces.iter().enumerate() {
        let nameless = object.functions[piece.function as usize].symbol.is_none();
        let run =
            keyed.last().filter(|_| nameless).map_or_else(|| run_of(piece.at), |&(run, _)| run);
        keyed.push((run, i as u32));
    }
    keyed.sort_unstable();
    let hot = keyed.partition_point(|&(run, _)| run < layout.hot);
    (keyed.into_iter().map(|(_, piece)| piece).collect(), hot)
}

/// An order in which every function is in two parts, the one with its entry and one far away, at
/// random: the functions, which blocks go where, the blocks within each part. Gives the order and
/// how many pieces are in the first region.
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
