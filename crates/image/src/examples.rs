//! Small images for the tests of code that reads images.

use crate::address::LinkAddr;
use crate::linked::sites::{PatchSites, PatchableCode};
use crate::linked::tables::{JumpEntry, LinkedTables, StaticCallEntry};
use crate::ordinary::ReservedCode;
use crate::place::CallPadding;
use crate::{Block, BlockEnd, BuildId, Image, ImageFunction};
use object::write::{Object, Relocation, StandardSection, Symbol, SymbolSection};
use object::{RelocationFlags, SymbolFlags, SymbolKind, SymbolScope, elf};
use std::ops::Range;

/// An image of two functions:
///
/// ```text
/// +00 f: … je +09 ─┐    +20 g: … ret
/// +04    call g    │
/// +09    … ret ◄───┘
/// ```
pub fn caller_and_callee(base: LinkAddr) -> Image {
    let at = |offset: u64| LinkAddr(base.0 + offset);
    let block =
        |offset, size, end| Block { addr: at(offset), size, end, glued: false, patched: false };
    let function = |name: &str, offset, size, blocks| ImageFunction {
        name: name.to_owned(),
        addr: at(offset),
        size,
        blocks,
        section: ".text".to_owned(),
        stays: None,
    };
    Image {
        build_id: BuildId("5f3c".into()),
        entry_padding: 0,
        call_padding: CallPadding::Kept,
        entry_alignment: 16,
        functions: vec![function("f", 0, 11, 0..3), function("g", 0x20, 2, 3..4)],
        blocks: vec![
            block(0, 4, BlockEnd::Branch(at(9))),
            block(4, 5, BlockEnd::Call(Some(at(0x20)))),
            block(9, 2, BlockEnd::Stop),
            block(0x20, 2, BlockEnd::Stop),
        ],
        modules: Vec::new(),
    }
}

/// The code of [`caller_and_callee`]: `test`, `je`, `call`, and a no-op in front of each `ret`.
pub fn caller_and_callee_code(base: LinkAddr) -> PatchableCode {
    let f = [0x85, 0xff, 0x74, 0x05, 0xe8, 0x17, 0, 0, 0, 0x90, 0xc3];
    let mut bytes = f.to_vec();
    bytes.resize(0x20, 0xcc);
    bytes.extend([0x90, 0xc3]);
    PatchableCode::new(vec![(base.0, bytes)], PatchSites::default())
}

/// A kernel that patches its text, and its code:
///
/// ```text
/// +00 f: call __fentry__         the tracer's site
/// +05    nop                     a static key; its target is +20
/// +0a    cs call thunk           a retpoline; no thunk has this address
/// +10    call trampoline         a static call
/// +15    jmp +60                 a return
/// +20    jmp +60                 a return
/// +37    no-ops                  call padding
/// +40 g: nop; jmp +60            a return
/// +60 __x86_return_thunk: ret
/// +70 asm_exc_page_fault: nop; iretq
/// ```
pub fn patched_kernel(base: LinkAddr) -> (Image, PatchableCode) {
    let at = |offset: u64| LinkAddr(base.0 + offset);
    let mut image = caller_and_callee(base);
    let block =
        |offset, size, end| Block { addr: at(offset), size, end, glued: false, patched: false };
    let function = |name: &str, offset, size, blocks| ImageFunction {
        name: name.to_owned(),
        addr: at(offset),
        size,
        blocks,
        section: ".text".to_owned(),
        stays: (offset >= 0x60).then_some(ReservedCode::Entry),
    };
    image.entry_padding = 9;
    image.functions = vec![
        function("f", 0, 0x25, 0..6),
        function("g", 0x40, 6, 6..7),
        function("__x86_return_thunk", 0x60, 1, 7..8),
        function("asm_exc_page_fault", 0x70, 3, 8..9),
    ];
    image.blocks = vec![
        block(0, 5, BlockEnd::Call(Some(at(0x1000)))),
        block(5, 5, BlockEnd::FallThrough),
        block(0xa, 6, BlockEnd::Call(Some(at(0x1000)))),
        block(0x10, 5, BlockEnd::Call(Some(at(0x1000)))),
        block(0x15, 5, BlockEnd::Jump(at(0x60))),
        block(0x20, 5, BlockEnd::Jump(at(0x60))),
        block(0x40, 6, BlockEnd::Jump(at(0x60))),
        block(0x60, 1, BlockEnd::Stop),
        block(0x70, 3, BlockEnd::Stop),
    ];
    let mut bytes = vec![0xcc; 0x80];
    let mut put = |offset: usize, code: &[u8]| bytes[offset..][..code.len()].copy_from_slice(code);
    let near = |opcode: &[u8], end: i32, to: i32| [opcode, &(to - end).to_le_bytes()].concat();
    put(0, &near(&[0xe8], 5, 0x1000));
    put(5, &[0x0f, 0x1f, 0x44, 0, 0]);
    put(0xa, &near(&[0x2e, 0xe8], 0x10, 0x1000));
    put(0x10, &near(&[0xe8], 0x15, 0x1000));
    put(0x15, &near(&[0xe9], 0x1a, 0x60));
    put(0x20, &near(&[0xe9], 0x25, 0x60));
    put(0x37, &[0x90; 10]);
    put(0x41, &near(&[0xe9], 0x46, 0x60));
    put(0x60, &[0xc3]);
    put(0x70, &[0x90, 0x48, 0xcf]);
    let tables = LinkedTables {
        tracer_sites: vec![at(0).0],
        jumps: vec![JumpEntry { site: at(5).0, target: at(0x20).0, key: 0 }],
        retpolines: vec![at(0xa).0],
        static_calls: vec![StaticCallEntry { site: at(0x10).0, key: 0 }],
        returns: vec![at(0x15).0, at(0x20).0, at(0x41).0],
        ..LinkedTables::default()
    };
    let code = PatchableCode::new(vec![(base.0, bytes)], PatchSites::of(&tables));
    (image, code)
}

