//! `cargo xtask fleet-test PROFILE KERNEL`: profiles of many machines become one by SQL, by
//! `kernlane ask` and by Spark.
//!
//! Input: a profile, from which those of the machines are made: each machine ran a random part of
//! its code, and counts differ. Both engines get the query of the book. The profiles that they make
//! must be equal, byte for byte, and be what `kernlane import` makes of the machines' tables
//! without SQL. Prints how long each took, and its memory. Spark is installed from PyPI, in the
//! cache.

use crate::debian::disk;
use crate::study_test::python_with;
use anyhow::{Context, Result};
use exchange::Make;
use host::interrupt;
use lab::score::TestScore;
use lab::succeeded;
use profile::Profile;
use rayon::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const SPARK: &str = "pyspark==3.5.6";
const JAVA: &[(&str, &str)] = &[("/usr/bin/java", "openjdk-17-jre-headless")];
/// The page with the query.
const PAGE: &str = "docs/how-to/fleet.md";
/// The most memory of the embedded engine, in MB.
const MOST_MB: u64 = 2048;

const BY_SPARK: &str = "
import sys
from pyspark.sql import SparkSession
tables, query, output = sys.argv[1:]
spark = (SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'false')
         .config('spark.driver.memory', '2g').config('spark.driver.host', '127.0.0.1')
         .config('spark.driver.bindAddress', '127.0.0.1').getOrCreate())
spark.sparkContext.setLogLevel('ERROR')
spark.read.parquet(tables).createOrReplaceTempView('fleet')
spark.sql(query).write.parquet(output)
spark.stop()
";

/// Merges the profiles of `machines` machines, made from `profile` of `kernel`.
///
/// # Errors
/// A test failed, or cannot run.
pub fn fleet_test(profile: &Path, kernel: &Path, machines: u64) -> Result<()> {
    interrupt::catch()?;
    disk::install(JAVA)?;
    let python = python_with(SPARK)?;
    let program = lab::kernlane()?;
    let directory = tempfile::tempdir().context("making a temporary directory")?;
    let path = |name: &str| directory.path().join(name);
    let query = query()?;

    let tables = path("fleet");
    fs::create_dir(&tables)?;
    let bytes = make_fleet(profile, &tables, machines)?;
    println!("{machines} profiles, {} MB", bytes >> 20);

    let mut ask = Command::new(&program);
    ask.arg("ask").arg(format!("fleet={}", tables.display())).arg(&query);
    fs::create_dir(path("by-ask"))?;
    ask.arg("--parquet").arg(path("by-ask/merged.parquet"));
    let by_ask = timed("kernlane ask", &mut ask)?;
    let mut spark = Command::new(&python);
    spark.args(["-c", BY_SPARK]).arg(&tables).arg(&query).arg(path("merged.parquet"));
    timed("Spark", &mut spark)?;

    let import = |table: PathBuf, output: &str| -> Result<Vec<u8>> {
        let mut import = Command::new(&program);
        import.arg("import").arg(table).arg("--kernel").arg(kernel);
        import.arg("--output").arg(path(output));
        timed(&format!("import, {output}"), &mut import)?;
        Ok(fs::read(path(output))?)
    };
    let merged = import(path("by-ask/merged.parquet"), "ask.klp")?;
    let of_spark = import(path("merged.parquet"), "spark.klp")?;
    // All counts are those without SQL; the name of what they were made from differs.
    fs::rename(&tables, path("by-ask/merged"))?;
    let alone = import(path("by-ask/merged"), "alone.klp")?;
    let counts = |bytes: &[u8]| -> Result<Profile> {
        let profile = Profile::from_json(std::str::from_utf8(bytes)?)?;
        Ok(Profile { sources: Vec::new(), ..profile })
    };
    let mut score = TestScore::default();
    score.holds("kernlane ask and Spark make the same bytes", merged == of_spark);
    score.holds("as many counts as without SQL", counts(&merged)? == counts(&alone)?);
    let what = format!("kernlane ask takes {by_ask} MB, of at most {MOST_MB}");
    score.holds(&what, by_ask <= MOST_MB);
    score.finish("profiles of a fleet are not merged")
}

/// The query, as the book shows it.
fn query() -> Result<String> {
    let page = fs::read_to_string(PAGE).context(PAGE)?;
    let (_, behind) = page.split_once("```sql\n").context("the page has no query")?;
    let (query, _) = behind.split_once("```").context("the query has no end")?;
    Ok(query.trim().to_owned())
}

/// Writes a table for each machine. Returns their bytes.
fn make_fleet(profile: &Path, tables: &Path, machines: u64) -> Result<u64> {
    let text = fs::read_to_string(profile).with_context(|| profile.display().to_string())?;
    let whole = Profile::from_json(&text)?;
    let Make::Profile(table) = road::export::format("profile")?.make else {
        anyhow::bail!("the format of profiles is another one");
    };
    let sizes: Result<Vec<u64>> = (0..machines)
        .into_par_iter()
        .map(|machine| {
            let bytes = table(&of_machine(&whole, machine))?;
            fs::write(tables.join(format!("{machine:05}.parquet")), &bytes)?;
            Ok(bytes.len() as u64)
        })
        .collect();
    Ok(sizes?.into_iter().sum())
}

/// What a machine ran: code by chance, with counts by chance.
fn of_machine(whole: &Profile, machine: u64) -> Profile {
    // One row in eight: what sampling finds in a few minutes.
    let chance = |at: u64| mixed(at ^ mixed(machine));
    let mut profile = whole.clone();
    profile.processes.clear();
    profile.joint_misses.clear();
    profile.temporal_edges.clear();
    profile.block_epochs = profile::BlockEpochsTable::default();
    profile.blocks.retain(|at, count| {
        *count = 1 + chance(at.0) % (*count).max(1);
        chance(at.0 + 1).is_multiple_of(8)
    });
    profile.edges.retain(|(from, to), (_, count)| {
        *count = 1 + chance(from.0 ^ to.0) % (*count).max(1);
        chance(from.0 + to.0).is_multiple_of(8)
    });
    profile.calls.retain(|(from, to), _| chance(from.0 ^ to.0).is_multiple_of(8));
    profile
}

/// Bits that look random (splitmix64).
fn mixed(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// Runs a command, and prints how long it took. Returns its memory in MB.
fn timed(what: &str, command: &mut Command) -> Result<u64> {
    let begun = Instant::now();
    let mut measured = Command::new("/usr/bin/env");
    // The shell's child is the only one, so its memory is the most of all children.
    measured.args(["python3", "-c", MEASURE]).arg(command.get_program()).args(command.get_args());
    let output = succeeded(&mut measured)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let kilobytes: u64 =
        text.lines().last().unwrap_or_default().trim().parse().context("memory")?;
    println!("{what}: {:.1} s, {} MB", begun.elapsed().as_secs_f64(), kilobytes >> 10);
    Ok(kilobytes >> 10)
}

const MEASURE: &str = "
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
";
