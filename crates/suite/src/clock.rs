//! Time: the processor's time stamp counter, and what its ticks are worth.
//!
//! Output: ticks and moments. This module never changes a clock, and never trusts the counter
//! alone: a run compares it with the kernel's monotonic clock from its beginning to its end.

use crate::sys::{Failure, call};
use std::arch::x86_64::{__cpuid, __rdtscp, _mm_lfence};

/// The time stamp counter, read when all earlier instructions are done, before any later one
/// (Intel SDM, volume 2, RDTSCP).
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    let mut cpu = 0;
    // SAFETY: the processor has the instruction: `usable` said so.
    unsafe {
        let now = __rdtscp(&raw mut cpu);
        _mm_lfence();
        now
    }
}

/// Whether the counter can be read as `ticks` does, and whether it runs evenly (CPUID leaves
/// 0x80000001 and 0x80000007).
pub(crate) fn counter() -> Counter {
    let highest = __cpuid(0x8000_0000).eax;
    let edx = |leaf: u32| if highest >= leaf { __cpuid(leaf).edx } else { 0 };
    Counter { usable: edx(0x8000_0001) & (1 << 27) != 0, even: edx(0x8000_0007) & (1 << 8) != 0 }
}

/// The properties of the processor's counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counter {
    pub usable: bool,
    /// The counter does not change its rate with the processor's frequency, and does not stop.
    pub even: bool,
}

/// One moment by both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    ticks: u64,
    nanoseconds: u64,
}

impl Moment {
    /// Reads both clocks. Of several attempts, uses the one with the least time between the two
    /// readings.
    ///
    /// # Errors
    /// The kernel has no monotonic clock.
    pub(crate) fn now() -> Result<Moment, Failure> {
        let mut best = Moment { ticks: 0, nanoseconds: 0 };
        let mut shortest = u64::MAX;
        for _ in 0..10 {
            let before = ticks();
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            call!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time)?;
            let between = ticks().wrapping_sub(before);
            if between < shortest {
                shortest = between;
                best = Moment {
                    ticks: before.wrapping_add(between / 2),
                    nanoseconds: time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64,
                };
            }
        }
        Ok(best)
    }

    /// Nanoseconds since an earlier moment, by the kernel's clock.
    pub(crate) fn nanoseconds_since(self, earlier: Moment) -> u64 {
        self.nanoseconds.saturating_sub(earlier.nanoseconds)
    }

    /// Ticks a nanosecond since an earlier moment.
    pub(crate) fn rate_since(self, earlier: Moment) -> f64 {
        self.ticks.wrapping_sub(earlier.ticks) as f64
            / self.nanoseconds_since(earlier).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_ticks_by_nanoseconds() {
        let earlier = Moment { ticks: 1000, nanoseconds: 500 };
        let later = Moment { ticks: 4000, nanoseconds: 1500 };
        assert_eq!(later.rate_since(earlier), 3.0);
        assert_eq!(later.nanoseconds_since(earlier), 1000);
    }

    #[test]
    fn both_clocks_go_forward() {
        let earlier = Moment::now().unwrap();
        let later = loop {
            let later = Moment::now().unwrap();
            if later.nanoseconds > earlier.nanoseconds {
                break later;
            }
        };
        assert!(later.rate_since(earlier) > 0.0);
        assert!(ticks() > earlier.ticks);
    }
}
