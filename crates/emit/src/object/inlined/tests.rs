//! Tests of inlining in an object of four functions.

use super::*;
use ::object::write::{Object, Relocation, SectionId, Symbol, SymbolSection};
use ::object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind,
    SymbolScope, elf,
};
use image::object::ObjectHints;
use image::object::elf::Elf;

const BASE: LinkAddr = LinkAddr(0xffff_ffff_8100_0000);
const FORM: OrcForm = OrcForm { call_frame: 2, stack_pointer: 5, frame_pointer: 4, frame_end: 1 };
/// Bytes of `.text`, and where inlined code begins behind it.
const SIZE: u32 = 0x5a;
const INLINED: u32 = 0x60;

#[rustfmt::skip]
const TEXT: [u8; SIZE as usize] = [
    // f:
    0x0f, 0x1f, 0x44, 0, 0, // 00 nop (the tracer's site)
    0x53,                   // 05 push rbx
    0xe8, 0, 0, 0, 0,       // 06 call g
    0x5b,                   // 0b pop rbx
    0xe9, 0, 0, 0, 0,       // 0c jmp __x86_return_thunk
    0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
    // g:
    0x0f, 0x1f, 0x44, 0, 0, // 20 nop
    0x85, 0xff,             // 25 test edi, edi
    0x74, 0x07,             // 27 je 30
    0x66, 0x90,             // 29 static key: no-op, or jmp 30
    0xe9, 0, 0, 0, 0,       // 2b jmp __x86_return_thunk
    0xe8, 0, 0, 0, 0,       // 30 call k
    0xe9, 0x06, 0, 0, 0,    // 35 jmp h
    0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
    // h:
    0x0f, 0x1f, 0x44, 0, 0, // 40 nop
    0xc3, 0xcc,             // 45 ret; int3
    0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
    // k:
    0x0f, 0x1f, 0x44, 0, 0, // 50 nop
    0xe9, 0, 0, 0, 0,       // 55 jmp __x86_return_thunk
];

struct Builder {
    object: Object<'static>,
    code: SectionId,
    text: ::object::write::SymbolId,
}

impl Builder {
    /// The object. `code`: its `.text`.
    fn new(code: &[u8]) -> Builder {
        Builder::with_states(code, &[(0x00, 8), (0x06, 16), (0x0c, 8), (0x5a, 0)])
    }

    /// `states`: where the unwinder's states begin, each with the height of the stack; 0 where
    /// control never comes.
    fn with_states(code: &[u8], states: &[(i64, u8)]) -> Builder {
        Builder::calling(None, code, states)
    }

    /// f calls rbx by this thunk, and not g.
    fn indirect(thunk: &str, code: &[u8]) -> Builder {
        Builder::calling(Some(thunk), code, &[(0x00, 8), (0x06, 16), (0x0c, 8), (0x5a, 0)])
    }

    fn calling(thunk: Option<&str>, code: &[u8], states: &[(i64, u8)]) -> Builder {
        let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let text = object.add_section(Vec::new(), b".text".to_vec(), SectionKind::Text);
        object.append_section_data(text, code, 16);
        let first = if code[0x06] == 0x2e { 0x08 } else { 0x07 };
        let mut b = Builder { text: object.section_symbol(text), code: text, object };
        let code = SymbolSection::Section(text);
        let [_, g, _, k] = [("f", 0, 0x11), ("g", 0x20, 0x1a), ("h", 0x40, 7), ("k", 0x50, 10)]
            .map(|(name, at, size)| b.symbol(name, at, size, code));
        let returns = b.symbol("__x86_return_thunk", 0, 0, SymbolSection::Undefined);
        let called = thunk.map_or(g, |name| b.symbol(name, 0, 0, SymbolSection::Undefined));
        for (at, to) in
            [(first, called), (0x0d, returns), (0x2c, returns), (0x31, k), (0x56, returns)]
        {
            b.refer(text, at, to, -4, elf::R_X86_64_PLT32);
        }
        let tracers = b.section("__mcount_loc", 8 * 4);
        for (number, at) in (0u64..).zip([0x00, 0x20, 0x40, 0x50]) {
            b.refer(tracers, 8 * number, b.text, at, elf::R_X86_64_64);
        }
        b.sites(".return_sites", &[0x0c, 0x2b, 0x55]);
        match thunk {
            None => b.sites(".call_sites", &[0x06, 0x30]),
            Some(_) => {
                b.sites(".call_sites", &[0x30]);
                b.sites(".retpoline_sites", &[0x06]);
            }
        }
        let keys = b.section("__jump_table", 16);
        b.refer(keys, 0, b.text, 0x29, elf::R_X86_64_PC32);
        b.refer(keys, 4, b.text, 0x30, elf::R_X86_64_PC32);
        let ips = b.section(".orc_unwind_ip", 4 * states.len());
        let orc = b.section(".orc_unwind", 0);
        for (number, &(at, sp)) in (0u64..).zip(states) {
            b.refer(ips, 4 * number, b.text, at, elf::R_X86_64_PC32);
            let state = if sp == 0 { UNDEFINED } else { [sp, 0, 0, 0, 5, 2] };
            b.object.append_section_data(orc, &state, 1);
        }
        b
    }

