//! Rosenblum, Bugnion, Herrod, Witchel and Gupta 1995: IRIX 5.3 on machines that SimOS simulates.

use serde::Serialize;

/// A row of table 4.8: a service of one CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// The service, as the paper calls it.
    pub service: &'static str,
    /// Cycles for an instruction, on the model of 1994 and of 1998.
    pub cpi: [f64; 2],
    /// How many times faster the models of 1996 and of 1998 are.
    pub speedup: [f64; 2],
}

const fn trend(service: &'static str, cpi: [f64; 2], speedup: [f64; 2]) -> Trend {
    Trend { service, cpi, speedup }
}

/// Table 4.8, by workload. Left out: refills of the TLB, which no x86 does in software; interrupts
/// of the disk and of software; and rows of no single service.
#[rustfmt::skip]
pub const TRENDS: [(&str, &[Trend]); 3] = [
    ("program development", &[
        trend("DEMAND ZERO", [3.75, 1.84], [3.3, 5.1]),
        trend("QUICK FAULT", [2.09, 0.55], [3.3, 9.6]),
        trend("execve", [2.64, 0.95], [3.0, 6.9]),
        trend("write", [2.97, 1.10], [3.3, 6.8]),
        trend("read", [3.52, 1.07], [3.4, 8.2]),
        trend("C.O.W. FAULT", [4.18, 1.53], [3.6, 6.9]),
        trend("open", [3.27, 0.96], [3.4, 8.4]),
        trend("fork", [3.03, 1.17], [3.0, 6.5]),
        trend("exit", [2.37, 0.80], [2.6, 7.4]),
        trend("brk", [3.80, 1.04], [3.3, 9.1]),
        trend("PFAULT", [2.32, 0.64], [3.2, 9.2]),
        trend("CLOCK INT", [6.21, 1.70], [3.8, 12.5]),
        trend("close", [3.63, 0.99], [3.2, 9.1]),
        trend("unlink", [3.56, 1.00], [3.2, 8.8]),
    ]),
    ("database", &[
        trend("read", [3.94, 1.07], [3.6, 9.4]),
        trend("select", [2.80, 0.90], [3.1, 8.4]),
        trend("write", [4.20, 1.28], [3.3, 8.8]),
        trend("ioctl", [3.87, 1.05], [3.4, 9.3]),
        trend("send", [5.31, 1.31], [3.4, 10.1]),
        trend("DEMAND ZERO", [4.88, 2.24], [3.2, 5.5]),
        trend("fcntl", [5.65, 1.56], [3.1, 9.1]),
        trend("recv", [3.42, 0.82], [3.4, 10.4]),
        trend("gettimeofday", [3.29, 1.15], [2.7, 7.2]),
        trend("sigprocmask", [2.02, 0.74], [2.8, 6.8]),
    ]),
    ("engineering", &[
        trend("CLOCK INT", [9.18, 2.69], [2.8, 8.4]),
        trend("exit", [2.27, 1.28], [2.3, 4.4]),
        trend("DEMAND ZERO", [6.46, 2.41], [3.3, 6.6]),
    ]),
];

/// What larger caches and more ways bring (section 4.4, figures 4.6 and 4.7).
pub const CACHE_SIZES: &str = "larger caches and more ways remove self misses, but hardly any \
    other misses; a unified cache of 4 MB leaves mostly cold misses";

/// The misses for 100 instructions of the kernel in L2s with lines of 128 bytes, at least
/// (section 5.2).
pub const L2_MISSES: f64 = 0.8;

/// The part of time that spin locks take in the four largest services of program development
/// (section 5.2).
pub const SPIN_LOCKS: &str = "8 to 17 %";

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
pub const SYNCHRONIZATION: [(&str, f64); 3] =
    [("program development", 11.2), ("database", 7.6), ("engineering", 1.4)];

/// Events in a second, and instructions in a second, by workload (table 5.2): program development,
/// database.
pub const EVENTS: [(&str, [f64; 2]); 6] = [
    ("process creations", [80.0, 1.1]),
    ("context switches", [1633.0, 3929.0]),
    ("interrupts", [1428.0, 1853.0]),
    ("system calls", [8246.0, 13546.0]),
    ("page faults", [17166.0, 30309.0]),
    ("other exceptions", [3216.0, 3097.0]),
];
/// Millions of instructions in a second, of the same workloads.
pub const INSTRUCTIONS: [f64; 2] = [1105.0, 1074.0];

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
pub const SERVICES: [SimosService; 12] = [
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's own numbers agree, up to their rounding: a mistyped one does not.
    #[test]
    fn the_numbers_agree_with_themselves() {
        // 200 and 500 MHz. The clock interrupt executes other instructions on faster machines.
        let rows =
            TRENDS.iter().flat_map(|(_, rows)| *rows).filter(|row| row.service != "CLOCK INT");
        for Trend { service, cpi: [older, newer], speedup: [_, speedup] } in rows {
            let ratio = 2.5 * older / newer / speedup;
            assert!((0.9..1.1).contains(&ratio), "{service}: {ratio}");
        }
        for SimosService { service, parts, .. } in SERVICES {
            let sum: u8 = parts.iter().sum();
            assert!((98..=102).contains(&sum), "{service}: {sum} %");
        }
    }
}
