//! Rows and an evaluation, written down by hand, for the tests of what shows them.

use crate::evaluation::{Area, ByClass, Evaluated, Level, Shape, Stretch, Trial};
use crate::results::{Counters, FunctionMisses, Kind, Misses, ORIGINAL, Row, Sides, Taken};
use image::BuildId;
use image::address::LinkAddr;
use std::collections::BTreeMap;

pub fn row(layout: &str, kind: Kind, misses: u64, functions: &[(&str, u64)]) -> Row {
    let l1i =
        Sides { kernel: Misses { cold: 10, own: misses - 30, other: 20 }, user: Misses::default() };
    let taken = Sides {
        kernel: Taken { conditional: misses, jump: 5, call: 4, ret: 3, indirect: 2 },
        user: Taken::default(),
    };
    Row {
        workload: "net".to_owned(),
        kernel: BuildId("0a0b".to_owned()),
        layout: layout.to_owned(),
        machine: "server-32k".to_owned(),
        seed: 1,
        kind,
        conditions: BTreeMap::from([("qemu".to_owned(), "10.0.2".to_owned())]),
        counters: Counters {
            instructions: Sides { kernel: 90_000, user: 10_000 },
            fetched_bytes: Sides { kernel: 400_000, user: 40_000 },
            l1i,
            itlb: None,
            taken,
            touched_lines: Sides { kernel: 300, user: 30 },
            touched_pages: Sides { kernel: 20, user: 2 },
            cycles: 123_456.0,
            interruptions: 7,
            unresolved_branches: 0,
            breaks: 0,
            memory: None,
            branches: None,
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
        data_functions: Vec::new(),
    }
}

pub fn original() -> Row {
    row(ORIGINAL, Kind::Recorded, 1000, &[("tcp_rcv", 70), ("vfs_read", 50)])
}

pub fn predicted() -> Row {
    row("ext-tsp", Kind::Predicted, 600, &[("tcp_rcv", 30), ("skb_copy", 9)])
}

pub fn recorded() -> Row {
    row("ext-tsp", Kind::Recorded, 500, &[("tcp_rcv", 25)])
}

pub fn evaluated() -> Evaluated {
    let misses = |kernel, user| Sides {
        kernel: Misses { cold: 1, own: kernel, other: 2 },
        user: Misses { cold: 0, own: user, other: 3 },
    };
    let trial = |level, area, cache, kernel, user| Trial {
        level,
        area,
        cache,
        misses: misses(kernel, user),
    };
    let cache = Shape { bytes: 8 << 10, line: 32, ways: 1 };
    let classes =
        |main_seq| ByClass { self_conf_free: 5, main_seq, loops: 1, other_seq: 20, no_class: 4 };
    Evaluated {
        workload: "net".into(),
        seed: 1,
        instructions: Sides { kernel: 9000, user: 1000 },
        references: classes(70),
        trials: vec![
            trial(Level::Base, Area::Usual, cache, 174, 20),
            trial(Level::ChangHwu, Area::Usual, cache, 94, 20),
            trial(Level::OptS, Area::Usual, cache, 74, 20),
            trial(Level::OptS, Area::Cutoff(40), cache, 84, 20),
        ],
        classes: vec![(Level::Base, classes(150)), (Level::OptS, classes(50))],
        addresses: vec![(Level::Base, stretches(&[150, 10])), (Level::OptS, stretches(&[40, 30]))],
    }
}

/// Misses of stretches of 1 KB, one behind the other from 0.
pub fn stretches(misses: &[u64]) -> Vec<Stretch> {
    let stretch = |(number, &misses): (usize, &u64)| Stretch {
        start: LinkAddr(number as u64 * 1024),
        misses,
    };
    misses.iter().enumerate().map(stretch).collect()
}
