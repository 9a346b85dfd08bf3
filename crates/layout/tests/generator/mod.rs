//! Generates graphs for tests and benches from a seed. Wild graphs keep the rules and nothing else.
//! Graphs like a kernel's have counts from walks through the code. `tests/` and `bench/layout.rs`
//! use them.

#![allow(dead_code, reason = "each user needs a part")]

use kernlane_layout::chunks::first_of_chunk;
use kernlane_layout::random::SplitMix64;
use kernlane_layout::{
    BlockEpochs, BlockId, Call, Edge, EdgeKind, Graph, JointMiss, Seed, SeedClass, TemporalEdge,
};
use std::collections::{BTreeMap, HashMap};

const CLASSES: [SeedClass; 4] =
    [SeedClass::Interrupt, SeedClass::PageFault, SeedClass::SystemCall, SeedClass::Other];

/// A well-formed graph without meaning: edges anywhere, counts of any size that do not balance,
/// glue anywhere, and from none to a hundred blocks.
pub(crate) fn wild(seed: u64) -> Graph {
    let mut random = SplitMix64::new(seed);
    let blocks = match random.below(8) {
        0 => random.below(4),
        1 => 1 + random.below(8),
        _ => 1 + random.below(100),
    } as u32;
    let scale = [1, 10, 1_000_000, u64::MAX][random.below(4) as usize];
    let never = [0, 30, 100][random.below(3) as usize];
    let glue = [0, 10, 70][random.below(3) as usize];
    let longest = [1, 10, 200][random.below(3) as usize];
    let mut graph = Graph::default();
    for block in 0..blocks {
        let largest = [4, 64, 3000, u64::from(u32::MAX)][random.below(4) as usize];
        graph.sizes.push(1 + random.below(largest) as u32);
        graph.counts.push(if random.below(100) < never { 0 } else { random.below(scale) + 1 });
        graph.glued.push(block > 0 && random.below(100) < glue);
        graph.alignments.push(1 << random.below(6));
    }
    let mut start = 0;
    while start < blocks {
        let end = (start + 1 + random.below(longest) as u32).min(blocks);
        graph.functions.push(start..end);
        start = end;
    }
    if blocks > 0 {
        wild_transfers(&mut graph, blocks, scale, &mut random);
    }
    graph
}

fn wild_transfers(graph: &mut Graph, blocks: u32, scale: u64, random: &mut SplitMix64) {
    let count =
        |random: &mut SplitMix64| if random.below(4) == 0 { 0 } else { random.below(scale) + 1 };
    for _ in 0..random.below(u64::from(blocks) * 3) {
        let from = BlockId(random.below(u64::from(blocks)) as u32);
        let near = BlockId(
            (u64::from(from.0) + random.below(6)).saturating_sub(2).min(u64::from(blocks) - 1)
                as u32,
        );
        let far = BlockId(random.below(u64::from(blocks)) as u32);
        let to = if random.below(4) > 0 { near } else { far };
        let count = count(random);
        let kind = match random.below(8) {
            0 => EdgeKind::Indirect,
            1 | 2 => EdgeKind::Jump,
            _ if to.0 == from.0 + 1 => EdgeKind::FallThrough,
            _ => EdgeKind::Branch,
        };
        graph.edges.push(Edge { from, to, count, kind });
    }
    for _ in 0..random.below(u64::from(blocks)) {
        let from = BlockId(random.below(u64::from(blocks)) as u32);
        let callee = graph.functions[random.below(graph.functions.len() as u64) as usize].start;
        graph.calls.push(Call { from, to: BlockId(callee), count: count(random) });
    }
    for _ in 0..random.below(6) {
        let block = BlockId(random.below(u64::from(blocks)) as u32);
        graph.seeds.push(Seed {
            block,
            class: CLASSES[random.below(4) as usize],
            count: count(random),
        });
    }
    for _ in 0..random.below(u64::from(blocks)) {
        graph.joint_misses.push(JointMiss {
            a: BlockId(random.below(u64::from(blocks)) as u32),
            b: BlockId(random.below(u64::from(blocks)) as u32),
            count: count(random),
        });
    }
    for _ in 0..random.below(u64::from(blocks)) {
        graph.temporal_edges.push(TemporalEdge {
            a: BlockId(random.below(u64::from(blocks)) as u32),
            b: BlockId(random.below(u64::from(blocks)) as u32),
            count: count(random),
        });
    }
    for _ in 0..random.below(u64::from(blocks)) {
        graph.block_epochs.push(BlockEpochs {
            block: BlockId(random.below(u64::from(blocks)) as u32),
            epochs: (0..random.below(3)).map(|_| random.next_u64()).collect(),
        });
    }
}

