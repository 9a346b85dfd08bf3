//! The description of a machine's branch prediction: checked numbers, and the cost of a failed
//! prediction.
//!
//! Input: numbers. Output: a [`BranchPrediction`], or an error that names the rule. This module
//! predicts nothing.

use crate::Replacement;
use crate::branch_counters::BranchCounters;
use crate::geometry::{CacheGeometry, GeometryError};
use thiserror::Error;

/// How a machine predicts branches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BranchPrediction {
    /// The predictor of directions.
    pub(crate) direction: DirectionPrediction,
    /// The target buffer. `None`: no indirect branch is predicted, and no direct branch waits for
    /// its target.
    pub(crate) targets: Option<TargetBufferDescription>,
    /// The entries of the return stack. 0: returns are predicted as indirect branches are.
    pub(crate) return_stack: u32,
    /// The cycles that a misprediction costs, if known.
    pub(crate) penalty: Option<f64>,
    /// The cycles that a misfetch costs, if known.
    pub(crate) misfetch_penalty: Option<f64>,
}

/// How the direction of conditional branches is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectionPrediction {
    /// Backward branches are taken, forward branches are not.
    Static,
    /// A counter of two bits, chosen by the address.
    Bimodal {
        /// The number of counters.
        entries: u32,
    },
    /// A counter of two bits, chosen by the address and by the outcomes of the last `history`
    /// conditional branches.
    Gshare {
        /// The number of counters.
        entries: u32,
        /// The number of outcomes in the history.
        history: u32,
    },
}

/// A branch target buffer with LRU replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetBufferDescription {
    /// Sets, ways and replacement.
    pub(crate) geometry: CacheGeometry,
    /// Which branches the buffer holds.
    pub(crate) holds: HeldBranches,
}

/// Which branches a target buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBranches {
    /// All taken branches. A direct branch that is not there is a misfetch.
    Taken,
    /// Indirect branches only. The target of a direct branch is known in time.
    Indirect,
}

#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum PredictionError {
    #[error(
        "the entries of a table of counters must be a power of two of at most {max}, not {0}",
        max = DirectionPrediction::MAX_ENTRIES
    )]
    Entries(u64),
    #[error(
        "the history must have from 1 to {bits} bits, because {entries} entries have an index of \
         {bits} bits; not {history}"
    )]
    History { history: u64, entries: u64, bits: u32 },
    #[error("the target buffer: {0}")]
    TargetBuffer(GeometryError),
    #[error(
        "a return stack can have at most {max} entries, not {0}",
        max = BranchPrediction::MAX_RETURN_STACK
    )]
    ReturnStack(u64),
    #[error("a wrong prediction must cost from 0 to 10000 cycles, not {0}")]
    Penalty(f64),
}

impl DirectionPrediction {
    /// The largest number of counters in a table.
    pub(crate) const MAX_ENTRIES: u64 = 1 << 24;

    /// A bimodal predictor.
    ///
    /// # Errors
    /// `entries` is not a power of two, or is above [`DirectionPrediction::MAX_ENTRIES`].
    pub fn bimodal(entries: u64) -> Result<DirectionPrediction, PredictionError> {
        if !entries.is_power_of_two() || entries > DirectionPrediction::MAX_ENTRIES {
            return Err(PredictionError::Entries(entries));
        }
        Ok(DirectionPrediction::Bimodal { entries: entries as u32 })
    }

    /// A gshare predictor.
    ///
    /// # Errors
    /// The same as for [`DirectionPrediction::bimodal`]. Also: `history` is 0, or above the number
    /// of bits in the table's index.
    pub fn gshare(entries: u64, history: u64) -> Result<DirectionPrediction, PredictionError> {
        DirectionPrediction::bimodal(entries)?;
        let bits = entries.trailing_zeros();
        if !(1..=u64::from(bits)).contains(&history) {
            return Err(PredictionError::History { history, entries, bits });
        }
        Ok(DirectionPrediction::Gshare { entries: entries as u32, history: history as u32 })
    }
}

