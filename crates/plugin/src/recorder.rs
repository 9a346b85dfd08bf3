//! Turns what runs into records. Input: translations as they are made and executed. Output:
//! batches. This module knows nothing of QEMU or threads.
//!
//! QEMU only says that a translation is entered. So at each execution, the caller also gives the
//! progress of the execution before.

use std::collections::HashMap;
use trace::{
    AccessSite, CpuId, FrameUseChange, Mapping, ObservedAccesses, RunAddr, StreamEvent, Task,
    TaskId, TaskPointer, Translation, TranslationId,
};

/// The number of words in a batch, without the few words of its last translation: 256 kB. The
/// nearer caches hold a batch on its way from the thread that fills it to the one that empties it.
pub(crate) const BATCH: usize = 1 << 16;
/// The number of accesses in a batch, without those of its last translation. Repeated string
/// instructions make many of one. A chunk of the recording has room for all, each of ten bytes.
const ACCESSES: usize = 1 << 20;
/// The space behind `BATCH` for the words of the last translation: an event that it was left, its
/// markers and a task switch.
const SLACK: usize = 1024;
/// Words below this are executed translations.
const FIRST_EVENT: u32 = 1 << 31;

/// Definitions, and the events that came with them.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub tasks: Vec<Task>,
    pub translations: Vec<Translation>,
    pub words: Vec<u32>,
    /// The data accesses of these words' executions. Empty when data accesses are not recorded.
    pub accesses: ObservedAccesses,
}

impl Batch {
    /// Empties the batch and keeps its memory.
    pub(crate) fn cleared(mut self) -> Batch {
        self.tasks.clear();
        self.translations.clear();
        self.words.clear();
        self.accesses.clear();
        self
    }
}

/// Takes batches.
pub(crate) trait BatchSink {
    /// Takes a batch and returns an empty one to fill next. `None`: the sink takes no more batches.
    fn send(&mut self, batch: Batch) -> Option<Batch>;
}

/// What the recorder remembers of a translation after it was sent.
struct DefinedTranslation {
    instructions: u16,
    /// The address of the last instruction, if that is a repeated string instruction.
    repeats_at: Option<u64>,
    /// Whether the last instruction reads the processor's clock.
    reads_clock: bool,
}

/// Makes one recording.
pub(crate) struct Recorder<S: BatchSink> {
    /// The last word is always the translation that is being executed. It is missing before the
    /// first.
    words: Vec<u32>,
    sink: Option<S>,
    defined: Vec<DefinedTranslation>,
    /// The number of each translation, by its address, physical addresses and bytes. The physical
    /// addresses are unknown when data accesses are not recorded.
    ids: HashMap<(u64, CodeLocation, Box<[u8]>), TranslationId>,
    translations: Vec<Translation>,
    tasks: Vec<Task>,
    task_ids: HashMap<(TaskPointer, Option<u32>, [u8; 16]), TaskId>,
    /// The number of executions that only continued a string instruction.
    folded: u64,
    accesses: ObservedAccesses,
}

/// The physical addresses of code; see [`trace::AccessPattern::physical`].
pub(crate) type CodeLocation = [Option<u64>; 2];

impl<S: BatchSink> Recorder<S> {
    pub(crate) fn new(sink: S) -> Self {
        Recorder {
            words: Vec::with_capacity(BATCH + SLACK),
            sink: Some(sink),
            defined: Vec::new(),
            ids: HashMap::new(),
            translations: Vec::new(),
            tasks: Vec::new(),
            task_ids: HashMap::new(),
            folded: 0,
            accesses: ObservedAccesses::default(),
        }
    }

    /// The number of a translation. A new one is defined. `repeats`: its last instruction is a
    /// repeated string instruction.
    pub(crate) fn define(
        &mut self,
        addr: RunAddr,
        lengths: &[u8],
        code: &[u8],
        repeats: bool,
        physical: CodeLocation,
    ) -> TranslationId {
        let next = TranslationId(self.defined.len() as u32);
        let id = *self.ids.entry((addr.0, physical, code.into())).or_insert(next);
        if id == next {
            if physical != [None; 2] {
                self.accesses.physical.push((id, physical));
            }
            let last = code.len() - lengths.last().map_or(0, |&length| usize::from(length));
            let repeats_at = repeats.then(|| addr.0.wrapping_add(last as u64));
            self.defined.push(DefinedTranslation {
                instructions: lengths.len() as u16,
                repeats_at,
                reads_clock: false,
            });
            self.translations.push(Translation {
                id,
                addr,
                lengths: lengths.into(),
                code: code.into(),
            });
        }
        id
    }

