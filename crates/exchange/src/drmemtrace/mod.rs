//! A whole-system trace for DynamoRIO's tools (drmemtrace): every instruction of a part of a
//! recording, with its encoding, its task, its data accesses and the system calls, exceptions and
//! interrupts between them.
//!
//! Input: a recording of one CPU. Output: records of 12 bytes, written while the recording is read.
//! This module simulates nothing.
//!
//! * The file is what one core executed (`OFFLINE_FILE_TYPE_CORE_SHARDED`). A thread's id is its
//!   pid; the process's is the same, because a recording has no other.
//! * Addresses are virtual. A pair of markers gives the place of a page in physical memory,
//!   whenever it differs from the last such pair. User code that several processes share has the
//!   addresses of the first in a recording; here, code that control reaches from its neighbours or
//!   by a direct branch lies at the address that they lead to, so that control goes from an
//!   instruction to the next one.
//! * A system call, an exception and an interrupt are markers of hardware events, with the address
//!   at which control comes back ([`contexts`] knows it beforehand). The `iret` or `sysret` that
//!   goes back is an indirect branch, and a marker of a return follows.
//! * The kernel may return to another place: a signal handler, a new program, the fixup of a fault.
//!   Then the event has the address to which it returns, and a marker of a new window stands before
//!   it, because the code before does not lead there.
//! * Each repetition of a string instruction has a record that fetches nothing.
//! * Some accesses are missing: those to devices, prefetches, and accesses that the processor makes
//!   by itself (`OFFLINE_FILE_TYPE_DFILTERED`).

mod code;
mod contexts;
mod open;
mod record;
#[cfg(test)]
mod tests;

use crate::walk::{self, ExecutionSink, InstructionPlace, TracedAmounts, WalkedExecution};
use crate::{Format, Make};
use anyhow::{Context, Result};
use code::{CodedInstruction, CodedTranslation, Encoding, TracedAccess};
use contexts::{Arrival, Contexts, Thread};
use execution::code::{LastInstruction, TranslatedCode};
use execution::flow::FragmentExit;
use execution::opened::OpenedRecording;
use execution::part::RecordingPart;
use host::recording::Recording;
use open::{BranchEnd, OpenInstruction};
use record::{Record, file, kind, marker};
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use trace::{RunAddr, Task, Translation};

/// The format.
pub(crate) const DRMEMTRACE: Format = Format {
    name: "drmemtrace",
    about: "DynamoRIO's whole-system trace: every instruction, with encoding, task, addresses and \
        interrupts; FILE.gz is compressed",
    make: Make::Instructions(|recording, part, out| {
        instructions(recording, part, &WHOLE_SYSTEM, out)
    }),
};

/// The same for tools that refuse whole-system traces.
pub(crate) const DRMEMTRACE_SERIAL: Format = Format {
    name: "drmemtrace-serial",
    about: "the same for DynamoRIO's serial tools, which refuse whole-system traces: the cache \
        simulator",
    make: Make::Instructions(|recording, part, out| instructions(recording, part, &SERIAL, out)),
};

/// The difference between the two formats.
struct Dialect {
    file: u64,
    event: u16,
    back: u16,
}

static WHOLE_SYSTEM: Dialect = Dialect {
    file: file::WHOLE_SYSTEM,
    event: marker::HARDWARE_EVENT,
    back: marker::HARDWARE_RETURN,
};
static SERIAL: Dialect =
    Dialect { file: 0, event: marker::KERNEL_EVENT, back: marker::KERNEL_TRANSFER };

/// The version of the format: instructions that raise an exception are there, as in a recording.
const VERSION: u64 = 6;
const PAGE: u32 = 12;
/// Instructions in a microsecond of the trace's clock: with `-icount shift=0` each takes 1 ns.
const PER_MICROSECOND: u64 = 1000;
/// Ids of threads without a pid, beyond Linux's pids. DynamoRIO takes 0 for no thread.
const IDLE: u64 = 1 << 24;
const UNKNOWN: u64 = 2 << 24;

