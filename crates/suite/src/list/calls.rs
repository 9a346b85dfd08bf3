//! Short system calls: what entry, exit and a little work cost.
//!
//! Also `cpu/arithmetic`, which makes no system call: if it differs between two results, the
//! processor's frequency differs, not the kernel.

use crate::benchmark::{Benchmark, Place, Prepared, Source, each};
use crate::sys::{c_path, call, is, open, wrong};
use libc::*;
use std::hint::black_box;
use std::mem::zeroed;

pub(super) const LIST: &[Benchmark] = &[
    Benchmark::new(
        "cpu/arithmetic",
        "a control: 1,000 dependent additions and no system call; shows the processor's frequency",
        Source::Own,
        &[],
        arithmetic,
        1000,
    ),
    Benchmark::new(
        "call/getpid",
        "the shortest system call: entry and exit",
        Source::Kbx,
        &[SYS_getpid],
        |_, _| {
            let expected = std::process::id() as usize;
            each(move || is("getpid", call!(SYS_getpid)?, expected))
        },
        0,
    ),
    Benchmark::new(
        "call/getppid",
        "a short system call that reads another task",
        Source::Lmbench,
        &[SYS_getppid],
        |_, _| {
            let expected = std::os::unix::process::parent_id() as usize;
            each(move || is("getppid", call!(SYS_getppid)?, expected))
        },
        0,
    ),
    Benchmark::new(
        "call/unknown",
        "entry and exit alone: a number that no kernel has",
        Source::Own,
        &[],
        |_, _| {
            each(|| match crate::sys::raw(0x7fff, [0; 6]) as i32 {
                error if error == -ENOSYS => Ok(()),
                other => wrong("an unknown system call", other, -ENOSYS),
            })
        },
        0,
    ),
    Benchmark::new(
        "call/umask",
        "a short system call that writes its task's state",
        Source::Kbx,
        &[SYS_umask],
        |_, _| {
            call!(SYS_umask, 0o22)?;
            let mut mask = 0o22;
            each(move || {
                let before = call!(SYS_umask, mask ^ 0o55)?;
                is("umask", before, mask)?;
                mask ^= 0o55;
                Ok(())
            })
        },
        0,
    ),
    Benchmark::new(
        "call/brk",
        "asking for the end of the heap, after sbrk(0)",
        Source::Kbx,
        &[SYS_brk],
        |_, _| {
            let end = call!(SYS_brk, 0)?;
            each(move || is("brk", call!(SYS_brk, 0)?, end))
        },
        0,
    ),
    Benchmark::new(
        "call/gettimeofday",
        "reading the clock by a system call, not by the vDSO",
        Source::Kbx,
        &[SYS_gettimeofday],
        |_, _| {
            // SAFETY: a plain structure.
            let mut time: timeval = unsafe { zeroed() };
            each(move || {
                time.tv_sec = 0;
                call!(SYS_gettimeofday, &raw mut time, 0)?;
                if time.tv_sec > 0 { Ok(()) } else { wrong("gettimeofday", time.tv_sec, 1) }
            })
        },
        0,
    ),
    Benchmark::new(
        "call/clock-gettime",
        "reading the monotonic clock by a system call",
        Source::Own,
        &[SYS_clock_gettime],
        |_, _| {
            let mut time = timespec { tv_sec: 0, tv_nsec: -1 };
            each(move || {
                time.tv_nsec = -1;
                call!(SYS_clock_gettime, CLOCK_MONOTONIC, &raw mut time)?;
                if time.tv_nsec >= 0 { Ok(()) } else { wrong("clock_gettime", time.tv_nsec, 0) }
            })
        },
        0,
    ),
    Benchmark::new(
        "call/uname",
        "copying 390 bytes to the user",
        Source::NellansTable4,
        &[SYS_uname],
        |_, _| {
            // SAFETY: a plain structure.
            let mut name: utsname = unsafe { zeroed() };
            each(move || {
                name.sysname[0] = 0;
                call!(SYS_uname, &raw mut name)?;
                is("uname", name.sysname[0] as u8, b'L')
            })
        },
        0,
    ),
    Benchmark::new(
        "call/getrlimit",
        "reading a limit under its lock",
        Source::NellansTable4,
        &[SYS_prlimit64],
        |_, _| {
            let mut limit = rlimit { rlim_cur: 0, rlim_max: 0 };
            each(move || {
                limit.rlim_cur = 0;
                call!(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, &raw mut limit)?;
                if limit.rlim_cur > 0 { Ok(()) } else { wrong("getrlimit", limit.rlim_cur, 1) }
            })
        },
        0,
    ),
    Benchmark::new(
        "call/getrusage",
        "adding up a process's statistics",
        Source::Own,
        &[SYS_getrusage],
        |_, _| {
            // SAFETY: a plain structure.
            let mut usage: rusage = unsafe { zeroed() };
            each(move || {
                usage.ru_maxrss = 0;
                call!(SYS_getrusage, RUSAGE_SELF, &raw mut usage)?;
                if usage.ru_maxrss > 0 { Ok(()) } else { wrong("ru_maxrss", usage.ru_maxrss, 1) }
            })
        },
        0,
    ),
    Benchmark::new(
        "call/ioctl-terminal",
        "asking a terminal for its settings, after ioctl(0, TCGETA)",
        Source::Kbx,
        &[SYS_ioctl],
        terminal,
        0,
    ),
    Benchmark::new(
        "call/fcntl",
        "asking for a descriptor's flags",
        Source::NellansTable4,
        &[SYS_fcntl],
        |_, _| {
            let fd = open!(SYS_openat, AT_FDCWD, c"/dev/null".as_ptr(), O_RDWR | O_APPEND, 0)?;
            let flags = call!(SYS_fcntl, &fd, F_GETFL)?;
            each(move || is("fcntl", call!(SYS_fcntl, &fd, F_GETFL)?, flags))
        },
        0,
    ),
    Benchmark::new(
        "call/dup-close",
        "giving out and taking back a descriptor",
        Source::Own,
        &[SYS_dup, SYS_close],
        |_, _| {
            let fd = open!(SYS_openat, AT_FDCWD, c"/dev/null".as_ptr(), O_RDWR, 0)?;
            let free = call!(SYS_dup, &fd)?;
            call!(SYS_close, free)?;
            each(move || {
                is("dup", call!(SYS_dup, &fd)?, free)?;
                call!(SYS_close, free).map(drop)
            })
        },
        0,
    ),
    Benchmark::new(
        "call/getcwd",
        "walking from the working directory to the root",
        Source::Own,
        &[SYS_getcwd],
        |_, _| {
            let mut path = vec![0u8; 4096];
            let length = call!(SYS_getcwd, path.as_mut_ptr(), path.len())?;
            each(move || is("getcwd", call!(SYS_getcwd, path.as_mut_ptr(), path.len())?, length))
        },
        0,
    ),
    Benchmark::new(
        "call/prctl-name",
        "setting the task's name",
        Source::Own,
        &[SYS_prctl],
        |_, _| {
            let mut name = *b"kernlane-bench\0\0";
            each(move || {
                name[0] ^= 1;
                call!(SYS_prctl, PR_SET_NAME, name.as_ptr())?;
                let mut now = [0u8; 16];
                call!(SYS_prctl, PR_GET_NAME, now.as_mut_ptr())?;
                is("the task's name", now[0], name[0])
            })
        },
        0,
    ),
    Benchmark::new(
        "call/sched-yield",
        "the scheduler, with nothing else to run",
        Source::Own,
        &[SYS_sched_yield],
        |_, _| each(|| is("sched_yield", call!(SYS_sched_yield)?, 0)),
        0,
    ),
    Benchmark::new(
        "call/getrandom",
        "16 bytes of the kernel's random numbers",
        Source::Own,
        &[SYS_getrandom],
        |_, _| {
            let mut bytes = [0u8; 16];
            each(move || is("getrandom", call!(SYS_getrandom, bytes.as_mut_ptr(), 16, 0)?, 16))
        },
        0,
    ),
];

