//! The interface through which the running kernel's memory is read.
//!
//! Input: link addresses. Output: bytes of the running kernel, or of its file for trials without a
//! kernel. This module writes nothing.

use anyhow::{Context, Result};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use std::ops::Range;

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

/// All code of functions, read at once: reading it function by function costs a system call each.
pub struct TextMemory {
    /// Address and bytes of each part.
    parts: Vec<(u64, Vec<u8>)>,
    slide: u64,
}

impl TextMemory {
    /// Reads the whole text of `kernel` from `memory`, and that of its modules.
    ///
    /// # Errors
    /// That memory cannot be read.
    pub fn read(kernel: &LinkedKernel<'_>, memory: &dyn Memory) -> Result<TextMemory> {
        let read = |area: Range<u64>| {
            let len = (area.end - area.start) as usize;
            Ok((area.start, memory.read(LinkAddr(area.start), len)?))
        };
        let parts = kernel.areas().map(read).collect::<Result<_>>()?;
        Ok(TextMemory { parts, slide: memory.slide() })
    }
}

impl Memory for TextMemory {
    fn read(&self, at: LinkAddr, len: usize) -> Result<Vec<u8>> {
        let behind = self.parts.partition_point(|&(start, _)| start <= at.0);
        let part = behind.checked_sub(1).map(|n| &self.parts[n]);
        let bytes = part.and_then(|(start, bytes)| {
            let from = usize::try_from(at.0 - start).ok()?;
            bytes.get(from..from.saturating_add(len))
        });
        Ok(bytes.with_context(|| format!("{at} is not in the kernel's text"))?.to_vec())
    }

    fn slide(&self) -> u64 {
        self.slide
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_elf::DATA;
    use crate::test_kernel::{ChangedMemory, SLIDE, TEXT, at, tables, with};

    #[test]
    fn the_text_is_that_of_memory_and_nothing_around_it_is_read() {
        with(tables(), |kernel| {
            let memory = ChangedMemory { kernel, slide: SLIDE, changes: vec![(at(0x17), 0xf1)] };
            let text = TextMemory::read(kernel, &memory).unwrap();
            assert_eq!(text.slide(), SLIDE);
            assert_eq!(text.read(at(0x16), 3).unwrap(), [0x00, 0xf1, 0xcc]);
            assert_eq!(text.read(at(0), 0x100).unwrap().len(), 0x100);
            let outside = [(TEXT - 1, 2), (TEXT + 0xff, 2), (TEXT + 0x100, 1), (DATA, 1)];
            for (at, len) in outside {
                let error = text.read(LinkAddr(at), len).unwrap_err().to_string();
                assert_eq!(error, format!("{at:016x} is not in the kernel's text"));
            }
        });
    }
}
