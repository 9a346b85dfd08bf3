//! The walk for formats that hold every instruction: what ran in a part of a recording, with the
//! data accesses of each execution.
//!
//! Input: a recording of one CPU. Output: calls of an [`ExecutionSink`], in the order in which the
//! recording is read. This module writes nothing and decodes no instruction.

use anyhow::{Result, ensure};
use execution::code::TranslatedCode;
use execution::data::{DataAccess, DataFlow, DataWish};
use execution::executions::NoDataAccesses;
use execution::flow::{ExecutionFlow, FragmentExit};
use execution::opened::OpenedRecording;
use execution::walk::{Observer, PairedAccesses, Piece, PieceData, Wants};
use serde::Serialize;
use sim::PhysAddr;
use std::collections::VecDeque;
use trace::{RecordingHeader, RunAddr, StreamEvent, Task, TaskId, Translation, TranslationId};

/// How much was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TracedAmounts {
    /// Instructions of the recording.
    pub instructions: u64,
    /// Records of the file.
    pub records: u64,
    /// Branches that something interrupted before their outcome showed, or that were the last of
    /// the part.
    pub interrupted_branches: u64,
}

/// Where an instruction lies in physical memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstructionPlace {
    /// Its first byte.
    pub first: PhysAddr,
    /// Its last byte, which may lie in another page.
    pub last: PhysAddr,
}

/// One way in which a translation runs.
pub(crate) struct WalkedFragment {
    pub translation: TranslationId,
    /// Where control arrives.
    pub start: RunAddr,
    pub exit: FragmentExit,
    /// The instructions that run, at least one.
    pub places: Box<[InstructionPlace]>,
}

/// An execution of a fragment.
pub(crate) struct WalkedExecution<'a> {
    pub fragment: &'a WalkedFragment,
    /// The task that was switched to just before.
    pub task: Option<TaskId>,
    /// In the order in which they were made. Some accesses may belong to instructions behind the
    /// last one that runs.
    pub accesses: &'a [DataAccess],
    /// Knows the virtual addresses of `accesses`. `None`: the recording has no data accesses.
    pub data: Option<&'a DataFlow>,
}

/// Receives the executions.
pub(crate) trait ExecutionSink {
    /// Learns a translation. Translations come in the order of their ids.
    fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> Result<()>;

    /// Learns tasks. They come in the order of their ids.
    fn define_tasks(&mut self, _tasks: &[Task]) {}

    /// Takes the next execution.
    fn execution(&mut self, execution: &WalkedExecution) -> Result<()>;
}

/// Gives the executions of a part of a recording of one CPU to `sink`. Without `needs_data` they
/// may have no accesses.
///
/// # Errors
/// The recording is damaged, or `sink` fails. With `needs_data`: it has no data accesses.
pub(crate) fn executions(
    recording: OpenedRecording,
    needs_data: bool,
    sink: &mut dyn ExecutionSink,
) -> Result<()> {
    let mut walk =
        SinkWalk { sink, needs_data, fragments: Vec::new(), tasks: VecDeque::new(), task: None };
    recording.walk(&mut walk).map(drop)
}

/// The observer that pairs executions with their accesses and tasks.
struct SinkWalk<'a> {
    sink: &'a mut dyn ExecutionSink,
    needs_data: bool,
    /// By number. `None`: no instruction runs.
    fragments: Vec<Option<WalkedFragment>>,
    /// For each execution whose fragment is still to come: the task that was switched to before.
    tasks: VecDeque<Option<TaskId>>,
    /// The task that was switched to since the last execution.
    task: Option<TaskId>,
}

impl Observer for SinkWalk<'_> {
    fn begin(&mut self, _: &RecordingHeader, has_data: bool) -> Result<Wants> {
        ensure!(has_data || !self.needs_data, NoDataAccesses);
        let data = Some(DataWish::EVERY_ACCESS);
        Ok(Wants { control: true, data, stops_behind_part: true, ..Wants::default() })
    }

    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()> {
        let mut defined = translations.iter().zip(codes);
        defined.try_for_each(|(translation, code)| self.sink.define(translation, code))
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.sink.define_tasks(tasks);
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        for event in piece.events() {
            match event {
                StreamEvent::Task(task) => self.task = Some(task),
                event if event.execution().is_some() => self.tasks.push_back(self.task.take()),
                _ => {}
            }
        }
        let Some(control) = &piece.control else { return Ok(()) };
        self.learn(control.flow, piece.data.as_ref());
        let data = piece.data.as_ref().map(|data| data.flow);
        let mut accesses = control.paired.as_ref().map(PairedAccesses::by_fragment);
        for id in control.fragments {
            let Some(fragment) = &self.fragments[id.0 as usize] else { continue };
            let own = accesses.as_mut().and_then(|accesses| accesses.of_fragment());
            self.sink.execution(&WalkedExecution {
                fragment,
                task: self.tasks.pop_front().flatten(),
                accesses: own.map_or(&[], |(_, accesses)| accesses),
                data,
            })?;
        }
        Ok(())
    }
}

impl SinkWalk<'_> {
    /// Adds the fragments that are new.
    fn learn(&mut self, flow: &ExecutionFlow, data: Option<&PieceData<'_>>) {
        for fragment in &flow.fragments[self.fragments.len()..] {
            let id = fragment.translation;
            let code = &flow.codes[id.0 as usize];
            let count = match fragment.exit {
                FragmentExit::LateNext | FragmentExit::LateTaken => 0,
                FragmentExit::Midway(reached) => usize::from(reached),
                FragmentExit::Next | FragmentExit::Taken | FragmentExit::Interrupted => usize::MAX,
            };
            let place = |addr| match data {
                Some(data) => data.flow.code(addr, code, id, data.patterns),
                None => DataFlow::stand_in(addr),
            };
            let mut at = code.addr;
            let places = code.lengths.iter().take(count).map(|&length| {
                let (first, end) = (at, RunAddr(at.0.wrapping_add(length.into())));
                at = end;
                let last = RunAddr(end.0.wrapping_sub(1));
                InstructionPlace { first: place(first), last: place(last) }
            });
            let places: Box<[_]> = places.collect();
            let (translation, start, exit) = (id, code.addr, fragment.exit);
            let runs = !places.is_empty();
            self.fragments.push(runs.then_some(WalkedFragment {
                translation,
                start,
                exit,
                places,
            }));
        }
    }
}
