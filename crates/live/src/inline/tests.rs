//! Inlines calls of a kernel of four functions.
//!
//! ```text
//! 00 f: call __fentry__      40 g: call __fentry__      80 h: call __fentry__
//! 05    push %rbx            45    mov $1,%eax          85    jmp k
//! 06    mov %rdi,%rbx        4a    test %edi,%edi
//! 09    call g               4c    je 4f                c0 k: call __fentry__
//! 0e    call h               4e    ret                  c5    mov $DATA,%rax
//! 13    pop %rbx             4f    push %rbp            cc    ret
//! 14    ret                  50    call k
//!                            55    pop %rbp
//!                            56    ret
//! ```

use super::*;
use crate::eligible::Unfit;
use crate::identity::{GroupId, ModuleNumber};
use crate::install::{PreparedGroup, claims, inline_claims, prove};
use crate::memory::FileMemory;
use crate::test_elf::{DATA, TestSymbol, elf};
use crate::test_kernel::{TEXT, at, emitted, near};
use check::module::{CopyClaim, InlineClaim, check_module};
use emit::module::Obstacle;
use image::linked::LinkedKernel;
use image::linked::tables::LinkedTables;
use image::sites::PatchSites;
use layout::graph::EdgeKind;

mod promoted;

/// States by the size of the frame, with `rbp` saved 16 bytes below its end in the second form.
const EMPTY: [u8; 6] = [8, 0, 0, 0, 5, 2];
const ONE: [u8; 6] = [16, 0, 0, 0, 5, 2];
const SAVING: [u8; 6] = [16, 0, 0xf0, 0xff, 0x15, 2];

/// The functions by their offsets.
const F: u64 = 0;
const G: u64 = 0x40;
const H: u64 = 0x80;
const K: u64 = 0xc0;

/// What k does: `mov $DATA,%rax`.
fn names_data() -> [u8; 7] {
    let mut code = [0x48, 0xc7, 0xc0, 0, 0, 0, 0];
    code[3..].copy_from_slice(&(DATA as u32).to_le_bytes());
    code
}

