//! A translation block of the kernel in terms of basic blocks.
//!
//! Input: a translation block and the image. Output: the basic blocks that begin in it, and the
//! edge or call that each exit is. [`execution::flow`] says which exit was taken. The last
//! instruction is read from the bytes that ran, not from the image: the kernel patches static keys,
//! static calls and alternatives at run time. [`taken`] judges branches that a processor sampled by
//! the same rules.

use execution::code::{LastInstruction, TranslatedCode};
use execution::flow::FragmentExit;
use image::address::LinkAddr;
use image::sites::ThunkUse;
use image::{BlockEnd, BlockIndex, Image};
use layout::graph::{EdgeKind, SeedClass};
use sim::BranchKind;
use std::ops::Range;
use trace::RunAddr;

/// The basic blocks of a translation block of kernel code.
#[derive(Clone, Debug)]
pub(super) struct TranslatedBlocks {
    pub start: LinkAddr,
    /// The blocks that begin in it, with the number of instructions before each; ascending.
    pub blocks: Vec<(BlockIndex, u32)>,
    /// The block that holds its first instruction.
    pub first: Option<BlockIndex>,
    /// The block that it ends with; `None` when it was cut inside a block.
    pub last: Option<BlockIndex>,
    /// Set on the translation block at which the kernel is entered.
    pub entry: Option<SeedClass>,
    /// Its first block lies in movable text.
    pub movable: bool,
}

/// How control leaves a translation block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WayOut {
    /// The code says where to, or it is user code.
    Known,
    /// Only the recording says where to: a return or an indirect branch.
    Anywhere,
    /// Into a thunk, which leads anywhere.
    IntoThunk,
    /// It is a thunk's code.
    OfThunk,
}

/// The kind of a transfer of control between two blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockTransfer {
    /// From the end of a block to the start of another.
    Edge(BlockIndex, BlockIndex, EdgeKind),
    /// From a call at the end of a block to the entry of a function.
    Call(BlockIndex, BlockIndex),
}

impl TranslatedBlocks {
    pub(crate) fn new(image: &Image, code: &TranslatedCode) -> Self {
        let (start, end) = (code.addr.0, code.end().0);
        let mut blocks = Vec::new();
        let mut addr = start;
        for (n, &length) in code.lengths.iter().enumerate() {
            if let Some(block) = block_from(image, addr) {
                blocks.push((block, n as u32));
            }
            let next = addr + u64::from(length);
            blocks.extend(inside(image, addr..next).map(|block| (block, n as u32)));
            addr = next;
        }
        let first = image.block_at(LinkAddr(start));
        // A patched instruction may be shorter than what the image has there: `ret` for
        // `jmp __x86_return_thunk`.
        let last =
            (end > start).then(|| image.block_at(LinkAddr(end - 1))).flatten().filter(|&block| {
                code.last != LastInstruction::Plain || image.block(block).end_addr().0 == end
            });
        let function = first.map(|block| image.function_of(block));
        Self {
            start: LinkAddr(start),
            blocks,
            first,
            last,
            entry: function
                .filter(|function| function.addr.0 == start)
                .and_then(|function| seed_class(&function.name)),
            movable: function.is_some_and(|function| function.movable()),
        }
    }

    /// The edge or call of an exit of `code`, the code of these blocks. `None` where the exit leads
    /// to no block, or where the code alone does not say where it leads.
    pub(crate) fn transfer(
        &self,
        code: &TranslatedCode,
        exit: FragmentExit,
        image: &Image,
    ) -> Option<BlockTransfer> {
        let from = self.last?;
        let taken = |kind, to: RunAddr| match self.thunk_branch(code, image) {
            Some(_) => None,
            None => taken(image, from, kind, block_from(image, to.0)?),
        };
        match (code.last, exit) {
            (
                LastInstruction::Plain | LastInstruction::Conditional { .. },
                FragmentExit::Next | FragmentExit::LateNext,
            ) => {
                let to = block_from(image, code.end().0)?;
                Some(BlockTransfer::Edge(from, to, EdgeKind::FallThrough))
            }
            (
                LastInstruction::Conditional { target },
                FragmentExit::Taken | FragmentExit::LateTaken,
            ) => taken(BranchKind::Conditional, target),
            (LastInstruction::Jump { target }, FragmentExit::Taken) => {
                taken(BranchKind::Jump, target)
            }
            (LastInstruction::Call { target }, FragmentExit::Taken) => {
                taken(BranchKind::Call, target)
            }
            _ => None,
        }
    }

    /// How control leaves `code`, the code of these blocks.
    pub(crate) fn way_out(&self, code: &TranslatedCode, image: &Image) -> WayOut {
        if self.first.is_none_or(|first| thunk_of(image, first).is_some()) {
            // Some thunks are made while the kernel runs, and are in no file.
            return WayOut::OfThunk;
        }
        match code.last {
            LastInstruction::Taken(_) => WayOut::Anywhere,
            _ if self.thunk_branch(code, image).is_some() => WayOut::IntoThunk,
            _ => WayOut::Known,
        }
    }

