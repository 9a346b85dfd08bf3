//! What the processor says: slices of points and runs of programs, in core cycles.
//!
//! Input: programs. Output: the values of single rounds. `statistics` of the suite makes intervals
//! of them.

use crate::judge_processor::point::Point;
use crate::judge_processor::programs::Program;
use crate::processor::{STEADY, children_seconds, hertz, slice_cycles};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::process::CommandExt;
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

/// Runs a program in the root file system `root`; `None` if the frequency changed meanwhile.
pub(super) fn program(root: &Path, program: &Program) -> Result<Option<ProgramRun>> {
    let mut command = in_root(root, program.command);
    if let Some(input) = program.input {
        let path = root.join(input.trim_start_matches('/'));
        let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        command.stdin(file);
    }
    let (frequency, begun) = (hertz(), children_seconds()?);
    let status = command.stdout(Stdio::null()).status()?;
    let (ended, later) = (children_seconds()?, hertz());
    ensure!(status.success(), "{}: {status}", program.name);
    let seconds = [ended[0] - begun[0], ended[1] - begun[1]];
    let steady = (frequency / later - 1.0).abs() <= STEADY;
    let cycles = (seconds[0] + seconds[1]) * (frequency + later) / 2.0;
    Ok(steady.then_some(ProgramRun { cycles, seconds }))
}

/// A command in the root file system `root`, in its directory `/guest`, with the environment of the
/// guest. Addresses are not random, as in the guest.
pub(super) fn in_root(root: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(words.first().copied().unwrap_or_default());
    command.args(words.get(1..).unwrap_or_default()).stdin(Stdio::null()).env_clear();
    command.envs(crate::judge_processor::programs::ENVIRONMENT);
    let root = root.to_owned();
    let enter = move || {
        std::os::unix::fs::chroot(&root)?;
        std::env::set_current_dir("/guest")?;
        // SAFETY: the call takes no pointer.
        match unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) } {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: between fork and exec only system calls are made; the path is made before, and this
    // process has no thread that could hold a lock of the allocator.
    unsafe { command.pre_exec(enter) };
    command
}
