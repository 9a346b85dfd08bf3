//! Decisions about the kernel of `test_kernel`: what is a copy's code, who calls, what can be
//! replaced, which functions belong together.

use crate::callers::{self, Caller};
use crate::counters;
use crate::eligible::{self, Unfit};
use crate::explain::{Unexplained, explain};
use crate::group::Group;
use crate::hot;
use crate::install;
use crate::memory::{FileMemory, Memory};
use crate::symbols::KernelSymbols;
use crate::test_elf::DATA;
use crate::test_kernel::{F, G, H, SLIDE, STRAY, TEXT, at, bytes, emitted, tables, with};
use crate::watch::{self, Watched};
use image::address::LinkAddr;
use image::linked::tables::{LinkedTables, StaticCallEntry};
use image::ordinary::ReservedCode;
use layout::graph::EdgeKind;
use profile::Profile;

#[test]
fn memory_that_is_the_file_is_explained_and_copied() {
    with(tables(), |kernel| {
        for function in [F, G, H] {
            let file = bytes(kernel, function);
            assert_eq!(explain(kernel, &kernel.functions[function], &file, 0), Ok(file));
        }
    });
}

#[test]
fn an_address_that_the_kernel_moved_is_copied_as_it_is_in_memory() {
    with(tables(), |kernel| {
        let (function, file) = (&kernel.functions[G], bytes(kernel, G));
        let mut live = file.clone();
        live[8..12].copy_from_slice(&((DATA + SLIDE) as u32).to_le_bytes());
        assert_eq!(explain(kernel, function, &live, SLIDE), Ok(live.clone()));
        // By another distance than that of the kernel.
        assert_eq!(explain(kernel, function, &live, 2 * SLIDE), Err(Unexplained(at(0x45))));
        assert_eq!(explain(kernel, function, &file, SLIDE), Ok(file));
    });
}

#[test]
fn a_constant_is_copied_as_it_is_in_memory() {
    let constant = LinkedTables { constants: vec![(TEXT + 0x48, 4)], ..tables() };
    let mut live = with(tables(), |kernel| bytes(kernel, G));
    live[8..12].copy_from_slice(&[1, 2, 3, 4]);
    let copied = |tables| with(tables, |kernel| explain(kernel, &kernel.functions[G], &live, 0));
    assert_eq!(copied(constant), Ok(live.clone()));
    assert_eq!(copied(tables()), Err(Unexplained(at(0x45))));
}

/// The tracer's site has no-ops in memory; a copy is made from the file.
#[test]
fn what_the_kernel_patches_is_copied_as_it_is_in_the_file() {
    with(tables(), |kernel| {
        let (function, file) = (&kernel.functions[F], bytes(kernel, F));
        let mut live = file.clone();
        live[..5].copy_from_slice(&[0x0f, 0x1f, 0x44, 0, 0]);
        assert_eq!(explain(kernel, function, &live, 0), Ok(file.clone()));
        for (byte, instruction) in
            [(6, 5), (9, 8), (0x0b, 0x0a), (0x0e, 0x0c), (0x11, 0x11), (0x17, 0x17)]
        {
            let mut live = file.clone();
            live[byte] ^= 1;
            let first = Err(Unexplained(at(instruction)));
            assert_eq!(explain(kernel, function, &live, 0), first, "{byte:#x}");
        }
    });
}

#[test]
fn calls_and_tail_jumps_to_a_function_are_found() {
    with(tables(), |kernel| {
        let live = [(0, kernel.text_bytes().to_vec())];
        let found = callers::find(kernel, &live, &[(0x40, 5)]);
        let caller = |site| Caller { site: at(site), function: 0 };
        assert_eq!(found.callers, [caller(0x0c), caller(0x85)]);
        // The stray jump goes to the third of the bytes that would become a jump.
        assert_eq!(found.entered, [0]);
        let found = callers::find(kernel, &live, &[(0, 5), (0x80, 5)]);
        assert!(found.callers.is_empty() && found.entered.is_empty(), "{found:?}");
        // Another tool has changed the call: it is no longer the file's.
        let mut changed = live.clone();
        changed[0].1[0x0d] += 1;
        assert_eq!(callers::find(kernel, &changed, &[(0x40, 5)]).callers, [caller(0x85)]);
        // The jump of h lies in the bytes that become h's own jump.
        let both = callers::find(kernel, &live, &[(0x40, 5), (0x80, 5)]);
        assert_eq!(both.callers, [caller(0x0c)]);
    });
}

#[test]
fn a_call_that_the_kernel_patches_itself_is_left_alone() {
    let call = StaticCallEntry { site: TEXT + 0x0c, key: DATA };
    let patched = LinkedTables { static_calls: vec![call], ..tables() };
    with(patched, |kernel| {
        let found = callers::find(kernel, &[(0, kernel.text_bytes().to_vec())], &[(0x40, 5)]);
        assert_eq!(found.callers, [Caller { site: at(0x85), function: 0 }]);
    });
}

