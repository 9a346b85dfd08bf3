//! The input trace of ChampSim: every instruction of a part of a recording, with its registers and
//! the addresses that it loads and stores.
//!
//! Input: a recording of one CPU with data accesses. Output: records of 64 bytes, written while the
//! recording is read. This module simulates nothing.
//!
//! * Addresses are those of the guest's physical memory, of code and of data: processes have
//!   different addresses, and shared memory has the same address. Accesses to devices are left out.
//! * Accesses of an instruction to one line of 64 bytes take one slot, an access across the end of
//!   a line takes two. An instruction with more than four lines to load or two to store has more
//!   records of its address. They come before its own, and have no registers.
//! * ChampSim fetches one line for an instruction. The next instruction fetches the line behind,
//!   unless a branch leaves. So a branch across the end of a line has the address of its last byte.
//! * A branch that was interrupted before its outcome showed is not written as a branch. Nor are
//!   system calls, interrupts, and the returns from them: the next record just has another address.

mod instruction;
mod record;
#[cfg(test)]
mod tests;

use crate::walk::{self, ExecutionSink, TracedAmounts, WalkedExecution, WalkedFragment};
use crate::{Format, Make};
use anyhow::{Context, Result};
use execution::code::{LastInstruction, TranslatedCode};
use execution::data::DataAccess;
use execution::flow::FragmentExit;
use execution::opened::OpenedRecording;
use execution::part::RecordingPart;
use host::recording::Recording;
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory};
use instruction::TracedInstruction;
use record::InstructionRecord;
use std::io::Write;
use std::path::Path;
use trace::{RunAddr, Translation};

/// The format.
pub(crate) const CHAMPSIM: Format = Format {
    name: "champsim",
    about: "ChampSim's input trace: every instruction, with registers and addresses; FILE.xz and \
        FILE.gz are compressed",
    make: Make::Instructions(instructions),
};

/// log2 of the bytes in a line of ChampSim.
const LINE: u32 = 6;

/// Writes the instructions of a part of a recording.
///
/// # Errors
/// The recording is damaged, has several CPUs or no data accesses, or `out` cannot be written.
fn instructions(
    recording: &Path,
    part: &RecordingPart,
    out: &mut dyn Write,
) -> Result<TracedAmounts> {
    let mut writer = TraceWriter::new(out);
    let recording = OpenedRecording::open(&Recording::at(recording), part, "instructions")?;
    let one_cpu = recording.header().one_cpu().context("a trace of ChampSim has one CPU");
    one_cpu.with_context(|| recording.name().to_owned())?;
    walk::executions(recording, true, &mut writer)?;
    writer.finish()
}

/// How the last instruction of a fragment is written.
#[derive(Clone, Copy)]
enum FragmentEnd {
    /// As an instruction that is not a branch.
    Plain,
    /// As a conditional branch.
    Conditional { taken: bool },
    /// As a branch to `target`, if control arrives there.
    Direct { target: RunAddr },
    /// As a branch to wherever control arrives.
    Elsewhere,
    /// As an instruction that is not a branch, because it was interrupted.
    Interrupted,
}

impl FragmentEnd {
    fn of(fragment: &WalkedFragment, last: LastInstruction) -> FragmentEnd {
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
    /// The same record, without a branch.
    plain: InstructionRecord,
    from: RunAddr,
    target: Option<RunAddr>,
}

struct TraceWriter<'a> {
    out: &'a mut dyn Write,
    factory: InstructionInfoFactory,
    /// By translation: how control leaves its last instruction, and its instructions.
    code: Vec<(LastInstruction, Box<[TracedInstruction]>)>,
    open: Option<OpenBranch>,
    amounts: TracedAmounts,
}

impl ExecutionSink for TraceWriter<'_> {
    fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> Result<()> {
        let count = translation.lengths.len();
        let traced = translation.code_by_instruction().enumerate().map(|(index, (at, bytes))| {
            let decoded = Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE).decode();
            let last = if index + 1 == count { code.last } else { LastInstruction::Plain };
            TracedInstruction::new(&decoded, last, &mut self.factory)
        });
        self.code.push((code.last, traced.collect()));
        Ok(())
    }

    fn execution(&mut self, execution: &WalkedExecution) -> Result<()> {
        let WalkedExecution { fragment, mut accesses, .. } = *execution;
        self.settle(Some(fragment.start))?;
        let code = std::mem::take(&mut self.code);
        let (last, instructions) = &code[fragment.translation.0 as usize];
        let ends_at = fragment.places.len() - 1;
        for (index, (place, traced)) in fragment.places.iter().zip(instructions).enumerate() {
            let across = traced.branch.is_some() && place.first.0 >> LINE != place.last.0 >> LINE;
            let ip = if across { place.last } else { place.first };
            let record = self.with_accesses(ip.0, index, &mut accesses)?;
            let end = match index == ends_at {
                true => FragmentEnd::of(fragment, *last),
                false => FragmentEnd::Plain,
            };
            self.instruction(record, traced, end, fragment.start)?;
        }
        self.code = code;
        Ok(())
    }
}

impl<'a> TraceWriter<'a> {
    fn new(out: &'a mut dyn Write) -> TraceWriter<'a> {
        TraceWriter {
            out,
            factory: InstructionInfoFactory::new(),
            code: Vec::new(),
            open: None,
            amounts: TracedAmounts::default(),
        }
    }

    /// The last record of an instruction with its accesses, taken from `left`. Writes the others.
    fn with_accesses(
        &mut self,
        ip: u64,
        index: usize,
        left: &mut &[DataAccess],
    ) -> Result<InstructionRecord> {
        let mut record = InstructionRecord { ip, ..InstructionRecord::default() };
        while let Some((access, rest)) = left.split_first()
            && usize::from(access.instruction) <= index
        {
            *left = rest;
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

    fn finish(mut self) -> Result<TracedAmounts> {
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

/// Puts an address into a free slot, unless its line has one. Returns false if no slot is free.
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
