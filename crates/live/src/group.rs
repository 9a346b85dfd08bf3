//! A group: functions that are replaced together, in pieces, with their parts that the compiler put
//! elsewhere.
//!
//! Input: functions by number, and the running kernel. Output: the input of `emit::module` and of
//! the layout algorithms.

use crate::eligible::{self, Fit, Unfit};
use crate::explain::explain;
use crate::inlined_counts::{self, InlineShares};
use crate::memory::Memory;
use anyhow::{Result, bail};
use emit::module::{Inlining, Original};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::object::flow;
use image::object::pieces::Piece;
use layout::graph::{BlockId, Call, Edge, EdgeKind, Graph};
use profile::Profile;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A group, cut into pieces.
pub struct Group<'k, 'd> {
    /// The functions and their pieces.
    pub original: Original<'k, 'd>,
    /// The replaced functions: index into `original.functions`, bytes from the entry to behind the
    /// tracer's site.
    pub members: Vec<(u32, u32)>,
    /// The requested functions that are left alone: index into the kernel's functions, and the
    /// reason.
    pub left_out: Vec<(usize, Unfit)>,
    /// How the executions of functions are divided between their copies.
    pub(crate) shares: InlineShares,
}

impl<'k, 'd> Group<'k, 'd> {
    /// Cuts the functions of these numbers and their cold parts. Those that cannot be replaced are
    /// left out, with the reason.
    ///
    /// # Errors
    /// Memory cannot be read, or the functions cannot be copied together.
    pub fn new(
        kernel: &'k LinkedKernel<'d>,
        memory: &dyn Memory,
        chosen: &[usize],
    ) -> Result<Group<'k, 'd>> {
        Group::carrying(kernel, memory, chosen, &|_| false)
    }

    /// Likewise, and also copies the functions that are `wanted` among those that cannot be
    /// replaced, if they can be inlined. Only other copies enter these copies.
    ///
    /// # Errors
    /// As [`Group::new`].
    pub(crate) fn carrying(
        kernel: &'k LinkedKernel<'d>,
        memory: &dyn Memory,
        chosen: &[usize],
        wanted: &dyn Fn(usize) -> bool,
    ) -> Result<Group<'k, 'd>> {
        let slide = memory.slide();
        let mut parts: BTreeMap<usize, (Vec<u8>, u32)> = BTreeMap::new();
        let mut left_out = Vec::new();
        let mut carried = BTreeSet::new();
        for &index in chosen {
            let fit = match decide(kernel, memory, index)? {
                Ok(fit) => fit,
                Err(reason) => {
                    left_out.push((index, reason));
                    let function = &kernel.functions[index];
                    let (at, size) = (kernel.link_address(function.at), function.end - function.at);
                    let live = memory.read(at, size as usize)?;
                    let fit = wanted(index).then(|| eligible::carried(kernel, index, &live, slide));
                    let Some(fit) = fit.flatten() else { continue };
                    carried.insert(index);
                    fit
                }
            };
            for cold in eligible::cold_parts(kernel, index) {
                if let Some(code) = copyable(kernel, memory, cold, slide)? {
                    parts.entry(cold).or_insert((code, 0));
                }
            }
            parts.insert(index, (fit.code, fit.patch_at));
        }
        left_out.sort_unstable();
        left_out.dedup();
        let numbers: Vec<usize> = parts.keys().copied().collect();
        let cut = kernel.cut(&numbers);
        if cut.functions.len() != numbers.len() || cut.functions.iter().any(|f| f.whole.is_some()) {
            let reasons: Vec<String> = (cut.functions.iter())
                .filter_map(|f| Some(format!("{} ({})", kernel.function_name(f), f.whole?.words())))
                .collect();
            bail!(
                "functions that can be copied alone cannot be copied together: {}",
                reasons.join(", ")
            );
        }
        let (code, skip): (Vec<Vec<u8>>, Vec<u32>) = parts.into_values().unzip();
        let members = (0u32..)
            .zip(numbers.iter().zip(&skip))
            .filter(|&(_, (index, &skip))| skip > 0 && !carried.contains(index))
            .map(|(i, (_, &skip))| (i, skip))
            .collect();
        Ok(Group {
            original: Original {
                kernel,
                functions: cut.functions,
                pieces: cut.pieces,
                sites: cut.sites,
                code,
                skip,
                slide,
                inlining: Inlining::default(),
            },
            members,
            left_out,
            shares: InlineShares::default(),
        })
    }

    /// Entry and offset of the jump of each member, by offsets in `.text`.
    pub(crate) fn entries(&self) -> Vec<(u32, u32)> {
        let functions = &self.original.functions;
        self.members.iter().map(|&(f, patch_at)| (functions[f as usize].at, patch_at)).collect()
    }

