//! Cuts functions into blocks.
//!
//! Input: the bytes of a function, and the addresses that side tables say control can reach.
//! Output: blocks. The decoder goes through the bytes linearly, because compilers for the kernel
//! put no data between instructions.

use crate::address::LinkAddr;
use crate::{Block, BlockEnd};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use std::ops::Range;

/// What side tables say about a function beyond its instructions: where control can enter, and
/// which bytes stay together. Every list is ascending.
#[derive(Debug, Default)]
pub(super) struct Landmarks {
    /// Addresses at which a block begins: fixups of exceptions and targets of static keys.
    pub starts: Vec<u64>,
    /// Static-key sites. A block begins behind a site if an instruction begins there.
    pub sites: Vec<u64>,
    /// Alternatives. A block never begins inside one.
    pub opaque: Vec<Range<u64>>,
}

impl Landmarks {
    pub(crate) fn sort(&mut self) {
        self.starts.sort_unstable();
        self.sites.sort_unstable();
        self.opaque.sort_unstable_by_key(|range| (range.start, range.end));
    }

    fn starts_in(&self, range: Range<u64>) -> &[u64] {
        let from = self.starts.partition_point(|&start| start < range.start);
        let to = self.starts.partition_point(|&start| start < range.end);
        &self.starts[from..to.max(from)]
    }

    fn is_site(&self, addr: u64) -> bool {
        self.sites.binary_search(&addr).is_ok()
    }

    /// Whether an alternative that begins in front of `addr` reaches beyond it.
    fn is_inside_opaque(&self, addr: u64) -> bool {
        self.opaque_reaches_beyond(addr, addr)
    }

    /// Whether an alternative that begins in front of `from` reaches beyond `to`.
    fn opaque_reaches_beyond(&self, from: u64, to: u64) -> bool {
        let after = self.opaque.partition_point(|range| range.start < from);
        self.opaque[..after].iter().rev().take(4).any(|range| to < range.end)
    }

    /// Whether the kernel patches the instruction: it is a static-key site, or has a byte of an
    /// alternative.
    fn is_patched(&self, instruction: &InstructionExtent) -> bool {
        self.is_site(instruction.addr)
            || self.opaque_reaches_beyond(instruction.next, instruction.addr)
    }
}

/// Where an instruction lies, and how it ends a block if it does.
struct InstructionExtent {
    addr: u64,
    next: u64,
    end: Option<BlockEnd>,
}

/// Cuts the code at `addr` into blocks. The blocks are ascending and cover the code up to trailing
/// padding (`int3`, `nop`).
pub(super) fn cut(addr: u64, code: &[u8], landmarks: &Landmarks) -> Vec<Block> {
    let steps = decode(addr, code, landmarks);
    let Some(last) = steps.last() else {
        return Vec::new();
    };
    let range = addr..last.next;

    let mut starts: Vec<u64> = landmarks.starts_in(range.clone()).to_vec();
    starts.push(addr);
    for step in &steps {
        if let Some(end) = step.end {
            starts.push(step.next);
            if let BlockEnd::Jump(to) | BlockEnd::Branch(to) = end {
                starts.push(to.0);
            }
        }
    }
    starts.retain(|start| range.contains(start));
    starts.sort_unstable();
    starts.dedup();
    // Only an instruction begins a block. A jump into the middle of an instruction (for example
    // behind a LOCK prefix) does not cut.
    starts.retain(|start| steps.binary_search_by_key(start, |step| step.addr).is_ok());

    let ends = starts.iter().skip(1).copied().chain([range.end]);
    starts
        .iter()
        .zip(ends)
        .map(|(&start, end)| {
            let last = steps.partition_point(|step| step.addr < end) - 1;
            Block {
                addr: LinkAddr(start),
                size: (end - start) as u32,
                end: steps[last].end.unwrap_or(BlockEnd::FallThrough),
                glued: landmarks.is_inside_opaque(start),
                patched: landmarks.is_patched(&steps[last]),
            }
        })
        .collect()
}

/// The number of instructions in `code`.
pub(super) fn instructions(code: &[u8]) -> u32 {
    Decoder::with_ip(64, code, 0, DecoderOptions::NONE).iter().count() as u32
}

fn decode(addr: u64, code: &[u8], landmarks: &Landmarks) -> Vec<InstructionExtent> {
    let mut decoder = Decoder::with_ip(64, code, addr, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut steps = Vec::with_capacity(code.len() / 4);
    let mut behind_padding = 0;
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        steps.push(InstructionExtent {
            addr: instruction.ip(),
            next: instruction.next_ip(),
            end: end_of(&instruction, landmarks),
        });
        if !matches!(instruction.mnemonic(), Mnemonic::Int3 | Mnemonic::Nop) {
            behind_padding = steps.len();
        }
    }
    // A function that consists only of no-ops is kept.
    if behind_padding > 0 && steps[behind_padding - 1].end.is_some() {
        steps.truncate(behind_padding);
    }
    steps
}

