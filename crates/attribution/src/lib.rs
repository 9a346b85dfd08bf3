//! Attributes a recording's time and misses to services, functions and data structures.
//!
//! Takes a recording, its kernel's symbols, annotations and machines; gives tables. [`Attribution`]
//! holds what all analyses share. Prints nothing except progress on a terminal; never asks the
//! guest.
//!
//! The ledger holds the totals of each service:
//!
//! ```
//! use kernlane_attribution::services::annotations::ServiceKind;
//! use kernlane_attribution::services::ledger::{Invocation, Ledger, InvocationTimes};
//!
//! let mut ledger = Ledger::default();
//! let read = ledger.service(ServiceKind::SystemCall, "read");
//! let times = InvocationTimes { latency: 900, ran: 700, blocked: 200, waiting: 0 };
//! ledger.add(read, &Invocation { instructions: 500, machines: Vec::new(), times });
//! let totals = &ledger.accounts[0].totals;
//! assert_eq!((totals.calls, totals.instructions, totals.times.latency), (1, 500, 900));
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

mod code_lines;
mod coherent_step;
mod executions;
pub mod generations;
pub mod locks;
pub mod misses;
pub mod multiprocessor;
pub mod os_core;
pub mod services;
pub mod sharing;
pub mod sizes;

use crate::generations::Generations;
use crate::locks::table::LockTable;
use crate::misses::table::MissTable;
use crate::multiprocessor::{L2SizeRow, MultiprocessorTable, l2_sizes};
use crate::os_core::OsCoreStudy;
use crate::os_core::policy::{BoundPolicy, OsCorePolicy};
use crate::os_core::table::OsCoreTable;
use crate::services::annotations::Annotations;
use crate::services::binding::Binding;
use crate::services::calls::CallTree;
use crate::services::locality::{Locality, POPULAR};
use crate::services::symbols::KernelSymbols;
use crate::services::table::ServiceTable;
use crate::services::timeline::Timeline;
use crate::services::{Attributed, ServicesAndFunctions};
use crate::sharing::SharingStudy;
use crate::sharing::names::DataNames;
use crate::sharing::table::SharingTable;
use crate::sharing::what_if::SharingChange;
use anyhow::{Context, Result, ensure};
use execution::machine;
use execution::part::{RecordingPart, open_executions};
use host::note;
use host::progress::Progress;
use host::recording::Recording;
use image::{Image, vmlinux};
use profile::collect::{self, ExtraCounts};
use rayon::prelude::*;
use sim::MachineModel;
use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::Path;
use trace::{RecordingHeader, RecordingReader};

/// A recording's services, their chains of calls, and the execution over time.
pub struct ObservedRecording {
    /// The services.
    pub table: ServiceTable,
    /// The chains of calls.
    pub calls: CallTree,
    /// The execution over time.
    pub timeline: Timeline,
}

impl ObservedRecording {
    /// What the numbers depend on, in one line.
    pub fn conditions(&self) -> String {
        let ServiceTable { workload, kernel, seed, .. } = &self.table;
        let machine = self.table.machines.first();
        let machine = machine
            .map_or(String::new(), |machine| format!(", machine {} (simulated)", machine.name));
        format!("workload {workload}, kernel {kernel}, seed {seed}{machine}")
    }

