//! Checks kernels of a few dozen bytes: a correct rearrangement, wrong ones, and damaged files.

use super::padding::prove_dropped;
use super::test_elf::{DATA, TestSymbol, elf};
use super::verdict::Findings;
use super::{CheckedKernel, check, kallsyms, kernel::KernelFile, relocs::Relocs};
use image::address::LinkAddr;
use image::place::{CallPadding, Ending, PlacedBlock, Placement};
use std::collections::HashMap;

mod labels;

const TEXT: u64 = 0xffff_ffff_8100_0000;

/// A linked kernel: code, data with a pointer to `value`, an exception table, unwinder states.
struct TestKernel {
    /// Code in front of `TEXT`.
    front: Vec<u8>,
    text: Vec<u8>,
    /// The distance of the data from its place in the old kernel.
    shift: u64,
    exceptions: Vec<(u64, u64, u32)>,
    unwinder: Vec<(u64, u8)>,
    /// Sites of a paravirt table, and the bytes that the kernel overwrites there.
    paravirt: Vec<(u64, u8)>,
    symbols: Vec<TestSymbol>,
}

const EXCEPTIONS: u64 = DATA + 0x1000;
const ORC_IP: u64 = DATA + 0x2000;
const ORC: u64 = DATA + 0x3000;
const PARAVIRT: u64 = DATA + 0x4000;

impl TestKernel {
    fn data(&self) -> Vec<u8> {
        let mut data = (DATA + self.shift + 8).to_le_bytes().to_vec();
        data.extend_from_slice(b"constant");
        data
    }

    fn elf(&self) -> Vec<u8> {
        let near = |at: u64, to: u64| (to.wrapping_sub(at) as u32).to_le_bytes();
        let mut table = Vec::new();
        for (i, &(site, fixup, kind)) in self.exceptions.iter().enumerate() {
            let at = EXCEPTIONS + self.shift + 12 * i as u64;
            table.extend([near(at, site), near(at + 4, fixup), kind.to_le_bytes()].concat());
        }
        let mut ips = Vec::new();
        let mut states = Vec::new();
        for (i, &(ip, sp)) in self.unwinder.iter().enumerate() {
            ips.extend(near(ORC_IP + self.shift + 4 * i as u64, ip));
            states.extend([sp, 0, 0, 0, 5, 2]);
        }
        let text = [&self.front[..], &self.text].concat();
        let mut sections = vec![
            (".text", TEXT - self.front.len() as u64, 0x6, text),
            (".data", DATA + self.shift, 0x3, self.data()),
            ("__ex_table", EXCEPTIONS + self.shift, 0x2, table),
            (".orc_unwind_ip", ORC_IP + self.shift, 0x2, ips),
            (".orc_unwind", ORC + self.shift, 0x2, states),
        ];
        let entry = |&(site, length): &(u64, u8)| {
            [&site.to_le_bytes()[..], &[7, length, 0, 0, 0, 0, 0, 0]].concat()
        };
        let paravirt: Vec<u8> = self.paravirt.iter().flat_map(entry).collect();
        if !paravirt.is_empty() {
            sections.push((".parainstructions", PARAVIRT + self.shift, 0x2, paravirt));
        }
        elf(&sections, &self.symbols, self.shift)
    }
}

