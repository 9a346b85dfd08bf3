//! From events to fragments: which way control went.
//!
//! A *fragment* is one way in which a translation was run: entered by a return or otherwise; left
//! past its last instruction, by its branch, or midway. Which fragments ran does not depend on a
//! layout, so the recording is turned into fragments once, and every layout says once for each
//! fragment what it fetches.
//!
//! What a translation did at its end is seen at the start of the next one: behind it (`Next`), at
//! its branch's target (`Taken`), or elsewhere: then an exception or interrupt came in between
//! (`Open`). Where the interrupted code goes on is seen behind the `iret` that ends the
//! interruption; only then is it known what a conditional branch had decided, and what lies between
//! the interrupted code and its successor under a layout runs then (`LateNext`, `LateTaken`).

use crate::code::{Code, Last};
use anyhow::{Context, Result};
use sim::BranchKind;
use std::collections::{HashMap, VecDeque};
use trace::{Event, RunAddr, Translation, TranslationId};

/// A fragment, numbered from 0 in the order in which they first ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentId(pub u32);

/// How a translation was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    /// To the instruction behind the last.
    Next,
    /// By the branch that the last instruction is.
    Taken,
    /// All instructions ran, then came an exception or interrupt; what the last one decided is seen
    /// later or never.
    Open,
    /// After this many instructions, fewer than all.
    Cut(u16),
    /// Nothing of the translation runs: what an earlier `Open` left open was `Next`.
    LateNext,
    /// Nothing of the translation runs: what an earlier `Open` left open was `Taken`.
    LateTaken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    pub translation: TranslationId,
    /// Control came to what lies behind an earlier instruction, by the return from a call or from
    /// an interruption: under a layout, perhaps to the jump that was put behind that instruction.
    pub returned_into: bool,
    pub exit: Exit,
}

/// Endings that nobody could see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interruptions {
    /// Exceptions and interrupts seen between or within translations.
    pub seen: u64,
    /// Conditional branches of which it was never seen which way they went.
    pub unresolved: u64,
}

/// All that an execution of a translation looks at: one line of the host's cache.
#[repr(align(64))]
struct Seen {
    ends: Ends,
    /// Entered by a return or not × `Next`, `Taken`, `Open`.
    usual: [u32; 6],
}

/// The addresses around a translation's end.
#[derive(Clone, Copy)]
struct Ends {
    start: RunAddr,
    end: RunAddr,
    /// The branch's target; `end` where there is none.
    target: RunAddr,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Conditional,
    /// A jump or call with one target.
    Direct,
    Indirect,
    Return,
    InterruptReturn,
    /// Left midway: only for what was interrupted.
    Cut,
}

impl Ends {
    fn of(code: &Code) -> Ends {
        let end = code.end();
        Ends {
            start: code.addr,
            end,
            target: code.target().unwrap_or(end),
            kind: match code.last {
                Last::Plain => Kind::Plain,
                Last::Conditional { .. } => Kind::Conditional,
                Last::Taken(BranchKind::Return) => Kind::Return,
                Last::Jump { .. } | Last::Call { .. } => Kind::Direct,
                Last::Taken(_) => Kind::Indirect,
                Last::InterruptReturn => Kind::InterruptReturn,
            },
        }
    }

    /// How code that was interrupted behind its last instruction goes on if that is at `start`;
    /// `Open` if it cannot be.
    fn resumed(&self, start: RunAddr) -> Exit {
        match self.kind {
            Kind::Direct if start == self.target => Exit::Taken,
            Kind::Plain | Kind::Conditional => exit(self, start),
            _ => Exit::Open,
        }
    }
}

/// How the whole of `code` was left when control was next seen at `next`.
pub fn left(code: &Code, next: RunAddr) -> Exit {
    exit(&Ends::of(code), next)
}

/// The same when something came in between.
pub fn resumed(code: &Code, next: RunAddr) -> Exit {
    Ends::of(code).resumed(next)
}

/// Code that was interrupted before it was seen where it goes on.
#[derive(Clone, Copy)]
struct Interrupted {
    translation: TranslationId,
    ends: Ends,
    /// The instruction that ran last; it is begun again when it was it that raised the exception.
    last: RunAddr,
}

/// More tasks than this are hardly ever interrupted at once, those included that ended in a system
/// call; older ones are given up, and counted.
const INTERRUPTED_AT_ONCE: usize = 1024;

const NOT_YET: u32 = u32::MAX;