/// The size of a kernel-like graph.
#[derive(Clone, Copy)]
pub(crate) struct KernelShape {
    pub functions: u32,
    /// The number of blocks that all walks together may execute.
    pub steps: u64,
    /// The entries into the kernel of each class.
    pub seeds: u32,
    /// The share of glued blocks, in thousandths.
    pub glued: u64,
}

pub(crate) const SMALL: KernelShape =
    KernelShape { functions: 60, steps: 20_000, seeds: 2, glued: 20 };
/// The size of a small distribution's kernel: about 390 000 blocks, of which about 20 000 run.
pub(crate) const KERNEL: KernelShape =
    KernelShape { functions: 31_700, steps: 20_000_000, seeds: 40, glued: 20 };

/// The size of a distribution's kernel with all its modules built in: 127 000 functions and 1.5
/// million blocks, of which 118 000 ran.
pub(crate) const DISTRIBUTION: KernelShape =
    KernelShape { functions: 127_000, steps: 60_000_000, seeds: 120, glued: 20 };

/// The size of a graph with many edges, larger than any kernel's. All of it is hot.
#[derive(Clone, Copy)]
pub(crate) struct VastShape {
    pub blocks: u32,
    /// The number of blocks in each function.
    pub function: u32,
}

/// Two edges leave each block: to the next block, and to a mostly near one of its function. Every
/// fifth block calls. All counts are positive, of every order of magnitude up to half a million.
pub(crate) fn vast(shape: VastShape, seed: u64) -> Graph {
    let mut random = SplitMix64::new(seed);
    let mut graph = Graph::default();
    let blocks = shape.blocks;
    let heavy = |random: &mut SplitMix64| (1 << random.below(20)) + random.below(100);
    for start in (0..blocks).step_by(shape.function.max(1) as usize) {
        let end = start.saturating_add(shape.function.max(1)).min(blocks);
        graph.functions.push(start..end);
        for block in start..end {
            graph.sizes.push(3 + random.below(40) as u32);
            graph.counts.push(heavy(&mut random));
            graph.glued.push(false);
            graph.alignments.push(if block == start { 16 } else { 1 });
            let (from, reach) = (
                BlockId(block),
                if random.below(4) == 0 { end - start } else { (end - start).min(20) },
            );
            let near = (block - start).saturating_sub(reach / 2).min(end - start - reach);
            let to = BlockId(start + near + random.below(u64::from(reach)) as u32);
            let count = heavy(&mut random);
            graph.edges.push(Edge { from, to, count, kind: EdgeKind::Branch });
            if block + 1 < end {
                let (to, count) = (BlockId(block + 1), heavy(&mut random));
                graph.edges.push(Edge { from, to, count, kind: EdgeKind::FallThrough });
            }
        }
    }
    let entries = graph.functions.len() as u64;
    let other = |random: &mut SplitMix64| BlockId(random.below(u64::from(blocks)) as u32);
    for block in (0..blocks).step_by(5).map(BlockId) {
        let callee =
            graph.functions[random.below(entries).min(random.below(entries)) as usize].start;
        let (to, count) = (BlockId(callee), heavy(&mut random));
        graph.calls.push(Call { from: block, to, count });
        graph.joint_misses.push(JointMiss { a: block, b: other(&mut random), count });
        graph.temporal_edges.push(TemporalEdge { a: block, b: other(&mut random), count });
        graph
            .block_epochs
            .push(BlockEpochs { block, epochs: vec![random.next_u64() & random.next_u64()] });
    }
    graph.seeds = (0..100)
        .map(|number| Seed {
            block: BlockId(graph.functions[(number * entries / 100) as usize].start),
            class: CLASSES[number as usize % 4],
            count: heavy(&mut random),
        })
        .collect();
    graph
}

/// The end of a generated block. A call continues at the next block.
#[derive(Clone, Copy)]
enum BlockEnding {
    Fall,
    /// A branch to a block, taken this number of times in 1000.
    Branch(u32, u64),
    Jump(u32),
    Call(u32),
    Return,
}

