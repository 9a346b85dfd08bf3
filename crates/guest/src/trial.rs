//! Tries a workload: boots once, without recording, and shows what its scripts print while they
//! run.
//!
//! Input: the same as for a recording. Output: which script failed, in which line. The scripts run
//! as in a recording. When one failed, a second guest runs it again and traces its lines: tracing
//! could change what the script does, so the first guest alone decides.

mod trace;

use crate::boot::{GuestEnd, GuestOutcome, last_lines};
use crate::judge::{failed_in, judge};
use crate::own::MainScript;
use crate::qemu::Qemu;
use crate::request::RecordingRequest;
use anyhow::Result;
use host::recording::Recording;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// What happens in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialEvent<'a> {
    /// A step begins.
    Step(&'a str),
    /// The scripts printed this.
    Output(&'a str),
}

/// A script that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialFailure {
    /// `set-up`, `run` or `check`, or the step before them that failed.
    pub script: String,
    /// The script's exit status.
    pub status: i32,
    /// The line that failed: its number in the script, from 1, and its text. `None` if it could not
    /// be found.
    pub line: Option<(usize, String)>,
    /// The last lines that the script printed.
    pub output: String,
}

/// A trial that ended.
pub struct Trial {
    /// The script that failed, if one did.
    pub failure: Option<TrialFailure>,
    /// What may be wrong with the guest.
    pub warnings: Vec<String>,
}

/// The first byte of a line that is not output of a script.
pub(super) const MARK: char = '\u{1}';
/// Lines of output that a failure repeats.
const LAST_LINES: usize = 20;

/// Boots the workload. `tell` gets what happens, a few times a second.
///
/// # Errors
/// The guest cannot be made or started, its kernel panics, or it does not end in time. A script
/// that fails is not an error.
pub fn trial(request: &RecordingRequest, tell: &mut dyn FnMut(TrialEvent<'_>)) -> Result<Trial> {
    let (outcome, warnings) = guest(request, None, tell)?;
    let Some((script, status)) = failed(&outcome) else {
        return Ok(Trial { failure: None, warnings });
    };
    let workload = request.workload.on_cpus(request.cpus);
    let known = [("set-up", &workload.set_up), ("run", &workload.run), ("check", &workload.check)];
    let mut line = None;
    if let Some((name, text)) = known.into_iter().find(|(name, _)| *name == script) {
        tell(TrialEvent::Step("looking for the line that failed"));
        let (again, _) = guest(request, Some(name), &mut |_| {})?;
        if failed(&again).as_ref() == Some(&(script.clone(), status)) {
            line = trace::failed_line(part_of(&again.output, name), text);
        }
    }
    let output = last_lines(&output_of(&outcome.output, &script), LAST_LINES);
    Ok(Trial { failure: Some(TrialFailure { script, status, line, output }), warnings })
}

/// Boots one guest.
fn guest(
    request: &RecordingRequest,
    traced: Option<&'static str>,
    tell: &mut dyn FnMut(TrialEvent<'_>),
) -> Result<(GuestOutcome, Vec<String>)> {
    let qemu = Qemu::find()?;
    let prepared = request.prepared(&qemu, None, MainScript::Trial { traced })?;
    let directory = tempfile::tempdir()?;
    tell(TrialEvent::Step("boot"));
    let mut stream = OutputStream::new(directory.path());
    let outcome = prepared.boot.run(&qemu, directory.path(), &mut |_| {
        stream.follow(tell);
        Ok(())
    })?;
    stream.follow(tell);
    stream.end(tell);
    if failed(&outcome).is_none() {
        judge(&prepared.boot, &outcome)?;
    }
    Ok((outcome, prepared.warnings))
}

/// The script that failed, and its status.
fn failed(outcome: &GuestOutcome) -> Option<(String, i32)> {
    match outcome.end {
        GuestEnd::Exited(status) if status != 0 => {
            let what = failed_in(&outcome.console)?;
            Some((what.strip_prefix("in ").unwrap_or(what).to_owned(), status))
        }
        _ => None,
    }
}

/// The part of the output from where the script begins.
fn part_of<'a>(output: &'a str, script: &str) -> &'a str {
    let begin = format!("{MARK}phase {script}\n");
    output.rsplit_once(&begin).map_or(output, |(_, text)| text)
}

/// What a script printed, without Kernlane's own lines.
fn output_of(output: &str, script: &str) -> String {
    part_of(output, script).split(MARK).next().unwrap_or_default().to_owned()
}

/// The guest's output while it grows.
struct OutputStream {
    path: PathBuf,
    position: u64,
    /// What was read and not reported: a line that has not ended.
    pending: Vec<u8>,
}

impl OutputStream {
    fn new(directory: &Path) -> OutputStream {
        OutputStream { path: directory.join(Recording::OUTPUT), position: 0, pending: Vec::new() }
    }

    /// Reports the new lines.
    fn follow(&mut self, tell: &mut dyn FnMut(TrialEvent<'_>)) {
        // QEMU creates the file. What cannot be read now is read at the end, or QEMU's own error
        // says why not.
        let Ok(mut file) = File::open(&self.path) else { return };
        let from = self.pending.len();
        let read = file
            .seek(SeekFrom::Start(self.position))
            .and_then(|_| file.read_to_end(&mut self.pending));
        if read.is_err() {
            self.pending.truncate(from);
            return;
        }
        self.position += (self.pending.len() - from) as u64;
        if let Some(end) = self.pending.iter().rposition(|byte| *byte == b'\n') {
            let lines: Vec<u8> = self.pending.drain(..=end).collect();
            tell_lines(&lines, tell);
        }
    }

    /// Reports the rest of the output.
    fn end(&mut self, tell: &mut dyn FnMut(TrialEvent<'_>)) {
        tell_lines(&std::mem::take(&mut self.pending), tell);
    }
}

fn tell_lines(bytes: &[u8], tell: &mut dyn FnMut(TrialEvent<'_>)) {
    let text = String::from_utf8_lossy(bytes);
    for line in text.split_inclusive('\n') {
        let (output, mark) = match line.split_once(MARK) {
            Some((output, mark)) => (output, Some(mark)),
            None => (line, None),
        };
        if !output.is_empty() {
            tell(TrialEvent::Output(output));
        }
        if let Some(step) = mark.and_then(|mark| mark.trim_end().strip_prefix("phase ")) {
            tell(TrialEvent::Step(step));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_output_are_told_in_their_order_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(Recording::OUTPUT);
        let mut stream = OutputStream::new(directory.path());
        let mut told = Vec::new();
        let mut tell = |event: TrialEvent<'_>| {
            told.push(match event {
                TrialEvent::Step(step) => format!("[{step}]"),
                TrialEvent::Output(text) => text.to_owned(),
            });
        };
        stream.follow(&mut tell);
        let text = "\u{1}phase set-up\none\ntwo without its end\u{1}phase run\nthr";
        std::fs::write(&path, text).unwrap();
        stream.follow(&mut tell);
        std::fs::write(&path, format!("{text}ee")).unwrap();
        stream.follow(&mut tell);
        stream.end(&mut tell);
        assert_eq!(told, ["[set-up]", "one\n", "two without its end", "[run]", "three"]);
    }

    #[test]
    fn a_scripts_output_ends_where_the_next_step_begins() {
        let output =
            "\u{1}phase set-up\na\n\u{1}phase run\nb\nc\n\u{1}failed in run with status 1\n";
        assert_eq!(output_of(output, "run"), "b\nc\n");
        assert_eq!(output_of(output, "set-up"), "a\n");
    }
}
