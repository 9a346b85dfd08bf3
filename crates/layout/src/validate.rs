//! Checks a graph. Input: a graph. Output: whether it keeps the rules that every algorithm relies
//! on, or the first broken rule and its place. This module repairs nothing.

use crate::graph::{BlockId, EdgeKind, FunctionId, Graph};

/// A broken rule of [`Graph`], or of an algorithm's parameters, and where it is broken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum InputError {
    #[error("`{array}` has {found} entries for {blocks} blocks")]
    Length { array: &'static str, found: usize, blocks: usize },
    #[error("{blocks} blocks: at most 2^32 - 1 can be numbered")]
    TooManyBlocks { blocks: usize },
    #[error("block {0:?} has no bytes")]
    EmptyBlock(BlockId),
    #[error("block {block:?}: the alignment {alignment} is not a power of two")]
    Alignment { block: BlockId, alignment: u32 },
    #[error("the first block is glued, but there is none before it")]
    GluedFirst,
    #[error("function {0:?} has no blocks")]
    EmptyFunction(FunctionId),
    #[error(
        "function {function:?} starts at block {found}, but the one before it ends at block \
         {expected}"
    )]
    FunctionStart { function: FunctionId, expected: u32, found: u32 },
    #[error("the functions cover {covered} blocks of {blocks}")]
    FunctionsCover { covered: u32, blocks: usize },
    #[error(
        "temporal-relationship edge {edge} names block {block:?}, but there are {blocks} blocks"
    )]
    EdgeBlock { edge: usize, block: BlockId, blocks: usize },
    #[error("edge {edge} falls through from block {from:?} to block {to:?}, which is not the next")]
    FallThrough { edge: usize, from: BlockId, to: BlockId },
    #[error("call {call} names block {block:?}, but there are {blocks} blocks")]
    CallBlock { call: usize, block: BlockId, blocks: usize },
    #[error("seed {seed} names block {block:?}, but there are {blocks} blocks")]
    SeedBlock { seed: usize, block: BlockId, blocks: usize },
    #[error("root function {function:?}, but there are {functions} functions")]
    RootFunction { function: FunctionId, functions: usize },
    #[error("joint miss {joint_miss} names block {block:?}, but there are {blocks} blocks")]
    JointMissBlock { joint_miss: usize, block: BlockId, blocks: usize },
    #[error(
        "temporal-relationship edge {edge} names block {block:?}, but there are {blocks} blocks"
    )]
    TemporalEdgeBlock { edge: usize, block: BlockId, blocks: usize },
    #[error("entry {entry} of the epochs names block {block:?}, but there are {blocks} blocks")]
    BlockEpochsBlock { entry: usize, block: BlockId, blocks: usize },
    #[error(
        "{found} {what}, but {algorithm} takes at most {most}: its time grows with their square"
    )]
    TooMany { algorithm: &'static str, what: &'static str, found: usize, most: usize },
    #[error("parameter `{parameter}` is {value}, but must be a finite number of at least {least}")]
    Parameter { parameter: &'static str, value: f64, least: f64 },
}

/// Checks that `graph` is well formed.
///
/// # Errors
/// It is not. The error names the first broken rule.
pub fn validate(graph: &Graph) -> Result<(), InputError> {
    blocks(graph)?;
    functions(graph)?;
    transfers(graph)
}

/// Checks that a parameter is a finite number and at least `least`.
pub(crate) fn at_least(parameter: &'static str, value: f64, least: f64) -> Result<(), InputError> {
    if value.is_finite() && value >= least {
        return Ok(());
    }
    Err(InputError::Parameter { parameter, value, least })
}

/// Checks a number that an algorithm limits because its time grows with the square of the number.
pub(crate) fn at_most(
    most: usize,
    algorithm: &'static str,
    what: &'static str,
    found: usize,
) -> Result<(), InputError> {
    if found <= most {
        return Ok(());
    }
    Err(InputError::TooMany { algorithm, what, found, most })
}