/// A graph like a kernel's: functions of a few blocks, most of them error handling that never runs,
/// loops of few iterations, popular small functions, and counts that balance, because they come
/// from walks that begin at the seeds.
pub(crate) fn kernel(shape: KernelShape, seed: u64) -> Graph {
    let mut random = SplitMix64::new(seed);
    let mut graph = Graph::default();
    let mut ends = Vec::new();
    for function in 0..shape.functions {
        let start = ends.len() as u32;
        // The second half of the functions are small leaves and helpers.
        let small = function > shape.functions / 2;
        let length =
            1 + if small { random.below(6) } else { random.below(12) + random.below(28) } as u32;
        for block in 0..length {
            ends.push(end(start, block, length, function, shape.functions, &mut random));
            graph.sizes.push(3 + (random.below(20) + random.below(20)) as u32);
            graph.glued.push(block > 0 && random.below(1000) < shape.glued);
            graph.alignments.push(if block == 0 { 16 } else { 1 });
        }
        graph.functions.push(start..start + length);
    }
    graph.counts = vec![0; ends.len()];
    walk(&mut graph, &ends, shape, &mut random);
    graph
}

fn end(
    start: u32,
    block: u32,
    length: u32,
    function: u32,
    functions: u32,
    random: &mut SplitMix64,
) -> BlockEnding {
    let left = length - block - 1;
    if left == 0 {
        return BlockEnding::Return;
    }
    let forward =
        |random: &mut SplitMix64| start + block + 1 + random.below(u64::from(left)) as u32;
    let likelihoods = [0, 0, 1, 10, 300, 500, 990, 999, 1000, 1000];
    match random.below(20) {
        0..4 => BlockEnding::Fall,
        4..10 => BlockEnding::Branch(forward(random), likelihoods[random.below(10) as usize]),
        10 if block > 0 => BlockEnding::Branch(
            start + block - random.below(u64::from(block.min(5)) + 1) as u32,
            [500, 800, 950][random.below(3) as usize],
        ),
        11 => BlockEnding::Jump(forward(random)),
        12 if left > 2 && random.below(4) == 0 => BlockEnding::Return,
        _ => match functions - function - 1 {
            0 => BlockEnding::Fall,
            // Calls go to later functions, so that walks end. Half of them go to a few popular
            // ones.
            later if random.below(2) == 0 => BlockEnding::Call(
                functions - 1 - random.below(u64::from(later.min(functions / 100 + 5))) as u32,
            ),
            later => {
                BlockEnding::Call(function + 1 + random.below(u64::from(later.min(300))) as u32)
            }
        },
    }
}

fn walk(graph: &mut Graph, ends: &[BlockEnding], shape: KernelShape, random: &mut SplitMix64) {
    // For each block: taken and not taken, or called and returned.
    let mut transfers = vec![(0u64, 0u64); ends.len()];
    let seeds: Vec<(u32, SeedClass)> = (0..shape.seeds * 4)
        .map(|s| (s * (shape.functions / 3) / (shape.seeds * 4), CLASSES[s as usize % 4]))
        .collect();
    let mut entered = vec![0; seeds.len()];
    let mut steps = 0;
    let mut misses = IdealCacheMisses::default();
    let mut recent = RecentChunks::new(graph);
    while steps < shape.steps {
        let seed =
            (random.below(seeds.len() as u64).min(random.below(seeds.len() as u64))) as usize;
        entered[seed] += 1;
        steps += one_walk(
            graph,
            ends,
            seeds[seed].0,
            &mut transfers,
            &mut (&mut misses, &mut recent),
            random,
        );
    }
    graph.block_epochs = misses.block_epochs();
    graph.joint_misses = misses.joint();
    graph.temporal_edges = recent.temporal_edges();
    for (&(function, class), &count) in seeds.iter().zip(&entered) {
        graph.seeds.push(Seed {
            block: BlockId(graph.functions[function as usize].start),
            class,
            count,
        });
    }
    for (block, (&end, &(taken, passed))) in ends.iter().zip(&transfers).enumerate() {
        let from = BlockId(block as u32);
        let mut edge = |to, count, kind| {
            if count > 0 {
                graph.edges.push(Edge { from, to: BlockId(to), count, kind });
            }
        };
        edge(from.0 + 1, passed, EdgeKind::FallThrough);
        match end {
            BlockEnding::Branch(to, _) => edge(to, taken, EdgeKind::Branch),
            BlockEnding::Jump(to) => edge(to, taken, EdgeKind::Jump),
            BlockEnding::Call(function) if taken > 0 => {
                let to = BlockId(graph.functions[function as usize].start);
                graph.calls.push(Call { from, to, count: taken });
            }
            BlockEnding::Call(_) | BlockEnding::Fall | BlockEnding::Return => {}
        }
    }
}

