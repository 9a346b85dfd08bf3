//! A small recording with every kind of record, for the tests.

#![allow(dead_code, reason = "each test uses its part")]

use kernlane_trace::{
    Chunk, Event, FrameUse, Header, Mapping, PageKind, RunAddr, SeenAccesses, Site, Task, TaskId,
    TaskPointer, Totals, Translation, TranslationId, UseChange, Writer,
};

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
    Task { id: TaskId(id), pointer: TaskPointer(pointer), pid, comm }
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
            Event::Left { translation: TranslationId(1), instructions: 3 },
            Event::Task(TaskId(1)),
            Event::Left { translation: TranslationId(0), instructions: 1 },
            Event::Clock(0),
            Event::Clock(Event::MOST_TICKS),
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
            Chunk::Stream(words) => {
                writer.stream(&words).and_then(|()| writer.cut_stream()).unwrap()
            }
            Chunk::End(_) => unreachable!("the sample has no clean end of its own"),
        }
    }
    writer.end().unwrap()
}

/// A stream's words and what was accessed meanwhile.
pub type WithData = (Vec<u32>, SeenAccesses);

fn seen(executions: &[&[(Site, u64)]]) -> SeenAccesses {
    let mut seen = SeenAccesses::default();
    for accesses in executions {
        seen.starts.push(seen.addresses.len() as u32);
        seen.sites.extend(accesses.iter().map(|access| access.0));
        seen.addresses.extend(accesses.iter().map(|access| access.1));
    }
    seen
}

/// Streams with every kind of access: usual ones, of other sites, repeated ones, none at all, of
/// code that was left.
pub fn data_streams() -> Vec<WithData> {
    let (load, store, wide) =
        (Site::new(0, false, 3), Site::new(2, true, 2), Site::new(1, false, 4));
    let stack = 0xff11_0000_0123_4ff8;
    let page = |page, frame, kind| Mapping { page, frame, kind };
    let executed = |id| Event::Executed(TranslationId(id));
    let left = |id, instructions| Event::Left { translation: TranslationId(id), instructions };
    let copied: Vec<_> = (0..300_u64)
        .flat_map(|i| [(load, 0x7000 + 8 * i), (store, 0xff11_0000_0000_8000 + 8 * i)])
        .collect();
    let filled: Vec<_> =
        (0..70_u64).map(|i| (store, 0xffff_ffff_ffff_ff00_u64.wrapping_add(4 * i))).collect();
    let mut first = seen(&[
        &[(load, 0x40_2000), (store, stack)],
        &[(wide, 0x40_2ff8)],
        &[(load, 0x40_2008), (store, stack)],
        &[(load, 0x40_2010)],
        &[(wide, 0)],
    ]);
    first.mappings = vec![
        (0, page(0x402, 0x1234, PageKind::Small)),
        (1, page(stack >> 12, 0x77, PageKind::Large)),
        (2, page(0x403, 0xfee0_0000 >> 12, PageKind::Device)),
        (7, page(0xf_ffff_ffff_ffff, 0, PageKind::Memory)),
    ];
    let used = |frame, frames, used| UseChange { frame, frames, used };
    first.uses = vec![
        (0, used(0, 4000, FrameUse::Free)),
        (0, used(0x77, 1, FrameUse::Slab(0))),
        (2, used(0x78, 3, FrameUse::PartOf(0x77))),
        (4, used(0x1234, 1, FrameUse::Anonymous)),
    ];
    first.slab_caches = vec!["dentry".into()];
    first.physical = vec![
        (TranslationId(0), [Some(0x100_0000), None]),
        (TranslationId(1), [Some(0xfff), Some(0x5000)]),
    ];
    let words_of_first = words(&[
        Event::Task(TaskId(0)),
        executed(0),
        executed(1),
        executed(0),
        Event::Marker(7),
        Event::Clock(0),
        left(0, 2),
        executed(1),
    ]);
    let second = seen(&[&copied, &[], &filled, &[(wide, 8)], &[]]);
    let words_of_second = words(&[executed(0), executed(2), executed(0), executed(1), left(1, 1)]);
    vec![(words_of_first, first), (words_of_second, second)]
}

/// As `bytes`, with data accesses.
pub fn data_bytes() -> (Vec<u8>, Totals) {
    let mut writer = Writer::with_data(Vec::new(), &header()).unwrap();
    for chunk in chunks() {
        match chunk {
            Chunk::Translations(translations) => writer.translations(&translations).unwrap(),
            Chunk::Tasks(tasks) => writer.tasks(&tasks).unwrap(),
            Chunk::Stream(_) | Chunk::End(_) => {}
        }
    }
    for (words, seen) in data_streams() {
        writer.stream_with_data(&words, &seen).and_then(|()| writer.cut_stream()).unwrap();
    }
    writer.end().unwrap()
}
