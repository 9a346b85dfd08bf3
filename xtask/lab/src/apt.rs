//! Debian's packages, of this machine's suites and of newer ones.
//!
//! Output: apt's commands with options, so that packages of another suite never mix with what is
//! installed here.

use crate::{run, succeeded};
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The suite of the newest kernels.
pub const NEWEST_SUITE: &str = "sid";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// apt of this machine's suites, or of others.
#[derive(Default)]
pub(crate) struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// apt of other suites, with everything it keeps in `directory`.
    pub(crate) fn of_suites(suites: &[&str], directory: &Path) -> Result<Apt> {
        fs::create_dir_all(directory.join("lists/partial"))?;
        let list = directory.join("sources.list");
        let site = site()?;
        let lines = suites.iter().map(|it| format!("deb [signed-by={KEYRING}] {site} {it} main\n"));
        fs::write(&list, lines.collect::<String>())?;
        fs::create_dir_all(directory.join("cache/archives/partial"))?;
        fs::write(directory.join("status"), "")?;
        let at = |name: &str| directory.join(name).display().to_string();
        let options = [
            format!("Dir::Etc::SourceList={}", list.display()),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            format!("Dir::State::Lists={}", at("lists")),
            format!("Dir::Cache={}", at("cache")),
            // What is installed here does not count in another suite.
            format!("Dir::State::status={}", at("status")),
            // A mirror may have it from weeks ago. What is signed is verified all the same.
            "Acquire::Check-Valid-Until=false".to_owned(),
            // Only names and versions are wanted.
            "Acquire::Languages=none".to_owned(),
        ];
        Ok(Apt { options: options.into() })
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }

    pub(crate) fn update(&self) -> Result<()> {
        run(self.command("apt-get").args(["update", "-q"])).context("Debian's newer suites")
    }
}

/// The site of Debian's archive from which this machine gets its packages.
///
/// # Errors
/// apt knows none.
pub fn site() -> Result<String> {
    labelled("Debian")
}

/// Likewise the site of the archive of security updates, in which the newest kernels of a stable
/// Debian are.
///
/// # Errors
/// apt knows none.
pub fn security_site() -> Result<String> {
    labelled("Debian-Security")
}

fn labelled(label: &str) -> Result<String> {
    let format = "$(REPO_URI) $(COMPONENT) $(ORIGIN) $(LABEL)";
    let words = ["indextargets", "--format", format, "Created-By: Packages"];
    let output = succeeded(Command::new("apt-get").args(words))?;
    let known = String::from_utf8_lossy(&output.stdout).into_owned();
    let end = format!(" main Debian {label}");
    let found = known.lines().find_map(|line| line.strip_suffix(&end));
    let missing = || format!("apt knows no archive of {label}: run xtask/setup.sh");
    Ok(found.with_context(missing)?.to_owned())
}

/// The names of the packages that match a pattern, the highest version last.
///
/// # Errors
/// apt cannot be run.
pub(crate) fn matching(apt: &Apt, pattern: &str) -> Result<Vec<String>> {
    let mut search = apt.command("apt-cache");
    let output = succeeded(search.args(["search", "--names-only", pattern]))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text.lines().filter_map(|line| line.split(' ').next());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort_by_key(|name| {
        name.split(|c: char| !c.is_ascii_digit())
            .filter_map(|n| n.parse::<u32>().ok())
            .collect::<Vec<_>>()
    });
    Ok(names)
}
