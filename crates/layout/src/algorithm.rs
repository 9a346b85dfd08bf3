//! The registry: which algorithms there are, and what they are called.
//!
//! Takes a name; gives the order that the algorithm makes with its paper's parameters.

use crate::balanced_partitioning::{BalancedPartitioningParameters, balanced_partitioning};
use crate::cdsort::{CdSortParameters, ext_tsp_cdsort};
use crate::chang_hwu::{ChangHwuParameters, chang_hwu};
use crate::codestitcher::{CodestitcherParameters, codestitcher};
use crate::ext_tsp::ext_tsp;
use crate::ext_tsp_parameters::ExtTspParameters;
use crate::global::ext_tsp_global;
use crate::gloy_smith::{GloySmithParameters, gloy_smith};
use crate::graph::{Graph, Ordered};
use crate::joint::{JointParameters, joint};
use crate::kerninst::{KernInstParameters, kerninst};
use crate::opts::{LoopArea, OptSParameters, opts};
use crate::packed::{PackedParameters, packed};
use crate::pettis_hansen::{PettisHansenParameters, pettis_hansen};
use crate::reference::{self, Grain, RandomParameters, ReverseParameters};
use crate::validate::InputError;
use std::fmt;
use std::str::FromStr;

/// A layout algorithm. `docs/algorithms/` has a page for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// The blocks as they were.
    Original,
    /// All blocks, the last first.
    Reverse,
    /// The last function first, each as it was.
    ReverseFunctions,
    /// All blocks shuffled.
    Random,
    /// Functions shuffled, each as it was.
    RandomFunctions,
    /// Pettis and Hansen's chains, splitting and "closest is best".
    PettisHansen,
    /// Chang and Hwu's traces and depth-first order of functions (C-H).
    ChangHwu,
    /// KernInst's groups of functions with hot chunks.
    KernInst,
    /// Torrellas' sequences from the kernel's entries, with the SelfConfFree area.
    OptS,
    /// OptS with loops of many iterations apart.
    OptL,
    /// OptS with loops that call placed with their callees so that they do not conflict.
    Call,
    /// ext-TSP for blocks, C3 for functions, cold code behind.
    ExtTsp,
    /// ext-TSP for blocks, CDSort for functions, cold code behind.
    ExtTspCdSort,
    /// ext-TSP for blocks, balanced partitioning for functions, cold code behind.
    BalancedPartitioning,
    /// ext-TSP for blocks; functions aligned by Gloy and Smith so that those that alternate do not
    /// conflict.
    GloySmith,
    /// Codestitcher's chains across functions, collocated by page and large page.
    Codestitcher,
    /// One ext-TSP over the blocks of all functions, calls and returns too, cold code behind.
    ExtTspGlobal,
    /// The same with joint misses: code that misses together in one line.
    Joint,
    /// Segments of one ext-TSP, those needed in the same stretches of time in the same lines.
    #[default]
    Packed,
}

impl Algorithm {
    /// Every algorithm, in the order in which tables list them.
    pub const ALL: [Algorithm; 19] = [
        Algorithm::Original,
        Algorithm::Reverse,
        Algorithm::ReverseFunctions,
        Algorithm::Random,
        Algorithm::RandomFunctions,
        Algorithm::PettisHansen,
        Algorithm::ChangHwu,
        Algorithm::KernInst,
        Algorithm::OptS,
        Algorithm::OptL,
        Algorithm::Call,
        Algorithm::ExtTsp,
        Algorithm::ExtTspCdSort,
        Algorithm::BalancedPartitioning,
        Algorithm::GloySmith,
        Algorithm::Codestitcher,
        Algorithm::ExtTspGlobal,
        Algorithm::Joint,
        Algorithm::Packed,
    ];

    /// What it is called in commands and files.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Original => "original",
            Algorithm::Reverse => "reverse",
            Algorithm::ReverseFunctions => "reverse-functions",
            Algorithm::Random => "random",
            Algorithm::RandomFunctions => "random-functions",
            Algorithm::PettisHansen => "pettis-hansen",
            Algorithm::ChangHwu => "chang-hwu",
            Algorithm::KernInst => "kerninst",
            Algorithm::OptS => "opts",
            Algorithm::OptL => "optl",
            Algorithm::Call => "call",
            Algorithm::ExtTsp => "ext-tsp",
            Algorithm::ExtTspCdSort => "ext-tsp-cdsort",
            Algorithm::BalancedPartitioning => "balanced-partitioning",
            Algorithm::GloySmith => "gloy-smith",
            Algorithm::Codestitcher => "codestitcher",
            Algorithm::ExtTspGlobal => "ext-tsp-global",
            Algorithm::Joint => "joint",
            Algorithm::Packed => "packed",
        }
    }

    /// Whether it uses the profile. The others are controls.
    pub fn uses_counts(self) -> bool {
        !matches!(
            self,
            Algorithm::Original
                | Algorithm::Reverse
                | Algorithm::ReverseFunctions
                | Algorithm::Random
                | Algorithm::RandomFunctions
        )
    }

    /// Whether it uses [`Graph::temporal_edges`], which take long to count.
    pub fn uses_temporal_edges(self) -> bool {
        self == Algorithm::GloySmith
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no algorithm has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no layout algorithm `{0}`; there are {names}", names = Algorithm::ALL.map(Algorithm::name).join(", "))]
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
pub fn order(graph: &Graph, algorithm: Algorithm, seed: u64) -> Result<Ordered, InputError> {
    match algorithm {
        Algorithm::Original => reference::original(graph),
        Algorithm::Reverse => {
            reference::reverse(graph, &ReverseParameters { grain: Grain::Blocks })
        }
        Algorithm::ReverseFunctions => {
            reference::reverse(graph, &ReverseParameters { grain: Grain::Functions })
        }
        Algorithm::Random => {
            reference::random(graph, &RandomParameters { grain: Grain::Blocks, seed })
        }
        Algorithm::RandomFunctions => {
            reference::random(graph, &RandomParameters { grain: Grain::Functions, seed })
        }
        Algorithm::PettisHansen => pettis_hansen(graph, &PettisHansenParameters::default()),
        Algorithm::ChangHwu => chang_hwu(graph, &ChangHwuParameters::default()),
        Algorithm::KernInst => kerninst(graph, &KernInstParameters::default()),
        Algorithm::OptS => opts(graph, &OptSParameters::default()),
        Algorithm::OptL => opts(graph, &with_loops(LoopArea::Behind)),
        Algorithm::Call => opts(graph, &with_loops(LoopArea::WithCallees)),
        Algorithm::ExtTsp => ext_tsp(graph, &ExtTspParameters::default()),
        Algorithm::ExtTspCdSort => {
            ext_tsp_cdsort(graph, &ExtTspParameters::default(), &CdSortParameters::default())
        }
        Algorithm::BalancedPartitioning => {
            balanced_partitioning(graph, &BalancedPartitioningParameters::default())
        }
        Algorithm::GloySmith => gloy_smith(graph, &GloySmithParameters::default()),
        Algorithm::Codestitcher => codestitcher(graph, &CodestitcherParameters::default()),
        Algorithm::ExtTspGlobal => ext_tsp_global(graph, &ExtTspParameters::default()),
        Algorithm::Joint => joint(graph, &JointParameters::default()),
        Algorithm::Packed => packed(graph, &PackedParameters::default()),
    }
}

fn with_loops(loop_area: LoopArea) -> OptSParameters {
    OptSParameters { loop_area, ..OptSParameters::default() }
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
