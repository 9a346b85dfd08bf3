//! What runs becomes records: takes translations as they are made and executed, gives batches.
//! Knows nothing of QEMU or threads.
//!
//! The caller tells, at each execution, how far the one before came (`progress`): QEMU only says
//! that a translation is entered.

use std::collections::HashMap;
use trace::{
    Event, Mapping, RunAddr, SeenAccesses, Site, Task, TaskId, TaskPointer, Translation,
    TranslationId, UseChange,
};

/// Words of a batch, short of the few that belong to its last translation: 256 kB, which the nearer
/// caches hold on their way from the thread that fills it to the one that empties it.
pub const BATCH: usize = 1 << 16;
/// Room behind `BATCH` for those: its being left, and markers and a task switch in one translation.
const SLACK: usize = 1024;
/// Words below this are executed translations.
const FIRST_EVENT: u32 = 1 << 31;

/// Definitions, and the events that came with them.
#[derive(Debug, Default)]
pub struct Batch {
    pub tasks: Vec<Task>,
    pub translations: Vec<Translation>,
    pub words: Vec<u32>,
    /// What these words' executions accessed; only where data accesses are recorded.
    pub seen: SeenAccesses,
}

impl Batch {
    /// An empty one that keeps its room.
    pub fn cleared(mut self) -> Batch {
        self.tasks.clear();
        self.translations.clear();
        self.words.clear();
        self.seen.clear();
        self
    }
}

/// Where batches go.
pub trait Sink {
    /// Takes a batch; gives an empty one to be filled next, or `None` when it takes no more.
    fn send(&mut self, batch: Batch) -> Option<Batch>;
}

/// What is remembered of a translation when it was sent.
struct Known {
    instructions: u16,
    /// The address of its last instruction, if that repeats.
    repeats_at: Option<u64>,
    /// Its last instruction reads the processor's clock.
    reads_clock: bool,
}

/// One recording in the making.
pub struct Recorder<S: Sink> {
    /// The last word is always the translation that is being executed (none before the first).
    words: Vec<u32>,
    sink: Option<S>,
    known: Vec<Known>,
    /// By address, physical addresses (unless data accesses are recorded, they are not known) and
    /// bytes.
    ids: HashMap<(u64, Physical, Box<[u8]>), TranslationId>,
    translations: Vec<Translation>,
    tasks: Vec<Task>,
    task_ids: HashMap<(TaskPointer, Option<u32>, [u8; 16]), TaskId>,
    /// Executions in which a string instruction only went on.
    folded: u64,
    seen: SeenAccesses,
}

/// Where code lies: as [`trace::Pattern::physical`] has it.
pub type Physical = [Option<u64>; 2];

impl<S: Sink> Recorder<S> {
    pub fn new(sink: S) -> Self {
        Recorder {
            words: Vec::with_capacity(BATCH + SLACK),
            sink: Some(sink),
            known: Vec::new(),
            ids: HashMap::new(),
            translations: Vec::new(),
            tasks: Vec::new(),
            task_ids: HashMap::new(),
            folded: 0,
            seen: SeenAccesses::default(),
        }
    }

