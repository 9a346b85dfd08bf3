//! Attributes every instruction of a recording to a service of the operating system.
//!
//! Takes a recording, the symbols of its kernel and annotations; gives the totals of each service:
//! calls, instructions, latency, and counters of simulated machines. Everything follows from the
//! recording: nothing is inserted into the guest, and the same recording can be attributed again
//! with other annotations. Prints nothing.
//!
//! To add a service: add a table to `annotations/linux.toml`.

pub mod annotations;
mod automaton;
pub mod binding;
mod branches;
pub mod calls;
mod code;
mod coherent;
pub mod difference;
#[cfg(any(test, feature = "examples"))]
pub mod examples;
pub(crate) mod functions;
mod halts;
pub mod ledger;
pub mod locality;
mod machines;
mod meter;
mod observed;
mod reuse;
pub mod share;
pub mod spans;
pub(crate) mod stays;
pub mod symbols;
pub mod table;
mod tasks;
#[cfg(test)]
mod tests;
pub mod timeline;

use anyhow::{Context, Result, ensure};
pub use automaton::Attributed;
use automaton::Automaton;
use binding::Binding;
use branches::BranchMeter;
use calls::CallTree;
use coherent::CoherentMeter;
#[cfg(test)]
pub(crate) use coherent::synchronizes;
use functions::{FunctionMeter, FunctionTotals};
pub use machines::LevelMisses;
use machines::Machines;
use meter::{Meter, NoMachine};
use observed::ObservingMeter;
use reuse::{ReuseMeter, Reuses};
use sim::MachineModel;
use spans::{SpanMeter, SpanTrack};
use std::collections::BTreeMap;
use std::io::Read;
use symbols::KernelSymbols;
use table::ServiceTable;
use timeline::Timeline;
use trace::{Chunk, CpuCount, RecordingReader};

/// Attributes every instruction of a recording to a service, and the counts of `machines` with it.
///
/// Of several CPUs, each has an L1I of its own; other caches are not simulated. Times are those of
/// the guest's clock, which counts the instructions of all CPUs.
///
/// # Errors
/// The recording is damaged or cut off, or of another kernel than the symbols.
pub fn attribute<R: Read>(
    reader: &mut RecordingReader<R>,
    symbols: &KernelSymbols,
    binding: &Binding,
    machines: &[MachineModel],
) -> Result<Attributed> {
    check(reader, symbols)?;
    match machines {
        [] => Ok(follow(reader, Automaton::new(binding, symbols, NoMachine))?.0),
        _ => Ok(follow(reader, Automaton::new(binding, symbols, Machines::new(machines)))?.0),
    }
}

/// As [`attribute`], with the out-of-order cores of the machines and, when it `predicts`, with
/// branch prediction.
///
/// # Errors
/// As [`attribute`].
pub(crate) fn attribute_with_branches<R: Read>(
    reader: &mut RecordingReader<R>,
    symbols: &KernelSymbols,
    binding: &Binding,
    machines: &[MachineModel],
    predicts: bool,
) -> Result<Attributed> {
    check(reader, symbols)?;
    let meter = BranchMeter::new(machines, predicts)?;
    Ok(follow(reader, Automaton::new(binding, symbols, meter))?.0)
}

/// As [`attribute`], with the out-of-order cores of the machines. Latencies and halted time of a
/// part of a recording are not those of its executions.
///
/// # Errors
/// As [`attribute`].
pub(crate) fn attribute_cores<R: Read>(
    reader: &mut RecordingReader<R>,
    symbols: &KernelSymbols,
    binding: &Binding,
    machines: &[MachineModel],
) -> Result<Attributed> {
    match machines.iter().all(|machine| machine.core.is_none()) {
        true => attribute(reader, symbols, binding, machines),
        false => attribute_with_branches(reader, symbols, binding, machines, false),
    }
}

