//! Takes the call that saves most for each byte, again and again.
//!
//! Input: as [`choose`]. Output: the chosen calls. What is saved and what is added, `model.rs`
//! says.
//!
//! A callee comes with what is inlined in its own copy by then, as a compiler that goes from
//! callees to callers would have it, or without, whichever saves more for each byte. What is lost
//! with the calls that stay behind is subtracted. So no step undoes what an earlier one has saved.
//!
//! Where the budget holds few calls, small ones with the most for each byte may leave no room for
//! one that saves more. So the choice is made again with each of the calls first that save most,
//! and the best choice counts.

use super::model::{Shares, body, functions_of};
use super::{ALONE, CallCosts, ChosenCall, Inlining, InliningLimits, InliningProblem, SiteFrame};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// As many calls are tried as the first one.
const FIRST: usize = 8;
/// A call is computed anew when it saves less than this part of what it did for each byte.
const STALE: f64 = 0.95;

/// Chooses the calls that save most within the limits. Calls that run less often than `least` stay.
pub fn choose(
    problem: &InliningProblem,
    costs: CallCosts,
    limits: &InliningLimits,
    least: f64,
) -> Inlining {
    let chosen = |first: Option<u32>| {
        let mut greedy = Greedy::new(problem, costs, limits, least);
        let first = first.and_then(|site| greedy.computed(greedy.form(0, site)));
        first.iter().for_each(|offer| _ = greedy.take(offer));
        (0..problem.sites.len() as u32).for_each(|site| greedy.offer(0, site));
        while let Some(candidate) = greedy.waiting.pop() {
            greedy.consider(candidate);
        }
        // By a way that does not depend on the steps.
        let mut shares = greedy.shares;
        shares.own.fill(1.0);
        shares.settle(problem);
        Inlining { evaluation: shares.evaluation(problem, costs, limits), calls: shares.calls }
    };
    let mut best = chosen(None);
    for site in Greedy::new(problem, costs, limits, least).most() {
        let other = chosen(Some(site));
        if other.evaluation.saved > best.evaluation.saved {
            best = other;
        }
    }
    best
}

/// A call that waits.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    /// Cycles that it saves for each byte that it adds.
    worth: f64,
    call: ChosenCall,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Candidate) -> std::cmp::Ordering {
        let by_call = other.call.cmp(&self.call);
        self.worth.total_cmp(&other.worth).then(by_call)
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// What a candidate brings now.
struct Offer {
    saved: f64,
    /// The bytes that it adds; negative if own copies become cold by more.
    growth: f64,
    /// The calls that are chosen with it: itself, and what is inlined in the callee's own copy.
    /// Contexts are those in this list, from 1.
    calls: Vec<ChosenCall>,
}

impl Offer {
    fn worth(&self) -> f64 {
        self.saved / self.growth.max(1.0)
    }
}

struct Greedy<'p> {
    problem: &'p InliningProblem,
    costs: CallCosts,
    limits: &'p InliningLimits,
    least: f64,
    /// The bytes that may be added.
    budget: f64,
    shares: Shares,
    growth: f64,
    /// The calls of each function.
    sites: Vec<Vec<u32>>,
    /// The calls that are chosen, by context and site.
    chosen: BTreeSet<(u32, u32)>,
    waiting: BinaryHeap<Candidate>,
}

