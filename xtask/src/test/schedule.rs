//! Runs parts of the tests, as many at a time as there are processors for.
//!
//! Each part is a process of its own. What a part prints is kept in a file below `target/test`, and
//! printed when the part ends, so that the words of two parts do not mix. A part that fails does
//! not stop the others, but those that need it do not run. The table of times is kept as well, with
//! the last lines of what failed: they stand at the end, where a long output is not cut.

use super::{Part, spelled};
use anyhow::{Context, Result, bail};
use host::table::{Column, TextTable};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// The directory of the parts' output.
const SAID: &str = "target/test/said";

/// How many lines of a failed part's output stand behind the table.
const LAST_LINES: usize = 30;

/// The end of a part.
struct Ended {
    number: usize,
    result: Result<Used>,
    printed: PathBuf,
}

/// The resources that a part used.
#[derive(Clone, Copy)]
struct Used {
    passed: bool,
    wall: Duration,
    /// Time of all processors.
    processors: Duration,
}

/// Runs all parts. Prints what each printed, and at the end how long each took. Keeps the latter
/// table as `times`, also if a part failed.
///
/// # Errors
/// A part failed.
pub(super) fn run(parts: &[Part], times: &Path) -> Result<()> {
    fs::create_dir_all(SAID).context(SAID)?;
    let begun = Instant::now();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut waiting: Vec<usize> = (0..parts.len()).collect();
    let mut running: Vec<usize> = Vec::new();
    let mut used: Vec<Option<Used>> = parts.iter().map(|_| None).collect();
    let mut failures = String::new();
    let (sender, receiver) = channel();
    loop {
        let busy: usize = running.iter().map(|&number| parts[number].processors).sum();
        let next = waiting.iter().position(|&number| {
            let part = &parts[number];
            (busy == 0 || busy + part.processors <= processors) && ready(part, parts, &used)
        });
        if let Some(next) = next {
            let number = waiting.remove(next);
            println!("== [{}] begins: {}", minutes(begun.elapsed()), parts[number].what);
            running.push(number);
            begin(number, &parts[number], sender.clone())?;
            continue;
        }
        if running.is_empty() {
            break;
        }
        let ended: Ended = receiver.recv()?;
        running.retain(|&number| number != ended.number);
        let part = &parts[ended.number];
        let took = ended.result.with_context(|| part.what.to_owned())?;
        println!(
            "\n== [{}] {}: {} (cargo xtask {})",
            minutes(begun.elapsed()),
            if took.passed { "passed" } else { "FAILED" },
            part.what,
            part.words.join(" ")
        );
        let said = fs::read(&ended.printed)?;
        let said = String::from_utf8_lossy(&said);
        println!("{}", said.trim_end());
        if !took.passed {
            failures += &format!("\n== FAILED: {}\n{}\n", part.what, last_lines(&said));
        }
        used[ended.number] = Some(took);
    }
    let summary = summary(parts, &used, begun.elapsed()) + &failures;
    println!("\n{summary}");
    fs::write(times, summary).with_context(|| times.display().to_string())?;
    all_passed(&used)
}

/// Whether what the part needs has passed. What is not among the parts is there already.
fn ready(part: &Part, parts: &[Part], used: &[Option<Used>]) -> bool {
    part.after.iter().all(|&needed| {
        let number = parts.iter().position(|part| part.what == needed);
        number.is_none_or(|number| used[number].is_some_and(|used| used.passed))
    })
}

/// Starts a part, and a thread that waits for its end.
fn begin(number: usize, part: &Part, sender: Sender<Ended>) -> Result<()> {
    let printed = Path::new(SAID).join(format!("{}.log", part.words.join(" ").replace('/', "-")));
    let file = File::create(&printed).with_context(|| printed.display().to_string())?;
    let words: Vec<String> = part.words.iter().map(|word| spelled(word)).collect::<Result<_>>()?;
    // Not by its path, where a build may put another program while this one runs.
    let mut command = Command::new("/proc/self/exe");
    command.args(words).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    std::thread::spawn(move || {
        // The receiver lives until the last part has ended.
        let _ = sender.send(Ended { number, result: ended(&mut command), printed });
    });
    Ok(())
}

/// Runs a command until it ends.
fn ended(command: &mut Command) -> Result<Used> {
    let begun = Instant::now();
    let child = command.spawn().context("a part cannot be started")?;
    let pid = libc::pid_t::try_from(child.id())?;
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: `status` and `usage` are valid for writing, and nobody else waits for this child:
        // `child` is not used any more.
        let got = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
        match got {
            got if got == pid => break,
            _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => return Err(std::io::Error::last_os_error()).context("waiting for a part"),
        }
    }
    // SAFETY: all bytes were zero, which is a value of this type, or written by the kernel.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| {
        let micros = time.tv_sec * 1_000_000 + time.tv_usec;
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    };
    Ok(Used {
        passed: libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        wall: begun.elapsed(),
        processors: time(usage.ru_utime) + time(usage.ru_stime),
    })
}

