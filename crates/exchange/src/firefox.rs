//! The Firefox Profiler's processed profiles: functions and services with their calls over time,
//! and invocations of services as markers.
//!
//! Input: the samples and spans of a recording. Output: JSON, version 55 of the processed format.
//! A thread is a task, a sample's weight is its number of instructions. Each CPU is a thread with
//! the tasks that ran, as markers. The format has one weight for a sample, so misses are markers:
//! of each invocation, and of each interval, which the Firefox Profiler draws as graphs.

use crate::chrome_trace::LEVELS;
use crate::folded::{mode_of, service_title};
use crate::intervals::{INTERVAL, Intervals};
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, Marker,
    MarkerFieldFlags, MarkerFieldFormat, MarkerGraphType, MarkerLocations, MarkerTiming,
    MarkerTypeHandle, ProcessHandle, Profile, ReferenceTimestamp, RuntimeSchemaMarkerField,
    RuntimeSchemaMarkerGraph, RuntimeSchemaMarkerSchema, SamplingInterval, StackHandle,
    StringHandle, ThreadHandle, Timestamp, WeightType,
};
use services::annotations::ServiceKind;
use services::call_samples::CallSamples;
use services::calls::{NodeId, ROOT};
use services::ledger::ServiceId;
use services::spans::{CpuCount, CpuId, ServiceSpan, ServiceStretch, SpanTrack};
use std::collections::HashMap;
use std::ops::Range;

/// Process numbers: one for the processor, one for the tasks.
const PROCESSOR: u32 = 1;
const TASKS: u32 = 2;
/// Thread numbers of CPUs, and of tasks whose pid is not known: above all pids of Linux.
const FIRST_CPU: u32 = 1 << 23;
const FIRST_NAMELESS: u32 = 1 << 24;
/// The interval of samples that were not put together, in nanoseconds.
const FINEST: u64 = 1000;

/// The categories: their names, their colors, and the modes in which they run.
const CATEGORIES: [(&str, CategoryColor); 3] = [
    ("user", CategoryColor::Yellow),
    ("kernel", CategoryColor::Orange),
    ("idle", CategoryColor::Transparent),
];

/// A field of a marker that holds a number: its key and what it is called.
type NumberField = (&'static str, &'static str, MarkerFieldFormat);

/// The numbers of an invocation.
const OF_INVOCATION: [NumberField; 6] = [
    ("instructions", "Own instructions", MarkerFieldFormat::Integer),
    ("offCpu", "Time off the CPU", MarkerFieldFormat::Duration),
    ("cycles", "Own cycles", MarkerFieldFormat::Decimal),
    ("l1i", "Own L1I misses", MarkerFieldFormat::Integer),
    ("l1d", "Own L1D misses", MarkerFieldFormat::Integer),
    ("l2", "Own L2 misses", MarkerFieldFormat::Integer),
];

/// What ran over time, as a profile.
pub(crate) struct ProfileTrack {
    profile: Profile,
    window: Range<u64>,
    categories: [CategoryHandle; CATEGORIES.len()],
    tasks_process: ProcessHandle,
    /// By task.
    tasks: HashMap<usize, ThreadHandle>,
    cpus: Vec<ThreadHandle>,
    /// By how many numbers it has: invocations without a machine, with one, and with data accesses.
    invocation: HashMap<usize, MarkerTypeHandle>,
    turn: MarkerTypeHandle,
    missed: [MarkerTypeHandle; LEVELS.len()],
    misses: Intervals<{ LEVELS.len() }>,
    markers: u64,
}

