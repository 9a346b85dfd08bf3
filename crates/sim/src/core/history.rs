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
    pub fn new() -> PathHistory {
        PathHistory { ring: [0; BITS / 64], start: 0 }
    }

    /// What a branch taken from `at` to `target` leaves in the path.
    #[inline]
    pub fn footprint(at: CodeAddr, target: CodeAddr) -> u32 {
        let mixed = (at.0 ^ target.0.rotate_left(21)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (64 - FOOTPRINT)) as u32
    }

    /// A branch left `footprint`. Call after [`Folded::push`].
    #[inline]
    pub fn push(&mut self, footprint: u32) {
        self.start = (self.start + BITS - SHIFT as usize) % BITS;
        for bit in 0..FOOTPRINT as usize {
            let place = (self.start + bit) % BITS;
            let word = &mut self.ring[place / 64 % (BITS / 64)];
            if bit < SHIFT as usize {
                *word &= !(1 << (place % 64));
            }
            *word ^= u64::from(footprint >> bit & 1) << (place % 64);
        }
    }

    /// A bit, by its age.
    #[inline]
    fn bit(&self, age: u32) -> u32 {
        let place = (self.start + age as usize) % BITS;
        (self.ring[place / 64 % (BITS / 64)] >> (place % 64)) as u32 & 1
    }
}

/// The newest bits of a path as a number of fewer bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folded {
    value: u32,
    bits: u32,
    /// The number of bits of the path.
    length: u32,
    /// Where a bit that leaves the path is in `value`.
    leaving: u32,
}

impl Folded {
    /// The bits of the last `branches` taken branches in `bits` bits, from 1 to 31.
    pub fn new(branches: u32, bits: u32) -> Folded {
        let length = SHIFT * branches.min(LONGEST);
        Folded { value: 0, bits, length, leaving: length % bits }
    }

    /// A branch left `footprint`, which `history` does not have yet.
    #[inline]
    pub fn push(&mut self, history: &PathHistory, footprint: u32) {
        let mask = (1 << self.bits) - 1;
        let mut value = self.value;
        for age in [self.length - 1, self.length - 2] {
            value = (value << 1 | value >> (self.bits - 1)) & mask;
            value ^= history.bit(age) << self.leaving;
        }
        let mut footprint = match self.length {
            0..FOOTPRINT => footprint & ((1 << self.length) - 1),
            _ => footprint,
        };
        while footprint != 0 {
            value ^= footprint & mask;
            footprint >>= self.bits;
        }
        self.value = value;
    }

    #[inline]
    pub fn value(&self) -> u32 {
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
        let shapes = [(1, 1), (3, 5), (34, 11), (66, 12), (194, 9), (511, 13)];
        let mut folded = shapes.map(|(branches, bits)| Folded::new(branches, bits));
        for _ in 0..1500 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let footprint = (state >> 48) as u32;
            folded.iter_mut().for_each(|folded| folded.push(&history, footprint));
            history.push(footprint);
            path.extend([0, 0]);
            for (bit, place) in path.iter_mut().rev().take(16).enumerate() {
                *place ^= (footprint >> bit & 1) as u8;
            }
            for ((branches, bits), folded) in shapes.iter().zip(&folded) {
                let expected = naive(&path, 2 * *branches as usize, *bits as usize);
                assert_eq!(folded.value(), expected, "{branches} {bits}");
            }
        }
    }
}
