//! Tests of the formats of Perfetto and of the Firefox Profiler.

use crate::firefox::ProfileTrack;
use crate::folded;
use crate::perfetto::{Trace, TracePacket, TracePackets};
use crate::tests::nested;
use prost::Message;
use serde_json::Value;
use services::examples::{ExampleRun, at, halted, kernel};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use trace::RecordingReader;

fn conditions() -> [(&'static str, String); 1] {
    [("workload", "a\"b\n".to_owned())]
}

/// A machine with a cache so small that it misses.
fn small_machine() -> sim::MachineModel {
    let mut machine = machines::find("server-32k").unwrap().model;
    machine.l1i = sim::CacheGeometry::cache(128, 1, 64, sim::Replacement::Lru).unwrap();
    machine
}

/// The profile of a run for the Firefox Profiler.
fn profile(run: &ExampleRun, machines: &[sim::MachineModel], window: Range<u64>) -> Value {
    let ((symbols, binding), bytes) = (kernel(), run.recording());
    let reader = RecordingReader::new(&bytes[..]).unwrap();
    let track = ProfileTrack::new(&conditions(), window.clone(), reader.header().cpus);
    let (_, track, samples) = services::call_samples::attribute_with_samples(
        reader, &symbols, &binding, machines, window, track,
    )
    .unwrap();
    let (profile, events) = track.finish(&samples);
    let json = serde_json::to_value(&profile).unwrap();
    let lengths = threads(&json).iter().map(|thread| {
        thread["samples"]["length"].as_u64().unwrap()
            + thread["markers"]["length"].as_u64().unwrap()
    });
    assert_eq!(lengths.sum::<u64>(), events);
    json
}

fn threads(profile: &Value) -> &Vec<Value> {
    profile["threads"].as_array().unwrap()
}

/// The text of an index in a column.
fn text<'a>(profile: &'a Value, thread: &'a Value, index: &Value) -> &'a str {
    let strings = &profile["shared"]["stringArray"];
    let strings = if strings.is_array() { strings } else { &thread["stringArray"] };
    strings[index.as_u64().unwrap() as usize].as_str().unwrap()
}

/// The samples of a thread: time in nanoseconds, frames from the outermost, weight.
fn samples(profile: &Value, thread: &Value) -> Vec<(u64, String, u64)> {
    let tables = if thread["stackTable"].is_object() { thread } else { &profile["shared"] };
    let [stacks, frames, funcs] = ["stackTable", "frameTable", "funcTable"].map(|it| &tables[it]);
    let of = &thread["samples"];
    let column = |name: &str| of[name].as_array().unwrap();
    let mut time = 0.0;
    let samples = column("stack").iter().zip(column("weight")).zip(column("timeDeltas"));
    let samples = samples.map(|((stack, weight), delta)| {
        time += delta.as_f64().unwrap();
        let (mut names, mut at) = (Vec::new(), stack.as_u64());
        while let Some(stack) = at {
            let frame = stacks["frame"][stack as usize].as_u64().unwrap() as usize;
            let func = frames["func"][frame].as_u64().unwrap() as usize;
            names.push(text(profile, thread, &funcs["name"][func]).to_owned());
            at = stacks["prefix"][stack as usize].as_u64();
        }
        names.reverse();
        ((time * 1e6).round() as u64, names.join(";"), weight.as_u64().unwrap())
    });
    samples.collect()
}

/// The markers of a thread: name, begin and end in nanoseconds, and the data.
fn markers<'a>(profile: &'a Value, thread: &'a Value) -> Vec<(&'a str, u64, u64, &'a Value)> {
    let of = &thread["markers"];
    let nanoseconds = |time: &Value| (time.as_f64().unwrap_or(0.0) * 1e6).round() as u64;
    let marker = |at: usize| {
        let name = text(profile, thread, &of["name"][at]);
        let [begin, end] = ["startTime", "endTime"].map(|it| nanoseconds(&of[it][at]));
        (name, begin, end, &of["data"][at])
    };
    (0..of["length"].as_u64().unwrap() as usize).map(marker).collect()
}

fn named<'a>(profile: &'a Value, name: &str) -> &'a Value {
    let found = threads(profile).iter().find(|thread| thread["name"] == name);
    found.unwrap_or_else(|| panic!("no thread {name}"))
}

