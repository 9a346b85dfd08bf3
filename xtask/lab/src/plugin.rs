//! The plugin, for guests that tests boot themselves.
//!
//! Input: a guest's kernel, and where the recording goes. Output: arguments for QEMU. For other
//! work of the plugin, add its arguments (`crates/plugin/src/arguments.rs`).

use anyhow::{Context, Result};
use guest::{GuestKernel, QemuPlugin};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// The plugin's arguments.
pub struct PluginArguments(Vec<(String, String)>);

impl PluginArguments {
    /// What every recording needs: its file, the kernel, the workload's name, and where the kernel
    /// switches tasks.
    ///
    /// # Errors
    /// The kernel cannot be read, or the path is not UTF-8.
    pub fn new(kernel: &GuestKernel, workload: &str, out: &Path) -> Result<PluginArguments> {
        let task = kernel.task_facts()?;
        let out = out.to_str().with_context(|| format!("{} is not UTF-8", out.display()))?;
        let arguments = PluginArguments(Vec::new())
            .with("out", out)
            .with("build_id", &kernel.build_id.0)
            .with("workload", workload)
            .with("switch_to", format!("{:#x}", task.switch_to.0))
            .with("comm", task.comm);
        Ok(arguments)
    }

    /// One argument more.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Display) -> PluginArguments {
        self.0.push((name.to_owned(), value.to_string()));
        self
    }

    /// More arguments.
    #[must_use]
    pub fn with_all(mut self, more: impl IntoIterator<Item = (String, String)>) -> PluginArguments {
        self.0.extend(more);
        self
    }

    /// The plugin in `library`, with these arguments.
    pub fn plugin(self, library: PathBuf) -> QemuPlugin {
        QemuPlugin { library, arguments: self.0 }
    }
}
