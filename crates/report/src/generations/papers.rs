//! What two papers measured of generations, beside a recording's services.
//!
//! Input: services on machines that stand for the papers'. Output: for each service the rows of the
//! papers that are about the same work. To add a row of a paper: its numbers here, and the names of
//! the services that do the work today.

use attribution::generations::{GenerationRow, Generations, Split};
use attribution::services::annotations::ServiceKind;
use serde::Serialize;
use suite::generations::nellans;

/// The machines that stand for those of Nellans 2005.
pub(super) const NELLANS: [&str; 2] = ["i486", "pentium4"];
/// The machines that stand for those of SimOS.
pub(super) const SIMOS: [&str; 3] = ["simos-1994", "simos-1996", "simos-1998"];

/// Rows of Nellans 2005, table 4, and the system calls of today that do the same.
const CALLS: &[(&str, &[&str])] = &[
    ("brk", &["brk"]),
    ("close", &["close"]),
    ("execve", &["execve", "execveat"]),
    ("fcntl64", &["fcntl"]),
    ("fork", &["fork", "vfork", "clone", "clone3"]),
    ("fstat64", &["newfstat"]),
    ("getdents64", &["getdents64"]),
    ("getpid", &["getpid"]),
    ("getrlimit", &["getrlimit", "prlimit64"]),
    ("ioctl", &["ioctl"]),
    ("mprotect", &["mprotect"]),
    ("munmap", &["munmap"]),
    ("newuname", &["newuname"]),
    ("open", &["open", "openat"]),
    ("pipe", &["pipe", "pipe2"]),
    ("poll", &["poll", "ppoll"]),
    ("read", &["read"]),
    ("rt_sigaction", &["rt_sigaction"]),
    ("rt_sigprocmask", &["rt_sigprocmask"]),
    ("select", &["select", "pselect6"]),
    ("sigreturn", &["rt_sigreturn"]),
    ("stat64", &["newstat", "newfstatat", "statx"]),
    ("time", &["time", "gettimeofday", "clock_gettime"]),
    ("waitpid", &["wait4", "waitid"]),
    ("write", &["write"]),
];

use ServiceKind::{Interrupt, PageFault, SystemCall};

