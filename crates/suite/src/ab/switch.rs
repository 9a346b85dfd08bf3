//! A change that is switched on and off within one boot, by two commands.
//!
//! Rounds alternate: off, on, on, off, and so on. So a drift of the machine affects both states
//! alike, and the change is switched once for each pair of rounds.
//!
//! Input: two commands and the benchmarks. Output: two results. The change is off in the end.

use crate::clock::Moment;
use crate::measure::{Run, Settings};
use crate::result::Results;
use anyhow::{Context, Result, anyhow, ensure};
use host::progress::Progress;
use host::{interrupt, note};
use std::process::{Command, Stdio};

/// Commands for the shell.
pub(crate) struct Switch {
    pub on: String,
    pub off: String,
}

impl Switch {
    /// The steps of a run, for people.
    pub(crate) fn steps(&self) -> Vec<String> {
        vec![
            "measure a round".into(),
            format!("run: {}", self.on),
            "measure two rounds".into(),
            format!("run: {}", self.off),
            "measure two rounds; switch again, until every figure is narrow or time is over".into(),
            format!("at the end, and after every error: run: {}", self.off),
        ]
    }

    /// Measures both states: off, then on.
    ///
    /// # Errors
    /// A command fails, a benchmark's process cannot be started, or the user has interrupted. The
    /// change is off even then.
    pub(crate) fn measure(&self, settings: &Settings) -> Result<[Results; 2]> {
        let mut is_on = false;
        let measured = self.in_turns(settings, &mut is_on);
        let ended = match is_on {
            true => shell(&self.off),
            false => Ok(()),
        };
        match (measured, ended) {
            (Ok(results), Ok(())) => Ok(results),
            (Err(error), Err(still)) => {
                note!("the change is still on: {still:#}");
                Err(error)
            }
            (Err(error), Ok(())) => Err(error),
            (Ok(_), Err(still)) => Err(still.context("the change is still on")),
        }
    }

    fn in_turns(&self, settings: &Settings, is_on: &mut bool) -> Result<[Results; 2]> {
        let progress = Progress::new("measuring");
        let start = Moment::now().map_err(|failure| anyhow!("{failure}"))?;
        let mut runs: [Option<Run<'_>>; 2] = [None, None];
        // A turn is a round in each state. The state at its end is the state at the start of the
        // next turn.
        for turn in 0.. {
            let before = Moment::now().map_err(|failure| anyhow!("{failure}"))?;
            let order = if turn % 2 == 0 { [false, true] } else { [true, false] };
            for on in order {
                if on != *is_on {
                    // If a command fails halfway, the change is switched off again.
                    *is_on = true;
                    shell(if on { &self.on } else { &self.off })?;
                    *is_on = on;
                }
                let run = match &mut runs[usize::from(on)] {
                    Some(run) => run,
                    none => none.insert(Run::begin(settings)?),
                };
                let what = if on { "on" } else { "off" };
                progress.say(format!("{what}, {}", run.next_round()));
                run.round()?;
            }
            let now = Moment::now().map_err(|failure| anyhow!("{failure}"))?;
            let next = now.nanoseconds_since(start) + now.nanoseconds_since(before);
            let done = runs.iter().flatten().all(Run::is_done);
            if done || u128::from(next) > settings.budget.as_nanos() {
                break;
            }
        }
        let [off, on] = runs;
        let end = |run: Option<Run<'_>>| run.context("no round was measured")?.end();
        Ok([end(off)?, end(on)?])
    }
}

/// Runs a command; Ctrl-C does not end it halfway.
fn shell(command: &str) -> Result<()> {
    let mut sh = Command::new("/bin/sh");
    sh.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut program = interrupt::spawn(&mut sh).context("/bin/sh cannot be started")?;
    let status = program.ended().with_context(|| format!("{command}: cannot be waited for"))?;
    ensure!(status.success(), "{command}: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_fails_is_named() {
        assert!(shell("exit 0").is_ok());
        let message = shell("exit 4").unwrap_err().to_string();
        assert_eq!(message, "exit 4: exit status: 4");
    }
}
