//! Recordings small enough to be counted by hand.
//!
//! ```text
//! K        A  nop8, jcc C            10 bytes      the loop runs A B D A C D, A B D A C D, …
//! K+0x0a   B  nop8, jmp D            10 bytes
//! K+0x14   C  nop8                    8 bytes
//! K+0x1c   D  nop8, call F           13 bytes
//! K+0x29   E  nop8, jmp A            10 bytes
//! K+0x100  F  ret                     1 byte
//! ```

use crate::tests::guest::{GuestMemory, record, replayed};
use image::address::LinkAddr;
use image::place::{Ending, PlacedBlock, Placement};
use sim::{
    CacheGeometry, ItlbDescription, MachineModel, MissCounts, PerMode, Replacement, SimpleModel,
    TakenBranches,
};

const K: u64 = 0xffff_ffff_8100_0000;
const NOP8: &[u8] = &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];

/// 32-byte lines in four sets of one way; two pages.
pub(super) fn machine() -> MachineModel {
    let l1i = CacheGeometry::cache(128, 1, 32, Replacement::Lru).unwrap();
    let time = SimpleModel::new(10.0, 0.0, 0.0).unwrap();
    MachineModel {
        itlb: Some(
            ItlbDescription::new(CacheGeometry::tlb(2, 2, Replacement::Lru).unwrap(), 4096, 4096)
                .unwrap(),
        ),
        ..MachineModel::l1i_only("small", l1i, 32, time)
    }
}

pub(super) fn memory() -> GuestMemory {
    let mut memory = GuestMemory::default();
    for (block, ending) in [
        (0x00, &[0x74, 0x0a][..]),      // je C
        (0x0a, &[0xeb, 0x08]),          // jmp D
        (0x14, &[]),                    // falls into D
        (0x1c, &[0xe8, 0xd7, 0, 0, 0]), // call F
        (0x29, &[0xeb, 0xcd]),          // jmp A
    ] {
        let end = memory.put(K + block, NOP8);
        if !ending.is_empty() {
            memory.put(end, ending);
        }
    }
    memory.put(K + 0x100, &[0xc3]);
    memory.put(K + 0x1000, NOP8); // the interrupt's handler
    memory.put(K + 0x1008, &[0x48, 0xcf]);
    memory
}

/// A B D F E once.
const LEFT: [u64; 8] = [0x00, 0x08, 0x0a, 0x12, 0x1c, 0x24, 0x100, 0x29];
/// A C D F E once.
const RIGHT: [u64; 7] = [0x00, 0x08, 0x14, 0x1c, 0x24, 0x100, 0x29];

pub(super) fn loops(times: usize) -> Vec<u64> {
    let both: Vec<u64> =
        LEFT.iter().chain(&[0x31]).chain(&RIGHT).chain(&[0x31]).map(|offset| K + offset).collect();
    both.repeat(times)
}

fn placed(
    old: u64,
    old_size: u32,
    new: u64,
    new_size: u32,
    appended: u8,
    ending: Ending,
) -> PlacedBlock {
    PlacedBlock {
        old: LinkAddr(K + old),
        old_size,
        new: LinkAddr(K + new),
        new_size,
        appended,
        ending,
    }
}

/// The layout behind 0x200: A is inverted, with a near jump, and C stands behind it. B stands with
/// D behind it, apart from A and C. E is cut from the call in front of it.
pub(super) fn moved() -> Placement {
    Placement {
        blocks: vec![
            placed(0x00, 10, 0x200, 14, 0, Ending::Inverted), // jcc B; falls into C
            placed(0x0a, 10, 0x280, 8, 0, Ending::JumpDropped), // falls into D
            placed(0x14, 8, 0x20e, 8, 5, Ending::Same),       // jumps to D
            placed(0x1c, 13, 0x288, 13, 2, Ending::Same),     // behind the call: jumps to E
            placed(0x29, 10, 0x300, 13, 0, Ending::Same),     // jmp A, near
        ],
        ..Placement::default()
    }
}

