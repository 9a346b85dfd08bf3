//! Runs public suites in rounds, in shuffled order, until their intervals are narrow enough or time
//! is over.
//!
//! Each run is a new process that may use every CPU, as its authors meant it; the figure is the one
//! that the program prints.
//!
//! Input: the programs of `list.rs`. Output: a result. Programs that are not installed are listed.

use super::list::{Public, Server};
use super::server::{self, Pages, Running};
use crate::clock::Moment;
use crate::random::Random;
use crate::result::{Entry, FORMAT, MeasuredRounds, Outcome, ProgramUsed, Results};
use crate::statistics::Estimate;
use crate::watch::Watch;
use crate::worker::Trouble;
use anyhow::{Context, Result, anyhow};
use host::progress::Progress;
use host::{interrupt, scratch};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Rounds before an interval is trusted.
const FEWEST: usize = 5;
/// How long one program may run.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to measure, and how well.
pub(crate) struct PublicSettings {
    pub suites: Vec<&'static Public>,
    pub seed: u64,
    pub precision_percent: f64,
    /// No new round begins that would end behind this time.
    pub budget: Duration,
    pub directory: PathBuf,
}

/// A suite under way.
struct SuiteProgress {
    public: &'static Public,
    used: Option<ProgramUsed>,
    /// Nanoseconds an operation, of each round.
    rounds: Vec<f64>,
    trouble: Option<Trouble>,
}

impl SuiteProgress {
    fn new(public: &'static Public) -> SuiteProgress {
        let missing = [Some(public.program()), public.other_program()]
            .into_iter()
            .flatten()
            .find(|program| !is_installed(program));
        let trouble = missing.map(|program| {
            Trouble::Lacks(format!(
                "not installed: there is no program {program} in PATH; Debian's package is {}",
                public.package
            ))
        });
        let used = trouble.is_none().then(|| ProgramUsed {
            version: version(public.version),
            command_line: public.line.join(" "),
            server: match public.server {
                Server::None => None,
                Server::Program(line) => Some(line.join(" ")),
                Server::Page => Some("this program".into()),
            },
        });
        SuiteProgress { public, used, rounds: Vec::new(), trouble }
    }

    fn done(&self, precision_percent: f64) -> bool {
        let narrow = |estimate: Estimate| 100.0 * estimate.half_width() <= precision_percent;
        self.trouble.is_some()
            || self.rounds.len() >= FEWEST && Estimate::of(&self.rounds).is_some_and(narrow)
    }

    fn entry(self, precision_percent: f64) -> Entry {
        let outcome = match self.trouble {
            Some(Trouble::Lacks(why)) => Outcome::NotRun { why },
            Some(Trouble::Wrong(why)) => Outcome::Wrong { why },
            None => Outcome::Measured(MeasuredRounds::new(self.rounds, 1, precision_percent)),
        };
        Entry { name: self.public.name.into(), version: 1, program: self.used, outcome }
    }
}

/// Measures.
///
/// # Errors
/// The processor has no usable counter, the directory is not there, or the user has interrupted.
pub(crate) fn measure(settings: &PublicSettings) -> Result<Results> {
    let watch = Watch::begin(None, &settings.directory, None)?;
    let mut states: Vec<SuiteProgress> =
        settings.suites.iter().map(|public| SuiteProgress::new(public)).collect();
    let mut random = Random::new(settings.seed);
    let progress = Progress::new("measuring");
    for round in 1.. {
        let mut order: Vec<usize> =
            (0..states.len()).filter(|at| !states[*at].done(settings.precision_percent)).collect();
        if order.is_empty() {
            break;
        }
        random.shuffle(&mut order);
        let before = Moment::now().map_err(|failure| anyhow!("{failure}"))?;
        for at in order {
            let state = &mut states[at];
            progress.say(format!("round {round}: {}", state.public.name));
            match once(state.public, &settings.directory)? {
                Ok(nanoseconds) => state.rounds.push(nanoseconds),
                // A program that fails in its first run cannot run here.
                Err(why) if state.rounds.is_empty() => state.trouble = Some(Trouble::Lacks(why)),
                Err(why) => state.trouble = Some(Trouble::Wrong(why)),
            }
        }
        if !watch.has_time_for_a_round_as_since(before, settings.budget)? {
            break;
        }
    }
    drop(progress);
    let (conditions, _) = watch.end()?;
    let entries = states.into_iter().map(|state| state.entry(settings.precision_percent));
    Ok(Results {
        format: FORMAT,
        suite: env!("CARGO_PKG_VERSION").into(),
        seed: settings.seed,
        precision_percent: settings.precision_percent,
        conditions,
        benchmarks: entries.collect(),
    })
}

/// One run: its figure, or why there is none.
fn once(public: &Public, directory: &Path) -> Result<Result<f64, String>> {
    interrupt::check()?;
    let attempt = || -> Result<f64> {
        let directory = scratch::directory(directory, ".kernlane-bench-")?;
        let (port, server) = serve(public, directory.path())?;
        let text = output(&mut command(public.line, directory.path(), port), directory.path())?;
        drop(server);
        let start: String = text.chars().take(200).collect();
        (public.figure)(&text).with_context(|| format!("it printed no figure, but {start:?}"))
    };
    let figure = attempt();
    // An interrupt does not mean that a suite cannot run.
    interrupt::check()?;
    Ok(figure.map_err(|error| format!("{error:#}")))
}

