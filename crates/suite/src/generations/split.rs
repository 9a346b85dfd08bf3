//! Splits a speedup into technology and architecture.
//!
//! Input: two results and the ratio of technology. Output: P, T and A (Nellans 2005, section 3).
//! This module prints nothing.

use super::nellans;
use crate::compare::comparable;
use crate::result::{MeasuredRounds, Results};
use crate::statistics::compare;
use serde::Serialize;

/// How many times faster, and the ends of the 95 % interval.
pub(crate) type Speedup = [f64; 3];

/// One of our benchmarks on both machines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Pair {
    pub benchmark: &'static str,
    /// Nanoseconds an operation, on the older and on the newer machine.
    pub nanoseconds: [f64; 2],
    /// P.
    pub speedup: Speedup,
    /// A = P / T.
    pub architecture: Speedup,
}

/// A row of table 3.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Program {
    /// The paper's program, and its speedups by real, user and system time.
    pub nellans: Option<(&'static str, [f64; 3])>,
    #[serde(flatten)]
    pub real: Pair,
    /// P of the time in user mode, and of the time in the kernel; `None`: too short for the
    /// kernel's ticks.
    pub user: Option<f64>,
    pub system: Option<f64>,
}

/// A row of table 4.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SystemCall {
    /// The paper's system call, its speedup and its speedup by architecture.
    pub nellans: (&'static str, [f64; 2]),
    #[serde(flatten)]
    pub ours: Pair,
}

/// A bar of figure 1: a switch at the newer machine's technology.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Switch {
    #[serde(flatten)]
    pub ours: Pair,
    /// Nanoseconds of the older machine, divided by T, and nanoseconds of the newer machine.
    pub normalized: [f64; 2],
}

/// P, T and A of a group of rows: P is the mean of their speedups, as in the paper.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Share {
    pub rows: usize,
    pub speedup: f64,
    pub technology: f64,
    pub architecture: f64,
}

/// Two generations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Generations {
    pub technology: f64,
    /// The processors, the older first.
    pub processors: [Option<String>; 2],
    pub kernels: [String; 2],
    pub programs: Vec<Program>,
    /// The shares of the rows that stand for the paper's: whole programs by real time, and their
    /// part in the kernel.
    pub whole: Option<Share>,
    pub kernel: Option<Share>,
    pub calls: Vec<SystemCall>,
    /// The geometric mean of all benchmarks of system calls.
    pub all_calls: Option<Share>,
    pub switches: Vec<Switch>,
    /// The missing rows, and the reasons.
    pub left_out: Vec<(String, String)>,
    pub warnings: [Vec<String>; 2],
}

impl Generations {
    /// `results`: the older machine's, and the newer one's. `technology`: T, above zero.
    pub(crate) fn new(results: [&Results; 2], technology: f64) -> Generations {
        let mut left_out = Vec::new();
        let mut pair = |name: &'static str| match comparable(results, name) {
            Ok((measured, [old, new])) => {
                let [middle, low, high] = compare(&old, &new).ratio;
                let speedup = [middle, high, low].map(|ratio| 1.0 / (1.0 + ratio));
                let pair = Pair {
                    benchmark: name,
                    nanoseconds: measured.map(|measured| measured.nanoseconds),
                    speedup,
                    architecture: speedup.map(|speedup| speedup / technology),
                };
                Some((pair, measured))
            }
            Err(why) => {
                left_out.push((name.to_owned(), why));
                None
            }
        };
        let programs: Vec<Program> = nellans::PROGRAMS
            .iter()
            .filter_map(|(name, theirs)| {
                let (real, measured) = pair(name)?;
                let [user, system] = [0, 1].map(|mode| mode_speedup(measured, mode));
                Some(Program {
                    nellans: theirs.and_then(papers::nellans::program),
                    real,
                    user,
                    system,
                })
            })
            .collect();
        let calls: Vec<SystemCall> = nellans::CALLS
            .iter()
            .filter_map(|(name, theirs)| {
                let (ours, _) = pair(name)?;
                Some(SystemCall { nellans: papers::nellans::call(theirs)?, ours })
            })
            .collect();
        let switches: Vec<Switch> = nellans::SWITCHES
            .iter()
            .filter_map(|name| {
                let (ours, _) = pair(name)?;
                let [old, new] = ours.nanoseconds;
                Some(Switch { ours, normalized: [old / technology, new] })
            })
            .collect();
        let his = || programs.iter().filter(|program| program.nellans.is_some());
        let share = |speedups: Vec<f64>| {
            let rows = speedups.len();
            let speedup = speedups.iter().sum::<f64>() / rows as f64;
            let architecture = speedup / technology;
            (rows > 0).then_some(Share { rows, speedup, technology, architecture })
        };
        let whole = share(his().map(|program| program.real.speedup[0]).collect());
        let kernel = share(his().filter_map(|program| program.system).collect());
        let logs: Vec<f64> = calls.iter().map(|call| call.ours.speedup[0].ln()).collect();
        let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
        let all_calls = share(if logs.is_empty() { Vec::new() } else { vec![mean] })
            .map(|share| Share { rows: logs.len(), ..share });
        Generations {
            technology,
            processors: results.map(|results| results.conditions.processor.clone()),
            kernels: results.map(|results| results.conditions.kernel_release.clone()),
            whole,
            kernel,
            programs,
            calls,
            all_calls,
            switches,
            left_out,
            warnings: results.map(|results| results.conditions.warnings.clone()),
        }
    }
}

