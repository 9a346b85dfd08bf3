//! Chrome's trace events ("Trace Event Format"), which chrome://tracing, Perfetto's user interface
//! and others open: services over time, and misses.
//!
//! Each task has a track with nested invocations of services. Each CPU has a track with the tasks
//! that ran. Times are of the guest's clock; an instruction takes a nanosecond. If there are
//! several CPUs, one executes at a time, and a stay in user mode has an event for each turn of its
//! CPU. `args.instructions` is an event's own number: the sum over a service's events equals the
//! number in the service table. Events are written immediately; memory holds only values that wait
//! for the end of their interval.

use crate::folded::service_title;
use crate::intervals::{INTERVAL, Intervals};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use services::annotations::ServiceKind;
use services::spans::{CpuCount, CpuId, ServiceSpan, ServiceStretch, SpanTrack};
use std::fmt::Display;
use std::io::{self, Write};
use std::ops::Range;

/// Process numbers in the format: one for the processor, one for the tasks. Thread numbers begin
/// behind them: those of CPUs with 1, as a recording has at most 8, then those of tasks.
const PROCESSOR: usize = 1;
const TASKS: usize = 2;
const FIRST_CPU: usize = 1;
const FIRST_TASK: usize = 10;
pub(crate) const LEVELS: [&str; 3] = ["L1I misses", "L1D misses", "L2 misses"];

/// Writes the events as they come.
pub(crate) struct TraceEvents<W> {
    out: W,
    /// Only events that touch this time are written.
    window: Range<u64>,
    misses: Intervals<{ LEVELS.len() }>,
    events: u64,
    error: Option<io::Error>,
}

impl<W: Write> TraceEvents<W> {
    /// `conditions` are the names and values of the conditions that the numbers depend on. `window`
    /// is the time to write, in nanoseconds since the recording began.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub(crate) fn new(
        mut out: W,
        conditions: &[(&str, String)],
        window: Range<u64>,
        cpus: CpuCount,
    ) -> Result<Self> {
        let mut about = serde_json::Map::new();
        about.insert("producer".to_owned(), concat!("kernlane ", env!("CARGO_PKG_VERSION")).into());
        about.insert(
            "time".to_owned(),
            "of the guest's clock, of which an instruction takes 1 ns; ts and dur are in \
             microseconds"
                .into(),
        );
        about.insert(
            "misses".to_owned(),
            format!("of each {} us, simulated", INTERVAL / 1000).into(),
        );
        about.extend(
            conditions.iter().map(|(name, value)| ((*name).to_owned(), value.as_str().into())),
        );
        write!(
            out,
            "{{\"displayTimeUnit\":\"ns\",\"otherData\":{},\"traceEvents\":[",
            Value::Object(about)
        )?;
        let mut events =
            TraceEvents { out, window, misses: Intervals::new(), events: 0, error: None };
        events.name("process_name", PROCESSOR, 0, "processor");
        for cpu in cpus.cpus() {
            let thread = FIRST_CPU + usize::from(cpu.0);
            events.name("thread_name", PROCESSOR, thread, &format!("CPU {}", cpu.0));
        }
        events.name("process_name", TASKS, 0, "tasks");
        Ok(events)
    }

    /// Ends the file and returns the number of events.
    ///
    /// # Errors
    /// An event could not be written.
    pub(crate) fn finish(mut self) -> Result<u64> {
        let mut values = Vec::new();
        self.misses.end(|begin, level, misses| values.push((begin, level, misses)));
        self.count(&values);
        let ended = writeln!(self.out, "\n]}}");
        self.error.map_or(ended, Err).context("the events cannot be written")?;
        Ok(self.events)
    }

    fn name(&mut self, what: &str, process: usize, thread: usize, name: &str) {
        self.write(
            json!({"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}),
        );
    }

    fn write(&mut self, event: impl Display) {
        let separator = if self.events == 0 { "\n" } else { ",\n" };
        self.events += 1;
        if self.error.is_none() {
            self.error = write!(self.out, "{separator}{event}").err();
        }
    }

    fn is_shown(&self, begin: u64, end: u64) -> bool {
        begin < self.window.end && end >= self.window.start
    }

    /// Writes values of intervals: the begin, the level, the misses.
    fn count(&mut self, values: &[(u64, usize, u64)]) {
        for &(begin, level, misses) in values {
            if self.is_shown(begin, begin + INTERVAL - 1) {
                let (level, ts) = (LEVELS[level], Microseconds(begin));
                self.write(format_args!(
                    r#"{{"ph":"C","name":"{level}","pid":{PROCESSOR},"ts":{ts},"args":{{"misses":{misses}}}}}"#
                ));
            }
        }
    }
}

/// A time in nanoseconds, printed exactly in microseconds.
struct Microseconds(u64);

impl Display for Microseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

impl<W: Write> SpanTrack for TraceEvents<W> {
    fn span(&mut self, task: usize, span: &ServiceSpan) {
        if !self.is_shown(span.begin, span.end) {
            return;
        }
        let name = Value::from(service_title(span.kind, &span.name));
        let category = span.kind.title();
        let (ts, dur) = (Microseconds(span.begin), Microseconds(span.end - span.begin));
        let (thread, own) = (FIRST_TASK + task, span.instructions);
        let off_cpu = match span.kind {
            ServiceKind::User => String::new(),
            _ => format!(",\"off_cpu_ns\":{}", span.off_cpu),
        };
        self.write(format_args!(
            r#"{{"ph":"X","name":{name},"cat":"{category}","pid":{TASKS},"tid":{thread},"ts":{ts},"dur":{dur},"args":{{"instructions":{own}{off_cpu}}}}}"#
        ));
    }

    fn turn(&mut self, cpu: CpuId, _: usize, name: &str, begin: u64, end: u64) {
        if self.is_shown(begin, end) {
            let thread = FIRST_CPU + usize::from(cpu.0);
            let (name, ts, dur) =
                (Value::from(name), Microseconds(begin), Microseconds(end - begin));
            self.write(format_args!(
                r#"{{"ph":"X","name":{name},"cat":"turn","pid":{PROCESSOR},"tid":{thread},"ts":{ts},"dur":{dur}}}"#
            ));
        }
    }

    fn executed(&mut self, stretch: &ServiceStretch) {
        let misses = [stretch.misses.l1i, stretch.misses.l1d, stretch.misses.l2];
        let mut values = Vec::new();
        self.misses.add(stretch.begin, stretch.end, misses, |begin, level, misses| {
            values.push((begin, level, misses));
        });
        self.count(&values);
    }

    fn task(&mut self, task: usize, name: &str, pid: Option<u32>) {
        let shown = pid.map_or_else(|| name.to_owned(), |pid| format!("{name} (pid {pid})"));
        self.name("thread_name", TASKS, FIRST_TASK + task, &shown);
    }
}
