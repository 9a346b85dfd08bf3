//! The places of the counters of an object.
//!
//! Input: an object, cut into pieces. Output: its flow graph, and the places of the fewest counters
//! from which the counts of all pieces follow. Where there is a choice, counters stand outside of
//! loops and where no flags must be saved.

use crate::counting::derivable::FlowGraph;
use crate::counting::flags::{self, CounterSite, FlagStep, Successors};
use crate::object::BlockCounter;
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use image::object::pieces::{Piece, SiteKind};
use image::object::tables::ReferenceMeaning;
use image::object::{KernelObject, flow};
use layout::graph::EdgeKind;

/// An object's flow graph. Its blocks are the object's pieces.
pub(crate) struct ObjectFlow {
    /// Between pieces.
    pub edges: Vec<(u32, u32, EdgeKind)>,
    /// The same edges, and the pieces that control enters or leaves in other ways.
    pub flow: FlowGraph,
    /// Per piece: its end leads nowhere but along the edges. Control may still leave such a piece
    /// in its middle; then it is open in `flow`.
    leaves_by_edges: Vec<bool>,
}

impl ObjectFlow {
    /// The flow graph of an object.
    pub(crate) fn of(object: &KernelObject<'_>) -> ObjectFlow {
        let edges = flow::edges(&object.pieces, &object.sites);
        let leaves_by_edges = flow::leaves_by_edges(&object.pieces, &edges);
        let mut flow = FlowGraph {
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

/// Opens the pieces that side tables, data and other code refer to: control also enters them that
/// way. Opens the ends of pieces with code that may fault or is patched.
fn open_by_tables(object: &KernelObject<'_>, flow: &mut FlowGraph) {
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

/// Opens the pieces that static keys lead out of, in their middle, and the targets of sites.
fn open_by_sites(object: &KernelObject<'_>, flow: &mut FlowGraph) {
    for site in &object.sites {
        if let Some(target) = piece_of(object, site.target) {
            flow.open_in[target] = true;
        }
        if let (SiteKind::StaticKey { .. }, Some(piece)) = (site.kind, piece_of(object, site.at)) {
            flow.open_out[piece] = true;
        }
    }
}

/// The reluctance to count a piece: for each loop around it, where flags must be saved, and where
/// no counter can stand.
const LOOP: u32 = 1;
const SAVED_FLAGS: u32 = 1 << 8;
const NO_PLACE: u32 = 1 << 16;

/// The counters, ascending, each with the number of its piece.
pub(crate) fn plan(object: &KernelObject<'_>, flow: &ObjectFlow) -> Vec<(BlockCounter, u32)> {
    let places = places(object, flow);
    let loops = loops(object, flow);
    let reluctance = |(place, loops): (&Option<CounterSite>, u32)| match place {
        None => NO_PLACE,
        Some(place) => loops * LOOP + u32::from(place.flags_live) * SAVED_FLAGS,
    };
    let reluctance: Vec<u32> = places.iter().zip(loops).map(reluctance).collect();
    let counted = flow.flow.to_count(&reluctance);
    let counter = |(n, place): (usize, Option<CounterSite>)| {
        let place = place.filter(|_| counted[n])?;
        let counter = BlockCounter { at: place.at as u32, keeps_flags: place.flags_live };
        Some((counter, n as u32))
    };
    places.into_iter().enumerate().filter_map(counter).collect()
}

/// Per piece: the number of loops around it. A backward conditional branch closes a loop. A
/// backward jump does not: it leads back from code that the compiler moved out of line.
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

fn places(object: &KernelObject<'_>, flow: &ObjectFlow) -> Vec<Option<CounterSite>> {
    let mut named: Vec<u32> = (object.references.iter())
        .filter(|r| r.meaning == ReferenceMeaning::Instruction)
        .map(|r| r.target)
        .collect();
    named.sort_unstable();
    let steps: Vec<Vec<FlagStep>> =
        object.pieces.iter().map(|piece| steps(object, piece, &named)).collect();
    let successors = Successors::of(flow.flow.edges.iter().copied(), &flow.leaves_by_edges, |n| {
        code(object, &object.pieces[n])
    });
    flags::places(&steps, &successors)
}

fn code<'o>(object: &'o KernelObject<'_>, piece: &Piece) -> &'o [u8] {
    &object.elf.bytes(object.text)[piece.at as usize..piece.end() as usize]
}

fn steps(object: &KernelObject<'_>, piece: &Piece, named: &[u32]) -> Vec<FlagStep> {
    let alternative_at = |at: u64| {
        let behind = object.alternatives.partition_point(|a| u64::from(a.at) <= at);
        let near =
            object.alternatives[..behind].iter().rev().take_while(|a| u64::from(a.at) + 255 > at);
        let ranges = near.map(|a| u64::from(a.at)..u64::from(a.at) + u64::from(a.len));
        ranges.filter(|range| range.contains(&at)).min_by_key(|range| range.start)
    };
    let code = code(object, piece);
    let mut steps = flags::steps(code, u64::from(piece.at), alternative_at);
    // A function that is not cut keeps its short branches, so no code can be inserted into it. Its
    // counter stands in front of all its code, unless its own code branches there.
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

/// Whether code begins with `endbr64`, which must be the target of an indirect branch.
fn is_landing(code: &[u8]) -> bool {
    Decoder::new(64, code, DecoderOptions::NONE).decode().mnemonic() == Mnemonic::Endbr64
}

/// Whether code branches to its own beginning. A counter there would also count those branches.
fn is_looped(object: &KernelObject<'_>, piece: &Piece) -> bool {
    let mut decoder =
        Decoder::with_ip(64, code(object, piece), u64::from(piece.at), DecoderOptions::NONE);
    decoder.iter().any(|i| i.near_branch_target() == u64::from(piece.at))
}
