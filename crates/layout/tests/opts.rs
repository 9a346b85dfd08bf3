//! Compares OptS with the example in the paper, and its areas of the cache with a separate
//! calculation.

mod generator;

use generator::{KernelShape, SMALL, kernel};
use kernlane_layout::opts::{BlockClass, LoopArea, OptSParameters, ScheduleRow, classes, opts};
use kernlane_layout::{BlockId, Call, Edge, EdgeKind, Graph, Order, Seed, SeedClass, check};

/// A graph under construction. Every block has 20 bytes.
#[derive(Default)]
struct GraphBuilder(Graph);

impl GraphBuilder {
    /// Adds a function with the counts of its blocks. Returns its first block.
    fn function(&mut self, counts: &[u64]) -> u32 {
        let start = self.0.len() as u32;
        self.0.sizes.extend(counts.iter().map(|_| 20));
        self.0.counts.extend(counts);
        self.0.glued.extend(counts.iter().map(|_| false));
        self.0.alignments.extend(counts.iter().map(|_| 1));
        self.0.functions.push(start..self.0.len() as u32);
        start
    }

    fn edge(&mut self, from: u32, to: u32, count: u64) {
        let kind = if to == from + 1 { EdgeKind::FallThrough } else { EdgeKind::Branch };
        self.0.edges.push(Edge { from: BlockId(from), to: BlockId(to), count, kind });
    }

    fn call(&mut self, from: u32, to: u32, count: u64) {
        self.0.calls.push(Call { from: BlockId(from), to: BlockId(to), count });
    }

    fn seed(&mut self, block: u32, class: SeedClass, count: u64) {
        self.0.seeds.push(Seed { block: BlockId(block), class, count });
    }

    /// The numbers of the blocks in their new order, and how many are hot.
    fn opts(&self, parameters: &OptSParameters) -> (Vec<u32>, usize) {
        let ordered = opts(&self.0, parameters).unwrap();
        check(&self.0, &ordered.order).unwrap();
        (ordered.order.0.iter().map(|b| b.0).collect(), ordered.hot)
    }
}

fn sequences_only(schedule: Vec<ScheduleRow>) -> OptSParameters {
    OptSParameters { schedule, self_conf_free_bytes: 0, ..OptSParameters::default() }
}