/// A table of how long each part took, and which failed.
fn summary(parts: &[Part], used: &[Option<Used>], total: Duration) -> String {
    let time = || Column::right("").fixed(6);
    let mut table = TextTable::of([time(), time().gap(1), Column::left("")]);
    for (part, used) in parts.iter().zip(used) {
        table.push(match used {
            Some(used) => {
                let failed = if used.passed { "" } else { "FAILED: " };
                let what = format!("{failed}{}", part.what);
                vec![minutes(used.wall), minutes(used.processors), what]
            }
            None => vec!["-".to_owned(), "-".to_owned(), format!("not run: {}", part.what)],
        });
    }
    let sum: Duration = used.iter().flatten().map(|used| used.processors).sum();
    table.push(vec![minutes(total), minutes(sum), "in total".to_owned()]);
    let Ends { passed, failed, not_run } = Ends::of(used);
    format!(
        "== how long each part took (minutes:seconds), and its time on all processors\n{}\
         {passed} passed, {failed} failed, {not_run} skipped\n",
        table.to_text()
    )
}

/// The end of what a part printed.
fn last_lines(said: &str) -> String {
    let lines: Vec<&str> = said.trim_end().lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

/// How many parts ended how.
struct Ends {
    passed: usize,
    failed: usize,
    not_run: usize,
}

impl Ends {
    fn of(used: &[Option<Used>]) -> Self {
        let passed = used.iter().flatten().filter(|used| used.passed).count();
        let not_run = used.iter().filter(|used| used.is_none()).count();
        Self { passed, failed: used.len() - passed - not_run, not_run }
    }
}

/// # Errors
/// A part failed, or did not run.
fn all_passed(used: &[Option<Used>]) -> Result<()> {
    let Ends { passed, failed, not_run } = Ends::of(used);
    if passed < used.len() {
        bail!("{failed} parts failed, and {not_run} did not run");
    }
    Ok(())
}

fn minutes(duration: Duration) -> String {
    let seconds = duration.as_secs();
    format!("{:02}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::super::part;
    use super::*;

    const PARTS: [Part; 3] = [
        part("first", &["first"]),
        part("second", &["second"]).after(&["first"]),
        part("third", &["third"]).after(&["another table's"]),
    ];

    fn used(passed: bool) -> Option<Used> {
        Some(Used { passed, wall: Duration::ZERO, processors: Duration::ZERO })
    }

    #[test]
    fn a_part_waits_for_what_it_needs_and_does_not_run_without_it() {
        let is_ready = |number: usize, used: &[_]| ready(&PARTS[number], &PARTS, used);
        assert!(is_ready(0, &[None, None, None]));
        assert!(!is_ready(1, &[None, None, None]));
        assert!(is_ready(1, &[used(true), None, None]));
        assert!(!is_ready(1, &[used(false), None, None]));
        assert!(is_ready(2, &[None, None, None]), "what another table makes is there");
    }

    #[test]
    fn a_failed_or_missing_part_fails_the_whole() {
        assert!(all_passed(&[used(true), used(true), used(true)]).is_ok());
        assert!(all_passed(&[used(true), used(false), used(true)]).is_err());
        assert!(all_passed(&[used(true), None, used(true)]).is_err());
    }

    #[test]
    fn the_table_of_times_names_what_failed_and_what_did_not_run() {
        let ended = |passed, wall, processors| {
            let [wall, processors] = [wall, processors].map(Duration::from_secs);
            Some(Used { passed, wall, processors })
        };
        let all = [ended(false, 61, 100), None, ended(true, 5, 3)];
        let text = summary(&PARTS, &all, Duration::from_secs(66));
        let lines: Vec<&str> = text.lines().skip(1).map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "01:01  01:40  FAILED: first",
                "-      -  not run: second",
                "00:05  00:03  third",
                "01:06  01:43  in total",
                "1 passed, 1 failed, 1 skipped",
            ]
        );
    }

    #[test]
    fn the_last_lines_of_a_failed_part_are_kept() {
        let said: String = (0..100).map(|line| format!("line {line}\n")).collect();
        let last = last_lines(&said);
        assert!(last.starts_with("line 70\n") && last.ends_with("line 99"), "{last}");
        assert_eq!(last_lines("one\n\n"), "one");
        assert_eq!(last_lines(""), "");
    }

    #[test]
    fn the_end_of_a_process_says_whether_it_passed_and_what_it_took() {
        let shell = |text: &str| ended(Command::new("sh").args(["-c", text])).unwrap();
        assert!(shell("exit 0").passed);
        assert!(!shell("exit 3").passed);
        assert!(!shell("kill -9 $$").passed);
        let counted = shell("i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done");
        assert!(counted.processors > Duration::ZERO);
    }
}
