//! The energy that a core uses.
//!
//! Input: what the core counted, and what each event costs. Output: picojoules. This module decides
//! nothing about what runs where.

use super::counters::CoreCounters;
use super::os_core::EnergyDescription;

impl EnergyDescription {
    /// The energy of what these counters count, in picojoules.
    pub fn dynamic(&self, counters: &CoreCounters) -> f64 {
        let beyond = counters.supplied.total() + counters.upgraded.total();
        [
            (counters.instructions, self.instruction),
            (counters.loads + counters.stores, self.l1d),
            (counters.l1i + counters.l1d, self.l2),
            (beyond, self.l3),
            (counters.supplied.memory, self.memory),
        ]
        .iter()
        .map(|&(events, picojoules)| events as f64 * picojoules)
        .sum()
    }

    /// The static energy of a core that was busy while it used this dynamic energy.
    pub fn static_of_busy(&self, dynamic: f64) -> f64 {
        dynamic * self.static_share / (1.0 - self.static_share)
    }
}

/// Energies of round numbers, for tests.
#[cfg(test)]
pub(super) const ENERGY: EnergyDescription = EnergyDescription {
    instruction: 70.0,
    l1d: 20.0,
    l2: 100.0,
    l3: 500.0,
    memory: 2000.0,
    static_share: 0.5,
};

#[cfg(test)]
mod tests {
    use super::super::counters::SupplierCounts;
    use super::*;

    #[test]
    fn energy_by_hand() {
        let counters = CoreCounters {
            instructions: 1000,
            loads: 200,
            stores: 100,
            l1i: 7,
            l1d: 3,
            supplied: SupplierCounts { last_level: 2, core: 1, cluster: 0, memory: 4 },
            upgraded: SupplierCounts { core: 1, ..SupplierCounts::default() },
            ..CoreCounters::default()
        };
        let dynamic = 70_000.0 + 6_000.0 + 1_000.0 + 8.0 * 500.0 + 8_000.0;
        assert_eq!(ENERGY.dynamic(&counters), dynamic);
        assert_eq!(ENERGY.static_of_busy(dynamic), dynamic);
        let quarter = EnergyDescription { static_share: 0.25, ..ENERGY };
        assert_eq!(quarter.static_of_busy(300.0), 100.0);
    }
}