/// Follows the recorded execution.
#[derive(Default)]
pub struct Flow {
    pub codes: Vec<Code>,
    seen: Vec<Seen>,
    pub fragments: Vec<Fragment>,
    /// How often each fragment ran.
    pub counts: Vec<u64>,
    /// Every fragment; the usual ones are also found by their translation.
    known: HashMap<Fragment, FragmentId>,
    previous: Option<Previous>,
    interrupted: VecDeque<Interrupted>,
    pub interruptions: Interruptions,
}

#[derive(Clone, Copy)]
struct Previous {
    translation: TranslationId,
    returned_into: bool,
    ends: Ends,
}

impl Flow {
    pub fn define(&mut self, translation: &Translation) -> Result<()> {
        let code = Code::new(translation)?;
        let ends = Ends::of(&code);
        self.seen.push(Seen { ends, usual: [NOT_YET; 6] });
        self.codes.push(code);
        Ok(())
    }

    /// Appends the fragments that ran; the last execution stays open until the next call or
    /// [`Flow::finish`].
    pub fn follow(
        &mut self,
        events: impl Iterator<Item = Event>,
        ran: &mut Vec<FragmentId>,
    ) -> Result<()> {
        for event in events {
            match event {
                Event::Executed(id) => self.executed(id, None, ran)?,
                Event::Left { translation, instructions } => {
                    self.executed(translation, Some(instructions as u16), ran)?
                }
                Event::Task(_) | Event::Marker(_) | Event::Woken(_) | Event::Clock(_) => {}
            }
        }
        Ok(())
    }