#[test]
fn the_samples_of_firefox_are_the_folded_stacks() {
    let run = nested();
    let json = profile(&run, &[], 0..u64::MAX);
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for thread in threads(&json) {
        let samples = samples(&json, thread);
        assert!(samples.is_sorted_by_key(|(time, ..)| *time));
        samples
            .into_iter()
            .for_each(|(_, stack, weight)| *lines.entry(stack).or_default() += weight);
    }
    let lines: String = lines.iter().map(|(stack, sum)| format!("{stack} {sum}\n")).collect();
    assert_eq!(lines, folded::folded(&run.calls()));
    // User mode, then the system call, in the order in which they executed.
    let sh = samples(&json, named(&json, "sh"));
    assert_eq!(sh[0], (0, "user;user sh".to_owned(), 10));
    assert_eq!(sh[1], (10, "kernel;system call read;entry_SYSCALL_64".to_owned(), 2));
    assert_eq!(sh.last().unwrap(), &(48, "user;user sh".to_owned(), 7));
    let part = profile(&run, &[], 10..12);
    let in_part: u64 = samples(&part, named(&part, "sh")).iter().map(|(.., weight)| weight).sum();
    assert_eq!(in_part, 2, "the first two instructions of the system call");
}

#[test]
fn the_markers_of_firefox_are_the_invocations() {
    let (run, machine) = (nested(), small_machine());
    let books = run.books_on(std::slice::from_ref(&machine));
    let json = profile(&run, &[machine], 0..u64::MAX);
    let sh = markers(&json, named(&json, "sh"));
    let sum = |wanted: &str, key: &str| -> u64 {
        let found = sh.iter().filter(|(name, ..)| *name == wanted);
        found.map(|(.., data)| data[key].as_f64().unwrap() as u64).sum()
    };
    for account in books.ledger.accounts.iter().filter(|account| account.totals.calls > 0) {
        let title = folded::service_title(account.kind, &account.name);
        let of_service = sh.iter().filter(|(name, ..)| *name == title);
        assert_eq!(of_service.count() as u64, account.totals.calls, "{title}");
        assert_eq!(sum(&title, "instructions"), account.totals.instructions, "{title}");
        assert_eq!(sum(&title, "l1i"), account.totals.machines[0].l1i_misses, "{title}");
    }
    let cpu = markers(&json, named(&json, "CPU 0"));
    let workload = &cpu.iter().find(|(name, ..)| *name == "recording").unwrap().3["workload"];
    assert_eq!(text(&json, named(&json, "CPU 0"), workload), "a\"b\n");
    let turns = cpu.iter().filter(|(name, ..)| *name == "sh");
    assert_eq!(turns.map(|(_, begin, end, _)| end - begin).sum::<u64>(), books.instructions);
    let misses = cpu.iter().filter(|(name, ..)| *name == "L1I misses");
    let misses: u64 = misses.map(|(.., data)| data["misses"].as_f64().unwrap() as u64).sum();
    let accounts = books.ledger.accounts.iter();
    let counted = accounts.filter_map(|account| account.totals.machines.first());
    assert_eq!(misses, counted.map(|counts| counts.l1i_misses).sum::<u64>());
    assert!(misses > 0);
}

#[test]
fn samples_after_a_halt_have_the_times_of_the_guests_clock() {
    let json = profile(&halted(), &[], 0..u64::MAX);
    let sh = samples(&json, named(&json, "sh"));
    assert_eq!(sh.last().unwrap().0, 1046, "user mode at the end: {sh:?}");
    let idle = samples(&json, named(&json, "swapper/0"));
    let tick = idle.iter().find(|(_, stack, _)| stack.contains("timer_interrupt")).unwrap();
    assert_eq!(tick.0, 1018);
}

/// The packets of a run for Perfetto.
fn packets(run: &ExampleRun, machines: &[sim::MachineModel]) -> Vec<TracePacket> {
    let ((symbols, binding), bytes, mut out) = (kernel(), run.recording(), Vec::new());
    let reader = RecordingReader::new(&bytes[..]).unwrap();
    let cpus = reader.header().cpus;
    let track = TracePackets::new(&mut out, &conditions(), 0..u64::MAX, cpus, !machines.is_empty());
    let (_, track) =
        services::attribute_in_time(reader, &symbols, &binding, machines, track).unwrap();
    track.finish().unwrap();
    Trace::decode(&out[..]).unwrap().packet
}

/// An event: its track, name, time, and values.
#[derive(Debug)]
struct Event {
    kind: i32,
    track: String,
    name: String,
    time: u64,
    values: HashMap<String, u64>,
    counter: Option<i64>,
    flows: Vec<u64>,
    ends: Vec<u64>,
}

