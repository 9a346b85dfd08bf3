//! Perfetto's traces (`protos/perfetto/trace/trace.proto`): services over time, what each CPU ran,
//! counters, and flows from what woke a task to the task's next turn.
//!
//! Input: what ran over time, as it is read. Output: packets of track events. Memory holds only
//! names, and counters of the current interval. Packets are not in the order of their times;
//! Perfetto sorts them.
//!
//! Each task has a track with nested invocations of services; `instructions` are an event's own.
//! Each CPU has a track with the tasks that ran, and counters. Times are of the guest's clock.

use crate::chrome_trace::LEVELS;
use crate::folded::{mode_of, service_title};
use crate::intervals::{INTERVAL, Intervals};
use anyhow::{Context, Result};
use prost::Message;
use services::spans::{
    CpuCount, CpuId, ServiceSpan, ServiceStretch, SpanTrack, TaskResumption, TaskWake,
};
use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;

/// The numbers of tracks. A CPU has a track of its own, and one for each counter.
const RECORDING: u64 = 1;
const FIRST_CPU: u64 = 0x100;
const FIRST_COUNTER: u64 = 0x1000;
const FIRST_TASK: u64 = 0x10000;

/// The modes whose instructions are counted; the misses of each level follow them.
const MODES: [&str; 3] = ["user", "kernel", "idle"];
const COUNTERS: usize = MODES.len() + LEVELS.len();

/// `TrackEvent.Type`.
const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const INSTANT: i32 = 3;
const COUNTER: i32 = 4;
/// `CounterDescriptor.Unit`.
const UNIT_COUNT: i32 = 2;
/// `TracePacket.SequenceFlags`.
const STATE_CLEARED: u32 = 1;
const NEEDS_STATE: u32 = 2;

/// Writes packets as they come.
pub(crate) struct TracePackets<W> {
    out: W,
    /// Only events that touch this time are written.
    window: Range<u64>,
    has_machine: bool,
    names: Interned,
    categories: Interned,
    annotations: Interned,
    cpus: Vec<CpuTrack>,
    /// The names and pids of tasks whose tracks are described.
    tasks: HashMap<usize, (String, Option<u32>)>,
    flows: u64,
    events: u64,
    error: Option<io::Error>,
}

/// The counters of a CPU, and what its next turn follows.
struct CpuTrack {
    counters: Intervals<COUNTERS>,
    /// When its turn begins, and what woke the task.
    resumed: Option<(u64, TaskWake)>,
}

/// Texts that a packet names by a number. A text is written with the first packet that uses it.
#[derive(Default)]
struct Interned {
    numbers: HashMap<String, u64>,
    unwritten: Vec<InternedText>,
}

impl Interned {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let iid = self.numbers.len() as u64 + 1;
        self.numbers.insert(text.to_owned(), iid);
        self.unwritten.push(InternedText { iid, name: text.to_owned() });
        iid
    }
}

/// A value beside an event.
enum Value<'a> {
    Count(u64),
    Real(f64),
    Text(&'a str),
}

