//! Wrong predictions of the program of `by_hand.rs`, counted on paper, and that nothing is
//! predicted unasked.

use crate::tests::by_hand::{loops, machine, memory, moved};
use crate::tests::guest::{record, replayed};
use crate::{Layout, replay};
use sim::{
    BranchCounters, BranchPrediction, DirectionPrediction, HeldBranches, MachineModel, PerMode,
    TargetBufferDescription,
};
use trace::RecordingReader;

/// Backward taken, forward not; room for every branch.
fn predicting(direction: DirectionPrediction) -> MachineModel {
    let targets = TargetBufferDescription::new(64, 4, HeldBranches::Taken).unwrap();
    MachineModel {
        branch: Some(
            BranchPrediction::new(direction, Some(targets), 4, Some(20.0), Some(3.0)).unwrap(),
        ),
        ..machine()
    }
}

/// Ten rounds in the kernel, in the original and moved.
fn rounds(direction: DirectionPrediction) -> [BranchCounters; 2] {
    let recording = record(&memory(), &loops(10), 64);
    let mut layouts = replayed(&recording, moved(), &[predicting(direction)]).layouts;
    [layouts.remove(0), layouts.remove(0)].map(|counts| {
        let PerMode { kernel, user } = counts.machines[0].branches.unwrap();
        assert_eq!(user, BranchCounters::default());
        kernel
    })
}

#[test]
fn a_layout_changes_what_is_predicted_by_hand() {
    let [original, moved] = rounds(DirectionPrediction::Static);
    let of_both = BranchCounters {
        conditional: 20,
        // Forward in both: A to C, and inverted A to B. Every second one goes there.
        wrong_directions: 10,
        returns: 20,
        ..BranchCounters::default()
    };
    // The first time: B's jump, E's, the call. A's target is learnt by a wrong prediction.
    assert_eq!(original, BranchCounters { misfetches: 3, ..of_both });
    // E's jump, the call, and the jumps behind C and behind the call; B's is gone.
    assert_eq!(moved, BranchCounters { misfetches: 4, ..of_both });
}

/// Two bits of one branch that alternates, beginning with B: not taken from the weak state, then up
/// and down between the two lowest. Inverted it begins with taken, and goes up and down between the
/// two in the middle.
#[test]
fn inverting_a_branch_changes_what_is_learnt() {
    let [original, moved] = rounds(DirectionPrediction::bimodal(1024).unwrap());
    assert_eq!((original.wrong_directions, moved.wrong_directions), (10, 20));
}

#[test]
fn nothing_is_predicted_unasked() {
    let recording = record(&memory(), &loops(10), 64);
    let with = replayed(&recording, moved(), &[predicting(DirectionPrediction::Static)]);
    let without = replay(
        RecordingReader::new(&recording[..]).unwrap(),
        &[Layout::original()],
        &[predicting(DirectionPrediction::Static)],
    );
    let (with, without) = (&with.layouts[0].machines[0], &without.unwrap().layouts[0].machines[0]);
    assert!(with.branches.is_some() && without.branches.is_none());
    assert_eq!((with.l1i, &with.misses_at), (without.l1i, &without.misses_at));
    let undescribed = replayed(&recording, moved(), &[machine()]);
    assert_eq!(undescribed.layouts[0].machines[0].branches, None, "a machine without [branch]");
}
