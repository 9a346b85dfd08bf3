//! The application's blocks: as arrays for the layout algorithms, and as blocks to place.
//!
//! Input: counts of translation blocks and their spaces. Output: blocks, ascending by address. A
//! block is the code between two addresses at which translation blocks begin or end. Where a block
//! leads to code that never ran, a *stub* of one byte stands, so that the branch to it has a target
//! and the place behind the block is taken.

use crate::application::{Spaces, UserCode};
use anyhow::Result;
use execution::code::{LastInstruction, TranslatedCode};
use execution::flow;
use image::address::LinkAddr;
use image::place::{MovableBlock, MovableExit};
use layout::graph::{BlockId, Call, Edge, EdgeKind, Graph, Ordered, Seed, SeedClass};
use sim::BranchKind;
use std::collections::{BTreeMap, BTreeSet};

pub(super) struct ApplicationBlocks {
    /// Block n of the graph is `movables[n]`.
    pub graph: Graph,
    pub movables: Vec<MovableBlock>,
}

/// How a translation block ends: its last instruction, and the bytes of that instruction if it is a
/// branch that can get another target.
#[derive(Clone, Copy)]
struct CodeEnd {
    last: LastInstruction,
    tail: u8,
}

/// The blocks that ran, without stubs.
struct RanBlocks {
    /// Bytes and executions, by address.
    blocks: BTreeMap<u64, (u32, u64)>,
    /// By the address behind the translation block.
    ends: BTreeMap<u64, CodeEnd>,
}

impl ApplicationBlocks {
    pub(super) fn new(recorded: &UserCode, spaces: &Spaces) -> Result<ApplicationBlocks> {
        let codes = recorded.translations.iter().map(|translation| spaces.code(translation));
        let codes: Vec<TranslatedCode> = codes.collect::<Result<_>>()?;
        let ran = RanBlocks::new(recorded, &codes);
        let movables = ran.movables();
        let counts =
            movables.iter().map(|block| ran.blocks.get(&block.at.0).map_or(0, |&(_, runs)| runs));
        let counting = ApplicationGraph { recorded, codes: &codes, ran: &ran, movables: &movables };
        let mut graph = Graph {
            sizes: movables.iter().map(|block| block.size).collect(),
            counts: counts.collect(),
            glued: vec![false; movables.len()],
            alignments: vec![1; movables.len()],
            ..Graph::default()
        };
        counting.transfers(&mut graph);
        counting.seeds(&mut graph);
        counting.functions(&mut graph);
        Ok(ApplicationBlocks { graph, movables })
    }

    /// The order with hot code reversed and cold code behind it. Runs of hot blocks in which each
    /// block may run into the next keep their inner order; the runs are reversed.
    pub(super) fn downwards(&self, ordered: &Ordered) -> Vec<u32> {
        let (hot, cold) = ordered.order.0.split_at(ordered.hot);
        let stretches: Vec<&[BlockId]> = hot.chunk_by(|&a, &b| self.may_run_into(a, b)).collect();
        let downwards = stretches.into_iter().rev().flatten();
        downwards.chain(cold).map(|block| block.0).collect()
    }

    fn may_run_into(&self, a: BlockId, b: BlockId) -> bool {
        let (from, to) = (&self.movables[a.index()], &self.movables[b.index()]);
        let next = b.0 == a.0 + 1;
        match from.exit {
            MovableExit::Stop => false,
            MovableExit::Runs => next,
            MovableExit::Jump(target) => target == to.at,
            MovableExit::Branch(target) => next || target == to.at,
        }
    }
}

