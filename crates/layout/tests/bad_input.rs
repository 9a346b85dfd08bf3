//! Damaged graphs and extreme parameters. They are refused with the broken rule, or laid out. They
//! never cause a panic.

mod generator;

use generator::{VastShape, vast, wild};
use kernlane_layout::ext_tsp::{ExtTspParameters, ext_tsp};
use kernlane_layout::global::ext_tsp_global;
use kernlane_layout::joint::{JointParameters, joint};
use kernlane_layout::opts::{OptSParameters, ScheduleRow, opts};
use kernlane_layout::random::SplitMix64;
use kernlane_layout::{Algorithm, BlockEpochs, BlockId, EdgeKind, Graph, check, order, validate};

/// Changes one thing. The change may break a rule or not.
fn damage(graph: &mut Graph, random: &mut SplitMix64) {
    let number =
        [0, 1, 2, 63, u32::MAX - 1, u32::MAX, random.next_u64() as u32][random.below(7) as usize];
    let pick = |length: usize, random: &mut SplitMix64| random.below(length.max(1) as u64) as usize;
    match random.below(14) {
        0 => graph.sizes.truncate(pick(graph.len(), random)),
        1 => graph.counts.push(u64::MAX),
        2 => graph.glued.clear(),
        3 => graph.alignments.iter_mut().for_each(|alignment| *alignment = number),
        4 => graph.functions.truncate(pick(graph.functions.len(), random)),
        5 => graph.functions.push(number..number.wrapping_add(1)),
        6 => graph.functions.iter_mut().for_each(|function| function.end = number),
        7 => graph.glued.iter_mut().for_each(|glued| *glued = true),
        8 => graph.edges.iter_mut().for_each(|edge| edge.to = BlockId(number)),
        9 => graph.edges.iter_mut().for_each(|edge| edge.kind = EdgeKind::FallThrough),
        10 => graph.calls.iter_mut().for_each(|call| call.from = BlockId(number)),
        11 => graph.joint_misses.iter_mut().for_each(|joint| joint.a = BlockId(number)),
        12 => graph.block_epochs.iter_mut().for_each(|of_block| of_block.block = BlockId(number)),
        _ => graph.seeds.iter_mut().for_each(|seed| seed.block = BlockId(number)),
    }
}

#[test]
fn damaged_graphs_are_refused_by_every_algorithm_or_by_none() {
    let (mut refused, mut taken) = (0, 0);
    for seed in 0..600 {
        let mut graph = wild(seed);
        damage(&mut graph, &mut SplitMix64::new(seed));
        let verdict = validate(&graph);
        for algorithm in Algorithm::ALL {
            match (order(&graph, algorithm, seed), &verdict) {
                (Ok(ordered), Ok(())) => check(&graph, &ordered.order).unwrap(),
                (Err(error), Err(expected)) => assert_eq!(error.to_string(), expected.to_string()),
                (found, _) => {
                    panic!("{algorithm} on graph {seed}: {found:?} where validate says {verdict:?}")
                }
            }
        }
        *if verdict.is_ok() { &mut taken } else { &mut refused } += 1;
    }
    assert!(refused > 300 && taken > 50, "{refused} refused, {taken} taken");
}

/// The nested loops of a huge function would take hours.
#[test]
fn algorithms_with_loops_refuse_a_huge_function_by_name() {
    let graph = vast(VastShape { blocks: 17_000, function: u32::MAX }, 1);
    for algorithm in [Algorithm::OptS, Algorithm::OptL, Algorithm::Call] {
        assert_eq!(
            order(&graph, algorithm, 1).unwrap_err().to_string(),
            "17000 blocks in one function, but opts takes at most 16384: its time grows with their \
             square"
        );
    }
}

/// The algorithm compares each end of a segment with each beginning. Here, this would take hours.
#[test]
fn packed_refuses_too_many_segments_by_name() {
    let blocks = 200_001;
    let graph = Graph {
        sizes: vec![16; blocks],
        counts: vec![1; blocks],
        glued: vec![false; blocks],
        alignments: vec![1; blocks],
        functions: (0..blocks as u32).map(|block| block..block + 1).collect(),
        block_epochs: vec![BlockEpochs { block: BlockId(0), epochs: vec![1] }],
        ..Graph::default()
    };
    assert_eq!(
        order(&graph, Algorithm::Packed, 1).unwrap_err().to_string(),
        "200001 segments of code that ran at the least, but packed takes at most 200000: its time \
         grows with their square"
    );
}

