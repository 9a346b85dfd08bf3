//! Which calls of a group are inlined, and which indirect calls are promoted.
//!
//! Input: a group, and a profile of its blocks and calls. Output: the group with the code of hot
//! callees in their callers' copies, and the counts of that code. `emit::module` says what can be
//! inlined and promoted; [`layout::inlining`] says what should be. This module asks the one and
//! tells the other.

use crate::group::Group;
use crate::inlined_counts::InlineShares;
use crate::memory::{FileMemory, Memory};
use anyhow::Result;
use emit::module::{CallerFrame, GUARD, InPlace, InlinableBody, InlinedCall};
use emit::object::{CallReplacement, CallToInline, InlineLimits};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use layout::graph::Graph;
use layout::inlining::{
    self, CallCosts, CallForms, CallSite, ChosenCall, InlinableCode, Inlining, InliningFunction,
    InliningLimits, InliningProblem, SiteFrame,
};
use profile::Profile;
use sites::Site;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How much may be inlined, and what it saves.
#[derive(Clone, Copy, Debug)]
pub struct InlineSettings {
    /// The hot code may grow by this part of its bytes.
    pub growth: f64,
    /// The most hot bytes of a function that is inlined at one of several calls.
    pub largest: u64,
    /// The most hot bytes of a function that is nearly always called from one place.
    pub largest_alone: u64,
    /// What calls cost on the machine; `None`: it is not known, and each call counts as one.
    pub costs: Option<CallCosts>,
}

impl Default for InlineSettings {
    fn default() -> InlineSettings {
        InlineSettings { growth: 0.15, largest: 320, largest_alone: 2048, costs: None }
    }
}

/// What was inlined, and what it brings by the profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct InlineSummary {
    /// Calls in the group whose callee's code stands in their place.
    pub calls: usize,
    /// How often calls within the group ran: direct ones, and indirect ones that can be promoted.
    pub executed: u64,
    /// How many of these executions are gone. Where a callee leaves by a jump to a function, that
    /// jump is a call instead.
    pub gone: u64,
    /// Indirect calls that compare the pointer first, and then run inlined code or call directly.
    pub promoted: usize,
    /// How often the group's indirect calls ran that go through a register.
    pub indirect: u64,
    /// How often the pointer of those that are promoted names the function that is compared.
    pub direct: u64,
    /// Bytes of hot code before.
    pub hot_bytes: u64,
    /// Bytes of hot code that were added; negative if more own copies became cold.
    pub added_bytes: i64,
    /// Kernel cycles that the calls that are gone took, by what a call costs on the machine and the
    /// counts of the profile; `None` if the machine is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved_cycles: Option<u64>,
}

/// A block is hot in its function when it ran at least this part of the times that the function was
/// called.
const HOT: f64 = 0.02;
/// Calls of which there are fewer than this part of all are left alone.
const RARE: f64 = 5e-6;
/// The functions through which safe returns go (arch/x86/lib/retpoline.S), for Zen 1 and 2, and for
/// Zen 3 and 4.
const SAFE_RETURNS: [&str; 2] = ["srso_safe_ret", "srso_alias_safe_ret"];
/// How the names of the thunks end through which functions return (the same file).
const RETURN_THUNK: &str = "_return_thunk";
/// The retpolines of all registers (arch/x86/lib/retpoline.S), and their bytes.
const RETPOLINES: &str = "__x86_indirect_thunk_array";
const RETPOLINES_BYTES: u64 = 16 * 32;
/// Bytes of a direct call.
const CALL: u64 = 5;

/// A group of functions with the calls inlined that pay most: calls among them, and calls of those
/// that cannot be replaced but inlined. `chosen`: as for [`Group::new`].
///
/// # Errors
/// As [`Group::new`]; or a function cannot be inlined, although it seemed so.
pub fn group<'k, 'd>(
    kernel: &'k LinkedKernel<'d>,
    memory: &dyn Memory,
    chosen: &[usize],
    profile: &Profile,
    settings: InlineSettings,
) -> Result<(Group<'k, 'd>, InlineSummary)> {
    group_calling(kernel, memory, chosen, profile, settings, &[])
}

