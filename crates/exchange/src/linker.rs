//! What lld takes: how often functions call each other, and an order of functions.

use super::Subject;
use anyhow::Result;
use image::BlockIndex;
use image::order::Layout;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// `--call-graph-ordering-file`: lines "CALLER CALLEE COUNT". Jumps between functions are calls,
/// too.
///
/// # Errors
/// The profile is not of this image.
pub fn call_graph(subject: &Subject) -> Result<String> {
    let name = |block: BlockIndex| subject.image.function_of(block).name.as_str();
    let mut sums: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let calls = subject.profile.calls.iter().map(|(&ends, &count)| (ends, count));
    let jumps = subject.profile.edges.iter().map(|(&ends, &(_, count))| (ends, count));
    for ((from, to), count) in calls.chain(jumps) {
        let (caller, callee) = (name(subject.block(from)?), name(subject.block(to)?));
        if count > 0 && caller != callee {
            let sum = sums.entry((caller, callee)).or_insert(0);
            *sum = sum.saturating_add(count);
        }
    }
    let mut text = String::new();
    for ((caller, callee), count) in sums {
        writeln!(text, "{caller} {callee} {count}")?;
    }
    Ok(text)
}

/// `--symbol-ordering-file`: the functions whose blocks are hot, each where its first hot block
/// stands in the layout.
pub fn symbol_order(subject: &Subject, layout: &Layout) -> String {
    let mut named = BTreeSet::new();
    let mut text = String::new();
    for run in &layout.runs[..layout.hot] {
        if let Some(block) = subject.image.block_at(run.start) {
            let name = &subject.image.function_of(block).name;
            if named.insert(name) {
                text.push_str(name);
                text.push('\n');
            }
        }
    }
    text
}
