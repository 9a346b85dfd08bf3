//! `cargo xtask diff-test TREE SHUFFLED`: tests whether `kernlane diff` finds the effect of a small
//! change to a kernel, and its reason.
//!
//! Input: the demo kernel's tree, and the same kernel relinked in a random order. The test records
//! one small workload on the demo kernel, on the demo kernel with `slower-stat.patch`, on the
//! shuffled kernel, and once more with more work. The change is then in instructions per call, in
//! misses per call, or in the number of calls, and in nothing else. Prints one line for each test.

use anyhow::{Context, Result, bail, ensure};
use lab::kernel::{self, Compiler};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The patch makes one function do more work for each file.
const PATCH: &str = include_str!("slower-stat.patch");
const CHANGED: &str = "vfs_getattr_nosec";
/// The service that calls the function in this workload.
const SERVICE: &str = "newfstatat";
const MACHINE: &str = "server-32k";

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn diff_test(tree: &Path, shuffled: &Path) -> Result<()> {
    let patched = kernel::patched(Compiler::Gcc, "slower-stat", PATCH)?;
    let directory = tempfile::Builder::new().prefix("kernlane-diff-test-").tempdir()?;
    // The command `diff` is tested.
    let test = DiffTest { program: lab::kernlane()?, directory: directory.path().to_owned() };
    let original = test.record("original", tree, 3)?;
    let slower = test.record("slower", &patched, 3)?;
    let busier = test.record("busier", tree, 4)?;
    let elsewhere = test.record("elsewhere", shuffled, 3)?;

    let (original, slower) = ((original.as_path(), tree), (slower.as_path(), patched.as_path()));
    let (busier, elsewhere) = ((busier.as_path(), tree), (elsewhere.as_path(), shuffled));

    let nothing = test.diff(original, original, Some(MACHINE))?;
    says(
        "a recording does not differ from itself",
        nothing.why == "nothing changed" && nothing.functions.is_empty(),
    )?;
    test.exits(original, original, 0.0, None)?;

    let found = test.diff(original, slower, None)?;
    let (first, second) = match found.functions.as_slice() {
        [first, second, ..] => (first, second),
        other => bail!("FAILED: fewer than two functions changed: {other:?}"),
    };
    println!("{first:?}; then {second:?}");
    says(
        "the patched function has more instructions per call",
        first.is(CHANGED, "more instructions a call"),
    )?;
    says("its number of calls is unchanged", first.calls[0] == first.calls[1])?;
    says(
        "every other function changes by less than 1 % of that",
        second.change.abs() < 0.01 * first.change,
    )?;
    says(
        "the service that calls it has more instructions per call",
        found.services[0].is(SERVICE, "more instructions a call"),
    )?;
    test.exits(original, slower, 3.0, Some(SERVICE))?;
    test.exits(original, slower, 1000.0, None)?;
    test.exits(slower, original, 3.0, None)?;

    let found = test.diff(original, busier, None)?;
    says("more work gives more calls of the service", found.services[0].is(SERVICE, "more calls"))?;
    says(
        "more work gives more calls of the function",
        found.functions.iter().any(|change| change.is(CHANGED, "more calls")),
    )?;

    let found = test.diff(original, elsewhere, Some(MACHINE))?;
    says("another order gives more misses per call", found.why == "more misses a call")?;
    says(
        "another order gives more misses per call of the service",
        found.services[0].is(SERVICE, "more misses a call"),
    )?;
    says(
        "another order gives more misses per call of the function",
        found.functions.iter().any(|change| change.is(CHANGED, "more misses a call")),
    )?;
    says("another order gives the same number of forks", found.forks[0] == found.forks[1])
}

fn says(what: &str, is_true: bool) -> Result<()> {
    ensure!(is_true, "FAILED: {what}");
    println!("passed: {what}");
    Ok(())
}

struct DiffTest {
    program: PathBuf,
    directory: PathBuf,
}

/// The parts of a change that the tests use.
#[derive(Debug)]
struct PrintedChange {
    name: String,
    why: String,
    change: f64,
    calls: [u64; 2],
}

struct KernelDifferences {
    /// The reason for the whole kernel.
    why: String,
    /// Forks before and after.
    forks: [u64; 2],
    services: Vec<PrintedChange>,
    functions: Vec<PrintedChange>,
}