impl ProfileTrack {
    /// `conditions` are the names and values of the conditions that the numbers depend on. `window`
    /// is the time to write, in nanoseconds since the recording began.
    pub(crate) fn new(
        conditions: &[(&str, String)],
        window: Range<u64>,
        cpus: CpuCount,
    ) -> ProfileTrack {
        let of = |wanted: &str| conditions.iter().find(|(name, _)| *name == wanted);
        let workload = of("workload").map_or("", |(_, workload)| workload);
        let mut profile = Profile::new(
            &format!("Kernlane: {workload}"),
            ReferenceTimestamp::from_millis_since_unix_epoch(0.0),
            SamplingInterval::from_nanos(FINEST),
        );
        profile.set_os_name("Linux");
        profile.set_symbolicated(true);
        let categories = CATEGORIES.map(|(name, color)| profile.add_category(name, color));
        let start = Timestamp::from_nanos_since_reference(0);
        let processor = profile.add_process("processor", PROCESSOR, start);
        let cpus = cpus.cpus().map(|cpu| {
            let number = FIRST_CPU + u32::from(cpu.0);
            let thread = profile.add_thread(processor, number, start, false);
            profile.set_thread_name(thread, &format!("CPU {}", cpu.0));
            profile.set_thread_samples_weight_type(thread, WeightType::Samples);
            thread
        });
        let cpus: Vec<ThreadHandle> = cpus.collect();
        let turn = schema(&mut profile, "Turn", &[], false);
        let missed = ["L1I", "L1D", "L2"].map(|level| {
            let field = ("misses", "Misses", MarkerFieldFormat::Integer);
            schema(&mut profile, &format!("{level}Misses"), &[field], true)
        });
        let mut track = ProfileTrack {
            tasks_process: profile.add_process("tasks", TASKS, start),
            profile,
            window,
            categories,
            tasks: HashMap::new(),
            cpus,
            invocation: HashMap::new(),
            turn,
            missed,
            misses: Intervals::new(),
            markers: 0,
        };
        track.describe(conditions);
        track
    }

    /// A marker at the begin of the first CPU says what the numbers depend on.
    fn describe(&mut self, conditions: &[(&str, String)]) {
        let field = |key: &str| RuntimeSchemaMarkerField {
            key: key.to_owned(),
            label: key.to_owned(),
            format: MarkerFieldFormat::String,
            flags: MarkerFieldFlags::SEARCHABLE,
        };
        let kind = self.profile.register_marker_type(RuntimeSchemaMarkerSchema {
            fields: conditions.iter().map(|(name, _)| field(name)).collect(),
            ..bare_schema("Recording")
        });
        let texts = conditions.iter().map(|(_, value)| self.profile.intern_string(value)).collect();
        let name = self.profile.intern_string("recording");
        let marker = TrackMarker { kind, name, category: self.categories[1], numbers: &[], texts };
        let begin = Timestamp::from_nanos_since_reference(self.window.start);
        self.profile.add_marker(self.cpus[0], MarkerTiming::Instant(begin), marker);
        self.markers += 1;
    }

    fn is_shown(&self, begin: u64, end: u64) -> bool {
        begin < self.window.end && end >= self.window.start
    }

    fn thread(&mut self, task: usize, pid: Option<u32>) -> ThreadHandle {
        let (profile, process) = (&mut self.profile, self.tasks_process);
        *self.tasks.entry(task).or_insert_with(|| {
            let number = pid.unwrap_or(FIRST_NAMELESS + task as u32);
            let start = Timestamp::from_nanos_since_reference(0);
            profile.add_thread(process, number, start, false)
        })
    }

    fn mark(
        &mut self,
        thread: ThreadHandle,
        kind: MarkerTypeHandle,
        name: &str,
        category: CategoryHandle,
        (begin, end): (u64, u64),
        numbers: &[f64],
    ) {
        let name = self.profile.intern_string(name);
        let [begin, end] = [begin, end].map(Timestamp::from_nanos_since_reference);
        let marker = TrackMarker { kind, name, category, numbers, texts: Vec::new() };
        self.profile.add_marker(thread, MarkerTiming::Interval(begin, end), marker);
        self.markers += 1;
    }

