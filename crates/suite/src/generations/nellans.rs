//! The benchmarks that stand for the rows of tables 3 and 4 of Nellans 2005.
//!
//! The paper's numbers are in `papers::nellans`. The paper's `poll`, `select`, `read` and `waitpid`
//! include waiting for input; ours do not.

/// Benchmarks, each with the program of table 3 that it stands for; mixes have no row there.
pub(crate) const PROGRAMS: &[(&str, Option<&str>)] = &[
    ("user/search", Some("crafty")),
    ("user/place", Some("twolf")),
    ("user/transform", Some("mesa")),
    ("user/network", Some("art")),
    ("mix/compile", Some("Linux Kernel Compile")),
    ("mix/shell", None),
    ("mix/database", None),
    ("mix/web", None),
];

/// Benchmarks, each with the system call of table 4 that it stands for.
pub(crate) const CALLS: &[(&str, &str)] = &[
    ("call/brk", "brk"),
    ("call/dup-close", "close"),
    ("process/vfork-exec", "execve"),
    ("call/fcntl", "fcntl64"),
    ("process/fork-exit", "fork"),
    ("file/fstat", "fstat64"),
    ("tree/list-200", "getdents64"),
    ("call/getpid", "getpid"),
    ("call/getrlimit", "getrlimit"),
    ("call/ioctl-terminal", "ioctl"),
    ("memory/mprotect", "mprotect"),
    ("memory/mmap-4k", "munmap"),
    ("call/uname", "newuname"),
    ("file/open-close", "open"),
    ("pipe/create", "pipe"),
    ("poll/10", "poll"),
    ("file/read-1k", "read"),
    ("signal/sigaction", "rt_sigaction"),
    ("signal/sigprocmask", "rt_sigprocmask"),
    ("select/10-5", "select"),
    ("signal/handle", "sigreturn"),
    ("file/stat", "stat64"),
    ("call/gettimeofday", "time"),
    ("process/wait-nobody", "waitpid"),
    ("file/write-1k", "write"),
];

/// Figure 1 has no numbers in the paper's text; its bars are switches at several clocks.
pub(crate) const SWITCHES: &[&str] = &[
    "switch/threads",
    "switch/processes-2",
    "switch/processes-2-16k",
    "switch/processes-2-256k",
    "switch/processes-8",
    "switch/processes-8-64k",
];