fn vmlinux(k: &[u8]) -> Vec<u8> {
    let mut text = vec![0xcc; 0x100];
    let mut put = |at: u64, bytes: &[u8]| {
        text[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    };
    for entry in [F, G, H, K] {
        put(entry, &near(0xe8, entry, 0x1000));
    }
    put(0x05, &[0x53, 0x48, 0x89, 0xfb]);
    put(0x09, &near(0xe8, 0x09, G));
    put(0x0e, &near(0xe8, 0x0e, H));
    put(0x13, &[0x5b, 0xc3]);
    put(0x45, &[0xb8, 1, 0, 0, 0, 0x85, 0xff, 0x74, 0x01, 0xc3, 0x55]);
    put(0x50, &near(0xe8, 0x50, K));
    put(0x55, &[0x5d, 0xc3]);
    put(0x85, &near(0xe9, 0x85, K));
    put(0xc5, &[k, &[0xc3]].concat());
    let note = [&[4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &[0x5f; 20]].concat();
    elf(
        &[
            (".text", TEXT, 6, text),
            (".data", DATA, 3, vec![0; 0x40]),
            (".notes", DATA + 0x200, 2, note),
        ],
        &[
            TestSymbol("f", TEXT + F, 0x15),
            TestSymbol("g", TEXT + G, 0x17),
            TestSymbol("h", TEXT + H, 0xa),
            TestSymbol("k", TEXT + K, 5 + k.len() as u64 + 1),
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
        orc: vec![
            state(F, EMPTY),
            state(0x06, ONE),
            state(0x14, EMPTY),
            state(0x50, SAVING),
            state(0x56, EMPTY),
        ],
        ..LinkedTables::default()
    }
}

fn profile(kernel: &LinkedKernel<'_>) -> Profile {
    let mut profile = Profile::empty(kernel.build_id.clone());
    let blocks = [(F, 100), (0x0e, 100), (0x13, 100), (G, 100), (0x4e, 70), (0x4f, 30), (0x55, 30)];
    profile.blocks.extend(blocks.map(|(block, count)| (at(block), count)));
    profile.blocks.extend([(at(H), 100), (at(K), 130)]);
    for (from, to, kind, count) in [
        (F, 0x0e, EdgeKind::FallThrough, 100),
        (0x0e, 0x13, EdgeKind::FallThrough, 100),
        (G, 0x4e, EdgeKind::FallThrough, 70),
        (G, 0x4f, EdgeKind::Branch, 30),
        (0x4f, 0x55, EdgeKind::FallThrough, 30),
        (H, K, EdgeKind::Jump, 100),
    ] {
        profile.edges.insert((at(from), at(to)), (kind, count));
    }
    profile.calls.extend([
        ((at(F), at(G)), 100),
        ((at(0x0e), at(H)), 100),
        ((at(0x4f), at(K)), 30),
    ]);
    profile
}

const PLENTY: InlineSettings =
    InlineSettings { growth: 10.0, largest: 100, largest_alone: 100, costs: None };

fn with_kernel(tables: LinkedTables, test: impl FnOnce(&LinkedKernel<'_>)) {
    with_code(&names_data(), tables, test);
}

/// A kernel in which k does something else.
fn with_code(k: &[u8], tables: LinkedTables, test: impl FnOnce(&LinkedKernel<'_>)) {
    let file = vmlinux(k);
    let mut kernel = LinkedKernel::parse(&file).unwrap();
    kernel.sites = PatchSites::of(&tables);
    kernel.tables = tables;
    test(&kernel);
}

fn inlined_group<'k, 'd>(
    kernel: &'k LinkedKernel<'d>,
    settings: InlineSettings,
) -> (Group<'k, 'd>, InlineSummary) {
    let (memory, all) = (FileMemory(kernel), [0, 1, 2, 3]);
    super::group(kernel, &memory, &all, &profile(kernel), settings).unwrap()
}

/// The group of all functions with its calls inlined.
fn with_inlined(
    settings: InlineSettings,
    test: impl FnOnce(&LinkedKernel<'_>, Group<'_, '_>, InlineSummary),
) {
    with_kernel(tables(), |kernel| {
        let (group, summary) = inlined_group(kernel, settings);
        assert!(group.left_out.is_empty(), "{:?}", group.left_out);
        test(kernel, group, summary);
    });
}

/// Context, offset of the call, and callee's number of each inlined call.
fn inlined(group: &Group<'_, '_>) -> Vec<(u32, u32, u32)> {
    let calls = group.original.inlining.calls();
    calls.iter().filter_map(|call| Some((call.context, call.at, call.inlined()?))).collect()
}

/// The order in which the code runs: the own copies, then each inlined code at its call.
fn own_order(group: &Group<'_, '_>) -> Vec<u32> {
    let all = group.original.pieces.len() as u32;
    (0..all).collect()
}

#[test]
fn the_calls_that_pay_are_inlined_where_they_run() {
    with_inlined(PLENTY, |_, group, summary| {
        // g and h in f; k in the code of g that f has now. g and h themselves do not run any more.
        let calls = inlined(&group);
        assert_eq!(calls.len(), 3, "{calls:?}");
        let of_g = calls.iter().position(|&(_, at, _)| at == 0x09).unwrap() as u32 + 1;
        assert!(calls.contains(&(0, 0x09, 1)) && calls.contains(&(0, 0x0e, 2)), "{calls:?}");
        assert!(calls.contains(&(of_g, 0x50, 3)), "{calls:?}");
        // The jump of h to k is a call now.
        assert_eq!((summary.calls, summary.executed, summary.gone), (3, 230, 130));
        assert_eq!(group.shares.own[..3], [1.0, 0.0, 0.0]);
    });
    // Nothing is added for callees with one caller; k would add its code.
    with_inlined(InlineSettings { growth: 0.0, ..PLENTY }, |_, group, summary| {
        assert_eq!((inlined(&group).len(), summary.gone, summary.added_bytes), (2, 100, 0));
    });
    let small = InlineSettings { growth: 0.0, largest_alone: 12, ..PLENTY };
    with_inlined(small, |_, group, _| assert_eq!(inlined(&group), [(0, 0x0e, 2)]));
}

#[test]
fn functions_that_should_stay_called_do() {
    with_kernel(tables(), |kernel| {
        let memory = FileMemory(kernel);
        let of = |called: &[usize]| {
            let profile = profile(kernel);
            let all = [0, 1, 2, 3];
            let group = group_calling(kernel, &memory, &all, &profile, PLENTY, called).unwrap().0;
            let mut callees: Vec<u32> = inlined(&group).iter().map(|call| call.2).collect();
            callees.sort_unstable();
            callees
        };
        // Without g in f, k is inlined in g's own copy.
        assert_eq!((of(&[]), of(&[1])), (vec![1, 2, 3], vec![2, 3]));
        assert!(of(&[1, 2, 3]).is_empty());
    });
}

#[test]
fn inlined_code_has_its_share_of_the_counts() {
    with_inlined(PLENTY, |kernel, group, _| {
        let graph = group.graph(Some(&profile(kernel)));
        let inlining = &group.original.inlining;
        let pieces = &group.original.pieces;
        let piece = |context: u32, at: u64| {
            let range = inlining.pieces(context, pieces.len());
            range.into_iter().find(|&n| u64::from(pieces[n].at) == at).unwrap()
        };
        let of = |callee: u32| {
            inlining.calls().iter().position(|call| call.inlined() == Some(callee)).unwrap() as u32
                + 1
        };
        let count = |context, at| graph.counts[piece(context, at)];
        // The own copies of g and h do not run, k runs behind the jump of h that became a call.
        assert_eq!((count(0, F), count(0, G), count(0, H), count(0, K)), (100, 0, 0, 100));
        let (g, h, k) = (of(1), of(2), of(3));
        assert_eq!(
            (count(g, 0x45), count(g, 0x4f), count(h, 0x85), count(k, 0xc5)),
            (100, 30, 100, 30)
        );
        let edges: Vec<(usize, usize, u64)> = (graph.edges.iter())
            .filter(|edge| edge.count > 0)
            .map(|edge| (edge.from.index(), edge.to.index(), edge.count))
            .collect();
        let expected = [
            (piece(0, F), piece(g, 0x45), 100),
            (piece(g, 0x45), piece(g, 0x4e), 70),
            (piece(g, 0x45), piece(g, 0x4f), 30),
            (piece(g, 0x4e), piece(0, 0x0e), 70),
            (piece(g, 0x4f), piece(k, 0xc5), 30),
            (piece(k, 0xc5), piece(g, 0x55), 30),
            (piece(g, 0x55), piece(0, 0x0e), 30),
            (piece(0, 0x0e), piece(h, 0x85), 100),
            (piece(h, 0x85), piece(0, 0x13), 100),
        ];
        for edge in expected {
            assert!(edges.contains(&edge), "{edge:?} in {edges:?}");
        }
        assert_eq!(edges.len(), expected.len(), "{edges:?}");
        assert!(graph.calls.iter().all(|call| call.count == 0), "{:?}", graph.calls);
    });
}

/// Orders of all pieces: their own, turned around, and one that the code runs in.
fn orders(group: &Group<'_, '_>, kernel: &LinkedKernel<'_>) -> Vec<Vec<u32>> {
    let own = own_order(group);
    let turned = own.iter().rev().copied().collect();
    let algorithm = layout::Algorithm::ExtTspGlobal;
    let hot = crate::planned::order(group, Some(&profile(kernel)), algorithm, 0).unwrap();
    vec![own, turned, hot]
}

#[test]
fn the_proof_holds_in_any_order_and_finds_each_changed_byte() {
    with_inlined(PLENTY, |kernel, group, _| {
        for order in orders(&group, kernel) {
            let mut module = emitted(&group, &order, &[]).unwrap();
            prove(&group, &module).unwrap();
            assert_eq!(module.summary.calls_inlined, 3);
            let text = text_of(&module.bytes);
            let places = module.pieces.clone();
            for at in places.iter().flat_map(|&(at, size)| at..at + size) {
                let byte = text + at as usize;
                for flip in [0x01, 0x10, 0xff] {
                    module.bytes[byte] ^= flip;
                    assert!(
                        prove(&group, &module).is_err(),
                        "{flip:x} at .text+{at:#x}, {order:?}"
                    );
                    module.bytes[byte] ^= flip;
                }
            }
            prove(&group, &module).unwrap();
        }
    });
}

#[test]
fn copies_that_run_inlined_code_without_a_call_are_listed() {
    with_inlined(PLENTY, |kernel, group, _| {
        for order in orders(&group, kernel) {
            let mut module = emitted(&group, &order, &[]).unwrap();
            // The copy of f holds the code of g, h and k. That of h jumps to the copy of k.
            assert_eq!(module.holders, [(1, 0), (2, 0), (3, 0), (3, 2)]);
            for name in [".kernlane", ".kernlane.inlined"] {
                let (at, size) = section_of(&module.bytes, name);
                for byte in at..at + size {
                    module.bytes[byte] ^= 1;
                    assert!(prove(&group, &module).is_err(), "{name}+{:#x}", byte - at);
                    module.bytes[byte] ^= 1;
                }
            }
            prove(&group, &module).unwrap();
        }
    });
}

/// A tracer at k sees no jump of h's copy to k's.
#[test]
fn copies_that_jump_to_another_are_listed_also_without_inlined_calls() {
    let nothing = InlineSettings { growth: 0.0, largest: 0, largest_alone: 0, costs: None };
    with_inlined(nothing, |kernel, group, summary| {
        assert_eq!(summary.calls, 0);
        for order in orders(&group, kernel) {
            let mut module = emitted(&group, &order, &[]).unwrap();
            assert_eq!(module.holders, [(3, 2)]);
            let (at, size) = section_of(&module.bytes, ".kernlane");
            // Behind the module's number, which may be any.
            for byte in at + 0x20..at + size {
                module.bytes[byte] ^= 1;
                assert!(prove(&group, &module).is_err(), ".kernlane+{:#x}", byte - at);
                module.bytes[byte] ^= 1;
            }
            prove(&group, &module).unwrap();
        }
    });
}

#[test]
fn a_function_that_only_copies_call_is_asked_for_without_a_jump() {
    with_code(&[0x31, 0xc0], tables(), |kernel| {
        let (group, _) = inlined_group(kernel, PLENTY);
        let module = emitted(&group, &own_order(&group), &[]).unwrap();
        let calls_of_k = module.calls.iter().filter(|&&(_, function)| function == 3).count();
        let id = GroupId { module: "kl_test".into(), number: ModuleNumber([7; 16]) };
        let prepared = PreparedGroup::new(id, &group, module, Vec::new());
        let (functions, calls) = prepared.request(&group, 0xffff_ffff_c000_0000);
        let carried: Vec<(u8, u8, [u8; 5])> =
            functions.iter().map(|f| (f.patch_at, f.carried, f.expected)).collect();
        let jump = near(0xe9, 0x85, K).try_into().unwrap();
        assert_eq!(carried[2..], [(5, 0, jump), (5, 1, [0; 5])]);
        // The call in g's own copy, and that in place of the jump of the h in f.
        assert_eq!(calls_of_k, 2);
        assert_eq!(calls.iter().filter(|call| call.function == 3).count(), 2);
    });
}

/// Claims as the emitter makes them, and others that no module can have.
#[test]
fn the_proof_refuses_other_claims() {
    with_inlined(PLENTY, |kernel, group, _| {
        let module = emitted(&group, &own_order(&group), &[]).unwrap();
        let (claims, inlined) = (claims(&group, &module), inline_claims(&group));
        let proven = |claims: &[CopyClaim], inlined: &[InlineClaim]| {
            check_module(kernel, 0, &module.bytes, claims, inlined)
                .map_err(|error| format!("{error:#}"))
        };
        assert_eq!(proven(&claims, &inlined), Ok(0));
        let error = proven(&claims, &inlined[..2]).unwrap_err();
        assert!(error.contains("a block of code that no claim inlines"), "{error}");
        let with = |n: usize, change: &dyn Fn(&mut InlineClaim)| {
            let mut changed = inlined.clone();
            change(&mut changed[n]);
            proven(&claims, &changed).unwrap_err()
        };
        for n in 0..3 {
            let error = with(n, &|claim| claim.callee.0 ^= 0x40);
            assert!(error.contains("is no call of"), "{error}");
            let error = with(n, &|claim| claim.skip = Some(0));
            assert!(error.contains("no tracer's site"), "{error}");
            let error = with(n, &|claim| claim.skip = Some(6));
            assert!(error.contains("leaves out more"), "{error}");
            let error = with(n, &|claim| claim.context = 3);
            assert!(error.contains("inlined later") || error.contains("at ffffffff81"), "{error}");
            let error = with(n, &|claim| claim.skip = None);
            assert!(error.contains("is a direct call already"), "{error}");
            let other = inlined[(n + 1) % 3];
            with(n, &|claim| *claim = other);
        }
        for n in 0..claims.len() {
            let mut fewer = claims.clone();
            fewer.remove(n);
            assert!(proven(&fewer, &inlined).is_err(), "without claim {n}");
            for context in (0..4).filter(|&context| context != claims[n].context) {
                let mut moved = claims.clone();
                moved[n].context = context;
                assert!(proven(&moved, &inlined).is_err(), "claim {n} in context {context}");
            }
        }
    });
}

/// Both the kernel and the module have the same code, which the emitter would not inline.
#[test]
fn the_proof_refuses_code_that_would_see_the_difference() {
    with_inlined(PLENTY, |_, group, _| {
        let module = emitted(&group, &own_order(&group), &[]).unwrap();
        let text = text_of(&module.bytes);
        for (k, words) in [
            // mov (%rsp),%rax: the return address.
            ([0x48, 0x8b, 0x04, 0x24, 0x90, 0x90, 0x90], "reaches the return address"),
            // mov 8(%rsp),%rax: an argument on the stack.
            ([0x48, 0x8b, 0x44, 0x24, 0x08, 0x90, 0x90], "reaches the return address"),
            ([0x48, 0x89, 0xe0, 0x90, 0x90, 0x90, 0x90], "the stack pointer is copied"),
            ([0x53, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90], "another height of the stack"),
            ([0x5b, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90], "releases the return address"),
            ([0xff, 0xe0, 0x90, 0x90, 0x90, 0x90, 0x90], "in a way that is not followed"),
        ] {
            let mut changed = module.bytes.clone();
            let end = text + module.text_size as usize;
            let places = (text..end - 6).filter(|&at| changed[at..at + 7] == names_data());
            let places: Vec<usize> = places.collect();
            assert_eq!(places.len(), 2, "k's own copy, and the one in the code of g");
            for at in places {
                changed[at..at + 7].copy_from_slice(&k);
            }
            with_code(&k, tables(), |kernel| {
                let (claims, inlined) = (claims(&group, &module), inline_claims(&group));
                let error = check_module(kernel, 0, &changed, &claims, &inlined).unwrap_err();
                assert!(format!("{error:#}").contains(words), "{error:#}");
                // The emitter takes heights from the unwinder's table, which knows of no push.
                let own = Group::new(kernel, &FileMemory(kernel), &[3]).unwrap();
                let pushes = matches!(k[0], 0x53 | 0x5b);
                assert_eq!(own.original.inlinable(0).is_ok(), pushes, "{k:x?}");
            });
        }
    });
}

/// k has two bytes and a return: no jump fits behind its tracer's site.
#[test]
fn a_function_that_cannot_be_replaced_is_inlined_all_the_same() {
    with_code(&[0x31, 0xc0], tables(), |kernel| {
        let (group, _) = inlined_group(kernel, PLENTY);
        assert_eq!(group.left_out, [(3, Unfit::TooShort)]);
        assert!(inlined(&group).iter().any(|&(.., callee)| callee == 3), "{:?}", inlined(&group));
        assert_eq!(group.members, [(0, 5), (1, 5), (2, 5)]);
        let module = emitted(&group, &own_order(&group), &[]).unwrap();
        prove(&group, &module).unwrap();
        // Where nobody inlines it, it is not copied either.
        let settings = InlineSettings { growth: 0.0, ..PLENTY };
        let (group, _) = inlined_group(kernel, settings);
        assert_eq!((group.left_out.len(), group.original.functions.len()), (1, 3));
    });
    // A function whose frame is not known is neither.
    let odd = LinkedTables { orc: vec![(TEXT, EMPTY), (TEXT + K, [0; 6])], ..tables() };
    with_code(&[0x31, 0xc0], odd, |kernel| {
        assert_eq!(inlined_group(kernel, PLENTY).0.original.functions.len(), 3);
    });
}

/// A profile that counts no block of a callee, only its calls.
#[test]
fn a_callee_that_was_not_counted_is_known_by_its_calls() {
    with_kernel(tables(), |kernel| {
        let mut profile = profile(kernel);
        profile.blocks.retain(|&block, _| block < at(K));
        let (memory, all) = (FileMemory(kernel), [0, 1, 2, 3]);
        let inlined_by = |settings| {
            let (group, summary) = super::group(kernel, &memory, &all, &profile, settings).unwrap();
            (inlined(&group).iter().any(|&(.., callee)| callee == 3), summary.gone)
        };
        assert_eq!(inlined_by(PLENTY), (true, 130));
        // All of its 13 bytes count.
        assert_eq!(inlined_by(InlineSettings { largest_alone: 12, ..PLENTY }), (false, 0));
    });
}

/// A kernel whose g has a rare part in front of it, as since 7.2:
///
/// ```text
/// 00 f: call __fentry__    20 g.cold: mov $1,%ecx    40 g: call __fentry__
/// 05    nop                25         jmp 4d         45    test %edi,%edi
/// 06    call g                                       47    je 20
/// 0b    ret                                          4d    ret
/// ```
#[test]
fn the_code_of_a_callee_is_entered_at_its_entry_and_not_at_its_first_part() {
    let mut text = vec![0xcc; 0x80];
    let mut put = |at: usize, bytes: &[u8]| text[at..at + bytes.len()].copy_from_slice(bytes);
    for entry in [F, G] {
        put(entry as usize, &near(0xe8, entry, 0x1000));
    }
    put(0x05, &[&[0x90][..], &near(0xe8, 0x06, G), &[0xc3]].concat());
    put(0x20, &[&[0xb9, 1, 0, 0, 0][..], &near(0xe9, 0x25, 0x4d)].concat());
    put(0x45, &[&[0x85, 0xff, 0x0f, 0x84][..], &(-0x2d_i32).to_le_bytes(), &[0xc3]].concat());
    let note = [&[4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &[0x5f; 20]].concat();
    let file = elf(
        &[
            (".text", TEXT, 6, text),
            (".data", DATA, 3, vec![0; 0x40]),
            (".notes", DATA + 0x200, 2, note),
        ],
        &[
            TestSymbol("f", TEXT, 0xc),
            TestSymbol("g.cold", TEXT + 0x20, 0xa),
            TestSymbol("g", TEXT + G, 0xe),
            TestSymbol("_stext", TEXT, 0),
            TestSymbol("value", DATA, 8),
        ],
        0,
    );
    let mut kernel = LinkedKernel::parse(&file).unwrap();
    let tables = LinkedTables {
        tracer_sites: vec![TEXT, TEXT + G],
        orc: vec![(TEXT, EMPTY)],
        ..LinkedTables::default()
    };
    kernel.sites = PatchSites::of(&tables);
    kernel.tables = tables;
    let mut profile = Profile::empty(kernel.build_id.clone());
    profile.blocks.extend([(at(F), 9), (at(0x0b), 9), (at(G), 9), (at(0x4d), 9)]);
    profile.calls.insert((at(F), at(G)), 9);
    let memory = FileMemory(&kernel);
    let (group, _) = super::group(&kernel, &memory, &[0, 2], &profile, PLENTY).unwrap();
    assert_eq!(inlined(&group), [(0, 0x06, 2)], "{:?}", group.left_out);
    for order in [own_order(&group), own_order(&group).into_iter().rev().collect()] {
        let module = emitted(&group, &order, &[]).unwrap();
        prove(&group, &module).unwrap();
    }
}

/// Where the module's `.text` lies in its file.
fn text_of(module: &[u8]) -> usize {
    section_of(module, ".text").0
}

/// Where a section lies in the module's file, and its size.
fn section_of(module: &[u8], name: &str) -> (usize, usize) {
    use object::{Object, ObjectSection};
    let file = object::File::parse(module).unwrap();
    let (at, size) = file.section_by_name(name).unwrap().file_range().unwrap();
    (at as usize, size as usize)
}

#[test]
fn calls_returns_and_their_jumps_are_gone_where_code_lies_in_the_order_in_which_it_runs() {
    with_inlined(PLENTY, |kernel, group, _| {
        let orders = orders(&group, kernel);
        let module = emitted(&group, &orders[2], &[]).unwrap();
        let text = text_of(&module.bytes);
        let entry = text + module.entries[0] as usize;
        let found = &module.bytes[entry..entry + 15];
        // push %rbx; mov %rdi,%rbx; mov $1,%eax; test %edi,%edi; je; call k, of h.
        let expected =
            [0x53, 0x48, 0x89, 0xfb, 0xb8, 1, 0, 0, 0, 0x85, 0xff, 0x74, found[12], 0xe8];
        assert_eq!(found[..14], expected, "{found:x?}");
    });
}

#[test]
fn functions_without_a_known_frame_and_patched_calls_stay() {
    // The unwinder does not know k's frame.
    let odd = LinkedTables {
        orc: vec![(TEXT, EMPTY), (TEXT + K, [0; 6]), (TEXT + K + 0xd, EMPTY)],
        ..tables()
    };
    with_kernel(odd, |kernel| {
        let group = Group::new(kernel, &FileMemory(kernel), &[0, 1, 2, 3]).unwrap();
        assert_eq!(group.original.inlinable(3).err(), Some(Obstacle::Frame));
        let (group, _) = inlined_group(kernel, PLENTY);
        assert!(inlined(&group).iter().all(|&(.., callee)| callee != 3));
    });
    // The kernel patches the call of g: it is a static call.
    let patched = LinkedTables {
        static_calls: vec![image::linked::tables::StaticCallEntry { site: TEXT + 9, key: DATA }],
        ..tables()
    };
    with_kernel(patched, |kernel| {
        let (group, _) = inlined_group(kernel, PLENTY);
        assert!(inlined(&group).iter().all(|&(_, at, _)| at != 9), "{:?}", inlined(&group));
    });
}
