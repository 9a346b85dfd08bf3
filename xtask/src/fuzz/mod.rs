//! `cargo xtask fuzz`: a coverage-guided fuzzer runs the targets of `fuzz/`, resumes where it was
//! interrupted, keeps a small corpus, and writes what it did to `bench/fuzz.txt`.

mod corpus;
mod engine;
mod table;

use anyhow::{Context, Result, bail};
use engine::{Engine, Session};
use kernlane_fuzz::targets::{self, Target};
use std::path::{Path, PathBuf};

/// Inputs that each target gets unless `--inputs` says otherwise.
const INPUTS: u64 = 10_000_000;

/// What was typed.
#[derive(Debug, PartialEq)]
struct FuzzRequest<'a> {
    targets: Vec<&'a str>,
    inputs: u64,
    /// Fuzzers that run at the same time.
    jobs: u64,
}

impl<'a> FuzzRequest<'a> {
    fn parse(words: &[&'a str]) -> Result<FuzzRequest<'a>> {
        let mut request = FuzzRequest { targets: Vec::new(), inputs: INPUTS, jobs: 1 };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match word {
                "--inputs" => request.inputs = number_of(word, words.next())?,
                "--jobs" => request.jobs = number_of(word, words.next())?,
                name => request.targets.push(name),
            }
        }
        Ok(request)
    }
}

fn number_of(option: &str, word: Option<&&str>) -> Result<u64> {
    let number = word.and_then(|word| word.parse().ok()).filter(|&number| number > 0);
    number.with_context(|| format!("{option}: give a number above 0"))
}

/// Runs the targets one after the other, until each has had its inputs.
pub(crate) fn fuzz(words: &[&str]) -> Result<()> {
    let request = FuzzRequest::parse(words)?;
    let chosen = choose(&request.targets)?;
    let engine = Engine::find(&directory()?)?;
    let mut failed = Vec::new();
    for target in chosen {
        match fuzz_target(&engine, target, &request) {
            Ok(()) => {}
            Err(error) => {
                eprintln!("{}: {error:#}", target.name);
                failed.push(target.name);
            }
        }
        table::write(&engine)?;
    }
    print!("{}", table::text(&engine)?);
    match failed.is_empty() {
        true => Ok(()),
        false => bail!("failed: {}", failed.join(", ")),
    }
}

fn choose(names: &[&str]) -> Result<Vec<&'static Target>> {
    if names.is_empty() {
        return Ok(targets::ALL.iter().collect());
    }
    let known = || targets::ALL.map(|target| target.name).join(", ");
    let find = |name: &&str| {
        targets::find(name).with_context(|| format!("no target is called {name}: give {}", known()))
    };
    names.iter().map(find).collect()
}

fn fuzz_target(engine: &Engine, target: &Target, request: &FuzzRequest) -> Result<()> {
    let inputs = request.inputs;
    let mut session = Session::open(engine, target)?;
    corpus::begin(engine, target)?;
    let mut outcome = Ok(());
    while session.state.inputs < inputs && outcome.is_ok() {
        let remaining = inputs - session.state.inputs;
        eprintln!("{}: {} of {inputs} inputs", target.name, session.state.inputs);
        outcome = session.run(engine, target, remaining, request.jobs);
        session.save()?;
    }
    session.state.corpus = corpus::keep(engine, target)?;
    session.save()?;
    outcome
}

/// Where the fuzzer's build, corpora and states lie: below the directory of xtask's own build.
fn directory() -> Result<PathBuf> {
    let executable = std::env::current_exe()?;
    let target = executable.ancestors().nth(2).context("xtask lies in no target directory")?;
    Ok(target.join("fuzz"))
}

/// The package with the targets.
fn package() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_and_inputs_are_understood() {
        let request = FuzzRequest::parse(&["maps", "--inputs", "7", "--jobs", "2", "btf"]).unwrap();
        assert_eq!(request, FuzzRequest { targets: vec!["maps", "btf"], inputs: 7, jobs: 2 });
        assert!(FuzzRequest::parse(&["--inputs", "many"]).is_err());
        assert!(FuzzRequest::parse(&["--inputs"]).is_err());
        assert!(FuzzRequest::parse(&["--jobs", "0"]).is_err());
        assert_eq!(choose(&[]).unwrap().len(), targets::ALL.len());
        assert!(choose(&["typo"]).err().unwrap().to_string().contains("maps"));
    }
}
