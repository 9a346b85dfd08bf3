//! `cargo xtask diff-test TREE SHUFFLED`: whether `kernlane diff` names what a small change to a
//! kernel did, and why.
//!
//! Takes the demo kernel's tree and the same kernel relinked in a random order. Records one small
//! workload on the demo kernel, on the demo kernel with `slower-stat.patch`, on the shuffled one,
//! and once more with more of the work: the change is then in instructions a call, in misses a
//! call, and in calls, and in nothing else. Prints a line a test.

use crate::kernel::{self, Compiler};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// One function does more for each file that is looked at.
const PATCH: &str = include_str!("slower-stat.patch");
const CHANGED: &str = "vfs_getattr_nosec";
/// What calls it, in this workload.
const SERVICE: &str = "newfstatat";
const MACHINE: &str = "server-32k";

pub fn diff_test(tree: &Path, shuffled: &Path) -> Result<()> {
    let patched = kernel::patched(Compiler::Gcc, "slower-stat", PATCH)?;
    let directory = tempfile::Builder::new().prefix("kernlane-diff-test-").tempdir()?;
    let test = Test { program: crate::kernlane()?, directory: directory.path().to_owned() };
    let original = test.record("original", tree, 3)?;
    let slower = test.record("slower", &patched, 3)?;
    let busier = test.record("busier", tree, 4)?;
    let elsewhere = test.record("elsewhere", shuffled, 3)?;

    let (original, slower) = ((original.as_path(), tree), (slower.as_path(), patched.as_path()));
    let (busier, elsewhere) = ((busier.as_path(), tree), (elsewhere.as_path(), shuffled));

    let nothing = test.diff(original, original, Some(MACHINE))?;
    says(
        "a recording and itself: nothing",
        nothing.why == "nothing changed" && nothing.functions.is_empty(),
    )?;
    test.exits(original, original, 0.0, None)?;

    let found = test.diff(original, slower, None)?;
    let (first, second) = match found.functions.as_slice() {
        [first, second, ..] => (first, second),
        other => bail!("FAILED: fewer than two functions changed: {other:?}"),
    };
    println!("{first:?}; then {second:?}");
    says("the patched function, for what it does", first.is(CHANGED, "more instructions a call"))?;
    says("called as often as before", first.calls[0] == first.calls[1])?;
    says("and next to nothing elsewhere", second.change.abs() < 0.01 * first.change)?;
    says("the service that calls it", found.services[0].is(SERVICE, "more instructions a call"))?;
    test.exits(original, slower, 3.0, Some(SERVICE))?;
    test.exits(original, slower, 1000.0, None)?;
    test.exits(slower, original, 3.0, None)?;

    let found = test.diff(original, busier, None)?;
    says("more of the work: more calls", found.services[0].is(SERVICE, "more calls"))?;
    says(
        "of the function, too",
        found.functions.iter().any(|change| change.is(CHANGED, "more calls")),
    )?;

    let found = test.diff(original, elsewhere, Some(MACHINE))?;
    says("another order: more misses a call", found.why == "more misses a call")?;
    says("of the service", found.services[0].is(SERVICE, "more misses a call"))?;
    says(
        "and of its function",
        found.functions.iter().any(|change| change.is(CHANGED, "more misses a call")),
    )?;
    says("and not one fork more", found.forks[0] == found.forks[1])
}

fn says(what: &str, holds: bool) -> Result<()> {
    ensure!(holds, "FAILED: {what}");
    println!("passed: {what}");
    Ok(())
}

struct Test {
    program: PathBuf,
    directory: PathBuf,
}

/// What a test looks at of a change.
#[derive(Debug)]
struct Change {
    name: String,
    why: String,
    change: f64,
    calls: [u64; 2],
}

struct Difference {
    /// Of the whole kernel.
    why: String,
    /// Before and after.
    forks: [u64; 2],
    services: Vec<Change>,
    functions: Vec<Change>,
}

impl Test {
    /// `rounds`: how often every file is looked at.
    fn record(&self, name: &str, kernel: &Path, rounds: u32) -> Result<PathBuf> {
        let workload = self.directory.join(format!("{name}.toml"));
        std::fs::write(&workload, workload_of(rounds))?;
        let recording = self.directory.join(format!("{name}.rec"));
        let mut command = Command::new(&self.program);
        command.arg("record").arg(&workload).arg("--kernel").arg(kernel);
        crate::run(command.arg("--output").arg(&recording))?;
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

    /// `machine`: whose cycles are looked at, else instructions.
    fn diff(
        &self,
        before: (&Path, &Path),
        after: (&Path, &Path),
        machine: Option<&str>,
    ) -> Result<Difference> {
        let mut more = vec!["--json"];
        more.extend(machine.into_iter().flat_map(|name| ["--machine", name]));
        let output = self.command(before, after, &more)?;
        ensure!(
            output.status.success(),
            "kernlane diff: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let all: Value = serde_json::from_slice(&output.stdout)?;
        let changes = |of: &str| -> Result<Vec<Change>> {
            let list = all[of].as_array().with_context(|| format!("the JSON has no {of}"))?;
            list.iter().map(Change::read).collect()
        };
        let forks: [u64; 2] = serde_json::from_value(all["counters"]["forks"].clone())?;
        Ok(Difference {
            why: Change::read(&all["total"])?.why,
            forks,
            services: changes("services")?,
            functions: changes("functions")?,
        })
    }

    /// The exit status is 1 and the service named if one is over the limit, else 0.
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

impl Change {
    fn is(&self, name: &str, why: &str) -> bool {
        (self.name.as_str(), self.why.as_str()) == (name, why)
    }

    fn read(value: &Value) -> Result<Change> {
        let number =
            |name: &str| value[name].as_f64().with_context(|| format!("a change has no {name}"));
        let text =
            |name: &str| value[name].as_str().with_context(|| format!("a change has no {name}"));
        let calls = |when: &str| {
            value[when]["calls"].as_u64().with_context(|| format!("a change has no calls {when}"))
        };
        Ok(Change {
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
