//! The processor of this machine: its name, its frequency, and the time that it gave to programs.
//!
//! Output: numbers. This module decides nothing about them.

use anyhow::{Context, Result, ensure};
use std::arch::asm;
use std::arch::x86_64::{__rdtscp, _mm_lfence};
use std::fs;
use std::time::Instant;

/// What `/proc/cpuinfo` says of the first CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processor {
    pub vendor: String,
    pub family: u32,
    pub model: u32,
    pub name: String,
}

impl std::fmt::Display for Processor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (family {}, model {})", self.name, self.family, self.model)
    }
}

impl Processor {
    /// The processor of this machine.
    ///
    /// # Errors
    /// `/proc/cpuinfo` cannot be read.
    pub fn here() -> Result<Processor> {
        let text = fs::read_to_string("/proc/cpuinfo").context("reading /proc/cpuinfo")?;
        Ok(Processor::parse(&text))
    }

    fn parse(text: &str) -> Processor {
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let found = lines.find(|(key, _)| key.trim() == name);
            found.map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        let name = field("model name");
        Processor {
            vendor: field("vendor_id"),
            family: field("cpu family").parse().unwrap_or(0),
            model: field("model").parse().unwrap_or(0),
            name: if name.is_empty() { "unknown".to_owned() } else { name },
        }
    }
}

/// What `work` gives, and the seconds that the programs which it ran had on processors in user
/// mode.
///
/// # Errors
/// As `work`; the kernel does not say.
pub fn user_seconds<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let before = ended_children_seconds()?;
    let done = work()?;
    Ok((done, ended_children_seconds()? - before))
}

/// The time that all children that have ended had on processors in user mode.
fn ended_children_seconds() -> Result<f64> {
    // SAFETY: the structure has only numbers, and the kernel writes all of it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        ensure!(libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) == 0, "getrusage failed");
        usage
    };
    let time = usage.ru_utime;
    Ok(time.tv_sec as f64 + time.tv_usec as f64 / 1e6)
}

/// Lets this thread, and the processes that it starts, run on one CPU only.
///
/// # Errors
/// There is no such CPU, or this process may not run on it.
pub fn pin(cpu: usize) -> Result<()> {
    // SAFETY: the set is a plain structure of this function, and CPU_SET writes within it.
    let pinned = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        ensure!(cpu < 8 * size_of::<libc::cpu_set_t>(), "there is no CPU {cpu}");
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    ensure!(pinned == 0, "this process cannot be pinned to CPU {cpu}");
    Ok(())
}

/// The last CPU on which this process may run.
///
/// # Errors
/// The kernel does not say.
pub fn last_cpu() -> Result<usize> {
    // SAFETY: as in `pin`; the kernel writes the set.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let got = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        ensure!(got == 0, "the CPUs of this process are unknown");
        set
    };
    // SAFETY: `cpu` is below the number of bits in the set.
    let allowed = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    let last = (0..8 * size_of::<libc::cpu_set_t>()).rev().find(allowed);
    last.context("this process may run on no CPU")
}

/// The length of a chain, in cycles (`bare/timing.h` has the same).
pub const CHAIN: u32 = 64_000;
/// Two chains that differ more than this share were disturbed.
pub const STEADY: f64 = 0.03;

/// The core cycles of one run of a slice, from a line of a program that times itself: its runs, the
/// ticks of the time stamp counter, those of a chain before and behind (`bare/timing.h`), and how
/// often the kernel gave the processor to another program. `Some(None)`: the slice was disturbed.
///
/// The counter does not run at the core's frequency, and that frequency changes. The chains say how
/// many ticks a cycle takes now.
pub(crate) fn slice_cycles(line: &str) -> Option<Option<f64>> {
    let numbers: Option<Vec<f64>> = line.split(' ').map(|word| word.parse().ok()).collect();
    let [repeats, ticks, before, behind, switches] = numbers?[..] else { return None };
    Some(cycles(repeats, ticks, before, behind).filter(|_| switches == 0.0))
}

