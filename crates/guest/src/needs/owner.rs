//! Which Debian package has a library or an interpreter.
//!
//! Input: its name. Output: a sentence that says what to do. Sources, in this order: what dpkg
//! knows about this machine's own packages, what apt-file knows about all packages, and the names
//! that Debian gives the packages of libraries (policy, section 8.1), if apt knows a package of
//! that name.

use super::Lack;
use crate::packages;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where a guest's programs come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramsFrom {
    Packages,
    Image,
}

/// One line for each missing file: the file that needs it, and the package that has it. At the end,
/// what to do.
pub(crate) fn advice(lacks: &[Lack], from: ProgramsFrom) -> String {
    let mut owners: BTreeMap<&str, Option<String>> = BTreeMap::new();
    let mut lines = Vec::new();
    for lack in lacks {
        let owner = owners.entry(&lack.needed).or_insert_with(|| package_of(&lack.needed)).clone();
        lines.push(line(lack, owner.as_deref()));
    }
    let mut names: Vec<&str> = owners.values().flatten().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    if !names.is_empty() {
        let names = names.join(", ");
        lines.push(match from {
            ProgramsFrom::Packages => {
                format!("add {names} to the guest's packages (`packages` in a workload's file)")
            }
            ProgramsFrom::Image => {
                format!("on Debian, install {names} in the image; or also copy what is missing")
            }
        });
    }
    if owners.values().any(Option::is_none) {
        lines.push(
            "for what is in no known package: `apt-file search NAME` looks into all packages of \
             Debian; or copy the file into the guest, too"
                .into(),
        );
    }
    lines.join("\n")
}

fn line(lack: &Lack, owner: Option<&str>) -> String {
    let Lack { program, needed, by } = lack;
    let through = match by == program {
        true => String::new(),
        false => format!(" (through /{by})"),
    };
    let package = match owner {
        Some(package) => format!("the package {package} has it"),
        None => "no known package has it".into(),
    };
    format!("/{program} needs {needed}{through}, which the guest lacks: {package}")
}

/// The name of a package that apt can install.
fn package_of(needed: &str) -> Option<String> {
    let known = |name: &String| packages::is_known(name);
    installed(needed).filter(known).or_else(|| listed(needed).filter(known)).or_else(|| {
        let name = Path::new(needed).file_name()?.to_str()?;
        conventional(name).into_iter().find(known)
    })
}

/// Directories whose files a guest's programs find. Packages for cross compilation have others.
fn is_found(path: &str) -> bool {
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let usual = ["lib", "lib64", "lib/x86_64-linux-gnu", "bin", "sbin"];
    let directory = directory.trim_start_matches('/');
    usual.contains(&directory.strip_prefix("usr/").unwrap_or(directory))
}

/// What dpkg knows about this machine. A program that was compiled here has its libraries here.
fn installed(needed: &str) -> Option<String> {
    let mut patterns = Vec::new();
    if needed.starts_with('/') {
        patterns.push(needed.to_owned());
        patterns.push(match needed.strip_prefix("/usr/") {
            Some(rest) => format!("/{rest}"),
            None => format!("/usr{needed}"),
        });
        // `/usr/bin/awk` is a link to the program that the administrator chose.
        let real = Path::new(needed).canonicalize().ok();
        patterns.extend(real.and_then(|path| path.to_str().map(str::to_owned)));
    } else {
        patterns.push(format!("*/{needed}"));
    }
    let output = Command::new("dpkg-query")
        .arg("--search")
        .arg("--")
        .args(patterns)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    owner_in(&String::from_utf8_lossy(&output.stdout))
}

/// Lines of `dpkg-query --search`: `libc6:amd64, other: /lib/x86_64-linux-gnu/libc.so.6`.
fn owner_in(text: &str) -> Option<String> {
    text.lines().filter(|line| !line.starts_with("diversion by")).find_map(|line| {
        let (names, path) = line.split_once(": ")?;
        let first = names.split(", ").next()?;
        let name = first.split(':').next()?;
        is_found(path).then(|| name.to_owned())
    })
}

