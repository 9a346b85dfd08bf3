//! What the predictors make of the thunks through which mitigations lead returns and indirect
//! branches: Linux 6.12, arch/x86/lib/retpoline.S. `docs/explanation/thunks.md` has the sources.

use super::super::branch_unit::{BranchOutcome, BranchUnit};
use super::super::description::{PredictionDescription, TargetLevel};
use super::super::tagged::TaggedTable;
use super::core;
use crate::Replacement;
use crate::branches::{Branch, BranchKind, CodeAddr};
use crate::geometry::CacheGeometry;
use BranchKind::{Call, IndirectCall, IndirectJump, Jump, Return};

/// Kind, address and target. A direct call or jump has 5 bytes, an indirect call 3, others 2.
type Step = (BranchKind, u64, u64);

const fn bytes(kind: BranchKind) -> u64 {
    match kind {
        Call | Jump => 5,
        IndirectCall => 3,
        _ => 2,
    }
}

/// Behind a call at this address.
const fn behind(call: u64) -> u64 {
    call + bytes(Call)
}

/// Two functions and their callers.
const CALLERS: [u64; 2] = [0x1000, 0x1040];
const FUNCTIONS: [u64; 2] = [0x2000, 0x2100];
/// The last instruction of a function.
const END: u64 = 0x10;
const THUNK: u64 = 0x3020;
const INNER: u64 = 0x3040;

/// As `zen4`'s: two targets in a buffer's entry, 32 calls, a path of sources.
fn by_start() -> PredictionDescription {
    let level = |entries, bubble| TargetLevel {
        by_start: true,
        returns_with_calls: bubble > 0,
        ..level(entries, bubble)
    };
    PredictionDescription {
        targets: vec![level(16, 0), level(64, 2)],
        path_of_sources: true,
        ..by_branch()
    }
}

/// As `golden-cove`'s: a target in an entry.
fn by_branch() -> PredictionDescription {
    let table = |history| TaggedTable { entries: 256, history, outcomes: 0 };
    PredictionDescription {
        targets: vec![level(16, 0), level(64, 2)],
        indirect: vec![table(4), table(12)],
        return_stack: 32,
        ..core().prediction
    }
}

fn level(entries: u64, bubble: u32) -> TargetLevel {
    TargetLevel {
        geometry: CacheGeometry::tlb(entries, 4, Replacement::Lru).unwrap(),
        bubble,
        by_start: false,
        random: false,
        returns_with_calls: false,
    }
}

/// The mispredicted branches of a round, when the predictors know it: by their numbers.
fn mispredicted(round: &[Step]) -> Vec<usize> {
    let [one, other] = [by_start(), by_branch()].map(|description| {
        let mut unit = BranchUnit::new(&description);
        let mut pass = |&(kind, at, target): &Step| {
            let (end, target) = (CodeAddr(at + bytes(kind)), Some(CodeAddr(target)));
            let branch = Branch { kind, at: CodeAddr(at), end, target, taken: true };
            matches!(unit.branch(&branch), BranchOutcome::Mispredicted(_))
        };
        let mut last: Vec<bool> = Vec::new();
        for _ in 0..200 {
            last = round.iter().map(&mut pass).collect();
        }
        (0..round.len()).filter(|&step| last[step]).collect::<Vec<_>>()
    });
    assert_eq!(one, other, "the two kinds of target buffers differ");
    one
}

/// Both calls, with the steps between each call and its return.
fn both(steps: impl Fn(u64, u64) -> Vec<Step>) -> Vec<Step> {
    let calls = CALLERS.into_iter().zip(FUNCTIONS);
    calls.flat_map(|(caller, function)| steps(caller, function)).collect()
}

#[test]
fn plain_returns_and_indirect_calls_are_predicted() {
    let plain = both(|caller, function| {
        vec![(Call, caller, function), (Return, function + END, behind(caller))]
    });
    assert_eq!(mispredicted(&plain), []);
    let back = |caller| caller + bytes(IndirectCall);
    let indirect = both(|caller, function| {
        vec![(IndirectCall, caller, function), (Return, function + END, back(caller))]
    });
    assert_eq!(mispredicted(&indirect), []);
}

/// `srso_alias_return_thunk` calls `srso_alias_safe_ret`, which drops that call's address and
/// returns to the caller of the function.
#[test]
fn a_safe_return_is_mispredicted_once() {
    let safe = both(|caller, function| {
        vec![
            (Call, caller, function),
            (Jump, function + END, THUNK),
            (Call, THUNK, INNER),
            (Return, INNER + 5, behind(caller)),
        ]
    });
    assert_eq!(mispredicted(&safe), [3, 7]);
}

/// `retbleed_return_thunk` is a return behind a jump.
#[test]
fn an_untrained_return_and_an_aligned_return_are_predicted() {
    let aligned = both(|caller, function| {
        vec![
            (Call, caller, function),
            (Jump, function + END, THUNK),
            (Return, THUNK, behind(caller)),
        ]
    });
    assert_eq!(mispredicted(&aligned), []);
}

/// `__x86_indirect_thunk_rax` calls its second half, which puts the target in place of that call's
/// address, and returns there. The function's own return is predicted.
#[test]
fn a_retpoline_is_mispredicted_once() {
    let retpolines = both(|caller, function| {
        vec![
            (Call, caller, THUNK),
            (Call, THUNK, INNER),
            (Return, INNER + 4, function),
            (Return, function + END, behind(caller)),
        ]
    });
    assert_eq!(mispredicted(&retpolines), [2, 6]);
}

/// `__x86_indirect_its_thunk_rax` jumps. Two callers share it, as eBPF programs do, or each has
/// its own.
#[test]
fn an_aligned_indirect_jump_is_predicted_by_its_path() {
    for apart in [0, 64] {
        let aligned = both(|caller, function| {
            let thunk = THUNK + if caller == CALLERS[0] { 0 } else { apart };
            vec![
                (Call, caller, thunk),
                (IndirectJump, thunk, function),
                (Return, function + END, behind(caller)),
            ]
        });
        assert_eq!(mispredicted(&aligned), [], "{apart}");
    }
}

/// `call_depth_return_thunk` returns plainly. After 13 returns without a call it makes 16 calls
/// that nothing returns from; each return is then mispredicted until one of a later call comes.
#[test]
fn call_depth_tracking_costs_returns_only_when_it_fills_the_stack() {
    let deep = |deep: u64, filled_after: u64| {
        let calls = (0..deep).map(|n| (Call, 0x1000 + 0x40 * n, 0x1040 + 0x40 * n));
        let mut round: Vec<Step> = calls.collect();
        for n in (0..deep).rev() {
            if deep - 1 - n == filled_after {
                round.extend((0..16).map(|n| (Call, 0x8000 + 6 * n, 0x8006 + 6 * n)));
            }
            round.push((Jump, 0x1040 + 0x40 * n + 0x20, THUNK));
            round.push((Return, THUNK, behind(0x1000 + 0x40 * n)));
        }
        // Where the walk begins again.
        round.push((Jump, 0x1020, 0x0fe0));
        mispredicted(&round).len()
    };
    assert_eq!(deep(12, 12), 0);
    assert_eq!(deep(24, 12), 12);
}
