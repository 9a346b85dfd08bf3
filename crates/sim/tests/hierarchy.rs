//! Compares the hierarchy with a naive one and with a public simulator: all count the same misses.

mod random;

use kernlane_sim::{
    CacheDescription, CacheGeometry, Hierarchy, Latencies, LineId, MachineCounters, MachineModel,
    MemoryDescription, MissCounts, Mode, PerMode, PhysAddr, Replacement, Requester, SimpleModel,
};
use random::XorShift;
use std::collections::HashMap;

fn cache(size: u64, ways: u64, line: u64) -> CacheDescription {
    CacheDescription::new(size, ways, line, Replacement::Lru).unwrap()
}

fn machine(
    l1i: (u64, u64, u64),
    l1d: CacheDescription,
    l2: Option<CacheDescription>,
    l3: Option<CacheDescription>,
) -> MachineModel {
    let (size, ways, line) = l1i;
    let l1i = CacheGeometry::cache(size, ways, line, Replacement::Lru).unwrap();
    let time = SimpleModel::new(10.0, 0.3, 0.05).unwrap();
    MachineModel {
        memory: Some(
            MemoryDescription::new(
                l1d,
                l2,
                l3,
                None,
                Latencies::new(10.0, 40.0, 100.0, 7.0).unwrap(),
            )
            .unwrap(),
        ),
        ..MachineModel::l1i_only("test", l1i, line as u32, time)
    }
}

/// The sets are lists, the least recently used line first. A map holds the evictors.
struct NaiveLevel {
    sets: u64,
    ways: usize,
    line: u64,
    held: HashMap<u64, Vec<u64>>,
    evicted_by: HashMap<u64, u32>,
}

impl NaiveLevel {
    fn new(size: u64, ways: u64, line: u64) -> NaiveLevel {
        NaiveLevel {
            sets: size / ways / line,
            ways: ways as usize,
            line,
            held: HashMap::new(),
            evicted_by: HashMap::new(),
        }
    }

    /// `None`: a hit. Otherwise a cold miss (0), self (1) or other (2).
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

fn misses(counts: [u64; 3]) -> MissCounts {
    MissCounts { cold: counts[0], own: counts[1], other: counts[2] }
}

#[test]
fn every_level_has_the_misses_of_the_naive_level() {
    let mut random = XorShift(0x9E37_79B9_7F4A_7C15);
    // Size, ways and line of L1I, L1D, L2 and L3.
    let shapes = [
        [(512, 1, 16), (512, 2, 32), (2048, 1, 128), (8192, 4, 128)],
        [(1024, 2, 64), (768, 3, 64), (4096, 8, 64), (16384, 16, 64)],
        [(256, 4, 64), (1024, 16, 64), (1024, 2, 64), (2048, 2, 256)],
    ];
    for [l1i, l1d, l2, l3] in shapes {
        let build = |(size, ways, line): (u64, u64, u64)| cache(size, ways, line);
        let mut fast =
            Hierarchy::new(&machine(l1i, build(l1d), Some(build(l2)), Some(build(l3)))).unwrap();
        let mut naive =
            [l1i, l1d, l2, l3].map(|(size, ways, line)| NaiveLevel::new(size, ways, line));
        // By mode: misses of L1I and L1D, then L2 and L3 by fetches and by data accesses.
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
                false => fast.fetch(
                    LineId::new(Mode::Kernel, (addr / l1i.2) as u32).unwrap(),
                    PhysAddr(addr),
                ),
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

/// The misses that pycachesim 0.3.1 (a public simulator) counts on the same random streams.
/// `pycachesim.py` wrote the file.
#[test]
fn a_public_simulator_counts_the_same_misses() {
    let rows = include_str!("pycachesim.txt");
    let mut compared = 0;
    for row in rows.lines().filter(|line| !line.starts_with('#')) {
        let numbers: Vec<u64> =
            row.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let [line, sets1, ways1, sets2, ways2, span, seed, l1, l2] = numbers[..] else {
            panic!("{row}")
        };
        let l1d = cache(line * sets1 * ways1, ways1, line);
        let shape =
            machine((1024, 1, 64), l1d, Some(cache(line * sets2 * ways2, ways2, line)), None);
        let mut hierarchy = Hierarchy::new(&shape).unwrap();
        let mut random = XorShift(seed);
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

/// SimOS' 1994 model by hand.
#[test]
fn cycles_are_instructions_and_stalls() {
    let counters = MachineCounters {
        instructions: 1000,
        l1i: misses([10, 5, 5]),
        l1d: misses([20, 10, 0]),
        l2i: misses([4, 0, 0]),
        l2d: misses([6, 4, 0]),
        l3i: misses([1, 0, 0]),
        l3d: misses([2, 0, 0]),
        itlb: 2,
        dtlb: 3,
        ..MachineCounters::default()
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
fn the_cost_of_a_stretch_is_the_difference_of_counters() {
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
    assert_eq!(cost.kernel, MachineCounters::default());
    let expected = MachineCounters {
        instructions: 5,
        loads: 1,
        l1d: misses([1, 0, 0]),
        l2d: misses([1, 0, 0]),
        ..MachineCounters::default()
    };
    assert_eq!(cost.user, expected);
    let mut sum = before.user;
    sum += cost.user;
    assert_eq!(sum, after.user);
}
