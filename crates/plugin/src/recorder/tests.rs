//! Translations and events, and the batches that they become.

use super::*;
use trace::events;

#[derive(Default)]
struct CollectingSink {
    batches: Vec<Batch>,
    limit: Option<usize>,
}

impl BatchSink for CollectingSink {
    fn send(&mut self, batch: Batch) -> Option<Batch> {
        self.batches.push(batch);
        (Some(self.batches.len()) != self.limit).then(Batch::default)
    }
}

fn recorder() -> Recorder<CollectingSink> {
    Recorder::new(CollectingSink::default())
}

fn finish(mut recorder: Recorder<CollectingSink>) -> (Vec<Batch>, u64) {
    let (sink, folded) = recorder.finish();
    (sink.unwrap().batches, folded)
}

fn all_events(batches: &[Batch]) -> Vec<StreamEvent> {
    batches.iter().flat_map(|batch| events(&batch.words)).collect()
}

const A: RunAddr = RunAddr(0xffff_ffff_8100_0000);

#[test]
fn translations_are_the_same_by_address_and_bytes() {
    let mut recorder = recorder();
    let ids = [
        recorder.define(A, &[1, 1], &[0x90, 0xc3], false, [None; 2]),
        recorder.define(A, &[1, 1], &[0x90, 0xc3], false, [None; 2]),
        recorder.define(A, &[1, 1], &[0xcc, 0xc3], false, [None; 2]),
        recorder.define(RunAddr(A.0 + 1), &[1, 1], &[0x90, 0xc3], false, [None; 2]),
        recorder.define(A, &[1], &[0x90], false, [None; 2]),
    ];
    assert_eq!(ids.map(|id| id.0), [0, 0, 1, 2, 3]);
    let (batches, _) = finish(recorder);
    let defined: Vec<_> =
        batches[0].translations.iter().map(|t| (t.id.0, t.addr.0, t.code.to_vec())).collect();
    let expected = [
        (0, A.0, vec![0x90, 0xc3]),
        (1, A.0, vec![0xcc, 0xc3]),
        (2, A.0 + 1, vec![0x90, 0xc3]),
        (3, A.0, vec![0x90]),
    ];
    assert_eq!(defined, expected);
}

#[test]
fn code_of_another_module_at_the_same_address_is_another_translation() {
    let mut recorder = recorder();
    let change =
        |change| ObservedChange { change, code: std::iter::once(A.0..A.0 + 0x10).collect() };
    let behind = RunAddr(A.0 + 0x10);
    let define = |recorder: &mut Recorder<CollectingSink>| {
        [A, behind].map(|at| recorder.define(at, &[1], &[0xc3], false, [None; 2]).0)
    };
    assert_eq!(define(&mut recorder), [0, 1]);
    assert_eq!(define(&mut recorder), [0, 1]);
    recorder.modules_change(change(ModuleChange::Unloaded(trace::ModuleId(0))));
    assert_eq!(define(&mut recorder), [2, 1], "code elsewhere stays known");
    let (batches, _) = finish(recorder);
    let expected = [(2, ModuleChange::Unloaded(trace::ModuleId(0)))];
    assert_eq!(batches[0].modules, expected);
    assert_eq!(batches[0].translations.len(), 3);
}

