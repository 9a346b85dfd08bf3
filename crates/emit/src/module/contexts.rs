//! Which calls are inlined or promoted, and which pieces stand in their place.
//!
//! Input: calls, in the order in which other code takes their place. Output: the context of each
//! piece. This module looks at no code.

use image::address::LinkAddr;
use std::collections::BTreeMap;

/// Bytes of a direct call.
pub(super) const CALL: u32 = 5;
/// Bytes of the branch behind a guard's comparison. The placer makes it shorter.
pub(super) const GUARD_BRANCH: u8 = 6;
/// Bytes of a guard with the longest branch.
pub const GUARD: u32 = 7 + GUARD_BRANCH as u32;

/// A call in whose place other code stands. In front of the code for an indirect call stands a
/// guard: where the pointer names another function, the indirect call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlinedCall {
    /// Where it stands: 0 in the copies of the group's functions, n in the code of call n - 1.
    pub context: u32,
    /// The offset of the call in the kernel's `.text`.
    pub at: u32,
    /// What stands in its place.
    pub code: InPlace,
}

/// What stands in place of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlace {
    /// The code of the called function, by its number in the group: the call is inlined.
    Code(u32),
    /// A direct call of the function at this address, in place of an indirect one.
    Call(LinkAddr),
}

impl InlinedCall {
    /// The number of the function whose code stands in place of the call.
    pub fn inlined(&self) -> Option<u32> {
        match self.code {
            InPlace::Code(callee) => Some(callee),
            InPlace::Call(_) => None,
        }
    }
}

/// What was inlined and promoted. The default: nothing.
#[derive(Clone, Debug, Default)]
pub struct Inlining {
    calls: Vec<InlinedCall>,
    joints: Vec<Joint>,
    /// The first piece of each call's code.
    starts: Vec<u32>,
    /// The piece at whose end control goes to a call's code → the number of the call.
    callers: BTreeMap<u32, u32>,
}

/// Where a call's code begins and where it goes on, by the numbers of pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joint {
    /// The piece that ends with the call; for an indirect call, in front of it.
    pub(super) caller: u32,
    /// The piece behind the call.
    pub(super) behind: u32,
    /// The piece with which the code begins. Parts that the compiler put elsewhere may lie in front
    /// of it.
    pub(super) entry: u32,
    pub(super) guard: Option<Guard>,
}

/// An indirect call through a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectCall {
    /// The offset of the call in the kernel's `.text`.
    pub at: u32,
    /// Its bytes.
    pub len: u32,
    /// The number of the register, 0 to 15, as instructions encode it.
    pub register: u8,
    /// A block of a profile that begins from this offset on, and in front of the call, ends with
    /// the call: the end of the call before it, or the start of its piece.
    pub since: u32,
}

/// What is compared in front of the code for an indirect call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    pub(super) call: IndirectCall,
    pub(super) target: LinkAddr,
}

impl Inlining {
    /// The calls. Call n has the code of context n + 1.
    pub fn calls(&self) -> &[InlinedCall] {
        &self.calls
    }

    /// Adds a call, and the first piece of its code, which is behind all others. Returns false if
    /// another call stands at the end of the same piece.
    pub(super) fn push(&mut self, call: InlinedCall, joint: Joint, first: u32) -> bool {
        let number = self.calls.len() as u32;
        self.calls.push(call);
        self.joints.push(joint);
        self.starts.push(first);
        self.callers.insert(joint.caller, number).is_none()
    }

    /// The piece with which the code of a call begins.
    pub fn entry(&self, call: u32) -> u32 {
        self.joints[call as usize].entry
    }

    /// The context of a piece: 0 in the copies of functions, n in the code of call n - 1.
    pub fn context(&self, piece: usize) -> u32 {
        self.starts.partition_point(|&start| start as usize <= piece) as u32
    }

    /// The pieces of a context. `all`: the number of all pieces.
    pub fn pieces(&self, context: u32, all: usize) -> std::ops::Range<usize> {
        let bound = |context: u32| match context.checked_sub(1) {
            None => 0,
            Some(call) => self.starts.get(call as usize).map_or(all, |&start| start as usize),
        };
        bound(context)..bound(context + 1)
    }

    /// The piece at whose end control goes to the code of a call, and the one behind the call.
    pub fn joint(&self, call: u32) -> (u32, u32) {
        let joint = self.joints[call as usize];
        (joint.caller, joint.behind)
    }

    /// The piece that makes the indirect call where the guard of a call fails; `None` for a direct
    /// call.
    pub fn unlikely(&self, call: u32) -> Option<u32> {
        let joint = self.joints[call as usize];
        joint.guard.map(|_| joint.caller + 1)
    }

    /// Where control goes at the end of a piece, if to the code of a call.
    pub(super) fn joint_at(&self, piece: usize) -> Option<Joint> {
        let call = self.callers.get(&(piece as u32))?;
        Some(self.joints[*call as usize])
    }
}