    /// The indirect branch in whose place `code`, the code of these blocks, goes to a thunk.
    fn thunk_branch(&self, code: &TranslatedCode, image: &Image) -> Option<BranchKind> {
        let (kind, target) = match code.last {
            LastInstruction::Call { target } => (BranchKind::IndirectCall, target),
            LastInstruction::Jump { target } | LastInstruction::Conditional { target } => {
                (BranchKind::IndirectJump, target)
            }
            _ => return None,
        };
        let is_thunk = |to| thunk_of(image, to) == Some(ThunkUse::IndirectBranches);
        let to = match image.block_at(LinkAddr(target.0)) {
            Some(to) => to,
            // A thunk that is in no file has taken the place of the file's.
            None => match image.block(self.last?).end {
                BlockEnd::Call(Some(to)) | BlockEnd::Jump(to) | BlockEnd::Branch(to) => {
                    image.block_at(to)?
                }
                _ => return None,
            },
        };
        is_thunk(to).then_some(kind)
    }

    /// The edge or call from `code`, the code of these blocks, to `next`, when `code` ends with a
    /// return, an indirect branch, or a branch to a thunk that stands in the place of one: then
    /// only the recording says where it leads.
    pub(crate) fn indirect_transfer(
        &self,
        code: &TranslatedCode,
        next: &TranslatedBlocks,
        image: &Image,
    ) -> Option<BlockTransfer> {
        let from = self.last?;
        let to = next.first.filter(|&to| image.block(to).addr == next.start)?;
        let kind = match code.last {
            LastInstruction::Taken(kind) => kind,
            _ => self.thunk_branch(code, image)?,
        };
        taken(image, from, kind, to)
    }
}

/// What leads into the thunk that holds a block; `None` for all code but thunks.
fn thunk_of(image: &Image, block: BlockIndex) -> Option<ThunkUse> {
    ThunkUse::of(&image.function_of(block).name)
}

/// The blocks that begin inside of an instruction: the kernel patched it over the call and the
/// no-ops behind it that the image has there.
fn inside(image: &Image, instruction: Range<u64>) -> impl Iterator<Item = BlockIndex> {
    let last = instruction.end.checked_sub(1).and_then(|last| image.block_at(LinkAddr(last)));
    let first = image.block_at(LinkAddr(instruction.start));
    let range = first.zip(last).map_or(0..0, |(first, last)| first.0 + 1..last.0 + 1);
    range.map(BlockIndex)
}

/// The edge or call of a branch of this kind that is taken from the end of `from` to the start of
/// `to`, in a recording or in samples. `None`: it is neither.
pub fn taken(
    image: &Image,
    from: BlockIndex,
    kind: BranchKind,
    to: BlockIndex,
) -> Option<BlockTransfer> {
    let call = || is_entry(image, to).then_some(BlockTransfer::Call(from, to));
    match kind {
        BranchKind::Conditional => Some(BlockTransfer::Edge(from, to, EdgeKind::Branch)),
        BranchKind::Jump => Some(BlockTransfer::Edge(from, to, EdgeKind::Jump)),
        BranchKind::Call => call(),
        // The kernel's entries are not called: an interrupt came before the callee ran.
        BranchKind::IndirectCall => call().filter(|_| seed_class_of(image, to).is_none()),
        BranchKind::IndirectJump if !is_entry(image, to) => {
            Some(BlockTransfer::Edge(from, to, EdgeKind::Indirect))
        }
        BranchKind::Return | BranchKind::IndirectJump => return_or_jump(image, from, to),
    }
}

/// Whether control enters the kernel at an address by itself: by a system call, an exception or an
/// interrupt.
pub fn is_gate(image: &Image, at: LinkAddr) -> bool {
    let function = image.block_at(at).map(|block| image.function_of(block));
    function.is_some_and(|function| match function.addr == at {
        true => seed_class(&function.name).is_some() || is_vector_table(&function.name),
        false => is_vector_table(&function.name),
    })
}

/// The stubs of the interrupts' vectors, one behind the other (asm/idtentry.h).
fn is_vector_table(function: &str) -> bool {
    matches!(function, "irq_entries_start" | "spurious_entries_start")
}

/// The block that begins at an address.
fn block_from(image: &Image, addr: u64) -> Option<BlockIndex> {
    image.block_at(LinkAddr(addr)).filter(|&block| image.block(block).addr.0 == addr)
}

/// Whether a block is its function's first.
fn is_entry(image: &Image, block: BlockIndex) -> bool {
    image.function_of(block).addr == image.block(block).addr
}

/// A return completes the call in front of `to`. The image may have another instruction there: the
/// call may be an alternative. With a rewritten return stack (a retpoline) a return enters a
/// function, as an indirect jump does. An interrupt after either leads to code that does not move.
fn return_or_jump(image: &Image, from: BlockIndex, to: BlockIndex) -> Option<BlockTransfer> {
    if is_entry(image, to) {
        let movable = image.function_of(to).movable();
        return movable.then_some(BlockTransfer::Edge(from, to, EdgeKind::Indirect));
    }
    let call = BlockIndex(to.0.checked_sub(1)?);
    let block = image.block(call);
    let returned = matches!(block.end, BlockEnd::Call(_) | BlockEnd::FallThrough)
        && block.end_addr() == image.block(to).addr;
    returned.then_some(BlockTransfer::Edge(call, to, EdgeKind::FallThrough))
}

/// The class of the kernel's entry that `block` is; `None` if the block is not an entry.
fn seed_class_of(image: &Image, block: BlockIndex) -> Option<SeedClass> {
    let function = image.function_of(block);
    let entry = function.addr == image.block(block).addr;
    entry.then(|| seed_class(&function.name)).flatten()
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
