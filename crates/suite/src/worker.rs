//! The two sides of one benchmark's process.
//!
//! A worker is this program, started anew for each round, so that its addresses and pages are also
//! new. It prepares one benchmark, then reads one command a line, and answers each with a line. The
//! measuring process never runs while a worker measures. A worker prints nothing else and leaves
//! nothing behind but files in its directory.
//!
//! | it reads | it answers |
//! |---|---|
//! | (nothing) | `ready`, or `lacks WHY` and ends |
//! | `calibrate TICKS` | `times N`: as many operations take so long |
//! | `slice N` | `ticks T` for N operations, behind a warm-up |
//!
//! An answer `wrong WHY` says that a check has failed; then it ends.

use crate::benchmark::{Benchmark, Place, Work};
use crate::clock::ticks;
use crate::list;
use crate::sys::{Done, Failure, call};
use anyhow::{Context, Result, anyhow, bail};
use host::interrupt;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// How long a worker may take for one answer, in ms. A slice takes milliseconds.
const PATIENCE: i32 = 60_000;
/// How long a worker may take to end, in ms.
const LAST_PATIENCE: i32 = 1000;
/// The share of a slice's operations that run before it, unmeasured.
pub(crate) const WARM_UP: u64 = 8;

/// Why there is no figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The machine lacks something.
    Lacks(String),
    /// The benchmark's check failed.
    Wrong(String),
}

/// Runs one operation to see whether this machine can.
///
/// # Errors
/// An operation that the kernel refuses at the first attempt is missing on this machine. Every
/// other failure is wrong.
pub fn attempt(benchmark: &Benchmark, place: &Place) -> Result<Box<dyn Work>, Trouble> {
    let trouble = |failure: Failure| match failure {
        Failure::Refused { .. } => Trouble::Lacks(failure.to_string()),
        Failure::Wrong(what) => Trouble::Wrong(what),
    };
    let mut work = benchmark.prepare(place).map_err(trouble)?;
    work.run(1).and_then(|()| work.check()).map_err(trouble)?;
    Ok(work)
}

/// The worker's side: prepares the benchmark of this name, and does what standard input says.
///
/// # Errors
/// There is no such benchmark, or nobody listens.
pub(crate) fn serve(name: &str, directory: &Path, cpu: Option<usize>) -> Result<()> {
    let benchmark = list::named(name).with_context(|| format!("no benchmark is named {name}"))?;
    if let Some(cpu) = cpu {
        pin(cpu).map_err(|failure| anyhow!("{failure}"))?;
    }
    let place = Place { directory: directory.to_owned() };
    let mut work = match attempt(benchmark, &place) {
        Ok(work) => work,
        Err(Trouble::Lacks(why)) => return answer(&format!("lacks {why}")),
        Err(Trouble::Wrong(why)) => return answer(&format!("wrong {why}")),
    };
    answer("ready")?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let done = match line.split_once(' ').map(|(word, number)| (word, number.parse())) {
            Some(("calibrate", Ok(ticks))) => {
                calibrate(work.as_mut(), ticks).map(|times| format!("times {times}"))
            }
            Some(("slice", Ok(times))) => {
                slice(work.as_mut(), times).map(|ticks| format!("ticks {ticks}"))
            }
            _ => bail!("a worker cannot do {line:?}"),
        };
        match done {
            Ok(said) => answer(&said)?,
            Err(failure) => return answer(&format!("wrong {failure}")),
        }
    }
    Ok(())
}

fn answer(line: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    output.write_all(line.replace('\n', " ").as_bytes())?;
    output.write_all(b"\n")?;
    Ok(output.flush()?)
}

/// Runs this process, and what it starts, on one CPU only.
///
/// # Errors
/// There is no such CPU, or the process may not choose.
pub(crate) fn pin(cpu: usize) -> Done {
    let mut set = [0u64; 128];
    let Some(word) = set.get_mut(cpu / 64) else {
        return Err(Failure::Refused { call: "sched_setaffinity", errno: libc::EINVAL });
    };
    *word = 1 << (cpu % 64);
    call!(SYS_sched_setaffinity, 0, size_of_val(&set), set.as_ptr()).map(drop)
}

/// The CPUs on which this process may run.
pub fn allowed() -> Vec<usize> {
    let mut set = [0u64; 128];
    let got = call!(SYS_sched_getaffinity, 0, size_of_val(&set), set.as_mut_ptr());
    match got {
        Ok(_) => (0..128 * 64).filter(|cpu| set[cpu / 64] & (1 << (cpu % 64)) != 0).collect(),
        Err(_) => Vec::new(),
    }
}

