//! The services of a recording on machines of several generations: P = T × A (Nellans,
//! Balasubramonian and Brunvand, P=ac2 2005, section 3).
//!
//! Input: what each machine counted for each service. Output: cycles and times, and how many times
//! faster each machine is than the first one (P). P splits into the ratio of the clocks (T) and the
//! ratio of the cycles for the same instructions (A). Cycles are counted in whole parts, so P, T
//! and A are ratios of whole numbers, and P is T × A exactly. Each sum is the sum of its rows. This
//! module simulates nothing.

mod fraction;
#[cfg(test)]
mod tests;

use crate::Attributed;
use crate::annotations::ServiceKind;
use crate::core_time::{CoreSamples, CoreTime, EstimatedTime};
use crate::ledger::{ServiceMachineCounts, ServiceTotals};
use crate::slices::{ServiceSlice, ServiceSlices};
use crate::table::in_kernel;
use anyhow::{Result, ensure};
use execution::part::RecordingPart;
use execution::sampling::groups::SampledGroups;
use fraction::Fraction;
use serde::Serialize;
use sim::MachineModel;
use sim::core::{CoreSlots, GraduationSlots, Slots};
use std::num::NonZeroU32;
use trace::RecordingHeader;

/// The parts of a cycle of a machine without a core.
const THOUSANDTHS: u32 = 1000;
/// The number of instructions below which filling caches and predictors takes most of the time: a
/// hundred for each of the 10 000 entries of the larger tables.
const WARM: u64 = 1_000_000;

/// A recording's services on machines of several generations. All times are simulated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Generations {
    /// The recorded workload.
    pub workload: String,
    /// Build id.
    pub kernel: String,
    /// The seed of the recording.
    pub seed: u64,
    /// The part of the recording that was simulated; `None` for the whole recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The machines. All others are compared with the first.
    pub machines: Vec<GenerationMachine>,
    /// What a reader of the numbers must know.
    pub notes: Vec<String>,
    /// All services together, the services of the kernel, user mode, idle.
    pub sums: [GenerationRow; 4],
    /// The services of the kernel, descending by instructions, then user mode and idle.
    pub rows: Vec<GenerationRow>,
}

/// A machine of the comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GenerationMachine {
    /// The machine's name.
    pub name: String,
    /// Its clock; `None` when its file gives none. Then it has no times.
    pub megahertz: Option<NonZeroU32>,
    /// Where its cycles come from.
    pub model: CycleModel,
    /// The number of parts of a cycle: the slots of the dispatch, or thousandths.
    pub parts_per_cycle: u32,
    /// The same for the graduation.
    pub graduation_per_cycle: u32,
    /// The samples from which the parts of cycles are estimated; `None` when every instruction was
    /// simulated in detail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<CoreSamples>,
}

/// Checks that these machines can be compared: there are two, and each has a clock.
///
/// # Errors
/// There are fewer than two machines, or a machine has no clock.
pub fn check(machines: &[MachineModel]) -> Result<()> {
    ensure!(
        machines.len() > 1,
        "generations need at least two machines: name them, the oldest first"
    );
    let without = machines.iter().find(|machine| machine.clock.is_none());
    let name = without.map_or("", |machine| &machine.name);
    ensure!(
        without.is_none(),
        "{name}: the machine's file has no clock, and the ratio of technology is that of the \
         clocks: add a table [clock] with `megahertz`, or leave this machine out"
    );
    Ok(())
}

/// Where the cycles of a machine come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CycleModel {
    /// The out-of-order core, with the fixed data behaviour of the machine's file.
    OutOfOrder,
    /// Torrellas' simple model (1998, section 5.2): one instruction a cycle, and a stop for each
    /// L1I miss; data stops every instruction for the same time.
    InOrder,
    /// SimOS' 1994 model (Rosenblum 1995, section 3.2): one instruction a cycle, and a stop for
    /// each miss, including those of the recorded data accesses.
    InOrderWithData,
}

impl CycleModel {
    /// The title in reports.
    pub fn title(self) -> &'static str {
        match self {
            CycleModel::OutOfOrder => "out of order",
            CycleModel::InOrder => "in order",
            CycleModel::InOrderWithData => "in order, with data",
        }
    }
}

/// A service on all machines, or a sum of services.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GenerationRow {
    /// The kind of the service; `None` for a sum.
    pub kind: Option<ServiceKind>,
    /// The name of the service or sum.
    pub name: String,
    /// How often it ran; for a sum, all calls of its services.
    pub calls: u64,
    /// Its own instructions.
    pub instructions: u64,
    /// Its time on each machine.
    pub on: Vec<ServiceTime>,
    /// The same in slices, by machine; empty for a sum, and unless slices were counted.
    #[serde(skip)]
    pub slices: Vec<Vec<ServiceSlice>>,
}

