//! The changes between two recordings, by service and by function, with their causes.
//!
//! Takes the totals of two recordings; gives changes, the largest first. A change is the sum of
//! three parts: another number of calls, each at its cost before; another number of instructions
//! per call; another number of misses per call, or, on an out-of-order core, of cycles per
//! instruction. Prints nothing.

use crate::ServicesAndFunctions;
use crate::annotations::ServiceKind;
use crate::core_time::{CoreTime, EstimatedTime};
use crate::table::{ServiceTable, in_kernel};
use serde::Serialize;
use sim::MachineModel;
use std::collections::{BTreeMap, BTreeSet};

/// The amounts of a service or a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallAmounts {
    /// How often it was called.
    pub calls: u64,
    /// Its own instructions.
    pub instructions: u64,
    /// Misses of the L1I; 0 without a machine.
    pub l1i_misses: u64,
}

/// How amounts become costs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Costs {
    /// In cycles by the machine's simple model, or in instructions without a machine.
    Simple { instruction: f64, miss: f64 },
    /// In cycles of an out-of-order core.
    Core,
}

impl Costs {
    fn of(self, amount: &Amount) -> f64 {
        match self {
            Costs::Core => amount.core.map_or(0.0, |core| core.cycles),
            Costs::Simple { instruction, miss } => {
                let CallAmounts { instructions, l1i_misses, .. } = amount.amounts;
                instructions as f64 * instruction + l1i_misses as f64 * miss
            }
        }
    }
}

/// The amounts, with the time on a core.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Amount {
    amounts: CallAmounts,
    core: Option<CoreTime>,
}

/// By kind and name; functions have no kind.
type Amounts = BTreeMap<(Option<ServiceKind>, String), Amount>;

/// The parts of a change, in the unit of the costs. Their sum is the change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ChangeParts {
    /// The part due to another number of calls.
    pub calls: f64,
    /// The part due to another number of instructions per call.
    pub instructions_a_call: f64,
    /// The part due to another number of misses per call.
    pub misses_a_call: f64,
    /// The part due to another number of cycles per instruction; 0 without an out-of-order core.
    pub cycles_an_instruction: f64,
}

impl ChangeParts {
    fn total(&self) -> f64 {
        self.calls + self.instructions_a_call + self.misses_a_call + self.cycles_an_instruction
    }
}

/// How far a change of estimated costs may be off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EstimatedChange {
    /// Of the cost in the first recording; `None` when that is exact.
    pub before: Option<EstimatedTime>,
    /// Of the cost in the second recording; `None` when that is exact.
    pub after: Option<EstimatedTime>,
    /// Half of the 95 % interval of the change, in the unit of the costs. The recordings have
    /// samples of their own, so their errors are independent. `None`: it ran in too few samples,
    /// before or after.
    pub within: Option<f64>,
}

impl EstimatedChange {
    fn new(before: &Amount, after: &Amount) -> Option<EstimatedChange> {
        let of = |amount: &Amount| amount.core.and_then(|core| core.estimated);
        let within = |amount: &Amount| match (of(amount), amount.core) {
            (Some(estimated), Some(core)) => Some(estimated.within? * core.cycles / 100.0),
            _ => Some(0.0),
        };
        let (of_before, of_after) = (of(before), of(after));
        of_before.or(of_after)?;
        let within = within(before).zip(within(after)).map(|(a, b)| a.hypot(b));
        Some(EstimatedChange { before: of_before, after: of_after, within })
    }
}

/// The change of a service, a function or the kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CostChange {
    /// `None` for functions.
    pub kind: Option<ServiceKind>,
    /// The name of the service or function.
    pub name: String,
    /// The amounts in the first recording.
    pub before: CallAmounts,
    /// The amounts in the second recording.
    pub after: CallAmounts,
    /// The cost in the first recording, in the unit of the difference.
    pub cost_before: f64,
    /// The cost in the second recording, in the unit of the difference.
    pub cost_after: f64,
    /// The parts of the change by cause.
    pub parts: ChangeParts,
    /// The largest part, in words.
    pub why: String,
    /// How far costs and change may be off; `None` when they are exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated: Option<EstimatedChange>,
}

impl CostChange {
    /// The growth of the cost, as a share of the cost before; `None` when there was no cost before.
    pub fn growth(&self) -> Option<f64> {
        (self.cost_before > 0.0).then(|| self.cost_after / self.cost_before - 1.0)
    }

