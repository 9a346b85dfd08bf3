//! C3, call-chain clustering: orders functions so that callees follow their likeliest caller.
//!
//! Ottoni and Maher, "Optimizing function placement for large-scale data-center applications" (CGO
//! 2017), section 3, as in hfsort. Input: functions with sizes, weights and calls. Output: their
//! order. `docs/algorithms/ext-tsp.md` explains more.

use crate::call_graph::CallGraph;
use crate::graph::FunctionId;
use crate::hot::HotCode;
use crate::validate::{InputError, at_least};

/// The parameters of C3.
#[derive(Clone, Debug, PartialEq)]
pub struct C3Parameters {
    /// The largest size of a cluster in bytes: what one large page of the TLB covers.
    pub max_cluster_bytes: u64,
    /// The largest factor by which the density of a caller's cluster may fall when it takes in a
    /// callee's cluster.
    pub max_density_loss: f64,
    /// The least share of a callee's calls that must come from its likeliest caller. Below it, the
    /// callee stays where it is.
    pub min_call_share: f64,
}

impl Default for C3Parameters {
    fn default() -> Self {
        C3Parameters { max_cluster_bytes: 1 << 20, max_density_loss: 8.0, min_call_share: 0.1 }
    }
}

impl C3Parameters {
    pub(crate) fn validate(&self) -> Result<(), InputError> {
        at_least("max_density_loss", self.max_density_loss, 1.0)?;
        at_least("min_call_share", self.min_call_share, 0.0)
    }
}

struct C3Cluster {
    functions: Vec<u32>,
    bytes: u64,
    weight: f64,
}

impl C3Cluster {
    fn density(&self) -> f64 {
        self.weight / self.bytes.max(1) as f64
    }
}

/// Clusters the functions that ran. Only bytes that ran count. The weight of a function is the
/// number of bytes fetched from it.
pub(crate) fn order(hot: &HotCode, parameters: &C3Parameters) -> Vec<FunctionId> {
    let (graph, functions) = CallGraph::of(hot);
    let weights: Vec<f64> = functions.iter().map(|&f| hot.work(&[f])).collect();
    arrange(&graph, &weights, parameters).into_iter().map(|f| functions[f as usize]).collect()
}

/// Clusters all functions of a call graph. `weights` gives the time that each takes, in any unit:
/// hfsort uses samples, lld the calls that enter it.
pub fn arrange(graph: &CallGraph, weights: &[f64], parameters: &C3Parameters) -> Vec<u32> {
    let cluster = |(number, (&bytes, &weight)): (usize, (&u64, &f64))| C3Cluster {
        functions: vec![number as u32],
        bytes,
        weight,
    };
    let mut clusters: Vec<C3Cluster> =
        graph.sizes.iter().zip(weights).enumerate().map(cluster).collect();
    let mut cluster_of: Vec<usize> = (0..clusters.len()).collect();
    let callers = likeliest_callers(graph);
    let mut callees: Vec<usize> = (0..clusters.len()).collect();
    callees
        .sort_by(|&a, &b| clusters[b].density().total_cmp(&clusters[a].density()).then(a.cmp(&b)));
    for callee in callees {
        let Some((caller, share)) = callers[callee] else { continue };
        let (into, from) = (cluster_of[caller as usize], cluster_of[callee]);
        if share > parameters.min_call_share
            && into != from
            && worthwhile(&clusters[into], &clusters[from], parameters)
        {
            let moved = std::mem::take(&mut clusters[from].functions);
            moved.iter().for_each(|&f| cluster_of[f as usize] = into);
            clusters[into].functions.extend(moved);
            clusters[into].bytes += clusters[from].bytes;
            clusters[into].weight += clusters[from].weight;
        }
    }
    clusters.retain(|c| !c.functions.is_empty());
    clusters.sort_by(|a, b| {
        b.density().total_cmp(&a.density()).then(a.functions[0].cmp(&b.functions[0]))
    });
    clusters.into_iter().flat_map(|c| c.functions).collect()
}

/// The caller that enters each function most often, with its share of all entries; among equals,
/// the first. Calls of a function to itself count as entries, but it is not its own caller.
fn likeliest_callers(graph: &CallGraph) -> Vec<Option<(u32, f64)>> {
    let mut between: Vec<(u32, u32)> = Vec::new();
    let mut sums: std::collections::BTreeMap<(u32, u32), u128> = std::collections::BTreeMap::new();
    for arc in &graph.arcs {
        let sum = sums.entry((arc.from, arc.to)).or_insert_with(|| {
            between.push((arc.from, arc.to));
            0
        });
        *sum += u128::from(arc.count);
    }
    let mut most: Vec<Option<(u32, u128)>> = vec![None; graph.len()];
    let mut entries = vec![0u128; graph.len()];
    for (caller, callee) in between {
        let count = sums[&(caller, callee)];
        entries[callee as usize] += count;
        let best = &mut most[callee as usize];
        if caller != callee && best.is_none_or(|(_, most)| count > most) {
            *best = Some((caller, count));
        }
    }
    most.into_iter()
        .zip(entries)
        .map(|(best, all)| best.map(|(caller, count)| (caller, count as f64 / all as f64)))
        .collect()
}

fn worthwhile(into: &C3Cluster, from: &C3Cluster, parameters: &C3Parameters) -> bool {
    let bytes = into.bytes + from.bytes;
    let density = (into.weight + from.weight) / bytes.max(1) as f64;
    bytes <= parameters.max_cluster_bytes && into.density() <= density * parameters.max_density_loss
}