impl<'p> Greedy<'p> {
    fn new(
        problem: &'p InliningProblem,
        costs: CallCosts,
        limits: &'p InliningLimits,
        least: f64,
    ) -> Greedy<'p> {
        let mut sites = vec![Vec::new(); problem.functions.len()];
        for (number, site) in (0u32..).zip(&problem.sites) {
            sites[site.caller as usize].push(number);
        }
        Greedy {
            problem,
            costs,
            limits,
            least,
            budget: problem.hot_bytes as f64 * limits.growth,
            shares: Shares::new(problem),
            growth: 0.0,
            sites,
            chosen: BTreeSet::new(),
            waiting: BinaryHeap::new(),
        }
    }

    /// The calls that save most of all for which there is room, the best first.
    fn most(&self) -> Vec<u32> {
        let offers = (0..self.problem.sites.len() as u32)
            .filter_map(|site| Some((self.computed(self.form(0, site))?, site)));
        let mut offers: Vec<(f64, u32)> = offers
            .filter(|(offer, _)| self.growth + offer.growth <= self.budget)
            .map(|(offer, site)| (offer.saved, site))
            .collect();
        offers.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        offers.into_iter().take(FIRST).map(|(_, site)| site).collect()
    }

    /// A call as it would be chosen: inlined if that can be, else promoted.
    fn form(&self, context: u32, site: u32) -> ChosenCall {
        ChosenCall { context, site, inlined: self.can_inline(context, site) }
    }

    /// Adds a call to those that wait: to be inlined if that can be, else to be promoted.
    fn offer(&mut self, context: u32, site: u32) {
        self.push(self.form(context, site));
    }

    /// Adds a call to those that wait, in this form, if it saves anything, or else promoted.
    fn push(&mut self, call: ChosenCall) {
        match self.computed(call) {
            Some(offer) => self.waiting.push(Candidate { worth: offer.worth(), call }),
            None if call.inlined => self.push(ChosenCall { inlined: false, ..call }),
            None => {}
        }
    }

    fn consider(&mut self, candidate: Candidate) {
        let call = candidate.call;
        if self.chosen.contains(&(call.context, call.site)) {
            return;
        }
        match self.computed(call) {
            // Meanwhile a part of the caller's runs is in other copies of it.
            Some(offer) if offer.worth() < candidate.worth * STALE => {
                self.waiting.push(Candidate { worth: offer.worth(), call });
            }
            Some(offer) if self.take(&offer) => {}
            _ if call.inlined => self.push(ChosenCall { inlined: false, ..call }),
            _ => {}
        }
    }

    /// What a call brings now; `None` if it saves nothing or is refused.
    fn computed(&self, call: ChosenCall) -> Option<Offer> {
        let ChosenCall { context, site, inlined } = call;
        let (problem, shares) = (self.problem, &self.shares);
        let count = shares.count(problem, context, site);
        let is_possible = inlined || problem.sites[site as usize].ran.is_some();
        if !is_possible || count < self.least {
            return None;
        }
        let saved = shares.saving(problem, self.costs, call);
        let growth = Shares::bytes(problem, self.limits, call) as f64;
        let alone = Offer { saved, growth, calls: vec![call] };
        let Some(callee) = problem.sites[site as usize].callee.filter(|_| inlined) else {
            return Some(alone).filter(|offer| offer.saved > 0.0);
        };
        let share = shares.share(problem, context, site);
        let own = shares.own[callee as usize];
        let body = problem.functions[callee as usize].body.as_ref()?;
        let largest = match share >= ALONE * own {
            true => self.limits.largest_alone,
            false => self.limits.largest,
        };
        if body.hot_bytes > largest {
            return None;
        }
        let inside = self.inside(call);
        let becomes_cold = !shares.is_cold(callee) && own - share <= 1.0 - ALONE;
        let cold = if becomes_cold { (body.hot_bytes + inside.all_bytes) as f64 } else { 0.0 };
        // What stays behind is called again.
        let part = share / own.max(f64::MIN_POSITIVE);
        let whole = Offer {
            saved: saved - inside.lost * part,
            growth: growth + inside.bytes as f64 - cold,
            calls: alone.calls.iter().copied().chain(inside.calls).collect(),
        };
        let bare = Offer { saved: saved - inside.all_saved * part, growth: growth - cold, ..alone };
        let fits = |offer: &Offer| self.growth + offer.growth <= self.budget;
        let better = match bare.worth() > whole.worth() || !fits(&whole) && fits(&bare) {
            true => bare,
            false => whole,
        };
        (better.saved > 0.0).then_some(better)
    }

    /// What is inlined in the own copy of a call's callee, and what of it can come along.
    fn inside(&self, call: ChosenCall) -> Inside {
        let (problem, shares) = (self.problem, &self.shares);
        let functions = functions_of(problem, call.site);
        let mut found = Inside::default();
        // By context of the own copy: that in the new code, in which the callee's is 1.
        let mut copies = BTreeMap::from([(0, 1)]);
        let (path, frame) = (self.path(call), self.frame(call));
        for (n, &own) in shares.calls.iter().enumerate() {
            if !functions.contains(&shares.roots[n]) {
                continue;
            }
            let bytes = Shares::bytes(problem, self.limits, own);
            let saved = shares.saving(problem, self.costs, own);
            found.all_bytes += bytes;
            found.all_saved += saved;
            let fits = || {
                let site = problem.sites[own.site as usize];
                let is_recursive =
                    own.inlined && site.callee.is_some_and(|callee| path.contains(&callee));
                // In its own copy, the code stands where it fits.
                let fits = frame != SiteFrame::FramePointer || self.fits(frame, own.site);
                !is_recursive && (!own.inlined || fits)
            };
            match copies.get(&own.context).copied().filter(|_| fits()) {
                Some(context) => {
                    found.calls.push(ChosenCall { context, ..own });
                    copies.insert(n as u32 + 1, found.calls.len() as u32 + 1);
                    found.bytes += bytes;
                }
                None => found.lost += saved,
            }
        }
        found
    }

    /// Takes what is offered, unless there is no room for it, and offers the calls of its code.
    fn take(&mut self, offer: &Offer) -> bool {
        if self.growth + offer.growth > self.budget {
            return false;
        }
        let first = self.shares.calls.len() as u32;
        let mut shares = self.shares.clone();
        for (n, &call) in offer.calls.iter().enumerate() {
            // The first stands where it was offered, the others in its code.
            let context = if n == 0 { call.context } else { first + call.context };
            shares.push(self.problem, ChosenCall { context, ..call });
        }
        shares.settle(self.problem);
        let growth = shares.growth(self.problem, self.limits);
        // Own copies whose executions come back may be hot again.
        if growth > self.budget {
            return false;
        }
        (self.shares, self.growth) = (shares, growth);
        for number in first as usize..self.shares.calls.len() {
            let ChosenCall { context, site, inlined } = self.shares.calls[number];
            self.chosen.insert((context, site));
            let functions = if inlined { functions_of(self.problem, site) } else { &[] };
            for &function in functions {
                for at in 0..self.sites[function as usize].len() {
                    self.offer(number as u32 + 1, self.sites[function as usize][at]);
                }
            }
        }
        true
    }

    /// Whether the callee's code can stand in the place of a call.
    fn can_inline(&self, context: u32, site: u32) -> bool {
        let at = self.problem.sites[site as usize];
        let call = ChosenCall { context, site, inlined: true };
        let has_code = !functions_of(self.problem, site).is_empty();
        let is_recursive = || at.callee.is_some_and(|callee| self.path(call).contains(&callee));
        at.can_inline && has_code && !is_recursive() && self.fits(self.frame(call), site)
    }

    /// The functions in whose code a call stands, from the innermost on.
    fn path(&self, mut call: ChosenCall) -> Vec<u32> {
        let mut path = Vec::new();
        while let Some(n) = call.context.checked_sub(1) {
            call = self.shares.calls[n as usize];
            path.extend(self.problem.sites[call.site as usize].callee);
        }
        path.push(self.problem.sites[call.site as usize].caller);
        path
    }

    /// How the frame is found at a call in its context: by the frame pointer, if any of the calls
    /// around it is so.
    fn frame(&self, mut call: ChosenCall) -> SiteFrame {
        let own = self.problem.sites[call.site as usize].frame;
        while let Some(n) = call.context.checked_sub(1) {
            call = self.shares.calls[n as usize];
            if self.problem.sites[call.site as usize].frame == SiteFrame::FramePointer {
                return SiteFrame::FramePointer;
            }
        }
        own
    }

    /// Whether the callee's code can stand where the frame is found so.
    fn fits(&self, frame: SiteFrame, site: u32) -> bool {
        let body = || body(self.problem, site);
        match frame {
            SiteFrame::StackPointer => true,
            SiteFrame::FramePointer => body().is_some_and(|body| !body.needs_stack_pointer),
            SiteFrame::Unknown => false,
        }
    }
}

/// What is inlined in the own copy of a callee.
#[derive(Default)]
struct Inside {
    /// What can come along. Contexts count from the callee's code, which is 1.
    calls: Vec<ChosenCall>,
    /// Bytes of what comes along.
    bytes: u64,
    /// Bytes of all.
    all_bytes: u64,
    /// The cycles that all of it saves.
    all_saved: f64,
    /// The cycles that the part saves that cannot come along.
    lost: f64,
}
