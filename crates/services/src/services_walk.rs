//! Attributes every instruction of a recording to a service of the operating system.
//!
//! Takes a recording, the symbols of its kernel and annotations; gives the totals of each service:
//! calls, instructions, latency, and counters of simulated machines. The recording is all that it
//! needs: nothing is inserted into the guest, and the same recording can be attributed again with
//! other annotations. Prints nothing.
//!
//! To add a service: add a table to `annotations/linux.toml`.

use crate::automaton::{Attributed, Automaton};
use crate::binding::Binding;
use crate::branches::BranchMeter;
use crate::caches::Machines;
use crate::calls::CallTree;
use crate::coherent::CoherentMeter;
use crate::functions::{FunctionMeter, FunctionTotals};
use crate::meter::{Meter, NoMachine};
use crate::observed::ObservingMeter;
use crate::reuse::{ReuseMeter, Reuses};
use crate::sliced_meter::SlicedMeter;
use crate::slices::ServiceSlices;
use crate::spans::{SpanMeter, SpanTrack};
use crate::symbols::KernelSymbols;
use crate::table::ServiceTable;
use crate::timeline::Timeline;
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::sampling::SamplePlan;
use execution::served_log::ServedLog;
use execution::slices::SliceStarts;
use execution::walk::{Observer, Piece, Wants, walk};
use sim::MachineModel;
use std::collections::BTreeMap;
use std::io::Read;
use trace::{RecordingHeader, RecordingReader, Task, Translation};

/// Attributes every instruction of a recording, and the counts of `machines`, to a service.
///
/// With several CPUs, each CPU has its own L1I, and other caches are not simulated. Times are those
/// of the guest's clock, which counts the instructions of all CPUs.
///
/// # Errors
/// The recording is damaged or cut off, or the symbols belong to another kernel.
pub fn attribute<R: Read>(
    reader: RecordingReader<R>,
    symbols: &KernelSymbols,
    binding: &Binding,
    machines: &[MachineModel],
) -> Result<Attributed> {
    match machines {
        [] => Ok(follow(reader, Automaton::new(binding, symbols, NoMachine))?.0),
        _ => Ok(follow(reader, Automaton::new(binding, symbols, Machines::new(machines)))?.0),
    }
}

/// As [`attribute`], with the out-of-order cores of the machines and, if `predicts` is true, with
/// branch prediction. `plan`: where cores are simulated in detail; `None`: everywhere.
///
/// # Errors
/// As [`attribute`].
pub(crate) fn attribute_with_branches<R: Read>(
    reader: RecordingReader<R>,
    symbols: &KernelSymbols,
    binding: &Binding,
    machines: &[MachineModel],
    predicts: bool,
    plan: Option<SamplePlan>,
) -> Result<Attributed> {
    let meter = BranchMeter::new(machines, predicts, plan)?;
    Ok(follow(reader, Automaton::new(binding, symbols, meter))?.0)
}

/// The services of a recording on machines, as an observer of it.
pub struct ServicesWalk<'a>(ServicesMeter<'a>);

enum ServicesMeter<'a> {
    Caches(Box<Automaton<'a, SlicedMeter<Machines>>>),
    Cores(Box<Automaton<'a, SlicedMeter<BranchMeter>>>),
    Observing(Box<Automaton<'a, ObservingMeter<'a>>>),
    Coherent(Box<Automaton<'a, CoherentMeter<'a>>>),
}

impl<'a> ServicesWalk<'a> {
    /// Simulates one machine, with its out-of-order core if it has one. A machine with a core
    /// ignores data accesses; any other machine simulates them if `takes_data` is true. `plan`:
    /// where the core is simulated in detail; `None`: everywhere. `starts`: where slices begin.
    ///
    /// # Errors
    /// The numbers of a core contradict each other.
    pub fn on_machine(
        symbols: &'a KernelSymbols,
        binding: &'a Binding,
        machine: &MachineModel,
        takes_data: bool,
        plan: Option<SamplePlan>,
        starts: &SliceStarts,
    ) -> Result<ServicesWalk<'a>> {
        let machines = std::slice::from_ref(machine);
        Ok(ServicesWalk(match machine.core {
            None => {
                let meter = SlicedMeter::new(machine, Machines::new(machines), starts);
                let automaton = Automaton::new(binding, symbols, meter);
                let automaton = if takes_data { automaton } else { automaton.without_data() };
                ServicesMeter::Caches(Box::new(automaton))
            }
            Some(_) => {
                let inner = BranchMeter::new(machines, false, plan)?;
                let meter = SlicedMeter::new(machine, inner, starts);
                let automaton = Automaton::new(binding, symbols, meter);
                ServicesMeter::Cores(Box::new(automaton.without_data()))
            }
        }))
    }

    /// With the chains of calls and the execution over time.
    pub fn observing(
        symbols: &'a KernelSymbols,
        binding: &'a Binding,
        machines: &[MachineModel],
    ) -> ServicesWalk<'a> {
        let meter = ObservingMeter::new(symbols, binding, machines);
        ServicesWalk(ServicesMeter::Observing(Box::new(Automaton::new(binding, symbols, meter))))
    }

    /// With the cycles of a machine whose cores have coherent caches. `log`: of a run of the same
    /// recording on the machine.
    ///
    /// # Errors
    /// The machine has no coherent caches.
    pub fn coherent(
        symbols: &'a KernelSymbols,
        binding: &'a Binding,
        machine: &'a MachineModel,
        log: &'a ServedLog,
    ) -> Result<ServicesWalk<'a>> {
        let meter = CoherentMeter::new(machine, symbols, log)?;
        let automaton = Automaton::new(binding, symbols, meter);
        Ok(ServicesWalk(ServicesMeter::Coherent(Box::new(automaton))))
    }

    fn observer(&mut self) -> &mut (dyn Observer + Send) {
        match &mut self.0 {
            ServicesMeter::Caches(automaton) => &mut **automaton,
            ServicesMeter::Cores(automaton) => &mut **automaton,
            ServicesMeter::Observing(automaton) => &mut **automaton,
            ServicesMeter::Coherent(automaton) => &mut **automaton,
        }
    }

    /// The services.
    pub fn finish(self) -> Attributed {
        self.finish_in_slices().0
    }

    /// The services, and the slices of those that ran on one machine.
    pub(crate) fn finish_in_slices(self) -> (Attributed, ServiceSlices) {
        match self.0 {
            ServicesMeter::Caches(automaton) => in_slices(*automaton),
            ServicesMeter::Cores(automaton) => in_slices(*automaton),
            ServicesMeter::Observing(automaton) => (automaton.finish().0, ServiceSlices::new()),
            ServicesMeter::Coherent(automaton) => (automaton.finish().0, ServiceSlices::new()),
        }
    }

    /// The services; with the chains of calls and the execution over time if it observed them.
    pub fn finish_observed(self) -> (Attributed, Option<(CallTree, Timeline)>) {
        match self.0 {
            ServicesMeter::Observing(automaton) => {
                let (attributed, observed) = automaton.finish();
                let observed = observed.finish(&attributed.ledger);
                (attributed, Some(observed))
            }
            other => (ServicesWalk(other).finish(), None),
        }
    }
}

