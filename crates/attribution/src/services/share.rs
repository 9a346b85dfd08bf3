//! The operating system's share of the work (Nellans 2005, section 2, tables 1 and 2, figure 2)
//! over recordings.
//!
//! Takes service tables, one a recording; gives a row each: instructions, cycles and misses inside
//! the system, times between interrupts, and how long each visit to the kernel is. Prints nothing.

use crate::services::annotations::ServiceKind;
use crate::services::ledger::Distribution;
use crate::services::table::ServiceTable;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OsShare {
    pub workload: String,
    pub kernel: String,
    pub seed: u64,
    /// All, idle not counted.
    pub instructions: u64,
    /// Part of the instructions in the kernel: 0 to 1.
    pub share: f64,
    pub machines: Vec<MachineShare>,
    /// How many interrupts; of the instructions from one to the next the median and the ninth
    /// decile (upper ends of powers of two).
    pub interrupts: Lengths,
    /// Visits to the kernel by what began them, the most frequent first.
    pub visits: Vec<Visits>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineShare {
    pub machine: String,
    pub cycles: f64,
    pub l1i_misses: f64,
}

/// How long something takes, in instructions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lengths {
    pub count: u64,
    pub median: u64,
    pub ninth_decile: u64,
    pub distribution: Distribution,
}

/// Visits of one service, each from its entry to its end without the time in which its task did not
/// run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Visits {
    pub kind: ServiceKind,
    pub name: String,
    pub lengths: Lengths,
}

impl Lengths {
    fn new(distribution: &Distribution) -> Lengths {
        Lengths {
            count: distribution.0.iter().sum(),
            median: distribution.quantile(0.5),
            ninth_decile: distribution.quantile(0.9),
            distribution: distribution.clone(),
        }
    }
}

impl OsShare {
    pub fn new(table: &ServiceTable) -> OsShare {
        let instructions = table.instructions - table.idle_instructions;
        let visits = |kind| {
            matches!(
                kind,
                ServiceKind::SystemCall
                    | ServiceKind::PageFault
                    | ServiceKind::Exception
                    | ServiceKind::Interrupt
                    | ServiceKind::Ipi
            )
        };
        let mut visits: Vec<Visits> = table
            .rows
            .iter()
            .filter(|row| visits(row.kind))
            .map(|row| Visits {
                kind: row.kind,
                name: row.name.clone(),
                lengths: Lengths::new(&row.lengths),
            })
            .collect();
        visits.sort_by(|a, b| {
            (b.lengths.count, a.kind, &a.name).cmp(&(a.lengths.count, b.kind, &b.name))
        });
        let part = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        OsShare {
            workload: table.workload.clone(),
            kernel: table.kernel.clone(),
            seed: table.seed,
            instructions,
            share: part(table.kernel_instructions as f64, instructions as f64),
            machines: table
                .machines
                .iter()
                .map(|machine| MachineShare {
                    machine: machine.name.clone(),
                    cycles: part(machine.kernel_cycles, machine.cycles),
                    l1i_misses: part(machine.kernel_l1i_misses as f64, machine.l1i_misses as f64),
                })
                .collect(),
            interrupts: Lengths {
                count: table.interrupts,
                ..Lengths::new(&table.between_interrupts)
            },
            visits,
        }
    }
}