    /// Whether the cost grew by more than this share, and by more than its 95 % interval says. What
    /// is new grew. What ran in too few samples may not have grown.
    fn surely_grew(&self, limit: f64) -> bool {
        let Some(growth) = self.growth() else { return true };
        let doubt = self.estimated.map_or(Some(0.0), |estimated| estimated.within);
        doubt.is_some_and(|doubt| growth - doubt / self.cost_before > limit)
    }
}

/// The difference of two recordings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecordingDifference {
    /// The workload of the first recording.
    pub workload_before: String,
    /// The workload of the second recording.
    pub workload_after: String,
    /// The build id of the first kernel.
    pub kernel_before: String,
    /// The build id of the second kernel.
    pub kernel_after: String,
    /// "instructions", or "cycles on" a machine.
    pub unit: String,
    /// Whether the cycles are those of an out-of-order core.
    pub on_core: bool,
    /// The kernel as a whole.
    pub total: CostChange,
    /// Changes of services, the largest first.
    pub services: Vec<CostChange>,
    /// Changes of functions, the largest first.
    pub functions: Vec<CostChange>,
    /// Context switches, before and after.
    pub context_switches: [u64; 2],
    /// The annotations' counters, before and after.
    pub counters: BTreeMap<String, [u64; 2]>,
}

impl RecordingDifference {
    /// `machine`: the machine on which both recordings were simulated.
    pub fn new(
        before: &ServicesAndFunctions,
        after: &ServicesAndFunctions,
        machine: Option<&MachineModel>,
    ) -> RecordingDifference {
        let costs = match machine {
            None => Costs::Simple { instruction: 1.0, miss: 0.0 },
            Some(machine) if machine.core.is_some() => Costs::Core,
            Some(machine) => {
                let model = &machine.time;
                Costs::Simple { instruction: model.cycles(1, 0), miss: model.miss_penalty() }
            }
        };
        let (old, new) = (&before.table, &after.table);
        let functions = |recorded: &ServicesAndFunctions| -> Amounts {
            let amount = |totals: &crate::functions::FunctionTotals| Amount {
                amounts: CallAmounts {
                    calls: totals.calls,
                    instructions: totals.instructions,
                    l1i_misses: totals.l1i_misses,
                },
                core: totals.core,
            };
            let named = recorded.functions.iter();
            named.map(|(name, totals)| ((None, name.clone()), amount(totals))).collect()
        };
        let names: BTreeSet<&String> = old.counters.keys().chain(new.counters.keys()).collect();
        let count =
            |table: &ServiceTable, name: &String| table.counters.get(name).copied().unwrap_or(0);
        RecordingDifference {
            workload_before: old.workload.clone(),
            workload_after: new.workload.clone(),
            kernel_before: old.kernel.clone(),
            kernel_after: new.kernel.clone(),
            unit: machine
                .map_or("instructions".to_owned(), |machine| format!("cycles on {}", machine.name)),
            on_core: costs == Costs::Core,
            total: change(None, "the kernel", whole(old), whole(new), costs),
            services: changes(&services(old), &services(new), costs),
            functions: changes(&functions(before), &functions(after), costs),
            context_switches: [old.context_switches, new.context_switches],
            counters: names
                .into_iter()
                .map(|name| (name.clone(), [count(old, name), count(new, name)]))
                .collect(),
        }
    }

    /// The changes above a limit: those of the whole kernel, and of services with at least `share`
    /// of its cost before or after, that grew by more than `limit`. `share` and `limit` are from 0
    /// to 1. A new service is always above the limit. Of estimated costs, only the growth beyond
    /// their 95 % interval counts.
    pub fn over(&self, limit: f64, share: f64) -> Vec<&CostChange> {
        let large = |change: &&CostChange| {
            change.cost_before >= share * self.total.cost_before && change.cost_before > 0.0
                || change.cost_after >= share * self.total.cost_after && change.cost_after > 0.0
        };
        let grew = |change: &&CostChange| change.surely_grew(limit);
        std::iter::once(&self.total)
            .chain(self.services.iter().filter(large))
            .filter(grew)
            .collect()
    }
}

fn services(table: &ServiceTable) -> Amounts {
    let kernel = table.rows.iter().filter(|row| in_kernel(row.kind));
    kernel
        .map(|row| {
            let on = row.machines.first();
            let amounts = CallAmounts {
                calls: row.calls,
                instructions: row.instructions,
                l1i_misses: on.map_or(0, |machine| machine.l1i_misses),
            };
            let amount = Amount { amounts, core: on.and_then(|machine| machine.core) };
            ((Some(row.kind), row.name.clone()), amount)
        })
        .collect()
}

