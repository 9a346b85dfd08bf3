//! The time of services on out-of-order cores, and how far it may be off when cores were simulated
//! by samples.
//!
//! Input: slots, and the samples of a machine. Output: cycles with 95 % intervals. This module
//! simulates nothing.

use execution::sampling::SamplePlan;
use execution::sampling::groups::SampledGroups;
use execution::sampling::ratios::GroupSlots;
use serde::Serialize;
use sim::core::CoreSlots;
use sim::{MachineModel, PerMode};

/// The time of a service, or of a sum of services, on an out-of-order core.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CoreTime {
    /// Cycles of all calls.
    pub cycles: f64,
    /// How far the cycles may be off; `None` when every instruction was simulated in detail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated: Option<EstimatedTime>,
}

/// How far estimated cycles may be off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EstimatedTime {
    /// The number of samples in which the service ran; for a sum, of all samples.
    pub samples: u64,
    /// Half of the 95 % interval of the cycles, in per cent of them. `None` for a service that ran
    /// in too few samples: its cycles are an estimate from its counts, and from what the other
    /// services with few samples took.
    pub within: Option<f64>,
}

/// The samples of a machine's core.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CoreSamples {
    /// Where they lie.
    pub plan: SamplePlan,
    /// Their number.
    pub units: u64,
    /// Half of the 95 % interval of the cycles of each mode, in per cent of them. The idle loop is
    /// code of the kernel.
    pub within: PerMode<f64>,
    /// The same of both modes together.
    pub within_all: f64,
    /// The widest of these intervals. A mode with less than a twentieth of the cycles does not
    /// count.
    #[serde(skip)]
    pub widest: f64,
}

impl CoreSamples {
    pub(crate) fn new(sampled: &SampledGroups) -> CoreSamples {
        let SampledGroups { plan, units, slots, all, .. } = sampled;
        CoreSamples {
            plan: *plan,
            units: *units,
            within: PerMode { kernel: slots.kernel.percent(), user: slots.user.percent() },
            within_all: all.percent(),
            widest: sampled.widest(),
        }
    }
}

impl CoreSamples {
    /// The widest interval of several machines.
    pub(crate) fn widest(all: impl Iterator<Item = CoreSamples>) -> f64 {
        all.map(|samples| samples.widest).fold(0.0, f64::max)
    }
}

impl CoreTime {
    /// The time of a service. `service`: its number in the ledger.
    pub(crate) fn of_service(
        machine: &MachineModel,
        slots: Option<&CoreSlots>,
        sampled: Option<&SampledGroups>,
        service: usize,
    ) -> Option<CoreTime> {
        let time = CoreTime::exact(machine, slots?)?;
        let estimated = sampled.map(|sampled| EstimatedTime {
            samples: sampled.units_of(service),
            within: sampled.within(service).map(|within| percent(within, slots)),
        });
        Some(CoreTime { estimated, ..time })
    }

    /// The time of the sum of the services whose numbers are `wanted`.
    pub(crate) fn of_sum(
        machine: &MachineModel,
        slots: Option<&CoreSlots>,
        sampled: Option<&SampledGroups>,
        wanted: impl Fn(usize) -> bool,
    ) -> Option<CoreTime> {
        let time = CoreTime::exact(machine, slots?)?;
        let estimated = sampled.map(|sampled| EstimatedTime {
            samples: sampled.units,
            within: Some(percent(sampled.within_of(wanted), slots)),
        });
        Some(CoreTime { estimated, ..time })
    }

    /// The time of a function.
    pub(crate) fn of_function(machine: &MachineModel, of: &GroupSlots) -> Option<CoreTime> {
        let width = f64::from(machine.core.as_ref()?.window.dispatch);
        let estimated = of.estimated.map(|estimated| EstimatedTime {
            samples: estimated.units,
            within: estimated.within.map(|within| 100.0 * within / of.slots.max(1.0)),
        });
        Some(CoreTime { cycles: of.slots / width, estimated })
    }

    fn exact(machine: &MachineModel, slots: &CoreSlots) -> Option<CoreTime> {
        let width = f64::from(machine.core.as_ref()?.window.dispatch);
        Some(CoreTime { cycles: slots.dispatch.total() as f64 / width, estimated: None })
    }
}

fn percent(within: f64, slots: Option<&CoreSlots>) -> f64 {
    100.0 * within / slots.map_or(0, |slots| slots.dispatch.total()).max(1) as f64
}
