//! Surprises between two measurements, and during one: another version of the suite, another
//! kernel, a clock that jumps. Each is named.

use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const BENCH: &str = env!("CARGO_BIN_EXE_kernlane-bench");

fn bench(directory: &Path, words: &[&str]) -> Output {
    Command::new(BENCH).current_dir(directory).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_result_of_another_version_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let words =
        ["--filter", "call/getpid", "--time", "0", "--directory", ".", "--output", "a.json"];
    let output = bench(here, &words);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut result: serde_json::Value =
        serde_json::from_slice(&std::fs::read(here.join("a.json")).unwrap()).unwrap();
    let version = result["suite"].as_str().unwrap().to_owned();
    result["suite"] = "0.0.7".into();
    result["benchmarks"][0]["version"] = 99.into();
    std::fs::write(here.join("b.json"), result.to_string()).unwrap();
    let output = bench(here, &["--compare", "a.json", "b.json"]);
    let said = text(&output.stdout);
    assert!(said.contains(&version) && said.contains("0.0.7"), "{said}");
    let left_out = "not compared: call/getpid: version 1 before, version 99 after";
    assert!(said.contains(left_out), "{said}");
    result["format"] = 2.into();
    std::fs::write(here.join("b.json"), result.to_string()).unwrap();
    let output = bench(here, &["--compare", "a.json", "b.json"]);
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    let said = "b.json: its format is 2, and this version of the suite reads 1: measure again, or";
    assert!(message.contains(said), "{message}");
}

/// The program looks at the kernel that runs the tests, and must not boot another.
#[test]
fn a_reboot_into_the_wrong_kernel_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let kernel = |identity: &str| serde_json::json!({ "boot": identity, "identity": identity });
    let state = serde_json::json!({
        "format": 2, "method": "grub", "kernels": [kernel("old"), kernel("new")], "boots": 2,
        "measured": [0], "last_boot": "before", "unit": false, "program": [], "command_line": "",
        "measurement": { "filter": ["call/getpid"], "seed": 0, "precision_percent": 3.0,
            "seconds": 1.0, "directory": ".", "settle_seconds": 0.0 },
    });
    let path = here.join("state.json");
    std::fs::write(&path, state.to_string()).unwrap();
    let output = bench(here, &["--ab", ".", "--resume"]);
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    let release = text(&std::fs::read("/proc/sys/kernel/osrelease").unwrap());
    let said = format!("the wrong kernel runs: new (new) was to run, but {} (", release.trim());
    assert!(message.contains(&said), "{message}");
    let state: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(state["ended"].as_str().unwrap().starts_with("the wrong kernel runs"), "{state}");
    assert_eq!(state["measured"], serde_json::json!([0]));
    assert!(!here.join("boot-1.json").exists());
}

#[test]
fn a_clock_that_jumps_is_named() {
    let directory = tempfile::tempdir().unwrap();
    for (seconds, is_named) in [(0, false), (7, true)] {
        let mut command = Command::new(BENCH);
        command.current_dir(directory.path()).stdout(Stdio::piped());
        command.args(["--filter", "call/getpid", "--time", "3", "--directory", ".", "--json"]);
        // SAFETY: the child only makes system calls.
        unsafe { command.pre_exec(ask_for_the_clock) };
        let child = command.spawn().unwrap();
        let asked = answer(child.id(), seconds);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert!(asked > READS, "the clock was asked {asked} times");
        let said = text(&output.stdout);
        assert_eq!(said.contains(": a clock has jumped"), is_named, "{said}");
    }
}

/// The clock jumps after this number of reads: ten at the beginning, ten 50 ms later, and then
/// those of the rounds.
const READS: usize = 25;
/// The listener's number in the child.
const LISTENER: i32 = 100;

/// From now on the parent answers what the clock says (`seccomp_unotify(2)`).
fn ask_for_the_clock() -> std::io::Result<()> {
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let program = [
        instruction(0x20, 0, 0, 0),
        instruction(0x15, 0, 1, libc::SYS_clock_gettime as u32),
        instruction(0x06, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        instruction(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the filter lives until the call returns.
    let listener = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter)
    };
    // The copy outlives the call of exec.
    // SAFETY: the call touches no memory.
    let copy = unsafe { libc::dup2(listener as i32, LISTENER) };
    if listener < 0 || copy < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// Answers reads of the clock until the child and its children end. After `READS` reads the answer
/// is later by `seconds`. Gives the number of reads.
fn answer(child: u32, seconds: i64) -> usize {
    // SAFETY: the calls touch no memory, and each gives a new descriptor.
    let listener = unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, child, 0);
        assert!(process >= 0, "{}", Error::last_os_error());
        let process = OwnedFd::from_raw_fd(process as i32);
        let listener = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), LISTENER, 0);
        assert!(listener >= 0, "{}", Error::last_os_error());
        OwnedFd::from_raw_fd(listener as i32)
    };
    let mut asked = 0;
    loop {
        let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the structures live until the calls return; all of them may be zero.
        unsafe {
            assert!(libc::poll(&raw mut poll, 1, 60_000) > 0, "the suite neither asks nor ends");
            if poll.revents & libc::POLLIN == 0 {
                return asked;
            }
            let mut question: libc::seccomp_notif = std::mem::zeroed();
            if libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut question)
                != 0
            {
                // Whoever asked has ended in the meantime.
                continue;
            }
            let [clock, place, ..] = question.data.args;
            let mut time: libc::timespec = std::mem::zeroed();
            let error = -libc::clock_gettime(clock as i32, &raw mut time);
            asked += 1;
            time.tv_sec += if asked > READS { seconds } else { 0 };
            let size = size_of::<libc::timespec>();
            let here = libc::iovec { iov_base: (&raw mut time).cast(), iov_len: size };
            let there = libc::iovec { iov_base: place as *mut _, iov_len: size };
            let pid = question.pid as i32;
            libc::process_vm_writev(pid, &raw const here, 1, &raw const there, 1, 0);
            let mut reply = libc::seccomp_notif_resp { id: question.id, val: 0, error, flags: 0 };
            libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut reply);
        }
    }
}
