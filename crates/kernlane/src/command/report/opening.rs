//! The options that most reports share, how they open recordings, and how they print.

use crate::command::part::PartArgs;
use crate::command::record::warn_unlike;
use anyhow::Result;
use clap::Args;
use host::out;
use host::outln;
use report::top::TopRows;
use road::opened::{OpenedKernel, Opening};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Which part of recordings is read, and what their addresses mean.
#[derive(Args)]
pub struct OpeningArgs {
    #[command(flatten)]
    pub part: PartArgs,

    /// The kernel that was recorded: its build tree, its vmlinux, or its System.map [default: found
    /// by its build id: where it was recorded, in the cache, below /usr/lib/debug]
    #[arg(long, short, value_name = "TREE|VMLINUX|SYSTEM.MAP")]
    pub kernel: Option<PathBuf>,

    /// What the kernel's functions mean, instead of annotations/linux.toml
    #[arg(long, value_name = "FILE.toml")]
    pub annotations: Option<PathBuf>,
}

impl OpeningArgs {
    /// Calls `make` for each recording and its kernel, in order.
    ///
    /// # Errors
    /// A recording or its kernel cannot be opened, or `make` fails.
    pub fn each<T>(
        &self,
        recordings: &[impl AsRef<Path>],
        machines: &[String],
        make: impl FnMut(&Path, &OpenedKernel) -> Result<T>,
    ) -> Result<Vec<T>> {
        let opening = Opening {
            kernel: self.kernel.as_deref(),
            annotations: self.annotations.as_deref(),
            machines,
            part: self.part.part()?,
        };
        for recording in recordings {
            warn_unlike(recording.as_ref(), machines)?;
        }
        opening.each(recordings, make)
    }
}

/// The machines of a report.
#[derive(Args)]
pub struct MachineArgs {
    /// A machine to simulate, as for `kernlane replay`; may be given several times, or as a list
    /// with commas
    #[arg(long, short, alias = "machines", value_name = "NAME|FILE.toml", value_delimiter = ',')]
    pub machine: Vec<String>,
}

impl MachineArgs {
    /// Their names; `usual` if none is given.
    pub fn or(&self, usual: &[&str]) -> Vec<String> {
        match self.machine.is_empty() {
            true => usual.iter().map(|&name| name.to_owned()).collect(),
            false => self.machine.clone(),
        }
    }
}

/// How long a table is.
#[derive(Args)]
pub struct TopArgs {
    /// How many rows to print
    #[arg(long, default_value_t = 30, value_name = "N")]
    pub top: usize,
}

impl TopArgs {
    /// How many rows were asked for, and by which option.
    pub fn rows(&self) -> TopRows {
        TopRows { most: self.top, setting: Some("--top") }
    }
}

/// How a table is written.
#[derive(Args)]
pub struct TableArgs {
    /// Print the table as JSON
    #[arg(long)]
    pub json: bool,
}

impl TableArgs {
    /// Prints a value, as JSON or as text.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn print<T: Serialize>(&self, value: &T, text: impl FnOnce() -> String) -> Result<()> {
        match self.json {
            true => outln!("{}", serde_json::to_string_pretty(value)?)?,
            false => out!("{}", text())?,
        }
        Ok(())
    }

    /// Prints tables, one text below the other, or as a list in JSON.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn print_each<T: Serialize>(
        &self,
        tables: &[T],
        text: impl Fn(&T) -> String,
    ) -> Result<()> {
        self.print(&tables, || tables.iter().map(text).collect::<Vec<_>>().join("\n"))
    }
}

/// The recordings of a report, how they are opened, and how its tables are written.
#[derive(Args)]
pub struct RecordingsArgs {
    /// A recording; may be given several times
    #[arg(required = true, value_name = "RECORDING")]
    pub recordings: Vec<PathBuf>,

    #[command(flatten)]
    pub opening: OpeningArgs,

    #[command(flatten)]
    pub table: TableArgs,
}

impl RecordingsArgs {
    /// Calls `make` for each recording and its kernel, in order.
    ///
    /// # Errors
    /// A recording or its kernel cannot be opened, or `make` fails.
    pub fn each<T>(
        &self,
        machines: &[String],
        make: impl FnMut(&Path, &OpenedKernel) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.opening.each(&self.recordings, machines, make)
    }

    /// As [`RecordingsArgs::each`], where each recording gives several results: all of them.
    ///
    /// # Errors
    /// As there.
    pub fn each_several<T>(
        &self,
        machines: &[String],
        make: impl FnMut(&Path, &OpenedKernel) -> Result<Vec<T>>,
    ) -> Result<Vec<T>> {
        Ok(self.each(machines, make)?.into_iter().flatten().collect())
    }
}