    /// Notes that the last instruction of a translation reads the processor's clock.
    pub(crate) fn reads_clock(&mut self, id: TranslationId) {
        if let Some(known) = self.defined.get_mut(id.0 as usize) {
            known.reads_clock = true;
        }
    }

    /// Whether the execution before the current one ran to its end and ended with a reading of the
    /// clock.
    pub(crate) fn is_behind_reading(&self) -> bool {
        let (before, of_left) = match self.words[..] {
            [.., first, before, _] => (before, StreamEvent::is_left(first)),
            [before, _] => (before, false),
            _ => return false,
        };
        !of_left && self.defined.get(before as usize).is_some_and(|known| known.reads_clock)
    }

    /// Records that the clock advanced by `ticks` up to the reading at the end of the last
    /// execution.
    pub(crate) fn clock(&mut self, ticks: u64) {
        let mut left = ticks;
        loop {
            let part = left.min(StreamEvent::MOST_TICKS.into());
            self.before_current(StreamEvent::Clock(part as u32));
            left -= part;
            if left == 0 {
                return;
            }
        }
    }

    /// A translation is entered, and the one before ran to its end.
    #[inline]
    pub(crate) fn executed(&mut self, id: TranslationId) {
        if self.words.len() >= BATCH {
            self.flush();
        }
        self.words.push(id.0);
    }

    /// The same as `executed` when data accesses are recorded.
    #[inline]
    pub(crate) fn executed_with_data(&mut self, id: TranslationId) {
        if self.accesses.addresses.len() >= ACCESSES {
            self.flush();
        }
        self.executed(id);
        self.accesses.starts.push(self.accesses.addresses.len() as u32);
    }

    /// The current translation accessed memory.
    #[inline]
    pub(crate) fn access(&mut self, site: AccessSite, addr: u64) {
        self.accesses.sites.push(site);
        self.accesses.addresses.push(addr);
    }

    /// A mapping that holds from the next access on.
    pub(crate) fn mapping(&mut self, mapping: Mapping) {
        self.accesses.mappings.push((self.accesses.addresses.len() as u32, mapping));
    }

    /// Changes of the use of frames. They hold from the current translation on. `new_caches` are
    /// the names of new slab caches.
    #[cold]
    pub(crate) fn frame_use_changes(
        &mut self,
        changes: &[FrameUseChange],
        new_caches: Vec<String>,
    ) {
        let execution = self.accesses.starts.len().saturating_sub(1) as u32;
        self.accesses.uses.extend(changes.iter().map(|&change| (execution, change)));
        self.accesses.slab_caches.extend(new_caches);
    }

    /// The same as `executed` for a translation that is a single repeated string instruction. When
    /// it is entered again, it only continues.
    pub(crate) fn executed_repeat(&mut self, id: TranslationId) {
        match self.continues(id) {
            true => self.folded += 1,
            false => self.executed(id),
        }
    }

    /// The same as `executed_repeat` when data accesses are recorded. The accesses of an execution
    /// that only continues belong to the execution before.
    pub(crate) fn executed_repeat_with_data(&mut self, id: TranslationId) {
        match self.continues(id) {
            true => self.folded += 1,
            false => self.executed_with_data(id),
        }
    }

    fn continues(&self, id: TranslationId) -> bool {
        let repeats_at = |id: u32| self.defined.get(id as usize).and_then(|known| known.repeats_at);
        let before = self.words.last().and_then(|&last| repeats_at(last));
        before.is_some() && before == repeats_at(id.0)
    }

    /// The CPU that executes from the next translation on.
    #[cold]
    pub(crate) fn cpu(&mut self, cpu: CpuId) {
        StreamEvent::Cpu(cpu).append_to(&mut self.words);
    }

    /// The translation entered last was left: only its first `progress` instructions were reached.
    #[cold]
    pub(crate) fn left(&mut self, progress: u64) {
        let Some(id) = self.words.pop_if(|&mut word| word < FIRST_EVENT) else {
            return;
        };
        StreamEvent::Left { translation: TranslationId(id), instructions: progress as u32 }
            .append_to(&mut self.words);
    }

