//! What a fragment fetches and which branches it takes once its blocks have moved.
//!
//! Takes a fragment of the old code and a [`Placement`]; gives the new code's fetches in order. An
//! old instruction lies where its block went, at the same distance from the block's start; only the
//! last instruction of a block can change its length, be inverted or vanish, and a jump can stand
//! behind it (see [`Placement`] for how control then travels). Behind a call, that jump runs when
//! the callee returns. Code that did not move is fetched where it was.

use crate::code::{Code, Last};
use crate::flow::{Exit, Fragment};
use image::address::LinkAddr;
use image::place::{Ending, PlacedBlock, Placement};
use sim::{Branch, BranchKind, CodeAddr, TakenBranches};
use trace::RunAddr;

/// Bytes fetched one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    pub start: RunAddr,
    pub bytes: u32,
    /// Where the first byte was in the old code; for an appended jump, the instruction it was put
    /// behind.
    pub origin: RunAddr,
}

/// One run of a fragment under a placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    pub fetches: Vec<Fetch>,
    pub instructions: u64,
    pub taken: TakenBranches,
    /// The branches that are executed, in order. A return and an indirect one, always the last,
    /// have no target: they go to where the next execution arrives.
    pub branches: Vec<Branch>,
    /// Where control arrives; `None`: nothing of the translation runs.
    pub arrives: Option<RunAddr>,
    /// Steps that no processor could do: control would have to leap without a branch. A placement
    /// that is right has none.
    pub breaks: u64,
}

impl Moved {
    pub fn bytes(&self) -> u64 {
        self.fetches.iter().map(|fetch| u64::from(fetch.bytes)).sum()
    }
}

/// Runs `fragment` of `code` once as `placement` has it.
pub fn run(code: &Code, fragment: &Fragment, placement: &Placement) -> Moved {
    let mut walk = Walk { placement, moved: Moved::default(), at: None };
    let all = code.lengths.len();
    let instructions = match fragment.exit {
        Exit::LateNext | Exit::LateTaken => {
            walk.late(code, fragment.exit);
            return walk.moved;
        }
        Exit::Cut(instructions) => usize::from(instructions).min(all),
        Exit::Next | Exit::Taken | Exit::Open => all,
    };
    walk.moved.arrives = Some(walk.new_addr(code.addr));
    if fragment.returned_into {
        walk.behind_call(code.addr);
    }
    let mut addr = code.addr;
    for (index, &length) in code.lengths[..instructions].iter().enumerate() {
        let ends = index + 1 == all;
        walk.instruction(addr, length, if ends { code.last } else { Last::Plain });
        addr = behind(addr, u64::from(length));
        if index + 1 < instructions {
            walk.leave(code, addr, Exit::Next, false);
        }
    }
    match fragment.exit {
        Exit::Next | Exit::Taken => walk.leave(code, addr, fragment.exit, true),
        Exit::Open => walk.unconditional(code),
        Exit::Cut(_) | Exit::LateNext | Exit::LateTaken => {}
    }
    walk.moved
}

/// Where the walk through the old code is: the block of the instruction just run, if it moved.
struct Walk<'a> {
    placement: &'a Placement,
    moved: Moved,
    at: Option<&'a PlacedBlock>,
}

impl<'a> Walk<'a> {
    /// Fetches one old instruction.
    fn instruction(&mut self, addr: RunAddr, length: u8, last: Last) {
        self.at = self.placement.block_at(LinkAddr(addr.0));
        let length = u64::from(length);
        let Some(block) = self.at else {
            self.fetch(addr, length, addr);
            self.moved.instructions += 1;
            return;
        };
        let offset = addr.0 - block.old.0;
        let end = offset + length;
        if end > u64::from(block.old_size) {
            self.moved.breaks += 1; // the instruction straddles two blocks
        }
        let mut new_length = match end == u64::from(block.old_size) {
            true => u64::from(block.new_size).saturating_sub(offset),
            false => length,
        };
        let changed = new_length != length
            || end == u64::from(block.old_size) && block.ending != Ending::Same;
        if changed && !may_become(last, block.ending, length, new_length) {
            self.moved.breaks += 1;
            new_length = length;
        }
        if new_length > 0 {
            self.fetch(behind(RunAddr(block.new.0), offset), new_length, addr);
            self.moved.instructions += 1;
        }
    }

    /// Control goes from the instruction just run, whose end is at `end`, out by `exit`; `last`
    /// when it is the translation's last.
    fn leave(&mut self, code: &Code, end: RunAddr, exit: Exit, last: bool) {
        let ends_block = self.block_that_ends_at(end);
        let how = if last { code.last } else { Last::Plain };
        let inverted = ends_block.is_some_and(|block| block.ending == Ending::Inverted);
        let dropped = ends_block.is_some_and(|block| block.ending == Ending::JumpDropped);
        let falls_through = match how {
            Last::Plain => true,
            Last::Conditional { .. } => (exit == Exit::Taken) == inverted,
            Last::Jump { .. } => dropped,
            Last::Call { .. } | Last::Taken(_) | Last::InterruptReturn => false,
        };
        let stands = match ends_block {
            Some(block) => behind(RunAddr(block.new.0), u64::from(block.new_size)),
            None => behind(self.new_addr(RunAddr(end.0.wrapping_sub(1))), 1),
        };
        if last {
            let old_target = if inverted { end } else { code.target().unwrap_or(end) };
            self.branch(how, self.new_addr(code.last_addr()), stands, old_target, !falls_through);
        }
        if !falls_through {
            return;
        }
        let goes_to = match exit {
            Exit::Taken => code.target().unwrap_or(end),
            _ => end,
        };
        if let Some(block) = ends_block.filter(|block| block.appended > 0) {
            self.appended_jump(block, end, goes_to);
            return;
        }
        if self.new_addr(goes_to) != stands {
            self.moved.breaks += 1;
        }
    }

