//! Counts and prints the results of the tests of one command.

use anyhow::{Result, bail};
use std::fmt::Display;

/// How many tests passed and failed.
#[derive(Default)]
pub(crate) struct TestScore {
    passed: usize,
    failed: usize,
}

impl TestScore {
    /// Counts one test and prints its result.
    pub(crate) fn count<E: Display>(&mut self, name: &str, result: Result<(), E>) {
        match result {
            Ok(()) => {
                self.passed += 1;
                println!("passed: {name}");
            }
            Err(why) => {
                self.failed += 1;
                println!("FAILED: {name}: {}", format!("{why:#}").replace('\n', "\n    "));
            }
        }
    }

    /// Prints the numbers. Fails with `complaint` if a test failed.
    pub(crate) fn finish(&self, complaint: &str) -> Result<()> {
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed > 0 {
            bail!("{complaint}");
        }
        Ok(())
    }
}
