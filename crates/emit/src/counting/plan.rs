//! Where the counters of an object stand.
//!
//! Takes an object in pieces; gives its flow graph, and the places of as few counters as the counts
//! of all pieces follow from, in code that runs rarely, and where no flags have to be saved, as far
//! as there is a choice.

use crate::counting::derivable::Flow;
use crate::counting::flags::{self, Place, Step, Successors};
use crate::object::Counter;
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use image::object::pieces::{Piece, SiteKind};
use image::object::tables::ReferenceMeaning;
use image::object::{KernelObject, flow};
use layout::graph::EdgeKind;

/// An object's flow graph.
pub struct ObjectFlow {
    /// Between pieces.
    pub edges: Vec<(u32, u32, EdgeKind)>,
    pub flow: Flow,
    /// Per piece: every way out is among the edges. A piece that can be left in its middle has them
    /// all and is open.
    leaves_by_edges: Vec<bool>,
}

impl ObjectFlow {
    pub fn of(object: &KernelObject<'_>) -> ObjectFlow {
        let edges = flow::edges(&object.pieces, &object.sites);
        let leaves_by_edges = flow::leaves_by_edges(&object.pieces, &edges);
        let mut flow = Flow {
            edges: edges.iter().map(|&(from, to, _)| (from, to)).collect(),
            open_in: object.pieces.iter().map(|p| p.entry).collect(),
            open_out: leaves_by_edges.iter().map(|closed| !closed).collect(),
        };
        open_by_tables(object, &mut flow);
        open_by_sites(object, &mut flow);
        ObjectFlow { edges, flow, leaves_by_edges }
    }
}

/// The piece whose code holds `at`.
fn piece_of(object: &KernelObject<'_>, at: u32) -> Option<usize> {
    let index = object.pieces.partition_point(|p| p.at <= at).checked_sub(1)?;
    (at < object.pieces[index].end()).then_some(index)
}

/// What side tables, data and other code refer to is entered by other ways, too; what may fault or
/// is patched is left by other ways.
fn open_by_tables(object: &KernelObject<'_>, flow: &mut Flow) {
    let leaving =
        ["__ex_table", ".altinstructions", "__jump_table"].map(|name| object.elf.by_name(name));
    for r in &object.references {
        let Some(piece) = piece_of(object, r.target) else { continue };
        match r.meaning {
            ReferenceMeaning::Control => flow.open_in[piece] = true,
            ReferenceMeaning::Instruction if leaving.contains(&Some(r.section)) => {
                flow.open_out[piece] = true
            }
            _ => {}
        }
    }
}

/// Static keys, and branches inside code that is not cut: they leave in the middle of a piece.
fn open_by_sites(object: &KernelObject<'_>, flow: &mut Flow) {
    for site in &object.sites {
        if let Some(target) = piece_of(object, site.target) {
            flow.open_in[target] = true;
        }
        if let (SiteKind::StaticKey { .. }, Some(piece)) = (site.kind, piece_of(object, site.at)) {
            flow.open_out[piece] = true;
        }
    }
}

/// How unwelcome a counter is in a piece with loops around it, by their number; in one where flags
/// have to be saved; in one where none can stand.
const LOOP: u32 = 1;
const SAVED_FLAGS: u32 = 1 << 8;
const NO_PLACE: u32 = 1 << 16;

/// The counters, ascending, and for each its piece.
pub fn plan(object: &KernelObject<'_>, flow: &ObjectFlow) -> Vec<(Counter, u32)> {
    let places = places(object, flow);
    let loops = loops(object, flow);
    let reluctance = |(place, loops): (&Option<Place>, u32)| match place {
        None => NO_PLACE,
        Some(place) => loops * LOOP + u32::from(place.flags_live) * SAVED_FLAGS,
    };
    let reluctance: Vec<u32> = places.iter().zip(loops).map(reluctance).collect();
    let counted = flow.flow.to_count(&reluctance);
    let counter = |(n, place): (usize, Option<Place>)| {
        let place = place.filter(|_| counted[n])?;
        let counter = Counter { at: place.at as u32, keeps_flags: place.flags_live };
        Some((counter, n as u32))
    };
    places.into_iter().enumerate().filter_map(counter).collect()
}

/// Per piece: the loops around it, as their branches back say. A plain jump back is the way home of
/// code that was put aside.
fn loops(object: &KernelObject<'_>, flow: &ObjectFlow) -> Vec<u32> {
    let mut steps = vec![0i32; object.pieces.len() + 1];
    let same =
        |a: u32, b: u32| object.pieces[a as usize].function == object.pieces[b as usize].function;
    for &(from, to, kind) in &flow.edges {
        if to <= from && kind == EdgeKind::Branch && same(from, to) {
            steps[to as usize] += 1;
            steps[from as usize + 1] -= 1;
        }
    }
    let depth = steps[..object.pieces.len()].iter().scan(0, |depth, step| {
        *depth += step;
        Some((*depth as u32).min(SAVED_FLAGS - 1))
    });
    depth.collect()
}

fn places(object: &KernelObject<'_>, flow: &ObjectFlow) -> Vec<Option<Place>> {
    let mut named: Vec<u32> = (object.references.iter())
        .filter(|r| r.meaning == ReferenceMeaning::Instruction)
        .map(|r| r.target)
        .collect();
    named.sort_unstable();
    let steps: Vec<Vec<Step>> =
        object.pieces.iter().map(|piece| steps(object, piece, &named)).collect();
    let successors = Successors::of(flow.flow.edges.iter().copied(), &flow.leaves_by_edges, |n| {
        code(object, &object.pieces[n])
    });
    flags::places(&steps, &successors)
}

fn code<'o>(object: &'o KernelObject<'_>, piece: &Piece) -> &'o [u8] {
    &object.elf.bytes(object.text)[piece.at as usize..piece.end() as usize]
}

fn steps(object: &KernelObject<'_>, piece: &Piece, named: &[u32]) -> Vec<Step> {
    let alternative_at = |at: u64| {
        let behind = object.alternatives.partition_point(|a| u64::from(a.at) <= at);
        let near =
            object.alternatives[..behind].iter().rev().take_while(|a| u64::from(a.at) + 255 > at);
        let ranges = near.map(|a| u64::from(a.at)..u64::from(a.at) + u64::from(a.len));
        ranges.filter(|range| range.contains(&at)).min_by_key(|range| range.start)
    };
    let code = code(object, piece);
    let mut steps = flags::steps(code, u64::from(piece.at), alternative_at);
    // Code that is not cut has short branches, which reach no farther: its counter stands in front
    // of all of it, if only callers go there.
    let whole = object.functions[piece.function as usize].whole.is_some();
    let looped = whole && is_looped(object, piece);
    for step in &mut steps {
        let at = step.at as u32;
        let begins = at == piece.at && is_landing(&code[(at - piece.at) as usize..]);
        step.free &=
            named.binary_search(&at).is_err() && !begins && (!whole || at == piece.at && !looped);
    }
    steps
}

/// `endbr64` has to be what an indirect branch meets first.
fn is_landing(code: &[u8]) -> bool {
    Decoder::new(64, code, DecoderOptions::NONE).decode().mnemonic() == Mnemonic::Endbr64
}

/// Whether code branches to its own beginning: a counter there would count those branches, too.
fn is_looped(object: &KernelObject<'_>, piece: &Piece) -> bool {
    let mut decoder =
        Decoder::with_ip(64, code(object, piece), u64::from(piece.at), DecoderOptions::NONE);
    decoder.iter().any(|i| i.near_branch_target() == u64::from(piece.at))
}
