//! Orders to compare with: original, reverse, random. They use no counts.
//! `docs/algorithms/reference.md` says what each is good for.
//!
//! Each arranges all blocks (`Ordered::hot` is the number of blocks). Glued blocks stay behind the
//! block that they follow.
//!
//! Input: a graph. Output: its order.

use crate::graph::{Graph, Ordered};
use crate::pieces::{PieceId, Pieces};
use crate::random::SplitMix64;
use crate::row::{AlgorithmRow, MakeOrder, Uses};
use crate::validate::{InputError, validate};

/// The blocks as they were.
pub(crate) const ORIGINAL: AlgorithmRow =
    AlgorithmRow { name: "original", uses: Uses::Nothing, order: MakeOrder::One(original) };

/// All blocks, the last first.
pub(crate) const REVERSE: AlgorithmRow = AlgorithmRow {
    name: "reverse",
    uses: Uses::Nothing,
    order: MakeOrder::One(|graph| reverse(graph, &ReverseParameters { grain: Grain::Blocks })),
};

/// The last function first, each as it was.
pub(crate) const REVERSE_FUNCTIONS: AlgorithmRow = AlgorithmRow {
    name: "reverse-functions",
    uses: Uses::Nothing,
    order: MakeOrder::One(|graph| reverse(graph, &ReverseParameters { grain: Grain::Functions })),
};

/// All blocks shuffled.
pub(crate) const RANDOM: AlgorithmRow = AlgorithmRow {
    name: "random",
    uses: Uses::Nothing,
    order: MakeOrder::BySeed(|graph, seed| {
        random(graph, &RandomParameters { grain: Grain::Blocks, seed })
    }),
};

/// Functions shuffled, each as it was.
pub(crate) const RANDOM_FUNCTIONS: AlgorithmRow = AlgorithmRow {
    name: "random-functions",
    uses: Uses::Nothing,
    order: MakeOrder::BySeed(|graph, seed| {
        random(graph, &RandomParameters { grain: Grain::Functions, seed })
    }),
};

/// The unit that is moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Grain {
    /// Single blocks, regardless of their functions.
    #[default]
    Blocks,
    /// Functions, with their blocks in the original order.
    Functions,
}

/// The parameters of [`reverse`].
#[derive(Clone, Debug, Default)]
pub(crate) struct ReverseParameters {
    /// The unit that is moved.
    pub grain: Grain,
}

/// The parameters of [`random`].
#[derive(Clone, Debug, Default)]
pub(crate) struct RandomParameters {
    /// The unit that is moved.
    pub grain: Grain,
    /// The seed. Each gives one order, the same in every release.
    pub seed: u64,
}

/// The original order.
///
/// # Errors
/// The graph breaks a rule.
pub(crate) fn original(graph: &Graph) -> Result<Ordered, InputError> {
    validate(graph)?;
    let pieces = Pieces::new(graph);
    Ok(arranged(&pieces, pieces.all().collect()))
}

/// The last unit first: the worst order for fall-throughs that ignores counts.
///
/// # Errors
/// The graph breaks a rule.
pub(crate) fn reverse(
    graph: &Graph,
    parameters: &ReverseParameters,
) -> Result<Ordered, InputError> {
    validate(graph)?;
    let pieces = Pieces::new(graph);
    let mut groups = groups(graph, &pieces, parameters.grain);
    groups.reverse();
    Ok(arranged(&pieces, groups.concat()))
}

/// A random permutation. All are equally likely.
///
/// # Errors
/// The graph breaks a rule.
pub(crate) fn random(graph: &Graph, parameters: &RandomParameters) -> Result<Ordered, InputError> {
    validate(graph)?;
    let pieces = Pieces::new(graph);
    let mut groups = groups(graph, &pieces, parameters.grain);
    SplitMix64::new(parameters.seed).shuffle(&mut groups);
    Ok(arranged(&pieces, groups.concat()))
}

/// The groups of pieces that move together, in the original order.
fn groups(graph: &Graph, pieces: &Pieces, grain: Grain) -> Vec<Vec<PieceId>> {
    match grain {
        Grain::Blocks => pieces.all().map(|p| vec![p]).collect(),
        Grain::Functions => pieces
            .by_function(graph)
            .into_iter()
            .map(|range| range.map(PieceId).collect())
            .collect(),
    }
}

fn arranged(pieces: &Pieces, order: Vec<PieceId>) -> Ordered {
    pieces.expand(&order, order.len())
}
