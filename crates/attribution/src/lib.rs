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

mod coherent_step;
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
use crate::misses::MissesWalk;
use crate::misses::table::MissTable;
use crate::multiprocessor::l2_sizes::L2Misses;
use crate::multiprocessor::{L2SizeRow, MultiprocessorTable, l2_sizes};
use crate::os_core::OsCoreStudy;
use crate::os_core::policy::OsCorePolicy;
use crate::os_core::table::OsCoreTable;
use crate::services::annotations::Annotations;
use crate::services::binding::Binding;
use crate::services::calls::CallTree;
use crate::services::locality::{Locality, POPULAR};
use crate::services::symbols::KernelSymbols;
use crate::services::table::ServiceTable;
use crate::services::timeline::Timeline;
use crate::services::{Attributed, ServicesAndFunctions, ServicesWalk};
use crate::sharing::SharingStudy;
use crate::sharing::names::DataNames;
use crate::sharing::table::SharingTable;
use crate::sharing::what_if::SharingChange;
use crate::sizes::{Sizes, SweptCaches};
use anyhow::{Context, Result, ensure};
use execution::opened::{OpenedRecording, Reader};
use execution::part::RecordingPart;
use execution::walk::{Observer, SideBySide};
use host::note;
use host::recording::Recording;
use image::{Image, vmlinux};
use profile::collect::{self, ExtraCounts};
use sim::{Hierarchy, MachineModel};
use std::path::Path;
use trace::{CpuCount, RecordingHeader};

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
            machines: machines::models(machines)?,
            part: RecordingPart::WHOLE,
        })
    }

    /// The services of a recording (a directory). Shows progress on a terminal.
    ///
    /// # Errors
    /// The recording cannot be read, is damaged, or is of another kernel.
    pub fn table(&self, recording: &Path) -> Result<ServiceTable> {
        self.read(recording, "services", |reader| {
            let header = reader.header().clone();
            let (symbols, binding) = (&self.symbols, &self.binding);
            let attributed = match self.machines.iter().any(|machine| machine.core.is_some()) {
                true => {
                    let machines = &self.machines;
                    services::attribute_with_branches(reader, symbols, binding, machines, false)?
                }
                false => services::attribute(reader, symbols, binding, &self.machines)?,
            };
            Ok(self.to_table(&header, &attributed))
        })
    }

    /// As `table`, with branch prediction.
    ///
    /// # Errors
    /// No machine describes branch prediction.
    pub fn table_with_branches(&self, recording: &Path) -> Result<ServiceTable> {
        ensure!(
            self.machines.iter().any(|machine| machine.branch.is_some()),
            "no machine describes how it predicts branches: name one with a table [branch] in its \
             file, server-32k for example"
        );
        self.read(recording, "services", |reader| {
            let header = reader.header().clone();
            let attributed = services::attribute_with_branches(
                reader,
                &self.symbols,
                &self.binding,
                &self.machines,
                true,
            )?;
            Ok(self.to_table(&header, &attributed))
        })
    }

    /// The misses of a recording, one table for each machine. `kernel`: as for `open`.
    ///
    /// # Errors
    /// As [`Attribution::table`]. The recording has no data accesses, no machine is given, or a
    /// machine has no data cache.
    pub fn misses(&self, recording: &Path, kernel: &Path) -> Result<Vec<MissTable>> {
        ensure!(
            !self.machines.is_empty(),
            "no machine is named on which misses are simulated: name server-32k, for example"
        );
        self.read(recording, "misses", |reader| {
            misses::misses(reader, &self.symbols, &vmlinux::path(kernel), &self.machines)
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
        let sizes = l2_sizes::SIZES.iter().map(|&bytes| l2_sizes::with_l2(machine, bytes));
        let sizes: Vec<MachineModel> = sizes.collect::<Result<_>>()?;
        // The services, and the misses of L2s of all sizes.
        let counted = |path: &Path, title: &str| {
            let opened = self.opened(path, title)?;
            let (header, name) = (opened.header().clone(), opened.name().to_owned());
            let (symbols, binding) = (&self.symbols, &self.binding);
            let services = ServicesWalk::coherent(symbols, binding, machine, header.cpus);
            let mut services = services.with_context(|| name)?;
            let mut l2s: Vec<_> = sizes.iter().map(l2_sizes::counting).collect::<Result<_>>()?;
            let mut observers: Vec<&mut (dyn Observer + Send)> = vec![&mut services];
            observers.extend(l2s.iter_mut().map(|l2| l2 as &mut (dyn Observer + Send)));
            opened.walk(&mut SideBySide(observers))?;
            let misses: Vec<L2Misses> = l2s.iter().map(|l2| l2.visitor.misses()).collect();
            anyhow::Ok(((header, services.finish()), misses))
        };
        let ((header, attributed), misses) = counted(recording, "services")?;
        let of_one = one_cpu.map(|path| counted(path, "services of one CPU")).transpose()?;
        let services_of_one = of_one.as_ref().map(|(services, _)| services);
        let table = MultiprocessorTable::new(&header, &machine.name, &attributed, services_of_one)?;
        let row = |(number, bytes): (usize, &u64)| L2SizeRow {
            bytes: *bytes,
            misses: misses[number],
            on_one_cpu: of_one.as_ref().map(|(_, misses)| misses[number]),
        };
        let l2_sizes = l2_sizes::SIZES.iter().enumerate().map(row).collect();
        Ok(MultiprocessorTable { l2_sizes, ..table })
    }

    /// What a core for the operating system brings under each policy, one table for each machine.
    /// `move_cycles` replaces the machine's.
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
        let find = |reader: Reader| OsCoreStudy::new(reader, &self.symbols, &self.binding);
        let study = self.read(recording, "stays in the kernel", find)?;
        let bound = study.bind(policies)?;
        let of_machine = |machine: &MachineModel| {
            let machine = study.machine(machine, move_cycles)?;
            let mut runs: Vec<_> =
                bound.iter().map(|policy| study.running(&machine, policy)).collect();
            let observers = runs.iter_mut().map(|run| run as &mut (dyn Observer + Send));
            self.opened(recording, "policies")?.walk(&mut SideBySide(observers.collect()))?;
            let runs: Vec<_> = runs.into_iter().map(|run| run.visitor.finish()).collect();
            Ok(study.table(&machine, &runs))
        };
        self.machines.iter().map(of_machine).collect()
    }

    /// As `table`, with the totals of each function.
    ///
    /// # Errors
    /// As [`Attribution::table`].
    pub fn recorded(&self, recording: &Path) -> Result<ServicesAndFunctions> {
        self.read(recording, "services", |reader| {
            let header = reader.header().clone();
            let (attributed, functions) = services::attribute_with_functions(
                reader,
                &self.symbols,
                &self.binding,
                &self.machines,
            )?;
            Ok(ServicesAndFunctions { table: self.to_table(&header, &attributed), functions })
        })
    }

    /// As `table`, with the chains of calls and the execution over time.
    ///
    /// # Errors
    /// As [`Attribution::table`].
    pub fn observed(&self, recording: &Path) -> Result<ObservedRecording> {
        self.read(recording, "services", |reader| {
            let header = reader.header().clone();
            let (attributed, calls, timeline) = services::attribute_with_calls(
                reader,
                &self.symbols,
                &self.binding,
                &self.machines,
            )?;
            Ok(ObservedRecording { table: self.to_table(&header, &attributed), calls, timeline })
        })
    }

    /// The services of a recording on each machine, all others compared with the first.
    ///
    /// # Errors
    /// As [`Attribution::table`].
    pub fn generations(&self, recording: &Path) -> Result<Generations> {
        let opened = OpenedRecording::open(&Recording::at(recording), &self.part, "generations")?;
        let header = opened.header().clone();
        let mut walks = self.generations_walks()?;
        let observers = walks.iter_mut().map(|walk| walk as &mut (dyn Observer + Send));
        opened.walk(&mut SideBySide(observers.collect()))?;
        self.generations_of(&header, walks)
    }

    /// The services on each machine. In a part of a recording, no machine takes data accesses.
    fn generations_walks(&self) -> Result<Vec<ServicesWalk<'_>>> {
        let (symbols, binding) = (&self.symbols, &self.binding);
        let walk =
            |machine| ServicesWalk::on_machine(symbols, binding, machine, self.part.is_whole());
        self.machines.iter().map(walk).collect()
    }

    fn generations_of(
        &self,
        header: &RecordingHeader,
        walks: Vec<ServicesWalk<'_>>,
    ) -> Result<Generations> {
        ensure!(!walks.is_empty(), "no machines are named to compare");
        let counted: Vec<Attributed> = walks.into_iter().map(ServicesWalk::finish).collect();
        Ok(Generations::new(header, &self.part, &self.machines, &counted))
    }

    /// Everything about a recording that one walk gathers for the page. `opened`: the recording;
    /// `kernel`: as for `open`.
    ///
    /// # Errors
    /// As [`Attribution::table`] and [`Attribution::misses`].
    pub fn page_walk(&self, opened: &OpenedRecording, kernel: &Path) -> Result<PageWalk<'_>> {
        let (symbols, binding, machines) = (&self.symbols, &self.binding, &self.machines);
        let mut header = opened.header().clone();
        header.workload = self.part.named(&header.workload);
        let one_cpu = header.cpus == CpuCount::ONE;
        let data_machine = machines.iter().find(|machine| Hierarchy::new(machine).is_some());
        let misses = match data_machine.filter(|_| one_cpu && opened.has_data()) {
            None => None,
            Some(_) if symbols.build_id.is_none() => {
                note!(
                    "{}: no misses by data structure: the names of data need the kernel's vmlinux",
                    kernel.display()
                );
                None
            }
            Some(machine) => {
                let (vmlinux, machines) = (vmlinux::path(kernel), std::slice::from_ref(machine));
                Some(MissesWalk::new(&header, symbols, &vmlinux, machines)?)
            }
        };
        let has_core = machines.iter().any(|machine| machine.core.is_some());
        Ok(PageWalk {
            attribution: self,
            observed: ServicesWalk::observing(symbols, binding, machines),
            sizes: SweptCaches::new(),
            misses,
            generations: if has_core { self.generations_walks()? } else { Vec::new() },
            recorded: opened.header().clone(),
            header,
        })
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

    /// Opens the part of a recording that is analyzed. Its workload says which part it is.
    ///
    /// # Errors
    /// As [`OpenedRecording::open`].
    pub fn opened(&self, recording: &Path, title: &str) -> Result<OpenedRecording> {
        let opened = OpenedRecording::open(&Recording::at(recording), &self.part, title)?;
        Ok(opened.named_by(&self.part))
    }

    fn read<T>(
        &self,
        recording: &Path,
        title: &str,
        walk: impl FnOnce(Reader) -> Result<T>,
    ) -> Result<T> {
        self.opened(recording, title)?.read(walk)
    }

    fn to_table(&self, header: &RecordingHeader, attributed: &Attributed) -> ServiceTable {
        ServiceTable::new(header, attributed, self.binding.blind.clone(), &self.machines)
    }
}

