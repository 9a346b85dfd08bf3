//! The misses of a machine in each slice of a recording.
//!
//! Input: which fragments run in which slice, and the machine's counts so far. Output: what was
//! counted in each slice. Simulates nothing.

use execution::flow::{ExecutionFlow, FragmentExit, FragmentId};
use execution::slices::SliceClock;
use sim::{MachineCounters, MissCounts, PerMode};
use std::collections::BTreeMap;
use trace::RunAddr;

/// What a machine counted in a slice.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceCounts {
    /// The slice.
    pub slice: u32,
    /// Misses of the L1I.
    pub l1i: PerMode<MissCounts>,
    /// Counters of the whole hierarchy; `None` without data accesses, or when the machine describes
    /// no data cache. The amounts of instructions, loads and stores are those of whole pieces.
    pub memory: Option<PerMode<MachineCounters>>,
    /// L1I misses by the old address at which the fetch began; ascending, without zeros.
    pub misses_at: Vec<(RunAddr, u64)>,
}

/// Fragments that run in one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SliceStay {
    /// The index of the first fragment behind them.
    pub end: usize,
    pub slice: u32,
}

/// The stays of the next fragments. `clock`: follows them; `None`: there is one slice.
pub(crate) fn stays(
    clock: Option<&mut SliceClock>,
    flow: &ExecutionFlow,
    fragments: &[FragmentId],
) -> Vec<SliceStay> {
    let Some(clock) = clock else {
        return vec![SliceStay { end: fragments.len(), slice: 0 }];
    };
    let mut stays: Vec<SliceStay> = Vec::new();
    for (end, fragment) in (1..).zip(fragments) {
        let fragment = &flow.fragments[fragment.0 as usize];
        let instructions = match fragment.exit {
            FragmentExit::LateNext | FragmentExit::LateTaken => 0,
            FragmentExit::Midway(ran) => u64::from(ran),
            FragmentExit::Next | FragmentExit::Taken | FragmentExit::Interrupted => {
                flow.codes[fragment.translation.0 as usize].lengths.len() as u64
            }
        };
        let slice = clock.run(instructions);
        match stays.last_mut() {
            Some(stay) if stay.slice == slice => stay.end = end,
            _ => stays.push(SliceStay { end, slice }),
        }
    }
    stays
}

/// The counters of a machine's caches since the recording began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CountedSoFar {
    pub l1i: PerMode<MissCounts>,
    pub memory: Option<PerMode<MachineCounters>>,
}

impl CountedSoFar {
    fn since(self, before: CountedSoFar) -> CountedSoFar {
        let memory = |now: PerMode<MachineCounters>| {
            let before = before.memory.unwrap_or_default();
            PerMode { kernel: now.kernel - before.kernel, user: now.user - before.user }
        };
        CountedSoFar {
            l1i: PerMode {
                kernel: self.l1i.kernel - before.l1i.kernel,
                user: self.l1i.user - before.l1i.user,
            },
            memory: self.memory.map(memory),
        }
    }
}

/// The slices of one machine.
#[derive(Debug, Default)]
pub(crate) struct MachineSlices {
    /// The slice that runs, and what was counted before it.
    slice: u32,
    before: CountedSoFar,
    misses_before: Vec<u64>,
    ended: Vec<EndedSlice>,
}

#[derive(Debug)]
struct EndedSlice {
    slice: u32,
    counted: CountedSoFar,
    /// By the index of the fetched unit.
    misses: Vec<(u32, u64)>,
}

impl MachineSlices {
    /// Fragments of this slice run next. `misses`: those of each fetched unit so far.
    pub(crate) fn reach(
        &mut self,
        slice: u32,
        counted: impl FnOnce() -> CountedSoFar,
        misses: &[u64],
    ) {
        if slice != self.slice {
            self.end_slice(counted(), misses);
            self.slice = slice;
        }
    }

    fn end_slice(&mut self, counted: CountedSoFar, misses: &[u64]) {
        self.misses_before.resize(misses.len(), 0);
        let units = (0..).zip(misses.iter().zip(&self.misses_before));
        let units = units.filter(|(_, (now, before))| now > before);
        self.ended.push(EndedSlice {
            slice: self.slice,
            counted: counted.since(self.before),
            misses: units.map(|(unit, (now, before))| (unit, now - before)).collect(),
        });
        self.before = counted;
        self.misses_before.copy_from_slice(misses);
    }

    /// What was counted in each slice, up to now. `addrs`: of each fetched unit.
    pub(crate) fn counts(
        &self,
        counted: CountedSoFar,
        misses: &[u64],
        addrs: &[RunAddr],
    ) -> Vec<SliceCounts> {
        let MachineSlices { slice, before, ref misses_before, .. } = *self;
        let mut last = MachineSlices {
            slice,
            before,
            misses_before: misses_before.clone(),
            ended: Vec::new(),
        };
        last.end_slice(counted, misses);
        let slices = self.ended.iter().chain(&last.ended);
        slices
            .map(|ended| {
                let mut misses_at = BTreeMap::new();
                for &(unit, misses) in &ended.misses {
                    *misses_at.entry(addrs[unit as usize]).or_insert(0) += misses;
                }
                SliceCounts {
                    slice: ended.slice,
                    l1i: ended.counted.l1i,
                    memory: ended.counted.memory,
                    misses_at: misses_at.into_iter().collect(),
                }
            })
            .collect()
    }
}
