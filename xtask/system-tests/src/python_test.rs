//! `cargo xtask python-test KERNEL`: tests whether Kernlane works in Python.
//!
//! Builds the wheel, installs it beside the libraries that take Arrow, records a small workload by
//! it, reads values of that run, and runs the tests of `crates/python/tests`: answers are those of
//! the program, libraries take them, the types are right, the notebook runs, Ctrl-C ends work. The
//! libraries are kept in the cache.

use crate::ask_test::WORKLOAD;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is installed from PyPI.
const LIBRARIES: &str = include_str!("../../../crates/python/tests/requirements.txt");

/// A module of Python that records: the step that needs a guest.
const RECORD: &str = "
import kernlane, sys
workload, kernel, output = sys.argv[1:]
rec = kernlane.record(workload, kernel=kernel, output=output, data=True)
assert rec.summary['totals']['instructions'] > 0
print('passed: a recording is made,', rec.summary['totals']['instructions'], 'instructions')
probed = rec.probe('vfs_read(count=%rdx)', workload=workload)
called = \"(SELECT count(*) FROM calls WHERE function = 'vfs_read')\"
[counted] = probed.ask(f'SELECT count(*) AS values_read, {called} AS calls FROM vfs_read').rows()
assert counted['values_read'] == counted['calls'] > 0, counted
print('passed: a probe reads', counted['calls'], 'values')
";

/// Runs what this module describes.
///
/// # Errors
/// A test failed, or cannot run.
pub fn python_test(kernel: &Path) -> Result<()> {
    let program = lab::kernlane()?;
    let plugin = lab::build_plugin()?;
    let environment = environment()?;
    let python = environment.join("bin/python");
    let directory = tempfile::tempdir().context("making a temporary directory")?;
    install(&environment, directory.path())?;

    let workload = directory.path().join("ask.toml");
    std::fs::write(&workload, WORKLOAD)?;
    let recording = directory.path().join("ask.rec");
    let mut record = Command::new(&python);
    record.args(["-c", RECORD]).arg(workload).arg(kernel).arg(&recording);
    lab::run(record.env("KERNLANE_PLUGIN", plugin)).context("recording from Python")?;

    // The library lies in the package, under a name of its own that nobody needs.
    let library = directory.path().join("library.txt");
    std::fs::write(&library, "kernlane\\.kernlane\n")?;
    let mut types = Command::new(&python);
    types.args(["-m", "mypy.stubtest", "kernlane", "--ignore-disjoint-bases", "--allowlist"]);
    lab::run(types.arg(library)).context("the types of kernlane.pyi")?;
    let mut tests = Command::new(&python);
    tests.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider", "crates/python/tests"]);
    tests
        .env("KERNLANE_TEST_PROGRAM", program)
        .env("KERNLANE_TEST_RECORDING", recording)
        .env("KERNLANE_TEST_KERNEL", kernel);
    lab::run(&mut tests)
}

/// A virtual environment with the libraries, made once for each list of them.
fn environment() -> Result<PathBuf> {
    let path = lab::kernel::cache()?.join("python-test");
    let list = path.join("requirements.txt");
    if std::fs::read_to_string(&list).is_ok_and(|made_for| made_for == LIBRARIES) {
        return Ok(path);
    }
    lab::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&path))
        .context("python3 -m venv: install python3-venv")?;
    let mut pip = Command::new(path.join("bin/pip"));
    pip.args(["install", "--quiet", "--only-binary=:all:", "--requirement"]);
    lab::run(pip.arg("crates/python/tests/requirements.txt"))
        .context("the libraries of crates/python/tests cannot be installed")?;
    std::fs::write(list, LIBRARIES)?;
    Ok(path)
}

/// Builds the wheel in the profile of this program, and installs it.
fn install(environment: &Path, directory: &Path) -> Result<()> {
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let mut maturin = Command::new(environment.join("bin/maturin"));
    maturin.args(["build", "--quiet", "--manifest-path", "crates/python/Cargo.toml"]);
    maturin.args(["--profile", profile, "--out"]).arg(directory);
    lab::run(maturin.env("VIRTUAL_ENV", environment)).context("building the wheel")?;
    let wheels = std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path()));
    let wheels: Vec<PathBuf> = wheels.collect::<Result<_>>()?;
    let wheel = wheels.iter().find(|path| path.extension().is_some_and(|it| it == "whl"));
    let mut pip = Command::new(environment.join("bin/pip"));
    pip.args(["install", "--quiet", "--no-deps", "--no-index", "--force-reinstall"]);
    lab::run(pip.arg(wheel.context("maturin made no wheel")?)).context("installing the wheel")
}
