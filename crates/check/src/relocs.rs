//! The KASLR relocations of a kernel as its build keeps them: which words are addresses.
//!
//! Input: `arch/x86/boot/compressed/vmlinux.relocs`, which the kernel's `arch/x86/tools/relocs.c`
//! writes. It holds three lists: 64-bit places, 32-bit places whose value decreases, 32-bit places
//! whose value increases. Kernels whose per-CPU data moves with the rest (6.15 and later) have no
//! values that decrease, and two lists. A zero stands in front of each list. A place is the low 32
//! bits of a link address. Output: sorted places. If a place lies outside the kernel, the file
//! belongs to another kernel and is refused.

use super::kernel::KernelFile;
use anyhow::{Result, bail};

/// The places of words that KASLR shifts, ascending. A place in per-CPU data is its address in that
/// section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relocs {
    /// 64-bit absolute addresses.
    pub abs64: Vec<u64>,
    /// 32-bit sign-extended absolute addresses.
    pub abs32: Vec<u64>,
    /// 32-bit PC-relative distances to per-CPU data. They change because per-CPU data does not
    /// move.
    pub inverse32: Vec<u64>,
}

impl Relocs {
    /// Reads `file`, the bytes of a `vmlinux.relocs`.
    ///
    /// # Errors
    /// The tables are damaged.
    pub fn parse(file: &[u8], kernel: &KernelFile) -> Result<Self> {
        if !file.len().is_multiple_of(4) {
            bail!("its length is not a multiple of 4");
        }
        let mut lists: Vec<Vec<u64>> = Vec::new();
        for word in file.chunks_exact(4) {
            match i32::from_le_bytes([word[0], word[1], word[2], word[3]]) {
                0 => lists.push(Vec::new()),
                word => match lists.last_mut() {
                    Some(list) => list.push(i64::from(word) as u64),
                    None => bail!("it does not begin with a zero"),
                },
            }
        }
        // Per-CPU data that is linked at 0 is loaded elsewhere.
        let at_zero = kernel.section(".data..percpu").filter(|section| section.addr == 0);
        let percpu = at_zero.map_or(0, |section| section.size);
        let load = kernel.symbol("__per_cpu_load").unwrap_or(u64::MAX);
        for place in lists.iter_mut().flatten() {
            if let Some(offset) = place.checked_sub(load).filter(|&o| o < percpu) {
                *place = offset;
            }
            if kernel.u32_at(*place).is_none() {
                bail!(
                    "it relocates {place:#x}, which is not in this kernel: the file belongs to \
                     another build"
                );
            }
        }
        let count = lists.len();
        let mut lists = lists.into_iter();
        let (mut abs64, mut inverse32, mut abs32) = match (count, lists.next(), lists.next()) {
            (2, Some(abs64), Some(abs32)) => (abs64, Vec::new(), abs32),
            (3, Some(abs64), Some(inverse32)) => {
                (abs64, inverse32, lists.next().unwrap_or_default())
            }
            _ => bail!("it has {count} lists, and the checker knows files of 2 or 3"),
        };
        for list in [&mut abs64, &mut inverse32, &mut abs32] {
            list.sort_unstable();
        }
        Ok(Relocs { abs64, abs32, inverse32 })
    }

    /// The width of the absolute address at `place`, if an absolute address is there.
    pub(crate) fn width_at(&self, place: u64) -> Option<u8> {
        if self.abs32.binary_search(&place).is_ok() {
            Some(4)
        } else {
            self.abs64.binary_search(&place).is_ok().then_some(8)
        }
    }
}
