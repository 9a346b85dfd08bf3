//! What `kernlane record` and `kernlane doctor` refuse before anything is booted: the message, the
//! exit status, and that nothing is made.

use std::path::Path;
use std::process::Command;

fn kernlane(arguments: &[&str], directory: &Path) -> (Option<i32>, String, String) {
    with_qemu("old-qemu", arguments, directory)
}

fn with_qemu(qemu: &str, arguments: &[&str], directory: &Path) -> (Option<i32>, String, String) {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let output = Command::new(env!("CARGO_BIN_EXE_kernlane"))
        .args(arguments)
        .current_dir(directory)
        .env("KERNLANE_QEMU", programs.join(qemu))
        .env("KERNLANE_CACHE", directory.join("cache"))
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn bad_input_is_named_and_nothing_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::create_dir(path.join("tree")).unwrap();
    std::fs::write(path.join("bzImage"), "not a kernel").unwrap();
    std::fs::write(path.join("mine.toml"), "about = 'x'\nmemory = -1\n").unwrap();
    let cases: [(&[&str], &str); 10] = [
        (
            &["nothing", "--kernel", "tree"],
            "there is no workload \"nothing\": give compile, database, disk, engineering, files, \
             firewall, net, shell, sqlite, web, bench:NAME or the path",
        ),
        (&["none.toml", "--kernel", "tree"], "reading the workload none.toml: No such file"),
        (&["mine.toml", "--kernel", "tree"], "line 2"),
        (
            &["--run", "./x", "--copy", "nowhere:/opt/x", "--kernel", "tree"],
            "copy: nowhere: reading it: No such file",
        ),
        (
            &["--run", "./x", "--image", "bzImage", "--kernel", "tree"],
            "bzImage: reading the tar archive",
        ),
        (
            &["files", "--kernel", "tree"],
            "tree is not a built x86-64 kernel tree: tree/vmlinux is missing (run make in it)",
        ),
        (&["files", "--kernel", "bzImage"], "bzImage: not a boot image of an x86 kernel"),
        (&["files", "--kernel", "gone"], "gone: there is no such file or directory"),
        (
            &["files", "--kernel", "gone", "--turn", "1000"],
            "turns of 1000 instructions: one CPU takes no turns; record several CPUs, or set no turn \
             (--cpus, --turn)",
        ),
        (
            &["files", "--kernel", "gone", "--cpus", "4", "--turn", "200"],
            "turns of 200 instructions: with 4 CPUs, the shortest turn is 250 instructions",
        ),
    ];
    for (arguments, expected) in cases {
        let all = [&["record", "--output", "out"], arguments].concat();
        let (status, _, message) = kernlane(&all, path);
        assert_eq!(status, Some(2), "{message}");
        assert!(message.contains(expected), "{arguments:?} said {message}");
    }
    let mut names: Vec<_> =
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["bzImage", "mine.toml", "tree"]);
}

#[test]
fn a_qemu_that_cannot_shorten_turns_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let (_, text, _) = with_qemu("qemu-without-filters", &["doctor"], directory.path());
    let line = text.lines().find(|line| line.contains("short turns (for --turn)")).unwrap();
    assert!(
        line.trim_start().starts_with("missing")
            && line.contains("has no filter-buffer, which shorter turns need"),
        "{line}"
    );
}

#[test]
fn a_qemu_that_is_too_old_is_named_with_the_way_to_get_a_newer_one() {
    let directory = tempfile::tempdir().unwrap();
    let (status, text, _) = kernlane(&["doctor"], directory.path());
    assert_eq!(status, Some(1));
    assert!(
        text.contains("record: NOT ready")
            && text.contains("is QEMU 7.2.22; Kernlane needs 10.0.0 or later"),
        "{text}"
    );
    assert!(text.contains("bookworm-backports"), "{text}");

    let (status, json, _) = kernlane(&["doctor", "--json"], directory.path());
    assert_eq!(status, Some(1));
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let record =
        value.as_array().unwrap().iter().find(|command| command["command"] == "record").unwrap();
    assert_eq!(record["ready"], false);
    assert!(
        record["needs"]
            .as_array()
            .unwrap()
            .iter()
            .any(|need| need["need"] == "QEMU" && need["found"].is_null())
    );
}