/// The events of packets. Every name and every track stands before its first use.
fn events(packets: &[TracePacket]) -> Vec<Event> {
    let (mut names, mut keys, mut tracks) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut events = Vec::new();
    for packet in packets {
        if let Some(data) = &packet.interned_data {
            let text = |text: &crate::perfetto::InternedText| (text.iid, text.name.clone());
            names.extend(data.event_names.iter().map(text));
            keys.extend(data.debug_annotation_names.iter().map(text));
        }
        if let Some(track) = &packet.track_descriptor {
            let thread = track.thread.as_ref().map(|thread| thread.thread_name.clone());
            tracks.insert(track.uuid, thread.unwrap_or_else(|| track.name.clone()));
        }
        let Some(event) = &packet.track_event else { continue };
        let values = event.debug_annotations.iter();
        let values = values.filter_map(|it| Some((keys[&it.name_iid].clone(), it.uint_value?)));
        events.push(Event {
            kind: event.r#type,
            track: tracks[&event.track_uuid].clone(),
            name: names.get(&event.name_iid).cloned().unwrap_or_default(),
            time: packet.timestamp.expect("a time"),
            values: values.collect(),
            counter: event.counter_value,
            flows: event.flow_ids.clone(),
            ends: event.terminating_flow_ids.clone(),
        });
    }
    events
}

#[test]
fn perfetto_sums_equal_the_services() {
    let (run, machine) = (nested(), small_machine());
    let books = run.books_on(std::slice::from_ref(&machine));
    let events = events(&packets(&run, &[machine]));
    let begins = || events.iter().filter(|event| event.kind == 1 && event.track == "sh");
    for account in books.ledger.accounts.iter().filter(|account| account.totals.calls > 0) {
        let title = folded::service_title(account.kind, &account.name);
        let own = begins().filter(|event| event.name == title);
        let sum = |key: &str| own.clone().map(|event| event.values[key]).sum::<u64>();
        assert_eq!(own.clone().count() as u64, account.totals.calls, "{title}");
        assert_eq!(sum("instructions"), account.totals.instructions, "{title}");
        assert_eq!(sum("l1i_misses"), account.totals.machines[0].l1i_misses, "{title}");
    }
    let ends = events.iter().filter(|event| event.kind == 2 && event.track == "sh");
    assert_eq!(ends.count(), begins().count());
    let counted = |name: &str| -> i64 {
        events.iter().filter(|event| event.track == name).filter_map(|event| event.counter).sum()
    };
    assert_eq!(counted("user instructions"), 17);
    assert_eq!(counted("kernel instructions"), books.instructions as i64 - 17);
    let accounts = books.ledger.accounts.iter();
    let misses = accounts.filter_map(|account| account.totals.machines.first());
    assert_eq!(counted("L1I misses"), misses.map(|it| it.l1i_misses as i64).sum::<i64>());
    assert!(counted("L1I misses") > 0 && !events.iter().any(|event| event.name == "idle"));
}

#[test]
fn perfetto_flows_lead_from_a_wakeup_to_the_next_turn() {
    let events = events(&packets(&halted(), &[]));
    let wake = events.iter().find(|event| event.name == "wake").unwrap();
    // The timer's interrupt wakes `sh`, behind the halt.
    assert_eq!((wake.kind, &*wake.track, wake.time), (3, "swapper/0", 1022));
    assert_eq!((wake.values["pid"], wake.flows.len()), (1, 1));
    assert_eq!(wake.values.len(), 1, "a number: the pid");
    let turn = events.iter().find(|event| event.ends == wake.flows).unwrap();
    assert_eq!((&*turn.track, &*turn.name, turn.time), ("CPU 0", "sh", 1030));
    assert_eq!(turn.values["pid"], 1);
    assert_eq!(events.iter().filter(|event| !event.ends.is_empty()).count(), 1);
}

#[test]
fn perfetto_shows_each_cpu_with_its_turns() {
    let mut run = ExampleRun::new();
    run.user(4).cpu(1).switch(2, "cat").user(3).cpu(0).user(5).enter_read();
    run.cpu(1).user(6).cpu(0).plain(at("__x64_sys_read"), 2).leave_read().user(1);
    let events = events(&packets(&run, &[]));
    let turns: Vec<(&str, &str, u64)> = events
        .iter()
        .filter(|event| event.kind == 1 && event.track.starts_with("CPU"))
        .map(|event| (&*event.track, &*event.name, event.time))
        .collect();
    let expected = [
        ("CPU 0", "sh", 0),
        ("CPU 1", "cat", 4),
        ("CPU 0", "sh", 7),
        ("CPU 1", "cat", 17),
        ("CPU 0", "sh", 23),
    ];
    assert_eq!(turns, expected);
}
