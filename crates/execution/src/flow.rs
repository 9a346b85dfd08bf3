//! Turns events into fragments: the way of control through the translations.
//!
//! A *fragment* is one way in which a translation was run. It was entered by a return or otherwise.
//! It was left behind its last instruction, by its branch, or midway. Which fragments ran does not
//! depend on the layout. So a recording is turned into fragments once, and each layout states once
//! for each fragment what it fetches.
//!
//! The start of the next translation shows what a translation did at its end. The next one may
//! begin behind it (`Next`), at the target of its branch (`Taken`), or elsewhere: then an exception
//! or interrupt came in between (`Interrupted`). The interrupted code goes on after the `iret` that
//! ends the interruption. Only then does the decision of an interrupted conditional branch show.
//! The jump that a layout puts between the interrupted code and its successor runs at this time
//! (`LateNext`, `LateTaken`).
//!
//! Input: translations and events. Output: fragments, in the order in which they ran. This module
//! counts nothing.

use crate::code::{LastInstruction, TranslatedCode};
use crate::per_cpu::PerCpu;
use anyhow::{Context, Result};
use sim::BranchKind;
use std::collections::{HashMap, VecDeque};
use trace::{CpuId, RunAddr, StreamEvent, Translation, TranslationId};

/// The number of a fragment, in the order of the first runs, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentId(pub u32);

/// How a translation was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FragmentExit {
    /// Control goes to the instruction behind the last one.
    Next,
    /// Control goes to the target of the last instruction, a branch.
    Taken,
    /// All instructions ran, then an exception or interrupt came. The decision of the last
    /// instruction shows later or never.
    Interrupted,
    /// The translation was left after this number of instructions, fewer than all.
    Midway(u16),
    /// No instruction runs. An earlier `Interrupted` turned out to be `Next`.
    LateNext,
    /// No instruction runs. An earlier `Interrupted` turned out to be `Taken`.
    LateTaken,
}

/// One way in which a translation was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// The translation.
    pub translation: TranslationId,
    /// Whether a return, from a call or an interruption, brought control behind an earlier
    /// instruction. A layout may have put a jump behind that instruction.
    pub returned_into: bool,
    /// How the translation was left.
    pub exit: FragmentExit,
}

/// The interruptions of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interruptions {
    /// Exceptions and interrupts between or within translations.
    pub seen: u64,
    /// Conditional branches whose decision never showed.
    pub unresolved: u64,
}

/// The data that each execution of a translation reads: one line of the host's cache.
#[repr(align(64))]
struct FollowedTranslation {
    ends: TranslationEnds,
    /// The ids of the common fragments: (entered otherwise, entered by a return) × (`Next`,
    /// `Taken`, `Interrupted`).
    common: [u32; 6],
}

/// The addresses at which a translation begins and may end.
#[derive(Clone, Copy)]
struct TranslationEnds {
    start: RunAddr,
    end: RunAddr,
    /// The branch's target; `end` when the last instruction has none.
    target: RunAddr,
    kind: EndKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EndKind {
    Plain,
    Conditional,
    /// A jump or call with one target.
    Direct,
    Indirect,
    Return,
    InterruptReturn,
    /// An interrupted translation that was left midway.
    Midway,
}

impl TranslationEnds {
    fn of(code: &TranslatedCode) -> TranslationEnds {
        let end = code.end();
        TranslationEnds {
            start: code.addr,
            end,
            target: code.target().unwrap_or(end),
            kind: match code.last {
                LastInstruction::Plain => EndKind::Plain,
                LastInstruction::Conditional { .. } => EndKind::Conditional,
                LastInstruction::Taken(BranchKind::Return) => EndKind::Return,
                LastInstruction::Jump { .. } | LastInstruction::Call { .. } => EndKind::Direct,
                LastInstruction::Taken(_) => EndKind::Indirect,
                LastInstruction::InterruptReturn => EndKind::InterruptReturn,
            },
        }
    }

