//! A core for the operating system (Nellans 2005, section 4): what moves there, and the effects.
//!
//! Takes a recording with data accesses, the kernel's symbols, a machine with such a core and
//! policies; gives time, misses and energy by policy. Reads the recording once for the stays in the
//! kernel and once for all policies. Asks the guest nothing, prints nothing.

mod calendar;
mod cores;
pub mod policy;
pub mod table;
#[cfg(test)]
mod tests;

use anyhow::Result;
use cores::{OsCoreMachine, PolicyRun, PolicyWalk};
use execution::executions::EachExecution;
use policy::{BoundPolicy, OsCorePolicy};
use services::binding::Binding;
use services::stays::{self, Stays};
use services::symbols::KernelSymbols;
use sim::MachineModel;
use std::io::Read;
use std::iter::once;
use table::OsCoreTable;
use trace::{RecordingHeader, RecordingReader};

/// A recording's stays in the kernel.
pub(crate) struct OsCoreStudy {
    header: RecordingHeader,
    stays: Stays,
}

impl OsCoreStudy {
    /// The first pass: finds the stays.
    ///
    /// # Errors
    /// The recording is damaged, of another kernel or without data accesses.
    pub(crate) fn new<R: Read>(
        reader: RecordingReader<R>,
        symbols: &KernelSymbols,
        binding: &Binding,
    ) -> Result<OsCoreStudy> {
        let header = reader.header().clone();
        let stays = stays::of(reader, symbols, binding)?;
        Ok(OsCoreStudy { header, stays })
    }

    /// A machine for the CPUs of the recording. `move_cycles` replaces the number in the machine's
    /// file.
    ///
    /// # Errors
    /// The machine has no core for the operating system, or too few application cores;
    /// `move_cycles` is not possible.
    pub(crate) fn machine<'m>(
        &self,
        machine: &'m MachineModel,
        move_cycles: Option<f64>,
    ) -> Result<OsCoreMachine<'m>> {
        OsCoreMachine::new(machine, self.header.cpus, move_cycles)
    }

    /// Binds the policies to the services of the recording. A policy that moves nothing comes
    /// first.
    ///
    /// # Errors
    /// A policy names no service of the recording.
    pub(crate) fn bind(&self, policies: &[OsCorePolicy]) -> Result<Vec<BoundPolicy>> {
        let all = once(&OsCorePolicy::Nothing).chain(policies);
        all.map(|policy| policy.bind(&self.stays)).collect()
    }

    /// Runs the recording under one policy, as an observer of it.
    pub(crate) fn running<'s>(
        &'s self,
        machine: &'s OsCoreMachine<'s>,
        policy: &'s BoundPolicy,
    ) -> EachExecution<'s, PolicyWalk<'s>> {
        machine.running(&self.stays, policy)
    }

    /// The rows of `runs`, one for each policy that [`OsCoreStudy::bind`] returned.
    pub(crate) fn table(&self, machine: &OsCoreMachine<'_>, runs: &[PolicyRun]) -> OsCoreTable {
        OsCoreTable::new(&self.header, machine, runs)
    }
}
