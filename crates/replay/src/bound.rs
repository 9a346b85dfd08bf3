//! How few misses of an instruction cache any layout could have on a recording: a lower bound,
//! printed beside what layouts come to.
//!
//! Takes a recording, the image that it ran and a machine; gives misses of a cache as large as the
//! machine's L1I that wastes nothing: it is fully associative, and packed to the byte, so that it
//! holds blocks and not lines, and a miss brings a whole line of bytes that are wanted. Code that
//! no layout moves (entry code, modules, user code) shares it, in lines. Never looks at an order.
//!
//! * *Belady*: what is needed again last goes first (Belady 1966, MIN; byte by byte, so that part
//!   of a block may go). No layout, and no policy of replacement, misses less.
//! * *LRU*: least recently used out first, as processors nearly do. A layout may come out below it,
//!   by luck or by serving LRU's weaknesses.
//!
//! What the bound leaves out: jumps that a layout adds or drops.

use crate::results::{Bound, Sides};
use anyhow::{Context, Result, ensure};
use execution::part::PartFilter;
use image::Image;
use profile::ideal::{IdealCache, Unit, Units};
use sim::MachineModel;
use std::collections::BinaryHeap;
use std::io::Read;
use trace::{Chunk, RecordingReader, StreamEvent, TranslationId};

/// Belady's policy knows the future: all fetches are kept, in 8 bytes each, at most 2 GB of them.
const MOST_FETCHES: usize = 1 << 28;

/// The bounds of the part of a recording that `cut` keeps.
///
/// # Errors
/// The recording is damaged, or too long to be kept in memory.
pub fn bound<R: Read>(
    mut reader: RecordingReader<R>,
    image: &Image,
    cut: &mut PartFilter,
    machine: &MachineModel,
) -> Result<Bound> {
    let line = u64::from(machine.l1i_line);
    let mut units = Units::new(line, 0);
    let mut lengths = Vec::new();
    let mut fetches: Vec<Unit> = Vec::new();
    while let Some(chunk) = reader.next_chunk().context("the recording is damaged")? {
        match chunk {
            Chunk::Translations(translations) => {
                cut.define(&translations);
                for translation in &translations {
                    lengths.push(translation.instructions());
                    units.define(image, translation.addr.0, &translation.lengths);
                }
            }
            Chunk::Stream(words) => {
                for event in trace::events(&words).filter(|event| cut.keeps(event)) {
                    let (translation, reached) = match event {
                        StreamEvent::Executed(TranslationId(id)) => (id, lengths[id as usize]),
                        StreamEvent::Left { translation: TranslationId(id), instructions } => {
                            (id, instructions)
                        }
                        StreamEvent::Task(_)
                        | StreamEvent::Marker(_)
                        | StreamEvent::Woken(_)
                        | StreamEvent::Clock(_) => {
                            continue;
                        }
                    };
                    // The same again is no fetch.
                    let new = units.fetched(translation, reached);
                    new.for_each(|unit| {
                        if fetches.last() != Some(&unit) {
                            fetches.push(unit)
                        }
                    });
                }
                ensure!(
                    fetches.len() <= MOST_FETCHES,
                    "more than {MOST_FETCHES} blocks ran, too many for a lower bound: take a part of the recording, with --until"
                );
            }
            Chunk::Tasks(_) | Chunk::End(_) => {}
        }
    }
    let bytes = u64::from(machine.l1i.sets()) * u64::from(machine.l1i.ways()) * line;
    let misses = |missed: Sides<u64>| Sides {
        kernel: missed.kernel.div_ceil(line),
        user: missed.user.div_ceil(line),
    };
    Ok(Bound {
        belady: misses(belady(&fetches, &units, bytes)),
        lru: misses(lru(&fetches, &units, bytes)),
    })
}

/// Bytes missed by each side's code.
fn lru(fetches: &[Unit], units: &Units, capacity: u64) -> Sides<u64> {
    let mut cache = IdealCache::new(capacity);
    (0..units.count()).for_each(|unit| cache.add_unit(units.bytes(unit as Unit)));
    let mut missed = Sides::default();
    for &unit in fetches {
        if !cache.fetch(unit) {
            *mode(&mut missed, units, unit) += units.bytes(unit);
        }
    }
    missed
}

fn mode<'s>(missed: &'s mut Sides<u64>, units: &Units, unit: Unit) -> &'s mut u64 {
    match units.is_kernel(unit) {
        true => &mut missed.kernel,
        false => &mut missed.user,
    }
}

/// Never fetched again.
const NEVER: u32 = u32::MAX;

fn belady(fetches: &[Unit], units: &Units, capacity: u64) -> Sides<u64> {
    let next = next_fetches(fetches, units.count());
    let mut missed = Sides::default();
    // By unit: bytes inside, and when it is fetched next.
    let mut inside = vec![(0u64, NEVER); units.count()];
    let mut used = 0;
    // The farthest first; entries that are not a unit's latest are passed over.
    let mut farthest: BinaryHeap<(u32, Unit)> = BinaryHeap::new();
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

/// When each fetch's unit is fetched next.
fn next_fetches(fetches: &[Unit], units: usize) -> Vec<u32> {
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

    fn kernel(missed: Sides<u64>) -> u64 {
        assert_eq!(missed.user, 0);
        missed.kernel
    }

    #[test]
    fn a_loop_larger_than_the_cache_keeps_what_fits_and_no_more() {
        let units = Units::of_sizes(&[10, 10, 10]);
        let fetches: Vec<Unit> = (0..300).map(|at| at % 3).collect();
        assert_eq!(kernel(lru(&fetches, &units, 29)), 300 * 10);
        // Two of three stay, and 9 bytes of the third: one byte of each round is missed, behind the
        // first round of 30.
        assert_eq!(kernel(belady(&fetches, &units, 29)), 30 + 99);
        assert_eq!(kernel(belady(&fetches, &units, 30)), 30);
        assert_eq!(kernel(lru(&fetches, &units, 30)), 30);
    }

    #[test]
    fn a_cache_of_nothing_misses_everything() {
        let units = Units::of_sizes(&[3, 5]);
        assert_eq!(kernel(belady(&[0, 1, 0, 1], &units, 0)), 16);
    }

    /// Every choice of what to keep, tried: of units of one byte each, so that a state is a set.
    fn least(fetches: &[Unit], capacity: u32, inside: u32) -> u64 {
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
        let units = Units::of_sizes(&[1; 5]);
        for _ in 0..300 {
            let fetches: Vec<Unit> = (0..11).map(|_| random.below(5) as Unit).collect();
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
        let units = Units::of_sizes(&sizes);
        let fetches: Vec<Unit> =
            (0..5000).map(|_| (random.below(40) * random.below(40) / 40) as Unit).collect();
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
