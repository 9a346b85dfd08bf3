//! Each execution of a branch, with where it went.

use super::{KnownCode, Place};
use crate::batch::{Cell, Names, Rows, TextId};
use crate::produce::invocations::KnownTasks;
use execution::code::{LastInstruction, TranslatedCode};
use execution::flow::FragmentExit;
use execution::per_cpu::PerCpu;
use execution::walk::Piece;
use sim::BranchKind;
use std::collections::{HashMap, VecDeque};
use trace::Translation;

const COLUMNS: usize = 9;

pub(super) struct BranchTable {
    rows: Rows,
    kinds: HashMap<&'static str, TextId>,
    /// By CPU: the executions whose end is not known yet.
    open: PerCpu<VecDeque<Place>>,
    /// By translation: conditional branches whose decision an interruption hides.
    hidden: HashMap<u32, Vec<[Cell; COLUMNS]>>,
    /// By translation: the address of the last instruction.
    last: Vec<u64>,
}

impl BranchTable {
    pub(super) fn new(rows: Rows) -> BranchTable {
        BranchTable {
            rows,
            kinds: HashMap::new(),
            open: PerCpu::default(),
            hidden: HashMap::new(),
            last: Vec::new(),
        }
    }

    pub(super) fn define(&mut self, translation: &Translation) {
        let last = translation.code_by_instruction().last();
        self.last.push(last.map_or(translation.addr.0, |(addr, _)| addr.0));
    }

    pub(super) fn has_ended(&self) -> bool {
        self.rows.has_ended()
    }

    pub(super) fn passes(&mut self, position: u64) {
        if self.hidden.values().all(Vec::is_empty) {
            // The last execution of each CPU is still open.
            let open = self.open.values().filter_map(|open| open.front());
            let first = open.map(|place| place.start).min();
            self.rows.passes(first.unwrap_or(position));
        }
    }

    pub(super) fn finish(mut self, names: &mut Names) {
        let mut hidden: Vec<_> = self.hidden.into_iter().collect();
        hidden.sort_unstable_by_key(|(translation, _)| *translation);
        for cells in hidden.into_iter().flat_map(|(_, cells)| cells) {
            self.rows.push(names, cells);
        }
        self.rows.finish(names);
    }

    /// `places`: the executions in the piece's words.
    pub(super) fn piece(
        &mut self,
        piece: &Piece<'_>,
        places: &[Place],
        codes: &[KnownCode],
        tasks: &KnownTasks,
        names: &mut Names,
    ) {
        let Some(control) = &piece.control else { return };
        self.open.turn_to(piece.cpu, VecDeque::new);
        self.open.current.extend(places);
        for id in control.fragments {
            let fragment = control.flow.fragments[id.0 as usize];
            let translation = fragment.translation.0;
            if matches!(fragment.exit, FragmentExit::LateNext | FragmentExit::LateTaken) {
                let taken = fragment.exit == FragmentExit::LateTaken;
                let target = piece.codes[translation as usize].target();
                if let Some(mut cells) = self.hidden.get_mut(&translation).and_then(Vec::pop) {
                    cells[COLUMNS - 2] = taken.into();
                    cells[COLUMNS - 1] = target.filter(|_| taken).map(|it| it.0).into();
                    self.rows.push(names, cells);
                }
                continue;
            }
            let Some(place) = self.open.current.pop_front() else { continue };
            if matches!(fragment.exit, FragmentExit::Midway(_)) {
                continue;
            }
            let next = self.open.current.front().map(|next| codes[next.translation as usize].addr);
            let code = &piece.codes[translation as usize];
            self.branch(
                &place,
                code,
                fragment.exit,
                next,
                &codes[translation as usize],
                tasks,
                names,
            );
        }
    }

    #[allow(clippy::too_many_arguments, reason = "each is a part of the row")]
    fn branch(
        &mut self,
        place: &Place,
        code: &TranslatedCode,
        exit: FragmentExit,
        next: Option<u64>,
        known: &KnownCode,
        tasks: &KnownTasks,
        names: &mut Names,
    ) {
        let shown = (exit != FragmentExit::Interrupted).then_some(next).flatten();
        let (kind, taken, target) = match code.last {
            LastInstruction::Plain => return,
            LastInstruction::Conditional { target } => match exit {
                FragmentExit::Taken => ("conditional", Some(true), Some(target.0)),
                FragmentExit::Next => ("conditional", Some(false), None),
                _ => ("conditional", None, None),
            },
            LastInstruction::Jump { target } => ("jump", Some(true), Some(target.0)),
            LastInstruction::Call { target } => ("call", Some(true), Some(target.0)),
            LastInstruction::InterruptReturn => ("interrupt return", Some(true), shown),
            LastInstruction::Taken(kind) => {
                let name = match kind {
                    BranchKind::Return => "return",
                    BranchKind::IndirectCall => "indirect call",
                    _ => "indirect jump",
                };
                (name, Some(true), shown)
            }
        };
        let kind = *self.kinds.entry(kind).or_insert_with(|| names.id(kind));
        let [task, pid] = tasks.cells(place.task);
        let cells: [Cell; COLUMNS] = [
            (place.start + u64::from(known.instructions) - 1).into(),
            place.cpu.into(),
            task,
            pid,
            known.function.into(),
            self.last[place.translation as usize].into(),
            kind.into(),
            taken.into(),
            target.into(),
        ];
        match (code.last, exit) {
            (LastInstruction::Conditional { .. }, FragmentExit::Interrupted) => {
                self.hidden.entry(place.translation).or_default().push(cells);
            }
            _ => self.rows.push(names, cells),
        }
    }
}
