//! `cargo xtask fuzz`: a coverage-guided fuzzer runs the targets of `fuzz/`, resumes where it was
//! interrupted, keeps a small corpus, and writes what it did to `bench/fuzz.txt`.

mod corpus;
mod engine;
mod table;

use anyhow::{Context, Result, bail};
use engine::{Engine, Session};
use kernlane_fuzz::targets::{self, Target};
use std::path::Path;

/// Inputs that each target gets unless `--inputs` says otherwise.
const INPUTS: u64 = 10_000_000;

/// Which targets, and how long.
#[derive(Debug, clap::Args)]
pub(crate) struct Fuzz {
    /// Give only these targets of fuzz/ their inputs
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Inputs of each target
    #[arg(long, value_name = "N", default_value_t = INPUTS)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    inputs: u64,
    /// Fuzzers that run at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    jobs: u64,
}

/// Runs the targets one after the other, until each has had its inputs.
pub(crate) fn fuzz(request: &Fuzz) -> Result<()> {
    let chosen = choose(&request.targets)?;
    let engine = Engine::find(&lab::target_directory()?.join("fuzz"))?;
    let mut failed = Vec::new();
    for target in chosen {
        match fuzz_target(&engine, target, request) {
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

fn choose(names: &[String]) -> Result<Vec<&'static Target>> {
    if names.is_empty() {
        return Ok(targets::ALL.iter().collect());
    }
    let known = || targets::ALL.map(|target| target.name).join(", ");
    let find = |name: &String| {
        targets::find(name).with_context(|| format!("no target is called {name}: give {}", known()))
    };
    names.iter().map(find).collect()
}

fn fuzz_target(engine: &Engine, target: &Target, request: &Fuzz) -> Result<()> {
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

/// The package with the targets.
fn package() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_targets_or_the_named_ones_are_chosen() {
        assert_eq!(choose(&[]).unwrap().len(), targets::ALL.len());
        let named = choose(&["maps".into(), "btf".into()]).unwrap();
        assert_eq!(named.iter().map(|target| target.name).collect::<Vec<_>>(), ["maps", "btf"]);
        assert!(choose(&["typo".into()]).err().unwrap().to_string().contains("maps"));
    }
}
