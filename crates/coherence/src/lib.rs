//! How CPUs affect each other: lines that they take from each other, locks, services on several
//! CPUs, and a core for the operating system.
//!
//! Takes recordings with data accesses, their kernel and machines with coherent caches; gives
//! tables. Prints nothing; never asks the guest.

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod locks;
pub mod multiprocessor;
pub mod os_core;
pub mod sharing;
mod tasks;

use crate::locks::LockStudy;
use crate::locks::table::LockTable;
use crate::multiprocessor::{L2SizeRow, MultiprocessorTable, l2_sizes};
use crate::os_core::OsCoreStudy;
use crate::os_core::policy::OsCorePolicy;
use crate::os_core::table::OsCoreTable;
use crate::sharing::SharingStudy;
use crate::sharing::table::SharingTable;
use crate::sharing::what_if::SharingChange;
use anyhow::Result;
use execution::cpu_order::CpuOrder;
use execution::opened::Reader;
use execution::walk::{Observer, SideBySide};
use image::programs::UserPrograms;
use image::vmlinux;
use memory::objects::names::DataNames;
use services::{Attribution, ServicesWalk};
use sim::MachineModel;
use std::path::Path;

/// The `top` lines that CPUs take from each other, one table for each machine, with the CPUs in
/// this order. `kernel`: as for [`Attribution::open`]. Reads the recording twice for each machine.
///
/// # Errors
/// As [`Attribution::table`]. The recording has one CPU or no data accesses, a machine has no
/// coherent caches or too few cores, `kernel` is not a vmlinux, or `top` is too large.
pub fn sharing(
    attribution: &Attribution,
    order: CpuOrder,
    recording: &Path,
    kernel: &Path,
    programs: &UserPrograms,
    top: usize,
) -> Result<Vec<SharingTable>> {
    sharing::check_top(top)?;
    let names = DataNames::read(&vmlinux::path(kernel))?;
    let of_machine = |machine: &MachineModel| {
        let study = SharingStudy::new(&attribution.symbols, &names, machine, order);
        let ranking = attribution.read(recording, "lines", |reader| study.rank(reader))?;
        attribution.read(recording, "fields", |reader| study.table(reader, &ranking, top, programs))
    };
    attribution.machines.iter().map(of_machine).collect()
}

/// The locks of a recording, one table for each machine. `kernel`: as for [`Attribution::open`].
///
/// # Errors
/// As [`Attribution::table`]. The recording has no data accesses, a machine has no coherent caches
/// or too few cores, `kernel` is not a vmlinux or has no lock functions.
pub fn locks(
    attribution: &Attribution,
    order: CpuOrder,
    recording: &Path,
    kernel: &Path,
) -> Result<Vec<LockTable>> {
    let names = DataNames::read(&vmlinux::path(kernel))?;
    let of_machine = |machine: &MachineModel| {
        let study = LockStudy::new(&attribution.symbols, &names, machine, order);
        let simulated = attribution.read(recording, "caches", |reader| study.simulate(reader))?;
        attribution.read(recording, "locks", |reader| study.table(reader, &simulated))
    };
    attribution.machines.iter().map(of_machine).collect()
}

/// What coherence costs when data moves to lines of its own, for each machine. `requests`: texts
/// such as `SYMBOL.FIELD -> own line`.
///
/// # Errors
/// As [`sharing`]. A request names no data.
pub fn what_if(
    attribution: &Attribution,
    order: CpuOrder,
    recording: &Path,
    kernel: &Path,
    requests: &[String],
) -> Result<Vec<SharingChange>> {
    let names = DataNames::read(&vmlinux::path(kernel))?;
    let of_machine = |machine: &MachineModel| {
        let study = SharingStudy::new(&attribution.symbols, &names, machine, order);
        let ranking = attribution.read(recording, "as it is", |reader| study.rank(reader))?;
        attribution.read(recording, "what if", |reader| study.what_if(reader, &ranking, requests))
    };
    attribution.machines.iter().map(of_machine).collect()
}

