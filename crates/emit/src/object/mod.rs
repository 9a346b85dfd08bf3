//! Rewrites a `vmlinux.o`: the same program with its `.text` in another order.
//!
//! Input: the object, and an order of its pieces. Output: the bytes of the new object, and the map
//! from old to new addresses. Every relocation, symbol and side table follows from one translation.
//! ORC is made again from that translation. This module never reads or writes a file.

mod counters;
pub(crate) mod inlined;
mod orc;
mod order;
mod relocations;
mod symbols;
mod text;
mod translate;
mod write;

pub use counters::BlockCounter;
pub(crate) use counters::COUNTS;
pub use inlined::{CallReplacement, CallToInline, InlineLimits};
pub(crate) use order::cuts_of;
pub(crate) use order::hot_share_in_whole;
pub(crate) use order::order_of;
pub use order::two_regions;

use anyhow::{Context, Result};
use image::address::LinkAddr;
use image::object::KernelObject;
use image::object::pieces::{self, SiteKind};
use image::place::{self, Ending, Growth, GrowthSite, MovableBlock, Placement};
use translate::TextTranslation;

/// The new object, and what happened to the code.
pub struct Rewritten {
    /// The bytes of the new object.
    pub bytes: Vec<u8>,
    /// The old and the new addresses, if `.text` is linked to `base`.
    pub placement: Placement,
    /// What the rewrite did.
    pub summary: RewriteSummary,
    /// What happened to debugging information.
    pub debug: DebugInformation,
}

/// What a rewrite did, in numbers.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct RewriteSummary {
    /// The functions of `.text`.
    pub functions: usize,
    /// Functions in more than one part.
    pub functions_split: usize,
    /// The pieces of `.text`.
    pub pieces: usize,
    /// Conditional branches that were inverted.
    pub branches_inverted: usize,
    /// Jumps that became fall-throughs.
    pub jumps_dropped: usize,
    /// Jumps that were appended.
    pub jumps_added: usize,
    /// Static-key sites that grew from two to five bytes.
    pub static_keys_grown: usize,
    /// Calls whose callee's code stands in their place.
    #[serde(default)]
    pub calls_inlined: usize,
    /// Indirect calls with a guard in their place, some of whose targets are inlined.
    #[serde(default)]
    pub calls_promoted: usize,
    /// Bytes of the old `.text`.
    pub text_before: u64,
    /// Bytes of the new `.text`.
    pub text_after: u64,
}

/// How to rewrite an object.
pub struct RewritePlan<'a> {
    /// A permutation of the object's pieces.
    pub order: &'a [u32],
    /// How many pieces, counted from the front of the order, are hot. A part of a function behind
    /// them is named `.cold`.
    pub hot: usize,
    /// The link address of the object's `.text`.
    pub base: LinkAddr,
    /// How to name the parts of functions.
    pub names: PartNames,
    /// The counters, ascending by place, at most one for each place.
    pub counters: &'a [BlockCounter],
}

/// How the parts of a function behind its first part are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartNames {
    /// `f.warm.N` in hot code, `f.cold` behind it. People know these names from BOLT. Compilers use
    /// `f.part.N` for parts that are called; these parts are not called.
    Readable,
    /// `f.cold.N`, with `f` made unique, so that objtool can join the parts again.
    Joinable,
}

/// What happens to debugging information (DWARF). Its line tables contain distances in the old
/// code, so the information is wrong for moved code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DebugInformation {
    /// The object has none.
    None,
    /// Nothing moved, so the information stays.
    Kept,
    /// The information is removed.
    Dropped,
}

/// Rewrites the object.
///
/// # Errors
/// A reference cannot be translated, or the new `.text` is too large.
pub fn rewrite(object: &KernelObject<'_>, plan: &RewritePlan<'_>) -> Result<Rewritten> {
    let movables = movables(object, plan);
    let growing = growing(object, plan);
    let head = object.pieces.first().map_or(0, |p| p.at - p.lead);
    let start = LinkAddr(plan.base.0 + u64::from(head));
    let places = place::place(&movables, &growing, plan.order, start)?;
    let size =
        u32::try_from(places.end.0 - plan.base.0).context("the new .text is larger than 4 GB")?;
    let translation = TextTranslation::new(object, &places, &growing, plan.base, size);
    let text = text::write(object, &places, &translation, plan, head)?;
    let counters = counters::CountStorage::of(object, plan.counters)?;
    let symbols = symbols::rewrite(object, &places, &translation, plan, counters.as_ref())?;
    let orc = orc::rewrite(object, &places, &translation, plan.order, head)?;
    let debug = debug_of(object, plan);
    let relocations =
        relocations::rewrite(object, &translation, plan, counters.as_ref(), &symbols, debug)?;
    let changed = write::ChangedSections { text, tables: Vec::new() };
    let bytes =
        write::write(object, changed, &symbols, orc, relocations, counters.as_ref(), debug)?;
    let count = |ending: Ending| places.ending.iter().filter(|&&e| e == ending).count();
    let summary = RewriteSummary {
        functions: object.functions.len(),
        functions_split: symbols.functions_split,
        pieces: object.pieces.len(),
        branches_inverted: count(Ending::Inverted),
        jumps_dropped: count(Ending::JumpDropped),
        jumps_added: places.appended.iter().filter(|&&a| a > 0).count(),
        static_keys_grown: places.grown.iter().filter(|&&g| g).count() - plan.counters.len(),
        calls_inlined: 0,
        calls_promoted: 0,
        text_before: object.elf.section(object.text).size,
        text_after: u64::from(size),
    };
    let mut placement = place::placement(&movables, &growing, &places);
    placement.call_padding = object.call_padding;
    Ok(Rewritten { bytes, placement, summary, debug })
}