    fn count(&mut self, values: &[(u64, usize, u64)]) {
        for &(begin, level, misses) in values {
            if self.is_shown(begin, begin + INTERVAL - 1) {
                let (thread, kind) = (self.cpus[0], self.missed[level]);
                let times = (begin, begin + INTERVAL);
                let category = self.categories[1];
                self.mark(thread, kind, LEVELS[level], category, times, &[misses as f64]);
            }
        }
    }

    /// The profile with the samples, and the number of samples and markers.
    pub(crate) fn finish(mut self, samples: &CallSamples) -> (Profile, u64) {
        let mut values = Vec::new();
        self.misses.end(|begin, level, misses| values.push((begin, level, misses)));
        self.count(&values);
        self.profile.set_interval(SamplingInterval::from_nanos(samples.slice.unwrap_or(FINEST)));
        let mut events = self.markers;
        for (task, of_task) in samples.tasks.iter().enumerate().filter(|(_, of)| !of.is_empty()) {
            let thread = self.thread(task, None);
            self.profile.add_initial_visible_thread(thread);
            let mut stacks = Stacks {
                profile: &mut self.profile,
                categories: self.categories,
                thread,
                samples,
                known: HashMap::new(),
            };
            // Times of CPUs are in microseconds.
            let mut before = of_task[0].before / 1000;
            for sample in of_task {
                let stack = stacks.stack(sample.service, sample.node);
                let at = Timestamp::from_nanos_since_reference(sample.at);
                let mut ran = CpuDelta::from_micros(sample.before / 1000 - before);
                before = sample.before / 1000;
                // A weight has 32 bits.
                let mut left = sample.instructions;
                while left > 0 {
                    let weight = left.min(i32::MAX as u64);
                    stacks.profile.add_sample(thread, at, Some(stack), ran, weight as i32);
                    (left, ran) = (left - weight, CpuDelta::ZERO);
                    events += 1;
                }
            }
        }
        (self.profile, events)
    }
}

impl SpanTrack for ProfileTrack {
    fn span(&mut self, task: usize, span: &ServiceSpan) {
        if !self.is_shown(span.begin, span.end) {
            return;
        }
        let mut numbers = vec![span.instructions as f64, span.off_cpu as f64 / 1e6];
        if let Some(machine) = span.machine {
            numbers.extend([machine.cycles, machine.l1i as f64]);
            let data = machine.data.map(|(l1d, l2)| [l1d as f64, l2 as f64]);
            numbers.extend(data.into_iter().flatten());
        }
        let profile = &mut self.profile;
        let kind = *self.invocation.entry(numbers.len()).or_insert_with(|| {
            let name = format!("Invocation{}", numbers.len());
            schema(profile, &name, &OF_INVOCATION[..numbers.len()], false)
        });
        let title = service_title(span.kind, &span.name);
        let category = category(&self.categories, span.kind);
        let thread = self.thread(task, None);
        self.mark(thread, kind, &title, category, (span.begin, span.end), &numbers);
    }

