//! The format of valgrind's callgrind (its manual, "Callgrind Format Specification"), which
//! KCachegrind and `callgrind_annotate` open.
//!
//! A service appears as a function that calls the first functions of its chains. User mode has no
//! functions. An arc's inclusive cost is the cost of all chains that contain the arc. Each chain
//! counts once, even if it contains the arc several times (recursion).
//!
//! Input: chains of calls. Output: text. Counts go out as they are.

use crate::folded::{frame, title};
use crate::{Format, Make};
use services::calls::{CallCost, CallNode, CallTree, NodeId, ROOT};
use services::table::ServiceTable;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

/// The misses that a recording on a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallgrindEvents {
    /// None: instructions only.
    Instructions,
    /// Also misses of the L1I.
    Fetches,
    /// Also misses of the L1D and the L2.
    Memory,
}

impl CallgrindEvents {
    /// The events with which a table of services was counted.
    pub fn of(table: &ServiceTable) -> CallgrindEvents {
        match table.machines.first() {
            None => CallgrindEvents::Instructions,
            Some(machine) if machine.kernel_stalls.is_none() => CallgrindEvents::Fetches,
            Some(_) => CallgrindEvents::Memory,
        }
    }

    fn names(self) -> &'static [(&'static str, &'static str)] {
        const ALL: [(&str, &str); 4] = [
            ("Ir", "Instructions"),
            ("I1m", "L1I misses"),
            ("D1m", "L1D misses"),
            ("L2m", "L2 misses, of instructions and data"),
        ];
        &ALL[..match self {
            CallgrindEvents::Instructions => 1,
            CallgrindEvents::Fetches => 2,
            CallgrindEvents::Memory => 4,
        }]
    }

    fn values(self, cost: &CallCost) -> String {
        let all = [cost.instructions, cost.misses.l1i, cost.misses.l1d, cost.misses.l2];
        let shown = &all[..self.names().len()];
        shown.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
    }
}

/// A function's own cost, and the functions that it called.
#[derive(Default)]
struct FunctionCosts {
    own: CallCost,
    /// By the callee's name: the number of calls, and everything that was executed in them.
    called: BTreeMap<String, CallCost>,
}

/// The format.
pub(crate) const CALLGRIND: Format = Format {
    name: "callgrind",
    about: "Valgrind's callgrind format: functions and services with their calls (KCachegrind, \
        callgrind_annotate)",
    make: Make::Calls(|observed| {
        let events = CallgrindEvents::of(&observed.table);
        Ok(callgrind(&observed.calls, events, &observed.conditions()))
    }),
};

/// `command`: a description of the recording for people.
pub(crate) fn callgrind(tree: &CallTree, events: CallgrindEvents, command: &str) -> String {
    let entries = entries(tree);
    let mut total = CallCost::default();
    entries.values().for_each(|entry| total += entry.own);
    let numbers: BTreeMap<&str, usize> =
        entries.keys().zip(1..).map(|(name, number)| (name.as_str(), number)).collect();
    let mut text = format!(
        "# callgrind format\nversion: 1\ncreator: kernlane {}\ncmd: {}\npositions: line\n",
        env!("CARGO_PKG_VERSION"),
        frame(command)
    );
    for (name, about) in events.names() {
        let _ = writeln!(text, "event: {name} : {about}");
    }
    let names: Vec<&str> = events.names().iter().map(|(name, _)| *name).collect();
    let _ = writeln!(text, "events: {}\nsummary: {}\n", names.join(" "), events.values(&total));
    let mut known = HashSet::new();
    // The format writes a name in full where it occurs first.
    let mut named = |name: &str| {
        let number = numbers.get(name).copied().unwrap_or(0);
        match known.insert(number) {
            true => format!("({number}) {name}"),
            false => format!("({number})"),
        }
    };
    text += "fl=(1) ???\n";
    for (name, entry) in &entries {
        let _ = writeln!(text, "fn={}\n0 {}", named(name), events.values(&entry.own));
        for (callee, cost) in &entry.called {
            // Code that was entered by a jump into its middle was not called. But readers ignore an
            // arc without calls.
            let _ = writeln!(
                text,
                "cfn={}\ncalls={} 0\n0 {}",
                named(callee),
                cost.calls.max(1),
                events.values(cost)
            );
        }
        text.push('\n');
    }
    text
}

fn entries(tree: &CallTree) -> BTreeMap<String, FunctionCosts> {
    let mut entries: BTreeMap<String, FunctionCosts> = BTreeMap::new();
    let mut own = vec![CallCost::default(); tree.nodes.len()];
    let name = |node: NodeId| frame(&tree.functions[tree.nodes[node.0 as usize].function as usize]);
    let outermost = outermost(tree);
    for service in &tree.services {
        let entry = entries.entry(frame(&title(service))).or_default();
        let mut called: BTreeMap<NodeId, CallCost> = BTreeMap::new();
        for &(node, cost) in &service.costs {
            own[node.0 as usize] += cost;
            match outermost[node.0 as usize] {
                ROOT => entry.own += cost,
                first => *called.entry(first).or_default() += counted(cost, first == node),
            }
        }
        for (first, cost) in called {
            *entry.called.entry(name(first)).or_default() += cost;
        }
    }
    let mut inclusive = own.clone();
    for (number, node) in tree.nodes.iter().enumerate().skip(1).rev() {
        let cost = counted(inclusive[number], false);
        inclusive[node.parent.0 as usize] += cost;
    }
    for (number, node) in tree.nodes.iter().enumerate().skip(1) {
        let here = NodeId(number as u32);
        entries.entry(name(here)).or_default().own += counted(own[number], false);
        if node.parent == ROOT {
            continue;
        }
        let called = &mut entries.entry(name(node.parent)).or_default().called;
        let arc = called.entry(name(here)).or_default();
        arc.calls += own[number].calls;
        if !is_again(tree, *node) {
            *arc += counted(inclusive[number], false);
        }
    }
    entries
}

/// The cost, with or without its calls.
fn counted(cost: CallCost, with_calls: bool) -> CallCost {
    CallCost { calls: if with_calls { cost.calls } else { 0 }, ..cost }
}

/// The first function of each chain.
fn outermost(tree: &CallTree) -> Vec<NodeId> {
    let mut first = vec![ROOT; tree.nodes.len()];
    for (number, node) in tree.nodes.iter().enumerate().skip(1) {
        first[number] = match node.parent {
            ROOT => NodeId(number as u32),
            parent => first[parent.0 as usize],
        };
    }
    first
}

/// Whether the chain above this node already contains the arc to it.
fn is_again(tree: &CallTree, node: CallNode) -> bool {
    let function = |node: NodeId| tree.nodes[node.0 as usize].function;
    let caller = function(node.parent);
    let mut at = node.parent;
    while at != ROOT {
        let CallNode { parent, function: callee } = tree.nodes[at.0 as usize];
        if parent != ROOT && callee == node.function && function(parent) == caller {
            return true;
        }
        at = parent;
    }
    false
}