#[test]
fn the_original_by_hand() {
    let recording = record(&memory(), &loops(10), 64);
    let counts = replayed(&recording, Placement::default(), &[machine()]).layouts.remove(0);
    let amounts = &counts.amounts;
    assert_eq!(amounts.instructions, PerMode { kernel: 170, user: 0 });
    // A 10, B 10, D 13, F 1, E 10, and A 10, C 8, D 13, F 1, E 10.
    assert_eq!(amounts.fetched_bytes.kernel, 860);
    // In each round: A to C, B's jump and two of E's, two calls and returns.
    assert_eq!(
        amounts.taken.kernel,
        TakenBranches { conditional: 10, jump: 30, call: 20, ret: 20, indirect: 0 }
    );
    assert_eq!(amounts.touched_pages, PerMode { kernel: 1, user: 0 });
    assert_eq!(amounts.breaks, 0);
    let machine = &counts.machines[0];
    // Lines 0 (A B C, the first bytes of D), 1 (D E), 8 (F). Lines 8 and 0 share a set, so each
    // round fetches both again.
    assert_eq!(machine.l1i.kernel, MissCounts { cold: 3, own: 38, other: 0 });
    assert_eq!(machine.touched_lines.kernel, 3);
    assert_eq!(machine.itlb, Some(PerMode { kernel: 1, user: 0 }));
}

#[test]
fn a_layout_by_hand() {
    let recording = record(&memory(), &loops(10), 64);
    let counts = replayed(&recording, moved(), &[machine()]).layouts.remove(1);
    let amounts = &counts.amounts;
    // A 14, B 8, D 13, F 1, jump 2, E 13: 9 instructions; A 14, C 8, jump 5, D 13, F 1, jump 2, E
    // 13: 10.
    assert_eq!(amounts.instructions.kernel, 190);
    assert_eq!(amounts.fetched_bytes.kernel, 1070);
    // A is now taken to B. The jumps behind C and D are new; B's jump is gone.
    assert_eq!(
        amounts.taken.kernel,
        TakenBranches { conditional: 10, jump: 50, call: 20, ret: 20, indirect: 0 }
    );
    assert_eq!(amounts.breaks, 0);
    // Lines 16 (A C), 20 (B D and the jump behind the call), 8 (F), 24 (E), all of set 0. Each
    // iteration: 16 20 8 20 24.
    let machine = &counts.machines[0];
    assert_eq!(machine.l1i.kernel, MissCounts { cold: 4, own: 96, other: 0 });
    assert_eq!(machine.touched_lines.kernel, 4);
    let misses: u64 = machine.misses_at.iter().map(|(_, misses)| misses).sum();
    assert_eq!(misses, 100);
}

#[test]
fn blocks_placed_where_they_were_change_nothing() {
    let recording = record(&memory(), &loops(3), 64);
    let sizes = [(0x00, 10), (0x0a, 10), (0x14, 8), (0x1c, 13), (0x29, 10)];
    let blocks = sizes.map(|(old, size)| placed(old, size, old, size, 0, Ending::Same)).into();
    let layouts =
        replayed(&recording, Placement { blocks, ..Placement::default() }, &[machine()]).layouts;
    assert_eq!(layouts[0], layouts[1]);
}

/// An interrupt does not change which branches are taken, and replay always sees how the
/// interrupted code continues.
#[test]
fn an_interrupt_anywhere_changes_only_what_it_adds() {
    let quiet = loops(2);
    for limit in [1, 2, 64] {
        let before = replayed(&record(&memory(), &quiet, limit), moved(), &[machine()]);
        for at in 1..quiet.len() {
            let mut executed = quiet.clone();
            executed.splice(at..at, [K + 0x1000, K + 0x1008]);
            let after = replayed(&record(&memory(), &executed, limit), moved(), &[machine()]);
            assert_eq!(after.interruptions.unresolved, 0);
            for (before, after) in before.layouts.iter().zip(&after.layouts) {
                let (before, after) = (&before.amounts, &after.amounts);
                assert_eq!(
                    after.taken, before.taken,
                    "interrupted before instruction {at}, limit {limit}"
                );
                assert_eq!(after.fetched_bytes.kernel, before.fetched_bytes.kernel + 10);
                assert_eq!(after.instructions.kernel, before.instructions.kernel + 2);
                assert_eq!(after.breaks, 0);
            }
        }
    }
}

