//! Random kernels of a few functions, in their original layout and in random ones, each as real
//! machine code.
//!
//! The same kernel in two layouts is the ground truth for replay: what it executes in the second,
//! replayed at its own addresses, is what replaying the first over the placement has to give.

use crate::tests::guest::Memory;
use image::address::LinkAddr;
use image::place::{Ending, PlacedBlock, Placement};

/// A small generator of numbers (xorshift64*), so that a failure can be repeated.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// How a block ends; blocks and functions by number, a function's first block is its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    FallThrough,
    Branch(usize),
    Jump(usize),
    Call(usize),
    Return,
}

#[derive(Clone, Debug)]
pub struct Block {
    /// Lengths of the instructions before the end.
    pub body: Vec<usize>,
    pub end: End,
}

/// Blocks in their original order; `entries[f]` is the first block of function f.
#[derive(Clone, Debug)]
pub struct Program {
    pub blocks: Vec<Block>,
    pub entries: Vec<usize>,
}

/// A program as machine code: where each block lies and each of its instructions, its end last. A
/// dropped jump has no address.
pub struct Laid {
    pub memory: Memory,
    pub starts: Vec<u64>,
    pub instructions: Vec<Vec<u64>>,
    /// The jump behind a block.
    pub appended: Vec<Option<u64>>,
    pub endings: Vec<Ending>,
}

const NOPS: [&[u8]; 5] =
    [&[0x90], &[0x66, 0x90], &[0x0f, 0x1f, 0], &[0x0f, 0x1f, 0x40, 0], &[0x0f, 0x1f, 0x44, 0, 0]];

/// Where the original and the random layouts lie.
pub const OLD: u64 = 0xffff_ffff_8100_0000;
pub const NEW: u64 = 0xffff_ffff_8123_4000;

impl Program {
    pub fn random(random: &mut Random) -> Program {
        let functions = 2 + random.below(4);
        let (mut blocks, mut entries) = (Vec::new(), Vec::new());
        for function in 0..functions {
            let (first, count) = (blocks.len(), 1 + random.below(7));
            entries.push(first);
            for number in 0..count {
                let body = (0..random.below(5)).map(|_| 1 + random.below(NOPS.len())).collect();
                let end = match random.below(10) {
                    _ if number + 1 == count => End::Return,
                    // Not to what lies behind: nobody could see whether such a branch was taken.
                    0..4 => match random.below(count) {
                        target if target == number + 1 => End::Branch(first),
                        target => End::Branch(first + target),
                    },
                    4 => End::Jump(first + number + 1 + random.below(count - number - 1)),
                    // Only to later functions, so that calls end.
                    5 | 6 if function + 1 < functions => {
                        End::Call(function + 1 + random.below(functions - function - 1))
                    }
                    7 => End::Return,
                    _ => End::FallThrough,
                };
                blocks.push(Block { body, end });
            }
        }
        // A block without any instruction could not be placed.
        for block in &mut blocks {
            if block.end == End::FallThrough && block.body.is_empty() {
                block.body.push(4);
            }
        }
        Program { blocks, entries }
    }

    /// The original layout, with short branches where they reach.
    pub fn original(&self) -> Laid {
        let order: Vec<usize> = (0..self.blocks.len()).collect();
        let plans: Vec<Plan> =
            order.iter().map(|_| Plan { ending: Ending::Same, append: false }).collect();
        self.lay(OLD, &order, &plans)
    }

    /// A random order with random, but right, endings; and the placement that says so.
    pub fn moved(&self, random: &mut Random) -> (Laid, Placement) {
        let mut order: Vec<usize> = (0..self.blocks.len()).collect();
        for _ in 0..random.below(order.len() + 1) {
            let (a, b) = (random.below(order.len()), random.below(order.len()));
            order.swap(a, b);
        }
        for (number, block) in self.blocks.iter().enumerate() {
            let End::Jump(target) = block.end else { continue };
            if random.chance(50) {
                order.retain(|&other| other != target);
                let at = order.iter().position(|&other| other == number).map_or(0, |at| at + 1);
                order.insert(at, target);
            }
        }
        let mut plans = vec![Plan { ending: Ending::Same, append: false }; order.len()];
        for (at, &block) in order.iter().enumerate() {
            plans[block] = self.plan(block, order.get(at + 1).copied(), random);
        }
        let laid = self.lay(NEW, &order, &plans);
        let placement = self.placement(&self.original(), &laid);
        (laid, placement)
    }

