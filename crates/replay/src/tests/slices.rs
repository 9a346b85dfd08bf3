//! Misses in slices: those of a slice are those that happened in it, and together they are all.

use crate::tests::by_hand::{loops, machine, memory, moved};
use crate::tests::guest::record;
use crate::{Replay, ReplayLayout, ReplayTrial, Replayed, SimulationScope, SliceCounts};
use execution::slices::SliceStarts;
use execution::walk::walk;
use image::BuildId;
use sim::{MissCounts, PerMode};
use std::collections::BTreeMap;
use trace::{RecordingReader, RunAddr};

fn replayed(recording: &[u8], starts: Option<&[u64]>) -> Replayed {
    let layouts = [
        ReplayLayout::original(),
        ReplayLayout::predicted("moved", BuildId(String::new()), moved()),
    ];
    let machines = [machine()];
    let trials =
        [0, 1].map(|at: usize| ReplayTrial::new(&layouts[at], &machines, SimulationScope::Caches));
    let replay = Replay::new(&trials).unwrap();
    let mut replay = match starts {
        Some(starts) => replay.in_slices(&SliceStarts(starts.to_vec())),
        None => replay,
    };
    walk(RecordingReader::new(recording).unwrap(), &mut replay).unwrap();
    replay.finish().unwrap()
}

/// The sums of slices.
pub(super) fn sums(slices: &[SliceCounts]) -> (PerMode<MissCounts>, Vec<(RunAddr, u64)>) {
    let (mut l1i, mut misses_at) = (PerMode::default(), BTreeMap::new());
    for slice in slices {
        l1i += slice.l1i;
        for &(addr, misses) in &slice.misses_at {
            *misses_at.entry(addr).or_default() += misses;
        }
    }
    (l1i, misses_at.into_iter().collect())
}

/// A round has 17 instructions.
#[test]
fn slices_of_loops() {
    let recording = record(&memory(), &loops(10), 64);
    let whole = replayed(&recording, None);
    let found = replayed(&recording, Some(&[34, 34, 3 * 17 + 5]));
    let two_rounds = replayed(&record(&memory(), &loops(2), 64), None);
    for ((found, whole), begin) in found.layouts.iter().zip(&whole.layouts).zip(&two_rounds.layouts)
    {
        let (found, whole) = (&found.machines[0], &whole.machines[0]);
        assert!(whole.slices.is_empty());
        assert_eq!((found.l1i, &found.misses_at), (whole.l1i, &whole.misses_at));
        let numbers: Vec<u32> = found.slices.iter().map(|slice| slice.slice).collect();
        assert_eq!(numbers, [0, 2, 3]);
        assert_eq!(sums(&found.slices), (whole.l1i, whole.misses_at.clone()));
        let (first, begin) = (&found.slices[0], &begin.machines[0]);
        assert_eq!((first.l1i, &first.misses_at), (begin.l1i, &begin.misses_at));
    }
}
