//! A reader of a part of a recording gives what the whole recording has there: executions,
//! accesses, and what holds when the part begins.

mod sample;

use kernlane_trace::{
    AccessSite, Chunk, CpuCount, CpuId, Mapping, ObservedAccesses, PageKind, RecordingHeader,
    RecordingReader, RecordingTotals, RecordingWriter, StreamEvent, TaskId, TranslationId, events,
};
use std::collections::BTreeMap;

/// An execution, with all that a reader knows about it.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    cpu: CpuId,
    task: Option<TaskId>,
    event: StreamEvent,
    /// Site, address and, where it is known, the frame that the address lies in.
    accesses: Vec<(AccessSite, u64, Option<u64>)>,
    /// The use of each frame that was named, as text.
    uses: BTreeMap<u64, String>,
}

#[derive(Default)]
struct Reading {
    seen: Vec<Seen>,
    others: Vec<StreamEvent>,
    totals: Option<RecordingTotals>,
}

fn read(mut reader: RecordingReader<&[u8]>) -> Reading {
    let mut reading = Reading::default();
    let mut cpu = CpuId(0);
    let (mut tasks, mut pages) = (BTreeMap::new(), BTreeMap::<(CpuId, u64), u64>::new());
    let mut uses = BTreeMap::new();
    while let Some(chunk) = reader.next_chunk().unwrap() {
        let words = match chunk {
            Chunk::Stream(words) => words,
            Chunk::End(totals) => {
                reading.totals = Some(totals);
                continue;
            }
            Chunk::Translations(_) | Chunk::Tasks(_) | Chunk::Modules(_) => continue,
        };
        let (accesses, patterns) = reader.accesses().unwrap();
        let mut walk = accesses.walk(patterns);
        let mut mappings = accesses.mappings.iter().peekable();
        let mut changes = accesses.uses.iter().peekable();
        let mut execution = 0;
        for event in events(&words) {
            match event {
                StreamEvent::Cpu(next) => cpu = next,
                StreamEvent::Task(id) => drop(tasks.insert(cpu, id)),
                _ if event.execution().is_none() => reading.others.push(event),
                _ => {
                    while let Some((_, change)) = changes.next_if(|it| it.0 <= execution) {
                        uses.insert(change.frame, format!("{} {:?}", change.frames, change.used));
                    }
                    execution += 1;
                    let (sites, first) = walk.event(event);
                    let mut of_execution = Vec::new();
                    for (at, &site) in (first..).zip(sites) {
                        while let Some((_, it)) = mappings.next_if(|it| it.0 as usize <= at) {
                            pages.insert((cpu, it.page), it.frame);
                        }
                        let addr = accesses.addresses[at];
                        let frame = pages.get(&(cpu, addr >> 12)).copied();
                        of_execution.push((site, addr, frame));
                    }
                    let task = tasks.get(&cpu).copied();
                    let uses = uses.clone();
                    reading.seen.push(Seen { cpu, task, event, accesses: of_execution, uses });
                }
            }
        }
        pages.extend(mappings.map(|(_, it)| ((cpu, it.page), it.frame)));
    }
    reading
}

/// Two CPUs. Each maps the same page to a frame of its own, and uses it in a later turn.
fn two_cpus() -> Vec<u8> {
    let header = RecordingHeader { cpus: CpuCount::new(2).unwrap(), ..sample::header() };
    let mut writer = RecordingWriter::with_data(Vec::new(), &header).unwrap();
    writer.translations(&[sample::translation(0, 0x1000, &[1, 2])]).unwrap();
    let executed = StreamEvent::Executed(TranslationId(0));
    let load = AccessSite::new(0, false, 3);
    for turn in 0..3_u64 {
        let words = sample::words(&[
            StreamEvent::Cpu(CpuId(1)),
            executed,
            executed,
            StreamEvent::Cpu(CpuId(0)),
            executed,
        ]);
        let mut observed = ObservedAccesses {
            starts: vec![0, 1, 2],
            addresses: vec![0x5000, 0x5008, 0x5010],
            sites: vec![load; 3],
            ..ObservedAccesses::default()
        };
        let page = |frame| Mapping { page: 5, frame, kind: PageKind::Small };
        if turn == 0 {
            observed.mappings = vec![(1, page(0x111)), (2, page(0x100))];
        }
        writer.stream_with_data(&words, &observed).and_then(|()| writer.cut_stream()).unwrap();
    }
    writer.end().unwrap().0
}

#[test]
fn the_parts_of_a_recording_have_together_what_the_whole_has() {
    for bytes in [sample::data_bytes().0, two_cpus()] {
        let open = || RecordingReader::new(&bytes[..]).unwrap();
        let whole = read(open());
        let all = whole.totals.unwrap();
        for at in 0..=all.instructions() {
            let (before, after) = (read(open().of_part(0, at)), read(open().of_part(at, u64::MAX)));
            let both = [&before.seen[..], &after.seen].concat();
            assert_eq!(both, whole.seen, "cut at instruction {at}");
            let of = |totals: fn(&RecordingTotals) -> u64| {
                let parts = [&before, &after].map(|it| totals(&it.totals.unwrap()));
                (parts[0] + parts[1], totals(&all))
            };
            for (parts, all) in [
                of(RecordingTotals::instructions),
                of(|it| it.kernel_instructions),
                of(|it| it.executions),
                of(|it| it.data.unwrap().loads),
                of(|it| it.data.unwrap().stores),
            ] {
                assert_eq!(parts, all, "cut at instruction {at}");
            }
        }
    }
}

#[test]
fn what_happens_outside_of_a_part_does_not_belong_to_it() {
    let (bytes, totals) = sample::data_bytes();
    let open = || RecordingReader::new(&bytes[..]).unwrap();
    assert_eq!(read(open().of_part(0, u64::MAX)).others, read(open()).others);
    assert!(read(open().of_part(totals.instructions(), u64::MAX)).others.is_empty());
    assert!(read(open().of_part(0, 1)).others.is_empty());
    // The marker and the reading of the clock come before the execution that begins behind 11
    // instructions (3 + 5 + 3).
    assert_eq!(read(open().of_part(11, 12)).others.len(), 2);
    assert_eq!(read(open().of_part(11, 12)).seen.len(), 1);
}