/// The amounts of the whole kernel. Its calls are the entries of the kernel.
fn whole(table: &ServiceTable) -> Amount {
    let entries = [
        ServiceKind::SystemCall,
        ServiceKind::PageFault,
        ServiceKind::Exception,
        ServiceKind::Interrupt,
        ServiceKind::Ipi,
    ];
    let machine = table.machines.first();
    Amount {
        amounts: CallAmounts {
            calls: entries.iter().filter_map(|kind| table.begun.get(kind)).sum(),
            instructions: table.kernel_instructions,
            l1i_misses: machine.map_or(0, |machine| machine.kernel_l1i_misses),
        },
        core: machine.and_then(|machine| machine.core).map(|[_, kernel]| kernel),
    }
}

fn changes(before: &Amounts, after: &Amounts, costs: Costs) -> Vec<CostChange> {
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let amount = |of: &Amounts, key| of.get(key).copied().unwrap_or_default();
    let mut changes: Vec<CostChange> = keys
        .into_iter()
        .map(|key| change(key.0, &key.1, amount(before, key), amount(after, key), costs))
        .filter(|change| change.before != change.after || change.cost_before != change.cost_after)
        .collect();
    changes.sort_by(|a, b| {
        let size = |change: &CostChange| (change.cost_after - change.cost_before).abs();
        size(b).total_cmp(&size(a)).then_with(|| (a.kind, &a.name).cmp(&(b.kind, &b.name)))
    });
    changes
}

fn change(
    kind: Option<ServiceKind>,
    name: &str,
    before: Amount,
    after: Amount,
    costs: Costs,
) -> CostChange {
    let [cost_before, cost_after] = [&before, &after].map(|amount| costs.of(amount));
    let estimated = EstimatedChange::new(&before, &after).filter(|_| costs == Costs::Core);
    let (before, after) = (before.amounts, after.amounts);
    let mean = |number: u64, amount: CallAmounts| {
        if amount.calls == 0 { 0.0 } else { number as f64 / amount.calls as f64 }
    };
    let parts = if before.calls == 0 || after.calls == 0 {
        ChangeParts { calls: cost_after - cost_before, ..ChangeParts::default() }
    } else {
        let calls = after.calls as f64;
        let more = mean(after.instructions, after) - mean(before.instructions, before);
        let by_calls = (calls - before.calls as f64) * cost_before / before.calls as f64;
        match costs {
            Costs::Simple { instruction, miss } => ChangeParts {
                calls: by_calls,
                instructions_a_call: calls * more * instruction,
                misses_a_call: calls
                    * (mean(after.l1i_misses, after) - mean(before.l1i_misses, before))
                    * miss,
                cycles_an_instruction: 0.0,
            },
            Costs::Core => {
                let by_instructions =
                    calls * more * cost_before / before.instructions.max(1) as f64;
                ChangeParts {
                    calls: by_calls,
                    instructions_a_call: by_instructions,
                    misses_a_call: 0.0,
                    cycles_an_instruction: cost_after - cost_before - by_calls - by_instructions,
                }
            }
        }
    };
    CostChange {
        kind,
        name: name.to_owned(),
        cost_before,
        cost_after,
        why: why(before, after, &parts),
        before,
        after,
        parts,
        estimated,
    }
}

