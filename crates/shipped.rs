//! The build script of the crates that have files for users built in: `workloads/*.toml`,
//! `machines/*.toml` and the sources in `kmod/` become a table of names and texts, in the order of
//! the names. So a new file needs no line of code.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let directory = match &*variable("CARGO_PKG_NAME") {
        "kernlane-guest" => "workloads",
        "kernlane-machines" => "machines",
        "kernlane-live" => "kmod",
        name => panic!("{name} has no directory of files here"),
    };
    let is_source = directory == "kmod";
    // A link to the directory at the top, which a published crate has as a copy.
    let directory = Path::new(&variable("CARGO_MANIFEST_DIR")).join(directory);
    // Covers files that come and go. A file that changes is known by its `include_str`.
    println!("cargo::rerun-if-changed={}", directory.display());
    println!("cargo::rerun-if-changed=build.rs");
    let mut files: Vec<PathBuf> = fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.expect("a directory can be listed").path())
        .filter(
            |path| if is_source { is_source_of_module(path) } else { has_extension(path, "toml") },
        )
        .collect();
    files.sort();
    let rows: String = files
        .iter()
        .map(|path| {
            let name = if is_source { path.file_name() } else { path.file_stem() };
            let name = name.expect("a file has a name").display().to_string();
            format!("    ({name:?}, include_str!({:?})),\n", path.display().to_string())
        })
        .collect();
    let output = Path::new(&variable("OUT_DIR")).join("shipped.rs");
    fs::write(output, format!("&[\n{rows}]\n")).expect("OUT_DIR can be written to");
}

fn has_extension(path: &Path, expected: &str) -> bool {
    path.extension().is_some_and(|extension| extension == expected)
}

/// Whether make reads the file. Builds leave objects and `NAME.mod.c` beside it.
fn is_source_of_module(path: &Path) -> bool {
    let is_made = path.display().to_string().ends_with(".mod.c");
    path.ends_with("Kbuild") || has_extension(path, "h") || has_extension(path, "c") && !is_made
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
