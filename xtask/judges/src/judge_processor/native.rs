//! Figures of the processor: slices of points and runs of programs, in core cycles.
//!
//! Input: programs. Output: the values of single rounds. `statistics` of the suite makes intervals
//! of them.
//!
//! Others may use the core's second thread, the L3 and the memory. So no-ops are timed near all
//! that is timed, and loads before and behind a program.

use crate::judge_processor::point::Point;
use crate::judge_processor::programs::Program;
use anyhow::{Context, Result};
use lab::processor::{CHAIN, STEADY, hertz};
use lab::timed::{NO_OPS, Timed, in_a_cycle, slice};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

/// The slices of a round: the process is new in each round.
const SLICES: &str = "9";

/// How often the driver times no-ops before and behind a program.
const NEAR: f64 = 400.0;
/// While a program runs, the driver times them each time that these microseconds have passed.
const WATCHED: f64 = 2000.0;
/// A program that was watched less often than this share of the times does not count.
const OFTEN: f64 = 0.75;
/// The loads that the driver times before and behind a program, from 4 MB.
const FAR_LOADS: f64 = 65_536.0;

/// The core cycles of one operation, in each of a round's slices that nothing disturbed.
pub(super) fn point(program: &Path, point: &Point) -> Result<Vec<Timed<f64>>> {
    let ended = lab::succeeded(Command::new(program).args([&point.name, SLICES]))?;
    let text = String::from_utf8_lossy(&ended.stdout);
    let slices = text.lines().map(slice).collect::<Option<Vec<_>>>();
    let slices = slices.with_context(|| format!("{}: {text:?} are not slices", point.name))?;
    let each = |slice: Timed<f64>| Timed { time: slice.time / point.operations as f64, ..slice };
    Ok(slices.into_iter().flatten().map(each).collect())
}

/// One run of a program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ProgramRun {
    /// Core cycles in user and kernel mode together.
    pub cycles: f64,
    #[serde(default)]
    pub faults: u64,
}

/// Runs a program in the root file system `root`, in its directory `/guest`, with the environment
/// of the guest; `driver` starts it. `None` if the frequency changed meanwhile, or the driver could
/// not watch it.
pub(super) fn program(
    driver: &Path,
    root: &Path,
    program: &Program,
) -> Result<Option<Timed<ProgramRun>>> {
    let mut command = in_root(driver, "run", root, program.command);
    command.stdin(input(root, program)?);
    let frequency = hertz();
    let ended = lab::succeeded(&mut command).context(program.name)?;
    let later = hertz();
    let text = String::from_utf8_lossy(&ended.stdout);
    let run = run(&text, (frequency + later) / 2.0);
    let run = run.with_context(|| format!("{}: {text:?} are not times", program.name))?;
    let steady = (frequency / later - 1.0).abs() <= STEADY;
    Ok(run.filter(|_| steady))
}

/// The chains that a program of chains only executes, and those of a short one.
const CHAINS: [u32; 2] = [400, 20];

/// How much longer a program takes than the cycles of its instructions, because interrupts stop it:
/// measured with programs of chains only. `None` as for [`program`].
pub(super) fn interrupted(driver: &Path) -> Result<Option<Timed<f64>>> {
    let frequency = hertz();
    let mut runs = Vec::new();
    for count in CHAINS {
        let ended = lab::succeeded(Command::new(driver).arg("chains").arg(count.to_string()))?;
        let text = String::from_utf8_lossy(&ended.stdout);
        let run = run(&text, frequency).with_context(|| format!("{text:?} are not times"))?;
        runs.extend(run);
    }
    let [long, short] = runs[..] else { return Ok(None) };
    let cycles = f64::from(CHAINS[0] - CHAINS[1]) * f64::from(CHAIN);
    let steady = (frequency / hertz() - 1.0).abs() <= STEADY;
    Ok(steady.then_some(Timed {
        time: (long.time.cycles - short.time.cycles) / cycles,
        no_ops: long.no_ops.min(short.no_ops),
        far_load: 0.0,
    }))
}

/// What a program executes that is not its own work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Counts {
    /// `cpuid`, when it starts.
    pub identifications: u64,
    /// System calls.
    pub calls: u64,
}