    /// The number of a translation, which is defined when it is new. `repeats`: its last
    /// instruction is a repeated string instruction.
    pub fn define(
        &mut self,
        addr: RunAddr,
        lengths: &[u8],
        code: &[u8],
        repeats: bool,
        physical: Physical,
    ) -> TranslationId {
        let next = TranslationId(self.known.len() as u32);
        let id = *self.ids.entry((addr.0, physical, code.into())).or_insert(next);
        if id == next {
            if physical != [None; 2] {
                self.seen.physical.push((id, physical));
            }
            let last = code.len() - lengths.last().map_or(0, |&length| usize::from(length));
            let repeats_at = repeats.then(|| addr.0.wrapping_add(last as u64));
            self.known.push(Known {
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

    /// The translation's last instruction reads the processor's clock.
    pub fn reads_clock(&mut self, id: TranslationId) {
        if let Some(known) = self.known.get_mut(id.0 as usize) {
            known.reads_clock = true;
        }
    }

    /// Whether the execution just before the one that is being recorded came to its end, and that
    /// is a reading of the clock.
    pub fn is_behind_reading(&self) -> bool {
        let (before, of_left) = match self.words[..] {
            [.., first, before, _] => (before, Event::is_left(first)),
            [before, _] => (before, false),
            _ => return false,
        };
        !of_left && self.known.get(before as usize).is_some_and(|known| known.reads_clock)
    }

    /// The clock went on by so many ticks up to the reading with which the execution before ended.
    pub fn clock(&mut self, ticks: u64) {
        let mut left = ticks;
        loop {
            let part = left.min(Event::MOST_TICKS.into());
            self.before_current(Event::Clock(part as u32));
            left -= part;
            if left == 0 {
                return;
            }
        }
    }

    /// A translation is entered, and the one before came to its end.
    #[inline]
    pub fn executed(&mut self, id: TranslationId) {
        if self.words.len() >= BATCH {
            self.flush();
        }
        self.words.push(id.0);
    }

    /// As `executed`, where data accesses are recorded.
    #[inline]
    pub fn executed_with_data(&mut self, id: TranslationId) {
        self.executed(id);
        self.seen.starts.push(self.seen.addresses.len() as u32);
    }

    /// The translation that is being executed accessed memory.
    #[inline]
    pub fn access(&mut self, site: Site, addr: u64) {
        self.seen.sites.push(site);
        self.seen.addresses.push(addr);
    }

    /// A mapping that holds from the next access on.
    pub fn mapping(&mut self, mapping: Mapping) {
        self.seen.mappings.push((self.seen.addresses.len() as u32, mapping));
    }

    /// What frames are used for from the translation on that is being executed; and the names of
    /// slab caches that are new.
    #[cold]
    pub fn used(&mut self, changes: &[UseChange], new_caches: Vec<String>) {
        let execution = self.seen.starts.len().saturating_sub(1) as u32;
        self.seen.uses.extend(changes.iter().map(|&change| (execution, change)));
        self.seen.slab_caches.extend(new_caches);
    }

    /// As `executed`, for a translation that is nothing but a repeated string instruction: entered
    /// again, it only goes on.
    pub fn executed_repeat(&mut self, id: TranslationId) {
        match self.goes_on(id) {
            true => self.folded += 1,
            false => self.executed(id),
        }
    }

    /// As `executed_repeat`, where data accesses are recorded: those of an execution that only goes
    /// on belong to the one before.
    pub fn executed_repeat_with_data(&mut self, id: TranslationId) {
        match self.goes_on(id) {
            true => self.folded += 1,
            false => self.executed_with_data(id),
        }
    }

    fn goes_on(&self, id: TranslationId) -> bool {
        let repeats_at = |id: u32| self.known.get(id as usize).and_then(|known| known.repeats_at);
        let before = self.words.last().and_then(|&last| repeats_at(last));
        before.is_some() && before == repeats_at(id.0)
    }

    /// The translation entered last was left: only its first `progress` instructions were reached.
    #[cold]
    pub fn left(&mut self, progress: u64) {
        let Some(id) = self.words.pop_if(|&mut word| word < FIRST_EVENT) else {
            return;
        };
        Event::Left { translation: TranslationId(id), instructions: progress as u32 }
            .append_to(&mut self.words);
    }

    /// In the translation that is being executed, the kernel switches to this task, or renames it.
    pub fn switch(&mut self, pointer: TaskPointer, pid: Option<u32>, comm: [u8; 16]) {
        let id = self.task(pointer, pid, comm);
        self.before_current(Event::Task(id));
    }

    /// In the translation that is being executed, the kernel makes this task able to run.
    pub fn woken(&mut self, pointer: TaskPointer, pid: Option<u32>, comm: [u8; 16]) {
        let id = self.task(pointer, pid, comm);
        self.before_current(Event::Woken(id));
    }

    /// The number of a task, which is defined when it is new.
    fn task(&mut self, pointer: TaskPointer, pid: Option<u32>, comm: [u8; 16]) -> TaskId {
        let next = TaskId(self.task_ids.len() as u32);
        let id = *self.task_ids.entry((pointer, pid, comm)).or_insert(next);
        if id == next {
            self.tasks.push(Task { id, pointer, pid, comm });
        }
        id
    }

    /// In the translation that is being executed, the workload executes a marker.
    pub fn marker(&mut self, number: u16) {
        self.before_current(Event::Marker(number.into()));
    }

    fn before_current(&mut self, event: Event) {
        let current = self.words.pop_if(|&mut word| word < FIRST_EVENT);
        event.append_to(&mut self.words);
        self.words.extend(current);
    }

    /// Recording ends in the translation that is being executed, of whose instructions `reached`
    /// were reached.
    pub fn end_within(&mut self, reached: u16) {
        let current = self.words.last().and_then(|&last| self.known.get(last as usize));
        if current.is_some_and(|current| reached < current.instructions) {
            self.left(reached.into());
        }
    }

    /// Sends what there is; then nothing is recorded any more. Gives the sink back, unless it took
    /// no more before, and the number of folded executions.
    pub fn finish(&mut self) -> (Option<S>, u64) {
        self.flush();
        (self.sink.take(), self.folded)
    }

    #[cold]
    fn flush(&mut self) {
        let batch = Batch {
            tasks: std::mem::take(&mut self.tasks),
            translations: std::mem::take(&mut self.translations),
            words: std::mem::take(&mut self.words),
            seen: std::mem::take(&mut self.seen),
        };
        // Without a sink what still runs goes round in one batch.
        let empty = match &mut self.sink {
            None => Some(batch.cleared()),
            Some(sink) => sink.send(batch),
        };
        match empty {
            None => self.sink = None,
            Some(empty) => {
                (self.tasks, self.translations) = (empty.tasks, empty.translations);
                (self.words, self.seen) = (empty.words, empty.seen);
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
    struct Kept {
        batches: Vec<Batch>,
        room: Option<usize>,
    }

    impl Sink for Kept {
        fn send(&mut self, batch: Batch) -> Option<Batch> {
            self.batches.push(batch);
            (Some(self.batches.len()) != self.room).then(Batch::default)
        }
    }

    fn recorder() -> Recorder<Kept> {
        Recorder::new(Kept::default())
    }

    fn finish(mut recorder: Recorder<Kept>) -> (Vec<Batch>, u64) {
        let (sink, folded) = recorder.finish();
        (sink.unwrap().batches, folded)
    }

    fn all_events(batches: &[Batch]) -> Vec<Event> {
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
    fn events_stand_before_the_translation_in_which_they_happened() {
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
            Event::Task(TaskId(0)),
            Event::Marker(9),
            Event::Task(TaskId(1)),
            Event::Left { translation: id, instructions: 2 },
            Event::Task(TaskId(0)),
            Event::Executed(id),
        ];
        assert_eq!(all_events(&batches), expected);
        assert_eq!(
            batches[0].tasks.iter().map(|task| (task.pointer.0, task.pid)).collect::<Vec<_>>(),
            [(1, None), (2, Some(7))]
        );
    }

    #[test]
    fn a_reading_of_the_clock_stands_behind_the_code_that_read_it() {
        let mut recorder = recorder();
        let reads = recorder.define(A, &[2], &[0x0f, 0x31], false, [None; 2]);
        let next = recorder.define(RunAddr(A.0 + 2), &[1], &[0x90], false, [None; 2]);
        recorder.reads_clock(reads);
        recorder.executed(reads);
        assert!(!recorder.is_behind_reading(), "it is the reading");
        recorder.executed(next);
        assert!(recorder.is_behind_reading());
        recorder.clock(2 * u64::from(Event::MOST_TICKS) + 5);
        recorder.executed(next);
        assert!(!recorder.is_behind_reading(), "come to by another way");
        recorder.executed(reads);
        recorder.left(1);
        recorder.executed(next);
        assert!(!recorder.is_behind_reading(), "left: read again later");
        let (batches, _) = finish(recorder);
        let most = Event::Clock(Event::MOST_TICKS);
        let expected = [Event::Executed(reads), most, most, Event::Clock(5), Event::Executed(next)];
        assert_eq!(all_events(&batches)[..5], expected);
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
        assert_eq!(all_events(&batches), [0, 1, 2, 3, 0].map(|id| Event::Task(TaskId(id))));
    }

    #[test]
    fn a_repeated_string_instruction_is_reached_once() {
        let mut recorder = recorder();
        // mov rcx, rax; rep stosq — then the rest of it alone, as QEMU makes it under icount.
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
        // An interrupt between two steps: reached again afterwards.
        recorder.executed(other);
        recorder.executed_repeat(again);
        recorder.executed_repeat(again);
        // Another one behind it is no repetition of it.
        recorder.executed_repeat(elsewhere);
        recorder.executed(first);
        recorder.left(1);
        recorder.executed(again);
        let (batches, folded) = finish(recorder);
        let expected = [
            Event::Executed(first),
            Event::Executed(other),
            Event::Executed(again),
            Event::Executed(elsewhere),
            Event::Left { translation: first, instructions: 1 },
            Event::Executed(again),
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
            [Event::Left { translation: id, instructions: 2 }, Event::Executed(id)]
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
            Some(Event::Left { translation: id, instructions: 1 })
        );
    }

    #[test]
    fn memory_stays_flat_when_nobody_takes_the_batches() {
        let mut recorder = Recorder::new(Kept { batches: Vec::new(), room: Some(1) });
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
        let (load, store) = (Site::new(0, false, 3), Site::new(0, true, 3));
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
        let seen = &batches[0].seen;
        // The one at the other place is no repetition by its number, but by its address.
        assert_eq!(folded, 2);
        assert_eq!(seen.addresses, [0x1000, 0x2000, 0x1008, 0x2008, 0x1010, 0x2010]);
        assert_eq!(seen.sites, [load, store].repeat(3));
        assert_eq!(seen.starts, [0, 6]);
        assert_eq!(seen.mappings, [(3, mapping)]);
        assert_eq!(seen.physical, [(copy, physical), (moved, [Some(0x200_0000), None])]);
    }
}