/// About the number of operations that take `wanted` ticks.
fn calibrate(work: &mut dyn Work, wanted: u64) -> Result<u64, Failure> {
    let mut times = 1u64;
    loop {
        let took = timed(work, times)?;
        if took >= wanted / 10 * 8 || times >= 1 << 40 {
            return Ok(times);
        }
        // Early guesses are too high, since caches are cold.
        let guess = wanted.saturating_mul(times) / took.max(1);
        times = guess.clamp(times + 1, times * 8);
    }
}

fn timed(work: &mut dyn Work, times: u64) -> Result<u64, Failure> {
    let before = ticks();
    work.run(times)?;
    let took = ticks().wrapping_sub(before);
    work.check()?;
    Ok(took)
}

fn slice(work: &mut dyn Work, times: u64) -> Result<u64, Failure> {
    work.run((times / WARM_UP).max(1))?;
    timed(work, times)
}

/// The measuring process's side of a worker.
pub(crate) struct Worker {
    child: interrupt::Program,
    /// Closed to end the worker.
    into: Option<ChildStdin>,
    out: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a worker and waits until it is ready. `program`: the words that start this program
    /// so that it reads the suite's options.
    ///
    /// # Errors
    /// The program cannot be started. In the inner result: why the benchmark cannot run.
    pub(crate) fn start(
        program: &[OsString],
        benchmark: &Benchmark,
        directory: &Path,
        cpu: Option<usize>,
    ) -> Result<Result<Worker, Trouble>> {
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).arg("--worker").arg(benchmark.name);
        command.arg("--directory").arg(directory);
        if let Some(cpu) = cpu {
            command.arg("--cpu").arg(cpu.to_string());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = interrupt::spawn(&mut command)
            .with_context(|| format!("{}: cannot be started", program[0].display()))?;
        let into = child.take_stdin();
        let out = BufReader::new(child.take_stdout().expect("it is piped"));
        let mut worker = Worker { child, into, out };
        Ok(match worker.read()? {
            Ok(line) if line == "ready" => Ok(worker),
            Ok(line) => Err(Trouble::Wrong(format!("the worker said {line:?}"))),
            Err(trouble) => Err(trouble),
        })
    }

    /// About the number of operations that take `ticks`.
    ///
    /// # Errors
    /// As for `slice`.
    pub(crate) fn calibrate(&mut self, ticks: u64) -> Result<Result<u64, Trouble>> {
        self.ask("calibrate", ticks, "times ")
    }

    /// Ticks that `times` operations took.
    ///
    /// # Errors
    /// The user has interrupted. In the inner result: why there is no figure.
    pub(crate) fn slice(&mut self, times: u64) -> Result<Result<u64, Trouble>> {
        self.ask("slice", times, "ticks ")
    }

    fn ask(&mut self, word: &str, number: u64, prefix: &str) -> Result<Result<u64, Trouble>> {
        let into = self.into.as_mut().expect("it is open until the worker is dropped");
        if let Err(error) = writeln!(into, "{word} {number}") {
            return Ok(Err(Trouble::Wrong(format!("its process has ended: {error}"))));
        }
        Ok(self.read()?.and_then(|line| {
            line.strip_prefix(prefix)
                .and_then(|number| number.parse().ok())
                .ok_or_else(|| Trouble::Wrong(format!("the worker said {line:?}")))
        }))
    }

    /// Whether the worker prints something or ends within this number of ms.
    fn answers_within(&self, patience: i32) -> bool {
        let mut ready =
            libc::pollfd { fd: self.out.get_ref().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        call!(SYS_poll, &raw mut ready, 1, patience) != Ok(0)
    }

    fn read(&mut self) -> Result<Result<String, Trouble>> {
        let answered = self.answers_within(PATIENCE);
        interrupt::check()?;
        if !answered {
            let seconds = PATIENCE / 1000;
            return Ok(Err(Trouble::Wrong(format!("no answer within {seconds} s"))));
        }
        let mut line = String::new();
        let read = self.out.read_line(&mut line);
        let line = line.trim_end();
        Ok(match read {
            Err(error) => Err(Trouble::Wrong(format!("its process cannot be read: {error}"))),
            Ok(0) => {
                let status = self.child.end().map_or(String::new(), |status| status.to_string());
                Err(Trouble::Wrong(format!("its process has ended: {status}")))
            }
            Ok(_) => match line.split_once(' ') {
                Some(("lacks", why)) => Err(Trouble::Lacks(why.to_owned())),
                Some(("wrong", why)) => Err(Trouble::Wrong(why.to_owned())),
                _ => Ok(line.to_owned()),
            },
        })
    }
}

impl Drop for Worker {
    /// Lets the worker end by itself. The worker then waits for its own children, so that their
    /// time counts as the suite's (`conditions::Usage`).
    fn drop(&mut self) {
        self.into = None;
        self.answers_within(LAST_PATIENCE);
        // A worker that has already ended is not an error.
        let _ = self.child.end();
    }
}
