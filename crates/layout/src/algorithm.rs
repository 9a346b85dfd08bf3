//! The registry of layout algorithms and their names.
//!
//! Takes a name; gives the order that the algorithm makes with its paper's parameters.
//!
//! To add an algorithm: its file, and its row in the table below.

use crate::graph::{Graph, Ordered};
use crate::opts::{LoopArea, OptSParameters};
use crate::reference::{Grain, RandomParameters, ReverseParameters};
use crate::validate::InputError;
use crate::{
    balanced_partitioning, cdsort, chang_hwu, codestitcher, ext_tsp, global, gloy_smith, joint,
    kerninst, opts, packed, pettis_hansen, reference,
};
use std::fmt;
use std::str::FromStr;

/// What an algorithm uses of a profile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Uses {
    /// Nothing: it is a control.
    Nothing,
    /// Counts.
    Counts,
    /// Counts and [`Graph::temporal_edges`].
    TemporalEdges,
}

/// A row of the table.
struct AlgorithmRow {
    name: &'static str,
    uses: Uses,
    /// Orders a graph. Only controls look at the seed.
    order: fn(&Graph, u64) -> Result<Ordered, InputError>,
}

/// Makes [`Algorithm`] of one table: variant, name in commands and files, what it uses, and its
/// function with its paper's parameters.
macro_rules! algorithms {
    ($($(#[$attribute:meta])* $variant:ident, $name:literal, $uses:ident, $order:expr;)*) => {
        /// A layout algorithm. `docs/algorithms/` has a page for each.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Algorithm {
            $($(#[$attribute])* $variant,)*
        }

        impl Algorithm {
            /// Every algorithm, in the order in which tables list them.
            pub const ALL: [Algorithm; [$($name),*].len()] = [$(Algorithm::$variant),*];

            fn row(self) -> AlgorithmRow {
                match self {
                    $(Algorithm::$variant => {
                        AlgorithmRow { name: $name, uses: Uses::$uses, order: $order }
                    })*
                }
            }
        }
    };
}

algorithms! {
    /// The blocks as they were.
    Original, "original", Nothing, |graph, _| reference::original(graph);
    /// All blocks, the last first.
    Reverse, "reverse", Nothing, |graph, _| reversed(graph, Grain::Blocks);
    /// The last function first, each as it was.
    ReverseFunctions, "reverse-functions", Nothing, |graph, _| reversed(graph, Grain::Functions);
    /// All blocks shuffled.
    Random, "random", Nothing, |graph, seed| shuffled(graph, Grain::Blocks, seed);
    /// Functions shuffled, each as it was.
    RandomFunctions, "random-functions", Nothing,
        |graph, seed| shuffled(graph, Grain::Functions, seed);
    /// Pettis and Hansen's chains, splitting and "closest is best".
    PettisHansen, "pettis-hansen", Counts,
        |graph, _| pettis_hansen::pettis_hansen(graph, &Default::default());
    /// Chang and Hwu's traces and depth-first order of functions (C-H).
    ChangHwu, "chang-hwu", Counts, |graph, _| chang_hwu::chang_hwu(graph, &Default::default());
    /// KernInst's groups of functions with hot chunks.
    KernInst, "kerninst", Counts, |graph, _| kerninst::kerninst(graph, &Default::default());
    /// Torrellas' sequences from the kernel's entries, with the SelfConfFree area.
    OptS, "opts", Counts, |graph, _| opts::opts(graph, &Default::default());
    /// OptS with loops of many iterations apart.
    OptL, "optl", Counts, |graph, _| with_loops(graph, LoopArea::Behind);
    /// OptS with loops that call placed with their callees so that they do not conflict.
    Call, "call", Counts, |graph, _| with_loops(graph, LoopArea::WithCallees);
    /// ext-TSP for blocks, C3 for functions, cold code behind.
    ExtTsp, "ext-tsp", Counts, |graph, _| ext_tsp::ext_tsp(graph, &Default::default());
    /// ext-TSP for blocks, CDSort for functions, cold code behind.
    ExtTspCdSort, "ext-tsp-cdsort", Counts,
        |graph, _| cdsort::ext_tsp_cdsort(graph, &Default::default(), &Default::default());
    /// ext-TSP for blocks, balanced partitioning for functions, cold code behind.
    BalancedPartitioning, "balanced-partitioning", Counts,
        |graph, _| balanced_partitioning::balanced_partitioning(graph, &Default::default());
    /// ext-TSP for blocks; functions aligned by Gloy and Smith so that those that alternate do not
    /// conflict.
    GloySmith, "gloy-smith", TemporalEdges,
        |graph, _| gloy_smith::gloy_smith(graph, &Default::default());
    /// Codestitcher's chains across functions, collocated by page and large page.
    Codestitcher, "codestitcher", Counts,
        |graph, _| codestitcher::codestitcher(graph, &Default::default());
    /// One ext-TSP over the blocks of all functions, calls and returns too, cold code behind.
    ExtTspGlobal, "ext-tsp-global", Counts,
        |graph, _| global::ext_tsp_global(graph, &Default::default());
    /// The same with joint misses: code that misses together in one line.
    Joint, "joint", Counts, |graph, _| joint::joint(graph, &Default::default());
    /// Segments of one ext-TSP, those needed in the same stretches of time in the same lines.
    #[default]
    Packed, "packed", Counts, |graph, _| packed::packed(graph, &Default::default());
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

/// Orders `graph` by `algorithm` with its paper's parameters. Only the random ones look at `seed`.
///
/// # Errors
/// The graph breaks a rule ([`crate::validate`]).
pub fn order(graph: &Graph, algorithm: Algorithm, seed: u64) -> Result<Ordered, InputError> {
    (algorithm.row().order)(graph, seed)
}

fn reversed(graph: &Graph, grain: Grain) -> Result<Ordered, InputError> {
    reference::reverse(graph, &ReverseParameters { grain })
}

fn shuffled(graph: &Graph, grain: Grain, seed: u64) -> Result<Ordered, InputError> {
    reference::random(graph, &RandomParameters { grain, seed })
}

fn with_loops(graph: &Graph, loop_area: LoopArea) -> Result<Ordered, InputError> {
    opts::opts(graph, &OptSParameters { loop_area, ..OptSParameters::default() })
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