    /// In the current translation, the kernel switches to this task or renames it.
    pub(crate) fn switch(&mut self, pointer: TaskPointer, pid: Option<u32>, comm: [u8; 16]) {
        let id = self.task(pointer, pid, comm);
        self.before_current(StreamEvent::Task(id));
    }

    /// In the current translation, the kernel makes this task able to run.
    pub(crate) fn woken(&mut self, pointer: TaskPointer, pid: Option<u32>, comm: [u8; 16]) {
        let id = self.task(pointer, pid, comm);
        self.before_current(StreamEvent::Woken(id));
    }

    /// The number of a task. A new one is defined.
    fn task(&mut self, pointer: TaskPointer, pid: Option<u32>, comm: [u8; 16]) -> TaskId {
        let next = TaskId(self.task_ids.len() as u32);
        let id = *self.task_ids.entry((pointer, pid, comm)).or_insert(next);
        if id == next {
            self.tasks.push(Task { id, pointer, pid, comm });
        }
        id
    }

    /// In the current translation, the workload executes a marker.
    pub(crate) fn marker(&mut self, number: u16) {
        self.before_current(StreamEvent::Marker(number.into()));
    }

    fn before_current(&mut self, event: StreamEvent) {
        let current = self.words.pop_if(|&mut word| word < FIRST_EVENT);
        event.append_to(&mut self.words);
        self.words.extend(current);
    }

    /// Recording ends in the current translation, of which `reached` instructions were reached.
    pub(crate) fn end_within(&mut self, reached: u16) {
        let current = self.words.last().and_then(|&last| self.defined.get(last as usize));
        if current.is_some_and(|current| reached < current.instructions) {
            self.left(reached.into());
        }
    }

    /// Sends the last batch and ends recording. Returns the sink, unless it refused a batch before,
    /// and the number of folded executions.
    pub(crate) fn finish(&mut self) -> (Option<S>, u64) {
        self.flush();
        (self.sink.take(), self.folded)
    }

    #[cold]
    fn flush(&mut self) {
        let batch = Batch {
            tasks: std::mem::take(&mut self.tasks),
            translations: std::mem::take(&mut self.translations),
            words: std::mem::take(&mut self.words),
            accesses: std::mem::take(&mut self.accesses),
        };
        // Without a sink, one batch is filled and emptied over and over.
        let empty = match &mut self.sink {
            None => Some(batch.cleared()),
            Some(sink) => sink.send(batch),
        };
        match empty {
            None => self.sink = None,
            Some(empty) => {
                (self.tasks, self.translations) = (empty.tasks, empty.translations);
                (self.words, self.accesses) = (empty.words, empty.accesses);
            }
        }
        self.words.reserve(BATCH + SLACK);
    }
}

#[cfg(test)]
mod tests {
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
        let first =
            recorder.define(A, &[3, 3], &[0x48, 0x89, 0xc1, 0xf3, 0x48, 0xab], true, [None; 2]);
        let again = recorder.define(RunAddr(A.0 + 3), &[3], &[0xf3, 0x48, 0xab], true, [None; 2]);
        let other = recorder.define(RunAddr(A.0 + 0x100), &[1], &[0xc3], false, [None; 2]);
        let elsewhere =
            recorder.define(RunAddr(A.0 + 0x200), &[3], &[0xf3, 0x48, 0xab], true, [None; 2]);
        recorder.executed(first);
        for _ in 0..3 {
            recorder.executed_repeat(again);
        }
        // An interrupt between two repetitions: the instruction is reached again afterwards.
        recorder.executed(other);
        recorder.executed_repeat(again);
        recorder.executed_repeat(again);
        // Another repeated instruction behind it does not continue it.
        recorder.executed_repeat(elsewhere);
        recorder.executed(first);
        recorder.left(1);
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
        assert_eq!(folded, 4);
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
        assert_eq!(
            batches.iter().map(|batch| batch.words.len()).collect::<Vec<_>>(),
            [BATCH + 1, 1]
        );
        assert_eq!(
            batches.iter().map(|batch| batch.translations.len()).collect::<Vec<_>>(),
            [2, 0]
        );
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
}