/// A cache of as many blocks as a real one holds, the pairs of consecutive misses, and the blocks
/// that ran in each epoch.
#[derive(Default)]
struct IdealCacheMisses {
    slots: HashMap<u32, u32>,
    last: Option<u32>,
    pairs: BTreeMap<(u32, u32), u64>,
    missed: usize,
    /// The epochs in which each block ran, of the first 512.
    epochs: BTreeMap<u32, Vec<u64>>,
}

impl IdealCacheMisses {
    fn run(&mut self, block: u32) {
        let hit = self.slots.insert(block % 1021, block) == Some(block);
        self.missed += usize::from(!hit);
        let epoch = self.missed / 1021;
        if epoch < 512 {
            self.epochs.entry(block).or_insert_with(|| vec![0; 8])[epoch / 64] |= 1 << (epoch % 64);
        }
        if hit {
            return;
        }
        if let Some(last) = self.last.replace(block).filter(|&last| last != block) {
            *self.pairs.entry((last.min(block), last.max(block))).or_default() += 1;
        }
    }

    fn block_epochs(&self) -> Vec<BlockEpochs> {
        let row = |(&block, epochs): (&u32, &Vec<u64>)| BlockEpochs {
            block: BlockId(block),
            epochs: epochs.clone(),
        };
        self.epochs.iter().map(row).collect()
    }

    fn joint(self) -> Vec<JointMiss> {
        let pairs = self.pairs.into_iter();
        pairs.map(|((a, b), count)| JointMiss { a: BlockId(a), b: BlockId(b), count }).collect()
    }
}

/// The chunks that ran last, and the pairs that alternated.
struct RecentChunks {
    chunks: Vec<u32>,
    /// The latest chunk is the last element.
    queue: Vec<u32>,
    pairs: HashMap<(u32, u32), u64>,
}

impl RecentChunks {
    fn new(graph: &Graph) -> RecentChunks {
        let chunks = graph.functions.iter().flat_map(|range| {
            let firsts = first_of_chunk(&graph.sizes[range.start as usize..range.end as usize]);
            firsts.into_iter().map(|first| range.start + first)
        });
        RecentChunks { chunks: chunks.collect(), queue: Vec::new(), pairs: HashMap::new() }
    }

    fn run(&mut self, block: u32) {
        let chunk = self.chunks[block as usize];
        if self.queue.last() == Some(&chunk) {
            return;
        }
        if let Some(at) = self.queue.iter().rposition(|&known| known == chunk) {
            for &other in &self.queue[at + 1..] {
                *self.pairs.entry((chunk.min(other), chunk.max(other))).or_default() += 1;
            }
            self.queue.remove(at);
        } else if self.queue.len() == 64 {
            self.queue.remove(0);
        }
        self.queue.push(chunk);
    }

    fn temporal_edges(self) -> Vec<TemporalEdge> {
        let mut pairs: Vec<_> = self.pairs.into_iter().collect();
        pairs.sort_unstable();
        let edge = |((a, b), count)| TemporalEdge { a: BlockId(a), b: BlockId(b), count };
        pairs.into_iter().map(edge).collect()
    }
}

/// Runs from the entry of a function until it returns, for at most 5000 blocks. Returns the number
/// of blocks.
fn one_walk(
    graph: &mut Graph,
    ends: &[BlockEnding],
    function: u32,
    transfers: &mut [(u64, u64)],
    (misses, recent): &mut (&mut IdealCacheMisses, &mut RecentChunks),
    random: &mut SplitMix64,
) -> u64 {
    let mut stack: Vec<u32> = Vec::new();
    let mut block = graph.functions[function as usize].start;
    for step in 1..5000 {
        graph.counts[block as usize] += 1;
        misses.run(block);
        recent.run(block);
        let (taken, passed) = &mut transfers[block as usize];
        block = match ends[block as usize] {
            BlockEnding::Branch(to, likelihood) if random.below(1000) < likelihood => {
                *taken += 1;
                to
            }
            BlockEnding::Jump(to) => {
                *taken += 1;
                to
            }
            BlockEnding::Call(function) => {
                *taken += 1;
                stack.push(block);
                graph.functions[function as usize].start
            }
            BlockEnding::Return => match stack.pop() {
                None => return step,
                Some(caller) => {
                    transfers[caller as usize].1 += 1;
                    caller + 1
                }
            },
            BlockEnding::Fall | BlockEnding::Branch(..) => {
                *passed += 1;
                block + 1
            }
        };
    }
    5000
}
