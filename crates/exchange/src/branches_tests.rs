//! Tests of `branches`: kernels of a few instructions, and stacks written down by hand.

use super::*;

const BASE: u64 = 0xffff_ffff_8100_0000;

/// What the branches give on `image::examples::caller_and_callee`.
fn import(branches: &Branches, slide: u64) -> ImportedBranches {
    let image = image::examples::caller_and_callee(LinkAddr(BASE));
    let code = image::examples::caller_and_callee_code(LinkAddr(BASE));
    profile(branches, &image, &code, slide, "perf.data")
}

#[test]
fn a_stack_becomes_blocks_edges_and_calls() {
    let slide = 0x1200_0000;
    let at = |offset: u64| BASE + slide + offset;
    let mut branches = Branches::default();
    // g is called and returns; then f is entered again from g. The latest branch comes first.
    branches.add_stack(&[(at(0x21), at(9)), (at(4), at(0x20)), (at(0x21), at(0))]);
    let imported = import(&branches, slide);
    let link = |offset: u64| LinkAddr(BASE + offset);
    let found = &imported.profile;
    assert_eq!(found.calls, BTreeMap::from([((link(4), link(0x20)), 1)]));
    assert_eq!(found.edges[&(link(0), link(4))], (EdgeKind::FallThrough, 1));
    assert_eq!(found.edges[&(link(4), link(9))], (EdgeKind::FallThrough, 1));
    assert_eq!(found.blocks, BTreeMap::from([(link(0), 1), (link(4), 1), (link(0x20), 1)]));
    assert_eq!((imported.branches_used, imported.branches), (3, 3));
}

#[test]
fn branches_that_the_code_cannot_take_are_left_out_and_counted() {
    let mut branches = Branches::default();
    branches.add_stack(&[(BASE, BASE + 4), (0x1000, 0x2000), (BASE + 4, BASE + 9)]);
    branches.add_stack(&[(BASE + 0x21, BASE + 2), (u64::MAX, u64::MAX)]);
    let imported = import(&branches, 0);
    assert_eq!((imported.branches_used, imported.branches), (0, 5));
    assert!(imported.profile.edges.is_empty() && imported.profile.blocks.is_empty());
}

/// What stacks give on `image::examples::patched_kernel`. The branches of a stack come in the order
/// in which they were taken, as offsets.
fn import_patched(stacks: &[&[(u64, u64)]]) -> ImportedBranches {
    let (image, code) = image::examples::patched_kernel(LinkAddr(BASE));
    let mut branches = Branches::default();
    for stack in stacks {
        let latest_first = stack.iter().rev().map(|&(from, to)| (BASE + from, BASE + to));
        branches.add_stack(&latest_first.collect::<Vec<_>>());
    }
    profile(&branches, &image, &code, 0, "perf.data")
}

fn link(offset: u64) -> LinkAddr {
    LinkAddr(BASE + offset)
}

#[track_caller]
fn assert_all_used(imported: &ImportedBranches) {
    let used = (imported.branches_used, imported.stretches_used);
    assert_eq!(used, (imported.branches_inside, imported.stretches_inside));
    assert_eq!(imported.branches_inside, imported.branches);
}

/// Plain returns and indirect calls: the shorter call returns in front of no-ops.
#[test]
fn branches_of_a_kernel_without_mitigations_are_used() {
    let imported = import_patched(&[&[
        (0x20, 0x15), // a return behind the static call
        (0x15, 0),    // a retpoline's return enters f
        (0xa, 0x40),  // call *%rax
        (0x41, 0xc),  // back in front of the no-ops
        (0x10, 0x40), // the static call
        (0x41, 0x15),
    ]]);
    assert_all_used(&imported);
    let found = &imported.profile;
    let blocks = [(0, 1), (5, 1), (0xa, 1), (0x10, 1), (0x15, 1), (0x40, 2)];
    assert_eq!(found.blocks, blocks.map(|(at, count)| (link(at), count)).into());
    let calls = [((link(0xa), link(0x40)), 1), ((link(0x10), link(0x40)), 1)];
    assert_eq!(found.calls, calls.into());
    for (from, to, count) in [(0, 5, 1), (5, 0xa, 1), (0xa, 0x10, 1), (0x10, 0x15, 2)] {
        let edge = found.edges.get(&(link(from), link(to)));
        assert_eq!(edge, Some(&(EdgeKind::FallThrough, count)), "+{from:#x} to +{to:#x}");
    }
}