    /// The name of a function of the group.
    pub fn name(&self, function: u32) -> &'d str {
        self.original.kernel.function_name(&self.original.functions[function as usize])
    }

    /// The group as the layout algorithms see it, with the counts that a profile has for it;
    /// without one all counts are 0.
    pub fn graph(&self, profile: Option<&Profile>) -> Graph {
        let pieces = self.own_pieces();
        let mut graph = Graph {
            sizes: pieces.iter().map(|p| p.size.max(1)).collect(),
            counts: vec![0; pieces.len()],
            glued: vec![false; pieces.len()],
            alignments: vec![1; pieces.len()],
            ..Graph::default()
        };
        for f in 0..self.original.functions.len() as u32 {
            let first = pieces.partition_point(|p| p.function < f) as u32;
            let last = pieces.partition_point(|p| p.function <= f) as u32;
            graph.functions.push(first..last);
        }
        if let Some(profile) = profile {
            self.add_counts(profile, &mut graph);
        }
        match self.original.inlining.calls() {
            [] => graph,
            _ => inlined_counts::expand(&self.original, &self.shares, graph),
        }
    }

    /// The pieces of the functions' own copies.
    fn own_pieces(&self) -> &[Piece] {
        let pieces = &self.original.pieces;
        &pieces[self.original.inlining.pieces(0, pieces.len())]
    }

    /// The piece of a function's own copy that holds an address, and whether it begins there.
    pub(crate) fn piece_at(&self, at: LinkAddr) -> Option<(BlockId, bool)> {
        let offset = u32::try_from(at.0.checked_sub(self.original.kernel.text.start)?).ok()?;
        let pieces = self.own_pieces();
        let index = pieces.partition_point(|p| p.at <= offset).checked_sub(1)?;
        (offset < pieces[index].end())
            .then_some((BlockId(index as u32), offset == pieces[index].at))
    }

    fn add_counts(&self, profile: &Profile, graph: &mut Graph) {
        for (&at, &count) in &profile.blocks {
            if let Some((block, true)) = self.piece_at(at) {
                graph.counts[block.index()] = count;
            }
        }
        for (&(from, to), &(kind, count)) in &profile.edges {
            if let (Some((from, _)), Some((to, true))) = (self.piece_at(from), self.piece_at(to)) {
                match kind {
                    EdgeKind::FallThrough => add_run(graph, from.0..to.0, count),
                    _ => graph.edges.push(Edge { from, to, count, kind }),
                }
            }
        }
        for (&(from, to), &count) in &profile.calls {
            if let (Some((from, _)), Some((to, true))) = (self.piece_at(from), self.piece_at(to)) {
                graph.calls.push(Call { from, to, count });
            }
        }
    }

    /// The edges between the blocks of the group, as the code has them.
    pub(crate) fn edges(&self) -> Vec<(u32, u32, EdgeKind)> {
        flow::edges(self.own_pieces(), &self.original.sites)
    }
}

/// Adds the edges of code that ran `count` times from `pieces` into the piece behind them. A
/// profile's block may hold several pieces: where the replacement of an alternative jumps to, only
/// a piece begins. Such a block may have been entered in its middle.
fn add_run(graph: &mut Graph, pieces: Range<u32>, count: u64) {
    let entered = match pieces.len() {
        1 => count,
        _ => graph.counts[pieces.start as usize].min(count),
    };
    for from in pieces.clone() {
        let is_first = from == pieces.start;
        if !is_first {
            let ran = &mut graph.counts[from as usize];
            *ran = count.max(*ran);
        }
        let count = if is_first { entered } else { count };
        let (from, to) = (BlockId(from), BlockId(from + 1));
        graph.edges.push(Edge { from, to, count, kind: EdgeKind::FallThrough });
    }
}

/// Decides about a function with its code in memory: how to replace it, or why not.
///
/// # Errors
/// The memory cannot be read.
pub fn decide(
    kernel: &LinkedKernel<'_>,
    memory: &dyn Memory,
    index: usize,
) -> Result<Result<Fit, Unfit>> {
    let function = &kernel.functions[index];
    let live =
        memory.read(kernel.link_address(function.at), (function.end - function.at) as usize)?;
    Ok(eligible::decide(kernel, index, &live, memory.slide()))
}

/// The bytes of a part that can be copied; `None` where the original serves.
fn copyable(
    kernel: &LinkedKernel<'_>,
    memory: &dyn Memory,
    index: usize,
    slide: u64,
) -> Result<Option<Vec<u8>>> {
    if eligible::understood(kernel, index).is_err() {
        return Ok(None);
    }
    let function = &kernel.functions[index];
    let live =
        memory.read(kernel.link_address(function.at), (function.end - function.at) as usize)?;
    Ok(explain(kernel, function, &live, slide).ok())
}