fn code(parts: &[(usize, &[u8])], size: usize) -> Vec<u8> {
    let mut text = vec![0xcc; size];
    for (at, bytes) in parts {
        text[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    text
}

/// ```text
/// f 00: test %rdi,%rdi; je 0a ──┐        h 20: xor %eax,%eax; jmp 30
///   05: call g                  │          30: ret; int3
///   0a: xor %eax,%eax; ret; int3◄          g 10: mov DATA(%rip),%rax; ret; int3
/// ```
fn old() -> TestKernel {
    let operand = (DATA as u32).wrapping_sub(TEXT as u32 + 0x17).to_le_bytes();
    let g = [&[0x48, 0x8b, 0x05], &operand[..], &[0xc3, 0xcc]].concat();
    TestKernel {
        front: Vec::new(),
        text: code(
            &[
                (
                    0x00,
                    &[0x48, 0x85, 0xff, 0x74, 0x05, 0xe8, 0x06, 0, 0, 0, 0x31, 0xc0, 0xc3, 0xcc],
                ),
                (0x10, &g),
                (0x20, &[0x31, 0xc0, 0xeb, 0x0c]),
                (0x30, &[0xc3, 0xcc]),
            ],
            0x40,
        ),
        shift: 0,
        exceptions: vec![(TEXT + 0x10, TEXT + 0x30, 3)],
        unwinder: vec![(TEXT, 8), (TEXT + 0x0a, 16), (TEXT + 0x10, 8), (TEXT + 0x40, 0)],
        paravirt: Vec::new(),
        symbols: vec![
            TestSymbol("f", TEXT, 0x0e),
            TestSymbol("g", TEXT + 0x10, 9),
            TestSymbol("h", TEXT + 0x20, 0x12),
            TestSymbol("pointer", DATA, 8),
            TestSymbol("value", DATA + 8, 8),
        ],
    }
}

/// The same program: g comes first. Then comes f with its condition inverted and the call far
/// behind. h has lost its jump. The data lies a page higher.
fn new() -> TestKernel {
    let shift = 0x1000_0000;
    let operand = ((DATA + shift) as u32).wrapping_sub(TEXT as u32 + 0x07).to_le_bytes();
    let g = [&[0x48, 0x8b, 0x05], &operand[..], &[0xc3, 0xcc]].concat();
    TestKernel {
        front: Vec::new(),
        text: code(
            &[
                (0x00, &g),
                // f: test; jne 40 ; xor; ret; int3
                (0x10, &[0x48, 0x85, 0xff, 0x75, 0x2b, 0x31, 0xc0, 0xc3, 0xcc]),
                // h: xor, then the ret that it jumped to
                (0x20, &[0x31, 0xc0, 0xc3, 0xcc]),
                // f.cold: call g; jmp 15
                (0x40, &[0xe8, 0xbb, 0xff, 0xff, 0xff, 0xeb, 0xce]),
            ],
            0x50,
        ),
        shift,
        exceptions: vec![(TEXT, TEXT + 0x22, 3)],
        unwinder: vec![
            (TEXT, 8),
            (TEXT + 0x15, 16),
            (TEXT + 0x19, 8),
            (TEXT + 0x45, 16),
            (TEXT + 0x47, 0),
        ],
        paravirt: Vec::new(),
        symbols: vec![
            TestSymbol("g", TEXT, 9),
            TestSymbol("f", TEXT + 0x10, 9),
            TestSymbol("h", TEXT + 0x20, 4),
            TestSymbol("f.cold", TEXT + 0x40, 7),
            TestSymbol("pointer", DATA, 8),
            TestSymbol("value", DATA + 8, 8),
        ],
    }
}

fn map() -> Placement {
    let block = |old, old_size, new, new_size, appended, ending| PlacedBlock {
        old: LinkAddr(TEXT + old),
        old_size,
        new: LinkAddr(TEXT + new),
        new_size,
        appended,
        ending,
    };
    Placement {
        blocks: vec![
            block(0x00, 5, 0x10, 5, 0, Ending::Inverted),
            block(0x05, 5, 0x40, 5, 2, Ending::Same),
            block(0x0a, 4, 0x15, 4, 0, Ending::Same),
            block(0x10, 9, 0x00, 9, 0, Ending::Same),
            block(0x20, 4, 0x20, 2, 0, Ending::JumpDropped),
            block(0x30, 2, 0x22, 2, 0, Ending::Same),
        ],
        ..Placement::default()
    }
}

/// The old kernel, with two bytes of call padding in front of g.
fn padded() -> TestKernel {
    let mut kernel = old();
    kernel.text[0x0e..0x10].fill(0x90);
    kernel.symbols.push(TestSymbol("__pfx_g", TEXT + 0x0e, 2));
    kernel
}

/// The kinds of difference between the old kernel and `new`.
fn kinds(new: &TestKernel, map: &Placement) -> Vec<&'static str> {
    kinds_between(&old(), new, map)
}

fn kinds_between(old: &TestKernel, new: &TestKernel, map: &Placement) -> Vec<&'static str> {
    let (old, new) = (old.elf(), new.elf());
    let side = |file| CheckedKernel { kernel: KernelFile::parse(file).unwrap(), relocs: None };
    let findings = check(&side(&old), &side(&new), map).unwrap();
    findings.differing.into_keys().collect()
}

