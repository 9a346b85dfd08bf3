//! The public suites: program, command line, and the reader of the printed figure.
//!
//! This module has only data. `run.rs` runs them.

use super::figures;

/// The server that a program talks to while it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Server {
    None,
    /// A program, ended afterwards. It is ready when it accepts TCP connections.
    Program(&'static [&'static str]),
    /// A page of 1,000 bytes by HTTP, from this process.
    Page,
}

/// A benchmark of a public suite. In its words, `{dir}` is an empty directory and `{port}` a free
/// port.
#[derive(Clone, Copy)]
pub(crate) struct Public {
    /// `program/what`.
    pub name: &'static str,
    /// One operation.
    pub stresses: &'static str,
    /// Debian's package, for those who do not have it.
    pub package: &'static str,
    pub version: &'static [&'static str],
    pub server: Server,
    pub line: &'static [&'static str],
    /// Nanoseconds an operation, from what it prints.
    pub figure: fn(&str) -> Option<f64>,
}

/// A benchmark of netperf's; `$test` is its name there.
macro_rules! netperf {
    ($name:literal, $stresses:literal, $test:literal) => {
        Public {
            name: $name,
            stresses: $stresses,
            package: "netperf",
            version: &["netperf", "-V"],
            server: Server::Program(&["netserver", "-D", "-L", "127.0.0.1", "-p", "{port}"]),
            line: &[
                "netperf",
                "-H",
                "127.0.0.1",
                "-p",
                "{port}",
                "-t",
                $test,
                "-l",
                "1",
                "-P",
                "0",
                "-v",
                "0",
            ],
            figure: figures::rate,
        }
    };
}

/// A stressor of stress-ng for a second, with its options.
macro_rules! stress_ng {
    ($name:literal, $stresses:literal, [$($option:literal),*]) => {
        Public {
            name: $name,
            stresses: $stresses,
            package: "stress-ng",
            version: &["stress-ng", "--version"],
            server: Server::None,
            line: &["stress-ng", $($option,)* "--timeout", "1", "--metrics-brief"],
            figure: figures::stress,
        }
    };
}

/// Requests of fio to a cached file for a second; `$kind` is the option that names them.
macro_rules! fio {
    ($name:literal, $stresses:literal, $kind:literal) => {
        Public {
            name: $name,
            stresses: $stresses,
            package: "fio",
            version: &["fio", "--version"],
            server: Server::None,
            line: &[
                "fio",
                "--name=kernlane",
                $kind,
                "--bs=4k",
                "--size=16m",
                "--ioengine=psync",
                "--invalidate=0",
                "--runtime=1",
                "--time_based",
                "--output-format=json",
                "--directory={dir}",
            ],
            figure: figures::requests,
        }
    };
}