/// A service's time on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ServiceTime {
    /// Parts of cycles, see [`GenerationMachine::parts_per_cycle`].
    pub parts: u64,
    /// Cycles per instruction.
    pub cpi: f64,
    /// The time of all calls together. Without a clock, this and the next two fields are `None`.
    pub milliseconds: Option<f64>,
    /// One call; `None` for a sum.
    pub nanoseconds_per_call: Option<f64>,
    /// The speed-up over the first machine; also `None` when one of the times is 0.
    pub split: Option<Split>,
    /// The slots of the dispatch, by top-down; `None` without a core. Their sum is `parts`.
    pub dispatch: Option<Slots>,
    /// The slots of the graduation, as SimOS divides them. Without a core: instructions, and stops
    /// for data and for instructions; TLB misses count for the pipeline.
    pub graduation: GraduationSlots,
    /// How far parts, cycles and times may be off; `None` when every instruction was simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated: Option<EstimatedTime>,
}

/// A speed-up and its parts: the nearest numbers to the exact ratios.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Split {
    /// P: how many times faster.
    pub speedup: f64,
    /// T: the ratio of the clocks.
    pub technology: f64,
    /// A: the ratio of the cycles per instruction.
    pub architecture: f64,
}

/// A speed-up and its parts, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ExactSplit {
    speedup: Fraction,
    technology: Fraction,
    architecture: Fraction,
}

/// The time of a service on one machine, as whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Elapsed {
    parts: u64,
    parts_per_cycle: u32,
    megahertz: NonZeroU32,
}

impl ExactSplit {
    /// How many times shorter the second time is than the first; `None` when one of them is 0. No
    /// product below exceeds 64 + 32 + 32 bits.
    fn new(older: Elapsed, newer: Elapsed) -> Option<ExactSplit> {
        let [from, to] = [older, newer].map(|of| u128::from(of.megahertz.get()));
        // Cycles are parts / parts_per_cycle, and times are cycles / clock.
        let older_cycles = u128::from(older.parts) * u128::from(newer.parts_per_cycle);
        let newer_cycles = u128::from(newer.parts) * u128::from(older.parts_per_cycle);
        Some(ExactSplit {
            speedup: Fraction::new(older_cycles * to, newer_cycles * from)?,
            technology: Fraction::new(to, from)?,
            architecture: Fraction::new(older_cycles, newer_cycles)?,
        })
    }
}

impl From<ExactSplit> for Split {
    fn from(exact: ExactSplit) -> Split {
        let ExactSplit { speedup, technology, architecture } = exact;
        Split {
            speedup: speedup.value(),
            technology: technology.value(),
            architecture: architecture.value(),
        }
    }
}

/// The whole numbers of a service, or of a sum.
#[derive(Clone, Debug, Default)]
struct Amounts {
    calls: u64,
    instructions: u64,
    on: Vec<Parts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    parts: u64,
    dispatch: Option<Slots>,
    graduation: GraduationSlots,
    estimated: Option<EstimatedTime>,
}

impl Parts {
    fn core_slots(&self) -> Option<CoreSlots> {
        Some(CoreSlots { dispatch: self.dispatch?, graduation: self.graduation })
    }

    fn none(machine: &GenerationMachine) -> Parts {
        let has_core = machine.model == CycleModel::OutOfOrder;
        Parts { dispatch: has_core.then(Slots::default), ..Parts::default() }
    }
}

impl Amounts {
    fn add(&mut self, other: &Amounts) {
        self.calls += other.calls;
        self.instructions += other.instructions;
        for (to, from) in self.on.iter_mut().zip(&other.on) {
            to.parts += from.parts;
            to.graduation += from.graduation;
            if let Some(dispatch) = from.dispatch {
                *to.dispatch.get_or_insert_default() += dispatch;
            }
        }
    }
}

