//! `cargo xtask guest-test KERNEL`: recordings are bit-repeatable, and every failure is reported
//! and leaves nothing behind.
//!
//! The test runs Kernlane as a user does. KERNEL is the argument of `kernlane record --kernel`.

mod images;
mod programs;

use anyhow::{Context, Result, bail, ensure};
use guest::RecordingSummary;
use host::recording::Recording;
use lab::score::TestScore;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a recording may take to reach the state that a test needs.
const PATIENCE: Duration = Duration::from_secs(300);

/// Workloads with the most possible differences between runs: several processes, many connections,
/// a database. Other tests record the others.
/// Workloads that are recorded twice. `web` is too, with QEMU's threads late.
const REPEATED: [&str; 2] = ["database", "net"];

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn guest_test(kernel: &Path) -> Result<()> {
    let tool = GuestTests {
        // The commands `record`, `checkpoint` and `workload` are tested.
        kernlane: lab::kernlane()?,
        kernel: kernel.into(),
        directory: tempfile::Builder::new().prefix("kernlane-guest-test-").tempdir()?,
    };
    let mut score = TestScore::default();
    let mut report = |name: &str, result: Result<()>| {
        score.count(name, result.and_then(|()| tool.nothing_left()));
    };
    for workload in REPEATED {
        report(
            &format!("two recordings of {workload} have the same bytes"),
            tool.repeats(workload),
        );
    }
    report("a recording does not depend on when QEMU's threads run", tool.threads_are_late());
    report(
        "recordings from a checkpoint have the same bytes, and a checkpoint of another guest is \
         refused",
        tool.starts_from_checkpoint(),
    );
    report("another seed gives another recording", tool.seeds_differ());
    let compiled = programs::Programs::compiled()?;
    report("two recordings of a copied server have the same bytes", tool.copied_program(&compiled));
    report(
        "recordings of an image have the same bytes, whatever its form",
        tool.program_in_an_image(&compiled),
    );
    report("the variables of one's own program have their names", tool.named_variables(&compiled));
    report("a program without its libraries is refused", tool.lacking_program(&compiled));
    report(
        "a workload that is checked shows the line that fails",
        tool.checked_workload(&compiled),
    );
    for (name, set_up, run, check, printed) in FAILURES {
        report(name, tool.fails(set_up, run, check, printed));
    }
    report("a time limit ends a guest that hangs", tool.hangs());
    report("a full disk is reported, and nothing stays", tool.full_disk());
    report("Ctrl-C ends QEMU, and nothing stays", tool.interrupted());
    report("QEMU ends if Kernlane is killed", tool.killed());
    ensure!(score.failed() == 0, "{} tests failed", score.failed());
    Ok(())
}

/// The name, the workload's three scripts, and a text that the message must contain.
const FAILURES: [(&str, &str, &str, &str, &str); 4] = [
    (
        "a workload that fails in its set-up",
        "echo in vain; exit 5",
        "true",
        "true",
        "failed in set-up (status 5)",
    ),
    (
        "a workload that fails while it is recorded",
        "true",
        "echo in vain; exit 7",
        "true",
        "failed in run (status 7)",
    ),
    (
        "a workload whose output is wrong",
        "true",
        "echo in vain",
        "grep -q success /run/output",
        "failed in check (status 1)",
    ),
    (
        "a kernel that panics",
        "true",
        "echo c > /proc/sysrq-trigger",
        "true",
        "sysrq triggered crash",
    ),
];

struct GuestTests {
    kernlane: PathBuf,
    kernel: PathBuf,
    directory: tempfile::TempDir,
}

impl GuestTests {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn record(&self, workload: &str, output: &str, more: &[&str]) -> Command {
        let mut command = Command::new(&self.kernlane);
        command.args(["record", workload, "--force", "--kernel"]).arg(&self.kernel);
        command.arg("--output").arg(self.path(output)).args(more).stdin(Stdio::null());
        command
    }

    fn recorded(&self, workload: &str, output: &str, more: &[&str]) -> Result<Vec<u8>> {
        self.recorded_by(self.record(workload, output, more), output)
    }