    /// Kernel code of which a translation ran, as (start, end), ascending and apart.
    pub fn kernel_code(&self) -> Vec<(RunAddr, RunAddr)> {
        let mut ranges: Vec<_> = self
            .seen
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

    /// The recording ends; where its last translation went is not known.
    pub fn finish(&mut self, ran: &mut Vec<FragmentId>) {
        if let Some(previous) = self.previous.take() {
            self.run(previous.translation, previous.returned_into, Exit::Open, ran);
        }
        let open = std::mem::take(&mut self.interrupted);
        self.interruptions.unresolved +=
            open.iter().filter(|it| it.ends.kind == Kind::Conditional).count() as u64;
    }

    #[inline]
    fn executed(
        &mut self,
        id: TranslationId,
        cut: Option<u16>,
        ran: &mut Vec<FragmentId>,
    ) -> Result<()> {
        let seen = self.seen.get(id.0 as usize);
        let ends = seen.with_context(|| format!("translation {} is not defined", id.0))?.ends;
        let returned_into = match self.previous {
            Some(previous) => self.leave(&previous, ends.start, ran),
            None => self.goes_on_behind_cut(ends.start),
        };
        let previous = Previous { translation: id, returned_into, ends };
        self.previous = match cut {
            None => Some(previous),
            Some(instructions) => {
                self.run(id, returned_into, Exit::Cut(instructions), ran);
                self.cut(&previous, instructions);
                None
            }
        };
        Ok(())
    }

    /// Control went from `previous` to `next`. True when it came there by a return.
    #[inline]
    fn leave(&mut self, previous: &Previous, next: RunAddr, ran: &mut Vec<FragmentId>) -> bool {
        let exit = exit(&previous.ends, next);
        self.run(previous.translation, previous.returned_into, exit, ran);
        match previous.ends.kind {
            Kind::Return => true,
            Kind::InterruptReturn => !self.resume(next, ran) && next.is_kernel(),
            Kind::Direct if next != previous.ends.target && next.is_kernel() => {
                self.interrupt(previous);
                false
            }
            _ if exit == Exit::Open => {
                self.interrupt(previous);
                false
            }
            _ => false,
        }
    }

    #[inline]
    fn run(
        &mut self,
        translation: TranslationId,
        returned_into: bool,
        exit: Exit,
        ran: &mut Vec<FragmentId>,
    ) {
        let fragment = Fragment { translation, returned_into, exit };
        let usual = match exit {
            Exit::Next => 0,
            Exit::Taken => 1,
            Exit::Open => 2,
            Exit::Cut(_) | Exit::LateNext | Exit::LateTaken => {
                let id = self.intern(fragment);
                return self.count(id, ran);
            }
        } + usize::from(returned_into) * 3;
        let at = translation.0 as usize;
        let id = match self.seen[at].usual[usual] {
            NOT_YET => {
                let id = self.intern(fragment);
                self.seen[at].usual[usual] = id.0;
                id
            }
            known => FragmentId(known),
        };
        self.count(id, ran);
    }

    #[inline]
    fn count(&mut self, id: FragmentId, ran: &mut Vec<FragmentId>) {
        self.counts[id.0 as usize] += 1;
        ran.push(id);
    }

    #[cold]
    fn intern(&mut self, fragment: Fragment) -> FragmentId {
        *self.known.entry(fragment).or_insert_with(|| {
            let id = FragmentId(self.fragments.len() as u32);
            self.fragments.push(fragment);
            self.counts.push(0);
            id
        })
    }

    /// Remembers what was interrupted behind its last instruction.
    #[cold]
    fn interrupt(&mut self, previous: &Previous) {
        let Previous { translation, ends, .. } = *previous;
        self.interruptions.seen += 1;
        let last = self.codes[translation.0 as usize].last_addr();
        self.remember(Interrupted { translation, ends, last });
    }

    /// Remembers what was interrupted after `instructions`.
    #[cold]
    fn cut(&mut self, previous: &Previous, instructions: u16) {
        let Previous { translation, ends, .. } = *previous;
        self.interruptions.seen += 1;
        if ends.start.is_kernel() {
            let lengths = &self.codes[translation.0 as usize].lengths;
            let behind = |count: usize| {
                let bytes: u64 = lengths.iter().take(count).map(|&length| u64::from(length)).sum();
                RunAddr(ends.start.0.wrapping_add(bytes))
            };
            let (last, end) =
                (behind(usize::from(instructions).saturating_sub(1)), behind(instructions.into()));
            self.remember(Interrupted {
                translation,
                ends: Ends { end, kind: Kind::Cut, ..ends },
                last,
            });
        }
    }

    /// A translation was left midway and what is executed next is what lies behind: there was no
    /// interruption.
    fn goes_on_behind_cut(&mut self, next: RunAddr) -> bool {
        let directly = self
            .interrupted
            .back()
            .is_some_and(|it| it.ends.kind == Kind::Cut && it.ends.end == next);
        if directly {
            self.interrupted.pop_back();
        }
        directly
    }

    fn remember(&mut self, interrupted: Interrupted) {
        if self.interrupted.len() == INTERRUPTED_AT_ONCE
            && self
                .interrupted
                .pop_front()
                .is_some_and(|given_up| given_up.ends.kind == Kind::Conditional)
        {
            self.interruptions.unresolved += 1;
        }
        self.interrupted.push_back(interrupted);
    }

    /// An interruption ended and control is at `start`: the newest code that could go on there
    /// does. False when there is none.
    #[cold]
    fn resume(&mut self, start: RunAddr, ran: &mut Vec<FragmentId>) -> bool {
        let behind_cut = |it: &Interrupted| it.ends.kind == Kind::Cut && it.ends.end == start;
        let goes_on = |it: &Interrupted| {
            it.last == start || behind_cut(it) || it.ends.resumed(start) != Exit::Open
        };
        let Some(found) = self.interrupted.iter().rposition(goes_on) else {
            return false;
        };
        let Some(it) = self.interrupted.remove(found) else { return false };
        match it.ends.resumed(start) {
            Exit::Next => self.run(it.translation, false, Exit::LateNext, ran),
            Exit::Taken if it.ends.kind == Kind::Conditional => {
                self.run(it.translation, false, Exit::LateTaken, ran)
            }
            // Control returns behind an instruction, as behind a call.
            _ if behind_cut(&it) => return false,
            // A jump had done all it does, or the last instruction raised an exception and is begun
            // again.
            _ => {}
        }
        true
    }
}

/// How the code with these ends was left when control was next seen at `next`.
#[inline]
fn exit(ends: &Ends, next: RunAddr) -> Exit {
    match ends.kind {
        Kind::Direct | Kind::Indirect | Kind::Return | Kind::InterruptReturn | Kind::Cut => {
            Exit::Taken
        }
        Kind::Plain | Kind::Conditional if next == ends.end => Exit::Next,
        Kind::Conditional if next == ends.target => Exit::Taken,
        Kind::Plain | Kind::Conditional => exit_by_page_offset(ends, next),
    }
}

/// User code that several processes map at different addresses has the address of the first; within
/// a page offsets hold.
#[cold]
fn exit_by_page_offset(ends: &Ends, next: RunAddr) -> Exit {
    let same_offset = |a: RunAddr, b: RunAddr| (a.0 ^ b.0) & 0xfff == 0;
    if ends.start.is_kernel() || next.is_kernel() {
        Exit::Open
    } else if same_offset(next, ends.end) {
        Exit::Next
    } else if ends.kind == Kind::Conditional && same_offset(next, ends.target) {
        Exit::Taken
    } else {
        Exit::Open
    }
}
