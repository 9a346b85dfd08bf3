//! The libraries in Kernlane: their licences, versions, sources and advisories.
//!
//! Input: `deny.toml` and `Cargo.lock`. Output: whether cargo-deny accepts them. It needs no
//! network, and fetches nothing.

use anyhow::{Context, Result};
use lab::run;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Checks the libraries against `deny.toml`.
pub(super) fn check() -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(["deny", "--offline", "--locked", "check", "bans", "licenses", "sources"]);
    match cargo_home().is_some_and(|home| has_advisories(&home)) {
        true => drop(command.arg("advisories")),
        false => println!(
            "not checked: advisories of libraries, because their database is not here: fetch it by \
             `cargo deny fetch db`"
        ),
    }
    run(&mut command).context("if cargo has no command `deny`: run `xtask/setup.sh --for-tests`")
}

/// Where cargo keeps what it fetched.
fn cargo_home() -> Option<PathBuf> {
    let named = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    named.or_else(|| Some(std::env::home_dir()?.join(".cargo")))
}

/// Whether cargo-deny has fetched advisories. An attempt that failed leaves only a lock.
fn has_advisories(cargo_home: &Path) -> bool {
    let found = std::fs::read_dir(cargo_home.join("advisory-dbs"));
    found.into_iter().flatten().flatten().any(|entry| entry.path().join(".git").is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_was_fetched_is_found() {
        let home = tempfile::tempdir().unwrap();
        assert!(!has_advisories(home.path()));
        let databases = home.path().join("advisory-dbs");
        std::fs::create_dir(&databases).unwrap();
        std::fs::write(databases.join("db.lock"), "").unwrap();
        assert!(!has_advisories(home.path()));
        std::fs::create_dir_all(databases.join("advisory-db-3157b0e258782691/.git")).unwrap();
        assert!(has_advisories(home.path()));
    }
}
