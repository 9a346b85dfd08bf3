//! What a guest needs to replace functions of its kernel: Debian's kernels, the program, the
//! module.
//!
//! Input: a kernel. Output: files in a directory.

pub mod debian;
mod module_types;

use crate::run;
use anyhow::{Context, Result};
use guest::GuestKernel;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a guest needs to replace functions of its kernel, made in `directory`: the name in `/kl`,
/// the permissions, and where it lies. The vmlinux has no debug information.
///
/// # Errors
/// Something cannot be built.
pub fn make_tool(
    kernel: &GuestKernel,
    directory: &Path,
) -> Result<[(&'static str, u32, PathBuf); 3]> {
    let (vmlinux, stripped) = (directory.join("vmlinux"), directory.join("kernlane"));
    run(Command::new("objcopy").arg("--strip-debug").arg(&kernel.vmlinux).arg(&vmlinux))?;
    // The program runs in the guest, whose kernel it changes.
    run(Command::new("strip").arg("-o").arg(&stripped).arg(crate::kernlane()?))?;
    let module = build_module(kernel, "kmod".as_ref(), directory)?.join("kernlane.ko");
    if let Some(tree) = kernel.tree() {
        module_types::describe(tree, directory, &vmlinux)?;
    }
    Ok([("vmlinux", 0o644, vmlinux), ("kernlane", 0o755, stripped), ("kernlane.ko", 0o644, module)])
}

/// Builds a kernel module outside of the tree, as DKMS does, with the Makefile of `kmod/`, which is
/// built first. Returns the directory of the built module.
///
/// # Errors
/// The module cannot be built, or the kernel's headers cannot be installed.
pub fn build_module(kernel: &GuestKernel, source: &Path, directory: &Path) -> Result<PathBuf> {
    let headers = match kernel.tree() {
        Some(tree) => debian::Headers { root: None, path: tree.to_owned() },
        None => debian::headers(&kernel.release)?,
    };
    let build = directory.join(source.file_name().context("a module without a name")?);
    run(Command::new("cp").arg("-r").arg(source).arg(&build))?;
    headers.make(&build, &directory.join("kmod/Makefile"))?;
    Ok(build)
}