#[test]
fn events_come_before_the_translation_in_which_they_happened() {
    let mut recorder = recorder();
    let id = recorder.define(A, &[1, 1, 1], &[0x90; 3], false, [None; 2]);
    recorder.switch(TaskPointer(1), None, [0; 16]);
    recorder.executed(id);
    recorder.marker(9);
    recorder.switch(TaskPointer(2), Some(7), *b"sh\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    recorder.left(2);
    recorder.executed(id);
    recorder.switch(TaskPointer(1), None, [0; 16]);
    let (batches, _) = finish(recorder);
    let expected = [
        StreamEvent::Task(TaskId(0)),
        StreamEvent::Marker(9),
        StreamEvent::Task(TaskId(1)),
        StreamEvent::Left { translation: id, instructions: 2 },
        StreamEvent::Task(TaskId(0)),
        StreamEvent::Executed(id),
    ];
    assert_eq!(all_events(&batches), expected);
    assert_eq!(
        batches[0].tasks.iter().map(|task| (task.pointer.0, task.pid)).collect::<Vec<_>>(),
        [(1, None), (2, Some(7))]
    );
}

#[test]
fn a_reading_of_the_clock_comes_after_the_code_that_read_it() {
    let mut recorder = recorder();
    let reads = recorder.define(A, &[2], &[0x0f, 0x31], false, [None; 2]);
    let next = recorder.define(RunAddr(A.0 + 2), &[1], &[0x90], false, [None; 2]);
    recorder.reads_clock(reads);
    recorder.executed(reads);
    assert!(!recorder.is_behind_reading(), "the current execution is the reading");
    recorder.executed(next);
    assert!(recorder.is_behind_reading());
    recorder.clock(2 * u64::from(StreamEvent::MOST_TICKS) + 5);
    recorder.executed(next);
    assert!(!recorder.is_behind_reading(), "another execution came before");
    recorder.executed(reads);
    recorder.left(1);
    recorder.executed(next);
    assert!(!recorder.is_behind_reading(), "the reading was left, and is repeated later");
    let (batches, _) = finish(recorder);
    let most = StreamEvent::Clock(StreamEvent::MOST_TICKS);
    let expected = [
        StreamEvent::Executed(reads),
        most,
        most,
        StreamEvent::Clock(5),
        StreamEvent::Executed(next),
    ];
    assert_eq!(all_events(&batches)[..5], expected);
}

#[test]
fn another_cpu_stands_before_its_first_translation() {
    let mut recorder = recorder();
    let first = recorder.define(A, &[1, 1], &[0x90, 0x90], false, [None; 2]);
    let repeat = recorder.define(RunAddr(A.0 + 3), &[3], &[0xf3, 0x48, 0xab], true, [None; 2]);
    recorder.cpu(CpuId(1));
    recorder.switch(TaskPointer(1), None, [0; 16]);
    recorder.executed_repeat(repeat);
    recorder.executed_repeat(repeat);
    // The other CPU comes, and this one goes on with the repetition: it is reached again.
    recorder.cpu(CpuId(0));
    recorder.executed(first);
    recorder.left(1);
    recorder.cpu(CpuId(1));
    recorder.executed_repeat(repeat);
    let (batches, folded) = finish(recorder);
    let expected = [
        StreamEvent::Cpu(CpuId(1)),
        StreamEvent::Task(TaskId(0)),
        StreamEvent::Executed(repeat),
        StreamEvent::Cpu(CpuId(0)),
        StreamEvent::Left { translation: first, instructions: 1 },
        StreamEvent::Cpu(CpuId(1)),
        StreamEvent::Executed(repeat),
    ];
    assert_eq!((all_events(&batches), folded), (expected.to_vec(), 1));
}

#[test]
fn a_task_that_changed_its_name_is_another() {
    let mut recorder = recorder();
    for (pointer, pid, name) in
        [(1, 5, b'a'), (1, 5, b'b'), (1, 6, b'b'), (2, 5, b'a'), (1, 5, b'a')]
    {
        recorder.switch(TaskPointer(pointer), Some(pid), [name; 16]);
    }
    let (batches, _) = finish(recorder);
    assert_eq!(all_events(&batches), [0, 1, 2, 3, 0].map(|id| StreamEvent::Task(TaskId(id))));
}

#[test]
fn a_repeated_string_instruction_is_reached_once() {
    let mut recorder = recorder();
    // mov rcx, rax; rep stosq. Then its rest alone, as QEMU translates it under icount.
    let first = recorder.define(A, &[3, 3], &[0x48, 0x89, 0xc1, 0xf3, 0x48, 0xab], true, [None; 2]);
    let again = recorder.define(RunAddr(A.0 + 3), &[3], &[0xf3, 0x48, 0xab], true, [None; 2]);
    let other = recorder.define(RunAddr(A.0 + 0x100), &[1], &[0xc3], false, [None; 2]);
    let elsewhere =
        recorder.define(RunAddr(A.0 + 0x200), &[3], &[0xf3, 0x48, 0xab], true, [None; 2]);
    recorder.executed(first);
    for _ in 0..3 {
        recorder.executed_repeat(again);
        assert!(recorder.only_continues());
    }
    // An interrupt between two repetitions: the instruction is reached again afterwards.
    recorder.executed(other);
    recorder.executed_repeat(again);
    assert!(!recorder.only_continues());
    recorder.executed_repeat(again);
    assert!(recorder.only_continues());
    // Another repeated instruction behind it does not continue it.
    recorder.executed_repeat(elsewhere);
    recorder.executed_repeat(elsewhere);
    recorder.executed(first);
    recorder.left(1);
    assert!(!recorder.only_continues());
    recorder.executed(again);
    let (batches, folded) = finish(recorder);
    let expected = [
        StreamEvent::Executed(first),
        StreamEvent::Executed(other),
        StreamEvent::Executed(again),
        StreamEvent::Executed(elsewhere),
        StreamEvent::Left { translation: first, instructions: 1 },
        StreamEvent::Executed(again),
    ];
    assert_eq!(all_events(&batches), expected);
    assert_eq!(folded, 5);
}

#[test]
fn the_end_counts_what_was_reached_of_the_last_translation() {
    let mut recorder = recorder();
    let id = recorder.define(A, &[1, 1, 1], &[0x90; 3], false, [None; 2]);
    recorder.executed(id);
    recorder.end_within(2);
    recorder.executed(id);
    recorder.end_within(3);
    let (batches, _) = finish(recorder);
    assert_eq!(
        all_events(&batches),
        [StreamEvent::Left { translation: id, instructions: 2 }, StreamEvent::Executed(id)]
    );
}

#[test]
fn batches_are_cut_between_events_and_definitions_come_first() {
    let mut recorder = recorder();
    let id = recorder.define(A, &[1, 1], &[0x90; 2], false, [None; 2]);
    for _ in 0..BATCH {
        recorder.executed(id);
    }
    let late = recorder.define(A, &[1], &[0x90], false, [None; 2]);
    recorder.left(1);
    recorder.executed(late);
    let (batches, _) = finish(recorder);
    assert_eq!(batches.iter().map(|batch| batch.words.len()).collect::<Vec<_>>(), [BATCH + 1, 1]);
    assert_eq!(batches.iter().map(|batch| batch.translations.len()).collect::<Vec<_>>(), [2, 0]);
    assert_eq!(
        events(&batches[0].words).last(),
        Some(StreamEvent::Left { translation: id, instructions: 1 })
    );
}

#[test]
fn a_batch_with_many_accesses_is_cut() {
    let mut recorder = recorder();
    let id = recorder.define(A, &[3], &[0xf3, 0x48, 0xab], true, [None; 2]);
    let store = AccessSite::new(0, true, 3);
    for accesses in [ACCESSES - 1, 1, 2, 3] {
        recorder.executed_with_data(id);
        (0..accesses).for_each(|_| recorder.access(store, 0x1000));
    }
    let (batches, _) = finish(recorder);
    assert_eq!(batches[0].accesses.addresses.len(), ACCESSES);
    assert_eq!(batches[1].accesses.starts, [0, 2]);
}

#[test]
fn memory_stays_constant_when_the_sink_takes_no_batches() {
    let mut recorder = Recorder::new(CollectingSink { batches: Vec::new(), limit: Some(1) });
    let id = recorder.define(A, &[1], &[0x90], false, [None; 2]);
    for _ in 0..5 * BATCH {
        recorder.executed(id);
    }
    assert!(recorder.words.capacity() <= 2 * (BATCH + SLACK));
    assert!(recorder.finish().0.is_none());
}

#[test]
fn accesses_belong_to_the_execution_in_which_they_happened() {
    let mut recorder = recorder();
    let physical = [Some(0x100_0000), None];
    let copy = recorder.define(A, &[3], &[0xf3, 0x48, 0xa5], true, physical);
    let moved = recorder.define(A, &[3], &[0xf3, 0x48, 0xa5], true, [Some(0x200_0000), None]);
    assert_ne!(copy, moved, "the same code elsewhere is another translation");
    let (load, store) = (AccessSite::new(0, false, 3), AccessSite::new(0, true, 3));
    let mapping = Mapping::default();
    for (execution, addr) in [(copy, 0x1000), (copy, 0x1008), (moved, 0x1010)] {
        recorder.executed_repeat_with_data(execution);
        recorder.access(load, addr);
        if addr == 0x1008 {
            recorder.mapping(mapping);
        }
        recorder.access(store, addr + 0x1000);
    }
    recorder.executed_with_data(copy);
    let (batches, folded) = finish(recorder);
    let accesses = &batches[0].accesses;
    // The one at the other physical address has another number, but the same address. So it
    // continues.
    assert_eq!(folded, 2);
    assert_eq!(accesses.addresses, [0x1000, 0x2000, 0x1008, 0x2008, 0x1010, 0x2010]);
    assert_eq!(accesses.sites, [load, store].repeat(3));
    assert_eq!(accesses.starts, [0, 6]);
    assert_eq!(accesses.mappings, [(3, mapping)]);
    assert_eq!(accesses.physical, [(copy, physical), (moved, [Some(0x200_0000), None])]);
}

#[test]
fn executions_have_their_numbers() {
    let mut recorder = recorder();
    recorder.count_executions();
    let id = recorder.define(A, &[1, 1], &[0x90, 0xc3], false, [None; 2]);
    for step in 0..3 * BATCH as u64 {
        recorder.executed(id);
        if step % 7 == 0 {
            recorder.marker(9);
        }
        if step % 1000 == 0 {
            assert_eq!([recorder.current_execution(), recorder.current_execution()], [step; 2]);
        }
        if step % 5 == 0 {
            recorder.left(1);
        }
        if step % 3000 == 0 {
            recorder.cpu(CpuId(1));
        }
    }
}
