//! Programs made by hand in a small root file system.

use super::*;
use crate::container::examples::elf;

const NEEDED: u64 = 1;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// What the copied files lack: program, needed, by.
fn lacks(guest: &[(&str, Vec<u8>)], copied: &[(&str, Vec<u8>)]) -> Vec<[String; 3]> {
    let (mut root, mut tree) = (RootFs::default(), RootFs::default());
    for (path, data) in guest {
        root.file(path, 0o755, data).unwrap();
    }
    for (path, data) in copied {
        tree.file(path, 0o755, data).unwrap();
    }
    root.add(&tree).unwrap();
    lacking(&root, &tree)
        .into_iter()
        .map(|Lack { program, needed, by }| [program, needed, by])
        .collect()
}

fn missing(program: &str, needed: &str, by: &str) -> [String; 3] {
    [program, needed, by].map(String::from)
}

#[test]
fn a_static_program_needs_nothing_and_a_dynamic_one_its_loader_and_libraries() {
    assert_eq!(lacks(&[], &[("app/s", elf(None, &[]))]), [[""; 3]; 0]);
    let program = elf(Some(LOADER), &[(NEEDED, "libm.so.6"), (NEEDED, "libc.so.6")]);
    let found = lacks(&[], &[("app/s", program.clone())]);
    let expected = [LOADER, "libc.so.6", "libm.so.6"].map(|name| missing("app/s", name, "app/s"));
    assert_eq!(found, expected);
    let libc = elf(None, &[]);
    let guest = [
        (&LOADER[1..], libc.clone()),
        ("lib/x86_64-linux-gnu/libc.so.6", libc.clone()),
        ("usr/lib/libm.so.6", libc),
    ];
    assert_eq!(lacks(&guest, &[("app/s", program)]), [[""; 3]; 0]);
}

#[test]
fn libraries_of_libraries_are_followed() {
    let program = elf(Some("/ld"), &[(NEEDED, "liba.so.1")]);
    let guest = [
        ("ld", vec![]),
        ("lib/liba.so.1", elf(None, &[(NEEDED, "libb.so.1"), (NEEDED, "liba.so.1")])),
        ("lib/libb.so.1", elf(None, &[(NEEDED, "libc.so.1"), (NEEDED, "liba.so.1")])),
    ];
    let found = lacks(&guest, &[("s", program)]);
    assert_eq!(found, [missing("s", "libc.so.1", "lib/libb.so.1")]);
}

#[test]
fn rpath_runpath_and_origin_are_followed() {
    let program = |tag, path| elf(Some("/ld"), &[(NEEDED, "libx.so"), (tag, path)]);
    let library = elf(None, &[]);
    for path in ["$ORIGIN/../own", "${ORIGIN}/../own:/nowhere", "/nowhere:/opt/own"] {
        for tag in [RPATH, RUNPATH] {
            let guest = [("ld", vec![]), ("opt/own/libx.so", library.clone())];
            let found = lacks(&guest, &[("opt/bin/s", program(tag, path))]);
            assert_eq!(found, [[""; 3]; 0], "{path}");
        }
    }
    let guest = [("ld", vec![]), ("opt/other/libx.so", library.clone())];
    let found = lacks(&guest, &[("opt/bin/s", program(RUNPATH, "$ORIGIN/../own"))]);
    assert_eq!(found, [missing("opt/bin/s", "libx.so", "opt/bin/s")]);
    // Started with LD_LIBRARY_PATH, it finds what was copied beside it.
    let copied = [("opt/bin/s", program(RUNPATH, "/no")), ("opt/any/libx.so", library)];
    assert_eq!(lacks(&[("ld", vec![])], &copied), [[""; 3]; 0]);
}

#[test]
fn scripts_need_their_interpreters() {
    let script = |text: &str| text.as_bytes().to_vec();
    let python = script("#!/usr/bin/python3 -u\n");
    let found = lacks(&[], &[("a", python.clone())]);
    assert_eq!(found, [missing("a", "/usr/bin/python3", "a")]);
    assert_eq!(lacks(&[("usr/bin/python3", vec![1])], &[("a", python)]), [[""; 3]; 0]);
    let env = script("#!/usr/bin/env -S lua5.4 -i\n");
    assert_eq!(lacks(&[], &[("a", env.clone())]), [missing("a", "/usr/bin/env", "a")]);
    let guest = [("usr/bin/env", vec![1])];
    assert_eq!(lacks(&guest, &[("a", env)]), [missing("a", "lua5.4", "a")]);
    // Busybox has the program.
    let guest = [("usr/bin/env", vec![1]), ("usr/bin/busybox", b"x\0awk\0y".to_vec())];
    assert_eq!(lacks(&guest, &[("a", script("#!/usr/bin/env awk\n"))]), [[""; 3]; 0]);
}

#[test]
fn a_program_is_named_by_its_path_or_its_name() {
    for script in ["./server --flag", "/opt/app/server&", "cd x; server", "exec \"$D/server\""] {
        assert!(is_named("opt/app/server", &["", script]), "{script}");
    }
    for script in ["./server2", "myserver", "server.log", "start-server", ""] {
        assert!(!is_named("opt/app/server", &[script]), "{script}");
    }
}

#[test]
fn a_damaged_program_gives_nothing_or_names_that_are_in_it() {
    let good = elf(Some(LOADER), &[(NEEDED, "libm.so.6"), (RPATH, "$ORIGIN"), (RUNPATH, "/x")]);
    let whole = Dynamic::read(&good).unwrap();
    for length in 0..good.len() {
        let found = Dynamic::read(&good[..length]);
        assert!(found.is_none_or(|found| found == whole), "{length} bytes");
    }
    let inside = |bytes: &[u8], name: &str| {
        bytes.windows(name.len()).any(|window| window == name.as_bytes())
    };
    let mut state = 3u64;
    for _ in 0..5000 {
        let mut bytes = good.clone();
        for _ in 0..1 + state % 3 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = (state >> 20) as u8;
        }
        if let Some(found) = Dynamic::read(&bytes) {
            let names = found.interpreter.iter().chain(&found.needed);
            for name in names.filter(|name| !name.is_empty()) {
                assert!(inside(&bytes, name), "{name}");
            }
        }
        lacks(&[], &[("s", bytes)]);
    }
}