/// The services of a recording of several CPUs on coherent caches, one table for each machine.
/// `one_cpu`: a recording of one CPU, with which they are compared.
///
/// # Errors
/// As [`Attribution::table`]. A recording has no data accesses, a machine has no coherent
/// caches or too few cores, or the recordings cannot be compared.
pub fn multiprocessor(
    attribution: &Attribution,
    order: CpuOrder,
    recording: &Path,
    one_cpu: Option<&Path>,
) -> Result<Vec<MultiprocessorTable>> {
    let of_machine = |machine| multiprocessor_on(attribution, machine, order, recording, one_cpu);
    attribution.machines.iter().map(of_machine).collect()
}

/// As `multiprocessor`, on this machine.
///
/// # Errors
/// As [`multiprocessor`].
pub fn multiprocessor_on(
    attribution: &Attribution,
    machine: &MachineModel,
    order: CpuOrder,
    recording: &Path,
    one_cpu: Option<&Path>,
) -> Result<MultiprocessorTable> {
    let sizes = l2_sizes::SIZES.iter().map(|&bytes| l2_sizes::with_l2(machine, bytes));
    let sizes: Vec<MachineModel> = sizes.collect::<Result<_>>()?;
    // The services, and the misses of L2s of all sizes.
    let counted = |path: &Path, title: &str| {
        let (totals, log, misses) = attribution.read(path, "caches", |reader| {
            multiprocessor::simulate(reader, machine, &sizes, order)
        })?;
        let opened = attribution.opened(path, title)?;
        let header = opened.header().clone();
        let (symbols, binding) = (&attribution.symbols, &attribution.binding);
        let mut services = ServicesWalk::coherent(symbols, binding, machine, &log)?;
        opened.walk(&mut services)?;
        anyhow::Ok(((header, services.finish()), totals, misses))
    };
    let ((header, attributed), totals, misses) = counted(recording, "services")?;
    let of_one = one_cpu.map(|path| counted(path, "services of one CPU")).transpose()?;
    let services_of_one = of_one.as_ref().map(|(services, ..)| services);
    let name = &machine.name;
    let table = MultiprocessorTable::new(&header, name, totals, &attributed, services_of_one)?;
    let row = |(number, bytes): (usize, &u64)| L2SizeRow {
        bytes: *bytes,
        misses: misses[number],
        on_one_cpu: of_one.as_ref().map(|(.., misses)| misses[number]),
    };
    let l2_sizes = l2_sizes::SIZES.iter().enumerate().map(row).collect();
    Ok(MultiprocessorTable { l2_sizes, ..table })
}

/// The effects of a core for the operating system under each policy, one table for each machine.
/// `move_cycles` replaces the number in the machine's file.
///
/// # Errors
/// As [`Attribution::table`]. The recording has no data accesses, a machine has no core for the
/// operating system or too few cores, or a policy names a service that the recording does not have.
pub fn os_core(
    attribution: &Attribution,
    recording: &Path,
    policies: &[OsCorePolicy],
    move_cycles: Option<f64>,
) -> Result<Vec<OsCoreTable>> {
    let find =
        |reader: Reader| OsCoreStudy::new(reader, &attribution.symbols, &attribution.binding);
    let study = attribution.read(recording, "stays in the kernel", find)?;
    let bound = study.bind(policies)?;
    let of_machine = |machine: &MachineModel| {
        let machine = study.machine(machine, move_cycles)?;
        let mut runs: Vec<_> = bound.iter().map(|policy| study.running(&machine, policy)).collect();
        let observers = runs.iter_mut().map(|run| run as &mut (dyn Observer + Send));
        attribution.opened(recording, "policies")?.walk(&mut SideBySide(observers.collect()))?;
        let runs: Vec<_> = runs.into_iter().map(|run| run.visitor.finish()).collect();
        Ok(study.table(&machine, &runs))
    };
    attribution.machines.iter().map(of_machine).collect()
}
