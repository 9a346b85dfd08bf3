//! What a choice of inlined calls saves, and by how much hot code grows.
//!
//! Input: a problem, and chosen calls. Output: what share of a function's executions each copy of
//! its code has, the cycles that are saved, and the bytes that are added. This module chooses
//! nothing.
//!
//! A profile says how often a function ran, and not for whom. So the model takes each execution of
//! a function for an average one: a copy that has half of the executions makes half of each of the
//! function's calls.

use super::{ALONE, CallCosts, ChosenCall, InlinableCode, InliningLimits, InliningProblem};

/// What the model says of a choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Per function: the share of its executions that its own copy has.
    pub own: Vec<f64>,
    /// Per chosen call: the share of the callee's executions that its code has; of a call that is
    /// only promoted, the share of the call's executions that go straight to the callee.
    pub shares: Vec<f64>,
    /// How often each chosen call goes to the callee.
    pub counts: Vec<f64>,
    /// How many calls are gone for each chosen one: fewer than `counts` when the callee leaves by
    /// jumps to functions, which become calls.
    pub gone: Vec<f64>,
    /// The cycles that are saved.
    pub saved: f64,
    /// The bytes of hot code that are added; negative when own copies became cold.
    pub growth: f64,
}

/// The most rounds until the shares are settled. A round settles the functions that are one call
/// further from those that nobody inlines; only recursion needs more.
const ROUNDS: usize = 64;
/// Shares are settled when none changes by more.
const SETTLED: f64 = 1e-9;

/// What a choice saves and adds.
pub fn evaluate(
    problem: &InliningProblem,
    calls: &[ChosenCall],
    costs: CallCosts,
    limits: &InliningLimits,
) -> Evaluation {
    let mut shares = Shares::new(problem);
    for &call in calls {
        shares.push(problem, call);
    }
    shares.settle(problem);
    shares.evaluation(problem, costs, limits)
}

/// Where the executions of functions are, while calls are chosen.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    pub calls: Vec<ChosenCall>,
    /// Per function: the share of its own copy.
    pub own: Vec<f64>,
    /// Per chosen call: the share of the callee's executions.
    pub inlined: Vec<f64>,
    /// Per chosen call: the function in whose copy it is.
    pub roots: Vec<u32>,
}

impl Shares {
    /// Nothing is inlined.
    pub(super) fn new(problem: &InliningProblem) -> Shares {
        let own = vec![1.0; problem.functions.len()];
        Shares { calls: Vec::new(), own, inlined: Vec::new(), roots: Vec::new() }
    }

    /// Adds a call. [`Shares::settle`] must follow.
    pub(super) fn push(&mut self, problem: &InliningProblem, call: ChosenCall) {
        self.roots.push(self.root(problem, call));
        self.calls.push(call);
        self.inlined.push(0.0);
    }

    /// The function in whose copy a call stands.
    fn root(&self, problem: &InliningProblem, call: ChosenCall) -> u32 {
        match call.context.checked_sub(1) {
            None => problem.sites[call.site as usize].caller,
            Some(n) => self.roots[n as usize],
        }
    }

    /// The share of the caller's executions that a context has.
    fn of_context(&self, problem: &InliningProblem, context: u32, site: u32) -> f64 {
        match context.checked_sub(1) {
            None => self.own[problem.sites[site as usize].caller as usize],
            Some(n) => self.inlined[n as usize],
        }
    }

    /// How often a call goes to the callee in a context.
    pub(super) fn count(&self, problem: &InliningProblem, context: u32, site: u32) -> f64 {
        problem.sites[site as usize].count as f64 * self.of_context(problem, context, site)
    }

    /// How often an indirect call runs in a context.
    pub(super) fn ran(&self, problem: &InliningProblem, context: u32, site: u32) -> f64 {
        let ran = problem.sites[site as usize].ran.unwrap_or(0);
        ran as f64 * self.of_context(problem, context, site)
    }

    /// The share of the callee's executions that a call has in a context.
    pub(super) fn share(&self, problem: &InliningProblem, context: u32, site: u32) -> f64 {
        let callee = problem.sites[site as usize].callee;
        let entered = callee.map_or(0, |callee| problem.functions[callee as usize].entered);
        (self.count(problem, context, site) / entered.max(1) as f64).min(1.0)
    }

