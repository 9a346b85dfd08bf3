//! What happened in each slice of the recording's time: chains of calls, invocations and misses.
//!
//! Takes invocations as they end and counts of machines as they are booked; gives sums by slice.
//! Slices are those of [`crate::timeline`]: when pairs of slices become one, so do their sums.

use crate::annotations::ServiceKind;
use crate::calls::{CallCost, NodeId};
use crate::ledger::{Invocation, ServiceId, ServiceMachineCounts};
use crate::slicing::Stretch;
use sim::{MachineCounters, Mode};
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// What a service did in each slice.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceOverTime {
    /// The kind of the service.
    pub kind: ServiceKind,
    /// The name of the service.
    pub name: String,
    /// Chains of calls, by node and slice. A chain's counts of a stretch across several slices are
    /// spread over them evenly.
    pub calls: Vec<(NodeId, u32, CallCost)>,
    /// Invocations, by the slice in which they ended. None for user mode.
    pub ended: Vec<(u32, EndedInvocations)>,
}

/// Invocations that ended in a slice. Times are in nanoseconds of the guest's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndedInvocations {
    /// Their number.
    pub calls: u64,
    /// The sum of their times from begin to end.
    pub latency: u64,
    /// The sum of the times in which their task did not run.
    pub off_cpu: u64,
    /// How many took how long: by [`latency_class`].
    pub classes: BTreeMap<u32, u64>,
}

impl AddAssign for EndedInvocations {
    fn add_assign(&mut self, other: EndedInvocations) {
        self.calls += other.calls;
        self.latency += other.latency;
        self.off_cpu += other.off_cpu;
        for (class, calls) in other.classes {
            *self.classes.entry(class).or_default() += calls;
        }
    }
}

/// The number of a class of latencies. Latencies below 16 ns have a class each; above, eight
/// classes of equal width lie between each power of two and the next one.
pub fn latency_class(nanoseconds: u64) -> u32 {
    if nanoseconds < 16 {
        return nanoseconds as u32;
    }
    let power = nanoseconds.ilog2();
    8 * (power - 2) + ((nanoseconds >> (power - 3)) & 7) as u32
}

/// The first machine's misses in a slice, by mode, level and cause: kernel and user; L1I, L1D, L2
/// and L3 on instructions and on data; cold, self, other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceMisses {
    /// The slice.
    pub slice: u32,
    /// By mode, then by level, then by cause.
    pub counts: [u64; 36],
}

/// Counts invocations and misses.
#[derive(Debug, Default)]
pub(crate) struct Slices {
    ended: BTreeMap<(ServiceId, u32), EndedInvocations>,
    misses: BTreeMap<u32, [u64; 36]>,
}

impl Slices {
    /// An invocation ended in this slice.
    pub(crate) fn ended(&mut self, service: ServiceId, slice: u32, invocation: &Invocation) {
        let times = &invocation.times;
        let sum = self.ended.entry((service, slice)).or_default();
        sum.calls += 1;
        sum.latency += times.latency;
        sum.off_cpu += times.blocked + times.waiting;
        *sum.classes.entry(latency_class(times.latency)).or_default() += 1;
    }

    /// The first machine counted this in the stretch.
    pub(crate) fn counted(&mut self, stretch: Stretch, mode: Mode, counts: &ServiceMachineCounts) {
        let Some(MachineCounters { l1i, l1d, l2i, l2d, l3i, l3d, .. }) = counts.memory else {
            return;
        };
        let mut all = [0; 36];
        let (kernel, user) = all.split_at_mut(18);
        let of_mode = match mode {
            Mode::Kernel => kernel,
            Mode::User => user,
        };
        let causes = [l1i, l1d, l2i, l2d, l3i, l3d].into_iter();
        let causes = causes.flat_map(|level| [level.cold, level.own, level.other]);
        of_mode.iter_mut().zip(causes).for_each(|(to, count)| *to = count);
        let misses = &mut self.misses;
        stretch.split(all, |slice, part| {
            let sums = misses.entry(slice).or_insert([0; 36]);
            sums.iter_mut().zip(part).for_each(|(sum, count)| *sum += count);
        });
    }

    /// Makes one slice of each pair.
    pub(crate) fn halve(&mut self) {
        for ((service, slice), ended) in std::mem::take(&mut self.ended) {
            *self.ended.entry((service, slice / 2)).or_default() += ended;
        }
        for (slice, counts) in std::mem::take(&mut self.misses) {
            let sums = self.misses.entry(slice / 2).or_insert([0; 36]);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }

    /// Invocations by service, and misses.
    pub(crate) fn finish(
        self,
    ) -> (BTreeMap<ServiceId, Vec<(u32, EndedInvocations)>>, Vec<SliceMisses>) {
        let mut by_service: BTreeMap<ServiceId, Vec<(u32, EndedInvocations)>> = BTreeMap::new();
        for ((service, slice), ended) in self.ended {
            by_service.entry(service).or_default().push((slice, ended));
        }
        let misses = self.misses.into_iter();
        (by_service, misses.map(|(slice, counts)| SliceMisses { slice, counts }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_latencies_ascend_without_gaps_and_are_narrow() {
        let classes: Vec<u32> = (0..5000).map(latency_class).collect();
        assert!(classes.windows(2).all(|two| two[1] == two[0] || two[1] == two[0] + 1));
        for power in 4..63 {
            let low = 1_u64 << power;
            assert_eq!(latency_class(low << 1), latency_class(low) + 8, "2^{power}");
            assert_eq!(latency_class(low + low / 8 - 1), latency_class(low), "2^{power}");
            assert_eq!(latency_class(low + low / 8), latency_class(low) + 1, "2^{power}");
        }
    }
}
