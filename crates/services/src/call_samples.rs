//! Chains of calls over time: what each task executed of each chain, in slices of time.
//!
//! Takes what [`crate::calls`] and [`crate::spans`] follow, in one walk; gives samples. A sample
//! holds all instructions of its task, service and chain in its slice, so that the samples add up
//! to all instructions of the recording. Slices begin short. When there are too many samples, each
//! pair of slices becomes one. Times are those of [`crate::spans`].

use crate::annotations::ServiceKind;
use crate::automaton::{Attributed, Automaton};
use crate::binding::Binding;
use crate::caches::{MachineSoFar, Machines};
use crate::calls::{CallCost, CallCounts, CallNode, CallStacks, NodeId, ROOT};
use crate::ledger::{Invocation, Ledger, ServiceId, ServiceMachineCounts};
use crate::meter::{Booked, Meter};
use crate::services_walk::follow;
use crate::spans::{SpanMeter, SpanTrack};
use crate::symbols::KernelSymbols;
use crate::tasks::TaskWake;
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::data::DataWish;
use sim::MachineModel;
use std::io::Read;
use std::ops::Range;
use trace::{CpuId, RecordingReader, Task, Translation};

/// The shortest slice, in nanoseconds.
const FINEST: u64 = 1000;
/// The number of samples at which slices become longer.
const MOST: usize = 1 << 19;
/// The shortest log of an open service that is compacted.
const SHORTEST_LOG: usize = 1 << 12;

/// What a task executed of one chain of a service, in a slice of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSample {
    /// When the chain first executed in the slice, in nanoseconds of the guest's clock.
    pub at: u64,
    /// The instructions that the task had executed before `at`.
    pub before: u64,
    /// Index of the service in [`CallSamples::services`].
    pub service: ServiceId,
    /// The chain. User mode has only [`ROOT`].
    pub node: NodeId,
    /// The instructions of the chain itself.
    pub instructions: u64,
}

/// The samples of a recording, or of a window of it.
#[derive(Clone, Debug)]
pub struct CallSamples {
    /// The names of functions, by index.
    pub functions: Vec<String>,
    /// The chains. `nodes[0]` is the empty one; its parent and function have no meaning.
    pub nodes: Vec<CallNode>,
    /// The kind and name of each service.
    pub services: Vec<(ServiceKind, String)>,
    /// By task, as numbered for [`SpanTrack`]; ascending by time.
    pub tasks: Vec<Vec<CallSample>>,
    /// The length of a slice, in nanoseconds. `None`: no samples were put together.
    pub slice: Option<u64>,
}

/// As [`crate::attribute_in_time`], with the chains of calls over time. `window`: the times of the
/// samples to keep.
///
/// # Errors
/// As [`crate::attribute`].
pub fn attribute_with_samples<R: Read, T: SpanTrack>(
    reader: RecordingReader<R>,
    symbols: &KernelSymbols,
    binding: &Binding,
    machines: &[MachineModel],
    window: Range<u64>,
    track: T,
) -> Result<(Attributed, T, CallSamples)> {
    let meter = SampleMeter {
        spans: SpanMeter::new(machines, track),
        calls: CallStacks::new(symbols, binding, None, ChainSamples::new(window, MOST)),
        current: 0,
    };
    let (attributed, meter) = follow(reader, Automaton::new(binding, symbols, meter))?;
    let (functions, nodes, samples) = meter.calls.into_parts();
    let accounts = attributed.ledger.accounts.iter();
    let services = accounts.map(|account| (account.kind, account.name.clone())).collect();
    let (tasks, slice) = samples.finish();
    let samples = CallSamples { functions, nodes, services, tasks, slice };
    Ok((attributed, meter.spans.finish(), samples))
}

/// The samples of an open service. Their service is not known yet.
#[derive(Debug, Default)]
struct SampleLog {
    samples: Vec<CallSample>,
    /// The number of samples after the last compaction.
    compacted: usize,
}

/// Collects samples.
#[derive(Debug)]
struct ChainSamples {
    window: Range<u64>,
    clock: u64,
    /// The executed instructions of each task.
    ran: Vec<u64>,
    tasks: Vec<Vec<CallSample>>,
    /// The number of samples in `tasks`.
    count: usize,
    /// Compacts at this number.
    longest: usize,
    most: usize,
    slice: u64,
    is_compacted: bool,
}

impl ChainSamples {
    fn new(window: Range<u64>, most: usize) -> ChainSamples {
        ChainSamples {
            window,
            clock: 0,
            ran: Vec::new(),
            tasks: Vec::new(),
            count: 0,
            longest: most,
            most,
            slice: FINEST,
            is_compacted: false,
        }
    }

    /// The next instructions of a task.
    fn sample(
        &mut self,
        task: usize,
        service: ServiceId,
        node: NodeId,
        cost: CallCost,
    ) -> CallSample {
        if self.ran.len() <= task {
            self.ran.resize(task + 1, 0);
        }
        let (at, before, instructions) = (self.clock, self.ran[task], cost.instructions);
        self.clock += instructions;
        self.ran[task] += instructions;
        CallSample { at, before, service, node, instructions }
    }

