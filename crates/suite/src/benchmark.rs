//! A benchmark: a name, what it stresses, where it comes from, and work that checks itself.
//!
//! To add one: an entry in a file of `list/`, or a new file and its line in `list/mod.rs`; then run
//! `BLESS=1 cargo test -p kernlane-suite` to write its line into `docs/reference/bench.md`.

use crate::sys::{Done, Failure};
use std::path::PathBuf;

/// Where the idea of a benchmark comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// KBX: Speer 1994, section 3.3.
    Kbx,
    /// OSBENCH: Speer 1994, section 3.2.
    Osbench,
    /// McKusick's benchmarks: Speer 1994, section 3.1.
    McKusick,
    /// netperf: Speer 1994, section 3.4.
    Netperf,
    /// lmbench: McVoy and Staelin 1996.
    Lmbench,
    /// Nellans 2005, figure 1.
    NellansFigure1,
    /// Nellans 2005, table 3.
    NellansTable3,
    /// Nellans 2005, table 4.
    NellansTable4,
    /// Kernlane.
    Own,
}

impl Source {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Source::Kbx => "KBX (Speer 1994, section 3.3)",
            Source::Osbench => "OSBENCH (Speer 1994, section 3.2)",
            Source::McKusick => "McKusick (Speer 1994, section 3.1)",
            Source::Netperf => "netperf (Speer 1994, section 3.4)",
            Source::Lmbench => "lmbench (McVoy and Staelin 1996)",
            Source::NellansFigure1 => "Nellans 2005, figure 1",
            Source::NellansTable3 => "Nellans 2005, table 3",
            Source::NellansTable4 => "Nellans 2005, table 4",
            Source::Own => "own",
        }
    }
}

/// What a benchmark may use.
#[derive(Clone, Debug)]
pub struct Place {
    /// An empty directory of its own.
    pub directory: PathBuf,
}

/// Prepared work, which is measured again and again.
pub trait Work {
    /// Does the operation `times` times, and checks every result.
    ///
    /// # Errors
    /// The kernel refused an operation, or a result is wrong.
    fn run(&mut self, times: u64) -> Done;

    /// Checks what can only be seen afterwards, outside of the measured time.
    ///
    /// # Errors
    /// As [`Work::run`].
    fn check(&mut self) -> Done {
        Ok(())
    }
}

struct Each<F>(F);

impl<F: FnMut() -> Done> Work for Each<F> {
    fn run(&mut self, times: u64) -> Done {
        (0..times).try_for_each(|_| (self.0)())
    }
}

struct EachThen<F, C>(F, C);

impl<F: FnMut() -> Done, C: FnMut() -> Done> Work for EachThen<F, C> {
    fn run(&mut self, times: u64) -> Done {
        (0..times).try_for_each(|_| (self.0)())
    }

    fn check(&mut self) -> Done {
        (self.1)()
    }
}

/// The result of `prepare`.
pub(crate) type Prepared = Result<Box<dyn Work>, Failure>;

/// Work whose every operation is `operation`.
pub(crate) fn each(operation: impl FnMut() -> Done + 'static) -> Prepared {
    Ok(Box::new(Each(operation)))
}

/// As `each`, with a check behind each slice.
pub(crate) fn each_then(
    operation: impl FnMut() -> Done + 'static,
    check: impl FnMut() -> Done + 'static,
) -> Prepared {
    Ok(Box::new(EachThen(operation, check)))
}

/// One benchmark.
pub struct Benchmark {
    /// `group/name`.
    pub name: &'static str,
    /// What one operation does.
    pub stresses: &'static str,
    /// Where its idea comes from.
    pub source: Source,
    /// The system calls that one operation makes; without these, it must fail.
    pub calls: &'static [i64],
    /// Makes everything that is not measured. The number is `parameter`.
    pub prepare: fn(&Place, usize) -> Prepared,
    /// A size, a depth or a count, which distinguishes benchmarks of the same work.
    pub parameter: usize,
    /// The version, which goes up when the work changes. Results of different versions are not
    /// compared.
    pub version: u32,
}

impl Benchmark {
    pub(crate) const fn new(
        name: &'static str,
        stresses: &'static str,
        source: Source,
        calls: &'static [i64],
        prepare: fn(&Place, usize) -> Prepared,
        parameter: usize,
    ) -> Benchmark {
        Benchmark { name, stresses, source, calls, prepare, parameter, version: 1 }
    }

    /// Prepares the work in `place`.
    ///
    /// # Errors
    /// The machine lacks what the benchmark needs.
    pub(crate) fn prepare(&self, place: &Place) -> Prepared {
        (self.prepare)(place, self.parameter)
    }
}
