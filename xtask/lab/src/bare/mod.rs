//! Programs for the guest that need no library.
//!
//! Input: C source, which may include the headers here. Output: the program's bytes. The
//! instructions that a guest executes between its marks are then known exactly.

use crate::run;
use anyhow::{Context, Result, ensure};
use guest::{GuestEnd, GuestOutcome};
use std::process::Command;

/// The names and texts of the headers that every program may include.
pub const HEADERS: [(&str, &str); 3] = [
    ("bare.h", include_str!("bare.h")),
    ("timing.h", include_str!("timing.h")),
    ("words.h", include_str!("words.h")),
];

/// Compiles `source`. Errors call the program `name`.
///
/// # Errors
/// The compiler refuses it.
pub fn compile(name: &str, source: &str) -> Result<Vec<u8>> {
    compile_with(name, source, &[])
}

/// As [`compile`], with more headers: their names and texts.
///
/// # Errors
/// As [`compile`].
pub fn compile_with(name: &str, source: &str, headers: &[(&str, &str)]) -> Result<Vec<u8>> {
    let directory = tempfile::Builder::new().prefix("kernlane-bare-").tempdir()?;
    let (file, program) = (directory.path().join("program.c"), directory.path().join("program"));
    for (header, text) in HEADERS.iter().chain(headers) {
        std::fs::write(directory.path().join(header), text)?;
    }
    std::fs::write(&file, source)?;
    let flags = ["-O1", "-static", "-nostdlib", "-fno-stack-protector", "-o"];
    run(Command::new("cc").args(flags).arg(&program).arg(&file))
        .with_context(|| format!("compiling the guest's {name}"))?;
    Ok(std::fs::read(&program)?)
}

/// Whether the guest's program ended with status 0.
///
/// # Errors
/// It did not; with what the guest and QEMU printed.
pub fn exited_well(outcome: &GuestOutcome) -> Result<()> {
    ensure!(
        outcome.end == GuestEnd::Exited(0),
        "the guest ended with {:?}: {} {}",
        outcome.end,
        outcome.output,
        outcome.qemu
    );
    Ok(())
}