impl<W: Write> TracePackets<W> {
    /// `conditions` are the names and values of the conditions that the numbers depend on. `window`
    /// is the time to write, in nanoseconds since the recording began.
    pub(crate) fn new(
        out: W,
        conditions: &[(&str, String)],
        window: Range<u64>,
        cpus: CpuCount,
        has_machine: bool,
    ) -> Self {
        let cpu = |_| CpuTrack { counters: Intervals::new(), resumed: None };
        let mut packets = TracePackets {
            out,
            window: window.clone(),
            has_machine,
            names: Interned::default(),
            categories: Interned::default(),
            annotations: Interned::default(),
            cpus: cpus.cpus().map(cpu).collect(),
            tasks: HashMap::new(),
            flows: 0,
            events: 0,
            error: None,
        };
        packets.write(&TracePacket { sequence_flags: STATE_CLEARED, ..TracePacket::default() });
        packets.describe(TrackDescriptor { name: "recording".to_owned(), ..track(RECORDING) });
        for cpu in cpus.cpus() {
            let of_cpu = cpu_track(cpu);
            packets.describe(TrackDescriptor { name: format!("CPU {}", cpu.0), ..track(of_cpu) });
            for counter in 0..packets.counters() {
                packets.describe(TrackDescriptor {
                    name: counter_name(counter),
                    parent_uuid: of_cpu,
                    counter: Some(CounterDescriptor { unit: UNIT_COUNT }),
                    ..track(counter_track(cpu, counter))
                });
            }
        }
        let texts = conditions.iter().map(|(name, value)| (*name, Value::Text(value)));
        let event = TrackEvent { r#type: INSTANT, track_uuid: RECORDING, ..TrackEvent::default() };
        packets.event(window.start, "recording", "recording", texts, event);
        packets
    }

    /// Ends the file and returns the number of events.
    ///
    /// # Errors
    /// A packet could not be written.
    pub(crate) fn finish(mut self) -> Result<u64> {
        for cpu in 0..self.cpus.len() {
            let mut values = Vec::new();
            self.cpus[cpu].counters.end(|begin, at, value| values.push((begin, at, value)));
            self.count(CpuId(cpu as u8), &values);
        }
        let ended = self.out.flush();
        self.error.map_or(ended, Err).context("the packets cannot be written")?;
        Ok(self.events)
    }

    /// How many counters a CPU has.
    fn counters(&self) -> usize {
        if self.has_machine { COUNTERS } else { MODES.len() }
    }

    fn is_shown(&self, begin: u64, end: u64) -> bool {
        begin < self.window.end && end >= self.window.start
    }

    fn write(&mut self, packet: &TracePacket) {
        let packet = TracePacket { trusted_packet_sequence_id: 1, ..packet.clone() };
        // A trace has packets as its field 1.
        let bytes = Trace { packet: vec![packet] }.encode_to_vec();
        if self.error.is_none() {
            self.error = self.out.write_all(&bytes).err();
        }
    }

    fn describe(&mut self, track: TrackDescriptor) {
        self.write(&TracePacket { track_descriptor: Some(track), ..TracePacket::default() });
    }

    /// Writes an event with a name, a category and values.
    fn event<'a>(
        &mut self,
        timestamp: u64,
        name: &str,
        category: &str,
        values: impl Iterator<Item = (&'a str, Value<'a>)>,
        event: TrackEvent,
    ) {
        let annotation = |(name, value): (&str, Value<'_>)| {
            let name_iid = self.annotations.number(name);
            let mut annotation = DebugAnnotation { name_iid, ..DebugAnnotation::default() };
            match value {
                Value::Count(count) => annotation.uint_value = Some(count),
                Value::Real(real) => annotation.double_value = Some(real),
                Value::Text(text) => annotation.string_value = Some(text.to_owned()),
            }
            annotation
        };
        let debug_annotations = values.map(annotation).collect();
        let track_event = TrackEvent {
            name_iid: self.names.number(name),
            category_iids: vec![self.categories.number(category)],
            debug_annotations,
            ..event
        };
        let interned = InternedData {
            event_categories: std::mem::take(&mut self.categories.unwritten),
            event_names: std::mem::take(&mut self.names.unwritten),
            debug_annotation_names: std::mem::take(&mut self.annotations.unwritten),
        };
        self.events += 1;
        self.write(&TracePacket {
            timestamp: Some(timestamp),
            track_event: Some(track_event),
            interned_data: (interned != InternedData::default()).then_some(interned),
            sequence_flags: NEEDS_STATE,
            ..TracePacket::default()
        });
    }

