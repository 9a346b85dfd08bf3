//! Which system calls, exceptions and interrupts are open, task by task, and where each of them
//! returns to.
//!
//! A *context* is opened when control goes from its normal way to the kernel. It is closed by the
//! `iret` or `sysret` that goes back. A trace says where control goes on *before* the kernel runs.
//! So a first pass over a recording notes where each context returns to.
//!
//! The recording has no event for an interrupt. An interrupt shows where control arrives at another
//! place than the code before leads to. Behind an indirect branch in the kernel every address may
//! follow. There, an interrupt shows by its entry: an address at which control arrived from user
//! code, or where the code before cannot lead.
//!
//! Input: the executions of a recording of one CPU. Output: the contexts. This module writes
//! nothing.

use anyhow::{Context as _, Result};
use execution::code::{LastInstruction, TranslatedCode};
use execution::opened::OpenedRecording;
use execution::walk::{Observer, Piece, Wants};
use host::recording::Recording;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;
use trace::{RecordingHeader, RunAddr, StreamEvent, Task, Translation};

/// The largest number of contexts that a task has open at once. In Linux a task has fewer than ten.
/// Others are not reported.
const MOST: usize = 16;

/// A task, by its address and pid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Thread {
    pointer: u64,
    pub pid: Option<u32>,
}

impl Thread {
    pub(super) fn of(task: &Task) -> Thread {
        Thread { pointer: task.pointer.0, pid: task.pid }
    }
}

/// An open context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenContext {
    number: u32,
    from_user: bool,
    /// The address at which it returns in the trace; 0: not known.
    pub value: u64,
}

/// The end of an execution.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExecutionEnd {
    /// The last instruction that was reached.
    pub last: RunAddr,
    /// The address behind it.
    pub behind: RunAddr,
    /// What it does; [`LastInstruction::Plain`] when the translation was left before its end.
    pub does: LastInstruction,
}

impl ExecutionEnd {
    /// The end of an execution in which the first `reached` instructions were reached.
    pub(super) fn new(code: &TranslatedCode, reached: Option<u16>) -> ExecutionEnd {
        match reached {
            Some(reached) => ExecutionEnd {
                last: code.addr_of(reached.saturating_sub(1)),
                behind: code.addr_of(reached),
                does: LastInstruction::Plain,
            },
            None => ExecutionEnd {
                last: code.addr_of((code.lengths.len() - 1) as u16),
                behind: code.end(),
                does: code.last,
            },
        }
    }

    /// Whether the code alone can have led to `next`, if no interrupt is entered there.
    fn leads_to(&self, next: RunAddr) -> bool {
        match self.does {
            LastInstruction::Plain => same_place(self.behind, next),
            LastInstruction::Conditional { target } => {
                same_place(self.behind, next) || same_place(target, next)
            }
            LastInstruction::Jump { target } | LastInstruction::Call { target } => {
                same_place(target, next)
            }
            LastInstruction::Taken(_) | LastInstruction::InterruptReturn => true,
        }
    }
}

/// Whether two addresses can be of one instruction. User code has the addresses of the first
/// process that ran it: only places in a page are known.
pub(super) fn same_place(a: RunAddr, b: RunAddr) -> bool {
    a == b || !a.is_kernel() && !b.is_kernel() && (a.0 ^ b.0) & 0xfff == 0
}

/// How control arrived.
#[derive(Debug, PartialEq)]
pub(super) enum Arrival {
    /// By the code that ran before.
    Flow,
    /// A context with this number was opened.
    Opened(u32),
    /// These contexts were closed, the innermost first. `opened`: the context that was then opened,
    /// before an instruction ran.
    Closed { contexts: Vec<OpenContext>, opened: Option<u32> },
}

/// Follows the contexts of all tasks.
#[derive(Clone, Default)]
pub(super) struct ContextTracker {
    entries: Rc<HashSet<RunAddr>>,
    began: bool,
    /// The task that runs.
    pub thread: Thread,
    /// The contexts of this task, the innermost last.
    pub open: Vec<OpenContext>,
    /// The contexts of the other tasks.
    others: HashMap<Thread, Vec<OpenContext>>,
    next: u32,
}

