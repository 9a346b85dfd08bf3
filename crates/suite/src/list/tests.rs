//! Each benchmark runs, and each one's check notices a kernel that does not do what it was asked.
//!
//! A child process prepares the benchmark; then a seccomp filter makes the kernel refuse one of its
//! system calls, or pretend that the call succeeded without doing anything.

use crate::benchmark::{Benchmark, Place};
use crate::list;
use crate::sys::{Failure, call};
use crate::worker::{Trouble, attempt};
use std::collections::BTreeSet;
use std::os::fd::FromRawFd;

/// How a child of the tests ends.
const RAN: i32 = 9;
const LACKS: i32 = 10;
const WRONG: i32 = 11;
const NOTICED: i32 = 12;

/// Seconds after which a child is ended by a signal that must end by itself: only a test that fails
/// waits for that, also on a machine that does other work.
const MUST_END: u32 = 900;
/// The same for a child that may wait for ever, because a call of its did nothing. A measuring
/// process also ends such a worker and reports it. So no time decides whether the test passes.
const MAY_WAIT: u32 = 5;

/// What the kernel shall do with one system call from now on.
#[derive(Clone, Copy)]
struct Sabotage {
    number: i64,
    /// 0: the call gives 0, and nothing has happened.
    errno: u32,
}

impl Sabotage {
    /// Installs the filter (seccomp(2)): load the call's number, compare, answer.
    fn begin(self) -> Result<(), Failure> {
        let instruction = |code: u16, jt: u8, jf: u8, k: u32| libc::sock_filter { code, jt, jf, k };
        let program = [
            instruction(0x20, 0, 0, 0),
            instruction(0x15, 0, 1, self.number as u32),
            instruction(0x06, 0, 0, 0x0005_0000 | self.errno),
            instruction(0x06, 0, 0, 0x7fff_0000),
        ];
        let filter = libc::sock_fprog { len: 4, filter: program.as_ptr().cast_mut() };
        call!(SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)?;
        call!(SYS_prctl, libc::PR_SET_SECCOMP, 2, &raw const filter).map(drop)
    }
}

/// Does `work` in a child, which a signal ends after `patience` seconds. Gives how that ended: its
/// code, or `None` if a signal ended it; and what it said.
fn in_child(patience: u32, work: impl FnOnce(&mut String) -> i32) -> (Option<i32>, String) {
    let mut ends = [0i32; 2];
    // SAFETY: the child makes system calls and memory of its own, and ends without returning.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        match libc::fork() {
            -1 => panic!("{}", std::io::Error::last_os_error()),
            0 => {
                libc::alarm(patience);
                let mut said = String::new();
                let code = work(&mut said);
                libc::write(ends[1], said.as_ptr().cast(), said.len());
                libc::_exit(code)
            }
            child => {
                libc::close(ends[1]);
                let mut file = std::fs::File::from_raw_fd(ends[0]);
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                let mut said = vec![0u8; 4000];
                let got = std::io::Read::read(&mut file, &mut said).unwrap();
                said.truncate(got);
                let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
                (code, String::from_utf8_lossy(&said).into_owned())
            }
        }
    }
}

/// Prepares a benchmark on a kernel that lacks a system call.
fn prepare_without(benchmark: &Benchmark, number: i64) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let place = Place { directory: directory.path().to_owned() };
    in_child(MUST_END, move |said| {
        if let Err(failure) = (Sabotage { number, errno: libc::ENOSYS as u32 }).begin() {
            *said = format!("no filter: {failure}");
            return WRONG;
        }
        match attempt(benchmark, &place) {
            Ok(_) => RAN,
            Err(Trouble::Lacks(why)) => {
                *said = why;
                LACKS
            }
            Err(Trouble::Wrong(why)) => {
                *said = why;
                WRONG
            }
        }
    })
}

/// Prepares and runs a benchmark, then runs it again under sabotage.
fn run(benchmark: &Benchmark, sabotage: Option<Sabotage>) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let place = Place { directory: directory.path().to_owned() };
    let pretends = sabotage.is_some_and(|sabotage| sabotage.errno == 0);
    in_child(if pretends { MAY_WAIT } else { MUST_END }, move |said| {
        let mut work = match attempt(benchmark, &place) {
            Ok(work) => work,
            Err(Trouble::Lacks(why)) => {
                *said = why;
                return LACKS;
            }
            Err(Trouble::Wrong(why)) => {
                *said = why;
                return WRONG;
            }
        };
        if let Some(sabotage) = sabotage
            && let Err(failure) = sabotage.begin()
        {
            *said = format!("no filter: {failure}");
            return LACKS;
        }
        match work.run(3).and_then(|()| work.check()) {
            Ok(()) => RAN,
            Err(failure) => {
                *said = failure.to_string();
                NOTICED
            }
        }
    })
}

