//! Whose code runs while a kernel runs a load: the kernel's own, the load's, or the host's.
//!
//! Input: a kernel that runs a long slice. Output: shares of its processes' time, as the host's
//! kernel divides it between user and kernel mode. A layout changes the kernel's own part only.

use super::LOADS;
use super::kernels::MeasuredKernel;
use super::served::ServedKernel;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// How many slices a share is measured over: about four seconds. The host counts time in user mode
/// by its ticks, so a shorter time says less.
const SLICES: u32 = 2000;

/// Shares of the time of a kernel's processes; together 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Shares {
    /// The kernel for User Mode Linux, in user mode.
    pub kernel: f64,
    /// The load, in user mode.
    pub load: f64,
    /// The host's kernel, for both.
    pub host: f64,
}

/// The shares of each load under a kernel.
pub(super) fn measure(
    kernel: &MeasuredKernel,
    directory: &Path,
) -> Result<BTreeMap<String, Shares>> {
    let kernels = std::slice::from_ref(kernel);
    let mut served = ServedKernel::start_all(kernels, directory)?;
    let [server] = &mut served[..] else { unreachable!("one kernel was started") };
    let mut shares = BTreeMap::new();
    for (load, rounds) in LOADS {
        server.slice(load, rounds)?;
        let before = Spent::now(server.pid())?;
        server.slice(load, SLICES * rounds)?;
        shares.insert(load.to_owned(), Spent::now(server.pid())?.since(before));
    }
    Ok(shares)
}

/// Ticks that processes had.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spent {
    kernel: u64,
    load: u64,
    host: u64,
}

impl Spent {
    /// Of a kernel's first process, and of the processes that it started.
    fn now(first: u32) -> Result<Spent> {
        let mut spent = Spent::default();
        for entry in fs::read_dir("/proc").context("/proc")? {
            let path = entry?.path().join("stat");
            // Other processes end at any time.
            let Ok(text) = fs::read_to_string(&path) else { continue };
            if let Some(process) = Process::parse(&text) {
                spent.add(&process, first);
            }
        }
        Ok(spent)
    }

    fn add(&mut self, process: &Process, first: u32) {
        if process.id == first {
            self.kernel += process.user;
        } else if process.parent == first {
            self.load += process.user;
        } else {
            return;
        }
        self.host += process.system;
    }

    fn since(self, before: Spent) -> Shares {
        let spent = [
            self.kernel - before.kernel,
            self.load.saturating_sub(before.load),
            self.host.saturating_sub(before.host),
        ];
        let all = spent.iter().sum::<u64>().max(1) as f64;
        let [kernel, load, host] = spent.map(|ticks| ticks as f64 / all);
        Shares { kernel, load, host }
    }
}

/// The fields of `/proc/PID/stat` of a process (proc_pid_stat(5)).
#[derive(Debug, PartialEq)]
struct Process {
    id: u32,
    parent: u32,
    user: u64,
    system: u64,
}

impl Process {
    fn parse(text: &str) -> Option<Process> {
        let (id, rest) = text.split_once(' ')?;
        // The name may have spaces and brackets.
        let fields: Vec<&str> = rest[rest.rfind(')')? + 1..].split_whitespace().collect();
        Some(Process {
            id: id.parse().ok()?,
            parent: fields.get(1)?.parse().ok()?,
            user: fields.get(11)?.parse().ok()?,
            system: fields.get(12)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_a_kernel_are_told_apart() {
        let line = |id, parent, user, system| {
            format!("{id} (a) b) S {parent} 1 1 0 -1 4194304 100 0 0 0 {user} {system} 0 0 20 0 1")
        };
        let mut spent = Spent::default();
        for text in [line(7, 1, 600, 100), line(8, 7, 100, 200), line(9, 8, 5000, 5000)] {
            spent.add(&Process::parse(&text).unwrap(), 7);
        }
        assert_eq!(spent, Spent { kernel: 600, load: 100, host: 300 });
        let shares = spent.since(Spent::default());
        assert_eq!(shares, Shares { kernel: 0.6, load: 0.1, host: 0.3 });
        assert_eq!(Process::parse("7 (a"), None);
    }

    #[test]
    fn this_process_has_had_time() {
        // On a busy machine it takes long to get a tick.
        let begun = std::time::Instant::now();
        while Spent::now(std::process::id()).unwrap() == Spent::default() {
            assert!(begun.elapsed().as_secs() < 60, "this process had no tick in a minute");
        }
    }
}
