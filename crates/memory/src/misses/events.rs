//! Every miss of a recording on a machine, one by one, with its cause and its data structure.
//!
//! Takes a recording with data accesses, the kernel's vmlinux and a machine; reports misses in the
//! order in which they occur. They are those that [`super::MissesWalk`] counts. Keeps no miss: what
//! an allocated frame without a mark is used for shows later, and [`MissTrack::settled`] says it.

use super::collector::{accesses_only_a_stack, function_at};
use super::hierarchy_walk::{DataMiss, HierarchyWalk, MissObserver};
use super::owners::{DataOwners, MissOwner, Structure, StructureId};
use super::uses::FrameUses;
use super::variables::Variables;
use anyhow::{Context, Result};
use execution::code::TranslatedCode;
use execution::walk::{Observer, Piece, Wants};
use image::mapping::map_file;
use services::symbols::KernelSymbols;
use sim::{MachineModel, MissedLevels, Mode};
use std::collections::HashMap;
use std::path::Path;
use trace::{
    Accesses, RecordingHeader, RunAddr, StreamEvent, Task, Translation, TranslationId, events,
};

/// What missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissKind {
    /// A fetch of instructions.
    Fetch,
    /// A load.
    Load,
    /// A store.
    Store,
}

/// A miss.
#[derive(Clone, Copy, Debug)]
pub struct Miss {
    /// Where it occurred, in instructions of the recording.
    pub position: u64,
    /// The number of the task in the recording, once it is known.
    pub task: Option<u32>,
    /// The mode of the code.
    pub mode: Mode,
    /// What missed.
    pub kind: MissKind,
    /// The number of the function that executed.
    pub function: u32,
    /// The address of the instruction; of a fetch, the address that was fetched.
    pub code: u64,
    /// The address that was accessed or fetched.
    pub address: u64,
    /// The physical address of an access.
    pub physical: Option<u64>,
    /// The caches that missed, and why.
    pub levels: MissedLevels,
    /// The data structure of an access.
    pub owner: Option<MissOwner>,
}

/// Receives misses.
pub trait MissTrack {
    /// A function that ran has this name. Functions are numbered from 0.
    fn function(&mut self, name: &str);
    /// Tasks that may run from now on, by their numbers in the recording.
    fn tasks(&mut self, tasks: &[Task]);
    /// A miss. `structures`: all structures so far, by number.
    fn missed(&mut self, miss: &Miss, structures: &[Structure]);
    /// The misses that are pending on this frame belong to this structure.
    fn settled(&mut self, frame: u64, structure: StructureId, structures: &[Structure]);
    /// The frames on which misses are pending, ascending.
    fn pending(&self) -> Vec<u64>;
    /// All misses up to this position were reported.
    fn passes(&mut self, position: u64);
    /// Whether nothing more is wanted.
    fn has_ended(&self) -> bool;
}

/// Reports misses, as an observer of a recording.
pub struct MissEventsWalk<'a, T> {
    walk: HierarchyWalk<MissReporter<'a, T>>,
}

impl<'a, T: MissTrack> MissEventsWalk<'a, T> {
    /// Prepares to report the misses of the recording with this header.
    ///
    /// # Errors
    /// As [`super::misses`].
    pub fn new(
        header: &RecordingHeader,
        symbols: &'a KernelSymbols,
        vmlinux: &Path,
        machine: &MachineModel,
        track: T,
    ) -> Result<MissEventsWalk<'a, T>> {
        services::check(header, symbols)?;
        header.one_cpu().context("the caches of several CPUs depend on each other")?;
        let bytes = map_file(vmlinux)?;
        let variables = Variables::read(&bytes).with_context(|| vmlinux.display().to_string())?;
        let reporter = MissReporter {
            symbols,
            owners: DataOwners::new(header, variables),
            uses: FrameUses::default(),
            numbers: HashMap::new(),
            codes: Vec::new(),
            current: TranslationId(0),
            position: 0,
            next: 0,
            task: None,
            executions: 0,
            switches: Vec::new(),
            switched: 0,
            track,
        };
        let walk = HierarchyWalk::new(std::slice::from_ref(machine), reporter)?;
        Ok(MissEventsWalk { walk })
    }

    /// Names what is still pending.
    pub fn finish(self) -> T {
        let MissReporter { mut owners, mut track, .. } = self.walk.observer;
        for frame in track.pending() {
            let id = owners.settle(frame);
            track.settled(frame, id, owners.structures());
        }
        track
    }
}

impl<T: MissTrack> Observer for MissEventsWalk<'_, T> {
    fn begin(&mut self, header: &RecordingHeader, has_data: bool) -> Result<Wants> {
        self.walk.begin(header, has_data)
    }

    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()> {
        self.walk.define(translations, codes)
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.walk.observer.track.tasks(tasks);
    }

    fn stream(&mut self, accesses: &Accesses) {
        self.walk.stream(accesses);
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        self.walk.observer.begins(piece.words);
        self.walk.piece(piece)?;
        let reporter = &mut self.walk.observer;
        reporter.turn_to_tasks();
        reporter.track.passes(reporter.next);
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.walk.observer.track.has_ended()
    }
}

