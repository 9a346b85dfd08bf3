//! The input trace of ChampSim: every instruction of a part of a recording, with its registers and
//! the addresses that it loads and stores.
//!
//! Input: a recording of one CPU with data accesses. Output: records of 64 bytes, written while the
//! recording is read. This module simulates nothing.
//!
//! * Addresses are those of the guest's physical memory, of code and of data: processes are apart,
//!   and what they share is shared. Accesses to devices are left out.
//! * Accesses of an instruction to one line of 64 bytes take one slot, an access across the end of
//!   a line takes two. An instruction with more than four lines to load or two to store has more
//!   records of its address. They come before its own, and have no registers.
//! * ChampSim fetches one line for an instruction. What follows fetches the line behind, unless a
//!   branch leaves: so a branch across the end of a line has the address of its last byte.
//! * A branch that something interrupted before its outcome showed is written as no branch. So are
//!   system calls, interrupts, and the returns from them: the address of the next record is just
//!   another one.

mod instruction;
mod record;
#[cfg(test)]
mod tests;

use crate::{Format, Make};
use anyhow::{Context, Result};
use execution::code::LastInstruction;
use execution::data::{AccessStream, DataAccess, DataFlow, PIECE_WORDS};
use execution::flow::{ExecutionFlow, Fragment, FragmentExit, FragmentId};
use execution::part::{PartFilter, RecordingPart, open_executions};
use host::recording::Recording;
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory};
use instruction::TracedInstruction;
use record::InstructionRecord;
use serde::Serialize;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::path::Path;
use trace::{AccessPatterns, Accesses, Chunk, RecordingReader, RunAddr, StreamEvent, Translation};

/// The format.
pub(crate) const CHAMPSIM: Format = Format {
    name: "champsim",
    about: "ChampSim's input trace: every instruction, with registers and addresses; FILE.xz and \
        FILE.gz are compressed",
    make: Make::Instructions(instructions),
};

/// log2 of the bytes in a line of ChampSim.
const LINE: u32 = 6;

/// How much was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TracedAmounts {
    /// Instructions of the recording.
    pub instructions: u64,
    /// Records: one for each instruction, and more for those with many accesses.
    pub records: u64,
    /// Branches written as no branch, because something interrupted them, or the part ended.
    pub interrupted_branches: u64,
}

/// Writes the instructions of a part of a recording.
///
/// # Errors
/// The recording is damaged, has several CPUs or no data accesses, or `out` cannot be written.
fn instructions(
    recording: &Path,
    part: &RecordingPart,
    out: &mut dyn Write,
) -> Result<TracedAmounts> {
    let cut = part.cut(|| open_executions(&Recording::at(recording)))?;
    attribution::read(recording, "instructions", |reader| write_trace(reader, cut, out))
}

/// As [`instructions`], of what `cut` keeps.
fn write_trace<R: Read>(
    reader: &mut RecordingReader<R>,
    cut: PartFilter,
    out: &mut dyn Write,
) -> Result<TracedAmounts> {
    reader.header().one_cpu().context("a trace of ChampSim has one CPU")?;
    let mut writer = TraceWriter::new(cut, out);
    while let Some(chunk) = reader.next_chunk().context("the recording is damaged")? {
        match chunk {
            Chunk::Translations(defined) => writer.define(&defined)?,
            Chunk::Tasks(_) | Chunk::End(_) => {}
            Chunk::Stream(words) => {
                let (accesses, patterns) = reader.accesses().context(
                    "the recording has no data accesses: make it with `kernlane record --data`",
                )?;
                writer.words(&words, accesses, patterns)?;
                if writer.cut.has_ended() {
                    break;
                }
            }
        }
    }
    writer.finish(reader.accesses().map(|(_, patterns)| patterns))
}

/// A fragment as it is written.
struct TracedFragment {
    /// Where control arrives; `None`: no instruction runs.
    start: Option<RunAddr>,
    /// The address and the registers of each instruction that runs.
    instructions: Box<[(u64, TracedInstruction)]>,
    end: FragmentEnd,
}

/// How the last instruction of a fragment is written.
#[derive(Clone, Copy)]
enum FragmentEnd {
    /// As no branch.
    Plain,
    /// As a conditional branch.
    Conditional { taken: bool },
    /// As a branch to `target`, if control arrives there.
    Direct { target: RunAddr },
    /// As a branch to wherever control arrives.
    Elsewhere,
    /// As no branch: something interrupted it.
    Interrupted,
}