    fn symbol(
        &mut self,
        name: &str,
        value: u64,
        size: u64,
        section: SymbolSection,
    ) -> ::object::write::SymbolId {
        self.object.add_symbol(Symbol {
            name: name.as_bytes().to_vec(),
            value,
            size,
            kind: SymbolKind::Text,
            scope: SymbolScope::Linkage,
            weak: false,
            section,
            flags: SymbolFlags::None,
        })
    }

    fn section(&mut self, name: &str, size: usize) -> SectionId {
        let name = name.as_bytes().to_vec();
        let id = self.object.add_section(Vec::new(), name, SectionKind::Data);
        self.object.append_section_data(id, &vec![0; size], 1);
        id
    }

    fn sites(&mut self, name: &str, sites: &[i64]) {
        let id = self.section(name, 4 * sites.len());
        for (number, &at) in (0u64..).zip(sites) {
            self.refer(id, 4 * number, self.text, at, elf::R_X86_64_PC32);
        }
    }

    fn refer(
        &mut self,
        section: SectionId,
        offset: u64,
        symbol: ::object::write::SymbolId,
        addend: i64,
        r_type: elf::RelocationType,
    ) {
        let flags = RelocationFlags::Elf { r_type };
        self.object.add_relocation(section, Relocation { offset, symbol, addend, flags }).unwrap();
    }
}

fn call(context: u32, site: u64, callee: u64) -> CallToInline {
    CallToInline {
        context,
        site: LinkAddr(BASE.0 + site),
        callee: LinkAddr(BASE.0 + callee),
        replacement: CallReplacement::Code,
    }
}

fn expanded(builder: &Builder, calls: &[CallToInline]) -> Result<Expanded> {
    let bytes = builder.object.write().unwrap();
    let object = KernelObject::read(&bytes, &ObjectHints::default())?;
    expand(&object, BASE, calls, FORM)
}

/// The offsets in `.text` that the entries of a table name in their first field.
fn sites(bytes: &[u8], table: &str, size: u64) -> Vec<i64> {
    let file = Elf::parse(bytes).unwrap();
    let id = file.by_name(table).unwrap();
    let relocations = file.relocations(id).unwrap();
    assert_eq!(file.section(id).size % size, 0, "{table}");
    let sites = relocations.iter().filter(|r| r.offset % size == 0);
    sites.map(|r| file.symbol(r.symbol).value as i64 + r.addend).collect()
}

fn text(bytes: &[u8]) -> Vec<u8> {
    let file = Elf::parse(bytes).unwrap();
    file.bytes(file.by_name(".text").unwrap()).to_vec()
}

