//! Making processes and threads, and starting programs.

use crate::benchmark::{Benchmark, Place, Prepared, Source, each};
use crate::list::program::{Code, install};
use crate::sys::{Failure, Map, call, clone_and, exit_code, is};
use libc::*;
use std::ffi::CString;

/// A benchmark that starts a program with `arguments` arguments.
const fn exec(
    name: &'static str,
    stresses: &'static str,
    prepare: fn(&Place, usize) -> Prepared,
    arguments: usize,
) -> Benchmark {
    Benchmark::new(name, stresses, Source::Kbx, CLONE_EXEC, prepare, arguments)
}

pub(super) const LIST: &[Benchmark] = &[
    Benchmark::new(
        "process/fork-exit",
        "a child by fork that ends at once",
        Source::Kbx,
        CLONE,
        |_, size| fork_exit(SIGCHLD, size),
        0,
    ),
    Benchmark::new(
        "process/fork-exit-16m",
        "a child by fork of a parent with 16 MB of touched memory",
        Source::Lmbench,
        CLONE,
        |_, size| fork_exit(SIGCHLD, size),
        16 << 20,
    ),
    Benchmark::new(
        "process/vfork-exit",
        "a child by vfork that ends at once",
        Source::Kbx,
        CLONE,
        |_, size| fork_exit(VFORK, size),
        0,
    ),
    Benchmark::new(
        "process/thread",
        "a thread that ends at once",
        Source::Own,
        &[SYS_clone],
        |_, _| {
            let mut running = Box::new(1u32);
            each(move || {
                *running = 1;
                clone_and(THREAD, &raw mut *running, [SYS_exit as usize, 0, 0, 0])?;
                until_zero(&raw const *running)
            })
        },
        0,
    ),
    exec("process/fork-exec", "a child by fork that starts a program of one page", by_fork, 1),
    exec("process/fork-exec-1000", "as process/fork-exec, with 1,000 arguments", by_fork, 1000),
    exec("process/vfork-exec", "a child by vfork that starts a program of one page", by_vfork, 1),
    exec("process/vfork-exec-1000", "as process/vfork-exec, with 1,000 arguments", by_vfork, 1000),
    Benchmark::new(
        "process/wait-nobody",
        "asking for a child that has ended, where there is none",
        Source::NellansTable4,
        &[SYS_wait4],
        |_, _| {
            each(|| {
                let mut status = 0i32;
                let answer = call!(SYS_wait4, -1, &raw mut status, WNOHANG, 0);
                super::files::refusal(answer, ECHILD)
            })
        },
        0,
    ),
];

const CLONE: &[i64] = &[SYS_clone, SYS_wait4];
const CLONE_EXEC: &[i64] = &[SYS_clone, SYS_execve, SYS_wait4];
pub(super) const VFORK: i32 = CLONE_VM | CLONE_VFORK | SIGCHLD;
const THREAD: i32 = CLONE_VM
    | CLONE_FS
    | CLONE_FILES
    | CLONE_SIGHAND
    | CLONE_THREAD
    | CLONE_SYSVSEM
    | CLONE_CHILD_CLEARTID;
/// The exit code of a child.
const CODE: i32 = 37;

fn fork_exit(flags: i32, size: usize) -> Prepared {
    let mut memory = Map::anonymous(size.max(4096), false)?;
    memory.bytes().fill(1);
    each(move || {
        let _ = &memory;
        let then = [SYS_exit_group as usize, CODE as usize, 0, 0];
        let child = clone_and(flags, std::ptr::null_mut(), then)?;
        is("the child's exit code", exit_code(child)?, CODE)
    })
}

/// Waits until the kernel has written 0, which it does when a thread has ended
/// (`CLONE_CHILD_CLEARTID`).
fn until_zero(word: *const u32) -> Result<(), Failure> {
    // SAFETY: the word is alive until the thread has ended.
    while unsafe { word.read_volatile() } != 0 {
        match call!(SYS_futex, word, FUTEX_WAIT, 1, 0, 0, 0) {
            Ok(_) | Err(Failure::Refused { errno: EAGAIN | EINTR, .. }) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

/// Pointers for execve to `count` arguments; the strings must outlive them.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

fn by_fork(place: &Place, arguments: usize) -> Prepared {
    spawn(place, SIGCHLD, arguments)
}

fn by_vfork(place: &Place, arguments: usize) -> Prepared {
    spawn(place, VFORK, arguments)
}

fn spawn(place: &Place, flags: i32, arguments: usize) -> Prepared {
    let program = install(place, Code::Exit)?;
    let strings: Vec<CString> =
        (0..arguments).map(|n| c_string(&format!("argument-{n}"))).collect();
    let arguments = pointers(&strings);
    let environment = pointers(&[]);
    // The program ends with the low byte of its number of arguments.
    let expected = (strings.len() & 0xff) as i32;
    each(move || {
        let _ = &strings;
        let then = [
            SYS_execve as usize,
            program.as_ptr() as usize,
            arguments.as_ptr() as usize,
            environment.as_ptr() as usize,
        ];
        let child = clone_and(flags, std::ptr::null_mut(), then)?;
        is("the program's exit code", exit_code(child)?, expected)
    })
}

fn c_string(text: &str) -> CString {
    CString::new(text).expect("arguments have no zero byte")
}
