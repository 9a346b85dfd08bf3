//! Benchmarks of the suite as workloads: in the guest, the suite's static program runs one
//! benchmark a fixed number of times, and executes the marks itself, right before and right behind.
//!
//! Input: the name of a benchmark, and the bytes of `kernlane-bench`. Output: a workload. This
//! module does not know the benchmarks.

use crate::workload::Workload;
use crate::{companion, loaded_part};
use anyhow::{Context, Result, ensure};
use image::sealed;
use std::path::Path;

/// The prefix of workloads that are benchmarks.
pub const PREFIX: &str = "bench:";
const PROGRAM: &str = "kernlane-bench";
/// The program's path in the guest.
const PATH: &str = "/kernlane/kernlane-bench";
const REMEDY: &str = "build it as a static program (docs/how-to/bench.md), or give its path in \
    KERNLANE_BENCH";

/// The suite's program, without the parts that no kernel loads.
///
/// # Errors
/// There is no such program, or it needs libraries, which the guest does not have.
pub fn program() -> Result<Vec<u8>> {
    program_at(&companion::find(PROGRAM, "KERNLANE_BENCH", REMEDY)?)
}

/// The same of the suite's program at `path`.
///
/// # Errors
/// There is no such program, or it needs libraries, which the guest does not have.
pub fn program_at(path: &Path) -> Result<Vec<u8>> {
    let named = || path.display().to_string();
    loaded(std::fs::read(path).with_context(named)?).with_context(named)
}

/// The part of a static program that is loaded.
fn loaded(program: Vec<u8>) -> Result<Vec<u8>> {
    ensure!(
        !loaded_part::needs_loader(&program)?,
        "it needs shared libraries, which the guest lacks: {REMEDY}"
    );
    loaded_part::of(program)
}

/// The workload that runs a benchmark.
///
/// # Errors
/// `name` is not the name of a benchmark.
pub fn workload(name: &str, operations: u64, program: &[u8]) -> Result<Workload> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "/-".contains(c);
    ensure!(!name.is_empty() && name.chars().all(plain), "{name:?} is not a name of a benchmark");
    let text = format!(
        "about = '{operations} operations of the benchmark {name}'
packages = []
memory = 256
marks-itself = true
operations = {operations}
set-up = 'mkdir /tmp/bench'
run = '{PATH} --worker {name} --directory /tmp/bench --operations {operations}'
check = '''
# The program of SHA-256 {} checks every result, and says so.
grep -q -x '{name}: {operations} operations' /run/output
'''
",
        sealed::sha256(program)
    );
    let mut workload = Workload::parse(&format!("{PREFIX}{name}"), &text)?;
    workload.programs.insert(PATH.into(), program.to_owned());
    Ok(workload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marker::Mark;

    #[test]
    fn a_workload_of_a_benchmark_names_operations_and_program() {
        let made = workload("call/getpid", 1000, b"program").unwrap();
        assert_eq!(made.name, "bench:call/getpid");
        assert_eq!(made.operations, Some(1000));
        assert!(made.marks_itself && made.programs[PATH] == b"program");
        assert!(
            made.run.contains("--worker call/getpid") && made.run.ends_with("--operations 1000")
        );
        let other = workload("call/getpid", 1000, b"another program").unwrap();
        assert_ne!(made.sha256, other.sha256, "another program is another workload");
        for wrong in ["", "call/getpid'; reboot", "Call"] {
            assert!(workload(wrong, 1, b"").is_err());
        }
    }

    #[test]
    fn only_static_programs_are_taken_and_only_what_is_loaded() {
        let mark = Mark::Start.elf();
        let mut program = mark.clone();
        program.extend(b"sections and symbols");
        assert_eq!(loaded(program).unwrap(), mark);
        let said = |bytes: Vec<u8>| format!("{:#}", loaded(bytes).unwrap_err());
        assert!(said(b"#!/bin/sh\n".to_vec()).contains("it is not a program"));
        let mut dynamic = mark.clone();
        // p_type of the only segment.
        dynamic[64] = 3;
        assert!(said(dynamic).contains("it needs shared libraries"));
        let mut cut = mark.clone();
        cut.truncate(mark.len() - 1);
        assert!(said(cut).contains("it is cut off"));
        for length in 0..mark.len() {
            let _ = loaded(mark[..length].to_vec());
        }
    }
}
