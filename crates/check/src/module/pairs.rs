//! Compares the list in a module of copies of which copy belongs to which function.
//!
//! Input: the module, and the claims. Output: nothing, or the first difference. The kernel's module
//! trusts the section `.kernlane` of a module that was proven.

use super::{NamedPlace, PC32, Prover};
use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection};

/// `struct kernlane_pairs` of kmod/kernlane.h: its first bytes, the place of its number of pairs,
/// and the place of its pairs.
const MAGIC: &[u8; 16] = b"kernlane's pairs";
const COUNT_AT: usize = 32;
const PAIRS_AT: usize = 40;
/// Bytes of a pair.
const PAIR: usize = 8;

impl Prover<'_> {
    /// Compares all pairs.
    pub(super) fn pairs(&self) -> Result<()> {
        let section =
            self.reading.elf.section_by_name(".kernlane").context("the module has no .kernlane")?;
        let (index, data) = (section.index().0, section.data()?);
        let expected: Vec<_> = (self.by_old.iter().filter(|claim| claim.skip > 0))
            .map(|claim| (NamedPlace::Kernel(claim.old.0), NamedPlace::Copy(claim.new)))
            .collect();
        ensure!(data.starts_with(MAGIC), ".kernlane begins with other bytes");
        let count = data.get(COUNT_AT..PAIRS_AT).context(".kernlane is cut short")?;
        ensure!(
            count == (expected.len() as u64).to_le_bytes()
                && data.len() == PAIRS_AT + PAIR * expected.len(),
            ".kernlane has not the {} pairs that were expected",
            expected.len()
        );
        ensure!(data[PAIRS_AT..].iter().all(|&byte| byte == 0), ".kernlane: a field is not zero");
        for (n, &(entry, copy)) in expected.iter().enumerate() {
            let at = (PAIRS_AT + PAIR * n) as u64;
            let found = (self.reading.field(index, at), self.reading.field(index, at + 4));
            ensure!(
                found == (Some((entry, PC32)), Some((copy, PC32))),
                ".kernlane: pair {n} names {found:?} instead of {entry:?} and {copy:?}"
            );
        }
        Ok(())
    }
}
