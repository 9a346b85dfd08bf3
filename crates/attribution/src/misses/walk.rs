//! Runs a recording with data accesses on simulated machines, and tells of every miss.
//!
//! Execution by execution, its fetches before its loads and stores, as `replay` counts; slower than
//! that, because it is asked for each miss what missed.

use anyhow::{Context, Result};
use execution::code::TranslatedCode;
use execution::data::PIECE_WORDS;
use execution::data::{AccessStream, DataFlow, Execution};
use execution::numbering::{FetchUnit, Numbering};
use sim::{
    Hierarchy, LineId, MachineCounters, MachineModel, MissedLevels, PerMode, PhysAddr, Requester,
};
use std::io::Read;
use trace::{
    AccessPatterns, Accesses, Chunk, RecordingReader, RunAddr, Translation, TranslationId,
};

/// A load or store that missed.
#[derive(Clone, Copy, Debug)]
pub struct DataMiss {
    /// The index of the instruction in its translation.
    pub instruction: u16,
    /// Of the access; where it crosses the end of a line, of the part in this one.
    pub addr: u64,
    pub physical: PhysAddr,
}

/// Is told of every execution and every miss. `machine`: its place in the list.
pub trait Observer {
    fn define(&mut self, translation: &Translation);
    /// A stream begins.
    fn stream(&mut self, accesses: &Accesses);
    /// The next execution, of all its instructions or of the first.
    fn executed(&mut self, translation: TranslationId, instructions: Option<u32>);
    /// A fetch of the current execution missed.
    fn fetch_missed(&mut self, machine: usize, addr: RunAddr, missed: MissedLevels);
    fn data_missed(&mut self, machine: usize, miss: &DataMiss, missed: MissedLevels);
}

struct Running {
    hierarchy: Hierarchy,
    numbering: Numbering,
    line_bytes: u64,
    /// Translation t lies in `lines[firsts[t]..firsts[t + 1]]`.
    firsts: Vec<u32>,
    lines: Vec<(LineId, RunAddr)>,
    /// Where each of `lines` lies; known when the translation first runs.
    physical: Vec<PhysAddr>,
}

impl Running {
    fn new(machine: &MachineModel) -> Result<Running> {
        Ok(Running {
            hierarchy: Hierarchy::new(machine)
                .with_context(|| format!("the machine {} describes no data cache", machine.name))?,
            numbering: Numbering::new(FetchUnit::Lines(machine.l1i_line), machine.l1i.sets()),
            line_bytes: machine.l1i_line.into(),
            firsts: vec![0],
            lines: Vec::new(),
            physical: Vec::new(),
        })
    }

    fn define(&mut self, translation: &Translation) -> Result<()> {
        self.numbering.units(translation.addr, translation.code.len() as u32, &mut self.lines)?;
        self.firsts.push(self.lines.len() as u32);
        self.physical.resize(self.lines.len(), PhysAddr::default());
        Ok(())
    }

    /// The indices of a translation's lines; of its first instructions, where it was left.
    fn lines_of(&self, code: &TranslatedCode, execution: &Execution) -> std::ops::Range<usize> {
        let id = execution.translation.0 as usize;
        let (first, end) = (self.firsts[id] as usize, self.firsts[id + 1] as usize);
        if execution.left == 0 {
            return first..end;
        }
        let bytes = code.addr.0 % self.line_bytes + code.bytes_of(execution.left.into());
        first..end.min(first + bytes.div_ceil(self.line_bytes) as usize)
    }
}