fn changed(change: impl FnOnce(&mut TestKernel)) -> Vec<&'static str> {
    let mut image = new();
    change(&mut image);
    kinds(&image, &map())
}

#[test]
fn a_kernel_is_equal_to_itself() {
    assert_eq!(kinds(&old(), &Placement::default()), Vec::<&str>::new());
}

#[test]
fn a_correct_rearrangement_is_proved() {
    assert_eq!(kinds(&new(), &map()), Vec::<&str>::new());
}

/// Call padding may vanish with its name, if the map says so and the padding was no-ops.
#[test]
fn only_a_map_drops_call_padding() {
    let dropped = Placement { call_padding: CallPadding::Dropped, ..map() };
    assert_eq!(kinds_between(&padded(), &new(), &dropped), [""; 0]);
    assert_eq!(kinds_between(&padded(), &new(), &map()), ["symbols"]);
    let mut hashed = padded();
    hashed.text[0x0e] = 0xb8;
    assert!(!kinds_between(&hashed, &new(), &dropped).is_empty());
    let mut elsewhere = new();
    elsewhere.symbols.push(TestSymbol("__pfx_g", TEXT + 0x20, 2));
    assert!(!kinds_between(&padded(), &elsewhere, &dropped).is_empty());
}

/// k jumps into the inside of h, and lost the jump: a part of h, with its name, follows.
#[test]
fn a_part_behind_the_dropped_jump_of_another_function_has_its_own_name() {
    let (mut before, mut after, mut map) = (old(), new(), map());
    // h: xor; 22: ret. k: nop; jmp 22.
    before.text[0x20..0x24].copy_from_slice(&[0x31, 0xc0, 0xc3, 0xcc]);
    before.text[0x30..0x34].copy_from_slice(&[0x66, 0x90, 0xeb, 0xee]);
    before.symbols.retain(|s| s.0 != "h");
    before.symbols.extend([TestSymbol("h", TEXT + 0x20, 4), TestSymbol("k", TEXT + 0x30, 4)]);
    // h: xor; jmp 2a. k: nop, then the ret.
    after.text[0x20..0x24].copy_from_slice(&[0x31, 0xc0, 0xeb, 0x06]);
    after.text[0x28..0x2c].copy_from_slice(&[0x66, 0x90, 0xc3, 0xcc]);
    after.exceptions[0].1 = TEXT + 0x28;
    after.symbols.push(TestSymbol("k", TEXT + 0x28, 2));
    let block = |old, new, new_size, appended, ending| PlacedBlock {
        old: LinkAddr(TEXT + old),
        old_size: 2,
        new: LinkAddr(TEXT + new),
        new_size,
        appended,
        ending,
    };
    map.blocks.truncate(4);
    map.blocks.extend([
        block(0x20, 0x20, 2, 2, Ending::Same),
        block(0x22, 0x2a, 2, 0, Ending::Same),
        block(0x30, 0x28, 2, 0, Ending::Same),
        block(0x32, 0x2a, 0, 0, Ending::JumpDropped),
    ]);
    after.symbols.push(TestSymbol("h.warm.0", TEXT + 0x2a, 2));
    assert_eq!(kinds_between(&before, &after, &map), [""; 0]);
    after.symbols.last_mut().unwrap().0 = "f.warm.0";
    assert_ne!(kinds_between(&before, &after, &map), [""; 0]);
}

/// Control that arrives there goes on to the code, but the kernel's tables name the entry.
#[test]
fn a_branch_to_the_no_ops_in_front_of_its_target_is_found() {
    // f calls h, not g.
    let mut before = old();
    before.text[0x06] = 0x16;
    let after = |called: u8, jumped: u8| {
        let mut kernel = new();
        kernel.text[0x1e..0x20].fill(0x90);
        kernel.text[0x3e..0x40].fill(0x90);
        kernel.text[0x41] = called.wrapping_sub(0x45);
        kernel.text[0x14] = jumped.wrapping_sub(0x15);
        kinds_between(&before, &kernel, &map())
    };
    assert_eq!(after(0x20, 0x40), [""; 0]);
    assert_eq!(after(0x1e, 0x40), ["targets of branches"]);
    assert_eq!(after(0x20, 0x3e), ["targets of branches"]);
}