impl RanBlocks {
    fn new(recorded: &UserCode, codes: &[TranslatedCode]) -> RanBlocks {
        let bounds: BTreeSet<u64> =
            codes.iter().flat_map(|code| [code.addr.0, code.end().0]).collect();
        let mut ran = RanBlocks { blocks: BTreeMap::new(), ends: BTreeMap::new() };
        for (number, code) in codes.iter().enumerate() {
            let mut start = code.addr.0;
            for &end in bounds.range(start + 1..=code.end().0) {
                let block = ran.blocks.entry(start).or_insert(((end - start) as u32, 0));
                block.1 += recorded.runs[number];
                start = end;
            }
            let last = recorded.translations[number].code_by_instruction().last();
            let tail = last
                .filter(|(_, bytes)| can_be_aimed(bytes))
                .map_or(0, |(_, bytes)| bytes.len() as u8);
            ran.ends.insert(code.end().0, CodeEnd { last: code.last, tail });
        }
        ran
    }

    /// All blocks with stubs, ascending. Behind each block stands the block that it runs into.
    fn movables(&self) -> Vec<MovableBlock> {
        let mut all: BTreeMap<u64, MovableBlock> = BTreeMap::new();
        for (&at, &(size, _)) in &self.blocks {
            let end = at + u64::from(size);
            let (exit, tail) = self.exit(end);
            all.insert(at, MovableBlock::alone(LinkAddr(at), size, exit, tail));
            let target = match exit {
                MovableExit::Jump(target) | MovableExit::Branch(target) => Some(target.0),
                MovableExit::Stop | MovableExit::Runs => None,
            };
            let behind = matches!(exit, MovableExit::Runs | MovableExit::Branch(_)).then_some(end);
            for stub in target.into_iter().chain(behind).filter(|&addr| !self.holds(addr)) {
                all.insert(stub, MovableBlock::alone(LinkAddr(stub), 1, MovableExit::Stop, 0));
            }
        }
        all.into_values().collect()
    }

    /// How control leaves the block that ends at `end`, and the bytes of the branch at its end.
    fn exit(&self, end: u64) -> (MovableExit, u8) {
        let Some(&CodeEnd { last, tail }) = self.ends.get(&end) else {
            return (MovableExit::Runs, 0);
        };
        match last {
            LastInstruction::Jump { target } if tail > 0 => {
                (MovableExit::Jump(LinkAddr(target.0)), tail)
            }
            LastInstruction::Conditional { target } if tail > 0 => {
                (MovableExit::Branch(LinkAddr(target.0)), tail)
            }
            LastInstruction::Jump { .. } | LastInstruction::InterruptReturn => {
                (MovableExit::Stop, 0)
            }
            LastInstruction::Taken(BranchKind::Return | BranchKind::IndirectJump) => {
                (MovableExit::Stop, 0)
            }
            LastInstruction::Plain
            | LastInstruction::Conditional { .. }
            | LastInstruction::Call { .. }
            | LastInstruction::Taken(_) => (MovableExit::Runs, 0),
        }
    }

    fn holds(&self, addr: u64) -> bool {
        let before = self.blocks.range(..=addr).next_back();
        before.is_some_and(|(&at, &(size, _))| addr - at < u64::from(size))
    }
}

/// Whether these are the bytes of a direct branch that has a short and a near form.
fn can_be_aimed(instruction: &[u8]) -> bool {
    matches!(
        instruction,
        [0x70..=0x7f | 0xeb, _] | [0x0f, 0x80..=0x8f, _, _, _, _] | [0xe9, _, _, _, _]
    )
}

struct ApplicationGraph<'a> {
    recorded: &'a UserCode,
    codes: &'a [TranslatedCode],
    ran: &'a RanBlocks,
    movables: &'a [MovableBlock],
}

