//! What happened in a recording over time: Chrome's trace events, and the table of all invocations.
//!
//! Input: a recording and its attribution. Output: files, written while the recording is read.
//! Memory holds only invocations that have not ended.

use crate::parquet::InvocationTable;
use crate::perfetto::TraceEvents;
use crate::{Format, Make};
use anyhow::Result;
use execution::opened::OpenedRecording;
use host::recording::Recording;
use services::{Attribution, conditions_by_name};
use std::io::Write;
use std::ops::Range;
use std::path::Path;

/// The format.
pub(crate) const PERFETTO: Format = Format {
    name: "perfetto",
    about: "Chrome's trace events: services over time, and misses (ui.perfetto.dev, \
        chrome://tracing)",
    make: Make::OverTime(trace_events),
};

/// Writes what ran over time as Chrome's trace events: those that touch the window (in nanoseconds
/// of the guest's clock). Returns the number of events.
///
/// # Errors
/// The recording is damaged or of another kernel, or `out` cannot be written.
pub(crate) fn trace_events(
    attribution: &Attribution,
    recording: &Path,
    window: Range<u64>,
    out: &mut dyn Write,
) -> Result<u64> {
    let Attribution { symbols, binding, machines, .. } = attribution;
    let opened = OpenedRecording::whole(&Recording::at(recording), "services")?;
    opened.read(|reader| {
        let header = reader.header();
        let machine = machines.first().map(|machine| &*machine.name);
        let conditions =
            conditions_by_name(&header.workload, &header.build_id, header.seed, machine);
        let events = TraceEvents::new(out, &conditions, window, header.cpus)?;
        services::attribute_in_time(reader, symbols, binding, machines, events)?.1.finish()
    })
}

/// Writes every invocation of a service as a Parquet table. Returns the bytes of the table of
/// tasks.
///
/// # Errors
/// The same errors as [`trace_events`].
pub fn invocations(
    attribution: &Attribution,
    recording: &Path,
    out: &mut (dyn Write + Send),
    conditions: &[(&str, String)],
) -> Result<Vec<u8>> {
    let Attribution { symbols, binding, .. } = attribution;
    let opened = OpenedRecording::whole(&Recording::at(recording), "invocations")?;
    opened.read(|reader| {
        let invocations = InvocationTable::new(out, conditions)?;
        services::attribute_in_time(reader, symbols, binding, &[], invocations)?.1.finish()
    })
}
