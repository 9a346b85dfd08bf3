//! The lower bound on a recording's instruction cache misses for any layout. Reports print it
//! beside the misses of layouts.
//!
//! Input: a recording, the image that it ran and a machine. Output: the misses of an ideal cache as
//! large as the machine's L1I. The ideal cache is fully associative and packed to the byte, so that
//! it holds blocks and not lines, and every byte of a fetched line is needed. Code that no layout
//! moves (entry code, modules, user code) shares the cache in lines. This module never looks at an
//! order.
//!
//! * *Belady*: evicts the bytes that are needed again last (Belady 1966, MIN; byte by byte, so that
//!   part of a block may go). No layout and no replacement policy misses less.
//! * *LRU*: evicts the least recently used block, as most processors approximately do. A layout may
//!   miss less than this, by chance or by avoiding LRU's weaknesses.
//!
//! The bound leaves out jumps that a layout adds or drops.

use crate::results::MissBound;
use anyhow::{Result, ensure};
use execution::code::TranslatedCode;
use execution::per_cpu::PerCpu;
use execution::walk::{Observer, Piece, Wants, walk};
use image::Image;
use profile::ideal::{CacheUnit, CacheUnits, IdealCache};
use sim::{MachineModel, PerMode};
use std::collections::BinaryHeap;
use std::io::Read;
use trace::{RecordingHeader, RecordingReader, Translation, TranslationId};

/// The largest number of fetches. Belady's policy knows the future, so all fetches are kept: 8
/// bytes each, at most 2 GB.
const MOST_FETCHES: usize = 1 << 28;

/// The recording is too long for a lower bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "more than {MOST_FETCHES} blocks ran, too many for a lower bound: take a part of the recording"
)]
pub struct TooManyFetches;

/// The bounds of a recording.
///
/// # Errors
/// The recording is damaged, or too long to be kept in memory.
pub fn bound<R: Read>(
    reader: RecordingReader<R>,
    image: &Image,
    machine: &MachineModel,
) -> Result<MissBound> {
    let mut fetched = FetchedBlocks::new(image, machine);
    walk(reader, &mut fetched)?;
    Ok(fetched.bound())
}

/// An observer that collects all fetches of a recording.
pub struct FetchedBlocks<'a> {
    image: &'a Image,
    /// Bytes of a line and of the cache.
    line: u64,
    capacity: u64,
    units: CacheUnits,
    /// The instructions of each translation block.
    lengths: Vec<u32>,
    /// Each CPU has a cache of its own.
    fetches: PerCpu<Vec<CacheUnit>>,
}

impl<'a> FetchedBlocks<'a> {
    /// For a cache as large as the L1I of `machine`.
    pub fn new(image: &'a Image, machine: &MachineModel) -> FetchedBlocks<'a> {
        let line = u64::from(machine.l1i_line);
        FetchedBlocks {
            image,
            line,
            capacity: u64::from(machine.l1i.sets()) * u64::from(machine.l1i.ways()) * line,
            units: CacheUnits::new(line, 0),
            lengths: Vec::new(),
            fetches: PerCpu::new(Vec::new()),
        }
    }

    /// The bounds of what was fetched.
    pub fn bound(&self) -> MissBound {
        let misses = |missed: PerMode<u64>| PerMode {
            kernel: missed.kernel.div_ceil(self.line),
            user: missed.user.div_ceil(self.line),
        };
        let of_all = |policy: fn(&[CacheUnit], &CacheUnits, u64) -> PerMode<u64>| {
            let mut missed = PerMode::default();
            let of_cpus = self.fetches.values();
            of_cpus.for_each(|fetches| missed += policy(fetches, &self.units, self.capacity));
            misses(missed)
        };
        MissBound { belady: of_all(belady), lru: of_all(lru) }
    }
}

impl Observer for FetchedBlocks<'_> {
    fn begin(&mut self, _: &RecordingHeader, _has_data: bool) -> Result<Wants> {
        Ok(Wants::default())
    }

    fn define(&mut self, translations: &[Translation], _: &[TranslatedCode]) -> Result<()> {
        for translation in translations {
            self.lengths.push(translation.instructions());
            self.units.define(self.image, translation.addr.0, &translation.lengths);
        }
        Ok(())
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        self.fetches.turn_to(piece.cpu, Vec::new);
        let fetches = &mut self.fetches.current;
        for event in piece.events() {
            let Some((TranslationId(id), reached)) = event.execution() else { continue };
            let reached = reached.unwrap_or(self.lengths[id as usize]);
            // A repetition of the last unit is not a fetch.
            for unit in self.units.fetched(id, reached) {
                if fetches.last() != Some(&unit) {
                    fetches.push(unit)
                }
            }
        }
        ensure!(self.fetches.values().map(Vec::len).sum::<usize>() <= MOST_FETCHES, TooManyFetches);
        Ok(())
    }
}

/// The bytes missed in each mode.
fn lru(fetches: &[CacheUnit], units: &CacheUnits, capacity: u64) -> PerMode<u64> {
    let mut cache = IdealCache::new(capacity);
    (0..units.count()).for_each(|unit| cache.add_unit(units.bytes(unit as CacheUnit)));
    let mut missed = PerMode::default();
    for &unit in fetches {
        if !cache.fetch(unit) {
            *mode(&mut missed, units, unit) += units.bytes(unit);
        }
    }
    missed
}

