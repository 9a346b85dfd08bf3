//! Compares ext-TSP with every possible order, for functions of up to eight blocks.

use kernlane_layout::random::SplitMix64;
use kernlane_layout::{Algorithm, BlockId, Edge, EdgeKind, Graph, Order, order, score};

/// One function with counts from walks. Every block falls through, branches or jumps. The last one
/// returns.
fn function(seed: u64) -> Graph {
    let mut random = SplitMix64::new(seed);
    let blocks = 3 + random.below(6) as u32;
    let likelihoods = [1, 50, 200, 500, 800, 950, 999];
    let targets: Vec<(Option<u32>, u64)> = (0..blocks)
        .map(|_| match random.below(4) {
            0 => (None, 0),
            1 => (Some(random.below(u64::from(blocks)) as u32), 1000),
            _ => (
                Some(random.below(u64::from(blocks)) as u32),
                likelihoods[random.below(7) as usize],
            ),
        })
        .collect();
    let mut graph = Graph {
        sizes: (0..blocks).map(|_| 4 + random.below(60) as u32).collect(),
        counts: vec![0; blocks as usize],
        glued: vec![false; blocks as usize],
        alignments: vec![1; blocks as usize],
        functions: std::iter::once(0..blocks).collect(),
        ..Graph::default()
    };
    let mut taken = vec![0; blocks as usize];
    let mut passed = vec![0; blocks as usize];
    for _ in 0..100 {
        let mut block = 0;
        for _ in 0..100 {
            graph.counts[block as usize] += 1;
            if block == blocks - 1 {
                break;
            }
            let (target, likelihood) = targets[block as usize];
            match target.filter(|_| random.below(1000) < likelihood) {
                Some(to) => {
                    taken[block as usize] += 1;
                    block = to;
                }
                None => {
                    passed[block as usize] += 1;
                    block += 1;
                }
            }
        }
    }
    for block in 0..blocks {
        let (target, likelihood) = targets[block as usize];
        let mut edge = |to, count, kind| {
            graph.edges.push(Edge { from: BlockId(block), to: BlockId(to), count, kind })
        };
        if passed[block as usize] > 0 {
            edge(block + 1, passed[block as usize], EdgeKind::FallThrough);
        }
        if let Some(to) = target.filter(|_| taken[block as usize] > 0) {
            edge(
                to,
                taken[block as usize],
                if likelihood == 1000 { EdgeKind::Jump } else { EdgeKind::Branch },
            );
        }
    }
    graph
}

/// The best score of all orders in which the entry comes first and the cold blocks follow in their
/// original order.
fn best(graph: &Graph) -> f64 {
    let (hot, cold): (Vec<BlockId>, Vec<BlockId>) =
        (1..graph.sizes.len() as u32).map(BlockId).partition(|b| graph.counts[b.0 as usize] > 0);
    let mut best = 0f64;
    permute(&mut hot.clone(), 0, &mut |hot| {
        let order = Order([BlockId(0)].iter().chain(hot).chain(&cold).copied().collect());
        best = best.max(score(graph, &order).ext_tsp);
    });
    best
}

fn permute(items: &mut Vec<BlockId>, fixed: usize, visit: &mut impl FnMut(&[BlockId])) {
    if fixed == items.len() {
        return visit(items);
    }
    for i in fixed..items.len() {
        items.swap(fixed, i);
        permute(items, fixed + 1, visit);
        items.swap(fixed, i);
    }
}

#[test]
fn ext_tsp_is_close_to_the_best_of_all_orders() {
    let (mut worst, mut sum, mut optimal) = (f64::MAX, 0.0, 0);
    let functions = 150;
    for seed in 0..functions {
        let graph = function(seed);
        let found = score(&graph, &order(&graph, Algorithm::ExtTsp, 0).unwrap().order).ext_tsp;
        let ratio = found / best(&graph);
        assert!(ratio <= 1.0 + 1e-9, "seed {seed}: better than the best");
        worst = worst.min(ratio);
        sum += ratio;
        optimal += u32::from(ratio > 1.0 - 1e-9);
    }
    println!("worst {worst}, mean {}, optimal {optimal} of {functions}", sum / functions as f64);
    assert!(worst >= 0.98, "the worst function has {worst} of its best score");
    assert!(optimal >= 148, "only {optimal} of {functions} are optimal");
}