/// ```text
/// push_hrtimer                                            read_hrc     check_        update_
///                                                                      currtimer     hrtimer
///
///   0 ▶ 1 ──────▶ 4 ─────▶ 8 ▶ 9 ▶ 10 ▶ 11 ▶ 12 ▶ 13 ▶ 14     0            0                 0
///                 └▶ 5 ▶ 7 ▲ calls         calls  calls       ▼            ▼
///     14 ──0.7──▶ 15 ──▶ 17   read_hrc     check_ update_     1            1
///      └───0.3──▶ 16 ────▲     currtimer    hrtimer           ▼            ▼
///                        17 ▶ 18 ▶ 19                         2            2 ──────▶ 5
///                                                             ▼
///   2, 3, 6 and check_currtimer's 3, 4 never ran              3
/// ```
#[test]
fn push_hrtimer_is_laid_out_as_in_figure_8() {
    let mut g = GraphBuilder::default();
    let push = g.function(&[
        1000, 1000, 0, 0, 1000, 50, 0, 50, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 700, 300,
        1000, 1000, 1000,
    ]);
    let read = g.function(&[1000; 4]);
    let check = g.function(&[1000, 1000, 1000, 0, 0, 1000]);
    let update = g.function(&[1000]);
    for (from, to, count) in
        [(0, 1, 1000), (1, 4, 1000), (4, 8, 950), (4, 5, 50), (5, 7, 50), (7, 8, 50), (8, 9, 1000)]
    {
        g.edge(push + from, push + to, count);
    }
    for from in 9..14 {
        g.edge(push + from, push + from + 1, 1000);
    }
    for (from, to, count) in
        [(14, 15, 700), (14, 16, 300), (15, 17, 700), (16, 17, 300), (17, 18, 1000), (18, 19, 1000)]
    {
        g.edge(push + from, push + to, count);
    }
    (0..3).for_each(|block| g.edge(read + block, read + block + 1, 1000));
    [(0, 1), (1, 2), (2, 5)]
        .into_iter()
        .for_each(|(from, to)| g.edge(check + from, check + to, 1000));
    g.call(push + 8, read, 1000);
    g.call(push + 12, check, 1000);
    g.call(push + 13, update, 1000);
    g.seed(push, SeedClass::Interrupt, 1000);

    let (order, hot) = g.opts(&sequences_only(vec![
        ScheduleRow::uniform(0.20, 0.1),
        ScheduleRow::uniform(0.0, 0.0),
    ]));
    let expected = [
        // "We first place nodes 0, 1, 4, and 8 of push_hrtimer"
        vec![push, push + 1, push + 4, push + 8],
        // "then, since node 8 calls routine read_hrc, nodes 0, 1, 2, and 3 of read_hrc"
        vec![read, read + 1, read + 2, read + 3],
        // "then nodes 9, 10, 11, and 12 of push_hrtimer"
        vec![push + 9, push + 10, push + 11, push + 12],
        // "nodes 0, 1, 2, and 5 of check_currtimer, node 13 of push_hrtimer, node 0 of
        // update_hrtimer"
        vec![check, check + 1, check + 2, check + 5, push + 13, update],
        // "and nodes 14, 15, 17, 18, and 19 of push_hrtimer"
        vec![push + 14, push + 15, push + 17, push + 18, push + 19],
        // "we start again from the seed and find node 16"
        vec![push + 16],
        // "Finally, in the (0, 0) pass, nodes 5 and 7"
        vec![push + 5, push + 7],
        // The cold blocks.
        vec![push + 2, push + 3, push + 6, check + 3, check + 4],
    ];
    assert_eq!(order, expected.concat());
    assert_eq!(hot, order.len() - 5);
}

#[test]
fn classes_take_turns_as_in_table_4() {
    let mut g = GraphBuilder::default();
    let other = g.function(&[100]);
    let system_call = g.function(&[100]);
    let page_fault = g.function(&[100]);
    let interrupt = g.function(&[100]);
    let rarer_interrupt = g.function(&[50]);
    g.seed(other, SeedClass::Other, 100);
    g.seed(system_call, SeedClass::SystemCall, 100);
    g.seed(page_fault, SeedClass::PageFault, 100);
    g.seed(rarer_interrupt, SeedClass::Interrupt, 50);
    g.seed(interrupt, SeedClass::Interrupt, 100);
    let parameters = OptSParameters { self_conf_free_bytes: 0, ..OptSParameters::default() };
    assert_eq!(g.opts(&parameters).0, [interrupt, rarer_interrupt, page_fault, system_call, other]);
}

/// ```text
///                ┌────990─────┐
///                ▼            │
///     0 ──10──▶  1 ──1000──▶  2      3 follows the loop; 4 is called from 3 and runs eleven times
///                └──10──▶  3 ──10──▶ (4)
/// ```
#[test]
fn a_loop_is_followed_once_and_then_left() {
    let mut g = GraphBuilder::default();
    let f = g.function(&[10, 1000, 990, 10]);
    let callee = g.function(&[11]);
    for (from, to, count) in [(0, 1, 10), (1, 2, 990), (2, 1, 990), (1, 3, 10)] {
        g.edge(f + from, f + to, count);
    }
    g.call(f + 3, callee, 10);
    g.seed(f, SeedClass::Other, 10);
    let once = sequences_only(vec![ScheduleRow::uniform(0.5, 0.5)]);
    assert_eq!(g.opts(&once).0, [f, f + 1, f + 2, f + 3, callee]);

    // The area takes the code that is popular without loops: the callee, and then the function's
    // own blocks. 30 bytes hold one block.
    let area = OptSParameters { self_conf_free_bytes: 30, ..once };
    assert_eq!(g.opts(&area).0, [callee, f, f + 1, f + 2, f + 3]);
}