/// Likewise, but the functions of `called` (indices into the kernel's functions) stay called: a
/// tracer can come to them, and nothing gives way.
///
/// # Errors
/// As [`group`].
pub(crate) fn group_calling<'k, 'd>(
    kernel: &'k LinkedKernel<'d>,
    memory: &dyn Memory,
    chosen: &[usize],
    profile: &Profile,
    settings: InlineSettings,
    called: &[usize],
) -> Result<(Group<'k, 'd>, InlineSummary)> {
    let retpolines = sites::calls_by_retpolines(kernel, memory)?;
    let called: BTreeSet<u32> = called.iter().map(|&index| kernel.functions[index].at).collect();
    let chosen_calls = |wanted: &dyn Fn(usize) -> bool| {
        let group = Group::carrying(kernel, memory, chosen, wanted)?;
        let choice =
            Chooser { settings, called: &called, retpolines, limits: None }.choose(&group, profile);
        anyhow::Ok((group, choice))
    };
    // What nobody inlines need not be copied: a tracer may come to it.
    let (group, (calls, ..)) = chosen_calls(&|_| true)?;
    let functions = &group.original.functions;
    let index = |call: &InlinedCall| {
        let callee = &functions[call.inlined()? as usize];
        kernel.function_at(kernel.link_address(callee.at))
    };
    let inlined: BTreeSet<usize> = calls.iter().filter_map(index).collect();
    let (mut group, (calls, shares, summary)) = chosen_calls(&|index| inlined.contains(&index))?;
    group.original = group.original.inline(&calls)?;
    group.shares = shares;
    Ok((group, summary))
}

/// The calls that pay most among those of the kernel's hot functions, in the order in which they
/// are inlined into one another, for another emitter than that of live copies. `chosen`: the hot
/// functions; `limits`: what this emitter can inline and promote.
///
/// # Errors
/// As [`group`].
pub fn calls(
    kernel: &LinkedKernel<'_>,
    chosen: &[usize],
    profile: &Profile,
    settings: InlineSettings,
    limits: InlineLimits,
) -> Result<(Vec<CallToInline>, InlineSummary)> {
    let memory = FileMemory(kernel);
    let group = Group::carrying(kernel, &memory, chosen, &|_| true)?;
    let nothing = BTreeSet::new();
    let (called, limits) = (&nothing, Some(limits));
    let retpolines = call_forms(kernel, None, profile)?.retpolines;
    let chooser = Chooser { settings, called, retpolines, limits };
    let (calls, _, summary) = chooser.choose(&group, profile);
    let entry = |callee: u32| kernel.link_address(group.original.functions[callee as usize].at);
    let (sites, _) = sites::of(&group, profile);
    let calls = calls.iter().map(|call| {
        let (callee, replacement) = match call.code {
            InPlace::Code(callee) if sites[&call.at].is_indirect() => {
                (entry(callee), CallReplacement::GuardedCode)
            }
            InPlace::Code(callee) => (entry(callee), CallReplacement::Code),
            InPlace::Call(target) => (target, CallReplacement::GuardedCall),
        };
        let site = kernel.link_address(call.at);
        CallToInline { context: call.context, site, callee, replacement }
    });
    Ok((calls.collect(), summary))
}

/// How the kernel called and returned while a profile was recorded: by the thunks that ran.
/// `memory`: that of the running kernel, which says itself how it calls.
///
/// # Errors
/// Memory cannot be read.
pub fn call_forms(
    kernel: &LinkedKernel<'_>,
    memory: Option<&dyn Memory>,
    profile: &Profile,
) -> Result<CallForms> {
    let ran = |name: &str, bytes: u64| {
        kernel.address_of(name).is_some_and(|at| {
            let code = at..LinkAddr(at.0 + bytes);
            profile.blocks.range(code).any(|(_, &count)| count > 0)
        })
    };
    Ok(CallForms {
        safe_returns: SAFE_RETURNS.iter().any(|name| ran(name, 1)),
        retpolines: match memory {
            Some(memory) => sites::calls_by_retpolines(kernel, memory)?,
            None => ran(RETPOLINES, RETPOLINES_BYTES),
        },
    })
}