/// Writes the instructions of a part of a recording.
///
/// # Errors
/// The recording is damaged or has several CPUs, or `out` cannot be written.
fn instructions(
    recording: &Path,
    part: &RecordingPart,
    dialect: &'static Dialect,
    out: &mut dyn Write,
) -> Result<TracedAmounts> {
    let recording = Recording::at(recording);
    let opened = OpenedRecording::open(&recording, part, "instructions")?;
    let contexts = Contexts::of(&recording, opened.bounds())?;
    let mut writer = TraceWriter::new(contexts, dialect, out);
    walk::executions(opened, false, &mut writer)?;
    writer.finish()
}

struct TraceWriter<'a> {
    dialect: &'static Dialect,
    out: &'a mut dyn Write,
    contexts: Contexts,
    tracker: contexts::ContextTracker,
    tasks: Vec<Thread>,
    code: Vec<CodedTranslation>,
    began: bool,
    /// Whether the recording has data accesses. Otherwise no physical address is known.
    has_data: bool,
    /// The last instruction, which is written when its successor is known.
    open: Option<OpenInstruction>,
    /// The encoding that was last written for an address.
    encodings: HashMap<u64, Encoding>,
    /// The physical page that was last written for a page.
    pages: HashMap<u64, u64>,
    windows: u64,
    /// Ids of threads without a pid.
    unnamed: HashMap<Thread, u64>,
    amounts: TracedAmounts,
}

impl ExecutionSink for TraceWriter<'_> {
    fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> Result<()> {
        self.code.push(CodedTranslation::new(translation, code));
        Ok(())
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.tasks.extend(tasks.iter().map(Thread::of));
    }

    fn execution(&mut self, execution: &WalkedExecution) -> Result<()> {
        let fragment = execution.fragment;
        let start = self.settle(fragment.start)?;
        if !self.began {
            self.header(start, execution.data.is_some())?;
        } else if let Some(task) = execution.task
            && let Some(thread) = self.tasks.get(task.0 as usize).copied()
        {
            self.switch(thread, start)?;
        }
        let code = std::mem::take(&mut self.code);
        let done = self.fragment(&code[fragment.translation.0 as usize], execution, start);
        self.code = code;
        done
    }
}

