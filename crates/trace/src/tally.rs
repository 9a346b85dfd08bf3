//! Checks that records follow the format's rules, and counts them. The writer and the reader use
//! the same code, so the totals of a recording mean the same to both.
//!
//! Input: records, in order. Output: totals, or the broken rule.

use crate::payload::{named, put_module};
use crate::stream::{OPERANDS, StreamEvent, TRANSLATIONS, events};
use crate::{CpuCount, CpuId, ModuleChange, RecordingTotals, Task, Translation, Violation};

/// Bit 15 of an element of `Tally::translations`: the translation is kernel code. The other bits
/// are its number of instructions.
const KERNEL: u16 = 1 << 15;

#[derive(Default)]
pub(crate) struct Tally {
    translations: Vec<u16>,
    tasks: u32,
    /// By load of a module: whether the module is loaded.
    modules: Vec<bool>,
    cpus: CpuCount,
    /// The version of the format has no readings of the clock.
    without_clock: bool,
    totals: RecordingTotals,
    /// The hash of the definitions in their order, and of the stream in its order. The writer may
    /// put the definitions anywhere before their use, so the two are hashed apart.
    defined: SequenceHash,
    happened: SequenceHash,
}

impl Tally {
    /// `has_clock`: the version of the format has readings of the clock. Every version that is
    /// written today has them.
    pub(crate) fn new(has_clock: bool, cpus: CpuCount) -> Tally {
        Tally { cpus, without_clock: !has_clock, ..Tally::default() }
    }

    pub(crate) fn next_translation(&self) -> u32 {
        self.translations.len() as u32
    }

    pub(crate) fn next_task(&self) -> u32 {
        self.tasks
    }

    /// The number of instructions of a translation; `None` when it is not defined.
    pub(crate) fn instructions(&self, id: crate::TranslationId) -> Option<u32> {
        self.translations.get(id.0 as usize).map(|entry| u32::from(entry & !KERNEL))
    }

    /// Whether a translation is kernel code.
    pub(crate) fn is_kernel(&self, id: crate::TranslationId) -> bool {
        self.translations.get(id.0 as usize).is_some_and(|entry| entry & KERNEL != 0)
    }

    pub(crate) fn define(&mut self, translation: &Translation) -> Result<(), Violation> {
        let Translation { id, addr, lengths, code } = translation;
        let (id, expected) = (*id, self.next_translation());
        if expected >= TRANSLATIONS {
            return Err(Violation::TooMany);
        }
        if id.0 != expected {
            return Err(Violation::TranslationOutOfOrder { id, expected });
        }
        if lengths.is_empty() || lengths.len() > Translation::MAX_INSTRUCTIONS {
            return Err(Violation::TranslationSize { id, instructions: lengths.len() });
        }
        if let Some(&length) =
            lengths.iter().find(|&&length| length == 0 || length > Translation::MAX_LENGTH)
        {
            return Err(Violation::InstructionSize { id, length });
        }
        let bytes = lengths.iter().map(|&length| usize::from(length)).sum();
        if code.len() != bytes {
            return Err(Violation::CodeSize { id, code: code.len(), lengths: bytes });
        }
        self.defined.word(lengths.len() as u32);
        self.defined.bytes(&addr.0.to_le_bytes());
        self.defined.bytes(lengths);
        self.defined.bytes(code);
        self.translations.push(lengths.len() as u16 | if addr.is_kernel() { KERNEL } else { 0 });
        self.totals.translations += 1;
        Ok(())
    }

    pub(crate) fn define_task(&mut self, task: &Task) -> Result<(), Violation> {
        let expected = self.tasks;
        if expected >= OPERANDS {
            return Err(Violation::TooMany);
        }
        if task.id.0 != expected {
            return Err(Violation::TaskOutOfOrder { id: task.id, expected });
        }
        self.defined.bytes(&task.pointer.0.to_le_bytes());
        self.defined.word(task.pid.map_or(0, |pid| pid.wrapping_add(1)));
        self.defined.bytes(&task.comm);
        self.tasks += 1;
        self.totals.tasks += 1;
        Ok(())
    }

