//! One level of cache that says why it missed.
//!
//! The classes of SimOS (Rosenblum 1995, section 4.4.1) and of Torrellas (1998, sections 2.2 and
//! 5.1): a miss on a line is *cold* when the line was never in this cache, *self* when it had been
//! evicted by the very requester that misses it now, *other* when by another one. Requesters are
//! the kernel and each user process; so there are COLD, KERN-self, KERN-other, USER-self and
//! USER-other. What a line's state is, is kept for every line that was ever used: nothing is
//! sampled.

use crate::access::Access;
use crate::cache::Cache;
use crate::geometry::Geometry;
use crate::line::{Line, Mode, PerMode};
use std::ops::{AddAssign, Sub};

/// Who uses a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester(u16);

impl Requester {
    pub const KERNEL: Requester = Requester(1);
    /// What has not yet evicted a line.
    pub(crate) const NOBODY: Requester = Requester(0);
    /// So many user processes are told apart.
    pub const PROCESSES: u32 = u16::MAX as u32 - 1;

    /// The user process with this number; from [`Requester::PROCESSES`] on, numbers are used again.
    #[inline]
    pub fn process(number: u32) -> Requester {
        Requester(2 + (number % Requester::PROCESSES) as u16)
    }

    /// The requester of a mode all of whose processes are one: Torrellas' two.
    #[inline]
    pub fn of(mode: Mode) -> Requester {
        match mode {
            Mode::Kernel => Requester::KERNEL,
            Mode::User => Requester::process(0),
        }
    }

    pub fn mode(self) -> Mode {
        if self == Requester::KERNEL { Mode::Kernel } else { Mode::User }
    }
}

/// Why a cache missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Cold,
    Own,
    Other,
}

/// Misses of one side, by what caused them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Misses {
    pub cold: u64,
    #[serde(rename = "self")]
    pub own: u64,
    pub other: u64,
}

impl Misses {
    pub fn total(&self) -> u64 {
        self.cold + self.own + self.other
    }

    #[inline]
    pub fn count(&mut self, cause: Cause) {
        match cause {
            Cause::Cold => self.cold += 1,
            Cause::Own => self.own += 1,
            Cause::Other => self.other += 1,
        }
    }
}

impl AddAssign for Misses {
    fn add_assign(&mut self, other: Misses) {
        self.cold += other.cold;
        self.own += other.own;
        self.other += other.other;
    }
}

impl Sub for Misses {
    type Output = Misses;

    fn sub(self, earlier: Misses) -> Misses {
        Misses {
            cold: self.cold - earlier.cold,
            own: self.own - earlier.own,
            other: self.other - earlier.other,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Level {
    cache: Cache,
    /// Who evicted each line last; a line that is in the cache keeps the value it had when it was
    /// brought in.
    evicted_by: PerMode<Evictors>,
}

/// A requester for each line, by its index. Lines are used in neighbourhoods that lie far apart, so
/// only these take memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evictors {
    neighbourhoods: Vec<Option<Box<[Requester; Evictors::LINES]>>>,
}

impl Evictors {
    /// Lines of a neighbourhood.
    const LINES: usize = 1 << 12;

    pub(crate) fn of(&mut self, line: Line) -> &mut Requester {
        let (at, within) =
            (line.index() as usize / Evictors::LINES, line.index() as usize % Evictors::LINES);
        if at >= self.neighbourhoods.len() {
            self.neighbourhoods.resize(at + 1, None);
        }
        &mut self.neighbourhoods[at]
            .get_or_insert_with(|| Box::new([Requester::NOBODY; Evictors::LINES]))[within]
    }
}

impl Level {
    pub fn new(geometry: Geometry) -> Level {
        Level { cache: Cache::new(geometry), evicted_by: PerMode::default() }
    }

    /// Whether `line` was used last of its set: then it is there, and using it changes nothing.
    #[inline]
    pub fn used_last(&self, line: Line) -> bool {
        self.cache.used_last(line)
    }

    /// `requester` uses `line`; says why it was not there, if it was not.
    #[inline]
    pub fn access(&mut self, line: Line, requester: Requester) -> Option<Cause> {
        match self.cache.access(line) {
            Access::Hit => None,
            Access::Miss { evicted } => Some(self.missed(line, evicted, requester)),
        }
    }

    fn missed(&mut self, line: Line, evicted: Option<Line>, requester: Requester) -> Cause {
        let cause = match *self.evicted_by.get_mut(line.mode()).of(line) {
            Requester::NOBODY => Cause::Cold,
            evictor if evictor == requester => Cause::Own,
            _ => Cause::Other,
        };
        if let Some(evicted) = evicted {
            *self.evicted_by.get_mut(evicted.mode()).of(evicted) = requester;
        }
        cause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Replacement;

    /// One set of one way.
    #[test]
    fn processes_are_parties_of_their_own() {
        let mut level = Level::new(Geometry::cache(16, 1, 16, Replacement::Lru).unwrap());
        let line = |index| Line::new(Mode::Kernel, index).unwrap();
        let (kernel, first, second) =
            (Requester::KERNEL, Requester::process(0), Requester::process(1));
        let steps = [
            (0, first, Some(Cause::Cold)),
            (0, second, None),              // shared, and there
            (1, second, Some(Cause::Cold)), // second evicts 0
            (0, first, Some(Cause::Other)), // first evicts 1
            (1, first, Some(Cause::Own)),   // evicts 0
            (0, kernel, Some(Cause::Other)),
            (1, kernel, Some(Cause::Own)),
            (0, kernel, Some(Cause::Own)),
            (1, second, Some(Cause::Other)),
        ];
        for (step, (index, requester, cause)) in steps.into_iter().enumerate() {
            assert_eq!(level.access(line(index), requester), cause, "step {step}");
        }
    }

    #[test]
    fn requesters_know_their_mode() {
        assert_eq!(Requester::KERNEL.mode(), Mode::Kernel);
        for number in [0, 1, Requester::PROCESSES - 1, Requester::PROCESSES, u32::MAX] {
            assert_eq!(Requester::process(number).mode(), Mode::User, "{number}");
        }
        assert_ne!(Requester::process(0), Requester::process(Requester::PROCESSES - 1));
        assert_eq!(Requester::process(3), Requester::process(3 + Requester::PROCESSES));
    }
}