/// A row of SimOS' table 4.8: the services of today that do the same, CPI on the 1994 and the 1998
/// model, and how many times faster the 1996 and the 1998 model are.
type SimosRow = (&'static str, (ServiceKind, &'static [&'static str]), [f64; 2], [f64; 2]);

const UNSHARED: &[&str] = &["write to a page that is no longer shared"];

/// Rosenblum 1995, table 4.8, by workload. Left out: refills of the TLB, which no x86 does in
/// software; interrupts of the disk and of software; and rows of no single service.
#[rustfmt::skip]
const TABLE: &[(&str, &[SimosRow])] = &[
    ("program development", &[
        ("DEMAND ZERO", (PageFault, &["demand zero"]), [3.75, 1.84], [3.3, 5.1]),
        ("QUICK FAULT", (PageFault, &["file"]), [2.09, 0.55], [3.3, 9.6]),
        ("execve", (SystemCall, &["execve"]), [2.64, 0.95], [3.0, 6.9]),
        ("write", (SystemCall, &["write"]), [2.97, 1.10], [3.3, 6.8]),
        ("read", (SystemCall, &["read"]), [3.52, 1.07], [3.4, 8.2]),
        ("C.O.W. FAULT", (PageFault, &["copy on write"]), [4.18, 1.53], [3.6, 6.9]),
        ("open", (SystemCall, &["open", "openat"]), [3.27, 0.96], [3.4, 8.4]),
        ("fork", (SystemCall, &["fork", "vfork", "clone", "clone3"]), [3.03, 1.17], [3.0, 6.5]),
        ("exit", (SystemCall, &["exit", "exit_group"]), [2.37, 0.80], [2.6, 7.4]),
        ("brk", (SystemCall, &["brk"]), [3.80, 1.04], [3.3, 9.1]),
        ("PFAULT", (PageFault, UNSHARED), [2.32, 0.64], [3.2, 9.2]),
        ("CLOCK INT", (Interrupt, &["apic_timer_interrupt"]), [6.21, 1.70], [3.8, 12.5]),
        ("close", (SystemCall, &["close"]), [3.63, 0.99], [3.2, 9.1]),
        ("unlink", (SystemCall, &["unlink", "unlinkat"]), [3.56, 1.00], [3.2, 8.8]),
    ]),
    ("database", &[
        ("read", (SystemCall, &["read"]), [3.94, 1.07], [3.6, 9.4]),
        ("select", (SystemCall, &["select", "pselect6"]), [2.80, 0.90], [3.1, 8.4]),
        ("write", (SystemCall, &["write"]), [4.20, 1.28], [3.3, 8.8]),
        ("ioctl", (SystemCall, &["ioctl"]), [3.87, 1.05], [3.4, 9.3]),
        ("send", (SystemCall, &["sendto"]), [5.31, 1.31], [3.4, 10.1]),
        ("DEMAND ZERO", (PageFault, &["demand zero"]), [4.88, 2.24], [3.2, 5.5]),
        ("fcntl", (SystemCall, &["fcntl"]), [5.65, 1.56], [3.1, 9.1]),
        ("recv", (SystemCall, &["recvfrom"]), [3.42, 0.82], [3.4, 10.4]),
        ("gettimeofday", (SystemCall, &["gettimeofday"]), [3.29, 1.15], [2.7, 7.2]),
        ("sigprocmask", (SystemCall, &["rt_sigprocmask"]), [2.02, 0.74], [2.8, 6.8]),
    ]),
    ("engineering", &[
        ("CLOCK INT", (Interrupt, &["apic_timer_interrupt"]), [9.18, 2.69], [2.8, 8.4]),
        ("exit", (SystemCall, &["exit", "exit_group"]), [2.27, 1.28], [2.3, 4.4]),
        ("DEMAND ZERO", (PageFault, &["demand zero"]), [6.46, 2.41], [3.3, 6.6]),
    ]),
];

/// The papers' numbers beside a recording's, for the machines that the recording ran on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Papers {
    /// Nellans 2005: measured, on a 486 and a Pentium 4. `None` without both machines.
    pub nellans: Option<Nellans>,
    /// Rosenblum 1995, table 4.8: simulated by SimOS. `None` without the three machines.
    pub simos: Option<Vec<Simos>>,
}

/// Tables 3 and 4 of Nellans 2005.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Nellans {
    /// The paper's T, by the FO4 delay, and T by its clocks.
    pub technology: [f64; 2],
    /// The paper's P of whole programs, and of their part in the kernel.
    pub speedups: [f64; 2],
    /// Ours, of everything, of the kernel and of user mode.
    pub ours: [Option<Split>; 3],
    /// Table 3: programs, and how many times faster they are by real, user and system time.
    pub programs: Vec<(&'static str, [f64; 3])>,
    /// Table 4, for the recording's system calls.
    pub calls: Vec<NellansCall>,
}

/// A system call beside the paper's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NellansCall {
    /// Our service.
    pub service: String,
    /// From the 486 to the Pentium 4, simulated.
    pub ours: Option<Split>,
    /// The paper's name of it.
    pub call: &'static str,
    /// The paper's P, and A with its T, measured.
    pub speedup: [f64; 2],
    /// The paper's P divided by the ratio of its clocks.
    pub by_clock: f64,
}

/// A service beside SimOS'.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simos {
    /// Our service.
    pub service: String,
    /// Our cycles per instruction on the 1994 and the 1998 model.
    pub cpi: [f64; 2],
    /// From the 1994 to the 1996 model, and to the 1998 model.
    pub ours: [Option<Split>; 2],
    /// The workload of the paper, and the paper's name of the service.
    pub row: [&'static str; 2],
    /// The paper's cycles per instruction.
    pub paper_cpi: [f64; 2],
    /// The paper's P of the 1996 and the 1998 model.
    pub paper_speedup: [f64; 2],
}

