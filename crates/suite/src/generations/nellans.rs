//! Tables 3 and 4 of Nellans 2005, beside the benchmarks that stand for their rows.
//!
//! Numbers as they stand in the paper, its rounding included. Waiting for input is part of his
//! `poll`, `select`, `read` and `waitpid`; of ours it is not.

/// A speedup by real, user and system time (table 3).
pub type Program = (&'static str, Option<(&'static str, [f64; 3])>);
/// A speedup, and that by architecture (table 4).
pub type Call = (&'static str, (&'static str, [f64; 2]));

/// T: the decrease of the FO4 delay from the 486 to the Pentium 4 (section 3).
pub const TECHNOLOGY: f64 = 11.0;
/// T by the clocks instead: 33 MHz and 3.0 GHz (section 3).
pub const CLOCKS: f64 = 3000.0 / 33.0;
/// P of whole programs (section 3).
pub const WHOLE: f64 = 192.2;
/// P of the programs' part in the kernel (section 3.1).
pub const KERNEL: f64 = 46.04;

/// Table 3, and mixes that have no row there.
pub const PROGRAMS: &[Program] = &[
    ("user/search", Some(("crafty", [240.91, 251.01, 14.0]))),
    ("user/place", Some(("twolf", [143.74, 150.38, 49.0]))),
    ("user/transform", Some(("mesa", [189.14, 204.02, 56.0]))),
    ("user/network", Some(("art", [193.97, 209.67, 34.0]))),
    ("mix/compile", Some(("Linux Kernel Compile", [196.66, 218.18, 77.2]))),
    ("mix/shell", None),
    ("mix/database", None),
    ("mix/web", None),
];

/// Table 4.
pub const CALLS: &[Call] = &[
    ("call/brk", ("brk", [43.0, 3.90])),
    ("call/dup-close", ("close", [15.0, 1.36])),
    ("process/vfork-exec", ("execve", [7.0, 0.63])),
    ("call/fcntl", ("fcntl64", [62.0, 5.63])),
    ("process/fork-exit", ("fork", [2.0, 0.18])),
    ("file/fstat", ("fstat64", [183.0, 16.63])),
    ("tree/list-200", ("getdents64", [50.0, 4.54])),
    ("call/getpid", ("getpid", [49.0, 4.45])),
    ("call/getrlimit", ("getrlimit", [59.0, 5.36])),
    ("call/ioctl-terminal", ("ioctl", [29.0, 2.63])),
    ("memory/mprotect", ("mprotect", [81.0, 7.36])),
    ("memory/mmap-4k", ("munmap", [33.0, 3.0])),
    ("call/uname", ("newuname", [44.0, 4.0])),
    ("file/open-close", ("open", [0.0, 0.0])),
    ("pipe/create", ("pipe", [79.0, 7.18])),
    ("poll/10", ("poll", [1048.0, 95.27])),
    ("file/read-1k", ("read", [239.0, 21.72])),
    ("signal/sigaction", ("rt_sigaction", [206.0, 18.72])),
    ("signal/sigprocmask", ("rt_sigprocmask", [178.0, 16.18])),
    ("select/10-5", ("select", [34.0, 3.09])),
    ("signal/handle", ("sigreturn", [76.0, 6.90])),
    ("file/stat", ("stat64", [5.0, 0.45])),
    ("call/gettimeofday", ("time", [0.0, 0.0])),
    ("process/wait-nobody", ("waitpid", [33305.0, 3027.72])),
    ("file/write-1k", ("write", [0.0, 0.0])),
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
