//! Propeller's profiles for a kernel or program that was built with `-fbasic-block-address-map`:
//! clusters of blocks for clang, symbols for lld.
//!
//! `llvm-readobj` prints clang's block ids from the image's `.llvm_bb_addr_map` sections. A block
//! of clang is hot if it contains a hot block of the layout.
//! `llvm/lib/CodeGen/BasicBlockSectionsProfileReader.cpp` defines the format for clang (version 1).
//!
//! Input: a profile, its image and a layout. Output: text for clang, and text for lld.

use super::{ExportSubject, Format, Make, ask_llvm};
use anyhow::{Context, Result, bail};
use image::address::LinkAddr;
use image::order::Layout;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

#[derive(Deserialize)]
struct BlockMapFile {
    #[serde(rename = "BBAddrMap")]
    functions: Vec<BlockMapEntry>,
}

#[derive(Deserialize)]
struct BlockMapEntry {
    #[serde(rename = "Function")]
    function: BlockMapFunction,
}

#[derive(Deserialize)]
struct BlockMapFunction {
    #[serde(rename = "Name")]
    name: String,
    #[serde(rename = "BB Ranges")]
    ranges: Vec<BlockMapRange>,
}

#[derive(Deserialize)]
struct BlockMapRange {
    #[serde(rename = "Base Address")]
    base: u64,
    #[serde(rename = "BB Entries")]
    blocks: Vec<ClangBlock>,
}

#[derive(Deserialize)]
struct ClangBlock {
    #[serde(rename = "ID")]
    id: u32,
    #[serde(rename = "Offset")]
    offset: u64,
    #[serde(rename = "Size")]
    size: u64,
}

/// The hot code: clusters of blocks in their new order.
pub(crate) struct Clusters {
    /// For each function, the ids of the blocks of each cluster. The entry, with id 0, begins the
    /// first cluster.
    functions: BTreeMap<String, Vec<Vec<u32>>>,
    /// Functions and clusters in their new order.
    order: Vec<(String, usize)>,
}

/// The format.
pub(crate) const PROPELLER_CC: Format = Format {
    name: "propeller-cc",
    about: "Propeller's clusters of blocks (clang -fbasic-block-sections=list=FILE); needs the \
        sections of -fbasic-block-address-map",
    make: Make::Order(|subject, layout| Ok(clusters(subject, layout)?.cc_profile())),
};

/// The format.
pub(crate) const PROPELLER_LD: Format = Format {
    name: "propeller-ld",
    about: "Propeller's order of functions and clusters (ld.lld --symbol-ordering-file=FILE)",
    make: Make::Order(|subject, layout| Ok(clusters(subject, layout)?.ld_profile())),
};

/// The clusters of a layout: blocks of one function that stand side by side.
///
/// # Errors
/// The image has no maps of blocks, or `llvm-readobj` cannot be run.
pub(crate) fn clusters(subject: &ExportSubject, layout: &Layout) -> Result<Clusters> {
    let output_text =
        ask_llvm("llvm-readobj", &["--bb-addr-map", "--elf-output-style=JSON"], subject.path, b"")?;
    let files: Vec<BlockMapFile> = serde_json::from_str(&output_text)
        .context("the output of llvm-readobj-22 cannot be read")?;
    let functions = files.into_iter().flat_map(|file| file.functions).map(|entry| entry.function);
    // (start, end, function, id), ascending.
    let mut blocks: Vec<(u64, u64, String, u32)> = Vec::new();
    for function in functions {
        for range in function.ranges {
            let block = |b: &ClangBlock| {
                (range.base + b.offset, range.base + b.offset + b.size, function.name.clone(), b.id)
            };
            blocks.extend(range.blocks.iter().map(block));
        }
    }
    if blocks.is_empty() {
        bail!(
            "{}: has no .llvm_bb_addr_map sections: build it with clang and \
             -fbasic-block-address-map",
            subject.path.display()
        );
    }
    blocks.sort();
    Ok(cut(hot_blocks(&blocks, subject, layout)))
}

/// The function and id of each executed block of clang that holds a byte of a hot run, in the
/// layout's order, without repetition.
fn hot_blocks(
    blocks: &[(u64, u64, String, u32)],
    subject: &ExportSubject,
    layout: &Layout,
) -> Vec<(String, u32)> {
    let mut seen = BTreeSet::new();
    let mut hot = Vec::new();
    for run in &layout.runs[..layout.hot] {
        let end = run.start.0 + run.size;
        let first = blocks.partition_point(|block| block.1 <= run.start.0);
        for (start, end, function, id) in blocks[first..].iter().take_while(|block| block.0 < end) {
            let mut inside = subject.profile.blocks.range(LinkAddr(*start)..LinkAddr(*end));
            if inside.any(|(_, &count)| count > 0) && seen.insert((function.clone(), *id)) {
                hot.push((function.clone(), *id));
            }
        }
    }
    hot
}

fn cut(hot: Vec<(String, u32)>) -> Clusters {
    let mut clusters = Clusters { functions: BTreeMap::new(), order: Vec::new() };
    let mut before: Option<String> = None;
    for (function, id) in hot {
        let own = clusters.functions.entry(function.clone()).or_default();
        if before.as_ref() != Some(&function) {
            own.push(Vec::new());
            clusters.order.push((function.clone(), own.len() - 1));
        }
        if let Some(cluster) = own.last_mut() {
            cluster.push(id);
        }
        before = Some(function);
    }
    clusters.functions.values_mut().for_each(|own| entry_first(own));
    clusters
}

/// Puts the entry at the front of the first cluster, because clang names that cluster after the
/// function.
fn entry_first(clusters: &mut [Vec<u32>]) {
    clusters.iter_mut().for_each(|cluster| cluster.retain(|&id| id != 0));
    if let Some(first) = clusters.first_mut() {
        first.insert(0, 0);
    }
}

impl Clusters {
    /// The file for `clang -fbasic-block-sections=list=FILE`.
    pub(crate) fn cc_profile(&self) -> String {
        let mut text = "v1\n".to_owned();
        for (function, clusters) in &self.functions {
            let _ = writeln!(text, "f {function}");
            for cluster in clusters.iter().filter(|cluster| !cluster.is_empty()) {
                let ids: Vec<String> = cluster.iter().map(u32::to_string).collect();
                let _ = writeln!(text, "c {}", ids.join(" "));
            }
        }
        text
    }

    /// The file for `ld.lld --symbol-ordering-file=FILE`. clang gives a function's first cluster
    /// the function's name, and the others NAME.__part.N.
    pub(crate) fn ld_profile(&self) -> String {
        let mut text = String::new();
        for (function, number) in &self.order {
            let clusters = &self.functions[function];
            if clusters[*number].is_empty() {
                continue;
            }
            // Empty clusters have no number.
            let part = clusters[..*number].iter().filter(|cluster| !cluster.is_empty()).count();
            let _ = match part {
                0 => writeln!(text, "{function}"),
                part => writeln!(text, "{function}.__part.{part}"),
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_blocks_form_a_cluster_and_the_entry_begins_the_first_one() {
        let hot = [("f", 2), ("f", 0), ("g", 0), ("f", 3), ("h", 4)];
        let clusters = cut(hot.map(|(function, id)| (function.to_owned(), id)).to_vec());
        assert_eq!(clusters.cc_profile(), "v1\nf f\nc 0 2\nc 3\nf g\nc 0\nf h\nc 0 4\n");
        assert_eq!(clusters.ld_profile(), "f\ng\nf.__part.1\nh\n");
    }
}