/// What each machine counted.
///
/// # Errors
/// The recording is damaged or has no data accesses; a machine describes no data cache.
pub fn walk<R: Read>(
    reader: &mut RecordingReader<R>,
    machines: &[MachineModel],
    observer: &mut impl Observer,
) -> Result<Vec<PerMode<MachineCounters>>> {
    let mut running: Vec<Running> = machines.iter().map(Running::new).collect::<Result<_>>()?;
    let mut flow = DataFlow::new(machines);
    let (mut codes, mut located) = (Vec::new(), Vec::new());
    while let Some(chunk) = reader.next_chunk().context("the recording is damaged")? {
        match chunk {
            Chunk::Translations(translations) => {
                for translation in &translations {
                    running.iter_mut().try_for_each(|running| running.define(translation))?;
                    observer.define(translation);
                    codes.push(TranslatedCode::new(translation)?);
                    located.push(false);
                }
            }
            Chunk::Tasks(tasks) => flow.define_tasks(&tasks),
            Chunk::Stream(words) => {
                let (accesses, patterns) = reader.accesses().context(
                    "the recording has no data accesses: make it with kernlane record --data",
                )?;
                observer.stream(accesses);
                let mut stream = AccessStream::new(accesses, patterns);
                for piece in trace::pieces(&words, PIECE_WORDS) {
                    flow.follow(piece, &mut stream);
                    locate(&mut running, &mut flow, &codes, &mut located, patterns);
                    run(&mut running, &flow, &codes, observer);
                    flow.forget(flow.executions.len());
                }
                flow.finish(stream);
            }
            Chunk::End(_) => {}
        }
    }
    Ok(running.iter().map(|running| running.hierarchy.counters()).collect())
}

/// Finds where the lines of translations lie that run for the first time.
fn locate(
    running: &mut [Running],
    flow: &mut DataFlow,
    codes: &[TranslatedCode],
    located: &mut [bool],
    patterns: &AccessPatterns,
) {
    for at in 0..flow.executions.len() {
        let id = flow.executions[at].translation;
        if std::mem::replace(&mut located[id.0 as usize], true) {
            continue;
        }
        for running in running.iter_mut() {
            for at in
                running.firsts[id.0 as usize] as usize..running.firsts[id.0 as usize + 1] as usize
            {
                running.physical[at] =
                    flow.code(running.lines[at].1, &codes[id.0 as usize], id, patterns);
            }
        }
    }
}

/// Runs all executions that are at hand.
fn run(
    running: &mut [Running],
    flow: &DataFlow,
    codes: &[TranslatedCode],
    observer: &mut impl Observer,
) {
    let mut accesses = flow.accesses();
    for execution in &flow.executions {
        let code = &codes[execution.translation.0 as usize];
        let left = (execution.left != 0).then_some(u32::from(execution.left));
        observer.executed(execution.translation, left);
        let instructions = left.map_or(code.lengths.len() as u64, u64::from);
        let requester = if code.addr.is_kernel() { Requester::KERNEL } else { execution.process };
        let (own, rest) = accesses.split_at(execution.accesses as usize);
        accesses = rest;
        for (machine, running) in running.iter_mut().enumerate() {
            let lines = running.lines_of(code, execution);
            let hierarchy = &mut running.hierarchy;
            hierarchy.runs(requester);
            hierarchy.executed(instructions, execution.loads.into(), execution.stores.into());
            for (&(line, addr), &physical) in
                running.lines[lines.clone()].iter().zip(&running.physical[lines])
            {
                if let Some(missed) = hierarchy.fetch(line, physical) {
                    observer.fetch_missed(machine, addr, missed);
                }
            }
            let log2 = hierarchy.data_line_log2();
            for access in own {
                hierarchy.data_page(access.page);
                let last = (access.physical.0 + u64::from(access.size) - 1) >> log2;
                for line in access.physical.0 >> log2..=last {
                    if let Some(missed) = hierarchy.data(PhysAddr(line << log2)) {
                        let physical = PhysAddr(access.physical.0.max(line << log2));
                        let miss = DataMiss {
                            instruction: access.instruction,
                            addr: flow
                                .virtual_address(access)
                                .wrapping_add(physical.0 - access.physical.0),
                            physical,
                        };
                        observer.data_missed(machine, &miss, missed);
                    }
                }
            }
        }
    }
}