    fn turn(&mut self, cpu: CpuId, _: usize, name: &str, begin: u64, end: u64) {
        if self.is_shown(begin, end) {
            let (thread, category) = (self.cpus[usize::from(cpu.0)], self.categories[1]);
            self.mark(thread, self.turn, name, category, (begin, end), &[]);
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

    fn named(&mut self, task: usize, _: &str, pid: Option<u32>) {
        self.thread(task, pid);
    }

    fn task(&mut self, task: usize, name: &str, pid: Option<u32>) {
        let thread = self.thread(task, pid);
        self.profile.set_thread_name(thread, name);
    }
}

/// The category of what a service of this kind executes.
fn category(categories: &[CategoryHandle; CATEGORIES.len()], kind: ServiceKind) -> CategoryHandle {
    let name = mode_of(kind);
    let at = CATEGORIES.iter().position(|(category, _)| *category == name);
    at.map_or(CategoryHandle::OTHER, |at| categories[at])
}

/// The stacks of a thread, which are made when they are first needed.
struct Stacks<'a> {
    profile: &'a mut Profile,
    categories: [CategoryHandle; CATEGORIES.len()],
    thread: ThreadHandle,
    samples: &'a CallSamples,
    known: HashMap<(ServiceId, NodeId), StackHandle>,
}

impl Stacks<'_> {
    /// The mode, the service, and the functions of a chain.
    fn stack(&mut self, service: ServiceId, node: NodeId) -> StackHandle {
        // Chains have hundreds of functions at most.
        let mut missing = Vec::new();
        let (mut at, mut stack) = (node, self.known.get(&(service, node)).copied());
        while stack.is_none() && at != ROOT {
            missing.push(at);
            at = self.samples.nodes[at.0 as usize].parent;
            stack = self.known.get(&(service, at)).copied();
        }
        let (kind, name) = &self.samples.services[service.0 as usize];
        let category = category(&self.categories, *kind);
        let mut stack = stack.unwrap_or_else(|| {
            let mode = self.frame(None, mode_of(*kind), category);
            let service_frame = self.frame(Some(mode), &service_title(*kind, name), category);
            self.known.insert((service, ROOT), service_frame);
            service_frame
        });
        for node in missing.into_iter().rev() {
            let function = self.samples.nodes[node.0 as usize].function;
            let name = &self.samples.functions[function as usize];
            stack = self.frame(Some(stack), name, category);
            self.known.insert((service, node), stack);
        }
        stack
    }

    fn frame(
        &mut self,
        caller: Option<StackHandle>,
        name: &str,
        category: CategoryHandle,
    ) -> StackHandle {
        let frame = Frame::Label(self.profile.intern_string(name));
        let flags = FrameFlags::empty();
        let info = FrameInfo { frame, category_pair: category.into(), flags };
        let frame = self.profile.intern_frame(self.thread, info);
        self.profile.intern_stack(self.thread, caller, frame)
    }
}

/// A marker with numbers or texts.
struct TrackMarker<'a> {
    kind: MarkerTypeHandle,
    name: StringHandle,
    category: CategoryHandle,
    numbers: &'a [f64],
    texts: Vec<StringHandle>,
}

impl Marker for TrackMarker<'_> {
    fn marker_type(&self, _: &mut Profile) -> MarkerTypeHandle {
        self.kind
    }

    fn name(&self, _: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _: &mut Profile) -> CategoryHandle {
        self.category
    }

    fn string_field_value(&self, field: u32) -> StringHandle {
        self.texts[field as usize]
    }

    fn number_field_value(&self, field: u32) -> f64 {
        self.numbers[field as usize]
    }
}

/// A kind of markers with these numbers. `has_graph`: the numbers are shown over time.
fn schema(
    profile: &mut Profile,
    name: &str,
    numbers: &[NumberField],
    has_graph: bool,
) -> MarkerTypeHandle {
    let fields = numbers.iter().map(|(key, label, format)| RuntimeSchemaMarkerField {
        key: (*key).to_owned(),
        label: (*label).to_owned(),
        format: format.clone(),
        flags: MarkerFieldFlags::empty(),
    });
    let graphs = numbers.iter().filter(|_| has_graph).map(|(key, ..)| RuntimeSchemaMarkerGraph {
        key: (*key).to_owned(),
        graph_type: MarkerGraphType::Bar,
        color: None,
    });
    profile.register_marker_type(RuntimeSchemaMarkerSchema {
        fields: fields.collect(),
        graphs: graphs.collect(),
        ..bare_schema(name)
    })
}

/// A kind of markers without fields.
fn bare_schema(name: &str) -> RuntimeSchemaMarkerSchema {
    RuntimeSchemaMarkerSchema {
        type_name: name.to_owned(),
        description: None,
        locations: MarkerLocations::MARKER_CHART.union(MarkerLocations::MARKER_TABLE),
        chart_label: Some("{marker.name}".to_owned()),
        tooltip_label: None,
        table_label: None,
        fields: Vec::new(),
        graphs: Vec::new(),
    }
}