    /// How the code went on after an interruption behind its last instruction, when it went on at
    /// `start`. `Interrupted`: it cannot have gone on there.
    fn exit_after_interruption(&self, start: RunAddr) -> FragmentExit {
        match self.kind {
            EndKind::Direct if start == self.target => FragmentExit::Taken,
            EndKind::Plain | EndKind::Conditional => exit_from(self, start),
            _ => FragmentExit::Interrupted,
        }
    }
}

/// How the whole `code` was left when control next showed at `next`.
pub fn exit_to(code: &TranslatedCode, next: RunAddr) -> FragmentExit {
    exit_from(&TranslationEnds::of(code), next)
}

/// How the whole `code` was left when control showed at `next` after an interruption.
pub fn exit_after_interruption(code: &TranslatedCode, next: RunAddr) -> FragmentExit {
    TranslationEnds::of(code).exit_after_interruption(next)
}

/// Code that was interrupted before its successor showed.
#[derive(Clone, Copy)]
struct InterruptedCode {
    /// The CPU that was interrupted. The code may go on on another one.
    cpu: CpuId,
    translation: TranslationId,
    ends: TranslationEnds,
    /// The last instruction that ran. It is begun again when it raised the exception.
    last: RunAddr,
}

/// The largest number of interrupted codes that are remembered. Fewer tasks are interrupted at
/// once, including those that ended in a system call. Beyond this number, the oldest ones are
/// dropped and counted.
const INTERRUPTED_AT_ONCE: usize = 1024;

const NOT_YET: u32 = u32::MAX;

/// Follows the recorded execution and turns it into fragments.
#[derive(Default)]
pub struct ExecutionFlow {
    /// The translations' code, by translation.
    pub codes: Vec<TranslatedCode>,
    translations: Vec<FollowedTranslation>,
    /// The fragments, by number.
    pub fragments: Vec<Fragment>,
    /// How often each fragment ran.
    pub counts: Vec<u64>,
    /// The number of every fragment. The common ones are also found through their translation.
    numbers: HashMap<Fragment, FragmentId>,
    /// The last execution of each CPU, as long as it is open.
    previous: PerCpu<Option<PreviousExecution>>,
    interrupted: VecDeque<InterruptedCode>,
    /// The interruptions so far.
    pub interruptions: Interruptions,
}

/// Small, because it is written and read for each execution. Its ends are those of its translation.
#[derive(Clone, Copy)]
struct PreviousExecution {
    translation: TranslationId,
    returned_into: bool,
}

impl ExecutionFlow {
    /// Learns a translation. Translations come in the order of their ids.
    ///
    /// # Errors
    /// The translation has no instruction.
    pub fn define(&mut self, translation: &Translation) -> Result<()> {
        self.define_code(TranslatedCode::new(translation)?);
        Ok(())
    }

    /// Learns a translation by its code.
    pub(crate) fn define_code(&mut self, code: TranslatedCode) {
        let ends = TranslationEnds::of(&code);
        self.translations.push(FollowedTranslation { ends, common: [NOT_YET; 6] });
        self.codes.push(code);
    }

    /// Appends the fragments that ran. Calls `executed` behind each execution, with all
    /// `fragments`. The last execution of each CPU stays open until the next call or
    /// [`ExecutionFlow::finish_cpu`].
    ///
    /// # Errors
    /// An event names a translation that is not defined.
    pub fn follow(
        &mut self,
        events: impl Iterator<Item = StreamEvent>,
        fragments: &mut Vec<FragmentId>,
        mut executed: impl FnMut(&[FragmentId]),
    ) -> Result<()> {
        for event in events {
            match event {
                StreamEvent::Executed(id) => self.executed(id, None, fragments)?,
                StreamEvent::Left { translation, instructions } => {
                    self.executed(translation, Some(instructions as u16), fragments)?
                }
                StreamEvent::Cpu(cpu) => {
                    self.turn_to(cpu);
                    continue;
                }
                StreamEvent::Task(_)
                | StreamEvent::Marker(_)
                | StreamEvent::Woken(_)
                | StreamEvent::Clock(_) => continue,
            }
            executed(fragments);
        }
        Ok(())
    }

    /// Another CPU goes on where it stopped.
    pub fn turn_to(&mut self, cpu: CpuId) {
        self.previous.turn_to(cpu, || None);
    }

    /// The CPU that executes.
    pub fn cpu(&self) -> CpuId {
        self.previous.cpu()
    }

    /// The ranges of kernel code that was translated, as (start, end), ascending and disjoint.
    pub fn kernel_code(&self) -> Vec<(RunAddr, RunAddr)> {
        let mut ranges: Vec<_> = self
            .translations
            .iter()
            .map(|seen| (seen.ends.start, seen.ends.end))
            .filter(|(start, _)| start.is_kernel())
            .collect();
        ranges.sort_unstable();
        let mut apart: Vec<(RunAddr, RunAddr)> = Vec::new();
        for (start, end) in ranges {
            match apart.last_mut() {
                Some(last) if start <= last.1 => last.1 = end.max(last.1),
                _ => apart.push((start, end)),
            }
        }
        apart
    }

