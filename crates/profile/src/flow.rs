//! How control went from one translation to the next, in terms of blocks.
//!
//! What a translation's last instruction was is read from the bytes that ran, not from the image:
//! the kernel patches static keys, static calls and alternatives at run time.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use image::address::LinkAddr;
use image::{BlockEnd, BlockIndex, Image};
use layout::graph::{EdgeKind, SeedClass};
use trace::Translation;

/// What a translation's last instruction can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Next,
    Branch(u64),
    Jump(u64),
    Call,
    Indirect,
    Return,
    /// `iretq` and its kin: back to what was interrupted, which ended as it would have.
    Resume,
}

/// What is known of a translation of kernel code.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub start: LinkAddr,
    pub end: LinkAddr,
    /// The blocks that begin in it, with the number of instructions before each; ascending.
    pub blocks: Vec<(BlockIndex, u32)>,
    /// The block that holds its first instruction.
    pub first: Option<BlockIndex>,
    /// The block that it ends with; `None` when it was cut inside a block.
    pub last: Option<BlockIndex>,
    /// Set on the translation at which the kernel is entered.
    pub entry: Option<SeedClass>,
    /// Its first block lies in movable text.
    pub movable: bool,
    exit: Exit,
}

/// What a transition between two translations is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// From the end of a block to the start of another.
    Edge(BlockIndex, BlockIndex, EdgeKind),
    /// From a call at the end of a block to the entry of a function.
    Call(BlockIndex, BlockIndex),
    /// On within a block that two translations share, or to or from code without blocks.
    Within,
    /// Something came between (an interrupt, an exception), or this is the way back from it.
    Interrupted,
}

impl Known {
    pub fn new(image: &Image, translation: &Translation) -> Self {
        let start = translation.addr.0;
        let end = start + translation.code.len() as u64;
        let mut blocks = Vec::new();
        let mut addr = start;
        for (n, &length) in translation.lengths.iter().enumerate() {
            if let Some(block) =
                image.block_at(LinkAddr(addr)).filter(|&block| image.block(block).addr.0 == addr)
            {
                blocks.push((block, n as u32));
            }
            addr += u64::from(length);
        }
        let first = image.block_at(LinkAddr(start));
        // A patched instruction may be shorter than what the image has there: `ret` for
        // `jmp __x86_return_thunk`.
        let exit = exit(translation);
        let last = (end > start)
            .then(|| image.block_at(LinkAddr(end - 1)))
            .flatten()
            .filter(|&block| exit != Exit::Next || image.block(block).end_addr().0 == end);
        let function = first.map(|block| image.function_of(block));
        Self {
            start: LinkAddr(start),
            end: LinkAddr(end),
            blocks,
            first,
            last,
            entry: function
                .filter(|function| function.addr.0 == start)
                .and_then(|function| seed_class(&function.name)),
            movable: function.is_some_and(|function| function.movable),
            exit,
        }
    }

    /// Whether the last instruction can go anywhere: a return (from a function or an interrupt) or
    /// an indirect jump.
    pub fn leaves_for_anywhere(&self) -> bool {
        matches!(self.exit, Exit::Return | Exit::Indirect | Exit::Resume)
    }

    fn starts_block(&self, image: &Image) -> Option<BlockIndex> {
        self.first.filter(|&block| image.block(block).addr == self.start)
    }

    /// What the transition from the whole of `self` to the start of `next` is.
    pub fn to(&self, next: &Self, image: &Image) -> Flow {
        let (Some(from), Some(to)) = (self.last, next.starts_block(image)) else {
            let goes_on = self.exit == Exit::Next && self.end == next.start;
            let unknown = self.first.is_none() || next.first.is_none();
            return if goes_on || unknown { Flow::Within } else { Flow::Interrupted };
        };
        let to_entry = image.function_of(to).addr == next.start;
        match self.exit {
            Exit::Next | Exit::Branch(_) if next.start == self.end => {
                Flow::Edge(from, to, EdgeKind::FallThrough)
            }
            Exit::Branch(target) if next.start.0 == target => {
                Flow::Edge(from, to, EdgeKind::Branch)
            }
            Exit::Jump(target) if next.start.0 == target => Flow::Edge(from, to, EdgeKind::Jump),
            Exit::Call if to_entry => Flow::Call(from, to),
            Exit::Return | Exit::Indirect => left_by_register(image, from, to, to_entry),
            _ => Flow::Interrupted,
        }
    }
}

/// A return ends the call before `to` (one that an alternative put there is none in the image);
/// with a return stack that was rewritten (a retpoline) it enters a function, like an indirect
/// jump.
fn left_by_register(image: &Image, from: BlockIndex, to: BlockIndex, to_entry: bool) -> Flow {
    if to_entry {
        return if image.function_of(to).movable {
            Flow::Edge(from, to, EdgeKind::Indirect)
        } else {
            Flow::Interrupted
        };
    }
    let before = to.0.checked_sub(1).map(BlockIndex);
    let call = before.filter(|&before| {
        let block = image.block(before);
        matches!(block.end, BlockEnd::Call(_) | BlockEnd::FallThrough)
            && block.end_addr() == image.block(to).addr
    });
    match call {
        Some(call) => Flow::Edge(call, to, EdgeKind::FallThrough),
        None => Flow::Interrupted,
    }
}

fn exit(translation: &Translation) -> Exit {
    let length = translation.lengths.last().map_or(0, |&length| usize::from(length));
    let at = translation.code.len().saturating_sub(length);
    let ip = translation.addr.0 + at as u64;
    let instruction =
        Decoder::with_ip(64, &translation.code[at..], ip, DecoderOptions::NONE).decode();
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch => Exit::Jump(instruction.near_branch_target()),
        FlowControl::ConditionalBranch => Exit::Branch(instruction.near_branch_target()),
        FlowControl::Call if instruction.is_call_near() => Exit::Call,
        FlowControl::IndirectCall => Exit::Call,
        FlowControl::IndirectBranch => Exit::Indirect,
        FlowControl::Return if matches!(instruction.mnemonic(), Mnemonic::Ret | Mnemonic::Retf) => {
            Exit::Return
        }
        FlowControl::Return => Exit::Resume,
        _ => Exit::Next,
    }
}

/// Torrellas' classes of entry by the kernel's names of its entry points
/// (arch/x86/entry/entry_64.S, asm/idtentry.h).
fn seed_class(function: &str) -> Option<SeedClass> {
    match function {
        "asm_exc_page_fault" => Some(SeedClass::PageFault),
        "entry_SYSCALL_64"
        | "entry_SYSENTER_compat"
        | "entry_SYSCALL_compat"
        | "asm_int80_emulation" => Some(SeedClass::SystemCall),
        "asm_common_interrupt" | "asm_spurious_interrupt" => Some(SeedClass::Interrupt),
        "ret_from_fork_asm" => Some(SeedClass::Other),
        _ if function.starts_with("asm_sysvec_") => Some(SeedClass::Interrupt),
        _ if function.starts_with("asm_exc_") => Some(SeedClass::Other),
        _ => None,
    }
}