#[test]
fn code_that_no_seed_reaches_is_placed_by_popularity_behind_the_sequences() {
    let mut g = GraphBuilder::default();
    let (rare, seed, cold, popular) =
        (g.function(&[5]), g.function(&[1]), g.function(&[0]), g.function(&[9]));
    g.seed(seed, SeedClass::Other, 1);
    assert_eq!(
        g.opts(&sequences_only(OptSParameters::default().schedule)),
        (vec![seed, popular, rare, cold], 3)
    );
}

/// ```text
///     f: 0 ──10──▶ 1 ⟲ 990 ──10──▶ 2      h: 4 ⟲ 30 (three iterations) ──10──▶ 5
/// ```
#[test]
fn loops_of_many_iterations_follow_the_sequences() {
    let mut g = GraphBuilder::default();
    let f = g.function(&[10, 1000, 10]);
    let h = g.function(&[40, 10]);
    for (from, to, count) in
        [(f, f + 1, 10), (f + 1, f + 1, 990), (f + 1, f + 2, 10), (h, h, 30), (h, h + 1, 10)]
    {
        g.edge(from, to, count);
    }
    g.seed(f, SeedClass::Other, 10);
    g.seed(h, SeedClass::Other, 9);
    let apart = OptSParameters {
        loop_area: LoopArea::Behind,
        ..sequences_only(vec![ScheduleRow::uniform(0.0, 0.0)])
    };
    assert_eq!(g.opts(&apart).0, [f, f + 2, h, h + 1, f + 1]);
}

/// ```text
///     popular     f: 0 ──10──▶ 1 ⟲ 990 ──10──▶ 2     rare     cold
/// ```
#[test]
fn each_block_has_the_class_that_figure_12_gives_it() {
    let mut g = GraphBuilder::default();
    let popular = g.function(&[1000]);
    let f = g.function(&[10, 1000, 10]);
    let rare = g.function(&[1]);
    g.function(&[0]);
    for (from, to, count) in [(f, f + 1, 10), (f + 1, f + 1, 990), (f + 1, f + 2, 10)] {
        g.edge(from, to, count);
    }
    for (seed, count) in [(popular, 1000), (f, 10), (rare, 1)] {
        g.seed(seed, SeedClass::Interrupt, count);
    }
    let (main, other) = (Some(BlockClass::MainSequence), Some(BlockClass::OtherSequence));
    let expected =
        [Some(BlockClass::SelfConfFree), main, Some(BlockClass::Loop), main, other, None];
    assert_eq!(classes(&g.0, &OptSParameters::default()).unwrap(), expected);
}

/// Two loops of ten iterations. The first calls r and s, the second calls r. No loop may share a
/// cache line with a routine that it calls.
#[test]
fn loops_and_the_routines_they_call_do_not_conflict() {
    let mut g = GraphBuilder::default();
    let loops = [g.function(&[10, 100, 10]), g.function(&[10, 100, 10])];
    let (r, s) = (g.function(&[200, 200]), g.function(&[100]));
    g.function(&[0; 200]);
    for f in loops {
        g.edge(f, f + 1, 10);
        g.edge(f + 1, f + 1, 90);
        g.edge(f + 1, f + 2, 10);
        g.seed(f, SeedClass::Other, 10);
    }
    g.edge(r, r + 1, 200);
    g.call(loops[0] + 1, r, 100);
    g.call(loops[0] + 1, s, 100);
    g.call(loops[1] + 1, r, 100);
    let parameters = OptSParameters {
        loop_area: LoopArea::WithCallees,
        cache_bytes: 512,
        ..sequences_only(vec![ScheduleRow::uniform(0.0, 0.0)])
    };
    let ordered = opts(&g.0, &parameters).unwrap();
    check(&g.0, &ordered.order).unwrap();
    let addresses = addresses(&g.0, &ordered.order);
    let sets = |block: u32| {
        let start = addresses[block as usize];
        (start..start + 20).map(|byte| byte % 512).collect::<std::collections::BTreeSet<_>>()
    };
    for (caller, callee) in
        [(loops[0] + 1, r), (loops[0] + 1, r + 1), (loops[0] + 1, s), (loops[1] + 1, r), (r, s)]
    {
        assert!(sets(caller).is_disjoint(&sets(callee)), "{caller} and {callee}");
    }
    // Both loops begin their logical caches.
    let begin = |f: u32| addresses[f as usize + 1] % 512;
    assert!(begin(loops[0]) < 64 && begin(loops[1]) < 64);
    assert_ne!(addresses[loops[0] as usize + 1], addresses[loops[1] as usize + 1]);
}