pub(crate) const LIST: &[Public] = &[
    Public {
        name: "perf-bench/syscall",
        stresses: "getppid by perf bench",
        package: "linux-perf",
        version: &["perf", "--version"],
        server: Server::None,
        line: &["perf", "bench", "-f", "simple", "syscall", "basic", "--loop", "1000000"],
        figure: figures::seconds::<1_000_000>,
    },
    Public {
        name: "perf-bench/pipe",
        stresses: "a token to another process and back by pipes, by perf bench",
        package: "linux-perf",
        version: &["perf", "--version"],
        server: Server::None,
        line: &["perf", "bench", "-f", "simple", "sched", "pipe", "-l", "50000"],
        figure: figures::seconds::<50_000>,
    },
    Public {
        name: "perf-bench/messaging",
        stresses: "a message between 40 processes by local sockets, by perf bench",
        package: "linux-perf",
        version: &["perf", "--version"],
        server: Server::None,
        line: &["perf", "bench", "-f", "simple", "sched", "messaging", "-g", "1", "-l", "500"],
        figure: figures::seconds::<200_000>,
    },
    Public {
        name: "hackbench/sockets",
        stresses: "a message of 100 bytes between 80 processes by local sockets",
        package: "rt-tests",
        version: &["hackbench", "--help"],
        server: Server::None,
        line: &["hackbench", "-g", "2", "-l", "500", "-s", "100"],
        figure: figures::time::<400_000>,
    },
    Public {
        name: "hackbench/pipes",
        stresses: "a message of 100 bytes between 80 threads by pipes",
        package: "rt-tests",
        version: &["hackbench", "--help"],
        server: Server::None,
        line: &["hackbench", "-T", "-p", "-g", "2", "-l", "500", "-s", "100"],
        figure: figures::time::<400_000>,
    },
    stress_ng!(
        "stress-ng/switch",
        "a bogo operation of stress-ng's switches by a pipe",
        ["--switch", "1"]
    ),
    stress_ng!("stress-ng/fork", "a bogo operation of stress-ng's forks", ["--fork", "1"]),
    stress_ng!(
        "stress-ng/mmap",
        "a bogo operation of stress-ng's mappings of 4 MB",
        ["--mmap", "1", "--mmap-bytes", "4m"]
    ),
    Public {
        name: "sockperf/ping-pong",
        stresses: "half of a round trip of 14 bytes by TCP",
        package: "sockperf",
        version: &["sockperf", "--version"],
        server: Server::Program(&[
            "sockperf",
            "server",
            "--tcp",
            "-i",
            "127.0.0.1",
            "-p",
            "{port}",
        ]),
        line: &["sockperf", "ping-pong", "--tcp", "-i", "127.0.0.1", "-p", "{port}", "-t", "1"],
        figure: figures::latency,
    },
    Public {
        name: "iperf3/tcp",
        stresses: "1 MB received by TCP",
        package: "iperf3",
        version: &["iperf3", "--version"],
        server: Server::Program(&["iperf3", "-s", "-B", "127.0.0.1", "-p", "{port}"]),
        line: &["iperf3", "-c", "127.0.0.1", "-p", "{port}", "-t", "1", "-J"],
        figure: figures::megabyte,
    },
    netperf!("netperf/tcp-rr", "one byte and its one-byte answer by TCP", "TCP_RR"),
    netperf!("netperf/udp-rr", "one byte and its one-byte answer by UDP", "UDP_RR"),
    fio!("fio/random-read", "4 KB at a random place of a cached file of 16 MB", "--rw=randread"),
    fio!(
        "fio/random-write",
        "4 KB written to a random place of a cached file of 16 MB",
        "--rw=randwrite"
    ),
    Public {
        name: "sysbench/threads",
        stresses: "an event of sysbench: 2 threads yield and take locks",
        package: "sysbench",
        version: &["sysbench", "--version"],
        server: Server::None,
        line: &["sysbench", "threads", "--threads=2", "--time=1", "run"],
        figure: figures::events,
    },
    Public {
        name: "wrk/page",
        stresses: "a page of 1,000 bytes by HTTP, on 4 connections that stay open",
        package: "wrk",
        version: &["wrk", "-v"],
        server: Server::Page,
        line: &["wrk", "-t", "1", "-c", "4", "-d", "1s", "http://127.0.0.1:{port}/"],
        figure: figures::page,
    },
];

impl Public {
    /// The program.
    pub(crate) fn program(&self) -> &'static str {
        self.line[0]
    }

    /// The server's program, if it is another one.
    pub(crate) fn other_program(&self) -> Option<&'static str> {
        match self.server {
            Server::Program([program, ..]) if *program != self.program() => Some(program),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_suite_has_a_name_of_its_own_and_a_program() {
        let names: BTreeSet<&str> = LIST.iter().map(|public| public.name).collect();
        assert_eq!(names.len(), LIST.len());
        let suites: BTreeSet<&str> =
            LIST.iter().map(|public| public.name.split('/').next().unwrap()).collect();
        let all = [
            "fio",
            "hackbench",
            "iperf3",
            "netperf",
            "perf-bench",
            "sockperf",
            "stress-ng",
            "sysbench",
            "wrk",
        ];
        assert_eq!(suites, BTreeSet::from(all));
        for public in LIST {
            assert_eq!(public.version[0], public.program(), "{}", public.name);
            let talks = public.line.iter().any(|word| word.contains("{port}"));
            assert_eq!(talks, !matches!(public.server, Server::None), "{}", public.name);
        }
    }
}
