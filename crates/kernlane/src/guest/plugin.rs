//! Where the library is that QEMU loads to record.

use anyhow::{Context, Result, bail};
use std::path::PathBuf;

pub const LIBRARY: &str = "libkernlane_plugin.so";

/// The file that `KERNLANE_PLUGIN` names, else the one beside the tool's executable, else `../lib/kernlane/` from there.
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