impl FragmentEnd {
    fn of(fragment: &Fragment, last: LastInstruction) -> FragmentEnd {
        if matches!(fragment.exit, FragmentExit::Midway(_)) {
            return FragmentEnd::Plain;
        }
        match (last, fragment.exit) {
            (LastInstruction::Plain | LastInstruction::InterruptReturn, _) => FragmentEnd::Plain,
            (LastInstruction::Conditional { .. }, FragmentExit::Interrupted) => {
                FragmentEnd::Interrupted
            }
            (LastInstruction::Conditional { .. }, exit) => {
                FragmentEnd::Conditional { taken: exit == FragmentExit::Taken }
            }
            (LastInstruction::Jump { target } | LastInstruction::Call { target }, _) => {
                FragmentEnd::Direct { target }
            }
            (LastInstruction::Taken(_), _) => FragmentEnd::Elsewhere,
        }
    }
}

/// A record whose branch is known when the next fragment begins.
struct OpenBranch {
    record: InstructionRecord,
    /// The same as no branch.
    plain: InstructionRecord,
    from: RunAddr,
    target: Option<RunAddr>,
}

struct TraceWriter<'a> {
    cut: PartFilter,
    out: &'a mut dyn Write,
    flow: ExecutionFlow,
    data: DataFlow,
    /// The instructions of each translation.
    code: Vec<Box<[TracedInstruction]>>,
    fragments: Vec<TracedFragment>,
    /// The number of accesses of each execution of the part whose fragment is still to come.
    executions: VecDeque<usize>,
    /// The accesses of these executions.
    accesses: VecDeque<DataAccess>,
    open: Option<OpenBranch>,
    amounts: TracedAmounts,
}

impl<'a> TraceWriter<'a> {
    fn new(cut: PartFilter, out: &'a mut dyn Write) -> TraceWriter<'a> {
        TraceWriter {
            cut,
            out,
            flow: ExecutionFlow::default(),
            data: DataFlow::of_every_access(),
            code: Vec::new(),
            fragments: Vec::new(),
            executions: VecDeque::new(),
            accesses: VecDeque::new(),
            open: None,
            amounts: TracedAmounts::default(),
        }
    }

    fn define(&mut self, translations: &[Translation]) -> Result<()> {
        self.cut.define(translations);
        let mut factory = InstructionInfoFactory::new();
        for translation in translations {
            self.flow.define(translation)?;
            let last = self.flow.codes.last().map_or(LastInstruction::Plain, |code| code.last);
            let count = translation.lengths.len();
            let traced =
                translation.code_by_instruction().enumerate().map(|(index, (at, bytes))| {
                    let decoded = Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE).decode();
                    let last = if index + 1 == count { last } else { LastInstruction::Plain };
                    TracedInstruction::new(&decoded, last, &mut factory)
                });
            self.code.push(traced.collect());
        }
        Ok(())
    }

    fn words(
        &mut self,
        words: &[u32],
        accesses: &Accesses,
        patterns: &AccessPatterns,
    ) -> Result<()> {
        let mut stream = AccessStream::new(accesses, patterns);
        let (mut kept, mut run) = (Vec::new(), Vec::new());
        for piece in trace::pieces(words, PIECE_WORDS) {
            self.data.follow(piece, &mut stream);
            self.keep(piece, &mut kept);
            self.flow.follow(kept.drain(..), &mut run)?;
            self.learn(patterns);
            run.drain(..).try_for_each(|fragment| self.fragment(fragment))?;
        }
        self.data.finish(stream);
        Ok(())
    }

    /// Appends the events of the part, and keeps the accesses of its executions.
    fn keep(&mut self, words: &[u32], kept: &mut Vec<StreamEvent>) {
        let mut rest = self.data.accesses();
        let mut executions = self.data.executions.iter();
        for event in trace::events(words) {
            let inside = self.cut.keeps(&event);
            if event.execution().is_some() {
                let count = executions.next().map_or(0, |execution| execution.accesses as usize);
                let (own, later) = rest.split_at(count.min(rest.len()));
                rest = later;
                if inside {
                    self.executions.push_back(own.len());
                    self.accesses.extend(own);
                }
            }
            if inside {
                kept.push(event);
            }
        }
        self.data.forget(self.data.executions.len());
    }

    /// Adds the fragments that are new.
    fn learn(&mut self, patterns: &AccessPatterns) {
        for fragment in &self.flow.fragments[self.fragments.len()..] {
            let id = fragment.translation;
            let code = &self.flow.codes[id.0 as usize];
            let count = match fragment.exit {
                FragmentExit::LateNext | FragmentExit::LateTaken => 0,
                FragmentExit::Midway(reached) => usize::from(reached),
                FragmentExit::Next | FragmentExit::Taken | FragmentExit::Interrupted => usize::MAX,
            };
            let mut at = code.addr;
            let instructions = self.code[id.0 as usize].iter().zip(code.lengths.iter()).take(count);
            let instructions = instructions.map(|(traced, &length)| {
                let end = at.0.wrapping_add(length.into());
                let (first, last) = (at, RunAddr(end.wrapping_sub(1)));
                at = RunAddr(end);
                let across = traced.branch.is_some() && first.0 >> LINE != last.0 >> LINE;
                let named = if across { last } else { first };
                (self.data.code(named, code, id, patterns).0, *traced)
            });
            self.fragments.push(TracedFragment {
                instructions: instructions.collect(),
                start: (count > 0).then_some(code.addr),
                end: FragmentEnd::of(fragment, code.last),
            });
        }
    }

