//! What commands say of input that they cannot use, and what they leave behind: as typed, without a
//! kernel.

mod small_recording;

use std::path::Path;
use std::process::{Command, Output};
use trace::RecordingHeader;

/// A recording with the hash of its workload's file.
fn write_recording(directory: &Path, workload_sha256: &str) {
    let header = RecordingHeader {
        workload: "mine".into(),
        conditions: vec![("workload_sha256".into(), workload_sha256.into())],
        ..RecordingHeader::default()
    };
    small_recording::write(directory, &header, 1);
}

fn kernlane(directory: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kernlane"))
        .current_dir(directory)
        .args(line.split(' '))
        .output()
        .unwrap()
}

fn refused(directory: &Path, line: &str) -> String {
    let output = kernlane(directory, line);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{line}: {message}");
    message
}

#[test]
fn what_is_missing_or_out_of_range_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let of_kernel = |build_id: &str| RecordingHeader {
        build_id: build_id.into(),
        workload: "mine".into(),
        ..RecordingHeader::default()
    };
    small_recording::write(&path.join("net.rec"), &of_kernel("0badc0de"), 1);
    small_recording::write(&path.join("other.rec"), &of_kernel("0b"), 1);
    std::fs::create_dir(path.join("empty")).unwrap();
    std::fs::write(path.join("results.json"), "{\"format\": 1, \"rows\": []}").unwrap();
    for (line, expected) in [
        (
            "report page typo.rec --kernel System.map -o x.html",
            "typo.rec: there is no such file or directory",
        ),
        ("report layouts typo.rec", "typo.rec: there is no such file or directory"),
        (
            "report page empty -o x.html",
            "empty: neither a recording (it has no trace.klt) nor results (it has no results.json)",
        ),
        (
            "replay net.rec --from -1",
            "--from -1 --until 1: a part of a recording must lie between 0 and 1",
        ),
        ("diff net.rec net.rec -k net.rec/System.map --limit -2", "-2 is not a percentage"),
        (
            "report generations net.rec -k net.rec/System.map -m zen4",
            "--machine zen4: generations are at least two machines, the oldest first",
        ),
        (
            "report generations net.rec -k net.rec/System.map -m zen4 -m torrellas-8k",
            "torrellas-8k: the machine's file has no clock",
        ),
        (
            "report generations net.rec -k net.rec/System.map --machines zen4,pdp-11",
            "no machine is called pdp-11: choose one of golden-cove, gracemont, i486",
        ),
        (
            "report generations net.rec -k net.rec/System.map --from 0.7 --until 0.6",
            "--from 0.7 --until 0.6: a part of a recording must lie between",
        ),
        (
            "report generations typo.rec -k net.rec/System.map",
            "typo.rec/trace.klt: No such file or directory",
        ),
        (
            "report services net.rec -k net.rec/System.map --until 1.5",
            "--from 0 --until 1.5: a part of a recording must lie between 0 and 1",
        ),
        (
            "report page results.json -o x.html --from 0.5",
            "results.json: results; --from and --until cut a part",
        ),
        (
            "report page results.json -o x.html --machine zen4",
            "no recording is given, only results: --kernel",
        ),
        ("report layouts net.rec", "net.rec: a recording; this report takes results"),
        ("report page net.rec", "--output <FILE.html>"),
        (
            "report sharing net.rec -k net.rec/System.map",
            "the names of data need the kernel's vmlinux",
        ),
        (
            "report sharing net.rec -k net.rec/System.map --top 20000",
            "--top 20000: the fields of at most 10000 lines are collected, not of 20000",
        ),
        (
            "report locks net.rec -k net.rec/System.map",
            "the names of data need the kernel's vmlinux",
        ),
        ("report locks net.rec", "the kernel of net.rec: no kernel with the build id 0badc0de"),
        ("profile net.rec", "/usr/lib/debug/.build-id/0b/adc0de.debug: there is none"),
        ("evaluate net.rec", "or name the kernel's build tree or its vmlinux (--kernel)"),
        ("cross-validate net.rec net.rec", "no kernel with the build id 0badc0de"),
        ("diff net.rec net.rec", "no kernel with the build id 0badc0de"),
        ("replay net.rec --bound", "no kernel with the build id 0badc0de"),
        (
            "profile net.rec other.rec",
            "net.rec is of the kernel with build id 0badc0de, and other.rec of 0b: give recordings \
             of one kernel",
        ),
        ("optimize net --tree empty -o x", "empty: not a Linux kernel tree; give the directory in"),
        ("profile net.rec --kernel empty", "empty: not a built kernel tree: there is no vmlinux"),
        ("report misses net.rec --top -1", "invalid value '-1' for '--top <N>'"),
        (
            "layout net.klp -a packed --kernel net.rec/System.map --tries 3 -o x.kll",
            "net.klp: no recording; --tries replays the recordings that the counts come from",
        ),
        (
            "layout net.rec --kernel net.rec/System.map --tries 0 -o x.kll",
            "invalid value '0' for '--tries <N>': 0 is not in 1..=100",
        ),
        (
            "layout net.rec --tries 3 -o x.kll",
            "ext-tsp gives the same layout for every seed: leave --tries out, or compare it with \
             other algorithms by --objective time",
        ),
        (
            "layout net.rec --objective time --machine zen4 -o x.kll",
            "--objective time takes the fastest of several layouts: say how many with --tries",
        ),
        (
            "layout net.rec --tries 3 --objective time -o x.kll",
            "the machine server-32k describes no out-of-order core, so it does not tell the \
             kernel's time: name one that does (golden-cove, ",
        ),
        (
            "layout net.klp --tries 3 --objective time --machine zen4 -o x.kll",
            "net.klp: no recording; --tries replays the recordings that the counts come from",
        ),
        (
            "layout net.rec --tries 3 --objective time --machine zen4 --within 0 -o x.kll",
            "--within 0: an interval of ±0 % cannot be reached by samples",
        ),
        (
            "optimize net --tree empty -o x --tries 3 --objective time -m server-32k",
            "server-32k describes no out-of-order core",
        ),
        ("record net -o x -k y --memory 100", "100 is not in 128..=65536"),
        ("export net.rec --format bolt -o x", "no kernel with the build id 0badc0de"),
        (
            "export net.rec --format champsim -o x.xz",
            "the recording has no data accesses: record the workload with them (`kernlane record \
             --data`)",
        ),
        (
            "export net.rec --format champsim --machine zen4 -o x",
            "champsim holds what ran, which no machine and no annotation changes",
        ),
        ("export net.rec --format drmemtrace --from 1 -o x", "--from 1 --until 1: a part of a rec"),
        ("export net.rec --format champsim --from 1 -o x", "--from 1 --until 1: a part of a rec"),
        ("export net.rec --format champsim -o x.zst", "as .xz or .gz, not as .zst"),
    ] {
        let message = refused(path, line);
        assert!(message.contains(expected) && !message.contains("-- -"), "{line}: {message}");
    }
}

