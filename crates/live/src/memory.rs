//! The interface through which the running kernel's memory is read.
//!
//! Input: link addresses. Output: bytes of the running kernel, or of its file for trials without a
//! kernel. This module writes nothing.

use anyhow::Result;
use image::address::LinkAddr;
use image::linked::LinkedKernel;

/// Where the bytes of the running kernel come from: memory, or a copy of it.
pub trait Memory {
    /// The `len` bytes at the place to which KASLR moved a link address.
    ///
    /// # Errors
    /// That memory cannot be read.
    fn read(&self, at: LinkAddr, len: usize) -> Result<Vec<u8>>;
    /// The distance in bytes by which KASLR moved the kernel.
    fn slide(&self) -> u64;
}

/// The file itself, as a kernel in memory that nothing has changed.
pub struct FileMemory<'a, 'd>(pub &'a LinkedKernel<'d>);

impl Memory for FileMemory<'_, '_> {
    fn read(&self, at: LinkAddr, len: usize) -> Result<Vec<u8>> {
        let bytes = self.0.bytes(at, len);
        Ok(bytes.ok_or_else(|| anyhow::anyhow!("{at} is not in the file"))?.to_vec())
    }

    fn slide(&self) -> u64 {
        0
    }
}