impl ApplicationGraph<'_> {
    /// The first block at or behind an address.
    fn block_from(&self, addr: u64) -> usize {
        self.movables.partition_point(|block| block.at.0 < addr)
    }

    fn first(&self, number: u32) -> BlockId {
        BlockId(self.block_from(self.codes[number as usize].addr.0) as u32)
    }

    fn last(&self, number: u32) -> BlockId {
        BlockId(self.block_from(self.codes[number as usize].end().0) as u32 - 1)
    }

    fn transfers(&self, graph: &mut Graph) {
        let mut edges: BTreeMap<(u32, u32), (EdgeKind, u64)> = BTreeMap::new();
        let mut calls: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        let mut edge = |from: u32, to: u32, kind, count| {
            edges.entry((from, to)).or_insert((kind, 0)).1 += count
        };
        for (number, &runs) in (0..).zip(&self.recorded.runs) {
            for from in self.first(number).0..self.last(number).0 {
                edge(from, from + 1, EdgeKind::FallThrough, runs);
            }
        }
        for (&(from, to), &count) in &self.recorded.successors {
            let (last, first) = (self.last(from), self.first(to));
            match self.codes[from as usize].last {
                LastInstruction::Call { .. } | LastInstruction::Taken(BranchKind::IndirectCall) => {
                    *calls.entry((last.0, first.0)).or_default() += count
                }
                LastInstruction::Taken(BranchKind::Return) if self.behind_call(first) => {
                    edge(first.0 - 1, first.0, EdgeKind::FallThrough, count)
                }
                LastInstruction::Taken(BranchKind::Return) | LastInstruction::InterruptReturn => {}
                LastInstruction::Taken(_) => edge(last.0, first.0, EdgeKind::Indirect, count),
                LastInstruction::Plain
                | LastInstruction::Conditional { .. }
                | LastInstruction::Jump { .. } => {
                    if let Some(kind) = self.kind(from, to) {
                        edge(last.0, first.0, kind, count);
                    }
                }
            }
        }
        let edges = edges
            .into_iter()
            .map(|((from, to), (kind, count))| (BlockId(from), BlockId(to), kind, count));
        graph.edges = edges.map(|(from, to, kind, count)| Edge { from, to, count, kind }).collect();
        let calls =
            calls.into_iter().map(|((from, to), count)| (BlockId(from), BlockId(to), count));
        graph.calls = calls.map(|(from, to, count)| Call { from, to, count }).collect();
    }

    /// The kind of edge where the code itself says where control goes. When the destination lies in
    /// another space, the edge cannot become a fall-through.
    fn kind(&self, from: u32, to: u32) -> Option<EdgeKind> {
        let (before, behind) = (&self.codes[from as usize], &self.codes[to as usize]);
        let in_space = behind.addr == before.end() || before.target() == Some(behind.addr);
        let at = self.recorded.codes[to as usize].addr;
        match flow::exit_to(&self.recorded.codes[from as usize], at) {
            flow::FragmentExit::Interrupted => None,
            _ if !in_space => Some(EdgeKind::Indirect),
            flow::FragmentExit::Next => Some(EdgeKind::FallThrough),
            _ if before.target() != Some(behind.addr) => Some(EdgeKind::Indirect),
            _ if matches!(before.last, LastInstruction::Conditional { .. }) => {
                Some(EdgeKind::Branch)
            }
            _ => Some(EdgeKind::Jump),
        }
    }

    /// Whether the block in front of a block ends in a call.
    fn behind_call(&self, block: BlockId) -> bool {
        let end = self.ran.ends.get(&self.movables[block.index()].at.0);
        end.is_some_and(|end| {
            matches!(
                end.last,
                LastInstruction::Call { .. } | LastInstruction::Taken(BranchKind::IndirectCall)
            )
        })
    }

    fn seeds(&self, graph: &mut Graph) {
        let mut seeds: BTreeMap<BlockId, u64> = BTreeMap::new();
        for (number, &count) in (0..).zip(&self.recorded.entries).filter(|(_, count)| **count > 0) {
            *seeds.entry(self.first(number)).or_default() += count;
        }
        let seed = |(block, count)| Seed { block, class: SeedClass::Other, count };
        graph.seeds = seeds.into_iter().map(seed).collect();
    }

    /// A function reaches from one callee to the next: without symbols, only calls say where
    /// functions begin.
    fn functions(&self, graph: &mut Graph) {
        let mut starts: BTreeSet<u32> = graph.calls.iter().map(|call| call.to.0).collect();
        if !self.movables.is_empty() {
            starts.insert(0);
        }
        let ends = starts.iter().copied().skip(1).chain([self.movables.len() as u32]);
        graph.functions = starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect();
    }
}
