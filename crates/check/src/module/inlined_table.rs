//! Compares the table in a module of copies of where inlined code lies.
//!
//! Input: the module, and the claims. Output: nothing, or the first difference. People read the
//! table to understand stacks; the kernel does not use it. Its form is described in
//! `emit::module::inlined_table`.

use super::{CopyClaim, NamedPlace, PC32, Prover};
use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection};

const NAME: &str = ".kernlane.inlined";
const MAGIC: &[u8; 16] = b"kernlane inlined";
const NUMBER: std::ops::Range<usize> = 16..32;
const CALLS_AT: usize = 48;
/// Bytes of a call, and of a range.
const ENTRY: usize = 12;

impl Prover<'_> {
    /// Compares the numbers, all calls and all ranges.
    pub(super) fn inlined_table(&self) -> Result<()> {
        let elf = &self.reading.elf;
        let section = elf.section_by_name(NAME);
        let numbers = self.numbers();
        let calls: Vec<_> = self.inlined.iter().filter(|claim| claim.skip.is_some()).collect();
        ensure!(section.is_some() != calls.is_empty(), "{NAME} belongs to inlined code");
        let Some(section) = section else { return Ok(()) };
        let (index, data) = (section.index().0, section.data()?);
        let pairs = elf.section_by_name(".kernlane").context("the module has no .kernlane")?;
        ensure!(
            data.starts_with(MAGIC) && data.get(NUMBER) == pairs.data()?.get(NUMBER),
            "{NAME} begins with other bytes"
        );
        let ranges = self.inlined_ranges(&numbers);
        let counts = [calls.len(), ranges.len(), self.reading.text.len(), 0];
        let counts = counts.map(|count| (count as u32).to_le_bytes());
        let behind = CALLS_AT + ENTRY * calls.len();
        ensure!(
            data.get(NUMBER.end..CALLS_AT) == Some(&counts.concat()[..])
                && data.len() == behind + ENTRY * ranges.len(),
            "{NAME} has not the {} calls and {} ranges that were expected",
            calls.len(),
            ranges.len()
        );
        for (n, claim) in calls.into_iter().enumerate() {
            let at = CALLS_AT + ENTRY * n;
            let context = data[at..at + 4] == numbers[claim.context as usize].to_le_bytes();
            let fields = [at + 4, at + 8].map(|at| self.reading.field(index, at as u64));
            let places =
                [claim.callee, claim.site].map(|at| Some((NamedPlace::Kernel(at.0), PC32)));
            let empty = data[at + 4..at + ENTRY].iter().all(|&byte| byte == 0);
            ensure!(context && fields == places && empty, "{NAME}: call {n} is another one");
        }
        let words: Vec<u8> = ranges.into_iter().flatten().flat_map(u32::to_le_bytes).collect();
        ensure!(data[behind..] == words, "{NAME}: the ranges are others");
        Ok(())
    }

    /// The number of each context among those of inlined code. What stands in place of a call that
    /// is only promoted belongs to the code around it.
    fn numbers(&self) -> Vec<u32> {
        let mut numbers = vec![0u32];
        let mut last = 0;
        for claim in &self.inlined {
            let around = numbers[claim.context as usize];
            last += u32::from(claim.skip.is_some());
            numbers.push(if claim.skip.is_some() { last } else { around });
        }
        numbers
    }

    /// Offset, size and context of each stretch of inlined code, ascending.
    fn inlined_ranges(&self, numbers: &[u32]) -> Vec<[u32; 3]> {
        let context = |claim: &CopyClaim| numbers[claim.context as usize];
        let inlined = self.by_old.iter().filter(|claim| context(claim) > 0 && claim.new_size > 0);
        let mut ends: Vec<_> = inlined.map(|c| (c.new, c.new + c.new_size, context(c))).collect();
        ends.sort_unstable();
        let touching = ends.chunk_by(|one, other| one.1 == other.0 && one.2 == other.2);
        touching.map(|run| [run[0].0, run[run.len() - 1].1 - run[0].0, run[0].2]).collect()
    }
}
