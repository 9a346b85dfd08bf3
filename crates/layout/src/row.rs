//! What the registry knows about a layout algorithm.
//!
//! The file of an algorithm gives an [`AlgorithmRow`]; [`crate::Algorithm`] is made of them. A row
//! orders nothing itself.

use crate::graph::{Graph, Ordered};
use crate::validate::InputError;

/// What an algorithm uses of a profile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Uses {
    /// Nothing: it is a control.
    Nothing,
    /// Counts.
    Counts,
    /// Counts and what ran together: [`Graph::joint_misses`] or [`Graph::block_epochs`].
    RanTogether,
    /// Counts and [`Graph::temporal_edges`].
    TemporalEdges,
}

/// An algorithm with its paper's parameters.
#[derive(Clone, Copy)]
pub(crate) struct AlgorithmRow {
    /// What it is called in commands and files.
    pub name: &'static str,
    pub uses: Uses,
    /// Orders a graph.
    pub order: MakeOrder,
}

/// How an algorithm orders a graph.
#[derive(Clone, Copy)]
pub(crate) enum MakeOrder {
    /// Always in the same way.
    One(fn(&Graph) -> Result<Ordered, InputError>),
    /// By chance: the seed decides.
    BySeed(fn(&Graph, u64) -> Result<Ordered, InputError>),
}