/// The last block of f lies behind two no-ops, and both other blocks of f jump to it.
#[test]
fn an_appended_jump_to_the_no_ops_in_front_of_its_target_is_found() {
    let mut map = map();
    map.blocks[0].appended = 2;
    map.blocks[2].new = LinkAddr(TEXT + 0x2a);
    let after = |first: u8, second: u8| {
        let mut kernel = new();
        kernel.text[0x15..0x20].fill(0xcc);
        kernel.text[0x28..0x2e].copy_from_slice(&[0x90, 0x90, 0x31, 0xc0, 0xc3, 0xcc]);
        kernel.text[0x15..0x17].copy_from_slice(&[0xeb, first - 0x17]);
        kernel.text[0x46] = second.wrapping_sub(0x47);
        let states = [(0x15, 16), (0x17, 8), (0x2a, 16), (0x2e, 8), (0x45, 16), (0x47, 0)];
        kernel.unwinder.truncate(1);
        kernel.unwinder.extend(states.map(|(at, state)| (TEXT + at, state)));
        kernel.symbols[1].2 = 7;
        kernel.symbols.push(TestSymbol("f.cold", TEXT + 0x2a, 4));
        kinds(&kernel, &map)
    };
    assert_eq!(after(0x2a, 0x2a), [""; 0]);
    assert_eq!(after(0x28, 0x2a), ["successors"]);
    assert_eq!(after(0x2a, 0x28), ["successors"]);
}

#[test]
fn code_like_padding_in_front_of_an_entry_is_found() {
    let mut text = new();
    text.text[0x1e..0x20].fill(0x90);
    for (name, at) in [("skl_call_thunk_template", 8), ("skl_call_thunk_tail", 10)] {
        text.symbols.push(TestSymbol(name, DATA + at, 0));
    }
    let file = text.elf();
    let kernel = KernelFile::parse(&file).unwrap();
    let dropped = HashMap::from([(TEXT + 0x1e, TEXT + 0x20)]);
    let differs = |placed: &[(u64, u64)]| {
        let mut findings = Findings::default();
        prove_dropped(&kernel, &kernel, &dropped, placed, &mut findings);
        !findings.equal()
    };
    assert!(!differs(&[(TEXT, TEXT + 0x10)]), "padding of no block is free");
    assert!(differs(&[(TEXT + 0x10, TEXT + 0x20)]));
}

/// Instead of a call, f has the mark by which Xen knows that it shall execute the next instruction.
#[test]
fn a_mark_for_a_hypervisor_stays_in_front_of_its_instruction() {
    let (mut before, mut after) = (old(), new());
    before.text[0x05..0x0a].copy_from_slice(b"\x0f\x0bxen");
    after.text[0x40..0x45].copy_from_slice(b"\x0f\x0bxen");
    assert_eq!(kinds_between(&before, &after, &map()), [""; 0]);
    after.text[0x46] ^= 1;
    assert_eq!(kinds_between(&before, &after, &map()), ["successors"]);
    after.text[0x46] ^= 1;
    after.text[0x42..0x45].copy_from_slice(b"kvm");
    assert_eq!(kinds_between(&before, &after, &map()), ["instructions"]);
}

#[test]
fn code_that_moved_without_a_map_is_a_difference() {
    assert!(!kinds(&new(), &Placement::default()).is_empty());
}

#[test]
fn wrong_code_is_found() {
    assert!(changed(|k| k.text[0x12] ^= 1).contains(&"instructions"), "another register");
    assert!(
        changed(|k| k.text[0x13] = 0x74).contains(&"instructions"),
        "the condition is not inverted"
    );
    assert!(changed(|k| k.text[0x14] = 0x0b).contains(&"targets of branches"), "a jump to h");
    assert!(
        changed(|k| k.text[0x46] = 0xcf).contains(&"successors"),
        "the appended jump goes elsewhere"
    );
    assert!(
        changed(|k| k.text[0x45] = 0x74).contains(&"blocks"),
        "the appended jump is conditional"
    );
    assert!(changed(|k| k.text[0x41] = 0xbc).contains(&"targets of branches"), "a call elsewhere");
    assert!(
        changed(|k| k.text[0x03] ^= 8).contains(&"RIP-relative operands"),
        "an operand elsewhere"
    );
    assert!(
        changed(|k| k.text[0x30] = 0xc3).contains(&"coverage"),
        "code that the old kernel does not have"
    );
    assert!(changed(|k| k.text[0x24] = 0xc3).contains(&"coverage"), "code behind a function");
    assert!(
        changed(|k| k.text[0x08] = 0x90).contains(&"instructions"),
        "no int3 behind the return"
    );
}

