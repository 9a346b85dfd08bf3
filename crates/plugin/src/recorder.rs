//! Turns what runs into records. Input: translations as they are made and executed. Output:
//! batches. This module knows nothing of QEMU or threads.
//!
//! QEMU only says that a translation is entered. So at each execution, the caller also gives the
//! progress of the execution before.

use crate::modules::ObservedChange;
use std::collections::HashMap;
use trace::{
    AccessSite, CpuId, FrameUseChange, Mapping, ModuleChange, ObservedAccesses, RunAddr,
    StreamEvent, Task, TaskId, TaskPointer, Translation, TranslationId,
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
    /// Changes of the loaded modules, each with the number of `translations` before it.
    pub modules: Vec<(usize, ModuleChange)>,
    pub words: Vec<u32>,
    /// The data accesses of these words' executions. Empty when data accesses are not recorded.
    pub accesses: ObservedAccesses,
}

impl Batch {
    /// Empties the batch and keeps its memory.
    pub(crate) fn cleared(mut self) -> Batch {
        self.tasks.clear();
        self.translations.clear();
        self.modules.clear();
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
    modules: Vec<(usize, ModuleChange)>,
    tasks: Vec<Task>,
    task_ids: HashMap<(TaskPointer, Option<u32>, [u8; 16]), TaskId>,
    /// The number of executions that only continued a string instruction.
    folded: u64,
    /// The last execution of a single repeated string instruction was folded.
    continuing: bool,
    accesses: ObservedAccesses,
    /// Executions are counted, for probes.
    counts: bool,
    /// The executions in the words that were sent, and in the first `counted` words.
    executions: u64,
    counted: usize,
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
            modules: Vec::new(),
            tasks: Vec::new(),
            task_ids: HashMap::new(),
            folded: 0,
            continuing: false,
            accesses: ObservedAccesses::default(),
            counts: false,
            executions: 0,
            counted: 0,
        }
    }

    /// Counts executions from now on, see [`Recorder::current_execution`].
    pub(crate) fn count_executions(&mut self) {
        self.counts = true;
    }

    /// The number of the execution that is going on, from 0 in the recording. Executions must be
    /// counted from the beginning.
    pub(crate) fn current_execution(&mut self) -> u64 {
        self.count_until(self.words.len().saturating_sub(1));
        self.executions
    }

    /// Events may be put in front of the current execution, but not in front of those before.
    fn count_until(&mut self, end: usize) {
        let new = self.words.get(self.counted..end).unwrap_or_default();
        self.executions += new.iter().filter(|&&word| word < FIRST_EVENT).count() as u64;
        self.counted = end;
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

    /// The loaded modules change. What is translated from now on at the addresses of the module
    /// is another translation than before, even with the same bytes: it belongs to another module.
    #[cold]
    pub(crate) fn modules_change(&mut self, observed: ObservedChange) {
        let ObservedChange { change, code } = observed;
        self.ids.retain(|(addr, ..), _| !code.iter().any(|range| range.contains(addr)));
        self.modules.push((self.translations.len(), change));
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
        self.continuing = self.continues(id);
        match self.continuing {
            true => self.folded += 1,
            false => self.executed(id),
        }
    }

    /// The same as `executed_repeat` when data accesses are recorded. The accesses of an execution
    /// that only continues belong to the execution before.
    pub(crate) fn executed_repeat_with_data(&mut self, id: TranslationId) {
        self.continuing = self.continues(id);
        match self.continuing {
            true => self.folded += 1,
            false => self.executed_with_data(id),
        }
    }

    /// Whether the execution of a translation that is a single repeated string instruction, which
    /// was entered last, only continues the one before.
    pub(crate) fn only_continues(&self) -> bool {
        self.continuing
    }

    fn continues(&self, id: TranslationId) -> bool {
        let repeats_at = |id: u32| self.defined.get(id as usize).and_then(|known| known.repeats_at);
        let before = self.words.last().and_then(|&last| repeats_at(last));
        before.is_some() && before == repeats_at(id.0)
    }

    /// The CPU that executes from the next translation on.
    #[cold]
    pub(crate) fn cpu(&mut self, cpu: CpuId) {
        self.continuing = false;
        StreamEvent::Cpu(cpu).append_to(&mut self.words);
    }

    /// The translation entered last was left: only its first `progress` instructions were reached.
    #[cold]
    pub(crate) fn left(&mut self, progress: u64) {
        self.continuing = false;
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
        if self.counts {
            self.count_until(self.words.len());
            self.counted = 0;
        }
        let batch = Batch {
            tasks: std::mem::take(&mut self.tasks),
            translations: std::mem::take(&mut self.translations),
            modules: std::mem::take(&mut self.modules),
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
                self.modules = empty.modules;
                (self.words, self.accesses) = (empty.words, empty.accesses);
            }
        }
        self.words.reserve(BATCH + SLACK);
    }
}

#[cfg(test)]
mod tests;