    /// Ends the recording of one CPU, which may have its last fragment now. The successor of its
    /// last translation is not known.
    pub fn finish_cpu(&mut self, cpu: CpuId, fragments: &mut Vec<FragmentId>) {
        self.turn_to(cpu);
        if let Some(previous) = self.previous.current.take() {
            self.run(
                previous.translation,
                previous.returned_into,
                FragmentExit::Interrupted,
                fragments,
            );
        }
    }

    /// Ends the recording. Call [`ExecutionFlow::finish_cpu`] for each CPU before.
    pub fn finish(&mut self) {
        let open = std::mem::take(&mut self.interrupted);
        self.interruptions.unresolved +=
            open.iter().filter(|it| it.ends.kind == EndKind::Conditional).count() as u64;
    }

    /// The CPUs that have executed, and those with lower numbers.
    pub fn cpus(&self) -> impl Iterator<Item = CpuId> + use<> {
        self.previous.cpus()
    }

    #[inline]
    fn executed(
        &mut self,
        id: TranslationId,
        cut: Option<u16>,
        fragments: &mut Vec<FragmentId>,
    ) -> Result<()> {
        let seen = self.translations.get(id.0 as usize);
        let start =
            seen.with_context(|| format!("translation {} is not defined", id.0))?.ends.start;
        let returned_into = match self.previous.current {
            Some(previous) => self.leave(previous, start, fragments),
            None => self.continues_after_midway(start),
        };
        let previous = PreviousExecution { translation: id, returned_into };
        self.previous.current = match cut {
            None => Some(previous),
            Some(instructions) => {
                self.run(id, returned_into, FragmentExit::Midway(instructions), fragments);
                self.cut(id, instructions);
                None
            }
        };
        Ok(())
    }

    /// Control went from `previous` to `next`. Returns true if a return brought it there.
    #[inline]
    fn leave(
        &mut self,
        previous: PreviousExecution,
        next: RunAddr,
        fragments: &mut Vec<FragmentId>,
    ) -> bool {
        let PreviousExecution { translation, returned_into } = previous;
        let ends = &self.translations[translation.0 as usize].ends;
        let (kind, target, exit) = (ends.kind, ends.target, exit_from(ends, next));
        self.run(translation, returned_into, exit, fragments);
        match kind {
            EndKind::Return => true,
            EndKind::InterruptReturn => !self.resume(next, fragments) && next.is_kernel(),
            EndKind::Direct if next != target && next.is_kernel() => {
                self.interrupt(translation);
                false
            }
            _ if exit == FragmentExit::Interrupted => {
                self.interrupt(translation);
                false
            }
            _ => false,
        }
    }

    #[inline(always)]
    fn run(
        &mut self,
        translation: TranslationId,
        returned_into: bool,
        exit: FragmentExit,
        fragments: &mut Vec<FragmentId>,
    ) {
        let fragment = Fragment { translation, returned_into, exit };
        let common = match exit {
            FragmentExit::Next => 0,
            FragmentExit::Taken => 1,
            FragmentExit::Interrupted => 2,
            FragmentExit::Midway(_) | FragmentExit::LateNext | FragmentExit::LateTaken => {
                let id = self.intern(fragment);
                return self.count(id, fragments);
            }
        } + usize::from(returned_into) * 3;
        let at = translation.0 as usize;
        let id = match self.translations[at].common[common] {
            NOT_YET => {
                let id = self.intern(fragment);
                self.translations[at].common[common] = id.0;
                id
            }
            known => FragmentId(known),
        };
        self.count(id, fragments);
    }

    #[inline]
    fn count(&mut self, id: FragmentId, fragments: &mut Vec<FragmentId>) {
        self.counts[id.0 as usize] += 1;
        fragments.push(id);
    }

    #[cold]
    fn intern(&mut self, fragment: Fragment) -> FragmentId {
        *self.numbers.entry(fragment).or_insert_with(|| {
            let id = FragmentId(self.fragments.len() as u32);
            self.fragments.push(fragment);
            self.counts.push(0);
            id
        })
    }

    /// Remembers code that was interrupted behind its last instruction.
    #[cold]
    fn interrupt(&mut self, translation: TranslationId) {
        let ends = self.translations[translation.0 as usize].ends;
        self.interruptions.seen += 1;
        let last = self.codes[translation.0 as usize].last_addr();
        self.remember(InterruptedCode { cpu: self.cpu(), translation, ends, last });
    }

