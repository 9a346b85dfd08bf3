//! Runs a recording with data accesses on simulated machines, and reports every miss to an
//! observer.
//!
//! Runs one execution after the other, its fetches before its loads and stores, as `replay` does.
//! It is slower than `replay`, because it reports each miss.
//!
//! Input: a recording and machines. Output: misses, one by one. This module counts nothing.

use anyhow::{Context, Result};
use execution::executions::{Executed, ExecutionVisitor};
use sim::{Hierarchy, MachineCounters, MachineModel, MissedLevels, PerMode, PhysAddr, Requester};
use trace::{Accesses, RunAddr, Translation, TranslationId};

/// A load or store that missed.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataMiss {
    /// The index of the instruction in its translation block.
    pub instruction: u16,
    /// The address of the access. For an access across a line's end: the address of the part in the
    /// missed line.
    pub addr: u64,
    pub physical: PhysAddr,
}

/// Receives every execution and every miss. `machine`: an index into the list of machines.
pub(super) trait MissObserver {
    fn define(&mut self, translation: &Translation);
    /// A stream begins.
    fn stream(&mut self, accesses: &Accesses);
    /// The next execution. `instructions`: how many ran, when it was left midway.
    fn executed(&mut self, translation: TranslationId, instructions: Option<u32>);
    /// A fetch of the current execution missed.
    fn fetch_missed(&mut self, machine: usize, addr: RunAddr, missed: MissedLevels);
    fn data_missed(&mut self, machine: usize, miss: &DataMiss, missed: MissedLevels);
}

/// The caches of all machines.
pub(super) struct HierarchyWalk<O> {
    hierarchies: Vec<Hierarchy>,
    pub observer: O,
}

impl<O> HierarchyWalk<O> {
    /// Empty caches.
    ///
    /// # Errors
    /// A machine describes no data cache.
    pub(super) fn new(machines: &[MachineModel], observer: O) -> Result<HierarchyWalk<O>> {
        let hierarchy = |machine: &MachineModel| {
            Hierarchy::new(machine)
                .with_context(|| format!("the machine {} describes no data cache", machine.name))
        };
        let hierarchies = machines.iter().map(hierarchy).collect::<Result<_>>()?;
        Ok(HierarchyWalk { hierarchies, observer })
    }

    /// The counters of each machine.
    pub(super) fn counters(&self) -> Vec<PerMode<MachineCounters>> {
        self.hierarchies.iter().map(Hierarchy::counters).collect()
    }
}

impl<O: MissObserver> ExecutionVisitor for HierarchyWalk<O> {
    fn define(&mut self, translation: &Translation) {
        self.observer.define(translation);
    }

    fn stream(&mut self, accesses: &Accesses) {
        self.observer.stream(accesses);
    }

    fn executed(&mut self, executed: &Executed<'_>) {
        let Executed { execution, code, accesses, flow, .. } = *executed;
        self.observer.executed(execution.translation, executed.left());
        let requester = if code.addr.is_kernel() { Requester::KERNEL } else { execution.process };
        for (machine, hierarchy) in self.hierarchies.iter_mut().enumerate() {
            hierarchy.runs(requester);
            let (loads, stores) = (execution.loads.into(), execution.stores.into());
            hierarchy.executed(executed.instructions(), loads, stores);
            for (line, addr, physical) in executed.fetches(machine) {
                if let Some(missed) = hierarchy.fetch(line, physical) {
                    self.observer.fetch_missed(machine, addr, missed);
                }
            }
            let log2 = hierarchy.data_line_log2();
            for access in accesses {
                hierarchy.data_page(access.page);
                let last = (access.physical.0 + u64::from(access.size) - 1) >> log2;
                for line in access.physical.0 >> log2..=last {
                    if let Some(missed) = hierarchy.data(PhysAddr(line << log2)) {
                        let physical = PhysAddr(access.physical.0.max(line << log2));
                        let miss = DataMiss {
                            instruction: access.instruction,
                            addr: flow
                                .virtual_address(access)
                                .wrapping_add(physical.0 - access.physical.0),
                            physical,
                        };
                        self.observer.data_missed(machine, &miss, missed);
                    }
                }
            }
        }
    }
}
