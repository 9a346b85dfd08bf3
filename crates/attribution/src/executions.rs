//! Goes through the executions of a recording with data accesses, one after the other.
//!
//! Input: a recording, and machines. Output, for each execution: the lines that its code lies in,
//! and its loads and stores. This module simulates and counts nothing.

use crate::code_lines::CodeLines;
use anyhow::{Context, Result};
use execution::code::TranslatedCode;
use execution::data::{AccessStream, DataAccess, DataFlow, Execution, PIECE_WORDS};
use sim::{LineId, MachineModel, PhysAddr};
use std::io::Read;
use trace::{AccessPatterns, Accesses, Chunk, RecordingReader, RunAddr, Translation};

/// Receives every execution.
pub(crate) trait ExecutionVisitor {
    /// A translation block, before its first execution.
    fn define(&mut self, translation: &Translation);
    /// A stream begins.
    fn stream(&mut self, accesses: &Accesses);
    fn executed(&mut self, executed: &Executed<'_>);
}

/// One execution of a translation block.
#[derive(Clone, Copy)]
pub(crate) struct Executed<'a> {
    pub execution: &'a Execution,
    pub code: &'a TranslatedCode,
    /// Its loads and stores.
    pub accesses: &'a [DataAccess],
    /// Gives the virtual address of an access.
    pub flow: &'a DataFlow,
    fetched: &'a [FetchedLines],
}

impl Executed<'_> {
    /// The number of instructions that ran, when the block was left midway.
    pub(crate) fn left(&self) -> Option<u32> {
        (self.execution.left != 0).then_some(self.execution.left.into())
    }

    /// The instructions that ran.
    pub(crate) fn instructions(&self) -> u64 {
        self.left().map_or(self.code.lengths.len() as u64, u64::from)
    }

    /// The lines that a machine's L1I fetches, each with the first address in it. `machine`: an
    /// index into the list of machines.
    pub(crate) fn fetches(
        &self,
        machine: usize,
    ) -> impl Iterator<Item = (LineId, RunAddr, PhysAddr)> {
        let FetchedLines { code, physical } = &self.fetched[machine];
        let left = self.execution.left.into();
        let lines = code.executed(self.execution.translation, self.code, left);
        let of = code.lines[lines.clone()].iter().zip(&physical[lines]);
        of.map(|(&(line, addr), &physical)| (line, addr, physical))
    }
}

/// The lines of the code on one machine.
struct FetchedLines {
    code: CodeLines,
    /// The physical address of each line; set when the translation block first runs.
    physical: Vec<PhysAddr>,
}

impl FetchedLines {
    fn define(&mut self, translation: &Translation) -> Result<()> {
        self.code.define(translation)?;
        self.physical.resize(self.code.lines.len(), PhysAddr::default());
        Ok(())
    }
}

/// Gives every execution of a recording to `visitor`.
///
/// # Errors
/// The recording is damaged or has no data accesses.
pub(crate) fn walk<R: Read>(
    reader: &mut RecordingReader<R>,
    machines: &[MachineModel],
    visitor: &mut impl ExecutionVisitor,
) -> Result<()> {
    let lines = |machine: &MachineModel| FetchedLines {
        code: CodeLines::new(machine.l1i_line, machine.l1i.sets()),
        physical: Vec::new(),
    };
    let mut fetched: Vec<FetchedLines> = machines.iter().map(lines).collect();
    let mut flow = DataFlow::new(machines);
    let (mut codes, mut located) = (Vec::new(), Vec::new());
    while let Some(chunk) = reader.next_chunk().context("the recording is damaged")? {
        match chunk {
            Chunk::Translations(translations) => {
                for translation in &translations {
                    fetched.iter_mut().try_for_each(|fetched| fetched.define(translation))?;
                    visitor.define(translation);
                    codes.push(TranslatedCode::new(translation)?);
                    located.push(false);
                }
            }
            Chunk::Tasks(tasks) => flow.define_tasks(&tasks),
            Chunk::Stream(words) => {
                let (accesses, patterns) = reader.accesses().context(
                    "the recording has no data accesses: make it with kernlane record --data",
                )?;
                visitor.stream(accesses);
                let mut stream = AccessStream::new(accesses, patterns);
                for piece in trace::pieces(&words, PIECE_WORDS) {
                    flow.follow(piece, &mut stream);
                    locate(&mut fetched, &mut flow, &codes, &mut located, patterns);
                    run(&fetched, &flow, &codes, visitor);
                    flow.forget(flow.executions.len());
                }
                flow.finish(stream);
            }
            Chunk::End(_) => {}
        }
    }
    Ok(())
}

/// Finds the physical addresses of translation blocks that run for the first time.
fn locate(
    fetched: &mut [FetchedLines],
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
        let code = &codes[id.0 as usize];
        for fetched in fetched.iter_mut() {
            for at in fetched.code.of(id) {
                fetched.physical[at] = flow.code(fetched.code.lines[at].1, code, id, patterns);
            }
        }
    }
}

/// Gives all executions of the data flow.
fn run(
    fetched: &[FetchedLines],
    flow: &DataFlow,
    codes: &[TranslatedCode],
    visitor: &mut impl ExecutionVisitor,
) {
    let mut rest = flow.accesses();
    for execution in &flow.executions {
        let (accesses, behind) = rest.split_at(execution.accesses as usize);
        rest = behind;
        let code = &codes[execution.translation.0 as usize];
        visitor.executed(&Executed { execution, code, accesses, flow, fetched });
    }
}