#[test]
fn a_file_of_another_kind_is_named_with_the_command_that_takes_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    write_recording(&path.join("net.rec"), "00");
    std::fs::write(path.join("perf.data"), b"PERFILE2\xff\xfe").unwrap();
    std::fs::write(path.join("net.klp"), "{\"kernlane_profile\":5}").unwrap();
    for command in ["profile perf.data", "layout perf.data -o x.kll"] {
        let message = refused(path, &format!("{command} --kernel net.rec/System.map"));
        let expected =
            "perf.data: this is perf.data: import it as a profile of Kernlane (`kernlane import ";
        assert!(message.contains(expected), "{command}: {message}");
    }
    let line = "replay net.rec --kernel net.rec/System.map --layout net.klp";
    let message = refused(path, line);
    assert!(
        message.contains("net.klp: this is a profile of Kernlane (`kernlane profile` "),
        "{message}"
    );
}

#[test]
fn reports_are_found_in_their_old_spelling() {
    let directory = tempfile::tempdir().unwrap();
    write_recording(&directory.path().join("net.rec"), "00");
    let [old, new] = ["report --sizes net.rec", "report sizes net.rec"]
        .map(|line| kernlane(directory.path(), line));
    assert_eq!(old.status.code(), Some(0));
    assert_eq!(old.stdout, new.stdout);
    assert!(new.stderr.is_empty());
    let said = String::from_utf8(old.stderr).unwrap();
    assert!(said.contains("`report --sizes` is `report sizes` now"), "{said}");
}

#[test]
fn help_lists_the_algorithms() {
    for command in ["layout", "optimize", "cross-validate", "export", "live apply", "live auto"] {
        let output = kernlane(Path::new("."), &format!("{command} --help"));
        let help = String::from_utf8(output.stdout).unwrap();
        for name in ["ext-tsp-global", "gloy-smith", "packed", "random"] {
            assert!(help.contains(name), "{command} --help does not name {name}");
        }
    }
}

#[test]
fn a_recording_too_short_for_cycles_says_so() {
    let directory = tempfile::tempdir().unwrap();
    write_recording(&directory.path().join("net.rec"), "00");
    let line = "report generations net.rec --kernel net.rec/System.map --machine i486,zen4";
    let output = kernlane(directory.path(), line);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("\nnote: only 2 instructions ran: below 1000000, "), "{text}");
    assert!(text.contains("\nnote: i486: no out-of-order core; "), "{text}");
}

#[test]
fn two_workloads_of_one_name_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for (name, hash) in [("a", "00"), ("b", "00"), ("c", "01")] {
        write_recording(&path.join(name), hash);
    }
    for (other, warns) in [("b", false), ("c", true)] {
        let output = kernlane(path, &format!("diff a {other} --kernel a/System.map"));
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{message}");
        assert_eq!(message.contains("warning: the file of the workload mine"), warns, "{message}");
    }
}

#[test]
fn export_says_as_json_what_it_wrote() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    write_recording(&path.join("net.rec"), "00");
    for (format, amount) in
        [("folded", "lines"), ("perfetto", "events"), ("firefox", "events"), ("parquet", "tables")]
    {
        let line = format!(
            "export net.rec --kernel net.rec/System.map --format {format} -o out.{format} --json"
        );
        let output = kernlane(path, &line);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let written: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&written["format"], &written["output"]),
            (&format.into(), &format!("out.{format}").into())
        );
        match &written[amount] {
            serde_json::Value::Array(tables) => tables.iter().for_each(|table| {
                let file =
                    path.join("out.parquet").join(format!("{}.parquet", table.as_str().unwrap()));
                assert!(file.is_file(), "{}", file.display());
            }),
            count => assert!(count.as_u64().unwrap() > 0, "{written}"),
        }
    }
}

#[test]
fn man_leaves_no_directory_behind_when_nothing_can_be_written() {
    let directory = tempfile::tempdir().unwrap();
    // No file may grow: as on a full disk.
    let limited = "trap '' XFSZ; ulimit -f 0; exec \"$0\" man pages/man1";
    let output = Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_kernlane")])
        .current_dir(directory.path())
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("kernlane.1: cannot be written"), "{message}");
    assert!(!directory.path().join("pages/man1").exists(), "an empty directory is left");
}