    /// Computes all shares anew, until they are settled.
    pub(super) fn settle(&mut self, problem: &InliningProblem) {
        let mut gone = vec![0.0; self.own.len()];
        for _ in 0..ROUNDS {
            gone.fill(0.0);
            for n in 0..self.calls.len() {
                let ChosenCall { context, site, inlined } = self.calls[n];
                if !inlined {
                    continue;
                }
                self.inlined[n] = self.share(problem, context, site);
                for &function in functions_of(problem, site) {
                    gone[function as usize] += self.inlined[n];
                }
            }
            let mut changed = 0.0f64;
            for (own, gone) in self.own.iter_mut().zip(&gone) {
                let now = (1.0 - gone).max(0.0);
                changed = changed.max((*own - now).abs());
                *own = now;
            }
            if changed <= SETTLED {
                break;
            }
        }
    }

    /// Whether a function's own copy has so few of the executions that it is cold.
    pub(super) fn is_cold(&self, function: u32) -> bool {
        self.own[function as usize] <= 1.0 - ALONE
    }

    /// The bytes of hot code that a chosen call adds, where it runs.
    pub(super) fn bytes(
        problem: &InliningProblem,
        limits: &InliningLimits,
        call: ChosenCall,
    ) -> u64 {
        let site = problem.sites[call.site as usize];
        let guard = if site.ran.is_some() { limits.guard_bytes } else { 0 };
        guard + if call.inlined { hot_bytes(problem, call.site) } else { limits.call_bytes }
    }

    /// The bytes of hot code that all chosen calls add.
    pub(super) fn growth(&self, problem: &InliningProblem, limits: &InliningLimits) -> f64 {
        let mut has_copies = vec![false; self.own.len()];
        let mut growth = 0i64;
        for (n, &call) in self.calls.iter().enumerate() {
            if call.inlined {
                functions_of(problem, call.site)
                    .iter()
                    .for_each(|&f| has_copies[f as usize] = true);
            }
            if !self.is_cold(self.roots[n]) {
                growth += Shares::bytes(problem, limits, call) as i64;
            }
        }
        for (function, _) in (0u32..).zip(&has_copies).filter(|&(_, &copied)| copied) {
            let body = problem.functions[function as usize].body.as_ref();
            if let Some(body) = body.filter(|_| self.is_cold(function)) {
                growth -= body.hot_bytes as i64;
            }
        }
        growth as f64
    }

    /// The cycles that a call saves in a context when it is chosen so. In a cold copy it saves
    /// nothing, as its code takes no hot bytes there.
    pub(super) fn saving(
        &self,
        problem: &InliningProblem,
        costs: CallCosts,
        call: ChosenCall,
    ) -> f64 {
        let ChosenCall { context, site, inlined } = call;
        if self.is_cold(self.root(problem, call)) {
            return 0.0;
        }
        let before = match problem.sites[site as usize].ran {
            None => costs.direct,
            Some(_) => costs.indirect,
        };
        let after = match inlined {
            true => (costs.direct - costs.jump) * tail_calls(problem, site),
            false => costs.direct,
        };
        self.count(problem, context, site) * (before - after)
            - self.ran(problem, context, site) * costs.guard
    }

    pub(super) fn evaluation(
        &self,
        problem: &InliningProblem,
        costs: CallCosts,
        limits: &InliningLimits,
    ) -> Evaluation {
        let count = |c: &ChosenCall| self.count(problem, c.context, c.site);
        let gone = |c: &ChosenCall| match c.inlined {
            true => count(c) * (1.0 - tail_calls(problem, c.site)),
            false => 0.0,
        };
        let shares = self.calls.iter().zip(&self.inlined).map(|(call, &share)| {
            let ran = problem.sites[call.site as usize].ran.unwrap_or(0).max(1);
            let count = self.count(problem, call.context, call.site);
            if call.inlined { share } else { count / ran as f64 }
        });
        Evaluation {
            shares: shares.collect(),
            counts: self.calls.iter().map(count).collect(),
            gone: self.calls.iter().map(gone).collect(),
            saved: self.calls.iter().map(|&call| self.saving(problem, costs, call)).sum(),
            growth: self.growth(problem, limits),
            own: self.own.clone(),
        }
    }
}

/// The functions whose code stands in the place of a call.
pub(super) fn functions_of(problem: &InliningProblem, site: u32) -> &[u32] {
    body(problem, site).map_or(&[], |body| &body.functions)
}

/// The hot bytes of the code that would stand in the place of a call.
fn hot_bytes(problem: &InliningProblem, site: u32) -> u64 {
    body(problem, site).map_or(0, |body| body.hot_bytes)
}

/// The share of the callee's executions that leave it by a jump to a function.
fn tail_calls(problem: &InliningProblem, site: u32) -> f64 {
    body(problem, site).map_or(0.0, |body| body.tail_calls)
}

/// The code that would stand in the place of a call.
pub(super) fn body(problem: &InliningProblem, site: u32) -> Option<&InlinableCode> {
    let callee = problem.sites[site as usize].callee?;
    problem.functions[callee as usize].body.as_ref()
}
