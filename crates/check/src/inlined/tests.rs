//! Tests of claims: a kernel of a few functions, with a call inlined, and wrong ones.

use super::*;
use crate::check;
use crate::test_elf::{DATA, TestSymbol, elf};
use crate::verdict::Findings;
use image::place::{Ending, PlacedBlock, Placement};

const TEXT: u64 = 0xffff_ffff_8100_0000;
const BASE: u64 = InlinedCall::BASE.0;
const EXCEPTIONS: u64 = DATA + 0x1000;
const ORC_IP: u64 = DATA + 0x2000;
const ORC: u64 = DATA + 0x3000;
const TRACERS: u64 = DATA + 0x4000;
const KEYS: u64 = DATA + 0x5000;
const RETPOLINES: u64 = DATA + 0x6000;
/// Where the code of the call is in the new kernel, and its bytes.
const INLINED: u64 = 0x60;
const SIZE: u64 = 28;

/// A kernel whose f calls g; g jumps to h.
#[derive(Clone)]
struct TestKernel {
    text: Vec<u8>,
    exceptions: Vec<(u64, u64)>,
    unwinder: Vec<(u64, u8)>,
    tracers: Vec<u64>,
    keys: Vec<(u64, u64)>,
    retpolines: Vec<u64>,
    symbols: Vec<(&'static str, u64, u64)>,
}

impl TestKernel {
    fn elf(&self) -> Vec<u8> {
        let near = |at: u64, to: u64| (to.wrapping_sub(at) as u32).to_le_bytes();
        let exception = |(i, &(site, fixup)): (usize, &(u64, u64))| {
            let at = EXCEPTIONS + 12 * i as u64;
            [near(at, TEXT + site), near(at + 4, TEXT + fixup), 3u32.to_le_bytes()].concat()
        };
        let key = |(i, &(site, to)): (usize, &(u64, u64))| {
            let at = KEYS + 16 * i as u64;
            let variable = (DATA.wrapping_sub(at + 8)).to_le_bytes();
            [&near(at, TEXT + site)[..], &near(at + 4, TEXT + to), &variable].concat()
        };
        let ip = |(i, &(ip, _)): (usize, &(u64, u8))| near(ORC_IP + 4 * i as u64, TEXT + ip);
        let state = |&(_, sp): &(u64, u8)| [sp, 0, 0, 0, 5, if sp == 0 { 0 } else { 2 }];
        // The end of a table must lie in a section.
        let mut tracers: Vec<u8> =
            self.tracers.iter().flat_map(|at| (TEXT + at).to_le_bytes()).collect();
        let tracers_end = TRACERS + tracers.len() as u64;
        tracers.extend([0; 8]);
        let mut keys: Vec<u8> = self.keys.iter().enumerate().flat_map(key).collect();
        let keys_end = KEYS + keys.len() as u64;
        keys.extend([0; 8]);
        let exceptions = self.exceptions.iter().enumerate().flat_map(exception).collect();
        let ips = self.unwinder.iter().enumerate().flat_map(ip).collect();
        let states = self.unwinder.iter().flat_map(state).collect();
        let retpoline = |(i, &at): (usize, &u64)| near(RETPOLINES + 4 * i as u64, TEXT + at);
        let retpolines: Vec<u8> = self.retpolines.iter().enumerate().flat_map(retpoline).collect();
        let mut sections = vec![
            (".text", TEXT, 0x6, self.text.clone()),
            (".data", DATA, 0x3, vec![0; 16]),
            ("__ex_table", EXCEPTIONS, 0x2, exceptions),
            (".orc_unwind_ip", ORC_IP, 0x2, ips),
            (".orc_unwind", ORC, 0x2, states),
            ("tracers", TRACERS, 0x2, tracers),
            ("keys", KEYS, 0x2, keys),
        ];
        if !retpolines.is_empty() {
            sections.push((".retpoline_sites", RETPOLINES, 0x2, retpolines));
        }
        let text = self.symbols.iter().map(|&(name, at, size)| TestSymbol(name, TEXT + at, size));
        let data = [
            TestSymbol("variable", DATA, 8),
            TestSymbol("__start_mcount_loc", TRACERS, 0),
            TestSymbol("__stop_mcount_loc", tracers_end, 0),
            TestSymbol("__start___jump_table", KEYS, 0),
            TestSymbol("__stop___jump_table", keys_end, 0),
        ];
        elf(&sections, &text.chain(data).collect::<Vec<_>>(), 0)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.text[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

const TRACER: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

/// ```text
/// f 00: tracer; push rbx; call g; pop rbx; ret
/// g 20: tracer; push rdi; test edi, edi; je 2f; 2a: mov (rdi), eax; pop rdi; ret
///   2f: pop rdi; jmp h
/// h 40: tracer; ret
/// ```
fn old() -> TestKernel {
    let mut kernel = TestKernel {
        text: vec![0xcc; 0x90],
        exceptions: vec![(0x2a, 0x2f)],
        unwinder: vec![
            (0x00, 8),
            (0x06, 16),
            (0x0c, 8),
            (0x26, 16),
            (0x2d, 8),
            (0x2f, 16),
            (0x30, 8),
            (0x50, 0),
        ],
        tracers: vec![0x00, 0x20, 0x40],
        keys: Vec::new(),
        retpolines: Vec::new(),
        symbols: vec![("f", 0, 0x0d), ("g", 0x20, 0x15), ("h", 0x40, 6)],
    };
    for at in [0x00, 0x20, 0x40] {
        kernel.put(at, &TRACER);
    }
    kernel.put(0x05, &[0x53, 0xe8, 0x15, 0, 0, 0, 0x5b, 0xc3]);
    kernel.put(0x25, &[0x57, 0x85, 0xff, 0x74, 0x05, 0x8b, 0x07, 0x5f, 0xc3]);
    kernel.put(0x2f, &[0x5f, 0xe9, 0x0b, 0, 0, 0]);
    kernel.put(0x45, &[0xc3]);
    kernel
}

/// The same program, with g's code at [`INLINED`] in the place of its call.
fn new() -> TestKernel {
    let mut kernel = old();
    // jmp 60
    kernel.put(0x06, &[0xe9, 0x55, 0, 0, 0]);
    kernel.put(
        INLINED as usize,
        &[
            0x57, // 60 push rdi
            0x85, 0xff, // 61 test edi, edi
            0x0f, 0x84, 0x08, 0, 0, 0, // 63 je 71
            0x8b, 0x07, // 69 mov (rdi), eax
            0x5f, // 6b pop rdi
            0xe9, 0x9a, 0xff, 0xff, 0xff, // 6c jmp 0b
            0x5f, // 71 pop rdi
            0xe8, 0xc9, 0xff, 0xff, 0xff, // 72 call h
            0xe9, 0x8f, 0xff, 0xff, 0xff, // 77 jmp 0b
        ],
    );
    kernel.exceptions.push((0x69, 0x71));
    kernel.unwinder.extend([(0x60, 16), (0x61, 24), (0x6c, 16), (0x71, 24), (0x72, 16), (0x7c, 0)]);
    kernel.symbols.push(("f.inlined.0", INLINED, SIZE));
    kernel
}

fn map() -> Placement {
    Placement {
        blocks: vec![PlacedBlock {
            old: LinkAddr(BASE),
            old_size: SIZE as u32,
            new: LinkAddr(TEXT + INLINED),
            new_size: SIZE as u32,
            appended: 0,
            ending: Ending::Same,
        }],
        inlined: vec![InlinedCall {
            site: LinkAddr(TEXT + 0x06),
            at: LinkAddr(BASE),
            code: InPlaceOfCall::Code(vec![(LinkAddr(TEXT + 0x25), 0x10)]),
        }],
        ..Placement::default()
    }
}

fn findings(old: &TestKernel, new: &TestKernel, map: &Placement) -> Findings {
    let (old, new) = (old.elf(), new.elf());
    let side = |file| CheckedKernel { kernel: KernelFile::parse(file).unwrap(), relocs: None };
    check(&side(&old), &side(&new), map).unwrap()
}

/// What is said of a claim that is refused.
fn refusal(change: impl FnOnce(&mut TestKernel, &mut Placement)) -> String {
    let (mut old, mut map) = (old(), map());
    change(&mut old, &mut map);
    let found = findings(&old, &new(), &map);
    let refused = found.differences.iter().find(|d| d.kind == "calls inlined");
    refused.map(|d| d.what.clone()).unwrap_or_default()
}

#[test]
fn an_inlined_call_is_proved() {
    let found = findings(&old(), &new(), &map());
    assert!(found.equal(), "{:#?}", found.differences);
    assert_eq!(found.proved.get("calls inlined"), Some(&1));
    assert_eq!(found.proved.get("__ex_table"), Some(&2));
}

#[test]
fn each_wrong_byte_is_found() {
    for at in (0x06..0x0b).chain(INLINED as usize..(INLINED + SIZE) as usize) {
        for bit in [0x01, 0x40, 0x80] {
            let mut wrong = new();
            wrong.text[at] ^= bit;
            assert!(!findings(&old(), &wrong, &map()).equal(), "{at:#x} ^ {bit:#x}");
        }
    }
}

#[test]
fn each_wrong_entry_and_state_is_found() {
    let wrong = |change: &dyn Fn(&mut TestKernel)| {
        let mut kernel = new();
        change(&mut kernel);
        !findings(&old(), &kernel, &map()).equal()
    };
    assert!(wrong(&|kernel| kernel.exceptions.truncate(1)));
    // The fault goes on in the callee itself, which would return.
    assert!(wrong(&|kernel| kernel.exceptions[1] = (0x69, 0x2f)));
    for state in 8..13 {
        assert!(wrong(&|kernel| kernel.unwinder[state].1 += 8), "state {state}");
    }
    assert!(wrong(&|kernel| kernel.symbols.truncate(3)));
    // A jump out of the inlined code to the other continuation.
    assert!(wrong(&|kernel| kernel.text[0x6d] = 0x9b));
}

#[test]
fn wrong_claims_are_refused() {
    let claim = |change: &dyn Fn(&mut InlinedCall)| refusal(|_, map| change(&mut map.inlined[0]));
    let code = |change: &dyn Fn(&mut Vec<(LinkAddr, u32)>)| {
        claim(&|call| {
            let InPlaceOfCall::Code(stretches) = &mut call.code else { panic!("a guard") };
            change(stretches);
        })
    };
    assert!(claim(&|c| c.site.0 += 1).contains("no instruction begins there"));
    assert!(claim(&|c| c.site.0 -= 1).contains("push"));
    assert!(claim(&|c| c.site.0 = TEXT + 0x0e).contains("no function holds it"));
    assert!(claim(&|c| c.site.0 = BASE + 0x12).contains("no call of inlined code is there"));
    assert!(code(&|c| c[0].0.0 -= 5).contains("behind the callee's tracer's site"));
    assert!(code(&|c| c[0].1 -= 1).contains("no instruction"));
    // Without its end, g is left where je goes.
    assert!(code(&|c| c[0].1 = 0x0a).contains("branches out of the code"));
    assert!(code(&|c| c.push((LinkAddr(TEXT + 0x25), 1))).contains("in two stretches"));
    assert!(code(&|c| c[0].0 = LinkAddr(DATA)).contains("does not begin behind"));
    assert!(claim(&|c| c.at.0 += 1 << 20).contains("far behind"));
    let twice = refusal(|_, map| map.inlined.push(map.inlined[0].clone()));
    assert!(twice.contains("overlaps"), "{twice}");
    let twice = refusal(|_, map| {
        let mut again = map.inlined[0].clone();
        again.at.0 += SIZE;
        map.inlined.push(again);
    });
    assert!(twice.contains("inlined or promoted already"), "{twice}");
}

#[test]
fn a_callee_that_cannot_be_inlined_is_refused() {
    let code = |at: usize, bytes: &'static [u8]| refusal(|old, _| old.put(at, bytes));
    // mov eax, [rsp+8]: with the frame of eight bytes, the return address.
    let beyond = refusal(|old, _| {
        old.put(0x26, &[0x8b, 0x44, 0x24, 0x08, 0x90, 0x90, 0x5f, 0xc3]);
    });
    assert!(beyond.contains("reaches the return address"), "{beyond}");
    assert!(code(0x28, &[0x74, 0xd6]).contains("branches out of the code"));
    assert!(code(0x31, &[0x0c]).contains("no function's entry"));
    // jmp *rax
    assert!(code(0x2d, &[0xff, 0xe0]).contains("not followed"));
    // pop rdi is missing.
    assert!(code(0x2c, &[0x90]).contains("another height of the stack"));
    let unframed = refusal(|old, _| old.unwinder[3].1 = 24);
    assert!(unframed.contains("height"), "{unframed}");
    assert!(refusal(|old, _| old.tracers[1] = 0x21).contains("no tracer's site"));
    let fixup = refusal(|old, _| old.exceptions[0].1 = 0x45);
    assert!(fixup.contains("out of the code"), "{fixup}");
    let key = refusal(|old, _| {
        old.put(0x28, &[0x66, 0x90]);
        old.keys.push((0x28, 0x45));
    });
    assert!(key.contains("out of the code"), "{key}");
    // lea rax, [rip]: the address of its own code.
    let address = refusal(|old, _| old.put(0x25, &[0x48, 0x8d, 0x05, 0x03, 0, 0, 0, 0x90, 0x90]));
    assert!(address.contains("takes the address"), "{address}");
}

#[test]
fn a_call_that_cannot_be_inlined_is_refused() {
    let named = refusal(|old, _| old.exceptions.insert(0, (0x06, 0x0b)));
    assert!(named.contains("__ex_table names the call"), "{named}");
    let last = refusal(|old, _| old.symbols[0].2 = 0x0b);
    assert!(last.contains("no code follows"), "{last}");
    let apart = refusal(|old, _| {
        old.symbols.push(("__sched_text_start", 0, 0));
        old.symbols.push(("__sched_text_end", 0x1f, 0));
    });
    assert!(apart.contains("kept apart"), "{apart}");
    let apart = refusal(|old, _| {
        old.symbols.push(("__sched_text_start", 0x20, 0));
        old.symbols.push(("__sched_text_end", 0x3f, 0));
    });
    assert!(apart.contains("the callee is kept apart"), "{apart}");
}

/// Bytes of a guard.
const GUARD: u64 = 33;

/// A kernel whose f calls rbx by its thunk.
fn old_indirect() -> TestKernel {
    let mut kernel = old();
    kernel.put(0x06, &[0xe8, 0x45, 0, 0, 0]);
    // jmp *rbx
    kernel.put(0x50, &[0xff, 0xe3]);
    kernel.unwinder.pop();
    kernel.unwinder.push((0x52, 0));
    kernel.retpolines = vec![0x06];
    kernel.symbols.push(("__x86_indirect_thunk_rbx", 0x50, 2));
    kernel
}

/// The same program, with a guard for g.
fn new_indirect() -> TestKernel {
    let mut kernel = old_indirect();
    kernel.put(0x06, &[0xe9, 0x55, 0, 0, 0]);
    kernel.put(
        INLINED as usize,
        &[
            0x48, 0x81, 0xfb, 0x20, 0, 0, 0x81, // 60 cmp rbx, g
            0x0f, 0x85, 0x0a, 0, 0, 0, // 67 jne 77
            0xe8, 0xae, 0xff, 0xff, 0xff, // 6d call g
            0xe9, 0x94, 0xff, 0xff, 0xff, // 72 jmp 0b
            0xe8, 0xd4, 0xff, 0xff, 0xff, // 77 call thunk
            0xe9, 0x8a, 0xff, 0xff, 0xff, // 7c jmp 0b
        ],
    );
    kernel.unwinder.extend([(0x60, 16), (0x81, 0)]);
    kernel.retpolines = vec![0x77];
    kernel.symbols.push(("f.inlined.0", INLINED, GUARD));
    kernel
}

fn guard() -> Placement {
    let mut map = map();
    map.blocks[0].old_size = GUARD as u32;
    map.blocks[0].new_size = GUARD as u32;
    map.inlined[0].code = InPlaceOfCall::Guard(LinkAddr(TEXT + 0x20));
    map
}

/// What is said of a claimed guard that is refused.
fn guard_refusal(change: impl FnOnce(&mut TestKernel, &mut Placement)) -> String {
    let (mut old, mut map) = (old_indirect(), guard());
    change(&mut old, &mut map);
    let found = findings(&old, &new_indirect(), &map);
    let refused = found.differences.iter().find(|d| d.kind == "calls inlined");
    refused.map(|d| d.what.clone()).unwrap_or_default()
}

#[test]
fn a_promoted_call_is_proved() {
    let found = findings(&old_indirect(), &new_indirect(), &guard());
    assert!(found.equal(), "{:#?}", found.differences);
    assert_eq!(found.proved.get(".retpoline_sites"), Some(&1));
}

#[test]
fn each_wrong_byte_of_a_guard_is_found() {
    for at in (0x06..0x0b).chain(INLINED as usize..(INLINED + GUARD) as usize) {
        for bit in 0..8 {
            let mut wrong = new_indirect();
            wrong.text[at] ^= 1 << bit;
            let found = findings(&old_indirect(), &wrong, &guard());
            assert!(!found.equal(), "{at:#x} ^ {bit:#x}");
        }
    }
    let mut wrong = new_indirect();
    wrong.retpolines = vec![0x06];
    assert!(!findings(&old_indirect(), &wrong, &guard()).equal());
    let mut wrong = new_indirect();
    wrong.unwinder[8].1 += 8;
    assert!(!findings(&old_indirect(), &wrong, &guard()).equal());
    // A guard for another function than the claimed one.
    let mut other = guard();
    other.inlined[0].code = InPlaceOfCall::Guard(LinkAddr(TEXT + 0x40));
    assert!(!findings(&old_indirect(), &new_indirect(), &other).equal());
}

#[test]
fn wrong_claims_of_guards_are_refused() {
    let no_function = guard_refusal(|_, map| {
        map.inlined[0].code = InPlaceOfCall::Guard(LinkAddr(TEXT + 0x25));
    });
    assert!(no_function.contains("is no function"), "{no_function}");
    let direct = guard_refusal(|old, _| old.retpolines.clear());
    assert!(direct.contains("no call by a thunk"), "{direct}");
    // popf
    let flags = guard_refusal(|old, _| old.put(0x05, &[0x9d]));
    assert!(flags.contains("hands flags"), "{flags}");
    let named = guard_refusal(|old, _| old.exceptions.insert(0, (0x06, 0x0b)));
    assert!(named.contains("__ex_table names the call"), "{named}");
    let no_thunk = guard_refusal(|old, _| old.symbols[3].0 = "__x86_indirect_thunk_array");
    assert!(no_thunk.contains("goes to no thunk"), "{no_thunk}");
    let twice = guard_refusal(|_, map| {
        let mut again = map.inlined[0].clone();
        again.at.0 += GUARD;
        map.inlined.push(again);
    });
    assert!(twice.contains("inlined or promoted already"), "{twice}");
    // The direct call of a guard is no indirect one.
    let inside = guard_refusal(|_, map| {
        let mut again = map.inlined[0].clone();
        (again.site, again.at.0) = (LinkAddr(BASE + 0x0d), again.at.0 + GUARD);
        map.inlined.push(again);
    });
    assert!(inside.contains("the call in a guard is direct"), "{inside}");
}
