//! A layout, which speaks of old link addresses, as an order of pieces.

use crate::image::address::LinkAddr;
use crate::image::object::KernelObject;
use crate::order::Layout;

/// The offsets in `.text` (which lies at `base`, `size` bytes long) at which a layout's runs begin and end, ascending.
pub fn cuts_of(layout: &Layout, base: LinkAddr, size: u64) -> Vec<u32> {
    let ends = layout.runs.iter().flat_map(|r| [r.start.0, r.start.0 + r.size]);
    let mut cuts: Vec<u32> = ends
        .filter(|&a| a >= base.0 && a - base.0 < size)
        .map(|a| (a - base.0) as u32)
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// The order of the object's pieces that a layout asks for, and how many of them are in its hot runs. A piece goes where its first byte
/// goes; pieces that no run names stay in their order behind all that are named.
pub fn order_of(layout: &Layout, object: &KernelObject<'_>, base: LinkAddr) -> (Vec<u32>, usize) {
    let mut runs: Vec<(u64, u64, usize)> = layout.runs.iter().enumerate().map(|(n, r)| (r.start.0, r.size, n)).collect();
    runs.sort_unstable();
    let run_of = |at: u32| {
        let address = base.0 + u64::from(at);
        let index = runs.partition_point(|r| r.0 <= address).checked_sub(1);
        index
            .map(|i| runs[i])
            .filter(|&(start, size, _)| address - start < size)
            .map_or(usize::MAX, |(_, _, n)| n)
    };
    let mut keyed: Vec<(usize, u32)> = object.pieces.iter().enumerate().map(|(i, p)| (run_of(p.at), i as u32)).collect();
    keyed.sort_unstable();
    let hot = keyed.partition_point(|&(run, _)| run < layout.hot);
    (keyed.into_iter().map(|(_, piece)| piece).collect(), hot)
}
