//! What makes a machine a multiprocessor: cores, clusters, the protocol, and what it costs to reach
//! another core.

use crate::Replacement;
use thiserror::Error;

/// How the private caches of cores agree on a line. Both protocols invalidate: a core that writes
/// takes the line from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Modified, exclusive, shared, invalid. A line that a core reads, and that no other core has,
    /// becomes exclusive. A write to an exclusive line needs no request.
    Mesi,
    /// Dirty, shared, invalid (Rosenblum 1995, section 3.5). The first write to a line that was
    /// read is always an upgrade.
    ThreeStates,
}

impl Protocol {
    /// Every protocol.
    pub const ALL: [Protocol; 2] = [Protocol::Mesi, Protocol::ThreeStates];

    /// What it is called in machine files.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Mesi => "mesi",
            Protocol::ThreeStates => "three-states",
        }
    }
}

/// The cores of a machine. Each has an L1I, an L1D and an L2 for itself. The cores of a cluster
/// share an L3, if the machine has one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoherenceDescription {
    pub(crate) cores: u32,
    pub(crate) clusters: u32,
    pub(crate) protocol: Protocol,
    /// Cycles until another core of the cluster answers.
    pub(crate) core_latency: f64,
    /// Cycles until a core of another cluster answers.
    pub(crate) cluster_latency: f64,
}

#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum CoherenceError {
    #[error("a multiprocessor has 2 to {max} cores, not {0}", max = CoherenceDescription::MOST_CORES)]
    Cores(u64),
    #[error("{cores} cores cannot be divided into {clusters} clusters of the same size")]
    Clusters { cores: u64, clusters: u64 },
    #[error(
        "a latency must lie between 0 and 10000 cycles, and that to another cluster be at least \
         that to another core, not {0}"
    )]
    Latency(f64),
    #[error("a multiprocessor needs [{0}]")]
    Missing(&'static str),
    #[error("an out-of-order core has no coherence: leave out [core] or [coherence]")]
    OutOfOrder,
    #[error("the caches of a multiprocessor need the replacement lru, not {}", .0.name())]
    Replacement(Replacement),
    #[error("a line of the {level}, {line} bytes, must not be longer than the L2's, {l2} bytes")]
    LongerLine { level: &'static str, line: u32, l2: u32 },
    #[error("a line of the L3, {l3} bytes, must be as long as the L2's, {l2} bytes")]
    OtherLine { l3: u32, l2: u32 },
}

impl CoherenceDescription {
    /// The largest number of cores.
    pub(crate) const MOST_CORES: u32 = 8;

    /// Cores and what it costs to reach them, in cycles. With one cluster, `cluster_latency` is
    /// never used.
    ///
    /// # Errors
    /// A number is outside its range, or the clusters have different sizes.
    pub fn new(
        cores: u64,
        clusters: u64,
        protocol: Protocol,
        core_latency: f64,
        cluster_latency: f64,
    ) -> Result<CoherenceDescription, CoherenceError> {
        if !(2..=u64::from(CoherenceDescription::MOST_CORES)).contains(&cores) {
            return Err(CoherenceError::Cores(cores));
        }
        if clusters == 0 || !cores.is_multiple_of(clusters) {
            return Err(CoherenceError::Clusters { cores, clusters });
        }
        for cycles in [core_latency, cluster_latency] {
            if !(0.0..=10000.0).contains(&cycles) {
                return Err(CoherenceError::Latency(cycles));
            }
        }
        if cluster_latency < core_latency {
            return Err(CoherenceError::Latency(cluster_latency));
        }
        let (cores, clusters) = (cores as u32, clusters as u32);
        Ok(CoherenceDescription { cores, clusters, protocol, core_latency, cluster_latency })
    }

    /// The number of cores.
    pub fn cores(&self) -> u32 {
        self.cores
    }

    /// The number of clusters.
    pub fn clusters(&self) -> u32 {
        self.clusters
    }

    /// How the caches agree.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }
}
