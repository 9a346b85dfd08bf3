//! Predicts whether a conditional branch is taken: static, bimodal (Smith 1981, strategy 7) or
//! gshare (McFarling 1993, section 7).
//!
//! Tables hold counters of two bits, which start at "weakly not taken". Bimodal's index is the low
//! bits of the branch's address. Gshare xors this index with the outcomes of the last conditional
//! branches. A history shorter than the index goes to the high bits of the index.
//!
//! Input: conditional branches with their outcomes, in order. Output: each prediction.

use crate::branches::CodeAddr;
use crate::prediction::DirectionPrediction;

const WEAKLY_NOT_TAKEN: u8 = 1;
const STRONGLY_TAKEN: u8 = 3;

#[derive(Clone, Debug)]
pub(crate) enum DirectionPredictor {
    /// Backward branches are taken, forward branches are not.
    Static,
    /// A table of counters, bimodal or gshare.
    Table(CounterTable),
}

#[derive(Clone, Debug)]
pub(crate) struct CounterTable {
    counters: Vec<u8>,
    /// The outcomes of the last branches. Bit 0 is the latest.
    history: u64,
    history_mask: u64,
    /// How far the history is shifted to the left before the xor.
    shift: u32,
}

impl DirectionPredictor {
    pub(crate) fn new(direction: DirectionPrediction) -> DirectionPredictor {
        let table = |entries: u32, bits: u32| {
            DirectionPredictor::Table(CounterTable {
                counters: vec![WEAKLY_NOT_TAKEN; entries as usize],
                history: 0,
                history_mask: (1 << bits) - 1,
                shift: entries.trailing_zeros() - bits,
            })
        };
        match direction {
            DirectionPrediction::Static => DirectionPredictor::Static,
            DirectionPrediction::Bimodal { entries } => table(entries, 0),
            DirectionPrediction::Gshare { entries, history } => table(entries, history),
        }
    }

    /// The predicted direction of the conditional branch at `at` to `target`. The predictor then
    /// learns from `taken`.
    pub(crate) fn predicts(&mut self, at: CodeAddr, target: CodeAddr, taken: bool) -> bool {
        match self {
            DirectionPredictor::Static => target <= at,
            DirectionPredictor::Table(table) => table.predicts(at, taken),
        }
    }
}

impl CounterTable {
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

    fn predictions(direction: DirectionPrediction, branches: &[(u64, u64, bool)]) -> Vec<bool> {
        let mut predictor = DirectionPredictor::new(direction);
        let predicts = branches
            .iter()
            .map(|&(at, target, taken)| predictor.predicts(CodeAddr(at), CodeAddr(target), taken));
        predicts.collect()
    }

    #[test]
    fn backward_branches_are_taken_forward_ones_are_not() {
        let branches = [(10, 5, false), (10, 10, false), (10, 15, true), (10, 15, true)];
        assert_eq!(predictions(DirectionPrediction::Static, &branches), [true, true, false, false]);
    }

    /// The branch of a loop: taken three times, then not taken. From the second round on, only the
    /// last prediction is wrong.
    #[test]
    fn two_bits_mispredict_a_loop_once_a_round() {
        let rounds = [true, true, true, false].repeat(2);
        let branches: Vec<_> = rounds.into_iter().map(|taken| (8, 0, taken)).collect();
        assert_eq!(
            predictions(DirectionPrediction::Bimodal { entries: 4 }, &branches),
            [false, true, true, true, true, true, true, true]
        );
        // With four counters, the addresses 8 and 12 share one. With eight they do not.
        let two = [(8, 0, true), (8, 0, true), (12, 0, true)];
        assert_eq!(
            predictions(DirectionPrediction::Bimodal { entries: 4 }, &two),
            [false, true, true]
        );
        assert_eq!(
            predictions(DirectionPrediction::Bimodal { entries: 8 }, &two),
            [false, true, false]
        );
    }

    /// An alternating branch. Gshare with one bit of history predicts it. Bimodal never does.
    #[test]
    fn gshare_predicts_an_alternating_branch() {
        let branches: Vec<_> = (0..8).map(|time| (0, 9, time % 2 == 0)).collect();
        let gshare = DirectionPrediction::Gshare { entries: 4, history: 1 };
        // Before each taken branch the history is 0, and selects counter 0. Before each other
        // branch it is 1, and selects counter 2, because the history is xored with the high bit of
        // the index.
        assert_eq!(
            predictions(gshare, &branches),
            [false, false, true, false, true, false, true, false]
        );
        assert_eq!(
            predictions(DirectionPrediction::Bimodal { entries: 4 }, &branches),
            [false, true, false, true, false, true, false, true]
        );
    }
}
