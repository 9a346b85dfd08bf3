//! A recording with data accesses, by hand: every counter is known.

use super::slices::sums;
use crate::{Replay, ReplayLayout, ReplayTrial, Replayed, SimulationScope, SliceCounts, replay};
use execution::slices::SliceStarts;
use execution::walk::walk;
use sim::{
    CacheDescription, CacheGeometry, Latencies, MachineCounters, MachineModel, MemoryDescription,
    MissCounts, PerMode, Replacement, SimpleModel,
};
use trace::{
    AccessSite, Mapping, ObservedAccesses, PageKind, RecordingHeader, RecordingReader,
    RecordingWriter, RunAddr, StreamEvent, Task, TaskId, TaskPointer, Translation, TranslationId,
};

/// An L1D of two lines in one set, an L2 of four in one set, a TLB of two pages.
fn machine() -> MachineModel {
    let cache = |size, ways| CacheDescription::new(size, ways, 64, Replacement::Lru).unwrap();
    let l1i = CacheGeometry::cache(1024, 1, 64, Replacement::Lru).unwrap();
    let time = SimpleModel::new(10.0, 0.3, 0.05).unwrap();
    MachineModel {
        memory: Some(
            MemoryDescription::new(
                cache(128, 2),
                Some(cache(256, 4)),
                None,
                Some(CacheGeometry::tlb(2, 2, Replacement::Lru).unwrap()),
                Latencies::new(10.0, 100.0, 100.0, 5.0).unwrap(),
            )
            .unwrap(),
        ),
        ..MachineModel::l1i_only("by-hand", l1i, 64, time)
    }
}

const KERNEL: u64 = 0xffff_ffff_8100_0000;
const USER: u64 = 0x40_0040;

fn translation(id: u32, addr: u64) -> Translation {
    Translation {
        id: TranslationId(id),
        addr: RunAddr(addr),
        lengths: [1, 1].into(),
        code: [0x90, 0x90].into(),
    }
}

fn task(id: u32, pid: u32) -> Task {
    Task { id: TaskId(id), pointer: TaskPointer(u64::from(pid)), pid: Some(pid), comm: [0; 16] }
}

/// Replays events. Each event has the addresses that its first instruction loads (8 bytes each).
fn replayed(executions: &[(StreamEvent, &[u64])], mappings: Vec<(u32, Mapping)>) -> Replayed {
    let recording = recorded(executions, mappings);
    replay(RecordingReader::new(&recording[..]).unwrap(), &[ReplayLayout::original()], &[machine()])
        .unwrap()
}

fn recorded(executions: &[(StreamEvent, &[u64])], mappings: Vec<(u32, Mapping)>) -> Vec<u8> {
    let mut writer = RecordingWriter::with_data(Vec::new(), &RecordingHeader::default()).unwrap();
    writer.tasks(&[task(0, 7), task(1, 8)]).unwrap();
    writer.translations(&[translation(0, KERNEL), translation(1, USER)]).unwrap();
    let (mut words, mut seen) = (Vec::new(), ObservedAccesses::default());
    seen.mappings = mappings;
    seen.physical = vec![
        (TranslationId(0), [Some(0x100_0000), None]),
        (TranslationId(1), [Some(0x5040), None]),
    ];
    for (event, addresses) in executions {
        event.append_to(&mut words);
        if let StreamEvent::Executed(_) | StreamEvent::Left { .. } = event {
            seen.starts.push(seen.addresses.len() as u32);
            seen.addresses.extend_from_slice(addresses);
            seen.sites.extend(addresses.iter().map(|_| AccessSite::new(0, false, 3)));
        }
    }
    writer.stream_with_data(&words, &seen).unwrap();
    writer.end().unwrap().0
}

fn misses(cold: u64, own: u64, other: u64) -> MissCounts {
    MissCounts { cold, own, other }
}

fn page(addr: u64, frame: u64, kind: PageKind) -> Mapping {
    Mapping { page: addr >> 12, frame, kind }
}

const KERNEL_RAN: StreamEvent = StreamEvent::Executed(TranslationId(0));
const USER_RAN: StreamEvent = StreamEvent::Executed(TranslationId(1));

