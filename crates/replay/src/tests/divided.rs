//! Kernel and user code in caches with divided sets, counted by hand.
//!
//! ```text
//! U        nop8, syscall             set 0 of a whole cache of four sets of 32 bytes
//! K        nop8, jmp K+0x40          set 0
//! K+0x40   nop8, sysret              set 2
//! U+0x0a   jmp U                     set 0
//! ```

use crate::tests::by_hand::machine;
use crate::tests::guest::{GuestMemory, record};
use crate::{ReplayLayout, ReplayTrial, SimulationScope, replay_trials};
use execution::division::SetDivision;
use sim::{MissCounts, PerMode};
use std::collections::BTreeMap;
use trace::RecordingReader;

const U: u64 = 0x40_0000;
const K: u64 = 0xffff_ffff_8100_0000;
const NOP8: &[u8] = &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];

/// Misses of ten rounds.
fn misses(division: SetDivision) -> PerMode<MissCounts> {
    let mut memory = GuestMemory::default();
    for (start, ending) in
        [(U, &[0x0f, 0x05][..]), (K, &[0xeb, 0x36]), (K + 0x40, &[0x48, 0x0f, 0x07])]
    {
        let end = memory.put(start, NOP8);
        memory.put(end, ending);
    }
    memory.put(U + 0x0a, &[0xeb, 0xf4]);
    let round = [U, U + 8, K, K + 8, K + 0x40, K + 0x48, U + 0x0a];
    let recording = record(&memory, &round.repeat(10), 64);
    let (original, machines) = (ReplayLayout::original(), [machine()]);
    let trials = ReplayTrial {
        division: &division,
        ..ReplayTrial::new(&original, &machines, SimulationScope::Caches)
    };
    let mut replayed =
        replay_trials(RecordingReader::new(&recording[..]).unwrap(), &[trials]).unwrap();
    replayed.layouts.remove(0).machines.remove(0).l1i
}

fn counted(cold: u64, own: u64, other: u64) -> MissCounts {
    MissCounts { cold, own, other }
}

#[test]
fn in_a_whole_cache_kernel_and_user_evict_each_other() {
    let found = misses(SetDivision::Whole);
    // U misses at first, and after each of ten system calls. K misses in each system call.
    assert_eq!(found.user, counted(1, 0, 10));
    assert_eq!(found.kernel, counted(2, 0, 9));
}

/// K and K+0x40 share one of the kernel's two sets. Nothing evicts user code.
#[test]
fn in_halves_each_evicts_only_itself() {
    let found = misses(SetDivision::Halves);
    assert_eq!(found.user, counted(1, 0, 0));
    assert_eq!(found.kernel, counted(2, 18, 0));
}

/// The user's line has a set of its own. K and K+0x40 lie in two of the other three sets.
#[test]
fn a_reserved_line_is_never_evicted() {
    let found = misses(SetDivision::Reserved { sets: 1, lines: BTreeMap::from([(U / 32, 0)]) });
    assert_eq!(found.user, counted(1, 0, 0));
    assert_eq!(found.kernel, counted(2, 0, 0));
}
