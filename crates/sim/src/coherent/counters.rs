//! What a core of a multiprocessor counts.

use crate::coherent::description::CoherenceDescription;
use crate::machine::MemoryDescription;
use std::ops::{AddAssign, Sub};

/// Why a core had to ask outside of its own caches for a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MissClass {
    /// The core never had the line.
    Cold,
    /// The core evicted the line: its caches are too small, or too few ways.
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

/// Defines counters with their sum and difference.
macro_rules! counters {
    ($(#[$attribute:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[derive(serde::Serialize, serde::Deserialize)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: $name) {
                $(self.$field += other.$field;)*
            }
        }

        impl Sub for $name {
            type Output = $name;

            fn sub(self, earlier: $name) -> $name {
                $name { $($field: self.$field - earlier.$field,)* }
            }
        }
    };
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
    ClassCounts {
        /// See [`MissClass::Cold`].
        cold: u64,
        /// See [`MissClass::Capacity`].
        capacity: u64,
        /// See [`MissClass::TrueSharing`].
        true_sharing: u64,
        /// See [`MissClass::FalseSharing`].
        false_sharing: u64,
    }
}

counters! {
    /// Requests by who answered.
    SupplierCounts {
        /// See [`Supplier::LastLevel`].
        last_level: u64,
        /// See [`Supplier::Core`].
        core: u64,
        /// See [`Supplier::Cluster`].
        cluster: u64,
        /// See [`Supplier::Memory`].
        memory: u64,
    }
}

counters! {
    /// The counters of a core for one mode.
    CoreCounters {
        /// Instructions.
        instructions: u64,
        /// Loads.
        loads: u64,
        /// Stores.
        stores: u64,
        /// Misses of the L1I.
        l1i: u64,
        /// Misses of the L1D.
        l1d: u64,
        /// Misses of the L2 on instructions.
        l2_instructions: ClassCounts,
        /// Misses of the L2 on data.
        l2_data: ClassCounts,
        /// Stores to a line that the core has, and may only read.
        upgrades: u64,
        /// Who supplied the lines that the L2 lacked.
        supplied: SupplierCounts,
        /// The farthest that had to answer an upgrade.
        upgraded: SupplierCounts,
        /// Misses of the instruction TLB.
        itlb: u64,
        /// Misses of the data TLB.
        dtlb: u64,
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
    pub fn cycles(&self, memory: &MemoryDescription, cores: &CoherenceDescription) -> f64 {
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