fn why(before: CallAmounts, after: CallAmounts, parts: &ChangeParts) -> String {
    if before == after && parts.total() == 0.0 {
        return "nothing changed".to_owned();
    }
    if before.instructions == 0 {
        return "new".to_owned();
    }
    if after.instructions == 0 {
        return "gone".to_owned();
    }
    let grows = parts.total() >= 0.0;
    let direction = |part: f64| if grows { part } else { -part };
    let named = [
        (parts.calls, "calls"),
        (parts.instructions_a_call, "instructions a call"),
        (parts.misses_a_call, "misses a call"),
        (parts.cycles_an_instruction, "cycles an instruction"),
    ];
    let largest = named.iter().max_by(|(a, _), (b, _)| direction(*a).total_cmp(&direction(*b)));
    let word = if grows { "more" } else { "fewer" };
    largest.map_or(String::new(), |(_, what)| format!("{word} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(calls: u64, instructions: u64, l1i_misses: u64) -> Amount {
        Amount { amounts: CallAmounts { calls, instructions, l1i_misses }, core: None }
    }

    const COSTS: Costs = Costs::Simple { instruction: 1.0, miss: 30.0 };

    /// Instructions that took these cycles. `within`: per cent, and the samples.
    fn on_core(
        calls: u64,
        instructions: u64,
        cycles: f64,
        within: Option<(u64, Option<f64>)>,
    ) -> Amount {
        let estimated = within.map(|(samples, within)| EstimatedTime { samples, within });
        Amount {
            core: Some(CoreTime { cycles, estimated }),
            ..amount(calls, instructions, instructions)
        }
    }

    #[test]
    fn parts_on_a_core_are_calls_instructions_and_cycles_an_instruction() {
        let exact = |calls, instructions, cycles| on_core(calls, instructions, cycles, None);
        let cases = [
            (exact(10, 1000, 700.0), exact(20, 2000, 1500.0), "more calls", [700.0, 0.0, 100.0]),
            (
                exact(10, 1000, 700.0),
                exact(10, 1500, 1100.0),
                "more instructions a call",
                [0.0, 350.0, 50.0],
            ),
            (
                exact(10, 1000, 700.0),
                exact(10, 1000, 900.0),
                "more cycles an instruction",
                [0.0, 0.0, 200.0],
            ),
            (exact(10, 1000, 700.0), exact(0, 0, 0.0), "gone", [-700.0, 0.0, 0.0]),
        ];
        for (before, after, why, parts) in cases {
            let change = change(None, "f", before, after, Costs::Core);
            assert_eq!((change.why.as_str(), change.estimated), (why, None));
            let found = [
                change.parts.calls,
                change.parts.instructions_a_call,
                change.parts.cycles_an_instruction,
            ];
            assert_eq!((found, change.parts.misses_a_call), (parts, 0.0));
        }
    }

    /// 3 % of 1000 and 4 % of 1000 are 50 cycles.
    #[test]
    fn an_estimated_growth_counts_beyond_its_interval() {
        let before = on_core(10, 1000, 1000.0, Some((90, Some(3.0))));
        let after = |within| on_core(10, 1000, 1000.0 + 80.0, Some((90, within)));
        let grown = change(None, "f", before, after(Some(100.0 * 40.0 / 1080.0)), Costs::Core);
        assert!((grown.estimated.unwrap().within.unwrap() - 50.0).abs() < 1e-9);
        assert!(grown.surely_grew(0.02) && !grown.surely_grew(0.04), "{grown:?}");
        let unknown = change(None, "f", before, after(None), Costs::Core);
        assert_eq!(unknown.estimated.unwrap().within, None);
        assert!(!unknown.surely_grew(0.02), "it ran in too few samples");
        let exact = on_core(10, 1000, 1080.0, None);
        let half = change(None, "f", before, exact, Costs::Core);
        assert!((half.estimated.unwrap().within.unwrap() - 30.0).abs() < 1e-9);
        assert!(half.surely_grew(0.04));
        let new = change(None, "f", Amount::default(), after(None), Costs::Core);
        assert!(new.surely_grew(0.5));
    }

    #[test]
    fn the_parts_add_up_and_the_largest_is_named() {
        let cases = [
            (amount(10, 1000, 20), amount(20, 2000, 40), "more calls"),
            (amount(10, 1000, 20), amount(10, 1500, 22), "more instructions a call"),
            (amount(10, 1000, 20), amount(10, 1000, 90), "more misses a call"),
            (amount(10, 1000, 20), amount(10, 800, 20), "fewer instructions a call"),
            (amount(10, 1000, 20), amount(5, 900, 10), "fewer calls"),
            (amount(10, 1000, 20), amount(10, 1000, 20), "nothing changed"),
            (amount(0, 0, 0), amount(5, 900, 10), "new"),
            (amount(5, 900, 10), amount(0, 0, 0), "gone"),
        ];
        for (before, after, why) in cases {
            let change = change(None, "f", before, after, COSTS);
            assert_eq!(change.why, why);
            assert!(
                (change.parts.total() - (change.cost_after - change.cost_before)).abs() < 1e-6,
                "{change:?}"
            );
        }
    }

    #[test]
    fn equal_amounts_are_left_out_and_the_largest_change_comes_first() {
        let table = |list: &[(&str, Amount)]| {
            list.iter().map(|(name, amount)| ((None, (*name).to_owned()), *amount)).collect()
        };
        let before =
            table(&[("a", amount(1, 10, 0)), ("b", amount(1, 10, 0)), ("c", amount(1, 10, 0))]);
        let after =
            table(&[("a", amount(1, 10, 0)), ("b", amount(1, 15, 0)), ("c", amount(1, 2, 0))]);
        let names: Vec<_> =
            changes(&before, &after, COSTS).into_iter().map(|change| change.name).collect();
        assert_eq!(names, ["c", "b"]);
    }
}