fn debug_of(object: &KernelObject<'_>, plan: &RewritePlan<'_>) -> DebugInformation {
    let unmoved = plan.order.is_sorted() && plan.counters.is_empty();
    match object.elf.sections.iter().any(|s| s.is_debug()) {
        false => DebugInformation::None,
        true if unmoved => DebugInformation::Kept,
        true => DebugInformation::Dropped,
    }
}

/// The alignment that compilers give the entries of functions for the sake of the decoder. In hot
/// code it costs more cache lines than it saves. The kernel does not rely on it: code that needs a
/// larger alignment requests it, and code that patches the padding in front of an entry measures
/// from the entry. Only `is_callthunk` in arch/x86/kernel/callthunks.c looks at the alignment, to
/// decide whether a function that a BPF program calls counts its own calls. For an entry that is
/// not aligned it says no, and the program counts the call.
const ENTRY_ALIGNMENT: u32 = 16;

/// The pieces in the form that the placer needs.
fn movables(object: &KernelObject<'_>, plan: &RewritePlan<'_>) -> Vec<MovableBlock> {
    let base = plan.base;
    let mut hot = vec![false; object.pieces.len()];
    plan.order[..plan.hot].iter().for_each(|&piece| hot[piece as usize] = true);
    let address = |at: u32| LinkAddr(base.0 + u64::from(at));
    let exit = |exit| match exit {
        pieces::PieceExit::Stop => place::MovableExit::Stop,
        pieces::PieceExit::Runs => place::MovableExit::Runs,
        pieces::PieceExit::Jump(to) => place::MovableExit::Jump(address(to)),
        pieces::PieceExit::Branch(to) => place::MovableExit::Branch(address(to)),
    };
    object
        .pieces
        .iter()
        .zip(&hot)
        .map(|(p, &in_hot)| MovableBlock {
            at: address(p.at),
            size: p.size,
            lead: p.lead,
            lead_named: p.lead > 0 && object.functions[p.function as usize].lead_named,
            gap: p.gap,
            align: if in_hot && p.align <= ENTRY_ALIGNMENT { 1 } else { p.align },
            // The piece knows only its offset in the section, which need not begin at a page.
            residue: if in_hot && p.align <= ENTRY_ALIGNMENT {
                0
            } else {
                ((base.0 + u64::from(p.residue)) % u64::from(p.align)) as u32
            },
            exit: exit(p.exit),
            tail: p.tail,
            pinned: p.pinned || only_jumps_away(object, p, &hot),
        })
        .collect()
}

/// Whether the part of a function with its entry consists of jumps only. Without the first jump,
/// the function's symbol would have no bytes.
fn only_jumps_away(object: &KernelObject<'_>, entry: &pieces::Piece, hot: &[bool]) -> bool {
    if !entry.entry {
        return false;
    }
    let part = |piece: &pieces::Piece| (piece.function, object.piece_at(piece.at).map(|i| hot[i]));
    let function = &object.functions[entry.function as usize];
    let mut piece = entry;
    // More jumps than the function has bytes go in circles, and one of them stays.
    for _ in function.at..function.end {
        let pieces::PieceExit::Jump(to) = piece.exit else { return false };
        let Some(next) = object.piece_at(to).map(|i| &object.pieces[i]) else { return false };
        if piece.size != u32::from(piece.tail) {
            return false;
        }
        if part(next) != part(entry) {
            return true;
        }
        piece = next;
    }
    false
}

/// The places that may grow: two-byte static keys, and places with counters.
fn growing(object: &KernelObject<'_>, plan: &RewritePlan<'_>) -> Vec<GrowthSite> {
    let address = |at: u32| LinkAddr(plan.base.0 + u64::from(at));
    let grows = |s: &&pieces::CodeSite| s.len == 2 && matches!(s.kind, SiteKind::StaticKey { .. });
    let keys = object
        .sites
        .iter()
        .filter(grows)
        .map(|s| GrowthSite { at: address(s.at), growth: Growth::WhenFar(address(s.target)) });
    let counters = plan
        .counters
        .iter()
        .map(|c| GrowthSite { at: address(c.at), growth: Growth::Always(c.bytes()) });
    let mut growing: Vec<GrowthSite> = keys.chain(counters).collect();
    growing.sort_by_key(|g| g.at);
    growing
}

#[cfg(test)]
mod forms_tests;
#[cfg(test)]
mod profiled_tests;
#[cfg(test)]
mod section_tests;
#[cfg(test)]
mod tests;
