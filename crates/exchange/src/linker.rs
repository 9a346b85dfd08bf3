//! Files for lld: how often functions call each other, and an order of functions.
//!
//! Input: a profile with its image, and for the order a layout. Output: text.

use super::{ExportSubject, Format, Make};
use anyhow::Result;
use image::BlockIndex;
use image::order::Layout;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The format.
pub(crate) const CALL_GRAPH: Format = Format {
    name: "call-graph",
    about: "Calls between functions (ld.lld --call-graph-ordering-file=FILE)",
    make: Make::Counts(call_graph),
};

/// The format.
pub(crate) const SYMBOL_ORDER: Format = Format {
    name: "symbol-order",
    about: "Functions in their new order (ld.lld --symbol-ordering-file=FILE)",
    make: Make::Order(|subject, layout| Ok(symbol_order(subject, layout))),
};

/// `--call-graph-ordering-file`: lines "CALLER CALLEE COUNT". Jumps between functions also count as
/// calls.
///
/// # Errors
/// The profile belongs to another image.
pub(crate) fn call_graph(subject: &ExportSubject) -> Result<String> {
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

/// The file for `--symbol-ordering-file`: the functions with hot blocks, in the order of their
/// first hot blocks in the layout.
pub(crate) fn symbol_order(subject: &ExportSubject, layout: &Layout) -> String {
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
