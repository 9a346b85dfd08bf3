//! How a machine predicts branches: the numbers, checked, and what a wrong prediction costs.

use crate::branch_counters::BranchCounters;
use crate::geometry::{Geometry, GeometryError, Replacement};
use thiserror::Error;

/// How a machine predicts branches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BranchPrediction {
    pub direction: Direction,
    /// `None`: no indirect branch is predicted, and no direct one waits for its target.
    pub targets: Option<TargetBufferDescription>,
    /// Entries; 0: returns are predicted as indirect branches are.
    pub return_stack: u32,
    /// Cycles that a misprediction costs; `None`: not known.
    pub penalty: Option<f64>,
    /// Cycles that a misfetch costs; `None`: not known.
    pub misfetch_penalty: Option<f64>,
}

/// How the direction of conditional branches is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Backward taken, forward not taken.
    Static,
    /// A counter of two bits by address.
    Bimodal { entries: u32 },
    /// A counter of two bits by address and the outcomes of the last `history` conditional
    /// branches.
    Gshare { entries: u32, history: u32 },
}

/// A branch target buffer; LRU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetBufferDescription {
    pub geometry: Geometry,
    pub holds: Held,
}

/// Which branches a target buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// All that are taken: a direct one that is not there is a misfetch.
    Taken,
    /// Indirect ones only: the target of a direct one is known in time.
    Indirect,
}

#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum PredictionError {
    #[error("a table of counters has a power of two of at most {max} entries, not {0}", max = Direction::MAX_ENTRIES)]
    Entries(u64),
    #[error(
        "the history has from 1 to {bits} bits, as {entries} entries have an index of {bits} bits, not {history}"
    )]
    History { history: u64, entries: u64, bits: u32 },
    #[error("the target buffer: {0}")]
    TargetBuffer(GeometryError),
    #[error("a return stack has at most {max} entries, not {0}", max = BranchPrediction::MAX_RETURN_STACK)]
    ReturnStack(u64),
    #[error("a wrong prediction costs from 0 to 10000 cycles, not {0}")]
    Penalty(f64),
}

impl Direction {
    pub const MAX_ENTRIES: u64 = 1 << 24;

    /// # Errors
    /// `entries` is no power of two, or above [`Direction::MAX_ENTRIES`].
    pub fn bimodal(entries: u64) -> Result<Direction, PredictionError> {
        if !entries.is_power_of_two() || entries > Direction::MAX_ENTRIES {
            return Err(PredictionError::Entries(entries));
        }
        Ok(Direction::Bimodal { entries: entries as u32 })
    }

    /// # Errors
    /// As [`Direction::bimodal`], or `history` is 0 or more bits than the table's index has.
    pub fn gshare(entries: u64, history: u64) -> Result<Direction, PredictionError> {
        Direction::bimodal(entries)?;
        let bits = entries.trailing_zeros();
        if !(1..=u64::from(bits)).contains(&history) {
            return Err(PredictionError::History { history, entries, bits });
        }
        Ok(Direction::Gshare { entries: entries as u32, history: history as u32 })
    }
}

impl TargetBufferDescription {
    /// # Errors
    /// See [`Geometry::tlb`].
    pub fn new(
        entries: u64,
        ways: u64,
        holds: Held,
    ) -> Result<TargetBufferDescription, PredictionError> {
        let geometry = Geometry::tlb(entries, ways, Replacement::Lru)
            .map_err(PredictionError::TargetBuffer)?;
        Ok(TargetBufferDescription { geometry, holds })
    }
}

impl BranchPrediction {
    pub const MAX_RETURN_STACK: u64 = 1 << 12;

    /// # Errors
    /// The return stack is larger than [`BranchPrediction::MAX_RETURN_STACK`], or a penalty is out
    /// of its range; NaN is in none.
    pub fn new(
        direction: Direction,
        targets: Option<TargetBufferDescription>,
        return_stack: u64,
        penalty: Option<f64>,
        misfetch_penalty: Option<f64>,
    ) -> Result<BranchPrediction, PredictionError> {
        if return_stack > BranchPrediction::MAX_RETURN_STACK {
            return Err(PredictionError::ReturnStack(return_stack));
        }
        for cycles in [penalty, misfetch_penalty].into_iter().flatten() {
            if !(0.0..=10000.0).contains(&cycles) {
                return Err(PredictionError::Penalty(cycles));
            }
        }
        Ok(BranchPrediction {
            direction,
            targets,
            return_stack: return_stack as u32,
            penalty,
            misfetch_penalty,
        })
    }

    /// Cycles for which wrong predictions stop the machine; `None` where it is not known what one
    /// costs.
    pub fn stall(&self, counters: &BranchCounters) -> Option<f64> {
        let misfetches = counters.misfetches as f64 * self.misfetch_penalty.unwrap_or(0.0);
        Some(counters.mispredictions() as f64 * self.penalty? + misfetches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_built_names_its_rule() {
        assert_eq!(Direction::bimodal(1024), Ok(Direction::Bimodal { entries: 1024 }));
        assert_eq!(Direction::bimodal(3072), Err(PredictionError::Entries(3072)));
        assert_eq!(Direction::bimodal(0), Err(PredictionError::Entries(0)));
        assert_eq!(Direction::bimodal(1 << 25), Err(PredictionError::Entries(1 << 25)));
        assert!(Direction::gshare(1024, 10).is_ok());
        let history = |history, entries: u64| PredictionError::History {
            history,
            entries,
            bits: entries.trailing_zeros(),
        };
        assert_eq!(Direction::gshare(1024, 11), Err(history(11, 1024)));
        assert_eq!(Direction::gshare(1024, 0), Err(history(0, 1024)));
        assert_eq!(Direction::gshare(1, 1), Err(history(1, 1)));
        let buffer = TargetBufferDescription::new(1000, 8, Held::Taken);
        assert_eq!(buffer, Err(PredictionError::TargetBuffer(GeometryError::Sets(125))));
        let prediction = |stack, penalty| {
            BranchPrediction::new(Direction::Static, None, stack, Some(penalty), None)
        };
        assert!(prediction(16, 10.0).is_ok());
        assert_eq!(prediction(5000, 10.0), Err(PredictionError::ReturnStack(5000)));
        assert_eq!(prediction(16, -1.0), Err(PredictionError::Penalty(-1.0)));
        assert!(matches!(prediction(16, f64::NAN), Err(PredictionError::Penalty(_))));
    }

    #[test]
    fn a_stall_by_hand() {
        let counters = BranchCounters {
            wrong_directions: 3,
            wrong_targets: 2,
            wrong_returns: 1,
            misfetches: 10,
            ..BranchCounters::default()
        };
        let stall = |penalty, misfetch| {
            let prediction = BranchPrediction::new(Direction::Static, None, 0, penalty, misfetch);
            prediction.unwrap().stall(&counters)
        };
        assert_eq!(stall(Some(20.0), Some(3.0)), Some(6.0 * 20.0 + 30.0));
        assert_eq!(stall(Some(20.0), None), Some(120.0));
        assert_eq!(stall(None, Some(3.0)), None);
    }
}
