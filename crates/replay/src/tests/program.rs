//! Random kernels of a few functions, in their original layout and in random ones, each as real
//! machine code.
//!
//! The same kernel in two layouts is the ground truth for replay: what it executes in the second,
//! replayed at its own addresses, is what replaying the first over the placement has to give.

use crate::tests::guest::GuestMemory;
use image::address::LinkAddr;
use image::place::{Ending, PlacedBlock, Placement};

/// A small random number generator (xorshift64*) with a seed, so that a failure can be repeated.
pub(super) struct XorShift(pub u64);

impl XorShift {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }

    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// How a block ends. Blocks and functions are numbers; a function's first block is its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockEnd {
    FallThrough,
    Branch(usize),
    Jump(usize),
    Call(usize),
    Return,
}

#[derive(Clone, Debug)]
pub(super) struct ProgramBlock {
    /// Lengths of the instructions before the end.
    pub body: Vec<usize>,
    pub end: BlockEnd,
}

/// Blocks in their original order; `entries[f]` is the first block of function f.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub blocks: Vec<ProgramBlock>,
    pub entries: Vec<usize>,
}

/// A program as machine code: the addresses of each block and of its instructions, the end last. A
/// dropped jump has no address.
pub(super) struct LaidOutProgram {
    pub memory: GuestMemory,
    pub starts: Vec<u64>,
    pub instructions: Vec<Vec<u64>>,
    /// The jump behind a block.
    pub appended: Vec<Option<u64>>,
    pub endings: Vec<Ending>,
}

const NOPS: [&[u8]; 5] =
    [&[0x90], &[0x66, 0x90], &[0x0f, 0x1f, 0], &[0x0f, 0x1f, 0x40, 0], &[0x0f, 0x1f, 0x44, 0, 0]];

/// Where the original and the random layouts lie.
pub(super) const OLD: u64 = 0xffff_ffff_8100_0000;
pub(super) const NEW: u64 = 0xffff_ffff_8123_4000;

impl Program {
    pub(super) fn random(random: &mut XorShift) -> Program {
        let functions = 2 + random.below(4);
        let (mut blocks, mut entries) = (Vec::new(), Vec::new());
        for function in 0..functions {
            let (first, count) = (blocks.len(), 1 + random.below(7));
            entries.push(first);
            for number in 0..count {
                let body = (0..random.below(5)).map(|_| 1 + random.below(NOPS.len())).collect();
                let end = match random.below(10) {
                    _ if number + 1 == count => BlockEnd::Return,
                    // Not to the next block: such a branch would look the same whether taken or
                    // not.
                    0..4 => match random.below(count) {
                        target if target == number + 1 => BlockEnd::Branch(first),
                        target => BlockEnd::Branch(first + target),
                    },
                    4 => BlockEnd::Jump(first + number + 1 + random.below(count - number - 1)),
                    // Calls go only to later functions, so that they end.
                    5 | 6 if function + 1 < functions => {
                        BlockEnd::Call(function + 1 + random.below(functions - function - 1))
                    }
                    7 => BlockEnd::Return,
                    _ => BlockEnd::FallThrough,
                };
                blocks.push(ProgramBlock { body, end });
            }
        }
        // A block without instructions could not be placed.
        for block in &mut blocks {
            if block.end == BlockEnd::FallThrough && block.body.is_empty() {
                block.body.push(4);
            }
        }
        Program { blocks, entries }
    }

    /// The original layout, with short branches where they reach.
    pub(super) fn original(&self) -> LaidOutProgram {
        let order: Vec<usize> = (0..self.blocks.len()).collect();
        let plans: Vec<BlockPlan> =
            order.iter().map(|_| BlockPlan { ending: Ending::Same, append: false }).collect();
        self.lay(OLD, &order, &plans)
    }

