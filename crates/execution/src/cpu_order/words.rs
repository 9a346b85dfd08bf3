//! Which steps must come behind which steps of other CPUs, by the words of memory that they share.
//!
//! Input: stretches in the order of the recording. Output: their dependencies. A word has 8 bytes
//! of physical memory, aligned. A step comes behind the step of another CPU
//!
//! * that stored last to a word that it loads,
//! * that stored last to a word that it stores to, or loaded it since.
//!
//! A dependency that earlier steps of the same CPU already imply is left out, so most steps have
//! none. The recorded order satisfies all of them. Fetches have none.

use super::window::{Dependency, MOST_CPUS, OrderReason, Stretch};
use crate::data::DataAccess;
use std::collections::HashMap;
use trace::CpuId;

/// A step: the CPU, and its number among the CPU's steps, from 1.
///
/// ```text
/// bits 63 … 4   3 … 0
///      number   0: none; CPU + 1; 15: the number is an index into the steps of several CPUs
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StepStamp(u64);

const SEVERAL: u64 = 15;

/// Who made a step.
enum Stamped {
    Nobody,
    One { cpu: usize, number: u64 },
    Several { at: usize },
}

impl StepStamp {
    const NONE: StepStamp = StepStamp(0);

    fn new(cpu: usize, number: u64) -> StepStamp {
        StepStamp(number << 4 | (cpu as u64 + 1))
    }

    fn several(at: usize) -> StepStamp {
        StepStamp((at as u64) << 4 | SEVERAL)
    }

    #[inline]
    fn stamped(self) -> Stamped {
        match (self.0 & 15, self.0 >> 4) {
            (0, _) => Stamped::Nobody,
            (SEVERAL, at) => Stamped::Several { at: at as usize },
            (cpu, number) => Stamped::One { cpu: cpu as usize - 1, number },
        }
    }
}

/// The last store to a word, and the last load of it by each CPU since.
#[derive(Clone, Copy, Debug, Default)]
struct WordUse {
    store: StepStamp,
    loads: StepStamp,
}

const PAGE_WORDS: usize = 4096 / 8;
const FILTER: usize = 4096;
/// No address has this frame, because it has more than 52 bits.
const NO_FRAME: u64 = u64::MAX;

/// Finds dependencies.
pub(crate) struct WordLinks {
    /// The words of each page frame that was accessed, in the order of their first accesses.
    pages: Vec<Box<[WordUse; PAGE_WORDS]>>,
    /// Indices into `pages`.
    frames: HashMap<u64, u32>,
    /// The frames found last, by their low bits.
    filter: Box<[(u64, u32); FILTER]>,
    loads: SeveralLoads,
    /// By CPU: the steps so far.
    steps: [u64; MOST_CPUS],
    /// By CPU: how many steps of each other one its steps so far come behind.
    behind: [[u64; MOST_CPUS]; MOST_CPUS],
}

/// The last loads of words that several CPUs loaded since the last store.
#[derive(Default)]
struct SeveralLoads {
    /// By CPU: the number of the step; 0: none.
    steps: Vec<[u64; MOST_CPUS]>,
    free: Vec<usize>,
}

impl SeveralLoads {
    fn add(&mut self, steps: [u64; MOST_CPUS]) -> usize {
        match self.free.pop() {
            Some(at) => {
                self.steps[at] = steps;
                at
            }
            None => {
                self.steps.push(steps);
                self.steps.len() - 1
            }
        }
    }
}

/// The dependencies of the step that is looked at.
struct StepNeeds<'a> {
    cpu: usize,
    behind: [u64; MOST_CPUS],
    step: u32,
    dependencies: &'a mut Vec<Dependency>,
}

impl StepNeeds<'_> {
    #[inline]
    fn add(&mut self, on: usize, number: u64, reason: OrderReason) {
        if on != self.cpu && number > self.behind[on] {
            self.add_new(on, number, reason);
        }
    }

    fn add_new(&mut self, on: usize, number: u64, reason: OrderReason) {
        self.behind[on] = number;
        let new = Dependency { step: self.step, on: CpuId(on as u8), reason, number };
        let of_step = self.dependencies.iter_mut().rev().take_while(|it| it.step == new.step);
        match of_step.into_iter().find(|known| known.on == new.on) {
            Some(known) => *known = new,
            None => self.dependencies.push(new),
        }
    }
}

