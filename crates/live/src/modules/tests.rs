//! Modules beside the kernel of `test_kernel`: where their code is, what it calls, and what of it
//! is compared with memory.

use super::*;
use crate::choice;
use crate::eligible::{self, Unfit};
use crate::explain::explain;
use crate::group::Group;
use crate::keep::kept::{KeptGroup, KeptLayout};
use crate::lasting;
use crate::memory::FileMemory;
use crate::test_elf::{DATA, TestSymbol, elf as test_elf};
use crate::test_kernel::{F, G, TEXT, at, tables, vmlinux};
use image::examples::module_object;
use image::linked::tables::StaticCallEntry;
use image::module::{ModuleIdentity, base_of};
use image::object::instructions::InstructionKind;
use object::write::{Object, Relocation, Symbol, SymbolSection};
use object::{RelocationFlags, SectionKind, SymbolFlags, SymbolKind, SymbolScope, elf};
use profile::Profile;

/// Where the kernel put the two modules, as link addresses.
const FIRST: u64 = 0xffff_ffff_c000_0000;
const SECOND: u64 = FIRST + 0x1_0000;
/// Where a section of tables is, behind a module's code.
const TABLE: u64 = 0x2000;
const SLIDE: u64 = 0x20_0000;

/// The module of `image::examples`, which calls g, with a site of the function tracer at f.
fn calls_g() -> Object<'static> {
    let mut file = module_object();
    let sites = file.add_section(Vec::new(), b"__mcount_loc".to_vec(), SectionKind::ReadOnlyData);
    file.append_section_data(sites, &[0; 8], 8);
    let symbol = file.symbol_id(b"f").unwrap();
    let flags = RelocationFlags::Elf { r_type: elf::R_X86_64_64 };
    file.add_relocation(sites, Relocation { offset: 0, symbol, addend: 0, flags }).unwrap();
    file
}

/// Another one, with a function g at +0x20.
fn has_g() -> Object<'static> {
    let mut file = module_object();
    let text = file.section_id(object::write::StandardSection::Text);
    let value = file.append_section_data(text, &[0xc3], 32);
    file.add_symbol(Symbol {
        name: b"g".to_vec(),
        value,
        size: 1,
        kind: SymbolKind::Text,
        scope: SymbolScope::Linkage,
        weak: false,
        section: SymbolSection::Section(text),
        flags: SymbolFlags::None,
    });
    file
}

fn placed(data: &[u8], base: u64) -> ModuleFile<'_> {
    let places = [(".text", base), (".init.text", base + 0x1000), ("__mcount_loc", base + TABLE)];
    let sections = places.map(|(name, at)| (name.to_owned(), LinkAddr(at)));
    ModuleFile { data, sections: sections.into() }
}

/// Its file, with a name of its own.
fn file_with_g() -> Vec<u8> {
    let mut file = has_g().write().unwrap();
    let at = file.windows(11).position(|bytes| bytes == b"name=my_mod").unwrap();
    file[at..at + 11].copy_from_slice(b"name=my_two");
    file
}

