//! Installs and undoes a group again and again, before a kernel is trusted with it.
//!
//! Input: a prepared group. Output: how often tasks held it up, and the processor time of each
//! step. Leaves the kernel original.

use crate::device::{Device, Undone};
use crate::group::Group;
use crate::identity::GroupId;
use crate::install::{self, PreparedGroup, Unloaded, processor_time};
use crate::turn::Turn;
use anyhow::{Result, ensure};
use std::fmt;
use std::time::{Duration, Instant};

/// How long the load runs in the copies.
const STAY: Duration = Duration::from_millis(50);
/// How long tasks may take to leave the copies.
const LEAVE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// What the cycles took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cycles {
    /// The number of cycles in which a task in a copy held up the removal of the module.
    pub held_up: u32,
    /// Processor time for loading the module.
    pub loading: Spent,
    /// Processor time for patching.
    pub patching: Spent,
    /// Processor time for undoing, and for removing the module.
    pub undoing: Spent,
}

/// The processor time that a step took over all cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    sum: Duration,
    most: Duration,
    times: u32,
}

impl Spent {
    /// Adds the time of one cycle.
    pub fn add(&mut self, time: Duration) {
        self.sum += time;
        self.most = self.most.max(time);
        self.times += 1;
    }

    /// The mean; zero without a cycle.
    pub fn mean(&self) -> Duration {
        self.sum / self.times.max(1)
    }

    /// The longest time; zero without a cycle.
    pub fn most(&self) -> Duration {
        self.most
    }
}

/// A task has been in a copy since its group was undone, and the program no longer waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStays {
    /// The name of the group's module.
    pub module: String,
    /// How long the program has waited.
    pub waited: Duration,
}

impl fmt::Display for TaskStays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: every byte is restored, but for {} s some task has been in a copy; a later undo \
             removes the module when it has gone",
            self.module,
            self.waited.as_secs()
        )
    }
}

impl std::error::Error for TaskStays {}

/// Installs and undoes a group `count` times. Calls `told` after each cycle. `turn`: the turn in
/// which the module's name was found to be free.
///
/// # Errors
/// The group cannot be installed or undone; a task stays in a copy for a minute ([`TaskStays`]); or
/// Ctrl-C came. A group that could not be undone stays installed.
pub fn run(
    prepared: &PreparedGroup,
    group: &Group<'_, '_>,
    device: &Device,
    count: u32,
    turn: &Turn,
    told: &mut dyn FnMut(),
) -> Result<Cycles> {
    let mut cycles = Cycles::default();
    for _ in 0..count {
        host::interrupt::check()?;
        let installed = prepared.install(group, device, turn)?;
        std::thread::sleep(STAY);
        let begun = processor_time();
        cycles.held_up += u32::from(!left(device, &prepared.id, turn)?);
        cycles.loading.add(installed.loading);
        cycles.patching.add(installed.patching);
        cycles.undoing.add(processor_time() - begun);
        told();
    }
    Ok(cycles)
}

/// Undoes a group and waits until no task is in its copies. Returns whether that was so at once.
fn left(device: &Device, id: &GroupId, turn: &Turn) -> Result<bool> {
    let undone = device.undo(id)?;
    until_removed(&id.module, undone, LEAVE, &mut || install::unload(&id.module, turn))
}

/// Calls `unload` until no task holds the module; for up to `limit`. Returns whether none did from
/// the start: then undoing found no task in a copy, and the first call removed the module.
fn until_removed(
    name: &str,
    undone: Undone,
    limit: Duration,
    unload: &mut dyn FnMut() -> Result<Unloaded>,
) -> Result<bool> {
    if undone != Undone::Stays && unload()? != Unloaded::InUse {
        return Ok(true);
    }
    let begun = Instant::now();
    while unload()? == Unloaded::InUse {
        ensure!(begun.elapsed() < limit, TaskStays { module: name.to_owned(), waited: limit });
        std::thread::sleep(POLL);
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_most_are_those_of_the_times() {
        let mut spent = Spent::default();
        assert_eq!((spent.mean(), spent.most()), (Duration::ZERO, Duration::ZERO));
        for microseconds in [500, 4000, 1500] {
            spent.add(Duration::from_micros(microseconds));
        }
        let expected = (Duration::from_micros(2000), Duration::from_micros(4000));
        assert_eq!((spent.mean(), spent.most()), expected);
    }

    /// What waiting gives, and how often it asked, if a task is in a copy at the first `busy`
    /// requests.
    fn waited(undone: Undone, busy: u32, limit: Duration) -> (Result<bool, String>, u32) {
        let mut asked = 0;
        let waited = until_removed("kernlane_1", undone, limit, &mut || {
            asked += 1;
            Ok(if asked > busy { Unloaded::Removed } else { Unloaded::InUse })
        });
        (waited.map_err(|error| error.to_string()), asked)
    }

    #[test]
    fn a_task_in_a_copy_is_waited_for_and_not_for_ever() {
        assert_eq!(waited(Undone::Clean, 0, LEAVE), (Ok(true), 1));
        // A task was in a copy when the group was undone: that is held up, whoever has left since.
        assert_eq!(waited(Undone::Stays, 0, LEAVE), (Ok(false), 1));
        assert_eq!(waited(Undone::Clean, 2, LEAVE), (Ok(false), 3));
        let (never, asked) = waited(Undone::Clean, u32::MAX, Duration::ZERO);
        assert_eq!(asked, 2);
        let expected = "kernlane_1: every byte is restored, but for 0 s some task has been in a \
                        copy; a later undo removes the module when it has gone";
        assert_eq!(never, Err(expected.to_owned()));
    }
}
