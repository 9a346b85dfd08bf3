//! Whether other tools read the page's numbers from the exported files.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Checks that the exported files have the page's number of instructions.
pub(super) fn exports(
    kernlane: &Path,
    recording: &Path,
    kernel: &Path,
    directory: &Path,
    data: &Value,
) -> Result<()> {
    let expected =
        data["recordings"][0]["table"]["instructions"].as_u64().context("no instructions")?;
    let export = |format: &str| -> Result<std::path::PathBuf> {
        let path = directory.join(format);
        let mut command = Command::new(kernlane);
        command.arg("export").arg(recording).arg("--kernel").arg(kernel);
        lab::run(
            command.args(["--format", format, "--machine", "server-32k", "--output"]).arg(&path),
        )?;
        Ok(path)
    };
    let mut annotate = Command::new("callgrind_annotate");
    let output = lab::succeeded(annotate.arg(export("callgrind")?))
        .context("callgrind_annotate is in the package valgrind")?;
    let text = String::from_utf8(output.stdout)?;
    let totals = text.lines().find(|line| line.ends_with("PROGRAM TOTALS")).context("no totals")?;
    let total: u64 = totals
        .split(' ')
        .find(|word| !word.is_empty())
        .context("no total")?
        .replace(',', "")
        .parse()?;
    ensure!(
        total == expected,
        "callgrind_annotate reads {total} instructions, but the page has {expected}"
    );
    println!("passed: callgrind_annotate reads the page's {expected} instructions");
    let folded = std::fs::read_to_string(export("folded")?)?;
    let counts = folded.lines().map(|line| {
        Ok(line.rsplit_once(' ').context("a line without a count")?.1.parse::<u64>()?)
    });
    let sum: u64 = counts.sum::<Result<u64>>()?;
    ensure!(
        sum == expected,
        "the folded stacks have {sum} instructions, but the page has {expected}"
    );
    println!("passed: the folded stacks have the same number");
    pprof(&export("pprof")?, expected)?;
    otlp(&export("otlp")?, expected)?;
    let events: Value = serde_json::from_slice(&std::fs::read(export("chrome-trace")?)?)?;
    let events = events["traceEvents"].as_array().context("no events")?;
    let spans = events.iter().filter(|event| event["ph"] == "X");
    let sum: u64 = spans.filter_map(|span| span["args"]["instructions"].as_u64()).sum();
    ensure!(
        sum == expected,
        "the events over time have {sum} instructions, but the page has {expected}"
    );
    println!("passed: Chrome's trace events have the same number");
    tables(&export("parquet")?, expected)
}

/// Reads a profile as a user of Go does.
fn pprof(path: &Path, expected: u64) -> Result<()> {
    let mut go = Command::new("go");
    go.args(["tool", "pprof", "-raw"]).arg(path).env("PPROF_TMPDIR", path.with_extension("tmp"));
    let output = lab::succeeded(&mut go).context("`go tool pprof` is in the package golang-go")?;
    let text = String::from_utf8(output.stdout)?;
    let samples = text.lines().skip_while(|line| *line != "Samples:").skip(1);
    let mut samples = samples.take_while(|line| *line != "Locations");
    let measures = samples.next().context("no samples")?;
    ensure!(
        measures == "instructions/count[dflt] calls/count l1i_misses/count",
        "go tool pprof reads these counts: {measures}"
    );
    // Each is `instructions calls misses: numbers of locations`.
    let values = samples.filter_map(|line| line.split_whitespace().next());
    let sum = values.map(|value| Ok(value.parse::<u64>()?)).sum::<Result<u64>>()?;
    ensure!(sum == expected, "go tool pprof reads {sum} instructions, but the page has {expected}");
    println!("passed: go tool pprof reads the same number");
    Ok(())
}