    fn keep(&mut self, task: usize, samples: impl IntoIterator<Item = CallSample>) {
        if self.tasks.len() <= task {
            self.tasks.resize_with(task + 1, Vec::new);
        }
        let kept = &mut self.tasks[task];
        let before = kept.len();
        let in_window = samples.into_iter().filter(|sample| self.window.contains(&sample.at));
        kept.extend(in_window.filter(|sample| sample.instructions > 0));
        self.count += kept.len() - before;
        if self.count >= self.longest {
            self.compact();
        }
    }

    /// Puts the samples of each slice together.
    fn compact(&mut self) {
        self.is_compacted = true;
        let tasks = &mut self.tasks;
        self.slice = longer(self.slice, self.clock, self.most, |slice| {
            tasks.iter_mut().for_each(|samples| put_together(samples, slice));
            tasks.iter().map(Vec::len).sum()
        });
        self.count = tasks.iter().map(Vec::len).sum();
        self.longest = self.most.max(2 * self.count);
    }

    /// The samples of each task, and the length of slices if samples were put together.
    fn finish(mut self) -> (Vec<Vec<CallSample>>, Option<u64>) {
        if self.is_compacted {
            self.tasks.iter_mut().for_each(|samples| put_together(samples, self.slice));
        }
        self.tasks.iter_mut().for_each(|samples| samples.sort_by_key(|sample| sample.at));
        (self.tasks, self.is_compacted.then_some(self.slice))
    }
}

/// Doubles the length of slices until half of the `most` samples remain, or a slice is as long as
/// the recording so far. `put_together` puts the samples of slices of a length together, and
/// returns the number of samples that are left.
fn longer(
    mut slice: u64,
    clock: u64,
    most: usize,
    mut put_together: impl FnMut(u64) -> usize,
) -> u64 {
    while put_together(slice) > most / 2 && slice <= clock {
        slice *= 2;
    }
    slice
}

/// Makes one sample of all samples with the same slice, service and chain.
fn put_together(samples: &mut Vec<CallSample>, slice: u64) {
    let key = |sample: &CallSample| (sample.at / slice, sample.service, sample.node);
    samples.sort_by_key(|sample| (key(sample), sample.at));
    samples.dedup_by(|sample, first| {
        let same = key(sample) == key(first);
        if same {
            first.instructions += sample.instructions;
        }
        same
    });
}

impl CallCounts for ChainSamples {
    type Log = SampleLog;
    /// The clock says when.
    type Time = ();

    fn add(&mut self, task: usize, log: &mut SampleLog, node: NodeId, cost: CallCost, (): ()) {
        let unnamed = ServiceId(0);
        log.samples.push(self.sample(task, unnamed, node, cost));
        self.is_compacted |= log.samples.len() >= self.most;
        if self.is_compacted && log.samples.len() >= (2 * log.compacted).max(SHORTEST_LOG) {
            let (slice, clock, most) = (self.slice, self.clock, self.most);
            self.slice = longer(slice, clock, most, |slice| {
                put_together(&mut log.samples, slice);
                log.samples.len()
            });
            log.compacted = log.samples.len();
        }
    }

    fn settle(&mut self, task: usize, service: ServiceId, log: SampleLog) {
        let samples = log.samples.into_iter();
        self.keep(task, samples.map(|sample| CallSample { service, ..sample }));
    }

    fn add_user(&mut self, task: usize, service: ServiceId, cost: CallCost, (): ()) {
        let sample = self.sample(task, service, ROOT, cost);
        self.keep(task, [sample]);
    }
}

/// The meter that reports spans and collects samples.
struct SampleMeter<'a, T> {
    spans: SpanMeter<T>,
    calls: CallStacks<'a, ChainSamples>,
    /// The task that executes.
    current: usize,
}

impl<T> SampleMeter<'_, T> {
    /// The `later` innermost open services of a task began after a halt.
    fn began_later(&mut self, task: usize, nanoseconds: u64, later: usize) {
        for log in self.calls.open_logs(task).take(later) {
            log.samples.iter_mut().for_each(|sample| sample.at += nanoseconds);
        }
    }
}