    fn plan(&self, block: usize, behind: Option<usize>, random: &mut Random) -> Plan {
        let next = block + 1;
        match self.blocks[block].end {
            End::Jump(target) if behind == Some(target) && random.chance(80) => {
                Plan { ending: Ending::JumpDropped, append: false }
            }
            End::Jump(_) | End::Return => Plan { ending: Ending::Same, append: false },
            End::FallThrough | End::Call(_) => {
                Plan { ending: Ending::Same, append: behind != Some(next) }
            }
            End::Branch(target) => match random.chance(40) {
                true => Plan { ending: Ending::Inverted, append: behind != Some(target) },
                false => Plan { ending: Ending::Same, append: behind != Some(next) },
            },
        }
    }

    fn lay(&self, base: u64, order: &[usize], plans: &[Plan]) -> Laid {
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
    fn end_sizes(&self, block: usize, plan: Plan, near: bool) -> (u64, u64) {
        let end = match self.blocks[block].end {
            End::FallThrough => 0,
            End::Return => 1,
            End::Call(_) => 5,
            End::Jump(_) if plan.ending == Ending::JumpDropped => 0,
            End::Jump(_) => {
                if near {
                    5
                } else {
                    2
                }
            }
            End::Branch(_) => {
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

    fn starts(&self, base: u64, order: &[usize], plans: &[Plan], near: &[bool]) -> Vec<u64> {
        let (mut starts, mut at) = (vec![0; order.len()], base);
        for &block in order {
            starts[block] = at;
            let (end, appended) = self.end_sizes(block, plans[block], near[block]);
            at += self.body_size(block) + end + appended;
        }
        starts
    }

    /// Where the block's branch or jump leads under the plan.
    fn target(&self, block: usize, plan: Plan) -> Option<usize> {
        match self.blocks[block].end {
            End::Branch(_) if plan.ending == Ending::Inverted => Some(block + 1),
            End::Branch(target) | End::Jump(target) => Some(target),
            _ => None,
        }
    }

    fn reaches(&self, block: usize, plans: &[Plan], starts: &[u64]) -> bool {
        let end =
            starts[block] + self.body_size(block) + self.end_sizes(block, plans[block], false).0;
        self.target(block, plans[block])
            .is_none_or(|target| i8::try_from(starts[target].wrapping_sub(end) as i64).is_ok())
    }

    fn encode(&self, starts: &[u64], plans: &[Plan], near: &[bool]) -> Laid {
        let mut laid = Laid {
            memory: Memory::default(),
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
                End::Call(function) => Some(starts[self.entries[function]]),
                _ => self.target(number, plan).map(|target| starts[target]),
            };
            let code = end_code(block.end, end, at, target.unwrap_or(0));
            if !code.is_empty() {
                addrs.push(at);
                at = laid.memory.put(at, &code);
            }
            let behind = match plan.ending {
                Ending::Inverted => match block.end {
                    End::Branch(target) => target,
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

    fn placement(&self, old: &Laid, new: &Laid) -> Placement {
        let size = |laid: &Laid, block: usize| {
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
        Placement { blocks: blocks.collect() }
    }
}

#[derive(Clone, Copy)]
struct Plan {
    ending: Ending,
    append: bool,
}

fn end_code(end: End, size: u64, at: u64, target: u64) -> Vec<u8> {
    match (end, size) {
        (End::Return, _) => vec![0xc3],
        (End::Call(_), _) => relative(&[0xe8], 4, at, target),
        (End::Branch(_), 2) => relative(&[0x74], 1, at, target),
        (End::Branch(_), _) => relative(&[0x0f, 0x84], 4, at, target),
        (End::Jump(_), 2) => relative(&[0xeb], 1, at, target),
        (End::Jump(_), 5) => relative(&[0xe9], 4, at, target),
        _ => Vec::new(),
    }
}

/// An instruction that ends in a displacement of `width` bytes to `target`.
fn relative(opcode: &[u8], width: usize, at: u64, target: u64) -> Vec<u8> {
    let distance = target.wrapping_sub(at + (opcode.len() + width) as u64);
    [opcode, &distance.to_le_bytes()[..width]].concat()
}
