//! Samples the kernel about a thousand times a second: stacks of the kernel's code, taken by the
//! CPUs' clocks.
//!
//! Input: a time. Output: stacks of running addresses, the innermost first. This module uses
//! `perf_event_open` with a software event, which every virtual machine has. That is good enough to
//! choose functions, not blocks. It never uses hardware counters.

use anyhow::{Context, Result, bail};
use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag, Sampler};
use std::time::{Duration, Instant};

/// A prime, so that sampling does not beat with the kernel's own clocks.
const HERTZ: u64 = 997;
/// Pages of each CPU's ring, which is read ten times a second: room for the hundred stacks of that
/// time if each has 300 frames.
const RING_PAGES: usize = 64;
const PAGE: usize = 4096;
/// Marks in a stack between its parts (PERF_CONTEXT_…, linux/perf_event.h) are the last page of
/// addresses.
const FIRST_MARK: u64 = -4095i64 as u64;

/// One stack of the kernel, the innermost address first; all but the first are where calls return
/// to.
pub type Stack = Vec<u64>;

/// The result of sampling.
pub struct Samples {
    /// The sampled stacks.
    pub stacks: Vec<Stack>,
    /// Times that the ring was full; some samples are missing then.
    pub lost: u64,
}

/// Samples all CPUs for a while.
///
/// # Errors
/// The kernel does not let this process sample it (root, `perf_event_paranoid`), or the user has
/// interrupted (Ctrl-C).
pub fn sample(time: Duration) -> Result<Samples> {
    let mut samplers = online_cpus()?.into_iter().map(open).collect::<Result<Vec<Sampler>>>()?;
    for sampler in &mut samplers {
        sampler.enable().context("starting the sampling")?;
    }
    let mut samples = Samples { stacks: Vec::new(), lost: 0 };
    let begun = Instant::now();
    while begun.elapsed() < time {
        host::interrupt::check()?;
        std::thread::sleep(Duration::from_millis(100).min(time));
        for sampler in &mut samplers {
            read(sampler, &mut samples)?;
        }
    }
    Ok(samples)
}

fn open(cpu: usize) -> Result<Sampler> {
    let mut builder = Builder::new(Software::CPU_CLOCK);
    builder
        .sample_frequency(HERTZ)
        .sample(SampleFlag::IP | SampleFlag::CALLCHAIN)
        .include_kernel()
        .exclude_user(true)
        .exclude_idle(true)
        .exclude_callchain_user(true)
        .any_pid()
        .one_cpu(cpu);
    let counter = builder.build().with_context(|| {
        format!("sampling CPU {cpu}: this needs root, and a kernel with perf events")
    })?;
    counter.sampled(RING_PAGES * PAGE).with_context(|| format!("mapping the samples of CPU {cpu}"))
}

fn read(sampler: &mut Sampler, samples: &mut Samples) -> Result<()> {
    while let Some(record) = sampler.next_record() {
        match record.parse_record().context("a sample cannot be read")? {
            Record::Sample(sample) => {
                let chain = sample.callchain().unwrap_or_default();
                let stack: Stack = chain.iter().copied().filter(|&at| at < FIRST_MARK).collect();
                if !stack.is_empty() {
                    samples.stacks.push(stack);
                }
            }
            Record::Lost(_) => samples.lost += 1,
            _ => {}
        }
    }
    Ok(())
}

/// `/sys/devices/system/cpu/online`: numbers and ranges, separated by commas.
pub(super) fn online_cpus() -> Result<Vec<usize>> {
    let path = "/sys/devices/system/cpu/online";
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    match cpus(text.trim()) {
        Some(cpus) if !cpus.is_empty() => Ok(cpus),
        _ => bail!("{path}: {text:?} is not a list of CPUs"),
    }
}

fn cpus(list: &str) -> Option<Vec<usize>> {
    let mut found = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.parse().ok()?;
        found.extend(first..=last.parse().ok()?);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpus("0"), Some(vec![0]));
        assert_eq!(cpus("0-2,5,7-8"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(cpus("0-"), None);
        assert_eq!(cpus(""), None);
    }
}
