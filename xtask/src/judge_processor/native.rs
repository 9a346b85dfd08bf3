//! What the processor says: slices of points and runs of programs, in core cycles.
//!
//! Input: programs. Output: the values of single rounds. `statistics` of the suite makes intervals
//! of them.

use crate::judge_processor::point::Point;
use crate::judge_processor::programs::Program;
use crate::processor::{STEADY, hertz, slice_cycles};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use suite::statistics::median;

/// The slices of a round: the process is new in each round.
const SLICES: &str = "9";

/// The core cycles of one operation: the median of a round's slices that nothing disturbed; `None`
/// if there is none.
pub(super) fn point(program: &Path, point: &Point) -> Result<Option<f64>> {
    let ended = Command::new(program).args([&point.name, SLICES]).output()?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{}: {}: {said}", point.name, ended.status);
    let text = String::from_utf8_lossy(&ended.stdout);
    let slices = text.lines().map(slice_cycles).collect::<Option<Vec<_>>>();
    let slices = slices.with_context(|| format!("{}: {text:?} are no slices", point.name))?;
    let mut cycles: Vec<f64> = slices.into_iter().flatten().collect();
    if cycles.is_empty() {
        return Ok(None);
    }
    Ok(Some(median(&mut cycles) / point.operations as f64))
}

/// One run of a program.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct ProgramRun {
    /// Core cycles in user and kernel mode together.
    pub cycles: f64,
    /// Seconds in user mode and in kernel mode, which the kernel tells apart by its ticks.
    pub seconds: [f64; 2],
}

/// Runs a program in the root file system `root`, in its directory `/guest`, with the environment
/// of the guest; `driver` starts it. `None` if the frequency changed meanwhile.
pub(super) fn program(driver: &Path, root: &Path, program: &Program) -> Result<Option<ProgramRun>> {
    let mut command = in_root(driver, "run", root, program.command);
    if let Some(input) = program.input {
        let path = root.join(input.trim_start_matches('/'));
        let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        command.stdin(file);
    }
    let frequency = hertz();
    let ended = command.output()?;
    let later = hertz();
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{}: {}: {said}", program.name, ended.status);
    let text = String::from_utf8_lossy(&ended.stdout);
    let seconds = user_and_kernel(&text);
    let seconds = seconds.with_context(|| format!("{}: {text:?} are no times", program.name))?;
    let steady = (frequency / later - 1.0).abs() <= STEADY;
    let cycles = (seconds[0] + seconds[1]) * (frequency + later) / 2.0;
    Ok(steady.then_some(ProgramRun { cycles, seconds }))
}

/// How many `cpuid` a program executes when it starts.
pub(super) fn identifications(driver: &Path, root: &Path, program: &Program) -> Result<u64> {
    let ended = in_root(driver, "identify", root, program.command).output()?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{}: {}: {said}", program.name, ended.status);
    let text = String::from_utf8_lossy(&ended.stdout);
    text.trim().parse().with_context(|| format!("{}: {text:?} is no number", program.name))
}

/// A command in the root file system `root`, as [`program`] runs it.
pub(super) fn in_root(driver: &Path, how: &str, root: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(driver);
    command.arg(how).arg(root).args(words).stdin(Stdio::null()).env_clear();
    command.envs(crate::judge_processor::programs::ENVIRONMENT);
    command
}

/// Two numbers of microseconds, in seconds.
fn user_and_kernel(text: &str) -> Option<[f64; 2]> {
    let mut words = text.split_whitespace().map(|word| word.parse::<u32>().ok());
    let times = [words.next()??, words.next()??];
    words.next().is_none().then_some(times.map(|micros| f64::from(micros) / 1e6))
}
