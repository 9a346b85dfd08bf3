//! Ctrl-C, for commands that must put things back before they end.
//!
//! After `catch`, a SIGINT, SIGTERM or SIGHUP sets a flag that `check` turns into an error; the
//! command then returns as from any other error, and removes what it had begun. This module never
//! ends the process itself.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::PipeWriter;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
const POLL: Duration = Duration::from_millis(20);

/// From now on an interrupt only sets a flag. Call this once, in a command that calls `check`
/// often.
///
/// # Errors
/// The signal handler cannot be installed.
pub fn catch() -> Result<()> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::SeqCst)).context("cannot catch Ctrl-C")
}

/// Interrupts the work of this process, as Ctrl-C does after [`catch`]: for a program with a
/// handler of its own, such as Python.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::SeqCst);
}

/// Lets new work begin, when an interrupt has ended the work that ran.
pub fn resume() {
    INTERRUPTED.store(false, Ordering::SeqCst);
}

/// Returns an error if an interrupt came.
///
/// # Errors
/// The user has interrupted the program.
pub fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::SeqCst) {
        bail!("interrupted");
    }
    Ok(())
}

/// A shell command that kills its own process group when standard input ends. The shell outlives
/// this process, which is needed because no signal of the kernel reaches everything that a program
/// started when this process is killed.
const GUARD: &str = "read _; kill -KILL 0";

/// A running program, with all that it starts. None of them outlives this value or this process,
/// however the process ends.
pub struct Program {
    child: Child,
    /// Leads the program's process group and kills the group when this process is gone.
    guard: Child,
    /// The other end of the guard's standard input.
    _alive: PipeWriter,
}

/// Starts a program in a group of its own: Ctrl-C on the terminal reaches only this process.
///
/// # Errors
/// The program cannot be run.
pub fn spawn(command: &mut Command) -> std::io::Result<Program> {
    let (end, alive) = std::io::pipe()?;
    let guard = Command::new("/bin/sh")
        .args(["-c", GUARD])
        .stdin(end)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    let group = Pid::from_child(&guard).as_raw_pid();
    match command.process_group(group).spawn() {
        Ok(child) => Ok(Program { child, guard, _alive: alive }),
        Err(error) => {
            kill(&mut { guard });
            Err(error)
        }
    }
}

impl Program {
    /// The program's standard input, if it is a pipe that was not taken yet.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The program's standard output, if it is a pipe that was not taken yet.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Kills the program if it still runs, and returns its exit status.
    ///
    /// # Errors
    /// The status cannot be read.
    pub fn end(&mut self) -> std::io::Result<ExitStatus> {
        kill(&mut self.child);
        self.child.wait()
    }

    /// Waits for the program; when interrupted, kills it and returns the error.
    ///
    /// # Errors
    /// The user has interrupted.
    pub fn wait(mut self) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.wait_at_most(Duration::MAX)? {
                return Ok(status);
            }
        }
    }

    /// Waits for the program, however long it takes, even if the user interrupts meanwhile: for
    /// work that must not stop halfway.
    ///
    /// # Errors
    /// The status cannot be read.
    pub fn ended(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Waits for the program for at most `patience`. `None`: the program still runs.
    ///
    /// # Errors
    /// The user has interrupted.
    pub fn wait_at_most(&mut self, patience: Duration) -> Result<Option<ExitStatus>> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().context("waiting for a program")? {
                return Ok(Some(status));
            }
            check()?;
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(left.min(POLL));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        kill(&mut self.guard);
        // The group is killed; only its exit status is left to be taken.
        let _ = self.child.wait();
    }
}

/// Kills a child, with its process group if the child leads one, and waits until it is gone. A
/// child that is already gone is not an error.
pub fn kill(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    /// A program that starts another one, which says after two minutes that it is still there. Only
    /// a test that fails waits so long.
    fn parent_and_child() -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "(sleep 120; echo survived) & echo started; wait"]);
        command
    }

    /// What is printed until all that could print is gone.
    fn rest(from: &mut impl BufRead) -> String {
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        text
    }

    fn read_until_started(from: &mut impl BufRead) {
        let mut line = String::new();
        while !line.contains("started") {
            line.clear();
            assert!(from.read_line(&mut line).unwrap() > 0, "it has not started");
        }
    }

    #[test]
    fn what_a_program_started_dies_with_a_killed_parent() {
        const VICTIM: &str = "KERNLANE_TEST_VICTIM";
        if std::env::var_os(VICTIM).is_some() {
            spawn(&mut parent_and_child()).unwrap().wait().unwrap();
            return;
        }
        // This very test is the parent that is killed.
        let name = "interrupt::tests::what_a_program_started_dies_with_a_killed_parent";
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(VICTIM, "")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(victim.stdout.take().unwrap());
        read_until_started(&mut said);
        victim.kill().unwrap();
        victim.wait().unwrap();
        assert!(!rest(&mut said).contains("survived"));
    }

    #[test]
    fn what_a_program_started_dies_when_it_is_dropped() {
        let (said, writer) = std::io::pipe().unwrap();
        let mut said = BufReader::new(said);
        let mut command = parent_and_child();
        let program = spawn(command.stdout(writer)).unwrap();
        drop(command);
        read_until_started(&mut said);
        drop(program);
        assert_eq!(rest(&mut said), "");
    }

    #[test]
    fn the_status_of_a_program_is_given() {
        let mut command = Command::new("sh");
        let status = spawn(command.args(["-c", "exit 7"])).unwrap().wait().unwrap();
        assert_eq!(status.code(), Some(7));
        assert!(spawn(&mut Command::new("/no/such/program")).is_err());
        let mut long = spawn(Command::new("sleep").arg("1000")).unwrap();
        assert_eq!(long.wait_at_most(Duration::from_millis(50)).unwrap(), None);
    }
}
