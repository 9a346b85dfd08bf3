//! Counts and prints the results of the tests of one command.

use anyhow::{Result, ensure};
use std::fmt::Display;

/// How many tests passed and failed.
#[derive(Default)]
pub struct TestScore {
    passed: usize,
    failed: usize,
}

impl TestScore {
    /// Counts one test and prints its result.
    pub fn count<E: Display>(&mut self, name: &str, result: Result<(), E>) {
        match result {
            Ok(()) => self.holds(name, true),
            Err(why) => {
                let why = format!("{why:#}").replace('\n', "\n    ");
                self.holds(&format!("{name}: {why}"), false);
            }
        }
    }

    /// Counts and prints whether something holds.
    pub fn holds(&mut self, what: &str, holds: bool) {
        if holds {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
        println!("{}: {what}", if holds { "passed" } else { "FAILED" });
    }

    /// How many failed.
    pub fn failed(&self) -> usize {
        self.failed
    }

    /// Prints the numbers.
    ///
    /// # Errors
    /// A test failed; `complaint` says what that means.
    pub fn finish(&self, complaint: &str) -> Result<()> {
        println!("{} passed, {} failed", self.passed, self.failed);
        ensure!(self.failed == 0, "{complaint}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_fails_the_whole() {
        let mut score = TestScore::default();
        score.count("one", Ok::<(), &str>(()));
        score.holds("two", true);
        assert!(score.finish("all is wrong").is_ok());
        score.count("three", Err("why"));
        score.holds("four", false);
        assert_eq!((score.passed, score.failed()), (2, 2));
        assert_eq!(score.finish("all is wrong").unwrap_err().to_string(), "all is wrong");
    }
}
