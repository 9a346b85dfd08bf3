//! Which service of the system ran, for every instruction of a recording.
//!
//! Takes a recording, the symbols of its kernel and annotations; gives what each service came to:
//! calls, instructions, latency, and what simulated machines counted. Everything follows from the
//! recording, so nothing is inserted into the guest, and a recording can be asked again with other
//! annotations. Prints nothing.
//!
//! To see another service: a table in `annotations/linux.toml`.

pub mod annotations;
mod automaton;
pub mod binding;
mod branches;
pub mod calls;
mod code;
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
use branches::WithBranches;
use calls::CallTree;
use functions::{FunctionTotals, Functions};
pub use machines::LevelMisses;
use machines::Machines;
use meter::{Meter, NoMachine};
use observed::Observed;
use reuse::{Reuse, Reuses};
use sim::MachineModel;
use spans::{Spans, Track};
use std::collections::BTreeMap;
use std::io::Read;
use symbols::Symbols;
use table::ServiceTable;
use timeline::Timeline;
use trace::{Chunk, RecordingReader};

/// Every instruction of a recording by service, and what `machines` count while each runs.
///
/// # Errors
/// The recording is damaged or cut off, or of another kernel than the symbols.
pub fn attribute<R: Read>(
    reader: &mut RecordingReader<R>,
    symbols: &Symbols,
    binding: &Binding,
    machines: &[MachineModel],
) -> Result<Attributed> {
    check(reader, symbols)?;
    match machines {
        [] => Ok(follow(reader, Automaton::new(binding, symbols, NoMachine))?.0),
        _ => Ok(follow(reader, Automaton::new(binding, symbols, Machines::new(machines)))?.0),
    }
}

/// As [`attribute`], with how the branches of each were predicted.
pub fn attribute_with_branches<R: Read>(
    reader: &mut RecordingReader<R>,
    symbols: &Symbols,
    binding: &Binding,
    machines: &[MachineModel],
) -> Result<Attributed> {
    check(reader, symbols)?;
    Ok(follow(reader, Automaton::new(binding, symbols, WithBranches::new(machines)))?.0)
}

/// As [`attribute`], and what each function came to.
pub fn attribute_with_functions<R: Read>(
    reader: &mut RecordingReader<R>,
    symbols: &Symbols,
    binding: &Binding,
    machines: &[MachineModel],
) -> Result<(Attributed, BTreeMap<String, FunctionTotals>)> {
    check(reader, symbols)?;
    let meter = Functions::new(symbols, Machines::new(machines));
    let (attributed, functions) = follow(reader, Automaton::new(binding, symbols, meter))?;
    Ok((attributed, functions.totals()))
}

/// As [`attribute`], with the chains of calls, and what went on over time.
pub fn attribute_with_calls<R: Read>(
    reader: &mut RecordingReader<R>,
    symbols: &Symbols,
    binding: &Binding,
    machines: &[MachineModel],
) -> Result<(Attributed, CallTree, Timeline)> {
    check(reader, symbols)?;
    let (attributed, observed) = follow(
        reader,
        Automaton::new(binding, symbols, Observed::new(symbols, binding, machines)),
    )?;
    let (calls, timeline) = observed.finish(&attributed.ledger);
    Ok((attributed, calls, timeline))
}

/// As [`attribute`], and tells `track` of everything as it ends.
pub fn attribute_in_time<R: Read, T: Track>(
    reader: &mut RecordingReader<R>,
    symbols: &Symbols,
    binding: &Binding,
    machines: &[MachineModel],
    track: T,
) -> Result<(Attributed, T)> {
    check(reader, symbols)?;
    let (attributed, spans) =
        follow(reader, Automaton::new(binding, symbols, Spans::new(machines, track)))?;
    Ok((attributed, spans.finish()))
}

/// How soon each of the named functions is called again.
///
/// # Errors
/// As [`attribute`].
pub fn reuses<R: Read>(
    reader: &mut RecordingReader<R>,
    symbols: &Symbols,
    names: &[String],
) -> Result<Vec<Reuses>> {
    check(reader, symbols)?;
    let binding = Binding::default();
    let (_, reuse) = follow(reader, Automaton::new(&binding, symbols, Reuse::new(symbols, names)))?;
    Ok(reuse.finish())
}

/// What a recording came to.
pub struct Recorded {
    pub table: ServiceTable,
    pub functions: BTreeMap<String, FunctionTotals>,
}

/// The symbols must be of the recorded kernel. Of a System.map it is not known.
pub(crate) fn check<R: Read>(reader: &RecordingReader<R>, symbols: &Symbols) -> Result<()> {
    let recorded = &reader.header().build_id;
    if let Some(build_id) = &symbols.build_id {
        ensure!(
            *recorded == build_id.0,
            "the recording is of the kernel with build id {recorded}, the symbols of {}: give the vmlinux that was recorded",
            build_id.0
        );
    }
    Ok(())
}

fn follow<R: Read, M: Meter>(
    reader: &mut RecordingReader<R>,
    mut automaton: Automaton<'_, M>,
) -> Result<(Attributed, M)> {
    while let Some(chunk) = reader.next_chunk().context("the recording is damaged")? {
        match chunk {
            Chunk::Translations(translations) => automaton.define(&translations)?,
            Chunk::Tasks(tasks) => automaton.define_tasks(&tasks),
            Chunk::Stream(words) => match reader.accesses().filter(|_| M::TAKES_DATA) {
                None => automaton.stream(&words),
                Some((accesses, patterns)) => {
                    automaton.stream_with_data(&words, accesses, patterns)?
                }
            },
            Chunk::End(_) => {}
        }
    }
    Ok(automaton.finish())
}
