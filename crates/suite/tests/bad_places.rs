//! The suite on machines that refuse something: no loopback, no pinning, a disk that fills.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

const BENCH: &str = env!("CARGO_BIN_EXE_kernlane-bench");

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)))
}

/// Runs a script in namespaces of its own, as their root. `$0` is the suite.
fn apart(directory: &Path, namespace: &str, script: &str) -> Output {
    Command::new("unshare")
        .current_dir(directory)
        .args(["--user", "--map-root-user", namespace, "sh", "-c", script, BENCH])
        .output()
        .unwrap()
}

#[test]
fn without_loopback_connections_are_not_measured() {
    let directory = tempfile::tempdir().unwrap();
    let script = "exec \"$0\" --filter call/getpid --filter tcp/connect --filter udp/bulk \
                  --time 0 --directory . --json";
    let output = apart(directory.path(), "--net", script);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let run = json(&output);
    let benchmarks = run["benchmarks"].as_array().unwrap();
    assert!(benchmarks.len() >= 3, "{benchmarks:?}");
    assert_eq!(benchmarks[0]["outcome"], "measured");
    for benchmark in &benchmarks[1..] {
        assert_eq!(benchmark["outcome"], "not-run");
        let why = benchmark["why"].as_str().unwrap();
        assert!(why.ends_with("; the loopback interface is down"), "{why}");
    }
}

/// The disk is filled while the benchmark runs, which would go on for minutes. The result goes to
/// another disk, which is full: on the first, the end of the benchmark leaves room.
#[test]
fn a_disk_that_fills_ends_the_benchmark_and_loses_no_result() {
    let directory = tempfile::tempdir().unwrap();
    let script = "mkdir small full || exit 100
        mount -t tmpfs -o size=256k tmpfs small && mount -t tmpfs -o size=64k tmpfs full || exit 100
        cat /dev/zero >> full/other 2>/dev/null
        (
            until ls -d small/.kernlane-bench-* >/dev/null 2>&1; do sleep 0.1; done
            # The benchmark frees and takes room all the time, so filling once is not enough.
            while sleep 0.1; do cat /dev/zero >> small/other 2>/dev/null; done
        ) &
        filler=$!
        \"$0\" --filter file/append-truncate --time 600 --precision 0.000001 --directory small \
            --output full/result.json
        status=$?
        kill $filler
        ls -A small full >&2
        exit $status";
    let output = apart(directory.path(), "--mount", script);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("the result is on standard output instead"), "{message}");
    assert!(message.contains("full/result.json: cannot be written: No space left"), "{message}");
    assert!(
        message.ends_with("\nfull:\nother\n\nsmall:\nother\n"),
        "something is left behind: {message}"
    );
    let run = json(&output);
    let why = run["benchmarks"][0]["why"].as_str().unwrap();
    assert!(why.starts_with("write: No space left on device"), "{why}");
}

#[test]
fn without_the_right_to_choose_a_cpu_the_result_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(BENCH);
    command.current_dir(directory.path());
    command.args(["--filter", "call/getpid", "--time", "0", "--directory", ".", "--json"]);
    // SAFETY: the child only makes two system calls.
    unsafe { command.pre_exec(|| refuse(libc::SYS_sched_setaffinity)) };
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let run = json(&output);
    assert_eq!(run["benchmarks"][0]["outcome"], "measured");
    assert!(run["conditions"]["cpu"].is_null(), "{run}");
    let said = text(&output.stdout);
    assert!(
        said.contains("cannot be pinned: sched_setaffinity: Operation not permitted"),
        "{said}"
    );
}

/// From now on the kernel refuses this system call to the process and to what it starts
/// (seccomp(2)), as in a container.
fn refuse(call: i64) -> std::io::Result<()> {
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let program = [
        instruction(0x20, 0, 0, 0),
        instruction(0x15, 0, 1, call as u32),
        instruction(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        instruction(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the filter lives until the call returns.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const filter) != 0
    };
    if refused { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}
