//! The hierarchy against the plainest one that can be written, and against a public simulator:
//! every miss is the same.

mod random;

use kernlane_sim::{
    CacheDescription, Counters, Geometry, Hierarchy, Latencies, Line, Machine, Memory, Misses,
    Mode, PerMode, PhysAddr, Replacement, Requester, SimpleModel,
};
use random::Random;
use std::collections::HashMap;

fn cache(size: u64, ways: u64, line: u64) -> CacheDescription {
    CacheDescription::new(size, ways, line, Replacement::Lru).unwrap()
}

fn machine(
    l1i: (u64, u64, u64),
    l1d: CacheDescription,
    l2: Option<CacheDescription>,
    l3: Option<CacheDescription>,
) -> Machine {
    Machine {
        name: "test".to_owned(),
        l1i: Geometry::cache(l1i.0, l1i.1, l1i.2, Replacement::Lru).unwrap(),
        l1i_line: l1i.2 as u32,
        itlb: None,
        time: SimpleModel::new(10.0, 0.3, 0.05).unwrap(),
        memory: Some(
            Memory::new(l1d, l2, l3, None, Latencies::new(10.0, 40.0, 100.0, 7.0).unwrap())
                .unwrap(),
        ),
        branch: None,
    }
}

/// Sets are lists, least recently used first; who evicted what is a map.
struct Naive {
    sets: u64,
    ways: usize,
    line: u64,
    held: HashMap<u64, Vec<u64>>,
    evicted_by: HashMap<u64, u32>,
}

impl Naive {
    fn new(size: u64, ways: u64, line: u64) -> Naive {
        Naive {
            sets: size / ways / line,
            ways: ways as usize,
            line,
            held: HashMap::new(),
            evicted_by: HashMap::new(),
        }
    }

    /// None: a hit. Else cold (0), self (1), other (2).
    fn access(&mut self, addr: u64, requester: u32) -> Option<usize> {
        let line = addr / self.line;
        let set = self.held.entry(line % self.sets).or_default();
        if let Some(at) = set.iter().position(|&held| held == line) {
            set.remove(at);
            set.push(line);
            return None;
        }
        if set.len() == self.ways {
            self.evicted_by.insert(set.remove(0), requester);
        }
        set.push(line);
        Some(match self.evicted_by.get(&line) {
            None => 0,
            Some(&by) if by == requester => 1,
            Some(_) => 2,
        })
    }
}

fn misses(counts: [u64; 3]) -> Misses {
    Misses { cold: counts[0], own: counts[1], other: counts[2] }
}

#[test]
fn every_level_misses_what_the_naive_one_misses() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    // Sizes, ways and lines of L1I, L1D, L2, L3.
    let shapes = [
        [(512, 1, 16), (512, 2, 32), (2048, 1, 128), (8192, 4, 128)],
        [(1024, 2, 64), (768, 3, 64), (4096, 8, 64), (16384, 16, 64)],
        [(256, 4, 64), (1024, 16, 64), (1024, 2, 64), (2048, 2, 256)],
    ];
    for [l1i, l1d, l2, l3] in shapes {
        let build = |(size, ways, line): (u64, u64, u64)| cache(size, ways, line);
        let mut fast =
            Hierarchy::new(&machine(l1i, build(l1d), Some(build(l2)), Some(build(l3)))).unwrap();
        let mut naive = [l1i, l1d, l2, l3].map(|(size, ways, line)| Naive::new(size, ways, line));
        // By mode; L1I, L1D, L2 and L3 of fetches and of data.
        let mut expected = [[[0_u64; 3]; 6]; 2];
        for _ in 0..60_000 {
            let requester = random.below(4) as u32;
            fast.runs(if requester == 0 {
                Requester::KERNEL
            } else {
                Requester::process(requester - 1)
            });
            let addr = match random.below(3) {
                0 => random.below(1 << 10),
                1 => random.below(1 << 13),
                _ => random.below(1 << 20),
            };
            let is_data = random.below(2) == 1;
            let missed = match is_data {
                true => fast.data(PhysAddr(addr)),
                false => fast
                    .fetch(Line::new(Mode::Kernel, (addr / l1i.2) as u32).unwrap(), PhysAddr(addr)),
            };
            let counts = &mut expected[usize::from(requester != 0)];
            let first = naive[usize::from(is_data)].access(addr, requester);
            assert_eq!(missed.is_some(), first.is_some());
            let Some(first) = first else { continue };
            counts[usize::from(is_data)][first] += 1;
            let Some(second) = naive[2].access(addr, requester) else { continue };
            counts[2 + usize::from(is_data)][second] += 1;
            if let Some(third) = naive[3].access(addr, requester) {
                counts[4 + usize::from(is_data)][third] += 1;
            }
        }
        let counters = fast.counters();
        for (mode, [l1i, l1d, l2i, l2d, l3i, l3d]) in
            [counters.kernel, counters.user].into_iter().zip(expected.map(|mode| mode.map(misses)))
        {
            assert_eq!(
                (mode.l1i, mode.l1d, mode.l2i, mode.l2d, mode.l3i, mode.l3d),
                (l1i, l1d, l2i, l2d, l3i, l3d)
            );
        }
    }
}