#[test]
fn the_code_of_the_callee_stands_behind_all_code() {
    let made = expanded(&Builder::new(&TEXT), &[call(0, 0x06, 0x20)]).unwrap();
    let code = text(&made.bytes);
    assert_eq!(code[0x06..0x0b], [0xe9, 0x55, 0, 0, 0], "jmp 60");
    assert_eq!(code[..0x06], TEXT[..0x06]);
    assert_eq!(code[0x0b..SIZE as usize], TEXT[0x0b..]);
    #[rustfmt::skip]
    let expected = [
        0x85, 0xff,                         // 60 test edi, edi
        0x0f, 0x84, 0x0a, 0, 0, 0,          // 62 je 72
        0x0f, 0x1f, 0x44, 0, 0,             // 68 static key
        0xe9, 0x99, 0xff, 0xff, 0xff,       // 6d jmp 0b
        0xe8, 0, 0, 0, 0,                   // 72 call k
        0xe8, 0xc4, 0xff, 0xff, 0xff,       // 77 call h
        0xe9, 0x8a, 0xff, 0xff, 0xff,       // 7c jmp 0b
    ];
    assert_eq!(code[INLINED as usize..], expected);
    assert_eq!(sites(&made.bytes, "__jump_table", 16), [0x29, 0x68]);
    assert_eq!(sites(&made.bytes, ".call_sites", 4), [0x30, 0x72, 0x77]);
    assert_eq!(sites(&made.bytes, ".return_sites", 4), [0x0c, 0x2b, 0x55]);
    assert_eq!(made.owners, [(INLINED, 0)]);
    let claim = &made.calls[0];
    assert_eq!(claim.site, LinkAddr(BASE.0 + 0x06));
    assert_eq!(claim.at, LinkAddr(InlinedCall::BASE.0 + u64::from(INLINED - SIZE)));
    assert_eq!(claim.code, InPlaceOfCall::Code(vec![(LinkAddr(BASE.0 + 0x25), 0x15)]));
    let file = Elf::parse(&made.bytes).unwrap();
    let name = file.symbols.iter().find(|s| s.value == u64::from(INLINED)).unwrap();
    assert_eq!((file.name(name), name.size), ("f.inlined.0", expected.len() as u64));
    // What the linker fills in: g is not called any more, k is called once more.
    let fields = file.relocations(file.by_name(".text").unwrap()).unwrap();
    let fields: Vec<u64> = fields.iter().map(|r| r.offset).collect();
    assert_eq!(fields, [0x0d, 0x2c, 0x31, 0x56, 0x73]);
}

/// The entry of a call that is gone from the callee itself is that of the call in its copy.
#[test]
fn a_copy_keeps_the_entry_of_a_call_that_is_gone_elsewhere() {
    let calls = [call(0, 0x06, 0x20), call(0, 0x30, 0x50)];
    let made = expanded(&Builder::new(&TEXT), &calls).unwrap();
    assert_eq!(sites(&made.bytes, ".call_sites", 4), [0x72, 0x77]);
    assert_eq!(made.owners, [(INLINED, 0), (0x90, 0x20)]);
    let code = text(&made.bytes);
    assert_eq!(code[0x30..0x35], [0xe9, 0x5b, 0, 0, 0], "jmp 90");
    assert_eq!(code[0x90..], [0xe9, 0xa0, 0xff, 0xff, 0xff], "jmp 35");
}

#[test]
fn a_call_in_inlined_code_is_inlined_there() {
    let calls = [call(0, 0x06, 0x20), call(1, 0x30, 0x50)];
    let made = expanded(&Builder::new(&TEXT), &calls).unwrap();
    assert_eq!(sites(&made.bytes, ".call_sites", 4), [0x30, 0x77]);
    assert_eq!(made.calls[1].site.0 - made.calls[0].at.0, 0x12);
    assert_eq!(made.owners, [(INLINED, 0), (0x90, 0)]);
    assert_eq!(text(&made.bytes)[0x90..], [0xe9, 0xe2, 0xff, 0xff, 0xff], "jmp 77");
    let again = expanded(&Builder::new(&TEXT), &[calls[0], calls[0]]).err().unwrap();
    assert!(format!("{again:#}").contains("inlined or promoted already"), "{again:#}");
}

#[test]
fn the_unwinder_finds_the_caller() {
    let made = expanded(&Builder::new(&TEXT), &[call(0, 0x06, 0x20)]).unwrap();
    let object = KernelObject::read(&made.bytes, &ObjectHints::default()).unwrap();
    let sections = orc_sections(&object).unwrap();
    let ip = &object.relocations[sections.ip.0 as usize];
    let table = sections.table(&object.elf, ip, object.text).unwrap();
    for at in [0x60, 0x6d, 0x77, 0x7c] {
        assert_eq!(state_at(&table, at), [16, 0, 0, 0, 5, 2], "{at:#x}");
    }
    assert_eq!(state_at(&table, 0x59), [8, 0, 0, 0, 5, 2]);
    assert_eq!(state_at(&table, 0x5a), UNDEFINED, "padding");
    assert_eq!(state_at(&table, 0x81), UNDEFINED, "the end");
}

