//! A rewritten `vmlinux.o`: the same program with its `.text` in another order.
//!
//! Takes the object as read and an order of its pieces; gives the new object's bytes and the old →
//! new map. Every relocation, symbol and side table follows from the one translation; ORC is made
//! anew from it. Never reads or writes a file.

mod counters;
mod orc;
mod order;
mod relocations;
mod symbols;
mod text;
mod translate;
mod write;

pub use counters::{COUNTS, Counter};
pub use order::{cuts_of, order_of, two_regions};

use anyhow::{Context, Result};
use image::address::LinkAddr;
use image::object::KernelObject;
use image::object::pieces::{self, SiteKind};
use image::place::{self, Ending, Growing, Growth, Movable, Placement};
use translate::Translation;

/// The new object, and what became of the code.
pub struct Rewritten {
    pub bytes: Vec<u8>,
    /// By the addresses that `.text` had and has when it is linked to `base`.
    pub placement: Placement,
    pub summary: Summary,
    pub debug: Debug,
}

/// What rewriting did, in numbers.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Summary {
    pub functions: usize,
    /// Functions laid out in more than one part.
    pub functions_split: usize,
    pub pieces: usize,
    pub branches_inverted: usize,
    pub jumps_dropped: usize,
    pub jumps_added: usize,
    pub static_keys_grown: usize,
    pub text_before: u64,
    pub text_after: u64,
}

/// How the order is to be carried out.
pub struct Plan<'a> {
    /// A permutation of the object's pieces.
    pub order: &'a [u32],
    /// How many of them, from the front, are hot: a part of a function behind them is named
    /// `.cold`.
    pub hot: usize,
    /// Where the object's `.text` begins in the linked kernel.
    pub base: LinkAddr,
    pub names: PartNames,
    /// Ascending by place, at most one for each place.
    pub counters: &'a [Counter],
}

/// What the parts of a function behind its first are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartNames {
    /// `f.warm.N` among hot code, `f.cold` behind it: what people know from BOLT. A compiler's
    /// `f.part.N` is called, these are not.
    Readable,
    /// `f.cold.N`, with `f` made unique: what objtool can join again.
    Joinable,
}

/// What becomes of debugging information (DWARF). Its line tables measure distances in the old
/// code, so it is wrong for moved code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Debug {
    /// There is none.
    None,
    /// Nothing moved: it is kept as it is.
    Kept,
    /// It is left out.
    Dropped,
}

/// Rewrites the object.
pub fn rewrite(object: &KernelObject<'_>, plan: &Plan<'_>) -> Result<Rewritten> {
    let movables = movables(object, plan);
    let growing = growing(object, plan);
    let head = object.pieces.first().map_or(0, |p| p.at - p.lead);
    let start = LinkAddr(plan.base.0 + u64::from(head));
    let places = place::place(&movables, &growing, plan.order, start)?;
    let size =
        u32::try_from(places.end.0 - plan.base.0).context("the new .text is larger than 4 GB")?;
    let translation = Translation::new(object, &places, &growing, plan.base, size);
    let text = text::write(object, &places, &translation, plan, head)?;
    let counters = counters::Room::of(object, plan.counters)?;
    let symbols = symbols::rewrite(object, &places, &translation, plan, counters.as_ref())?;
    let orc = orc::rewrite(object, &places, &translation, plan.order, head)?;
    let debug = debug_of(object, plan);
    let relocations =
        relocations::rewrite(object, &translation, plan, counters.as_ref(), &symbols, debug)?;
    let bytes = write::write(object, text, &symbols, orc, relocations, counters.as_ref(), debug)?;
    let count = |ending: Ending| places.ending.iter().filter(|&&e| e == ending).count();
    let summary = Summary {
        functions: object.functions.len(),
        functions_split: symbols.functions_split,
        pieces: object.pieces.len(),
        branches_inverted: count(Ending::Inverted),
        jumps_dropped: count(Ending::JumpDropped),
        jumps_added: places.appended.iter().filter(|&&a| a > 0).count(),
        static_keys_grown: places.grown.iter().filter(|&&g| g).count() - plan.counters.len(),
        text_before: object.elf.section(object.text).size,
        text_after: u64::from(size),
    };
    let placement = place::placement(&movables, &growing, &places);
    Ok(Rewritten { bytes, placement, summary, debug })
}

fn debug_of(object: &KernelObject<'_>, plan: &Plan<'_>) -> Debug {
    let unmoved = plan.order.is_sorted() && plan.counters.is_empty();
    match object.elf.sections.iter().any(|s| s.is_debug()) {
        false => Debug::None,
        true if unmoved => Debug::Kept,
        true => Debug::Dropped,
    }
}

/// What compilers align the entries of functions to for the decoder's sake. Among hot code it costs
/// more lines of the cache than it saves. Nothing in the kernel relies on it (larger alignments are
/// asked for by the code itself): what patches the padding in front of an entry measures from the
/// entry. One place looks at it, `is_callthunk` in arch/x86/kernel/callthunks.c, to see whether a
/// function that a BPF program calls counts its calls itself; for an entry that is not aligned it
/// says no, and the program counts the call.
const ENTRY_ALIGNMENT: u32 = 16;

/// The pieces as the placer sees them.
fn movables(object: &KernelObject<'_>, plan: &Plan<'_>) -> Vec<Movable> {
    let base = plan.base;
    let mut hot = vec![false; object.pieces.len()];
    plan.order[..plan.hot].iter().for_each(|&piece| hot[piece as usize] = true);
    let address = |at: u32| LinkAddr(base.0 + u64::from(at));
    let exit = |exit| match exit {
        pieces::Exit::Stop => place::Exit::Stop,
        pieces::Exit::Runs => place::Exit::Runs,
        pieces::Exit::Jump(to) => place::Exit::Jump(address(to)),
        pieces::Exit::Branch(to) => place::Exit::Branch(address(to)),
    };
    object
        .pieces
        .iter()
        .zip(hot)
        .map(|(p, hot)| Movable {
            at: address(p.at),
            size: p.size,
            lead: p.lead,
            lead_named: p.lead > 0 && object.functions[p.function as usize].lead_named,
            gap: p.gap,
            align: if hot && p.align <= ENTRY_ALIGNMENT { 1 } else { p.align },
            // The piece knows of its place in the section only, which need not lie at a page's
            // start.
            residue: if hot && p.align <= ENTRY_ALIGNMENT {
                0
            } else {
                ((base.0 + u64::from(p.residue)) % u64::from(p.align)) as u32
            },
            exit: exit(p.exit),
            tail: p.tail,
            pinned: p.pinned,
        })
        .collect()
}

/// The places that grow: static keys of two bytes, which may have to, and those with counters.
fn growing(object: &KernelObject<'_>, plan: &Plan<'_>) -> Vec<Growing> {
    let address = |at: u32| LinkAddr(plan.base.0 + u64::from(at));
    let grows = |s: &&pieces::Site| s.len == 2 && matches!(s.kind, SiteKind::StaticKey { .. });
    let keys = object
        .sites
        .iter()
        .filter(grows)
        .map(|s| Growing { at: address(s.at), growth: Growth::WhenFar(address(s.target)) });
    let counters = plan
        .counters
        .iter()
        .map(|c| Growing { at: address(c.at), growth: Growth::Always(c.bytes()) });
    let mut growing: Vec<Growing> = keys.chain(counters).collect();
    growing.sort_by_key(|g| g.at);
    growing
}

#[cfg(test)]
mod tests;
