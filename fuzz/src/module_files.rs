//! Kernel modules: what the targets use of all crates that read them.

use crate::image_readers;
use check::loadable;
use emit::loadable::{ModuleObject, unsigned};
use image::address::LinkAddr;
use image::examples;
use image::linked::LinkedKernel;
use image::linked::loaded::{self, LoadedModule, ModuleFile};
use image::module::ModuleCode;
use image::object::ObjectHints;

/// A module, byte by byte: its code, the same module with its code in the reversed order, and the
/// proof of that. The proof may fail, because the bytes may be those of a wrong module.
pub fn modules(bytes: &[u8]) {
    loaded_modules(bytes);
    let Ok((bytes, _)) = unsigned(bytes) else { return };
    let _ = ModuleCode::parse(bytes);
    let _ = loadable::prove(bytes, bytes, None, 1);
    let Ok(module) = ModuleObject::read(bytes, &ObjectHints::default()) else { return };
    let order: Vec<u32> = (0..module.object.pieces.len() as u32).rev().collect();
    let Ok(rewritten) = module.rewrite(&order, order.len()) else { return };
    let _ = loadable::prove(bytes, &rewritten.bytes, Some(&rewritten.map), 1);
}

/// The same bytes twice as modules that a kernel has loaded.
fn loaded_modules(bytes: &[u8]) {
    const BASE: u64 = 0xffff_ffff_c000_0000;
    let seeds = image_readers::linked_seeds();
    let Some(Ok(kernel)) = seeds.first().map(|seed| LinkedKernel::parse(seed)) else { return };
    let file = |base: u64| {
        let places = (0u64..).zip(LOADED).map(|(n, name)| (name.to_owned(), base + n * 0x1_0000));
        let sections = places.map(|(name, at)| (name, LinkAddr(at))).collect();
        ModuleFile { data: bytes, sections }
    };
    let found = loaded::relocate(&kernel, &[file(BASE), file(BASE + 0x100_0000)]);
    let found: Vec<LoadedModule> = found.into_iter().flatten().collect();
    if let Ok(kernel) = kernel.with_modules(&found) {
        image_readers::read_all_of(&kernel);
    }
}

/// Sections to which the target gives addresses.
const LOADED: [&str; 14] = [
    ".text",
    ".text.unlikely",
    ".init.text",
    ".rodata",
    ".data",
    "__jump_table",
    "__ex_table",
    "__bug_table",
    ".altinstructions",
    ".altinstr_replacement",
    ".return_sites",
    "__mcount_loc",
    ".orc_unwind_ip",
    ".orc_unwind",
];

pub fn module_seeds() -> Vec<Vec<u8>> {
    vec![examples::module()]
}
