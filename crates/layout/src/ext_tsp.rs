//! ext-TSP for the blocks of a function, C3 for the functions, cold blocks at the end. BOLT does
//! the same.
//!
//! Input: a graph. Output: its order. `docs/algorithms/ext-tsp.md` explains the idea, the sources
//! of the parameters and the failure cases. `chains.rs` has the greedy merging.

use crate::c3;
use crate::chains::{arrange, arrange_as_llvm};
pub use crate::ext_tsp_parameters::ExtTspParameters;
use crate::graph::{FunctionId, Graph, Ordered};
use crate::hot::{HotCode, PieceTransfer};
use crate::jumps::{ChainNode, JumpKind, ScoredJump};
use crate::pieces::PieceId;
use crate::row::{AlgorithmRow, MakeOrder, Uses};
use crate::segments::{improve, scores_more};
use crate::validate::{InputError, validate};

/// ext-TSP for blocks, C3 for functions, cold code behind.
pub(crate) const EXT_TSP: AlgorithmRow = AlgorithmRow {
    name: "ext-tsp",
    uses: Uses::Counts,
    order: MakeOrder::One(|graph| ext_tsp(graph, &Default::default())),
};

/// Orders the blocks of each function by ext-TSP, then the functions by C3. Cold code follows in
/// its original order.
///
/// # Errors
/// The graph or a parameter breaks a rule.
pub fn ext_tsp(graph: &Graph, parameters: &ExtTspParameters) -> Result<Ordered, InputError> {
    validate(graph)?;
    parameters.validate()?;
    let hot = HotCode::new(graph);
    let flows = hot.edge_transfers_by_function();
    let functions = c3::order(&hot, &parameters.functions);
    let blocks = |f: FunctionId| within(&hot, f, &flows[f.index()], parameters);
    Ok(hot.finish(functions.into_iter().flat_map(blocks).collect()))
}

/// The order of the hot pieces of one function. If the entry is hot, it comes first.
pub(crate) fn within(
    hot: &HotCode,
    function: FunctionId,
    flows: &[PieceTransfer],
    parameters: &ExtTspParameters,
) -> Vec<PieceId> {
    let pieces = &hot.functions[function.index()];
    let entry = hot.entry_is_hot(function).then_some(0);
    let nodes: Vec<ChainNode> = pieces
        .iter()
        .map(|&p| ChainNode { size: hot.sizes[p.index()], count: hot.count(p) })
        .collect();
    let jumps: Vec<ScoredJump> = flows.iter().map(|flow| jump(hot, flow)).collect();
    arrange_well(&nodes, &jumps, entry, parameters)
        .into_iter()
        .map(|node| pieces[node as usize])
        .collect()
}

/// Our merging and the local search; or LLVM's merging, if that scores more. A function that is too
/// large for one chain is only merged our way.
fn arrange_well(
    nodes: &[ChainNode],
    jumps: &[ScoredJump],
    entry: Option<u32>,
    parameters: &ExtTspParameters,
) -> Vec<u32> {
    let merged = arrange(nodes, jumps, entry, parameters);
    if nodes.len() < 3 || nodes.len() > parameters.max_chain {
        return improve(merged, nodes, jumps, entry, parameters);
    }
    let as_llvm = arrange_as_llvm(nodes, jumps, entry, parameters);
    let same = as_llvm == merged;
    let improved = improve(merged, nodes, jumps, entry, parameters);
    if same || !scores_more(&as_llvm, &improved, nodes, jumps, parameters) {
        return improved;
    }
    improve(as_llvm, nodes, jumps, entry, parameters)
}

fn jump(hot: &HotCode, flow: &PieceTransfer) -> ScoredJump {
    ScoredJump {
        from: hot.local(flow.from) as u32,
        to: hot.local(flow.to) as u32,
        from_end: flow.from_end,
        to_start: flow.to_start,
        count: flow.count,
        kind: JumpKind::Control { may_fall: flow.may_fall, conditional: flow.conditional },
    }
}