/// Every call of a kernel's functions that can be inlined or promoted, once each, for tests of
/// emitters. A promoted call gets some function for its target. `limits`: as for [`calls`].
///
/// # Errors
/// As [`group`].
pub fn all_calls(kernel: &LinkedKernel<'_>, limits: &InlineLimits) -> Result<Vec<CallToInline>> {
    let all: Vec<usize> = (0..kernel.functions.len()).collect();
    let Group { original, .. } = Group::carrying(kernel, &FileMemory(kernel), &all, &|_| true)?;
    let entry = |function: u32| kernel.link_address(original.functions[function as usize].at);
    let mut bodies: HashMap<u32, Option<InlinableBody>> = HashMap::new();
    let mut fits = |at: u32, caller: u32, callee: u32| {
        let body = bodies.entry(callee).or_insert_with(|| original.inlinable(callee).ok());
        let frame = original.caller_frame(at).ok();
        body.as_ref().zip(frame).is_some_and(|(body, frame)| body.fits(frame))
            && callee != caller
            && limits.allow(entry(caller), entry(callee))
    };
    let mut calls = Vec::new();
    let mut push = |at: u32, callee: LinkAddr, replacement: CallReplacement| {
        let site = kernel.link_address(at);
        calls.push(CallToInline { context: 0, site, callee, replacement });
    };
    let targets: Vec<u32> = (0u32..)
        .take(original.functions.len())
        .filter(|&function| limits.targets.contains(&entry(function)))
        .collect();
    let mut next = targets.iter().cycle();
    for piece in 0..original.pieces.len() {
        let caller = original.pieces[piece].function;
        for (at, callee) in original.plain_calls(piece) {
            if fits(at, caller, callee) {
                push(at, entry(callee), CallReplacement::Code);
            }
        }
        for call in original.indirect_calls(piece) {
            if !limits.indirect.contains(&kernel.link_address(call.at)) {
                continue;
            }
            let Some(&callee) = next.next() else { continue };
            let replacement = match fits(call.at, caller, callee) {
                true => CallReplacement::GuardedCode,
                false => CallReplacement::GuardedCall,
            };
            push(call.at, entry(callee), replacement);
        }
    }
    Ok(calls)
}

/// A call that is inlined or promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedCall<'d> {
    /// Its address in the running kernel.
    pub at: u64,
    /// The function whose copy it was in.
    pub caller: &'d str,
    /// The called function.
    pub called: &'d str,
    /// The called function's code stands in its place.
    pub is_inlined: bool,
    /// It was an indirect call.
    pub is_promoted: bool,
}

/// The calls of a group that are inlined or promoted.
pub fn listed<'d>(group: &Group<'_, 'd>) -> Vec<ListedCall<'d>> {
    let original = &group.original;
    let (kernel, inlining) = (original.kernel, &original.inlining);
    let calls = (0u32..).zip(inlining.calls());
    let calls = calls.map(|(n, call)| {
        let called = match call.code {
            InPlace::Code(callee) => group.name(callee),
            InPlace::Call(target) => kernel
                .function_at(target)
                .map_or("", |f| kernel.function_name(&kernel.functions[f])),
        };
        ListedCall {
            at: kernel.link_address(call.at).0.wrapping_add(original.slide),
            caller: group.name(original.copy_of(inlining.joint(n).0 as usize)),
            called,
            is_inlined: call.inlined().is_some(),
            is_promoted: inlining.unlikely(n).is_some(),
        }
    });
    calls.collect()
}

