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
    let rows = json(&printed(here, "--compare before.json after.json --page page.html --json"));
    let page = std::fs::read_to_string(here.join("page.html")).unwrap();
    assert!(page.contains("<td>call/getpid</td>") && page.contains("\">slower"), "{page}");
    assert_eq!(rows["rows"][0]["verdict"], "slower");
    printed(here, "--compare before.json before.json --limit 0");
}

#[test]
fn two_generations_show_what_technology_does_not_explain() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    printed(here, "--filter call/getpid --filter switch/threads --time 0 --output new.json");
    let mut run = json(&std::fs::read_to_string(here.join("new.json")).unwrap());
    for (name, nanoseconds) in [("new.json", 100.0), ("old.json", 600.0)] {
        for benchmark in run["benchmarks"].as_array_mut().unwrap() {
            benchmark["nanoseconds"] = nanoseconds.into();
            benchmark["rounds"] =
                (0..20).map(|n| nanoseconds + 0.01 * f64::from(n)).collect::<Vec<_>>().into();
        }
        std::fs::write(here.join(name), run.to_string()).unwrap();
    }
    let line = "--generations old.json new.json --technology-ratio 3";
    let text = printed(here, line);
    assert!(text.contains("getpid") && text.contains("A = 2.00 (2.00 … 2.00)"), "{text}");
    assert!(text.contains("left out: user/search: before: not in this result"), "{text}");
    let found = json(&printed(here, &format!("{line} --json")));
    assert_eq!(found["calls"][0]["nellans"][0], "getpid");
    assert_eq!(found["technology"], 3.0);
    for (line, said) in [
        ("--generations old.json new.json", "required arguments were not provided"),
        ("--generations old.json new.json --technology-ratio 0", "is not a number above 0"),
        ("--generations old.json new.json --technology-ratio -1", "is not a number above 0"),
        ("--generations old.json none.json --technology-ratio 2", "none.json: No such file"),
        ("--technology-ratio 2", "required arguments were not provided"),
    ] {
        let message = refused(here, line);
        assert!(message.contains(said), "{line}: {message}");
    }
}

#[test]
fn a_fixed_number_of_operations_runs_between_marks() {
    let directory = tempfile::tempdir().unwrap();
    let said = printed(directory.path(), "--worker pipe/switch --directory . --operations 20");
    assert_eq!(said, "pipe/switch: 20 operations\n");
}

#[test]
fn a_change_is_measured_in_turns_and_is_off_in_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let run = |on: &str, off: &str, more: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_kernlane-bench"))
            .current_dir(here)
            .args(["--ab", "turns", "--on", on, "--off", off, "--filter", "call/getpid"])
            .args(more)
            .output()
            .unwrap()
    };
    let on = "echo on >> log; test ! -e on && touch on";
    let off = "echo off >> log; rm on";
    let plan = run(on, off, &["--dry-run"]);
    assert!(text(&plan.stdout).contains("run: echo on >> log"), "{plan:?}");
    assert!(!here.join("log").exists() && !here.join("turns").exists());

    let once = run(on, off, &["--time", "0"]);
    assert_eq!(once.status.code(), Some(0), "{once:?}");
    assert!(text(&once.stdout).contains("before: only 1 rounds"), "{once:?}");
    let log = |here: &Path| std::fs::read_to_string(here.join("log")).unwrap();
    assert_eq!(log(here), "on\noff\n");
    for name in ["turns/before.json", "turns/after.json"] {
        let result = json(&std::fs::read_to_string(here.join(name)).unwrap());
        assert_eq!(result["benchmarks"][0]["outcome"], "measured");
    }
    // A change that is switched on halfway is switched off, and the error is that of the change.
    let failed = run("touch on; exit 3", off, &[]);
    assert_eq!(failed.status.code(), Some(2));
    assert!(text(&failed.stderr).contains("touch on; exit 3: exit status: 3"), "{failed:?}");
    assert!(!here.join("on").exists());
    // One that cannot be switched off is named.
    let stuck = run("true", "exit 5", &["--time", "0"]);
    assert_eq!(stuck.status.code(), Some(2));
    let message = text(&stuck.stderr);
    assert!(message.contains("the change is still on: exit 5: exit status: 5"), "{message}");
}

