//! The calls of a group, and how often they ran by a profile.
//!
//! Input: a group and a profile. Output: direct calls within the group, and indirect calls with the
//! most frequent of their targets. This module chooses none of them.

use crate::group::Group;
use crate::memory::Memory;
use anyhow::Result;
use emit::module::IndirectCall;
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use profile::Profile;
use std::collections::{BTreeMap, BTreeSet};

/// A call of the group, wherever its code stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    /// The function that holds it.
    pub(super) function: u32,
    /// The address of the called function; of an indirect call, the most frequent one.
    pub(super) target: LinkAddr,
    /// Its number, if it belongs to the group.
    pub(super) callee: Option<u32>,
    /// How often the call went there.
    pub(super) count: u64,
    /// How often an indirect call ran, wherever it went.
    pub(super) ran: Option<u64>,
}

impl Site {
    pub(super) fn is_indirect(&self) -> bool {
        self.ran.is_some()
    }
}

/// An indirect call is promoted when this part of its executions goes to one function.
const FREQUENT: f64 = 0.5;

/// Where an indirect call went.
struct Targets {
    function: u32,
    /// The profile's blocks that end with the call.
    blocks: BTreeSet<LinkAddr>,
    counts: BTreeMap<LinkAddr, u64>,
}

/// The calls within the group, and its indirect calls with a frequent target, by their offsets; and
/// how often all its indirect calls through a register ran.
pub(super) fn of(group: &Group<'_, '_>, profile: &Profile) -> (BTreeMap<u32, Site>, u64) {
    let original = &group.original;
    let kernel = original.kernel;
    let all = 0..original.pieces.len();
    let plain: Vec<Vec<(u32, u32)>> = all.clone().map(|n| original.plain_calls(n)).collect();
    let indirect: Vec<Vec<IndirectCall>> = all.map(|n| original.indirect_calls(n)).collect();
    let mut sites: BTreeMap<u32, Site> = BTreeMap::new();
    let mut indirect_sites: BTreeMap<u32, Targets> = BTreeMap::new();
    for (&(block, target), &count) in &profile.calls {
        // A block of a profile ends with its call.
        let Some((piece, _)) = group.piece_at(block) else { continue };
        let function = original.pieces[piece.index()].function;
        let from = (block.0 - kernel.text.start) as u32;
        let direct = whole(group, target).and_then(|callee| {
            plain[piece.index()].iter().find(|&&(at, to)| at >= from && to == callee)
        });
        let mut calls = indirect[piece.index()].iter();
        if let Some(&(at, callee)) = direct {
            let site = Site { function, target, callee: Some(callee), count: 0, ran: None };
            let site = sites.entry(at).or_insert(site);
            site.count = site.count.saturating_add(count);
        } else if let Some(call) = calls.find(|call| (call.since..call.at).contains(&from)) {
            let targets = indirect_sites.entry(call.at).or_insert(Targets {
                function,
                blocks: BTreeSet::new(),
                counts: BTreeMap::new(),
            });
            targets.blocks.insert(block);
            *targets.counts.entry(target).or_default() += count;
        }
    }
    let mut all_ran: u64 = 0;
    sites.extend(indirect_sites.into_iter().filter_map(|(at, targets)| {
        // The profile may know of calls without their targets.
        let ran = targets.blocks.iter().filter_map(|block| profile.blocks.get(block)).sum();
        let ran = targets.counts.values().sum::<u64>().max(ran);
        all_ran = all_ran.saturating_add(ran);
        let (&target, &count) = targets.counts.iter().max_by_key(|&(_, &count)| count)?;
        let (function, callee) = (targets.function, whole(group, target));
        let entry = kernel.link_address(kernel.functions[kernel.function_at(target)?].at);
        let is_frequent = entry == target && count as f64 >= ran as f64 * FREQUENT;
        is_frequent.then_some((at, Site { function, target, callee, count, ran: Some(ran) }))
    }));
    (sites, all_ran)
}

/// The number of the function of the group that begins at an address and is called there.
fn whole(group: &Group<'_, '_>, at: LinkAddr) -> Option<u32> {
    let (piece, true) = group.piece_at(at)? else { return None };
    let piece = &group.original.pieces[piece.index()];
    let is_whole = piece.entry && group.original.skip[piece.function as usize] > 0;
    is_whole.then_some(piece.function)
}

/// Whether the running kernel makes indirect calls by retpolines, each of which the processor
/// mispredicts. Elsewhere it has patched them.
///
/// # Errors
/// Memory cannot be read.
pub(super) fn calls_by_retpolines(kernel: &LinkedKernel<'_>, memory: &dyn Memory) -> Result<bool> {
    let in_text =
        kernel.tables.retpolines.iter().filter(|&&site| kernel.text_offset(site).is_some());
    for &site in in_text.take(64) {
        let (file, live) = (kernel.bytes(LinkAddr(site), 5), memory.read(LinkAddr(site), 5)?);
        if file == Some(&live) {
            return Ok(true);
        }
    }
    Ok(false)
}
