//! Which functions belong to a group: the root and the hot ones among those that it leads to
//! (Tamches 2001, section 2.2).
//!
//! Input: a profile's calls and tail jumps. Output: functions. A function is hot when one of its
//! blocks ran more often than a given share of the root's calls.

use crate::group::Group;
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use profile::Profile;
use std::collections::{BTreeMap, BTreeSet};

/// The root and its hot descendants, ascending by number.
pub fn group(
    kernel: &LinkedKernel<'_>,
    profile: &Profile,
    root: usize,
    threshold: f64,
) -> Vec<usize> {
    let limit = limit(kernel, profile, root, threshold);
    let function = |at: &LinkAddr| kernel.function_at(*at);
    let mut callees: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let calls = profile.calls.iter().map(|((from, to), &count)| (from, to, count));
    let jumps = profile.edges.iter().map(|((from, to), &(_, count))| (from, to, count));
    for (from, to, count) in calls.chain(jumps) {
        if let (Some(from), Some(to), true) = (function(from), function(to), count > 0) {
            callees.entry(from).or_default().insert(to);
        }
    }
    let mut hottest: BTreeMap<usize, u64> = BTreeMap::new();
    for (at, &count) in &profile.blocks {
        if let Some(index) = function(at) {
            let most = hottest.entry(index).or_default();
            *most = count.max(*most);
        }
    }
    let is_hot = |index: usize| hottest.get(&index).is_some_and(|&count| count as f64 > limit);
    let mut found = BTreeSet::from([root]);
    let mut waiting = vec![root];
    while let Some(index) = waiting.pop() {
        for &callee in callees.get(&index).into_iter().flatten() {
            if is_hot(callee) && found.insert(callee) {
                waiting.push(callee);
            }
        }
    }
    found.into_iter().collect()
}

/// How often a block must have run to be hot: more than a given share of the root's calls.
pub(crate) fn limit(
    kernel: &LinkedKernel<'_>,
    profile: &Profile,
    root: usize,
    threshold: f64,
) -> f64 {
    let entry = kernel.link_address(kernel.functions[root].at);
    profile.blocks.get(&entry).copied().unwrap_or(0) as f64 * threshold
}

/// The groups of several roots, together; ascending.
pub fn groups(
    kernel: &LinkedKernel<'_>,
    profile: &Profile,
    roots: &[usize],
    threshold: f64,
) -> Vec<usize> {
    let groups = roots.iter().flat_map(|&root| group(kernel, profile, root, threshold));
    groups.collect::<BTreeSet<usize>>().into_iter().collect()
}

/// How often a block must have run to be hot for one of the roots.
pub fn least_limit(
    kernel: &LinkedKernel<'_>,
    profile: &Profile,
    roots: &[usize],
    threshold: f64,
) -> f64 {
    let limits = roots.iter().map(|&root| limit(kernel, profile, root, threshold));
    limits.fold(f64::INFINITY, f64::min)
}

/// The blocks of a group that ran more often than `limit`, by their numbers, ascending.
pub fn blocks(group: &Group<'_, '_>, profile: &Profile, limit: f64) -> Vec<usize> {
    let count = |n: usize| {
        let at = group.original.kernel.link_address(group.original.pieces[n].at);
        profile.blocks.get(&at).copied().unwrap_or(0)
    };
    (0..group.original.pieces.len()).filter(|&n| count(n) as f64 > limit).collect()
}
