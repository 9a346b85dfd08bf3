//! The registry of layout algorithms and their names.
//!
//! Input: a name. Output: the order that the algorithm makes with its paper's parameters.
//!
//! To add an algorithm: its file with an `AlgorithmRow`, and its line in the table `algorithms!` in
//! `lib.rs`.

use crate::Algorithm;
use crate::graph::{Graph, Ordered};
use crate::row::{MakeOrder, Uses};
use crate::validate::InputError;
use std::fmt;
use std::str::FromStr;

/// Makes the algorithms' modules and `Algorithm` from one table: a module, and each of its rows
/// with the variant that it becomes.
macro_rules! algorithms {
    ($(
        $visibility:vis $module:ident: $($(#[$attribute:meta])* $row:ident as $variant:ident),+;
    )*) => {
        $($visibility mod $module;)*

        /// A layout algorithm. `docs/algorithms/` has a page for each.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Algorithm {
            $($(
                #[doc = concat!("`", stringify!($row), "` of `", stringify!($module), "`.")]
                $(#[$attribute])*
                $variant,
            )+)*
        }

        impl Algorithm {
            /// Every algorithm, in the order in which tables list them.
            pub const ALL: [Algorithm; [$($($module::$row.name),+),*].len()] =
                [$($(Algorithm::$variant),+),*];

            fn row(self) -> row::AlgorithmRow {
                match self {
                    $($(Algorithm::$variant => $module::$row,)+)*
                }
            }
        }
    };
}

impl Algorithm {
    /// What it is called in commands and files.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Whether the algorithm uses the profile. The others are controls.
    pub fn uses_counts(self) -> bool {
        self.row().uses != Uses::Nothing
    }

    /// Whether another seed gives another order.
    pub fn depends_on_seed(self) -> bool {
        matches!(self.row().order, MakeOrder::BySeed(_))
    }

    /// Whether the algorithm uses [`Graph::joint_misses`] or [`Graph::block_epochs`], and the graph
    /// has neither.
    pub fn lacks_what_ran_together(self, graph: &Graph) -> bool {
        self.row().uses == Uses::RanTogether
            && graph.joint_misses.is_empty()
            && graph.block_epochs.is_empty()
    }

    /// Whether the algorithm uses [`Graph::temporal_edges`], which take long to count.
    pub fn uses_temporal_edges(self) -> bool {
        self.row().uses == Uses::TemporalEdges
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a name that no algorithm has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no layout algorithm `{0}`; there are {names}",
    names = Algorithm::ALL.map(Algorithm::name).join(", ")
)]
pub struct UnknownAlgorithm(pub String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        Algorithm::ALL
            .into_iter()
            .find(|a| a.name() == name)
            .ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

/// Orders `graph` by `algorithm` with its paper's parameters. Most do not depend on the seed
/// ([`Algorithm::depends_on_seed`]).
///
/// # Errors
/// The graph breaks a rule ([`crate::validate`]).
pub fn order(graph: &Graph, algorithm: Algorithm, seed: u64) -> Result<Ordered, InputError> {
    match algorithm.row().order {
        MakeOrder::One(order) => order(graph),
        MakeOrder::BySeed(order) => order(graph, seed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        let error = "optz".parse::<Algorithm>().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("there is no layout algorithm `optz`; there are original, reverse,"),
            "{error}"
        );
    }
}