    /// What the numbers depend on, by name.
    pub fn conditions_by_name(&self) -> [(&'static str, String); 4] {
        let ServiceTable { workload, kernel, seed, .. } = &self.table;
        conditions_by_name(
            workload,
            kernel,
            *seed,
            self.table.machines.first().map(|machine| &*machine.name),
        )
    }
}

/// What numbers depend on, for files that store it by name. `machine`: the simulated machine.
pub fn conditions_by_name(
    workload: &str,
    kernel: &str,
    seed: u64,
    machine: Option<&str>,
) -> [(&'static str, String); 4] {
    [
        ("workload", workload.to_owned()),
        ("kernel", kernel.to_owned()),
        ("seed", seed.to_string()),
        ("machine", machine.unwrap_or("none").to_owned()),
    ]
}

/// A kernel's symbols with the annotations bound to them, and machines.
pub struct Attribution {
    /// The kernel's code symbols.
    pub symbols: KernelSymbols,
    /// The annotations, bound to the symbols.
    pub binding: Binding,
    /// The machines to simulate.
    pub machines: Vec<MachineModel>,
    /// The part of each recording that is analyzed, as if the recording had no other executions.
    pub part: RecordingPart,
}

impl Attribution {
    /// `kernel`: a build tree, a vmlinux or a System.map. `annotations`: a file; `None` for the
    /// shipped annotations.
    ///
    /// # Errors
    /// A file cannot be read, the annotations are invalid, `kernel` names no code, or a machine is
    /// unknown.
    pub fn open(
        kernel: &Path,
        annotations: Option<&Path>,
        machines: &[String],
    ) -> Result<Attribution> {
        let annotations = match annotations {
            None => Annotations::shipped()?,
            Some(path) => {
                let named = || path.display().to_string();
                Annotations::parse(&std::fs::read_to_string(path).with_context(named)?)
                    .with_context(named)?
            }
        };
        let symbols = KernelSymbols::read(&vmlinux::path(kernel))?;
        Ok(Attribution {
            binding: Binding::new(&annotations, &symbols),
            symbols,
            machines: machines.iter().map(|name| machine::find(name)).collect::<Result<_>>()?,
            part: RecordingPart::WHOLE,
        })
    }

    /// The services of a recording (a directory). Shows progress on a terminal.
    ///
    /// # Errors
    /// The recording cannot be read, is damaged, or is of another kernel.
    pub fn table(&self, recording: &Path) -> Result<ServiceTable> {
        self.read(recording, "services", |reader| {
            let (symbols, binding) = (&self.symbols, &self.binding);
            let attributed = match self.machines.iter().any(|machine| machine.core.is_some()) {
                true => {
                    let machines = &self.machines;
                    services::attribute_with_branches(reader, symbols, binding, machines, false)?
                }
                false => services::attribute(reader, symbols, binding, &self.machines)?,
            };
            Ok(self.to_table(reader.header(), &attributed))
        })
    }

    /// As `table`, with branch prediction.
    ///
    /// # Errors
    /// No machine describes branch prediction.
    pub fn table_with_branches(&self, recording: &Path) -> Result<ServiceTable> {
        ensure!(
            self.machines.iter().any(|machine| machine.branch.is_some()),
            "--branches needs a --machine with a table [branch] in its file: server-32k, for \
             example"
        );
        self.read(recording, "services", |reader| {
            let attributed = services::attribute_with_branches(
                reader,
                &self.symbols,
                &self.binding,
                &self.machines,
                true,
            )?;
            Ok(self.to_table(reader.header(), &attributed))
        })
    }

    /// The misses of a recording, one table for each machine. `kernel`: as for `open`.
    ///
    /// # Errors
    /// As [`Attribution::table`]. The recording has no data accesses, no machine is given, or a
    /// machine has no data cache.
    pub fn misses(&self, recording: &Path, kernel: &Path) -> Result<Vec<MissTable>> {
        ensure!(!self.machines.is_empty(), "name a machine to simulate: --machine server-32k");
        self.misses_on(recording, kernel, &self.machines)
    }

    /// As `misses`, on the first machine with data stalls in `observed`. `None` when no machine has
    /// a data cache, the recording has no data accesses, or the symbols are not from a vmlinux.
    ///
    /// # Errors
    /// As [`Attribution::misses`].
    pub fn data_misses(
        &self,
        recording: &Path,
        kernel: &Path,
        observed: &ServiceTable,
    ) -> Result<Option<MissTable>> {
        let counted = observed.machines.iter().position(|machine| machine.kernel_stalls.is_some());
        let Some(machine) = counted.and_then(|at| self.machines.get(at)) else {
            return Ok(None);
        };
        if self.symbols.build_id.is_none() {
            note!(
                "{}: no misses by data structure: the names of data need the kernel's vmlinux",
                kernel.display()
            );
            return Ok(None);
        }
        let mut tables = self.misses_on(recording, kernel, std::slice::from_ref(machine))?;
        Ok(tables.pop())
    }

    fn misses_on(
        &self,
        recording: &Path,
        kernel: &Path,
        machines: &[MachineModel],
    ) -> Result<Vec<MissTable>> {
        self.read(recording, "misses", |reader| {
            misses::misses(reader, &self.symbols, &vmlinux::path(kernel), machines)
        })
    }

    /// The `top` lines that CPUs take from each other, one table for each machine. `kernel`: as for
    /// `open`. Reads the recording twice for each machine.
    ///
    /// # Errors
    /// As [`Attribution::table`]. The recording has one CPU or no data accesses, a machine has no
    /// coherent caches or too few cores, `kernel` is no vmlinux, or `top` is too large.
    pub fn sharing(
        &self,
        recording: &Path,
        kernel: &Path,
        top: usize,
    ) -> Result<Vec<SharingTable>> {
        sharing::check_top(top)?;
        let names = DataNames::read(&vmlinux::path(kernel))?;
        let of_machine = |machine: &MachineModel| {
            let study = SharingStudy::new(&self.symbols, &names, machine);
            let ranking = self.read(recording, "lines", |reader| study.rank(reader))?;
            self.read(recording, "fields", |reader| study.table(reader, &ranking, top))
        };
        self.machines.iter().map(of_machine).collect()
    }

    /// The locks of a recording, one table for each machine. `kernel`: as for `open`.
    ///
    /// # Errors
    /// As [`Attribution::table`]. The recording has no data accesses, a machine has no coherent
    /// caches or too few cores, `kernel` is no vmlinux or has no lock functions.
    pub fn locks(&self, recording: &Path, kernel: &Path) -> Result<Vec<LockTable>> {
        let names = DataNames::read(&vmlinux::path(kernel))?;
        let of_machine = |machine: &MachineModel| {
            self.read(recording, "locks", |reader| {
                locks::locks(reader, &self.symbols, &names, machine)
            })
        };
        self.machines.iter().map(of_machine).collect()
    }

    /// What coherence costs when data moves to lines of its own, for each machine. `requests`: as
    /// `SYMBOL.FIELD -> own line`.
    ///
    /// # Errors
    /// As [`Attribution::sharing`]. A request names no data.
    pub fn sharing_what_if(
        &self,
        recording: &Path,
        kernel: &Path,
        requests: &[String],
    ) -> Result<Vec<SharingChange>> {
        let names = DataNames::read(&vmlinux::path(kernel))?;
        let of_machine = |machine: &MachineModel| {
            let study = SharingStudy::new(&self.symbols, &names, machine);
            let ranking = self.read(recording, "as it is", |reader| study.rank(reader))?;
            self.read(recording, "what if", |reader| study.what_if(reader, &ranking, requests))
        };
        self.machines.iter().map(of_machine).collect()
    }

    /// The services of a recording of several CPUs on coherent caches, one table for each machine.
    /// `one_cpu`: a recording of one CPU to compare them with.
    ///
    /// # Errors
    /// As [`Attribution::table`]. A recording has no data accesses, a machine has no coherent
    /// caches or too few cores, or the recordings cannot be compared.
    pub fn multiprocessor(
        &self,
        recording: &Path,
        one_cpu: Option<&Path>,
    ) -> Result<Vec<MultiprocessorTable>> {
        let of_machine = |machine| self.multiprocessor_on(machine, recording, one_cpu);
        self.machines.iter().map(of_machine).collect()
    }

    /// As `multiprocessor`, on this machine.
    ///
    /// # Errors
    /// As [`Attribution::multiprocessor`].
    pub fn multiprocessor_on(
        &self,
        machine: &MachineModel,
        recording: &Path,
        one_cpu: Option<&Path>,
    ) -> Result<MultiprocessorTable> {
        let counted = |path: &Path, what: &str| {
            self.read(path, what, |reader| {
                let (symbols, binding) = (&self.symbols, &self.binding);
                let attributed = services::attribute_coherent(reader, symbols, binding, machine)?;
                Ok((reader.header().clone(), attributed))
            })
        };
        let (header, attributed) = counted(recording, "services")?;
        let of_one = one_cpu.map(|path| counted(path, "services of one CPU")).transpose()?;
        let (name, of_one) = (&machine.name, of_one.as_ref());
        let table = MultiprocessorTable::new(&header, name, &attributed, of_one)?;
        let misses = |path: &Path, bytes: u64| {
            let other = l2_sizes::with_l2(machine, bytes)?;
            self.read(path, &format!("L2 of {} KB", bytes >> 10), |reader| {
                l2_sizes::count(reader, &other)
            })
        };
        let of_size = |&bytes: &u64| {
            let on_one_cpu = one_cpu.map(|path| misses(path, bytes)).transpose()?;
            anyhow::Ok(L2SizeRow { bytes, misses: misses(recording, bytes)?, on_one_cpu })
        };
        let rows: Vec<Result<L2SizeRow>> = l2_sizes::SIZES.par_iter().map(of_size).collect();
        let l2_sizes = rows.into_iter().collect::<Result<_>>()?;
        Ok(MultiprocessorTable { l2_sizes, ..table })
    }

    /// What a core for the operating system brings under each policy, one table for each machine.
    /// `move_cycles` replaces the machine's. Goes through the recording once for each policy,
    /// several at once.
    ///
    /// # Errors
    /// As [`Attribution::table`]. The recording has no data accesses, a machine has no core for the
    /// operating system or too few cores, or a policy names no service of the recording.
    pub fn os_core(
        &self,
        recording: &Path,
        policies: &[OsCorePolicy],
        move_cycles: Option<f64>,
    ) -> Result<Vec<OsCoreTable>> {
        let find = |reader: &mut RecordingReader<_>| {
            OsCoreStudy::new(reader, &self.symbols, &self.binding)
        };
        let study = self.read(recording, "stays in the kernel", find)?;
        let bound = study.bind(policies)?;
        let of_machine = |machine: &MachineModel| {
            let machine = study.machine(machine, move_cycles)?;
            let run = |policy: &BoundPolicy| {
                let named = policy.policy().to_string();
                self.read(recording, &named, |reader| study.run(reader, &machine, policy))
            };
            // In order, so that of several errors the same one is named each time.
            let runs: Vec<Result<_>> = bound.par_iter().map(run).collect();
            Ok(study.table(&machine, &runs.into_iter().collect::<Result<Vec<_>>>()?))
        };
        self.machines.iter().map(of_machine).collect()
    }

    /// As `table`, with the totals of each function.
    ///
    /// # Errors
    /// As [`Attribution::table`].
    pub fn recorded(&self, recording: &Path) -> Result<ServicesAndFunctions> {
        self.read(recording, "services", |reader| {
            let (attributed, functions) = services::attribute_with_functions(
                reader,
                &self.symbols,
                &self.binding,
                &self.machines,
            )?;
            Ok(ServicesAndFunctions {
                table: self.to_table(reader.header(), &attributed),
                functions,
            })
        })
    }

    /// As `table`, with the chains of calls and the execution over time.
    ///
    /// # Errors
    /// As [`Attribution::table`].
    pub fn observed(&self, recording: &Path) -> Result<ObservedRecording> {
        self.read(recording, "services", |reader| {
            let (attributed, calls, timeline) = services::attribute_with_calls(
                reader,
                &self.symbols,
                &self.binding,
                &self.machines,
            )?;
            Ok(ObservedRecording {
                table: self.to_table(reader.header(), &attributed),
                calls,
                timeline,
            })
        })
    }

    /// The services of a part of a recording on each machine, all others compared with the first.
    /// Each machine goes through the recording by itself, several at once.
    ///
    /// # Errors
    /// As [`Attribution::table`]; or the bounds of the part are wrong.
    pub fn generations(&self, recording: &Path, part: &RecordingPart) -> Result<Generations> {
        let bounds = bounds(recording, part)?;
        let counted = |machine: &MachineModel| {
            // Cores take the fixed data behaviour.
            let takes_data = part.is_whole() && machine.core.is_none();
            let prepare = |reader: RecordingReader<_>| match (takes_data, &bounds) {
                (true, _) => reader,
                (false, None) => reader.without_data(),
                (false, Some(part)) => reader.without_data().of_part(part.start, part.end),
            };
            read_prepared(recording, &machine.name, prepare, |reader| {
                let machines = std::slice::from_ref(machine);
                let (symbols, binding) = (&self.symbols, &self.binding);
                let attributed = services::attribute_cores(reader, symbols, binding, machines)?;
                Ok((reader.header().clone(), attributed))
            })
        };
        // In order, so that of several errors the same one is named each time.
        let all: Vec<Result<_>> = self.machines.par_iter().map(counted).collect();
        let all = all.into_iter().collect::<Result<Vec<_>>>()?;
        let (headers, counted): (Vec<RecordingHeader>, Vec<Attributed>) = all.into_iter().unzip();
        let header = headers.first().context("name machines to compare: --machine zen4")?;
        Ok(Generations::new(header, part, &self.machines, &counted))
    }

    /// The locality of the kernel's code in a recording. `image`: the kernel's image.
    ///
    /// # Errors
    /// As [`Attribution::table`]; or the image is of another kernel.
    pub fn locality(&self, recording: &Path, image: &Image) -> Result<Locality> {
        let ServicesAndFunctions { table, functions } = self.recorded(recording)?;
        let all_calls = functions.values().map(|totals| totals.calls).sum();
        let mut by_calls: Vec<(String, u64)> =
            functions.into_iter().map(|(name, totals)| (name, totals.calls)).collect();
        by_calls.sort_by(|(a, a_calls), (b, b_calls)| b_calls.cmp(a_calls).then_with(|| a.cmp(b)));
        by_calls.truncate(POPULAR);
        let names: Vec<String> = by_calls.iter().map(|(name, _)| name.clone()).collect();
        let reuses = self.read(recording, "services", |reader| {
            services::reuses(reader, &self.symbols, &names)
        })?;
        let popular =
            by_calls.into_iter().zip(reuses).map(|((name, calls), reuses)| (name, calls, reuses));
        let profile =
            collect::of_recording(&Recording::at(recording), image, &self.part, ExtraCounts::None)?;
        Locality::new(image, &profile, &table, popular.collect(), all_calls)
    }

    /// Reads the part of a recording that is analyzed, see [`read_part`].
    fn read<T>(
        &self,
        recording: &Path,
        what: &str,
        walk: impl FnOnce(&mut RecordingReader<Box<dyn Read>>) -> Result<T>,
    ) -> Result<T> {
        read_part(recording, &self.part, what, walk)
    }

    fn to_table(&self, header: &RecordingHeader, attributed: &Attributed) -> ServiceTable {
        ServiceTable::new(header, attributed, self.binding.blind.clone(), &self.machines)
    }
}

/// Reads a recording (a directory). Shows progress on a terminal, titled `what`.
///
/// # Errors
/// The recording cannot be opened, or `walk` fails.
pub fn read<T>(
    recording: &Path,
    what: &str,
    walk: impl FnOnce(&mut RecordingReader<Box<dyn Read>>) -> Result<T>,
) -> Result<T> {
    read_prepared(recording, what, |reader| reader, walk)
}

/// As [`read`], the part of a recording. The name of the workload says which part it is.
///
/// # Errors
/// As [`read`]; or the bounds of the part are wrong.
pub fn read_part<T>(
    recording: &Path,
    part: &RecordingPart,
    what: &str,
    walk: impl FnOnce(&mut RecordingReader<Box<dyn Read>>) -> Result<T>,
) -> Result<T> {
    let bounds = bounds(recording, part)?;
    let prepare = |reader: RecordingReader<_>| match bounds {
        None => reader,
        Some(bounds) => {
            let workload = format!("{}, {part} of it", reader.header().workload);
            reader.of_part(bounds.start, bounds.end).called(workload)
        }
    };
    read_prepared(recording, what, prepare, walk)
}

/// Where a part of a recording begins and ends, in instructions. `None`: it is the whole.
fn bounds(recording: &Path, part: &RecordingPart) -> Result<Option<Range<u64>>> {
    let recording = Recording::at(recording);
    let named = || recording.trace().display().to_string();
    part.bounds(|| open_executions(&recording)).with_context(named)
}

/// As [`read`], on what `prepare` makes of the reader.
fn read_prepared<T>(
    recording: &Path,
    what: &str,
    prepare: impl FnOnce(RecordingReader<Box<dyn Read>>) -> RecordingReader<Box<dyn Read>>,
    walk: impl FnOnce(&mut RecordingReader<Box<dyn Read>>) -> Result<T>,
) -> Result<T> {
    let path = Recording::at(recording).trace();
    let named = || path.display().to_string();
    let file = File::open(&path).with_context(named)?;
    let progress = Progress::of(file.metadata().with_context(named)?.len(), what);
    let from: Box<dyn Read> = Box::new(progress.reading(BufReader::with_capacity(1 << 20, file)));
    let mut reader = prepare(RecordingReader::new(from).with_context(named)?);
    walk(&mut reader).with_context(named)
}
