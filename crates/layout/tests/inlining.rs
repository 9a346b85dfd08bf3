//! The choice of inlined calls: its rules on small examples, and beside the best choice of all.

use kernlane_layout::inlining::{
    CallCosts, CallSite, ChosenCall, Evaluation, InlinableCode, Inlining, InliningFunction,
    InliningLimits, InliningProblem, SiteFrame, choose, evaluate,
};
use kernlane_layout::random::SplitMix64;

const LIMITS: InliningLimits = InliningLimits {
    growth: 0.15,
    largest: u64::MAX,
    largest_alone: u64::MAX,
    guard_bytes: 13,
    call_bytes: 5,
};
/// As on a Zen 4, whose returns are mispredicted.
const ZEN: CallCosts = CallCosts { direct: 32.0, indirect: 32.0, jump: 0.0, guard: 1.0 };

fn function(number: u32, entered: u64, hot_bytes: u64) -> InliningFunction {
    let functions = vec![number];
    let body = InlinableCode { hot_bytes, functions, tail_calls: 0.0, needs_stack_pointer: false };
    InliningFunction { entered, body: Some(body) }
}

fn call(caller: u32, callee: u32, count: u64) -> CallSite {
    let frame = SiteFrame::StackPointer;
    CallSite { caller, callee: Some(callee), count, ran: None, frame, can_inline: true }
}

fn pointer(caller: u32, callee: u32, count: u64, ran: u64) -> CallSite {
    CallSite { ran: Some(ran), ..call(caller, callee, count) }
}

fn problem(functions: &[(u64, u64)], sites: Vec<CallSite>) -> InliningProblem {
    let numbered = (0u32..).zip(functions);
    let functions: Vec<_> =
        numbered.map(|(n, &(entered, hot))| function(n, entered, hot)).collect();
    let hot_bytes = functions.iter().flat_map(|f| &f.body).map(|body| body.hot_bytes).sum();
    InliningProblem { functions, sites, hot_bytes }
}

fn with_growth(problem: &InliningProblem, growth: f64) -> Inlining {
    choose(problem, ZEN, &InliningLimits { growth, ..LIMITS }, 1.0)
}

fn inlined(context: u32, site: u32) -> ChosenCall {
    ChosenCall { context, site, inlined: true }
}

#[test]
fn a_function_that_is_called_from_one_place_costs_nothing() {
    let problem = problem(&[(10, 100), (1000, 5000)], vec![call(0, 1, 1000)]);
    let Inlining { calls, evaluation } = with_growth(&problem, 0.0);
    assert_eq!(calls, [inlined(0, 0)]);
    assert_eq!(evaluation.own, [1.0, 0.0]);
    assert_eq!((evaluation.saved, evaluation.growth), (32_000.0, 0.0));
}

#[test]
fn the_calls_with_the_most_executions_for_each_byte_come_first() {
    // 1 is called often and small, 2 as often and large; both also from function 3.
    let functions = [(10, 600), (1000, 40), (1000, 160), (10, 600)];
    let sites = vec![call(0, 1, 500), call(0, 2, 500), call(3, 1, 500), call(3, 2, 500)];
    let problem = problem(&functions, sites);
    let chosen = |growth| with_growth(&problem, growth).calls;
    assert_eq!(chosen(0.02), []);
    // The first copy costs 40 bytes, and with the second its own copy is cold.
    assert_eq!(chosen(40.0 / 1400.0), [inlined(0, 0), inlined(0, 2)]);
    assert_eq!(chosen(80.0 / 1400.0), [inlined(0, 0), inlined(0, 2)]);
    assert_eq!(chosen(1.0).len(), 4);
}

#[test]
fn a_callee_comes_with_what_is_inlined_in_it() {
    // 1 calls 2 a hundred times. 2 is also called by others.
    let functions = [(10, 500), (10, 50), (2000, 20)];
    let problem = problem(&functions, vec![call(0, 1, 10), call(1, 2, 1000)]);
    let Inlining { calls, evaluation } = with_growth(&problem, 20.0 / 570.0);
    // The call in the loop, then the function with it.
    assert_eq!(calls, [inlined(0, 1), inlined(0, 0), inlined(2, 1)]);
    assert_eq!(evaluation.counts, [0.0, 10.0, 1000.0]);
    assert_eq!((evaluation.own, evaluation.growth), (vec![1.0, 0.0, 0.5], 20.0));
}