    fn recorded_by(&self, mut command: Command, output: &str) -> Result<Vec<u8>> {
        let ended = command.output()?;
        let printed = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.success() && !printed.contains("warning: "), "{printed}");
        Ok(std::fs::read(Recording::at(self.path(output)).trace())?)
    }

    /// Whether the recordings `one` and `two`, which have these traces, are the same.
    fn same(&self, one: &[u8], two: &[u8]) -> Result<()> {
        if one == two {
            return Ok(());
        }
        let offset = one.iter().zip(two).take_while(|(one, two)| one == two).count();
        let instructions = |name: &str| anyhow::Ok(self.summary(name)?.totals.instructions);
        bail!(
            "the two traces differ from byte {offset} on ({} and {} bytes, {} and {} instructions)",
            one.len(),
            two.len(),
            instructions("one")?,
            instructions("two")?
        )
    }

    fn summary(&self, name: &str) -> Result<RecordingSummary> {
        let text = std::fs::read_to_string(Recording::at(self.path(name)).summary())?;
        Ok(serde_json::from_str(&text)?)
    }

    fn repeats(&self, workload: &str) -> Result<()> {
        let (one, two) =
            (self.recorded(workload, "one", &[])?, self.recorded(workload, "two", &[])?);
        self.same(&one, &two)?;
        let conditions =
            |name: &str| std::fs::read_to_string(Recording::at(self.path(name)).summary());
        ensure!(conditions("one")? == conditions("two")?, "the two sets of conditions differ");
        let totals = self.summary("one")?.totals;
        let bits = 8.0 * totals.trace_bytes as f64 / totals.instructions as f64;
        println!(
            "{workload}: {:.1} M instructions, {:.3} bit each",
            totals.instructions as f64 / 1e6,
            bits
        );
        ensure!(
            (100_000_000..2_500_000_000).contains(&totals.instructions),
            "{} instructions",
            totals.instructions
        );
        ensure!(
            totals.kernel_instructions > 20_000_000,
            "only {} instructions of the kernel",
            totals.kernel_instructions
        );
        ensure!(bits <= 0.3, "{bits:.3} bits for each instruction");
        Ok(())
    }

    /// `web` halts while it is recorded, and timers ring right before.
    fn threads_are_late(&self) -> Result<()> {
        let directory = tempfile::tempdir()?;
        let at = |name| directory.path().join(name);
        let (source, library) = (at("delays.c"), at("delays.so"));
        std::fs::write(&source, include_str!("delays.c"))?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
        lab::run(compiler.arg(&library).arg(&source))?;
        let one = self.recorded("web", "one", &[])?;
        let mut late = self.record("web", "two", &[]);
        late.env("LD_PRELOAD", &library);
        self.same(&one, &self.recorded_by(late, "two")?)
    }

    fn starts_from_checkpoint(&self) -> Result<()> {
        let directory = self.path("checkpoint");
        let mut command = Command::new(&self.kernlane);
        command.args(["checkpoint", "files", "--force", "--kernel"]).arg(&self.kernel);
        lab::run(command.arg("--output").arg(&directory))?;
        let from = directory.to_str().context("the temporary directory's name is not UTF-8")?;
        let (one, two) = (
            self.recorded("files", "one", &["--from", from])?,
            self.recorded("files", "two", &["--from", from])?,
        );
        self.same(&one, &two)?;
        let message =
            refused(&self.record("files", "other", &["--from", from, "--seed", "2"]).output()?)?;
        ensure!(message.contains("seed: 1, now 2"), "{message}");
        let state = directory.join("state");
        let length = std::fs::metadata(&state)?.len();
        std::fs::OpenOptions::new().write(true).open(&state)?.set_len(length / 2)?;
        let message = refused(&self.record("files", "other", &["--from", from]).output()?)?;
        ensure!(message.contains("was changed after it was saved"), "{message}");
        Ok(())
    }

    fn seeds_differ(&self) -> Result<()> {
        let one = self.recorded("files", "one", &["--seed", "1"])?;
        ensure!(
            one != self.recorded("files", "two", &["--seed", "2"])?,
            "seeds 1 and 2 gave the same trace"
        );
        Ok(())
    }

    /// Writes a workload and returns its path.
    fn workload(&self, set_up: &str, run: &str, check: &str) -> Result<String> {
        let path = self.path("workload.toml");
        let text = format!(
            "about = 'a test'\npackages = []\nmemory = 256\nset-up = '''{set_up}'''\n\
             run = '''{run}'''\ncheck = '''{check}'''\n"
        );
        std::fs::write(&path, text)?;
        Ok(path.to_str().context("the temporary directory is not UTF-8")?.into())
    }

    /// Checks that the message contains `said` and everything that the workload printed.
    fn fails(&self, set_up: &str, run: &str, check: &str, printed: &str) -> Result<()> {
        let workload = self.workload(set_up, run, check)?;
        let message = refused(&self.record(&workload, "failed", &[]).output()?)?;
        ensure!(message.contains(printed), "the message lacks {printed:?}:\n{message}");
        let prints = [set_up, run].iter().any(|script| script.contains("echo in vain"));
        ensure!(
            !prints || message.contains("\nin vain\n"),
            "the message lacks the workload's output:\n{message}"
        );
        Ok(())
    }

    fn hangs(&self) -> Result<()> {
        let workload = self.workload("true", "while true; do :; done", "true")?;
        let message = refused(&self.record(&workload, "hung", &["--time-limit", "40"]).output()?)?;
        ensure!(message.contains("40 seconds") && message.contains("phase counting"), "{message}");
        Ok(())
    }

    /// Runs in its own mount namespace, on a file system of two megabytes.
    fn full_disk(&self) -> Result<()> {
        std::fs::create_dir_all(self.path("small"))?;
        let record = self.record("files", "small/full", &[]);
        let ended = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
            .arg(
                "mount -t tmpfs -o size=2m tmpfs \"$0\" || exit 100; \"$@\"; status=$?; ls \
                 -A \"$0\"; exit $status",
            )
            .arg(self.path("small"))
            .arg(record.get_program())
            .args(record.get_args())
            .output()?;
        let message = refused(&ended)?;
        ensure!(message.contains("No space left on device"), "{message}");
        ensure!(ended.stdout.is_empty(), "files stay: {}", String::from_utf8_lossy(&ended.stdout));
        Ok(())
    }

    fn interrupted(&self) -> Result<()> {
        let mut child = self.started()?;
        signal(&child, "INT")?;
        let status = child.wait()?;
        ensure!(status.code() == Some(2), "ended with {status}");
        Ok(())
    }

    fn killed(&self) -> Result<()> {
        let mut child = self.started()?;
        signal(&child, "KILL")?;
        child.wait()?;
        // A killed process cannot remove its files.
        for entry in std::fs::read_dir(self.directory.path())? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".kernlane-"))
            {
                std::fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    }

    /// Starts a recording and waits until its guest has booted.
    fn started(&self) -> Result<Child> {
        let workload = self.workload("true", "while true; do :; done", "true")?;
        let mut child = self.record(&workload, "interrupted", &[]).stderr(Stdio::null()).spawn()?;
        let begun = Instant::now();
        while !self.console_says("kernlane: booted")? {
            if begun.elapsed() > PATIENCE || child.try_wait()?.is_some() {
                signal(&child, "KILL").ok();
                bail!("the guest did not boot in time");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(child)
    }

    fn console_says(&self, text: &str) -> Result<bool> {
        for entry in std::fs::read_dir(self.directory.path())? {
            let console = entry?.path().join("new/console.log");
            if std::fs::read(console)
                .is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks that no temporary directory, no failed recording and no QEMU is left.
    fn nothing_left(&self) -> Result<()> {
        for entry in std::fs::read_dir(self.directory.path())? {
            let name = entry?.file_name();
            ensure!(
                ["one", "two", "small", "checkpoint", "workload.toml"]
                    .iter()
                    .any(|known| name == *known),
                "{name:?} stays"
            );
        }
        let begun = Instant::now();
        while let Some(process) = self.process_of_ours() {
            // The system needs a moment to end a process after its parent died.
            ensure!(begun.elapsed() < Duration::from_secs(10), "process {process} stays");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// A process with the test's directory on its command line.
    fn process_of_ours(&self) -> Option<String> {
        let directory = self.directory.path().to_string_lossy().into_owned();
        let processes = std::fs::read_dir("/proc").ok()?.flatten();
        let mut names = processes.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.find(|name| {
            std::fs::read(format!("/proc/{name}/cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&directory))
        })
    }
}

/// The message of a command that must fail. Its exit status must mean "could not be done".
fn refused(ended: &Output) -> Result<String> {
    let message = String::from_utf8_lossy(&ended.stderr).into_owned();
    ensure!(ended.status.code() == Some(2), "ended with {}:\n{message}", ended.status);
    Ok(message)
}

fn signal(child: &Child, name: &str) -> Result<()> {
    lab::run(Command::new("kill").args([format!("-{name}"), child.id().to_string()]))
}