    pub(crate) fn change_module(&mut self, change: &ModuleChange) -> Result<(), Violation> {
        let mut encoded = Vec::new();
        put_module(change, self.next_translation(), &mut encoded)?;
        self.defined.bytes(&encoded);
        match change {
            ModuleChange::Loaded(module) => {
                let (id, expected) = (module.id, self.modules.len() as u32);
                if expected >= OPERANDS {
                    return Err(Violation::TooMany);
                }
                if id.0 != expected {
                    return Err(Violation::ModuleOutOfOrder { id, expected });
                }
                self.modules.push(true);
            }
            ModuleChange::Unloaded(id) => {
                let loaded = self.modules.get_mut(id.0 as usize).filter(|loaded| **loaded);
                *loaded.ok_or(Violation::NotLoaded { id: *id })? = false;
            }
        }
        Ok(())
    }

    /// Checks and counts the words of one chunk. After an error, the totals have no meaning.
    pub(crate) fn stream(&mut self, words: &[u32]) -> Result<(), Violation> {
        let mut rest = words;
        while !rest.is_empty() {
            let plain = self.executed(rest);
            rest = &rest[plain..];
            let mut events = events(rest);
            match events.next() {
                None if rest.is_empty() => break,
                Some(StreamEvent::Clock(_)) if !self.without_clock => {}
                Some(StreamEvent::Cpu(cpu)) if self.cpus != CpuCount::ONE => self.cpu(cpu)?,
                None | Some(StreamEvent::Clock(_) | StreamEvent::Cpu(_)) => {
                    return Err(Violation::UnknownWord { at: words.len() - rest.len() });
                }
                Some(event) => self.event(event)?,
            }
            rest = &rest[rest.len() - events.words_left()..];
        }
        self.happened.words(words);
        Ok(())
    }

    /// Counts the leading words that are plain executions of defined translations, and returns
    /// their number.
    fn executed(&mut self, words: &[u32]) -> usize {
        // The upper half sums kernel instructions, the lower half user instructions. No half
        // overflows: a chunk has at most 2^22 words of 512 instructions.
        let mut sums = 0u64;
        let mut count = 0;
        for &word in words {
            let Some(&entry) = self.translations.get(word as usize) else {
                break;
            };
            sums += u64::from(entry & !KERNEL) << (entry >> 15 << 5);
            count += 1;
        }
        self.totals.kernel_instructions += sums >> 32;
        self.totals.user_instructions += sums & 0xffff_ffff;
        self.totals.executions += count as u64;
        count
    }

    fn cpu(&self, cpu: CpuId) -> Result<(), Violation> {
        let cpus = self.cpus.get();
        if cpu.0 < cpus { Ok(()) } else { Err(Violation::UnknownCpu { cpu, cpus }) }
    }

    fn event(&mut self, event: StreamEvent) -> Result<(), Violation> {
        match event {
            StreamEvent::Executed(id) => Err(Violation::UndefinedTranslation { id }),
            StreamEvent::Left { translation: id, instructions } => {
                let &entry = self
                    .translations
                    .get(id.0 as usize)
                    .ok_or(Violation::UndefinedTranslation { id })?;
                let of = u32::from(entry & !KERNEL);
                if instructions == 0 || instructions >= of {
                    return Err(Violation::LeftOutOfRange { id, instructions, of });
                }
                if entry & KERNEL != 0 {
                    self.totals.kernel_instructions += u64::from(instructions);
                } else {
                    self.totals.user_instructions += u64::from(instructions);
                }
                self.totals.executions += 1;
                self.totals.left += 1;
                Ok(())
            }
            StreamEvent::Task(id) | StreamEvent::Woken(id) if id.0 >= self.tasks => {
                Err(Violation::UndefinedTask { id })
            }
            StreamEvent::Task(_)
            | StreamEvent::Marker(_)
            | StreamEvent::Woken(_)
            | StreamEvent::Clock(_)
            | StreamEvent::Cpu(_) => Ok(()),
        }
    }

    pub(crate) fn totals(&self) -> RecordingTotals {
        let mut combined = SequenceHash::default();
        combined.bytes(&self.defined.value().to_le_bytes());
        combined.bytes(&self.happened.value().to_le_bytes());
        RecordingTotals { hash: combined.value(), ..self.totals }
    }

