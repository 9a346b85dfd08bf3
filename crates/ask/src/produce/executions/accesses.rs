//! Each load and store. Those on a frame whose use is not known yet are kept until it is, if the
//! data structure is asked for.

use super::{KnownCode, Place};
use crate::batch::{Cell, Names, Rows, TextId};
use crate::produce::invocations::KnownTasks;
use crate::produce::misses::structure_cells;
use crate::recording::AskedRecording;
use anyhow::{Context, Result};
use execution::code::TranslatedCode;
use execution::walk::PieceData;
use image::mapping::map_file;
use image::vmlinux;
use memory::misses::collector::accesses_only_a_stack;
use memory::misses::owners::{DataOwners, MissOwner, StructureId};
use memory::misses::uses::FrameUses;
use memory::misses::variables::Variables;
use std::collections::BTreeMap;
use trace::{Accesses, RecordingHeader, Translation};

const COLUMNS: usize = 12;

/// Names data structures.
struct Owners {
    owners: DataOwners,
    uses: FrameUses,
    /// By translation: for each instruction, whether it accesses only a stack.
    stack: Vec<Box<[bool]>>,
    pending: BTreeMap<u64, Vec<[Cell; COLUMNS]>>,
}

pub(super) struct AccessTable {
    rows: Rows,
    owners: Option<Owners>,
    kinds: Option<[TextId; 2]>,
}

impl AccessTable {
    /// # Errors
    /// The names of data cannot be read from the kernel.
    pub(super) fn new(
        recording: &AskedRecording,
        header: &RecordingHeader,
        rows: Rows,
    ) -> Result<AccessTable> {
        let owners = match rows.wants("class") || rows.wants("structure") {
            false => None,
            true => {
                let vmlinux = vmlinux::path(&recording.kernel);
                let variables = Variables::read(&map_file(&vmlinux)?)
                    .with_context(|| vmlinux.display().to_string())?;
                Some(Owners {
                    owners: DataOwners::new(header, variables),
                    uses: FrameUses::default(),
                    stack: Vec::new(),
                    pending: BTreeMap::new(),
                })
            }
        };
        Ok(AccessTable { rows, owners, kinds: None })
    }

    pub(super) fn define(&mut self, translation: &Translation) {
        if let Some(owners) = &mut self.owners {
            let is_kernel = translation.is_kernel();
            let stack = translation.code_by_instruction();
            let stack = stack.map(|(_, code)| is_kernel && accesses_only_a_stack(code));
            owners.stack.push(stack.collect());
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.rows.has_ended()
    }

    pub(super) fn passes(&mut self, position: u64) {
        if self.owners.as_ref().is_none_or(|owners| owners.pending.is_empty()) {
            self.rows.passes(position);
        }
    }

    pub(super) fn finish(mut self, names: &mut Names) {
        if let Some(owners) = &mut self.owners {
            let frames: Vec<u64> = owners.pending.keys().copied().collect();
            for frame in frames {
                let id = owners.owners.settle(frame);
                owners.settle(&mut self.rows, names, frame, id);
            }
        }
        self.rows.finish(names);
    }

    /// A part of the stream begins.
    pub(super) fn stream(&mut self, names: &mut Names, accesses: &Accesses) {
        if let Some(owners) = &mut self.owners {
            let mut settled = Vec::new();
            let settle = |frame, id| settled.push((frame, id));
            owners.uses.stream(accesses, &mut owners.owners, settle);
            for (frame, id) in settled {
                owners.settle(&mut self.rows, names, frame, id);
            }
        }
    }

    /// `places`: the executions in the piece's words.
    pub(super) fn piece(
        &mut self,
        data: &PieceData<'_>,
        codes: &[TranslatedCode],
        places: &[Place],
        known: &[KnownCode],
        tasks: &KnownTasks,
        names: &mut Names,
    ) {
        let [load, store] =
            *self.kinds.get_or_insert_with(|| [names.id("load"), names.id("store")]);
        let (wants_code, wants_address) = (self.rows.wants("code"), self.rows.wants("address"));
        for ((_, accesses), place) in data.executed().zip(places) {
            if let Some(owners) = &mut self.owners {
                let mut settled = Vec::new();
                let settle = |frame, id| settled.push((frame, id));
                owners.uses.executed(&mut owners.owners, settle);
                for (frame, id) in settled {
                    owners.settle(&mut self.rows, names, frame, id);
                }
            }
            let [task, pid] = tasks.cells(place.task);
            let function = known[place.translation as usize].function;
            let code = &codes[place.translation as usize];
            for access in accesses {
                let needs_address = wants_address || self.owners.is_some();
                let address = needs_address.then(|| data.flow.virtual_address(access));
                let physical = access.physical.0;
                let mut cells: [Cell; COLUMNS] = [
                    (place.start + u64::from(access.instruction)).into(),
                    place.cpu.into(),
                    task,
                    pid,
                    function.into(),
                    wants_code.then(|| code.addr_of(access.instruction).0).into(),
                    if access.is_store { store.into() } else { load.into() },
                    address.into(),
                    u64::from(access.size).into(),
                    physical.into(),
                    Cell::Null,
                    Cell::Null,
                ];
                if let (Some(owners), Some(address)) = (&mut self.owners, address) {
                    let frame = physical >> 12;
                    let stack = &owners.stack[place.translation as usize];
                    if stack.get(usize::from(access.instruction)).copied().unwrap_or(false) {
                        owners.owners.is_a_stack(address, frame);
                    }
                    match owners.owners.owner(address, frame) {
                        MissOwner::Pending(frame) => {
                            owners.pending.entry(frame).or_default().push(cells);
                            continue;
                        }
                        MissOwner::Known(id) => {
                            let structure = &owners.owners.structures()[id.0 as usize];
                            let [class, name] = structure_cells(names, structure);
                            (cells[COLUMNS - 2], cells[COLUMNS - 1]) = (class, name);
                        }
                    }
                }
                self.rows.push(names, cells);
            }
        }
    }
}

impl Owners {
    fn settle(&mut self, rows: &mut Rows, names: &mut Names, frame: u64, id: StructureId) {
        let Some(pending) = self.pending.remove(&frame) else { return };
        let structure = &self.owners.structures()[id.0 as usize];
        let [class, structure] = structure_cells(names, structure);
        for mut cells in pending {
            (cells[COLUMNS - 2], cells[COLUMNS - 1]) = (class, structure);
            rows.push(names, cells);
        }
    }
}