/// Blocks of these sizes, one behind the other from 0x1000. All of them may move. If `apart` is
/// true, each block is a function; otherwise one function has them all.
pub fn row_of_blocks(sizes: &[u32], apart: bool) -> Image {
    let mut at = 0x1000;
    let block = |&size: &u32| {
        at += u64::from(size);
        Block {
            addr: LinkAddr(at - u64::from(size)),
            size,
            end: BlockEnd::Stop,
            glued: false,
            patched: false,
        }
    };
    let blocks: Vec<Block> = sizes.iter().map(block).collect();
    let all = 0..blocks.len() as u32;
    let function = |range: Range<u32>| ImageFunction {
        name: format!("f{}", range.start),
        addr: blocks[range.start as usize].addr,
        size: sizes[range.start as usize..range.end as usize]
            .iter()
            .map(|&size| u64::from(size))
            .sum(),
        blocks: range,
        section: ".text".into(),
        stays: None,
    };
    Image {
        build_id: BuildId("00".into()),
        entry_padding: 0,
        call_padding: CallPadding::Kept,
        entry_alignment: 1,
        functions: match apart {
            true => all.map(|block| function(block..block + 1)).collect(),
            false => vec![function(all)],
        },
        blocks,
        modules: Vec::new(),
    }
}

/// A `.BTF` section with these types, each as words, and these strings.
pub fn btf_section(types: &[Vec<u32>], strings: &[u8]) -> Vec<u8> {
    let types: Vec<u8> = types.concat().iter().flat_map(|word| word.to_le_bytes()).collect();
    let (size, end) = (types.len() as u32, strings.len() as u32);
    // The magic number with the version, the bytes of the header, and where both parts lie.
    let header = [0x1_eb9f, 24, 0, size, size, end].map(u32::to_le_bytes);
    [header.concat(), types, strings.to_vec()].concat()
}

/// A module `my_mod`:
///
/// ```text
/// .text       +00 f:  call g       g is of another object
///             +05     jmp +0a ─┐
///             +0a     ret ◄────┘
///             +10 h:  jmp f
/// .init.text  +00 i:  ret
/// ```
pub fn module() -> Vec<u8> {
    module_object().write().unwrap()
}

/// The same before it is written, for a test that adds something.
pub fn module_object() -> Object<'static> {
    let mut file = Object::new(
        object::BinaryFormat::Elf,
        object::Architecture::X86_64,
        object::Endianness::Little,
    );
    let text = file.section_id(StandardSection::Text);
    let mut code = vec![0xe8, 0, 0, 0, 0, 0xe9, 0, 0, 0, 0, 0xc3];
    code.resize(0x10, 0xcc);
    code.extend([0xe9, 0xeb, 0xff, 0xff, 0xff]);
    file.append_section_data(text, &code, 16);
    let init = file.add_section(Vec::new(), b".init.text".to_vec(), object::SectionKind::Text);
    file.append_section_data(init, &[0xc3], 16);
    let info =
        file.add_section(Vec::new(), b".modinfo".to_vec(), object::SectionKind::ReadOnlyData);
    file.append_section_data(info, b"license=GPL\0name=my_mod\0", 1);
    let note =
        file.add_section(Vec::new(), b".note.gnu.build-id".to_vec(), object::SectionKind::Note);
    let id = [4, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, b'G', b'N', b'U', 0, 0xca, 0xfe, 0, 0];
    file.append_section_data(note, &id, 4);
    let mut symbol = |name: &str, value, size, section| {
        file.add_symbol(Symbol {
            name: name.into(),
            value,
            size,
            kind: SymbolKind::Text,
            scope: SymbolScope::Linkage,
            weak: false,
            section,
            flags: SymbolFlags::None,
        })
    };
    symbol("f", 0, 11, SymbolSection::Section(text));
    symbol("h", 0x10, 5, SymbolSection::Section(text));
    symbol("i", 0, 1, SymbolSection::Section(init));
    let g = symbol("g", 0, 0, SymbolSection::Undefined);
    let flags = RelocationFlags::Elf { r_type: elf::R_X86_64_PLT32 };
    file.add_relocation(text, Relocation { offset: 1, symbol: g, addend: -4, flags }).unwrap();
    file
}
