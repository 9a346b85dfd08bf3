//! Runs a recording with data accesses on simulated machines, and reports every miss to an
//! observer.
//!
//! Runs one execution after the other, its fetches before its loads and stores, as `replay` does.
//! It is slower than `replay`, because it reports each miss.
//!
//! Input: a recording and machines. Output: misses, one by one. This module counts nothing.

use crate::code_lines::CodeLines;
use anyhow::{Context, Result};
use execution::code::TranslatedCode;
use execution::data::PIECE_WORDS;
use execution::data::{AccessStream, DataFlow};
use sim::{Hierarchy, MachineCounters, MachineModel, MissedLevels, PerMode, PhysAddr, Requester};
use std::io::Read;
use trace::{
    AccessPatterns, Accesses, Chunk, RecordingReader, RunAddr, Translation, TranslationId,
};

/// A load or store that missed.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataMiss {
    /// The index of the instruction in its translation block.
    pub instruction: u16,
    /// The address of the access. For an access across a line's end: the address of the part in the
    /// missed line.
    pub addr: u64,
    pub physical: PhysAddr,
}

/// Receives every execution and every miss. `machine`: an index into the list of machines.
pub(super) trait MissObserver {
    fn define(&mut self, translation: &Translation);
    /// A stream begins.
    fn stream(&mut self, accesses: &Accesses);
    /// The next execution. `instructions`: how many ran, when it was left midway.
    fn executed(&mut self, translation: TranslationId, instructions: Option<u32>);
    /// A fetch of the current execution missed.
    fn fetch_missed(&mut self, machine: usize, addr: RunAddr, missed: MissedLevels);
    fn data_missed(&mut self, machine: usize, miss: &DataMiss, missed: MissedLevels);
}

struct WalkedMachine {
    hierarchy: Hierarchy,
    code: CodeLines,
    /// The physical address of each line; set when the translation block first runs.
    physical: Vec<PhysAddr>,
}

impl WalkedMachine {
    fn new(machine: &MachineModel) -> Result<WalkedMachine> {
        Ok(WalkedMachine {
            hierarchy: Hierarchy::new(machine)
                .with_context(|| format!("the machine {} describes no data cache", machine.name))?,
            code: CodeLines::new(machine.l1i_line, machine.l1i.sets()),
            physical: Vec::new(),
        })
    }

    fn define(&mut self, translation: &Translation) -> Result<()> {
        self.code.define(translation)?;
        self.physical.resize(self.code.lines.len(), PhysAddr::default());
        Ok(())
    }
}

/// Runs the recording; returns the counters of each machine.
///
/// # Errors
/// The recording is damaged or has no data accesses; a machine describes no data cache.
pub(super) fn walk<R: Read>(
    reader: &mut RecordingReader<R>,
    machines: &[MachineModel],
    observer: &mut impl MissObserver,
) -> Result<Vec<PerMode<MachineCounters>>> {
    let mut running: Vec<WalkedMachine> =
        machines.iter().map(WalkedMachine::new).collect::<Result<_>>()?;
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

/// Finds the physical addresses of translation blocks that run for the first time.
fn locate(
    running: &mut [WalkedMachine],
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
            for at in running.code.of(id) {
                running.physical[at] =
                    flow.code(running.code.lines[at].1, &codes[id.0 as usize], id, patterns);
            }
        }
    }
}

/// Runs all executions of the data flow.
fn run(
    running: &mut [WalkedMachine],
    flow: &DataFlow,
    codes: &[TranslatedCode],
    observer: &mut impl MissObserver,
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
            let lines = running.code.executed(execution.translation, code, execution.left.into());
            let hierarchy = &mut running.hierarchy;
            hierarchy.runs(requester);
            hierarchy.executed(instructions, execution.loads.into(), execution.stores.into());
            for (&(line, addr), &physical) in
                running.code.lines[lines.clone()].iter().zip(&running.physical[lines])
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