#[test]
fn an_indirect_call_is_inlined_or_promoted_where_it_pays() {
    let functions = [(10, 500), (2000, 30)];
    let of = |count, costs: CallCosts, growth| {
        let problem = problem(&functions, vec![pointer(0, 1, count, 1000)]);
        choose(&problem, costs, &InliningLimits { growth, ..LIMITS }, 1.0)
    };
    let inlining = of(900, ZEN, 1.0);
    assert_eq!(inlining.calls, [inlined(0, 0)]);
    assert_eq!(inlining.evaluation.saved, 900.0 * 32.0 - 1000.0);
    assert_eq!(inlining.evaluation.growth, 43.0);
    // Without room for the code, a direct call saves nothing on this machine.
    assert_eq!(of(900, ZEN, 0.04).calls, []);
    let retpolines = CallCosts { indirect: 64.0, ..ZEN };
    let promoted = [ChosenCall { context: 0, site: 0, inlined: false }];
    assert_eq!(of(900, retpolines, 0.04).calls, promoted);
    assert_eq!(of(900, retpolines, 0.03).calls, [], "the guard takes 18 of 530 bytes");
    let large = InliningLimits { largest: 29, largest_alone: 29, growth: 1.0, ..LIMITS };
    let problem = problem(&functions, vec![pointer(0, 1, 900, 1000)]);
    assert_eq!(choose(&problem, retpolines, &large, 1.0).calls, promoted);
    // The comparison costs more than it saves.
    let guard = CallCosts { guard: 30.0, ..ZEN };
    assert_eq!(of(900, guard, 1.0).calls, []);
}

#[test]
fn a_function_that_leaves_by_a_jump_saves_less() {
    // 1 and 2 are called as often; 1 leaves by a jump to a function three times of four.
    let functions = [(10, 900), (1000, 50), (1000, 50)];
    let mut problem = problem(&functions, vec![call(0, 1, 500), call(0, 2, 400)]);
    problem.functions[1].body.as_mut().unwrap().tail_calls = 0.75;
    let Inlining { calls, evaluation } = with_growth(&problem, 0.05);
    assert_eq!((&calls[..], evaluation.saved), (&[inlined(0, 1)][..], 400.0 * 32.0));
    let Evaluation { counts, gone, saved, .. } = with_growth(&problem, 0.1).evaluation;
    assert_eq!((counts, gone), (vec![400.0, 500.0], vec![400.0, 125.0]));
    assert_eq!(saved, 525.0 * 32.0);
    // A jump is gone all the same.
    let limits = InliningLimits { growth: 0.1, ..LIMITS };
    let costs = CallCosts { jump: 2.0, ..ZEN };
    let saved = choose(&problem, costs, &limits, 1.0).evaluation.saved;
    assert_eq!(saved, 525.0 * 32.0 + 375.0 * 2.0);
}

#[test]
fn recursion_ends_and_frames_are_heeded() {
    let functions = [(10, 50), (1000, 50), (1000, 50)];
    let recursive = vec![call(0, 1, 10), call(1, 2, 900), call(2, 1, 900), call(1, 1, 80)];
    let problem = problem(&functions, recursive);
    for ChosenCall { context, site, .. } in with_growth(&problem, 100.0).calls {
        assert!(site != 3, "a function in itself");
        assert!(context < 100);
    }
    let mut framed = problem.clone();
    framed.sites.truncate(2);
    framed.sites[0].frame = SiteFrame::FramePointer;
    framed.functions[2].body.as_mut().unwrap().needs_stack_pointer = true;
    let calls = with_growth(&framed, 100.0).calls;
    // 2 fits into 1's own copy, and not into the code of 1 in 0.
    assert!(calls.iter().all(|call| (call.context == 0) == (call.site < 2)), "{calls:?}");
    framed.sites[1].frame = SiteFrame::Unknown;
    assert_eq!(with_growth(&framed, 100.0).calls, [inlined(0, 0)]);
    framed.sites[0].can_inline = false;
    assert_eq!(with_growth(&framed, 100.0).calls, []);
}