    /// A random order with random but correct endings, and its placement.
    pub(super) fn moved(&self, random: &mut XorShift) -> (LaidOutProgram, Placement) {
        let mut order: Vec<usize> = (0..self.blocks.len()).collect();
        for _ in 0..random.below(order.len() + 1) {
            let (a, b) = (random.below(order.len()), random.below(order.len()));
            order.swap(a, b);
        }
        for (number, block) in self.blocks.iter().enumerate() {
            let BlockEnd::Jump(target) = block.end else { continue };
            if random.chance(50) {
                order.retain(|&other| other != target);
                let at = order.iter().position(|&other| other == number).map_or(0, |at| at + 1);
                order.insert(at, target);
            }
        }
        let mut plans = vec![BlockPlan { ending: Ending::Same, append: false }; order.len()];
        for (at, &block) in order.iter().enumerate() {
            plans[block] = self.plan(block, order.get(at + 1).copied(), random);
        }
        let laid = self.lay(NEW, &order, &plans);
        let placement = self.placement(&self.original(), &laid);
        (laid, placement)
    }

    fn plan(&self, block: usize, behind: Option<usize>, random: &mut XorShift) -> BlockPlan {
        let next = block + 1;
        match self.blocks[block].end {
            BlockEnd::Jump(target) if behind == Some(target) && random.chance(80) => {
                BlockPlan { ending: Ending::JumpDropped, append: false }
            }
            BlockEnd::Jump(_) | BlockEnd::Return => {
                BlockPlan { ending: Ending::Same, append: false }
            }
            BlockEnd::FallThrough | BlockEnd::Call(_) => {
                BlockPlan { ending: Ending::Same, append: behind != Some(next) }
            }
            BlockEnd::Branch(target) => match random.chance(40) {
                true => BlockPlan { ending: Ending::Inverted, append: behind != Some(target) },
                false => BlockPlan { ending: Ending::Same, append: behind != Some(next) },
            },
        }
    }

    fn lay(&self, base: u64, order: &[usize], plans: &[BlockPlan]) -> LaidOutProgram {
        let mut near = vec![false; self.blocks.len()];
        loop {
            let starts = self.starts(base, order, plans, &near);
            let too_far: Vec<usize> = (0..near.len())
                .filter(|&block| !near[block] && !self.reaches(block, plans, &starts))
                .collect();
            if too_far.is_empty() {
                return self.encode(&starts, plans, &near);
            }
            too_far.into_iter().for_each(|block| near[block] = true);
        }
    }

    /// Bytes of a block's end and of the jump behind it.
    fn end_sizes(&self, block: usize, plan: BlockPlan, near: bool) -> (u64, u64) {
        let end = match self.blocks[block].end {
            BlockEnd::FallThrough => 0,
            BlockEnd::Return => 1,
            BlockEnd::Call(_) => 5,
            BlockEnd::Jump(_) if plan.ending == Ending::JumpDropped => 0,
            BlockEnd::Jump(_) => {
                if near {
                    5
                } else {
                    2
                }
            }
            BlockEnd::Branch(_) => {
                if near {
                    6
                } else {
                    2
                }
            }
        };
        (end, if plan.append { 5 } else { 0 })
    }

    fn body_size(&self, block: usize) -> u64 {
        self.blocks[block].body.iter().sum::<usize>() as u64
    }

    fn starts(&self, base: u64, order: &[usize], plans: &[BlockPlan], near: &[bool]) -> Vec<u64> {
        let (mut starts, mut at) = (vec![0; order.len()], base);
        for &block in order {
            starts[block] = at;
            let (end, appended) = self.end_sizes(block, plans[block], near[block]);
            at += self.body_size(block) + end + appended;
        }
        starts
    }

    /// The target of the block's branch or jump under the plan.
    fn target(&self, block: usize, plan: BlockPlan) -> Option<usize> {
        match self.blocks[block].end {
            BlockEnd::Branch(_) if plan.ending == Ending::Inverted => Some(block + 1),
            BlockEnd::Branch(target) | BlockEnd::Jump(target) => Some(target),
            _ => None,
        }
    }