impl ContextTracker {
    /// Control went from the end of an execution to `next`.
    pub(super) fn arrive(&mut self, from: Option<&ExecutionEnd>, next: RunAddr) -> Arrival {
        if !std::mem::replace(&mut self.began, true) && next.is_kernel() {
            let before = self.context(true);
            self.open.push(before);
        }
        let Some(from) = from else { return Arrival::Flow };
        let was_kernel = from.last.is_kernel();
        if was_kernel && !next.is_kernel() {
            let contexts = self.close(self.open.len());
            return Arrival::Closed { contexts, opened: None };
        }
        let entered = next.is_kernel() && self.entries.contains(&next);
        match from.does {
            LastInstruction::InterruptReturn if was_kernel && next == from.behind => Arrival::Flow,
            LastInstruction::InterruptReturn if was_kernel => self.returned(entered),
            LastInstruction::Taken(_) if was_kernel && entered => self.opened(false),
            _ if was_kernel && !from.leads_to(next) => self.opened(false),
            _ if !was_kernel && next.is_kernel() => self.opened(true),
            _ => Arrival::Flow,
        }
    }

    /// Control returned to the kernel, or entered it again at once.
    fn returned(&mut self, entered: bool) -> Arrival {
        let from_user = self.open.last().is_none_or(|it| it.from_user);
        if !entered {
            return match self.open.len() {
                0 | 1 => Arrival::Flow,
                _ => Arrival::Closed { contexts: self.close(1), opened: None },
            };
        }
        let contexts = self.close(if from_user { self.open.len() } else { 1 });
        let opened = match self.opened(from_user) {
            Arrival::Opened(number) => Some(number),
            Arrival::Flow | Arrival::Closed { .. } => None,
        };
        Arrival::Closed { contexts, opened }
    }

    fn opened(&mut self, from_user: bool) -> Arrival {
        if self.open.len() >= MOST {
            return Arrival::Flow;
        }
        let context = self.context(from_user);
        self.open.push(context);
        Arrival::Opened(context.number)
    }

    /// A context with a number of its own.
    fn context(&mut self, from_user: bool) -> OpenContext {
        let number = self.next;
        self.next = self.next.saturating_add(1);
        OpenContext { number, from_user, value: 0 }
    }

    /// Closes the innermost contexts.
    fn close(&mut self, count: usize) -> Vec<OpenContext> {
        let kept = self.open.len() - count.min(self.open.len());
        self.open.drain(kept..).rev().collect()
    }

    /// Another task runs, in the kernel. The contexts of a task that is seen for the first time
    /// were opened before the recording.
    pub(super) fn switch(&mut self, thread: Thread) {
        if thread == self.thread {
            return;
        }
        let known = self.others.remove(&thread);
        let next = known.unwrap_or_else(|| vec![self.context(true)]);
        let left = std::mem::replace(&mut self.open, next);
        self.others.insert(std::mem::replace(&mut self.thread, thread), left);
    }
}

/// Where a context returns to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReturnPlace {
    /// The context does not return, or not with a return of its own.
    Nowhere,
    At(RunAddr),
    /// Where the context with this number returns, which was opened at once.
    As(u32),
}

/// The contexts that the first pass found.
pub(super) struct Contexts {
    returns: Vec<ReturnPlace>,
    /// The contexts when the part begins: its first execution runs.
    pub at_start: ContextTracker,
}

