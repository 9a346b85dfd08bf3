//! A small recording with every kind of record, for the tests.

use kernlane_trace::{Chunk, Event, Header, RunAddr, Task, TaskId, TaskPointer, Totals, Translation, TranslationId, Writer};

pub fn header() -> Header {
    Header {
        build_id: "00aea92ddb40c47d63853847ca25891e6796c7b0".into(),
        workload: "net".into(),
        seed: 1,
        conditions: vec![("qemu".into(), "10.0.2".into()), ("note".into(), "Grüße".into())],
    }
}

pub fn translation(id: u32, addr: u64, lengths: &[u8]) -> Translation {
    let bytes: u32 = lengths.iter().map(|&length| u32::from(length)).sum();
    Translation {
        id: TranslationId(id),
        addr: RunAddr(addr),
        lengths: lengths.into(),
        code: (0..bytes).map(|i| (i.wrapping_mul(37) ^ id) as u8).collect(),
    }
}

pub fn task(id: u32, pointer: u64, pid: Option<u32>, name: &[u8]) -> Task {
    let mut comm = [0; 16];
    comm[..name.len()].copy_from_slice(name);
    Task {
        id: TaskId(id),
        pointer: TaskPointer(pointer),
        pid,
        comm,
    }
}

pub fn words(events: &[Event]) -> Vec<u32> {
    let mut words = Vec::new();
    events.iter().for_each(|event| event.append_to(&mut words));
    words
}

/// The chunks of the recording without its clean end.
pub fn chunks() -> Vec<Chunk> {
    let executed = |id| Event::Executed(TranslationId(id));
    vec![
        Chunk::Tasks(vec![task(0, 0xffff_8880_0010_0000, Some(1), b"init")]),
        Chunk::Translations(vec![
            translation(0, 0x40_1000, &[1, 4, 2]),
            translation(1, 0xffff_ffff_8100_0040, &[5, 3, 15, 1, 2]),
        ]),
        Chunk::Stream(words(&[
            Event::Task(TaskId(0)),
            executed(0),
            executed(1),
            executed(0),
            Event::Marker(7),
            executed(1),
        ])),
        Chunk::Translations(vec![translation(2, 0xffff_ffff_8100_0040, &[5, 3])]),
        Chunk::Tasks(vec![task(1, 0xffff_8880_0020_0000, None, b"exactly16bytes!!")]),
        Chunk::Stream(words(&[
            executed(2),
            Event::Left {
                translation: TranslationId(1),
                instructions: 3,
            },
            Event::Task(TaskId(1)),
            Event::Left {
                translation: TranslationId(0),
                instructions: 1,
            },
        ])),
    ]
}

/// The recording's bytes and totals.
pub fn bytes() -> (Vec<u8>, Totals) {
    let mut writer = Writer::new(Vec::new(), &header()).unwrap();
    for chunk in chunks() {
        match chunk {
            Chunk::Translations(translations) => writer.translations(&translations).unwrap(),
            Chunk::Tasks(tasks) => writer.tasks(&tasks).unwrap(),
            Chunk::Stream(words) => writer.stream(&words).and_then(|()| writer.cut_stream()).unwrap(),
            Chunk::End(_) => unreachable!("the sample has no clean end of its own"),
        }
    }
    writer.end().unwrap()
}
