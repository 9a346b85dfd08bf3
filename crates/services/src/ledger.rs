//! The ledger: the totals of each service.
//!
//! Takes finished invocations; gives totals per service. Does not know how invocations are found.

use crate::annotations::ServiceKind;
use execution::sampling::groups::GroupCounts;
use serde::{Deserialize, Serialize};
use sim::core::CoreSlots;
use sim::{BranchCounters, MachineCounters};
use std::collections::HashMap;

/// The number of a service in a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u32);

/// How often a number lay between 2ⁿ and 2ⁿ⁺¹. Entry 0 counts 0 and 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution(pub Vec<u64>);

impl Distribution {
    /// Counts a value.
    pub(crate) fn add(&mut self, value: u64) {
        let at = distribution_class(value) as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] += 1;
    }

    /// The upper end of the entry below which at least `share` (0 to 1) of all numbers lie; 0
    /// without numbers.
    pub(crate) fn quantile(&self, share: f64) -> u64 {
        let all: u64 = self.0.iter().sum();
        let mut below = 0;
        for (at, count) in self.0.iter().enumerate() {
            below += count;
            if below as f64 >= share * all as f64 && below > 0 {
                return 2 << at;
            }
        }
        0
    }
}

/// The number of a value's entry in a [`Distribution`].
pub(crate) fn distribution_class(value: u64) -> u32 {
    value.max(1).ilog2()
}

/// The counts of one machine while a service ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceMachineCounts {
    /// Misses of the L1 instruction cache.
    pub l1i_misses: u64,
    /// Counters of all caches and TLBs; `None` without data accesses, or when the machine describes
    /// no data cache.
    #[serde(skip)]
    pub memory: Option<MachineCounters>,
    /// Counters of branch prediction; `None` when it was not simulated, or when the machine
    /// describes none.
    #[serde(skip)]
    pub branches: Option<BranchCounters>,
    /// The slots of the out-of-order core; `None` when the machine describes none. A lost slot
    /// counts for the service that ends the wait. Estimates if the core was simulated by samples:
    /// 0 until the recording ends.
    #[serde(skip)]
    pub slots: Option<CoreSlots>,
    /// What the estimates are made of; empty when they are made.
    #[serde(skip)]
    pub samples: GroupCounts,
    /// The cycles on coherent caches; `None` when they were not simulated.
    #[serde(skip)]
    pub coherent: Option<CoherentCycles>,
}

/// Where the cycles of a core with coherent caches went (Rosenblum 1995, table 5.4). Cycles within
/// the functions of spin locks count as synchronization, and nowhere else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CoherentCycles {
    /// A cycle for each instruction.
    pub work: f64,
    /// Instructions and stalls in functions of spin locks and of locks for readers and writers.
    pub synchronization: f64,
    /// Coherence misses.
    pub coherence: f64,
    /// Upgrades.
    pub upgrades: f64,
    /// Other stalls for instructions.
    pub instruction: f64,
    /// Other stalls for data.
    pub data: f64,
    /// The number of coherence misses.
    pub coherence_misses: u64,
    /// The number of upgrades.
    pub upgrade_count: u64,
}

impl CoherentCycles {
    /// All cycles.
    pub fn total(&self) -> f64 {
        self.work
            + self.synchronization
            + self.coherence
            + self.upgrades
            + self.instruction
            + self.data
    }
}

impl std::ops::AddAssign for CoherentCycles {
    fn add_assign(&mut self, other: CoherentCycles) {
        self.work += other.work;
        self.synchronization += other.synchronization;
        self.coherence += other.coherence;
        self.upgrades += other.upgrades;
        self.instruction += other.instruction;
        self.data += other.data;
        self.coherence_misses += other.coherence_misses;
        self.upgrade_count += other.upgrade_count;
    }
}

impl std::ops::AddAssign<&ServiceMachineCounts> for ServiceMachineCounts {
    fn add_assign(&mut self, other: &ServiceMachineCounts) {
        self.samples += &other.samples;
        self.l1i_misses += other.l1i_misses;
        if let Some(counters) = other.memory {
            *self.memory.get_or_insert_default() += counters;
        }
        if let Some(counters) = other.branches {
            *self.branches.get_or_insert_default() += counters;
        }
        if let Some(slots) = other.slots {
            *self.slots.get_or_insert_default() += slots;
        }
        if let Some(cycles) = other.coherent {
            *self.coherent.get_or_insert_default() += cycles;
        }
    }
}

