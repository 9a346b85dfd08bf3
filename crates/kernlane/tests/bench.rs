//! `kernlane bench` starts itself as its own worker; `kernlane-bench` has the other tests.

use std::process::Command;

#[test]
fn the_suite_runs_as_a_command() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kernlane"))
        .current_dir(directory.path())
        .args("bench --filter call/getpid --time 0 --directory .".split(' '))
        .output()
        .unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(table.contains("\nmeasured 1 of 1 benchmarks in "), "{table}");
}
