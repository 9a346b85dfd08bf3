//! Small multiprocessors for tests.

use kernlane_sim::coherent::{CoherenceDescription, Protocol};
use kernlane_sim::{
    CacheDescription, CacheGeometry, Latencies, MachineModel, MemoryDescription, Replacement,
    SimpleModel,
};

/// Sizes in bytes; lines of the L1s and of the L2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub l1: u64,
    pub l2: u64,
    pub l3: Option<u64>,
    pub l1_line: u64,
    pub l2_line: u64,
}

/// Big enough that nothing is ever evicted.
pub(crate) const LARGE: Sizes =
    Sizes { l1: 4 << 10, l2: 64 << 10, l3: Some(1 << 20), l1_line: 64, l2_line: 64 };

/// L1s of one way, an L2 of two ways, an L3 of four. Another core answers after 50 cycles, another
/// cluster after 90, the L2 after 10, the L3 after 40, memory after 100.
pub(crate) fn machine(cores: u64, clusters: u64, protocol: Protocol, sizes: Sizes) -> MachineModel {
    let cache = |size, ways, line| {
        CacheDescription::new(size, ways, line, Replacement::Lru).expect("the sizes are whole sets")
    };
    let l1 = CacheGeometry::cache(sizes.l1, 1, sizes.l1_line, Replacement::Lru);
    let memory = MemoryDescription::new(
        cache(sizes.l1, 1, sizes.l1_line),
        Some(cache(sizes.l2, 2, sizes.l2_line)),
        sizes.l3.map(|l3| cache(l3, 4, sizes.l2_line)),
        None,
        Latencies::new(10.0, 40.0, 100.0, 0.0).expect("the latencies ascend"),
    );
    MachineModel {
        name: "small".to_owned(),
        l1i: l1.expect("the sizes are whole sets"),
        l1i_line: sizes.l1_line as u32,
        itlb: None,
        time: SimpleModel::new(10.0, 0.3, 0.05).expect("the shares are shares"),
        memory: Some(memory.expect("there is an L2")),
        branch: None,
        core: None,
        coherence: Some(
            CoherenceDescription::new(cores, clusters, protocol, 50.0, 90.0).expect("few cores"),
        ),
        os_core: None,
        clock: None,
    }
}
