//! Which calls are inlined, and which pieces stand in their place.
//!
//! Input: calls, in the order in which they are inlined. Output: the context of each piece. This
//! module looks at no code.

/// Bytes of a direct call.
pub(super) const CALL: u32 = 5;

/// A call to inline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlinedCall {
    /// Where it stands: 0 in the copies of the group's functions, n in the code of call n - 1.
    pub context: u32,
    /// The offset of the call in the kernel's `.text`.
    pub at: u32,
    /// The number of the called function.
    pub callee: u32,
}

/// What was inlined. The default: nothing.
#[derive(Clone, Debug, Default)]
pub struct Inlining {
    calls: Vec<InlinedCall>,
    joints: Vec<Joint>,
    /// The first piece of each inlined call's code.
    starts: Vec<u32>,
}

/// Where an inlined call's code begins and where it goes on, by the numbers of pieces.
#[derive(Clone, Copy, Debug)]
struct Joint {
    /// The piece that ends with the call.
    caller: u32,
    /// The piece behind the call.
    behind: u32,
    /// The piece with which the callee begins. Parts that the compiler put elsewhere may lie in
    /// front of it.
    entry: u32,
}

impl Inlining {
    /// The inlined calls. Call n has the code of context n + 1.
    pub fn calls(&self) -> &[InlinedCall] {
        &self.calls
    }

    /// Adds a call: the piece that ends with it, the one behind it, the one with which the callee
    /// begins, and the first of its code, which is behind all others.
    pub(super) fn push(
        &mut self,
        call: InlinedCall,
        [caller, behind, entry]: [u32; 3],
        first: u32,
    ) {
        self.calls.push(call);
        self.joints.push(Joint { caller, behind, entry });
        self.starts.push(first);
    }

    /// The piece with which the code of an inlined call begins.
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

    /// The piece that ends with an inlined call, and the one behind it.
    pub fn joint(&self, call: u32) -> (u32, u32) {
        let joint = self.joints[call as usize];
        (joint.caller, joint.behind)
    }

    /// The piece that another one enters in place of the call at its end.
    pub fn entered_from(&self, piece: usize) -> Option<u32> {
        let joint = self.joints.iter().find(|joint| joint.caller as usize == piece)?;
        Some(joint.entry)
    }
}