/// What is known about a translation block.
struct ReportedCode {
    function: u32,
    addr: RunAddr,
    /// The address of each instruction, and whether it accesses only a stack.
    instructions: Box<[(u64, bool)]>,
}

struct MissReporter<'a, T> {
    symbols: &'a KernelSymbols,
    owners: DataOwners,
    uses: FrameUses,
    numbers: HashMap<&'a str, u32>,
    codes: Vec<ReportedCode>,
    current: TranslationId,
    /// Where the current execution and the next one begin.
    position: u64,
    next: u64,
    task: Option<u32>,
    /// How many executions of the piece began.
    executions: usize,
    /// The tasks in the piece, each with the number of executions before it.
    switches: Vec<(usize, u32)>,
    switched: usize,
    track: T,
}

impl<T: MissTrack> MissReporter<'_, T> {
    /// The executions of these words come next.
    fn begins(&mut self, words: &[u32]) {
        self.switches.clear();
        (self.executions, self.switched) = (0, 0);
        let mut executions = 0;
        for event in events(words) {
            match event {
                StreamEvent::Executed(_) | StreamEvent::Left { .. } => executions += 1,
                StreamEvent::Task(id) => self.switches.push((executions, id.0)),
                StreamEvent::Cpu(_)
                | StreamEvent::Marker(_)
                | StreamEvent::Woken(_)
                | StreamEvent::Clock(_) => {}
            }
        }
    }

    /// Applies the switches before the next execution.
    #[inline]
    fn turn_to_tasks(&mut self) {
        while let Some((before, task)) = self.switches.get(self.switched)
            && *before <= self.executions
        {
            self.task = Some(*task);
            self.switched += 1;
        }
    }
}

impl<T: MissTrack> MissObserver for MissReporter<'_, T> {
    fn define(&mut self, translation: &Translation) {
        let name = function_at(self.symbols, translation.addr);
        let next = self.numbers.len() as u32;
        let function = *self.numbers.entry(name).or_insert_with(|| {
            self.track.function(name);
            next
        });
        let is_kernel = translation.is_kernel();
        let instructions = translation
            .code_by_instruction()
            .map(|(addr, code)| (addr.0, is_kernel && accesses_only_a_stack(code)));
        self.codes.push(ReportedCode {
            function,
            addr: translation.addr,
            instructions: instructions.collect(),
        });
    }

    fn stream(&mut self, accesses: &Accesses) {
        let mut settled = Vec::new();
        self.uses.stream(accesses, &mut self.owners, |frame, id| settled.push((frame, id)));
        for (frame, id) in settled {
            self.track.settled(frame, id, self.owners.structures());
        }
    }

    #[inline]
    fn executed(&mut self, translation: TranslationId, instructions: Option<u32>) {
        self.turn_to_tasks();
        self.executions += 1;
        self.current = translation;
        self.position = self.next;
        let code = &self.codes[translation.0 as usize];
        self.next += instructions.map_or(code.instructions.len() as u64, u64::from);
        // Most executions settle nothing, and an empty vector costs nothing.
        let mut settled = Vec::new();
        self.uses.executed(&mut self.owners, |frame, id| settled.push((frame, id)));
        for (frame, id) in settled {
            self.track.settled(frame, id, self.owners.structures());
        }
    }

    fn fetch_missed(&mut self, _: usize, addr: RunAddr, levels: MissedLevels) {
        let code = &self.codes[self.current.0 as usize];
        let miss = Miss {
            position: self.position,
            task: self.task,
            mode: mode_of(code.addr),
            kind: MissKind::Fetch,
            function: code.function,
            code: addr.0,
            address: addr.0,
            physical: None,
            levels,
            owner: None,
        };
        self.track.missed(&miss, self.owners.structures());
    }

    fn data_missed(&mut self, _: usize, data: &DataMiss, levels: MissedLevels) {
        let code = &self.codes[self.current.0 as usize];
        let frame = data.physical.0 >> 12;
        let at = code.instructions.get(usize::from(data.instruction)).copied();
        let (addr, is_stack) = at.unwrap_or((code.addr.0, false));
        if is_stack {
            self.owners.is_a_stack(data.addr, frame);
        }
        let miss = Miss {
            position: self.position + u64::from(data.instruction),
            task: self.task,
            mode: mode_of(code.addr),
            kind: if data.is_store { MissKind::Store } else { MissKind::Load },
            function: code.function,
            code: addr,
            address: data.addr,
            physical: Some(data.physical.0),
            levels,
            owner: Some(self.owners.owner(data.addr, frame)),
        };
        self.track.missed(&miss, self.owners.structures());
    }
}

fn mode_of(addr: RunAddr) -> Mode {
    if addr.is_kernel() { Mode::Kernel } else { Mode::User }
}