/// As between a jump and a loop that is aligned.
#[test]
fn padding_in_the_callee_has_no_state() {
    let states = [(0x00, 8), (0x06, 16), (0x0c, 8), (0x2b, 0), (0x30, 8), (0x5a, 0)];
    let made = expanded(&Builder::with_states(&TEXT, &states), &[call(0, 0x06, 0x20)]).unwrap();
    let object = KernelObject::read(&made.bytes, &ObjectHints::default()).unwrap();
    let sections = orc_sections(&object).unwrap();
    let ip = &object.relocations[sections.ip.0 as usize];
    let table = sections.table(&object.elf, ip, object.text).unwrap();
    let [inside, behind] = [0x68, 0x72].map(|at| state_at(&table, at));
    assert_eq!((inside, behind), ([16, 0, 0, 0, 5, 2], [16, 0, 0, 0, 5, 2]));
    assert_eq!(state_at(&table, 0x6d), UNDEFINED);
    // But a call there has no state from which that of its code could follow.
    let error = expanded(
        &Builder::with_states(&TEXT, &[(0x00, 8), (0x06, 0), (0x0b, 8), (0x5a, 0)]),
        &[call(0, 0x06, 0x20)],
    );
    assert!(format!("{:#}", error.err().unwrap()).contains("cannot be put together"));
}

/// A part of g lies in front of it, in the padding behind f, and g branches to it.
#[test]
fn a_part_in_front_of_the_callee_comes_behind_its_code() {
    let mut code = TEXT;
    // jmp 2b, and je 12
    code[0x12..0x17].copy_from_slice(&[0xe9, 0x14, 0, 0, 0]);
    code[0x28] = 0xe9;
    let mut builder = Builder::new(&code);
    builder.symbol("g.cold", 0x12, 5, SymbolSection::Section(builder.code));
    let made = expanded(&builder, &[call(0, 0x06, 0x20)]).unwrap();
    let parts = vec![(LinkAddr(BASE.0 + 0x25), 0x15), (LinkAddr(BASE.0 + 0x12), 5)];
    assert_eq!(made.calls[0].code, InPlaceOfCall::Code(parts));
    let code = text(&made.bytes);
    assert_eq!(code[0x62..0x68], [0x0f, 0x84, 0x19, 0, 0, 0], "je 81");
    assert_eq!(code[0x81..], [0xe9, 0xe7, 0xff, 0xff, 0xff], "jmp 6d");
    let object = KernelObject::read(&made.bytes, &ObjectHints::default()).unwrap();
    let sections = orc_sections(&object).unwrap();
    let ip = &object.relocations[sections.ip.0 as usize];
    let table = sections.table(&object.elf, ip, object.text).unwrap();
    for at in [0x60, 0x77, 0x81] {
        assert_eq!(state_at(&table, at), [16, 0, 0, 0, 5, 2], "{at:#x}");
    }
}

#[test]
fn inlined_code_goes_behind_its_caller() {
    let calls = [call(0, 0x30, 0x50), call(0, 0x06, 0x20)];
    let made = expanded(&Builder::new(&TEXT), &calls).unwrap();
    let object = KernelObject::read(&made.bytes, &ObjectHints::default()).unwrap();
    let order = made.order(&object).unwrap();
    let functions: Vec<u32> = order.iter().map(|&piece| object.pieces[piece as usize].at).collect();
    let place = |at: u32| functions.iter().position(|&piece| piece == at).unwrap();
    assert!(place(0x00) < place(0x70) && place(0x70) < place(0x20), "{functions:x?}");
    assert!(place(0x20) < place(0x60) && place(0x60) < place(0x40), "{functions:x?}");
}

