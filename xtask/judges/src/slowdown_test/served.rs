//! Kernels that run slices of the suite's benchmarks on request.
//!
//! Input: kernels with their parameters. Output: core cycles of an operation. The suite's program
//! in each kernel times its slices itself (`crates/suite/src/served.rs`); chains before and behind
//! say how many ticks a core cycle takes now.

use anyhow::{Context, Result, bail, ensure};
use lab::processor::{chain_ticks, cycles};
use lab::uml::{UmlGuest, UmlServer};
use std::path::{Path, PathBuf};

/// A kernel with its parameters.
#[derive(Clone, Debug)]
pub(super) struct TestKernel {
    pub name: &'static str,
    pub program: PathBuf,
    /// Words of its command line.
    pub parameters: Vec<String>,
}

/// A running kernel. Dropping this kills it.
pub(super) struct SuiteServer {
    name: &'static str,
    server: UmlServer,
}

impl SuiteServer {
    /// Boots all kernels, and waits until each is ready.
    pub(super) fn start_all(kernels: &[TestKernel], guest: &UmlGuest) -> Result<Vec<SuiteServer>> {
        let booted: Vec<SuiteServer> = kernels
            .iter()
            .map(|kernel| {
                let server = guest.serve_suite(&kernel.program, &kernel.parameters)?;
                anyhow::Ok(SuiteServer { name: kernel.name, server })
            })
            .collect::<Result<_>>()?;
        booted.into_iter().map(SuiteServer::ready).collect()
    }

    fn ready(mut self) -> Result<SuiteServer> {
        let answer = self.server.wait_for("suite ").with_context(|| self.name)?;
        ensure!(answer == "suite served", "{}: the suite said {answer:?}", self.name);
        Ok(self)
    }

    /// Starts a benchmark. In the inner result: why it cannot run.
    pub(super) fn prepare(&mut self, benchmark: &str) -> Result<Result<(), String>> {
        Ok(match &*self.ask(benchmark, "start")? {
            "ready" => Ok(()),
            answer => Err(answer.to_owned()),
        })
    }

    /// The number of operations of a benchmark that take this number of ticks.
    pub(super) fn calibrate(&mut self, benchmark: &str, ticks: u64) -> Result<u64> {
        let answer = self.ask(benchmark, &format!("calibrate {ticks}"))?;
        self.number(benchmark, &answer, "times ")
    }

    /// The core cycles of an operation in a slice; `None`: the slice was disturbed.
    pub(super) fn slice(&mut self, benchmark: &str, operations: u64) -> Result<Option<f64>> {
        let before = chain_ticks();
        let answer = self.ask(benchmark, &format!("slice {operations}"))?;
        let behind = chain_ticks();
        let ticks = self.number(benchmark, &answer, "ticks ")?;
        Ok(cycles(operations as f64, ticks as f64, before as f64, behind as f64))
    }

    fn ask(&mut self, benchmark: &str, command: &str) -> Result<String> {
        let named = || format!("{}: {benchmark}", self.name);
        self.server.tell(&format!("{benchmark} {command}\n")).with_context(named)?;
        let answer = self.server.wait_for("suite ").with_context(named)?;
        Ok(answer.trim_start_matches("suite ").to_owned())
    }

    fn number(&self, benchmark: &str, answer: &str, begins: &str) -> Result<u64> {
        let number = answer.strip_prefix(begins).and_then(|number| number.parse().ok());
        match number {
            Some(number) => Ok(number),
            None => bail!("{}: {benchmark}: the suite said {answer:?}", self.name),
        }
    }
}

/// The root file system with the suite's program.
pub(super) fn guest(directory: &Path) -> Result<UmlGuest> {
    let guest = UmlGuest::new(directory)?;
    guest.add_program("kernlane-bench", &std::fs::read(lab::static_suite()?)?)?;
    Ok(guest)
}