#[test]
fn returns_through_a_thunk_complete_the_call() {
    let imported = import_patched(&[&[(0x10, 0x40), (0x41, 0x60), (0x60, 0x15)]]);
    assert_all_used(&imported);
    let edges = &imported.profile.edges;
    assert_eq!(edges[&(link(0x40), link(0x60))], (EdgeKind::Jump, 1));
    assert_eq!(edges[&(link(0x10), link(0x15))], (EdgeKind::FallThrough, 1));
}

#[test]
fn static_keys_jump_or_let_control_through() {
    let imported = import_patched(&[&[(0x15, 0), (5, 0x20), (0x20, 0xb + 5)]]);
    assert_all_used(&imported);
    assert_eq!(imported.profile.edges[&(link(5), link(0x20))], (EdgeKind::Jump, 1));
    // Its own target is the only one.
    assert_eq!(import_patched(&[&[(5, 0x40)]]).branches_used, 0);
}

/// Call-depth tracking patches the padding in front of the callee.
#[test]
fn a_call_into_the_call_padding_enters_the_function() {
    let imported = import_patched(&[&[(0x10, 0x37), (0x41, 0x15)]]);
    assert_all_used(&imported);
    assert_eq!(imported.profile.calls, [((link(0x10), link(0x40)), 1)].into());
    assert_eq!(imported.profile.blocks, [(link(0x40), 1)].into());
    assert_eq!(import_patched(&[&[(0x10, 0x36)]]).branches_used, 0, "in front of the padding");
}

#[test]
fn an_interrupt_comes_anywhere_and_goes_back() {
    let imported = import_patched(&[&[(0x15, 0), (0xa, 0x70), (0x71, 0xa), (0x15, 0)]]);
    // Between the interrupted call and the return lies a call that lets nothing through.
    assert_eq!((imported.branches_used, imported.branches), (4, 4));
    assert_eq!((imported.stretches_used, imported.stretches_inside), (2, 3));
    assert_eq!(imported.profile.calls, BTreeMap::new());
}

#[test]
fn branches_that_no_patch_allows_are_left_out() {
    let wrong = [
        (0x15, 0x16), // a return behind no call
        (0xa, 0x41),  // an indirect call of no function
        (0x10, 0x20), // a static call of no function
        (0, 0x20),    // the tracer's site
        (0x40, 0),    // a no-op
    ];
    for branch in wrong {
        let imported = import_patched(&[&[branch]]);
        assert_eq!((imported.branches_used, imported.branches_inside), (0, 1), "{branch:x?}");
        assert!(imported.profile.edges.is_empty() && imported.profile.calls.is_empty());
    }
    let retpoline = import_patched(&[&[(0x15, 0), (0x10, 0x40)]]);
    assert_eq!((retpoline.stretches_used, retpoline.stretches_inside), (0, 1), "{retpoline:?}");
    assert!(import_patched(&[&wrong]).share() < LEAST_SHARE);
}

#[test]
fn branches_outside_of_the_code_do_not_count_against_it() {
    let imported = import_patched(&[&[(0x15, 0), (0x1_0000, 0x2_0000), (0x1_0000, 0)]]);
    let counts = (imported.branches_used, imported.branches_inside, imported.branches);
    assert_eq!((counts, imported.share()), ((1, 1, 3), 1.0));
}
