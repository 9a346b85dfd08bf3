//! Holds modules, so that they stay while they are read and replaced (`KERNLANE_HOLD`).

use super::{Device, GROUP, NAME, name_field};
use anyhow::Result;
use rustix::io::Errno;
use rustix::ioctl::{self, Updater, opcode};

/// `struct kernlane_hold`.
#[repr(C)]
struct RawHold {
    module: [u8; NAME],
    text: u64,
}

impl Device {
    /// Holds a module: it cannot be removed until the device is closed. `text`: where its `.text`
    /// is in memory.
    ///
    /// # Errors
    /// The module is gone, or is somewhere else; or it is one whose functions are never replaced.
    pub(crate) fn hold(&self, module: &str, text: u64) -> Result<()> {
        let mut hold = RawHold { module: name_field(module)?, text };
        // SAFETY: the opcode belongs to this structure, which points to nothing.
        let done = unsafe {
            ioctl::ioctl(
                &self.file,
                Updater::<{ opcode::write::<RawHold>(GROUP, 6) }, RawHold>::new(&mut hold),
            )
        };
        done.map_err(|error| match error {
            Errno::NOENT => anyhow::anyhow!("it was removed, or loaded again, while it was read"),
            Errno::PERM => anyhow::anyhow!("it is a livepatch, or has copies"),
            error => error.into(),
        })
    }
}
