//! `make test`: everything that must hold, the quick before the slow.

use crate::run;
use anyhow::Result;
use std::process::Command;

pub fn test() -> Result<()> {
    run(Command::new("cargo").args(["fmt", "--all", "--check"]))?;
    run(Command::new("cargo").args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    run(Command::new("cargo").args(["test", "--workspace"]))
}
