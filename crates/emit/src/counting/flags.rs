//! The place of a counter in its block: in front of an instruction at which the flags that `inc`
//! changes are dead.
//!
//! Input: the code of blocks and the edges between them. Output: per block, the place of its
//! counter. The method is backward liveness over the blocks. Flags are live wherever the analysis
//! does not know.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, Register, RflagsBits};
use std::ops::Range;

/// The flags that `inc` changes: all arithmetic flags but carry.
const CHANGED: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF;

/// How one instruction uses the flags.
pub struct FlagStep {
    /// The instruction's address.
    pub at: u64,
    reads: u32,
    kills: u32,
    /// A counter may stand in front of it.
    pub free: bool,
}

/// A place where a counter can stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterSite {
    /// The address of the instruction behind the counter.
    pub at: u64,
    /// Code behind the counter reads a flag that the counter changes.
    pub flags_live: bool,
}

/// Where control goes from a block.
#[derive(Clone, Default)]
pub struct Successors {
    /// The numbers of the blocks that follow.
    pub blocks: Vec<u32>,
    /// Control may also go to other code, which may read any flag.
    pub unknown: bool,
}

impl Successors {
    /// The successors of each block. `leaves_by_edges` says per block that `edges` holds every way
    /// out of it. For the other blocks, the end of their `code` decides.
    pub fn of<'c>(
        edges: impl Iterator<Item = (u32, u32)>,
        leaves_by_edges: &[bool],
        code: impl Fn(usize) -> &'c [u8],
    ) -> Vec<Successors> {
        let unknown = |(n, &by_edges): (usize, &bool)| Successors {
            blocks: Vec::new(),
            unknown: !by_edges && !leaves_function(code(n)),
        };
        let mut found: Vec<Successors> = leaves_by_edges.iter().enumerate().map(unknown).collect();
        for (from, to) in edges {
            found[from as usize].blocks.push(to);
        }
        found
    }
}

/// Per block: the place of its counter. It is the first place at which no flag is live; if there is
/// none, the first place of all. `None` where no counter can stand.
pub fn places(steps: &[Vec<FlagStep>], successors: &[Successors]) -> Vec<Option<CounterSite>> {
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
    (0..steps.len()).map(|i| place(&steps[i], out_of(&successors[i], &live_in))).collect()
}

fn out_of(successors: &Successors, live_in: &[u32]) -> u32 {
    let known = successors.blocks.iter().fold(0, |live, &b| live | live_in[b as usize]);
    if successors.unknown { known | CHANGED } else { known }
}

/// Whether the block ends by leaving its function. No flag is live there (System V ABI).
fn leaves_function(code: &[u8]) -> bool {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
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

/// The steps of the code that stands at `address`. `alternative_at` gives the range of the
/// alternative that holds an address: the kernel patches it at run time.
pub fn steps(
    code: &[u8],
    address: u64,
    alternative_at: impl Fn(u64) -> Option<Range<u64>>,
) -> Vec<FlagStep> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut shadow = false;
    let mut found = Vec::new();
    for i in decoder.iter() {
        let alternative = alternative_at(i.ip());
        let inside = alternative.as_ref().is_some_and(|range| range.start < i.ip());
        found.push(FlagStep {
            at: i.ip(),
            reads: i.rflags_read() & CHANGED,
            kills: if alternative.is_some() {
                0
            } else {
                i.rflags_modified() & CHANGED & !i.rflags_read()
            },
            free: !inside && !shadow,
        });
        // The processor takes no interrupt before the instruction that follows these.
        shadow = matches!(i.mnemonic(), Mnemonic::Sti | Mnemonic::Pop | Mnemonic::Mov)
            && i.op0_register() == Register::SS
            || i.mnemonic() == Mnemonic::Sti;
    }
    found
}

fn place(steps: &[FlagStep], out: u32) -> Option<CounterSite> {
    let mut live = out;
    let (mut dead, mut any) = (None, None);
    for step in steps.iter().rev() {
        live = live & !step.kills | step.reads;
        if step.free {
            any = Some(step.at);
            dead = if live == 0 { any } else { dead };
        }
    }
    let place = |at, flags_live| CounterSite { at, flags_live };
    dead.map(|at| place(at, false)).or(any.map(|at| place(at, true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(
        blocks: &[&[u8]],
        edges: &[(u32, u32)],
        by_edges: &[bool],
    ) -> Vec<Option<CounterSite>> {
        let steps: Vec<Vec<FlagStep>> =
            blocks.iter().map(|code| steps(code, 0, |_| None)).collect();
        let successors = Successors::of(edges.iter().copied(), by_edges, |n| blocks[n]);
        places(&steps, &successors)
    }

    /// ```text
    /// 0: cmp edi, esi; je 2 ─┐
    /// 1: ja 2 ───────────────┤   (needs the flags of block 0 in every place)
    /// 2: ret ◄───────────────┘
    /// ```
    #[test]
    fn a_counter_stands_where_no_flag_is_needed() {
        let blocks: [&[u8]; 3] = [&[0x39, 0xf7, 0x74, 0x02], &[0x77, 0x00], &[0xc3]];
        let found = placed(&blocks, &[(0, 1), (0, 2), (1, 2)], &[true, true, false]);
        let place = |flags_live| Some(CounterSite { at: 0, flags_live });
        assert_eq!(found, [place(false), place(true), place(false)]);
    }

    #[test]
    fn flags_are_needed_where_nothing_is_known() {
        // mov eax, 1; call rax, and then nobody knows.
        let found = placed(&[&[0x90]], &[], &[false]);
        assert!(found[0].unwrap().flags_live);
        // test eax, eax kills them first.
        let found = placed(&[&[0x90, 0x85, 0xc0]], &[], &[false]);
        assert!(!found[0].unwrap().flags_live);
    }
}
