//! The fetches and branches of a fragment whose blocks have moved.
//!
//! Input: a fragment of the old code, and a [`Placement`]. Output: the fetches of the new code, in
//! order. An old instruction lies where its block went, at the same distance from the start of the
//! block. Only the last instruction of a block can change its length, be inverted or vanish. A jump
//! can be appended behind it (see [`Placement`] for how control then goes). The jump behind a call
//! runs when the callee returns. Code that did not move is fetched from its old place.

use crate::code::{LastInstruction, TranslatedCode};
use crate::flow::{Fragment, FragmentExit};
use image::address::LinkAddr;
use image::place::{Ending, PlacedBlock, Placement};
use sim::{Branch, BranchKind, CodeAddr, TakenBranches};
use trace::RunAddr;

/// A run of bytes fetched without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The address of the first byte.
    pub start: RunAddr,
    /// The number of bytes.
    pub bytes: u32,
    /// The address of the first byte in the old code. For an appended jump: the last byte of the
    /// instruction in front of it.
    pub origin: RunAddr,
    /// Whether the old code lies in a large page outside of the kernel's image. Code that moves
    /// lies in the image.
    pub large_page: bool,
}

/// An instruction that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedInstruction {
    /// Its address.
    pub at: RunAddr,
    /// The number of bytes.
    pub bytes: u8,
    /// Its index in the translation; `None` for an appended jump.
    pub recorded: Option<u16>,
    /// As in [`Fetch`].
    pub large_page: bool,
}

/// One run of a fragment under a placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovedFragment {
    /// The recorded instructions that ran. They are the same under every layout.
    pub recorded: u16,
    /// The fetches, in order.
    pub fetches: Vec<Fetch>,
    /// The number of instructions.
    pub instructions: u64,
    /// The instructions, in order.
    pub instructions_at: Vec<MovedInstruction>,
    /// The taken branches.
    pub taken: TakenBranches,
    /// The executed branches, in order. A return or an indirect branch can only be the last. It has
    /// no target here: it goes to where the next execution arrives.
    pub branches: Vec<Branch>,
    /// The address at which control arrives; `None` when no instruction runs.
    pub arrives: Option<RunAddr>,
    /// The number of impossible steps, at which control would have to leap without a branch. A
    /// correct placement has none.
    pub breaks: u64,
}

impl MovedFragment {
    /// The number of fetched bytes.
    pub fn bytes(&self) -> u64 {
        self.fetches.iter().map(|fetch| u64::from(fetch.bytes)).sum()
    }
}

/// Runs `fragment` of `code` once under `placement`.
pub fn run(code: &TranslatedCode, fragment: &Fragment, placement: &Placement) -> MovedFragment {
    let (moved, large_page) = (MovedFragment::default(), code.large_page);
    let mut walk = MovedWalk { placement, moved, at: None, large_page };
    let all = code.lengths.len();
    let instructions = match fragment.exit {
        FragmentExit::LateNext | FragmentExit::LateTaken => {
            walk.late(code, fragment.exit);
            return walk.moved;
        }
        FragmentExit::Midway(instructions) => usize::from(instructions).min(all),
        FragmentExit::Next | FragmentExit::Taken | FragmentExit::Interrupted => all,
    };
    walk.moved.recorded = instructions as u16;
    walk.moved.arrives = Some(walk.new_addr(code.addr));
    if fragment.returned_into {
        walk.behind_call(code.addr);
    }
    let mut addr = code.addr;
    for (index, &length) in code.lengths[..instructions].iter().enumerate() {
        let ends = index + 1 == all;
        let last = if ends { code.last } else { LastInstruction::Plain };
        walk.instruction(addr, length, last, index as u16);
        addr = behind(addr, u64::from(length));
        if index + 1 < instructions {
            walk.leave(code, addr, FragmentExit::Next, false);
        }
    }
    match fragment.exit {
        FragmentExit::Next | FragmentExit::Taken => walk.leave(code, addr, fragment.exit, true),
        FragmentExit::Interrupted => walk.unconditional(code),
        FragmentExit::Midway(_) | FragmentExit::LateNext | FragmentExit::LateTaken => {}
    }
    walk.moved
}

/// A walk through the old code. `at` is the block of the last instruction, if that block moved.
struct MovedWalk<'a> {
    placement: &'a Placement,
    moved: MovedFragment,
    at: Option<&'a PlacedBlock>,
    large_page: bool,
}

impl<'a> MovedWalk<'a> {
    /// Fetches one old instruction.
    fn instruction(&mut self, addr: RunAddr, length: u8, last: LastInstruction, index: u16) {
        self.at = self.placement.block_at(LinkAddr(addr.0));
        let length = u64::from(length);
        let Some(block) = self.at else {
            self.fetch(addr, length, addr);
            self.runs(addr, length, Some(index));
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
            let at = behind(RunAddr(block.new.0), offset);
            self.fetch(at, new_length, addr);
            self.runs(at, new_length, Some(index));
        }
    }

