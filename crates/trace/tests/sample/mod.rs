//! A small recording with every kind of record, for the tests.

#![allow(dead_code, reason = "each test uses a part of this module")]

use kernlane_trace::{
    AccessSite, Chunk, CpuCount, CpuId, FrameUse, FrameUseChange, LoadedModule, Mapping,
    ModuleChange, ModuleId, ModuleSection, ObservedAccesses, PageKind, RecordingHeader,
    RecordingTotals, RecordingWriter, RunAddr, StreamEvent, Task, TaskId, TaskPointer, Translation,
    TranslationId,
};

pub(crate) fn header() -> RecordingHeader {
    RecordingHeader {
        build_id: "00aea92ddb40c47d63853847ca25891e6796c7b0".into(),
        workload: "net".into(),
        seed: 1,
        modules: true,
        conditions: vec![("qemu".into(), "10.0.2".into()), ("note".into(), "Grüße".into())],
        ..RecordingHeader::default()
    }
}

pub(crate) fn translation(id: u32, addr: u64, lengths: &[u8]) -> Translation {
    let bytes: u32 = lengths.iter().map(|&length| u32::from(length)).sum();
    Translation {
        id: TranslationId(id),
        addr: RunAddr(addr),
        lengths: lengths.into(),
        code: (0..bytes).map(|i| (i.wrapping_mul(37) ^ id) as u8).collect(),
    }
}

pub(crate) fn task(id: u32, pointer: u64, pid: Option<u32>, name: &[u8]) -> Task {
    let mut comm = [0; 16];
    comm[..name.len()].copy_from_slice(name);
    Task { id: TaskId(id), pointer: TaskPointer(pointer), pid, comm }
}

pub(crate) fn words(events: &[StreamEvent]) -> Vec<u32> {
    let mut words = Vec::new();
    events.iter().for_each(|event| event.append_to(&mut words));
    words
}

/// A load of a module with one section.
pub(crate) fn module(id: u32, name: &str, addr: u64) -> ModuleChange {
    ModuleChange::Loaded(LoadedModule {
        id: ModuleId(id),
        name: name.into(),
        build_id: "c0ffee".into(),
        large_pages: id == 1,
        sections: vec![ModuleSection { name: ".text".into(), addr: RunAddr(addr), size: 0x1000 }],
    })
}

/// The chunks of the recording without its clean end.
pub(crate) fn chunks() -> Vec<Chunk> {
    let executed = |id| StreamEvent::Executed(TranslationId(id));
    vec![
        Chunk::Tasks(vec![task(0, 0xffff_8880_0010_0000, Some(1), b"init")]),
        Chunk::Modules(vec![module(0, "veth", 0xffff_ffff_a000_0000)]),
        Chunk::Translations(vec![
            translation(0, 0x40_1000, &[1, 4, 2]),
            translation(1, 0xffff_ffff_8100_0040, &[5, 3, 15, 1, 2]),
        ]),
        Chunk::Stream(words(&[
            StreamEvent::Task(TaskId(0)),
            executed(0),
            executed(1),
            executed(0),
            StreamEvent::Marker(7),
            executed(1),
        ])),
        Chunk::Modules(vec![
            ModuleChange::Unloaded(ModuleId(0)),
            module(1, "loop", 0xffff_ffff_a000_0000),
        ]),
        Chunk::Translations(vec![translation(2, 0xffff_ffff_8100_0040, &[5, 3])]),
        Chunk::Tasks(vec![task(1, 0xffff_8880_0020_0000, None, b"exactly16bytes!!")]),
        Chunk::Stream(words(&[
            executed(2),
            StreamEvent::Left { translation: TranslationId(1), instructions: 3 },
            StreamEvent::Task(TaskId(1)),
            StreamEvent::Left { translation: TranslationId(0), instructions: 1 },
            StreamEvent::Clock(0),
            StreamEvent::Clock(StreamEvent::MOST_TICKS),
        ])),
    ]
}

