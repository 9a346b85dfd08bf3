//! One layout on all machines: the fragments that ran become fetches, and the fetches hits and misses.
//!
//! What a fragment fetches is worked out once for each layout and each size of line or page; the execution then is a walk through
//! these lists.

use crate::place::Placement;
use crate::replay::flow::{Flow, FragmentId};
use crate::replay::moved::{self, Moved};
use crate::replay::numbering::{Numbering, Unit};
use anyhow::Result;
use rayon::prelude::*;
use sim::{InstructionCache, ItlbDescription, Line, Machine, PerSide, Side, TakenBranches, Tlb};
use std::collections::{BTreeMap, BTreeSet};
use trace::RunAddr;

/// The lines (or pages) that each fragment uses, in order; one directly behind the same one is left out.
#[derive(Clone, Debug)]
struct Uses {
    numbering: Numbering,
    /// Fragment f uses `lines[starts[f]..starts[f + 1]]`.
    starts: Vec<u32>,
    lines: Vec<Line>,
    /// The old address of the first byte that is fetched from each of `lines`.
    origins: Vec<RunAddr>,
}

impl Uses {
    fn new(unit: Unit, sets: u32) -> Uses {
        Uses {
            numbering: Numbering::new(unit, sets),
            starts: vec![0],
            lines: Vec::new(),
            origins: Vec::new(),
        }
    }

    /// Appends the next fragment.
    fn push(&mut self, moved: &Moved) -> Result<()> {
        let first = self.lines.len();
        let mut units = Vec::new();
        for fetch in &moved.fetches {
            units.clear();
            self.numbering.units(fetch.start, fetch.bytes, &mut units)?;
            for &(line, addr) in &units {
                if self.lines.len() == first || self.lines.last() != Some(&line) {
                    self.lines.push(line);
                    self.origins
                        .push(RunAddr(fetch.origin.0.wrapping_add(addr.0.wrapping_sub(fetch.start.0))));
                }
            }
        }
        self.starts.push(self.lines.len() as u32);
        Ok(())
    }

    #[inline]
    fn of(&self, fragment: FragmentId) -> std::ops::Range<usize> {
        let at = fragment.0 as usize;
        self.starts[at] as usize..self.starts[at + 1] as usize
    }

    fn touched(&self) -> PerSide<u64> {
        let mut lines = self.lines.clone();
        lines.sort_unstable();
        lines.dedup();
        let mut touched = PerSide::default();
        lines.iter().for_each(|line| *touched.get_mut(line.side()) += 1);
        touched
    }
}

/// One machine's caches while they run.
struct Running {
    l1i: InstructionCache,
    itlb: Option<Tlb>,
    /// Indices into `Simulation::uses`.
    lines: usize,
    pages: Option<usize>,
    /// Misses of each entry of `Uses::lines`.
    misses: Vec<u64>,
}

impl Running {
    fn run(&mut self, ran: &[FragmentId], uses: &[Uses]) {
        let lines = &uses[self.lines];
        for &fragment in ran {
            for at in lines.of(fragment) {
                if self.l1i.fetch(lines.lines[at]) {
                    self.misses[at] += 1;
                }
            }
        }
        let (Some(itlb), Some(pages)) = (&mut self.itlb, self.pages) else {
            return;
        };
        let pages = &uses[pages];
        for &fragment in ran {
            for &page in &pages.lines[pages.of(fragment)] {
                itlb.access(page);
            }
        }
    }
}

/// What one run of a fragment amounts to on any machine.
struct Once {
    side: Side,
    instructions: u64,
    bytes: u64,
    taken: TakenBranches,
    breaks: u64,
}

/// What the whole recording amounts to under a layout, on any machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub instructions: PerSide<u64>,
    pub fetched_bytes: PerSide<u64>,
    pub taken: PerSide<TakenBranches>,
    /// Pages of 4 KB from which something was fetched.
    pub touched_pages: PerSide<u64>,
    /// See [`Moved::breaks`].
    pub breaks: u64,
}

/// What one machine's caches counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineCounts {
    pub l1i: PerSide<sim::Misses>,
    pub itlb: Option<PerSide<u64>>,
    pub touched_lines: PerSide<u64>,
    /// Misses by the old address at which the missing fetch began; ascending, none with 0.
    pub misses_at: Vec<(RunAddr, u64)>,
}

/// One layout, while the recording runs.
pub struct Simulation<'a> {
    placement: &'a Placement,
    once: Vec<Once>,
    pages: BTreeSet<u64>,
    uses: Vec<Uses>,
    running: Vec<Running>,
}

