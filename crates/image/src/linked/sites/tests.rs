//! Tests of `sites`: single instructions, and what each patch makes of them.

use super::BranchForm::{
    Call, Conditional, IndirectCall, IndirectJump, InterruptReturn, Jump, Next, Return,
};
use super::BranchTarget::{AnyFunction, At};
use super::*;
use crate::linked::tables::{AlternativeEntry, JumpEntry, StaticCallEntry};

const BASE: u64 = 0xffff_ffff_8100_0000;
/// Where `.altinstr_replacement` lies.
const REPLACEMENT: u64 = BASE + 0x1000;
const THUNK: u64 = BASE + 0x100;

fn code(bytes: &[u8], replacements: &[u8], tables: &LinkedTables) -> PatchableCode {
    let sections = vec![(BASE, bytes.to_vec()), (REPLACEMENT, replacements.to_vec())];
    PatchableCode::new(sections, PatchSites::of(tables)).with_thunks(&[THUNK])
}

fn alternative(at: u64, len: u8, replacement_len: u8, flags: u32) -> AlternativeEntry {
    AlternativeEntry { site: BASE + at, replacement: REPLACEMENT, flags, len, replacement_len }
}

fn at(offset: u64) -> BranchTarget {
    At(BASE + offset)
}

#[test]
fn code_without_sites_is_what_the_file_has() {
    // +0 call +0x100; +5 je +7; +7 ret; +8 iretq; +a call *%rax; +c jmp *%rax; +e nop
    let bytes = [0xe8, 0xfb, 0, 0, 0, 0x74, 0, 0xc3, 0x48, 0xcf, 0xff, 0xd0, 0xff, 0xe0, 0x90];
    let code = code(&bytes, &[], &LinkedTables::default());
    let forms = [
        (0, vec![Call(At(THUNK))]),
        (5, vec![Conditional(at(7))]),
        (7, vec![Return]),
        (8, vec![InterruptReturn]),
        (0xa, vec![IndirectCall]),
        (0xc, vec![IndirectJump]),
        (0xe, vec![Next]),
        (0xf, vec![]),
    ];
    for (offset, expected) in forms {
        assert_eq!(code.forms(BASE + offset), expected, "+{offset:#x}");
    }
    assert!(code.contains(BASE) && !code.contains(BASE + 0xf));
    assert_eq!(code.last_instruction(BASE, BASE + 7), BASE + 5);
    assert!(!code.may_run_on(BASE, BASE + 5) && code.may_run_on(BASE + 5, BASE + 7));
    assert!(!code.may_return_to(BASE + 5), "the file's own calls are the caller's to know");
}

#[test]
fn a_return_through_a_thunk_becomes_a_return_or_goes_to_another_thunk() {
    let tables = LinkedTables { returns: vec![BASE], ..LinkedTables::default() };
    let code = code(&[0xe9, 0xfb, 0x0f, 0, 0], &[], &tables);
    assert_eq!(code.forms(BASE), [Jump(At(REPLACEMENT)), Return, Jump(At(THUNK))]);
}

/// ```text
/// +0 cs call thunk   +6 jmp thunk   +b jne thunk
/// ```
#[test]
fn retpolines_become_indirect_branches_or_go_to_other_thunks() {
    let bytes =
        [0x2e, 0xe8, 0xfa, 0x0f, 0, 0, 0xe9, 0xf5, 0x0f, 0, 0, 0x0f, 0x85, 0xef, 0x0f, 0, 0];
    let retpolines = vec![BASE, BASE + 6, BASE + 0xb];
    let code = code(&bytes, &[], &LinkedTables { retpolines, ..LinkedTables::default() });
    let thunk = At(REPLACEMENT);
    assert_eq!(code.forms(BASE), [Call(thunk), IndirectCall, Call(At(THUNK))]);
    assert!(code.forms(BASE + 3).contains(&IndirectCall), "behind lfence");
    assert_eq!(code.forms(BASE + 6), [Jump(thunk), IndirectJump, Jump(At(THUNK))]);
    assert!(code.forms(BASE + 9).contains(&IndirectJump), "behind lfence");
    let expected = [Conditional(thunk), Conditional(at(0x11)), Conditional(At(THUNK))];
    assert_eq!(code.forms(BASE + 0xb), expected);
    assert!(code.forms(BASE + 0xd).contains(&IndirectJump), "behind the short branch");
    assert!(code.forms(BASE + 0x10).contains(&IndirectJump), "behind both");
    // The shorter call returns in front of the no-ops that fill the site.
    let returns = (1..0x12).filter(|&offset| code.may_return_to(BASE + offset));
    assert_eq!(returns.collect::<Vec<_>>(), [2, 3, 5, 6]);
}

