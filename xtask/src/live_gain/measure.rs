//! What a recording comes to on a machine: the kernel end to end, and the invocations of functions
//! with all that they call.

use anyhow::{Context, Result};
use attribution::read;
use attribution::services;
use attribution::services::annotations::Annotations;
use attribution::services::binding::Binding;
use attribution::services::calls::{CallTree, Cost, ROOT};
use attribution::services::symbols::Symbols;
use execution::machine;
use host::recording::Recording;
use live::chunks::Chunks;
use replay::{self, Layout, rows};
use serde::Serialize;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use trace::RecordingReader;

/// One recording, machine by machine.
pub type Side = Vec<OnMachine>;

/// A benchmark before and after.
#[derive(Serialize)]
pub struct Gain {
    pub benchmark: String,
    /// The guest's release.
    pub kernel: String,
    pub operation: String,
    pub operations: u64,
    pub before: Side,
    pub after: Side,
    /// The replaced functions.
    pub group: Vec<Chunks>,
}

/// The kernel's part of a recording. All but the instructions is simulated.
#[derive(Serialize)]
pub struct OnMachine {
    pub machine: String,
    pub instructions: u64,
    pub user_instructions: u64,
    /// Direct jumps that were taken, conditional or not.
    pub jumps: u64,
    pub l1i_misses: u64,
    /// Cycles for these misses, and all (Torrellas 1998, section 5.2).
    pub stall: f64,
    pub cycles: f64,
    /// The kernel's image lies in large pages, modules in pages of 4 KB.
    pub itlb_misses: u64,
    pub functions: Vec<Invocations>,
}

/// A function with all that it calls, page faults and interrupts left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Invocations {
    pub function: String,
    pub calls: u64,
    pub instructions: u64,
    pub l1i_misses: u64,
    pub stall: f64,
    pub cycles: f64,
}

pub fn on(
    recording: &Path,
    machine: &str,
    symbols: &Symbols,
    functions: &[&str],
) -> Result<OnMachine> {
    let machine = machine::find(machine)?;
    let machines = [machine];
    let layouts = [Layout::original()];
    let path = Recording::at(recording).trace();
    let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
    let replayed = replay::replay(
        RecordingReader::new(BufReader::with_capacity(1 << 20, file))?,
        &layouts,
        &machines,
    )?;
    let rows = rows::rows(&replayed, &layouts, &machines, None);
    let counters = &rows.first().context("replay gave nothing")?.counters;
    let binding = Binding::new(&Annotations::shipped()?, symbols);
    let (_, tree, _) = read(recording, "calls", |reader| {
        services::attribute_with_calls(reader, symbols, &binding, &machines)
    })?;
    let [machine] = machines;
    let misses = counters.l1i.kernel.total();
    let stall = |misses: u64| misses as f64 * machine.time.miss_penalty();
    let functions = functions.iter().map(|&function| {
        let cost = invocations(&tree, function);
        Invocations {
            function: function.to_owned(),
            calls: cost.calls,
            instructions: cost.instructions,
            l1i_misses: cost.misses.l1i,
            stall: stall(cost.misses.l1i),
            cycles: machine.time.cycles(cost.instructions, cost.misses.l1i),
        }
    });
    Ok(OnMachine {
        functions: functions.collect(),
        instructions: counters.instructions.kernel,
        user_instructions: counters.instructions.user,
        jumps: counters.kernel_jumps(),
        l1i_misses: misses,
        stall: stall(misses),
        cycles: machine.time.cycles(counters.instructions.kernel, misses),
        itlb_misses: counters.itlb.as_ref().map_or(0, |itlb| itlb.kernel),
        machine: machine.name,
    })
}

/// What the outermost invocations of a function came to, callees included.
fn invocations(tree: &CallTree, function: &str) -> Cost {
    let Some(wanted) = tree.functions.iter().position(|name| name == function) else {
        return Cost::default();
    };
    // A node's parent has a smaller number.
    let mut inside = vec![false; tree.nodes.len()];
    for (n, node) in tree.nodes.iter().enumerate().skip(1) {
        inside[n] = node.function as usize == wanted
            || (node.parent != ROOT && inside[node.parent.0 as usize]);
    }
    let mut sum = Cost::default();
    for (node, cost) in tree.services.iter().flat_map(|service| &service.costs) {
        let at = node.0 as usize;
        if !inside[at] {
            continue;
        }
        let is_outermost =
            tree.nodes[at].function as usize == wanted && !inside[tree.nodes[at].parent.0 as usize];
        sum += Cost { calls: if is_outermost { cost.calls } else { 0 }, ..*cost };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use attribution::services::annotations::Kind;
    use attribution::services::calls::{Node, NodeId, ServiceCalls};

    #[test]
    fn callees_belong_to_an_invocation_and_recursion_is_one() {
        // f → g → f, and g alone.
        let node = |parent, function| Node { parent: NodeId(parent), function };
        let cost = |calls, instructions| Cost { calls, instructions, ..Cost::default() };
        let tree = CallTree {
            functions: vec!["f".into(), "g".into()],
            nodes: vec![node(0, 0), node(0, 0), node(1, 1), node(2, 0), node(0, 1)],
            services: vec![ServiceCalls {
                kind: Kind::SystemCall,
                name: "read".into(),
                costs: vec![
                    (NodeId(0), cost(0, 1)),
                    (NodeId(1), cost(2, 10)),
                    (NodeId(2), cost(3, 100)),
                    (NodeId(3), cost(1, 1000)),
                    (NodeId(4), cost(5, 10_000)),
                ],
            }],
        };
        assert_eq!(invocations(&tree, "f"), cost(2, 1110));
        assert_eq!(invocations(&tree, "g"), cost(8, 11_100));
        assert_eq!(invocations(&tree, "h"), Cost::default());
    }
}