/// Counts in a run of a program under ptrace.
pub(super) fn counts(driver: &Path, root: &Path, program: &Program) -> Result<Counts> {
    let mut command = in_root(driver, "count", root, program.command);
    let ended = lab::succeeded(command.stdin(input(root, program)?)).context(program.name)?;
    let text = String::from_utf8_lossy(&ended.stdout);
    let numbers = text.trim().split_once(' ').and_then(|(identifications, calls)| {
        Some(Counts { identifications: identifications.parse().ok()?, calls: calls.parse().ok()? })
    });
    numbers.with_context(|| format!("{}: {text:?} are not counts", program.name))
}

/// What a program reads.
pub(super) fn input(root: &Path, program: &Program) -> Result<Stdio> {
    let Some(input) = program.input else { return Ok(Stdio::null()) };
    let path = root.join(input.trim_start_matches('/'));
    let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
    Ok(file.into())
}

/// A command in the root file system `root`, as [`program`] runs it.
pub(super) fn in_root(driver: &Path, how: &str, root: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(driver);
    command.arg(how).arg(root).args(words).stdin(Stdio::null()).env_clear();
    command.envs(crate::judge_processor::programs::ENVIRONMENT);
    command
}

/// A run, from a line of the driver, on a core of this frequency; no run, if it was not watched.
fn run(line: &str, hertz: f64) -> Option<Option<Timed<ProgramRun>>> {
    let words = line.split_whitespace().map(|word| word.parse().ok());
    let words: Vec<u32> = words.collect::<Option<_>>()?;
    let [far_before, ref words @ .., far_behind] = words[..] else { return None };
    let [chain_before, before, chain_behind, behind, watched, most, user, kernel, faults] = *words
    else {
        return None;
    };
    let microseconds = f64::from(user + kernel);
    if f64::from(watched + 1) < OFTEN * microseconds / WATCHED {
        return Some(None);
    }
    let no_ops = |near: f64, ticks, chain| in_a_cycle(near * NO_OPS, f64::from(ticks), chain);
    let chain = [chain_before, chain_behind].map(f64::from);
    let near = no_ops(NEAR, before, chain[0]).min(no_ops(NEAR, behind, chain[1]));
    let during = no_ops(1.0, most, (chain[0] + chain[1]) / 2.0);
    let far_load = |ticks, chain| f64::from(ticks) / FAR_LOADS * f64::from(CHAIN) / chain;
    Some(Some(Timed {
        time: ProgramRun { cycles: microseconds / 1e6 * hertz, faults: u64::from(faults) },
        no_ops: if watched == 0 { near } else { near.min(during) },
        far_load: far_load(far_before, chain[0]).max(far_load(far_behind, chain[1])),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_says_how_crowded_the_core_was() {
        let found = |line| run(line, 1e9).unwrap();
        // Crowded behind the program.
        let behind =
            found("2621440 42667 533333 42667 1066667 1 1333 3000 1000 50 2621440\n").unwrap();
        assert!((behind.no_ops - 4.0).abs() < 0.01, "{behind:?}");
        assert!((behind.time.cycles - 4e6).abs() < 1.0);
        assert_eq!(behind.time.faults, 50);
        // Crowded once while it ran.
        let during =
            found("2621440 42667 533333 42667 533333 4 2667 9000 1000 50 2621440").unwrap();
        assert!((during.no_ops - 4.0).abs() < 0.01, "{during:?}");
        let short = found("2621440 42667 533333 42667 533333 0 0 300 50 50 2621440").unwrap();
        assert!((short.no_ops - 8.0).abs() < 0.01, "{short:?}");
        // Five times in 16 milliseconds: three are missing.
        assert!(found("2621440 42667 533333 42667 533333 5 1333 15000 1000 50 2621440").is_some());
        assert_eq!(found("2621440 42667 533333 42667 533333 4 1333 15000 1000 50 2621440"), None);
        // Two ticks for each of three cycles: 40 ticks are 60 cycles, and behind it they are 120.
        assert!((short.far_load - 60.0).abs() < 0.01, "{short:?}");
        let busy = found("2621440 42667 533333 42667 533333 0 0 300 50 50 5242880").unwrap();
        assert!(busy.quiet(100.0) && !busy.quiet(60.0), "{busy:?}");
        assert_eq!(run("3000 1000", 1e9), None);
    }
}
