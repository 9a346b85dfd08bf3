//! Compares the list in a module of copies of which copy belongs to which function, and of which
//! copies run the code of inlined functions.
//!
//! Input: the module, and the claims. Output: nothing, or the first difference. The kernel's module
//! trusts the section `.kernlane` of a module that was proven.

use super::{NamedPlace, PC32, Prover};
use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection};

/// `struct kernlane_pairs` of kmod/kernlane.h: its first bytes, the places of its numbers of pairs
/// and of holders, and the place of its pairs.
const MAGIC: &[u8; 16] = b"kernlane's pairs";
const COUNT_AT: usize = 32;
const PAIRS_AT: usize = 48;
/// Bytes of a pair.
const PAIR: usize = 8;

impl Prover<'_> {
    /// Compares all pairs and holders.
    pub(super) fn pairs(&self) -> Result<()> {
        let section =
            self.reading.elf.section_by_name(".kernlane").context("the module has no .kernlane")?;
        let (index, data) = (section.index().0, section.data()?);
        let entered: Vec<_> = self.by_old.iter().filter(|claim| claim.skip > 0).collect();
        ensure!(data.starts_with(MAGIC), ".kernlane begins with other bytes");
        let counts = data.get(COUNT_AT..PAIRS_AT).context(".kernlane is cut short")?;
        let holders = self.holders()?;
        let expected = [entered.len() as u64, holders.len() as u64].map(u64::to_le_bytes);
        let behind = PAIRS_AT + PAIR * entered.len();
        ensure!(
            counts == expected.concat() && data.len() == behind + 8 * holders.len(),
            ".kernlane has not the {} pairs and {} holders that were expected",
            entered.len(),
            holders.len()
        );
        ensure!(
            data[PAIRS_AT..behind].iter().all(|&byte| byte == 0),
            ".kernlane: a field is not zero"
        );
        for (n, claim) in entered.iter().enumerate() {
            let at = (PAIRS_AT + PAIR * n) as u64;
            let (entry, copy) = (NamedPlace::Kernel(claim.old.0), NamedPlace::Copy(claim.new));
            let found = (self.reading.field(index, at), self.reading.field(index, at + 4));
            ensure!(
                found == (Some((entry, PC32)), Some((copy, PC32))),
                ".kernlane: pair {n} names {found:?} instead of {entry:?} and {copy:?}"
            );
        }
        let pair = |at: u64| entered.partition_point(|claim| claim.old.0 < at) as u32;
        let words = holders.iter().flat_map(|&(inlined, copy)| [pair(inlined), pair(copy)]);
        let expected: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        ensure!(data[behind..] == expected, ".kernlane: the holders of inlined code are others");
        Ok(())
    }
}
