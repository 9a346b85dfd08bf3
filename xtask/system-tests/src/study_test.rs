//! `cargo xtask study-test KERNEL`: a study on this machine and by Snakemake, each killed midway.
//!
//! Both must go on where they stopped, do no job twice, and find the same numbers, byte for byte.
//! Snakemake is installed from PyPI, in the cache.

use crate::ask_test::WORKLOAD;
use anyhow::{Context, Result, ensure};
use host::interrupt;
use lab::score::TestScore;
use lab::succeeded;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

const SNAKEMAKE: &str = "snakemake==9.27.1";

/// Two workloads, two seeds, two layouts: 4 recordings, 8 layouts, 4 replays.
const JOBS: usize = 16;

/// How often it is looked whether the first recordings are there.
const TICK: Duration = Duration::from_millis(200);

/// Runs what this module describes.
///
/// # Errors
/// A test failed, or cannot run.
pub fn study_test(kernel: &Path) -> Result<()> {
    interrupt::catch()?;
    let python = python_with(SNAKEMAKE)?;
    let directory = tempfile::tempdir().context("making a temporary directory")?;
    let tried = Tried {
        program: lab::kernlane()?,
        plugin: lab::build_plugin()?,
        file: study(directory.path(), kernel)?,
        directory: directory.path(),
    };
    let mut score = TestScore::default();

    let planned = tried.run("snakemake", &["--dry-run"])?;
    score.holds("a dry run lists the jobs", planned.ends_with("16 jobs, 16 of them open\n"));
    score.holds("and does nothing", !tried.path("snakemake").exists());
    tried.run("snakemake", &["--snakemake"])?;
    let work = |more: &[&str]| {
        let mut command = Command::new(&python);
        command.args(["-m", "snakemake", "--cores", "2", "--quiet", "--snakefile"]);
        command.arg(tried.path("snakemake/Snakefile"));
        command.arg("--directory").arg(tried.path("snakemake")).args(more);
        command.env("KERNLANE_PLUGIN", &tried.plugin);
        command
    };
    killed_midway(&mut work(&[]), &tried.path("snakemake"))?;
    let before = outputs(&tried.path("snakemake"))?;
    score.holds("Snakemake is killed midway", !before.is_empty() && before.len() < JOBS);
    lab::run(&mut work(&["--unlock"]))?;
    lab::run(&mut work(&["--rerun-incomplete"]))?;
    let after = outputs(&tried.path("snakemake"))?;
    score.holds("Snakemake goes on to the end", after.len() == JOBS);
    // What was done when it was killed, but not yet noted, it does again.
    let kept = before.iter().filter(|output| after.contains(output)).count();
    score.holds("and keeps what it knew to be done", kept > 0);
    let planned = tried.run("snakemake", &["--dry-run"])?;
    score.holds("the study finds it done", planned.ends_with("16 jobs, 0 of them open\n"));
    let by_snakemake = tried.run("snakemake", &["--json"])?;

    killed_midway(&mut tried.command("here", &[]), &tried.path("here"))?;
    let before = outputs(&tried.path("here"))?;
    score.holds("a study is killed midway", !before.is_empty() && before.len() < JOBS);
    let here = tried.run("here", &["--json"])?;
    let after = outputs(&tried.path("here"))?;
    score.holds("it goes on to the end", after.len() == JOBS);
    score.holds("and keeps what was done", before.iter().all(|output| after.contains(output)));
    score.holds("both find the same", here == by_snakemake && !here.is_empty());
    let again = tried.run("here", &["--json"])?;
    score.holds("again, nothing is done", again == here && outputs(&tried.path("here"))? == after);
    score.finish("a study is not what its jobs are")
}

/// The study and where it is done.
struct Tried<'a> {
    program: PathBuf,
    plugin: PathBuf,
    file: PathBuf,
    directory: &'a Path,
}

impl Tried<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn command(&self, output: &str, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("study").arg(&self.file).arg("--output").arg(self.path(output)).args(words);
        command.args(["--jobs", "2"]).env("KERNLANE_PLUGIN", &self.plugin);
        command
    }

    /// What the study prints.
    fn run(&self, output: &str, words: &[&str]) -> Result<String> {
        let printed = succeeded(&mut self.command(output, words))?.stdout;
        Ok(String::from_utf8(printed)?)
    }
}

/// The file of the study.
fn study(directory: &Path, kernel: &Path) -> Result<PathBuf> {
    for (name, text) in [
        ("small.toml", WORKLOAD.to_owned()),
        ("other.toml", format!("{WORKLOAD}\n# Another workload, as far as a study knows.\n")),
    ] {
        fs::write(directory.join(name), text)?;
    }
    let file = directory.join("study.toml");
    let kernel = std::path::absolute(kernel)?;
    let text = format!(
        "workloads = ['small.toml', 'other.toml']\nkernels = ['{}']\n\
         layouts = ['ext-tsp', 'call']\nmachines = ['server-32k']\nseeds = [1, 2]\n\
         train = 'others'\n",
        kernel.display()
    );
    fs::write(&file, text)?;
    Ok(file)
}

/// Kills a command, with all that it started, when the first jobs of `directory` are done.
fn killed_midway(command: &mut Command, directory: &Path) -> Result<()> {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut program = interrupt::spawn(command)?;
    while outputs(directory)?.len() < 3 {
        let ended = program.wait_at_most(TICK)?;
        ensure!(ended.is_none(), "{command:?} has ended: {ended:?}");
    }
    program.end().context("killing a program")?;
    Ok(())
}

/// What is done in a study's directory, and when its content was written.
fn outputs(directory: &Path) -> Result<Vec<(PathBuf, SystemTime)>> {
    let mut found = Vec::new();
    for part in ["recordings", "layouts", "results"] {
        let Ok(entries) = fs::read_dir(directory.join(part)) else { continue };
        for entry in entries {
            let entry = entry?;
            let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
            if !is_hidden {
                found.push((entry.path(), written(&entry.path())?));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// When a file was written, or the last file in a directory. Snakemake adds a hidden one.
fn written(path: &Path) -> Result<SystemTime> {
    if !path.is_dir() {
        return Ok(fs::metadata(path)?.modified()?);
    }
    let mut last = SystemTime::UNIX_EPOCH;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            last = last.max(entry.metadata()?.modified()?);
        }
    }
    Ok(last)
}

/// Python with a package of PyPI, such as `snakemake==9.27.1`, installed once.
pub(crate) fn python_with(package: &str) -> Result<PathBuf> {
    let path = lab::kernel::cache()?.join(package);
    let program = path.join("bin/python");
    if !program.exists() {
        host::output::whole_directory(&path, |path| {
            lab::run(Command::new("python3").args(["-m", "venv"]).arg(path))
                .context("python3 -m venv: install python3-venv")?;
            let mut pip = Command::new(path.join("bin/python"));
            lab::run(pip.args(["-m", "pip", "install", "--quiet", package]))
                .with_context(|| format!("{package} cannot be installed"))
        })?;
    }
    Ok(program)
}