impl<'a> Simulation<'a> {
    pub fn new(placement: &'a Placement, machines: &[Machine]) -> Simulation<'a> {
        let mut sets = BTreeMap::new();
        for (unit, number) in machines.iter().flat_map(units) {
            let largest = sets.entry(unit).or_insert(number);
            *largest = number.max(*largest);
        }
        let index_of = |unit| sets.keys().position(|&known| known == unit);
        let running = machines.iter().map(|machine| Running {
            l1i: InstructionCache::new(machine.l1i),
            itlb: machine.itlb.map(|itlb| Tlb::new(itlb.geometry)),
            lines: index_of(lines_of(machine)).unwrap_or_default(),
            pages: machine.itlb.and_then(|itlb| index_of(pages_of(&itlb))),
            misses: Vec::new(),
        });
        Simulation {
            placement,
            once: Vec::new(),
            pages: BTreeSet::new(),
            running: running.collect(),
            uses: sets.iter().map(|(&unit, &sets)| Uses::new(unit, sets)).collect(),
        }
    }

    /// Learns the fragments that were first seen since the last call.
    pub fn learn(&mut self, flow: &Flow) -> Result<()> {
        for fragment in &flow.fragments[self.once.len()..] {
            let code = &flow.codes[fragment.translation.0 as usize];
            let moved = moved::run(code, fragment, self.placement);
            self.uses.iter_mut().try_for_each(|uses| uses.push(&moved))?;
            for fetch in moved.fetches.iter().filter(|fetch| fetch.bytes > 0) {
                let last = fetch.start.0.wrapping_add(u64::from(fetch.bytes) - 1);
                self.pages.extend(fetch.start.0 >> 12..=last >> 12);
            }
            self.once.push(Once {
                side: code.side(),
                instructions: moved.instructions,
                bytes: moved.bytes(),
                taken: moved.taken,
                breaks: moved.breaks,
            });
        }
        for running in &mut self.running {
            running.misses.resize(self.uses[running.lines].lines.len(), 0);
        }
        Ok(())
    }

    /// Runs fragments, all of them learnt, on every machine.
    pub fn run(&mut self, ran: &[FragmentId]) {
        let uses = &self.uses;
        self.running.par_iter_mut().for_each(|running| running.run(ran, uses));
    }

    /// `counts`: how often each fragment ran.
    pub fn amounts(&self, counts: &[u64]) -> Amounts {
        let mut amounts = Amounts::default();
        for (once, &times) in self.once.iter().zip(counts) {
            *amounts.instructions.get_mut(once.side) += once.instructions * times;
            *amounts.fetched_bytes.get_mut(once.side) += once.bytes * times;
            *amounts.taken.get_mut(once.side) += once.taken.times(times);
            amounts.breaks += once.breaks * times;
        }
        for &page in &self.pages {
            let side = if RunAddr(page << 12).is_kernel() {
                Side::Kernel
            } else {
                Side::User
            };
            *amounts.touched_pages.get_mut(side) += 1;
        }
        amounts
    }

    /// One for each machine, in their order.
    pub fn machine_counts(&self) -> Vec<MachineCounts> {
        self.running
            .iter()
            .map(|running| {
                let lines = &self.uses[running.lines];
                let mut misses_at = BTreeMap::new();
                for (&origin, &misses) in lines.origins.iter().zip(&running.misses).filter(|(_, misses)| **misses > 0) {
                    *misses_at.entry(origin).or_insert(0) += misses;
                }
                MachineCounts {
                    l1i: running.l1i.misses(),
                    itlb: running.itlb.as_ref().map(Tlb::misses),
                    touched_lines: lines.touched(),
                    misses_at: misses_at.into_iter().collect(),
                }
            })
            .collect()
    }
}

fn lines_of(machine: &Machine) -> Unit {
    Unit::Lines(machine.l1i_line)
}

fn pages_of(itlb: &ItlbDescription) -> Unit {
    Unit::Pages {
        kernel: itlb.kernel_page,
        other: itlb.user_page,
    }
}

/// What has to be numbered for a machine, and the sets of the cache that takes it.
fn units(machine: &Machine) -> impl Iterator<Item = (Unit, u32)> {
    let pages = machine.itlb.map(|itlb| (pages_of(&itlb), itlb.geometry.sets()));
    std::iter::once((lines_of(machine), machine.l1i.sets())).chain(pages)
}