/// Rings of calls, with thousands of calls around a block.
#[test]
fn all_hot_code_that_calls_everywhere_is_laid_out() {
    let graph = vast(VastShape { blocks: 4_000, function: 50 }, 1);
    for algorithm in Algorithm::ALL {
        check(&graph, &order(&graph, algorithm, 1).unwrap().order).unwrap();
    }
}

#[test]
fn extreme_parameters_of_ext_tsp_give_an_order_or_are_refused() {
    let base = ExtTspParameters::default;
    let extremes = [
        ExtTspParameters { max_chain: 0, split_threshold: 0, ..base() },
        ExtTspParameters { max_chain: usize::MAX, split_threshold: usize::MAX, ..base() },
        ExtTspParameters { forward_distance: 0, backward_distance: 0, ..base() },
        ExtTspParameters { forward_distance: u64::MAX, backward_distance: u64::MAX, ..base() },
        ExtTspParameters { jump: f64::MAX, fall_through_conditional: f64::MAX, ..base() },
        ExtTspParameters {
            jump: 0.0,
            fall_through_conditional: 0.0,
            fall_through_unconditional: 0.0,
            ..base()
        },
        ExtTspParameters { max_density_ratio: 1.0, ..base() },
    ];
    for seed in 0..60 {
        let graph = wild(seed);
        for parameters in &extremes {
            check(&graph, &ext_tsp(&graph, parameters).unwrap().order).unwrap();
            check(&graph, &ext_tsp_global(&graph, parameters).unwrap().order).unwrap();
        }
    }
    let refused = |parameters: ExtTspParameters| {
        ext_tsp(&Graph::default(), &parameters).unwrap_err().to_string()
    };
    assert!(refused(ExtTspParameters { jump: -0.1, ..base() }).contains("`jump`"));
    assert!(
        refused(ExtTspParameters { max_density_ratio: f64::NAN, ..base() })
            .contains("`max_density_ratio`")
    );
    let mut parameters = base();
    parameters.functions.max_density_loss = 0.5;
    assert!(refused(parameters).contains("`max_density_loss`"));
}

#[test]
fn extreme_parameters_of_opts_give_an_order() {
    let base = OptSParameters::default;
    let extremes = [
        OptSParameters { schedule: Vec::new(), ..base() },
        OptSParameters { schedule: vec![ScheduleRow::uniform(2.0, 2.0)], ..base() },
        OptSParameters { cache_bytes: u64::MAX, ..base() },
        OptSParameters {
            cache_bytes: u64::MAX,
            self_conf_free_bytes: u64::MAX / 2,
            self_conf_free_cutoff: 0.0,
            ..base()
        },
        OptSParameters {
            cache_bytes: 3,
            line_bytes: 1,
            self_conf_free_bytes: 1,
            self_conf_free_cutoff: 0.0,
            ..base()
        },
        OptSParameters {
            cache_bytes: 1000,
            line_bytes: 7,
            self_conf_free_bytes: 400,
            self_conf_free_cutoff: 0.0,
            ..base()
        },
    ];
    for seed in 0..120 {
        let graph = wild(seed);
        for parameters in &extremes {
            check(&graph, &opts(&graph, parameters).unwrap().order).unwrap();
        }
    }
}

#[test]
fn extreme_parameters_of_joint_give_an_order_or_are_refused() {
    let base = JointParameters::default;
    let extremes = [
        JointParameters { miss: 0.0, ..base() },
        JointParameters { miss: 1e300, ..base() },
        JointParameters { line_bytes: 1, ..base() },
        JointParameters { cut_share: 2.0, ..base() },
        JointParameters { class_factor: 1e300, ..base() },
        JointParameters { line_bytes: u64::MAX, ..base() },
    ];
    for seed in 0..100 {
        let graph = wild(seed);
        for parameters in &extremes {
            check(&graph, &joint(&graph, parameters).unwrap().order).unwrap();
        }
    }
    let refused = |parameters: JointParameters| {
        joint(&Graph::default(), &parameters).unwrap_err().to_string()
    };
    assert!(refused(JointParameters { miss: -1.0, ..base() }).contains("`miss`"));
    assert!(refused(JointParameters { miss: f64::INFINITY, ..base() }).contains("`miss`"));
    assert!(refused(JointParameters { cut_share: f64::NAN, ..base() }).contains("`cut_share`"));
    assert!(refused(JointParameters { class_factor: 1.0, ..base() }).contains("`class_factor`"));
    assert!(refused(JointParameters { line_bytes: 0, ..base() }).contains("`line_bytes`"));
}
