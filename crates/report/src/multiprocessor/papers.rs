//! The numbers of Rosenblum 1995, section 5: eight CPUs of 1994.

use serde::Serialize;

/// A row of table 5.4: the most important services of two workloads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SimosService {
    /// The workload.
    pub workload: &'static str,
    /// The service, as the paper calls it.
    pub service: &'static str,
    /// Parts of the kernel's computation time, in per cent: on eight CPUs, on one.
    pub share: [f64; 2],
    /// How much longer a call computes than on one CPU, in per cent.
    pub slowdown: f64,
    /// Parts of its computation time, in per cent: execution, synchronization, coherence misses,
    /// upgrades, instruction stalls, data stalls.
    pub parts: [u8; 6],
}

/// Synchronization's part of the kernel's execution time, in per cent, by workload (section 5.2).
pub(super) const SYNCHRONIZATION: [(&str, f64); 3] =
    [("program development", 11.2), ("database", 7.6), ("engineering", 1.4)];

/// Events in a second, and instructions in a second, by workload (table 5.2): program development,
/// database.
pub(super) const EVENTS: [(&str, [f64; 2]); 6] = [
    ("process creations", [80.0, 1.1]),
    ("context switches", [1633.0, 3929.0]),
    ("interrupts", [1428.0, 1853.0]),
    ("system calls", [8246.0, 13546.0]),
    ("page faults", [17166.0, 30309.0]),
    ("other exceptions", [3216.0, 3097.0]),
];
/// Millions of instructions in a second, of the same workloads.
pub(super) const INSTRUCTIONS: [f64; 2] = [1105.0, 1074.0];

const fn row(
    workload: &'static str,
    service: &'static str,
    share: [f64; 2],
    slowdown: f64,
    parts: [u8; 6],
) -> SimosService {
    SimosService { workload, service, share, slowdown, parts }
}

/// Rows of table 5.4.
pub(super) const SERVICES: [SimosService; 12] = [
    row("program development", "DEMAND FILL", [15.5, 18.1], 28.0, [22, 10, 5, 3, 13, 47]),
    row("program development", "QUICK FAULT", [10.8, 10.5], 53.0, [33, 17, 8, 3, 30, 9]),
    row("program development", "execve", [10.4, 10.2], 52.0, [27, 13, 10, 6, 25, 20]),
    row("program development", "write", [9.0, 10.0], 34.0, [29, 8, 5, 3, 23, 32]),
    row("program development", "read", [7.0, 9.1], 17.0, [24, 5, 5, 2, 25, 39]),
    row("program development", "fork", [4.9, 4.2], 76.0, [21, 15, 12, 7, 19, 26]),
    row("program development", "open", [4.9, 4.6], 58.0, [23, 9, 11, 5, 40, 12]),
    row("program development", "exit", [4.6, 3.5], 93.0, [23, 18, 18, 11, 15, 14]),
    row("database", "select", [12.4, 15.2], 79.0, [33, 18, 12, 4, 18, 15]),
    row("database", "read", [12.2, 15.2], 51.0, [19, 7, 13, 8, 37, 16]),
    row("database", "write", [7.5, 8.4], 63.0, [17, 8, 15, 7, 43, 11]),
    row("database", "send", [2.5, 4.3], 9.0, [19, 8, 11, 5, 46, 12]),
];
