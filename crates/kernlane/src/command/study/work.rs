//! Does the jobs of a study on this machine, several at a time.
//!
//! Input: jobs. Output: their outputs, and a log for each. A job whose output exists is done. Each
//! job is a process of its own, which writes its output whole or not at all; an interrupt ends all
//! of them.

use super::jobs::{Job, JobKind};
use anyhow::{Context, Result, bail, ensure};
use host::interrupt;
use host::progress::Progress;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};

/// Lines of a failed job's log that its error shows.
const SHOWN: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Running,
    Done,
    /// It failed, or one that it needs did.
    Failed,
}

/// Jobs that wait for each other.
struct Queue<'a> {
    jobs: &'a [Job],
    states: Mutex<Vec<State>>,
    changed: Condvar,
    errors: Mutex<Vec<String>>,
    progress: Progress,
    directory: &'a Path,
    program: PathBuf,
}

/// Does what is open of `jobs` in `directory`, `at_once` at a time. A failed job ends only those
/// that need it.
///
/// # Errors
/// A job failed, or the user has interrupted. What is done stays.
pub(super) fn work(jobs: &[Job], directory: &Path, at_once: usize) -> Result<()> {
    let states: Vec<State> = jobs
        .iter()
        .map(|job| match directory.join(&job.output).exists() {
            true => State::Done,
            false => State::Open,
        })
        .collect();
    let open = states.iter().filter(|state| **state == State::Open).count();
    if open == 0 {
        return Ok(());
    }
    for part in ["recordings", "profiles", "layouts", "results", "logs"] {
        let part = directory.join(part);
        fs::create_dir_all(&part).with_context(|| part.display().to_string())?;
    }
    let queue = Queue {
        jobs,
        states: Mutex::new(states),
        changed: Condvar::new(),
        errors: Mutex::default(),
        progress: Progress::of(open as u64, "jobs of the study"),
        directory,
        program: std::env::current_exe().context("this program's file")?,
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once.clamp(1, open) {
            scope.spawn(|| queue.serve());
        }
    });
    interrupt::check()?;
    let errors = queue.errors.into_inner().unwrap_or_else(PoisonError::into_inner);
    ensure!(errors.is_empty(), "{} of {open} jobs failed:\n{}", errors.len(), errors.join("\n"));
    Ok(())
}

impl Queue<'_> {
    /// Does jobs until none is left.
    fn serve(&self) {
        while let Some(at) = self.take() {
            let done = self.run(&self.jobs[at]);
            if let Err(error) = &done {
                let error = format!("{}: {error:#}", self.jobs[at].output.display());
                self.errors.lock().unwrap_or_else(PoisonError::into_inner).push(error);
            }
            self.progress.advance(1);
            let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
            states[at] = if done.is_ok() { State::Done } else { State::Failed };
            drop(states);
            self.changed.notify_all();
        }
    }

    /// Takes a job whose inputs are there. Waits for one if others still run.
    fn take(&self) -> Option<usize> {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if interrupt::check().is_err() {
                return None;
            }
            for at in 0..self.jobs.len() {
                if states[at] != State::Open {
                    continue;
                }
                let inputs = self.inputs_of(at, &states);
                if inputs.contains(&State::Failed) {
                    states[at] = State::Failed;
                } else if inputs.iter().all(|state| *state == State::Done) {
                    states[at] = State::Running;
                    self.progress.say(self.jobs[at].output.display().to_string());
                    return Some(at);
                }
            }
            if !states.contains(&State::Running) {
                return None;
            }
            states = self.changed.wait(states).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn inputs_of(&self, at: usize, states: &[State]) -> Vec<State> {
        let state_of = |input: &PathBuf| {
            let known = self.jobs.iter().position(|job| job.output == *input);
            known.map_or(State::Failed, |known| states[known])
        };
        self.jobs[at].inputs.iter().map(state_of).collect()
    }

    /// Runs a job's command. Results are the command's standard output, which gets its name when
    /// it is whole.
    fn run(&self, job: &Job) -> Result<()> {
        let name = job.output.file_name().context("an output has a name")?.to_string_lossy();
        let logs = self.directory.join("logs");
        let [log, printed] = ["log", "part"].map(|kind| logs.join(format!("{name}.{kind}")));
        let create = |path: &Path| File::create(path).with_context(|| path.display().to_string());
        let mut command = Command::new(&self.program);
        command.args(&job.words).current_dir(self.directory).stdin(Stdio::null());
        command.stdout(create(&printed)?).stderr(create(&log)?);
        let status = interrupt::spawn(&mut command)?.wait()?;
        if !status.success() {
            bail!("{}", last_lines(&log));
        }
        match job.kind {
            JobKind::Record | JobKind::Profile | JobKind::Layout => fs::remove_file(&printed),
            JobKind::Replay => fs::rename(&printed, self.directory.join(&job.output)),
        }
        .with_context(|| printed.display().to_string())
    }
}

/// The end of a log.
fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let shown = lines[lines.len().saturating_sub(SHOWN)..].join("\n  ");
    format!("{shown}\n  (see {})", log.display())
}
