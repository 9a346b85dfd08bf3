//! Who holds which lock, and the counts of each lock.
//!
//! Input: attempts, releases and their times. Output: counts by lock. This module knows neither
//! instructions nor names.

use super::functions::{HoldMode, LockKind};
use memory::misses::owners::{MissOwner, StructureId};
use std::collections::HashMap;
use std::ops::AddAssign;

/// Who holds a lock, or waits for it: the number of a CPU or of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Cpu(u8),
    Task(u32),
}

/// A function and a task, by the numbers of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Party {
    pub function: u32,
    pub task: u32,
}

/// A wait that is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Waited {
    pub cycles: f64,
    /// Whether the task left the CPU.
    pub slept: bool,
    /// Who held the lock, if that is known.
    pub holder: Option<Party>,
}

/// A lock that is held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Hold {
    pub holder: Holder,
    pub mode: HoldMode,
    /// Whether the attempt certainly succeeded. Otherwise the release will show it.
    pub certain: bool,
    /// Whether the slow path may return without the lock.
    pub may_give_up: bool,
    pub party: Party,
    /// In cycles on the holder's clock.
    pub began: f64,
    pub waited: Option<Waited>,
}

impl Hold {
    fn conflicts(&self, mode: HoldMode) -> bool {
        self.mode == HoldMode::Exclusive || mode == HoldMode::Exclusive
    }
}

/// The counts of a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LockCounts {
    pub acquisitions: u64,
    pub contended: u64,
    pub slept: u64,
    pub failed: u64,
    pub reads: u64,
    pub held_before: u64,
    pub held_behind: u64,
    pub lost: u64,
    pub awaited: u64,
    pub awaited_cycles: f64,
    pub wait: f64,
    pub longest_wait: f64,
    pub hold: f64,
    pub longest_hold: f64,
}

impl AddAssign for LockCounts {
    fn add_assign(&mut self, other: LockCounts) {
        self.acquisitions += other.acquisitions;
        self.contended += other.contended;
        self.slept += other.slept;
        self.failed += other.failed;
        self.reads += other.reads;
        self.held_before += other.held_before;
        self.held_behind += other.held_behind;
        self.lost += other.lost;
        self.awaited += other.awaited;
        self.awaited_cycles += other.awaited_cycles;
        self.wait += other.wait;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.hold += other.hold;
        self.longest_hold = self.longest_hold.max(other.longest_hold);
    }
}

/// A lock: a word of memory, as long as it belongs to one data structure.
#[derive(Clone, Debug)]
pub(super) struct LockUses {
    pub kind: LockKind,
    pub owner: MissOwner,
    /// The virtual address of the first access.
    pub addr: u64,
    pub physical: u64,
    /// The physical address of the first of the pages that were allocated together.
    pub pages: u64,
    /// Whether the use of its frame was unknown at first.
    pub was_pending: bool,
    pub counts: LockCounts,
    /// Acquisitions by function.
    pub functions: Vec<(u32, u64)>,
    /// Waits, by waiter and holder: their number and their cycles.
    pub waits: HashMap<(Party, Option<Party>), (u64, f64)>,
}

impl LockUses {
    fn count(&mut self, hold: &Hold, cycles: Option<f64>) {
        let counts = &mut self.counts;
        counts.acquisitions += 1;
        if let Some(cycles) = cycles {
            counts.hold += cycles;
            counts.longest_hold = counts.longest_hold.max(cycles);
        }
        let function = hold.party.function;
        match self.functions.iter_mut().find(|(known, _)| *known == function) {
            Some((_, times)) => *times += 1,
            None => self.functions.push((function, 1)),
        }
        if let Some(waited) = hold.waited {
            counts.contended += 1;
            counts.slept += u64::from(waited.slept);
            self.waits_for(hold.party, waited.holder, waited.cycles);
        }
    }