/// An instruction that raised an exception runs again: it is fetched twice, and nothing that was
/// put behind a block runs twice.
#[test]
fn an_instruction_begun_again_is_fetched_twice() {
    let quiet = loops(2);
    for limit in [1, 2, 64] {
        let before = replayed(&record(&memory(), &quiet, limit), moved(), &[machine()]);
        for at in (0..quiet.len()).filter(|&at| memory().0[&quiet[at]] == NOP8) {
            let mut executed = quiet.clone();
            executed.splice(at..at, [quiet[at], K + 0x1000, K + 0x1008]);
            let after = replayed(&record(&memory(), &executed, limit), moved(), &[machine()]);
            for (before, after) in before.layouts.iter().zip(&after.layouts) {
                assert_eq!(
                    after.amounts.taken, before.amounts.taken,
                    "exception at instruction {at}, limit {limit}"
                );
                assert_eq!(
                    after.amounts.fetched_bytes.kernel,
                    before.amounts.fetched_bytes.kernel + 18
                );
            }
        }
    }
}

#[test]
fn a_placement_that_is_wrong_is_noticed() {
    let recording = record(&memory(), &loops(10), 64);
    let breaks = |change: fn(&mut PlacedBlock)| {
        let mut placement = moved();
        placement.blocks.iter_mut().for_each(change);
        replayed(&recording, placement, &[machine()]).layouts.remove(1).amounts.breaks
    };
    assert_eq!(breaks(|_| ()), 0);
    // C no longer reaches D; calls return anywhere.
    assert_eq!(breaks(|block| block.appended = 0), 10);
    // Nothing follows A and B, but they fall through.
    assert_eq!(breaks(|block| block.ending = Ending::Same), 20);
    // B (10), C (10), D (20) and E (20) end in nothing that could be inverted.
    assert_eq!(breaks(|block| block.ending = Ending::Inverted), 60);
}

/// Whatever a map says, replay ends, and in time.
#[test]
fn nonsense_is_noticed_and_does_no_harm() {
    let recording = record(&memory(), &loops(2), 3);
    let mut random = crate::tests::program::XorShift(42);
    let number = |random: &mut crate::tests::program::XorShift| {
        [0, 1, 9, 0xffff, u32::MAX, K as u32][random.below(6)]
    };
    let mut noticed = 0;
    for _ in 0..500 {
        let mut placement = moved();
        for block in &mut placement.blocks {
            match random.below(6) {
                0 => block.new = LinkAddr(u64::MAX - u64::from(number(&mut random))),
                1 => block.new_size = number(&mut random),
                2 => block.old_size = number(&mut random),
                3 => block.appended = number(&mut random) as u8,
                4 => {
                    block.ending =
                        [Ending::Same, Ending::Inverted, Ending::JumpDropped][random.below(3)]
                }
                _ => block.old = LinkAddr(K.wrapping_add(u64::from(number(&mut random)))),
            }
        }
        noticed +=
            u64::from(replayed(&recording, placement, &[machine()]).layouts[1].amounts.breaks > 0);
    }
    assert!(noticed > 400, "{noticed}");
}

#[test]
fn a_recording_that_is_cut_off_gives_no_numbers() {
    let recording = record(&memory(), &loops(3), 64);
    let reader = trace::RecordingReader::new(&recording[..recording.len() - 1]).unwrap();
    let error =
        crate::replay(reader, &[crate::ReplayLayout::original()], &[machine()]).unwrap_err();
    assert!(format!("{error:#}").starts_with("the recording is damaged: "), "{error:#}");
}
