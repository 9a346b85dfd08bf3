//! The meter of machines whose counts are also wanted by slices of the recording.
//!
//! Wraps the meter of a machine; adds the parts of its cycles to the slices of each stretch, by the
//! instructions of the stretch in each slice. Like the automaton, it gives the counts of an open
//! service to the name that the service has when it ends.

use crate::caches::Machines;
use crate::generations::machine_parts;
use crate::ledger::{Account, Invocation, Ledger, ServiceId, ServiceMachineCounts};
use crate::meter::{Booked, Meter};
use crate::slices::{ServiceSlice, ServiceSlices};
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::data::DataWish;
use execution::sampling::groups::SampledGroups;
use execution::slices::{SliceClock, SliceStarts};
use execution::walk::{Piece, PieceData};
use sim::MachineModel;
use sim::core::CoreSlots;
use std::collections::BTreeMap;
use trace::{CpuId, Translation};

/// As the fields of a [`ServiceSlice`].
type Counts = [u64; 11];

fn counts(instructions: u64, CoreSlots { dispatch, graduation }: CoreSlots) -> Counts {
    [
        instructions,
        dispatch.retiring,
        dispatch.front_end_latency,
        dispatch.front_end_bandwidth,
        dispatch.bad_speculation,
        dispatch.memory,
        dispatch.core,
        graduation.busy,
        graduation.data,
        graduation.instruction,
        graduation.pipeline,
    ]
}

fn service_slice(slice: u32, counts: Counts) -> ServiceSlice {
    let [instructions, a, b, c, d, e, f, graduation @ ..] = counts;
    ServiceSlice { slice, instructions, dispatch: [a, b, c, d, e, f], graduation }
}

fn add(sums: &mut BTreeMap<u32, Counts>, slice: u32, counts: Counts) {
    let sum = sums.entry(slice).or_default();
    sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
}

/// The meter of one machine, with slices.
pub(crate) struct SlicedMeter<M> {
    inner: M,
    machine: MachineModel,
    clock: SliceClock,
    /// The slice of the last instruction.
    now: u32,
    /// What the machine counted at the last call of `take`.
    taken: ServiceMachineCounts,
    current: usize,
    /// By task: the slices of its open services, outermost first.
    open: Vec<Vec<BTreeMap<u32, Counts>>>,
    sums: BTreeMap<ServiceId, BTreeMap<u32, Counts>>,
}

impl<M> SlicedMeter<M> {
    pub(crate) fn new(machine: &MachineModel, inner: M, starts: &SliceStarts) -> SlicedMeter<M> {
        SlicedMeter {
            inner,
            machine: machine.clone(),
            clock: SliceClock::new(starts),
            now: 0,
            taken: ServiceMachineCounts::default(),
            current: 0,
            open: vec![Vec::new()],
            sums: BTreeMap::new(),
        }
    }

    /// The slices of each service. `ledger`: that of the same recording.
    pub(crate) fn into_slices(self, ledger: &Ledger) -> ServiceSlices {
        let named = |(service, slices): (ServiceId, BTreeMap<u32, Counts>)| {
            let account = &ledger.accounts[service.0 as usize];
            let slices = slices.into_iter().map(|(slice, counts)| service_slice(slice, counts));
            ((account.kind, account.name.clone()), slices.collect())
        };
        self.sums.into_iter().map(named).collect()
    }

    fn goes_on(&mut self, task: usize) {
        if self.open.len() <= task {
            self.open.resize_with(task + 1, Vec::new);
        }
        self.current = task;
    }

    /// Adds what was taken last, with these instructions, to the slices in which they ran.
    fn add(&mut self, instructions: u64, to: Booked) {
        let taken = std::mem::take(&mut self.taken);
        let all = counts(instructions, machine_parts(&self.machine, instructions, &taken));
        let slices = match to {
            Booked::User(user) => self.sums.entry(user).or_default(),
            Booked::Open(_) => match self.open[self.current].last_mut() {
                Some(open) => open,
                None => return,
            },
        };
        if instructions == 0 {
            return add(slices, self.now, all);
        }
        let (mut ran, mut given) = (0, [0; 11]);
        self.clock.run_through(instructions, |slice, here| {
            ran += here;
            let part = all.map(|count| {
                (u128::from(count) * u128::from(ran) / u128::from(instructions)) as u64
            });
            add(slices, slice, std::array::from_fn(|at| part[at] - given[at]));
            (given, self.now) = (part, slice);
        });
    }
}

impl<M: Meter> Meter for SlicedMeter<M> {
    const DATA_OF_SEVERAL_CPUS: bool = M::DATA_OF_SEVERAL_CPUS;
    const NEEDS_CONTROL: bool = M::NEEDS_CONTROL;

    fn wish(&self) -> Option<DataWish> {
        self.inner.wish()
    }

    fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> Result<()> {
        self.inner.define(translation, code)
    }

    fn machines(&mut self) -> Option<&mut Machines> {
        self.inner.machines()
    }

    fn piece(&mut self, piece: &Piece<'_>, data: Option<&PieceData<'_>>) -> Result<()> {
        self.inner.piece(piece, data)
    }

    fn failure(&mut self) -> Result<()> {
        self.inner.failure()
    }

    #[inline]
    fn comes(&mut self, translation: u32, reached: Option<u32>) {
        self.inner.comes(translation, reached);
    }

    #[inline]
    fn executed(&mut self, translation: u32) {
        self.inner.executed(translation);
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.inner.left(translation, instructions);
    }

    fn finish(&mut self) {
        self.inner.finish();
    }

    fn take(&mut self) -> &[ServiceMachineCounts] {
        let SlicedMeter { inner, taken, .. } = self;
        let counts = inner.take();
        if let Some(counts) = counts.first() {
            *taken += counts;
        }
        counts
    }

    fn estimate(&mut self, accounts: &mut [Account]) -> Vec<Option<SampledGroups>> {
        self.inner.estimate(accounts)
    }

    fn switched(&mut self, task: usize) {
        self.goes_on(task);
    }

    fn turned_to(&mut self, cpu: CpuId, task: usize) {
        self.inner.turned_to(cpu, task);
        self.goes_on(task);
    }

    fn opened(&mut self, _: usize) {
        self.open[self.current].push(BTreeMap::new());
    }

    fn settled(&mut self, task: usize, service: ServiceId, _: &Invocation, _: &Ledger) {
        let Some(ended) = self.open.get_mut(task).and_then(Vec::pop) else { return };
        let sums = self.sums.entry(service).or_default();
        ended.into_iter().for_each(|(slice, counts)| add(sums, slice, counts));
    }

    fn booked(&mut self, instructions: u64, under: Booked) {
        self.add(instructions, under);
    }

    fn lagged(&mut self, user: ServiceId) {
        self.add(0, Booked::User(user));
    }
}
