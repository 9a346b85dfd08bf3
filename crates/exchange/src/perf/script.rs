//! Reads the text of `perf script` with branch stacks (`-F brstack`, `-F ip,brstack`, …), and the
//! kernel's mapping in it (`--show-mmap-events`).
//!
//! Input: text. Output: branches by run-time addresses, and the address at which the kernel ran, if
//! the text says it. Words that are not branches are skipped: addresses, names, times.

use super::{PerfSamples, build_id, mapped_symbol};
use anyhow::{Result, bail};

/// The word for entries that the processor undid (`branch_spec_desc` in
/// `tools/perf/util/branch.c`).
const WRONG_PATH: &str = "SPEC_WRONG_PATH";

/// Reads the output of `perf script -F brstack`. Each line is a stack, with the latest branch
/// first. A branch is FROM/TO/FLAGS….
///
/// # Errors
/// A line has a branch that cannot be read, or no line has a branch.
pub fn script(text: &str) -> Result<PerfSamples> {
    let build_id = build_id::of_script(text);
    let mut samples = PerfSamples { build_id, ..PerfSamples::default() };
    let (mut wrong_path, mut entries) = (0_u64, 0_u64);
    for (number, line) in text.lines().enumerate() {
        if line.contains("PERF_RECORD_") {
            samples.kernel = samples.kernel.or_else(|| mapping(line));
            continue;
        }
        let mut stack = Vec::new();
        for word in line.split_whitespace().filter(|word| is_branch(word)) {
            let Some(branch) = branch(word) else {
                bail!("line {}: \"{word}\" is not a branch: {}", number + 1, advice(word));
            };
            entries += 1;
            match word.split('/').any(|part| part == WRONG_PATH) {
                true => wrong_path += 1,
                false => stack.push(branch),
            }
        }
        samples.branches.add_stack(&stack);
    }
    if entries == 0 {
        bail!("no line has a branch: print them with `perf script -F brstack`");
    }
    if wrong_path > 0 {
        samples.notes.push(super::wrong_path(wrong_path, entries));
    }
    Ok(samples)
}

/// Whether a word is meant as FROM/TO/FLAGS…: names of tasks and paths also have slashes.
fn is_branch(word: &str) -> bool {
    let mut parts = word.split('/').skip(2);
    let flag = parts.next().is_some_and(|flag| ["P", "M", "PN", "MN", "-"].contains(&flag));
    word.contains('/') && (word.starts_with("0x") || flag)
}

fn branch(word: &str) -> Option<(u64, u64)> {
    let mut parts = word.split('/');
    let mut address = || u64::from_str_radix(parts.next()?.strip_prefix("0x")?, 16).ok();
    Some((address()?, address()?))
}

fn advice(word: &str) -> &'static str {
    let is_symbol = !word.starts_with("0x") || word.contains("(");
    match is_symbol {
        true => "it must be FROM/TO/…, both in hex with 0x: print with `perf script -F brstack`",
        false => "a branch is FROM/TO/…, both in hex with 0x",
    }
}

/// The kernel's mapping: `PERF_RECORD_MMAP -1/0: [ADDRESS(SIZE) @ OFFSET …]: x NAME`.
fn mapping(line: &str) -> Option<(String, u64)> {
    let (_, record) = line.split_once("PERF_RECORD_MMAP")?;
    let (_, rest) = record.split_once(" @ ")?;
    let (place, rest) = rest.split_once("]: ")?;
    let ran_at = place.split(' ').next()?;
    let ran_at = match ran_at.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => ran_at.parse().ok()?,
    };
    mapped_symbol(rest.split_whitespace().nth(1)?, ran_at)
}