#[test]
fn kernels_are_planned_before_anything_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let plan = printed(here, "--ab d --kernels old new --boot-by grub --boots 2 --dry-run");
    for said in ["write /etc/systemd/system/kernlane-bench-ab.service:", "ExecStart=\"/"] {
        assert!(plan.contains(said), "{said} is not in {plan}");
    }
    assert_eq!(plan.matches("run: grub-reboot new\n").count(), 2, "{plan}");
    assert!(!here.join("d").exists());
    std::fs::write(here.join("text"), "hello").unwrap();
    for (line, said) in [
        ("--ab d", "--ab: give --on and --off"),
        ("--ab d --on x", "required arguments were not provided"),
        ("--ab d --on x --off y --kernels a b", "cannot be used with"),
        ("--ab d --kernels none new --dry-run", "--kernels: none: No such file"),
        ("--ab d --kernels text text --dry-run", "--kernels: text is not a bzImage"),
        ("--ab d --kernels a a --boot-by grub --dry-run", "--kernels: both are a"),
        ("--ab d --kernels a b --boots 1", "1 is not in 2..=1000"),
        ("--ab d --kernels a b --boot-by lilo", "invalid value 'lilo'"),
        ("--ab d --kernels a b --boot-by grub --settle -1", "--settle -1 is not a number"),
        ("--ab d --resume", "no run of `kernlane bench --ab` was begun there"),
        ("--ab d --stop", "no run of `kernlane bench --ab` was begun there"),
        ("--dry-run", "required arguments were not provided"),
    ] {
        let message = refused(here, line);
        assert!(message.contains(said), "{line}: {message}");
    }
}

#[test]
fn public_suites_that_are_not_installed_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kernlane-bench"))
        .current_dir(directory.path())
        .args(["--public", "--directory", ".", "--json"])
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let run = json(&text(&output.stdout));
    let benchmarks = run["benchmarks"].as_array().unwrap();
    assert!(benchmarks.len() >= 9);
    for benchmark in benchmarks {
        let why = benchmark["why"].as_str().unwrap();
        assert!(why.starts_with("not installed: there is no program "), "{why}");
        assert!(why.contains(" in PATH; Debian's package is "), "{why}");
    }
    let list = printed(directory.path(), "--public --list --filter fio/random-read");
    assert!(list.starts_with("fio/random-read  4 KB at a random place"), "{list}");
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
        ("--precision 0", "--precision 0 is not a percentage above 0"),
        ("--time -1", "--time -1 is not a number of seconds"),
        ("--cpu 9999 --filter getpid", "--cpu 9999: sched_setaffinity: Invalid argument"),
        ("--filter getpid --directory nosuch", "nosuch: there is no such directory; --directory"),
        ("--compare text text", "text: no result of `kernlane bench`: it is no JSON"),
        ("--compare new.json new.json", "new.json: its format is 7"),
        ("--compare none.json none.json", "none.json: No such file or directory"),
        ("--compare text text --quick", "cannot be used with"),
        ("--limit 3", "required arguments were not provided"),
        ("--page x.html", "required arguments were not provided"),
        ("--worker nosuch --directory .", "no benchmark is named nosuch"),
        ("--worker nosuch --directory . --operations 3", "no benchmark is named nosuch"),
        ("--worker call/brk --directory . --operations 0", "--operations must be above 0"),
        (
            "--worker file/stat --directory /proc --operations 3",
            "file/stat: cannot run here: openat: ",
        ),
    ] {
        let message = refused(here, line);
        assert!(message.contains(said), "{line}: {message}");
    }
}
