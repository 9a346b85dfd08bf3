//! The words of a stream: what happened, in order, 32 bits at a time.
//!
//! ```text
//! bit 31 30 … 28 27 … 0
//!      0 ─────── id ────   translation `id` was executed, all of it
//!      1  0  0  0 n        the translation in the next word was left: only its first n instructions were reached
//!      1  0  0  1 id       task `id` is switched to; holds for what follows
//!      1  0  1  0 n        the workload executed marker n
//!      1  0  1  1 id       task `id` became able to run
//!      1  1  0  0 n        the clock of the guest's processor is n ticks later than at the last such word
//! ```
//!
//! Gives events for words and words for events; whether ids are defined is `tally`'s concern.

use crate::{TaskId, TranslationId};

const KIND: u32 = 0xf000_0000;
const LEFT: u32 = 0x8000_0000;
const TASK: u32 = 0x9000_0000;
const MARKER: u32 = 0xa000_0000;
const WOKEN: u32 = 0xb000_0000;
const CLOCK: u32 = 0xc000_0000;

/// Ids of translations are below this.
pub(crate) const TRANSLATIONS: u32 = 0x8000_0000;
/// Ids of tasks, numbers of markers, counts of instructions and of ticks are below this.
pub(crate) const OPERANDS: u32 = 0x1000_0000;

/// One thing that happened in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Every instruction of the translation was reached.
    Executed(TranslationId),
    /// Only the first `instructions` (at least 1, fewer than all) were reached; the last of them
    /// raised an exception or was begun again in a translation that is not recorded.
    Left { translation: TranslationId, instructions: u32 },
    /// The task that executes what follows. Stands before the translation in which the switch
    /// happened.
    Task(TaskId),
    /// The workload executed a marker. Stands before the translation in which it did.
    Marker(u32),
    /// A task became able to run. Stands before the translation in which it did.
    Woken(TaskId),
    /// The kernel has read the processor's clock (TSC), behind the translation that did: so many
    /// ticks more than at the event of this kind before, 0 in the first. More than
    /// [`Event::MOST_TICKS`] are several events.
    Clock(u32),
}

impl Event {
    /// What an event of the clock holds at most.
    pub const MOST_TICKS: u32 = OPERANDS - 1;

    /// Whether a word is the first of the two of a translation that was left.
    pub fn is_left(word: u32) -> bool {
        word & KIND == LEFT
    }

    /// Appends the event's words. Operands that do not fit their field are the caller's error and
    /// give another event; the [`Writer`](crate::Writer) refuses what was not defined.
    pub fn append_to(self, words: &mut Vec<u32>) {
        match self {
            Event::Executed(id) => words.push(id.0 & !LEFT),
            Event::Left { translation, instructions } => {
                words.extend([LEFT | instructions & !KIND, translation.0 & !LEFT]);
            }
            Event::Task(id) => words.push(TASK | id.0 & !KIND),
            Event::Marker(number) => words.push(MARKER | number & !KIND),
            Event::Woken(id) => words.push(WOKEN | id.0 & !KIND),
            Event::Clock(ticks) => words.push(CLOCK | ticks & !KIND),
        }
    }
}

/// The events of a stream that the [`Reader`](crate::Reader) gave. On words that no writer makes
/// the iteration ends.
pub fn events(words: &[u32]) -> Events<'_> {
    Events { words: words.iter() }
}

/// The words in pieces of `size` or one more: none is cut within an event.
pub fn pieces(words: &[u32], size: usize) -> impl Iterator<Item = &[u32]> {
    let mut rest = words;
    std::iter::from_fn(move || {
        let at = size.max(1).min(rest.len());
        let begins_two = at.checked_sub(1).is_some_and(|last| rest[last] & KIND == LEFT);
        let (piece, behind) = rest.split_at((at + usize::from(begins_two)).min(rest.len()));
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

/// See [`events`].
#[derive(Clone, Debug)]
pub struct Events<'a> {
    words: std::slice::Iter<'a, u32>,
}

impl Events<'_> {
    /// How many words are not yet read.
    pub(crate) fn words_left(&self) -> usize {
        self.words.len()
    }
}

impl Iterator for Events<'_> {
    type Item = Event;

    #[inline]
    fn next(&mut self) -> Option<Event> {
        let &word = self.words.next()?;
        if word < TRANSLATIONS {
            return Some(Event::Executed(TranslationId(word)));
        }
        let operand = word & !KIND;
        match word & KIND {
            LEFT => match self.words.next() {
                Some(&id) if id < TRANSLATIONS => {
                    Some(Event::Left { translation: TranslationId(id), instructions: operand })
                }
                _ => self.stop(),
            },
            TASK => Some(Event::Task(TaskId(operand))),
            MARKER => Some(Event::Marker(operand)),
            WOKEN => Some(Event::Woken(TaskId(operand))),
            CLOCK => Some(Event::Clock(operand)),
            _ => self.stop(),
        }
    }
}

impl Events<'_> {
    #[cold]
    fn stop(&mut self) -> Option<Event> {
        self.words = [].iter();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_their_words() {
        let given = [
            Event::Executed(TranslationId(0)),
            Event::Executed(TranslationId(TRANSLATIONS - 1)),
            Event::Left { translation: TranslationId(7), instructions: 3 },
            Event::Task(TaskId(OPERANDS - 1)),
            Event::Marker(0xffff),
            Event::Woken(TaskId(5)),
            Event::Clock(Event::MOST_TICKS),
        ];
        let mut words = Vec::new();
        given.iter().for_each(|event| event.append_to(&mut words));
        assert_eq!(words.len(), 8);
        assert_eq!(events(&words).collect::<Vec<_>>(), given);
    }

    #[test]
    fn pieces_hold_whole_events() {
        let words = [1, LEFT | 2, 3, 4, LEFT | 1, 0, LEFT | 1, 5, TASK, MARKER | 1];
        for size in 0..12 {
            let cut: Vec<&[u32]> = pieces(&words, size).collect();
            assert_eq!(cut.concat(), words);
            assert!(cut.iter().all(|piece| piece.len() <= size.max(1) + 1));
            let of_pieces: Vec<Event> = cut.iter().flat_map(|piece| events(piece)).collect();
            assert_eq!(of_pieces, events(&words).collect::<Vec<_>>(), "size {size}");
        }
        assert_eq!(pieces(&[], 5).count(), 0);
    }

    #[test]
    fn words_that_no_writer_makes_end_the_iteration() {
        for bad in [&[LEFT | 1][..], &[LEFT | 1, TASK], &[0xd000_0000, 1], &[0xffff_ffff, 1]] {
            let words = [&[5, 6], bad].concat();
            let expected = [Event::Executed(TranslationId(5)), Event::Executed(TranslationId(6))];
            assert_eq!(events(&words).collect::<Vec<_>>(), expected, "{bad:x?}");
        }
    }
}