    /// Compares the totals of a clean end with the counted ones.
    pub(crate) fn check(&self, recorded: &RecordingTotals) -> Result<(), Violation> {
        let counted = self.totals();
        equal(&named(recorded), &named(&counted))
    }
}

/// Names the first total that differs from the counted one.
pub(crate) fn equal(
    recorded: &[(&'static str, u64)],
    counted: &[(&'static str, u64)],
) -> Result<(), Violation> {
    match recorded.iter().zip(counted).find(|(recorded, counted)| recorded != counted) {
        None => Ok(()),
        Some((&(what, recorded), &(_, counted))) => {
            Err(Violation::Totals { what, recorded, counted })
        }
    }
}

/// A hash of a sequence of words. Four lanes take the words in turn, so that a processor works on
/// four multiplications at once. Word i goes to lane i mod 4, however the words are cut into
/// chunks. The step is FNV-1a's (a bijection of the lane for a given word), on words of 32 bits
/// with a 64-bit odd multiplier. The hash distinguishes executions that differ by accident. It does
/// not protect against intent.
struct SequenceHash {
    lanes: [u64; 4],
    next: usize,
}

impl Default for SequenceHash {
    fn default() -> Self {
        SequenceHash {
            lanes: [1, 2, 3, 4].map(|lane: u64| lane.wrapping_mul(SequenceHash::MULTIPLIER)),
            next: 0,
        }
    }
}

impl SequenceHash {
    /// The fractional part of the golden ratio in 64 bits, made odd.
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

    fn step(lane: u64, word: u32) -> u64 {
        // The rotation moves the upper half, which depends on all bits, to where the next word
        // enters.
        (lane ^ u64::from(word)).wrapping_mul(Self::MULTIPLIER).rotate_left(32)
    }

    fn word(&mut self, word: u32) {
        self.lanes[self.next] = Self::step(self.lanes[self.next], word);
        self.next = (self.next + 1) % 4;
    }

    fn words(&mut self, words: &[u32]) {
        let (until_lane_0, words) = words.split_at(((4 - self.next) % 4).min(words.len()));
        until_lane_0.iter().for_each(|&word| self.word(word));
        let (fours, rest) = words.as_chunks::<4>();
        let mut lanes = self.lanes;
        for four in fours {
            for (lane, &word) in lanes.iter_mut().zip(four) {
                *lane = Self::step(*lane, word);
            }
        }
        self.lanes = lanes;
        rest.iter().for_each(|&word| self.word(word));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<4>();
        words.iter().for_each(|&word| self.word(u32::from_le_bytes(word)));
        if !rest.is_empty() {
            let mut last = [0; 4];
            last[..rest.len()].copy_from_slice(rest);
            self.word(u32::from_le_bytes(last));
        }
    }

    fn value(&self) -> u64 {
        let mut value = self.next as u64;
        for lane in self.lanes {
            value = Self::step(value ^ lane, (lane >> 32) as u32);
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_does_not_depend_on_how_words_are_cut() {
        let words: Vec<u32> = (0..103).map(|i: u32| i.wrapping_mul(2_654_435_761)).collect();
        let mut whole = SequenceHash::default();
        whole.words(&words);
        for cut in 0..words.len() {
            let mut parts = SequenceHash::default();
            parts.words(&words[..cut]);
            parts.words(&words[cut..]);
            assert_eq!(parts.value(), whole.value(), "cut at {cut}");
        }
    }

    #[test]
    fn the_hash_sees_order_count_and_value() {
        let value = |words: &[u32]| {
            let mut hash = SequenceHash::default();
            hash.words(words);
            hash.value()
        };
        let base = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        for i in 0..base.len() {
            for j in 0..i {
                let mut swapped = base;
                swapped.swap(i, j);
                assert_ne!(value(&swapped), value(&base), "{i} and {j} swapped");
            }
            let mut changed = base;
            changed[i] ^= 0x100;
            assert_ne!(value(&changed), value(&base), "word {i} changed");
        }
        assert_ne!(value(&base[..8]), value(&base));
        assert_ne!(value(&[0]), value(&[]));
    }
}