/// The port to use, and what listens there.
fn serve(public: &Public, directory: &Path) -> Result<(u16, Option<Running>)> {
    match public.server {
        Server::None => Ok((0, None)),
        Server::Page => {
            let pages = Pages::start()?;
            Ok((pages.port(), Some(Running::Pages { _pages: pages })))
        }
        Server::Program(line) => {
            let port = server::free_port()?;
            let running = server::start(&mut command(line, directory, port), port)?;
            Ok((port, Some(running)))
        }
    }
}

fn command(line: &[&str], directory: &Path, port: u16) -> Command {
    let word = |word: &&str| {
        word.replace("{port}", &port.to_string()).replace("{dir}", &directory.display().to_string())
    };
    let mut command = Command::new(line[0]);
    command.args(line[1..].iter().map(word)).current_dir(directory).env("LC_ALL", "C");
    command
}

/// What a program prints.
fn output(command: &mut Command, directory: &Path) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let [output, errors] = ["output", "errors"].map(|name| directory.join(name));
    let file = |path: &Path| {
        File::create(path).with_context(|| format!("{}: cannot be written", path.display()))
    };
    command.stdin(Stdio::null()).stdout(file(&output)?).stderr(file(&errors)?);
    let mut program =
        interrupt::spawn(command).with_context(|| format!("{name} cannot be started"))?;
    let status = program
        .wait_at_most(PATIENCE)?
        .with_context(|| format!("{name} did not end within {} s", PATIENCE.as_secs()))?;
    let read =
        |path: &Path| std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let text = read(&output).context("its output cannot be read")?;
    if !status.success() {
        let printed = read(&errors).unwrap_or_default() + &text;
        let last = printed.trim().lines().last().unwrap_or("nothing").to_owned();
        return Err(anyhow!("{name}: {status}; it said: {last}"));
    }
    // Some programs print their figures as messages.
    match text.trim().is_empty() {
        true => read(&errors).context("its messages cannot be read"),
        false => Ok(text),
    }
}

fn is_installed(program: &str) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let executable = |path: PathBuf| {
        path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| executable(directory.join(program)))
}

/// The line with the version, in what a program prints about itself. Some programs print it among
/// error messages.
fn version(line: &[&str]) -> String {
    let output = Command::new(line[0]).args(&line[1..]).stdin(Stdio::null()).output();
    let Ok(output) = output else { return "unknown".into() };
    let text = [output.stdout, output.stderr].concat();
    named_version(&String::from_utf8_lossy(&text)).unwrap_or_else(|| "unknown".into())
}

fn named_version(text: &str) -> Option<String> {
    let has_digit = |line: &&str| line.contains(|c: char| c.is_ascii_digit());
    text.lines().map(str::trim).find(has_digit).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::public::figures;

    const ECHO: Public = Public {
        name: "echo/number",
        stresses: "a test",
        package: "coreutils",
        version: &["echo", "version 7"],
        server: Server::None,
        line: &["echo", "0.5"],
        figure: figures::seconds::<1000>,
    };

    fn outcome(public: &'static Public) -> (Option<ProgramUsed>, Outcome) {
        let directory = tempfile::tempdir().unwrap();
        let settings = PublicSettings {
            suites: vec![public],
            seed: 0,
            precision_percent: 1.0,
            budget: Duration::from_secs(30),
            directory: directory.path().to_owned(),
        };
        let mut results = measure(&settings).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
        let entry = results.benchmarks.pop().unwrap();
        (entry.program, entry.outcome)
    }

    #[test]
    fn a_program_that_prints_a_figure_is_measured() {
        let (used, outcome) = outcome(&ECHO);
        let Outcome::Measured(measured) = outcome else { panic!("{outcome:?}") };
        assert_eq!((measured.nanoseconds.round(), measured.rounds.len()), (5e5, FEWEST));
        let used = used.unwrap();
        assert_eq!((&*used.version, &*used.command_line), ("version 7", "echo 0.5"));
    }

    #[test]
    fn a_figure_may_be_a_message() {
        static MESSAGE: Public = Public { line: &["sh", "-c", "echo 0.5 >&2"], ..ECHO };
        let (_, outcome) = outcome(&MESSAGE);
        let Outcome::Measured(measured) = outcome else { panic!("{outcome:?}") };
        assert_eq!(measured.nanoseconds.round(), 5e5);
    }

    #[test]
    fn what_cannot_run_says_why() {
        static MISSING: Public = Public { line: &["no-such-program"], ..ECHO };
        static NO_FIGURE: Public = Public { line: &["echo", "none"], ..ECHO };
        static FAILS: Public = Public { line: &["sh", "-c", "echo broken >&2; exit 3"], ..ECHO };
        static NO_SERVER: Public =
            Public { server: Server::Program(&["sh", "-c", "exit 1"]), ..ECHO };
        for (public, printed) in [
            (&MISSING, "not installed: there is no program no-such-program in PATH; Debian's"),
            (&NO_FIGURE, "it printed no figure, but \"none\\n\""),
            (&FAILS, "sh: exit status: 3; it said: broken"),
            (&NO_SERVER, "sh has ended: exit status: 1"),
        ] {
            let (_, outcome) = outcome(public);
            let Outcome::NotRun { why } = outcome else { panic!("{outcome:?}") };
            assert!(why.starts_with(printed), "{why}");
        }
    }

    #[test]
    fn a_version_is_the_first_line_with_a_number() {
        let printed = "hackbench: unrecognized option\nhackbench V 2.40\nUsage: -l 3\n";
        assert_eq!(named_version(printed).as_deref(), Some("hackbench V 2.40"));
        assert_eq!(named_version("none"), None);
    }
}
