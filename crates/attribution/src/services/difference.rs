//! What changed between two recordings, service by service and function by function, and why.
//!
//! Takes what two recordings came to; gives changes, the largest first. A change has three parts,
//! which add up: other calls, each at what it cost before; another number of instructions a call;
//! another number of misses a call. Prints nothing.

use crate::services::Recorded;
use crate::services::annotations::Kind;
use crate::services::table::{ServiceTable, in_kernel};
use serde::Serialize;
use sim::SimpleModel;
use std::collections::{BTreeMap, BTreeSet};

/// What a service or a function came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    pub calls: u64,
    pub instructions: u64,
    /// Misses of the L1I; 0 without a machine.
    pub l1i_misses: u64,
}

/// Cycles by the machine's simple model, or instructions where there is no machine.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Costs {
    instruction: f64,
    miss: f64,
}

/// The parts of a change, in the unit of the costs. They add up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Parts {
    pub calls: f64,
    pub instructions_a_call: f64,
    pub misses_a_call: f64,
}

impl Parts {
    fn total(&self) -> f64 {
        self.calls + self.instructions_a_call + self.misses_a_call
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// `None` for functions.
    pub kind: Option<Kind>,
    pub name: String,
    pub before: Amount,
    pub after: Amount,
    pub cost_before: f64,
    pub cost_after: f64,
    pub parts: Parts,
    /// The part that is largest, in words.
    pub why: String,
}

impl Change {
    /// By which part of what it was before it grew; `None` where there was nothing.
    pub fn growth(&self) -> Option<f64> {
        (self.cost_before > 0.0).then(|| self.cost_after / self.cost_before - 1.0)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub workload_before: String,
    pub workload_after: String,
    pub kernel_before: String,
    pub kernel_after: String,
    /// "instructions", or "cycles on" a machine.
    pub unit: String,
    /// The kernel as a whole.
    pub total: Change,
    pub services: Vec<Change>,
    pub functions: Vec<Change>,
    pub context_switches: [u64; 2],
    /// The annotations' counters, before and after.
    pub counters: BTreeMap<String, [u64; 2]>,
}

impl Difference {
    /// `model`: of the one machine on which both were simulated.
    pub fn new(before: &Recorded, after: &Recorded, model: Option<SimpleModel>) -> Difference {
        let costs = match model {
            None => Costs { instruction: 1.0, miss: 0.0 },
            Some(model) => Costs { instruction: model.cycles(1, 0), miss: model.miss_penalty() },
        };
        let (old, new) = (&before.table, &after.table);
        let functions = |recorded: &Recorded| -> BTreeMap<(Option<Kind>, String), Amount> {
            let amount = |totals: &crate::services::functions::FunctionTotals| Amount {
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
        Difference {
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

    /// The changes that a limit forbids: of the whole kernel and of services that are at least
    /// `share` of it before or after, those that grew by more than `limit` (both 0 to 1). A service
    /// that is new has grown without limit.
    pub fn over(&self, limit: f64, share: f64) -> Vec<&Change> {
        let large = |change: &&Change| {
            change.cost_before >= share * self.total.cost_before && change.cost_before > 0.0
                || change.cost_after >= share * self.total.cost_after && change.cost_after > 0.0
        };
        let grew = |change: &&Change| change.growth().is_none_or(|growth| growth > limit);
        std::iter::once(&self.total)
            .chain(self.services.iter().filter(large))
            .filter(grew)
            .collect()
    }
}

fn services(table: &ServiceTable) -> BTreeMap<(Option<Kind>, String), Amount> {
    let kernel = table.rows.iter().filter(|row| in_kernel(row.kind));
    kernel
        .map(|row| {
            let amount = Amount {
                calls: row.calls,
                instructions: row.instructions,
                l1i_misses: row.on.first().map_or(0, |on| on.l1i_misses),
            };
            ((Some(row.kind), row.name.clone()), amount)
        })
        .collect()
}

/// The kernel is called as often as it is entered.
fn whole(table: &ServiceTable) -> Amount {
    let entries = [Kind::SystemCall, Kind::PageFault, Kind::Exception, Kind::Interrupt, Kind::Ipi];
    Amount {
        calls: entries.iter().filter_map(|kind| table.begun.get(kind)).sum(),
        instructions: table.kernel_instructions,
        l1i_misses: table.machines.first().map_or(0, |machine| machine.kernel_l1i_misses),
    }
}

fn changes(
    before: &BTreeMap<(Option<Kind>, String), Amount>,
    after: &BTreeMap<(Option<Kind>, String), Amount>,
    costs: Costs,
) -> Vec<Change> {
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let amount = |of: &BTreeMap<_, Amount>, key| of.get(key).copied().unwrap_or_default();
    let mut changes: Vec<Change> = keys
        .into_iter()
        .map(|key| change(key.0, &key.1, amount(before, key), amount(after, key), costs))
        .filter(|change| change.before != change.after)
        .collect();
    changes.sort_by(|a, b| {
        let size = |change: &Change| (change.cost_after - change.cost_before).abs();
        size(b).total_cmp(&size(a)).then_with(|| (a.kind, &a.name).cmp(&(b.kind, &b.name)))
    });
    changes
}

fn change(kind: Option<Kind>, name: &str, before: Amount, after: Amount, costs: Costs) -> Change {
    let cost = |amount: Amount| {
        amount.instructions as f64 * costs.instruction + amount.l1i_misses as f64 * costs.miss
    };
    let mean = |number: u64, amount: Amount| {
        if amount.calls == 0 { 0.0 } else { number as f64 / amount.calls as f64 }
    };
    let parts = if before.calls == 0 || after.calls == 0 {
        Parts { calls: cost(after) - cost(before), ..Parts::default() }
    } else {
        let calls = after.calls as f64;
        Parts {
            calls: (calls - before.calls as f64) * cost(before) / before.calls as f64,
            instructions_a_call: calls
                * (mean(after.instructions, after) - mean(before.instructions, before))
                * costs.instruction,
            misses_a_call: calls
                * (mean(after.l1i_misses, after) - mean(before.l1i_misses, before))
                * costs.miss,
        }
    };
    Change {
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

fn why(before: Amount, after: Amount, parts: &Parts) -> String {
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

    fn amount(calls: u64, instructions: u64, l1i_misses: u64) -> Amount {
        Amount { calls, instructions, l1i_misses }
    }

    const COSTS: Costs = Costs { instruction: 1.0, miss: 30.0 };

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
    fn what_stayed_is_no_change_and_the_largest_comes_first() {
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