impl WordUse {
    #[inline]
    fn load(&mut self, own: StepStamp, loads: &mut SeveralLoads, needs: &mut StepNeeds<'_>) {
        if let Stamped::One { cpu, number } = self.store.stamped() {
            needs.add(cpu, number, OrderReason::Value);
        }
        match self.loads.stamped() {
            Stamped::One { cpu, number } if cpu != needs.cpu => {
                let mut both = [0; MOST_CPUS];
                (both[cpu], both[needs.cpu]) = (number, own.0 >> 4);
                self.loads = StepStamp::several(loads.add(both));
            }
            Stamped::Several { at } => loads.steps[at][needs.cpu] = own.0 >> 4,
            Stamped::Nobody | Stamped::One { .. } => self.loads = own,
        }
    }

    #[inline]
    fn store(&mut self, own: StepStamp, loads: &mut SeveralLoads, needs: &mut StepNeeds<'_>) {
        if let Stamped::One { cpu, number } = self.store.stamped() {
            needs.add(cpu, number, OrderReason::Order);
        }
        match self.loads.stamped() {
            Stamped::Nobody => {}
            Stamped::One { cpu, number } => needs.add(cpu, number, OrderReason::Order),
            Stamped::Several { at } => {
                for (cpu, number) in loads.steps[at].into_iter().enumerate() {
                    needs.add(cpu, number, OrderReason::Order);
                }
                loads.free.push(at);
            }
        }
        *self = WordUse { store: own, loads: StepStamp::NONE };
    }
}

impl Default for WordLinks {
    fn default() -> WordLinks {
        WordLinks {
            pages: Vec::new(),
            frames: HashMap::new(),
            filter: Box::new([(NO_FRAME, 0); FILTER]),
            loads: SeveralLoads::default(),
            steps: [0; MOST_CPUS],
            behind: [[0; MOST_CPUS]; MOST_CPUS],
        }
    }
}

impl WordLinks {
    /// Adds the dependencies to stretches, which come in the order of the recording.
    pub(crate) fn link(&mut self, stretches: &mut [Stretch]) {
        stretches.iter_mut().for_each(|stretch| self.link_stretch(stretch));
    }

    fn link_stretch(&mut self, stretch: &mut Stretch) {
        let cpu = usize::from(stretch.cpu.0);
        let (mut accesses, mut woken) = (&stretch.accesses[..], stretch.woken.iter().peekable());
        let mut needs = StepNeeds {
            cpu,
            behind: self.behind[cpu],
            step: 0,
            dependencies: &mut stretch.dependencies,
        };
        for (at, step) in (0..).zip(&stretch.steps) {
            needs.step = at;
            if woken.next_if(|&&woken| woken == at).is_some() {
                for (other, steps) in self.steps.into_iter().enumerate() {
                    needs.add(other, steps, OrderReason::Halt);
                }
            }
            self.steps[cpu] += 1;
            let own = StepStamp::new(cpu, self.steps[cpu]);
            let (of_step, rest) = accesses.split_at((step.accesses as usize).min(accesses.len()));
            of_step.iter().for_each(|access| self.access(access, own, &mut needs));
            accesses = rest;
        }
        self.behind[cpu] = needs.behind;
    }

    #[inline]
    fn access(&mut self, access: &DataAccess, own: StepStamp, needs: &mut StepNeeds<'_>) {
        let page = self.page(access.physical.0 >> 12);
        let offset = access.physical.0 as usize & 0xfff;
        let last = (offset + usize::from(access.size).max(1) - 1) / 8;
        // The parts of an access across two pages come one by one.
        for word in &mut self.pages[page][offset / 8..=last.min(PAGE_WORDS - 1)] {
            match access.is_store {
                true => word.store(own, &mut self.loads, needs),
                false => word.load(own, &mut self.loads, needs),
            }
        }
    }

    #[inline]
    fn page(&mut self, frame: u64) -> usize {
        match self.filter[frame as usize % FILTER] {
            (known, page) if known == frame => page as usize,
            _ => self.find(frame),
        }
    }

    #[cold]
    fn find(&mut self, frame: u64) -> usize {
        let new = self.pages.len() as u32;
        let page = *self.frames.entry(frame).or_insert(new);
        if page == new {
            self.pages.push(Box::new([WordUse::default(); PAGE_WORDS]));
        }
        self.filter[frame as usize % FILTER] = (frame, page);
        page as usize
    }
}
