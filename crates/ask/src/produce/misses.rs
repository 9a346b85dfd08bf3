//! The misses of a machine's caches. Those on a frame whose use is not known yet are kept until it
//! is, if the data structure is asked for.

use crate::batch::{Cell, Names, Rows, TableRequest, TextId};
use crate::produce::invocations::KnownTasks;
use crate::recording::AskedRecording;
use anyhow::{Context, Result};
use memory::misses::events::{Miss, MissKind, MissTrack};
use memory::misses::owners::{MissOwner, Structure, StructureId};
use sim::{MachineModel, MissCause, Mode};
use std::collections::BTreeMap;
use trace::Task;

const COLUMNS: usize = 14;
const CLASS: usize = COLUMNS - 2;
const STRUCTURE: usize = COLUMNS - 1;

/// The machine on which the misses are counted.
///
/// # Errors
/// None is named.
pub(super) fn machine(recording: &AskedRecording) -> Result<&MachineModel> {
    recording
        .attribution
        .machines
        .first()
        .context("no machine is named to simulate misses on: name one, for example server-32k")
}

pub(super) struct MissesTable {
    rows: Rows,
    names: Names,
    functions: Vec<TextId>,
    tasks: KnownTasks,
    wants_owner: bool,
    pending: BTreeMap<u64, Vec<[Cell; COLUMNS]>>,
}

impl MissesTable {
    pub(super) fn new(request: TableRequest) -> MissesTable {
        let rows = Rows::new(request);
        MissesTable {
            wants_owner: rows.wants("class") || rows.wants("structure"),
            rows,
            names: Names::default(),
            functions: Vec::new(),
            tasks: KnownTasks::default(),
            pending: BTreeMap::new(),
        }
    }

    pub(super) fn finish(mut self) {
        self.rows.finish(&mut self.names);
    }

    fn cause(&mut self, cause: Option<MissCause>) -> Cell {
        let name = cause.map(|cause| match cause {
            MissCause::Cold => "cold",
            MissCause::Own => "self",
            MissCause::Other => "other",
        });
        name.map(|name| self.names.id(name)).into()
    }
}

/// The class and the name of a structure.
pub(super) fn structure_cells(names: &mut Names, structure: &Structure) -> [Cell; 2] {
    let name = (!structure.name.is_empty()).then(|| names.id(&structure.name));
    [names.id(structure.class.title()).into(), name.into()]
}

impl MissTrack for MissesTable {
    fn function(&mut self, name: &str) {
        self.functions.push(self.names.id(name));
    }

    fn tasks(&mut self, tasks: &[Task]) {
        self.tasks.define(&mut self.names, tasks);
    }

    fn missed(&mut self, miss: &Miss, structures: &[Structure]) {
        let [task, pid] = self.tasks.cells(miss.task);
        let mode = match miss.mode {
            Mode::Kernel => "kernel",
            Mode::User => "user",
        };
        let kind = match miss.kind {
            MissKind::Fetch => "fetch",
            MissKind::Load => "load",
            MissKind::Store => "store",
        };
        let known = match miss.owner {
            Some(MissOwner::Known(id)) if self.wants_owner => structures.get(id.0 as usize),
            _ => None,
        };
        let [class, structure] =
            known.map_or([Cell::Null; 2], |known| structure_cells(&mut self.names, known));
        let cells = [
            miss.position.into(),
            task,
            pid,
            self.names.id(mode).into(),
            self.names.id(kind).into(),
            self.functions[miss.function as usize].into(),
            miss.code.into(),
            miss.address.into(),
            miss.physical.into(),
            self.cause(Some(miss.levels.l1)),
            self.cause(miss.levels.l2),
            self.cause(miss.levels.l3),
            class,
            structure,
        ];
        match miss.owner {
            Some(MissOwner::Pending(frame)) if self.wants_owner => {
                self.pending.entry(frame).or_default().push(cells);
            }
            _ => self.rows.push(&mut self.names, cells),
        }
    }

    fn settled(&mut self, frame: u64, structure: StructureId, structures: &[Structure]) {
        let Some(pending) = self.pending.remove(&frame) else { return };
        let Some(structure) = structures.get(structure.0 as usize) else { return };
        let [class, structure] = structure_cells(&mut self.names, structure);
        for mut cells in pending {
            (cells[CLASS], cells[STRUCTURE]) = (class, structure);
            self.rows.push(&mut self.names, cells);
        }
    }

    fn pending(&self) -> Vec<u64> {
        self.pending.keys().copied().collect()
    }

    fn passes(&mut self, position: u64) {
        if self.pending.is_empty() {
            self.rows.passes(position);
        }
    }

    fn has_ended(&self) -> bool {
        self.rows.has_ended()
    }
}