/// What apt-file knows, if apt-file is installed and has its lists.
fn listed(needed: &str) -> Option<String> {
    let name = Path::new(needed).file_name()?.to_str()?;
    let output = Command::new("apt-file")
        .args(["search", "--architecture", "amd64", "--"])
        .arg(format!("/{name}"))
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find_map(|line| {
        let (package, path) = line.split_once(": ")?;
        let found = path.rsplit('/').next() == Some(name) && is_found(path);
        found.then(|| package.to_owned())
    })
}

/// The names that Debian's policy gives the package of a shared library: `libx.so.1` is in `libx1`,
/// and `libx-2.so.1` in `libx-2-1`. Since the change of time_t some end in `t64`.
fn conventional(name: &str) -> Vec<String> {
    let Some((stem, version)) = name.split_once(".so.") else {
        // `liby-1.2.so` is in `liby-1.2`. An interpreter is often in a package of its name.
        return vec![name.strip_suffix(".so").unwrap_or(name).to_ascii_lowercase()];
    };
    let stem = stem.to_ascii_lowercase().replace('_', "-");
    let plain = match stem.ends_with(|c: char| c.is_ascii_digit()) {
        true => format!("{stem}-{version}"),
        false => format!("{stem}{version}"),
    };
    vec![plain.clone(), format!("{plain}t64")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_read_and_cross_compilers_have_none() {
        let text = "diversion by x from: /lib64/ld-linux-x86-64.so.2\n\
            libc6-arm64-cross: /usr/aarch64-linux-gnu/lib/libc.so.6\n\
            libc6-i386: /lib32/libc.so.6\n\
            libc6:amd64, libc6-x: /lib/x86_64-linux-gnu/libc.so.6\n";
        assert_eq!(owner_in(text).as_deref(), Some("libc6"));
        assert_eq!(owner_in("x: /opt/lib/y\n"), None);
    }

    #[test]
    fn names_follow_debians_policy() {
        assert_eq!(conventional("libssl.so.3"), ["libssl3", "libssl3t64"]);
        assert_eq!(conventional("libglib-2.0.so.0"), ["libglib-2.0-0", "libglib-2.0-0t64"]);
        assert_eq!(conventional("libX11.so.6")[0], "libx11-6");
        assert_eq!(conventional("perl"), ["perl"]);
    }

    #[test]
    fn this_machines_own_library_and_shell_are_found() {
        assert_eq!(package_of("libc.so.6").as_deref(), Some("libc6"));
        assert_eq!(package_of("/lib64/ld-linux-x86-64.so.2").as_deref(), Some("libc6"));
        assert_eq!(package_of("/usr/bin/bash").as_deref(), Some("bash"));
        assert_eq!(package_of("libkernlane-has-no-such.so.1"), None);
    }

    #[test]
    fn the_advice_names_program_library_and_package() {
        let lack = |needed: &str, by: &str| Lack {
            program: "opt/app/server".into(),
            needed: needed.into(),
            by: by.into(),
        };
        let lacks = [
            lack("libc.so.6", "opt/app/server"),
            lack("libkernlane-has-no-such.so.1", "opt/app/libown.so"),
        ];
        let said = advice(&lacks, ProgramsFrom::Packages);
        let expected = "/opt/app/server needs libc.so.6, which the guest lacks: the package libc6 \
            has it\n\
            /opt/app/server needs libkernlane-has-no-such.so.1 (through /opt/app/libown.so), which \
            the guest lacks: no known package has it\n\
            add libc6 to the guest's packages (`packages` in a workload's file)\n\
            for what is in no known package: `apt-file search NAME` looks into all packages of \
            Debian; or copy the file into the guest, too";
        assert_eq!(said, expected);
        let said = advice(&lacks[..1], ProgramsFrom::Image);
        assert!(
            said.contains("install libc6 in the image") && !said.contains("the guest's packages")
        );
    }
}
