//! Other programs, run until they end; threads that do so.
//!
//! Input: a command. Output: that it succeeded, or what it printed. An error names the command.

use anyhow::{Context, Result, bail};
use std::process::{Command, Output};

/// Runs a command on this terminal. Fails unless the command succeeds.
///
/// # Errors
/// The command cannot be started, or fails.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| anyhow::anyhow!("{command:?}: {error}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

/// Waits for a thread. `what` it does, for errors.
///
/// # Errors
/// The thread failed or panicked.
pub fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>, what: &str) -> Result<T> {
    let ended = thread.join().map_err(|_| anyhow::anyhow!("the thread has panicked"));
    ended.and_then(|result| result).with_context(|| what.to_owned())
}

/// Runs a command that must succeed. Returns what it printed.
///
/// # Errors
/// The command cannot be started, or fails; with what it printed to its standard error.
pub fn succeeded(command: &mut Command) -> Result<Output> {
    let output = command.output().with_context(|| format!("{command:?} cannot be run"))?;
    if !output.status.success() {
        let printed = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}\n{}", output.status, printed.trim_end());
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        command
    }

    #[test]
    fn a_failure_is_named_with_what_the_command_said() {
        assert_eq!(succeeded(&mut shell("echo a")).unwrap().stdout, b"a\n");
        let error = succeeded(&mut shell("echo why >&2; exit 3")).unwrap_err().to_string();
        assert!(error.contains("exit status: 3\nwhy"), "{error}");
        assert!(run(&mut shell("exit 3")).unwrap_err().to_string().contains("exit status: 3"));
        let error = succeeded(&mut Command::new("/no/such")).unwrap_err();
        assert!(error.to_string().contains("/no/such\" cannot be run"), "{error}");
    }
}
