//! The caches and TLBs of a machine with one core while a recording runs: what replay and the
//! attribution to services and data share.
//!
//! Executions are simulated ahead, a piece of the stream at a time. First every L1 and TLB runs by
//! itself, in flat loops that mostly find that a line is the one that its set used last. Their
//! misses are kept. When the counts are needed, the misses up to that point go to the next levels:
//! an execution's fetch misses before its data misses.
//!
//! Input: steps, with the units that they fetch and their accesses. Output: misses one by one, and
//! counters. This module knows nothing of recordings.

use crate::fetched::FetchedUnits;
use sim::core::DataAccess;
use sim::{
    Hierarchy, LineId, MachineCounters, MachineModel, MissCause, MissedLevels, Mode, PerMode,
    PhysAddr, Requester,
};
use std::ops::Range;

/// What one execution fetches and accesses.
#[derive(Clone, Copy, Debug)]
pub struct RunStep {
    /// The number of the piece of code.
    pub code: u32,
    /// Only the first bytes of a recorded translation block are fetched.
    pub bytes: Option<u16>,
    /// The requester on whose behalf the step runs.
    pub requester: Requester,
    /// The number of accesses that belong to the step.
    pub accesses: u32,
}

/// What a step missed in an L1.
#[derive(Clone, Copy, Debug)]
pub struct MissedByStep {
    /// The number of the step in its piece.
    pub step: u32,
    /// What missed.
    pub what: MissedUnit,
    /// The levels that missed.
    pub levels: MissedLevels,
}

/// A line that missed in an L1.
#[derive(Clone, Copy, Debug)]
pub enum MissedUnit {
    /// A line of code, as an index into the fetched units.
    Code(u32),
    /// A line of data.
    Data {
        /// The access, as an index into the accesses of the piece.
        access: u32,
        /// The line.
        line: PhysAddr,
    },
}

/// The caches of one machine.
pub struct HierarchyRun {
    hierarchy: Hierarchy,
    /// The page in which the last execution ended. While fetches stay in this page, the TLB is not
    /// asked.
    page: Option<LineId>,
    ahead: MissesAhead,
}

/// Misses of upcoming steps, in order, and how many of them the levels behind have seen.
#[derive(Default)]
struct MissesAhead {
    fetches: Vec<MissAhead>,
    data: Vec<MissAhead>,
    fetches_done: usize,
    data_done: usize,
}

#[derive(Clone, Copy)]
struct MissAhead {
    step: u32,
    /// Of a fetch: the unit. Of data: the access.
    index: u32,
    requester: Requester,
    /// `None` for a TLB miss.
    cause: Option<MissCause>,
    physical: PhysAddr,
}

impl HierarchyRun {
    /// Empty caches; `None` when the machine describes no data cache.
    pub fn new(machine: &MachineModel) -> Option<HierarchyRun> {
        let (page, ahead) = (None, MissesAhead::default());
        Some(HierarchyRun { hierarchy: Hierarchy::new(machine)?, page, ahead })
    }

    /// Runs the L1s and the TLBs for the next steps. All steps before them must have caught up.
    /// `lines` knows physical addresses.
    pub fn look_ahead(
        &mut self,
        steps: &[RunStep],
        lines: &FetchedUnits,
        pages: Option<&FetchedUnits>,
        accesses: &[DataAccess],
    ) {
        self.ahead.fetches.clear();
        self.ahead.data.clear();
        (self.ahead.fetches_done, self.ahead.data_done) = (0, 0);
        for (number, step) in (0..).zip(steps) {
            if let Some(pages) = pages {
                self.translate(number, step, pages);
            }
            let span = lines.span(step.code);
            if span.count > 2
                || !self.hierarchy.fetched_last(span.first)
                || !self.hierarchy.fetched_last(span.last)
            {
                self.fetch(number, step, lines);
            }
        }
        self.access(steps, accesses);
    }

    #[inline]
    fn translate(&mut self, number: u32, step: &RunStep, pages: &FetchedUnits) {
        let span = pages.span(step.code);
        if span.count == 0 || span.first == span.last && self.page == Some(span.first) {
            return;
        }
        for &page in &pages.ids()[reached(pages, step)] {
            if self.page != Some(page) && self.hierarchy.fetch_page_ahead(page) {
                self.ahead.fetches.push(MissAhead {
                    step: number,
                    index: 0,
                    requester: step.requester,
                    cause: None,
                    physical: PhysAddr::default(),
                });
            }
            self.page = Some(page);
        }
    }