impl<T: SpanTrack> Meter for SampleMeter<'_, T> {
    fn wish(&self) -> Option<DataWish> {
        self.spans.wish()
    }

    fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> Result<()> {
        self.calls.define(translation);
        self.spans.define(translation, code)
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.spans.define_tasks(tasks);
    }

    fn machines(&mut self) -> Option<&mut Machines> {
        self.spans.machines()
    }

    #[inline]
    fn executed(&mut self, translation: u32) {
        self.calls.executed(translation, None, MachineSoFar::default);
        self.spans.executed(translation);
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.calls.executed(translation, Some(instructions), MachineSoFar::default);
        self.spans.left(translation, instructions);
    }

    fn take(&mut self) -> &[ServiceMachineCounts] {
        self.spans.take()
    }

    #[inline]
    fn called(&mut self) {
        self.calls.called();
    }

    fn unwound(&mut self, calls: usize) {
        self.calls.unwound(calls);
    }

    fn switched(&mut self, task: usize) {
        self.current = task;
        self.calls.switched(task);
        self.spans.switched(task);
    }

    fn turned_to(&mut self, cpu: CpuId, task: usize) {
        self.current = task;
        self.calls.switched(task);
        self.spans.turned_to(cpu, task);
    }

    fn replaced(&mut self, task: usize) {
        self.current = task;
        self.calls.switched(task);
        self.spans.replaced(task);
    }

    fn named(&mut self, task: usize, id: usize, name: &str) {
        self.spans.named(task, id, name);
    }

    fn resumed(&mut self, task: usize, at: u64, wake: Option<TaskWake>) {
        self.spans.resumed(task, at, wake);
    }

    fn opened(&mut self, calls: usize) {
        self.calls.opened(calls);
        self.spans.opened(calls);
    }

    fn settled(
        &mut self,
        task: usize,
        service: ServiceId,
        invocation: &Invocation,
        ledger: &Ledger,
    ) {
        self.calls.settled(task, service);
        self.spans.settled(task, service, invocation, ledger);
    }

    fn halted(&mut self, nanoseconds: u64, later: usize) {
        self.calls.counts_mut().clock += nanoseconds;
        SampleMeter::began_later(self, self.current, nanoseconds, later);
        self.spans.halted(nanoseconds, later);
    }

    fn began_later(&mut self, task: usize, nanoseconds: u64, later: usize) {
        SampleMeter::began_later(self, task, nanoseconds, later);
        self.spans.began_later(task, nanoseconds, later);
    }

    fn booked(&mut self, instructions: u64, under: Booked) {
        let user = match under {
            Booked::User(service) => Some(service),
            Booked::Open(_) => None,
        };
        self.calls.booked(user, MachineSoFar::default(), ());
        self.spans.booked(instructions, under);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three chains that take turns, 7 instructions each, in two services.
    fn collect(most: usize, window: Range<u64>) -> (Vec<Vec<CallSample>>, Option<u64>) {
        let mut samples = ChainSamples::new(window, most);
        let mut log = SampleLog::default();
        let cost = CallCost { instructions: 7, ..CallCost::default() };
        for step in 0..30_000u32 {
            match step % 3 {
                0 => samples.add_user(0, ServiceId(1), cost, ()),
                chain => samples.add(0, &mut log, NodeId(chain), cost, ()),
            }
            if step % 300 == 299 {
                samples.settle(0, ServiceId(2), std::mem::take(&mut log));
            }
        }
        samples.finish()
    }

    fn instructions(samples: &[CallSample], service: u32) -> u64 {
        let of_service = samples.iter().filter(|sample| sample.service == ServiceId(service));
        of_service.map(|sample| sample.instructions).sum()
    }

    #[test]
    fn slices_become_longer_and_lose_no_instruction() {
        let (exact, slice) = collect(usize::MAX, 0..u64::MAX);
        assert_eq!((exact[0].len(), slice), (30_000, None));
        for most in [1000, 60, 4] {
            let (tasks, slice) = collect(most, 0..u64::MAX);
            let [samples] = &tasks[..] else { panic!("one task") };
            let slice = slice.unwrap();
            assert!(samples.len() <= most && samples.is_sorted_by_key(|sample| sample.at));
            assert_eq!(instructions(samples, 1), 70_000);
            assert_eq!(instructions(samples, 2), 140_000);
            let sums: u64 = exact[0]
                .iter()
                .filter(|sample| sample.at / slice == 0 && sample.node == NodeId(2))
                .map(|sample| sample.instructions)
                .sum();
            assert_eq!(samples[2].instructions, sums, "the first slice of {slice} ns");
            assert_eq!((samples[2].at, samples[2].before, samples[2].node), (14, 14, NodeId(2)));
        }
    }

    #[test]
    fn a_service_that_stays_open_is_put_together_too() {
        let mut samples = ChainSamples::new(0..u64::MAX, 10_000);
        let mut log = SampleLog::default();
        let cost = CallCost { instructions: 100, ..CallCost::default() };
        for step in 0..100_000 {
            samples.add(0, &mut log, NodeId(step % 50), cost, ());
            assert!(log.samples.len() <= 20_000);
        }
        samples.settle(0, ServiceId(0), log);
        let (tasks, slice) = samples.finish();
        assert!(slice.is_some() && tasks[0].len() <= 10_000);
        assert_eq!(instructions(&tasks[0], 0), 10_000_000);
    }

    #[test]
    fn samples_outside_of_the_window_are_left_out() {
        let (tasks, _) = collect(usize::MAX, 70..140);
        let times: Vec<u64> = tasks[0].iter().map(|sample| sample.at).collect();
        assert_eq!(times, (10..20).map(|step| step * 7).collect::<Vec<u64>>());
        assert_eq!(tasks[0][0].before, 70);
    }
}