/// Why a function is left alone, in a kernel with these tables.
fn unfit(tables: LinkedTables, function: usize) -> Option<Unfit> {
    with(tables, |kernel| eligible::decide(kernel, function, &bytes(kernel, function), 0).err())
}

#[test]
fn a_function_is_replaced_or_left_alone_for_its_reason() {
    for function in [F, G, H] {
        assert_eq!(unfit(tables(), function), None);
    }
    with(tables(), |kernel| {
        let fit = eligible::decide(kernel, G, &bytes(kernel, G), 0).ok().unwrap();
        assert_eq!((fit.function, fit.patch_at, fit.code), (G, 5, bytes(kernel, G)));
        let mut live = bytes(kernel, G);
        live[9] ^= 1;
        let changed = eligible::decide(kernel, G, &live, 0).err();
        assert_eq!(changed, Some(Unfit::Changed(at(0x45))));
    });
    assert_eq!(unfit(tables(), STRAY), Some(Unfit::NoTracerSite));
    let short = LinkedTables { tracer_sites: vec![TEXT + 0xc0], ..tables() };
    assert_eq!(unfit(short, STRAY), Some(Unfit::TooShort));
    let unprobed = LinkedTables { unprobed: vec![TEXT + 0x40], ..tables() };
    assert_eq!(unfit(unprobed, G), Some(Unfit::ReservedCode(ReservedCode::Kprobes)));
    let patched = LinkedTables { returns: vec![TEXT + 0x85], ..tables() };
    assert_eq!(unfit(patched, H), Some(Unfit::PatchedEntry));
    let locked = LinkedTables { locks: vec![TEXT + 0x45], ..tables() };
    assert_eq!(unfit(locked, G), Some(Unfit::PatchedEntry));
}

#[test]
fn bytes_that_are_not_in_the_file_are_not_read() {
    with(tables(), |kernel| {
        let memory = FileMemory(kernel);
        assert_eq!(memory.read(at(0x17), 2).unwrap(), [0xc3, 0xcc]);
        assert_eq!(memory.slide(), 0);
        for (from, len) in [(at(0xff), 2), (at(0x100), 1), (LinkAddr(8), 1)] {
            let error = memory.read(from, len).unwrap_err().to_string();
            assert!(error.contains("is not in the file"), "{error}");
        }
    });
}

#[test]
fn a_group_is_emitted_and_proven_in_any_order_and_no_bit_of_its_code_may_differ() {
    with(tables(), |kernel| {
        let group = Group::new(kernel, &FileMemory(kernel), &[F, G, H, STRAY]).unwrap();
        let names: Vec<&str> = group.members.iter().map(|&(f, _)| group.name(f)).collect();
        assert_eq!(names, ["f", "g", "h"]);
        assert_eq!(group.left_out, [(STRAY, Unfit::NoTracerSite)]);
        assert_eq!(group.entries(), [(0, 5), (0x40, 5), (0x80, 5)]);
        let pieces = group.original.pieces.len() as u32;
        assert_eq!(pieces, 5);
        for order in [(0..pieces).collect::<Vec<_>>(), (0..pieces).rev().collect()] {
            let module = emitted(&group, &order, &[]).unwrap();
            install::prove(&group, &module).unwrap();
            let counted = emitted(&group, &order, &counters::places(&group)).unwrap();
            assert!(!counted.counted.is_empty());
            install::prove(&group, &counted).unwrap();
        }
        let mut module = emitted(&group, &[4, 2, 0, 1, 3], &[]).unwrap();
        let good = module.bytes.clone();
        let text = 64..64 + module.text_size as usize;
        // A field that a relocation fills is zero, and not what the kernel will run. int3 fills up.
        for at in text.filter(|&at| !matches!(good[at], 0 | 0xcc)) {
            for bit in 0..8 {
                module.bytes[at] ^= 1 << bit;
                assert!(install::prove(&group, &module).is_err(), "bit {bit} of {at:#x}");
                module.bytes[at] = good[at];
            }
        }
        install::prove(&group, &module).unwrap();
    });
}

#[test]
fn a_module_without_a_counter_that_was_asked_for_is_refused() {
    with(tables(), |kernel| {
        let group = Group::new(kernel, &FileMemory(kernel), &[G]).unwrap();
        let mut module = emitted(&group, &[0], &counters::places(&group)).unwrap();
        assert_eq!(module.counted, [0]);
        module.counted.push(1);
        let error = install::prove(&group, &module).unwrap_err().to_string();
        assert!(error.contains("has 1 counters instead of 2"), "{error}");
    });
}