#[test]
fn static_calls_and_keys_and_tracers_are_switched() {
    // +0 call; +5 jmp; +a je; +10 nop; +15 call
    let mut bytes =
        vec![0xe8, 0xfb, 0x0f, 0, 0, 0xe9, 0xf6, 0x0f, 0, 0, 0x0f, 0x84, 0xf0, 0x0f, 0, 0];
    bytes.extend([0x0f, 0x1f, 0x44, 0, 0, 0xe8, 0xe6, 0x0f, 0, 0]);
    let call = |at: u64| StaticCallEntry { site: BASE + at, key: 0 };
    let tables = LinkedTables {
        static_calls: vec![call(0), call(5), call(0xa)],
        jumps: vec![JumpEntry { site: BASE + 0x10, target: BASE + 0x40, key: 0 }],
        tracer_sites: vec![BASE + 0x15],
        ..LinkedTables::default()
    };
    let code = code(&bytes, &[], &tables);
    let trampoline = At(REPLACEMENT);
    assert_eq!(code.forms(BASE), [Call(trampoline), Next, Call(AnyFunction)]);
    let tail = [Jump(trampoline), Jump(AnyFunction), Return, Jump(At(THUNK))];
    assert_eq!(code.forms(BASE + 5), tail);
    assert_eq!(code.forms(BASE + 0xa), [Conditional(trampoline), Conditional(AnyFunction)]);
    assert_eq!(code.forms(BASE + 0x10), [Next, Next, Jump(at(0x40))]);
    assert_eq!(code.forms(BASE + 0x15), [Call(trampoline), Next, Call(AnyFunction)]);
    let ends = [(0, 5, true), (5, 0xa, false), (0xa, 0x10, true), (0x15, 0x1a, true)];
    for (from, end, runs_on) in ends {
        assert_eq!(code.may_run_on(BASE + from, BASE + end), runs_on, "+{from:#x}");
    }
}

/// The replacement: `+0 jmp +3` (to its own end), `+2 nop`, `+3 call` (of the site's +0x80).
#[test]
fn an_alternative_may_have_the_branches_of_its_replacement() {
    let distance = (BASE + 0x80).wrapping_sub(REPLACEMENT + 8) as u32;
    let replacement = [&[0xeb, 1, 0x90, 0xe8][..], &distance.to_le_bytes()].concat();
    let mut bytes = vec![0x90; 0x10];
    bytes[..5].copy_from_slice(&[0xe8, 0x7b, 0, 0, 0]);
    let tables =
        LinkedTables { alternatives: vec![alternative(0, 9, 8, 1)], ..LinkedTables::default() };
    let code = code(&bytes, &replacement, &tables);
    assert_eq!(code.forms(BASE), [Call(at(0x80)), Jump(at(3))]);
    assert!(code.forms(BASE + 3).contains(&Call(at(0x80))), "{:?}", code.forms(BASE + 3));
    // The no-ops behind the replacement, and those of the file, may become a jump over them.
    assert_eq!(code.forms(BASE + 8), [Next, Next, Jump(at(9)), Jump(at(9))]);
    assert!(code.may_return_to(BASE + 8) && !code.may_return_to(BASE + 9));
    assert!(!code.may_run_on(BASE, BASE + 5), "both have a call across the fifth byte");
    assert_eq!(code.forms(BASE + 9), [Next]);
}

#[test]
fn an_alternative_without_a_replacement_lets_control_through() {
    let mut bytes = vec![0xe8, 0x7b, 0, 0, 0];
    bytes.extend([0x90; 3]);
    let tables =
        LinkedTables { alternatives: vec![alternative(0, 5, 0, 1)], ..LinkedTables::default() };
    let code = code(&bytes, &[], &tables);
    assert!(code.may_run_on(BASE, BASE + 5));
    assert_eq!(code.forms(BASE), [Call(at(0x80)), Next, Jump(at(5))]);
}

/// `call *pv_ops.f(%rip)` of six bytes becomes `call f` of five.
#[test]
fn an_alternative_may_call_the_function_in_a_pointer() {
    let bytes = [0xff, 0x15, 0, 0, 0, 0, 0x90];
    let entry = alternative(0, 6, 5, 1 << 17 | 1);
    let code = code(
        &bytes,
        &[0xe8, 0xfb, 0xff, 0xff, 0xff],
        &LinkedTables { alternatives: vec![entry], ..LinkedTables::default() },
    );
    let forms = code.forms(BASE);
    assert!(forms.contains(&Call(AnyFunction)) && forms.contains(&Next), "{forms:?}");
    assert!(code.may_return_to(BASE + 5));
}

#[test]
fn the_sites_are_one_ascending_table() {
    let tables = LinkedTables {
        tracer_sites: vec![BASE + 4],
        returns: vec![BASE + 0x20],
        locks: vec![BASE + 0x11],
        constants: vec![(BASE + 0x12, 8)],
        alternatives: vec![alternative(0x10, 8, 3, 1), alternative(0x10, 8, 2, 2)],
        ..LinkedTables::default()
    };
    let sites = PatchSites::of(&tables);
    let offsets = |found: &[PatchSite]| found.iter().map(|s| s.at - BASE).collect::<Vec<_>>();
    assert_eq!(offsets(sites.beginning_in(0, u64::MAX)), [4, 0x10, 0x10, 0x11, 0x12, 0x20]);
    let over: Vec<PatchSite> = sites.overlapping(BASE + 0x17, BASE + 0x21).copied().collect();
    assert_eq!(offsets(&over), [0x10, 0x10, 0x12, 0x20]);
    let flags: Vec<u32> = sites
        .kinds_at(BASE + 0x10)
        .filter_map(|kind| match kind {
            PatchKind::Alternative { flags, .. } => Some(flags),
            _ => None,
        })
        .collect();
    assert_eq!(flags, [1, 2], "the last one wins");
}
