//! Promotes indirect calls of a kernel of four functions.
//!
//! ```text
//! 00 f: call __fentry__     40 g: call __fentry__    200 thunks, 32 bytes for each register
//! 05    push %rbx           45    mov $1,%eax
//! 06    nop                 4a    ret
//! 07    mov (%rdi),%rax
//! 0a    call thunk_rax      80 h: call __fentry__
//! 0f    mov (%rdi),%r11     85    mov $2,%eax
//! 12    cs call thunk_r11   8a    ret
//! 18    mov (%rdi),%rbx
//! 1b    call *%rbx          c0 k: call __fentry__
//! 1d    pop %rbx            c5    mov $3,%eax
//! 1e    ret                 ca    ret
//! ```
//!
//! The first call goes to g and sometimes to h, the second to h, the last to k, which does not
//! belong to the group.

use super::*;
use crate::test_kernel::{ChangedMemory, SLIDE};
use emit::module::EmittedModule;
use image::linked::tables::{ExceptionEntry, StaticCallEntry};

const THUNKS: u64 = 0x200;
const THUNK_RAX: u64 = THUNKS;
const THUNK_R11: u64 = THUNKS + 11 * 32;
const SAFE_RETURN: u64 = 0x1f0;
/// Where f's calls stand.
const CALLS: [u64; 3] = [0x0a, 0x12, 0x1b];

fn code_of_f() -> Vec<u8> {
    [
        &[0x53, 0x90, 0x48, 0x8b, 0x07][..],
        &near(0xe8, 0x0a, THUNK_RAX),
        &[0x4c, 0x8b, 0x1f, 0x2e],
        &near(0xe8, 0x13, THUNK_R11),
        &[0x48, 0x8b, 0x1f, 0xff, 0xd3, 0x5b, 0xc3],
    ]
    .concat()
}