#[test]
fn counts_of_blocks_become_edges_and_calls() {
    with(tables(), |kernel| {
        let group = Group::new(kernel, &FileMemory(kernel), &[F, G, H]).unwrap();
        let mut watched = watch::empty(kernel.build_id.clone());
        let counts = [Some(10), Some(4), Some(10), Some(7), None];
        watch::add(&group, counts.to_vec(), &mut watched);
        let profile = &watched.profile;
        let blocks: Vec<(u64, u64)> =
            profile.blocks.iter().map(|(at, &count)| (at.0 - TEXT, count)).collect();
        assert_eq!(blocks, [(0, 10), (0x0c, 4), (0x17, 10), (0x40, 7), (0x80, 0)]);
        let edge = |from: u64, to: u64| profile.edges.get(&(at(from), at(to))).copied();
        assert_eq!(edge(0, 0x17).unwrap().1, 6, "the branch was taken by the others");
        assert_eq!(edge(0, 0x0c).unwrap().1, 4);
        assert_eq!(edge(0x0c, 0x17).unwrap().1, 4);
        assert_eq!(edge(0x80, 0x40), Some((EdgeKind::Jump, 0)), "a tail jump of a block without");
        assert_eq!(profile.calls.get(&(at(0x0c), at(0x40))), Some(&4));
        assert_eq!((watched.counters, watched.blocks, watched.unknown_blocks), (4, 5, 1));
        let rows: Vec<(String, u64)> = watched.block_counts(kernel);
        assert_eq!(rows[3], ("ffffffff81000040".to_owned(), 7));
        assert_eq!(rows.len(), 5);
        let watched = Watched { levels: vec![1, 4], edges: 8, exact_edges: 7, ..watched };
        assert_eq!((watched.functions(), watched.exact_percent()), (5, 87.5));
        let nothing = Watched { edges: 0, exact_edges: 0, ..watched };
        assert_eq!(nothing.exact_percent(), 0.0);
    });
}

#[test]
fn a_block_of_several_pieces_ran_in_all_of_them() {
    with(tables(), |kernel| {
        let group = Group::new(kernel, &FileMemory(kernel), &[F]).unwrap();
        let mut profile = Profile::empty(kernel.build_id.clone());
        // Of the seven runs into the piece at 17, two came into the block in its middle.
        profile.blocks.extend([(at(0), 5), (at(0x17), 7)]);
        profile.edges.insert((at(0), at(0x17)), (EdgeKind::FallThrough, 7));
        let graph = group.graph(Some(&profile));
        layout::validate(&graph).unwrap();
        assert_eq!(graph.counts, [5, 7, 7]);
        let edges: Vec<_> = graph.edges.iter().map(|it| (it.from.0, it.to.0, it.count)).collect();
        assert_eq!(edges, [(0, 1, 5), (1, 2, 7)]);
    });
}

#[test]
fn a_group_has_the_hot_functions_that_its_root_leads_to() {
    with(tables(), |kernel| {
        let mut profile = Profile::empty(kernel.build_id.clone());
        profile.blocks.extend([(at(0), 100), (at(0x40), 11), (at(0x80), 50)]);
        profile.calls.insert((at(0x0c), at(0x40)), 11);
        assert_eq!(hot::group(kernel, &profile, F, 0.1), [F, G]);
        // "More than" a part of the root's calls.
        assert_eq!(hot::group(kernel, &profile, F, 0.11), [F]);
        assert_eq!(hot::group(kernel, &profile, H, 0.1), [H], "nothing leads from h");
        profile.edges.insert((at(0x80), at(0x40)), (EdgeKind::Jump, 50));
        assert_eq!(hot::group(kernel, &profile, H, 0.1), [G, H]);
        assert_eq!(hot::groups(kernel, &profile, &[H, F], 0.1), [F, G, H]);
        assert_eq!(hot::least_limit(kernel, &profile, &[F, H], 0.1), 5.0);
        let group = Group::new(kernel, &FileMemory(kernel), &[F, G, H]).unwrap();
        assert_eq!(hot::blocks(&group, &profile, 11.0), [0, 4]);
    });
}

#[test]
fn the_list_of_symbols_says_where_the_kernel_is_and_must_fit_the_file() {
    let list = |text: &str| KernelSymbols::from_text(text.into());
    with(tables(), |kernel| {
        let good = "ffffffff81200000 T _stext\nffffffff81200040 t g\nffffffffc0000000 t x\t[m]\n";
        assert_eq!(list(good).slide(kernel).unwrap(), SLIDE);
        list(good).verify(kernel, SLIDE).unwrap();
        let error = list(good).verify(kernel, 0).unwrap_err().to_string();
        assert!(error.contains("symbol _stext is not at ffffffff81200000"), "{error}");
        let absent = format!("{good}ffffffff81200080 T gone\n");
        let error = list(&absent).verify(kernel, SLIDE).unwrap_err().to_string();
        assert!(error.contains("symbol gone is not at ffffffff81000080"), "{error}");
        assert!(list("").slide(kernel).unwrap_err().to_string().contains("no symbol _stext"));
        let hidden = list("0000000000000000 T _stext\n").slide(kernel).unwrap_err().to_string();
        assert!(hidden.contains("shows no addresses"), "{hidden}");
    });
}