#[test]
fn what_cannot_be_inlined_is_refused_with_the_reason() {
    let refusal = |code: &[u8], change: &dyn Fn(&mut Builder)| {
        let mut builder = Builder::new(code);
        change(&mut builder);
        format!("{:#}", expanded(&builder, &[call(0, 0x06, 0x20)]).err().unwrap())
    };
    let with = |change: &dyn Fn(&mut Builder)| refusal(&TEXT, change);
    let code = |at: usize, bytes: &[u8]| {
        let mut code = TEXT;
        code[at..at + bytes.len()].copy_from_slice(bytes);
        refusal(&code, &|_| {})
    };
    // je 45, into h
    assert!(code(0x27, &[0x74, 0x1c]).contains("branches to another function"));
    // jmp *rax
    assert!(code(0x25, &[0xff, 0xe0]).contains("indirect jump"));
    // jmp 46, into h
    assert!(code(0x36, &[0x0c]).contains("jumps into another function"));
    let referred = with(&|b| {
        let data = b.section(".rodata.table", 8);
        b.refer(data, 0, b.text, 0x30, elf::R_X86_64_64);
    });
    assert!(referred.contains("refers to its inside"), "{referred}");
    let static_call = with(&|b| {
        let sites = b.section(".static_call_sites", 8);
        b.refer(sites, 0, b.text, 0x35, elf::R_X86_64_PC32);
        let key = b.section(".data", 8);
        let key = b.object.section_symbol(key);
        b.refer(sites, 4, key, 0, elf::R_X86_64_PC32);
    });
    assert!(static_call.contains("patches a jump out of it"), "{static_call}");
    let probed = with(&|b| {
        let list = b.section("_kprobe_blacklist", 8);
        b.refer(list, 0, b.text, 0x20, elf::R_X86_64_64);
    });
    assert!(probed.contains("may not be probed"), "{probed}");

    let refused = |call: CallToInline| {
        format!("{:#}", expanded(&Builder::new(&TEXT), &[call]).err().unwrap())
    };
    assert!(refused(call(0, 0x07, 0x20)).contains("no plain call"));
    assert!(refused(call(0, 0x06, 0x50)).contains("another function"));
    assert!(refused(call(1, 0x06, 0x20)).contains("was not inlined"));
    assert!(refused(call(0, 0x06, 0x21)).contains("no function that can be cut"));
    assert!(refused(call(0, 0, 0x1000)).contains("no function"));
}

const THUNK: &str = "__x86_indirect_thunk_rbx";

fn promoted(replacement: CallReplacement) -> CallToInline {
    CallToInline { replacement, ..call(0, 0x06, 0x20) }
}

#[test]
fn a_promoted_call_compares_the_pointer() {
    let calls = [promoted(CallReplacement::GuardedCall)];
    let made = expanded(&Builder::indirect(THUNK, &TEXT), &calls).unwrap();
    let code = text(&made.bytes);
    assert_eq!(code[0x06..0x0b], [0xe9, 0x55, 0, 0, 0], "jmp 60");
    #[rustfmt::skip]
    let expected = [
        0x48, 0x81, 0xfb, 0, 0, 0, 0,       // 60 cmp rbx, g
        0x0f, 0x85, 0x0a, 0, 0, 0,          // 67 jne 77
        0xe8, 0, 0, 0, 0,                   // 6d call g
        0xe9, 0x94, 0xff, 0xff, 0xff,       // 72 jmp 0b
        0xe8, 0, 0, 0, 0,                   // 77 call __x86_indirect_thunk_rbx
        0xe9, 0x8a, 0xff, 0xff, 0xff,       // 7c jmp 0b
    ];
    assert_eq!(code[INLINED as usize..], expected);
    assert_eq!(sites(&made.bytes, ".call_sites", 4), [0x30, 0x6d]);
    assert_eq!(sites(&made.bytes, ".retpoline_sites", 4), [0x77]);
    assert_eq!(made.calls[0].code, InPlaceOfCall::Guard(LinkAddr(BASE.0 + 0x20)));
    let file = Elf::parse(&made.bytes).unwrap();
    let fields = file.relocations(file.by_name(".text").unwrap()).unwrap();
    let field = |r: &ElfRelocation| {
        let symbol = file.symbol(r.symbol);
        (r.offset, r.kind, symbol.value as i64 + r.addend, file.name(symbol).to_owned())
    };
    let new: Vec<_> = fields[4..].iter().map(field).collect();
    let nothing = String::new;
    let expected = [
        (0x63, elf::R_X86_64_32S, 0x20, nothing()),
        (0x6e, elf::R_X86_64_PLT32, 0x1c, nothing()),
        (0x78, elf::R_X86_64_PLT32, -4, THUNK.to_owned()),
    ];
    assert_eq!(new, expected);
    let object = KernelObject::read(&made.bytes, &ObjectHints::default()).unwrap();
    let sections = orc_sections(&object).unwrap();
    let ip = &object.relocations[sections.ip.0 as usize];
    let table = sections.table(&object.elf, ip, object.text).unwrap();
    for at in [0x60, 0x6d, 0x7c] {
        assert_eq!(state_at(&table, at), [16, 0, 0, 0, 5, 2], "{at:#x}");
    }
}

