//! The path to a branch: the branches taken before it, folded into small numbers.
//!
//! The path is a long number of bits. A taken branch shifts it by two bits and xors a footprint of
//! 16 bits, a hash of where the branch is and where it goes, into the lowest ones (Yavarzadeh et
//! al., "Half&Half: Demystifying Intel's Directional Branch Predictors", IEEE S&P 2023). A table of
//! a predictor looks at the bits of the last `branches` taken branches. It needs them as an index
//! and as tags of few bits. A [`Folded`] keeps such a number up to date: the path is cut into
//! pieces of that many bits, which are xored. A shift of the path rotates the number, and the bits
//! that leave the path are taken back (Seznec and Michaud, JILP 8, 2006).
//!
//! Input: taken branches, in order. Output: indexes and tags. This module predicts nothing.

use crate::branches::CodeAddr;

/// The most taken branches that a table can look at.
pub(crate) const LONGEST: u32 = 511;

/// The bits of the path.
const BITS: usize = 1024;
/// The bits by which a taken branch shifts the path.
const SHIFT: u32 = 2;
const FOOTPRINT: u32 = 16;

/// The taken branches so far.
#[derive(Clone, Debug)]
pub(crate) struct PathHistory {
    /// The bits, the newest first, from bit `start` on. Bit b is bit b % 64 of word b / 64.
    ring: [u64; BITS / 64],
    start: usize,
}

impl PathHistory {
    pub(super) fn new() -> PathHistory {
        PathHistory { ring: [0; BITS / 64], start: 0 }
    }

    /// What a branch taken from `at` to `target` leaves in the path.
    #[inline]
    pub(super) fn footprint(at: CodeAddr, target: CodeAddr) -> u32 {
        let mixed = (at.0 ^ target.0.rotate_left(21)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (64 - FOOTPRINT)) as u32
    }

    /// What a branch whose last byte lies before `end` leaves in a path of sources.
    #[inline]
    pub(super) fn source(end: CodeAddr) -> u32 {
        (end.0.wrapping_sub(1) >> 2) as u32 & 3
    }

    /// A branch left `footprint`. Call after [`Folded::push`].
    #[inline]
    pub(super) fn push(&mut self, footprint: u32) {
        self.start = (self.start + BITS - SHIFT as usize) % BITS;
        let (word, place) = (self.start / 64, self.start % 64);
        // `start` is even, so both new bits lie in one word.
        self.ring[word] &= !(((1 << SHIFT) - 1) << place);
        // Both words that the footprint can reach.
        let footprint = u128::from(footprint) << place;
        self.ring[word] ^= footprint as u64;
        self.ring[(word + 1) % (BITS / 64)] ^= (footprint >> 64) as u64;
    }

    /// The two oldest bits of the newest `length`, an even number: the older one is bit 1.
    #[inline]
    pub(super) fn leaving(&self, length: u32) -> u32 {
        let place = (self.start + length as usize - 2) % BITS;
        (self.ring[place / 64 % (BITS / 64)] >> (place % 64)) as u32 & 3
    }
}

/// The newest bits of a path as a number of `BITS` bits, from 1 to 31.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folded<const BITS: u32> {
    value: u32,
    /// The number of bits of the path.
    length: u32,
    /// The bits of `value` that the two leaving bits of the path stand for, by their number.
    leaving: [u32; 4],
    /// The bits of a footprint that lie in the path.
    seen: u32,
}

impl<const BITS: u32> Folded<BITS> {
    /// The lowest `BITS` bits.
    const MASK: u32 = (1 << BITS) - 1;
    /// A shift of the path rotates the number to the left by this number of bits.
    const TURN: u32 = SHIFT % BITS;

    /// The bits of the last `branches` taken branches.
    pub(super) fn new(branches: u32) -> Folded<BITS> {
        let length = SHIFT * branches.min(LONGEST);
        let seen = (1 << length.min(FOOTPRINT)) - 1;
        let newer = 1 << (length % BITS);
        let older = 1 << ((length + 1) % BITS);
        let leaving = [0, newer, older, newer ^ older];
        Folded { value: 0, length, leaving, seen }
    }

    /// A branch left `footprint`. `leaving`: the bits that leave the path for it, as
    /// [`PathHistory::leaving`] gives them for [`Folded::length`].
    #[inline]
    pub(super) fn push(&mut self, leaving: u32, footprint: u32) {
        let turned = (self.value << Self::TURN | self.value >> (BITS - Self::TURN)) & Self::MASK;
        let mut value = turned ^ self.leaving[leaving as usize & 3];
        let mut footprint = footprint & self.seen;
        while footprint != 0 {
            value ^= footprint & Self::MASK;
            footprint = if BITS >= FOOTPRINT { 0 } else { footprint >> BITS };
        }
        self.value = value;
    }

    /// The number of bits of the path.
    #[inline]
    pub(super) fn length(&self) -> u32 {
        self.length
    }

    #[inline]
    pub(super) fn value(&self) -> u32 {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, on a path of which nothing is forgotten (the newest bit last).
    fn naive(path: &[u8], length: usize, width: usize) -> u32 {
        let newest = path.iter().rev().take(length).enumerate();
        newest.fold(0, |value, (age, &bit)| value ^ u32::from(bit) << (age % width))
    }

    #[test]
    fn folding_step_by_step_is_folding_at_once() {
        let (mut history, mut path, mut state) = (PathHistory::new(), vec![0_u8; 2048], 7_u64);
        let (mut one, mut five) = (Folded::<1>::new(1), Folded::<5>::new(3));
        let (mut eleven, mut all) = (Folded::<11>::new(34), Folded::<31>::new(511));
        for _ in 0..1500 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let footprint = (state >> 48) as u32;
            one.push(history.leaving(one.length()), footprint);
            five.push(history.leaving(five.length()), footprint);
            eleven.push(history.leaving(eleven.length()), footprint);
            all.push(history.leaving(all.length()), footprint);
            history.push(footprint);
            path.extend([0, 0]);
            for (bit, place) in path.iter_mut().rev().take(16).enumerate() {
                *place ^= (footprint >> bit & 1) as u8;
            }
            let values = [one.value(), five.value(), eleven.value(), all.value()];
            let shapes = [(1, 1), (3, 5), (34, 11), (511, 31)];
            assert_eq!(values, shapes.map(|(branches, bits)| naive(&path, 2 * branches, bits)));
        }
    }
}
