//! Tests of the front end: lines whose cycles can be counted by hand.

use super::*;
use crate::core::examples;
use crate::core::levels::Levels;
use crate::core::translation::SecondTlb;
use crate::line::Mode;

struct Fetching {
    front: FrontEnd,
    shared: SharedMemory,
    counters: CoreCounters,
}

impl Fetching {
    fn new() -> Fetching {
        let (core, machine) = (examples::core(), examples::machine());
        let memory = machine.memory.unwrap();
        Fetching {
            front: FrontEnd::new(&core.front_end, machine.l1i, None),
            shared: SharedMemory {
                levels: Levels::new(&memory, &core.memory),
                tlb: SecondTlb::new(&core.memory),
            },
            counters: CoreCounters::default(),
        }
    }

    /// Fetches a line of `count` instructions of 4 bytes. The cycle of each. They are
    /// dispatched one cycle later.
    fn line(&mut self, number: u32, count: u16) -> Vec<u64> {
        let run = FetchRun {
            line: LineId::new(Mode::Kernel, number).unwrap(),
            page: LineId::new(Mode::Kernel, number / 8).unwrap(),
            physical: PhysAddr(u64::from(number) * 64),
            instructions: count,
            slots: count,
            branch: 0,
        };
        self.front.run(&run, &mut self.shared, &mut self.counters);
        let instruction =
            CoreInstruction { first_uop: 0, uops: 1, slots: 1, bytes: 4, branch: 0, recorded: 0 };
        let deliver = |_| {
            let cycle = self.front.deliver(&instruction, &mut self.shared, &mut self.counters);
            self.front.dispatched(cycle + 1);
            cycle
        };
        (0..count).map(deliver).collect()
    }
}

/// Four entries of two slots; four slots a cycle.
fn uop_cache(by_start: bool) -> UopCache {
    let geometry = CacheGeometry::tlb(4, 4, crate::Replacement::Lru).unwrap();
    let cache = Cache::new(geometry);
    UopCache { cache, slots: 2, width: 4, by_start, pair_interval: None, single_lines: 0 }
}

/// The example: depth 6, decoding 3 more, 2 decoders of 16 bytes, L2 15, memory 100, 4 fetch
/// targets, 2 misses of the L1I at once, no uop cache.
#[test]
fn lines_are_requested_ahead() {
    let mut fetching = Fetching::new();
    // Predicted in 1, there in 101, decoded in 104.
    assert_eq!(fetching.line(0, 4), [104, 104, 105, 105]);
    // Predicted in 2, so there in 102.
    assert_eq!(fetching.line(1, 2), [106, 106]);
    // The third miss waits for a register until 101.
    assert_eq!(fetching.line(2, 2), [204, 204]);
    assert_eq!(fetching.counters.l1i_late, 2);
    // In the cache: they follow at full speed.
    assert_eq!(fetching.line(0, 4), [205, 205, 206, 206]);
    assert_eq!(fetching.counters.l1i_misses, 3);
}

#[test]
fn lines_come_one_after_the_other() {
    let mut fetching = Fetching::new();
    fetching.front.fill = 7;
    // Predicted in 1 and 2; the second is requested in 8.
    assert_eq!(fetching.line(0, 1), [104]);
    assert_eq!(fetching.line(1, 1), [111]);
    // In the cache: no request, and the second instruction of the cycle.
    assert_eq!(fetching.line(0, 1), [111]);
}

#[test]
fn a_taken_branch_begins_a_cycle() {
    let mut fetching = Fetching::new();
    for line in 0..3 {
        fetching.line(line, 1);
    }
    let first = fetching.line(0, 1)[0];
    assert_eq!(fetching.line(1, 1), [first + 1]);
    fetching.front.taken(0);
    assert_eq!(fetching.line(2, 1), [first + 2]);
    // A restart for a dispatch in 1000: delivered, and decoded, 3 cycles late.
    fetching.front.restart(1000);
    assert_eq!(fetching.line(0, 1), [999 + 3]);
}

#[test]
fn what_ran_before_comes_from_the_uop_cache() {
    let mut fetching = Fetching::new();
    fetching.front.uop_cache = Some(uop_cache(false));
    // Four slots are two entries.
    fetching.line(0, 4);
    fetching.front.restart(1000);
    assert_eq!(fetching.line(0, 4), [999; 4]);
    // One more slot needs a third entry, which is not there. Its line is in the L1I.
    fetching.front.restart(2000);
    assert_eq!(fetching.line(0, 5), [1999, 1999, 1999, 1999, 2002]);
    let counters = &fetching.counters;
    assert_eq!((counters.uop_cache_slots, counters.decoded_slots), (8, 5));
}

#[test]
fn two_targets_come_in_a_cycle() {
    let mut fetching = Fetching::new();
    fetching.front.uop_cache = Some(uop_cache(false));
    (fetching.front.targets_in_a_cycle, fetching.front.predicted_in_cycle) = (2, 2);
    let mut jump_from = |line| {
        let cycle = fetching.line(line, 1)[0];
        fetching.front.taken(0);
        cycle
    };
    // Decoded: a taken branch ends the cycle.
    let decoded = [0, 1].map(&mut jump_from);
    assert!(decoded[1] > decoded[0], "{decoded:?}");
    fetching.front.restart(1000);
    let mut jump_from = |line| {
        let cycle = fetching.line(line, 1)[0];
        fetching.front.taken(0);
        cycle
    };
    assert_eq!([0, 1, 0, 1].map(&mut jump_from), [999, 999, 1000, 1000]);
}

