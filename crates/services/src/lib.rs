//! Attributes a recording's time and misses to the services of the operating system.
//!
//! Takes a recording, its kernel's symbols, annotations and machines; gives tables. [`Attribution`]
//! holds what all analyses share, including those of memory and coherence. Prints nothing; never
//! asks the guest.
//!
//! The ledger holds the totals of each service:
//!
//! ```
//! use kernlane_services::annotations::ServiceKind;
//! use kernlane_services::ledger::{Invocation, Ledger, InvocationTimes};
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

pub mod annotations;
mod automaton;
pub mod binding;
mod branches;
mod caches;
pub mod call_samples;
pub mod calls;
mod code;
mod coherent;
pub mod constants;
pub mod core_time;
pub mod difference;
#[cfg(any(test, feature = "examples"))]
pub mod examples;
pub mod functions;
pub mod generations;
mod halts;
pub mod invocations;
pub mod ledger;
pub mod locality;
mod meter;
mod observed;
mod reuse;
mod services_walk;
pub mod share;
mod sliced_meter;
pub mod slices;
mod slicing;
pub mod spans;
pub mod stays;
pub mod stretches;
pub mod symbols;
pub mod table;
pub mod task_costs;
mod tasks;
#[cfg(test)]
mod tests;
pub mod timeline;

pub use crate::automaton::Attributed;
pub use crate::caches::LevelMisses;
pub use crate::coherent::synchronizes;
pub use crate::services_walk::{
    ServicesAndFunctions, ServicesWalk, attribute, attribute_in_time, attribute_with_calls,
};
pub use crate::symbols::check;

use crate::annotations::Annotations;
use crate::binding::Binding;
use crate::calls::CallTree;
use crate::generations::Generations;
use crate::locality::{Locality, POPULAR};
use crate::symbols::KernelSymbols;
use crate::table::ServiceTable;
use crate::timeline::Timeline;
use anyhow::{Context, Result, ensure};
use execution::opened::{OpenedRecording, Reader};
use execution::part::RecordingPart;
use execution::sampling::SamplePlan;
use execution::slices::SliceStarts;
use execution::walk::{Observer, SideBySide};
use host::recording::Recording;
use image::{Image, vmlinux};
use profile::collect::{self, ExtraCounts};
use sim::MachineModel;
use std::path::Path;
use trace::RecordingHeader;

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

