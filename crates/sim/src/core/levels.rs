//! The levels behind the L1s: when a line arrives that an L1 lacks.
//!
//! Input: lines of physical memory and the cycles in which an L1 asks for them. Output: the cycle
//! of arrival, and the level that had the line. Latencies are counted from the load to its use. A
//! level keeps what passes through it, as in [`crate::Hierarchy`].

use super::description::CoreMemoryDescription;
use super::in_flight::InFlight;
use super::prefetch::Streams;
use crate::access::CacheAccess;
use crate::cache::Cache;
use crate::line::{LineId, PhysAddr};
use crate::machine::{CacheDescription, MemoryDescription};

/// The level that has a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    L2,
    L3,
    Memory,
}

/// A level that holds lines of physical memory.
#[derive(Clone, Debug)]
struct Level {
    cache: Cache,
    line_log2: u32,
    latency: u64,
    scattered_pages: bool,
}

impl Level {
    fn new(cache: &CacheDescription, latency: f64, scattered_pages: bool) -> Level {
        Level {
            cache: Cache::new(cache.geometry),
            line_log2: cache.line.trailing_zeros(),
            latency: latency as u64,
            scattered_pages,
        }
    }

    #[inline]
    fn line(&self, addr: PhysAddr) -> LineId {
        let addr = if self.scattered_pages { scattered(addr) } else { addr };
        LineId::physical(addr.0 >> self.line_log2)
    }