/// What the choice depends on besides counts and code.
struct Chooser<'a> {
    settings: InlineSettings,
    /// The offsets of the functions that stay called.
    called: &'a BTreeSet<u32>,
    /// The kernel makes indirect calls by retpolines.
    retpolines: bool,
    /// What another emitter than that of live copies can inline.
    limits: Option<InlineLimits>,
}

impl Chooser<'_> {
    fn choose(
        &self,
        group: &Group<'_, '_>,
        profile: &Profile,
    ) -> (Vec<InlinedCall>, InlineShares, InlineSummary) {
        let (mut sites, indirect) = sites::of(group, profile);
        if let Some(limits) = &self.limits {
            let site_at = |at: u32| group.original.kernel.link_address(at);
            sites.retain(|&at, site| {
                !site.is_indirect() || limits.allow_guard(site_at(at), site.target)
            });
        }
        let problem = self.problem(group, profile, &sites);
        let InlineSettings { growth, largest, largest_alone, costs } = self.settings;
        let (guard_bytes, call_bytes) = (u64::from(GUARD), CALL);
        let limits = InliningLimits { growth, largest, largest_alone, guard_bytes, call_bytes };
        let within = sites.values().filter(|site| site.callee.is_some());
        let executed: u64 = within.map(|site| site.count).sum();
        let least = (executed as f64 * RARE).max(1.0);
        let unknown = match self.retpolines {
            true => CallCosts::ONE_EACH_BY_RETPOLINES,
            false => CallCosts::ONE_EACH,
        };
        let Inlining { calls: chosen, evaluation } =
            inlining::choose(&problem, costs.unwrap_or(unknown), &limits, least);
        let offsets: Vec<u32> = sites.keys().copied().collect();
        let calls = chosen.iter().map(|call| {
            let at = offsets[call.site as usize];
            let Site { callee, target, .. } = sites[&at];
            let code = match callee.filter(|_| call.inlined) {
                Some(callee) => InPlace::Code(callee),
                None => InPlace::Call(target),
            };
            InlinedCall { context: call.context, at, code }
        });
        let is_indirect = |call: &ChosenCall| problem.sites[call.site as usize].ran.is_some();
        let direct = chosen.iter().zip(&evaluation.counts).filter(|(call, _)| is_indirect(call));
        let summary = InlineSummary {
            calls: chosen.iter().filter(|call| call.inlined).count(),
            executed,
            gone: evaluation.gone.iter().sum::<f64>().round() as u64,
            promoted: chosen.iter().filter(|&call| is_indirect(call)).count(),
            indirect,
            direct: direct.map(|(_, count)| count).sum::<f64>().round() as u64,
            hot_bytes: problem.hot_bytes,
            added_bytes: evaluation.growth as i64,
            saved_cycles: costs.map(|_| evaluation.saved.round() as u64),
        };
        let shares = InlineShares { own: evaluation.own, inlined: evaluation.shares };
        (calls.collect(), shares, summary)
    }

    /// The group's functions and calls, as the choice sees them.
    fn problem(
        &self,
        group: &Group<'_, '_>,
        profile: &Profile,
        sites: &BTreeMap<u32, Site>,
    ) -> InliningProblem {
        let original = &group.original;
        let graph = group.graph(Some(profile));
        let entry = |f: u32| original.kernel.link_address(original.functions[f as usize].at);
        let mut functions = vec![InliningFunction::default(); original.functions.len()];
        let mut called: BTreeMap<u32, u64> = BTreeMap::new();
        for site in sites.values() {
            if let Some(callee) = site.callee {
                *called.entry(callee).or_default() += site.count;
            }
        }
        let tail_calls = tail_calls(group, profile);
        for (&callee, &calls) in &called {
            functions[callee as usize] = function(group, &graph, callee, calls, &tail_calls);
        }
        let call_sites = sites.iter().map(|(&at, site)| {
            let can_inline = |callee| {
                let limits = self.limits.as_ref();
                let stays = self.called.contains(&original.functions[callee as usize].at);
                let allowed = limits.is_none_or(|l| l.allow(entry(site.function), entry(callee)));
                allowed && !stays
            };
            CallSite {
                caller: site.function,
                callee: site.callee,
                count: site.count,
                ran: site.ran,
                frame: match original.caller_frame(at) {
                    Ok(CallerFrame::ByStackPointer) => SiteFrame::StackPointer,
                    Ok(CallerFrame::ByFramePointer) => SiteFrame::FramePointer,
                    Err(_) => SiteFrame::Unknown,
                },
                can_inline: site.callee.is_some_and(can_inline),
            }
        });
        InliningProblem { sites: call_sites.collect(), functions, hot_bytes: hot_bytes(&graph) }
    }
}

