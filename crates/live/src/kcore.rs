//! The memory of the running kernel and of its modules, as `/proc/kcore` shows it.
//!
//! Input: addresses. Output: bytes. Reading needs root. This module never writes.

use anyhow::{Context, Result};
use object::read::elf::{FileHeader, ProgramHeader};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The open `/proc/kcore`.
pub(crate) struct KernelCore {
    core: File,
    /// Address, offset in the core, size.
    segments: Vec<(u64, u64, u64)>,
}

impl KernelCore {
    /// # Errors
    /// This is not root, or the kernel has no `/proc/kcore`.
    pub(crate) fn open() -> Result<KernelCore> {
        let core = File::open("/proc/kcore").context("opening /proc/kcore: this needs root")?;
        let segments = segments(&core).context("/proc/kcore")?;
        Ok(KernelCore { core, segments })
    }

    /// The `len` bytes at an address of the running kernel.
    ///
    /// # Errors
    /// The memory is not in `/proc/kcore`, or cannot be read.
    pub(crate) fn read(&self, addr: u64, len: usize) -> Result<Vec<u8>> {
        let end = addr.saturating_add(len as u64);
        let segment = self
            .segments
            .iter()
            .find(|&&(start, _, size)| start <= addr && end <= start.saturating_add(size));
        let &(start, offset, _) =
            segment.with_context(|| format!("/proc/kcore has no memory at {addr:x}"))?;
        let mut bytes = vec![0; len];
        self.core
            .read_exact_at(&mut bytes, offset + (addr - start))
            .with_context(|| format!("reading the kernel's memory at {addr:x}"))?;
        Ok(bytes)
    }
}

fn segments(core: &File) -> Result<Vec<(u64, u64, u64)>> {
    let mut head = vec![0; 64];
    core.read_exact_at(&mut head, 0).context("cannot be read")?;
    let elf = object::elf::FileHeader64::<object::LittleEndian>::parse(head.as_slice())
        .context("is not an ELF file")?;
    let (at, count) =
        (elf.e_phoff.get(object::LittleEndian), usize::from(elf.e_phnum.get(object::LittleEndian)));
    head.resize(usize::try_from(at)?.saturating_add(count * 56).min(1 << 20), 0);
    core.read_exact_at(&mut head, 0).context("cannot be read")?;
    let elf = object::elf::FileHeader64::<object::LittleEndian>::parse(head.as_slice())
        .context("is not an ELF file")?;
    let headers = elf
        .program_headers(object::LittleEndian, head.as_slice())
        .context("its segments cannot be read")?;
    let loaded = headers.iter().filter(|h| h.p_type(object::LittleEndian) == object::elf::PT_LOAD);
    Ok(loaded
        .map(|h| {
            (
                h.p_vaddr(object::LittleEndian),
                h.p_offset(object::LittleEndian),
                h.p_memsz(object::LittleEndian),
            )
        })
        .collect())
}