impl Generations {
    /// `counted`: what each machine counted, in the order of the machines.
    pub(crate) fn new(
        header: &RecordingHeader,
        part: &RecordingPart,
        machines: &[MachineModel],
        counted: &[Attributed],
    ) -> Generations {
        let described: Vec<GenerationMachine> =
            machines.iter().zip(counted).map(|(machine, of)| described(machine, of)).collect();
        let accounts = counted.first().map_or(&[][..], |first| &first.ledger.accounts);
        let mut services: Vec<(ServiceKind, &str, Amounts)> = accounts
            .iter()
            .enumerate()
            .filter(|&(at, account)| {
                let totals = &account.totals;
                totals.calls + totals.instructions > 0 || has_slots(counted, at)
            })
            .map(|(at, account)| {
                // Every machine ran the same services.
                let of_machines = counted.iter().filter_map(|of| of.ledger.accounts.get(at));
                let on = machines.iter().zip(of_machines).zip(counted);
                let on = on.map(|((machine, account), of)| {
                    parts(machine, &account.totals, of.sampled_on(0), at)
                });
                let amounts = Amounts {
                    calls: account.totals.calls,
                    instructions: account.totals.instructions,
                    on: on.collect(),
                };
                (account.kind, account.name.as_str(), amounts)
            })
            .collect();
        services.sort_by(|(a, of_a, x), (b, of_b, y)| {
            (!in_kernel(*a), y.instructions, a, of_a).cmp(&(
                !in_kernel(*b),
                x.instructions,
                b,
                of_b,
            ))
        });
        let sum = |name: &str, wanted: &dyn Fn(ServiceKind) -> bool| {
            let nothing = described.iter().map(Parts::none);
            let mut sum = Amounts { on: nothing.collect(), ..Amounts::default() };
            let of_sum = services.iter().filter(|(kind, _, _)| wanted(*kind));
            of_sum.for_each(|(_, _, amounts)| sum.add(amounts));
            for ((on, machine), of) in sum.on.iter_mut().zip(machines).zip(counted) {
                let wanted = |service: usize| wanted(of.ledger.accounts[service].kind);
                let slots = on.core_slots();
                let time = CoreTime::of_sum(machine, slots.as_ref(), of.sampled_on(0), wanted);
                on.estimated = time.and_then(|time| time.estimated);
            }
            row(None, name, &sum, &described)
        };
        let sums = [
            sum("all", &|_| true),
            sum("the kernel", &in_kernel),
            sum("user mode", &|kind| kind == ServiceKind::User),
            sum("idle", &|kind| kind == ServiceKind::Idle),
        ];
        Generations {
            workload: header.workload.clone(),
            kernel: header.build_id.clone(),
            seed: header.seed,
            part: (!part.is_whole()).then(|| part.to_string()),
            notes: notes(&described, sums[0].instructions),
            rows: services
                .iter()
                .map(|(kind, name, amounts)| row(Some(*kind), name, amounts, &described))
                .collect(),
            machines: described,
            sums,
        }
    }

    /// Adds the slices of the services, by machine.
    pub(crate) fn with_slices(mut self, of_machines: &[ServiceSlices]) -> Generations {
        for row in &mut self.rows {
            let Some(kind) = row.kind else { continue };
            let service = (kind, row.name.clone());
            let of_machine = |of: &ServiceSlices| of.get(&service).cloned().unwrap_or_default();
            row.slices = of_machines.iter().map(of_machine).collect();
        }
        self
    }

    /// How many times faster a row is on the machine `newer` than on the machine `older`, as
    /// indices of `machines`. `None` without clocks, without such a machine, or when a time is 0.
    pub fn split(&self, row: &GenerationRow, older: usize, newer: usize) -> Option<Split> {
        let of = |at: usize| elapsed(self.machines.get(at)?, row.on.get(at)?.parts);
        Some(ExactSplit::new(of(older)?, of(newer)?)?.into())
    }

    /// The widest interval of all machines, in per cent; 0 when all were simulated in detail.
    pub fn widest(&self) -> f64 {
        CoreSamples::widest(self.machines.iter().filter_map(|machine| machine.samples))
    }

    /// The index of the machine with this name.
    pub fn machine(&self, name: &str) -> Option<usize> {
        self.machines.iter().position(|machine| machine.name == name)
    }
}

/// Whether any machine lost slots for a service, which may have no instructions of its own.
fn has_slots(counted: &[Attributed], service: usize) -> bool {
    let accounts = counted.iter().filter_map(|of| of.ledger.accounts.get(service));
    let mut counts = accounts.flat_map(|account| &account.totals.machines);
    counts.any(|of| of.slots.is_some_and(|slots| slots != CoreSlots::default()))
}

fn described(machine: &MachineModel, counted: &Attributed) -> GenerationMachine {
    let has_data = counted.ledger.accounts.iter().any(|account| {
        account.totals.machines.first().is_some_and(|counts| counts.memory.is_some())
    });
    let (model, [parts_per_cycle, graduation_per_cycle]) = match &machine.core {
        Some(core) => (CycleModel::OutOfOrder, [core.window.dispatch, core.window.retire]),
        None if has_data => (CycleModel::InOrderWithData, [THOUSANDTHS; 2]),
        None => (CycleModel::InOrder, [THOUSANDTHS; 2]),
    };
    GenerationMachine {
        name: machine.name.clone(),
        megahertz: machine.clock,
        model,
        parts_per_cycle,
        graduation_per_cycle,
        samples: counted.sampled_on(0).map(CoreSamples::new),
    }
}