fn in_slices<M: Meter>(automaton: Automaton<'_, SlicedMeter<M>>) -> (Attributed, ServiceSlices) {
    let (attributed, meter) = automaton.finish();
    let slices = meter.into_slices(&attributed.ledger);
    (attributed, slices)
}

impl Observer for ServicesWalk<'_> {
    fn begin(&mut self, header: &RecordingHeader, has_data: bool) -> Result<Wants> {
        self.observer().begin(header, has_data)
    }

    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()> {
        self.observer().define(translations, codes)
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.observer().define_tasks(tasks);
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        self.observer().piece(piece)
    }
}

/// As [`attribute`], with the totals of each function.
///
/// # Errors
/// As [`attribute`].
pub(crate) fn attribute_with_functions<R: Read>(
    reader: RecordingReader<R>,
    symbols: &KernelSymbols,
    binding: &Binding,
    machines: &[MachineModel],
) -> Result<(Attributed, BTreeMap<String, FunctionTotals>)> {
    let meter = FunctionMeter::new(symbols, Machines::new(machines));
    let (attributed, functions) = follow(reader, Automaton::new(binding, symbols, meter))?;
    Ok((attributed, functions.totals(None)))
}

/// As [`attribute_with_functions`], with the out-of-order cores of the machines. `plan`: where they
/// are simulated in detail; `None`: everywhere.
///
/// # Errors
/// As [`attribute`].
pub(crate) fn attribute_with_functions_on_cores<R: Read>(
    reader: RecordingReader<R>,
    symbols: &KernelSymbols,
    binding: &Binding,
    machines: &[MachineModel],
    plan: Option<SamplePlan>,
) -> Result<(Attributed, BTreeMap<String, FunctionTotals>)> {
    let meter = FunctionMeter::new(symbols, BranchMeter::new(machines, false, plan)?);
    let (attributed, functions) = follow(reader, Automaton::new(binding, symbols, meter))?;
    Ok((attributed, functions.totals(machines.first())))
}

/// As [`attribute`], with the chains of calls and the execution over time.
///
/// # Errors
/// As [`attribute`].
pub fn attribute_with_calls<R: Read>(
    reader: RecordingReader<R>,
    symbols: &KernelSymbols,
    binding: &Binding,
    machines: &[MachineModel],
) -> Result<(Attributed, CallTree, Timeline)> {
    let (attributed, observed) = follow(
        reader,
        Automaton::new(binding, symbols, ObservingMeter::new(symbols, binding, machines)),
    )?;
    let (calls, timeline) = observed.finish(&attributed.ledger);
    Ok((attributed, calls, timeline))
}

/// As [`attribute`]; passes every span to `track` as it ends.
///
/// # Errors
/// As [`attribute`].
pub fn attribute_in_time<R: Read, T: SpanTrack>(
    reader: RecordingReader<R>,
    symbols: &KernelSymbols,
    binding: &Binding,
    machines: &[MachineModel],
    track: T,
) -> Result<(Attributed, T)> {
    let (attributed, spans) =
        follow(reader, Automaton::new(binding, symbols, SpanMeter::new(machines, track)))?;
    Ok((attributed, spans.finish()))
}

/// How soon each of the named functions is called again (Torrellas 1998, figure 7).
///
/// # Errors
/// As [`attribute`].
pub(crate) fn reuses<R: Read>(
    reader: RecordingReader<R>,
    symbols: &KernelSymbols,
    names: &[String],
) -> Result<Vec<Reuses>> {
    let binding = Binding::default();
    let (_, reuse) =
        follow(reader, Automaton::new(&binding, symbols, ReuseMeter::new(symbols, names)))?;
    Ok(reuse.finish())
}

/// A recording's services and functions.
pub struct ServicesAndFunctions {
    /// The services.
    pub table: ServiceTable,
    /// The totals of each function, by name.
    pub functions: BTreeMap<String, FunctionTotals>,
}

pub(crate) fn follow<R: Read, M: Meter>(
    reader: RecordingReader<R>,
    mut automaton: Automaton<'_, M>,
) -> Result<(Attributed, M)> {
    walk(reader, &mut automaton)?;
    Ok(automaton.finish())
}
