//! The rules of `ARCHITECTURE.md` that a compiler does not see.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Files below `directory` with one of these endings, by their paths from the root.
fn files(directory: &str, endings: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        let Ok(entries) = fs::read_dir(root().join(&directory)) else {
            continue;
        };
        for entry in entries.map(Result::unwrap) {
            let path = format!("{directory}/{}", entry.file_name().to_string_lossy());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() && !path.contains("/target") && !path.contains("/.git") {
                waiting.push(path);
            } else if kind.is_file() && endings.iter().any(|ending| path.ends_with(ending)) {
                found.push(path.trim_start_matches("./").to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Whether a line that is no comment contains `word`.
fn uses(file: &str, word: &str) -> bool {
    let text = read(file);
    text.lines().any(|line| !line.trim_start().starts_with("//") && line.contains(word))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn every_path_that_the_documents_name_exists() {
    let mut missing = Vec::new();
    for document in files(".", &[".md"]) {
        let text = read(&document);
        for word in text.split('`').skip(1).step_by(2) {
            let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
            let known_room = [
                "crates/",
                "xtask/",
                "docs/",
                "machines/",
                "workloads/",
                "annotations/",
                "bench/",
                "src/",
            ];
            let named = plain && known_room.iter().any(|room| word.starts_with(room));
            if named && !root().join(word).exists() && !root().join("crates/kernlane").join(word).exists() {
                missing.push(format!("{document} names {word}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn the_walls_stand() {
    let forbidden = [
        ("crates/kernlane/src/check", "crate::emit"),
        ("crates/kernlane/src/report", "crate::emit"),
        ("crates/kernlane/src/image", "crate::emit"),
        ("crates/kernlane/src/services", "crate::report"),
        ("crates/trace/src", "std::fs"),
        ("crates/sim/src", "std::fs"),
        ("crates/layout/src", "std::fs"),
    ];
    for (room, word) in forbidden {
        for file in files(room, &[".rs"]) {
            assert!(!uses(&file, word), "{file} uses {word}");
        }
    }
    for file in files("crates", &[".rs"])
        .iter()
        .filter(|file| !file.contains("/tests/") && !file.ends_with("/main.rs"))
    {
        assert!(
            !read(file).contains("process::exit("),
            "{file}: nothing below main exits the process"
        );
    }
    for pure in ["trace", "sim", "layout"] {
        let manifest = read(&format!("crates/{pure}/Cargo.toml"));
        for library in ["object", "memmap2", "qemu", "kernlane-"] {
            let depends = manifest
                .lines()
                .skip_while(|line| *line != "[dependencies]")
                .any(|line| line.starts_with(library));
            assert!(!depends, "crates/{pure} depends on {library}");
        }
    }
}

#[test]
fn every_module_says_what_it_is_and_stays_short() {
    for file in [files("crates", &[".rs"]), files("xtask", &[".rs"])].concat() {
        let text = read(&file);
        assert!(text.starts_with("//!"), "{file} does not begin with //!");
        assert!(text.lines().count() <= 700, "{file} is longer than 700 lines");
    }
}

#[test]
fn no_drawers() {
    for file in files("crates", &[".rs"]) {
        let stem = Path::new(&file).file_stem().unwrap().to_string_lossy().into_owned();
        assert!(
            !["utils", "util", "common", "shared", "types", "helpers", "misc"].contains(&stem.as_str()),
            "{file}"
        );
    }
}
