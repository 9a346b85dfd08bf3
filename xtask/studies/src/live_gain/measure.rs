//! Measures a recording on a machine: the whole kernel, and the invocations of functions with
//! everything that they call.
//!
//! Input: a recording, symbols and a machine. Output: counts. Prints nothing.

use anyhow::{Context, Result};
use execution::opened::OpenedRecording;
use host::recording::Recording;
use live::chunks::Chunks;
use replay::{self, ReplayLayout, rows};
use serde::Serialize;
use services::annotations::Annotations;
use services::binding::Binding;
use services::calls::{CallCost, CallTree, ROOT};
use services::symbols::KernelSymbols;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use trace::RecordingReader;

/// One recording, with an element for each machine.
pub(super) type MachineResults = Vec<OnMachine>;

/// A benchmark before and after the optimization.
#[derive(Serialize)]
pub(super) struct BenchmarkGain {
    pub benchmark: String,
    /// The release of the guest's kernel.
    pub kernel: String,
    pub operation: String,
    pub operations: u64,
    pub before: MachineResults,
    pub after: MachineResults,
    /// The replaced functions.
    pub group: Vec<Chunks>,
}

/// The kernel's part of a recording. Everything except the instructions is simulated.
#[derive(Serialize)]
pub(super) struct OnMachine {
    pub machine: String,
    pub instructions: u64,
    pub user_instructions: u64,
    /// Direct jumps that were taken, conditional or not.
    pub jumps: u64,
    pub l1i_misses: u64,
    /// Cycles for these misses, and all cycles (Torrellas 1998, section 5.2).
    pub stall: f64,
    pub cycles: f64,
    /// Misses of the iTLB. The kernel's image lies in large pages, modules in pages of 4 KB.
    pub itlb_misses: u64,
    pub functions: Vec<FunctionInvocations>,
}

/// A function with everything that it calls, without page faults and interrupts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct FunctionInvocations {
    pub function: String,
    pub calls: u64,
    pub instructions: u64,
    pub l1i_misses: u64,
    pub stall: f64,
    pub cycles: f64,
}

pub(super) fn on(
    recording: &Path,
    machine: &str,
    symbols: &KernelSymbols,
    functions: &[&str],
) -> Result<OnMachine> {
    let machine = machines::find(machine)?.model;
    let machines = [machine];
    let layouts = [ReplayLayout::original()];
    let path = Recording::at(recording).trace();
    let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
    let replayed = replay::replay(
        RecordingReader::new(BufReader::with_capacity(1 << 20, file))?,
        &layouts,
        &machines,
    )?;
    let rows = rows::rows(&replayed, &layouts, &machines, None);
    let counters = &rows.first().context("replay gave no rows")?.counters;
    let binding = Binding::new(&Annotations::shipped()?, symbols);
    let opened = OpenedRecording::whole(&Recording::at(recording), "calls")?;
    let (_, tree, _) = opened
        .read(|reader| services::attribute_with_calls(reader, symbols, &binding, &machines))?;
    let [machine] = machines;
    let misses = counters.l1i.kernel.total();
    let stall = |misses: u64| misses as f64 * machine.time.miss_penalty();
    let functions = functions.iter().map(|&function| {
        let cost = invocations(&tree, function);
        FunctionInvocations {
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

/// The cost of the outermost invocations of a function, including callees.
fn invocations(tree: &CallTree, function: &str) -> CallCost {
    let Some(wanted) = tree.functions.iter().position(|name| name == function) else {
        return CallCost::default();
    };
    // A node's parent has a smaller number.
    let mut inside = vec![false; tree.nodes.len()];
    for (n, node) in tree.nodes.iter().enumerate().skip(1) {
        inside[n] = node.function as usize == wanted
            || (node.parent != ROOT && inside[node.parent.0 as usize]);
    }
    let mut sum = CallCost::default();
    for (node, cost) in tree.services.iter().flat_map(|service| &service.costs) {
        let at = node.0 as usize;
        if !inside[at] {
            continue;
        }
        let is_outermost =
            tree.nodes[at].function as usize == wanted && !inside[tree.nodes[at].parent.0 as usize];
        sum += CallCost { calls: if is_outermost { cost.calls } else { 0 }, ..*cost };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use services::annotations::ServiceKind;
    use services::calls::{CallNode, NodeId, ServiceCalls};

    #[test]
    fn an_invocation_includes_callees_and_recursion_counts_once() {
        // f calls g, g calls f, and g also runs alone.
        let node = |parent, function| CallNode { parent: NodeId(parent), function };
        let cost = |calls, instructions| CallCost { calls, instructions, ..CallCost::default() };
        let tree = CallTree {
            functions: vec!["f".into(), "g".into()],
            nodes: vec![node(0, 0), node(0, 0), node(1, 1), node(2, 0), node(0, 1)],
            services: vec![ServiceCalls {
                kind: ServiceKind::SystemCall,
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
        assert_eq!(invocations(&tree, "h"), CallCost::default());
    }
}