    pub(super) fn waits_for(&mut self, party: Party, holder: Option<Party>, cycles: f64) {
        self.counts.wait += cycles;
        self.counts.longest_wait = self.counts.longest_wait.max(cycles);
        let wait = self.waits.entry((party, holder)).or_default();
        wait.0 += 1;
        wait.1 += cycles;
    }
}

/// A word that is a lock, or was one.
#[derive(Clone, Debug)]
struct LockWord {
    /// The index of its present uses.
    uses: usize,
    holds: Vec<Hold>,
}

/// Where a lock lies, as far as this is known at a use of the lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockPlace {
    pub kind: LockKind,
    pub addr: u64,
    pub physical: u64,
    pub pages: u64,
    pub owner: MissOwner,
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AttemptResult {
    /// The one that tried holds the lock.
    Held,
    /// Someone else holds the lock.
    Blocked(Party),
    /// Someone else holds the lock, and the attempt is over.
    GaveUp,
}

const FILTER_WORDS: usize = 1 << 12;

/// All locks of a recording.
pub(super) struct LockBook {
    words: HashMap<u64, LockWord>,
    /// One bit for each remainder of an address, set if the address of a lock has it.
    filter: Box<[u64; FILTER_WORDS]>,
    pub uses: Vec<LockUses>,
    /// By frame whose use is not known yet: the uses of the locks in it.
    pending: HashMap<u64, Vec<usize>>,
}

impl LockBook {
    pub(super) fn new() -> LockBook {
        LockBook {
            words: HashMap::new(),
            filter: Box::new([0; FILTER_WORDS]),
            uses: Vec::new(),
            pending: HashMap::new(),
        }
    }

    #[inline]
    fn bit(physical: u64) -> (usize, u64) {
        let bit = (physical >> 2) as usize % (64 * FILTER_WORDS);
        (bit / 64, 1 << (bit % 64))
    }

    /// The kind of a lock at a physical address.
    #[inline]
    pub(super) fn kind_at(&self, physical: u64) -> Option<LockKind> {
        let (at, bit) = LockBook::bit(physical);
        match self.filter[at] & bit {
            0 => None,
            _ => self.words.get(&physical).map(|word| self.uses[word.uses].kind),
        }
    }

    /// The word at a place. It is a new lock when nobody holds the old one and its kind or owner
    /// has changed.
    fn word(&mut self, place: LockPlace) -> &mut LockWord {
        let LockPlace { kind, addr, physical, pages, owner } = place;
        let known = self.words.get(&physical);
        let is_new = known.is_none_or(|word| {
            let uses = &self.uses[word.uses];
            word.holds.is_empty() && (uses.kind, uses.owner) != (kind, owner)
        });
        if is_new {
            let uses = self.uses.len();
            self.uses.push(LockUses {
                kind,
                owner,
                addr,
                physical,
                pages,
                was_pending: matches!(owner, MissOwner::Pending(_)),
                counts: LockCounts::default(),
                functions: Vec::new(),
                waits: HashMap::new(),
            });
            if let MissOwner::Pending(frame) = owner {
                self.pending.entry(frame).or_default().push(uses);
            }
            let (at, bit) = LockBook::bit(physical);
            self.filter[at] |= bit;
            self.words.entry(physical).or_insert(LockWord { uses, holds: Vec::new() }).uses = uses;
        }
        self.words.get_mut(&physical).expect("the word was put in")
    }

    /// The structure in a frame is known now.
    pub(super) fn settle(&mut self, frame: u64, id: StructureId) {
        for at in self.pending.remove(&frame).into_iter().flatten() {
            self.uses[at].owner = MissOwner::Known(id);
        }
    }

    /// The frames whose use is not known yet, ascending.
    pub(super) fn pending(&self) -> Vec<u64> {
        let mut frames: Vec<u64> = self.pending.keys().copied().collect();
        frames.sort_unstable();
        frames
    }