/// Misses that pycachesim 0.3.1 (a public simulator) counts on the same random streams: see
/// `pycachesim.py`, which wrote the file.
#[test]
fn a_public_simulator_counts_the_same_misses() {
    let told = include_str!("pycachesim.txt");
    let mut compared = 0;
    for row in told.lines().filter(|line| !line.starts_with('#')) {
        let numbers: Vec<u64> =
            row.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let [line, sets1, ways1, sets2, ways2, span, seed, l1, l2] = numbers[..] else {
            panic!("{row}")
        };
        let l1d = cache(line * sets1 * ways1, ways1, line);
        let shape =
            machine((1024, 1, 64), l1d, Some(cache(line * sets2 * ways2, ways2, line)), None);
        let mut hierarchy = Hierarchy::new(&shape).unwrap();
        let mut random = Random(seed);
        for _ in 0..20_000 {
            let near = random.below(4) != 0;
            hierarchy.data(PhysAddr(random.below(if near { span / 8 } else { span })));
        }
        let counters = hierarchy.counters().kernel;
        assert_eq!((counters.l1d.total(), counters.l2d.total()), (l1, l2), "{row}");
        compared += 1;
    }
    assert!(compared >= 20, "only {compared} rows");
}

/// By hand: SimOS' 1994 model.
#[test]
fn time_is_instructions_and_what_was_waited_for() {
    let counters = Counters {
        instructions: 1000,
        l1i: misses([10, 5, 5]),
        l1d: misses([20, 10, 0]),
        l2i: misses([4, 0, 0]),
        l2d: misses([6, 4, 0]),
        l3i: misses([1, 0, 0]),
        l3d: misses([2, 0, 0]),
        itlb: 2,
        dtlb: 3,
        ..Counters::default()
    };
    let l1 = cache(1024, 1, 64);
    let three = machine((1024, 1, 64), l1, Some(l1), Some(l1));
    let stalls = three.stalls(&counters).unwrap();
    assert_eq!((stalls.l1i, stalls.l1d), (160.0, 200.0));
    assert_eq!((stalls.l2i, stalls.l2d), (3.0 * 40.0 + 100.0, 8.0 * 40.0 + 2.0 * 100.0));
    assert_eq!(stalls.tlb, 35.0);
    assert_eq!(three.cycles(&counters).unwrap(), 1000.0 + 160.0 + 200.0 + 220.0 + 520.0 + 35.0);
    let one = machine((1024, 1, 64), l1, None, None);
    let stalls = one.stalls(&counters).unwrap();
    assert_eq!((stalls.l1i, stalls.l1d, stalls.l2i, stalls.l2d), (2000.0, 3000.0, 0.0, 0.0));
}

#[test]
fn what_a_stretch_cost_is_a_difference() {
    let shape = machine((1024, 1, 64), cache(1024, 1, 64), Some(cache(4096, 1, 64)), None);
    let mut hierarchy = Hierarchy::new(&shape).unwrap();
    hierarchy.executed(3, 2, 1);
    hierarchy.data(PhysAddr(0));
    let before = hierarchy.counters();
    hierarchy.runs(Requester::process(0));
    hierarchy.executed(5, 1, 0);
    hierarchy.data(PhysAddr(4096));
    let after = hierarchy.counters();
    let cost = PerMode { kernel: after.kernel - before.kernel, user: after.user - before.user };
    assert_eq!(cost.kernel, Counters::default());
    let expected = Counters {
        instructions: 5,
        loads: 1,
        l1d: misses([1, 0, 0]),
        l2d: misses([1, 0, 0]),
        ..Counters::default()
    };
    assert_eq!(cost.user, expected);
    let mut sum = before.user;
    sum += cost.user;
    assert_eq!(sum, after.user);
}