/// Reads profiles by OpenTelemetry's own messages.
fn otlp(path: &Path, expected: u64) -> Result<()> {
    let mut python = Command::new("python3");
    let packages = pypi("opentelemetry-proto-1.45", &["opentelemetry-proto==1.45.2"])?;
    python.args(["-c", READ_PROFILES]).arg(path).env("PYTHONPATH", packages);
    let output = lab::succeeded(&mut python).context("opentelemetry-proto cannot read them")?;
    let printed: Value = serde_json::from_slice(&output.stdout).context("Python's answer")?;
    ensure!(
        printed["sums"]["instructions"] == expected && printed["services"].as_u64() > Some(3),
        "OpenTelemetry's messages have {printed}, but the page has {expected} instructions"
    );
    println!("passed: OpenTelemetry's messages have the same number");
    Ok(())
}

/// The sum of each profile, and how many services are called by the frame `kernel`.
const READ_PROFILES: &str = "
import json, sys
from opentelemetry.proto.profiles.v1development import profiles_pb2
data = profiles_pb2.ProfilesData()
data.ParseFromString(open(sys.argv[1], 'rb').read())
known, sums, services = data.dictionary, {}, set()
for of_resource in data.resource_profiles:
    for of_scope in of_resource.scope_profiles:
        for profile in of_scope.profiles:
            name = known.string_table[profile.sample_type.type_strindex]
            sums[name] = sum(value for sample in profile.samples for value in sample.values)
            for sample in profile.samples:
                places = known.stack_table[sample.stack_index].location_indices
                lines = [known.location_table[place].lines[0] for place in places]
                functions = [known.function_table[line.function_index] for line in lines]
                names = [known.string_table[function.name_strindex] for function in functions]
                if names[-1] == 'kernel': services.add(names[-2])
print(json.dumps({'sums': sums, 'services': len(services)}))
";

/// Reads the tables as a user of Python does: with pyarrow, Apache's own reader.
fn tables(directory: &Path, expected: u64) -> Result<()> {
    let mut python = Command::new("python3");
    python
        .args(["-c", READ_TABLES])
        .arg(directory)
        .env("PYTHONPATH", pypi("pyarrow-26", &["pyarrow==26.0.1"])?);
    let output = lab::succeeded(&mut python).context("pyarrow cannot read the tables")?;
    let printed: Value = serde_json::from_slice(&output.stdout).context("pyarrow's answer")?;
    for name in ["services", "functions", "chains", "invocations"] {
        let sum = &printed[name]["instructions"];
        ensure!(
            *sum == expected,
            "pyarrow reads {sum} instructions in {name}, but the page has {expected}"
        );
        let machine = &printed[name]["machine"];
        ensure!(machine == "server-32k", "the machine of {name} is {machine}");
    }
    let misses = |name: &str| printed[name]["l1i_misses"].as_u64().filter(|misses| *misses > 0);
    ensure!(
        misses("services").is_some()
            && misses("services") == misses("functions")
            && misses("services") == misses("chains"),
        "the tables differ in their misses: {printed}"
    );
    ensure!(
        printed["nameless"] == 0,
        "{} tasks of invocations are not in the table of tasks",
        printed["nameless"]
    );
    println!("passed: pyarrow reads the tables, and each has the page's instructions");
    Ok(())
}

const READ_TABLES: &str = "
import json, sys
import pyarrow.compute as compute, pyarrow.parquet as parquet
found = {}
for name in ['services', 'functions', 'chains', 'invocations', 'tasks']:
    table = parquet.read_table(f'{sys.argv[1]}/{name}.parquet')
    summed = {'instructions', 'l1i_misses'} & set(table.column_names)
    found[name] = {column: compute.sum(table[column]).as_py() for column in summed}
    found[name]['machine'] = table.schema.metadata[b'machine'].decode()
    if name == 'invocations': used = set(table['task'].to_pylist())
    if name == 'tasks': found['nameless'] = len(used - set(table['task'].to_pylist()))
print(json.dumps(found))
";

/// The directory with packages of PyPI, which are installed once.
pub(super) fn pypi(directory: &str, packages: &[&str]) -> Result<PathBuf> {
    let directory = lab::kernel::cache()?.join(directory);
    if !directory.exists() {
        let partial = tempfile::tempdir_in(lab::kernel::cache()?)?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--only-binary=:all:"]).args(packages);
        lab::run(pip.arg("--target").arg(partial.path()))
            .with_context(|| format!("{packages:?} cannot be installed"))?;
        std::fs::rename(partial.path(), &directory)?;
    }
    Ok(directory)
}
