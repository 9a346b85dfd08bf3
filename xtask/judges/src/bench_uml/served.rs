//! Kernels that are alive at once, and run a slice of a load when they are told to.
//!
//! Input: kernels. Output: core cycles of slices. A kernel that says nothing for a minute is
//! killed, and the error has its console.

use super::kernels::MeasuredKernel;
use anyhow::{Context, Result};
use lab::timed::{self, Timed};
use lab::uml::{UmlGuest, UmlServer};
use std::fs;
use std::path::Path;

pub(super) struct ServedKernel {
    name: &'static str,
    server: UmlServer,
}

impl ServedKernel {
    /// Boots all kernels, and waits until each is ready.
    ///
    /// Each start has new copies of the programs. The pages of a file stay where they lay when it
    /// was written, so that two files of the same bytes differ in speed, start after start.
    pub(super) fn start_all(
        kernels: &[MeasuredKernel],
        directory: &Path,
    ) -> Result<Vec<ServedKernel>> {
        let guest = UmlGuest::new(directory)?;
        let copies = directory.join("started");
        if copies.exists() {
            fs::remove_dir_all(&copies).with_context(|| copies.display().to_string())?;
        }
        fs::create_dir(&copies).with_context(|| copies.display().to_string())?;
        let booted: Vec<ServedKernel> = kernels
            .iter()
            .map(|kernel| {
                let program = copies.join(kernel.name);
                fs::copy(&kernel.program, &program)
                    .with_context(|| kernel.program.display().to_string())?;
                anyhow::Ok(ServedKernel { name: kernel.name, server: guest.serve(&program)? })
            })
            .collect::<Result<_>>()?;
        booted.into_iter().map(ServedKernel::ready).collect()
    }

    fn ready(mut self) -> Result<ServedKernel> {
        self.server.wait_for("ready").with_context(|| self.name)?;
        Ok(self)
    }

    /// The kernel's first process.
    pub(super) fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// The core cycles of `rounds` of a load; `None`: the slice was disturbed.
    pub(super) fn slice(&mut self, load: &str, rounds: u32) -> Result<Option<Timed<f64>>> {
        self.server.tell(&format!("{load} {rounds}\n")).with_context(|| self.name)?;
        let answer = self.server.wait_for("slice ").with_context(|| self.name)?;
        timed::slice(answer.trim_start_matches("slice "))
            .with_context(|| format!("{}: {answer:?} is not a slice", self.name))
    }
}
