//! Whether the instruction cache is a bottleneck: the question with which the paper begins (Tamches
//! 2001, section 2.1.1).
//!
//! Input: a time. Output: for each event, what the CPUs' hardware counters counted in the kernel
//! during this time, or why they did not count; and the answer, if the counts give one. Many
//! virtual machines have no such counters. Then this module gives no answer, and does not guess.

use crate::sample::online_cpus;
use anyhow::Result;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware};
use perf_event::{Builder, Counter, ReadFormat};
use std::fmt;
use std::time::{Duration, Instant};

/// The part of the kernel's cycles spent waiting for instructions above which code positioning is
/// worthwhile (section 2.1.1's default).
const THRESHOLD: f64 = 0.10;
/// The assumed cycles of an L1I miss that hits the L2, for machines that do not count the cycles
/// that the front end waits.
const MISS_CYCLES: f64 = 14.0;

/// An event, by the name that perf has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Cycles,
    Instructions,
    FrontendStalls,
    L1iMisses,
}

const EVENTS: [Event; 4] =
    [Event::Cycles, Event::Instructions, Event::FrontendStalls, Event::L1iMisses];

impl Event {
    fn name(self) -> &'static str {
        match self {
            Event::Cycles => "cycles",
            Event::Instructions => "instructions",
            Event::FrontendStalls => "stalled-cycles-frontend",
            Event::L1iMisses => "L1-icache-load-misses",
        }
    }

    fn builder(self) -> Builder<'static> {
        match self {
            Event::Cycles => Builder::new(Hardware::CPU_CYCLES),
            Event::Instructions => Builder::new(Hardware::INSTRUCTIONS),
            Event::FrontendStalls => Builder::new(Hardware::STALLED_CYCLES_FRONTEND),
            Event::L1iMisses => Builder::new(Cache {
                which: CacheId::L1I,
                operation: CacheOp::READ,
                result: CacheResult::MISS,
            }),
        }
    }
}

/// The counts of the kernel on all CPUs together, in the order of `EVENTS`. An event that was not
/// counted has the reason.
pub struct Counts {
    time: Duration,
    events: [std::result::Result<u64, String>; 4],
}

/// The answer of the counters.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The part of the kernel's cycles in which the CPUs waited for instructions.
    Share {
        /// The part, 0 to 1.
        share: f64,
        /// Whether the machine counted these cycles. Otherwise they are computed from misses at an
        /// assumed cost.
        counted: bool,
    },
    /// The counters do not show it.
    Unknown,
}

/// Counts for a while.
///
/// # Errors
/// The CPUs are not known, or the user has interrupted (Ctrl-C). An event that the machine does not
/// count is not an error.
pub fn count(time: Duration) -> Result<Counts> {
    let cpus = online_cpus()?;
    let mut opened = EVENTS.map(|event| open(event, &cpus));
    for counter in opened.iter_mut().flatten().flatten() {
        counter.enable()?;
    }
    let begun = Instant::now();
    while opened.iter().any(std::result::Result::is_ok) && begun.elapsed() < time {
        host::interrupt::check()?;
        std::thread::sleep(Duration::from_millis(100).min(time));
    }
    let read = |counters: std::result::Result<Vec<Counter>, String>| {
        let mut sum = 0;
        for mut counter in counters? {
            counter.disable().map_err(|error| error.to_string())?;
            sum += scaled(&mut counter)?;
        }
        Ok(sum)
    };
    Ok(Counts { time, events: opened.map(read) })
}

fn open(event: Event, cpus: &[usize]) -> std::result::Result<Vec<Counter>, String> {
    let open = |&cpu: &usize| {
        let mut builder = event.builder();
        builder
            .read_format(ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING)
            .include_kernel()
            .exclude_user(true)
            .exclude_idle(true)
            .any_pid()
            .one_cpu(cpu);
        builder.build().map_err(|error| error.to_string())
    };
    cpus.iter().map(open).collect()
}

/// If there are more events than counters, the kernel counts the events in turns, and reports for
/// how long it counted each.
fn scaled(counter: &mut Counter) -> std::result::Result<u64, String> {
    let read = counter.read_full().map_err(|error| error.to_string())?;
    match (read.time_enabled(), read.time_running()) {
        (Some(enabled), Some(running)) if running.is_zero() && !enabled.is_zero() => {
            Err("no counter was free".into())
        }
        (Some(enabled), Some(running)) if running < enabled => {
            Ok((read.count() as f64 * enabled.as_secs_f64() / running.as_secs_f64()) as u64)
        }
        _ => Ok(read.count()),
    }
}

impl Counts {
    fn of(&self, event: Event) -> Option<u64> {
        let at = EVENTS.iter().position(|&known| known == event)?;
        self.events[at].as_ref().ok().copied()
    }

    /// Whether the instruction cache is a bottleneck, as far as the counts show it.
    pub fn answer(&self) -> Answer {
        let Some(cycles) = self.of(Event::Cycles).filter(|&cycles| cycles > 0) else {
            return Answer::Unknown;
        };
        let share = |waited: f64, counted| Answer::Share { share: waited / cycles as f64, counted };
        match (self.of(Event::FrontendStalls), self.of(Event::L1iMisses)) {
            (Some(stalls), _) => share(stalls as f64, true),
            (None, Some(misses)) => share(misses as f64 * MISS_CYCLES, false),
            (None, None) => Answer::Unknown,
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "is the instruction cache a bottleneck of the kernel? ")?;
        match self.answer() {
            Answer::Unknown => write!(f, "the hardware counters do not tell")?,
            Answer::Share { share, counted } => {
                let answer = if share > THRESHOLD { "yes" } else { "no" };
                let how = match counted {
                    true => "the front end waits",
                    false => "L1I misses, at 14 cycles each (assumed), keep it waiting",
                };
                let part = 100.0 * share;
                write!(
                    f,
                    "{answer}: {how} for {part:.1} % of its cycles (limit {:.0} %)",
                    100.0 * THRESHOLD
                )?;
            }
        }
        let seconds = self.time.as_secs_f32();
        for (event, count) in EVENTS.iter().zip(&self.events) {
            match count {
                Ok(count) => {
                    write!(f, "\n{count:>16}  {} in {seconds} s, kernel only", event.name())?
                }
                Err(reason) => write!(f, "\n{:>16}  {}: {reason}", "-", event.name())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(counted: [Option<u64>; 4]) -> Counts {
        Counts {
            time: Duration::from_secs(1),
            events: counted.map(|count| count.ok_or_else(|| "no such event".to_owned())),
        }
    }

    #[test]
    fn stalls_come_before_misses_and_nothing_is_made_up() {
        let share = |share, counted| Answer::Share { share, counted };
        let all = counts([Some(1000), Some(700), Some(250), Some(10)]);
        assert_eq!(all.answer(), share(0.25, true));
        assert!(
            all.to_string()
                .contains("yes: the front end waits for 25.0 % of its cycles (limit 10 %)")
        );
        let misses = counts([Some(1000), Some(700), None, Some(5)]);
        assert_eq!(misses.answer(), share(0.07, false));
        assert!(
            misses
                .to_string()
                .contains("no: L1I misses, at 14 cycles each (assumed), keep it waiting for 7.0 %")
        );
        assert!(misses.to_string().contains("stalled-cycles-frontend: no such event"));
        for none in
            [[None; 4], [None, Some(1), Some(1), Some(1)], [Some(0), Some(0), Some(0), Some(0)]]
        {
            assert_eq!(counts(none).answer(), Answer::Unknown);
            assert!(counts(none).to_string().contains("the hardware counters do not tell"));
        }
    }
}