    /// Writes a slice from `begin` to `end`.
    fn slice<'a>(
        &mut self,
        (begin, end): (u64, u64),
        name: &str,
        category: &str,
        values: impl Iterator<Item = (&'a str, Value<'a>)>,
        event: TrackEvent,
    ) {
        let track_uuid = event.track_uuid;
        self.event(begin, name, category, values, TrackEvent { r#type: SLICE_BEGIN, ..event });
        let end_event = TrackEvent { r#type: SLICE_END, track_uuid, ..TrackEvent::default() };
        let track_event = Some(end_event);
        self.write(&TracePacket { timestamp: Some(end), track_event, ..TracePacket::default() });
    }

    /// Writes values of intervals: the begin, the counter, the value.
    fn count(&mut self, cpu: CpuId, values: &[(u64, usize, u64)]) {
        for &(timestamp, counter, value) in values {
            if counter < self.counters() && self.is_shown(timestamp, timestamp + INTERVAL - 1) {
                self.events += 1;
                let track_event = Some(TrackEvent {
                    r#type: COUNTER,
                    track_uuid: counter_track(cpu, counter),
                    counter_value: Some(value as i64),
                    ..TrackEvent::default()
                });
                let timestamp = Some(timestamp);
                self.write(&TracePacket { timestamp, track_event, ..TracePacket::default() });
            }
        }
    }

    /// The track of a task, which is described before its first event. The idle tasks have the pid
    /// 0, as many as there are CPUs; Perfetto's threads have pids of their own.
    fn task_track(&mut self, task: usize) -> u64 {
        if !self.tasks.contains_key(&task) {
            SpanTrack::named(self, task, "(unknown)", None);
        }
        FIRST_TASK + task as u64
    }

    /// Shows what woke a task with this name and pid. Returns the number of the flow to the task's
    /// next turn.
    fn wake(&mut self, wake: TaskWake, name: &str, pid: Option<u32>) -> Option<u64> {
        if !self.is_shown(wake.at, wake.at) {
            return None;
        }
        self.flows += 1;
        let (track_uuid, flow) = (self.task_track(wake.by), self.flows);
        let values = [("task", Value::Text(name))].into_iter();
        let values = values.chain(pid.map(|pid| ("pid", Value::Count(pid.into()))));
        let flow_ids = vec![flow];
        let event = TrackEvent { r#type: INSTANT, track_uuid, flow_ids, ..TrackEvent::default() };
        self.event(wake.at, "wake", "wake", values, event);
        Some(flow)
    }
}

impl<W: Write> SpanTrack for TracePackets<W> {
    fn span(&mut self, task: usize, span: &ServiceSpan) {
        if !self.is_shown(span.begin, span.end) {
            return;
        }
        let mut values = vec![
            ("instructions", Value::Count(span.instructions)),
            ("off_cpu_ns", Value::Count(span.off_cpu)),
        ];
        if let Some(machine) = span.machine {
            values.push(("cycles", Value::Real(machine.cycles)));
            values.push(("l1i_misses", Value::Count(machine.l1i)));
            if let Some((l1d, l2)) = machine.data {
                values.push(("l1d_misses", Value::Count(l1d)));
                values.push(("l2_misses", Value::Count(l2)));
            }
        }
        let title = service_title(span.kind, &span.name);
        let track_uuid = self.task_track(task);
        let event = TrackEvent { track_uuid, ..TrackEvent::default() };
        let times = (span.begin, span.end);
        self.slice(times, &title, span.kind.title(), values.into_iter(), event);
    }

    fn turn(&mut self, cpu: CpuId, task: usize, name: &str, begin: u64, end: u64) {
        let of_cpu = &mut self.cpus[usize::from(cpu.0)];
        let resumed = of_cpu.resumed.take_if(|(at, _)| *at <= begin);
        if self.is_shown(begin, end) {
            let pid = self.tasks.get(&task).and_then(|(_, pid)| *pid);
            let wake = resumed.filter(|(at, _)| *at == begin);
            let flow = wake.and_then(|(_, wake)| self.wake(wake, name, pid));
            let values = pid.map(|pid| ("pid", Value::Count(pid.into())));
            let event = TrackEvent {
                track_uuid: cpu_track(cpu),
                terminating_flow_ids: flow.into_iter().collect(),
                ..TrackEvent::default()
            };
            self.slice((begin, end), name, "turn", values.into_iter(), event);
        }
    }

    fn executed(&mut self, stretch: &ServiceStretch) {
        let ServiceStretch { cpu, kind, begin, end, misses } = *stretch;
        let mut amounts = [0; COUNTERS];
        amounts[MODES.len()..].copy_from_slice(&[misses.l1i, misses.l1d, misses.l2]);
        let modes = MODES.iter().zip(&mut amounts);
        for (_, amount) in modes.filter(|(mode, _)| **mode == mode_of(kind)) {
            *amount = end - begin;
        }
        let mut values = Vec::new();
        let write = |begin, at, value| values.push((begin, at, value));
        self.cpus[usize::from(cpu.0)].counters.add(begin, end, amounts, write);
        self.count(cpu, &values);
    }

    fn named(&mut self, task: usize, name: &str, pid: Option<u32>) {
        self.tasks.insert(task, (name.to_owned(), pid));
        let track = track(FIRST_TASK + task as u64);
        self.describe(match pid.filter(|pid| *pid > 0).and_then(|pid| i32::try_from(pid).ok()) {
            Some(pid) => TrackDescriptor {
                thread: Some(ThreadDescriptor { pid, tid: pid.into(), thread_name: name.into() }),
                ..track
            },
            None => TrackDescriptor { name: name.to_owned(), ..track },
        });
    }

    fn resumed(&mut self, resumption: &TaskResumption) {
        let TaskResumption { cpu, at, wake, .. } = *resumption;
        self.cpus[usize::from(cpu.0)].resumed = wake.map(|wake| (at, wake));
    }

    fn task(&mut self, task: usize, _: &str, _: Option<u32>) {
        self.task_track(task);
    }
}

fn track(uuid: u64) -> TrackDescriptor {
    TrackDescriptor { uuid, ..TrackDescriptor::default() }
}

fn cpu_track(cpu: CpuId) -> u64 {
    FIRST_CPU + u64::from(cpu.0)
}

fn counter_track(cpu: CpuId, counter: usize) -> u64 {
    FIRST_COUNTER + (u64::from(cpu.0) * COUNTERS as u64) + counter as u64
}

fn counter_name(counter: usize) -> String {
    match MODES.get(counter) {
        Some(mode) => format!("{mode} instructions"),
        None => LEVELS[counter - MODES.len()].to_owned(),
    }
}

/// `perfetto.protos.Trace`, as far as it is written. So are the messages below.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub(crate) packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TracePacket {
    /// Written for an event at the time 0 as well.
    #[prost(uint64, optional, tag = "8")]
    pub(crate) timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    pub(crate) track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub(crate) interned_data: Option<InternedData>,
    #[prost(uint32, tag = "13")]
    sequence_flags: u32,
    #[prost(message, optional, tag = "60")]
    pub(crate) track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    pub(crate) uuid: u64,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) thread: Option<ThreadDescriptor>,
    #[prost(uint64, tag = "5")]
    parent_uuid: u64,
    #[prost(message, optional, tag = "8")]
    counter: Option<CounterDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ThreadDescriptor {
    #[prost(int32, tag = "1")]
    pid: i32,
    #[prost(int64, tag = "2")]
    tid: i64,
    #[prost(string, tag = "5")]
    pub(crate) thread_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct CounterDescriptor {
    #[prost(int32, tag = "3")]
    unit: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TrackEvent {
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    category_iids: Vec<u64>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, tag = "9")]
    pub(crate) r#type: i32,
    #[prost(uint64, tag = "10")]
    pub(crate) name_iid: u64,
    #[prost(uint64, tag = "11")]
    pub(crate) track_uuid: u64,
    #[prost(int64, optional, tag = "30")]
    pub(crate) counter_value: Option<i64>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub(crate) flow_ids: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub(crate) terminating_flow_ids: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DebugAnnotation {
    #[prost(uint64, tag = "1")]
    pub(crate) name_iid: u64,
    #[prost(uint64, optional, tag = "3")]
    pub(crate) uint_value: Option<u64>,
    #[prost(double, optional, tag = "5")]
    double_value: Option<f64>,
    #[prost(string, optional, tag = "6")]
    string_value: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct InternedData {
    #[prost(message, repeated, tag = "1")]
    event_categories: Vec<InternedText>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) event_names: Vec<InternedText>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) debug_annotation_names: Vec<InternedText>,
}

/// `EventCategory`, `EventName` and `DebugAnnotationName`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InternedText {
    #[prost(uint64, tag = "1")]
    pub(crate) iid: u64,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
}
