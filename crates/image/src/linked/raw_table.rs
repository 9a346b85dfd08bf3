//! The bytes of a side table, and the fields of its entries.
//!
//! Input: a kernel and the place of a table. Output: its entries as bytes, with their addresses.
//! This module does not know what an entry says.

use super::LinkedKernel;
use anyhow::{Context, Result, ensure};

/// The bytes of a table whose entries all have the same size.
pub(super) struct RawTable<'a> {
    pub addr: u64,
    pub bytes: &'a [u8],
    pub entry: usize,
}

impl<'a> RawTable<'a> {
    /// An empty table if the kernel has no such section.
    pub(super) fn section(
        kernel: &LinkedKernel<'a>,
        name: &str,
        entry: usize,
    ) -> Result<RawTable<'a>> {
        let Some(section) = kernel.section(name) else {
            return Ok(RawTable::empty(entry));
        };
        // Zeros behind the last entry pad .smp_locks to whole pages.
        let used = match name {
            ".smp_locks" => kernel
                .address_of("__smp_locks_end")
                .map_or(section.bytes.len(), |end| (end.0.wrapping_sub(section.addr)) as usize),
            _ => section.bytes.len(),
        };
        let bytes = section.bytes.get(..used).with_context(|| format!("{name} is cut short"))?;
        let fits = bytes.len().is_multiple_of(entry);
        ensure!(fits, "{name} has entries of an unknown size");
        Ok(RawTable { addr: section.addr, bytes, entry })
    }

    pub(super) fn between(
        kernel: &LinkedKernel<'a>,
        start: &str,
        end: &str,
        entry: usize,
    ) -> Result<RawTable<'a>> {
        let (Some(from), Some(to)) = (kernel.address_of(start), kernel.address_of(end)) else {
            return Ok(RawTable::empty(entry));
        };
        if from == to {
            return Ok(RawTable::empty(entry));
        }
        let len = usize::try_from(to.0.wrapping_sub(from.0)).unwrap_or(usize::MAX);
        let bytes = kernel
            .bytes(from, len)
            .with_context(|| format!("the table behind {start} is cut short"))?;
        ensure!(
            len.is_multiple_of(entry),
            "the table behind {start} has entries of an unknown size"
        );
        Ok(RawTable { addr: from.0, bytes, entry })
    }

    fn empty(entry: usize) -> RawTable<'a> {
        RawTable { addr: 0, bytes: &[], entry }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, &'a [u8])> {
        let (addr, size) = (self.addr, self.entry);
        let entries = self.bytes.chunks_exact(size).enumerate();
        entries.map(move |(n, entry)| (addr + (n * size) as u64, entry))
    }

    pub(super) fn relatives(&self) -> Vec<u64> {
        self.entries().map(|(at, e)| relative(at, e, 0)).collect()
    }

    pub(super) fn absolutes(&self) -> Vec<u64> {
        self.entries().map(|(_, e)| u64_at(e, 0)).collect()
    }
}

pub(super) fn u32_at(entry: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
}

pub(super) fn u64_at(entry: &[u8], at: usize) -> u64 {
    u64::from(u32_at(entry, at)) | u64::from(u32_at(entry, at + 4)) << 32
}

/// The address that a 32-bit field, relative to itself, refers to.
pub(super) fn relative(at: u64, entry: &[u8], field: usize) -> u64 {
    (at + field as u64).wrapping_add_signed(i64::from(u32_at(entry, field) as i32))
}