impl Contexts {
    /// The contexts of a recording, up to the end of a part. `part`: the instructions at which it
    /// begins and ends.
    ///
    /// # Errors
    /// The recording is damaged, or has several CPUs.
    pub(super) fn of(recording: &Recording, part: Range<u64>) -> Result<Contexts> {
        let mut entries = HashSet::new();
        executions(recording, part.clone(), |from, next, _, _| {
            if let Some(from) = from
                && next.is_kernel()
                && (!from.last.is_kernel() || !from.leads_to(next))
            {
                entries.insert(next);
            }
        })?;
        let mut tracker = ContextTracker { entries: Rc::new(entries), ..Default::default() };
        let (mut returns, mut at_start) = (Vec::new(), None);
        executions(recording, part, |from, next, thread, inside| {
            if let (None, Some(thread)) = (from, thread) {
                tracker.thread = thread;
            }
            let arrival = tracker.arrive(from, next);
            note(&arrival, next, &mut returns);
            thread.into_iter().for_each(|thread| tracker.switch(thread));
            if inside && at_start.is_none() {
                at_start = Some(tracker.clone());
            }
        })?;
        Ok(Contexts { returns, at_start: at_start.unwrap_or(tracker) })
    }

    /// Where a context returns to. `None`: the context does not return in the part.
    pub(super) fn returns_to(&self, number: u32) -> Option<RunAddr> {
        let mut at = number;
        loop {
            match self.returns.get(at as usize)? {
                ReturnPlace::At(addr) => return Some(*addr),
                // Numbers ascend, so this ends.
                ReturnPlace::As(later) if *later > at => at = *later,
                ReturnPlace::As(_) | ReturnPlace::Nowhere => return None,
            }
        }
    }

    /// The address at which a context returns in the trace, if that is known.
    pub(super) fn value(&self, context: &OpenContext) -> Option<u64> {
        match context.value {
            0 => Some(self.returns_to(context.number)?.0),
            known => Some(known),
        }
    }
}

/// Notes where the outermost context that an arrival closed returned to. The inner ones were left
/// without a return.
fn note(arrival: &Arrival, next: RunAddr, returns: &mut Vec<ReturnPlace>) {
    if let Arrival::Closed { contexts, opened } = arrival
        && let Some(outermost) = contexts.last()
    {
        let at = outermost.number as usize;
        if returns.len() <= at {
            returns.resize(at + 1, ReturnPlace::Nowhere);
        }
        returns[at] = opened.map_or(ReturnPlace::At(next), ReturnPlace::As);
    }
}

/// Calls `each` for every execution up to the end of a part: the end of the execution before, where
/// control arrives, the task that was switched to before, and whether the execution belongs to the
/// part.
fn executions(
    recording: &Recording,
    part: Range<u64>,
    each: impl FnMut(Option<&ExecutionEnd>, RunAddr, Option<Thread>, bool),
) -> Result<()> {
    let mut arrivals =
        Arrivals { part, at: 0, threads: Vec::new(), from: None, thread: None, each };
    let recording = OpenedRecording::whole(recording, "contexts")?.without_data();
    recording.walk(&mut arrivals).map(drop)
}

/// The observer behind [`executions`].
struct Arrivals<F> {
    part: Range<u64>,
    /// The instructions before the next execution.
    at: u64,
    threads: Vec<Thread>,
    from: Option<ExecutionEnd>,
    thread: Option<Thread>,
    each: F,
}

impl<F: FnMut(Option<&ExecutionEnd>, RunAddr, Option<Thread>, bool)> Observer for Arrivals<F> {
    fn begin(&mut self, header: &RecordingHeader, _has_data: bool) -> Result<Wants> {
        header.one_cpu().context("a trace of DynamoRIO is written of one CPU")?;
        Ok(Wants::default())
    }

    fn define(&mut self, _: &[Translation], _: &[TranslatedCode]) -> Result<()> {
        Ok(())
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.threads.extend(tasks.iter().map(Thread::of));
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        for event in piece.events() {
            if let StreamEvent::Task(task) = event {
                self.thread = self.threads.get(task.0 as usize).copied();
            }
            let Some((id, reached)) = event.execution() else { continue };
            let code = &piece.codes[id.0 as usize];
            let inside = self.part.contains(&self.at);
            self.at += reached.map_or(code.lengths.len() as u64, u64::from);
            (self.each)(self.from.as_ref(), code.addr, self.thread.take(), inside);
            self.from = Some(ExecutionEnd::new(code, reached.map(|reached| reached as u16)));
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.at >= self.part.end
    }
}