fn blocks(graph: &Graph) -> Result<(), InputError> {
    let blocks = graph.sizes.len();
    if u32::try_from(blocks).is_err() {
        return Err(InputError::TooManyBlocks { blocks });
    }
    let arrays = [
        ("counts", graph.counts.len()),
        ("glued", graph.glued.len()),
        ("alignments", graph.alignments.len()),
    ];
    if let Some(&(array, found)) = arrays.iter().find(|(_, found)| *found != blocks) {
        return Err(InputError::Length { array, found, blocks });
    }
    if let Some(block) = graph.sizes.iter().position(|&size| size == 0) {
        return Err(InputError::EmptyBlock(BlockId(block as u32)));
    }
    if let Some(block) = graph.alignments.iter().position(|alignment| !alignment.is_power_of_two())
    {
        return Err(InputError::Alignment {
            block: BlockId(block as u32),
            alignment: graph.alignments[block],
        });
    }
    match graph.glued.first() {
        Some(true) => Err(InputError::GluedFirst),
        _ => Ok(()),
    }
}

fn functions(graph: &Graph) -> Result<(), InputError> {
    let mut covered = 0;
    for (index, range) in graph.functions.iter().enumerate() {
        let function = FunctionId(index as u32);
        if range.start != covered {
            return Err(InputError::FunctionStart {
                function,
                expected: covered,
                found: range.start,
            });
        }
        if range.end <= range.start {
            return Err(InputError::EmptyFunction(function));
        }
        covered = range.end;
    }
    let blocks = graph.sizes.len();
    if covered as usize != blocks {
        return Err(InputError::FunctionsCover { covered, blocks });
    }
    Ok(())
}

