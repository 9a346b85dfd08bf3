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
use trace::{AccessPatterns, Accesses, Chunk, RecordingReader, RunAddr, Task, Translation};

/// Receives every execution.
pub(crate) trait ExecutionVisitor {
    /// A translation block, before its first execution.
    fn define(&mut self, translation: &Translation);
    /// Tasks, before they run.
    fn tasks(&mut self, _: &[Task]) {}
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
    fetched: &'a [CodeLines],
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
        let fetched = &self.fetched[machine];
        let left = self.execution.left.into();
        let lines = fetched.executed(self.execution.translation, self.code, left);
        fetched.lines[lines]
            .iter()
            .map(|line| (line.id, line.addr, line.physical.unwrap_or_default()))
    }
}

/// The executions of a piece of a stream, with their lines and accesses.
pub(crate) struct PieceOfExecutions {
    /// By machine.
    fetched: Vec<CodeLines>,
    flow: DataFlow,
    codes: Vec<TranslatedCode>,
    next: NextExecution,
}

/// Where the next execution of a piece stands.
#[derive(Clone, Copy, Default)]
struct NextExecution {
    execution: usize,
    access: usize,
}

impl PieceOfExecutions {
    /// Nothing yet, for these machines.
    pub(crate) fn new(machines: &[MachineModel]) -> PieceOfExecutions {
        let lines = |machine: &MachineModel| CodeLines::new(machine.l1i_line, machine.l1i.sets());
        PieceOfExecutions {
            fetched: machines.iter().map(lines).collect(),
            flow: DataFlow::new(machines),
            codes: Vec::new(),
            next: NextExecution::default(),
        }
    }

    /// Adds the next translation block.
    pub(crate) fn define(&mut self, translation: &Translation) -> Result<()> {
        self.fetched.iter_mut().try_for_each(|fetched| fetched.define(translation))?;
        self.codes.push(TranslatedCode::new(translation)?);
        Ok(())
    }

    /// Adds the next tasks.
    pub(crate) fn define_tasks(&mut self, tasks: &[Task]) {
        self.flow.define_tasks(tasks);
    }

    /// The piece with these words comes. The one before is forgotten.
    ///
    /// # Errors
    /// There is more code than a simulation can number.
    pub(crate) fn follow(
        &mut self,
        words: &[u32],
        stream: &mut AccessStream<'_>,
        patterns: &AccessPatterns,
    ) -> Result<()> {
        self.flow.forget(self.flow.executions.len());
        self.next = NextExecution::default();
        self.flow.follow(words, stream);
        for at in 0..self.flow.executions.len() {
            let id = self.flow.executions[at].translation;
            for fetched in &mut self.fetched {
                fetched.locate(id, &self.codes[id.0 as usize], &mut self.flow, patterns)?;
            }
        }
        Ok(())
    }

    /// The stream ends.
    pub(crate) fn finish(&mut self, stream: AccessStream<'_>) {
        self.flow.finish(stream);
    }

    /// The next execution of the piece; `None` at its end.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Executed<'_>> {
        let PieceOfExecutions { fetched, flow, codes, next, .. } = self;
        let execution = flow.executions.get(next.execution)?;
        let end = next.access + execution.accesses as usize;
        let accesses = &flow.accesses()[next.access..end];
        *next = NextExecution { execution: next.execution + 1, access: end };
        let code = &codes[execution.translation.0 as usize];
        Some(Executed { execution, code, accesses, flow, fetched })
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
    let mut piece = PieceOfExecutions::new(machines);
    while let Some(chunk) = reader.next_chunk().context("the recording is damaged")? {
        match chunk {
            Chunk::Translations(translations) => {
                for translation in &translations {
                    piece.define(translation)?;
                    visitor.define(translation);
                }
            }
            Chunk::Tasks(tasks) => {
                visitor.tasks(&tasks);
                piece.define_tasks(&tasks);
            }
            Chunk::Stream(words) => {
                let (accesses, patterns) = reader.accesses().context(
                    "the recording has no data accesses: make it with kernlane record --data",
                )?;
                visitor.stream(accesses);
                let mut stream = AccessStream::new(accesses, patterns);
                for words in trace::pieces(&words, PIECE_WORDS) {
                    piece.follow(words, &mut stream, patterns)?;
                    while let Some(executed) = piece.next() {
                        visitor.executed(&executed);
                    }
                }
                piece.finish(stream);
            }
            Chunk::End(_) => {}
        }
    }
    Ok(())
}
