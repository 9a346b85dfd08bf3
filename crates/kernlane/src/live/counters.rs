//! Where in a block a counter can stand: in front of an instruction at which the flags that `inc` changes are dead.
//!
//! Takes a group; gives for each block the place of its counter, or none. Backward liveness over the group's blocks; what is not known keeps
//! flags alive.

use crate::emit::module::Original;
use crate::image::address::LinkAddr;
use crate::image::linked::tables::within;
use crate::image::object::pieces::{Exit, Piece};
use crate::live::group::Group;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, RflagsBits};

/// What `inc` changes: all arithmetic flags but carry.
const CHANGED: u32 = RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF;

/// What one instruction means for the flags.
struct Step {
    at: LinkAddr,
    reads: u32,
    kills: u32,
    /// A counter may stand in front of it.
    free: bool,
}

/// Per block: the address of the instruction in front of which it can count.
pub fn places(group: &Group<'_, '_>) -> Vec<Option<LinkAddr>> {
    let original = &group.original;
    let steps: Vec<Vec<Step>> = original.pieces.iter().map(|piece| steps(original, piece)).collect();
    let successors = successors(group);
    let mut live_in = vec![0u32; steps.len()];
    loop {
        let mut changed = false;
        for i in (0..steps.len()).rev() {
            let out = out_of(&successors[i], &live_in);
            let live = steps[i].iter().rev().fold(out, |live, s| live & !s.kills | s.reads);
            changed |= live != live_in[i];
            live_in[i] = live;
        }
        if !changed {
            break;
        }
    }
    (0..steps.len())
        .map(|i| place(&steps[i], out_of(&successors[i], &live_in)))
        .collect()
}

/// Blocks that follow, and whether control may go where nothing is known of the flags.
struct Successors {
    blocks: Vec<u32>,
    unknown: bool,
}

fn out_of(successors: &Successors, live_in: &[u32]) -> u32 {
    let known = successors.blocks.iter().fold(0, |live, &b| live | live_in[b as usize]);
    if successors.unknown { known | CHANGED } else { known }
}

fn successors(group: &Group<'_, '_>) -> Vec<Successors> {
    let mut found: Vec<Successors> = (group.original.pieces.iter())
        .map(|piece| Successors {
            blocks: Vec::new(),
            unknown: !leaves_function(&group.original, piece),
        })
        .collect();
    for (from, to, _) in group.edges() {
        found[from as usize].blocks.push(to);
    }
    for (i, piece) in group.original.pieces.iter().enumerate() {
        let complete = match piece.exit {
            Exit::Runs | Exit::Jump(_) => !found[i].blocks.is_empty(),
            Exit::Branch(_) => found[i].blocks.len() >= 2,
            Exit::Stop => continue,
        };
        found[i].unknown = !complete;
    }
    found
}

/// Whether a block that stops does so by leaving the function, where no flags are handed on.
fn leaves_function(original: &Original<'_, '_>, piece: &Piece) -> bool {
    let code = original.bytes(piece.function, piece.at, piece.end());
    let mut decoder = Decoder::with_ip(64, code, original.kernel.link_address(piece.at).0, DecoderOptions::NONE);
    let last = decoder.iter().filter(|i| i.mnemonic() != Mnemonic::Int3).last();
    last.is_some_and(|i| {
        matches!(
            i.flow_control(),
            FlowControl::Return
                | FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch
                | FlowControl::Call
                | FlowControl::Exception
        )
    })
}

fn steps(original: &Original<'_, '_>, piece: &Piece) -> Vec<Step> {
    let skip = if piece.entry { original.skip[piece.function as usize] } else { 0 };
    let from = (piece.at + skip).min(piece.end());
    let code = original.bytes(piece.function, from, piece.end());
    let mut decoder = Decoder::with_ip(64, code, original.kernel.link_address(from).0, DecoderOptions::NONE);
    let alternatives = &original.kernel.tables.alternatives;
    let mut shadow = false;
    let mut found = Vec::new();
    for i in decoder.iter() {
        let at = LinkAddr(i.ip());
        let near = within(alternatives, |e| e.site, LinkAddr(at.0.saturating_sub(255)), LinkAddr(at.0 + 1));
        let patched = near.iter().any(|e| at.0 < e.site + u64::from(e.len));
        let inside = near.iter().any(|e| e.site < at.0 && at.0 < e.site + u64::from(e.len));
        found.push(Step {
            at,
            reads: i.rflags_read() & CHANGED,
            kills: if patched {
                0
            } else {
                i.rflags_modified() & CHANGED & !i.rflags_read()
            },
            free: !inside && !shadow,
        });
        // The instruction behind these is still protected from interrupts.
        shadow = matches!(i.mnemonic(), Mnemonic::Sti | Mnemonic::Pop | Mnemonic::Mov) && i.op0_register() == iced_x86::Register::SS
            || i.mnemonic() == Mnemonic::Sti;
    }
    found
}

fn place(steps: &[Step], out: u32) -> Option<LinkAddr> {
    let mut live = out;
    let mut found = None;
    for step in steps.iter().rev() {
        live = live & !step.kills | step.reads;
        if live == 0 && step.free {
            found = Some(step.at);
        }
    }
    found
}
