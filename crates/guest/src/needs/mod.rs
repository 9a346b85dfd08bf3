//! The files that copied programs need and the guest lacks: shared libraries, their loader, and the
//! interpreters of scripts.
//!
//! Input: the guest's root file system, and the files that were copied into it. Output: one `Lack`
//! for each thing that is missing. Nothing is executed: libraries are looked up as ld.so(8) does
//! without a cache.

pub(crate) mod dynamic;
mod owner;

use crate::own;
use crate::rootfs::{FileNode, RootFs};
use dynamic::Dynamic;
use std::collections::BTreeSet;

pub(crate) use owner::{ProgramsFrom, advice};

/// Where the C library looks for libraries, on Debian and elsewhere.
const LIBRARY_DIRECTORIES: [&str; 9] = [
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "lib64",
    "usr/lib64",
    "lib",
    "usr/lib",
    "usr/local/lib/x86_64-linux-gnu",
    "usr/local/lib64",
    "usr/local/lib",
];

/// Where `env` looks for programs.
const PROGRAM_DIRECTORIES: [&str; 7] =
    ["usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin", "kernlane/bin"];

/// A chain of libraries longer than this has a loop that the set of seen files did not end.
const MOST_LIBRARIES: usize = 4096;

/// Something that is missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lack {
    /// The copied program, without leading slash.
    pub program: String,
    /// What is missing: the name of a library, or the absolute path or name of an interpreter.
    pub needed: String,
    /// The file that needs it: the program, or a library that the program needs.
    pub by: String,
}

/// The files that the programs of `copied` need and `root` lacks, sorted.
pub(crate) fn lacking(root: &RootFs, copied: &RootFs) -> Vec<Lack> {
    // A program may be started with LD_LIBRARY_PATH: a library that was copied anywhere is there.
    let copied_names: BTreeSet<&str> = copied
        .nodes()
        .filter(|(_, node)| !matches!(node, FileNode::Directory { .. }))
        .map(|(path, _)| path.rsplit_once('/').map_or(path, |(_, name)| name))
        .collect();
    let mut found = BTreeSet::new();
    for (path, node) in copied.nodes() {
        let FileNode::File { permissions, data } = node else { continue };
        if data.starts_with(b"#!") {
            if permissions & 0o111 != 0 {
                found.extend(of_script(root, path, data));
            }
        } else if let Some(dynamic) = Dynamic::read(data)
            && let Some(interpreter) = &dynamic.interpreter
        {
            let lack = |needed: &str, by: &str| Lack {
                program: path.into(),
                needed: needed.into(),
                by: by.into(),
            };
            if root.read(interpreter).is_none() {
                found.insert(lack(interpreter, path));
            }
            libraries(root, &copied_names, path, dynamic, &mut |needed, by| {
                found.insert(lack(needed, by));
            });
        }
    }
    found.into_iter().collect()
}

/// The interpreter of a script, as the kernel (fs/binfmt_script.c) and `env` look for it.
fn of_script(root: &RootFs, path: &str, text: &[u8]) -> Option<Lack> {
    let line = text[2..].split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace();
    let interpreter = words.next()?;
    let lack =
        |needed: &str| Some(Lack { program: path.into(), needed: needed.into(), by: path.into() });
    if root.read(interpreter).is_none() {
        return lack(interpreter);
    }
    if interpreter.rsplit('/').next() == Some("env") {
        let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
        let at = |directory: &&str| root.read(&format!("{directory}/{name}")).is_some();
        if !name.contains('/') && !PROGRAM_DIRECTORIES.iter().any(at) && !busybox_has(root, name) {
            return lack(name);
        }
    }
    None
}

/// Whether busybox has the program. It gets its link when the guest boots; the table of names in
/// busybox separates them by NUL.
fn busybox_has(root: &RootFs, name: &str) -> bool {
    let word = format!("\0{name}\0");
    [own::BUSYBOX, own::BUSYBOX_OF_IMAGE]
        .iter()
        .filter_map(|path| root.read(path))
        .any(|program| program.windows(word.len()).any(|window| window == word.as_bytes()))
}

/// Looks up every library that the program needs, and that they need. `lack` gets a library's name
/// and who needs it.
fn libraries(
    root: &RootFs,
    copied_names: &BTreeSet<&str>,
    program: &str,
    dynamic: Dynamic,
    lack: &mut dyn FnMut(&str, &str),
) {
    let program_rpath = dynamic.rpath.clone();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut pending = vec![(program.to_owned(), dynamic)];
    while let Some((path, dynamic)) = pending.pop() {
        for needed in &dynamic.needed {
            if seen.len() > MOST_LIBRARIES || !seen.insert(needed.clone()) {
                continue;
            }
            let found = search(root, needed, &path, &dynamic, &program_rpath);
            match found {
                Some((at, data)) => {
                    if let Some(library) = Dynamic::read(data) {
                        pending.push((at, library));
                    }
                }
                None if copied_names.contains(needed.rsplit('/').next().unwrap_or(needed)) => {}
                None => lack(needed, &path),
            }
        }
    }
}

/// ld.so(8): a name with a slash is a path. Otherwise DT_RPATH if there is no DT_RUNPATH, then
/// DT_RUNPATH, then the default directories.
fn search<'a>(
    root: &'a RootFs,
    needed: &str,
    by: &str,
    dynamic: &Dynamic,
    program_rpath: &[String],
) -> Option<(String, &'a [u8])> {
    let at = |path: String| Some((root.resolve(&path)?.0, root.read(&path)?));
    if needed.contains('/') {
        return at(needed.into());
    }
    let origin = by.rsplit_once('/').map_or("", |(directory, _)| directory);
    let expanded = |directory: &String| {
        let mut directory = directory.clone();
        for (token, value) in [("ORIGIN", format!("/{origin}")), ("LIB", "lib64".into())] {
            directory = directory.replace(&format!("${{{token}}}"), &value);
            directory = directory.replace(&format!("${token}"), &value);
        }
        directory
    };
    let own: Vec<String> = match dynamic.runpath.is_empty() {
        true => dynamic.rpath.iter().chain(program_rpath).map(expanded).collect(),
        false => dynamic.runpath.iter().map(expanded).collect(),
    };
    let places = own.iter().map(String::as_str).chain(LIBRARY_DIRECTORIES);
    // `..` behind $ORIGIN is common.
    places.map(|directory| simplified(&format!("{directory}/{needed}"))).find_map(at)
}

/// The path without `.` and `..`.
fn simplified(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Whether a script names the program: its path or its name stands there as a word.
pub(crate) fn is_named(program: &str, scripts: &[&str]) -> bool {
    let name = program.rsplit_once('/').map_or(program, |(_, name)| name);
    let is_inside = |c: char| c.is_alphanumeric() || "_.-".contains(c);
    scripts.iter().any(|script| {
        script.match_indices(name).any(|(at, _)| {
            let (before, after) = (&script[..at], &script[at + name.len()..]);
            !before.ends_with(is_inside) && !after.starts_with(is_inside)
        })
    })
}

/// Looks up what a program needs in an empty guest. For a fuzzer.
#[doc(hidden)]
pub fn try_program(bytes: &[u8]) {
    let mut copied = RootFs::default();
    if copied.file("opt/app", 0o755, bytes).is_ok() {
        let _ = lacking(&copied, &copied);
    }
}

#[cfg(test)]
mod tests;
