//! Finds the library that QEMU loads to record, and makes its arguments for recording data
//! accesses.

use crate::kernel::{GuestKernel, TaskFacts};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;

pub(crate) const LIBRARY: &str = "libkernlane_plugin.so";

/// The library that `KERNLANE_PLUGIN` names, or the one beside the executable of Kernlane, or the
/// one in `../lib/kernlane/` from there.
///
/// # Errors
/// There is no such file.
pub fn find() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("KERNLANE_PLUGIN") {
        let path = PathBuf::from(path);
        return path.canonicalize().with_context(|| {
            format!("KERNLANE_PLUGIN is {}, which does not exist", path.display())
        });
    }
    let executable = std::env::current_exe()
        .and_then(|path| path.canonicalize())
        .context("the path of this program is unknown")?;
    let directory = executable.parent().context("this program is in no directory")?;
    let candidates = [directory.join(LIBRARY), directory.join("../lib/kernlane").join(LIBRARY)];
    match candidates.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => bail!(
            "{LIBRARY}, the plugin for QEMU, is not beside {}: build it (cargo build --release), \
             or give its path in KERNLANE_PLUGIN",
            executable.display()
        ),
    }
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
