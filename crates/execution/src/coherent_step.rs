//! One execution on a core with coherent caches.
//!
//! Input: an execution. Output: who served each of its fetches, loads and stores. This module
//! counts nothing.

use crate::executions::Executed;
use sim::PhysAddr;
use sim::coherent::{CoherentAccess, CoherentCaches, CoreId};

/// What a core asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A fetch.
    Code,
    /// A load or store.
    Data,
}

/// Fetches the code, then makes the loads and stores; each is passed to `served`.
#[inline]
pub fn run(
    caches: &mut CoherentCaches,
    core: CoreId,
    executed: &Executed<'_>,
    mut served: impl FnMut(Asked, CoherentAccess),
) {
    let execution = executed.execution;
    caches.runs(core, executed.code.mode());
    let (loads, stores) = (execution.loads.into(), execution.stores.into());
    caches.executed(core, executed.instructions(), loads, stores);
    for (_, _, physical) in executed.fetches(0) {
        served(Asked::Code, caches.fetch(core, physical));
    }
    let log2 = caches.data_line_log2();
    for access in executed.accesses {
        let (mut at, end) = (access.physical.0, access.physical.0 + u64::from(access.size));
        while at < end {
            let next = end.min(((at >> log2) + 1) << log2);
            let size = (next - at) as u32;
            let by = caches.data(core, PhysAddr(at), size, access.is_store);
            served(Asked::Data, by);
            at = next;
        }
    }
}