#[test]
fn large_functions_and_rare_calls_stay_called() {
    let functions = [(10, 500), (1000, 100)];
    let problem = problem(&functions, vec![call(0, 1, 500), call(0, 1, 100)]);
    let calls = |largest, least| {
        choose(&problem, ZEN, &InliningLimits { growth: 9.0, largest, ..LIMITS }, least).calls.len()
    };
    assert_eq!((calls(99, 1.0), calls(100, 1.0), calls(100, 101.0)), (0, 2, 1));
}

/// Functions of which each calls only later ones, with counts of walks.
fn random_problem(seed: u64) -> InliningProblem {
    let mut random = SplitMix64::new(seed);
    let functions = 3 + random.below(5) as u32;
    let calls = 3 + random.below(10) as usize;
    let mut made: Vec<(u32, u32, f64, f64)> = Vec::new();
    for _ in 0..calls {
        let caller = random.below(u64::from(functions - 1)) as u32;
        let callee = caller + 1 + random.below(u64::from(functions - caller - 1)) as u32;
        // How often the call runs in each execution of its function.
        let often = [0.05, 0.3, 0.5, 0.9, 1.0, 1.0, 3.0, 12.0][random.below(8) as usize];
        let direct = [1.0, 1.0, 1.0, 0.95, 0.6][random.below(5) as usize];
        made.push((caller, callee, often, direct));
    }
    let entries: Vec<u64> = (0..functions).map(|_| random.below(4) * random.below(500)).collect();
    let mut entered: Vec<f64> = entries.iter().map(|&count| count as f64).collect();
    entered[0] += 1000.0;
    made.sort_by_key(|&(caller, ..)| caller);
    let mut sites = Vec::new();
    for &(caller, callee, often, direct) in &made {
        let ran = (entered[caller as usize] * often).round();
        let count = (ran * direct).round();
        entered[callee as usize] += count;
        sites.push(match direct < 1.0 {
            true => pointer(caller, callee, count as u64, ran as u64),
            false => call(caller, callee, count as u64),
        });
    }
    let sized: Vec<(u64, u64)> = entered
        .iter()
        .map(|&count| (count as u64, 8 + random.below(25) * random.below(12)))
        .collect();
    let mut problem = problem(&sized, sites);
    for body in problem.functions.iter_mut().flat_map(|function| &mut function.body) {
        body.tail_calls = [0.0, 0.0, 0.0, 0.4, 1.0][random.below(5) as usize];
    }
    problem
}

/// All choices within the limits, and the best of them; `None` if they are too many.
fn best(
    problem: &InliningProblem,
    costs: CallCosts,
    limits: &InliningLimits,
) -> Option<Evaluation> {
    let mut search = Search { problem, costs, limits, left: 6_000, best: Evaluation::default() };
    let roots: Vec<(u32, u32)> = (0..problem.sites.len() as u32).map(|site| (0, site)).collect();
    search.below(&mut Vec::new(), roots).then_some(search.best)
}

struct Search<'p> {
    problem: &'p InliningProblem,
    costs: CallCosts,
    limits: &'p InliningLimits,
    left: usize,
    best: Evaluation,
}

impl Search<'_> {
    /// Decides on the calls that wait, each as a context and a site.
    fn below(&mut self, chosen: &mut Vec<ChosenCall>, mut waiting: Vec<(u32, u32)>) -> bool {
        let Some((context, site)) = waiting.pop() else {
            let Some(left) = self.left.checked_sub(1) else { return false };
            self.left = left;
            let found = evaluate(self.problem, chosen, self.costs, self.limits);
            let fits = found.growth <= self.limits.growth * self.problem.hot_bytes as f64;
            if fits && found.saved > self.best.saved {
                self.best = found;
            }
            return true;
        };
        if !self.below(chosen, waiting.clone()) {
            return false;
        }
        for inlined in [true, false] {
            let CallSite { ran, callee, .. } = self.problem.sites[site as usize];
            if !inlined && ran.is_none() {
                continue;
            }
            chosen.push(ChosenCall { context, site, inlined });
            let inside = (0u32..).zip(&self.problem.sites);
            let inside = inside.filter(|(_, inner)| inlined && Some(inner.caller) == callee);
            let inside = inside.map(|(inner, _)| (chosen.len() as u32, inner));
            let waiting = waiting.iter().copied().chain(inside).collect();
            let searched = self.below(chosen, waiting);
            chosen.pop();
            if !searched {
                return false;
            }
        }
        true
    }
}

