//! What happened in each slice of the recording's time: chains of calls, invocations, interrupts.
//!
//! Takes stretches as they pass, invocations as they end and interrupts as they begin; gives sums
//! by slice. Slices are those of [`crate::timeline`]: when pairs of slices become one, so do their
//! sums.

use crate::annotations::ServiceKind;
use crate::calls::{CallCost, NodeId};
use crate::ledger::{Invocation, ServiceId, distribution_class};
use crate::slicing::Stretch;
use execution::slices::SliceStarts;
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
    /// How many executed how long, with the services that began in them: by power of two of
    /// nanoseconds, as in [`crate::ledger::Distribution`].
    pub lengths: BTreeMap<u32, u64>,
}

impl AddAssign for EndedInvocations {
    fn add_assign(&mut self, other: EndedInvocations) {
        self.calls += other.calls;
        self.latency += other.latency;
        self.off_cpu += other.off_cpu;
        add(&mut self.classes, other.classes);
        add(&mut self.lengths, other.lengths);
    }
}

fn add(to: &mut BTreeMap<u32, u64>, from: BTreeMap<u32, u64>) {
    from.into_iter().for_each(|(class, count)| *to.entry(class).or_default() += count);
}

/// Interrupts that began in a slice, including those between processors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BegunInterrupts {
    /// Their number.
    pub count: u64,
    /// How many began how many instructions after the one before on their CPU: by power of two, as
    /// in [`crate::ledger::Distribution`].
    pub between: BTreeMap<u32, u64>,
}

impl AddAssign for BegunInterrupts {
    fn add_assign(&mut self, other: BegunInterrupts) {
        self.count += other.count;
        add(&mut self.between, other.between);
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

/// What a machine spent on a service in a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceSlice {
    /// The slice.
    pub slice: u32,
    /// The service's own instructions.
    pub instructions: u64,
    /// Slots of the dispatch: retiring, front-end latency, front-end bandwidth, bad speculation,
    /// memory, core. Zeros without a core.
    pub dispatch: [u64; 6],
    /// Slots of the graduation, or thousandths of cycles without a core: busy, data, instruction,
    /// pipeline.
    pub graduation: [u64; 4],
}

/// The slices of each service that has some, in order.
pub(crate) type ServiceSlices = BTreeMap<(ServiceKind, String), Vec<ServiceSlice>>;

/// Counts invocations and interrupts, and finds where slices begin.
#[derive(Debug, Default)]
pub(crate) struct Slices {
    ended: BTreeMap<(ServiceId, u32), EndedInvocations>,
    interrupts: BTreeMap<u32, BegunInterrupts>,
    /// All instructions so far.
    instructions: u64,
    starts: Vec<u64>,
}

/// What was counted.
pub(crate) struct FinishedSlices {
    pub ended: BTreeMap<ServiceId, Vec<(u32, EndedInvocations)>>,
    pub interrupts: Vec<(u32, BegunInterrupts)>,
    pub starts: SliceStarts,
}

impl Slices {
    /// These instructions ran in the next stretch, spread evenly over its time.
    pub(crate) fn passed(&mut self, stretch: Stretch, instructions: u64) {
        while self.starts.len() < stretch.last() as usize {
            let next = self.starts.len() as u32 + 1;
            let before = (instructions as f64 * stretch.share_before(next)) as u64;
            self.starts.push(self.instructions + before);
        }
        self.instructions += instructions;
    }

    /// An invocation ended in this slice.
    pub(crate) fn ended(&mut self, service: ServiceId, slice: u32, invocation: &Invocation) {
        let times = &invocation.times;
        let sum = self.ended.entry((service, slice)).or_default();
        sum.calls += 1;
        sum.latency += times.latency;
        sum.off_cpu += times.blocked + times.waiting;
        *sum.classes.entry(latency_class(times.latency)).or_default() += 1;
        *sum.lengths.entry(distribution_class(times.ran)).or_default() += 1;
    }

    /// An interrupt began in this slice, this number of instructions after the one before.
    pub(crate) fn interrupted(&mut self, slice: u32, since: Option<u64>) {
        let sum = self.interrupts.entry(slice).or_default();
        sum.count += 1;
        if let Some(since) = since {
            *sum.between.entry(distribution_class(since)).or_default() += 1;
        }
    }

    /// Makes one slice of each pair.
    pub(crate) fn halve(&mut self) {
        for ((service, slice), ended) in std::mem::take(&mut self.ended) {
            *self.ended.entry((service, slice / 2)).or_default() += ended;
        }
        for (slice, interrupts) in std::mem::take(&mut self.interrupts) {
            *self.interrupts.entry(slice / 2).or_default() += interrupts;
        }
        // The first slice, which has no entry, is even.
        self.starts = self.starts.iter().copied().skip(1).step_by(2).collect();
    }

    /// What was counted.
    pub(crate) fn finish(self) -> FinishedSlices {
        let mut by_service: BTreeMap<ServiceId, Vec<(u32, EndedInvocations)>> = BTreeMap::new();
        for ((service, slice), ended) in self.ended {
            by_service.entry(service).or_default().push((slice, ended));
        }
        FinishedSlices {
            ended: by_service,
            interrupts: self.interrupts.into_iter().collect(),
            starts: SliceStarts(self.starts),
        }
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

    #[test]
    fn slices_begin_after_the_instructions_before_them() {
        let mut slices = Slices::default();
        slices.passed(Stretch::new(0.0, 0.5), 7);
        slices.passed(Stretch::new(0.5, 2.5), 100);
        slices.passed(Stretch::new(2.5, 4.0), 9);
        // Halted.
        slices.passed(Stretch::new(4.0, 6.25), 0);
        slices.passed(Stretch::new(6.25, 6.5), 3);
        let starts = [7 + 25, 7 + 75, 107 + 3, 116, 116, 116];
        assert_eq!(slices.starts, starts);
        slices.interrupted(5, Some(1000));
        slices.interrupted(4, None);
        slices.halve();
        let FinishedSlices { starts, interrupts, .. } = slices.finish();
        assert_eq!(starts.0, [7 + 75, 116, 116]);
        let between = [(9, 1)].into_iter().collect();
        assert_eq!(interrupts, [(2, BegunInterrupts { count: 2, between })]);
    }
}