/// g has no return of its own, but a fault in it continues at one. So the code behind a call of g
/// runs.
#[test]
fn a_function_returns_if_a_fault_in_it_leads_to_a_return() {
    let (mut old, mut new) = (old(), new());
    old.text[0x17] = 0xcc;
    new.text[0x07] = 0xcc;
    assert_eq!(kinds_between(&old, &new, &map()), [""; 0]);
    new.text[0x46] ^= 1;
    assert_eq!(kinds_between(&old, &new, &map()), ["successors"]);
}

/// Code of another mode does not come back to a function without a return.
#[test]
fn a_function_that_ends_with_a_far_jump_does_not_return() {
    let kinds = |end: &[u8]| {
        let (mut old, mut new, mut map) = (old(), new(), map());
        // A fault in g would lead to a return.
        old.exceptions.clear();
        new.exceptions.clear();
        let size = 7 + end.len();
        old.text[0x17..0x17 + end.len()].copy_from_slice(end);
        new.text[0x07..0x07 + end.len()].copy_from_slice(end);
        (old.symbols[1].2, new.symbols[0].2) = (size as u64, size as u64);
        (map.blocks[3].old_size, map.blocks[3].new_size) = (size as u32, size as u32);
        // f's cold part goes elsewhere behind its call of g.
        new.text[0x46] ^= 1;
        kinds_between(&old, &new, &map)
    };
    // ljmp *(%rdi)
    assert_eq!(kinds(&[0xff, 0x2f]), [""; 0]);
    assert_eq!(kinds(&[0xff, 0x2f, 0xc3]), ["successors"], "and a return");
    // jmp *(%rdi)
    assert_eq!(kinds(&[0xff, 0x27]), ["successors"]);
}

/// The byte behind g's return differs from the old kernel. This is wrong if the int3 there belonged
/// to g. It is right if the int3 was the linker's padding behind g.
#[test]
fn an_int3_behind_a_return_must_stay_if_it_belongs_to_the_function() {
    let kinds = |size_of_g| {
        let (mut old, mut new, mut map) = (old(), new(), map());
        old.symbols[1].2 = size_of_g;
        (map.blocks[3].old_size, map.blocks[3].new_size) = (8, 8);
        new.text[8] = 0x90;
        kinds_between(&old, &new, &map)
    };
    assert_eq!(kinds(9), ["int3 behind returns"]);
    assert_eq!(kinds(8), [""; 0]);
}

#[test]
fn wrong_tables_and_data_are_found() {
    assert!(changed(|k| k.exceptions[0].1 += 1).contains(&"__ex_table"), "another fixup");
    assert!(changed(|k| k.exceptions[0].2 = 4).contains(&"__ex_table"), "another type");
    assert!(changed(|k| k.exceptions.clear()).contains(&"__ex_table"), "no entry");
    assert!(changed(|k| k.unwinder[1].1 = 24).contains(&"unwinder states"), "another state");
    assert!(
        changed(|k| k.unwinder[3].1 = 8).contains(&"unwinder states of appended jumps"),
        "the state before the jump"
    );
    assert!(changed(|k| k.unwinder.swap(0, 1)).contains(&"unwinder states"), "not sorted");
    assert!(changed(|k| k.symbols[0].1 += 1).contains(&"symbols"), "a name elsewhere");
    assert!(
        changed(|k| k.symbols[3].0 = "h.cold").contains(&"symbols of moved parts"),
        "a part under another's name"
    );
}