/// The kernel with both modules.
fn with_both<T>(test: impl FnOnce(&LinkedKernel<'_>, &LoadedModule) -> T) -> T {
    let (file, first, second) = (vmlinux(), calls_g().write().unwrap(), file_with_g());
    let mut kernel = LinkedKernel::parse(&file).unwrap();
    kernel.tables = tables();
    let files = [placed(&first, FIRST), placed(&second, SECOND)];
    let modules: Vec<LoadedModule> =
        loaded::relocate(&kernel, &files).into_iter().map(Result::unwrap).collect();
    test(&kernel.with_modules(&modules).unwrap(), &modules[0])
}

#[test]
fn functions_of_modules_stand_behind_the_kernel_s_and_call_each_other() {
    with_both(|kernel, _| {
        let titles: Vec<String> = kernel.functions.iter().map(|f| kernel.title(f)).collect();
        let of_modules = ["f [my_mod]", "h [my_mod]", "f [my_two]", "h [my_two]", "g [my_two]"];
        assert_eq!(titles[..4], ["f", "g", "h", "stray"]);
        // What the kernel frees when a module has started is not there.
        assert_eq!(titles[4..], of_modules);
        let target = |function: usize, n: usize| {
            let instruction = kernel.instructions(&kernel.functions[function])[n];
            (instruction.kind, kernel.link_address(instruction.target))
        };
        assert_eq!(target(4, 0), (InstructionKind::Call, LinkAddr(SECOND + 0x20)));
        assert_eq!(target(5, 0), (InstructionKind::Jump, LinkAddr(FIRST)));
        assert_eq!(target(6, 0), (InstructionKind::Call, LinkAddr(SECOND + 0x20)));
        let places = [(TEXT, None), (FIRST, Some(4)), (SECOND + 0x20, Some(8)), (DATA, None)];
        for (place, function) in places {
            let found = kernel.function_at(LinkAddr(place)).filter(|&f| f >= 4);
            assert_eq!(found, function, "{place:x}");
            assert_eq!(kernel.module_at(LinkAddr(place)).is_some(), function.is_some());
        }
        let is_code = [(TEXT, true), (DATA, false), (FIRST, true), (FIRST + 0x15, false)];
        assert!(is_code.iter().all(|&(at, known)| kernel.text_offset(at).is_some() == known));
        let moves =
            [(DATA, true), (FIRST + TABLE, true), (FIRST + 0x1000, false), (0x1c000, false)];
        assert!(moves.iter().all(|&(at, known)| kernel.moves(at) == known));
        assert_eq!(kernel.tables.tracer_sites, [TEXT, TEXT + 0x40, TEXT + 0x80, FIRST]);
        // The kernel's own sections are found by their names, whatever modules have.
        assert_eq!(kernel.loaded("__mcount_loc"), None);
        assert_eq!(kernel.loaded(".text").map(|(at, _)| at), Some(at(0)));
    });
}

#[test]
fn code_of_the_kernel_and_of_modules_is_cut_as_each_alone() {
    with_both(|kernel, _| {
        let together = kernel.cut(&[F, 4, 8]);
        let alone: Vec<_> = [F, 4, 8].iter().map(|&index| kernel.cut(&[index])).collect();
        let pieces = |cut: &image::object::pieces::CutCode| -> Vec<(u32, u32)> {
            cut.pieces.iter().map(|piece| (piece.at, piece.size)).collect()
        };
        assert_eq!(pieces(&together), alone.iter().flat_map(pieces).collect::<Vec<_>>());
        let owners: Vec<u32> = together.pieces.iter().map(|piece| piece.function).collect();
        let expected: Vec<u32> =
            (0u32..).zip(&alone).flat_map(|(n, cut)| vec![n; cut.pieces.len()]).collect();
        assert_eq!(owners, expected);
    });
}

#[test]
fn a_module_s_code_is_compared_with_memory() {
    with_both(|kernel, _| {
        let function = &kernel.functions[4];
        let live = kernel.code(function.at, function.end).to_vec();
        assert_eq!(explain(kernel, function, &live, SLIDE), Ok(live.clone()));
        let mut changed = live.clone();
        changed[10] = 0x90;
        let unfit = eligible::decide(kernel, 4, &changed, SLIDE).err();
        assert_eq!(unfit, Some(Unfit::Changed(LinkAddr(FIRST + 10))));
        assert!(eligible::decide(kernel, 5, &live[..5], SLIDE).is_err(), "without a tracer's site");
    });
}

/// The module of another caller may go while the group stays.
#[test]
fn only_calls_of_the_kernel_and_of_the_members_modules_are_aimed_at_copies() {
    with_both(|kernel, _| {
        let calling = |function: usize| -> Vec<u64> {
            let memory = FileMemory(kernel);
            let group = Group::new(kernel, &memory, &[function]).unwrap();
            assert_eq!(group.members.len(), 1);
            let code = install::calling_code(&group, &memory).unwrap();
            code.iter().map(|&(offset, _)| kernel.link_address(offset).0).collect()
        };
        assert_eq!(calling(F), [TEXT]);
        assert_eq!(calling(4), [TEXT, FIRST]);
    });
}

#[test]
fn a_module_s_tables_are_compared_with_memory() {
    with_both(|kernel, module| {
        let file = module.tables(kernel).unwrap();
        assert_eq!(file.tracer_sites, [FIRST]);
        let live = |site: u64| {
            let read = |at: LinkAddr, len: usize| match at.0 {
                at if at == FIRST + TABLE => Ok((site + SLIDE).to_le_bytes().to_vec()),
                _ => Ok(vec![0; len]),
            };
            module.tables_in(kernel, SLIDE, &read).unwrap()
        };
        assert_eq!(difference(&file, &live(FIRST)), None);
        assert_eq!(difference(&file, &live(FIRST + 1)), Some("the function tracer"));
    });
}

/// The loader writes the key of a static call where the file names its trampoline.
#[test]
fn a_static_call_of_a_module_has_the_kernel_s_key() {
    const TRAMPOLINE: u64 = TEXT + 0x40;
    const KEY: u64 = DATA + 0x80;
    const TAIL: u64 = 1;
    let field = |at: u64, to: u64| (to.wrapping_sub(at) as u32).to_le_bytes();
    let keys = [field(DATA, TRAMPOLINE), field(DATA + 4, KEY), [0; 4]].concat();
    let note = [&[4, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &[0xca, 0xfe, 0, 0]].concat();
    let file = test_elf(
        &[
            (".text", TEXT, 6, vec![0xc3; 0x100]),
            (".data", DATA, 3, keys),
            (".notes", DATA + 0x200, 2, note),
        ],
        &[
            TestSymbol("f", TEXT, 0x20),
            TestSymbol("__start_static_call_tramp_key", DATA, 0),
            TestSymbol("__stop_static_call_tramp_key", DATA + 8, 0),
        ],
        0,
    );
    let mut object = module_object();
    let name = b".static_call_sites".to_vec();
    let sites = object.add_section(Vec::new(), name, SectionKind::ReadOnlyData);
    object.append_section_data(sites, &[0; 8], 8);
    let trampoline = object.add_symbol(Symbol {
        name: b"__SCT__x".to_vec(),
        value: TRAMPOLINE,
        size: 0,
        kind: SymbolKind::Data,
        scope: SymbolScope::Linkage,
        weak: false,
        section: SymbolSection::Absolute,
        flags: SymbolFlags::None,
    });
    let f = object.symbol_id(b"f").unwrap();
    for (offset, symbol, addend) in [(0, f, 0), (4, trampoline, TAIL as i64)] {
        let flags = RelocationFlags::Elf { r_type: elf::R_X86_64_PC32 };
        object.add_relocation(sites, Relocation { offset, symbol, addend, flags }).unwrap();
    }
    let data = object.write().unwrap();
    let mut placed = placed(&data, FIRST);
    placed.sections.insert(".static_call_sites".to_owned(), LinkAddr(FIRST + TABLE));
    let kernel = LinkedKernel::parse(&file).unwrap();
    let module = loaded::relocate(&kernel, &[placed]).remove(0).unwrap();
    let calls = module.tables(&kernel).unwrap().static_calls;
    assert_eq!(calls, [StaticCallEntry { site: FIRST, key: KEY | TAIL }]);
}

/// What a module makes read-only when it has started is never written to by another module.
#[test]
fn a_key_that_a_module_made_read_only_is_left_alone() {
    let file = vmlinux();
    let read_only_key = |name: &str| {
        let mut object = module_object();
        let mut add = |name: &str| {
            let section = object.add_section(Vec::new(), name.into(), SectionKind::Data);
            object.append_section_data(section, &[0; 16], 8);
            section
        };
        let (keys, table) = (add(name), add("__jump_table"));
        let (f, key) = (object.symbol_id(b"f").unwrap(), object.section_symbol(keys));
        for (offset, symbol, r_type) in
            [(0, f, elf::R_X86_64_PC32), (4, f, elf::R_X86_64_PC32), (8, key, elf::R_X86_64_PC64)]
        {
            let flags = RelocationFlags::Elf { r_type };
            object.add_relocation(table, Relocation { offset, symbol, addend: 0, flags }).unwrap();
        }
        let data = object.write().unwrap();
        let mut placed = placed(&data, FIRST);
        placed.sections.insert(name.to_owned(), LinkAddr(FIRST + TABLE));
        placed.sections.insert("__jump_table".to_owned(), LinkAddr(FIRST + TABLE + 0x100));
        let mut kernel = LinkedKernel::parse(&file).unwrap();
        kernel.tables.seals_keys = true;
        kernel.tables.read_only = 0..0;
        let modules = [loaded::relocate(&kernel, &[placed]).remove(0).unwrap()];
        let kernel = kernel.with_modules(&modules).unwrap();
        kernel.tables.site_of_read_only_key(LinkAddr(FIRST), LinkAddr(FIRST + 8))
    };
    assert_eq!(read_only_key(".data..ro_after_init"), Some(LinkAddr(FIRST)));
    assert_eq!(read_only_key(".data"), None);
}

#[test]
fn what_cannot_be_a_part_of_the_kernel_is_refused() {
    let (file, data) = (vmlinux(), calls_g().write().unwrap());
    let joined = |bases: [u64; 2]| {
        let kernel = LinkedKernel::parse(&file).unwrap();
        let files = bases.map(|base| placed(&data, base));
        let modules: Vec<LoadedModule> =
            loaded::relocate(&kernel, &files).into_iter().map(Result::unwrap).collect();
        kernel.with_modules(&modules).map(|_| ()).map_err(|error| format!("{error:#}"))
    };
    assert_eq!(joined([FIRST, SECOND]), Ok(()));
    let same = "two modules lie at one address: one was removed while they were read; try again";
    assert_eq!(joined([FIRST, FIRST + 8]), Err(same.to_owned()));
    for place in [TEXT - 0x1_0000, TEXT - 8] {
        let far = joined([FIRST, place]).unwrap_err();
        assert!(far.contains("farther from the kernel than a call reaches"), "{far}");
    }

    let mut odd = calls_g();
    let section = odd.add_section(Vec::new(), b"__odd".to_vec(), SectionKind::ReadOnlyData);
    odd.append_section_data(section, &[0; 8], 8);
    let odd = odd.write().unwrap();
    let kernel = LinkedKernel::parse(&file).unwrap();
    let found = loaded::relocate(&kernel, &[placed(&odd, FIRST)]).remove(0);
    let error = found.err().unwrap().to_string();
    assert!(error.contains("has a section __odd that Kernlane does not know"), "{error}");
}

#[test]
fn damaged_modules_give_errors() {
    let (file, whole) = (vmlinux(), calls_g().write().unwrap());
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        let kernel = LinkedKernel::parse(&file).unwrap();
        let files = [placed(&damaged, FIRST), placed(&whole[..at], SECOND)];
        let found = loaded::relocate(&kernel, &files);
        let modules: Vec<LoadedModule> = found.into_iter().flatten().collect();
        let Ok(kernel) = kernel.with_modules(&modules) else { continue };
        for index in 0..kernel.functions.len() {
            kernel.cut(&[index]);
            kernel.title(&kernel.functions[index]);
        }
    }
}

#[test]
fn modules_that_have_started_are_read_but_not_kernlane_s() {
    let list = "ext4 1007616 1 - Live 0xffffffffc0400000\n\
                jbd2 188416 1 ext4, Live 0xffffffffc03c0000\n\
                xfs 1 0 - Loading 0x0\nkernlane 1 0 - Live 0x0\nkernlane_12 1 0 - Live 0x0\n\
                kernlane_x 1 0 - Live 0x0\nshort\n";
    assert_eq!(named(list).collect::<Vec<_>>(), ["ext4", "jbd2", "kernlane_x"]);
}

#[test]
fn a_table_that_differs_is_named_and_a_trap_that_has_warned_does_not_differ() {
    let bug = BugEntry { site: 1, format: None, file: 2, line: 3, flags: 1 };
    let tables = |bug| LinkedTables { bugs: vec![bug], ..LinkedTables::default() };
    let warned = tables(BugEntry { flags: 5, ..bug });
    assert_eq!(difference(&tables(bug), &warned), None);
    let other = tables(BugEntry { line: 4, ..bug });
    assert_eq!(difference(&tables(bug), &other), Some("traps"));
    let locks = LinkedTables { locks: vec![1], ..tables(bug) };
    assert_eq!(difference(&tables(bug), &locks), Some("locks"));
}

#[test]
fn a_name_is_the_kernel_s_or_else_a_module_s() {
    with_both(|kernel, _| {
        let found = |name: &str| choice::find(kernel, name).map_err(|error| error.to_string());
        assert_eq!((found("f"), found("f [my_mod]"), found("f [my_two]")), (Ok(F), Ok(4), Ok(6)));
        assert_eq!((found("g"), found("g [my_two]")), (Ok(G), Ok(8)));
        let missing = "neither the kernel's text nor that of a loaded module has a function ";
        for absent in ["absent", "g [my_mod]", "f [absent]", "stray [my_mod]", "f [", " ["] {
            assert_eq!(found(absent), Err(format!("{missing}{absent}")));
        }
    });
    // The kernel has no function of that name, and two modules have.
    let (file, data) = (vmlinux(), file_with_g());
    let mut kernel = LinkedKernel::parse(&file).unwrap();
    kernel.tables = tables();
    let mut other = data.clone();
    for (name, new) in [(&b"name=my_two"[..], &b"name=my_one"[..]), (b"\0g\0", b"\0k\0")] {
        let at = other.windows(name.len()).position(|bytes| bytes == name).unwrap();
        other[at..at + name.len()].copy_from_slice(new);
    }
    let files = [placed(&other, FIRST), placed(&other, SECOND)];
    let modules: Vec<LoadedModule> =
        loaded::relocate(&kernel, &files).into_iter().map(Result::unwrap).collect();
    let kernel = kernel.with_modules(&modules).unwrap();
    let error = choice::find(&kernel, "k").unwrap_err().to_string();
    assert_eq!(error, "k: 2 functions have this name, in my_one, my_one");
}

/// A profile of a file names the code of modules by other addresses than memory.
#[test]
fn counts_of_modules_are_found_wherever_the_module_lies() {
    with_both(|kernel, _| {
        let places = [(at(0x0c), at(0x0c)), (LinkAddr(FIRST + 5), base_of("my_mod"))];
        let mut profile = Profile::empty(kernel.build_id.clone());
        profile.blocks.extend(places.map(|(at, _)| (at, 7)));
        profile.calls.insert((LinkAddr(FIRST), LinkAddr(SECOND + 0x20)), 3);
        let lasting = lasting::lasting(kernel, profile.clone());
        let blocks: Vec<LinkAddr> = lasting.blocks.keys().copied().collect();
        assert_eq!(blocks, [LinkAddr(base_of("my_mod").0 + 5), at(0x0c)]);
        let called = LinkAddr(base_of("my_two").0 + 0x20);
        assert_eq!(lasting.calls, [((base_of("my_mod"), called), 3)].into());
        let names: Vec<&str> = lasting.modules.iter().map(|module| &*module.name).collect();
        assert_eq!(names, ["my_mod"], "the modules with counts of blocks");

        let text = lasting.to_json();
        let present = |text: &str| {
            let mut told = Vec::new();
            let found = choice::profile_for(kernel, text, &mut |line| told.push(line.to_owned()));
            let found = found.unwrap();
            (found.blocks, found.calls, told)
        };
        assert_eq!(present(&text), (profile.blocks, profile.calls, vec![]));
        // Of another build, or of a module that is not loaded: the kernel's own counts stay.
        for (name, build_id) in [("my_mod", "ab"), ("my_old", "ca")] {
            let mut other = lasting.clone();
            other.modules[0] = ModuleIdentity { name: name.into(), build_id: build_id.into() };
            let by = base_of(name).0.wrapping_sub(base_of("my_mod").0);
            let other = other.moved(&|at| {
                let is_counted = at.0 >> 32 == base_of("my_mod").0 >> 32;
                Some(LinkAddr(if is_counted { at.0.wrapping_add(by) } else { at.0 }))
            });
            let (blocks, calls, told) = present(&other.to_json());
            assert_eq!((blocks, calls.len()), ([(at(0x0c), 7)].into(), 0));
            let begins = format!("the profile's counts of the module {name} ({build_id}) are left");
            assert!(told.len() == 1 && told[0].starts_with(&begins), "{told:?}");
        }
    });
}

#[test]
fn what_is_kept_is_found_where_its_module_lies_now() {
    let layout = KeptLayout {
        algorithm: layout::Algorithm::Original,
        seed: 0,
        inline: false,
        call_costs: None,
    };
    let (group, build) = with_both(|kernel, _| {
        let mut profile = Profile::empty(kernel.build_id.clone());
        profile.blocks.extend([(LinkAddr(FIRST), 7), (at(0), 5)]);
        let group = KeptGroup::new(kernel, &[F, 4], &[4], Some(&profile), layout);
        assert_eq!(group.names().collect::<Vec<_>>(), ["f", "f [my_mod]"]);
        assert!(group.has_modules());
        assert!(!KeptGroup::new(kernel, &[F], &[], None, layout).has_modules());
        (group, kernel.build_id.clone())
    });
    let carried = |data: &[u8], base: u64| {
        let file = vmlinux();
        let mut kernel = LinkedKernel::parse(&file).unwrap();
        kernel.tables = tables();
        let modules = [loaded::relocate(&kernel, &[placed(data, base)]).remove(0).unwrap()];
        let kernel = kernel.with_modules(&modules).unwrap();
        let carried = group.carry(&build, &kernel).unwrap();
        let titles: Vec<String> =
            (carried.chosen.iter()).map(|&index| kernel.title(&kernel.functions[index])).collect();
        let blocks: Vec<LinkAddr> = carried.profile.unwrap().blocks.into_keys().collect();
        (titles, blocks, carried.left_out, carried.called.len())
    };
    let both = vec!["f".to_owned(), "f [my_mod]".to_owned()];
    let data = calls_g().write().unwrap();
    let place = LinkAddr(SECOND + 0x40);
    assert_eq!(carried(&data, place.0), (both.clone(), vec![at(0), place], vec![], 1));
    // Another module, and another build of that one.
    let without = (both[..1].to_vec(), vec![at(0)], both[1..].to_vec(), 0);
    assert_eq!(carried(&file_with_g(), FIRST), without);
    let mut rebuilt = data.clone();
    let id = rebuilt.windows(4).position(|bytes| bytes == b"GNU\0").unwrap() + 4;
    rebuilt[id] ^= 1;
    assert_eq!(carried(&rebuilt, FIRST), without);
}

#[test]
fn modules_are_left_alone_for_a_reason() {
    let left_out = |name: &str, reason: &str| LeftOutModule {
        name: name.to_owned(),
        reason: reason.to_owned(),
    };
    let found = RunningModules {
        left_out: vec![left_out("a", "no file"), left_out("b", "odd"), left_out("c", "no file")],
        ..RunningModules::default()
    };
    assert_eq!(
        found.reasons(),
        ["the modules a, c are left alone: no file", "the module b is left alone: odd"]
    );
}
