//! Counts what a line, a field, a function or a CPU asked other cores for.
//!
//! Input: who served each access. Output: misses by class, upgrades, and their cost. This module
//! knows neither addresses nor names.

use serde::Serialize;
use sim::MachineModel;
use sim::coherent::{ClassCounts, CoherentAccess, MissClass, Served, Supplier, SupplierCounts};
use std::ops::AddAssign;

/// The cycles after which the L2 and each supplier of a machine answer.
#[derive(Clone, Copy)]
pub(super) struct RequestCosts {
    l2: f64,
    last_level: f64,
    core: f64,
    cluster: f64,
    memory: f64,
    walk: f64,
}

impl RequestCosts {
    /// `None`: the machine has one core.
    pub(super) fn of(machine: &MachineModel) -> Option<RequestCosts> {
        let (memory, cores) = (machine.memory.as_ref()?, machine.coherence.as_ref()?);
        let latency = |supplier: Supplier| supplier.latency(memory, cores);
        Some(RequestCosts {
            l2: memory.latencies.l2(),
            last_level: latency(Supplier::LastLevel),
            core: latency(Supplier::Core),
            cluster: latency(Supplier::Cluster),
            memory: latency(Supplier::Memory),
            walk: memory.latencies.tlb_miss(),
        })
    }

    /// The cycles of a TLB miss.
    pub(super) fn walk(&self) -> f64 {
        self.walk
    }

    /// The cycles until a coherence miss or an upgrade was served; `None` for any other access.
    #[inline]
    pub(super) fn of_sharing(&self, served: Served) -> Option<(Supplier, f64)> {
        let supplier = match served {
            Served::Missed(class, supplier) if class.is_coherence() => supplier,
            Served::Upgraded(supplier) => supplier,
            Served::L1 | Served::L2 | Served::Missed(..) => return None,
        };
        Some((supplier, self.until(supplier)))
    }

    /// The cycles for which an access stops the CPU.
    pub(super) fn cycles(&self, by: CoherentAccess) -> f64 {
        match by.served {
            Served::L1 => 0.0,
            Served::L2 => self.l2,
            Served::Upgraded(supplier) if by.l1_missed => self.l2 + self.until(supplier),
            Served::Missed(_, supplier) | Served::Upgraded(supplier) => self.until(supplier),
        }
    }

    #[inline]
    fn until(&self, supplier: Supplier) -> f64 {
        match supplier {
            Supplier::LastLevel => self.last_level,
            Supplier::Core => self.core,
            Supplier::Cluster => self.cluster,
            Supplier::Memory => self.memory,
        }
    }
}

/// Misses of the L2 and upgrades.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LineCounts {
    /// Misses of the L2, by class.
    pub misses: ClassCounts,
    /// Stores to a line that the CPU had but could only read.
    pub upgrades: u64,
    /// Who served coherence misses and upgrades.
    pub served: SupplierCounts,
    /// The cycles of coherence misses and upgrades.
    pub cycles: f64,
}

impl LineCounts {
    pub(super) fn count(&mut self, by: CoherentAccess, costs: &RequestCosts) {
        match by.served {
            Served::Missed(class, _) => *self.misses.of(class) += 1,
            Served::Upgraded(_) => self.upgrades += 1,
            Served::L1 | Served::L2 => {}
        }
        if let Some((supplier, cycles)) = costs.of_sharing(by.served) {
            self.served.count(supplier);
            self.cycles += cycles;
        }
    }

    /// A miss that counted as false sharing turns out to be true sharing.
    pub(super) fn turn_true(&mut self) {
        *self.misses.of(MissClass::FalseSharing) -= 1;
        *self.misses.of(MissClass::TrueSharing) += 1;
    }

    /// Coherence misses and upgrades.
    pub fn events(&self) -> u64 {
        self.misses.coherence() + self.upgrades
    }
}

impl AddAssign for LineCounts {
    fn add_assign(&mut self, other: LineCounts) {
        self.misses += other.misses;
        self.upgrades += other.upgrades;
        self.served += other.served;
        self.cycles += other.cycles;
    }
}

/// Loads and stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AccessCounts {
    /// Loads.
    pub reads: u64,
    /// Stores.
    pub writes: u64,
}

impl AccessCounts {
    pub(super) fn count(&mut self, is_store: bool) {
        *(if is_store { &mut self.writes } else { &mut self.reads }) += 1;
    }

    /// Loads and stores together.
    pub fn total(&self) -> u64 {
        self.reads + self.writes
    }
}

impl AddAssign for AccessCounts {
    fn add_assign(&mut self, other: AccessCounts) {
        self.reads += other.reads;
        self.writes += other.writes;
    }
}
