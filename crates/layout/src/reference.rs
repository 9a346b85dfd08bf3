//! Orders to compare with: the original, reversed, random. They look at no count;
//! `docs/algorithms/reference.md` says what each is good for.
//!
//! Each arranges all blocks (`Ordered::hot` is the number of blocks). Glued blocks stay behind the
//! one they follow.

use crate::graph::{Graph, Ordered};
use crate::pieces::{PieceId, Pieces};
use crate::random::SplitMix64;
use crate::validate::{InputError, validate};

/// What is moved as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grain {
    /// Single blocks, wherever their function is.
    #[default]
    Blocks,
    /// Functions, with their blocks in the original order.
    Functions,
}

#[derive(Clone, Debug, Default)]
pub struct ReverseParameters {
    pub grain: Grain,
}

#[derive(Clone, Debug, Default)]
pub struct RandomParameters {
    pub grain: Grain,
    /// Every seed names one order, the same in every release.
    pub seed: u64,
}

/// The blocks as they were.
pub fn original(graph: &Graph) -> Result<Ordered, InputError> {
    validate(graph)?;
    let pieces = Pieces::new(graph);
    Ok(arranged(&pieces, pieces.all().collect()))
}

/// The last first: the worst that an order can do to fall-throughs without caring about counts.
pub fn reverse(graph: &Graph, parameters: &ReverseParameters) -> Result<Ordered, InputError> {
    validate(graph)?;
    let pieces = Pieces::new(graph);
    let mut groups = groups(graph, &pieces, parameters.grain);
    groups.reverse();
    Ok(arranged(&pieces, groups.concat()))
}

/// A random permutation, each equally likely.
pub fn random(graph: &Graph, parameters: &RandomParameters) -> Result<Ordered, InputError> {
    validate(graph)?;
    let pieces = Pieces::new(graph);
    let mut groups = groups(graph, &pieces, parameters.grain);
    SplitMix64::new(parameters.seed).shuffle(&mut groups);
    Ok(arranged(&pieces, groups.concat()))
}

/// The pieces that move together, in the original order.
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
