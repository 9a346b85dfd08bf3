//! The words of a stream: what happened, in order, in words of 32 bits.
//!
//! ```text
//! bit 31 30 … 28 27 … 0
//!      0 ─────── id ────   translation `id` was executed, all of it
//!      1  0  0  0 n        the translation in the next word was left after n instructions
//!      1  0  0  1 id       task `id` is switched to; holds for what follows
//!      1  0  1  0 n        the workload executed marker n
//!      1  0  1  1 id       task `id` became able to run
//!      1  1  0  0 n        the guest's clock is n ticks later than at the last such word
//!      1  1  0  1 cpu      CPU `cpu` executes what follows
//! ```
//!
//! This module turns words into events and events into words. [`crate::tally`] checks that ids are
//! defined.

use crate::{CpuCount, CpuId, TaskId, TranslationId};

const KIND: u32 = 0xf000_0000;
const LEFT: u32 = 0x8000_0000;
const TASK: u32 = 0x9000_0000;
const MARKER: u32 = 0xa000_0000;
const WOKEN: u32 = 0xb000_0000;
const CLOCK: u32 = 0xc000_0000;
const CPU: u32 = 0xd000_0000;

/// Ids of translations are below this number.
pub(crate) const TRANSLATIONS: u32 = 0x8000_0000;
/// Ids of tasks, numbers of markers, and counts of instructions and ticks are below this number.
pub(crate) const OPERANDS: u32 = 0x1000_0000;

/// One event in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// Every instruction of the translation was reached.
    Executed(TranslationId),
    /// Only the first instructions were reached. The last of them raised an exception, or was begun
    /// again in a translation that is not recorded.
    Left {
        /// The translation that was left.
        translation: TranslationId,
        /// The number of instructions reached: at least 1, fewer than all.
        instructions: u32,
    },
    /// The task that executes what follows on this CPU. The event comes before the translation in
    /// which the switch happened.
    Task(TaskId),
    /// The workload executed a marker. The event comes before the translation with the marker.
    Marker(u32),
    /// A task became able to run. The event comes before the translation in which this happened.
    Woken(TaskId),
    /// The kernel read the processor's clock (TSC) at the end of the translation before. The value
    /// is the number of ticks since the last event of this kind, 0 in the first. A longer time than
    /// [`StreamEvent::MOST_TICKS`] takes several events.
    Clock(u32),
    /// The CPU that executes what follows, until the next event of this kind: CPU 0 before the
    /// first. One-CPU recordings have none.
    Cpu(CpuId),
}

impl StreamEvent {
    /// The largest number of ticks in one clock event.
    pub const MOST_TICKS: u32 = OPERANDS - 1;

    /// Whether a word is the first word of a [`StreamEvent::Left`], which has two.
    pub fn is_left(word: u32) -> bool {
        word & KIND == LEFT
    }

    /// The executed translation, and how many of its instructions were reached if not all were.
    /// `None`: the event is not an execution.
    #[inline]
    pub fn execution(self) -> Option<(TranslationId, Option<u32>)> {
        match self {
            StreamEvent::Executed(id) => Some((id, None)),
            StreamEvent::Left { translation, instructions } => {
                Some((translation, Some(instructions)))
            }
            StreamEvent::Task(_)
            | StreamEvent::Marker(_)
            | StreamEvent::Woken(_)
            | StreamEvent::Clock(_)
            | StreamEvent::Cpu(_) => None,
        }
    }

    /// Appends the event's words. The caller must give operands that fit their field; others give
    /// another event. The [`RecordingWriter`](crate::RecordingWriter) refuses ids that are not
    /// defined.
    pub fn append_to(self, words: &mut Vec<u32>) {
        match self {
            StreamEvent::Executed(id) => words.push(id.0 & !LEFT),
            StreamEvent::Left { translation, instructions } => {
                words.extend([LEFT | instructions & !KIND, translation.0 & !LEFT]);
            }
            StreamEvent::Task(id) => words.push(TASK | id.0 & !KIND),
            StreamEvent::Marker(number) => words.push(MARKER | number & !KIND),
            StreamEvent::Woken(id) => words.push(WOKEN | id.0 & !KIND),
            StreamEvent::Clock(ticks) => words.push(CLOCK | ticks & !KIND),
            StreamEvent::Cpu(cpu) => words.push(CPU | u32::from(cpu.0)),
        }
    }
}

/// The events of a stream from the [`RecordingReader`](crate::RecordingReader). The iteration ends
/// at a word that no writer makes.
pub fn events(words: &[u32]) -> StreamEvents<'_> {
    StreamEvents { words: words.iter() }
}

/// Splits the words into pieces of `size` or `size` + 1 words, so that no event is split.
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

