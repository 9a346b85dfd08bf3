//! `kernlane-bench` as typed: runs, files, comparisons, bad input.

use std::path::Path;
use std::process::{Command, Output};

fn bench(directory: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kernlane-bench"))
        .current_dir(directory)
        .args(line.split(' '))
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs a line that must succeed, and gives what it printed.
fn printed(directory: &Path, line: &str) -> String {
    let output = bench(directory, line);
    assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn refused(directory: &Path, line: &str) -> String {
    let output = bench(directory, line);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{line}: {message}");
    message
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_run_writes_figures_that_can_be_compared() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let line =
        "--filter call/getp --filter pipe/switch --time 0 --directory . --output a.json --json";
    let run = json(&printed(here, line));
    assert_eq!(json(&std::fs::read_to_string(here.join("a.json")).unwrap()), run);
    let benchmarks = run["benchmarks"].as_array().unwrap();
    let names: Vec<&str> = benchmarks.iter().map(|b| b["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["call/getpid", "call/getppid", "pipe/switch"]);
    for benchmark in benchmarks {
        assert_eq!(benchmark["outcome"], "measured");
        assert!(benchmark["nanoseconds"].as_f64().unwrap() > 0.0);
        // The time was over behind the first round, which the result does not hide.
        assert_eq!(benchmark["rounds"].as_array().unwrap().len(), 1);
        assert_eq!(benchmark["noisy"], true);
    }
    assert!(run["conditions"]["kernel_release"].as_str().is_some_and(|name| !name.is_empty()));
    let left: Vec<_> = std::fs::read_dir(here).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["a.json"], "nothing else is left behind");

    let said = printed(here, "--compare a.json a.json");
    assert!(said.contains("not compared: call/getpid: before: only 1 rounds: measure longer"));
    let message = refused(here, "--compare a.json a.json --limit 2");
    assert!(message.contains("no benchmark can be compared"), "{message}");
}

#[test]
fn a_slower_benchmark_fails_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    printed(here, "--filter call/getpid --time 0 --directory . --output one.json");
    let one = json(&std::fs::read_to_string(here.join("one.json")).unwrap());
    for (name, factor) in [("before.json", 1.0), ("after.json", 1.03)] {
        let mut run = one.clone();
        let rounds: Vec<f64> =
            (0..20).map(|round| factor * (100.0 + 0.01 * f64::from(round))).collect();
        run["benchmarks"][0]["rounds"] = rounds.into();
        std::fs::write(here.join(name), run.to_string()).unwrap();
    }
    let output = bench(here, "--compare before.json after.json --limit 2");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("slower"));
    assert_eq!(text(&output.stderr), "over the limit: call/getpid is slower by 3.00 %\n");
    printed(here, "--compare before.json after.json --limit 5");
    printed(here, "--compare after.json before.json --limit 0");
    let rows = json(&printed(here, "--compare before.json after.json --json"));
    assert_eq!(rows["rows"][0]["verdict"], "slower");
    printed(here, "--compare before.json before.json --limit 0");
}

#[test]
fn the_list_names_stress_and_source() {
    let directory = tempfile::tempdir().unwrap();
    let list = printed(directory.path(), "--list --filter poll/500");
    assert_eq!(list, "poll/500   poll of 500 files, the last of which is ready [own]\n");
    let all = json(&printed(directory.path(), "--list --json"));
    assert!(all.as_array().unwrap().len() >= 60);
}

#[test]
fn a_benchmark_without_its_needs_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    // 64 open files are fewer than poll/100 wants.
    let output = Command::new("sh")
        .current_dir(here)
        .arg("-c")
        .arg("ulimit -n 64; exec \"$0\" --filter poll/10 --time 0 --directory . --json")
        .arg(env!("CARGO_BIN_EXE_kernlane-bench"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let run = json(&text(&output.stdout));
    assert_eq!(run["benchmarks"][0]["outcome"], "measured");
    assert_eq!(run["benchmarks"][1]["name"], "poll/100");
    assert_eq!(run["benchmarks"][1]["outcome"], "not-run");
    let why = run["benchmarks"][1]["why"].as_str().unwrap();
    assert!(why.starts_with("eventfd2: Too many open files"), "{why}");
}

#[test]
fn a_directory_that_cannot_be_written_to_stops_only_what_needs_files() {
    let directory = tempfile::tempdir().unwrap();
    // Nobody can make a directory in /proc, not even root.
    let line = "--filter call/getpid --filter file/fstat --time 0 --directory /proc --json";
    let run = json(&printed(directory.path(), line));
    assert_eq!(run["benchmarks"][0]["outcome"], "measured");
    assert_eq!(run["benchmarks"][1]["outcome"], "not-run");
    let why = run["benchmarks"][1]["why"].as_str().unwrap();
    assert!(why.contains("; /proc: no scratch directory can be made in it"), "{why}");
}

#[test]
fn bad_input_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    std::fs::write(here.join("text"), "hello").unwrap();
    std::fs::write(here.join("new.json"), "{\"format\": 7}").unwrap();
    for (line, said) in [
        ("--filter nosuch", "--filter nosuch: no benchmark's name contains that"),
        ("--precision 0", "--precision 0 is no percentage above 0"),
        ("--time -1", "--time -1 is no number of seconds"),
        ("--cpu 9999 --filter getpid", "--cpu 9999: sched_setaffinity: Invalid argument"),
        ("--filter getpid --directory nosuch", "nosuch: there is no such directory; --directory"),
        ("--compare text text", "text: no result of `kernlane bench`: it is no JSON"),
        ("--compare new.json new.json", "new.json: its format is 7"),
        ("--compare none.json none.json", "none.json: No such file or directory"),
        ("--compare text text --quick", "cannot be used with"),
        ("--limit 3", "required arguments were not provided"),
        ("--worker nosuch --directory .", "no benchmark is named nosuch"),
    ] {
        let message = refused(here, line);
        assert!(message.contains(said), "{line}: {message}");
    }
}
