//! What a recording does not show directly: user code at several addresses, and branches that never
//! continue after an interrupt.

use crate::tests::guest::replayed;
use image::place::Placement;
use sim::{CacheGeometry, MachineModel, Replacement, SimpleModel};
use trace::{RecordingHeader, RecordingWriter, RunAddr, StreamEvent, Translation, TranslationId};

fn machine() -> MachineModel {
    let l1i = CacheGeometry::cache(128, 1, 32, Replacement::Lru).unwrap();
    MachineModel::l1i_only("small", l1i, 32, SimpleModel::new(10.0, 0.0, 0.0).unwrap())
}

/// A recording of translation blocks of one instruction each, executed in this order.
fn recording(translations: &[(u64, &[u8])], executed: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut writer = RecordingWriter::new(Vec::new(), &RecordingHeader::default()).unwrap();
    for (id, &(addr, code)) in (0..).zip(translations) {
        let translation = Translation {
            id: TranslationId(id),
            addr: RunAddr(addr),
            lengths: [code.len() as u8].into(),
            code: code.into(),
        };
        writer.translations(&[translation]).unwrap();
    }
    let mut words = Vec::new();
    executed.for_each(|id| StreamEvent::Executed(TranslationId(id)).append_to(&mut words));
    writer.stream(&words).unwrap();
    writer.end().unwrap().0
}

/// A branch in a shared library. Its target was first seen in another process, 0x5000 bytes higher.
#[test]
fn a_users_branch_between_two_addresses_of_a_library_is_known_by_its_offset() {
    let library = 0x7f00_0000_0000;
    let translations: [(u64, &[u8]); 3] = [
        (library + 0x10, &[0x74, 0x0e]),   // je +0x20
        (library + 0x5020, &[0xeb, 0xee]), // at +0x20: jmp +0x10
        (library + 0x5012, &[0xeb, 0xfc]), // at +0x12: jmp +0x10
    ];
    let taken_twice = recording(&translations, [0, 1, 0, 2, 0, 1].into_iter());
    let replayed = replayed(&taken_twice, Placement::default(), &[machine()]);
    let taken = replayed.layouts[0].amounts.taken.user;
    assert_eq!((taken.conditional, taken.jump), (2, 3));
    assert_eq!((replayed.interruptions.seen, replayed.interruptions.unresolved), (0, 0));
}

/// 300 tasks are interrupted at a branch and never continue.
#[test]
fn branches_that_never_go_on_are_counted() {
    let kernel = 0xffff_ffff_8100_0000;
    let handler: (u64, &[u8]) = (kernel, &[0x90]);
    let branches = (1..=300).map(|task| (kernel + task * 0x100, &[0x74, 0x10][..]));
    let translations: Vec<(u64, &[u8])> = std::iter::once(handler).chain(branches).collect();
    let recording = recording(&translations, (1..=300).flat_map(|task| [task, 0]));
    let interruptions = replayed(&recording, Placement::default(), &[machine()]).interruptions;
    assert_eq!(interruptions.unresolved, 300);
    // The handler does not continue either, except the last time.
    assert_eq!(interruptions.seen, 599);
}
