//! A benchmark whose operations something else counts: between two marks, a fixed number of them.
//!
//! `kernlane record bench:NAME` starts this in a guest whose every instruction is recorded. A mark
//! does nothing on any machine; the recorder knows it by its bytes (`docs/reference/workloads.md`).

use crate::benchmark::{Benchmark, Place};
use crate::list;
use crate::worker::{Trouble, WARM_UP, attempt};
use anyhow::{Context, Result, anyhow, ensure};
use host::outln;
use std::arch::asm;
use std::path::Path;

/// `nopl 0x4b4c0001(%rax,%rax,1)`: counting starts.
pub const START: [u8; 8] = [0x0f, 0x1f, 0x84, 0x00, 0x01, 0x00, 0x4c, 0x4b];
/// `nopl 0x4b4c0002(%rax,%rax,1)`: counting has ended.
pub const END: [u8; 8] = [0x0f, 0x1f, 0x84, 0x00, 0x02, 0x00, 0x4c, 0x4b];

/// The number of operations that are counted by default. It is large enough that the start of the
/// program does not matter, and small enough that a recording takes seconds.
pub fn operations(benchmark: &Benchmark) -> u64 {
    let name = benchmark.name;
    let long = ["process/", "fault/", "user/", "tree/walk", "tree/list", "signal/other"];
    match name {
        _ if name.starts_with("mix/") => 10,
        _ if name.ends_with("-1m") || long.iter().any(|start| name.starts_with(start)) => 100,
        _ => 1000,
    }
}

/// Prepares the benchmark of this name, warms up, and runs `operations` operations between the
/// marks.
///
/// # Errors
/// There is no such benchmark, the machine lacks what it needs, or its check fails.
pub fn run(name: &str, directory: &Path, operations: u64) -> Result<()> {
    let benchmark = list::named(name).with_context(|| format!("no benchmark is named {name}"))?;
    ensure!(operations > 0, "--operations must be above 0");
    let named = |why: String| anyhow!("{name}: {why}");
    let mut work =
        attempt(benchmark, &Place { directory: directory.to_owned() }).map_err(|trouble| {
            match trouble {
                Trouble::Lacks(why) => named(format!("cannot run here: {why}")),
                Trouble::Wrong(why) => named(why),
            }
        })?;
    let failed = |failure: crate::sys::Failure| named(failure.to_string());
    work.run((operations / WARM_UP).max(1)).map_err(failed)?;
    // SAFETY: instructions that do nothing.
    unsafe {
        asm!(".byte 0x0f, 0x1f, 0x84, 0x00, 0x01, 0x00, 0x4c, 0x4b", options(nostack));
    }
    let done = work.run(operations);
    // SAFETY: instructions that do nothing.
    unsafe {
        asm!(".byte 0x0f, 0x1f, 0x84, 0x00, 0x02, 0x00, 0x4c, 0x4b", options(nostack));
    }
    done.and_then(|()| work.check()).map_err(failed)?;
    outln!("{name}: {operations} operations")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_has_each_mark_once() {
        // What runs here is the test, with the same code.
        let program = std::fs::read("/proc/self/exe").unwrap();
        let code = |mark: [u8; 8]| program.windows(8).filter(|bytes| *bytes == mark).count();
        // The constants above are a second place, in data, if the compiler keeps them.
        assert!((1..=2).contains(&code(START)) && (1..=2).contains(&code(END)));
    }

    #[test]
    fn operations_depend_on_how_long_one_takes() {
        let of = |name: &str| operations(list::named(name).unwrap());
        assert_eq!(
            ["call/getpid", "process/fork-exit", "pipe/bulk-1m", "mix/web"].map(of),
            [1000, 100, 100, 10]
        );
    }
}
