//! Programs for the guest that need no library.
//!
//! Takes their C source, which may include `bare.h`; gives the program's bytes. What a guest runs
//! between its marks is then known to the instruction.

use crate::run;
use anyhow::{Context, Result};
use std::process::Command;

const HEADER: &str = include_str!("bare.h");

/// `name` is what an error calls it.
pub fn compile(name: &str, source: &str) -> Result<Vec<u8>> {
    let directory = tempfile::Builder::new().prefix("kernlane-bare-").tempdir()?;
    let (file, program) = (directory.path().join("program.c"), directory.path().join("program"));
    std::fs::write(directory.path().join("bare.h"), HEADER)?;
    std::fs::write(&file, source)?;
    let flags = ["-O1", "-static", "-nostdlib", "-fno-stack-protector", "-o"];
    run(Command::new("cc").args(flags).arg(&program).arg(&file))
        .with_context(|| format!("compiling the guest's {name}"))?;
    Ok(std::fs::read(&program)?)
}