/// The address of each block when the first is placed at 0.
fn addresses(graph: &Graph, order: &Order) -> Vec<u64> {
    let mut addresses = vec![0; graph.len()];
    let mut end = 0u64;
    for &block in &order.0 {
        addresses[block.index()] = end.next_multiple_of(u64::from(graph.alignments[block.index()]));
        end = addresses[block.index()] + u64::from(graph.sizes[block.index()]);
    }
    addresses
}

#[test]
fn no_executed_code_shares_lines_with_the_area_of_the_most_popular() {
    for seed in 0..20 {
        let graph = kernel(KernelShape { functions: 300, seeds: 4, ..SMALL }, seed);
        let parameters = OptSParameters {
            cache_bytes: 2048,
            // Areas of one line, so that their size does not depend on the number of popular
            // blocks.
            line_bytes: 256,
            self_conf_free_bytes: 256,
            ..OptSParameters::default()
        };
        let ordered = opts(&graph, &parameters).unwrap();
        let addresses = addresses(&graph, &ordered.order);
        let ran = |b: &BlockId| graph.counts[b.index()] > 0;
        let hot_bytes =
            ordered.order.0.iter().filter(|b| ran(b)).map(|b| addresses[b.index()]).max().unwrap();
        assert!(hot_bytes > 3 * 2048, "graph {seed} is too small to say anything");
        for block in ordered.order.0.iter().filter(|b| ran(b)) {
            let (start, end) = (
                addresses[block.index()],
                addresses[block.index()] + u64::from(graph.sizes[block.index()]),
            );
            let touches = (start.max(2048)..end).any(|byte| byte % 2048 < 256);
            assert!(!touches, "graph {seed}: {block:?} at {start}..{end} lies in an area");
        }
        // Without areas, many executed blocks lie there. So the test can fail.
        let plain =
            opts(&graph, &OptSParameters { self_conf_free_bytes: 0, ..parameters }).unwrap();
        let addresses = self::addresses(&graph, &plain.order);
        assert!(
            plain.order.0.iter().any(|b| ran(b)
                && addresses[b.index()] >= 2048
                && addresses[b.index()] % 2048 < 256)
        );
    }
}

#[test]
fn impossible_parameters_are_refused_by_name() {
    let refused =
        |parameters: OptSParameters| opts(&Graph::default(), &parameters).unwrap_err().to_string();
    let default = OptSParameters::default;
    assert_eq!(
        refused(OptSParameters { cache_bytes: 1024, ..default() }),
        "parameter `cache_bytes` is 1024, but must be a finite number of at least 1152"
    );
    assert!(refused(OptSParameters { line_bytes: 0, ..default() }).contains("`line_bytes`"));
    assert!(
        refused(OptSParameters { self_conf_free_cutoff: f64::NAN, ..default() })
            .contains("`self_conf_free_cutoff`")
    );
    assert!(
        refused(sequences_only(vec![ScheduleRow::uniform(-1.0, 0.0)])).contains("`schedule.exec`")
    );
    assert!(
        refused(sequences_only(vec![ScheduleRow::uniform(0.0, f64::INFINITY)]))
            .contains("`schedule.branch`")
    );
}