/// The callee's code stands in the place of the guard's direct call.
#[test]
fn the_callee_of_a_promoted_call_is_inlined() {
    let calls = [promoted(CallReplacement::GuardedCode), call(1, 0x30, 0x50)];
    let made = expanded(&Builder::indirect(THUNK, &TEXT), &calls).unwrap();
    let code = text(&made.bytes);
    assert_eq!(code[0x6d..0x72], [0xe9, 0x1e, 0, 0, 0], "jmp 90");
    assert_eq!(code[0x9d..0xa2], [0xe9, 0xd0, 0xff, 0xff, 0xff], "jmp 72");
    assert_eq!(code[0xa2..0xa7], [0xe9, 0x19, 0, 0, 0], "jmp c0, to the code of k");
    assert_eq!(sites(&made.bytes, ".call_sites", 4), [0x30, 0xa7]);
    assert_eq!(sites(&made.bytes, ".retpoline_sites", 4), [0x77]);
    assert_eq!(made.owners, [(0x60, 0), (0x90, 0), (0xc0, 0)]);
    let sites: Vec<u64> = made.calls.iter().map(|call| call.site.0 - BASE.0).collect();
    assert_eq!(sites[0], 0x06);
    let base = InlinedCall::BASE.0 - BASE.0;
    assert_eq!(sites[1..], [base + 0x6d - u64::from(SIZE), base + 0xa2 - u64::from(SIZE)]);
}

/// `cs call`, as for the registers from r8 on: a byte more than the jump.
#[test]
fn a_call_with_a_prefix_is_promoted() {
    let mut code = TEXT;
    code[0x06..0x0c].copy_from_slice(&[0x2e, 0xe8, 0, 0, 0, 0]);
    let builder = Builder::indirect("__x86_indirect_thunk_r12", &code);
    let made = expanded(&builder, &[promoted(CallReplacement::GuardedCall)]).unwrap();
    let code = text(&made.bytes);
    assert_eq!(code[0x06..0x0c], [0x90, 0xe9, 0x54, 0, 0, 0], "nop; jmp 60");
    assert_eq!(code[0x60..0x63], [0x49, 0x81, 0xfc], "cmp r12");
    assert_eq!(code[0x72..0x77], [0xe9, 0x95, 0xff, 0xff, 0xff], "jmp 0c");
    assert_eq!(code[0x77..0x7d], [0x2e, 0xe8, 0, 0, 0, 0]);
    let fields = Elf::parse(&made.bytes).unwrap();
    let fields = fields.relocations(fields.by_name(".text").unwrap()).unwrap();
    assert_eq!(fields.last().unwrap().offset, 0x79);
}

#[test]
fn what_cannot_be_promoted_is_refused() {
    let refused = |thunk: &str, code: &[u8], callee: u64| {
        let call =
            CallToInline { replacement: CallReplacement::GuardedCall, ..call(0, 0x06, callee) };
        format!("{:#}", expanded(&Builder::indirect(thunk, code), &[call]).err().unwrap())
    };
    let none = "no call that can be promoted is there";
    assert!(refused("__x86_indirect_thunk_array", &TEXT, 0x20).contains(none));
    assert!(refused(THUNK, &TEXT, 0x25).contains("its target is no function"));
    // popf in front of the call
    let mut code = TEXT;
    code[0x05] = 0x9d;
    assert!(refused(THUNK, &code, 0x20).contains(none));
    let direct = CallToInline { replacement: CallReplacement::GuardedCall, ..call(0, 0x06, 0x20) };
    let direct = expanded(&Builder::new(&TEXT), &[direct]).err().unwrap();
    assert!(format!("{direct:#}").contains(none), "{direct:#}");
    let twice = [promoted(CallReplacement::GuardedCall); 2];
    let twice = expanded(&Builder::indirect(THUNK, &TEXT), &twice).err().unwrap();
    assert!(format!("{twice:#}").contains("inlined or promoted already"), "{twice:#}");
}

#[test]
fn the_limits_name_what_can_be_promoted() {
    let bytes = Builder::indirect(THUNK, &TEXT).object.write().unwrap();
    let object = KernelObject::read(&bytes, &ObjectHints::default()).unwrap();
    let limits = limits(&object, BASE, &BTreeSet::new());
    let at = |offset: u64| LinkAddr(BASE.0 + offset);
    assert!(limits.allow_guard(at(0x06), at(0x20)));
    assert!(!limits.allow_guard(at(0x30), at(0x20)) && !limits.allow_guard(at(0x06), at(0x25)));
}