    /// The last instruction ran, and an interruption came before it was seen where it leads:
    /// certain is only what always happens.
    fn unconditional(&mut self, code: &Code) {
        match code.last {
            Last::Jump { .. } | Last::Call { .. } | Last::Taken(_) => {
                self.leave(code, code.end(), Exit::Taken, true)
            }
            Last::Plain | Last::Conditional { .. } | Last::InterruptReturn => {}
        }
    }

    /// What `unconditional` left open.
    fn late(&mut self, code: &Code, exit: Exit) {
        self.at = self.placement.block_at(LinkAddr(code.last_addr().0));
        let exit = if exit == Exit::LateTaken { Exit::Taken } else { Exit::Next };
        self.leave(code, code.end(), exit, true);
    }

    /// A return arrives at `addr`. Where a jump was put behind the call before it, that is what the
    /// return reaches first.
    fn behind_call(&mut self, addr: RunAddr) {
        let call = self.placement.block_at(LinkAddr(addr.0.wrapping_sub(1)));
        if let Some(block) = call.filter(|block| block.old_end().0 == addr.0 && block.appended > 0)
        {
            self.moved.arrives = Some(self.appended_jump(block, addr, addr));
        }
    }

    /// Runs the jump behind a block, which goes to what was at `goes_to`; gives its address.
    fn appended_jump(
        &mut self,
        block: &PlacedBlock,
        old_end: RunAddr,
        goes_to: RunAddr,
    ) -> RunAddr {
        let start = behind(RunAddr(block.new.0), u64::from(block.new_size));
        self.fetch(start, block.appended.into(), RunAddr(old_end.0.wrapping_sub(1)));
        self.moved.instructions += 1;
        let end = behind(start, block.appended.into());
        self.execute(BranchKind::Jump, start, end, Some(self.new_addr(goes_to)), true);
        start
    }

    /// The instruction at `at` is executed, `end` is behind it: if it is a branch, one whose target
    /// was at `old_target`. A dropped jump is none.
    fn branch(&mut self, how: Last, at: RunAddr, end: RunAddr, old_target: RunAddr, taken: bool) {
        let kind = match how {
            Last::Conditional { .. } => BranchKind::Conditional,
            Last::Jump { .. } if taken => BranchKind::Jump,
            Last::Call { .. } => BranchKind::Call,
            Last::Taken(kind) => return self.execute(kind, at, end, None, taken),
            Last::Jump { .. } | Last::Plain | Last::InterruptReturn => return,
        };
        self.execute(kind, at, end, Some(self.new_addr(old_target)), taken);
    }

    fn execute(
        &mut self,
        kind: BranchKind,
        at: RunAddr,
        end: RunAddr,
        target: Option<RunAddr>,
        taken: bool,
    ) {
        if taken {
            self.moved.taken.count(kind, 1);
        }
        self.moved.branches.push(Branch {
            kind,
            at: CodeAddr(at.0),
            end: CodeAddr(end.0),
            target: target.map(|target| CodeAddr(target.0)),
            taken,
        });
    }

    /// The block of the instruction just run, if that is its last.
    fn block_that_ends_at(&self, end: RunAddr) -> Option<&'a PlacedBlock> {
        self.at.filter(|block| block.old_end().0 == end.0)
    }

    fn new_addr(&self, old: RunAddr) -> RunAddr {
        match self.placement.block_at(LinkAddr(old.0)) {
            Some(block) => behind(RunAddr(block.new.0), old.0 - block.old.0),
            None => old,
        }
    }

    /// Appends to the last fetch what lies directly behind it both in the old and in the new code.
    fn fetch(&mut self, start: RunAddr, bytes: u64, origin: RunAddr) {
        if let Some(last) = self.moved.fetches.last_mut() {
            let length = u64::from(last.bytes);
            if behind(last.start, length) == start && behind(last.origin, length) == origin {
                last.bytes += bytes as u32;
                return;
            }
        }
        self.moved.fetches.push(Fetch { start, bytes: bytes as u32, origin });
    }
}

fn behind(addr: RunAddr, bytes: u64) -> RunAddr {
    RunAddr(addr.0.wrapping_add(bytes))
}

/// Whether a block's last instruction, of `old` bytes, can have become what the placement says.
fn may_become(last: Last, ending: Ending, old: u64, new: u64) -> bool {
    match (last, ending) {
        (Last::Jump { .. }, Ending::JumpDropped) => new == 0,
        (Last::Conditional { .. }, Ending::Inverted | Ending::Same)
        | (Last::Jump { .. }, Ending::Same) => (2..=6).contains(&new),
        // The no-op of a static key that had to grow.
        (Last::Plain, Ending::Same) => (old, new) == (2, 5),
        _ => false,
    }
}