/// How often control left each function by a jump to the entry of another one. A jump to a return
/// thunk is a return.
fn tail_calls(group: &Group<'_, '_>, profile: &Profile) -> BTreeMap<u32, u64> {
    let mut left: BTreeMap<u32, u64> = BTreeMap::new();
    let kernel = group.original.kernel;
    for (&(from, to), &(_, count)) in &profile.edges {
        let Some((piece, _)) = group.piece_at(from) else { continue };
        let function = group.original.pieces[piece.index()].function;
        let from = kernel.function_at(from);
        let enters = |to_function: usize| {
            let function = &kernel.functions[to_function];
            let returns = kernel.function_name(function).ends_with(RETURN_THUNK);
            Some(to_function) != from && kernel.link_address(function.at) == to && !returns
        };
        if kernel.function_at(to).is_some_and(enters) {
            *left.entry(function).or_default() += count;
        }
    }
    left
}

/// What is known of a function as a callee. `calls`: how often it was called by the group;
/// `tail_calls`: how often control left functions by a jump to another one.
fn function(
    group: &Group<'_, '_>,
    graph: &Graph,
    callee: u32,
    calls: u64,
    tail_calls: &BTreeMap<u32, u64>,
) -> InliningFunction {
    let original = &group.original;
    let first = graph.functions[callee as usize].start as usize;
    // A profile may know a function by its calls only: all of it may be hot then.
    let counted = graph.counts[first];
    let entered = counted.max(calls);
    let body = original.inlinable(callee).ok().map(|body| {
        let hot = |&&piece: &&u32| {
            let count = graph.counts[piece as usize];
            counted == 0 || count as f64 >= (entered as f64 * HOT).max(1.0)
        };
        let size = |&piece: &u32| u64::from(graph.sizes[piece as usize]);
        let pieces = body.pieces.iter();
        let mut functions: Vec<u32> =
            pieces.map(|&piece| original.pieces[piece as usize].function).collect();
        functions.dedup();
        // A part that the compiler put elsewhere is entered by a jump, and is no other function.
        let entered_parts = functions.iter().filter(|&&function| function != callee);
        let into_parts: u64 = entered_parts
            .map(|&part| graph.counts[graph.functions[part as usize].start as usize])
            .sum();
        let left: u64 = functions.iter().filter_map(|function| tail_calls.get(function)).sum();
        let left = left.saturating_sub(into_parts);
        InlinableCode {
            tail_calls: (left as f64 / entered.max(1) as f64).min(1.0),
            hot_bytes: body.pieces.iter().filter(hot).map(size).sum(),
            functions,
            needs_stack_pointer: !body.fits(CallerFrame::ByFramePointer),
        }
    });
    InliningFunction { entered, body }
}

/// The bytes of all blocks that are hot in their function.
fn hot_bytes(graph: &Graph) -> u64 {
    let hot = |range: &std::ops::Range<u32>| {
        let entered = graph.counts[range.start as usize] as f64;
        let is_hot = move |&block: &usize| graph.counts[block] as f64 >= (entered * HOT).max(1.0);
        let blocks = (range.start as usize..range.end as usize).filter(is_hot);
        blocks.map(|block| u64::from(graph.sizes[block])).sum::<u64>()
    };
    graph.functions.iter().map(hot).sum()
}

mod sites;
#[cfg(test)]
mod tests;
