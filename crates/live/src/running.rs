//! The running kernel as it can be read: build id, where KASLR put it, and its memory.
//!
//! Input: `/sys/kernel/notes`, `/proc/kallsyms`, `/proc/kcore`; reading them needs root. This
//! module never writes. It refuses a vmlinux whose symbols or tables differ from the kernel's, for
//! all commands.

use crate::freed;
use crate::kcore::KernelCore;
use crate::memory::Memory;
use crate::resident;
use crate::symbols::KernelSymbols;
use anyhow::{Context, Result, bail, ensure};
use image::BuildId;
use image::address::LinkAddr;
use image::linked::LinkedKernel;

/// The kernel that runs, and its memory.
pub struct RunningKernel {
    /// The distance that is added to a link address.
    pub slide: u64,
    core: KernelCore,
}

impl RunningKernel {
    /// Opens the running kernel, after making sure that `kernel` is its vmlinux, with the symbols
    /// and tables that the kernel has in memory.
    ///
    /// # Errors
    /// Another kernel runs; the vmlinux is damaged; this is not root; the kernel is locked down.
    pub fn open(kernel: &LinkedKernel<'_>) -> Result<RunningKernel> {
        let id = build_id()?;
        ensure!(
            id == kernel.build_id,
            "the running kernel has build id {}, the vmlinux {}: take the vmlinux of the same \
             version of the package, or of the tree that the kernel was built in",
            id.0,
            kernel.build_id.0
        );
        refuse_lockdown()?;
        let symbols = KernelSymbols::read()?;
        let slide = symbols.slide(kernel)?;
        symbols.verify(kernel, slide)?;
        let running = RunningKernel { slide, core: KernelCore::open()? };
        freed::check_all_bounds(kernel)?;
        resident::verify(kernel, &running)?;
        Ok(running)
    }

    /// The `len` bytes at the place to which KASLR moved a link address.
    ///
    /// # Errors
    /// The memory is not in `/proc/kcore`, or cannot be read.
    pub(crate) fn read(&self, at: LinkAddr, len: usize) -> Result<Vec<u8>> {
        self.core.read(self.address(at), len)
    }

    /// Where a link address is in the running kernel.
    pub fn address(&self, at: LinkAddr) -> u64 {
        at.0.wrapping_add(self.slide)
    }
}

impl Memory for RunningKernel {
    fn read(&self, at: LinkAddr, len: usize) -> Result<Vec<u8>> {
        RunningKernel::read(self, at, len)
    }

    fn slide(&self) -> u64 {
        self.slide
    }
}

/// The running kernel's build id.
///
/// # Errors
/// The kernel gives no build id.
pub fn build_id() -> Result<BuildId> {
    let notes = std::fs::read("/sys/kernel/notes").context("reading /sys/kernel/notes")?;
    note_of_build_id(&notes).context("the running kernel shows no build id in /sys/kernel/notes")
}

/// A note is three words (sizes of name and description, type), the name, the description, each
/// padded to four bytes.
pub(crate) fn note_of_build_id(notes: &[u8]) -> Option<BuildId> {
    const NT_GNU_BUILD_ID: u32 = 3;
    let mut rest = notes;
    while let Some(head) = rest.first_chunk::<12>() {
        let word = |n: usize| u32::from_le_bytes([head[n], head[n + 1], head[n + 2], head[n + 3]]);
        let (name, description) = (word(0) as usize, word(4) as usize);
        let at = 12usize.checked_add(name.checked_next_multiple_of(4)?)?;
        let bytes = rest.get(at..at.checked_add(description)?)?;
        if word(8) == NT_GNU_BUILD_ID && rest.get(12..12 + name) == Some(b"GNU\0") {
            return Some(BuildId::from_bytes(bytes));
        }
        rest = rest.get(at.checked_add(description.checked_next_multiple_of(4)?)?..)?;
    }
    None
}

fn refuse_lockdown() -> Result<()> {
    // Without the file the kernel has no lockdown.
    let state = std::fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    if state.contains('[') && !state.contains("[none]") {
        bail!(
            "the kernel is locked down ({}): it shows its memory to nobody and takes signed \
             modules only; lockdown is off without secure boot, or with a kernel command line \
             without lockdown=",
            state.trim()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_id_is_found_among_other_notes() {
        let mut notes = Vec::new();
        for (name, kind, description) in
            [("Linux\0", 7u32, &[1u8, 2, 3][..]), ("GNU\0", 3, &[0xab, 0x01][..])]
        {
            for word in [name.len() as u32, description.len() as u32, kind] {
                notes.extend(word.to_le_bytes());
            }
            notes.extend(name.bytes());
            notes.resize(notes.len().next_multiple_of(4), 0);
            notes.extend(description);
            notes.resize(notes.len().next_multiple_of(4), 0);
        }
        assert_eq!(note_of_build_id(&notes), Some(BuildId("ab01".into())));
        for cut in 0..notes.len() - 4 {
            assert_eq!(note_of_build_id(&notes[..cut]), None);
        }
        assert_eq!(note_of_build_id(&[0xff; 40]), None);
    }
}
