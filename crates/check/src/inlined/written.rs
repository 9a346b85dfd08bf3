//! An instruction of a callee where it stands in the place of a call.

/// Bytes of a direct call, and of a jump in its long form.
pub(super) const CALL: u64 = 5;

/// An instruction of the code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// Its address in the callee.
    pub old: u64,
    pub old_len: u64,
    /// Its address in the place of the call.
    pub new: u64,
    /// Its bytes there.
    pub len: u64,
    /// Whether it is the same instruction.
    pub stays: bool,
    /// Whether it is a direct call that is still one.
    pub is_call: bool,
    /// Whether it is a call that was a jump to a function.
    pub calls: bool,
}
