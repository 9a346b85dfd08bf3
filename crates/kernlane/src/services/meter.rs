//! What is counted besides instructions while services run: the caches of simulated machines.
//!
//! Takes the executions in their order; gives, whenever it is asked, what was counted since it was asked last. Knows no services.

use crate::replay::numbering::{Numbering, Unit};
use crate::services::ledger::MachineCounts;
use anyhow::Result;
use sim::{InstructionCache, Line, Machine};
use trace::Translation;

pub trait Meter {
    /// Learns the next translation.
    fn define(&mut self, translation: &Translation) -> Result<()>;
    fn executed(&mut self, translation: u32);
    fn left(&mut self, translation: u32, instructions: u32);
    /// What each machine counted since the last call.
    fn take(&mut self) -> &[MachineCounts];
}

/// Nothing but instructions.
pub struct NoMachine;

impl Meter for NoMachine {
    fn define(&mut self, _: &Translation) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn executed(&mut self, _: u32) {}

    fn left(&mut self, _: u32, _: u32) {}

    #[inline]
    fn take(&mut self) -> &[MachineCounts] {
        &[]
    }
}

/// Both count; what is taken is the first's.
impl<A: Meter, B: Meter> Meter for (A, B) {
    fn define(&mut self, translation: &Translation) -> Result<()> {
        self.0.define(translation)?;
        self.1.define(translation)
    }

    #[inline]
    fn executed(&mut self, translation: u32) {
        self.0.executed(translation);
        self.1.executed(translation);
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.0.left(translation, instructions);
        self.1.left(translation, instructions);
    }

    #[inline]
    fn take(&mut self) -> &[MachineCounts] {
        self.0.take()
    }
}

/// The L1 instruction caches of some machines.
pub struct Machines {
    running: Vec<Running>,
    lengths: Vec<Box<[u8]>>,
    starts: Vec<u64>,
    taken: Vec<MachineCounts>,
}

struct Running {
    numbering: Numbering,
    line_bytes: u64,
    l1i: InstructionCache,
    /// Translation t lies in `lines[firsts[t]..firsts[t + 1]]`.
    firsts: Vec<u32>,
    lines: Vec<Line>,
    counted: MachineCounts,
}

impl Machines {
    pub fn new(machines: &[Machine]) -> Machines {
        let running = machines.iter().map(|machine| Running {
            numbering: Numbering::new(Unit::Lines(machine.l1i_line), machine.l1i.sets()),
            line_bytes: machine.l1i_line.into(),
            l1i: InstructionCache::new(machine.l1i),
            firsts: vec![0],
            lines: Vec::new(),
            counted: MachineCounts::default(),
        });
        Machines {
            running: running.collect(),
            lengths: Vec::new(),
            starts: Vec::new(),
            taken: vec![MachineCounts::default(); machines.len()],
        }
    }
}

impl Running {
    /// Fetches the first `lines` lines of a translation.
    #[inline]
    fn fetch(&mut self, translation: u32, lines: usize) {
        let at = translation as usize;
        let (first, end) = (self.firsts[at] as usize, self.firsts[at + 1] as usize);
        for &line in self.lines[first..end].iter().take(lines) {
            self.counted.l1i_misses += u64::from(self.l1i.fetch(line));
        }
    }
}

impl Meter for Machines {
    fn define(&mut self, translation: &Translation) -> Result<()> {
        let mut units = Vec::new();
        for running in &mut self.running {
            units.clear();
            running
                .numbering
                .units(translation.addr, translation.code.len() as u32, &mut units)?;
            running.lines.extend(units.iter().map(|(line, _)| *line));
            running.firsts.push(running.lines.len() as u32);
        }
        self.lengths.push(translation.lengths.clone());
        self.starts.push(translation.addr.0);
        Ok(())
    }

    #[inline]
    fn executed(&mut self, translation: u32) {
        for running in &mut self.running {
            running.fetch(translation, usize::MAX);
        }
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        let at = translation as usize;
        let reached = self.lengths[at].iter().take(instructions as usize);
        let bytes: u64 = reached.map(|&length| u64::from(length)).sum();
        for running in &mut self.running {
            let before = self.starts[at] % running.line_bytes;
            running.fetch(translation, (before + bytes).div_ceil(running.line_bytes) as usize);
        }
    }

    #[inline]
    fn take(&mut self) -> &[MachineCounts] {
        for (taken, running) in self.taken.iter_mut().zip(&mut self.running) {
            *taken = std::mem::take(&mut running.counted);
        }
        &self.taken
    }
}
