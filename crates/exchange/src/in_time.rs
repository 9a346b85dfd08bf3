//! What happened in a recording over time: formats of time lines, and the table of all invocations.
//!
//! Input: a recording and its attribution. Output: files, written while the recording is read.
//! Memory holds only invocations that have not ended; the profile of the Firefox Profiler is made
//! in memory.

use crate::chrome_trace::TraceEvents;
use crate::firefox::ProfileTrack;
use crate::parquet::InvocationTable;
use crate::perfetto::TracePackets;
use crate::{Format, Make};
use anyhow::{Context, Result};
use execution::opened::{OpenedRecording, Reader};
use host::recording::Recording;
use services::{Attribution, conditions_by_name};
use std::io::Write;
use std::ops::Range;
use std::path::Path;

/// The format of Perfetto.
pub(crate) const PERFETTO: Format = Format {
    name: "perfetto",
    about: "A trace of Perfetto: services, tasks and CPUs over time, with counters and wakeups \
        (ui.perfetto.dev)",
    make: Make::OverTime(perfetto_trace),
};

/// The format of the Firefox Profiler.
pub(crate) const FIREFOX: Format = Format {
    name: "firefox",
    about: "A profile of the Firefox Profiler: functions and services with their calls over time \
        (profiler.firefox.com)",
    make: Make::OverTime(firefox_profile),
};

/// The format of Chrome.
pub(crate) const CHROME_TRACE: Format = Format {
    name: "chrome-trace",
    about: "Chrome's trace events: services over time, and misses (chrome://tracing, \
        ui.perfetto.dev)",
    make: Make::OverTime(trace_events),
};

/// Reads a whole recording, with its conditions by name.
fn read<T>(
    attribution: &Attribution,
    recording: &Path,
    make: impl FnOnce(Reader, &[(&str, String)]) -> Result<T>,
) -> Result<T> {
    let opened = OpenedRecording::whole(&Recording::at(recording), "services")?;
    opened.read(|reader| {
        let header = reader.header();
        let machine = attribution.machines.first().map(|machine| &*machine.name);
        let conditions =
            conditions_by_name(&header.workload, &header.build_id, header.seed, machine);
        make(reader, &conditions)
    })
}

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
    read(attribution, recording, |reader, conditions| {
        let cpus = reader.header().cpus;
        let events = TraceEvents::new(out, conditions, window, cpus)?;
        services::attribute_in_time(reader, symbols, binding, machines, events)?.1.finish()
    })
}

/// Writes what ran over time as Perfetto's packets. Returns the number of events.
///
/// # Errors
/// The same errors as [`trace_events`].
pub(crate) fn perfetto_trace(
    attribution: &Attribution,
    recording: &Path,
    window: Range<u64>,
    out: &mut dyn Write,
) -> Result<u64> {
    let Attribution { symbols, binding, machines, .. } = attribution;
    read(attribution, recording, |reader, conditions| {
        let cpus = reader.header().cpus;
        let packets = TracePackets::new(out, conditions, window, cpus, !machines.is_empty());
        services::attribute_in_time(reader, symbols, binding, machines, packets)?.1.finish()
    })
}

/// Writes what ran over time as a profile of the Firefox Profiler. Returns the number of samples
/// and markers.
///
/// # Errors
/// The same errors as [`trace_events`].
pub(crate) fn firefox_profile(
    attribution: &Attribution,
    recording: &Path,
    window: Range<u64>,
    out: &mut dyn Write,
) -> Result<u64> {
    let Attribution { symbols, binding, machines, .. } = attribution;
    let (profile, events) = read(attribution, recording, |reader, conditions| {
        let cpus = reader.header().cpus;
        let track = ProfileTrack::new(conditions, window.clone(), cpus);
        let (_, track, samples) = services::call_samples::attribute_with_samples(
            reader, symbols, binding, machines, window, track,
        )?;
        Ok(track.finish(&samples))
    })?;
    serde_json::to_writer(&mut *out, &profile).context("the profile cannot be written")?;
    Ok(events)
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
