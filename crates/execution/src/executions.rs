//! The executions of a recording with data accesses, one after the other.
//!
//! Input: a recording, and machines. Output, for each execution: the lines that its code lies in,
//! and its loads and stores. This module simulates and counts nothing.

use crate::code::TranslatedCode;
use crate::data::{DataAccess, DataFlow, DataWish, Execution};
use crate::fetched::FetchedUnits;
use crate::numbering::FetchUnit;
use crate::walk::{self, Observer, Piece, PieceControl, PieceData, Wants};
use anyhow::{Result, ensure};
use sim::{LineId, MachineModel, PhysAddr};
use std::io::Read;
use trace::{Accesses, RecordingHeader, RecordingReader, RunAddr, Task, Translation};

/// The recording has no data accesses, and the work needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the recording has no data accesses: record the workload with them")]
pub struct NoDataAccesses;

/// Receives every execution.
pub trait ExecutionVisitor {
    /// Whether [`ExecutionVisitor::control`] is needed.
    const NEEDS_CONTROL: bool = false;
    /// A translation block, before its first execution.
    fn define(&mut self, translation: &Translation);
    /// Tasks, before they run.
    fn tasks(&mut self, _: &[Task]) {}
    /// A stream begins.
    fn stream(&mut self, accesses: &Accesses);
    /// The way of control in the executions that come next.
    fn control(&mut self, _: &PieceControl<'_>) {}
    /// The next execution.
    fn executed(&mut self, executed: &Executed<'_>);
}

/// One execution of a translation block.
#[derive(Clone, Copy)]
pub struct Executed<'a> {
    /// The execution.
    pub execution: &'a Execution,
    /// Its code.
    pub code: &'a TranslatedCode,
    /// Its loads and stores.
    pub accesses: &'a [DataAccess],
    /// Gives the virtual address of an access.
    pub flow: &'a DataFlow,
    fetched: &'a [FetchedUnits],
}

impl Executed<'_> {
    /// The number of instructions that ran, when the block was left midway.
    pub fn left(&self) -> Option<u32> {
        (self.execution.left != 0).then_some(self.execution.left.into())
    }

    /// The instructions that ran.
    pub fn instructions(&self) -> u64 {
        self.left().map_or(self.code.lengths.len() as u64, u64::from)
    }

    /// The lines that a machine's L1I fetches, each with the first address in it. `machine`: an
    /// index into the list of machines.
    pub fn fetches(&self, machine: usize) -> impl Iterator<Item = (LineId, RunAddr, PhysAddr)> {
        let fetched = &self.fetched[machine];
        let left = self.execution.left.into();
        let lines = fetched.executed(self.execution.translation.0, self.code, left);
        lines.map(|at| (fetched.ids()[at], fetched.addrs()[at], fetched.physical()[at]))
    }
}

/// The lines of the code of a recording, for machines.
pub struct ExecutedCode {
    /// By machine.
    fetched: Vec<FetchedUnits>,
}

impl ExecutedCode {
    /// No code yet, for these machines.
    pub fn new(machines: &[MachineModel]) -> ExecutedCode {
        let lines = |machine: &MachineModel| {
            FetchedUnits::new(FetchUnit::Lines(machine.l1i_line), machine.l1i.sets())
        };
        ExecutedCode { fetched: machines.iter().map(lines).collect() }
    }

    /// Adds the next translation block.
    ///
    /// # Errors
    /// There is more code than a simulation can number.
    pub fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> Result<()> {
        let mut each = self.fetched.iter_mut();
        each.try_for_each(|fetched| fetched.push_recorded(translation, code))
    }

    /// Gives the code of these executions its physical addresses.
    ///
    /// # Errors
    /// There is more code than a simulation can number.
    pub fn locate(&mut self, codes: &[TranslatedCode], data: &PieceData<'_>) -> Result<()> {
        for execution in data.executions {
            let (id, code) = (execution.translation, &codes[execution.translation.0 as usize]);
            for fetched in &mut self.fetched {
                fetched.locate(id.0, |addr| data.flow.code(addr, code, id, data.patterns))?;
            }
        }
        Ok(())
    }

    /// One of the executions that were located.
    #[inline]
    pub fn executed<'a>(
        &'a self,
        codes: &'a [TranslatedCode],
        flow: &'a DataFlow,
        (execution, accesses): (&'a Execution, &'a [DataAccess]),
    ) -> Executed<'a> {
        let code = &codes[execution.translation.0 as usize];
        Executed { execution, code, accesses, flow, fetched: &self.fetched }
    }
}

/// Gives every execution of a recording to `visitor`, as an observer of it.
pub struct EachExecution<'m, V> {
    machines: &'m [MachineModel],
    code: ExecutedCode,
    /// The receiver of the executions.
    pub visitor: V,
}

impl<'m, V: ExecutionVisitor> EachExecution<'m, V> {
    /// An observer for these machines.
    pub fn new(machines: &'m [MachineModel], visitor: V) -> EachExecution<'m, V> {
        EachExecution { machines, code: ExecutedCode::new(machines), visitor }
    }
}

/// Gives every execution of a recording to `visitor`, and returns the visitor.
///
/// # Errors
/// The recording is damaged or has no data accesses.
pub fn walk<R: Read, V: ExecutionVisitor>(
    reader: RecordingReader<R>,
    machines: &[MachineModel],
    visitor: V,
) -> Result<V> {
    let mut each = EachExecution::new(machines, visitor);
    walk::walk(reader, &mut each)?;
    Ok(each.visitor)
}

impl<V: ExecutionVisitor> Observer for EachExecution<'_, V> {
    fn begin(&mut self, _: &RecordingHeader, has_data: bool) -> Result<Wants> {
        ensure!(has_data, NoDataAccesses);
        let data = Some(DataWish::of(self.machines));
        Ok(Wants { control: V::NEEDS_CONTROL, ended: V::NEEDS_CONTROL, data, ..Wants::default() })
    }

    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()> {
        for (translation, code) in translations.iter().zip(codes) {
            self.code.define(translation, code)?;
            self.visitor.define(translation);
        }
        Ok(())
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.visitor.tasks(tasks);
    }

    fn stream(&mut self, accesses: &Accesses) {
        self.visitor.stream(accesses);
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        let Some(data) = &piece.data else { return Ok(()) };
        self.code.locate(piece.codes, data)?;
        piece.control.iter().for_each(|control| self.visitor.control(control));
        for executed in data.executed() {
            self.visitor.executed(&self.code.executed(piece.codes, data.flow, executed));
        }
        Ok(())
    }
}