fn transfers(graph: &Graph) -> Result<(), InputError> {
    let blocks = graph.sizes.len();
    let missing = |block: &BlockId| block.0 as usize >= blocks;
    for (edge, e) in graph.edges.iter().enumerate() {
        if let Some(block) = [e.from, e.to].into_iter().find(missing) {
            return Err(InputError::EdgeBlock { edge, block, blocks });
        }
        if e.kind == EdgeKind::FallThrough && e.to.0 != e.from.0 + 1 {
            return Err(InputError::FallThrough { edge, from: e.from, to: e.to });
        }
    }
    for (call, c) in graph.calls.iter().enumerate() {
        if let Some(block) = [c.from, c.to].into_iter().find(missing) {
            return Err(InputError::CallBlock { call, block, blocks });
        }
    }
    for (joint_miss, j) in graph.joint_misses.iter().enumerate() {
        if let Some(block) = [j.a, j.b].into_iter().find(missing) {
            return Err(InputError::JointMissBlock { joint_miss, block, blocks });
        }
    }
    for (edge, a) in graph.temporal_edges.iter().enumerate() {
        if let Some(block) = [a.a, a.b].into_iter().find(missing) {
            return Err(InputError::TemporalEdgeBlock { edge, block, blocks });
        }
    }
    if let Some((entry, p)) = graph.block_epochs.iter().enumerate().find(|(_, p)| missing(&p.block))
    {
        let block = p.block;
        return Err(InputError::BlockEpochsBlock { entry, block, blocks });
    }
    for (seed, s) in graph.seeds.iter().enumerate() {
        if missing(&s.block) {
            return Err(InputError::SeedBlock { seed, block: s.block, blocks });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{BlockEpochs, Call, Edge, JointMiss, Seed, SeedClass, TemporalEdge};

    fn two_functions() -> Graph {
        Graph {
            sizes: vec![4, 4, 4],
            counts: vec![1, 1, 1],
            glued: vec![false; 3],
            alignments: vec![16, 1, 16],
            functions: vec![0..2, 2..3],
            edges: vec![Edge {
                from: BlockId(0),
                to: BlockId(1),
                count: 1,
                kind: EdgeKind::FallThrough,
            }],
            calls: vec![Call { from: BlockId(1), to: BlockId(2), count: 1 }],
            seeds: vec![Seed { block: BlockId(0), class: SeedClass::Other, count: 1 }],
            joint_misses: vec![JointMiss { a: BlockId(0), b: BlockId(2), count: 1 }],
            temporal_edges: vec![TemporalEdge { a: BlockId(0), b: BlockId(2), count: 1 }],
            block_epochs: vec![BlockEpochs { block: BlockId(2), epochs: vec![1] }],
        }
    }

    fn broken(damage: impl FnOnce(&mut Graph)) -> InputError {
        let mut graph = two_functions();
        damage(&mut graph);
        validate(&graph).expect_err("the damage was not seen")
    }

    #[test]
    fn well_formed_and_empty_graphs_pass() {
        assert_eq!(validate(&two_functions()), Ok(()));
        assert_eq!(validate(&Graph::default()), Ok(()));
    }

    #[test]
    fn a_limit_is_the_largest_allowed_number() {
        assert_eq!(at_most(3, "opts", "loops", 3), Ok(()));
        let (algorithm, what, found, most) = ("opts", "loops", 4, 3);
        let refused = InputError::TooMany { algorithm, what, found, most };
        assert_eq!(at_most(most, algorithm, what, found), Err(refused));
    }

    #[test]
    fn errors_name_the_broken_rule_and_the_id() {
        use InputError::*;
        assert_eq!(
            broken(|g| g.counts.truncate(1)),
            Length { array: "counts", found: 1, blocks: 3 }
        );
        assert_eq!(broken(|g| g.glued.push(false)), Length { array: "glued", found: 4, blocks: 3 });
        assert_eq!(
            broken(|g| g.alignments.clear()),
            Length { array: "alignments", found: 0, blocks: 3 }
        );
        assert_eq!(broken(|g| g.sizes[1] = 0), EmptyBlock(BlockId(1)));
        assert_eq!(
            broken(|g| g.alignments[2] = 12),
            Alignment { block: BlockId(2), alignment: 12 }
        );
        assert_eq!(broken(|g| g.alignments[2] = 0), Alignment { block: BlockId(2), alignment: 0 });
        assert_eq!(broken(|g| g.glued[0] = true), GluedFirst);
        assert_eq!(broken(|g| g.functions[1] = 2..2), EmptyFunction(FunctionId(1)));
        assert_eq!(
            broken(|g| g.functions[1] = 1..3),
            FunctionStart { function: FunctionId(1), expected: 2, found: 1 }
        );
        assert_eq!(
            broken(|g| g.functions[0] = 1..2),
            FunctionStart { function: FunctionId(0), expected: 0, found: 1 }
        );
        assert_eq!(broken(|g| g.functions.truncate(1)), FunctionsCover { covered: 2, blocks: 3 });
        assert_eq!(broken(|g| g.functions[1].end = 9), FunctionsCover { covered: 9, blocks: 3 });
        assert_eq!(
            broken(|g| g.edges[0].to = BlockId(3)),
            EdgeBlock { edge: 0, block: BlockId(3), blocks: 3 }
        );
        assert_eq!(
            broken(|g| g.edges[0].to = BlockId(2)),
            FallThrough { edge: 0, from: BlockId(0), to: BlockId(2) }
        );
        assert_eq!(
            broken(|g| g.calls[0].from = BlockId(7)),
            CallBlock { call: 0, block: BlockId(7), blocks: 3 }
        );
        assert_eq!(
            broken(|g| g.joint_misses[0].b = BlockId(3)),
            JointMissBlock { joint_miss: 0, block: BlockId(3), blocks: 3 }
        );
        assert_eq!(
            broken(|g| g.temporal_edges[0].a = BlockId(4)),
            TemporalEdgeBlock { edge: 0, block: BlockId(4), blocks: 3 }
        );
        assert_eq!(
            broken(|g| g.block_epochs[0].block = BlockId(3)),
            BlockEpochsBlock { entry: 0, block: BlockId(3), blocks: 3 }
        );
        assert_eq!(
            broken(|g| g.seeds[0].block = BlockId(u32::MAX)),
            SeedBlock { seed: 0, block: BlockId(u32::MAX), blocks: 3 }
        );
    }
}
