//! Example rows and an example evaluation for the tests of reports.

use crate::evaluation::{
    Area, ByClass, CacheShape, CacheTrial, KilobyteMisses, OptimizationLevel, WorkloadEvaluation,
};
use crate::results::{FunctionMisses, ORIGINAL, ResultCounters, ResultKind, ResultRow};
use image::BuildId;
use image::address::LinkAddr;
use sim::{MissCounts, PerMode, TakenBranches};
use std::collections::BTreeMap;

/// A result row with these misses and functions.
pub fn row(layout: &str, kind: ResultKind, misses: u64, functions: &[(&str, u64)]) -> ResultRow {
    let l1i = PerMode {
        kernel: MissCounts { cold: 10, own: misses - 30, other: 20 },
        user: MissCounts::default(),
    };
    let taken = PerMode {
        kernel: TakenBranches { conditional: misses, jump: 5, call: 4, ret: 3, indirect: 2 },
        user: TakenBranches::default(),
    };
    ResultRow {
        workload: "net".to_owned(),
        kernel: BuildId("0a0b".to_owned()),
        layout: layout.to_owned(),
        machine: "server-32k".to_owned(),
        seed: 1,
        kind,
        conditions: BTreeMap::from([("qemu".to_owned(), "10.0.2".to_owned())]),
        counters: ResultCounters {
            instructions: PerMode { kernel: 90_000, user: 10_000 },
            fetched_bytes: PerMode { kernel: 400_000, user: 40_000 },
            l1i,
            itlb: None,
            taken,
            touched_lines: PerMode { kernel: 300, user: 30 },
            touched_pages: PerMode { kernel: 20, user: 2 },
            cycles: 123_456.0,
            interruptions: 7,
            unresolved_branches: 0,
            breaks: 0,
            memory: None,
            branches: None,
            core: None,
            coherence: None,
        },
        bound: None,
        functions: functions
            .iter()
            .map(|&(name, misses)| FunctionMisses {
                name: name.to_owned(),
                misses,
                hot_bytes: 100,
                cold_bytes: 200,
            })
            .collect(),
        modules: Vec::new(),
        data_functions: Vec::new(),
    }
}

/// A row of the original.
pub fn original() -> ResultRow {
    row(ORIGINAL, ResultKind::Recorded, 1000, &[("tcp_rcv", 70), ("vfs_read", 50)])
}

/// A predicted row of the layout `ext-tsp`.
pub fn predicted() -> ResultRow {
    row("ext-tsp", ResultKind::Predicted, 600, &[("tcp_rcv", 30), ("skb_copy", 9)])
}

/// A recorded row of the layout `ext-tsp`.
pub fn recorded() -> ResultRow {
    row("ext-tsp", ResultKind::Recorded, 500, &[("tcp_rcv", 25)])
}

/// The evaluation of a small workload.
pub fn evaluated() -> WorkloadEvaluation {
    let misses = |kernel, user| PerMode {
        kernel: MissCounts { cold: 1, own: kernel, other: 2 },
        user: MissCounts { cold: 0, own: user, other: 3 },
    };
    let trial = |level, area, cache, kernel, user| CacheTrial {
        level,
        area,
        cache,
        misses: misses(kernel, user),
    };
    let cache = CacheShape { bytes: 8 << 10, line: 32, ways: 1 };
    let classes =
        |main_seq| ByClass { self_conf_free: 5, main_seq, loops: 1, other_seq: 20, no_class: 4 };
    WorkloadEvaluation {
        workload: "net".into(),
        seed: 1,
        instructions: PerMode { kernel: 9000, user: 1000 },
        references: classes(70),
        trials: vec![
            trial(OptimizationLevel::Base, Area::Usual, cache, 174, 20),
            trial(OptimizationLevel::ChangHwu, Area::Usual, cache, 94, 20),
            trial(OptimizationLevel::OptS, Area::Usual, cache, 74, 20),
            trial(OptimizationLevel::OptS, Area::Cutoff(40), cache, 84, 20),
        ],
        classes: vec![
            (OptimizationLevel::Base, classes(150)),
            (OptimizationLevel::OptS, classes(50)),
        ],
        addresses: vec![
            (OptimizationLevel::Base, stretches(&[150, 10])),
            (OptimizationLevel::OptS, stretches(&[40, 30])),
        ],
    }
}

/// Misses of adjacent ranges of 1 KB, from address 0.
pub fn stretches(misses: &[u64]) -> Vec<KilobyteMisses> {
    let stretch = |(number, &misses): (usize, &u64)| KilobyteMisses {
        start: LinkAddr(number as u64 * 1024),
        misses,
    };
    misses.iter().enumerate().map(stretch).collect()
}
