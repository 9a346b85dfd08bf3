//! The operating system's share of the work (Nellans 2005, section 2, tables 1 and 2, figure 2)
//! over recordings.
//!
//! Takes one service table per recording; gives instructions, cycles and misses in the kernel,
//! distances between interrupts, and lengths of visits to the kernel. Prints nothing.

use crate::annotations::ServiceKind;
use crate::ledger::Distribution;
use crate::table::ServiceTable;
use serde::Serialize;

/// The operating system's share of one recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OsShare {
    /// The recorded workload.
    pub workload: String,
    /// The build id of the recorded kernel.
    pub kernel: String,
    /// The seed of the recording.
    pub seed: u64,
    /// All instructions except those of idle.
    pub instructions: u64,
    /// The share of instructions in the kernel: 0 to 1.
    pub share: f64,
    /// The share on each machine.
    pub machines: Vec<MachineShare>,
    /// The number of interrupts, and the instructions from one to the next (upper ends of powers of
    /// two).
    pub interrupts: Lengths,
    /// Visits to the kernel by service, the most frequent first.
    pub visits: Vec<Visits>,
}

/// The kernel's share on one machine, 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineShare {
    /// The machine's name.
    pub machine: String,
    /// The share of cycles.
    pub cycles: f64,
    /// The share of L1I misses.
    pub l1i_misses: f64,
}

/// A distribution of lengths, in instructions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lengths {
    /// How many there were.
    pub count: u64,
    /// The median, as an upper end of a power of two.
    pub median: u64,
    /// The ninth decile, as an upper end of a power of two.
    pub ninth_decile: u64,
    /// All lengths by powers of two.
    pub distribution: Distribution,
}

/// Visits of one service, each from its entry to its end without the time in which its task did not
/// run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Visits {
    /// The kind of the service.
    pub kind: ServiceKind,
    /// The name of the service.
    pub name: String,
    /// The lengths of its visits.
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
    /// The share from the services of a recording.
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