/// What numbers depend on, by name, for files that store it. `machine`: the simulated machine.
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
    /// Reads a kernel's symbols, binds annotations to them, and finds machines by their names or
    /// files. `kernel`: a build tree, a vmlinux or a System.map. `annotations`: a file; `None` for
    /// the shipped annotations.
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

    /// The services of a recording (a directory). Shows progress on a terminal. `plan`: where
    /// out-of-order cores are simulated in detail; `None`: everywhere.
    ///
    /// # Errors
    /// The recording cannot be read, is damaged, or comes from another kernel.
    pub fn table(&self, recording: &Path, plan: Option<SamplePlan>) -> Result<ServiceTable> {
        self.read(recording, "services", |reader| {
            let header = reader.header().clone();
            let (symbols, binding) = (&self.symbols, &self.binding);
            let attributed = match self.machines.iter().any(|machine| machine.core.is_some()) {
                true => {
                    let machines = &self.machines;
                    services_walk::attribute_with_branches(
                        reader, symbols, binding, machines, false, plan,
                    )?
                }
                false => services_walk::attribute(reader, symbols, binding, &self.machines)?,
            };
            Ok(self.to_table(&header, &attributed))
        })
    }

    /// As `table`, with branch prediction.
    ///
    /// # Errors
    /// As [`Attribution::table`], or no machine describes branch prediction.
    pub fn table_with_branches(
        &self,
        recording: &Path,
        plan: Option<SamplePlan>,
    ) -> Result<ServiceTable> {
        ensure!(
            self.machines.iter().any(|machine| machine.branch.is_some()),
            "no machine describes how it predicts branches: name one with a table [branch] in its \
             file, server-32k for example"
        );
        self.read(recording, "services", |reader| {
            let header = reader.header().clone();
            let attributed = services_walk::attribute_with_branches(
                reader,
                &self.symbols,
                &self.binding,
                &self.machines,
                true,
                plan,
            )?;
            Ok(self.to_table(&header, &attributed))
        })
    }

    /// As `table`, with the totals of each function.
    ///
    /// # Errors
    /// As [`Attribution::table`].
    pub fn recorded(&self, recording: &Path) -> Result<ServicesAndFunctions> {
        self.read(recording, "services", |reader| {
            let header = reader.header().clone();
            let (attributed, functions) = services_walk::attribute_with_functions(
                reader,
                &self.symbols,
                &self.binding,
                &self.machines,
            )?;
            Ok(ServicesAndFunctions { table: self.to_table(&header, &attributed), functions })
        })
    }

    /// As `table`, with the totals of each function, and the times of both on out-of-order cores.
    ///
    /// # Errors
    /// As [`Attribution::table`].
    pub fn recorded_on_cores(
        &self,
        recording: &Path,
        plan: Option<SamplePlan>,
    ) -> Result<ServicesAndFunctions> {
        self.read(recording, "services", |reader| {
            let header = reader.header().clone();
            let (attributed, functions) = services_walk::attribute_with_functions_on_cores(
                reader,
                &self.symbols,
                &self.binding,
                &self.machines,
                plan,
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
            let (attributed, calls, timeline) = services_walk::attribute_with_calls(
                reader,
                &self.symbols,
                &self.binding,
                &self.machines,
            )?;
            Ok(ObservedRecording { table: self.to_table(&header, &attributed), calls, timeline })
        })
    }

    /// The services of a recording on each machine. All other machines are compared with the first.
    /// `plan`: as for [`Attribution::table`].
    ///
    /// # Errors
    /// As [`Attribution::table`].
    pub fn generations(&self, recording: &Path, plan: Option<SamplePlan>) -> Result<Generations> {
        let opened = OpenedRecording::open(&Recording::at(recording), &self.part, "generations")?;
        let header = opened.header().clone();
        let mut walks = self.generations_walks(plan, &SliceStarts::default())?;
        let observers = walks.iter_mut().map(|walk| walk as &mut (dyn Observer + Send));
        opened.walk(&mut SideBySide(observers.collect()))?;
        self.generations_of(&header, walks)
    }

    /// A walk for each machine, which finds the services. Over a part of a recording, no machine
    /// simulates data accesses. `plan`: as for [`Attribution::table`]. `starts`: where the slices
    /// of the rows begin.
    ///
    /// # Errors
    /// The numbers of a machine's core contradict each other.
    pub fn generations_walks(
        &self,
        plan: Option<SamplePlan>,
        starts: &SliceStarts,
    ) -> Result<Vec<ServicesWalk<'_>>> {
        let (symbols, binding) = (&self.symbols, &self.binding);
        let whole = self.part.is_whole();
        let walk =
            |machine| ServicesWalk::on_machine(symbols, binding, machine, whole, plan, starts);
        self.machines.iter().map(walk).collect()
    }

    /// The services that the walks over a recording with this header found.
    ///
    /// # Errors
    /// There are no machines.
    pub fn generations_of(
        &self,
        header: &RecordingHeader,
        walks: Vec<ServicesWalk<'_>>,
    ) -> Result<Generations> {
        ensure!(!walks.is_empty(), "no machine is named: name the machines to compare");
        let finished = walks.into_iter().map(ServicesWalk::finish_in_slices);
        let (counted, slices): (Vec<_>, Vec<_>) = finished.unzip();
        let found = Generations::new(header, &self.part, &self.machines, &counted);
        Ok(found.with_slices(&slices))
    }

    /// The locality of the kernel's code in a recording. `image`: the kernel's image.
    ///
    /// # Errors
    /// As [`Attribution::table`], or the image is that of another kernel.
    pub fn locality(&self, recording: &Path, image: &Image) -> Result<Locality> {
        let ServicesAndFunctions { table, functions } = self.recorded(recording)?;
        let all_calls = functions.values().map(|totals| totals.calls).sum();
        let mut by_calls: Vec<(String, u64)> =
            functions.into_iter().map(|(name, totals)| (name, totals.calls)).collect();
        by_calls.sort_by(|(a, a_calls), (b, b_calls)| b_calls.cmp(a_calls).then_with(|| a.cmp(b)));
        by_calls.truncate(POPULAR);
        let names: Vec<String> = by_calls.iter().map(|(name, _)| name.clone()).collect();
        let reuses = self.read(recording, "services", |reader| {
            services_walk::reuses(reader, &self.symbols, &names)
        })?;
        let popular =
            by_calls.into_iter().zip(reuses).map(|((name, calls), reuses)| (name, calls, reuses));
        let profile =
            collect::of_recording(&Recording::at(recording), image, &self.part, ExtraCounts::None)?;
        Locality::new(image, &profile, &table, popular.collect(), all_calls)
    }

    /// Opens the part of a recording that is analyzed. The name of the workload then includes the
    /// part.
    ///
    /// # Errors
    /// As [`OpenedRecording::open`].
    pub fn opened(&self, recording: &Path, title: &str) -> Result<OpenedRecording> {
        let opened = OpenedRecording::open(&Recording::at(recording), &self.part, title)?;
        Ok(opened.named_by(&self.part))
    }

    /// Opens the part of a recording that is analyzed, and gives it to `walk`. Returns the result.
    ///
    /// # Errors
    /// As [`OpenedRecording::open`], or those of `walk`.
    pub fn read<T>(
        &self,
        recording: &Path,
        title: &str,
        walk: impl FnOnce(Reader) -> Result<T>,
    ) -> Result<T> {
        self.opened(recording, title)?.read(walk)
    }

    /// The table of a recording with this header.
    pub fn to_table(&self, header: &RecordingHeader, attributed: &Attributed) -> ServiceTable {
        ServiceTable::new(header, attributed, self.binding.blind.clone(), &self.machines)
    }
}