impl Papers {
    /// The rows of the papers that are about the services of `found`.
    pub(crate) fn new(found: &Generations) -> Papers {
        Papers { nellans: beside_nellans(found), simos: beside_simos(found) }
    }
}

fn beside_nellans(found: &Generations) -> Option<Nellans> {
    let [older, newer] = NELLANS.map(|name| found.machine(name));
    let (older, newer) = (older?, newer?);
    let mut calls = Vec::new();
    for row in found.rows.iter().filter(|row| row.kind == Some(SystemCall)) {
        let theirs = CALLS.iter().find(|(_, ours)| ours.contains(&row.name.as_str()));
        let Some(&(call, _)) = theirs else { continue };
        let numbers = nellans::CALLS.iter().find(|(_, (name, _))| *name == call);
        let Some(&(_, (_, speedup))) = numbers else { continue };
        calls.push(NellansCall {
            service: name_of(row),
            ours: found.split(row, older, newer),
            call,
            speedup,
            by_clock: speedup[0] / nellans::CLOCKS,
        });
    }
    let [all, of_kernel, user, _] = &found.sums;
    Some(Nellans {
        technology: [nellans::TECHNOLOGY, nellans::CLOCKS],
        speedups: [nellans::WHOLE, nellans::KERNEL],
        ours: [all, of_kernel, user].map(|sum| found.split(sum, older, newer)),
        programs: nellans::PROGRAMS.iter().filter_map(|(_, theirs)| *theirs).collect(),
        calls,
    })
}

fn beside_simos(found: &Generations) -> Option<Vec<Simos>> {
    let [first, second, third] = SIMOS.map(|name| found.machine(name));
    let (first, second, third) = (first?, second?, third?);
    let mut beside = Vec::new();
    for row in &found.rows {
        for &(workload, rows) in TABLE {
            for &(service, (kind, ours), paper_cpi, paper_speedup) in rows {
                if row.kind != Some(kind) || !ours.contains(&row.name.as_str()) {
                    continue;
                }
                beside.push(Simos {
                    service: name_of(row),
                    cpi: [row.on[first].cpi, row.on[third].cpi],
                    ours: [second, third].map(|newer| found.split(row, first, newer)),
                    row: [workload, service],
                    paper_cpi,
                    paper_speedup,
                });
            }
        }
    }
    Some(beside)
}

/// The title of a row: kind and name of a service, or the name of a sum.
pub(super) fn name_of(row: &GenerationRow) -> String {
    match row.kind {
        Some(kind) => format!("{} {}", kind.title(), row.name),
        None => row.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_of_the_paper_has_its_row() {
        let of_paper: Vec<&str> = nellans::CALLS.iter().map(|(_, (name, _))| *name).collect();
        assert_eq!(of_paper, CALLS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        let mut ours: Vec<&str> = CALLS.iter().flat_map(|(_, ours)| ours.iter().copied()).collect();
        let all = ours.len();
        ours.sort();
        ours.dedup();
        assert_eq!(ours.len(), all, "a call of ours stands for one of the paper's");
    }

    /// The papers' own numbers hold P = T × A, up to their rounding: a mistyped one does not.
    #[test]
    fn the_papers_numbers_agree_with_themselves() {
        for (_, (call, [speedup, architecture])) in nellans::CALLS {
            let difference = speedup / nellans::TECHNOLOGY - architecture;
            assert!((0.0..0.012).contains(&difference), "{call}: {difference}");
        }
        // 200 and 500 MHz. The clock interrupt executes other instructions on faster machines.
        let rows = TABLE.iter().flat_map(|(_, rows)| *rows).filter(|row| row.0 != "CLOCK INT");
        for (service, _, [older, newer], [_, speedup]) in rows {
            let ratio = 2.5 * older / newer / speedup;
            assert!((0.9..1.1).contains(&ratio), "{service}: {ratio}");
        }
    }
}
