//! Where a function is left: the instructions that return, and the jumps into other functions.
//!
//! Input: the bytes of a function, and its address. Output: addresses.

use crate::address::LinkAddr;
use iced_x86::{Decoder, DecoderOptions, FlowControl, OpKind};
use std::ops::Range;

/// Where a function is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionExits {
    /// `ret`, and jumps to a return thunk: the kernel patches them to `ret` where it needs no
    /// thunk.
    pub returns: Vec<LinkAddr>,
    /// The targets of other jumps out of the function. The function that is jumped to returns in
    /// its place.
    pub jumps: Vec<LinkAddr>,
}

impl FunctionExits {
    /// Finds the exits in a part of a function. `own`: all parts. `thunks`: the return thunks.
    pub fn of(code: &[u8], at: LinkAddr, own: &[Range<u64>], thunks: &[LinkAddr]) -> FunctionExits {
        let mut exits = FunctionExits::default();
        for instruction in Decoder::with_ip(64, code, at.0, DecoderOptions::NONE).iter() {
            let is_direct = instruction.op0_kind() == OpKind::NearBranch64;
            match instruction.flow_control() {
                FlowControl::Return => exits.returns.push(LinkAddr(instruction.ip())),
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch if is_direct => {
                    let target = LinkAddr(instruction.near_branch_target());
                    if thunks.contains(&target) {
                        exits.returns.push(LinkAddr(instruction.ip()));
                    } else if !own.iter().any(|part| part.contains(&target.0)) {
                        exits.jumps.push(target);
                    }
                }
                _ => {}
            }
        }
        exits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_and_jumps_out_are_found() {
        let code = [
            0x74, 0x02, // 1000 je 1004
            0x90, 0xc3, // 1002 nop, ret
            0xe9, 0xf7, 0x0f, 0x00, 0x00, // 1004 jmp 2000, a thunk
            0xe9, 0xf2, 0x1f, 0x00, 0x00, // 1009 jmp 3000
            0xff, 0xe0, // 100e jmp *%rax
        ];
        let exits = FunctionExits::of(
            &code,
            LinkAddr(0x1000),
            std::slice::from_ref(&(0x1000..0x1010)),
            &[LinkAddr(0x2000)],
        );
        assert_eq!(exits.returns, [LinkAddr(0x1003), LinkAddr(0x1004)]);
        assert_eq!(exits.jumps, [LinkAddr(0x3000)]);
    }
}
