//! The effect of a cut on the jumps within a chain.
//!
//! Input: a chain and a position. Output: the score of the jumps across that position, now and
//! after a cut. This module changes no chain.

use super::{ExtTspChain, ExtTspChains};

/// The score of the jumps across a place between two nodes of a chain.
#[derive(Clone, Copy, Default)]
pub(super) struct CutScore {
    /// The score now.
    pub(super) kept: f64,
    /// The score if the two sides changed places.
    pub(super) swapped: f64,
    /// The score with one byte between the two sides. More bytes never raise it.
    pub(super) parted: f64,
}

impl CutScore {
    fn add(&mut self, jump: &CutScore) {
        self.kept += jump.kept;
        self.swapped += jump.swapped;
        self.parted += jump.parted;
    }
}

impl ExtTspChains<'_> {
    /// The score of the jumps across a cut when `size` bytes come between.
    pub(super) fn score_parted(&self, chain: &ExtTspChain, at: usize, size: u64) -> f64 {
        let crosses = |number: usize, jump: u32| match chain.spans.get(number) {
            Some(&(first, last)) => first as usize <= at && at <= last as usize,
            None => self.crossed(jump).contains(&at),
        };
        let crossing =
            chain.jumps.iter().enumerate().filter(|&(number, &jump)| crosses(number, jump));
        crossing
            .map(|(_, &jump)| self.jump_score(jump, parted(self.distance_now(jump), size)))
            .sum()
    }

    /// One cut of a chain.
    pub(super) fn cut(&self, chain: &ExtTspChain, at: usize) -> CutScore {
        if let Some(&cut) = chain.cuts.get(at) {
            return cut;
        }
        let mut cut = CutScore::default();
        for &jump in chain.jumps.iter().filter(|&&jump| self.crossed(jump).contains(&at)) {
            cut.add(&self.cut_of(jump, chain.size));
        }
        cut
    }

    /// All cuts of a chain, by the position behind each, and for each jump the cuts that it
    /// crosses.
    pub(super) fn cuts(&self, chain: &ExtTspChain) -> (Vec<CutScore>, Vec<(u32, u32)>) {
        let mut cuts = vec![CutScore::default(); chain.nodes.len()];
        let spans = chain.jumps.iter().map(|&jump| {
            let (crossed, alone) = (self.crossed(jump), self.cut_of(jump, chain.size));
            let span = (*crossed.start() as u32, *crossed.end() as u32);
            cuts[crossed].iter_mut().for_each(|cut| cut.add(&alone));
            span
        });
        let spans = spans.collect();
        (cuts, spans)
    }

    /// The cuts between the two ends of a jump within a chain.
    pub(super) fn crossed(&self, jump: u32) -> std::ops::RangeInclusive<usize> {
        let ends = &self.jumps[jump as usize];
        let (from, to) = (self.positions[ends.from as usize], self.positions[ends.to as usize]);
        from.min(to) + 1..=from.max(to)
    }

    /// A cut that only this jump crosses, in a chain of `size` bytes.
    pub(super) fn cut_of(&self, jump: u32, size: u64) -> CutScore {
        let distance = self.distance_now(jump);
        let ends = &self.jumps[jump as usize];
        let forward = self.positions[ends.from as usize] < self.positions[ends.to as usize];
        let swapped = if forward { distance - size as i64 } else { distance + size as i64 };
        CutScore {
            kept: self.jump_score(jump, distance),
            swapped: self.jump_score(jump, swapped),
            parted: self.jump_score(jump, parted(distance, 1)),
        }
    }

    pub(super) fn distance_now(&self, jump: u32) -> i64 {
        self.distance(jump, |node| self.offsets[node as usize] as i64)
    }

    /// The bytes from the place of a jump to its target when each node starts at `place`.
    pub(super) fn distance(&self, jump: u32, place: impl Fn(u32) -> i64) -> i64 {
        let jump = &self.jumps[jump as usize];
        place(jump.to) + jump.to_start as i64 - place(jump.from) - jump.from_end as i64
    }

    pub(super) fn jump_score(&self, jump: u32, distance: i64) -> f64 {
        self.jumps[jump as usize].score(distance, self.parameters)
    }
}

/// A distance with `size` more bytes.
fn parted(distance: i64, size: u64) -> i64 {
    if distance >= 0 { distance + size as i64 } else { distance - size as i64 }
}
