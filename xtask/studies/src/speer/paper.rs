//! The benchmarks of the suite that stand for those of Speer 1994, section 3.
//!
//! His numbers are in `papers::speer`.

use papers::speer;
use suite::benchmark::{Benchmark, Source};
use suite::list;

/// One of the paper's four benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub name: &'static str,
    source: Source,
    /// What he measured of the whole.
    pub whole: &'static str,
}

const fn group((name, whole): speer::Whole, source: Source) -> Group {
    Group { name, source, whole }
}

pub(super) const GROUPS: [Group; 4] = [
    group(speer::MCKUSICK, Source::McKusick),
    group(speer::OSBENCH, Source::Osbench),
    group(speer::KBX, Source::Kbx),
    group(speer::NETPERF, Source::Netperf),
];

impl Group {
    pub(super) fn benchmarks(&self) -> Vec<&'static Benchmark> {
        list::all().into_iter().filter(|benchmark| benchmark.source == self.source).collect()
    }
}

/// Benchmarks, each with the row that it stands for.
const ROWS: &[(&str, &str)] = &[
    ("call/getpid", "getpid()"),
    ("call/ioctl-terminal", "ioctl(0, TCGETA, &termio)"),
    ("call/gettimeofday", "gettimeofday(&tp, NULL)"),
    ("call/brk", "sbrk(0)"),
    ("call/umask", "umask(0)"),
    ("pipe/switch", "switch, 20 bytes by a pipe"),
    ("pipe/write-read-20", "write/read(fdpipe, BUF, 20)"),
    ("pipe/write-read-1k", "write/read(fdpipe, BUF, 1024)"),
    ("pipe/write-read-8k", "write/read(fdpipe, BUF, 8192)"),
    ("tree/creat-close", "creat() and close()"),
    ("pipe/create", "pipe() and two close()"),
    ("process/fork-exit", "fork(), exit(0)"),
    ("process/vfork-exit", "vfork(), _exit(0)"),
    ("process/fork-exec", "fork(), execve()"),
    ("process/fork-exec-1000", "fork(), execve() with 1000 arguments"),
    ("process/vfork-exec", "vfork(), execve()"),
    ("process/vfork-exec-1000", "vfork(), execve() with 1000 arguments"),
    ("file/read-20", "read(fd_file, BUF, 20) from cache"),
    ("file/read-1k", "read(fd_file, BUF, 1024) from cache"),
    ("file/read-8k", "read(fd_file, BUF, 8192) from cache"),
    ("tcp/write-read-20", "write/read(inet_socket, BUF, 20)"),
    ("tcp/write-read-1k", "write/read(inet_socket, BUF, 1024)"),
    ("tcp/write-read-8k", "write/read(inet_socket, BUF, 8192)"),
    ("unix/write-read-20", "write/read(unix_socket, BUF, 20)"),
    ("unix/write-read-1k", "write/read(unix_socket, BUF, 1024)"),
    ("unix/write-read-8k", "write/read(unix_socket, BUF, 8192)"),
    ("file/open-close", "open_close"),
    ("file/read-64k", "read"),
    ("select/1-0", "select1/0"),
    ("select/10-5", "select10/5"),
    ("select/15-15", "select15/15"),
    ("tcp/request-response", "1 TCP"),
    ("tcp/request-response-4", "4 TCP"),
    ("tcp/request-response-16", "16 TCP"),
    ("udp/request-response", "1 UDP"),
    ("udp/request-response-16", "16 UDP"),
];

/// The paper's row for a benchmark, and its improvement in percent. A star: the standard deviation
/// was above the improvement.
pub(super) fn row(benchmark: &str) -> Option<speer::Row> {
    let (_, row) = ROWS.iter().find(|(name, _)| *name == benchmark)?;
    speer::row(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_benchmark_of_one_of_the_groups() {
        let names: Vec<&str> =
            GROUPS.iter().flat_map(Group::benchmarks).map(|benchmark| benchmark.name).collect();
        for (name, theirs) in ROWS {
            assert!(names.contains(name), "{name}");
            assert_eq!(row(name).map(|(row, _)| row), Some(*theirs), "{name}");
        }
        assert_eq!(ROWS.len(), speer::ROWS.len());
        for group in GROUPS {
            assert!(group.benchmarks().len() >= 5, "{}", group.name);
        }
        assert_eq!(row("call/umask"), Some(("umask(0)", "7")));
        assert_eq!(row("mix/shell"), None);
    }
}
