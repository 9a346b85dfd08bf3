//! Exact counts of a program, by valgrind's callgrind.
//!
//! Input: the text that callgrind writes with `--dump-instr=yes --collect-jumps=yes
//! --cache-sim=yes` and names that are not compressed. Output: a profile, and what the run cost.

use anyhow::{Context, Result, bail};
use image::Image;
use image::address::LinkAddr;
use kernlane_layout::EdgeKind;
use profile::Profile;
use std::collections::BTreeMap;

/// What a run executed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Instructions, and misses of the L1 for instructions.
    pub instructions: u64,
    pub misses: u64,
    /// By the address of the instruction.
    executions: BTreeMap<u64, u64>,
    calls: BTreeMap<(u64, u64), u64>,
    /// Jumps that were taken.
    jumps: BTreeMap<(u64, u64), u64>,
}

/// A line of callgrind's that says what the position on the next line did.
enum Transfer {
    Call(u64, u64),
    Jump(u64, u64),
}

impl Counted {
    /// Reads callgrind's text.
    ///
    /// # Errors
    /// It does not have the form above.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut counted = Counted::default();
        let mut transfer = None;
        for (number, line) in text.lines().enumerate() {
            let read = || format!("line {} of callgrind's counts: {line}", number + 1);
            if let Some(sums) = line.strip_prefix("summary: ") {
                let sums: Vec<&str> = sums.split(' ').collect();
                let [instructions, _, _, misses, ..] = sums[..] else { bail!(read()) };
                (counted.instructions, counted.misses) =
                    (instructions.parse().with_context(read)?, misses.parse().with_context(read)?);
            } else if let Some((kind, rest)) = line.split_once('=')
                && ["calls", "jcnd", "jump"].contains(&kind)
            {
                let (count, to) = rest.split_once(' ').with_context(read)?;
                let count = count.split('/').next().unwrap_or(count).parse().with_context(read)?;
                let to = address(to).with_context(read)?;
                transfer = Some(match kind {
                    "calls" => Transfer::Call(to, count),
                    _ => Transfer::Jump(to, count),
                });
            } else if let Some(at) = address(line) {
                match transfer.take() {
                    Some(Transfer::Call(to, count)) => add(&mut counted.calls, (at, to), count),
                    Some(Transfer::Jump(to, count)) => add(&mut counted.jumps, (at, to), count),
                    None => {
                        // Address, line, instructions, misses.
                        let count = line.split(' ').nth(2).with_context(read)?;
                        let count: u64 = count.parse().with_context(read)?;
                        *counted.executions.entry(at).or_default() += count;
                    }
                }
            }
        }
        Ok(counted)
    }

    /// Calls, and jumps that were taken.
    pub(super) fn transfers(&self) -> (u64, u64) {
        (self.calls.values().sum(), self.jumps.values().sum())
    }

    /// The counts as those of an image.
    pub(super) fn profile(&self, image: &Image) -> Profile {
        let mut profile = Profile::empty(image.build_id.clone());
        for block in &image.blocks {
            if let Some(&count) = self.executions.get(&block.addr.0) {
                profile.blocks.insert(block.addr, count);
            }
        }
        let start = |addr| image.block_at(LinkAddr(addr)).map(|block| image.block(block).addr);
        for (&(from, to), &count) in &self.calls {
            if let Some(ends) = start(from).zip(start(to)) {
                *profile.calls.entry(ends).or_default() += count;
            }
        }
        for (&(from, to), &count) in &self.jumps {
            if let Some(ends) = start(from).zip(start(to)) {
                profile.edges.entry(ends).or_insert((EdgeKind::Jump, 0)).1 += count;
            }
        }
        profile
    }
}

fn add(counts: &mut BTreeMap<(u64, u64), u64>, ends: (u64, u64), count: u64) {
    *counts.entry(ends).or_default() += count;
}

/// The address at the beginning of a line.
fn address(line: &str) -> Option<u64> {
    let word = line.split(' ').next()?;
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_calls_and_jumps_are_read() {
        let text = "events: Ir Dr Dw I1mr DLmr\n\nfn=f\n0x10 0 7 0 0 1\n0x10 0 2\n\
            cfn=g\ncalls=3 0x40 0\n0x14 0 900\njcnd=2/5 0x10 0\n0x18 0\n0x18 0 5\n\
            jump=4 0x10 0\n0x1c 0\nsummary: 917 0 0 11 0\n";
        let counted = Counted::parse(text).unwrap();
        assert_eq!((counted.instructions, counted.misses), (917, 11));
        assert_eq!(counted.executions, BTreeMap::from([(0x10, 9), (0x18, 5)]));
        assert_eq!(counted.calls, BTreeMap::from([((0x14, 0x40), 3)]));
        assert_eq!(counted.jumps, BTreeMap::from([((0x18, 0x10), 2), ((0x1c, 0x10), 4)]));
        assert_eq!(counted.transfers(), (3, 6));
    }

    #[test]
    fn the_error_names_the_line() {
        let error = Counted::parse("fn=f\n0x10 0\n").unwrap_err();
        assert!(format!("{error:#}").contains("line 2"), "{error:#}");
    }
}