/// Linux before 6.8 overwrites calls through `pv_ops` at boot, by a table of its own.
#[test]
fn paravirt_sites_keep_their_bytes_together() {
    let kinds = |was: (u64, u8), is: (u64, u8)| {
        let (mut old, mut new) = (old(), new());
        old.paravirt = vec![(TEXT + was.0, was.1)];
        new.paravirt = vec![(TEXT + is.0, is.1)];
        kinds_between(&old, &new, &map())
    };
    // f's call goes to the cold part.
    assert_eq!(kinds((0x05, 5), (0x40, 5)), [""; 0]);
    let both = [".parainstructions", "alternatives in one piece"];
    assert_eq!(kinds((0x05, 5), (0x10, 5)), both, "another place");
    assert_eq!(kinds((0x05, 5), (0x40, 4)), [".parainstructions"]);
    // h's jump was dropped, and then f's call would be overwritten as well.
    assert_eq!(kinds((0x20, 4), (0x20, 4)), ["alternatives in one piece"]);
    assert_eq!(kinds((0x05, 7), (0x40, 7)), ["alternatives in one piece"]);
}

#[test]
fn wrong_maps_are_found() {
    let with = |change: fn(&mut Placement)| {
        let mut map = map();
        change(&mut map);
        kinds(&new(), &map)
    };
    assert!(!with(|m| m.blocks[0].ending = Ending::Same).is_empty());
    assert!(!with(|m| m.blocks[1].appended = 0).is_empty());
    assert!(!with(|m| m.blocks[4].ending = Ending::Same).is_empty());
    assert!(!with(|m| m.blocks[2].new.0 += 1).is_empty());
    assert!(
        !with(|m| m.blocks[5].new = LinkAddr(TEXT + 0x07)).is_empty(),
        "two blocks in one place"
    );
    assert!(
        with(|m| {
            m.blocks.remove(2);
        })
        .contains(&"coverage"),
        "code that no block covers"
    );
}

#[test]
fn a_map_that_is_not_ascending_is_refused() {
    let mut map = map();
    map.blocks.swap(0, 1);
    let file = old().elf();
    let side = || CheckedKernel { kernel: KernelFile::parse(&file).unwrap(), relocs: None };
    assert!(check(&side(), &side(), &map).is_err());
}

#[test]
fn files_that_are_not_kernels_are_refused() {
    for file in [
        &b""[..],
        b"\x7fELF",
        b"not a kernel, but long enough to hold a header of sixty-four bytes and more",
    ] {
        assert!(KernelFile::parse(file).is_err());
    }
    let mut object = old().elf();
    object[16] = 1;
    let refusal = KernelFile::parse(&object).err().unwrap().to_string();
    assert!(refusal.contains("object file"), "{refusal}");
}

#[test]
fn the_build_id_is_found_among_other_notes() {
    let note = |kind: u32, id: &[u8]| {
        [
            &4u32.to_le_bytes()[..],
            &(id.len() as u32).to_le_bytes(),
            &kind.to_le_bytes(),
            b"GNU\0",
            id,
        ]
        .concat()
    };
    let found = |notes: Vec<u8>| {
        let file = elf(
            &[(".text", TEXT, 0x6, vec![0xc3]), (".notes", DATA, 0x2, notes)],
            &[TestSymbol("f", TEXT, 1)],
            0,
        );
        KernelFile::parse(&file).unwrap().build_id()
    };
    let other = note(1, &[1, 2, 3, 4, 5, 0, 0, 0]);
    assert_eq!(found([&other[..], &note(3, &[0xab, 0x0c])].concat()), Some("ab0c".into()));
    assert_eq!(found(other.clone()), None);
    assert_eq!(found([&other[..], &note(3, &[7; 20])[..30]].concat()), None, "cut off");
    assert_eq!(found(vec![0xff; 40]), None);
}

/// A damaged file is refused or differs. Nothing panics.
#[test]
fn damaged_files_never_panic() {
    let (old, good) = (old().elf(), new().elf());
    let mut state = 1u64;
    let mut random = move |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let reference = CheckedKernel { kernel: KernelFile::parse(&old).unwrap(), relocs: None };
    let map = map();
    for round in 0..30_000 {
        let mut file = good.clone();
        for _ in 0..=round % 4 {
            let at = random(file.len());
            file[at] = if round % 3 == 0 { 0xff } else { random(256) as u8 };
        }
        file.truncate(if round % 5 == 0 { random(file.len()) } else { file.len() });
        let Ok(kernel) = KernelFile::parse(&file) else { continue };
        let _ = kallsyms::read(&kernel);
        let _ = Relocs::parse(&file[..file.len() / 4 * 4], &kernel);
        let damaged = CheckedKernel { kernel, relocs: None };
        let _ = check(&reference, &damaged, &map);
        let _ = check(&damaged, &reference, &map);
    }
}
