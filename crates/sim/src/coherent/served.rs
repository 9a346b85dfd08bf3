//! Who served a fetch, load or store, and what it costs. These are plain values.

use super::counters::{MissClass, Supplier};
use super::description::CoherenceDescription;
use crate::machine::MemoryDescription;

/// What a fetch, load or store asked for outside of the L1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The L1 had the line.
    L1,
    /// The L2 had the line.
    L2,
    /// The L2 lacked the line.
    Missed(MissClass, Supplier),
    /// The core had the line, and took it from all others to store. The supplier is the farthest
    /// that had to answer.
    Upgraded(Supplier),
}

/// The result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoherentAccess {
    /// Who served it.
    pub served: Served,
    /// The L1 lacked the line. An upgrade then also waits for the L2.
    pub l1_missed: bool,
    /// The core's last miss on the line counted as false sharing until now, and is true sharing.
    pub was_true: bool,
}

impl CoherentAccess {
    /// An access that changes nothing.
    pub const BY_L1: CoherentAccess =
        CoherentAccess { served: Served::L1, l1_missed: false, was_true: false };

    /// The cycles for which the access stops a core with blocking caches.
    #[inline]
    pub fn cycles(self, memory: &MemoryDescription, cores: &CoherenceDescription) -> f64 {
        match self.served {
            Served::L1 => 0.0,
            Served::L2 => memory.latencies.l2,
            Served::Missed(_, supplier) => supplier.latency(memory, cores),
            Served::Upgraded(supplier) => self.l2(memory) + supplier.latency(memory, cores),
        }
    }

    /// The cycles of an upgrade until the L2 has answered.
    #[inline]
    pub fn l2(self, memory: &MemoryDescription) -> f64 {
        match self.served {
            Served::Upgraded(_) if self.l1_missed => memory.latencies.l2,
            _ => 0.0,
        }
    }
}
