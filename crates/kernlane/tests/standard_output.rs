//! Standard output that takes nothing: a full disk is an error with a message and status 2, a
//! reader that has gone ends the tool with status 141 and without a message. No command panics, and
//! no status depends on how much was printed.

mod small_recording;

use clap::CommandFactory;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use trace::RecordingHeader;

fn ended(arguments: &[String], directory: &Path, stdout: impl Into<Stdio>) -> Output {
    let child = Command::new(env!("CARGO_BIN_EXE_kernlane"))
        .args(arguments)
        .current_dir(directory)
        .env("KERNLANE_CACHE", directory.join("cache"))
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.wait_with_output().unwrap()
}

/// The help of every command, from the table of commands itself, and what prints without a kernel
/// or a guest.
fn command_lines() -> Vec<Vec<String>> {
    fn helps(command: &clap::Command, path: &[String], all: &mut Vec<Vec<String>>) {
        all.push([path, &["--help".to_owned()]].concat());
        for below in command.get_subcommands() {
            helps(below, &[path, &[below.get_name().to_owned()]].concat(), all);
        }
    }
    let mut all = Vec::new();
    helps(&kernlane::cli::Cli::command(), &[], &mut all);
    assert!(all.len() > 25, "{all:?}");
    let others = [
        "--version",
        "doctor",
        "doctor --json",
        "completions bash",
        "dump . --stream",
        "dump . --json",
        "report sizes .",
        "report sizes . --json",
        "report services . --kernel System.map",
        "report services . --kernel System.map --json",
        "report os-share . --kernel System.map",
        "report generations . --kernel System.map --machine i486,zen4",
        "report generations . --kernel System.map --machine i486,zen4 --json",
        "diff . . --kernel System.map",
        "diff . . --kernel System.map --json",
        "replay .",
        "replay . --json",
    ];
    all.extend(others.map(|line| line.split(' ').map(str::to_owned).collect()));
    all
}

/// What `replay --json` says of a recording whose kernel is not found.
const NO_KERNEL: &str = "no kernel was found, so functions have no names: give it with --kernel\n";

#[test]
fn a_full_disk_is_an_error_and_a_reader_that_has_gone_is_quiet() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    // Long enough to be printed in several pieces.
    small_recording::write(path, &RecordingHeader::default(), 20_000);
    for line in command_lines() {
        let full = ended(&line, path, File::options().write(true).open("/dev/full").unwrap());
        let message = String::from_utf8_lossy(&full.stderr);
        assert_eq!(full.status.code(), Some(2), "{line:?}: {message}");
        // Where the recording was made there was no kernel with its build id.
        let message = message.replace(NO_KERNEL, "");
        assert_eq!(
            message,
            "kernlane: standard output cannot be written: No space left on device (os error 28)\n",
            "{line:?}"
        );

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = ended(&line, path, writer);
        let message = String::from_utf8_lossy(&closed.stderr);
        assert_eq!(closed.status.code(), Some(141), "{line:?}: {message}");
        assert_eq!(message.replace(NO_KERNEL, ""), "", "{line:?}");
    }
}

#[test]
fn a_full_standard_error_changes_no_status() {
    let directory = tempfile::tempdir().unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_kernlane"))
        .args(["dump", "none"])
        .current_dir(directory.path())
        .stderr(File::options().write(true).open("/dev/full").unwrap())
        .status()
        .unwrap();
    assert_eq!(ended.code(), Some(2));
}