    /// Someone tries to get a lock. `tries`: whether the attempt ends when someone else holds the
    /// lock.
    pub(super) fn attempt(&mut self, place: LockPlace, hold: Hold, tries: bool) -> AttemptResult {
        let word = self.word(place);
        let uses = word.uses;
        let others = |it: &&Hold| it.holder != hold.holder && it.conflicts(hold.mode);
        if tries {
            if word.holds.iter().any(|it| it.certain && it.conflicts(hold.mode)) {
                self.uses[uses].counts.failed += 1;
                return AttemptResult::GaveUp;
            }
            word.holds.push(Hold { certain: false, ..hold });
            return AttemptResult::Held;
        }
        // Nobody waits for a lock that it already holds, so its release was not seen.
        let stale = |it: &Hold| it.holder == hold.holder && it.conflicts(hold.mode);
        let mut lost = Vec::new();
        word.holds.retain(|it| {
            !stale(it) || {
                lost.push(*it);
                false
            }
        });
        let blocked = word.holds.iter().filter(others).max_by_key(|it| it.certain);
        let result = blocked.map_or(AttemptResult::Held, |it| AttemptResult::Blocked(it.party));
        if result == AttemptResult::Held {
            word.holds.push(hold);
        }
        lost.iter().for_each(|it| self.lose(uses, it));
        result
    }

    /// A hold ended, and its end was not seen.
    fn lose(&mut self, uses: usize, hold: &Hold) {
        let uses = &mut self.uses[uses];
        match hold.certain {
            true => {
                uses.counts.lost += 1;
                uses.count(hold, None);
            }
            false => uses.counts.failed += 1,
        }
    }

    /// The atomic instruction that acquired a lock took longer.
    pub(super) fn delay(&mut self, physical: u64, holder: Holder, cycles: f64) {
        let word = self.words.get_mut(&physical);
        let mut holds = word.into_iter().flat_map(|word| &mut word.holds);
        let last = holds.rfind(|it| it.holder == holder);
        last.into_iter().for_each(|hold| hold.began += cycles);
    }

    /// CPUs waited in simulated time until another CPU had stored to the lock: at this number of
    /// attempts, for these cycles.
    pub(super) fn awaited(&mut self, physical: u64, attempts: u64, cycles: f64) {
        if let Some(word) = self.words.get(&physical) {
            let counts = &mut self.uses[word.uses].counts;
            counts.awaited += attempts;
            counts.awaited_cycles += cycles;
        }
    }

    /// Removes the last hold of a holder, because it turns out to be only an attempt.
    pub(super) fn take_back(&mut self, physical: u64, holder: Holder) -> Option<Hold> {
        let word = self.words.get_mut(&physical)?;
        let at = word.holds.iter().rposition(|it| it.holder == holder)?;
        Some(word.holds.remove(at))
    }

    /// A `Try` function failed after all.
    pub(super) fn withdraw(&mut self, physical: u64, holder: Holder) {
        let Some(word) = self.words.get_mut(&physical) else { return };
        let found = word.holds.iter().rposition(|it| it.holder == holder && !it.certain);
        if let Some(at) = found {
            word.holds.remove(at);
            self.uses[word.uses].counts.failed += 1;
        }
    }

    /// Someone who waited has the lock, so the release by the earlier holder was not seen. An
    /// acquisition that is not certain fails while someone else certainly holds the lock.
    pub(super) fn acquired(&mut self, physical: u64, hold: Hold) {
        let Some(word) = self.words.get_mut(&physical) else { return };
        if !hold.certain && word.holds.iter().any(|it| it.certain && it.conflicts(hold.mode)) {
            self.uses[word.uses].counts.failed += 1;
            return;
        }
        let mut lost = Vec::new();
        word.holds.retain(|it| {
            !it.conflicts(hold.mode) || {
                lost.push(*it);
                false
            }
        });
        word.holds.push(hold);
        let uses = word.uses;
        lost.iter().for_each(|it| self.lose(uses, it));
    }

    /// Whether someone holds a lock.
    pub(super) fn holds(&self, physical: u64, holder: Holder, mode: HoldMode) -> bool {
        let word = self.words.get(&physical);
        word.is_some_and(|word| word.holds.iter().any(|it| it.holder == holder && it.mode == mode))
    }