#[test]
fn every_benchmark_runs_here_and_its_check_holds() {
    let mut lacking = Vec::new();
    let mut failed = Vec::new();
    for benchmark in list::all() {
        let (code, said) = run(benchmark, None);
        let name = benchmark.name;
        match code {
            Some(RAN) => {}
            // A container may forbid these two; no other benchmark may be missing.
            Some(LACKS) if name.starts_with("uring/") || name == "fault/huge" => {
                lacking.push(format!("{name}: {said}"));
            }
            other => failed.push(format!("{name}: {other:?} {said}")),
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    if !lacking.is_empty() {
        host::note!("not run here: {lacking:#?}");
    }
}

#[test]
fn every_check_notices_a_system_call_that_is_refused() {
    let mut failed = Vec::new();
    for benchmark in list::all() {
        for number in benchmark.calls {
            let sabotage = Sabotage { number: *number, errno: libc::ENOTRECOVERABLE as u32 };
            let (code, said) = run(benchmark, Some(sabotage));
            let name = benchmark.name;
            match code {
                Some(NOTICED) => {}
                Some(LACKS) if name.starts_with("uring/") || name == "fault/huge" => {}
                other => failed.push(format!("{name} without {number}: {other:?} {said}")),
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_benchmark_that_the_kernel_has_no_system_call_for_is_not_run_with_the_reason() {
    for (name, said) in [
        ("uring/nop", "io_uring_setup: Function not implemented"),
        ("call/getrandom", "getrandom: Function not implemented"),
        ("file/copy-range-64k", "copy_file_range: Function not implemented"),
        ("epoll/wait-100", "epoll_create1: Function not implemented"),
        ("pipe/create", "pipe2: Function not implemented"),
        ("tcp/request-response", "socket: Function not implemented"),
        ("fault/huge", "madvise: Function not implemented"),
    ] {
        let number = match name {
            "uring/nop" => libc::SYS_io_uring_setup,
            "epoll/wait-100" => libc::SYS_epoll_create1,
            "tcp/request-response" => libc::SYS_socket,
            "fault/huge" => libc::SYS_madvise,
            other => list::named(other).unwrap().calls[0],
        };
        let found = prepare_without(list::named(name).unwrap(), number);
        assert!(found.0 == Some(LACKS) && found.1.starts_with(said), "{name}: {found:?}");
    }
}

/// Calls that rightly give 0 and whose effect a process cannot see without another call that would
/// also be measured.
const INVISIBLE: [(&str, i64); 4] = [
    ("call/sched-yield", libc::SYS_sched_yield),
    ("file/write-sync-4k", libc::SYS_fdatasync),
    ("futex/wake-nobody", libc::SYS_futex),
    ("fault/huge", libc::SYS_madvise),
];

#[test]
fn every_check_notices_a_system_call_that_only_pretends() {
    let invisible: BTreeSet<(&str, i64)> = INVISIBLE.into();
    let mut unnoticed = Vec::new();
    for benchmark in list::all() {
        for number in benchmark.calls {
            let (code, _) = run(benchmark, Some(Sabotage { number: *number, errno: 0 }));
            // A call of fork that pretends ends this process as it ends the child: a measuring
            // process sees that its worker has ended.
            if code == Some(RAN) && !invisible.contains(&(benchmark.name, *number)) {
                unnoticed.push((benchmark.name, *number));
            }
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

#[test]
fn names_are_unique_and_there_are_at_least_60() {
    let all = list::all();
    let names: BTreeSet<&str> = all.iter().map(|benchmark| benchmark.name).collect();
    assert_eq!(names.len(), all.len());
    assert!(all.len() >= 60);
    for benchmark in all {
        assert!(!benchmark.stresses.is_empty(), "{}", benchmark.name);
        let is_mute = ["cpu/arithmetic", "call/unknown"].contains(&benchmark.name)
            || benchmark.name.starts_with("user/");
        assert_eq!(benchmark.calls.is_empty(), is_mute, "{}", benchmark.name);
    }
}

#[test]
fn the_reference_lists_every_benchmark() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/bench.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (
        "<!-- the list, made by BLESS=1 cargo test -p kernlane-suite -->\n",
        "<!-- end of the list -->\n",
    );
    let (before, rest) = page.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    let table = crate::table::markdown(&list::all());
    let expected = format!("{before}{begin}\n{table}\n{end}{after}");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page == expected, "docs/reference/bench.md is not the list: BLESS=1 cargo test");
}