    /// Remembers code that was interrupted after `instructions`.
    #[cold]
    fn cut(&mut self, translation: TranslationId, instructions: u16) {
        let ends = self.translations[translation.0 as usize].ends;
        self.interruptions.seen += 1;
        if ends.start.is_kernel() {
            let lengths = &self.codes[translation.0 as usize].lengths;
            let behind = |count: usize| {
                let bytes: u64 = lengths.iter().take(count).map(|&length| u64::from(length)).sum();
                RunAddr(ends.start.0.wrapping_add(bytes))
            };
            let (last, end) =
                (behind(usize::from(instructions).saturating_sub(1)), behind(instructions.into()));
            self.remember(InterruptedCode {
                cpu: self.cpu(),
                translation,
                ends: TranslationEnds { end, kind: EndKind::Midway, ..ends },
                last,
            });
        }
    }

    /// A translation was left midway. Returns true if the next execution begins right behind it, so
    /// that there was no interruption.
    fn continues_after_midway(&mut self, next: RunAddr) -> bool {
        let newest = self.interrupted.iter().rposition(|it| it.cpu == self.cpu());
        let directly = newest.filter(|&at| {
            let it = &self.interrupted[at];
            it.ends.kind == EndKind::Midway && it.ends.end == next
        });
        directly.is_some_and(|at| self.interrupted.remove(at).is_some())
    }

    fn remember(&mut self, interrupted: InterruptedCode) {
        if self.interrupted.len() == INTERRUPTED_AT_ONCE
            && self
                .interrupted
                .pop_front()
                .is_some_and(|given_up| given_up.ends.kind == EndKind::Conditional)
        {
            self.interruptions.unresolved += 1;
        }
        self.interrupted.push_back(interrupted);
    }

    /// An interruption ended, and control is at `start`. The newest interrupted code that can go on
    /// there goes on. Returns false if there is no such code.
    #[cold]
    fn resume(&mut self, start: RunAddr, fragments: &mut Vec<FragmentId>) -> bool {
        let after_midway =
            |it: &InterruptedCode| it.ends.kind == EndKind::Midway && it.ends.end == start;
        let can_continue = |it: &InterruptedCode| {
            it.last == start
                || after_midway(it)
                || it.ends.exit_after_interruption(start) != FragmentExit::Interrupted
        };
        let cpu = self.cpu();
        let own = |it: &InterruptedCode| it.cpu == cpu && can_continue(it);
        // A task that moved from another CPU goes on here.
        let found = self.interrupted.iter().rposition(own);
        let found = found.or_else(|| self.interrupted.iter().rposition(can_continue));
        let Some(found) = found else {
            return false;
        };
        let Some(it) = self.interrupted.remove(found) else { return false };
        match it.ends.exit_after_interruption(start) {
            FragmentExit::Next => {
                self.run(it.translation, false, FragmentExit::LateNext, fragments)
            }
            FragmentExit::Taken if it.ends.kind == EndKind::Conditional => {
                self.run(it.translation, false, FragmentExit::LateTaken, fragments)
            }
            // Control returns behind an instruction, as it does behind a call.
            _ if after_midway(&it) => return false,
            // A jump was complete, or the last instruction raised an exception and is begun again.
            _ => {}
        }
        true
    }
}

/// How the code with these ends was left when control next showed at `next`.
#[inline]
fn exit_from(ends: &TranslationEnds, next: RunAddr) -> FragmentExit {
    match ends.kind {
        EndKind::Direct
        | EndKind::Indirect
        | EndKind::Return
        | EndKind::InterruptReturn
        | EndKind::Midway => FragmentExit::Taken,
        EndKind::Plain | EndKind::Conditional if next == ends.end => FragmentExit::Next,
        EndKind::Conditional if next == ends.target => FragmentExit::Taken,
        EndKind::Plain | EndKind::Conditional => exit_by_page_offset(ends, next),
    }
}

/// Several processes may map user code at different addresses. The recording has the addresses of
/// the first. Offsets within a page are the same for all.
#[cold]
fn exit_by_page_offset(ends: &TranslationEnds, next: RunAddr) -> FragmentExit {
    let same_offset = |a: RunAddr, b: RunAddr| (a.0 ^ b.0) & 0xfff == 0;
    if ends.start.is_kernel() || next.is_kernel() {
        FragmentExit::Interrupted
    } else if same_offset(next, ends.end) {
        FragmentExit::Next
    } else if ends.kind == EndKind::Conditional && same_offset(next, ends.target) {
        FragmentExit::Taken
    } else {
        FragmentExit::Interrupted
    }
}
