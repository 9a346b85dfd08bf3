//! What two papers measured of generations, beside a recording's services.
//!
//! Input: services on machines that stand for the papers'. Output: for each service the rows of the
//! papers that are about the same work. The papers' numbers are in the crate `papers`. To add a row
//! of a paper: its numbers there, and here the names of the services that do the work today.

use papers::nellans;
use papers::rosenblum::{self, Trend};
use serde::Serialize;
use services::annotations::ServiceKind;
use services::generations::{GenerationRow, Generations, Split};

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

const UNSHARED: &[&str] = &["write to a page that is no longer shared"];

/// Rows of Rosenblum 1995, table 4.8, and the services of today that do the same.
const SERVICES: &[(&str, (ServiceKind, &[&str]))] = &[
    ("DEMAND ZERO", (PageFault, &["demand zero"])),
    ("QUICK FAULT", (PageFault, &["file"])),
    ("execve", (SystemCall, &["execve"])),
    ("write", (SystemCall, &["write"])),
    ("read", (SystemCall, &["read"])),
    ("C.O.W. FAULT", (PageFault, &["copy on write"])),
    ("open", (SystemCall, &["open", "openat"])),
    ("fork", (SystemCall, &["fork", "vfork", "clone", "clone3"])),
    ("exit", (SystemCall, &["exit", "exit_group"])),
    ("brk", (SystemCall, &["brk"])),
    ("PFAULT", (PageFault, UNSHARED)),
    ("CLOCK INT", (Interrupt, &["apic_timer_interrupt"])),
    ("close", (SystemCall, &["close"])),
    ("unlink", (SystemCall, &["unlink", "unlinkat"])),
    ("select", (SystemCall, &["select", "pselect6"])),
    ("ioctl", (SystemCall, &["ioctl"])),
    ("send", (SystemCall, &["sendto"])),
    ("fcntl", (SystemCall, &["fcntl"])),
    ("recv", (SystemCall, &["recvfrom"])),
    ("gettimeofday", (SystemCall, &["gettimeofday"])),
    ("sigprocmask", (SystemCall, &["rt_sigprocmask"])),
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
        let Some((_, speedup)) = nellans::call(call) else { continue };
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
        programs: nellans::PROGRAMS.to_vec(),
        calls,
    })
}

fn beside_simos(found: &Generations) -> Option<Vec<Simos>> {
    let [first, second, third] = SIMOS.map(|name| found.machine(name));
    let (first, second, third) = (first?, second?, third?);
    let mut beside = Vec::new();
    for row in &found.rows {
        for (workload, trends) in rosenblum::TRENDS {
            for &Trend { service, cpi: paper_cpi, speedup: paper_speedup } in trends {
                if !is_ours(service, row) {
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

/// Whether a row is of the work that SimOS' service does.
fn is_ours(simos: &str, row: &GenerationRow) -> bool {
    let found = SERVICES.iter().find(|(service, _)| *service == simos);
    found.is_some_and(|(_, (kind, names))| {
        row.kind == Some(*kind) && names.contains(&row.name.as_str())
    })
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
    use std::collections::BTreeSet;

    #[test]
    fn every_call_and_service_of_the_papers_has_its_row() {
        let of_paper = nellans::CALLS.map(|(name, _)| name);
        assert_eq!(of_paper.to_vec(), CALLS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        let mut ours: Vec<&str> = CALLS.iter().flat_map(|(_, ours)| ours.iter().copied()).collect();
        let all = ours.len();
        ours.sort();
        ours.dedup();
        assert_eq!(ours.len(), all, "a call of ours stands for one of the paper's");
        let of_simos = rosenblum::TRENDS.iter().flat_map(|(_, trends)| *trends);
        let of_simos: BTreeSet<&str> = of_simos.map(|trend| trend.service).collect();
        assert_eq!(of_simos, SERVICES.iter().map(|(service, _)| *service).collect());
    }
}
