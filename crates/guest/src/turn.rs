//! Shorter turns of several CPUs.
//!
//! With `-icount`, QEMU divides the instructions up to its next virtual timer among the CPUs
//! (`icount_percpu_budget()` in `accel/tcg/tcg-accel-ops-icount.c`). So a timer that rings often
//! ends turns early. QEMU's `filter-buffer` has such a timer: it hands on the packets of a network
//! at every interval of the virtual clock (`net/filter-buffer.c`). Here the network is a hub with
//! one port and without a card, so the guest sees nothing of it.
//!
//! At every ring, QEMU's main thread and the thread of its CPUs wait for each other. On two of the
//! host's CPUs they wake an idle CPU each time, which takes longer than the turn: so QEMU gets one.
//! On an idle virtual machine with two CPUs, workload `files` of Debian's 6.12 on two CPUs, with
//! data and turns of 5000 instructions, took 160 s on both CPUs and 60 s on one.
//!
//! Input: the longest turn. Output: arguments for QEMU, and the host's CPU that it runs on.

use crate::refused::RefusedRequest;
use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::ops::RangeInclusive;
use trace::CpuCount;

/// The longest turns that can be asked for, in instructions. The shortest of them needs eight CPUs.
pub const TURN: RangeInclusive<u32> = 125..=1_000_000;

/// The interval is a whole number of microseconds. With `-icount shift=0` an instruction takes a
/// nanosecond.
const INSTRUCTIONS_IN_A_MICROSECOND: u32 = 1000;

/// What the arguments name: an option of QEMU, and a line of the option's help.
pub(crate) const NEEDED: [(&str, &str); 2] = [("-netdev", "hubport"), ("-object", "filter-buffer")];

/// Whether QEMU's timer can end turns after this number of instructions.
///
/// # Errors
/// There is one CPU, or the turn is too short for the number of CPUs.
pub fn check_turn(turn: u32, cpus: CpuCount) -> Result<()> {
    interval(turn, cpus.get().into()).map(drop)
}

/// The microseconds after which the timer rings, so that no CPU executes more than `turn`
/// instructions while another one waits.
fn interval(turn: u32, cpus: u32) -> Result<u32> {
    ensure!(cpus > 1, RefusedRequest::TurnsOfOneCpu(turn));
    let interval = turn.saturating_mul(cpus) / INSTRUCTIONS_IN_A_MICROSECOND;
    ensure!(
        interval > 0,
        "turns of {turn} instructions: with {cpus} CPUs, the shortest turn is {} instructions, \
         because QEMU's timer counts microseconds of 1000 instructions and all CPUs share them",
        INSTRUCTIONS_IN_A_MICROSECOND.div_ceil(cpus)
    );
    Ok(interval)
}

/// The arguments that shorten turns: option and value.
///
/// # Errors
/// As [`check_turn`].
pub(crate) fn arguments(turn: u32, cpus: u32) -> Result<[(&'static str, String); 2]> {
    let [(netdev, port), (object, filter)] = NEEDED;
    Ok([
        (netdev, format!("{port},id=no-network,hubid=0")),
        (object, format!("{filter},id=turns,netdev=no-network,interval={}", interval(turn, cpus)?)),
    ])
}

/// While it lives, this thread and the processes that it starts run on one of the host's CPUs. When
/// it is dropped, the thread may run again where it might before; the processes stay.
pub(crate) struct OneHostCpu(CpuSet);

impl OneHostCpu {
    /// Takes the CPU on which this thread is now.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn take() -> Result<Self> {
        let doing = "giving QEMU one CPU of this machine";
        let before = sched_getaffinity(None).context(doing)?;
        let mut one = CpuSet::new();
        one.set(sched_getcpu());
        sched_setaffinity(None, &one).context(doing)?;
        Ok(Self(before))
    }
}

impl Drop for OneHostCpu {
    fn drop(&mut self) {
        // The same CPUs were allowed before. If some are offline since then, those left are meant.
        let _ = sched_setaffinity(None, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpus_share_the_interval() {
        for (turn, cpus, expected) in
            [(1000, 4, 4), (1000, 2, 2), (250, 4, 1), (125, 8, 1), (25_000, 4, 100), (999, 3, 2)]
        {
            assert_eq!(interval(turn, cpus).unwrap(), expected, "{turn} on {cpus}");
        }
        assert_eq!(interval(*TURN.end(), CpuCount::MOST.into()).unwrap(), 8000);
        assert!(interval(*TURN.start(), CpuCount::MOST.into()).is_ok());
    }

    #[test]
    fn turns_of_one_cpu_and_turns_that_are_too_short_are_refused_by_name() {
        let refused = |turn, cpus| interval(turn, cpus).unwrap_err().to_string();
        assert!(refused(1000, 1).contains("one CPU takes no turns"));
        let message = refused(249, 4);
        assert!(message.contains("with 4 CPUs, the shortest turn is 250"), "{message}");
        assert!(interval(250, 4).is_ok());
        let message = refused(333, 3);
        assert!(message.contains("the shortest turn is 334"), "{message}");
        assert!(interval(334, 3).is_ok());
    }

    #[test]
    fn what_is_started_meanwhile_keeps_one_cpu_of_the_host() {
        let before = sched_getaffinity(None).unwrap();
        let one = OneHostCpu::take().unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        drop(one);
        let of_child =
            sched_getaffinity(rustix::process::Pid::from_raw(child.id() as i32)).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(of_child.count(), 1);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
