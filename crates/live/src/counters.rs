//! Finds the places in the blocks of a group where a counter can stand.
//!
//! Input: a group. Output: for each piece, the address of the instruction in front of which its
//! counter stands, or none. This module writes no code.

use crate::group::Group;
use emit::counting::flags::{self, Successors};
use emit::module::counter;
use image::address::LinkAddr;
use image::linked::tables::within;
use image::object::flow;

/// Per block: the address of the instruction in front of which its counter can stand; `None` where
/// flags are needed in the whole block.
pub fn places(group: &Group<'_, '_>) -> Vec<Option<LinkAddr>> {
    let original = &group.original;
    let alternative_at = |at: u64| {
        let near = within(
            &original.kernel.tables.alternatives,
            |e| e.site,
            LinkAddr(at.saturating_sub(255)),
            LinkAddr(at + 1),
        );
        let ranges = near.iter().map(|e| e.site..e.site + u64::from(e.len));
        ranges.filter(|range| range.contains(&at)).min_by_key(|range| range.start)
    };
    let steps: Vec<_> = (original.pieces.iter())
        .map(|piece| {
            let skip = if piece.entry { original.skip[piece.function as usize] } else { 0 };
            let from = (piece.at + skip).min(piece.end());
            let code = original.bytes(piece.function, from, piece.end());
            let from = original.kernel.link_address(from).0;
            let mut steps = flags::steps(code, from, alternative_at);
            let tables = &original.kernel.tables;
            for step in &mut steps {
                step.free &= counter::pushed(tables.orc_at(step.at), tables.forms.orc).is_some();
            }
            steps
        })
        .collect();
    let edges = group.edges();
    let leaves = flow::leaves_by_edges(&original.pieces, &edges);
    let code = |n: usize| {
        let piece = &original.pieces[n];
        original.bytes(piece.function, piece.at, piece.end())
    };
    let successors = Successors::of(edges.iter().map(|&(from, to, _)| (from, to)), &leaves, code);
    let places = flags::places(&steps, &successors);
    let dead =
        |place: Option<flags::CounterSite>| place.filter(|p| !p.flags_live).map(|p| LinkAddr(p.at));
    places.into_iter().map(dead).collect()
}