/// Gathers what the page shows of a recording.
pub struct PageWalk<'a> {
    attribution: &'a Attribution,
    observed: ServicesWalk<'a>,
    sizes: SweptCaches,
    misses: Option<MissesWalk<'a>>,
    /// By machine; none without an out-of-order core.
    generations: Vec<ServicesWalk<'a>>,
    /// The header, and the same with a name that says which part it is.
    recorded: RecordingHeader,
    header: RecordingHeader,
}

/// What one walk gathered for the page.
pub struct PageTables {
    /// The services, the chains of calls, and the execution over time.
    pub observed: ObservedRecording,
    /// Misses by cache size and associativity.
    pub sizes: Sizes,
    /// Misses by data structure on the first machine with a data cache.
    pub misses: Option<MissTable>,
    /// Services on all machines; `None` when no machine has a core.
    pub generations: Option<Generations>,
}

impl<'a> PageWalk<'a> {
    /// Those that gather.
    pub fn observers(&mut self) -> Vec<&mut (dyn Observer + Send)> {
        let PageWalk { observed, sizes, misses, generations, .. } = self;
        let mut observers: Vec<&mut (dyn Observer + Send)> = vec![observed, sizes];
        observers.extend(misses.iter_mut().map(|it| it as &mut (dyn Observer + Send)));
        observers.extend(generations.iter_mut().map(|it| it as &mut (dyn Observer + Send)));
        observers
    }

    /// What they gathered.
    ///
    /// # Errors
    /// The walk did not come to the recording's end.
    pub fn finish(self) -> Result<PageTables> {
        let PageWalk { attribution, observed, sizes, misses, generations, recorded, header } = self;
        let (attributed, with_calls) = observed.finish_observed();
        let (calls, timeline) = with_calls.context("the page observes calls")?;
        let table = attribution.to_table(&header, &attributed);
        Ok(PageTables {
            observed: ObservedRecording { table, calls, timeline },
            sizes: sizes.finish(&header)?,
            misses: misses.and_then(|misses| misses.tables().pop()),
            generations: match generations.is_empty() {
                true => None,
                false => Some(attribution.generations_of(&recorded, generations)?),
            },
        })
    }
}
