//! Kernel modules: what the targets use of all crates that read them.

use check::loadable;
use emit::loadable::{ModuleObject, unsigned};
use image::examples;
use image::module::ModuleCode;
use image::object::ObjectHints;

/// A module, byte by byte: its code, the same module with its code in the reversed order, and the
/// proof of that. The proof may fail, because the bytes may be those of a wrong module.
pub fn modules(bytes: &[u8]) {
    let Ok((bytes, _)) = unsigned(bytes) else { return };
    let _ = ModuleCode::parse(bytes);
    let _ = loadable::prove(bytes, bytes, None, 1);
    let Ok(module) = ModuleObject::read(bytes, &ObjectHints::default()) else { return };
    let order: Vec<u32> = (0..module.object.pieces.len() as u32).rev().collect();
    let Ok(rewritten) = module.rewrite(&order, order.len()) else { return };
    let _ = loadable::prove(bytes, &rewritten.bytes, Some(&rewritten.map), 1);
}

pub fn module_seeds() -> Vec<Vec<u8>> {
    vec![examples::module()]
}