    /// Writes the fragment that runs next.
    fn fragment(&mut self, id: FragmentId) -> Result<()> {
        let fragments = std::mem::take(&mut self.fragments);
        let fragment = &fragments[id.0 as usize];
        if let Some(start) = fragment.start {
            self.settle(Some(start))?;
            let last = fragment.instructions.len().saturating_sub(1);
            let mut left = self.executions.pop_front().unwrap_or(0);
            for (index, (ip, traced)) in fragment.instructions.iter().enumerate() {
                let record = self.with_accesses(*ip, index, &mut left)?;
                let end = if index == last { fragment.end } else { FragmentEnd::Plain };
                self.instruction(record, traced, end, start)?;
            }
            // Accesses of instructions that were not reached.
            self.accesses.drain(..left.min(self.accesses.len()));
        }
        self.fragments = fragments;
        Ok(())
    }

    /// The last record of an instruction with its accesses, taken from `left`. Writes the others.
    fn with_accesses(
        &mut self,
        ip: u64,
        index: usize,
        left: &mut usize,
    ) -> Result<InstructionRecord> {
        let mut record = InstructionRecord { ip, ..InstructionRecord::default() };
        while *left > 0
            && let Some(access) = self.accesses.front().copied()
            && usize::from(access.instruction) <= index
        {
            self.accesses.pop_front();
            *left -= 1;
            let last = access.physical.0.saturating_add(u64::from(access.size.max(1)) - 1);
            for line in access.physical.0 >> LINE..=last >> LINE {
                let address = access.physical.0.max(line << LINE).max(1);
                if !put(&mut record, address, access.is_store) {
                    self.write(&record)?;
                    record = InstructionRecord { ip, ..InstructionRecord::default() };
                    put(&mut record, address, access.is_store);
                }
            }
        }
        Ok(record)
    }

    fn instruction(
        &mut self,
        record: InstructionRecord,
        traced: &TracedInstruction,
        end: FragmentEnd,
        from: RunAddr,
    ) -> Result<()> {
        self.amounts.instructions += 1;
        let plain = InstructionRecord { registers: traced.plain, ..record };
        let Some(registers) = traced.branch else { return self.write(&plain) };
        let branch = |taken| InstructionRecord { registers, is_branch: true, taken, ..record };
        let target = match end {
            FragmentEnd::Plain => return self.write(&plain),
            FragmentEnd::Interrupted => {
                self.amounts.interrupted_branches += 1;
                return self.write(&plain);
            }
            FragmentEnd::Conditional { taken } => return self.write(&branch(taken)),
            FragmentEnd::Direct { target } => Some(target),
            FragmentEnd::Elsewhere => None,
        };
        self.open = Some(OpenBranch { record: branch(true), plain, from, target });
        Ok(())
    }

    /// Writes the branch that waits for its outcome, now that control arrived at `next`; `None`:
    /// the part has ended.
    fn settle(&mut self, next: Option<RunAddr>) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        if next.is_some_and(|next| interrupted(&open, next)) {
            self.amounts.interrupted_branches += 1;
            return self.write(&open.plain);
        }
        self.write(&open.record)
    }

    fn write(&mut self, record: &InstructionRecord) -> Result<()> {
        self.amounts.records += 1;
        Ok(self.out.write_all(&record.to_bytes())?)
    }

    fn finish(mut self, patterns: Option<&AccessPatterns>) -> Result<TracedAmounts> {
        let mut run = Vec::new();
        self.flow.finish(&mut run);
        self.learn(patterns.unwrap_or(&AccessPatterns::default()));
        run.into_iter().try_for_each(|fragment| self.fragment(fragment))?;
        self.settle(None)?;
        Ok(self.amounts)
    }
}

/// Whether something came between the branch and its target, so that control arrived at `next`.
/// User code has the addresses of the first process that ran it: only places in a page are known.
fn interrupted(open: &OpenBranch, next: RunAddr) -> bool {
    if next.is_kernel() != open.from.is_kernel() {
        return true;
    }
    let identity = |addr: RunAddr| if addr.is_kernel() { addr.0 } else { addr.0 & 0xfff };
    open.target.is_some_and(|target| identity(target) != identity(next))
}

/// Puts an address into a free slot, unless its line has one. False: no slot is free.
fn put(record: &mut InstructionRecord, address: u64, is_store: bool) -> bool {
    let slots = if is_store { &mut record.stores[..] } else { &mut record.loads[..] };
    let same = |slot: u64| slot == 0 || slot >> LINE == address >> LINE;
    match slots.iter_mut().find(|slot| same(**slot)) {
        Some(slot) => {
            if *slot == 0 {
                *slot = address;
            }
            true
        }
        None => false,
    }
}
