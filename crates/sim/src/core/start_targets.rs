//! A branch target buffer whose entries belong to the places where control comes into a line of 64
//! bytes.
//!
//! Such a place is the target of a branch, or the beginning of a line that control reaches in
//! sequence. The entry of a place holds up to two branches of the line. The second one lies behind
//! the first, or at the target of a first one that was always taken. Branches behind these two have
//! an entry of their own. A branch that control reaches from two places is in two entries. If the
//! level says so, the entry of a call also holds the return to which its callee comes without
//! another branch.
//!
//! Input: branches with their targets, in order. Output: the target that the buffer holds, or none.

use super::description::TargetLevel;
use crate::branches::{Branch, BranchKind, CodeAddr};

/// The bytes of a line, as a power of two.
const LINE: u32 = 6;
/// The bytes whose places share one set, as a power of two.
const PLACES: u32 = 4;
/// The mask of an offset in a page. Only the offset is known of a target in user mode.
const OFFSET: u64 = 0xfff;

/// A branch that was taken once.
#[derive(Clone, Copy, Debug)]
struct Held {
    at: CodeAddr,
    target: CodeAddr,
    /// Whether it was taken each time.
    always: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    branches: [Option<Held>; 2],
}

/// The place of an empty entry.
const NOWHERE: CodeAddr = CodeAddr(u64::MAX);

impl Entry {
    const EMPTY: Entry = Entry { branches: [None; 2] };

    fn held(&mut self, at: CodeAddr) -> Option<(usize, &mut Held)> {
        let held = self.branches.iter_mut().enumerate();
        held.filter_map(|(n, held)| Some((n, held.as_mut()?))).find(|(_, held)| held.at == at)
    }

    /// Takes a branch in; `stayed`: control was in the entry before. Returns its number.
    fn insert(&mut self, new: Held, stayed: bool) -> usize {
        match self.branches[0] {
            Some(first) if first.at < new.at || stayed => {
                self.branches[1] = Some(new);
                1
            }
            first => {
                self.branches = [Some(new), first];
                0
            }
        }
    }
}

/// What the buffer knew of a taken branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub target: CodeAddr,
    /// Whether the branch before it was also taken and is in the same entry.
    pub read_before: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct StartTargets {
    set_mask: u64,
    ways: usize,
    /// The places that have an entry, by set, and where in the set the entry lies. Both are sorted
    /// by their last use, the most recent first.
    places: Vec<CodeAddr>,
    ways_of: Vec<u32>,
    /// The entries by set.
    entries: Vec<Entry>,
    /// Where control came into the line, or behind the last entry's branches.
    from: CodeAddr,
    /// Set when the taken branch before did not leave the entry: whether the buffer had that
    /// branch.
    stayed: Option<bool>,
    /// The entry that gives way is drawn at random: the state of a linear congruential generator.
    /// Otherwise it is the one that was not used for the longest time.
    random: Option<u64>,
    returns_with_calls: bool,
    /// The place whose entry has the call that was the last branch.
    called: Option<CodeAddr>,
}

impl StartTargets {
    pub(super) fn new(level: &TargetLevel) -> StartTargets {
        let (sets, ways) = (level.geometry.sets() as usize, level.geometry.ways() as usize);
        StartTargets {
            set_mask: sets as u64 - 1,
            ways,
            places: vec![NOWHERE; sets * ways],
            ways_of: (0..sets * ways).map(|entry| (entry % ways) as u32).collect(),
            entries: vec![Entry::EMPTY; sets * ways],
            from: NOWHERE,
            stayed: None,
            random: level.random.then_some(1),
            returns_with_calls: level.returns_with_calls,
            called: None,
        }
    }

    /// Passes a branch that is not taken. Returns whether the buffer has it.
    pub(super) fn not_taken(&mut self, branch: &Branch) -> bool {
        let place = self.place_before(branch.at);
        let Some(entry) = self.used(place) else { return false };
        let Some((number, held)) = entry.held(branch.at) else { return false };
        held.always = false;
        self.called = None;
        if number == 1 {
            self.come_into(branch.end);
        }
        true
    }

