//! Which calls of a group are inlined: those whose returns cost most for the bytes that their code
//! takes. Which indirect calls are promoted: those with a frequent target whose code is inlined, or
//! that a direct call saves a retpoline.
//!
//! Input: a group, and a profile of its blocks and calls. Output: the group with the code of hot
//! callees in their callers' copies, and the counts of that code. `emit::module` says what can be
//! inlined and promoted; this module says what should be.

use crate::group::Group;
use crate::inlined_counts::InlineShares;
use crate::memory::{FileMemory, Memory};
use anyhow::Result;
use emit::module::{CallerFrame, GUARD, InPlace, InlinableBody, InlinedCall, Obstacle};
use emit::object::{CallToInline, InlineLimits};
use image::linked::LinkedKernel;
use layout::graph::Graph;
use profile::Profile;
use sites::Site;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

/// How much may be inlined.
#[derive(Clone, Copy, Debug)]
pub struct InlineSettings {
    /// The hot code may grow by this part of its bytes.
    pub growth: f64,
    /// The most hot bytes of a function that is inlined at one of several calls.
    pub largest: u64,
    /// The most hot bytes of a function that is nearly always called from one place.
    pub largest_alone: u64,
}

impl Default for InlineSettings {
    fn default() -> InlineSettings {
        InlineSettings { growth: 0.15, largest: 320, largest_alone: 2048 }
    }
}

/// What was inlined, and what it brings by the profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct InlineSummary {
    /// Calls in the group whose callee's code stands in their place.
    pub calls: usize,
    /// How often calls within the group ran: direct ones, and indirect ones that can be promoted.
    pub executed: u64,
    /// How often those ran that are gone.
    pub gone: u64,
    /// Indirect calls that compare the pointer first, and then run inlined code or call directly.
    pub promoted: usize,
    /// How often the group's indirect calls ran that go through a register.
    pub indirect: u64,
    /// How often the pointer of those that are promoted names the function that is compared.
    pub direct: u64,
    /// Bytes of hot code before.
    pub hot_bytes: u64,
    /// Bytes of hot code that were added.
    pub added_bytes: u64,
}

/// A block is hot in its function when it ran at least this part of the times that the function was
/// called.
const HOT: f64 = 0.02;
/// A function is called from one place when this part of its calls comes from there.
const ALONE: f64 = 0.95;
/// Calls of which there are fewer than this part of all are left alone.
const RARE: f64 = 5e-6;
/// Bytes of a direct call.
const CALL: u32 = 5;

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
        let choice = Chooser::new(&group, profile, settings, &called).choose(retpolines);
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

/// The direct calls that pay most among those of the kernel's hot functions, in the order in which
/// they are inlined into one another, for another emitter than that of live copies. `chosen`: the
/// hot functions; `limits`: what this emitter can inline.
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
    let mut chooser = Chooser::new(&group, profile, settings, &nothing);
    chooser.limits = Some(limits);
    chooser.sites.retain(|_, site| !site.is_indirect());
    let (calls, _, summary) = chooser.choose(false);
    let entry = |callee: u32| kernel.link_address(group.original.functions[callee as usize].at);
    let calls = calls.iter().filter_map(|call| {
        let callee = entry(call.inlined()?);
        Some(CallToInline { context: call.context, site: kernel.link_address(call.at), callee })
    });
    Ok((calls.collect(), summary))
}

