//! Where samples of `perf record` met a program: in user mode or in the kernel.
//!
//! Input: programs. Output: numbers of samples, and the cycles that samples charge to user mode
//! though they are the kernel's.
//!
//! A timer's interrupt takes a sample. Before the kernel returns to user mode it blocks
//! interrupts. One that waits meanwhile comes with the return and meets the first instruction of
//! user mode. So samples charge the kernel's last instructions to the program. How much each
//! return takes is measured at known addresses: with new pages that are touched, and with system
//! calls. A page that is touched again is hardly ever met at such an address.

use crate::judge_processor::native::{in_root, input};
use crate::judge_processor::programs::{ENVIRONMENT, Program};
use anyhow::{Context, Result, ensure};
use lab::processor::hertz;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::{Command, Stdio};

const SAMPLES_A_SECOND: &str = "20000";
const NO_PERF: &str = "running perf; Debian has it in linux-perf";

/// Where samples of a program met it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Samples {
    pub user: u64,
    pub kernel: u64,
}

/// Core cycles of the kernel that samples charge to user mode, for each return to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ReturnCosts {
    /// From a page fault.
    pub fault: f64,
    /// From a system call.
    pub call: f64,
}

/// The samples of a run under `perf record`, which says better than a kernel's ticks how much of
/// the time is the kernel's. `file`: where its data lie meanwhile.
pub(super) fn samples(
    driver: &Path,
    root: &Path,
    program: &Program,
    file: &Path,
) -> Result<Samples> {
    let command = in_root(driver, "run", root, program.command);
    let (_, text) = recorded(&command, input(root, program)?, file)?;
    let found = Samples::of(&addresses(&text, Path::new(program.command[0])));
    ensure!(found.user > 0, "perf saw nothing of {} in user mode", program.name);
    Ok(found)
}

/// Measures the costs of returns. `file`: where perf's data lie meanwhile.
pub(super) fn return_costs(driver: &Path, file: &Path) -> Result<ReturnCosts> {
    let mut command = Command::new(driver);
    command.arg("returns");
    let before = hertz();
    let (wrote, text) = recorded(&command, Stdio::null(), file)?;
    let hertz = (before + hertz()) / 2.0;
    ReturnCosts::of(&wrote, &addresses(&text, driver), hertz)
        .with_context(|| format!("{wrote:?} and {} samples give no costs", text.lines().count()))
}

/// Runs a command under `perf record`: what it wrote, and a line with the task, its process and the
/// address of each sample.
fn recorded(driven: &Command, stdin: Stdio, file: &Path) -> Result<(String, String)> {
    let mut command = Command::new("perf");
    // perf may not run before the program has ended: the buffer has room for all its samples.
    command.args(["record", "-q", "-m", "16M", "-e", "cpu-clock", "-F", SAMPLES_A_SECOND]);
    command.arg("-o").arg(file);
    command.arg("--").arg(driven.get_program()).args(driven.get_args());
    command.stdin(stdin).env_clear().envs(ENVIRONMENT);
    let ended = lab::succeeded(&mut command).context(NO_PERF)?;
    let wrote = String::from_utf8_lossy(&ended.stdout).into_owned();
    let mut script = Command::new("perf");
    let ended = lab::succeeded(script.args(["script", "-F", "comm,pid,ip", "-i"]).arg(file))?;
    std::fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
    Ok((wrote, String::from_utf8_lossy(&ended.stdout).into_owned()))
}

/// The addresses of a program's samples in its last process, from the lines of `perf script`: the
/// processes before it ran to warm. The kernel keeps 15 bytes of a task's name.
fn addresses(text: &str, program: &Path) -> Vec<u64> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let name = name.get(..15).unwrap_or(&name);
    let samples = text.lines().filter_map(|line| {
        let (task, ip) = line.trim().rsplit_once(' ')?;
        let (task, process) = task.trim().rsplit_once(' ')?;
        (task.trim() == name).then_some((process, u64::from_str_radix(ip, 16).ok()?))
    });
    let samples: Vec<(&str, u64)> = samples.collect();
    let last = samples.last().map(|(process, _)| *process);
    samples.iter().filter(|(process, _)| last == Some(process)).map(|(_, ip)| *ip).collect()
}

impl Samples {
    fn of(addresses: &[u64]) -> Samples {
        let kernel = addresses.iter().filter(|&ip| ip >> 63 == 1).count();
        Samples { user: (addresses.len() - kernel) as u64, kernel: kernel as u64 }
    }

    pub(super) fn all(self) -> u64 {
        self.user + self.kernel
    }
}

impl ReturnCosts {
    /// The costs from the driver's output and the addresses of its samples, on a core of this
    /// frequency.
    fn of(wrote: &str, samples: &[u64], hertz: f64) -> Option<ReturnCosts> {
        let words = wrote.split_whitespace().map(|word| word.parse().ok());
        let words: Vec<u64> = words.collect::<Option<_>>()?;
        let [pages, touched, calls, called, microseconds] = words[..] else { return None };
        let cycles = microseconds as f64 / 1e6 * hertz;
        let cost = |address, returns| {
            let met = samples.iter().filter(|&&sample| sample == address).count();
            (met > 0).then(|| met as f64 / samples.len() as f64 * cycles / returns as f64)
        };
        Some(ReturnCosts { fault: cost(touched, pages)?, call: cost(called, calls)? })
    }
}

impl std::ops::AddAssign for Samples {
    fn add_assign(&mut self, other: Samples) {
        self.user += other.user;
        self.kernel += other.kernel;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_the_program_count() {
        let text = "perf-exec 6 ffffffff8123\n       cc1   6 55550\n     cc1   7 7ffff7e12345\n\
                    cc1 7 ffffffff81000010\n cc1    7 55555\ncc12 8 55555\n\nnothing\n";
        let of = |text, name| Samples::of(&addresses(text, Path::new(name)));
        assert_eq!(of(text, "/usr/lib/cc1"), Samples { user: 2, kernel: 1 });
        let long = of("a-program-with- 9 12\n", "a-program-with-a-long-name");
        assert_eq!((long.user, long.all()), (1, 1));
    }

    #[test]
    fn a_return_costs_what_its_samples_say() {
        // A second of 1 GHz and ten samples: each stands for 100 million cycles.
        let samples = [16, 16, 16, 32, 48, 48, 48, 48, 48, 48];
        let found = ReturnCosts::of("1000000 16 500000 32 1000000\n", &samples, 1e9);
        assert_eq!(found, Some(ReturnCosts { fault: 300.0, call: 200.0 }));
        assert_eq!(ReturnCosts::of("1000000 16 500000 33 1000000\n", &samples, 1e9), None);
        assert_eq!(ReturnCosts::of("1000000 16\n", &samples, 1e9), None);
    }
}
