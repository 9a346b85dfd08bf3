//! Finds the library that QEMU loads to record, and makes its arguments for recording data
//! accesses.
//!
//! Input: a kernel. Output: a path and text. This module loads nothing.

use crate::companion;
use crate::kernel::{GuestKernel, TaskFacts};
use anyhow::Result;
use std::path::PathBuf;

pub(crate) const LIBRARY: &str = "libkernlane_plugin.so";

/// The library that `KERNLANE_PLUGIN` names, or the one beside the executable of Kernlane, or the
/// one in `../lib/kernlane/` from there.
///
/// # Errors
/// There is no such file.
pub fn find() -> Result<PathBuf> {
    companion::find(
        LIBRARY,
        "KERNLANE_PLUGIN",
        "this is the plugin for QEMU: build it (cargo build --release), or give its path in \
         KERNLANE_PLUGIN",
    )
}

/// The plugin's arguments for recording data accesses and the use of memory.
///
/// # Errors
/// The kernel's vmlinux cannot be read. If the kernel does not say how its frames are used, that is
/// not an error: the recording says why.
pub fn data_arguments(kernel: &GuestKernel, task: &TaskFacts) -> Result<Vec<(String, String)>> {
    let mut arguments = vec![("data".to_owned(), "on".to_owned())];
    let mut add = |key: &str, value: String| arguments.push((key.into(), value));
    if let Some(page_offset_base) = task.page_offset_base {
        add("page_offset_base", format!("{:#x}", page_offset_base.0));
    }
    match kernel.frame_facts() {
        Ok(facts) => add("frames", facts.argument()),
        Err(error) => add("condition.frames_unknown", format!("{:#}", error.root_cause())),
    }
    for (name, addr) in kernel.values()? {
        add(&format!("value.{name}"), format!("{:#x}", addr.0));
    }
    Ok(arguments)
}