/// Splits the words where another CPU goes on: before each [`StreamEvent::Cpu`]. The first turn has
/// no words when the CPU changes at once. The words of a recording of one CPU are one turn.
pub fn turns(words: &[u32], cpus: CpuCount) -> impl Iterator<Item = &[u32]> {
    // The second word of a `Left` is an id, and no id has the highest bit.
    let changes = |word: &u32| word & KIND == CPU;
    let (mut rest, mut begins) = (Some(words), 0);
    std::iter::from_fn(move || {
        let words = rest.take()?;
        if cpus == CpuCount::ONE {
            return Some(words);
        }
        let next = words[begins.min(words.len())..].iter().position(changes);
        let Some(next) = next else { return Some(words) };
        let (turn, behind) = words.split_at(begins + next);
        (rest, begins) = (Some(behind), 1);
        Some(turn)
    })
}

/// The iterator that [`events`] returns.
#[derive(Clone, Debug)]
pub struct StreamEvents<'a> {
    words: std::slice::Iter<'a, u32>,
}

impl StreamEvents<'_> {
    /// The number of words not yet read.
    pub(crate) fn words_left(&self) -> usize {
        self.words.len()
    }
}

impl Iterator for StreamEvents<'_> {
    type Item = StreamEvent;

    #[inline]
    fn next(&mut self) -> Option<StreamEvent> {
        let &word = self.words.next()?;
        if word < TRANSLATIONS {
            return Some(StreamEvent::Executed(TranslationId(word)));
        }
        let operand = word & !KIND;
        match word & KIND {
            LEFT => match self.words.next() {
                Some(&id) if id < TRANSLATIONS => Some(StreamEvent::Left {
                    translation: TranslationId(id),
                    instructions: operand,
                }),
                _ => self.stop(),
            },
            TASK => Some(StreamEvent::Task(TaskId(operand))),
            MARKER => Some(StreamEvent::Marker(operand)),
            WOKEN => Some(StreamEvent::Woken(TaskId(operand))),
            CLOCK => Some(StreamEvent::Clock(operand)),
            CPU => match u8::try_from(operand) {
                Ok(cpu) => Some(StreamEvent::Cpu(CpuId(cpu))),
                Err(_) => self.stop(),
            },
            _ => self.stop(),
        }
    }
}

impl StreamEvents<'_> {
    #[cold]
    fn stop(&mut self) -> Option<StreamEvent> {
        self.words = [].iter();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_back() {
        let given = [
            StreamEvent::Executed(TranslationId(0)),
            StreamEvent::Executed(TranslationId(TRANSLATIONS - 1)),
            StreamEvent::Left { translation: TranslationId(7), instructions: 3 },
            StreamEvent::Task(TaskId(OPERANDS - 1)),
            StreamEvent::Marker(0xffff),
            StreamEvent::Woken(TaskId(5)),
            StreamEvent::Clock(StreamEvent::MOST_TICKS),
            StreamEvent::Cpu(CpuId(u8::MAX)),
        ];
        let mut words = Vec::new();
        given.iter().for_each(|event| event.append_to(&mut words));
        assert_eq!(words.len(), 9);
        assert_eq!(events(&words).collect::<Vec<_>>(), given);
    }

    #[test]
    fn turns_begin_with_the_cpu_that_executes() {
        let two = CpuCount::new(2).unwrap();
        let words = [7, LEFT | 2, 3, CPU | 1, 5, CPU, CPU | 1, 9];
        let cut = |words: &'static [u32], cpus| turns(words, cpus).collect::<Vec<_>>();
        let of = |words: &[u32]| turns(words, two).map(<[u32]>::to_vec).collect::<Vec<_>>();
        assert_eq!(
            of(&words),
            [&[7, LEFT | 2, 3][..], &[CPU | 1, 5], &[CPU], &[CPU | 1, 9]].map(<[u32]>::to_vec)
        );
        assert_eq!(of(&words[3..5]), [&[][..], &[CPU | 1, 5]].map(<[u32]>::to_vec));
        assert_eq!(cut(&[], two), [&[] as &[u32]]);
        assert_eq!(turns(&words, CpuCount::ONE).collect::<Vec<_>>(), [&words[..]]);
    }

    #[test]
    fn pieces_hold_whole_events() {
        let words = [1, LEFT | 2, 3, 4, LEFT | 1, 0, LEFT | 1, 5, TASK, MARKER | 1];
        for size in 0..12 {
            let cut: Vec<&[u32]> = pieces(&words, size).collect();
            assert_eq!(cut.concat(), words);
            assert!(cut.iter().all(|piece| piece.len() <= size.max(1) + 1));
            let of_pieces: Vec<StreamEvent> = cut.iter().flat_map(|piece| events(piece)).collect();
            assert_eq!(of_pieces, events(&words).collect::<Vec<_>>(), "size {size}");
        }
        assert_eq!(pieces(&[], 5).count(), 0);
    }

    #[test]
    fn words_that_no_writer_makes_end_the_iteration() {
        for bad in [
            &[LEFT | 1][..],
            &[LEFT | 1, TASK],
            &[CPU | 256, 1],
            &[0xe000_0000, 1],
            &[0xffff_ffff, 1],
        ] {
            let words = [&[5, 6], bad].concat();
            let expected =
                [StreamEvent::Executed(TranslationId(5)), StreamEvent::Executed(TranslationId(6))];
            assert_eq!(events(&words).collect::<Vec<_>>(), expected, "{bad:x?}");
        }
    }
}
