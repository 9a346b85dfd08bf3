//! The tables of Speer 1994, section 3, beside the benchmarks of the suite that stand for their
//! rows.

use suite::benchmark::{Benchmark, Source};
use suite::list;

/// One of his four benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub name: &'static str,
    source: Source,
    /// What he measured of the whole.
    pub whole: &'static str,
}

pub(super) const GROUPS: [Group; 4] = [
    Group { name: "mckusick", source: Source::McKusick, whole: "4.8 %" },
    Group { name: "osbench", source: Source::Osbench, whole: "0 to 17 %, no figure of the whole" },
    Group { name: "kbx", source: Source::Kbx, whole: "4 % of real and of system time" },
    Group {
        name: "netperf",
        source: Source::Netperf,
        whole: "29 to 35 % by TCP, 20 to 23 % by UDP, over loopback",
    },
];

impl Group {
    pub(super) fn benchmarks(&self) -> Vec<&'static Benchmark> {
        list::all().into_iter().filter(|benchmark| benchmark.source == self.source).collect()
    }
}

/// Benchmark, his row, his improvement in percent (sections 3.2 to 3.4). A star stands where his
/// standard deviation was above the improvement.
const ROWS: &[(&str, &str, &str)] = &[
    ("call/getpid", "getpid()", "0"),
    ("call/ioctl-terminal", "ioctl(0, TCGETA, &termio)", "23"),
    ("call/gettimeofday", "gettimeofday(&tp, NULL)", "-3"),
    ("call/brk", "sbrk(0)", "0"),
    ("call/umask", "umask(0)", "7"),
    ("pipe/switch", "switch, 20 bytes by a pipe", "4"),
    ("pipe/write-read-20", "write/read(fdpipe, BUF, 20)", "2"),
    ("pipe/write-read-1k", "write/read(fdpipe, BUF, 1024)", "2"),
    ("pipe/write-read-8k", "write/read(fdpipe, BUF, 8192)", "4"),
    ("tree/creat-close", "creat() and close()", "14"),
    ("pipe/create", "pipe() and two close()", "8"),
    ("process/fork-exit", "fork(), exit(0)", "2"),
    ("process/vfork-exit", "vfork(), _exit(0)", "2"),
    ("process/fork-exec", "fork(), execve()", "6"),
    ("process/fork-exec-1000", "fork(), execve() with 1000 arguments", "5"),
    ("process/vfork-exec", "vfork(), execve()", "5"),
    ("process/vfork-exec-1000", "vfork(), execve() with 1000 arguments", "5"),
    ("file/read-20", "read(fd_file, BUF, 20) from cache", "-1"),
    ("file/read-1k", "read(fd_file, BUF, 1024) from cache", "-0.5"),
    ("file/read-8k", "read(fd_file, BUF, 8192) from cache", "0.3"),
    ("tcp/write-read-20", "write/read(inet_socket, BUF, 20)", "7"),
    ("tcp/write-read-1k", "write/read(inet_socket, BUF, 1024)", "14"),
    ("tcp/write-read-8k", "write/read(inet_socket, BUF, 8192)", "8"),
    ("unix/write-read-20", "write/read(unix_socket, BUF, 20)", "9"),
    ("unix/write-read-1k", "write/read(unix_socket, BUF, 1024)", "5"),
    ("unix/write-read-8k", "write/read(unix_socket, BUF, 8192)", "6"),
    ("file/open-close", "open_close", "*"),
    ("file/read-64k", "read", "5.3"),
    ("select/1-0", "select1/0", "12.8"),
    ("select/10-5", "select10/5", "5.7"),
    ("select/15-15", "select15/15", "*"),
    ("tcp/request-response", "1 TCP", "35"),
    ("tcp/request-response-4", "4 TCP", "35"),
    ("tcp/request-response-16", "16 TCP", "29"),
    ("udp/request-response", "1 UDP", "20"),
    ("udp/request-response-16", "16 UDP", "21"),
];

/// His row for a benchmark, and his improvement in percent.
pub(super) fn row(benchmark: &str) -> Option<(&'static str, &'static str)> {
    ROWS.iter().find(|(name, ..)| *name == benchmark).map(|(_, row, percent)| (*row, *percent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_benchmark_of_one_of_the_groups() {
        let names: Vec<&str> =
            GROUPS.iter().flat_map(Group::benchmarks).map(|benchmark| benchmark.name).collect();
        for (name, ..) in ROWS {
            assert!(names.contains(name), "{name}");
        }
        for group in GROUPS {
            assert!(group.benchmarks().len() >= 5, "{}", group.name);
        }
        assert_eq!(row("call/umask"), Some(("umask(0)", "7")));
        assert_eq!(row("mix/shell"), None);
    }
}
