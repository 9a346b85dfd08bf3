//! The observer for a program that a person runs: one style of progress and remarks.
//!
//! Input: reports of work ([`crate::progress`]). Output on standard error: a moving line on a
//! terminal; otherwise a line of text for each minute of work, so that a log shows that the work
//! goes on. Remarks always go to standard error. This module never writes to standard output, and
//! never fails: a command goes on when nobody sees its reports.

use crate::progress::{self, Observer, Work};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// All work under way, a line each. indicatif draws nothing when standard error is not a terminal.
static LINES: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);
const TICK: Duration = Duration::from_millis(200);
const WORK: &str = "{spinner} {elapsed} {msg}";
const WORK_OF_KNOWN_LENGTH: &str =
    "{spinner} {elapsed} {msg} {wide_bar} {percent:>3} %  {eta} left";
/// Without a terminal, work is reported once in each interval of this length.
const MINUTE: Duration = Duration::from_secs(60);

/// Shows the reports of work on standard error.
pub struct Terminal;

impl Terminal {
    /// Shows a person what the work of this process reports, from now on.
    pub fn observe() {
        progress::observe(Arc::new(Terminal));
    }
}

impl Observer for Terminal {
    fn begin(&self, what: &str, length: Option<u64>) -> Box<dyn Work> {
        let (bar, template) = match length {
            None => (ProgressBar::no_length(), WORK),
            Some(length) => (ProgressBar::new(length), WORK_OF_KNOWN_LENGTH),
        };
        let bar = LINES.add(bar);
        bar.set_style(ProgressStyle::with_template(template).expect("a constant template"));
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(TICK);
        if !io::stderr().is_terminal() {
            LOG.begin(bar.clone());
        }
        Box::new(Line(bar))
    }

    fn remark(&self, text: &str) {
        // There is no place to report that standard error is full.
        LINES.suspend(|| drop(writeln!(io::stderr().lock(), "{text}")));
    }
}

/// The line of work under way. The line disappears when this value is dropped.
struct Line(ProgressBar);

impl Work for Line {
    fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    fn advance(&self, by: u64) {
        self.0.inc(by);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.0.finish_and_clear();
        LINES.remove(&self.0);
    }
}

/// The work that is reported to a log when there is no terminal.
static LOG: WorkLog = WorkLog { works: Mutex::new(Vec::new()) };
/// How often the log checks whether a minute is over.
const LOOK: Duration = Duration::from_secs(1);

struct WorkLog {
    /// The work under way, and how many lines each has got.
    works: Mutex<Vec<(ProgressBar, u64)>>,
}

impl WorkLog {
    /// The first work starts the thread that writes. The thread ends with the last work.
    fn begin(&'static self, bar: ProgressBar) {
        let mut works = self.works.lock().unwrap_or_else(PoisonError::into_inner);
        works.push((bar, 0));
        if works.len() == 1 {
            std::thread::spawn(|| {
                loop {
                    std::thread::sleep(LOOK);
                    let Some(lines) = self.due(MINUTE) else { break };
                    lines.iter().for_each(|line| Terminal.remark(line));
                }
            });
        }
    }

    /// The lines of work for which another interval is over. `None`: no work is under way.
    fn due(&self, interval: Duration) -> Option<Vec<String>> {
        let mut works = self.works.lock().unwrap_or_else(PoisonError::into_inner);
        works.retain(|(bar, _)| !bar.is_finished());
        let mut lines = Vec::new();
        for (bar, told) in works.iter_mut() {
            let over = (bar.elapsed().as_nanos() / interval.as_nanos()) as u64;
            if over > *told {
                *told = over;
                lines.push(line(bar));
            }
        }
        (!works.is_empty()).then_some(lines)
    }
}

/// The time that the work has taken, its current step, and its progress.
fn line(bar: &ProgressBar) -> String {
    let seconds = bar.elapsed().as_secs();
    let far = bar.length().filter(|&length| length > 0).map(|length| {
        let percent = 100 * u128::from(bar.position().min(length)) / u128::from(length);
        format!(", {percent} %")
    });
    let far = far.unwrap_or_default();
    format!("[{:02}:{:02}] {}{far}", seconds / 60, seconds % 60, bar.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(bar: ProgressBar, ago: Duration, what: &str) -> ProgressBar {
        let bar = bar.with_elapsed(ago);
        bar.set_message(what.to_owned());
        bar
    }

    #[test]
    fn work_says_how_far_it_is_after_each_minute() {
        let (young, old) = (Duration::from_secs(59), Duration::from_secs(125));
        let build = begun(ProgressBar::hidden(), old, "building a kernel");
        build.set_length(200);
        build.inc(50);
        let guest = begun(ProgressBar::no_length(), old, "guest: boot");
        let quick = begun(ProgressBar::no_length(), young, "reading");
        let works = [&build, &guest, &quick].map(|bar| (bar.clone(), 0)).to_vec();
        let log = WorkLog { works: Mutex::new(works) };
        let expected = ["[02:05] building a kernel, 25 %", "[02:05] guest: boot"];
        assert_eq!(log.due(MINUTE).unwrap(), expected);
        assert!(log.due(MINUTE).unwrap().is_empty(), "once for each minute");
        // What comes next is told with the next minute.
        build.inc(1000);
        assert_eq!(log.due(MINUTE / 2).unwrap().len(), 3);
        assert!(line(&build).ends_with("100 %"));
        [&build, &guest, &quick].into_iter().for_each(ProgressBar::finish_and_clear);
        assert_eq!(log.due(MINUTE), None);
    }
}
