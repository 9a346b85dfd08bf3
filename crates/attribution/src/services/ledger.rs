//! The books: what each service came to.
//!
//! Takes finished invocations; gives totals per service. Knows nothing of how an invocation was
//! found.

use crate::services::annotations::Kind;
use serde::{Deserialize, Serialize};
use sim::{BranchCounters, MachineCounters};
use std::collections::HashMap;

/// The number of a service in a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u32);

/// How often a number lay between 2ⁿ and 2ⁿ⁺¹; entry 0 holds 0 and 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution(pub Vec<u64>);

impl Distribution {
    pub fn add(&mut self, value: u64) {
        let at = value.max(1).ilog2() as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] += 1;
    }

    /// The upper end of the entry below which at least `share` (0 to 1) of all numbers lie; 0 for
    /// none.
    pub fn quantile(&self, share: f64) -> u64 {
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

/// What one machine counted while a service ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineCounts {
    /// Misses of the L1 instruction cache.
    pub l1i_misses: u64,
    /// What all caches and TLBs did; of a recording with data accesses, where the machine describes
    /// a data cache.
    #[serde(skip)]
    pub memory: Option<MachineCounters>,
    /// How branches were predicted; where that was asked for and the machine says how it predicts.
    #[serde(skip)]
    pub branches: Option<BranchCounters>,
}

impl std::ops::AddAssign for MachineCounts {
    fn add_assign(&mut self, other: MachineCounts) {
        self.l1i_misses += other.l1i_misses;
        if let Some(counters) = other.memory {
            *self.memory.get_or_insert_default() += counters;
        }
        if let Some(counters) = other.branches {
            *self.branches.get_or_insert_default() += counters;
        }
    }
}

/// How long invocations took, from begin to end, and of what that consists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// From begin to end, by the clock.
    pub latency: u64,
    /// Part of the latency: the task ran, this service or others that began while it was open.
    pub ran: u64,
    /// Part of the latency: the task could not run.
    pub blocked: u64,
    /// Part of the latency: the task could run, and another did.
    pub waiting: u64,
}

impl std::ops::AddAssign for Times {
    fn add_assign(&mut self, other: Times) {
        self.latency += other.latency;
        self.ran += other.ran;
        self.blocked += other.blocked;
        self.waiting += other.waiting;
    }
}

/// What a service came to. Times are in nanoseconds of the guest's clock, of which an instruction
/// takes one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Invocations. Of idle and of a kernel thread: how often it was switched to; of user mode:
    /// stays.
    pub calls: u64,
    /// Its own, without services that began while it was open.
    pub instructions: u64,
    /// One for each machine.
    pub machines: Vec<MachineCounts>,
    /// Of finished invocations.
    pub times: Times,
    /// Of `ran` per invocation: the length of each visit.
    pub lengths: Distribution,
}

/// A service as the books have it.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    pub kind: Kind,
    pub name: String,
    pub totals: Totals,
}

/// A finished invocation.
#[derive(Clone, Debug, Default)]
pub struct Invocation {
    pub instructions: u64,
    pub machines: Vec<MachineCounts>,
    pub times: Times,
}

#[derive(Debug, Default)]
pub struct Ledger {
    pub accounts: Vec<Account>,
    numbers: HashMap<(Kind, String), ServiceId>,
}

impl Ledger {
    /// The number of a service, which is new if it must be.
    pub fn service(&mut self, kind: Kind, name: &str) -> ServiceId {
        if let Some(&known) = self.numbers.get(&(kind, name.to_owned())) {
            return known;
        }
        let id = ServiceId(self.accounts.len() as u32);
        self.numbers.insert((kind, name.to_owned()), id);
        self.accounts.push(Account { kind, name: name.to_owned(), totals: Totals::default() });
        id
    }

    pub fn kind(&self, service: ServiceId) -> Kind {
        self.accounts[service.0 as usize].kind
    }

    pub fn add(&mut self, service: ServiceId, invocation: &Invocation) {
        let totals = &mut self.accounts[service.0 as usize].totals;
        totals.calls += 1;
        totals.instructions += invocation.instructions;
        totals.times += invocation.times;
        totals.lengths.add(invocation.times.ran);
        add_machines(&mut totals.machines, &invocation.machines);
    }
}

pub fn add_machines(to: &mut Vec<MachineCounts>, from: &[MachineCounts]) {
    to.resize(to.len().max(from.len()), MachineCounts::default());
    for (to, from) in to.iter_mut().zip(from) {
        *to += *from;
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
        let read = ledger.service(Kind::SystemCall, "read");
        assert_eq!(ledger.service(Kind::SystemCall, "read"), read);
        assert_ne!(ledger.service(Kind::Softirq, "read"), read);
        let invocation = Invocation {
            instructions: 5,
            machines: vec![MachineCounts { l1i_misses: 2, ..MachineCounts::default() }],
            times: Times { ran: 7, ..Times::default() },
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