/// The hottest calls first, without regard to bytes, as PIBE's compiler pass chooses.
fn hottest_first(
    problem: &InliningProblem,
    costs: CallCosts,
    limits: &InliningLimits,
) -> Evaluation {
    let budget = limits.growth * problem.hot_bytes as f64;
    let mut chosen: Vec<ChosenCall> = Vec::new();
    let mut waiting: Vec<(u32, u32)> =
        (0..problem.sites.len() as u32).map(|site| (0, site)).collect();
    let of = |chosen: &[ChosenCall]| evaluate(problem, chosen, costs, limits);
    loop {
        let now = of(&chosen);
        let count = |&(context, site): &(u32, u32)| {
            let CallSite { count, caller, .. } = problem.sites[site as usize];
            let share = match context.checked_sub(1) {
                None => now.own[caller as usize],
                Some(n) => now.shares[n as usize],
            };
            count as f64 * share
        };
        let Some(hottest) =
            (0..waiting.len()).max_by(|&a, &b| count(&waiting[a]).total_cmp(&count(&waiting[b])))
        else {
            return now;
        };
        let (context, site) = waiting.swap_remove(hottest);
        chosen.push(ChosenCall { context, site, inlined: true });
        let with = of(&chosen);
        if with.growth > budget || with.saved < now.saved {
            chosen.pop();
            continue;
        }
        let inside = (0u32..).zip(&problem.sites);
        let inside =
            inside.filter(|(_, inner)| Some(inner.caller) == problem.sites[site as usize].callee);
        waiting.extend(inside.map(|(inner, _)| (chosen.len() as u32, inner)));
    }
}

/// How near the choice comes to the best one over random problems: the mean and the worst part of
/// the cycles that it saves, the mean part that the hottest calls first save, and the number of
/// problems.
fn compared(costs: CallCosts, growth: f64) -> (f64, f64, f64, usize) {
    let limits = InliningLimits { growth, ..LIMITS };
    let (mut sum, mut worst, mut hottest, mut problems) = (0.0, 1.0f64, 0.0, 0);
    for seed in 0..250 {
        let problem = random_problem(seed);
        let Some(best) = best(&problem, costs, &limits) else { continue };
        let Inlining { calls, evaluation } = choose(&problem, costs, &limits, 1.0);
        assert_eq!(evaluation, evaluate(&problem, &calls, costs, &limits), "seed {seed}");
        assert!(evaluation.growth <= growth * problem.hot_bytes as f64, "seed {seed}");
        assert!(evaluation.saved <= best.saved + 1e-6, "seed {seed}: better than the best");
        if best.saved == 0.0 {
            continue;
        }
        let part = evaluation.saved / best.saved;
        (sum, worst, problems) = (sum + part, worst.min(part), problems + 1);
        hottest += hottest_first(&problem, costs, &limits).saved / best.saved;
    }
    (sum / problems as f64, worst, hottest / problems as f64, problems)
}

#[test]
fn the_choice_is_near_the_best_one() {
    let zen = CallCosts { jump: 1.0, ..ZEN };
    let retpolines = CallCosts { indirect: 64.0, ..zen };
    for (costs, growth) in [(zen, 0.05), (zen, 0.15), (zen, 0.5), (retpolines, 0.15)] {
        let (mean, worst, hottest, problems) = compared(costs, growth);
        let indirect = costs.indirect;
        println!(
            "growth {growth}, indirect {indirect}: mean {mean:.3}, worst {worst:.3}, hottest first \
             {hottest:.3}, of {problems}"
        );
        assert!(mean > hottest, "{mean} {hottest}");
        assert!(problems >= 50 && mean >= 0.99 && worst >= 0.4, "{mean} {worst} of {problems}");
    }
}
