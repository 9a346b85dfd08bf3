//! `cargo xtask profiled-test`: the whole road of a kernel that clang built with a profile. Its hot
//! functions lie in another section than most functions, and its object has what informs the
//! linker only.

use crate::road_test;
use anyhow::{Context, Result, ensure};
use image::object::elf::Elf;
use lab::profiled;
use std::fs;

/// What a profile adds to an object.
const SECTIONS: [&str; 3] =
    [".text.hot.", ".llvm.call-graph-profile", ".rel.llvm.call-graph-profile"];

/// Builds the kernel and goes down the road.
///
/// # Errors
/// The kernel has no such sections, or a prediction does not hold.
pub fn profiled_test() -> Result<()> {
    let tree = profiled::tree()?;
    let object = tree.join("vmlinux.o");
    let bytes = fs::read(&object).with_context(|| object.display().to_string())?;
    let elf = Elf::parse(&bytes)?;
    for name in SECTIONS {
        let size = elf.by_name(name).map_or(0, |id| elf.section(id).size);
        ensure!(size > 0, "{}: no {name}: clang did not use the profile", object.display());
    }
    println!("passed: clang put hot functions into a section of their own");
    road_test::road_test(&tree, false)
}
