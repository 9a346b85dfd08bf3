//! A workload: what is installed in the guest, what runs there, what is counted, and how its output
//! is checked.
//!
//! To add one: write a file `workloads/NAME.toml`, and, for a workload that ships with the tool,
//! add its line to `SHIPPED`.
//!
//! Takes the name of a shipped workload or the path of a file; gives a `Workload` in which every
//! field has been checked. All scripts run under `sh -e` in the directory `/guest`; they share it
//! and nothing else. Debian's own programs come first in `PATH`, busybox fills gaps.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// The workloads that are part of the tool.
pub const SHIPPED: [(&str, &str); 7] = [
    ("compile", include_str!("../../../workloads/compile.toml")),
    ("database", include_str!("../../../workloads/database.toml")),
    ("engineering", include_str!("../../../workloads/engineering.toml")),
    ("files", include_str!("../../../workloads/files.toml")),
    ("net", include_str!("../../../workloads/net.toml")),
    ("shell", include_str!("../../../workloads/shell.toml")),
    ("web", include_str!("../../../workloads/web.toml")),
];

/// What the argument of a command that takes a workload is.
pub fn argument_help() -> String {
    format!("A shipped workload ({}), or the path of a .toml file", names())
}

fn names() -> String {
    SHIPPED.map(|(name, _)| name).join(", ")
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Text {
    about: String,
    packages: Vec<String>,
    #[serde(default)]
    leave_out: Vec<String>,
    #[serde(default)]
    modules: Vec<String>,
    memory: u32,
    #[serde(default)]
    files: BTreeMap<String, String>,
    set_up: String,
    run: String,
    check: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub name: String,
    /// SHA-256 of the file, hex.
    pub sha256: String,
    /// One sentence for people.
    pub about: String,
    /// Debian packages; what they depend on comes along.
    pub packages: Vec<String>,
    /// Files and directories of the packages that the guest need not have, without leading slash.
    pub leave_out: Vec<String>,
    /// Kernel modules by name, loaded before `set_up` with what they depend on.
    pub modules: Vec<String>,
    /// Of the guest, in MB, where the command line does not say otherwise.
    pub memory_mb: u32,
    /// Path → content. A content that begins with `#!` becomes executable.
    pub files: BTreeMap<String, String>,
    /// Runs before counting starts.
    pub set_up: String,
    /// Is counted. What it prints is in `/run/output` when `check` runs.
    pub run: String,
    /// Succeeds if the workload did what it should.
    pub check: String,
}

/// Less does not boot a distribution's kernel; more than the host will have is no guest.
pub const MEMORY_MB: std::ops::RangeInclusive<u32> = 128..=65536;

impl Workload {
    /// `what` is a shipped workload's name, or the path of a `.toml` file.
    pub fn open(what: &str) -> Result<Workload> {
        if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == what) {
            return Workload::parse(name, text)
                .with_context(|| format!("the shipped workload {name}"));
        }
        let path = Path::new(what);
        if !what.ends_with(".toml") {
            bail!("there is no workload {what:?}: give {} or the path of a .toml file", names());
        }
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("reading the workload {what}"))?;
        let name = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .context("the workload's file name is not UTF-8")?;
        Workload::parse(name, &text).with_context(|| format!("the workload {what}"))
    }

    /// The workload in `text`.
    ///
    /// # Errors
    /// It is no workload, or names what no guest has: the rule that it breaks.
    pub fn parse(name: &str, text: &str) -> Result<Workload> {
        let file: Text = toml::from_str(text)?;
        ensure!(
            MEMORY_MB.contains(&file.memory),
            "memory = {}: give {} to {} (MB)",
            file.memory,
            MEMORY_MB.start(),
            MEMORY_MB.end()
        );
        ensure!(!file.run.trim().is_empty(), "run is empty: there is nothing to record");
        ensure!(
            !file.check.trim().is_empty(),
            "check is empty: a workload must say how its output is checked"
        );
        for package in &file.packages {
            ensure!(
                is_package_name(package),
                "packages: {package:?} is not the name of a Debian package"
            );
        }
        for module in &file.modules {
            ensure!(
                is_module_name(module),
                "modules: {module:?} is not the name of a kernel module"
            );
        }
        for path in file.files.keys() {
            ensure!(
                path.starts_with('/') && !path.ends_with('/') && !path.contains('\0'),
                "files: {path:?} is not the absolute path of a file"
            );
            ensure!(
                !path.split('/').any(|part| part == ".."),
                "files: {path:?} must not contain \"..\""
            );
        }
        Ok(Workload {
            name: name.into(),
            sha256: format!("{:x}", Sha256::digest(text)),
            about: file.about,
            packages: file.packages,
            leave_out: file
                .leave_out
                .iter()
                .map(|path| path.trim_start_matches('/').to_string())
                .collect(),
            modules: file.modules,
            memory_mb: file.memory,
            files: file.files,
            set_up: file.set_up,
            run: file.run,
            check: file.check,
        })
    }
}

/// Debian policy, section 5.6.1. Nothing that passes can be taken for an option.
pub fn is_package_name(name: &str) -> bool {
    name.len() >= 2
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c))
}

fn is_module_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "about = 'x'\npackages = ['dash']\nmemory = 256\nset-up = ''\nrun = 'true'\ncheck = 'true'\n";

    fn error(text: &str) -> String {
        format!("{:#}", Workload::parse("w", text).unwrap_err())
    }

    #[test]
    fn shipped_workloads_are_good() {
        for (name, _) in SHIPPED {
            assert_eq!(Workload::open(name).unwrap().name, name);
        }
    }

    #[test]
    fn the_documented_example_is_good() {
        let document = include_str!("../../../docs/reference/workloads.md");
        let example = document.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let workload = Workload::parse("example", example).unwrap();
        assert_eq!(workload.modules, ["veth"]);
        assert!(workload.files.contains_key("/guest/list"));
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mine.toml");
        std::fs::write(&path, GOOD.replace("memory = 256", "memory = 'much'")).unwrap();
        let message = format!("{:#}", Workload::open(path.to_str().unwrap()).unwrap_err());
        assert!(message.contains("mine.toml") && message.contains("line 3"), "{message}");
        assert!(error(&format!("{GOOD}colour = 1\n")).contains("unknown field `colour`"));
        assert!(error("about = 'x'").contains("missing field"));
    }

    #[test]
    fn broken_rules_are_named() {
        assert!(error(&GOOD.replace("256", "1")).contains("memory = 1"));
        assert!(error(&GOOD.replace("dash", "--purge")).contains("--purge"));
        assert!(error(&GOOD.replace("run = 'true'", "run = ' '")).contains("run is empty"));
        assert!(error(&GOOD.replace("check = 'true'", "check = ''")).contains("check is empty"));
        assert!(error(&format!("{GOOD}[files]\n'etc/x' = ''\n")).contains("etc/x"));
        assert!(error(&format!("{GOOD}[files]\n'/etc/../x' = ''\n")).contains(".."));
        assert!(format!("{:#}", Workload::open("nothing").unwrap_err()).contains("files"));
    }

    #[test]
    fn damaged_files_do_not_panic() {
        let mut state = 7u64;
        for _ in 0..2000 {
            let mut bytes = GOOD.as_bytes().to_vec();
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = (state >> 20) as u8 & 0x7f;
            let _ = Workload::parse("w", &String::from_utf8_lossy(&bytes));
        }
    }
}
