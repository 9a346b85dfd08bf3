//! A workload from a command line, for a first try: a command, and what its guest has.
//!
//! Input: the options of a command line. Output: a `Workload`. The command must succeed; nothing
//! else is checked.

use crate::host_files::Sources;
use crate::own::quoted;
use crate::rootfs::{FileNode, clean};
use crate::workload::{MEMORY_MB, Workload};
use anyhow::{Context, Result, ensure};
use image::sealed;
use std::collections::BTreeMap;
use std::path::Path;

/// The options of a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypedWorkload {
    /// The command that is counted, for a shell.
    pub run: String,
    /// The command that runs before counting starts, for a shell; may be empty.
    pub set_up: String,
    /// `SOURCE:DESTINATION`, each.
    pub copies: Vec<String>,
    /// Debian packages.
    pub packages: Vec<String>,
    /// The path of an image.
    pub image: Option<String>,
}

impl Workload {
    /// The workload of a command line. Its commands start in the directory of the first copy, or in
    /// the image's working directory, or in `/guest`.
    ///
    /// # Errors
    /// A part breaks a rule, or a file cannot be read.
    pub fn of_command(typed: &TypedWorkload) -> Result<Workload> {
        ensure!(!typed.run.trim().is_empty(), "the command is empty: there is nothing to record");
        let text = text(typed)?;
        let mut workload = Workload::parse(&name(&typed.run), &text)?;
        workload = workload.reading(Path::new(""), Sources::Any)?;
        let start = start(&workload)?;
        // On one line, so that the line numbers of messages are those of what was typed.
        let begin = start.map(|path| format!("cd {}; ", quoted(&path))).unwrap_or_default();
        for script in [&mut workload.set_up, &mut workload.run] {
            if !script.trim().is_empty() {
                *script = format!("{begin}{script}\n");
            }
        }
        if let Some(brought) = &workload.brought {
            workload.memory_mb = brought.memory_mb().min(*MEMORY_MB.end());
        }
        // The files' paths on the host are not part of the workload.
        let destinations: String =
            workload.copies.iter().map(|copy| format!("{}\n", copy.to)).collect();
        let without_paths = TypedWorkload { copies: Vec::new(), image: None, ..typed.clone() };
        workload.sha256 = sealed::sha256((self::text(&without_paths)? + &destinations).as_bytes());
        Ok(workload)
    }
}

/// The text of the workload's file.
fn text(typed: &TypedWorkload) -> Result<String> {
    let mut table: BTreeMap<&str, toml::Value> = BTreeMap::new();
    let list = |texts: &[String]| toml::Value::from(texts.to_vec());
    table.insert("about", "A command".into());
    table.insert("memory", 512.into());
    table.insert("set-up", typed.set_up.as_str().into());
    table.insert("run", typed.run.as_str().into());
    table.insert("check", "true\n".into());
    table.insert("copy", list(&typed.copies));
    if typed.image.is_none() || !typed.packages.is_empty() {
        table.insert("packages", list(&typed.packages));
    }
    if let Some(image) = &typed.image {
        table.insert("image", image.as_str().into());
    }
    toml::to_string(&table).context("the command cannot be written as a workload")
}

/// The name of the command's first program, or `command`.
fn name(run: &str) -> String {
    let first = run.split_whitespace().next().unwrap_or_default();
    let name = first.rsplit('/').next().unwrap_or_default();
    let is_plain =
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if is_plain { name.into() } else { "command".into() }
}

/// Where the commands start; `None` for `/guest`.
fn start(workload: &Workload) -> Result<Option<String>> {
    let brought = workload.brought()?;
    let Some(first) = workload.copies.first() else {
        return Ok(brought.image.as_ref().and_then(|image| image.working_directory.clone()));
    };
    let path = clean(&first.to)?;
    let is_directory = path.is_empty()
        || first.to.ends_with('/')
        || matches!(brought.copied.resolve(&path), Some((_, FileNode::Directory { .. })));
    let path = match is_directory {
        true => path.as_str(),
        false => path.rsplit_once('/').map_or("", |(parent, _)| parent),
    };
    Ok(Some(format!("/{path}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(run: &str, copies: &[String]) -> TypedWorkload {
        TypedWorkload { run: run.into(), copies: copies.to_vec(), ..TypedWorkload::default() }
    }

    #[test]
    fn commands_start_where_the_first_copy_is() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("server"), "x").unwrap();
        let here = directory.path().display();
        for (copy, expected) in [
            (format!("{here}:/opt/app"), "cd '/opt/app'; ./server --flag\n"),
            (format!("{here}/server:/opt/app"), "cd '/opt'; ./server --flag\n"),
            (format!("{here}/server:/opt/app/"), "cd '/opt/app'; ./server --flag\n"),
            (format!("{here}/server:/server"), "cd '/'; ./server --flag\n"),
        ] {
            let workload = Workload::of_command(&typed("./server --flag", &[copy])).unwrap();
            assert_eq!((&*workload.run, &*workload.set_up), (expected, ""));
            assert_eq!((&*workload.name, workload.memory_mb), ("server", 512));
        }
        let plain = Workload::of_command(&typed("echo 1 | cat", &[])).unwrap();
        assert_eq!((&*plain.run, &*plain.name), ("echo 1 | cat\n", "echo"));
        assert!(plain.brought().unwrap().copied_sha256.is_none());
    }

    #[test]
    fn the_same_files_elsewhere_are_the_same_workload() {
        let made = |to: &str| {
            let directory = tempfile::tempdir().unwrap();
            std::fs::write(directory.path().join("server"), "x").unwrap();
            let copy = format!("{}:{to}", directory.path().display());
            let workload = Workload::of_command(&typed("./server", &[copy])).unwrap();
            let digest = workload.brought().unwrap().copied_sha256.clone();
            (workload.sha256, digest.unwrap())
        };
        assert_eq!(made("/opt/app"), made("/opt/app"));
        assert_ne!(made("/opt/app").0, made("/opt/other").0);
        let other = Workload::of_command(&typed("./other", &[])).unwrap();
        assert_ne!(other.sha256, Workload::of_command(&typed("./server", &[])).unwrap().sha256);
    }

    #[test]
    fn parts_that_no_guest_can_have_are_refused() {
        let said =
            |typed: TypedWorkload| format!("{:#}", Workload::of_command(&typed).unwrap_err());
        assert!(said(typed(" ", &[])).contains("the command is empty"));
        assert!(said(typed("x", &["a".into()])).contains("give SOURCE:DESTINATION"));
        let both = TypedWorkload {
            packages: vec!["dash".into()],
            image: Some("x.tar".into()),
            ..typed("x", &[])
        };
        assert!(said(both).contains("image takes the place of packages"));
        let package = TypedWorkload { packages: vec!["--purge".into()], ..typed("x", &[]) };
        assert!(said(package).contains("--purge"));
        for (run, expected) in
            [("$SERVER x", "command"), ("/a/b.c-d x", "b.c-d"), ("(a)", "command")]
        {
            assert_eq!(name(run), expected);
        }
    }
}
