//! Where the library is that QEMU loads to record, and what it is told to record data accesses.

use crate::kernel::{Kernel, TaskFacts};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;

pub const LIBRARY: &str = "libkernlane_plugin.so";

/// The file that `KERNLANE_PLUGIN` names, else the one beside the tool's executable, else
/// `../lib/kernlane/` from there.
pub fn find() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("KERNLANE_PLUGIN") {
        let path = PathBuf::from(path);
        return path
            .canonicalize()
            .with_context(|| format!("KERNLANE_PLUGIN is {}, which is not there", path.display()));
    }
    let executable = std::env::current_exe()
        .and_then(|path| path.canonicalize())
        .context("where the tool itself lies is not known")?;
    let directory = executable.parent().context("the tool lies in no directory")?;
    let candidates = [directory.join(LIBRARY), directory.join("../lib/kernlane").join(LIBRARY)];
    match candidates.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => bail!(
            "{LIBRARY}, which records, is not beside {}: build it (cargo build --release), or name it in KERNLANE_PLUGIN",
            executable.display()
        ),
    }
}

/// What the plugin is told so that it records data accesses, and what memory is used for.
///
/// # Errors
/// The kernel's vmlinux cannot be read. A kernel that does not say what its frames are used for is
/// no error: the recording says why.
pub fn data_arguments(kernel: &Kernel, task: &TaskFacts) -> Result<Vec<(String, String)>> {
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