/// The core cycles of one of `repeats`, of the ticks of all of them and of a chain before and
/// behind; `None`: the frequency changed.
pub fn cycles(repeats: f64, ticks: f64, before: f64, behind: f64) -> Option<f64> {
    let steady = (before / behind - 1.0).abs() <= STEADY;
    let ticks_per_cycle = (before + behind) / 2.0 / f64::from(CHAIN);
    steady.then(|| ticks / ticks_per_cycle / repeats)
}

/// The chains of which the fastest counts: an interrupt makes others longer.
const CHAINS: u32 = 8;

/// Cycles of the core in a second, at this moment: by a chain of dependent additions, one a cycle.
pub fn hertz() -> f64 {
    let seconds = (0..CHAINS).map(|_| {
        let begun = Instant::now();
        chain();
        begun.elapsed().as_secs_f64()
    });
    f64::from(CHAIN) / seconds.fold(f64::INFINITY, f64::min)
}

/// The ticks of a chain.
pub fn chain_ticks() -> u64 {
    let begun = ticks();
    chain();
    ticks() - begun
}

/// Ticks of the time stamp counter in a nanosecond.
pub fn ticks_per_nanosecond() -> f64 {
    let (begun, first) = (Instant::now(), ticks());
    while begun.elapsed().as_millis() < 5 {
        chain();
    }
    (ticks() - first) as f64 / begun.elapsed().as_nanos() as f64
}

/// The time stamp counter, behind all earlier instructions and before all later ones.
fn ticks() -> u64 {
    // SAFETY: every 64-bit processor has the instructions; they change nothing else.
    unsafe {
        let now = __rdtscp(&mut 0);
        _mm_lfence();
        now
    }
}

fn chain() {
    // SAFETY: the instructions change registers only, and those are named.
    unsafe {
        asm!(
            ".balign 64",
            "2:",
            ".rept 64",
            "add {sum}, {one}",
            ".endr",
            "dec {left:e}",
            "jnz 2b",
            sum = inout(reg) 0_u64 => _,
            one = in(reg) 1_u64,
            left = inout(reg) CHAIN / 64 => _,
            options(nomem, nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_processor_is_named() {
        let text = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n\
                    model name\t: AMD EPYC\n\nprocessor\t: 1\nmodel\t\t: 18\n";
        let expected = Processor {
            vendor: "AuthenticAMD".to_owned(),
            family: 25,
            model: 17,
            name: "AMD EPYC".to_owned(),
        };
        assert_eq!(Processor::parse(text), expected);
        assert_eq!(Processor::parse("").name, "unknown");
    }

    #[test]
    fn the_time_of_a_program_is_counted_when_it_has_ended() {
        let busy = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";
        let status = || Ok(std::process::Command::new("sh").args(["-c", busy]).status()?);
        let (status, seconds) = user_seconds(status).unwrap();
        assert!(status.success() && seconds > 0.0, "{seconds}");
    }

    #[test]
    fn a_slice_is_in_core_cycles() {
        // Two ticks for each of three cycles.
        assert_eq!(slice_cycles("2 1000 42667 42666 0").unwrap().map(f64::round), Some(750.0));
        assert_eq!(slice_cycles("2 1000 42667 52666 0"), Some(None));
        assert_eq!(slice_cycles("2 1000 42667 42666 1"), Some(None));
        assert_eq!(slice_cycles("2 1000 42667"), None);
        assert_eq!(slice_cycles("much"), None);
    }

    #[test]
    fn this_machine_has_a_frequency_and_a_cpu() {
        assert!(hertz() > 1e6);
        assert!(chain_ticks() > 1000 && ticks_per_nanosecond() > 0.1);
        let cpu = last_cpu().unwrap();
        std::thread::spawn(move || pin(cpu).unwrap()).join().unwrap();
        assert!(pin(1 << 20).is_err());
    }
}