    fn reaches(&self, block: usize, plans: &[BlockPlan], starts: &[u64]) -> bool {
        let end =
            starts[block] + self.body_size(block) + self.end_sizes(block, plans[block], false).0;
        self.target(block, plans[block])
            .is_none_or(|target| i8::try_from(starts[target].wrapping_sub(end) as i64).is_ok())
    }

    fn encode(&self, starts: &[u64], plans: &[BlockPlan], near: &[bool]) -> LaidOutProgram {
        let mut laid = LaidOutProgram {
            memory: GuestMemory::default(),
            starts: starts.to_vec(),
            instructions: Vec::new(),
            appended: Vec::new(),
            endings: Vec::new(),
        };
        for (number, block) in self.blocks.iter().enumerate() {
            let (mut at, mut addrs, plan) = (starts[number], Vec::new(), plans[number]);
            for &length in &block.body {
                addrs.push(at);
                at = laid.memory.put(at, NOPS[length - 1]);
            }
            let (end, _) = self.end_sizes(number, plan, near[number]);
            let target = match block.end {
                BlockEnd::Call(function) => Some(starts[self.entries[function]]),
                _ => self.target(number, plan).map(|target| starts[target]),
            };
            let code = end_code(block.end, end, at, target.unwrap_or(0));
            if !code.is_empty() {
                addrs.push(at);
                at = laid.memory.put(at, &code);
            }
            let behind = match plan.ending {
                Ending::Inverted => match block.end {
                    BlockEnd::Branch(target) => target,
                    _ => unreachable!("only branches are inverted"),
                },
                _ => number + 1,
            };
            laid.appended.push(plan.append.then(|| {
                laid.memory.put(at, &relative(&[0xe9], 4, at, starts[behind]));
                at
            }));
            laid.instructions.push(addrs);
            laid.endings.push(plan.ending);
        }
        laid
    }

    fn placement(&self, old: &LaidOutProgram, new: &LaidOutProgram) -> Placement {
        let size = |laid: &LaidOutProgram, block: usize| {
            let addrs = &laid.instructions[block];
            addrs.last().map_or(0, |last| last - addrs[0] + laid.memory.0[last].len() as u64) as u32
        };
        let blocks = (0..self.blocks.len()).map(|block| PlacedBlock {
            old: LinkAddr(old.starts[block]),
            old_size: size(old, block),
            new: LinkAddr(new.starts[block]),
            new_size: size(new, block),
            appended: if new.appended[block].is_some() { 5 } else { 0 },
            ending: new.endings[block],
        });
        Placement { blocks: blocks.collect(), ..Placement::default() }
    }
}

#[derive(Clone, Copy)]
struct BlockPlan {
    ending: Ending,
    append: bool,
}

fn end_code(end: BlockEnd, size: u64, at: u64, target: u64) -> Vec<u8> {
    match (end, size) {
        (BlockEnd::Return, _) => vec![0xc3],
        (BlockEnd::Call(_), _) => relative(&[0xe8], 4, at, target),
        (BlockEnd::Branch(_), 2) => relative(&[0x74], 1, at, target),
        (BlockEnd::Branch(_), _) => relative(&[0x0f, 0x84], 4, at, target),
        (BlockEnd::Jump(_), 2) => relative(&[0xeb], 1, at, target),
        (BlockEnd::Jump(_), 5) => relative(&[0xe9], 4, at, target),
        _ => Vec::new(),
    }
}

/// An instruction that ends in a displacement of `width` bytes to `target`.
fn relative(opcode: &[u8], width: usize, at: u64, target: u64) -> Vec<u8> {
    let distance = target.wrapping_sub(at + (opcode.len() + width) as u64);
    [opcode, &distance.to_le_bytes()[..width]].concat()
}
