//! C3, call-chain clustering: an order of functions in which callees follow their likeliest caller.
//!
//! Ottoni and Maher, "Optimizing function placement for large-scale data-center applications" (CGO 2017), section 3, as in hfsort. Takes
//! the part of a graph that ran; gives the functions that ran, in order. `docs/algorithms/ext-tsp.md` tells more.

use crate::graph::FunctionId;
use crate::hot::Hot;
use crate::validate::{InputError, at_least};

#[derive(Clone, Debug, PartialEq)]
pub struct C3Parameters {
    /// A cluster never grows beyond so many bytes: what one large page of the TLB covers.
    pub max_cluster_bytes: u64,
    /// A caller's cluster takes in a callee's unless that would divide its density by more than this.
    pub max_density_loss: f64,
    /// A callee goes to its likeliest caller only when at least this share of its calls comes from there.
    pub min_call_share: f64,
}

impl Default for C3Parameters {
    fn default() -> Self {
        C3Parameters {
            max_cluster_bytes: 1 << 20,
            max_density_loss: 8.0,
            min_call_share: 0.1,
        }
    }
}

impl C3Parameters {
    pub(crate) fn validate(&self) -> Result<(), InputError> {
        at_least("max_density_loss", self.max_density_loss, 1.0)?;
        at_least("min_call_share", self.min_call_share, 0.0)
    }
}

struct Cluster {
    functions: Vec<FunctionId>,
    bytes: u64,
    /// Bytes fetched from it: size times count, summed over its blocks.
    work: f64,
}

impl Cluster {
    fn density(&self) -> f64 {
        self.work / self.bytes.max(1) as f64
    }
}

/// The functions of which a block ran, clustered; only the bytes that ran count.
pub(crate) fn order(hot: &Hot, parameters: &C3Parameters) -> Vec<FunctionId> {
    let mut clusters: Vec<Cluster> = (0..hot.functions.len()).map(|f| cluster(hot, f)).collect();
    let mut cluster_of: Vec<usize> = (0..clusters.len()).collect();
    let callers = likeliest_callers(hot);
    let mut callees: Vec<usize> = (0..clusters.len()).filter(|&f| !hot.functions[f].is_empty()).collect();
    callees.sort_by(|&a, &b| clusters[b].density().total_cmp(&clusters[a].density()).then(a.cmp(&b)));
    for callee in callees {
        let Some((caller, share)) = callers[callee] else { continue };
        let (into, from) = (cluster_of[caller.index()], cluster_of[callee]);
        if share >= parameters.min_call_share && into != from && worthwhile(&clusters[into], &clusters[from], parameters) {
            let moved = std::mem::take(&mut clusters[from].functions);
            moved.iter().for_each(|f| cluster_of[f.index()] = into);
            clusters[into].functions.extend(moved);
            clusters[into].bytes += clusters[from].bytes;
            clusters[into].work += clusters[from].work;
        }
    }
    clusters.retain(|c| !c.functions.is_empty());
    clusters.sort_by(|a, b| b.density().total_cmp(&a.density()).then(a.functions[0].cmp(&b.functions[0])));
    clusters.into_iter().flat_map(|c| c.functions).collect()
}

fn cluster(hot: &Hot, function: usize) -> Cluster {
    let all = [FunctionId(function as u32)];
    let functions = if hot.functions[function].is_empty() {
        Vec::new()
    } else {
        all.to_vec()
    };
    Cluster {
        bytes: hot.bytes(&functions),
        work: hot.work(&functions),
        functions,
    }
}

/// The caller that each function is entered from most often, with its share of all entries; the first among equals.
fn likeliest_callers(hot: &Hot) -> Vec<Option<(FunctionId, f64)>> {
    let mut most: Vec<Option<(FunctionId, u128)>> = vec![None; hot.functions.len()];
    let mut entries = vec![0u128; hot.functions.len()];
    for ((caller, callee), count) in hot.arcs() {
        entries[callee.index()] += count;
        let best = &mut most[callee.index()];
        if best.is_none_or(|(_, most)| count > most) {
            *best = Some((caller, count));
        }
    }
    most.into_iter()
        .zip(entries)
        .map(|(best, all)| best.map(|(caller, count)| (caller, count as f64 / all as f64)))
        .collect()
}

fn worthwhile(into: &Cluster, from: &Cluster, parameters: &C3Parameters) -> bool {
    let bytes = into.bytes + from.bytes;
    let density = (into.work + from.work) / bytes.max(1) as f64;
    bytes <= parameters.max_cluster_bytes && into.density() <= density * parameters.max_density_loss
}
