//! What to optimize a kernel for, and how.
//!
//! Input: names, paths and numbers. Output: an [`Optimization`] for the roads of [`optimize`],
//! [`rebuild`] and [`optimize_live`]. This module runs nothing.
//!
//! [`optimize`]: crate::optimize
//! [`rebuild`]: crate::rebuild
//! [`optimize_live`]: crate::optimize_live

use crate::guests::RecordedGuest;
use crate::sampling::Sampling;
use crate::search::SearchObjective;
use crate::{record, workload};
use anyhow::{Context, Result, ensure};
use guest::ProcessorRequest;
use layout::Algorithm;
use replay::SimulationScope;
use sim::MachineModel;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use trace::CpuCount;

/// What to optimize a kernel for, and how.
#[derive(Clone, Debug)]
pub struct Optimization {
    /// The workloads, as [`workload::open`] takes them. The layouts are made for their average.
    pub workloads: Vec<WeightedWorkload>,
    /// The directory in which the kernel was built.
    pub tree: PathBuf,
    /// The directory for the results.
    pub output: PathBuf,
    /// The guests that are recorded, with the machines to simulate on the recording of each.
    /// Searches by misses replay on the first machine, those by time on the first that describes an
    /// out-of-order core, and on the recording of its guest.
    pub guests: Vec<RecordedGuest>,
    /// What to simulate of each machine.
    pub scope: SimulationScope,
    /// The layout algorithms.
    pub algorithms: Vec<Algorithm>,
    /// Where all randomness of the guest and of the layouts comes from.
    pub seed: u64,
    /// How many layouts to try. By misses: with each algorithm that depends on its seed, that many
    /// seeds. By time: that many layouts in all ([`LayoutCandidate::algorithms`]).
    pub tries: u64,
    /// Which of the layouts that are tried is the best.
    pub objective: SearchObjective,
    /// Whether functions that move lose their call padding.
    pub drop_call_padding: bool,
    /// The number of the guest's CPUs.
    pub cpus: CpuCount,
    /// Variables for make, as given when the kernel was built: `NAME=VALUE`.
    pub make: Vec<String>,
    /// The longest time that a guest may run.
    pub time_limit: Duration,
    /// Which instructions out-of-order cores simulate in detail.
    pub sampling: Sampling,
}

/// A workload, and how often it counts in the average of several.
#[derive(Clone, Debug)]
pub struct WeightedWorkload {
    /// The workload, as [`workload::open`] takes it.
    pub workload: String,
    /// Its weight.
    pub weight: u32,
}

impl WeightedWorkload {
    /// A workload that counts once.
    pub fn new(workload: impl Into<String>) -> WeightedWorkload {
        WeightedWorkload { workload: workload.into(), weight: 1 }
    }
}

impl Optimization {
    /// As `kernlane optimize` does it without options, with one guest.
    ///
    /// ```
    /// let machines = vec![machines::find("server-32k")?.model];
    /// let optimization = road::optimization::Optimization::new("net", "linux", "out", machines);
    /// assert_eq!((optimization.seed, optimization.tries), (1, 1));
    /// # anyhow::Ok(())
    /// ```
    pub fn new(
        workload: impl Into<String>,
        tree: impl Into<PathBuf>,
        output: impl Into<PathBuf>,
        machines: Vec<MachineModel>,
    ) -> Optimization {
        Optimization {
            workloads: vec![WeightedWorkload::new(workload)],
            tree: tree.into(),
            output: output.into(),
            guests: vec![RecordedGuest::new(ProcessorRequest::default(), machines)],
            scope: SimulationScope::Caches,
            algorithms: vec![Algorithm::default()],
            seed: 1,
            tries: 1,
            objective: SearchObjective::default(),
            drop_call_padding: false,
            cpus: CpuCount::ONE,
            make: Vec::new(),
            time_limit: record::TIME_LIMIT,
            sampling: Sampling::default(),
        }
    }

    /// Recordings are named by their workloads.
    pub(crate) fn ensure_told_apart(&self) -> Result<()> {
        ensure!(!self.workloads.is_empty(), "no workload is named");
        let mut names = BTreeSet::new();
        for WeightedWorkload { workload, weight } in &self.workloads {
            let name = workload::open(workload)?.name;
            ensure!(*weight > 0, "the workload {name} has the weight 0");
            ensure!(!names.contains(&name), "two workloads are called {name}");
            names.insert(name);
        }
        Ok(())
    }

    /// The path of a result.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.output.join(name)
    }

    /// Whether several layouts are tried, and the fastest is the best.
    pub(crate) fn searches_by_time(&self) -> bool {
        self.tries > 1 && self.objective == SearchObjective::Time
    }

    /// The machine on which a search replays, with the number of its guest.
    pub(crate) fn searched_machine(
        &self,
        objective: SearchObjective,
    ) -> Result<(usize, &MachineModel)> {
        let mut machines = Vec::new();
        for (at, guest) in self.guests.iter().enumerate() {
            machines.extend(guest.machines.iter().map(|machine| (at, machine)));
        }
        let fitting = machines.iter().find(|(_, machine)| objective.check(machine).is_ok());
        let (at, machine) = *fitting.or(machines.first()).context("no machine is named")?;
        objective.check(machine)?;
        Ok((at, machine))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_by_time_takes_the_first_machine_with_a_core() {
        let guest = |machine: &str| {
            let machines = machines::models(&[machine]).unwrap();
            RecordedGuest::new(ProcessorRequest::default(), machines)
        };
        let usual = Optimization::new("net", "linux", "out", Vec::new());
        let guests = ["server-32k", "zen4", "zen5"].map(guest).into();
        let optimization = Optimization { guests, ..usual };
        let found = |objective| {
            let (guest, machine) = optimization.searched_machine(objective).unwrap();
            (guest, machine.name.as_str())
        };
        assert_eq!(found(SearchObjective::Misses), (0, "server-32k"));
        assert_eq!(found(SearchObjective::Time), (1, "zen4"));
    }
}
