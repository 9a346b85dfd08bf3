//! The format of valgrind's callgrind (its manual, "Callgrind Format Specification"), which
//! KCachegrind and `callgrind_annotate` open.
//!
//! A service is a function that calls the functions with which its chains begin; user mode has no
//! functions. An arc's inclusive cost is that of all chains that go over it, each counted once,
//! however often it goes over it (recursion).

use crate::folded::{frame, title};
use crate::{Format, Make};
use attribution::services::calls::{CallTree, Cost, Node, NodeId, ROOT};
use attribution::services::table::ServiceTable;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

/// Which misses a recording on a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    Instructions,
    /// And misses of the L1I.
    Fetches,
    /// And of the L1D and the L2.
    Memory,
}

impl Events {
    /// What a table of services has been counted with.
    pub fn of(table: &ServiceTable) -> Events {
        match table.machines.first() {
            None => Events::Instructions,
            Some(machine) if machine.kernel_stalls.is_none() => Events::Fetches,
            Some(_) => Events::Memory,
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
            Events::Instructions => 1,
            Events::Fetches => 2,
            Events::Memory => 4,
        }]
    }

    fn values(self, cost: &Cost) -> String {
        let all = [cost.instructions, cost.misses.l1i, cost.misses.l1d, cost.misses.l2];
        let shown = &all[..self.names().len()];
        shown.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
    }
}

/// A function's own cost, and what it called.
#[derive(Default)]
struct Entry {
    own: Cost,
    /// By name: calls, and all that was executed in them.
    called: BTreeMap<String, Cost>,
}

/// The format.
pub(crate) const CALLGRIND: Format = Format {
    name: "callgrind",
    about: "Valgrind's callgrind format: functions and services with their calls (KCachegrind, callgrind_annotate)",
    make: Make::Calls(|observed| {
        let events = Events::of(&observed.table);
        Ok(callgrind(&observed.calls, events, &observed.conditions()))
    }),
};

/// `command`: what was recorded, for people.
pub fn callgrind(tree: &CallTree, events: Events, command: &str) -> String {
    let entries = entries(tree);
    let mut total = Cost::default();
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
    // A name is written out where it comes first.
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
            // What is entered by a jump into its middle was not called, but readers drop an arc
            // without calls.
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

fn entries(tree: &CallTree) -> BTreeMap<String, Entry> {
    let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
    let mut own = vec![Cost::default(); tree.nodes.len()];
    let name = |node: NodeId| frame(&tree.functions[tree.nodes[node.0 as usize].function as usize]);
    let outermost = outermost(tree);
    for service in &tree.services {
        let entry = entries.entry(frame(&title(service))).or_default();
        let mut called: BTreeMap<NodeId, Cost> = BTreeMap::new();
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

/// The cost, with its calls or without.
fn counted(cost: Cost, with_calls: bool) -> Cost {
    Cost { calls: if with_calls { cost.calls } else { 0 }, ..cost }
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

/// Whether the arc to this node is in the chain above it, too.
fn is_again(tree: &CallTree, node: Node) -> bool {
    let function = |node: NodeId| tree.nodes[node.0 as usize].function;
    let caller = function(node.parent);
    let mut at = node.parent;
    while at != ROOT {
        let Node { parent, function: callee } = tree.nodes[at.0 as usize];
        if parent != ROOT && callee == node.function && function(parent) == caller {
            return true;
        }
        at = parent;
    }
    false
}