impl DiffTest {
    /// `rounds` is how often the workload looks at every file.
    fn record(&self, name: &str, kernel: &Path, rounds: u32) -> Result<PathBuf> {
        let workload = self.directory.join(format!("{name}.toml"));
        std::fs::write(&workload, workload_of(rounds))?;
        let recording = self.directory.join(format!("{name}.rec"));
        let mut command = Command::new(&self.program);
        command.arg("record").arg(&workload).arg("--kernel").arg(kernel);
        lab::run(command.arg("--output").arg(&recording))?;
        Ok(recording)
    }

    fn command(
        &self,
        before: (&Path, &Path),
        after: (&Path, &Path),
        more: &[&str],
    ) -> Result<Output> {
        let mut command = Command::new(&self.program);
        command.arg("diff").args([before.0, after.0]);
        command.arg("--kernel").arg(before.1).arg("--kernel-after").arg(after.1).args(more);
        Ok(command.output()?)
    }

    /// `machine` is the machine whose cycles are compared; without one, instructions are compared.
    fn diff(
        &self,
        before: (&Path, &Path),
        after: (&Path, &Path),
        machine: Option<&str>,
    ) -> Result<KernelDifferences> {
        let mut more = vec!["--json"];
        more.extend(machine.into_iter().flat_map(|name| ["--machine", name]));
        let output = self.command(before, after, &more)?;
        ensure!(
            output.status.success(),
            "kernlane diff: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let all: Value = serde_json::from_slice(&output.stdout)?;
        let changes = |of: &str| -> Result<Vec<PrintedChange>> {
            let list = all[of].as_array().with_context(|| format!("the JSON has no {of}"))?;
            list.iter().map(PrintedChange::read).collect()
        };
        let forks: [u64; 2] = serde_json::from_value(all["counters"]["forks"].clone())?;
        Ok(KernelDifferences {
            why: PrintedChange::read(&all["total"])?.why,
            forks,
            services: changes("services")?,
            functions: changes("functions")?,
        })
    }

    /// Checks that the exit status is 1 and the service is named if one exceeds the limit, and that
    /// the status is 0 otherwise.
    fn exits(
        &self,
        before: (&Path, &Path),
        after: (&Path, &Path),
        limit: f64,
        over: Option<&str>,
    ) -> Result<()> {
        let output = self.command(before, after, &["--limit", &limit.to_string()])?;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        let named = over.is_none_or(|name| words.contains(&format!("{name} grew by")));
        let wanted = i32::from(over.is_some());
        ensure!(
            output.status.code() == Some(wanted) && named,
            "FAILED: --limit {limit} exits with {wanted}: {}: {words}",
            output.status
        );
        println!("passed: --limit {limit} exits with {wanted}");
        Ok(())
    }
}

impl PrintedChange {
    fn is(&self, name: &str, why: &str) -> bool {
        (self.name.as_str(), self.why.as_str()) == (name, why)
    }

    fn read(value: &Value) -> Result<PrintedChange> {
        let number =
            |name: &str| value[name].as_f64().with_context(|| format!("a change has no {name}"));
        let text =
            |name: &str| value[name].as_str().with_context(|| format!("a change has no {name}"));
        let calls = |when: &str| {
            value[when]["calls"].as_u64().with_context(|| format!("a change has no calls {when}"))
        };
        Ok(PrintedChange {
            name: text("name")?.to_owned(),
            why: text("why")?.to_owned(),
            change: number("cost_after")? - number("cost_before")?,
            calls: [calls("before")?, calls("after")?],
        })
    }
}

fn workload_of(rounds: u32) -> String {
    format!(
        "about = \"Looks at 400 files\"
packages = [\"findutils\"]
memory = 256

set-up = '''
for d in 1 2 3 4 5 6 7 8; do
    mkdir -p tree/directory-$d
    for f in 1 2 3 4 5 6 7 8 9 10; do
        for g in 1 2 3 4 5; do : > tree/directory-$d/file-number-$f-$g; done
    done
done
'''

run = '''
n=0
while [ $n -lt {rounds} ]; do
    find tree -type f -size +1
    n=$((n + 1))
done
'''

check = '''
test ! -s /run/output
'''
"
    )
}
