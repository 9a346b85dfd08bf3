//! ext-TSP for the blocks of a function, C3 for the functions, cold blocks behind: what BOLT does.
//!
//! Takes a graph; gives its order. `docs/algorithms/ext-tsp.md` tells the idea, the sources of the
//! parameters and the failure cases; the greedy merging itself stands in `chains.rs`.

use crate::c3;
use crate::chains::arrange;
pub use crate::ext_tsp_parameters::ExtTspParameters;
use crate::graph::{FunctionId, Graph, Ordered};
use crate::hot::{Flow, Hot};
use crate::jumps::{Jump, JumpKind, Node};
use crate::pieces::PieceId;
use crate::segments::improve;
use crate::validate::{InputError, validate};

/// Arranges the blocks of each function by ext-TSP, then the functions by C3. What never ran goes
/// behind, as it was.
pub fn ext_tsp(graph: &Graph, parameters: &ExtTspParameters) -> Result<Ordered, InputError> {
    validate(graph)?;
    parameters.validate()?;
    let hot = Hot::new(graph);
    let flows = hot.flows_by_function();
    let functions = c3::order(&hot, &parameters.functions);
    let blocks = |f: FunctionId| within(&hot, f, &flows[f.index()], parameters);
    Ok(hot.finish(functions.into_iter().flat_map(blocks).collect()))
}

/// The pieces of one function that ran, arranged; its entry first, if that ran.
pub(crate) fn within(
    hot: &Hot,
    function: FunctionId,
    flows: &[Flow],
    parameters: &ExtTspParameters,
) -> Vec<PieceId> {
    let pieces = &hot.functions[function.index()];
    let entry = hot.entry_ran(function).then_some(0);
    let nodes: Vec<Node> =
        pieces.iter().map(|&p| Node { size: hot.sizes[p.index()], count: hot.count(p) }).collect();
    let jumps: Vec<Jump> = flows.iter().map(|flow| jump(hot, flow)).collect();
    improve(arrange(&nodes, &jumps, entry, parameters), &nodes, &jumps, entry, parameters)
        .into_iter()
        .map(|node| pieces[node as usize])
        .collect()
}

fn jump(hot: &Hot, flow: &Flow) -> Jump {
    Jump {
        from: hot.local(flow.from) as u32,
        to: hot.local(flow.to) as u32,
        from_end: flow.from_end,
        to_start: flow.to_start,
        count: flow.count,
        kind: JumpKind::Control { may_fall: flow.may_fall, conditional: flow.conditional },
    }
}
