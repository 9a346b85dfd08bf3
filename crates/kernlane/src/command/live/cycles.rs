//! `kernlane live apply --cycles N`: a group is installed and undone again and again, before a
//! kernel is trusted with it.
//!
//! Input: a prepared group. Output: how often tasks held it up, and the processor time of each
//! step. Leaves the kernel original.

use anyhow::{Result, ensure};
use host::outln;
use host::progress::Progress;
use live::device::{Device, Undone};
use live::group::Group;
use live::identity::GroupId;
use live::install::{self, PreparedGroup, Unloaded, processor_time};
use live::turn::Turn;
use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long the load runs in the copies.
const STAY: Duration = Duration::from_millis(50);
/// How long tasks may take to leave the copies.
const LEAVE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

pub(super) fn run(
    group: &Group<'_, '_>,
    prepared: &PreparedGroup,
    device: &Device,
    cycles: u32,
    turn: &Turn,
) -> Result<ExitCode> {
    host::interrupt::catch()?;
    let progress = Progress::of(cycles.into(), "cycles of installing and undoing");
    let (mut loading, mut patching, mut undoing) =
        (Spent::default(), Spent::default(), Spent::default());
    let mut held_up = 0;
    for _ in 0..cycles {
        host::interrupt::check()?;
        let installed = prepared.install(group, device, turn)?;
        std::thread::sleep(STAY);
        let begun = processor_time();
        held_up += u32::from(!left(device, &prepared.id, turn)?);
        loading.add(installed.loading);
        patching.add(installed.patching);
        undoing.add(processor_time() - begun);
        progress.advance(1);
    }
    drop(progress);
    outln!("installed and undone {cycles} times; a task in a copy held up {held_up} of them")?;
    outln!("processor time, ms     mean     most")?;
    for (step, spent) in
        [("loading the module", loading), ("patching", patching), ("undoing", undoing)]
    {
        outln!("{step:18} {spent}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Undoes a group and waits until no task is in its copies. Returns whether that was so at once.
fn left(device: &Device, id: &GroupId, turn: &Turn) -> Result<bool> {
    let name = &id.module;
    if device.undo(id)? != Undone::Stays && install::unload(name, turn)? != Unloaded::InUse {
        return Ok(true);
    }
    let begun = Instant::now();
    while install::unload(name, turn)? == Unloaded::InUse {
        ensure!(
            begun.elapsed() < LEAVE,
            "{name}: every byte is restored, but for {} s some task has been in a copy; `kernlane \
             live undo` removes the module when it has gone",
            LEAVE.as_secs()
        );
        std::thread::sleep(POLL);
    }
    Ok(false)
}

#[derive(Default)]
struct Spent {
    sum: Duration,
    most: Duration,
    times: u32,
}

impl Spent {
    fn add(&mut self, time: Duration) {
        self.sum += time;
        self.most = self.most.max(time);
        self.times += 1;
    }
}

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        write!(f, "{:>8.2} {:>8.2}", ms(self.sum / self.times.max(1)), ms(self.most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_most_are_in_milliseconds() {
        let mut spent = Spent::default();
        assert_eq!(spent.to_string(), "    0.00     0.00");
        for microseconds in [500, 1500, 4000] {
            spent.add(Duration::from_micros(microseconds));
        }
        assert_eq!(spent.to_string(), "    2.00     4.00");
    }
}