/// The least time in a mode from which a speedup is made, in seconds: 10 ticks of the slowest
/// kernels.
const LEAST_SECONDS: f64 = 0.1;

/// P of the time in one mode: the share of the mode, times the time of an operation.
fn mode_speedup(measured: [&MeasuredRounds; 2], mode: usize) -> Option<f64> {
    let time = |measured: &MeasuredRounds| {
        let seconds = measured.processor_seconds?;
        let share = seconds[mode] / (seconds[0] + seconds[1]);
        (seconds[mode] >= LEAST_SECONDS).then_some(measured.nanoseconds * share)
    };
    Some(time(measured[0])? / time(measured[1])?)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::list;
    use crate::result::Outcome;
    use crate::result::examples::{entry, results};

    /// A run in which every benchmark takes `nanoseconds`, with these seconds in both modes.
    pub(in crate::generations) fn run(nanoseconds: f64, seconds: [f64; 2]) -> Results {
        let mut run = results(
            list::all().iter().map(|benchmark| entry(benchmark.name, nanoseconds, 0.5)).collect(),
        );
        for entry in &mut run.benchmarks {
            let Outcome::Measured(measured) = &mut entry.outcome else { panic!() };
            measured.processor_seconds = Some(seconds);
        }
        run.conditions.processor = Some(format!("processor of {nanoseconds} ns"));
        run
    }

    #[test]
    fn the_parts_multiply_to_the_whole() {
        // 20 times faster; the kernel's share went from a fifth to a half, so it is 8 times faster
        // and the user's part 32 times.
        let generations =
            Generations::new([&run(2000.0, [4.0, 1.0]), &run(100.0, [2.0, 2.0])], 4.0);
        assert!(generations.left_out.is_empty());
        let near = |got: f64, expected: f64| assert!((got / expected - 1.0).abs() < 1e-9, "{got}");
        let [whole, kernel, calls] =
            [generations.whole, generations.kernel, generations.all_calls].map(Option::unwrap);
        for (share, speedup) in [(whole, 20.0), (kernel, 8.0), (calls, 20.0)] {
            near(share.speedup, speedup);
            near(share.technology * share.architecture, share.speedup);
        }
        assert_eq!((whole.rows, calls.rows), (5, 25));
        let program = &generations.programs[0];
        near(program.user.unwrap(), 32.0);
        let [speedup, low, high] = program.real.speedup;
        assert!(low < speedup && speedup < high);
        let [old, new] = generations.switches[0].normalized;
        near(old / new, 5.0);
    }

    #[test]
    fn what_is_missing_is_named_and_short_times_give_no_split() {
        let mut old = run(200.0, [0.5, 0.05]);
        old.benchmarks.retain(|entry| !["call/brk", "user/place"].contains(&entry.name.as_str()));
        let mut new = run(100.0, [0.5, 0.5]);
        for entry in &mut new.benchmarks {
            entry.version += u32::from(entry.name == "call/fcntl");
        }
        let generations = Generations::new([&old, &new], 2.0);
        let said: Vec<String> =
            generations.left_out.iter().map(|(name, why)| format!("{name}: {why}")).collect();
        assert_eq!(
            said,
            [
                "user/place: before: not in this result",
                "call/brk: before: not in this result",
                "call/fcntl: version 1 before, version 2 after"
            ]
        );
        assert!(generations.programs.iter().all(|p| p.user.is_some() && p.system.is_none()));
        assert_eq!(generations.kernel, None);
        let nothing = Generations::new([&results(vec![]), &results(vec![])], 2.0);
        assert_eq!((nothing.whole, nothing.all_calls), (None, None));
    }

    #[test]
    fn every_row_of_the_paper_has_a_benchmark() {
        let names = nellans::PROGRAMS.iter().map(|(name, _)| name);
        let names = names.chain(nellans::CALLS.iter().map(|(name, _)| name));
        for name in names.chain(nellans::SWITCHES) {
            assert!(list::named(name).is_some(), "{name}");
        }
        let programs = nellans::PROGRAMS.iter().filter_map(|(_, theirs)| *theirs);
        assert!(programs.eq(papers::nellans::PROGRAMS.map(|(name, _)| name)));
        let calls = nellans::CALLS.iter().map(|(_, theirs)| *theirs);
        assert!(calls.eq(papers::nellans::CALLS.map(|(name, _)| name)));
    }
}
