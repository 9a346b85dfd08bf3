//! The application's blocks: as arrays for the layout algorithms, and as what is placed.
//!
//! Takes counts of translations and their spaces; gives blocks, ascending by address: stretches of
//! code between where translations begin and end. Where a block leads to code that never ran stands
//! a *stub*: a block of one byte, for the branch to it and its place behind the block to be there.

use crate::application::{Recorded, Spaces};
use anyhow::Result;
use execution::code::{LastInstruction, TranslatedCode};
use execution::flow;
use image::address::LinkAddr;
use image::place::{Exit, Movable};
use layout::graph::{BlockId, Call, Edge, EdgeKind, Graph, Ordered, Seed, SeedClass};
use sim::BranchKind;
use std::collections::{BTreeMap, BTreeSet};

pub(super) struct Blocks {
    /// Block n of the graph is `movables[n]`.
    pub graph: Graph,
    pub movables: Vec<Movable>,
}

/// How a translation ends: its last instruction, and the bytes of it if it is a branch that can be
/// aimed anew.
#[derive(Clone, Copy)]
struct End {
    last: LastInstruction,
    tail: u8,
}

/// The blocks that ran, before their successors are looked at.
struct Ran {
    /// Bytes and executions, by address.
    blocks: BTreeMap<u64, (u32, u64)>,
    /// By the address behind the translation.
    ends: BTreeMap<u64, End>,
}

impl Blocks {
    pub fn new(recorded: &Recorded, spaces: &Spaces) -> Result<Blocks> {
        let codes = recorded.translations.iter().map(|translation| spaces.code(translation));
        let codes: Vec<TranslatedCode> = codes.collect::<Result<_>>()?;
        let ran = Ran::new(recorded, &codes);
        let movables = ran.movables();
        let counts =
            movables.iter().map(|block| ran.blocks.get(&block.at.0).map_or(0, |&(_, runs)| runs));
        let counting = Counting { recorded, codes: &codes, ran: &ran, movables: &movables };
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
        Ok(Blocks { graph, movables })
    }

    /// The order, what never ran behind. Of what ran, stretches in which each block runs into the
    /// next keep their direction, and come last that were first.
    pub fn downwards(&self, ordered: &Ordered) -> Vec<u32> {
        let (hot, cold) = ordered.order.0.split_at(ordered.hot);
        let stretches: Vec<&[BlockId]> = hot.chunk_by(|&a, &b| self.may_run_into(a, b)).collect();
        let downwards = stretches.into_iter().rev().flatten();
        downwards.chain(cold).map(|block| block.0).collect()
    }

    fn may_run_into(&self, a: BlockId, b: BlockId) -> bool {
        let (from, to) = (&self.movables[a.index()], &self.movables[b.index()]);
        let next = b.0 == a.0 + 1;
        match from.exit {
            Exit::Stop => false,
            Exit::Runs => next,
            Exit::Jump(target) => target == to.at,
            Exit::Branch(target) => next || target == to.at,
        }
    }
}

impl Ran {
    fn new(recorded: &Recorded, codes: &[TranslatedCode]) -> Ran {
        let bounds: BTreeSet<u64> =
            codes.iter().flat_map(|code| [code.addr.0, code.end().0]).collect();
        let mut ran = Ran { blocks: BTreeMap::new(), ends: BTreeMap::new() };
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
            ran.ends.insert(code.end().0, End { last: code.last, tail });
        }
        ran
    }

    /// With the stubs, ascending. Every block has what it runs into behind it.
    fn movables(&self) -> Vec<Movable> {
        let mut all: BTreeMap<u64, Movable> = BTreeMap::new();
        for (&at, &(size, _)) in &self.blocks {
            let end = at + u64::from(size);
            let (exit, tail) = self.exit(end);
            all.insert(at, Movable::alone(LinkAddr(at), size, exit, tail));
            let target = match exit {
                Exit::Jump(target) | Exit::Branch(target) => Some(target.0),
                Exit::Stop | Exit::Runs => None,
            };
            let behind = matches!(exit, Exit::Runs | Exit::Branch(_)).then_some(end);
            for stub in target.into_iter().chain(behind).filter(|&addr| !self.holds(addr)) {
                all.insert(stub, Movable::alone(LinkAddr(stub), 1, Exit::Stop, 0));
            }
        }
        all.into_values().collect()
    }

    /// How the block that ends at `end` is left, and the bytes of the branch at its end.
    fn exit(&self, end: u64) -> (Exit, u8) {
        let Some(&End { last, tail }) = self.ends.get(&end) else {
            return (Exit::Runs, 0);
        };
        match last {
            LastInstruction::Jump { target } if tail > 0 => (Exit::Jump(LinkAddr(target.0)), tail),
            LastInstruction::Conditional { target } if tail > 0 => {
                (Exit::Branch(LinkAddr(target.0)), tail)
            }
            LastInstruction::Jump { .. } | LastInstruction::InterruptReturn => (Exit::Stop, 0),
            LastInstruction::Taken(BranchKind::Return | BranchKind::IndirectJump) => {
                (Exit::Stop, 0)
            }
            LastInstruction::Plain
            | LastInstruction::Conditional { .. }
            | LastInstruction::Call { .. }
            | LastInstruction::Taken(_) => (Exit::Runs, 0),
        }
    }

    fn holds(&self, addr: u64) -> bool {
        let before = self.blocks.range(..=addr).next_back();
        before.is_some_and(|(&at, &(size, _))| addr - at < u64::from(size))
    }
}

/// Whether these are the bytes of a direct branch that has a short form and a near one.
fn can_be_aimed(instruction: &[u8]) -> bool {
    matches!(
        instruction,
        [0x70..=0x7f | 0xeb, _] | [0x0f, 0x80..=0x8f, _, _, _, _] | [0xe9, _, _, _, _]
    )
}

struct Counting<'a> {
    recorded: &'a Recorded,
    codes: &'a [TranslatedCode],
    ran: &'a Ran,
    movables: &'a [Movable],
}

impl Counting<'_> {
    /// The block that begins at an address of a translation's beginning, or the first behind its
    /// end.
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

    /// How control went where the code says where to. Where that code lies in another space,
    /// nothing can make it a fall-through.
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

    /// Whether a block stands behind one that ends in a call.
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

    /// From one callee to the next: without symbols nothing else says where functions begin.
    fn functions(&self, graph: &mut Graph) {
        let mut starts: BTreeSet<u32> = graph.calls.iter().map(|call| call.to.0).collect();
        if !self.movables.is_empty() {
            starts.insert(0);
        }
        let ends = starts.iter().copied().skip(1).chain([self.movables.len() as u32]);
        graph.functions = starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect();
    }
}