fn arithmetic(_: &Place, additions: usize) -> Prepared {
    each(move || {
        let mut sum = 0usize;
        for _ in 0..additions {
            sum = black_box(sum + 1);
        }
        is("a sum", sum, additions)
    })
}

/// A terminal of the suite's own, since standard input need not be one.
fn terminal(_: &Place, _: usize) -> Prepared {
    let master = open!(SYS_openat, AT_FDCWD, c"/dev/ptmx".as_ptr(), O_RDWR | O_NOCTTY, 0)?;
    let (mut unlock, mut number) = (0i32, 0u32);
    call!(SYS_ioctl, &master, TIOCSPTLCK, &raw mut unlock)?;
    call!(SYS_ioctl, &master, TIOCGPTN, &raw mut number)?;
    let path = c_path(format!("/dev/pts/{number}").as_ref());
    let terminal = open!(SYS_openat, AT_FDCWD, path.as_ptr(), O_RDWR | O_NOCTTY, 0)?;
    // The kernel writes 36 bytes (struct termios, asm-generic/termbits.h).
    let mut settings = [0u32; 16];
    each(move || {
        // The control flags are never 0: they hold the size of a character.
        settings[2] = 0;
        call!(SYS_ioctl, &terminal, TCGETS, settings.as_mut_ptr())?;
        let _ = &master;
        if settings[2] != 0 { Ok(()) } else { wrong("c_cflag", settings[2], 1) }
    })
}
