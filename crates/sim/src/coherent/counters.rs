//! What a core of a multiprocessor counts.

use crate::coherent::description::CoherenceDescription;
use crate::machine::MemoryDescription;

/// Why a core had to ask outside of its own caches for a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MissClass {
    /// The core never had the line.
    Cold,
    /// The core evicted the line: its caches are too small, or have too few ways.
    Capacity,
    /// Another core's write took the line, and the core uses what was written. No other placement
    /// of data in lines avoids this miss.
    TrueSharing,
    /// Another core's write took the line, and the core uses nothing of what was written.
    FalseSharing,
}

impl MissClass {
    /// Whether another core's write took the line.
    pub fn is_coherence(self) -> bool {
        matches!(self, MissClass::TrueSharing | MissClass::FalseSharing)
    }
}

/// Who answered a core that asked outside of its own caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Supplier {
    /// The L3 of the core's cluster.
    LastLevel,
    /// Another core of its cluster.
    Core,
    /// A core of another cluster.
    Cluster,
    /// Memory.
    Memory,
}

impl Supplier {
    /// The cycles until this supplier has answered.
    pub fn latency(self, memory: &MemoryDescription, cores: &CoherenceDescription) -> f64 {
        match self {
            Supplier::LastLevel => memory.latencies.l3,
            Supplier::Core => cores.core_latency,
            Supplier::Cluster => cores.cluster_latency,
            Supplier::Memory => memory.latencies.memory,
        }
    }
}

counters! {
    /// Misses by class.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    pub struct ClassCounts {
        /// See [`MissClass::Cold`].
        pub cold: u64,
        /// See [`MissClass::Capacity`].
        pub capacity: u64,
        /// See [`MissClass::TrueSharing`].
        pub true_sharing: u64,
        /// See [`MissClass::FalseSharing`].
        pub false_sharing: u64,
    }
}

counters! {
    /// Requests by who answered.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    pub struct SupplierCounts {
        /// See [`Supplier::LastLevel`].
        pub last_level: u64,
        /// See [`Supplier::Core`].
        pub core: u64,
        /// See [`Supplier::Cluster`].
        pub cluster: u64,
        /// See [`Supplier::Memory`].
        pub memory: u64,
    }
}

counters! {
    /// The counters of a core for one mode.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    pub struct CoreCounters {
        /// Instructions.
        pub instructions: u64,
        /// Loads.
        pub loads: u64,
        /// Stores.
        pub stores: u64,
        /// Misses of the L1I.
        pub l1i: u64,
        /// Misses of the L1D.
        pub l1d: u64,
        /// Misses of the L2 on instructions.
        pub l2_instructions: ClassCounts,
        /// Misses of the L2 on data.
        pub l2_data: ClassCounts,
        /// Stores to a line that the core has, and may only read.
        pub upgrades: u64,
        /// Who supplied the lines that the L2 lacked.
        pub supplied: SupplierCounts,
        /// The farthest supplier that had to answer an upgrade.
        pub upgraded: SupplierCounts,
        /// Misses of the instruction TLB.
        pub itlb: u64,
        /// Misses of the data TLB.
        pub dtlb: u64,
    }
}

impl ClassCounts {
    /// Misses of all classes.
    pub fn total(&self) -> u64 {
        self.cold + self.capacity + self.coherence()
    }

    /// Misses because another core's write took the line.
    pub fn coherence(&self) -> u64 {
        self.true_sharing + self.false_sharing
    }

    /// The misses of a class, to change them.
    pub fn of(&mut self, class: MissClass) -> &mut u64 {
        match class {
            MissClass::Cold => &mut self.cold,
            MissClass::Capacity => &mut self.capacity,
            MissClass::TrueSharing => &mut self.true_sharing,
            MissClass::FalseSharing => &mut self.false_sharing,
        }
    }
}

impl SupplierCounts {
    /// Counts a request.
    pub fn count(&mut self, supplier: Supplier) {
        *match supplier {
            Supplier::LastLevel => &mut self.last_level,
            Supplier::Core => &mut self.core,
            Supplier::Cluster => &mut self.cluster,
            Supplier::Memory => &mut self.memory,
        } += 1;
    }

    /// Requests of all suppliers.
    pub fn total(&self) -> u64 {
        self.last_level + self.core + self.cluster + self.memory
    }

    /// The cycles until all answers were there, one after the other.
    pub(crate) fn cycles(&self, memory: &MemoryDescription, cores: &CoherenceDescription) -> f64 {
        let each = [
            (self.last_level, Supplier::LastLevel),
            (self.core, Supplier::Core),
            (self.cluster, Supplier::Cluster),
            (self.memory, Supplier::Memory),
        ];
        each.iter().map(|(times, from)| *times as f64 * from.latency(memory, cores)).sum()
    }
}

/// The cycles for which a core with blocking caches stops.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoreStalls {
    /// Lines that an L1 lacked and the L2 had.
    pub l2: f64,
    /// Lines that the L2 lacked.
    pub beyond: f64,
    /// Upgrades.
    pub upgrades: f64,
    /// TLB misses.
    pub tlb: f64,
}

impl CoreStalls {
    /// The stalls that these counters cause on a machine with these caches and cores.
    pub fn new(
        counters: &CoreCounters,
        memory: &MemoryDescription,
        cores: &CoherenceDescription,
    ) -> CoreStalls {
        let l1 = counters.l1i + counters.l1d;
        CoreStalls {
            l2: l1.saturating_sub(counters.supplied.total()) as f64 * memory.latencies.l2,
            beyond: counters.supplied.cycles(memory, cores),
            upgrades: counters.upgraded.cycles(memory, cores),
            tlb: (counters.itlb + counters.dtlb) as f64 * memory.latencies.tlb_miss,
        }
    }

    /// All stalls.
    pub fn total(&self) -> f64 {
        self.l2 + self.beyond + self.upgrades + self.tlb
    }
}
