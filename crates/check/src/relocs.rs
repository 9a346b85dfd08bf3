//! The KASLR relocations of a kernel, as its build keeps them: which words are addresses.
//!
//! Takes `arch/x86/boot/compressed/vmlinux.relocs` (written by the kernel's
//! `arch/x86/tools/relocs.c`: a zero and the 64-bit places, a zero and the 32-bit places to be
//! lowered, a zero and the 32-bit places to be raised; each place the low 32 bits of a link
//! address); gives sorted places. Never guesses: a place outside the kernel makes the file another
//! kernel's.

use super::kernel::Kernel;
use anyhow::{Result, bail};

/// Places of words that KASLR shifts, ascending. A place in per-CPU data is its address in that
/// section.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Relocs {
    /// 64-bit absolute addresses.
    pub abs64: Vec<u64>,
    /// 32-bit sign-extended absolute addresses.
    pub abs32: Vec<u64>,
    /// 32-bit PC-relative distances to per-CPU data, which does not move.
    pub inverse32: Vec<u64>,
}

impl Relocs {
    pub fn parse(file: &[u8], kernel: &Kernel) -> Result<Self> {
        if !file.len().is_multiple_of(4) {
            bail!("its length is no multiple of 4");
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
        let percpu = kernel.section(".data..percpu").map_or(0, |s| s.size);
        let load = kernel.symbol("__per_cpu_load").unwrap_or(u64::MAX);
        for place in lists.iter_mut().flatten() {
            if let Some(offset) = place.checked_sub(load).filter(|&o| o < percpu) {
                *place = offset;
            }
            if kernel.u32_at(*place).is_none() {
                bail!(
                    "it relocates {place:#x}, which is not in this kernel: it belongs to another build"
                );
            }
        }
        let [mut abs64, mut inverse32, mut abs32]: [Vec<u64>; 3] = match lists.try_into() {
            Ok(lists) => lists,
            Err(lists) => bail!("it has {} lists instead of 3", lists.len()),
        };
        for list in [&mut abs64, &mut inverse32, &mut abs32] {
            list.sort_unstable();
        }
        Ok(Relocs { abs64, abs32, inverse32 })
    }

    /// The width of the absolute address at `place`, if one is there.
    pub fn width_at(&self, place: u64) -> Option<u8> {
        if self.abs32.binary_search(&place).is_ok() {
            Some(4)
        } else {
            self.abs64.binary_search(&place).is_ok().then_some(8)
        }
    }
}