impl TargetBufferDescription {
    /// A target buffer with LRU replacement.
    ///
    /// # Errors
    /// See [`CacheGeometry::tlb`].
    pub fn new(
        entries: u64,
        ways: u64,
        holds: HeldBranches,
    ) -> Result<TargetBufferDescription, PredictionError> {
        let geometry = CacheGeometry::tlb(entries, ways, Replacement::Lru)
            .map_err(PredictionError::TargetBuffer)?;
        Ok(TargetBufferDescription { geometry, holds })
    }

    /// Sets, ways and replacement.
    pub fn geometry(&self) -> CacheGeometry {
        self.geometry
    }

    /// Which branches the buffer holds.
    pub fn holds(&self) -> HeldBranches {
        self.holds
    }
}

impl BranchPrediction {
    /// The largest number of entries in a return stack.
    pub(crate) const MAX_RETURN_STACK: u64 = 1 << 12;

    /// Puts the parts together.
    ///
    /// # Errors
    /// The return stack is larger than [`BranchPrediction::MAX_RETURN_STACK`], or a penalty is
    /// outside its range. NaN is outside of every range.
    pub fn new(
        direction: DirectionPrediction,
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

    /// The cycles that failed predictions cost; `None` when the cost of a misprediction is not
    /// known.
    pub fn stall(&self, counters: &BranchCounters) -> Option<f64> {
        let misfetches = counters.misfetches as f64 * self.misfetch_penalty.unwrap_or(0.0);
        Some(counters.mispredictions() as f64 * self.penalty? + misfetches)
    }

    /// The predictor of directions.
    pub fn direction(&self) -> DirectionPrediction {
        self.direction
    }

    /// The target buffer. `None`: no indirect branch is predicted, and no direct branch waits for
    /// its target.
    pub fn targets(&self) -> Option<TargetBufferDescription> {
        self.targets
    }

    /// The entries of the return stack. 0: returns are predicted as indirect branches are.
    pub fn return_stack(&self) -> u32 {
        self.return_stack
    }

    /// The cycles that a misprediction costs, if known.
    pub fn penalty(&self) -> Option<f64> {
        self.penalty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_predictors_give_an_error_that_names_the_rule() {
        assert_eq!(
            DirectionPrediction::bimodal(1024),
            Ok(DirectionPrediction::Bimodal { entries: 1024 })
        );
        assert_eq!(DirectionPrediction::bimodal(3072), Err(PredictionError::Entries(3072)));
        assert_eq!(DirectionPrediction::bimodal(0), Err(PredictionError::Entries(0)));
        assert_eq!(DirectionPrediction::bimodal(1 << 25), Err(PredictionError::Entries(1 << 25)));
        assert!(DirectionPrediction::gshare(1024, 10).is_ok());
        let history = |history, entries: u64| PredictionError::History {
            history,
            entries,
            bits: entries.trailing_zeros(),
        };
        assert_eq!(DirectionPrediction::gshare(1024, 11), Err(history(11, 1024)));
        assert_eq!(DirectionPrediction::gshare(1024, 0), Err(history(0, 1024)));
        assert_eq!(DirectionPrediction::gshare(1, 1), Err(history(1, 1)));
        let buffer = TargetBufferDescription::new(1000, 8, HeldBranches::Taken);
        assert_eq!(buffer, Err(PredictionError::TargetBuffer(GeometryError::Sets(125))));
        let prediction = |stack, penalty| {
            BranchPrediction::new(DirectionPrediction::Static, None, stack, Some(penalty), None)
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
            let prediction =
                BranchPrediction::new(DirectionPrediction::Static, None, 0, penalty, misfetch);
            prediction.unwrap().stall(&counters)
        };
        assert_eq!(stall(Some(20.0), Some(3.0)), Some(6.0 * 20.0 + 30.0));
        assert_eq!(stall(Some(20.0), None), Some(120.0));
        assert_eq!(stall(None, Some(3.0)), None);
    }
}
