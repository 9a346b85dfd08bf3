//! Puts the text of modules into large pages while they are loaded (`KERNLANE_LARGE_TEXT`).

use super::{Device, GROUP};
use anyhow::Result;
use rustix::io::Errno;
use rustix::ioctl::{self, IntegerSetter, opcode};

/// While it lives, modules that this thread loads have their text in large pages.
pub(crate) struct Placing<'d>(&'d Device);

impl Drop for Placing<'_> {
    fn drop(&mut self) {
        // The module stops it itself when the file is closed.
        let _ = self.0.place(0);
    }
}

impl Device {
    /// Has the text of modules that this thread loads put into large pages. The text of a module
    /// must fill whole ones.
    ///
    /// # Errors
    /// Another program loads a module, or another tool owns the function that allocates.
    pub(crate) fn place_text(&self) -> Result<Placing<'_>> {
        self.place(1).map_err(|error| match error {
            Errno::BUSY => anyhow::anyhow!(
                "a livepatch owns execmem_alloc, another program has its modules placed, or the \
                 tracer is switched off (sysctl kernel.ftrace_enabled)"
            ),
            error => error.into(),
        })?;
        Ok(Placing(self))
    }

    fn place(&self, on: usize) -> Result<(), Errno> {
        // SAFETY: the opcode takes a number, and no memory of this process.
        unsafe {
            let setter = IntegerSetter::<{ opcode::none(GROUP, 5) }>::new_usize(on);
            ioctl::ioctl(&self.file, setter)
        }
    }
}
