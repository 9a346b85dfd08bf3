//! A kernel of four functions, for tests.
//!
//! Input: side tables. Output: the kernel, and modules of its functions. `__fentry__` lies outside
//! of its text.
//!
//! ```text
//! 00 f: call __fentry__        40 g: call __fentry__          80 h: call __fentry__
//! 05    mov %rdi,%rbx          45    mov $DATA,%rax           85    jmp g
//! 08    test %edi,%edi         4c    ret
//! 0a    je 17                                                 c0 stray: jmp 47
//! 0c    call g
//! 11    mov DATA(%rip),%eax
//! 17    ret
//! ```

use crate::group::Group;
use crate::memory::{FileMemory, Memory};
use crate::test_elf::{DATA, TestSymbol, elf};
use emit::module::{EmittedModule, LoaderFacts, ModulePlan, NUMBER, TextPage, emit};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::linked::exports::{ExportedSymbol, ModuleStructure};
use image::linked::tables::LinkedTables;
use image::sites::PatchSites;

pub(crate) const TEXT: u64 = 0xffff_ffff_8100_0000;
pub(crate) const SLIDE: u64 = 0x20_0000;
pub(crate) const F: usize = 0;
pub(crate) const G: usize = 1;
pub(crate) const H: usize = 2;
pub(crate) const STRAY: usize = 3;

pub(crate) fn at(offset: u64) -> LinkAddr {
    LinkAddr(TEXT + offset)
}

pub(crate) fn near(opcode: u8, at: u64, to: u64) -> Vec<u8> {
    [&[opcode][..], &(to.wrapping_sub(at + 5) as u32).to_le_bytes()].concat()
}

pub(crate) fn vmlinux() -> Vec<u8> {
    another_build(0, 0x5f)
}

/// The same kernel with all code this number of bytes behind where it is above, and a build id of
/// this byte.
pub(crate) fn another_build(by: u64, id: u8) -> Vec<u8> {
    let mut text = vec![0xcc; 0x100 + by as usize];
    let mut put = |at: u64, bytes: &[u8]| {
        let at = (at + by) as usize;
        text[at..at + bytes.len()].copy_from_slice(bytes);
    };
    for entry in [0, 0x40, 0x80] {
        put(entry, &near(0xe8, entry, 0x1000));
    }
    let read = (DATA.wrapping_sub(TEXT + by + 0x17) as u32).to_le_bytes();
    put(0x05, &[0x48, 0x89, 0xfb, 0x85, 0xff, 0x74, 0x0b]);
    put(0x0c, &near(0xe8, 0x0c, 0x40));
    put(0x11, &[&[0x8b, 0x05][..], &read, &[0xc3]].concat());
    put(0x45, &[&[0x48, 0xc7, 0xc0][..], &(DATA as u32).to_le_bytes(), &[0xc3]].concat());
    put(0x85, &near(0xe9, 0x85, 0x40));
    put(0xc0, &near(0xe9, 0xc0, 0x47));
    let note = [&[4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &[id; 20]].concat();
    elf(
        &[
            (".text", TEXT, 6, text),
            (".data", DATA, 3, vec![0; 0x40]),
            (".notes", DATA + 0x200, 2, note),
        ],
        &[
            TestSymbol("f", TEXT + by, 0x18),
            TestSymbol("g", TEXT + by + 0x40, 0xd),
            TestSymbol("h", TEXT + by + 0x80, 0xa),
            TestSymbol("stray", TEXT + by + 0xc0, 5),
            TestSymbol("_stext", TEXT, 0),
            TestSymbol("value", DATA, 8),
        ],
        0,
    )
}

pub(crate) fn tables() -> LinkedTables {
    LinkedTables {
        tracer_sites: vec![TEXT, TEXT + 0x40, TEXT + 0x80],
        orc: vec![(TEXT, [8, 0, 0, 0, 5, 2])],
        ..LinkedTables::default()
    }
}

pub(crate) fn with<T>(tables: LinkedTables, test: impl FnOnce(&LinkedKernel<'_>) -> T) -> T {
    let file = vmlinux();
    let mut kernel = LinkedKernel::parse(&file).unwrap();
    kernel.sites = PatchSites::of(&tables);
    kernel.tables = tables;
    test(&kernel)
}

/// The bytes of a function in the file.
pub(crate) fn bytes(kernel: &LinkedKernel<'_>, function: usize) -> Vec<u8> {
    let function = &kernel.functions[function];
    kernel.text_bytes()[function.at as usize..function.end as usize].to_vec()
}

/// A kernel in memory: its file, in which some bytes have other values.
pub(crate) struct ChangedMemory<'a, 'd> {
    pub(crate) kernel: &'a LinkedKernel<'d>,
    pub(crate) slide: u64,
    pub(crate) changes: Vec<(LinkAddr, u8)>,
}

impl Memory for ChangedMemory<'_, '_> {
    fn read(&self, at: LinkAddr, len: usize) -> anyhow::Result<Vec<u8>> {
        let mut bytes = FileMemory(self.kernel).read(at, len)?;
        for &(changed, value) in &self.changes {
            if let Some(byte) = bytes.get_mut(changed.0.wrapping_sub(at.0) as usize) {
                *byte = value;
            }
        }
        Ok(bytes)
    }

    fn slide(&self) -> u64 {
        self.slide
    }
}

/// What a loader of this kernel expects.
pub(crate) fn loading() -> LoaderFacts<'static> {
    let export = |name: &str, at| ExportedSymbol { name: name.into(), addr: at, crc: None };
    LoaderFacts {
        magic: "6.12",
        structure: ModuleStructure { size: 256, name: 24 },
        base: export("g", at(0x40)),
        layout: Some(export("module_layout", at(0))),
    }
}

pub(crate) fn emitted(
    group: &Group<'_, '_>,
    order: &[u32],
    counters: &[Option<LinkAddr>],
) -> anyhow::Result<EmittedModule> {
    let plan = ModulePlan {
        name: "kl_test",
        number: [7; NUMBER],
        order,
        counters,
        padding: 0,
        page: TextPage::Small,
    };
    emit(&group.original, &plan, &loading())
}