#[test]
fn entries_begin_where_control_arrives() {
    let mut fetching = Fetching::new();
    fetching.front.uop_cache = Some(uop_cache(true));
    fetching.line(0, 2);
    // Elsewhere in the line: decoded, 3 cycles late.
    fetching.front.restart(1000);
    fetching.front.arrives(CodeAddr(32));
    assert_eq!(fetching.line(0, 2), [1002; 2]);
    fetching.front.restart(2000);
    assert_eq!(fetching.line(0, 2), [1999; 2]);
    // The first entry is still there.
    fetching.front.restart(3000);
    fetching.front.arrives(CodeAddr(0));
    assert_eq!(fetching.line(0, 2), [2999; 2]);
}

/// Entries of two slots, two entries a cycle, and two cycles from pair to pair.
#[test]
fn entries_are_read_in_pairs() {
    let cycles = |(interval, single_lines), lines: &[(u32, u16, bool)]| {
        let mut fetching = Fetching::new();
        let geometry = CacheGeometry::tlb(32, 32, crate::Replacement::Lru).unwrap();
        let cache = Cache::new(geometry);
        fetching.front.queue = Ring::new(64, 0);
        let as_described = UopCache { pair_interval: interval, single_lines, ..uop_cache(true) };
        fetching.front.uop_cache = Some(UopCache { cache, ..as_described });
        (fetching.front.targets_in_a_cycle, fetching.front.predicted_in_cycle) = (2, 2);
        let mut last = Vec::new();
        for dispatch in [500, 5000] {
            fetching.front.restart(dispatch);
            last.clear();
            for &(line, count, jumps) in lines {
                last.push(fetching.line(line, count).pop().unwrap() + 1 - dispatch);
                if jumps {
                    fetching.front.taken(0);
                }
            }
        }
        last
    };
    // The last cycle of each line. Two, four and six entries, and jumps.
    let jumps = [(0, 4, true), (1, 8, true), (2, 12, true), (3, 2, true)];
    assert_eq!(cycles((Some(2), 0), &jumps), [0, 3, 8, 9]);
    assert_eq!(cycles((None, 0), &jumps), [0, 2, 5, 6]);
    // Nothing else is read in the cycle of a third entry.
    assert_eq!(cycles((Some(2), 0), &[(0, 6, true), (1, 2, true)]), [2, 3]);
    // One entry each: two lines in a cycle if there is a jump between them.
    assert_eq!(cycles((Some(2), 0), &[(0, 2, true), (1, 2, true), (2, 2, true)]), [0, 0, 1]);
    assert_eq!(cycles((Some(2), 0), &[(0, 2, false), (1, 2, false), (2, 2, false)]), [0, 1, 2]);
    // One cycle in two delivers from one line only, but two jumps of one line come in one.
    let six = [0, 1, 2, 3, 4, 5].map(|line| (line, 2, true));
    assert_eq!(cycles((Some(2), 2), &six), [0, 0, 1, 2, 2, 3]);
    assert_eq!(cycles((Some(2), 2), &[(0, 2, true); 4]), [0, 0, 1, 1]);
    // An entry of the first line holds the only slot of the second, which is looked up all the
    // same: nothing else is then.
    assert_eq!(cycles((Some(2), 0), &[(0, 1, false), (1, 1, true), (2, 1, true)]), [0, 1, 2]);
    assert_eq!(cycles((Some(2), 0), &[(0, 3, false), (1, 1, true), (2, 1, true)]), [0, 1, 2]);
}

#[test]
fn a_line_behind_the_uop_cache_is_requested_in_its_turn() {
    let last = |in_turn| {
        let mut fetching = Fetching::new();
        fetching.front.uop_cache = Some(uop_cache(false));
        fetching.front.request_in_turn = in_turn;
        fetching.line(0, 8);
        // Eight slots are four entries, and take two cycles.
        fetching.front.restart(1000);
        fetching.line(0, 8);
        fetching.line(1, 1)[0]
    };
    // From memory: predicted in 995, there in 1095, decoded in 1098. Or the uop cache delivers
    // in 999 and 1000, and its miss is known in 997.
    assert_eq!([false, true].map(last), [1098, 1100]);
}

/// A TLB of one page; the second one takes 7 cycles more.
#[test]
fn misses_of_the_tlb_come_one_after_the_other() {
    let mut fetching = Fetching::new();
    fetching.front.uop_cache = Some(uop_cache(false));
    let one = CacheGeometry::tlb(1, 1, crate::Replacement::Lru).unwrap();
    fetching.front.tlb = Some(FirstTlb::new(one, true));
    let mut both_pages = |dispatch, interval| {
        fetching.front.itlb_interval = interval;
        fetching.front.restart(dispatch);
        let first = fetching.line(0, 1)[0];
        fetching.front.taken(0);
        [first, fetching.line(8, 1)[0]]
    };
    both_pages(500, None);
    // What the uop cache has is not translated, or 7 cycles late.
    assert_eq!(both_pages(1000, None), [999, 1000]);
    assert_eq!(both_pages(2000, Some(0)), [2006, 2007]);
    assert_eq!(both_pages(3000, Some(9)), [3006, 3015]);
}
