//! The changes between two recordings, by service and by function, with their causes.
//!
//! Takes the totals of two recordings; gives changes, the largest first. A change is the sum of
//! three parts: another number of calls, each at its cost before; another number of instructions
//! per call; another number of misses per call. Prints nothing.

use crate::ServicesAndFunctions;
use crate::annotations::ServiceKind;
use crate::table::{ServiceTable, in_kernel};
use serde::Serialize;
use sim::SimpleModel;
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

/// The costs in cycles by the machine's simple model, or in instructions without a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
struct UnitCosts {
    instruction: f64,
    miss: f64,
}

/// The parts of a change, in the unit of the costs. Their sum is the change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ChangeParts {
    /// The part due to another number of calls.
    pub calls: f64,
    /// The part due to another number of instructions per call.
    pub instructions_a_call: f64,
    /// The part due to another number of misses per call.
    pub misses_a_call: f64,
}

impl ChangeParts {
    fn total(&self) -> f64 {
        self.calls + self.instructions_a_call + self.misses_a_call
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
}

impl CostChange {
    /// The growth of the cost, as a share of the cost before; `None` when there was no cost before.
    pub fn growth(&self) -> Option<f64> {
        (self.cost_before > 0.0).then(|| self.cost_after / self.cost_before - 1.0)
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
    /// `model`: the model of the machine on which both recordings were simulated.
    pub fn new(
        before: &ServicesAndFunctions,
        after: &ServicesAndFunctions,
        model: Option<SimpleModel>,
    ) -> RecordingDifference {
        let costs = match model {
            None => UnitCosts { instruction: 1.0, miss: 0.0 },
            Some(model) => {
                UnitCosts { instruction: model.cycles(1, 0), miss: model.miss_penalty() }
            }
        };
        let (old, new) = (&before.table, &after.table);
        type AmountsByFunction = BTreeMap<(Option<ServiceKind>, String), CallAmounts>;
        let functions = |recorded: &ServicesAndFunctions| -> AmountsByFunction {
            let amount = |totals: &crate::functions::FunctionTotals| CallAmounts {
                calls: totals.calls,
                instructions: totals.instructions,
                l1i_misses: totals.l1i_misses,
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
            unit: match old.machines.first() {
                Some(machine) if model.is_some() => format!("cycles on {}", machine.name),
                _ => "instructions".to_owned(),
            },
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
    /// to 1. A new service is always above the limit.
    pub fn over(&self, limit: f64, share: f64) -> Vec<&CostChange> {
        let large = |change: &&CostChange| {
            change.cost_before >= share * self.total.cost_before && change.cost_before > 0.0
                || change.cost_after >= share * self.total.cost_after && change.cost_after > 0.0
        };
        let grew = |change: &&CostChange| change.growth().is_none_or(|growth| growth > limit);
        std::iter::once(&self.total)
            .chain(self.services.iter().filter(large))
            .filter(grew)
            .collect()
    }
}

fn services(table: &ServiceTable) -> BTreeMap<(Option<ServiceKind>, String), CallAmounts> {
    let kernel = table.rows.iter().filter(|row| in_kernel(row.kind));
    kernel
        .map(|row| {
            let amount = CallAmounts {
                calls: row.calls,
                instructions: row.instructions,
                l1i_misses: row.machines.first().map_or(0, |machine| machine.l1i_misses),
            };
            ((Some(row.kind), row.name.clone()), amount)
        })
        .collect()
}

/// The amounts of the whole kernel. Its calls are the entries of the kernel.
fn whole(table: &ServiceTable) -> CallAmounts {
    let entries = [
        ServiceKind::SystemCall,
        ServiceKind::PageFault,
        ServiceKind::Exception,
        ServiceKind::Interrupt,
        ServiceKind::Ipi,
    ];
    CallAmounts {
        calls: entries.iter().filter_map(|kind| table.begun.get(kind)).sum(),
        instructions: table.kernel_instructions,
        l1i_misses: table.machines.first().map_or(0, |machine| machine.kernel_l1i_misses),
    }
}

fn changes(
    before: &BTreeMap<(Option<ServiceKind>, String), CallAmounts>,
    after: &BTreeMap<(Option<ServiceKind>, String), CallAmounts>,
    costs: UnitCosts,
) -> Vec<CostChange> {
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let amount = |of: &BTreeMap<_, CallAmounts>, key| of.get(key).copied().unwrap_or_default();
    let mut changes: Vec<CostChange> = keys
        .into_iter()
        .map(|key| change(key.0, &key.1, amount(before, key), amount(after, key), costs))
        .filter(|change| change.before != change.after)
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
    before: CallAmounts,
    after: CallAmounts,
    costs: UnitCosts,
) -> CostChange {
    let cost = |amount: CallAmounts| {
        amount.instructions as f64 * costs.instruction + amount.l1i_misses as f64 * costs.miss
    };
    let mean = |number: u64, amount: CallAmounts| {
        if amount.calls == 0 { 0.0 } else { number as f64 / amount.calls as f64 }
    };
    let parts = if before.calls == 0 || after.calls == 0 {
        ChangeParts { calls: cost(after) - cost(before), ..ChangeParts::default() }
    } else {
        let calls = after.calls as f64;
        ChangeParts {
            calls: (calls - before.calls as f64) * cost(before) / before.calls as f64,
            instructions_a_call: calls
                * (mean(after.instructions, after) - mean(before.instructions, before))
                * costs.instruction,
            misses_a_call: calls
                * (mean(after.l1i_misses, after) - mean(before.l1i_misses, before))
                * costs.miss,
        }
    };
    CostChange {
        kind,
        name: name.to_owned(),
        cost_before: cost(before),
        cost_after: cost(after),
        why: why(before, after, &parts),
        before,
        after,
        parts,
    }
}

fn why(before: CallAmounts, after: CallAmounts, parts: &ChangeParts) -> String {
    if before == after {
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
    ];
    let largest = named.iter().max_by(|(a, _), (b, _)| direction(*a).total_cmp(&direction(*b)));
    let word = if grows { "more" } else { "fewer" };
    largest.map_or(String::new(), |(_, what)| format!("{word} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(calls: u64, instructions: u64, l1i_misses: u64) -> CallAmounts {
        CallAmounts { calls, instructions, l1i_misses }
    }

    const COSTS: UnitCosts = UnitCosts { instruction: 1.0, miss: 30.0 };

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
        let table = |list: &[(&str, CallAmounts)]| {
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