/// The parts of cycles that a service took. `service`: its number in the ledger.
fn parts(
    machine: &MachineModel,
    totals: &ServiceTotals,
    sampled: Option<&SampledGroups>,
    service: usize,
) -> Parts {
    let counts = totals.machines.first().cloned().unwrap_or_default();
    let slots = machine_parts(machine, totals.instructions, &counts);
    let CoreSlots { dispatch, graduation } = slots;
    if machine.core.is_some() {
        let time = CoreTime::of_service(machine, Some(&slots), sampled, service);
        return Parts {
            parts: dispatch.total(),
            dispatch: Some(dispatch),
            graduation,
            estimated: time.and_then(|time| time.estimated),
        };
    }
    Parts { parts: graduation.total(), dispatch: None, graduation, estimated: None }
}

/// The parts of cycles of these counts. A machine without a core has parts of the graduation alone.
pub(crate) fn machine_parts(
    machine: &MachineModel,
    instructions: u64,
    counts: &ServiceMachineCounts,
) -> CoreSlots {
    match machine.core {
        Some(_) => counts.slots.unwrap_or_default(),
        None => CoreSlots {
            graduation: in_order(machine, instructions, counts),
            ..CoreSlots::default()
        },
    }
}

/// A cycle for each instruction, and the stops, in thousandths of a cycle.
fn in_order(
    machine: &MachineModel,
    instructions: u64,
    counts: &ServiceMachineCounts,
) -> GraduationSlots {
    let thousandths = |cycles: f64| (cycles * f64::from(THOUSANDTHS)).round() as u64;
    let stalls = counts.memory.and_then(|counters| machine.stalls(&counters));
    let (instruction, data, tlb) = match stalls {
        Some(stalls) => (stalls.l1i + stalls.l2i, stalls.l1d + stalls.l2d, stalls.tlb),
        None => {
            let misses = counts.l1i_misses as f64 * machine.time.miss_penalty();
            (misses, machine.time.data_stall(instructions), 0.0)
        }
    };
    GraduationSlots {
        busy: instructions * u64::from(THOUSANDTHS),
        data: thousandths(data),
        instruction: thousandths(instruction),
        pipeline: thousandths(tlb),
    }
}

fn elapsed(machine: &GenerationMachine, parts: u64) -> Option<Elapsed> {
    Some(Elapsed { parts, parts_per_cycle: machine.parts_per_cycle, megahertz: machine.megahertz? })
}

fn row(
    kind: Option<ServiceKind>,
    name: &str,
    amounts: &Amounts,
    machines: &[GenerationMachine],
) -> GenerationRow {
    let all = machines.iter().zip(&amounts.on);
    let first = all.clone().next().and_then(|(machine, on)| elapsed(machine, on.parts));
    let on = all.map(|(machine, on)| {
        let cycles = on.parts as f64 / f64::from(machine.parts_per_cycle.max(1));
        let own = elapsed(machine, on.parts);
        let microseconds = machine.megahertz.map(|clock| cycles / f64::from(clock.get()));
        let split = first.zip(own).and_then(|(first, own)| ExactSplit::new(first, own));
        ServiceTime {
            parts: on.parts,
            cpi: cycles / amounts.instructions.max(1) as f64,
            milliseconds: microseconds.map(|time| time / 1e3),
            nanoseconds_per_call: microseconds
                .filter(|_| kind.is_some())
                .map(|time| 1e3 * time / amounts.calls.max(1) as f64),
            split: split.map(Split::from),
            dispatch: on.dispatch,
            graduation: on.graduation,
            estimated: on.estimated,
        }
    });
    GenerationRow {
        kind,
        name: name.to_owned(),
        calls: amounts.calls,
        instructions: amounts.instructions,
        on: on.collect(),
        slices: Vec::new(),
    }
}

fn notes(machines: &[GenerationMachine], instructions: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if instructions < WARM {
        notes.push(format!(
            "only {instructions} instructions ran: below {WARM}, filling caches and predictors \
             takes most of the time; record longer"
        ));
    }
    for GenerationMachine { name, model, samples, .. } in machines {
        if let Some(samples) = samples {
            notes.push(format!(
                "{name}: estimated from {} samples of {} instructions; ± is half of a 95 % \
                 interval, in per cent; times, P and A are as uncertain as the cycles that they \
                 are made of",
                samples.units, samples.plan.measured
            ));
        }
        notes.extend(match model {
            CycleModel::OutOfOrder => None,
            CycleModel::InOrder => Some(format!(
                "{name}: no out-of-order core; Torrellas' simple model (1998, section 5.2), in \
                 which no level behind the L1I misses"
            )),
            CycleModel::InOrderWithData => Some(format!(
                "{name}: no out-of-order core; SimOS' 1994 model (Rosenblum 1995, section 3.2) \
                 with the recorded data accesses, which cores do not take here"
            )),
        });
    }
    notes
}
