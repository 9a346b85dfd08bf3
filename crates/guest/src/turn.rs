//! Shorter turns of several CPUs.
//!
//! With `-icount`, QEMU divides the instructions up to its next virtual timer among the CPUs
//! (`icount_percpu_budget()` in `accel/tcg/tcg-accel-ops-icount.c`). So a timer that rings often
//! ends turns early. QEMU's `filter-buffer` has such a timer: it hands on the packets of a network
//! at every interval of the virtual clock (`net/filter-buffer.c`). Here the network is a hub with
//! one port and without a card, so the guest sees nothing of it.
//!
//! Input: the longest turn. Output: arguments for QEMU. This module runs nothing.

use crate::refused::RefusedRequest;
use anyhow::{Result, ensure};
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
}