/// Every call of a kernel's functions that can be inlined, once each, for tests of emitters.
/// `limits`: as for [`calls`].
///
/// # Errors
/// As [`group`].
pub fn all_calls(kernel: &LinkedKernel<'_>, limits: &InlineLimits) -> Result<Vec<CallToInline>> {
    let all: Vec<usize> = (0..kernel.functions.len()).collect();
    let Group { original, .. } = Group::carrying(kernel, &FileMemory(kernel), &all, &|_| true)?;
    let mut bodies: HashMap<u32, Option<InlinableBody>> = HashMap::new();
    let mut calls = Vec::new();
    for piece in 0..original.pieces.len() {
        for (at, callee) in original.plain_calls(piece) {
            let caller = original.pieces[piece].function;
            let entry =
                |function: u32| kernel.link_address(original.functions[function as usize].at);
            let body = bodies.entry(callee).or_insert_with(|| original.inlinable(callee).ok());
            let frame = original.caller_frame(at).ok();
            let fits = body.as_ref().zip(frame).is_some_and(|(body, frame)| body.fits(frame));
            if fits && callee != caller && limits.allow(entry(caller), entry(callee)) {
                let (site, callee) = (kernel.link_address(at), entry(callee));
                calls.push(CallToInline { context: 0, site, callee });
            }
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

/// A call that may be inlined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// How many returns it saves for each thousand bytes.
    worth: u64,
    /// How often it ran when this was computed.
    count: u64,
    call: CallKey,
}

/// A call in a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CallKey {
    context: u32,
    at: u32,
}

impl CallKey {
    fn of(call: InlinedCall) -> CallKey {
        CallKey { context: call.context, at: call.at }
    }
}

/// A context: the code of an inlined call.
struct InlinedCode {
    call: InlinedCall,
    share: f64,
    /// The function in whose copy it is.
    root: u32,
    /// The functions whose code it has: the callee, and parts of it that the compiler put
    /// elsewhere.
    functions: Vec<u32>,
    /// The caller's frame is found by the frame pointer.
    frame: CallerFrame,
}

/// What is known of a function as a callee.
struct Callee {
    body: Result<InlinableBody, Obstacle>,
    /// How often it was called.
    entered: u64,
    hot_bytes: u64,
}

struct Chooser<'a, 'k, 'd> {
    group: &'a Group<'k, 'd>,
    settings: InlineSettings,
    /// The offsets of the functions that stay called.
    called: &'a BTreeSet<u32>,
    graph: Graph,
    /// By the offset of the call.
    sites: BTreeMap<u32, Site>,
    /// How often indirect calls ran.
    indirect: u64,
    callees: HashMap<u32, Callee>,
    /// What share of its executions each function's own copy has.
    shares: Vec<f64>,
    contexts: Vec<InlinedCode>,
    /// What another emitter than that of live copies can inline.
    limits: Option<InlineLimits>,
}

