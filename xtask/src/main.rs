//! What is neither plain cargo nor for users: the demo, the demo kernels, the tests that need a kernel tree or a virtual machine.

mod check_test;
mod demo;
mod kernel;
mod test;

use anyhow::{Result, bail};
use std::process::{Command, ExitCode};

const HELP: &str = "\
cargo xtask demo                from a workload to a faster kernel, and what it brought
cargo xtask test                every test: format, lints, units, kernel trees, virtual machines
cargo xtask check-test TREE     a wrong kernel for each kind of bug, each of which `kernlane check` must find
cargo xtask kernel gcc|clang    builds (or finds) a demo kernel and prints where its tree lies
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["demo"] => demo::demo(),
        ["test"] => test::test(),
        ["check-test", tree] => check_test::check_test(tree.as_ref()),
        ["kernel", compiler] => compiler.parse().and_then(|compiler| {
            println!("{}", kernel::tree(compiler)?.display());
            Ok(())
        }),
        _ => {
            print!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a command with this terminal, and fails unless it succeeds.
fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| anyhow::anyhow!("{command:?}: {error}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}