/// How long invocations took from begin to end, and the parts of that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InvocationTimes {
    /// From begin to end, by the clock.
    pub latency: u64,
    /// Part of the latency: the task ran this service, or others that began while it was open.
    pub ran: u64,
    /// Part of the latency: the task could not run.
    pub blocked: u64,
    /// Part of the latency: the task could run, but another task ran.
    pub waiting: u64,
}

impl std::ops::AddAssign for InvocationTimes {
    fn add_assign(&mut self, other: InvocationTimes) {
        self.latency += other.latency;
        self.ran += other.ran;
        self.blocked += other.blocked;
        self.waiting += other.waiting;
    }
}

/// The totals of a service. Times are in nanoseconds of the guest's clock; an instruction takes
/// one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceTotals {
    /// The number of invocations. For idle and kernel threads: switches to them. For user mode:
    /// stays.
    pub calls: u64,
    /// Its own instructions, without services that began while it was open.
    pub instructions: u64,
    /// The counts of each machine.
    pub machines: Vec<ServiceMachineCounts>,
    /// The times of finished invocations.
    pub times: InvocationTimes,
    /// The distribution of `ran` per invocation: the length of each visit.
    pub lengths: Distribution,
}

/// A service and its totals.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// The kind of the service.
    pub kind: ServiceKind,
    /// The name of the service.
    pub name: String,
    /// Its totals.
    pub totals: ServiceTotals,
}

/// A finished invocation.
#[derive(Clone, Debug, Default)]
pub struct Invocation {
    /// Its own instructions.
    pub instructions: u64,
    /// The counts of each machine.
    pub machines: Vec<ServiceMachineCounts>,
    /// How long it took.
    pub times: InvocationTimes,
}

/// The totals of all services.
#[derive(Debug, Default)]
pub struct Ledger {
    /// One account for each service, by [`ServiceId`].
    pub accounts: Vec<Account>,
    numbers: HashMap<(ServiceKind, String), ServiceId>,
}

impl Ledger {
    /// The number of a service. Adds the service when it is new.
    pub fn service(&mut self, kind: ServiceKind, name: &str) -> ServiceId {
        if let Some(&known) = self.numbers.get(&(kind, name.to_owned())) {
            return known;
        }
        let id = ServiceId(self.accounts.len() as u32);
        self.numbers.insert((kind, name.to_owned()), id);
        self.accounts.push(Account {
            kind,
            name: name.to_owned(),
            totals: ServiceTotals::default(),
        });
        id
    }

    /// Adds counts of machines to a service, without an invocation.
    pub(crate) fn add_counts(&mut self, service: ServiceId, machines: &[ServiceMachineCounts]) {
        add_machines(&mut self.accounts[service.0 as usize].totals.machines, machines);
    }

    /// Adds a finished invocation of a service.
    pub fn add(&mut self, service: ServiceId, invocation: &Invocation) {
        let totals = &mut self.accounts[service.0 as usize].totals;
        totals.calls += 1;
        totals.instructions += invocation.instructions;
        totals.times += invocation.times;
        totals.lengths.add(invocation.times.ran);
        add_machines(&mut totals.machines, &invocation.machines);
    }
}

pub(crate) fn add_machines(to: &mut Vec<ServiceMachineCounts>, from: &[ServiceMachineCounts]) {
    to.resize(to.len().max(from.len()), ServiceMachineCounts::default());
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_has_powers_of_two() {
        let mut distribution = Distribution::default();
        for value in [0, 1, 2, 3, 4, 1000] {
            distribution.add(value);
        }
        assert_eq!(distribution.0, [2, 2, 1, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(distribution.quantile(0.5), 4);
        assert_eq!(distribution.quantile(1.0), 1024);
        assert_eq!(Distribution::default().quantile(0.5), 0);
    }

    #[test]
    fn a_service_is_one_by_kind_and_name() {
        let mut ledger = Ledger::default();
        let read = ledger.service(ServiceKind::SystemCall, "read");
        assert_eq!(ledger.service(ServiceKind::SystemCall, "read"), read);
        assert_ne!(ledger.service(ServiceKind::Softirq, "read"), read);
        let invocation = Invocation {
            instructions: 5,
            machines: vec![ServiceMachineCounts {
                l1i_misses: 2,
                ..ServiceMachineCounts::default()
            }],
            times: InvocationTimes { ran: 7, ..InvocationTimes::default() },
        };
        ledger.add(read, &invocation);
        ledger.add(read, &invocation);
        let totals = &ledger.accounts[read.0 as usize].totals;
        assert_eq!(
            (totals.calls, totals.instructions, totals.times.ran, totals.machines[0].l1i_misses),
            (2, 10, 14, 4)
        );
    }
}