    /// Learns that the branch of this kind at `at` goes to `target`. Returns what the buffer had
    /// before.
    pub(super) fn taken(
        &mut self,
        kind: BranchKind,
        at: CodeAddr,
        target: CodeAddr,
    ) -> Option<Found> {
        if let Some(call) = self.called.take()
            && kind == BranchKind::Return
            && let Some(entry) = self.used(call)
        {
            let held = entry.branches[1].replace(Held { at, target, always: false });
            self.come_into(target);
            let held = held.filter(|held| held.at == at)?;
            return Some(Found { target: held.target, read_before: false });
        }
        let place = self.place_before(at);
        let stayed = self.stayed;
        let entry = match self.find(place) {
            Some(entry) => entry,
            None => self.make(place),
        };
        let entry = &mut self.entries[entry];
        let held = entry.held(at).map(|(number, held)| {
            let read_before = stayed == Some(true);
            (number, Found { target: std::mem::replace(&mut held.target, target), read_before })
        });
        let number = match held {
            Some((number, _)) => number,
            None => entry.insert(Held { at, target, always: true }, stayed.is_some()),
        };
        // Behind a first branch that is always taken, control stays in the entry.
        let stays = number == 0
            && entry.branches[0].is_some_and(|held| held.always)
            && is_behind(target, at);
        match stays {
            true => self.stayed = Some(held.is_some()),
            false => self.come_into(target),
        }
        let is_call = matches!(kind, BranchKind::Call | BranchKind::IndirectCall);
        let may_share = self.returns_with_calls && is_call && number == 0 && !stays;
        self.called = may_share.then_some(place);
        held.map(|(_, found)| found)
    }

    /// The place where control came into the line of the branch at `at`.
    fn place_before(&mut self, at: CodeAddr) -> CodeAddr {
        let begin = line(at) << LINE;
        if !is_behind(at, self.from) {
            self.come_into(CodeAddr(begin));
        }
        CodeAddr(begin | (self.from.0 & ((1 << LINE) - 1)))
    }

    fn come_into(&mut self, from: CodeAddr) {
        (self.from, self.stayed) = (from, None);
    }

    /// The entry of a place, which becomes the most recent of its set.
    #[inline]
    fn used(&mut self, place: CodeAddr) -> Option<&mut Entry> {
        let entry = self.find(place)?;
        Some(&mut self.entries[entry])
    }

    /// Finds the entry of a place, which becomes the most recent of its set.
    #[inline]
    fn find(&mut self, place: CodeAddr) -> Option<usize> {
        let first = self.set(place);
        if self.places[first] != place {
            let set = &self.places[first..first + self.ways];
            let at = set.iter().position(|&held| held == place)?;
            self.use_place(first, at, place);
        }
        Some(first + self.ways_of[first] as usize)
    }

    /// Makes an entry for a place, which becomes the most recent of its set.
    fn make(&mut self, place: CodeAddr) -> usize {
        let first = self.set(place);
        let last = self.ways - 1;
        // The empty ways are the last ones.
        let leaves = match &mut self.random {
            Some(state) if self.places[first + last] != NOWHERE => {
                *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (*state >> 32) as usize % self.ways
            }
            _ => last,
        };
        self.use_place(first, leaves, place);
        let entry = first + self.ways_of[first] as usize;
        self.entries[entry] = Entry::EMPTY;
        entry
    }

    /// What lies `at` in the order of the set that begins at `first` becomes the most recent, and
    /// belongs to `place`.
    fn use_place(&mut self, first: usize, at: usize, place: CodeAddr) {
        let way = self.ways_of[first + at];
        self.places.copy_within(first..first + at, first + 1);
        self.ways_of.copy_within(first..first + at, first + 1);
        (self.places[first], self.ways_of[first]) = (place, way);
    }