    /// Control leaves the last instruction, whose end is at `end`, by `exit`. `last`: it is the
    /// translation's last instruction.
    fn leave(&mut self, code: &TranslatedCode, end: RunAddr, exit: FragmentExit, last: bool) {
        let ends_block = self.block_that_ends_at(end);
        let how = if last { code.last } else { LastInstruction::Plain };
        let inverted = ends_block.is_some_and(|block| block.ending == Ending::Inverted);
        let dropped = ends_block.is_some_and(|block| block.ending == Ending::JumpDropped);
        let falls_through = match how {
            LastInstruction::Plain => true,
            LastInstruction::Conditional { .. } => (exit == FragmentExit::Taken) == inverted,
            LastInstruction::Jump { .. } => dropped,
            LastInstruction::Call { .. }
            | LastInstruction::Taken(_)
            | LastInstruction::InterruptReturn => false,
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
            FragmentExit::Taken => code.target().unwrap_or(end),
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

    /// The last instruction ran, and an interruption came before its successor showed. Only
    /// unconditional branches are certain.
    fn unconditional(&mut self, code: &TranslatedCode) {
        match code.last {
            LastInstruction::Jump { .. }
            | LastInstruction::Call { .. }
            | LastInstruction::Taken(_) => self.leave(code, code.end(), FragmentExit::Taken, true),
            LastInstruction::Plain
            | LastInstruction::Conditional { .. }
            | LastInstruction::InterruptReturn => {}
        }
    }

    /// Runs what `unconditional` left open.
    fn late(&mut self, code: &TranslatedCode, exit: FragmentExit) {
        self.at = self.placement.block_at(LinkAddr(code.last_addr().0));
        let exit =
            if exit == FragmentExit::LateTaken { FragmentExit::Taken } else { FragmentExit::Next };
        self.leave(code, code.end(), exit, true);
    }

    /// A return arrives at `addr`. If a jump is appended to the call before it, the return arrives
    /// at that jump.
    fn behind_call(&mut self, addr: RunAddr) {
        let call = self.placement.block_at(LinkAddr(addr.0.wrapping_sub(1)));
        if let Some(block) = call.filter(|block| block.old_end().0 == addr.0 && block.appended > 0)
        {
            self.moved.arrives = Some(self.appended_jump(block, addr, addr));
        }
    }

    /// Runs the jump behind a block, to the code that was at `goes_to`. Returns the jump's address.
    fn appended_jump(
        &mut self,
        block: &PlacedBlock,
        old_end: RunAddr,
        goes_to: RunAddr,
    ) -> RunAddr {
        let start = behind(RunAddr(block.new.0), u64::from(block.new_size));
        self.fetch(start, block.appended.into(), RunAddr(old_end.0.wrapping_sub(1)));
        self.runs(start, block.appended.into(), None);
        let end = behind(start, block.appended.into());
        self.execute(BranchKind::Jump, start, end, Some(self.new_addr(goes_to)), true);
        start
    }

    /// Executes the instruction from `at` to `end` if it is a branch. Its target was at
    /// `old_target`. A dropped jump is not a branch.
    fn branch(
        &mut self,
        how: LastInstruction,
        at: RunAddr,
        end: RunAddr,
        old_target: RunAddr,
        taken: bool,
    ) {
        let kind = match how {
            LastInstruction::Conditional { .. } => BranchKind::Conditional,
            LastInstruction::Jump { .. } if taken => BranchKind::Jump,
            LastInstruction::Call { .. } => BranchKind::Call,
            LastInstruction::Taken(kind) => return self.execute(kind, at, end, None, taken),
            LastInstruction::Jump { .. }
            | LastInstruction::Plain
            | LastInstruction::InterruptReturn => return,
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

    /// The block of the last instruction, if the instruction is the last of the block.
    fn block_that_ends_at(&self, end: RunAddr) -> Option<&'a PlacedBlock> {
        self.at.filter(|block| block.old_end().0 == end.0)
    }

    fn new_addr(&self, old: RunAddr) -> RunAddr {
        match self.placement.block_at(LinkAddr(old.0)) {
            Some(block) => behind(RunAddr(block.new.0), old.0 - block.old.0),
            None => old,
        }
    }

    /// An instruction runs.
    fn runs(&mut self, at: RunAddr, bytes: u64, recorded: Option<u16>) {
        self.moved.instructions += 1;
        let (bytes, large_page) = (bytes as u8, self.large_page);
        self.moved.instructions_at.push(MovedInstruction { at, bytes, recorded, large_page });
    }

    /// Fetches bytes. Bytes that follow the last fetch in both the old and the new code join it.
    fn fetch(&mut self, start: RunAddr, bytes: u64, origin: RunAddr) {
        if let Some(last) = self.moved.fetches.last_mut() {
            let length = u64::from(last.bytes);
            if behind(last.start, length) == start && behind(last.origin, length) == origin {
                last.bytes += bytes as u32;
                return;
            }
        }
        let (bytes, large_page) = (bytes as u32, self.large_page);
        self.moved.fetches.push(Fetch { start, bytes, origin, large_page });
    }
}

fn behind(addr: RunAddr, bytes: u64) -> RunAddr {
    RunAddr(addr.0.wrapping_add(bytes))
}

/// Whether the last instruction of a block, of `old` bytes, can have become what the placement
/// says.
fn may_become(last: LastInstruction, ending: Ending, old: u64, new: u64) -> bool {
    match (last, ending) {
        (LastInstruction::Jump { .. }, Ending::JumpDropped) => new == 0,
        (LastInstruction::Conditional { .. }, Ending::Inverted | Ending::Same)
        | (LastInstruction::Jump { .. }, Ending::Same) => (2..=6).contains(&new),
        // The no-op of a static key, which had to grow.
        (LastInstruction::Plain, Ending::Same) => (old, new) == (2, 5),
        _ => false,
    }
}