fn vmlinux(f: &[u8]) -> Vec<u8> {
    let mut text = vec![0xcc; 0x400];
    let mut put = |at: u64, bytes: &[u8]| {
        text[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    };
    for entry in [F, G, H, K] {
        put(entry, &near(0xe8, entry, 0x1000));
    }
    put(0x05, f);
    for (n, function) in (1..).zip([G, H, K]) {
        put(function + 5, &[0xb8, n, 0, 0, 0, 0xc3]);
    }
    let note = [&[4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &[0x5f; 20]].concat();
    elf(
        &[
            (".text", TEXT, 6, text),
            (".data", DATA, 3, vec![0; 0x40]),
            (".notes", DATA + 0x200, 2, note),
        ],
        &[
            TestSymbol("f", TEXT + F, 5 + f.len() as u64),
            TestSymbol("g", TEXT + G, 0xb),
            TestSymbol("h", TEXT + H, 0xb),
            TestSymbol("k", TEXT + K, 0xb),
            TestSymbol("__x86_indirect_thunk_array", TEXT + THUNKS, 0),
            TestSymbol("__x86_indirect_thunk_rax", TEXT + THUNK_RAX, 0),
            TestSymbol("__x86_indirect_thunk_r11", TEXT + THUNK_R11, 0),
            TestSymbol("srso_alias_safe_ret", TEXT + SAFE_RETURN, 0),
            TestSymbol("_stext", TEXT, 0),
            TestSymbol("value", DATA, 8),
        ],
        0,
    )
}

fn tables() -> LinkedTables {
    let state = |offset: u64, state| (TEXT + offset, state);
    LinkedTables {
        tracer_sites: vec![TEXT, TEXT + G, TEXT + H, TEXT + K],
        retpolines: vec![TEXT + 0x0a, TEXT + 0x12],
        orc: vec![state(F, EMPTY), state(0x06, ONE), state(0x1e, EMPTY)],
        ..LinkedTables::default()
    }
}

fn profile(kernel: &LinkedKernel<'_>) -> Profile {
    let mut profile = Profile::empty(kernel.build_id.clone());
    let blocks = [(F, 100), (0x0f, 100), (0x18, 100), (0x1d, 100), (G, 90), (H, 110), (K, 100)];
    profile.blocks.extend(blocks.map(|(block, count)| (at(block), count)));
    for (from, to) in [(F, 0x0f), (0x0f, 0x18), (0x18, 0x1d)] {
        profile.edges.insert((at(from), at(to)), (EdgeKind::FallThrough, 100));
    }
    let calls = [(F, G, 90), (F, H, 10), (0x0f, H, 100), (0x18, K, 100)];
    profile.calls.extend(calls.map(|(from, to, count)| ((at(from), at(to)), count)));
    profile
}

fn with_code(f: &[u8], tables: LinkedTables, test: impl FnOnce(&LinkedKernel<'_>)) {
    let file = vmlinux(f);
    let mut kernel = LinkedKernel::parse(&file).unwrap();
    kernel.sites = PatchSites::of(&tables);
    kernel.tables = tables;
    test(&kernel);
}

/// Memory as the file, with some bytes changed.
fn memory<'a, 'd>(kernel: &'a LinkedKernel<'d>, changes: &[(u64, u8)]) -> ChangedMemory<'a, 'd> {
    let changes = changes.iter().map(|&(offset, byte)| (at(offset), byte)).collect();
    ChangedMemory { kernel, slide: SLIDE, changes }
}

fn group_by<'k, 'd>(
    kernel: &'k LinkedKernel<'d>,
    profile: &Profile,
    settings: InlineSettings,
) -> (Group<'k, 'd>, InlineSummary) {
    super::super::group(kernel, &memory(kernel, &[]), &[0, 1, 2], profile, settings).unwrap()
}

/// The group of f, g and h with its calls promoted.
fn with_promoted(
    settings: InlineSettings,
    test: impl FnOnce(&LinkedKernel<'_>, Group<'_, '_>, InlineSummary),
) {
    with_code(&code_of_f(), tables(), |kernel| {
        let (group, summary) = group_by(kernel, &profile(kernel), settings);
        assert!(group.left_out.is_empty(), "{:?}", group.left_out);
        test(kernel, group, summary);
    });
}

/// Nothing is inlined: there is room for guards only.
const NOTHING: InlineSettings =
    InlineSettings { growth: 10.0, largest: 0, largest_alone: 0, costs: None };

/// The calls in the order of their offsets.
fn calls(group: &Group<'_, '_>) -> Vec<(u32, InPlace)> {
    let mut calls: Vec<(u32, InPlace)> =
        group.original.inlining.calls().iter().map(|call| (call.at, call.code)).collect();
    calls.sort_by_key(|&(at, _)| at);
    calls
}

#[test]
fn frequent_targets_are_inlined_or_called_directly() {
    let (direct, inlined) = (|to| InPlace::Call(at(to)), InPlace::Code);
    with_promoted(PLENTY, |_, group, summary| {
        assert_eq!(calls(&group), [(0x0a, inlined(1)), (0x12, inlined(2)), (0x1b, direct(K))]);
        assert_eq!((summary.calls, summary.executed, summary.gone), (2, 190, 190));
        assert_eq!((summary.promoted, summary.indirect, summary.direct), (3, 300, 290));
        let mut listed: Vec<_> = (listed(&group).into_iter())
            .map(|call| (call.at - SLIDE - TEXT, call.caller, call.called, call.is_inlined))
            .collect();
        listed.sort_unstable();
        let expected = [(0x0a, "f", "g", true), (0x12, "f", "h", true), (0x1b, "f", "k", false)];
        assert_eq!(listed, expected);
    });
    with_promoted(NOTHING, |_, group, summary| {
        assert_eq!(calls(&group), [(0x0a, direct(G)), (0x12, direct(H)), (0x1b, direct(K))]);
        assert_eq!((summary.calls, summary.promoted, summary.direct), (0, 3, 290));
        assert_eq!(summary.added_bytes, 3 * 18);
    });
}

#[test]
fn other_calls_are_not_promoted() {
    with_code(&code_of_f(), tables(), |kernel| {
        // The kernel has made `call *%rax` of the retpoline: a direct call saves nothing.
        let patched = memory(kernel, &[(0x0a, 0xff), (0x0b, 0xd0), (0x12, 0x41), (0x13, 0xff)]);
        let (group, summary) =
            super::super::group(kernel, &patched, &[0, 1, 2], &profile(kernel), PLENTY).unwrap();
        assert_eq!(calls(&group), [(0x0a, InPlace::Code(1)), (0x12, InPlace::Code(2))]);
        assert_eq!((summary.promoted, summary.indirect, summary.direct), (2, 300, 190));
        // No target has half of the executions, of which the profile does not know all targets.
        let mut profile = profile(kernel);
        profile.calls.insert((at(F), at(G)), 49);
        profile.calls.insert((at(0x0f), at(H)), 50);
        // This is no function's entry.
        profile.calls.remove(&(at(0x18), at(K)));
        profile.calls.insert((at(0x18), at(K + 5)), 100);
        let (group, summary) = group_by(kernel, &profile, NOTHING);
        assert_eq!(calls(&group), [(0x12, InPlace::Call(at(H)))]);
        assert_eq!((summary.promoted, summary.indirect, summary.direct), (1, 300, 50));
    });
}

#[test]
fn how_the_kernel_calls_is_known_by_the_thunks_that_ran() {
    with_code(&code_of_f(), tables(), |kernel| {
        let forms = |ran: &[u64], memory: Option<&dyn Memory>| {
            let mut profile = profile(kernel);
            profile.blocks.extend(ran.iter().map(|&thunk| (at(thunk), 1)));
            let CallForms { safe_returns, retpolines } =
                call_forms(kernel, memory, &profile).unwrap();
            (safe_returns, retpolines)
        };
        assert_eq!(forms(&[], None), (false, false));
        assert_eq!(forms(&[SAFE_RETURN], None), (true, false));
        assert_eq!(forms(&[THUNK_R11 + 7], None), (false, true));
        // What follows the retpolines is none.
        assert_eq!(forms(&[THUNKS + 16 * 32 - 1], None), (false, true));
        assert_eq!(forms(&[THUNKS + 16 * 32], None), (false, false));
        // The running kernel says itself whether it uses them.
        assert_eq!(forms(&[], Some(&memory(kernel, &[]))), (false, true));
        let patched = memory(kernel, &[(0x0a, 0xff), (0x0b, 0xd0), (0x12, 0x41), (0x13, 0xff)]);
        assert_eq!(forms(&[THUNK_RAX], Some(&patched)), (false, false));
    });
}

#[test]
fn what_calls_cost_decides_and_says_what_is_saved() {
    with_code(&code_of_f(), tables(), |kernel| {
        let of = |guard| {
            let costs = CallCosts { direct: 30.0, indirect: 32.0, jump: 0.5, guard };
            group_by(kernel, &profile(kernel), InlineSettings { costs: Some(costs), ..PLENTY }).1
        };
        // 90 of 100, 100 and 100 calls; the last is only promoted.
        let saved = 90.0 * 32.0 - 100.0 + 100.0 * 31.0 + 100.0 * (2.0 - 1.0);
        let summary = of(1.0);
        assert_eq!((summary.promoted, summary.saved_cycles), (3, Some(saved as u64)));
        // The comparison costs as much as a direct call saves.
        assert_eq!(of(2.0).promoted, 2);
        assert_eq!(group_by(kernel, &profile(kernel), PLENTY).1.saved_cycles, None);
    });
}

#[test]
fn the_counts_are_divided_between_the_function_and_the_indirect_call() {
    for settings in [PLENTY, NOTHING] {
        with_promoted(settings, |kernel, group, _| {
            let graph = group.graph(Some(&profile(kernel)));
            let (pieces, inlining) = (&group.original.pieces, &group.original.inlining);
            let piece = |at: u64| {
                let own = inlining.pieces(0, pieces.len());
                own.into_iter().find(|&n| u64::from(pieces[n].at) == at).unwrap()
            };
            let entry = |at: u64| {
                let number = inlining.calls().iter().position(|call| u64::from(call.at) == at);
                inlining.entry(number.unwrap() as u32) as usize
            };
            let count = |piece: usize| graph.counts[piece];
            let rest = CALLS.map(|at| count(piece(at)));
            assert_eq!(rest, [10, 0, 0]);
            assert_eq!(CALLS.map(|at| count(entry(at))), [90, 100, 100]);
            let mut edges: Vec<(usize, usize, u64)> = (graph.edges.iter())
                .filter(|edge| edge.count > 0)
                .map(|edge| (edge.from.index(), edge.to.index(), edge.count))
                .collect();
            let mut expected = vec![(piece(F), piece(0x0a), 10), (piece(0x0a), piece(0x0f), 10)];
            for (from, at, to, count) in
                [(F, 0x0a, 0x0f, 90), (0x0f, 0x12, 0x18, 100), (0x18, 0x1b, 0x1d, 100)]
            {
                expected.push((piece(from), entry(at), count));
                expected.push((entry(at), piece(to), count));
            }
            edges.sort_unstable();
            expected.sort_unstable();
            assert_eq!(edges, expected);
            let called: Vec<(usize, usize, u64)> = (graph.calls.iter())
                .map(|call| (call.from.index(), call.to.index(), call.count))
                .filter(|&(.., count)| count > 0)
                .collect();
            // What goes through the pointer, then direct calls of copies. k has none.
            let mut expected = vec![(piece(F), piece(H), 10)];
            if settings.largest == 0 {
                expected.push((entry(0x0a), piece(G), 90));
                expected.push((entry(0x12), piece(H), 100));
            }
            expected.sort_unstable();
            assert_eq!(called, expected);
        });
    }
}

fn orders_of(group: &Group<'_, '_>, kernel: &LinkedKernel<'_>) -> Vec<Vec<u32>> {
    let own = own_order(group);
    let turned = own.iter().rev().copied().collect();
    let algorithm = layout::Algorithm::ExtTspGlobal;
    let hot = crate::planned::order(group, Some(&profile(kernel)), algorithm, 0).unwrap();
    vec![own, turned, hot]
}

fn range_of(module: &EmittedModule, section: &str) -> std::ops::Range<usize> {
    use object::{Object, ObjectSection};
    let file = object::File::parse(&*module.bytes).unwrap();
    let (at, size) = file.section_by_name(section).unwrap().file_range().unwrap();
    at as usize..(at + size) as usize
}

/// The fields of `.text` with a relocation.
fn fields_of(module: &EmittedModule) -> Vec<std::ops::Range<u32>> {
    use object::{Object, ObjectSection};
    let file = object::File::parse(&*module.bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    text.relocations().map(|(at, _)| at as u32..at as u32 + 4).collect()
}

#[test]
fn the_proof_holds_in_any_order_and_finds_each_changed_byte() {
    for settings in [PLENTY, NOTHING] {
        with_promoted(settings, |kernel, group, summary| {
            for order in orders_of(&group, kernel) {
                let mut module = emitted(&group, &order, &[]).unwrap();
                prove(&group, &module).unwrap();
                assert_eq!(module.summary.calls_promoted, 3);
                assert_eq!(module.summary.calls_inlined, summary.calls);
                let text = range_of(&module, ".text").start;
                let places = module.pieces.clone();
                let code = places.iter().flat_map(|&(at, size)| at..at + size);
                // The kernel's loader writes some fields.
                let written = fields_of(&module);
                let code = code.filter(|&at| !written.iter().any(|field| field.contains(&at)));
                let code: Vec<usize> = code.map(|at| text + at as usize).collect();
                // The last state says that the code ends.
                let states = range_of(&module, ".orc_unwind");
                for byte in code.into_iter().chain(states.start..states.end - 6) {
                    for flip in [0x01, 0x10, 0xff] {
                        module.bytes[byte] ^= flip;
                        let error = prove(&group, &module);
                        assert!(error.is_err(), "{flip:x} at {byte:#x}, {order:?}");
                        module.bytes[byte] ^= flip;
                    }
                }
                prove(&group, &module).unwrap();
            }
        });
    }
}

#[test]
fn the_code_falls_through_into_the_frequent_function() {
    with_promoted(PLENTY, |kernel, group, _| {
        let module = emitted(&group, &orders_of(&group, kernel)[2], &[]).unwrap();
        let at = range_of(&module, ".text").start + module.entries[0] as usize;
        let name = |function: u64| ((TEXT + function + SLIDE) as u32).to_le_bytes();
        let unlikely = module.bytes[at + 13];
        let second = module.bytes[at + 30];
        let third = module.bytes[at + 47];
        let expected = [
            &[0x53, 0x90, 0x48, 0x8b, 0x07, 0x48, 0x81, 0xf8][..],
            &name(G),
            &[0x75, unlikely, 0xb8, 1, 0, 0, 0, 0x4c, 0x8b, 0x1f, 0x49, 0x81, 0xfb],
            &name(H),
            &[0x75, second, 0xb8, 2, 0, 0, 0, 0x48, 0x8b, 0x1f, 0x48, 0x81, 0xfb],
            &name(K),
            &[0x75, third, 0xe8, 0, 0, 0, 0, 0x5b, 0xc3],
        ];
        let expected = expected.concat();
        assert_eq!(module.bytes[at..at + expected.len()], expected);
    });
}

/// Claims as the emitter makes them, and others that no module can have.
#[test]
fn the_proof_refuses_other_claims() {
    for settings in [PLENTY, NOTHING] {
        with_promoted(settings, |kernel, group, _| {
            let module = emitted(&group, &own_order(&group), &[]).unwrap();
            let (claims, promoted) = (claims(&group, &module), inline_claims(&group));
            let proven = |claims: &[CopyClaim], promoted: &[InlineClaim]| {
                check_module(kernel, SLIDE, &module.bytes, claims, promoted)
                    .map_err(|error| format!("{error:#}"))
            };
            assert_eq!(proven(&claims, &promoted), Ok(0));
            for n in 0..3 {
                let with = |change: &dyn Fn(&mut InlineClaim)| {
                    let mut changed = promoted.clone();
                    change(&mut changed[n]);
                    proven(&claims, &changed).unwrap_err()
                };
                let error = with(&|claim| claim.callee.0 ^= 0x40);
                assert!(error.contains("compare the pointer") || error.contains("no function"));
                let error = with(&|claim| claim.callee.0 += 1);
                assert!(error.contains("no function begins"), "{error}");
                for skip in [None, Some(0), Some(5), Some(6), Some(9)] {
                    if skip != promoted[n].skip {
                        with(&|claim| claim.skip = skip);
                    }
                }
                for context in 1..4 {
                    with(&|claim| claim.context = context);
                }
                let sites = [0x05, 0x07, 0x0f, 0x13, 0x1c, G + 5].into_iter().chain(CALLS);
                for site in sites.map(at).filter(|&site| site != promoted[n].site) {
                    with(&|claim| claim.site = site);
                }
                let other = promoted[(n + 1) % 3];
                with(&|claim| *claim = other);
                let mut fewer = promoted.clone();
                fewer.remove(n);
                assert!(proven(&claims, &fewer).is_err(), "without claim {n}");
            }
            for n in 0..claims.len() {
                let mut fewer = claims.clone();
                fewer.remove(n);
                assert!(proven(&fewer, &promoted).is_err(), "without claim {n}");
                for context in (0..4).filter(|&context| context != claims[n].context) {
                    let mut moved = claims.clone();
                    moved[n].context = context;
                    assert!(proven(&moved, &promoted).is_err(), "claim {n} in context {context}");
                }
            }
        });
    }
}

/// What the emitter and the proof refuse, each on its own.
#[test]
fn calls_that_may_differ_are_refused() {
    with_promoted(NOTHING, |_, group, _| {
        let module = emitted(&group, &own_order(&group), &[]).unwrap();
        let (claims, promoted) = (claims(&group, &module), inline_claims(&group));
        let refused = |f: &[u8], tables: LinkedTables, bytes: &[u8], left: &[u64], words: &str| {
            with_code(f, tables, |kernel| {
                let own = Group::new(kernel, &memory(kernel, &[]), &[0]).unwrap();
                let pieces = 0..own.original.pieces.len();
                let found = pieces.flat_map(|piece| own.original.indirect_calls(piece));
                let found: Vec<u64> = found.map(|call| u64::from(call.at)).collect();
                assert_eq!(found, left, "{words}");
                let error = check_module(kernel, SLIDE, bytes, &claims, &promoted).unwrap_err();
                assert!(format!("{error:#}").contains(words), "{error:#}");
            });
        };
        let (f, bytes) = (code_of_f(), &module.bytes[..]);
        // The kernel patches a call in another way than as a retpoline.
        let static_calls = vec![StaticCallEntry { site: TEXT + 0x1b, key: DATA }];
        let patched = LinkedTables { static_calls, ..tables() };
        refused(&f, patched, bytes, &CALLS[..2], "patches call rbx in another way");
        // A fault in the called function's first instruction must not look like one of the call.
        let fault = ExceptionEntry { site: TEXT + 0x1b, fixup: TEXT + 0x1d, data: 0 };
        let faults = LinkedTables { exceptions: vec![fault], ..tables() };
        refused(&f, faults, bytes, &CALLS[..2], "may fault");
        // A plain call whose target is not a thunk.
        let none = LinkedTables { retpolines: vec![TEXT + 0x12], ..tables() };
        refused(&f, none, bytes, &CALLS[1..], "is a direct call already");
        // `nop; nop; popf` in front of the first call.
        let hands_flags_on = [0x90, 0x90, 0x9d];
        let mut changed = module.bytes.clone();
        let place = changed.windows(5).position(|code| code == &f[..5]).unwrap();
        changed[place + 2..place + 5].copy_from_slice(&hands_flags_on);
        let popping = [&[0x53, 0x90][..], &hands_flags_on, &f[5..]].concat();
        refused(&popping, tables(), &changed, &CALLS[1..], "may take flags");
        // That call takes the flags: the next ones are promoted all the same.
        with_code(&popping, tables(), |kernel| {
            let (group, _) = group_by(kernel, &profile(kernel), NOTHING);
            assert_eq!(calls(&group).len(), 2);
            prove(&group, &emitted(&group, &own_order(&group), &[]).unwrap()).unwrap();
        });
    });
}

#[test]
fn only_calls_by_registers_are_promoted_that_control_reaches_in_one_way() {
    let found = |f: &[u8]| {
        let mut found = Vec::new();
        let tables = LinkedTables { retpolines: Vec::new(), ..tables() };
        with_code(f, tables, |kernel| {
            let own = Group::new(kernel, &memory(kernel, &[]), &[0]).unwrap();
            let pieces = 0..own.original.pieces.len();
            let calls = pieces.flat_map(|piece| own.original.indirect_calls(piece));
            found = calls.map(|call| (call.at, call.len, call.register, call.since)).collect();
        });
        found
    };
    let code = |call: &[u8]| [&[0x48, 0x8b, 0x1f, 0x90, 0x90][..], call, &[0x90, 0xc3]].concat();
    assert_eq!(found(&code(&[0xff, 0xd3])), [(0x0a, 2, 3, 0)]);
    assert_eq!(found(&code(&[0x41, 0xff, 0xd7])), [(0x0a, 3, 15, 0)]);
    for other in [
        &[0xff, 0xd4][..],   // call *%rsp
        &[0xff, 0x53, 0x08], // call *8(%rbx)
        &[0xe8, 0, 0, 0, 0], // a direct call
    ] {
        assert_eq!(found(&code(other)), [], "{other:x?}");
    }
    // Behind another call; then with an instruction between.
    assert_eq!(found(&code(&[0xff, 0xd3, 0xff, 0xd0])), [(0x0a, 2, 3, 0)]);
    let two = found(&code(&[0xff, 0xd3, 0x90, 0xff, 0xd0]));
    assert_eq!(two, [(0x0a, 2, 3, 0), (0x0d, 2, 0, 0x0c)]);
    // test %edi,%edi; je call; nop; nop; nop; call: *%rbx
    let entered = [0x85, 0xff, 0x74, 0x03, 0x90, 0x90, 0x90, 0xff, 0xd3, 0x90, 0xc3];
    assert_eq!(found(&entered), []);
}
