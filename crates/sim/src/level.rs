//! One level of cache that knows the cause of each miss.
//!
//! The causes are those of SimOS (Rosenblum 1995, section 4.4.1) and Torrellas (1998, sections 2.2
//! and 5.1). A miss is *cold* when the line was never in this cache, *self* when the requester that
//! misses the line had evicted it, and *other* when another requester had. The requesters are the
//! kernel and each user process. So there are COLD, KERN-self, KERN-other, USER-self and
//! USER-other. The evictor is kept for every line that was ever used. Nothing is sampled.

use crate::access::CacheAccess;
use crate::cache::Cache;
use crate::geometry::CacheGeometry;
use crate::line::{LineId, Mode, PerMode};

/// What uses a cache: the kernel or a user process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Requester(u16);

impl Requester {
    /// The kernel.
    pub const KERNEL: Requester = Requester(1);
    /// The evictor of a line that was never evicted.
    pub(crate) const NOBODY: Requester = Requester(0);
    /// The number of user processes that can be distinguished.
    pub(crate) const PROCESSES: u32 = u16::MAX as u32 - 1;

    /// The user process with this number. Numbers from [`Requester::PROCESSES`] on share a
    /// requester with a smaller number.
    #[inline]
    pub fn process(number: u32) -> Requester {
        Requester(2 + (number % Requester::PROCESSES) as u16)
    }

    /// The requester of a mode, when all processes count as one (Torrellas 1998).
    #[inline]
    pub fn of(mode: Mode) -> Requester {
        match mode {
            Mode::Kernel => Requester::KERNEL,
            Mode::User => Requester::process(0),
        }
    }

    /// The mode in which the requester executes.
    pub(crate) fn mode(self) -> Mode {
        if self == Requester::KERNEL { Mode::Kernel } else { Mode::User }
    }
}

/// Why a cache missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissCause {
    /// The line was never in the cache.
    Cold,
    /// The requester that misses the line had evicted it.
    Own,
    /// Another requester had evicted the line.
    Other,
}

counters! {
    /// Misses of one mode, by cause.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    pub struct MissCounts {
        /// Misses on lines that were never in the cache.
        pub cold: u64,
        /// Misses on lines that the same requester had evicted.
        #[serde(rename = "self")]
        pub own: u64,
        /// Misses on lines that another requester had evicted.
        pub other: u64,
    }
}

impl MissCounts {
    /// Misses of all causes.
    pub fn total(&self) -> u64 {
        self.cold + self.own + self.other
    }

    /// Counts a miss.
    #[inline]
    pub fn count(&mut self, cause: MissCause) {
        match cause {
            MissCause::Cold => self.cold += 1,
            MissCause::Own => self.own += 1,
            MissCause::Other => self.other += 1,
        }
    }
}

/// One level of cache.
#[derive(Clone, Debug)]
pub(crate) struct CacheLevel {
    cache: Cache,
    /// The last evictor of each line. It stays while the line is in the cache.
    evicted_by: PerMode<Evictors<1>>,
}

/// The evictors of each line from `N` caches, by the line's index. The lines in use form
/// neighbourhoods that lie far apart. Only these neighbourhoods take memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evictors<const N: usize> {
    neighbourhoods: Vec<Option<Box<[[Requester; N]]>>>,
}

/// Lines in a neighbourhood.
const NEIGHBOURS: usize = 1 << 12;

impl<const N: usize> Evictors<N> {
    #[inline]
    pub(crate) fn of(&mut self, line: LineId) -> &mut [Requester; N] {
        let index = line.index() as usize;
        let (at, within) = (index / NEIGHBOURS, index % NEIGHBOURS);
        if at >= self.neighbourhoods.len() {
            self.neighbourhoods.resize(at + 1, None);
        }
        let nobody = || vec![[Requester::NOBODY; N]; NEIGHBOURS].into_boxed_slice();
        &mut self.neighbourhoods[at].get_or_insert_with(nobody)[within]
    }
}

impl CacheLevel {
    /// An empty level of this geometry.
    pub(crate) fn new(geometry: CacheGeometry) -> CacheLevel {
        CacheLevel { cache: Cache::new(geometry), evicted_by: PerMode::default() }
    }

    /// Whether `line` was used last in its set. Then it is there, and an access changes nothing.
    #[inline]
    pub(crate) fn used_last(&self, line: LineId) -> bool {
        self.cache.used_last(line)
    }

    /// `requester` uses `line`. Returns the cause of the miss, if the level missed.
    #[inline]
    pub(crate) fn access(&mut self, line: LineId, requester: Requester) -> Option<MissCause> {
        match self.cache.access(line) {
            CacheAccess::Hit => None,
            CacheAccess::Miss { evicted } => Some(self.missed(line, evicted, requester)),
        }
    }

    fn missed(&mut self, line: LineId, evicted: Option<LineId>, requester: Requester) -> MissCause {
        let cause = match self.evicted_by.get_mut(line.mode()).of(line)[0] {
            Requester::NOBODY => MissCause::Cold,
            evictor if evictor == requester => MissCause::Own,
            _ => MissCause::Other,
        };
        if let Some(evicted) = evicted {
            self.evicted_by.get_mut(evicted.mode()).of(evicted)[0] = requester;
        }
        cause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Replacement;

    /// One set of one way.
    #[test]
    fn each_process_is_a_requester() {
        let mut level = CacheLevel::new(CacheGeometry::cache(16, 1, 16, Replacement::Lru).unwrap());
        let line = |index| LineId::new(Mode::Kernel, index).unwrap();
        let (kernel, first, second) =
            (Requester::KERNEL, Requester::process(0), Requester::process(1));
        let steps = [
            (0, first, Some(MissCause::Cold)),
            (0, second, None),                  // shared, and there
            (1, second, Some(MissCause::Cold)), // second evicts 0
            (0, first, Some(MissCause::Other)), // first evicts 1
            (1, first, Some(MissCause::Own)),   // evicts 0
            (0, kernel, Some(MissCause::Other)),
            (1, kernel, Some(MissCause::Own)),
            (0, kernel, Some(MissCause::Own)),
            (1, second, Some(MissCause::Other)),
        ];
        for (step, (index, requester, cause)) in steps.into_iter().enumerate() {
            assert_eq!(level.access(line(index), requester), cause, "step {step}");
        }
    }

    #[test]
    fn a_requester_has_the_mode_of_its_number() {
        assert_eq!(Requester::KERNEL.mode(), Mode::Kernel);
        for number in [0, 1, Requester::PROCESSES - 1, Requester::PROCESSES, u32::MAX] {
            assert_eq!(Requester::process(number).mode(), Mode::User, "{number}");
        }
        assert_ne!(Requester::process(0), Requester::process(Requester::PROCESSES - 1));
        assert_eq!(Requester::process(3), Requester::process(3 + Requester::PROCESSES));
    }
}