    /// Whether the level has the line. From now on, the level has it.
    #[inline]
    fn has(&mut self, line: LineId) -> bool {
        self.cache.access(line) == CacheAccess::Hit
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Levels {
    l2: Option<Level>,
    /// The lines on their way into the L2.
    coming: InFlight,
    l3: Option<Level>,
    memory_latency: u64,
    streams: Streams,
    /// Lines that the L2's prefetcher requested.
    pub prefetches: u64,
}

impl Levels {
    pub(super) fn new(memory: &MemoryDescription, core: &CoreMemoryDescription) -> Levels {
        let latencies = &memory.latencies;
        let line = memory.l2.as_ref().map_or(64, |l2| l2.line);
        let scattered = core.scattered_pages;
        Levels {
            l2: memory.l2.as_ref().map(|l2| Level::new(l2, latencies.l2, scattered)),
            coming: InFlight::new(core.l2_misses),
            l3: memory.l3.as_ref().map(|l3| Level::new(l3, latencies.l3, scattered)),
            memory_latency: latencies.memory as u64,
            streams: Streams::new(core.streams, line.trailing_zeros(), core.stream_distance),
            prefetches: 0,
        }
    }

    /// The cycles until a line comes from memory.
    pub(super) fn memory_latency(&self) -> u64 {
        self.memory_latency
    }

    /// An L1 asks in `now` for the line at `addr`. Returns the cycle of arrival, and the level that
    /// had the line.
    pub(super) fn request(&mut self, addr: PhysAddr, now: u64) -> (u64, Source) {
        let Some(l2) = &mut self.l2 else {
            let (latency, source) = self.behind(addr);
            return (now + latency, source);
        };
        let (line, latency) = (l2.line(addr), l2.latency);
        if l2.has(line) {
            let there = self.coming.there(line, now);
            return ((now + latency).max(there), Source::L2);
        }
        let (behind, source) = self.behind(addr);
        let arrives = self.coming.free(now) + behind;
        self.coming.begin(line, arrives);
        (arrives, source)
    }

    /// The levels have the line at `addr` from now on, as if it had come before the run began.
    pub(super) fn bring(&mut self, addr: PhysAddr) {
        for level in [&mut self.l2, &mut self.l3].into_iter().flatten() {
            let line = level.line(addr);
            level.has(line);
        }
    }

    /// An L1 asks for the line at `addr`, whenever that is. Returns the level that had the line.
    #[inline]
    pub(super) fn warm(&mut self, addr: PhysAddr) -> Source {
        if let Some(l2) = &mut self.l2 {
            let line = l2.line(addr);
            if l2.has(line) {
                return Source::L2;
            }
        }
        self.behind(addr).1
    }

    /// As [`Levels::train`], whenever that is: a register is free for each prefetch.
    pub(super) fn train_warm(&mut self, addr: PhysAddr) {
        let Some(log2) = self.l2.as_ref().map(|l2| l2.line_log2) else { return };
        for line in self.streams.missed(addr.0 >> log2).into_iter().flatten() {
            self.warm(PhysAddr(line << log2));
        }
    }

    /// A load or store lacked the line at `addr` in the L1D in `now`: prefetches into the L2 if the
    /// line belongs to a stream.
    pub(super) fn train(&mut self, addr: PhysAddr, now: u64) {
        let Some(log2) = self.l2.as_ref().map(|l2| l2.line_log2) else { return };
        for line in self.streams.missed(addr.0 >> log2).into_iter().flatten() {
            self.prefetch(PhysAddr(line << log2), now);
        }
    }

    /// Brings a line into the L2 if a register is free in `now`.
    fn prefetch(&mut self, addr: PhysAddr, now: u64) {
        let Some(l2) = &mut self.l2 else { return };
        let line = l2.line(addr);
        if self.coming.free(now) > now || l2.has(line) {
            return;
        }
        let (behind, _) = self.behind(addr);
        self.coming.begin(line, now + behind);
        self.prefetches += 1;
    }

    /// The latency of the first level behind the L2 that has the line.
    fn behind(&mut self, addr: PhysAddr) -> (u64, Source) {
        match &mut self.l3 {
            Some(l3) => {
                let line = l3.line(addr);
                match l3.has(line) {
                    true => (l3.latency, Source::L3),
                    false => (self.memory_latency, Source::Memory),
                }
            }
            None => (self.memory_latency, Source::Memory),
        }
    }
}

/// log2 of the bytes in a page.
const PAGE: u32 = 12;
/// The bits of a page's number.
const NUMBER: u64 = (1 << 40) - 1;

/// The address in a memory whose pages lie in a pseudo-random order, the same for every call. Two
/// pages never become one, because each step is invertible.
#[inline]
fn scattered(addr: PhysAddr) -> PhysAddr {
    let mixed = |number: u64| number ^ number >> 20;
    let mut number = mixed(addr.0 >> PAGE & NUMBER);
    // Factors of the finaliser of MurmurHash3 (Appleby, public domain).
    for factor in [0xff51_afd7_ed55_8ccd_u64, 0xc4ce_b9fe_1a85_ec53] {
        number = mixed(number.wrapping_mul(factor) & NUMBER);
    }
    PhysAddr(number << PAGE | addr.0 & ((1 << PAGE) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn scattered_pages_stay_apart_and_fill_the_colours_as_random_ones() {
        let pages = 1_u64 << 16;
        let numbers: BTreeSet<u64> =
            (0..pages).map(|page| scattered(PhysAddr(page << PAGE)).0 >> PAGE).collect();
        assert_eq!(numbers.len() as u64, pages);
        assert_eq!(scattered(PhysAddr(0x7abc)).0 & 0xfff, 0xabc);
        // 256 pages in 32 colours: 8 in each if they lie side by side; a Poisson distribution has
        // more than 8 of them in 0.41 of the colours.
        let mut over = 0;
        for first in (0..pages).step_by(256) {
            let mut colours = [0_u32; 32];
            for page in first..first + 256 {
                let at = scattered(PhysAddr(page << PAGE)).0 >> PAGE & 31;
                colours[at as usize] += 1;
            }
            over += colours.iter().filter(|&&pages| pages > 8).count();
        }
        let share = over as f64 / (32.0 * 256.0);
        assert!((share - 0.41).abs() < 0.03, "{share}");
    }
}
