//! The core of a multiprocessor that executes the operating system (Nellans 2005, section 4.2), and
//! what each event costs in energy on any core.
//!
//! Input: numbers. Output: an [`OsCoreDescription`], or an error that names the rule. This module
//! decides nothing about what runs where.

use crate::geometry::CacheGeometry;
use thiserror::Error;

/// The last core of a multiprocessor, when it is for the operating system. Its lines are as long as
/// those of the application cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OsCoreDescription {
    /// Its L1 cache of instructions.
    pub(crate) l1i: CacheGeometry,
    /// Its L1 cache of data.
    pub(crate) l1d: CacheGeometry,
    /// Its L2.
    pub(crate) l2: CacheGeometry,
    move_cycles: f64,
    static_power: f64,
    energy: EnergyDescription,
}

/// What every event costs in energy, in picojoules, and how much is lost without any event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EnergyDescription {
    /// An instruction, with its fetch from the L1I.
    pub instruction: f64,
    /// An access of the L1D.
    pub l1d: f64,
    /// An access of an L2.
    pub l2: f64,
    /// An access of the L3, or of another core's caches.
    pub l3: f64,
    /// A line from memory.
    pub memory: f64,
    /// The part of a busy application core's power that is static, from 0 to below 1.
    pub static_share: f64,
}

#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum OsCoreError {
    #[error("moving to the core of the operating system must cost 0 to 1000000 cycles, not {0}")]
    Move(f64),
    #[error(
        "the static power of the core of the operating system must be 0 to 100 times that of \
         another core, not {0}"
    )]
    StaticPower(f64),
    #[error("the energy of an event must lie between 0 and 1000000 pJ, not {0}")]
    Energy(f64),
    #[error("the static part of a core's power must lie between 0 and 0.99, not {0}")]
    StaticShare(f64),
}

impl OsCoreDescription {
    /// A core with these caches. `move_cycles`: until execution has moved to it, and the same back.
    /// `static_power`: relative to that of an application core.
    ///
    /// # Errors
    /// A number is outside its range. NaN is outside of every range.
    pub fn new(
        [l1i, l1d, l2]: [CacheGeometry; 3],
        move_cycles: f64,
        static_power: f64,
        energy: EnergyDescription,
    ) -> Result<OsCoreDescription, OsCoreError> {
        if !(0.0..=100.0).contains(&static_power) {
            return Err(OsCoreError::StaticPower(static_power));
        }
        let EnergyDescription { instruction, l1d: of_l1d, l2: of_l2, l3, memory, static_share } =
            energy;
        for picojoules in [instruction, of_l1d, of_l2, l3, memory] {
            if !(0.0..=1e6).contains(&picojoules) {
                return Err(OsCoreError::Energy(picojoules));
            }
        }
        if !(0.0..=0.99).contains(&static_share) {
            return Err(OsCoreError::StaticShare(static_share));
        }
        let core = OsCoreDescription { l1i, l1d, l2, move_cycles: 0.0, static_power, energy };
        core.moving_in(move_cycles)
    }

    /// The same core, to which execution moves in this number of cycles.
    ///
    /// # Errors
    /// The number is outside its range.
    pub fn moving_in(self, move_cycles: f64) -> Result<OsCoreDescription, OsCoreError> {
        match (0.0..=1e6).contains(&move_cycles) {
            true => Ok(OsCoreDescription { move_cycles, ..self }),
            false => Err(OsCoreError::Move(move_cycles)),
        }
    }

    /// The cycles until execution has moved to this core, and the same back.
    pub fn move_cycles(&self) -> f64 {
        self.move_cycles
    }

    /// Its static power, relative to that of an application core.
    pub fn static_power(&self) -> f64 {
        self.static_power
    }

    /// The energy of events.
    pub fn energy(&self) -> &EnergyDescription {
        &self.energy
    }
}

#[cfg(test)]
mod tests {
    use super::super::energy::ENERGY;
    use super::*;
    use crate::Replacement;

    fn core(moving: f64, power: f64, energy: EnergyDescription) -> Result<f64, OsCoreError> {
        let cache = CacheGeometry::cache(4096, 4, 64, Replacement::Lru).unwrap();
        OsCoreDescription::new([cache; 3], moving, power, energy).map(|core| core.move_cycles())
    }

    #[test]
    fn numbers_outside_their_range_are_named() {
        assert_eq!(core(100.0, 0.25, ENERGY), Ok(100.0));
        assert_eq!(core(-1.0, 0.25, ENERGY), Err(OsCoreError::Move(-1.0)));
        assert_eq!(core(1.0, 101.0, ENERGY), Err(OsCoreError::StaticPower(101.0)));
        let energy = EnergyDescription { memory: -2.0, ..ENERGY };
        assert_eq!(core(1.0, 1.0, energy), Err(OsCoreError::Energy(-2.0)));
        let energy = EnergyDescription { static_share: 1.0, ..ENERGY };
        assert_eq!(core(1.0, 1.0, energy), Err(OsCoreError::StaticShare(1.0)));
        assert!(matches!(core(f64::NAN, 1.0, ENERGY), Err(OsCoreError::Move(_))));
    }
}
