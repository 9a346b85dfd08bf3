//! Whether a conditional branch is taken: static, bimodal (Smith 1981, strategy 7), gshare
//! (McFarling 1993, section 7).
//!
//! Tables hold counters of two bits, which begin at "weakly not taken". Their index are the low
//! bits of the branch's address; gshare's, xor'ed with the outcomes of the last conditional
//! branches, which meet the index's high bits where they are fewer.

use crate::branches::CodeAddr;
use crate::prediction::Direction;

const WEAKLY_NOT_TAKEN: u8 = 1;
const STRONGLY_TAKEN: u8 = 3;

#[derive(Clone, Debug)]
pub(crate) enum DirectionPredictor {
    /// Backward: taken.
    Static,
    Table(Table),
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    counters: Vec<u8>,
    /// Outcomes of the last branches, the last one in bit 0.
    history: u64,
    history_mask: u64,
    /// By how much the history is shifted to meet the index.
    shift: u32,
}

impl DirectionPredictor {
    pub fn new(direction: Direction) -> DirectionPredictor {
        let table = |entries: u32, bits: u32| {
            DirectionPredictor::Table(Table {
                counters: vec![WEAKLY_NOT_TAKEN; entries as usize],
                history: 0,
                history_mask: (1 << bits) - 1,
                shift: entries.trailing_zeros() - bits,
            })
        };
        match direction {
            Direction::Static => DirectionPredictor::Static,
            Direction::Bimodal { entries } => table(entries, 0),
            Direction::Gshare { entries, history } => table(entries, history),
        }
    }

    /// What was predicted of the conditional branch at `at` to `target`, which is taken or not.
    pub fn predicts(&mut self, at: CodeAddr, target: CodeAddr, taken: bool) -> bool {
        match self {
            DirectionPredictor::Static => target <= at,
            DirectionPredictor::Table(table) => table.predicts(at, taken),
        }
    }
}

impl Table {
    fn predicts(&mut self, at: CodeAddr, taken: bool) -> bool {
        let index = (at.0 ^ self.history << self.shift) as usize & (self.counters.len() - 1);
        let counter = &mut self.counters[index];
        let predicted = *counter > WEAKLY_NOT_TAKEN;
        *counter = match taken {
            true => (*counter + 1).min(STRONGLY_TAKEN),
            false => counter.saturating_sub(1),
        };
        self.history = (self.history << 1 | u64::from(taken)) & self.history_mask;
        predicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predictions(direction: Direction, branches: &[(u64, u64, bool)]) -> Vec<bool> {
        let mut predictor = DirectionPredictor::new(direction);
        let predicts = branches
            .iter()
            .map(|&(at, target, taken)| predictor.predicts(CodeAddr(at), CodeAddr(target), taken));
        predicts.collect()
    }

    #[test]
    fn backward_branches_are_taken_forward_ones_are_not() {
        let branches = [(10, 5, false), (10, 10, false), (10, 15, true), (10, 15, true)];
        assert_eq!(predictions(Direction::Static, &branches), [true, true, false, false]);
    }

    /// A loop's branch, taken three times and left: from the second round on only its end is wrong.
    #[test]
    fn two_bits_forgive_a_loops_end() {
        let rounds = [true, true, true, false].repeat(2);
        let branches: Vec<_> = rounds.into_iter().map(|taken| (8, 0, taken)).collect();
        assert_eq!(
            predictions(Direction::Bimodal { entries: 4 }, &branches),
            [false, true, true, true, true, true, true, true]
        );
        // Addresses 8 and 12 share a counter of four; of eight they do not.
        let two = [(8, 0, true), (8, 0, true), (12, 0, true)];
        assert_eq!(predictions(Direction::Bimodal { entries: 4 }, &two), [false, true, true]);
        assert_eq!(predictions(Direction::Bimodal { entries: 8 }, &two), [false, true, false]);
    }

    /// A branch that alternates: with one bit of history gshare knows it, bimodal never does.
    #[test]
    fn history_tells_an_alternating_branch() {
        let branches: Vec<_> = (0..8).map(|time| (0, 9, time % 2 == 0)).collect();
        let gshare = Direction::Gshare { entries: 4, history: 1 };
        // History 0 before each taken one: counter 0; 1 before each other: counter 2, as the
        // history meets the index's high bit.
        assert_eq!(
            predictions(gshare, &branches),
            [false, false, true, false, true, false, true, false]
        );
        assert_eq!(
            predictions(Direction::Bimodal { entries: 4 }, &branches),
            [false, true, false, true, false, true, false, true]
        );
    }
}