/// As [`attribute`], with the cycles of a machine whose cores have coherent caches.
///
/// # Errors
/// As [`attribute`]. The recording has no data accesses; the machine has no coherent caches or too
/// few cores.
pub(crate) fn attribute_coherent<R: Read>(
    reader: &mut RecordingReader<R>,
    symbols: &KernelSymbols,
    binding: &Binding,
    machine: &MachineModel,
) -> Result<Attributed> {
    check(reader, symbols)?;
    ensure!(
        reader.accesses().is_some(),
        "the recording has no data accesses: make it with kernlane record --data"
    );
    let meter = CoherentMeter::new(machine, symbols, reader.header().cpus)?;
    Ok(follow(reader, Automaton::new(binding, symbols, meter))?.0)
}

/// As [`attribute`], with the totals of each function.
///
/// # Errors
/// As [`attribute`].
pub(crate) fn attribute_with_functions<R: Read>(
    reader: &mut RecordingReader<R>,
    symbols: &KernelSymbols,
    binding: &Binding,
    machines: &[MachineModel],
) -> Result<(Attributed, BTreeMap<String, FunctionTotals>)> {
    check(reader, symbols)?;
    let meter = FunctionMeter::new(symbols, Machines::new(machines));
    let (attributed, functions) = follow(reader, Automaton::new(binding, symbols, meter))?;
    Ok((attributed, functions.totals()))
}

/// As [`attribute`], with the chains of calls and the execution over time.
///
/// # Errors
/// As [`attribute`].
pub fn attribute_with_calls<R: Read>(
    reader: &mut RecordingReader<R>,
    symbols: &KernelSymbols,
    binding: &Binding,
    machines: &[MachineModel],
) -> Result<(Attributed, CallTree, Timeline)> {
    check(reader, symbols)?;
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
    reader: &mut RecordingReader<R>,
    symbols: &KernelSymbols,
    binding: &Binding,
    machines: &[MachineModel],
    track: T,
) -> Result<(Attributed, T)> {
    check(reader, symbols)?;
    let (attributed, spans) =
        follow(reader, Automaton::new(binding, symbols, SpanMeter::new(machines, track)))?;
    Ok((attributed, spans.finish()))
}

/// How soon each of the named functions is called again (Torrellas 1998, figure 7).
///
/// # Errors
/// As [`attribute`].
pub(crate) fn reuses<R: Read>(
    reader: &mut RecordingReader<R>,
    symbols: &KernelSymbols,
    names: &[String],
) -> Result<Vec<Reuses>> {
    check(reader, symbols)?;
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

/// Checks that the symbols are of the recorded kernel. A System.map has no build id to check.
pub(crate) fn check<R: Read>(reader: &RecordingReader<R>, symbols: &KernelSymbols) -> Result<()> {
    let recorded = &reader.header().build_id;
    if let Some(build_id) = &symbols.build_id {
        ensure!(
            *recorded == build_id.0,
            "the recording is of the kernel with build id {recorded}, the symbols of {}: give the \
             vmlinux that was recorded",
            build_id.0
        );
    }
    Ok(())
}

fn follow<R: Read, M: Meter>(
    reader: &mut RecordingReader<R>,
    mut automaton: Automaton<'_, M>,
) -> Result<(Attributed, M)> {
    // Of several CPUs, most machines have L1Is only.
    let takes_data =
        M::TAKES_DATA && (M::DATA_OF_SEVERAL_CPUS || reader.header().cpus == CpuCount::ONE);
    while let Some(chunk) = reader.next_chunk().context("the recording is damaged")? {
        match chunk {
            Chunk::Translations(translations) => automaton.define(&translations)?,
            Chunk::Tasks(tasks) => automaton.define_tasks(&tasks),
            Chunk::Stream(words) => match reader.accesses().filter(|_| takes_data) {
                None => automaton.stream(&words),
                Some((accesses, patterns)) => {
                    automaton.stream_with_data(&words, accesses, patterns)?;
                }
            },
            Chunk::End(_) => {}
        }
    }
    Ok(automaton.finish())
}