#[test]
fn misses_have_their_cause_and_level_and_mode() {
    let (first, second) = (StreamEvent::Task(TaskId(0)), StreamEvent::Task(TaskId(1)));
    let replayed = replayed(
        &[
            (first, &[]),
            (USER_RAN, &[0x1000, 0x1008, 0x1040]), // cold, the same line, cold
            (KERNEL_RAN, &[0x1080]),               // cold, evicts 1000
            (USER_RAN, &[0x1040, 0x1000]), // there; other: the kernel evicted it; evicts 1080
            (second, &[]),
            (USER_RAN, &[0x1080]), // other: the first process evicted it; evicts 1040
            (USER_RAN, &[0x1040]), // self: this process evicted it; evicts 1000
            (KERNEL_RAN, &[]),
            // Across two lines: 1000 misses by itself and evicts 1080; 1040 is there.
            (USER_RAN, &[0x103c]),
        ],
        vec![(0, page(0x1000, 9, PageKind::Small))],
    );
    let counters = replayed.layouts[0].machines[0].memory.unwrap();
    let expected = MachineCounters {
        instructions: 10,
        loads: 8,
        l1i: misses(1, 0, 0),
        l1d: misses(2, 2, 2),
        // The L2 has four lines. The code of both and 1000, 1040, 1080 do not fit.
        l2i: misses(1, 0, 0),
        ..MachineCounters::default()
    };
    let (user, kernel) = (counters.user, counters.kernel);
    assert_eq!(
        (user.instructions, user.loads, user.stores),
        (expected.instructions, expected.loads, 0)
    );
    assert_eq!((user.l1i, user.l1d, user.l2i), (expected.l1i, expected.l1d, expected.l2i));
    assert_eq!((kernel.instructions, kernel.loads, kernel.l1d), (4, 1, misses(1, 0, 0)));
    assert_eq!(user.l2d.cold + kernel.l2d.cold, 3);
    assert_eq!((user.dtlb, kernel.dtlb), (1, 0), "one page, mapped once");
    let at: Vec<_> = replayed.layouts[0].machines[0]
        .data_misses_at
        .iter()
        .map(|(at, misses)| (at.0, misses.l1d))
        .collect();
    assert_eq!(at, [(USER, 6), (KERNEL, 1)]);
}

#[test]
fn a_page_that_is_mapped_elsewhere_is_elsewhere() {
    let replayed = replayed(
        &[(USER_RAN, &[0x1000, 0x2000, 0x1000, 0x1000])],
        vec![
            (0, page(0x1000, 9, PageKind::Small)),
            (1, page(0x2000, 9, PageKind::Small)),
            (3, page(0x1000, 10, PageKind::Small)),
        ],
    );
    let user = replayed.layouts[0].machines[0].memory.unwrap().user;
    // Two pages of one frame are one line and two TLB entries. The remapped page adds one line and
    // one TLB entry.
    assert_eq!((user.l1d, user.dtlb), (misses(2, 0, 0), 3));
}

#[test]
fn large_pages_are_one_entry_and_devices_are_not_cached() {
    let base = 0xff11_0000_0020_0000_u64;
    let replayed = replayed(
        &[(KERNEL_RAN, &[base, base + 0x1000, base + 0x1f_f000, 0x9000, 0x9040])],
        vec![
            (0, page(base, 0x200, PageKind::Large)),
            (1, page(base + 0x1000, 0x201, PageKind::Large)),
            (2, page(base + 0x1f_f000, 0x3ff, PageKind::Large)),
            (3, page(0x9000, 0xfee00, PageKind::Device)),
        ],
    );
    let kernel = replayed.layouts[0].machines[0].memory.unwrap().kernel;
    assert_eq!((kernel.loads, kernel.l1d.total(), kernel.dtlb), (5, 3, 1));
}

#[test]
fn a_recording_without_data_has_no_such_counters() {
    let mut writer = RecordingWriter::new(Vec::new(), &RecordingHeader::default()).unwrap();
    writer.translations(&[translation(0, KERNEL)]).unwrap();
    writer.stream(&[0, 0]).unwrap();
    let recording = writer.end().unwrap().0;
    let replayed = replay(
        RecordingReader::new(&recording[..]).unwrap(),
        &[ReplayLayout::original()],
        &[machine()],
    )
    .unwrap();
    let counts = &replayed.layouts[0].machines[0];
    assert_eq!((counts.memory, counts.l1i.kernel), (None, misses(1, 0, 0)));
}

/// Two instructions an execution. The first slice has the first two executions, the second one the
/// other.
#[test]
fn slices_have_the_misses_of_their_executions() {
    let executions: [(StreamEvent, &[u64]); 4] = [
        (StreamEvent::Task(TaskId(0)), &[]),
        (USER_RAN, &[0x1000, 0x1008, 0x1040]),
        (KERNEL_RAN, &[0x1080]),
        (USER_RAN, &[0x1040, 0x1000]),
    ];
    let mappings = vec![(0, page(0x1000, 9, PageKind::Small))];
    let whole = replayed(&executions, mappings.clone());
    let recording = recorded(&executions, mappings);
    let (layout, machines) = (ReplayLayout::original(), [machine()]);
    let trials = [ReplayTrial::new(&layout, &machines, SimulationScope::Caches)];
    let mut replay = Replay::new(&trials).unwrap().in_slices(&SliceStarts(vec![4]));
    walk(RecordingReader::new(&recording[..]).unwrap(), &mut replay).unwrap();
    let found = replay.finish().unwrap();
    let (found, whole) = (&found.layouts[0].machines[0], &whole.layouts[0].machines[0]);
    assert_eq!((found.memory, &found.misses_at), (whole.memory, &whole.misses_at));
    let [first, second] = &found.slices[..] else { panic!("{:?}", found.slices) };
    let l1d = |slice: &SliceCounts| {
        let PerMode { kernel, user } = slice.memory.unwrap();
        [kernel.l1d, user.l1d]
    };
    assert_eq!(l1d(first), [misses(1, 0, 0), misses(2, 0, 0)]);
    assert_eq!(l1d(second), [misses(0, 0, 0), misses(0, 0, 1)]);
    assert_eq!(sums(&found.slices), (whole.l1i, whole.misses_at.clone()));
}