    fn fetch(&mut self, number: u32, step: &RunStep, lines: &FetchedUnits) {
        for at in reached(lines, step) {
            if let Some(cause) = self.hierarchy.fetch_ahead(lines.ids()[at], step.requester) {
                self.ahead.fetches.push(MissAhead {
                    step: number,
                    index: at as u32,
                    requester: step.requester,
                    cause: Some(cause),
                    physical: lines.physical()[at],
                });
            }
        }
    }

    fn access(&mut self, steps: &[RunStep], accesses: &[DataAccess]) {
        let log2 = self.hierarchy.data_line_log2();
        // The step of the current access, and the index of the first access behind it.
        let (mut number, mut end) = (0, steps.first().map_or(0, |step| step.accesses as usize));
        for (at, access) in accesses.iter().enumerate() {
            let first = access.physical.0 >> log2;
            let last = (access.physical.0 + u64::from(access.size) - 1) >> log2;
            let page_missed = self.hierarchy.data_page_ahead(access.page);
            if !page_missed && first == last && self.hierarchy.accessed_last(access.physical) {
                continue;
            }
            while at >= end {
                number += 1;
                let Some(step) = steps.get(number) else { return };
                end += step.accesses as usize;
            }
            let missed = MissAhead {
                step: number as u32,
                index: at as u32,
                requester: steps[number].requester,
                cause: None,
                physical: access.physical,
            };
            self.ahead.data.extend(page_missed.then_some(missed));
            for line in first..=last {
                let physical = PhysAddr(line << log2);
                if let Some(cause) = self.hierarchy.data_ahead(physical, missed.requester) {
                    self.ahead.data.push(MissAhead { cause: Some(cause), physical, ..missed });
                }
            }
        }
    }

    /// Passes the misses of the first `steps` to the levels behind the L1s, and each L1 miss to
    /// `missed`.
    pub fn catch_up(&mut self, steps: u32, mut missed: impl FnMut(MissedByStep)) {
        let HierarchyRun { hierarchy, ahead, .. } = self;
        loop {
            let fetch = ahead.fetches.get(ahead.fetches_done).filter(|it| it.step < steps);
            let data = ahead.data.get(ahead.data_done).filter(|it| it.step < steps);
            let is_fetch = match (fetch, data) {
                (None, None) => return,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (Some(fetch), Some(data)) => fetch.step <= data.step,
            };
            if let (true, Some(fetch)) = (is_fetch, fetch) {
                ahead.fetches_done += 1;
                hierarchy.runs(fetch.requester);
                match fetch.cause {
                    Some(cause) => missed(MissedByStep {
                        step: fetch.step,
                        what: MissedUnit::Code(fetch.index),
                        levels: hierarchy.fetch_missed(cause, fetch.physical),
                    }),
                    None => hierarchy.fetch_page_missed(),
                }
            } else if let Some(data) = data {
                ahead.data_done += 1;
                hierarchy.runs(data.requester);
                match data.cause {
                    Some(cause) => missed(MissedByStep {
                        step: data.step,
                        what: MissedUnit::Data { access: data.index, line: data.physical },
                        levels: hierarchy.data_missed(cause, data.physical),
                    }),
                    None => hierarchy.data_page_missed(),
                }
            }
        }
    }

    /// Adds instructions, loads and stores of a mode.
    pub fn executed(&mut self, mode: Mode, [instructions, loads, stores]: [u64; 3]) {
        self.hierarchy.runs(match mode {
            Mode::Kernel => Requester::KERNEL,
            Mode::User => Requester::process(0),
        });
        self.hierarchy.executed(instructions, loads, stores);
    }

    /// The counters so far.
    pub fn counters(&self) -> PerMode<MachineCounters> {
        self.hierarchy.counters()
    }
}

/// The indices of the units that a step fetches.
#[inline]
fn reached(units: &FetchedUnits, step: &RunStep) -> Range<usize> {
    match step.bytes {
        None => units.span(step.code).all(),
        Some(bytes) => units.of_first(step.code, bytes.into()),
    }
}
