//! What was tried of Debian's kernels: the file `bench/live-versions.json`, and the table of the
//! book.
//!
//! Input: results of kernels. Output: a file, and text of Markdown.

use anyhow::{Context, Result};
use lab::live_tool::debian::StockKernel;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// The steps of a kernel, in their order. The last one counts with its number of cycles.
pub(super) const STEPS: [&str; 5] = ["copies", "neighbours", "attacks", "modules", CYCLES];
pub(super) const CYCLES: &str = "cycles";

/// What was found out about a kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct KernelResult {
    /// The kernel's release.
    pub release: String,
    /// The day of the last step, `2026-11-28`.
    pub date: String,
    /// The functions that can be replaced, whose copies were all proven, and those with a tracer's
    /// site.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub functions: Option<[usize; 2]>,
    /// How often a large group was installed and undone under load.
    pub cycles: u32,
    /// The steps that passed.
    pub passed: Vec<String>,
    /// The step that failed, and why. No later step was tried.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed: Option<(String, String)>,
}

impl KernelResult {
    pub(super) fn has_passed(&self, step: &str, cycles: u32) -> bool {
        self.passed.iter().any(|passed| passed == step) && (step != CYCLES || self.cycles >= cycles)
    }

    /// Whether every step passed, the last one with this number of cycles.
    pub(super) fn is_complete(&self, cycles: u32) -> bool {
        STEPS.iter().all(|step| self.has_passed(step, cycles))
    }

    fn said(&self, step: &str) -> String {
        if let Some((_, why)) = self.failed.as_ref().filter(|(failed, _)| failed == step) {
            return format!("**failed**: {}", why.replace('|', "\\|"));
        }
        match self.passed.iter().any(|passed| passed == step) {
            true if step == CYCLES => self.cycles.to_string(),
            true => "passed".to_owned(),
            false => "not tried".to_owned(),
        }
    }
}

/// All results, by the kernel's name.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Results {
    pub kernels: BTreeMap<String, KernelResult>,
}

impl Results {
    /// Reads a file; none is no results.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn read(path: &Path) -> Result<Results> {
        match std::fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text).with_context(|| path.display().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Results::default()),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    /// Writes a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        host::output::write(path, text.as_bytes())?;
        Ok(())
    }

    /// A line for each of Debian's kernels.
    pub(super) fn table(&self) -> String {
        let mut text = "| kernel | release | can be replaced | neighbours | attacks | modules | \
             cycles | tried |\n|---|---|---|---|---|---|---|---|\n"
            .to_owned();
        for kernel in StockKernel::all() {
            let name = kernel.to_string();
            let Some(result) = self.kernels.get(&name) else {
                let _ = writeln!(text, "| {name} | | not tried | | | | | |");
                continue;
            };
            let copies = match result.functions {
                Some([fit, traced]) => {
                    let part = 100.0 * fit as f64 / traced.max(1) as f64;
                    format!("{fit} of {traced} ({part:.1} %)")
                }
                None => result.said(STEPS[0]),
            };
            let steps = STEPS[1..].iter().map(|step| result.said(step));
            let steps: Vec<String> = steps.collect();
            let _ = writeln!(
                text,
                "| {name} | {} | {copies} | {} | {} |",
                result.release,
                steps.join(" | "),
                result.date
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> KernelResult {
        KernelResult {
            release: "6.1.0-56-cloud-amd64".into(),
            date: "2026-11-28".into(),
            functions: Some([900, 1000]),
            cycles: 50,
            passed: STEPS.map(str::to_owned).into(),
            failed: None,
        }
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("versions.json");
        assert_eq!(Results::read(&path).unwrap(), Results::default());
        let results = Results { kernels: [("6.1-cloud".to_owned(), result())].into() };
        results.write(&path).unwrap();
        assert_eq!(Results::read(&path).unwrap(), results);
    }

    #[test]
    fn a_result_is_complete_with_enough_cycles() {
        assert!(result().is_complete(50) && !result().is_complete(51));
        let some = KernelResult { passed: vec!["copies".into(), CYCLES.into()], ..result() };
        assert!(!some.is_complete(50));
    }

    #[test]
    fn each_kernel_says_what_became_of_it() {
        let failed = KernelResult {
            passed: vec!["copies".into()],
            failed: Some(("neighbours".into(), "a | b".into())),
            ..result()
        };
        let kernels = [("6.1-cloud", result()), ("6.1-generic", failed)];
        let kernels = kernels.map(|(name, result)| (name.to_owned(), result)).into();
        let table = Results { kernels }.table();
        let lines: Vec<&str> = table.lines().skip(2).take(3).collect();
        let expected = [
            "| 6.1-cloud | 6.1.0-56-cloud-amd64 | 900 of 1000 (90.0 %) | passed | passed | passed | \
             50 | 2026-11-28 |",
            "| 6.1-generic | 6.1.0-56-cloud-amd64 | 900 of 1000 (90.0 %) | **failed**: a \\| b | \
             not tried | not tried | not tried | 2026-11-28 |",
            "| 6.1-rt | | not tried | | | | | |",
        ];
        assert_eq!(lines, expected);
    }
}