fn mode<'s>(missed: &'s mut PerMode<u64>, units: &CacheUnits, unit: CacheUnit) -> &'s mut u64 {
    match units.is_kernel(unit) {
        true => &mut missed.kernel,
        false => &mut missed.user,
    }
}

/// Marks a unit that is never fetched again.
const NEVER: u32 = u32::MAX;

fn belady(fetches: &[CacheUnit], units: &CacheUnits, capacity: u64) -> PerMode<u64> {
    let next = next_fetches(fetches, units.count());
    let mut missed = PerMode::default();
    // By unit: bytes inside, and when it is fetched next.
    let mut inside = vec![(0u64, NEVER); units.count()];
    let mut used = 0;
    // The farthest next fetch first. An entry that is not the latest of its unit is skipped.
    let mut farthest: BinaryHeap<(u32, CacheUnit)> = BinaryHeap::new();
    for (&unit, &next) in fetches.iter().zip(&next) {
        let bytes = units.bytes(unit);
        let (had, at) = &mut inside[unit as usize];
        *mode(&mut missed, units, unit) += bytes - *had;
        used += bytes - std::mem::replace(had, bytes);
        *at = next;
        farthest.push((next, unit));
        while used > capacity {
            let Some((at, unit)) = farthest.pop() else { break };
            let (had, latest) = &mut inside[unit as usize];
            if *latest != at || *had == 0 {
                continue;
            }
            let out = (*had).min(used - capacity);
            *had -= out;
            used -= out;
            if *had > 0 {
                farthest.push((at, unit));
            }
        }
    }
    missed
}

/// For each fetch, the index of the next fetch of the same unit.
fn next_fetches(fetches: &[CacheUnit], units: usize) -> Vec<u32> {
    let mut latest = vec![NEVER; units];
    let mut next = vec![NEVER; fetches.len()];
    for (at, &unit) in fetches.iter().enumerate().rev() {
        next[at] = std::mem::replace(&mut latest[unit as usize], at as u32);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::random::SplitMix64;

    fn kernel(missed: PerMode<u64>) -> u64 {
        assert_eq!(missed.user, 0);
        missed.kernel
    }

    #[test]
    fn a_loop_larger_than_the_cache_keeps_what_fits_and_no_more() {
        let units = CacheUnits::of_sizes(&[10, 10, 10]);
        let fetches: Vec<CacheUnit> = (0..300).map(|at| at % 3).collect();
        assert_eq!(kernel(lru(&fetches, &units, 29)), 300 * 10);
        // Two of the three stay, and 9 bytes of the third. The first round misses 30 bytes, each
        // later round one byte.
        assert_eq!(kernel(belady(&fetches, &units, 29)), 30 + 99);
        assert_eq!(kernel(belady(&fetches, &units, 30)), 30);
        assert_eq!(kernel(lru(&fetches, &units, 30)), 30);
    }

    #[test]
    fn a_cache_of_nothing_misses_everything() {
        let units = CacheUnits::of_sizes(&[3, 5]);
        assert_eq!(kernel(belady(&[0, 1, 0, 1], &units, 0)), 16);
    }

    /// Brute force: tries every choice of what to keep, with units of one byte, so that a state is
    /// a set.
    fn least(fetches: &[CacheUnit], capacity: u32, inside: u32) -> u64 {
        let Some((&unit, rest)) = fetches.split_first() else { return 0 };
        let now = inside | 1 << unit;
        let cost = u64::from(inside & 1 << unit == 0);
        if now.count_ones() <= capacity {
            return cost + least(rest, capacity, now);
        }
        let without = (0..8)
            .filter(|out| now & 1 << out != 0)
            .map(|out| least(rest, capacity, now & !(1 << out)));
        cost + without.min().unwrap_or(0)
    }

    #[test]
    fn nothing_misses_less_than_belady() {
        let mut random = SplitMix64::new(7);
        let units = CacheUnits::of_sizes(&[1; 5]);
        for _ in 0..300 {
            let fetches: Vec<CacheUnit> = (0..11).map(|_| random.below(5) as CacheUnit).collect();
            for capacity in 1..5 {
                let found = kernel(belady(&fetches, &units, capacity));
                assert_eq!(found, least(&fetches, capacity as u32, 0), "{fetches:?} in {capacity}");
                assert!(found <= kernel(lru(&fetches, &units, capacity)));
            }
        }
    }

    #[test]
    fn belady_is_never_above_lru() {
        let mut random = SplitMix64::new(11);
        let sizes: Vec<u64> = (0..40).map(|_| 1 + random.below(30)).collect();
        let units = CacheUnits::of_sizes(&sizes);
        let fetches: Vec<CacheUnit> =
            (0..5000).map(|_| (random.below(40) * random.below(40) / 40) as CacheUnit).collect();
        let mut last = u64::MAX;
        for capacity in [20, 50, 100, 200, 400, 800] {
            let (best, lru) = (
                kernel(belady(&fetches, &units, capacity)),
                kernel(lru(&fetches, &units, capacity)),
            );
            assert!(best <= lru && best <= last, "{capacity}: {best}, LRU {lru}");
            last = best;
        }
    }
}