    /// The first entry of the set of a place. Higher bits of the address are folded into those that
    /// choose the set, so that code whose places lie at multiples of 64 bytes uses all sets.
    fn set(&self, place: CodeAddr) -> usize {
        let (place, bits) = (place.0 >> PLACES, self.set_mask.count_ones());
        ((place ^ place >> bits) & self.set_mask) as usize * self.ways
    }
}

fn line(at: CodeAddr) -> u64 {
    at.0 >> LINE
}

/// Whether `at` lies at `from` or behind it in the same line, as far as offsets tell.
fn is_behind(at: CodeAddr, from: CodeAddr) -> bool {
    let (at, from) = (at.0 & OFFSET, from.0 & OFFSET);
    at >> LINE == from >> LINE && at >= from
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Replacement;
    use crate::geometry::CacheGeometry;

    fn level(entries: u64, ways: u64) -> TargetLevel {
        TargetLevel {
            geometry: CacheGeometry::tlb(entries, ways, Replacement::Lru).unwrap(),
            bubble: 0,
            by_start: true,
            random: false,
            returns_with_calls: false,
        }
    }

    fn buffer(entries: u64) -> StartTargets {
        StartTargets::new(&level(entries, entries))
    }

    /// Passes taken branches. For each, whether the buffer had it, and whether in the same entry as
    /// the one before.
    fn taken(buffer: &mut StartTargets, branches: &[(u64, u64)]) -> Vec<Option<bool>> {
        let mut pass = |&(at, target): &(u64, u64)| {
            let found = buffer.taken(BranchKind::Jump, CodeAddr(at), CodeAddr(target));
            found.map(|found| found.read_before)
        };
        branches.iter().map(&mut pass).collect()
    }

    fn not_taken(buffer: &mut StartTargets, at: u64) -> bool {
        buffer.not_taken(&Branch {
            kind: BranchKind::Conditional,
            at: CodeAddr(at),
            end: CodeAddr(at + 2),
            target: Some(CodeAddr(at + 32)),
            taken: false,
        })
    }

    #[test]
    fn a_branch_and_the_one_at_its_target_share_an_entry() {
        // From 0x00 to 0x10 and to the next line, which goes back.
        let pair = [(0x00, 0x10), (0x10, 0x40), (0x40, 0x00)];
        let mut two = buffer(2);
        assert_eq!(taken(&mut two, &pair), [None; 3]);
        assert_eq!(taken(&mut two, &pair), [Some(false), Some(true), Some(false)]);
        // Reached in another line, each needs an entry of its own.
        let apart = [(0x00, 0x80), (0x80, 0x10), (0x10, 0xc0), (0xc0, 0x00)];
        assert_eq!([0, 1].map(|_| taken(&mut buffer(3), &apart)), [vec![None; 4], vec![None; 4]]);
        let mut four = buffer(4);
        taken(&mut four, &apart);
        assert_eq!(taken(&mut four, &apart), [Some(false); 4]);
    }

    #[test]
    fn a_branch_behind_one_that_is_not_always_taken_shares_with_it_or_with_none() {
        let mut one = buffer(1);
        // In sequence from 0x00, 0x08 is not taken and 0x10 is.
        taken(&mut one, &[(0x08, 0x20)]);
        assert_eq!(taken(&mut one, &[(0x20, 0x00)]), [None]);
        assert!(not_taken(&mut one, 0x08));
        // 0x20, which was taken behind 0x08, gives way to the branch in sequence.
        assert_eq!(taken(&mut one, &[(0x10, 0x00)]), [None]);
        assert!(not_taken(&mut one, 0x08));
        assert_eq!(taken(&mut one, &[(0x10, 0x00)]), [Some(false)]);
        // Taken again, 0x08 leads to a place of its own, because it was not always taken.
        assert_eq!(taken(&mut one, &[(0x08, 0x20), (0x20, 0x00)]), [Some(false), None]);
        assert!(!not_taken(&mut one, 0x08));
    }

    #[test]
    fn a_third_branch_of_a_line_has_an_entry_of_its_own() {
        let mut two = buffer(2);
        let visit = |buffer: &mut StartTargets| {
            let known = [not_taken(buffer, 0x08), not_taken(buffer, 0x10)];
            (known, taken(buffer, &[(0x18, 0x00)]))
        };
        taken(&mut two, &[(0x08, 0x00)]);
        assert!(not_taken(&mut two, 0x08));
        taken(&mut two, &[(0x10, 0x00)]);
        assert_eq!(visit(&mut two), ([true; 2], vec![None]));
        assert_eq!(visit(&mut two), ([true; 2], vec![Some(false)]));
    }

    /// Passes branches of these kinds twice. Whether the buffer has each the second time.
    fn known(buffer: &mut StartTargets, branches: &[(BranchKind, u64, u64)]) -> Vec<bool> {
        let mut pass = |&(kind, at, target): &(BranchKind, u64, u64)| {
            buffer.taken(kind, CodeAddr(at), CodeAddr(target)).is_some()
        };
        branches.iter().for_each(|branch| {
            pass(branch);
        });
        branches.iter().map(pass).collect()
    }

    /// From 0x00 to a function at 0x100, back, and to 0x00 again.
    #[test]
    fn a_return_shares_the_entry_of_its_call() {
        use BranchKind::{Call, Jump, Return};
        let once = [(Call, 0x00, 0x100), (Return, 0x108, 0x05), (Jump, 0x08, 0x00)];
        let sharing = |entries| {
            StartTargets::new(&TargetLevel { returns_with_calls: true, ..level(entries, entries) })
        };
        assert_eq!(known(&mut sharing(2), &once), [true; 3]);
        assert_eq!(known(&mut buffer(2), &once), [false; 3]);
        assert_eq!(known(&mut buffer(3), &once), [true; 3]);
        // A jump on the way has an entry of its own, and so has the return behind it.
        let jumps =
            [(Call, 0x00, 0x100), (Jump, 0x108, 0x180), (Return, 0x188, 0x05), (Jump, 0x08, 0x00)];
        assert_eq!(known(&mut sharing(3), &jumps), [false; 4]);
        assert_eq!(known(&mut sharing(4), &jumps), [true; 4]);
    }

    /// Five jumps go round in four entries. The one that was not used for the longest time is the
    /// next one each time. Of entries that leave at random, some stay.
    #[test]
    fn any_entry_gives_way_or_the_oldest() {
        let ring: Vec<_> =
            (0..5).map(|n| (BranchKind::Jump, n * 0x40, (n + 1) % 5 * 0x40)).collect();
        assert_eq!(known(&mut buffer(4), &ring), [false; 5]);
        let mut random = StartTargets::new(&TargetLevel { random: true, ..level(4, 4) });
        let rounds = (0..40).flat_map(|_| known(&mut random, &ring));
        let hits = rounds.filter(|&known| known).count();
        assert!((80..160).contains(&hits), "{hits} of 200");
        let four = &ring[..4];
        let mut random = StartTargets::new(&TargetLevel { random: true, ..level(4, 4) });
        assert_eq!(known(&mut random, four), [true; 4]);
    }

    /// In user mode, a target is the offset in its page.
    #[test]
    fn a_target_is_known_by_its_offset() {
        let ring: Vec<(u64, u64)> =
            (0..64).map(|n| (0x40_0000 + n * 16, (n + 1) % 64 * 16)).collect();
        let mut enough = StartTargets::new(&level(32, 8));
        taken(&mut enough, &ring);
        let expected: Vec<_> = (0..64).map(|n| Some(n % 2 == 1)).collect();
        assert_eq!(taken(&mut enough, &ring), expected);
    }
}