impl<'a, 'k, 'd> Chooser<'a, 'k, 'd> {
    fn new(
        group: &'a Group<'k, 'd>,
        profile: &Profile,
        settings: InlineSettings,
        called: &'a BTreeSet<u32>,
    ) -> Chooser<'a, 'k, 'd> {
        let graph = group.graph(Some(profile));
        let (sites, indirect) = sites::of(group, profile);
        Chooser {
            group,
            settings,
            called,
            graph,
            sites,
            indirect,
            callees: HashMap::new(),
            shares: vec![1.0; group.original.functions.len()],
            contexts: Vec::new(),
            limits: None,
        }
    }

    /// Takes the best call, again and again, until no more code may be added.
    fn choose(mut self, retpolines: bool) -> (Vec<InlinedCall>, InlineShares, InlineSummary) {
        let hot_bytes = self.hot_bytes();
        let within = self.sites.values().filter(|site| site.callee.is_some());
        let executed: u64 = within.map(|site| site.count).sum();
        let mut summary = InlineSummary { executed, hot_bytes, ..InlineSummary::default() };
        let budget = hot_bytes as f64 * self.settings.growth;
        let least = (executed as f64 * RARE).max(1.0);
        let mut waiting = BinaryHeap::new();
        let all: Vec<u32> = self.sites.keys().copied().collect();
        for at in all {
            self.offer(CallKey { context: 0, at }, &mut waiting);
        }
        let mut added = 0.0;
        while let Some(candidate) = waiting.pop() {
            let site = self.sites[&candidate.call.at];
            let count = self.count(candidate.call);
            if count < least {
                continue;
            }
            if (count as u64) < candidate.count - candidate.count / 20 {
                // Meanwhile a part of the caller's runs is in other copies of it.
                self.offer(candidate.call, &mut waiting);
                continue;
            }
            let Some(number) = site.callee else { continue };
            let callee = &self.callees[&number];
            let share = count / callee.entered.max(1) as f64;
            let is_alone = share >= ALONE * self.shares[number as usize];
            let largest =
                if is_alone { self.settings.largest_alone } else { self.settings.largest };
            let code = if is_alone { 0.0 } else { callee.hot_bytes as f64 };
            let more = if site.is_indirect() { code + f64::from(GUARD) } else { code };
            if callee.hot_bytes > largest || added + more > budget {
                continue;
            }
            added += more;
            self.take(candidate.call, number, share, &mut waiting);
        }
        let promoted = if retpolines { self.promoted(least) } else { Vec::new() };
        added += promoted.len() as f64 * f64::from(GUARD + CALL);
        let inlined = self.contexts.iter().map(|context| (context.call, context.share));
        let (calls, inlined): (Vec<InlinedCall>, _) = inlined.chain(promoted).unzip();
        let executed = |counted: &dyn Fn(&InlinedCall) -> bool| {
            let chosen = calls.iter().filter(|call| counted(call));
            chosen.map(|&call| self.count(CallKey::of(call))).sum::<f64>() as u64
        };
        let is_indirect = |call: &InlinedCall| self.sites[&call.at].is_indirect();
        summary.calls = self.contexts.len();
        summary.gone = executed(&|call| call.inlined().is_some());
        summary.promoted = calls.iter().filter(|call| is_indirect(call)).count();
        summary.indirect = self.indirect;
        summary.direct = executed(&is_indirect);
        summary.added_bytes = added as u64;
        (calls, InlineShares { own: self.shares, inlined }, summary)
    }

    /// Inlines a call, and offers the calls of its code.
    fn take(
        &mut self,
        call: CallKey,
        callee: u32,
        share: f64,
        waiting: &mut BinaryHeap<Candidate>,
    ) {
        let frame = self.frame(call);
        let body = self.callees[&callee].body.clone();
        let (Ok(body), Ok(frame)) = (body, frame) else { return };
        let pieces = &self.group.original.pieces;
        let mut functions: Vec<u32> =
            body.pieces.iter().map(|&piece| pieces[piece as usize].function).collect();
        functions.dedup();
        self.leave_own_copy(callee, &functions, share);
        let root = match call.context.checked_sub(1) {
            None => self.sites[&call.at].function,
            Some(n) => self.contexts[n as usize].root,
        };
        let code = InPlace::Code(callee);
        let call = InlinedCall { context: call.context, at: call.at, code };
        let inside = functions.clone();
        self.contexts.push(InlinedCode { call, share, root, functions, frame });
        let context = self.contexts.len() as u32;
        for function in inside {
            for at in self.sites_of(function) {
                self.offer(CallKey { context, at }, waiting);
            }
        }
    }

    /// The offsets of a function's calls.
    fn sites_of(&self, function: u32) -> Vec<u32> {
        let function = &self.group.original.functions[function as usize];
        self.sites.range(function.at..function.end).map(|(&at, _)| at).collect()
    }

    /// The indirect calls that are not inlined and run at least this often, as direct calls. For
    /// each, the share of its executions that goes there.
    fn promoted(&self, least: f64) -> Vec<(InlinedCall, f64)> {
        let own = (0..self.group.original.functions.len() as u32).map(|function| (0, function));
        let inlined = (1u32..).zip(&self.contexts).flat_map(|(context, inlined)| {
            inlined.functions.iter().map(move |&function| (context, function))
        });
        let taken: BTreeSet<CallKey> =
            self.contexts.iter().map(|context| CallKey::of(context.call)).collect();
        let calls = own.chain(inlined).flat_map(|(context, function)| {
            self.sites_of(function).into_iter().map(move |at| CallKey { context, at })
        });
        let promoted = calls.filter_map(|call| {
            let (site, count) = (self.sites[&call.at], self.count(call));
            let ran = site.ran.filter(|_| count >= least && !taken.contains(&call))?;
            let code = InPlace::Call(site.target);
            Some((InlinedCall { context: call.context, at: call.at, code }, count / ran as f64))
        });
        promoted.collect()
    }

    /// Takes a share of a function's executions from its own copy, and so from the code that was
    /// inlined into that copy. What that code calls is called elsewhere again.
    fn leave_own_copy(&mut self, callee: u32, functions: &[u32], share: f64) {
        let before = self.shares[callee as usize];
        let after = (before - share).max(0.0);
        for &function in functions {
            self.shares[function as usize] = after;
        }
        let part = if before > 0.0 { after / before } else { 1.0 };
        for context in self.contexts.iter_mut().filter(|c| functions.contains(&c.root)) {
            let gone = context.share * (1.0 - part);
            context.share -= gone;
            for &function in &context.functions {
                self.shares[function as usize] += gone;
            }
        }
    }

    /// Adds a call to those that wait, if it can be inlined.
    fn offer(&mut self, call: CallKey, waiting: &mut BinaryHeap<Candidate>) {
        let site = self.sites[&call.at];
        let Some(callee) = site.callee else { return };
        self.learn(callee);
        let Callee { body: Ok(body), hot_bytes, .. } = &self.callees[&callee] else { return };
        let original = &self.group.original;
        let entry = |f: u32| original.kernel.link_address(original.functions[f as usize].at);
        let allowed = |limits: &InlineLimits| limits.allow(entry(site.function), entry(callee));
        if !self.limits.as_ref().is_none_or(allowed) {
            return;
        }
        let fits = self.frame(call).is_ok_and(|frame| body.fits(frame));
        let stays = self.called.contains(&original.functions[callee as usize].at);
        if !fits || stays || self.is_inside(call, callee) {
            return;
        }
        let count = self.count(call) as u64;
        let worth = count.saturating_mul(1000) / (*hot_bytes).max(1);
        waiting.push(Candidate { worth, count, call });
    }

    fn learn(&mut self, callee: u32) {
        if self.callees.contains_key(&callee) {
            return;
        }
        let body = self.group.original.inlinable(callee);
        let first = self.graph.functions[callee as usize].start as usize;
        let counted = self.graph.counts[first];
        // A profile may know a function by its calls only: all of it may be hot then.
        let called = self.sites.values().filter(|site| site.callee == Some(callee));
        let entered = counted.max(called.map(|site| site.count).sum());
        let hot_bytes = body.as_ref().map_or(0, |body| {
            let hot = |&&piece: &&u32| {
                let count = self.graph.counts[piece as usize];
                counted == 0 || count as f64 >= (entered as f64 * HOT).max(1.0)
            };
            let size = |&piece: &u32| u64::from(self.graph.sizes[piece as usize]);
            body.pieces.iter().filter(hot).map(size).sum()
        });
        self.callees.insert(callee, Callee { body, entered, hot_bytes });
    }

    /// How often a call runs in its context.
    fn count(&self, call: CallKey) -> f64 {
        let site = self.sites[&call.at];
        let share = match call.context.checked_sub(1) {
            None => self.shares[site.function as usize],
            Some(n) => self.contexts[n as usize].share,
        };
        site.count as f64 * share
    }

    /// How the unwinder finds the frame at a call.
    fn frame(&self, call: CallKey) -> Result<CallerFrame, Obstacle> {
        let outer = call.context.checked_sub(1).map(|n| self.contexts[n as usize].frame);
        match outer {
            Some(CallerFrame::ByFramePointer) => Ok(CallerFrame::ByFramePointer),
            _ => self.group.original.caller_frame(call.at),
        }
    }

    /// Whether a call stands in code of the function that it calls.
    fn is_inside(&self, mut call: CallKey, callee: u32) -> bool {
        while let Some(n) = call.context.checked_sub(1) {
            let outer = self.contexts[n as usize].call;
            if outer.inlined() == Some(callee) {
                return true;
            }
            call = CallKey::of(outer);
        }
        self.sites[&call.at].function == callee
    }

    /// The bytes of all blocks that are hot in their function.
    fn hot_bytes(&self) -> u64 {
        let hot = |range: &std::ops::Range<u32>| {
            let entered = self.graph.counts[range.start as usize] as f64;
            let is_hot =
                move |&block: &usize| self.graph.counts[block] as f64 >= (entered * HOT).max(1.0);
            let blocks = (range.start as usize..range.end as usize).filter(is_hot);
            blocks.map(|block| u64::from(self.graph.sizes[block])).sum::<u64>()
        };
        self.graph.functions.iter().map(hot).sum()
    }
}

mod sites;
#[cfg(test)]
mod tests;
