//! The registry of layout algorithms and their names.
//!
//! Input: a name. Output: the order that the algorithm makes with the parameters of its paper.

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
    /// The original order of the blocks.
    Original,
    /// All blocks, the last first.
    Reverse,
    /// All functions, the last first, with their blocks in the original order.
    ReverseFunctions,
    /// All blocks, shuffled.
    Random,
    /// All functions, shuffled, with their blocks in the original order.
    RandomFunctions,
    /// Pettis and Hansen's chains, splitting and "closest is best".
    PettisHansen,
    /// Chang and Hwu's traces and depth-first order of functions (C-H).
    ChangHwu,
    /// KernInst's groups of functions with hot chunks.
    KernInst,
    /// Torrellas' sequences from the kernel's entries, with the SelfConfFree area.
    OptS,
    /// OptS with the loops of many iterations in an area of their own.
    OptL,
    /// OptS with loops that contain calls placed together with their callees, so that they do not
    /// conflict.
    Call,
    /// ext-TSP for blocks, C3 for functions, cold code at the end.
    ExtTsp,
    /// ext-TSP for blocks, CDSort for functions, cold code at the end.
    ExtTspCdSort,
    /// ext-TSP for blocks, balanced partitioning for functions, cold code at the end.
    BalancedPartitioning,
    /// ext-TSP for blocks. Functions are aligned by Gloy and Smith so that functions that alternate
    /// do not conflict.
    GloySmith,
    /// Codestitcher's chains across functions, collocated by page and by large page.
    Codestitcher,
    /// One ext-TSP over the blocks of all functions, with calls and returns, cold code at the end.
    ExtTspGlobal,
    /// `ExtTspGlobal` with joint misses: code that misses together shares lines.
    Joint,
    /// Segments of one ext-TSP. Segments that are needed in the same epochs share lines.
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

    /// The name in commands and files.
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

    /// Whether the algorithm uses the profile. The others are controls.
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

    /// Whether the algorithm uses [`Graph::temporal_edges`], which take long to count.
    pub fn uses_temporal_edges(self) -> bool {
        self == Algorithm::GloySmith
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a name that no algorithm has.
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

/// Orders `graph` by `algorithm` with the parameters of its paper. Only the random orders use
/// `seed`.
///
/// # Errors
/// The graph breaks a rule, or is too large for the algorithm.
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
