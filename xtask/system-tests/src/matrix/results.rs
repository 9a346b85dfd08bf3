//! What was tried of the matrix: the file `bench/matrix.json`, and the table of the book.
//!
//! Input: results of cells. Output: a file, and text of Markdown.

use super::cells::{CELLS, Cell, Compiler, Configuration, Version};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// What was found out about a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct CellResult {
    /// The day, `2026-11-28`.
    pub date: String,
    /// The version of the sources' package.
    pub linux: String,
    /// What the compiler says of itself.
    pub compiler: String,
    /// The SHA-256 of the configuration, if it is published elsewhere.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub config: Option<String>,
    /// The kernel's build id.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kernel: Option<String>,
    /// The steps that passed, in their order.
    pub passed: Vec<String>,
    /// The step that failed, and why. No later step was tried.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed: Option<(String, String)>,
    /// The share of the executed functions that are laid out block by block.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub functions: Option<f64>,
    /// What the layout changed in the recorded kernel: L1I misses, taken jumps.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub recorded: Option<[f64; 2]>,
    /// How far the predicted misses are from the recorded ones.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub predicted_off: Option<f64>,
}

/// All results, by the cell's name.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Results {
    pub cells: BTreeMap<String, CellResult>,
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

    /// The table of each version: compilers by configurations.
    pub(super) fn tables(&self) -> String {
        let mut text = String::new();
        for version in Version::ALL {
            let title = self.title(version);
            let _ = write!(text, "### {title}\n\n| configuration |");
            for compiler in Compiler::ALL {
                let _ = write!(text, " {} |", compiler.name());
            }
            text.push_str("\n|---|");
            text.push_str(&"---|".repeat(Compiler::ALL.len()));
            text.push('\n');
            for configuration in Configuration::ALL {
                let _ = write!(text, "| {} |", configuration.described());
                for compiler in Compiler::ALL {
                    let cell = Cell { version, compiler, configuration };
                    let _ = write!(text, " {} |", self.said(cell));
                }
                text.push('\n');
            }
            text.push('\n');
        }
        text
    }

    /// The version with the numbers of the packages that were tried.
    fn title(&self, version: Version) -> String {
        let of_it = |name: &str| name.split('/').next() == Some(version.name());
        let tried = self.cells.iter().filter(|(name, _)| of_it(name));
        let mut packages: Vec<&str> = tried.map(|(_, result)| result.linux.as_str()).collect();
        packages.sort_unstable();
        packages.dedup();
        match packages[..] {
            [] => format!("Linux {}", version.name()),
            _ => format!("Linux {} ({})", version.name(), packages.join(", ")),
        }
    }

    fn said(&self, cell: Cell) -> String {
        let Some(result) = self.cells.get(&cell.to_string()) else {
            return if CELLS.contains(&cell) { "not tried" } else { "" }.to_owned();
        };
        let mut text = result.date.clone();
        if let Some((step, why)) = &result.failed {
            let why = why.lines().next().unwrap_or_default().replace('|', "\\|");
            let _ = write!(text, ": {step} **failed**: {why}");
            return text;
        }
        text.push_str(": passed");
        if let Some([misses, jumps]) = result.recorded {
            let minus = |value: f64| format!("{:+.0}", 100.0 * value).replace('-', "−");
            let _ = write!(text, "; misses {} %, jumps {} %", minus(misses), minus(jumps));
        }
        if let Some(off) = result.predicted_off {
            let _ = write!(text, " (predicted within {:.1} %)", 100.0 * off);
        }
        if let Some(functions) = result.functions {
            let _ = write!(text, "; {:.1} % of functions", 100.0 * functions);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> CellResult {
        CellResult {
            date: "2026-11-28".into(),
            linux: "6.1.192-2".into(),
            passed: vec!["build".into()],
            functions: Some(0.987),
            recorded: Some([-0.456, -0.7]),
            predicted_off: Some(0.004),
            ..CellResult::default()
        }
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("matrix.json");
        assert_eq!(Results::read(&path).unwrap(), Results::default());
        let results = Results { cells: [("6.1/gcc/demo".to_owned(), result())].into() };
        results.write(&path).unwrap();
        assert_eq!(Results::read(&path).unwrap(), results);
        std::fs::write(&path, "{").unwrap();
        assert!(Results::read(&path).is_err());
    }

    #[test]
    fn each_cell_says_what_became_of_it() {
        let failed =
            CellResult { failed: Some(("relink".into(), "a | b\nmore".into())), ..result() };
        let cells = [("6.1/gcc/demo", result()), ("6.1/clang/demo", failed)];
        let cells = cells.map(|(name, result)| (name.to_owned(), result)).into();
        let tables = Results { cells }.tables();
        let expected = "### Linux 6.1 (6.1.192-2)\n\n| configuration | gcc | clang |\n|---|---|---|\n\
            | the demo kernel's (`xtask/demo-kernel.config`) | 2026-11-28: passed; misses −46 %, \
            jumps −70 % (predicted within 0.4 %); 98.7 % of functions | 2026-11-28: relink \
            **failed**: a \\| b |\n| and `LTO_CLANG_THIN` |  | not tried |\n";
        assert!(tables.starts_with(expected), "{tables}");
    }
}