/// The recording's bytes and totals.
pub(crate) fn bytes() -> (Vec<u8>, RecordingTotals) {
    let mut writer = RecordingWriter::new(Vec::new(), &header()).unwrap();
    for chunk in chunks() {
        match chunk {
            Chunk::Translations(translations) => writer.translations(&translations).unwrap(),
            Chunk::Tasks(tasks) => writer.tasks(&tasks).unwrap(),
            Chunk::Stream(words) => {
                writer.stream(&words).and_then(|()| writer.cut_stream()).unwrap()
            }
            Chunk::Modules(changes) => writer.modules(&changes).unwrap(),
            Chunk::End(_) => unreachable!("the sample has no clean end of its own"),
        }
    }
    writer.end().unwrap()
}

/// A recording of three CPUs: the events of [`several_cpus_events`].
pub(crate) fn several_cpus() -> (Vec<u8>, RecordingTotals) {
    let header = RecordingHeader { cpus: CpuCount::new(3).unwrap(), ..header() };
    let mut writer = RecordingWriter::new(Vec::new(), &header).unwrap();
    writer.translations(&[translation(0, 0x1000, &[1, 2])]).unwrap();
    writer.stream(&words(&several_cpus_events())).unwrap();
    writer.end().unwrap()
}

/// What happens in [`several_cpus`].
pub(crate) fn several_cpus_events() -> Vec<StreamEvent> {
    vec![
        StreamEvent::Executed(TranslationId(0)),
        StreamEvent::Cpu(CpuId(2)),
        StreamEvent::Executed(TranslationId(0)),
        StreamEvent::Cpu(CpuId(0)),
    ]
}

/// The words of a stream, and the accesses of its executions.
pub(crate) type StreamWithData = (Vec<u32>, ObservedAccesses);

fn observed(executions: &[&[(AccessSite, u64)]]) -> ObservedAccesses {
    let mut observed = ObservedAccesses::default();
    for accesses in executions {
        observed.starts.push(observed.addresses.len() as u32);
        observed.sites.extend(accesses.iter().map(|access| access.0));
        observed.addresses.extend(accesses.iter().map(|access| access.1));
    }
    observed
}

/// Streams with every kind of execution: regular, with other sites, with repeated accesses,
/// without accesses, and left midway.
pub(crate) fn data_streams() -> Vec<StreamWithData> {
    let (load, store, wide) =
        (AccessSite::new(0, false, 3), AccessSite::new(2, true, 2), AccessSite::new(1, false, 4));
    let stack = 0xff11_0000_0123_4ff8;
    let page = |page, frame, kind| Mapping { page, frame, kind };
    let executed = |id| StreamEvent::Executed(TranslationId(id));
    let left =
        |id, instructions| StreamEvent::Left { translation: TranslationId(id), instructions };
    let copied: Vec<_> = (0..300_u64)
        .flat_map(|i| [(load, 0x7000 + 8 * i), (store, 0xff11_0000_0000_8000 + 8 * i)])
        .collect();
    let filled: Vec<_> =
        (0..70_u64).map(|i| (store, 0xffff_ffff_ffff_ff00_u64.wrapping_add(4 * i))).collect();
    let mut first = observed(&[
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
    let used = |frame, frames, used| FrameUseChange { frame, frames, used };
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
        StreamEvent::Task(TaskId(0)),
        executed(0),
        executed(1),
        executed(0),
        StreamEvent::Marker(7),
        StreamEvent::Clock(0),
        left(0, 2),
        executed(1),
    ]);
    let second = observed(&[&copied, &[], &filled, &[(wide, 8)], &[]]);
    let words_of_second = words(&[executed(0), executed(2), executed(0), executed(1), left(1, 1)]);
    vec![(words_of_first, first), (words_of_second, second)]
}

/// The bytes and totals of the recording with data accesses.
pub(crate) fn data_bytes() -> (Vec<u8>, RecordingTotals) {
    let mut writer = RecordingWriter::with_data(Vec::new(), &header()).unwrap();
    for chunk in chunks() {
        match chunk {
            Chunk::Translations(translations) => writer.translations(&translations).unwrap(),
            Chunk::Tasks(tasks) => writer.tasks(&tasks).unwrap(),
            Chunk::Modules(changes) => writer.modules(&changes).unwrap(),
            Chunk::Stream(_) | Chunk::End(_) => {}
        }
    }
    for (words, observed) in data_streams() {
        writer.stream_with_data(&words, &observed).and_then(|()| writer.cut_stream()).unwrap();
    }
    writer.end().unwrap()
}