impl<'a> TraceWriter<'a> {
    fn new(
        contexts: Contexts,
        dialect: &'static Dialect,
        out: &'a mut dyn Write,
    ) -> TraceWriter<'a> {
        TraceWriter {
            dialect,
            out,
            tracker: contexts.at_start.clone(),
            contexts,
            tasks: Vec::new(),
            code: Vec::new(),
            began: false,
            has_data: false,
            open: None,
            encodings: HashMap::new(),
            pages: HashMap::new(),
            windows: 0,
            unnamed: HashMap::new(),
            amounts: TracedAmounts::default(),
        }
    }

    /// Writes an execution whose first instruction lies at `start`, all but its last instruction.
    fn fragment(
        &mut self,
        coded: &CodedTranslation,
        execution: &WalkedExecution,
        start: u64,
    ) -> Result<()> {
        let (fragment, mut left) = (execution.fragment, execution.accesses);
        let ends_at = fragment.places.len() - 1;
        let mut at = start;
        let mut own = Vec::new();
        for (index, (place, instruction)) in
            fragment.places.iter().zip(&coded.instructions).enumerate()
        {
            own.clear();
            while let Some((access, rest)) = left.split_first()
                && usize::from(access.instruction) <= index
            {
                own.push(TracedAccess::of(access, execution.data));
                left = rest;
            }
            if index == ends_at {
                let reached = match fragment.exit {
                    FragmentExit::Midway(reached) => Some(reached),
                    _ => None,
                };
                self.open = Some(OpenInstruction {
                    end: contexts::ExecutionEnd::new(&coded.code, reached),
                    at,
                    instruction: *instruction,
                    is_iret: coded.ends_in_iret,
                    place: *place,
                    accesses: own,
                });
                return Ok(());
            }
            self.instruction(at, instruction, place, (kind::INSTRUCTION, None), &own)?;
            at = at.wrapping_add(instruction.length().into());
        }
        Ok(())
    }

    /// Writes the last instruction, now that control arrived at `next`, and the markers behind it.
    /// Gives the address of `next` in the trace.
    fn settle(&mut self, next: RunAddr) -> Result<u64> {
        let Some(open) = self.open.take() else { return Ok(next.0) };
        match self.tracker.arrive(Some(&open.end), next) {
            Arrival::Flow => {
                let end = open.leads_to(next);
                self.last(&open, &end)?;
                self.window(&end)?;
                Ok(end.to)
            }
            Arrival::Opened(number) => {
                let end = open.interrupted(self.contexts.returns_to(number));
                self.amounts.interrupted_branches +=
                    u64::from(open.end.does != LastInstruction::Plain);
                self.last(&open, &end)?;
                self.window(&end)?;
                self.event(end.to)?;
                Ok(next.0)
            }
            Arrival::Closed { contexts, opened } => {
                let known = contexts.last().and_then(|context| self.contexts.value(context));
                let to = match opened {
                    None => known.filter(|&to| contexts::same_place(RunAddr(to), next)),
                    Some(number) => known
                        .or_else(|| Some(self.contexts.returns_to(number)?.0))
                        .or(Some(open.at)),
                };
                let to = to.unwrap_or(next.0).max(1);
                self.last(&open, &BranchEnd { taken: true, to, elsewhere: false })?;
                for _ in &contexts {
                    self.marker(self.dialect.back, to)?;
                }
                if opened.is_some() {
                    self.event(to)?;
                    return Ok(next.0);
                }
                Ok(to)
            }
        }
    }

    /// Writes a marker: the last instruction does not lead to the next one.
    fn window(&mut self, end: &BranchEnd) -> Result<()> {
        if !end.elsewhere {
            return Ok(());
        }
        self.windows += 1;
        self.marker(marker::WINDOW, self.windows)
    }

    /// A context was opened that returns to `value`.
    fn event(&mut self, value: u64) -> Result<()> {
        if let Some(context) = self.tracker.open.last_mut() {
            context.value = value;
        }
        self.marker(self.dialect.event, value)
    }

    /// Writes the last instruction of an execution.
    fn last(&mut self, open: &OpenInstruction, end: &BranchEnd) -> Result<()> {
        let branch = open.branch(end);
        self.instruction(open.at, &open.instruction, &open.place, branch, &open.accesses)
    }

    /// Writes an instruction of a kind, with the target of an indirect branch.
    fn instruction(
        &mut self,
        at: u64,
        instruction: &CodedInstruction,
        place: &InstructionPlace,
        (kind, target): (u16, Option<u64>),
        accesses: &[TracedAccess],
    ) -> Result<()> {
        self.amounts.instructions += 1;
        let length = instruction.length();
        self.page(at, place.first.0)?;
        let last = at.wrapping_add(u64::from(length.max(1)) - 1);
        if last >> PAGE != at >> PAGE {
            self.page(last, place.last.0)?;
        }
        if let Some(target) = target {
            self.marker(marker::BRANCH_TARGET, target)?;
        }
        if self.encodings.get(&at) != Some(&instruction.encoding) {
            self.encodings.insert(at, instruction.encoding);
            for part in instruction.encoding[..usize::from(length)].chunks(8) {
                let bytes = part.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte));
                self.write(kind::ENCODING, part.len() as u16, bytes)?;
            }
        }
        self.write(kind, length, at)?;
        for (index, access) in accesses.iter().enumerate() {
            if instruction.each > 0 && index > 0 && index % usize::from(instruction.each) == 0 {
                self.write(kind::REPETITION, length, at)?;
            }
            self.page(access.address, access.physical)?;
            let kind = if access.is_store { kind::WRITE } else { kind::READ };
            self.write(kind, access.size.into(), access.address)?;
        }
        Ok(())
    }

    /// Writes the place of a page, unless it was written before.
    fn page(&mut self, address: u64, physical: u64) -> Result<()> {
        let frame = physical >> PAGE;
        if !self.has_data || self.pages.insert(address >> PAGE, frame) == Some(frame) {
            return Ok(());
        }
        let offset = address & ((1 << PAGE) - 1);
        self.marker(marker::PHYSICAL_ADDRESS, frame << PAGE | offset)?;
        self.marker(marker::VIRTUAL_ADDRESS, address)
    }

    /// Writes the records before the first instruction, which lies at `start`.
    fn header(&mut self, start: u64, has_data: bool) -> Result<()> {
        self.began = true;
        self.has_data = has_data;
        let kept = if has_data { 0 } else { file::INSTRUCTIONS_ONLY };
        let file = file::X86_64 | file::ENCODINGS | file::DATA_FILTERED | file::CORE | kept;
        self.write(kind::HEADER, 0, VERSION)?;
        self.marker(marker::VERSION, VERSION)?;
        self.marker(marker::FILE_TYPE, file | self.dialect.file)?;
        self.thread()?;
        self.marker(marker::CACHE_LINE_SIZE, 64)?;
        self.marker(marker::PAGE_SIZE, 1 << PAGE)?;
        // DynamoRIO's basic_counts wants the windows of a file to begin at 0.
        self.marker(marker::WINDOW, 0)?;
        self.clock()?;
        self.contexts_above(0, start)
    }

    /// Another task runs. It may have more or fewer contexts open.
    fn switch(&mut self, thread: Thread, at: u64) -> Result<()> {
        if thread == self.tracker.thread {
            return Ok(());
        }
        let before = self.tracker.open.len();
        self.tracker.switch(thread);
        self.thread()?;
        self.clock()?;
        for _ in self.tracker.open.len()..before {
            self.marker(self.dialect.back, at.max(1))?;
        }
        self.contexts_above(before, at)
    }

    /// Opens the contexts of the task that runs, except for the outermost `known`.
    fn contexts_above(&mut self, known: usize, at: u64) -> Result<()> {
        for index in known..self.tracker.open.len() {
            let value = self.contexts.value(&self.tracker.open[index]).unwrap_or(at);
            self.marker(self.dialect.event, value.max(1))?;
        }
        Ok(())
    }

    /// Names the thread that runs.
    fn thread(&mut self) -> Result<()> {
        let thread = self.tracker.thread;
        let id = match thread.pid {
            Some(0) => IDLE,
            Some(pid) => pid.into(),
            None => {
                let next = UNKNOWN + self.unnamed.len() as u64;
                *self.unnamed.entry(thread).or_insert(next)
            }
        };
        self.write(kind::THREAD, 0, id)?;
        self.write(kind::PROCESS, 0, id)
    }

    fn clock(&mut self) -> Result<()> {
        self.marker(marker::TIMESTAMP, 1 + self.amounts.instructions / PER_MICROSECOND)?;
        self.marker(marker::CPU, 0)
    }

    fn marker(&mut self, kind: u16, value: u64) -> Result<()> {
        self.write(kind::MARKER, kind, value)
    }

    fn write(&mut self, kind: u16, size: u16, value: u64) -> Result<()> {
        self.amounts.records += 1;
        Ok(self.out.write_all(&Record::new(kind, size, value).to_bytes())?)
    }

    fn finish(mut self) -> Result<TracedAmounts> {
        if let Some(open) = self.open.take() {
            let end = open.interrupted(None);
            self.amounts.interrupted_branches += u64::from(open.end.does != LastInstruction::Plain);
            self.last(&open, &end)?;
        }
        if !self.began {
            self.header(1, false).context("the part is empty")?;
        }
        self.write(kind::FOOTER, 0, 0)?;
        Ok(self.amounts)
    }
}
