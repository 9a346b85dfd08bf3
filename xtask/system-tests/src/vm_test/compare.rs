//! Compares what two guests printed, test by test.
//!
//! Input: the outcomes of `guest.sh` under both kernels. Output: for each test, whether both guests
//! succeeded and printed the same, or the difference.

use guest::{GuestEnd, GuestOutcome};

pub(super) struct Tests<'a> {
    pub before: &'a GuestOutcome,
    pub after: &'a GuestOutcome,
}

impl Tests<'_> {
    /// Compares one test. The error names the kernel that failed: a test that fails under the
    /// original kernel proves nothing.
    pub(super) fn compare(&self, test: &str) -> Result<(), String> {
        let before =
            section(self.before, test).map_err(|why| format!("the original kernel: {why}"))?;
        let after = section(self.after, test)?;
        if before == after {
            Ok(())
        } else {
            Err(format!("saw something else:\n{}", difference(before, after)))
        }
    }

    /// Checks that both guests ran all tests and stopped by themselves.
    pub(super) fn ended(&self) -> Result<(), String> {
        for (kernel, outcome) in
            [("the original kernel", self.before), ("the new kernel", self.after)]
        {
            if outcome.end != GuestEnd::Exited(0) {
                return Err(format!(
                    "{kernel}: {:?}; its last words: {}",
                    outcome.end,
                    last_words(&outcome.console)
                ));
            }
        }
        Ok(())
    }
}

/// What a test printed, if it succeeded.
fn section<'a>(outcome: &'a GuestOutcome, test: &str) -> Result<&'a str, String> {
    let begin = format!("@@ begin {test}\n");
    let end = format!("@@ end {test} ");
    let start =
        outcome.output.find(&begin).ok_or_else(|| format!("did not begin ({:?})", outcome.end))?
            + begin.len();
    let rest = &outcome.output[start..];
    let stop = rest.find(&end).ok_or_else(|| {
        format!(
            "did not end ({:?}): {}\n{}",
            outcome.end,
            last_words(rest),
            last_words(&outcome.console)
        )
    })?;
    let status = rest[stop + end.len()..].split_whitespace().next().unwrap_or_default();
    if status != "0" {
        return Err(format!("failed with status {status}: {}", last_words(&rest[..stop])));
    }
    Ok(&rest[..stop])
}

fn difference(before: &str, after: &str) -> String {
    let missing = |from: &str, of: &str, sign: &str| {
        let lines = from.lines().filter(|line| !of.lines().any(|l| l == *line));
        lines.take(10).map(|line| format!("{sign} {line}")).collect::<Vec<_>>()
    };
    let mut lines = missing(before, after, "-");
    lines.extend(missing(after, before, "+"));
    if lines.is_empty() {
        lines.push("the same lines, in another order or number".to_owned());
    }
    lines.join("\n")
}

/// The end of a text for an error message.
pub(super) fn last_words(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(output: &str) -> GuestOutcome {
        GuestOutcome {
            end: GuestEnd::Exited(0),
            console: String::new(),
            output: output.into(),
            qemu: String::new(),
            elapsed: Default::default(),
            cost: Default::default(),
        }
    }

    fn compare(before: &str, after: &str) -> Result<(), String> {
        Tests { before: &outcome(before), after: &outcome(after) }.compare("x")
    }

    #[test]
    fn a_test_passes_only_if_both_guests_succeed_and_print_the_same() {
        let good = "@@ begin x\na\n@@ end x 0\n";
        assert_eq!(compare(good, good), Ok(()));
        assert!(compare(good, "@@ begin x\nb\n@@ end x 0\n").unwrap_err().contains("- a\n+ b"));
        assert!(compare(good, "@@ begin x\na\n@@ end x 1\n").unwrap_err().contains("status 1"));
        assert!(compare(good, "@@ begin x\na\n").unwrap_err().contains("did not end"));
        assert!(compare(good, "").unwrap_err().contains("did not begin"));
        assert!(compare("", good).unwrap_err().contains("the original kernel"));
    }
}