    /// Someone releases a lock. Returns its uses and the hold that ended; `None` when nobody held
    /// it.
    pub(super) fn release(
        &mut self,
        physical: u64,
        holder: Holder,
        mode: HoldMode,
    ) -> Option<(usize, Hold)> {
        let word = self.words.get_mut(&physical)?;
        let of = |it: &Hold| it.mode == mode;
        let own = word.holds.iter().rposition(|it| of(it) && it.holder == holder);
        // A task may release a lock that another task holds.
        let sleeps = matches!(holder, Holder::Task(_));
        let any = || word.holds.iter().position(|it| of(it) && it.certain && sleeps);
        let at = own.or_else(any)?;
        let hold = word.holds.remove(at);
        // An attempt that was not certain has failed, because someone else had the lock.
        let before = word.holds.len();
        word.holds.retain(|it| it.certain || !it.conflicts(mode));
        self.uses[word.uses].counts.failed += (before - word.holds.len()) as u64;
        Some((word.uses, hold))
    }

    /// Counts a hold that ended. `cycles`: on its holder's clock.
    pub(super) fn count(&mut self, uses: usize, hold: &Hold, cycles: f64) {
        self.uses[uses].count(hold, Some(cycles));
    }

    /// Counts the release of a lock that was held when the recording began.
    pub(super) fn held_before(&mut self, place: LockPlace) {
        let uses = self.word(place).uses;
        self.uses[uses].counts.held_before += 1;
    }

    /// A writer becomes a reader.
    pub(super) fn downgrade(&mut self, physical: u64, holder: Holder) -> bool {
        let word = self.words.get_mut(&physical);
        let holds = word.into_iter().flat_map(|word| &mut word.holds);
        let mut own = holds.filter(|it| it.holder == holder && it.mode == HoldMode::Exclusive);
        own.next().map(|hold| hold.mode = HoldMode::Read).is_some()
    }

    /// Begins or ends a write of a sequence counter.
    pub(super) fn sequence(&mut self, place: LockPlace, hold: Hold) {
        let word = self.word(place);
        let uses = word.uses;
        match word.holds.pop() {
            None => word.holds.push(hold),
            Some(open) if open.holder == hold.holder => {
                self.uses[uses].count(&open, Some(hold.began - open.began));
            }
            Some(_) => {
                // The recording began within a write.
                word.holds.push(hold);
                self.uses[uses].counts.held_before += 1;
            }
        }
    }

    /// Reads a sequence counter. Returns the writer, if another CPU is within a write.
    pub(super) fn reads(&mut self, place: LockPlace, holder: Holder) -> Option<Party> {
        let word = self.word(place);
        let uses = word.uses;
        let writer = word.holds.iter().find(|it| it.holder != holder).map(|it| it.party);
        self.uses[uses].counts.reads += 1;
        writer
    }

    /// A reader of a sequence counter waited for a writer.
    pub(super) fn read_waited(&mut self, physical: u64, reader: Party, writer: Party, cycles: f64) {
        let Some(word) = self.words.get(&physical) else { return };
        let uses = &mut self.uses[word.uses];
        uses.counts.contended += 1;
        uses.waits_for(reader, Some(writer), cycles);
    }

    /// The recording is over. Locks that are still held count as acquired.
    pub(super) fn finish(&mut self) {
        let mut places: Vec<u64> = self.words.keys().copied().collect();
        places.sort_unstable();
        for physical in places {
            let Some(word) = self.words.get_mut(&physical) else { continue };
            let (uses, holds) = (word.uses, std::mem::take(&mut word.holds));
            for hold in holds {
                let uses = &mut self.uses[uses];
                match hold.certain {
                    true => {
                        uses.counts.held_behind += 1;
                        uses.count(&hold, None);
                    }
                    false => uses.counts.failed += 1,
                }
            }
        }
    }
}