fn end_of(instruction: &Instruction, landmarks: &Landmarks) -> Option<BlockEnd> {
    let target = || LinkAddr(instruction.near_branch_target());
    match instruction.flow_control() {
        FlowControl::Next if landmarks.is_site(instruction.ip()) => Some(BlockEnd::FallThrough),
        FlowControl::Next | FlowControl::XbeginXabortXend => None,
        FlowControl::UnconditionalBranch => Some(BlockEnd::Jump(target())),
        FlowControl::ConditionalBranch => Some(BlockEnd::Branch(target())),
        FlowControl::Call if instruction.is_call_near() => Some(BlockEnd::Call(Some(target()))),
        FlowControl::IndirectCall => Some(BlockEnd::Call(None)),
        // After syscall, vmcall and the like control continues behind the instruction.
        FlowControl::Call => None,
        FlowControl::IndirectBranch | FlowControl::Return => Some(BlockEnd::Stop),
        FlowControl::Interrupt => {
            (instruction.code() != Code::Int3).then_some(BlockEnd::FallThrough)
        }
        FlowControl::Exception => Some(BlockEnd::Stop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(code: &[u8], landmarks: &Landmarks) -> Vec<(u64, u32, BlockEnd)> {
        let blocks = cut(0x1000, code, landmarks);
        blocks.iter().map(|block| (block.addr.0, block.size, block.end)).collect()
    }

    /// ```text
    /// 1000  test edi,edi
    /// 1002  je 1009 ─┐
    /// 1004  call …   │
    /// 1009  ret  ◄───┘
    /// 100a  int3
    /// ```
    #[test]
    fn a_conditional_call_is_a_block_of_its_own() {
        let code = [0x85, 0xff, 0x74, 0x05, 0xe8, 0, 0, 0, 0, 0xc3, 0xcc];
        let expected = vec![
            (0x1000, 4, BlockEnd::Branch(LinkAddr(0x1009))),
            (0x1004, 5, BlockEnd::Call(Some(LinkAddr(0x1009)))),
            (0x1009, 1, BlockEnd::Stop),
        ];
        assert_eq!(shape(&code, &Landmarks::default()), expected);
    }

    #[test]
    fn a_static_key_site_ends_a_block_and_its_target_begins_one() {
        // 1000 nop5 (a static key's site); 1005 ret; 1006 ret (the site's target)
        let code = [0x0f, 0x1f, 0x44, 0, 0, 0xc3, 0xc3];
        let landmarks = Landmarks { starts: vec![0x1006], sites: vec![0x1000], opaque: vec![] };
        let expected = vec![
            (0x1000, 5, BlockEnd::FallThrough),
            (0x1005, 1, BlockEnd::Stop),
            (0x1006, 1, BlockEnd::Stop),
        ];
        assert_eq!(shape(&code, &landmarks), expected);
    }

    /// ```text
    /// 1000  jmp 1005      a static key's site
    /// 1002  nop3
    /// 1005  jmp 1010      an alternative of five bytes
    /// 100a  call …        behind it
    /// 100f  ret
    /// 1010  ret
    /// ```
    #[test]
    fn what_the_kernel_patches_at_the_end_of_a_block_is_known() {
        let mut code = vec![0xeb, 3, 0x0f, 0x1f, 0, 0xe9, 6, 0, 0, 0, 0xe8, 0, 0, 0, 0, 0xc3, 0xc3];
        let opaque = std::iter::once(0x1005..0x100a).collect();
        let landmarks = Landmarks { starts: vec![0x1010], sites: vec![0x1000], opaque };
        let patched = |code: &[u8]| -> Vec<(u64, bool)> {
            let blocks = cut(0x1000, code, &landmarks);
            blocks.iter().map(|block| (block.addr.0, block.patched)).collect()
        };
        let expected = [
            (0x1000, true),
            (0x1002, false),
            (0x1005, true),
            (0x100a, false),
            (0x100f, false),
            (0x1010, false),
        ];
        assert_eq!(patched(&code), expected);
        // The same with no-ops: the block behind the site now reaches to the call.
        code[..2].copy_from_slice(&[0x66, 0x90]);
        code[5..10].copy_from_slice(&[0x0f, 0x1f, 0x44, 0, 0]);
        let expected = [(0x1000, true), (0x1002, false), (0x100f, false), (0x1010, false)];
        assert_eq!(patched(&code), expected);
    }

    #[test]
    fn blocks_cover_any_bytes() {
        let mut state = 1u64;
        for _ in 0..2000 {
            let code: Vec<u8> = (0..64)
                .map(|_| {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (state >> 56) as u8
                })
                .collect();
            let blocks = cut(0x1000, &code, &Landmarks::default());
            let mut next = 0x1000;
            for block in &blocks {
                assert_eq!(block.addr.0, next);
                next += u64::from(block.size);
            }
            assert!(next <= 0x1040);
        }
    }
}
