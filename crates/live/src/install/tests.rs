//! What is asked of the device for a group, and what its plan says.

use super::*;
use crate::memory::FileMemory;
use crate::test_kernel::{ChangedMemory, F, G, H, SLIDE, STRAY, TEXT, at, emitted, tables, with};
use image::linked::tables::LinkedTables;

/// Where the loader put the copies.
const COPIES: u64 = 0xffff_ffff_c000_0000;

/// The group of f, g and h, and what would be installed.
fn with_group<T>(slide: u64, test: impl FnOnce(&Group<'_, '_>, PreparedGroup) -> T) -> T {
    with(tables(), |kernel| {
        let memory = ChangedMemory { kernel, slide, changes: Vec::new() };
        let group = Group::new(kernel, &memory, &[F, G, H]).unwrap();
        let order: Vec<u32> = (0..group.original.pieces.len() as u32).collect();
        let module = emitted(&group, &order, &[]).unwrap();
        let text = [(0, kernel.text_bytes().to_vec())];
        let callers = callers::find(kernel, &text, &group.entries()).callers;
        let id = GroupId { module: "kl_test".into(), number: ModuleNumber([7; 16]) };
        let prepared = PreparedGroup::new(id, &group, module, callers);
        test(&group, prepared)
    })
}

/// Entry and copy of each function that is entered, then site and function of each call, as the
/// device gets them.
fn asked(prepared: &PreparedGroup, group: &Group<'_, '_>) -> (Vec<(u64, u64)>, Vec<(u64, u32)>) {
    let (functions, calls) = prepared.request(group, COPIES);
    assert!(functions.iter().all(|f| (f.patch_at, f.reserved) == (5, 0)));
    let entered = functions.iter().filter(|f| f.carried == 0);
    (
        entered.map(|f| (f.entry, f.copy)).collect(),
        calls.iter().map(|call| (call.site, call.function)).collect(),
    )
}

#[test]
fn every_function_is_entered_and_every_call_of_it_goes_to_its_copy() {
    with_group(SLIDE, |group, prepared| {
        let copy = |n: usize| COPIES + u64::from(prepared.module.entries[n]);
        let (functions, calls) = asked(&prepared, group);
        let entry = |offset: u64| TEXT + SLIDE + offset;
        let entries = [(entry(0), copy(F)), (entry(0x40), copy(G)), (entry(0x80), copy(H))];
        assert_eq!(functions, entries);
        // The call in f. The jump in h lies where h's own jump goes. The copy of f calls g.
        let [(inside, called)] = prepared.module.calls[..] else { panic!("one call of a copy") };
        assert_eq!(called, G as u32);
        assert_eq!(calls, [(entry(0x0c), 1), (COPIES + u64::from(inside), 1)]);
        let (functions, _) = prepared.request(group, COPIES);
        assert_eq!(functions[0].expected, [0x48, 0x89, 0xfb, 0x85, 0xff]);
    });
}

#[test]
fn only_the_roots_are_entered_from_outside() {
    with_group(0, |group, mut prepared| {
        let kernel = group.original.kernel;
        prepared.enter_only(kernel, &[G, STRAY]).unwrap();
        let (functions, calls) = asked(&prepared, group);
        let copy = COPIES + u64::from(prepared.module.entries[G]);
        assert_eq!(functions, [(TEXT + 0x40, copy)]);
        let inside = COPIES + u64::from(prepared.module.calls[0].0);
        assert_eq!(calls, [(TEXT + 0x0c, 1), (inside, 1)]);
        // The others are asked for without a jump: a tracer at them is seen.
        let carried: Vec<(u8, [u8; 5])> = {
            let (functions, _) = prepared.request(group, COPIES);
            functions.iter().map(|f| (f.carried, f.expected)).collect()
        };
        assert_eq!((carried[0], carried[2]), ((1, [0; 5]), (1, [0; 5])));
        // Nothing goes to the copy of g any more if it is no root.
        let error = prepared.enter_only(kernel, &[F]).unwrap_err().to_string();
        assert_eq!(error, "no root is left that can be replaced");
    });
    with_group(0, |group, mut prepared| {
        prepared.enter_only(group.original.kernel, &[H, F]).unwrap();
        let (functions, calls) = asked(&prepared, group);
        let entries: Vec<u64> = functions.iter().map(|&(entry, _)| entry).collect();
        let inside = COPIES + u64::from(prepared.module.calls[0].0);
        // The call of g in the copy of f, which a tracer at g turns to the original.
        assert_eq!((entries, calls), (vec![TEXT, TEXT + 0x80], vec![(inside, 1)]));
    });
}

#[test]
fn the_list_of_writes_names_each_jump_and_each_call() {
    with_group(SLIDE, |group, prepared| {
        let at = |offset: u64| TEXT + SLIDE + offset;
        let jump = |offset, function: &str, index: usize| CodeWrite::Jump {
            at: at(offset),
            function: function.into(),
            copy: prepared.module.entries[index],
        };
        let expected = [
            jump(5, "f", F),
            jump(0x45, "g", G),
            CodeWrite::Call { at: at(0x0c), caller: Some("f".into()) },
            jump(0x85, "h", H),
        ];
        assert_eq!(prepared.writes(group), expected);
    });
}

#[test]
fn copies_have_room_for_call_depth_tracking_where_it_is_switched_on() {
    let calls = LinkedTables { calls: vec![TEXT + 0x0c], ..tables() };
    with(calls, |kernel| {
        assert_eq!(padding(kernel, &FileMemory(kernel)).unwrap(), 0);
        let memory =
            |byte, value| ChangedMemory { kernel, slide: 0, changes: vec![(at(byte), value)] };
        // The call goes to the padding in front of its function.
        assert_eq!(padding(kernel, &memory(0x0d, 0x1f)).unwrap(), 16);
        // No call is left there.
        assert_eq!(padding(kernel, &memory(0x0c, 0x90)).unwrap(), 0);
    });
}
