//! A small generator of pseudo-random numbers. Its output never changes between releases, so that a
//! seed always gives the same order.
//!
//! SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014,
//! figure 17). It is not for secrets.

/// The state of a generator. Every seed gives a different sequence.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that starts at `seed`.
    pub fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must be at least 1. All are equally likely: values from the
    /// incomplete last stretch are drawn again.
    pub fn below(&mut self, bound: u64) -> u64 {
        let bound = bound.max(1);
        let whole = u64::MAX - u64::MAX % bound;
        loop {
            let value = self.next_u64();
            if value < whole {
                return value % bound;
            }
        }
    }

    /// Shuffles `items` so that all orders are equally likely (Fisher and Yates, from the back).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i as u64 + 1) as usize;
            items.swap(i, j);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_sequence() {
        // The first values of the authors' reference implementation for the seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        let values: Vec<u64> = (0..5).map(|_| random.next_u64()).collect();
        let expected = [
            6457827717110365317,
            3203168211198807973,
            9817491932198370423,
            4593380528125082431,
            16408922859458223821,
        ];
        assert_eq!(values, expected);
    }

    #[test]
    fn shuffles_never_change() {
        let mut items: Vec<u32> = (0..8).collect();
        SplitMix64::new(1).shuffle(&mut items);
        assert_eq!(items, [4, 3, 2, 7, 5, 6, 0, 1]);
    }

    #[test]
    fn every_permutation_is_about_equally_likely() {
        let mut random = SplitMix64::new(7);
        let mut seen = std::collections::BTreeMap::new();
        for _ in 0..6000 {
            let mut items = [0, 1, 2];
            random.shuffle(&mut items);
            *seen.entry(items).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 6);
        assert!(seen.values().all(|&n| (850..1150).contains(&n)), "{seen:?}");
    }
}
