//! All benchmarks, in the order in which tables show them.

mod calls;
mod files;
mod memory;
mod mixes;
mod network;
mod pipes;
mod processes;
mod program;
mod signals;
mod switches;
mod tree;
mod uring;
mod user;
mod waiting;

use crate::benchmark::Benchmark;

/// Every benchmark of the suite.
pub fn all() -> Vec<&'static Benchmark> {
    let groups = [
        calls::LIST,
        files::LIST,
        tree::LIST,
        pipes::LIST,
        network::LIST,
        signals::LIST,
        switches::LIST,
        memory::LIST,
        processes::LIST,
        waiting::LIST,
        uring::LIST,
        user::LIST,
        mixes::LIST,
    ];
    groups.into_iter().flatten().collect()
}

/// The benchmark of this name.
pub fn named(name: &str) -> Option<&'static Benchmark> {
    all().into_iter().find(|benchmark| benchmark.name == name)
}

#[cfg(test)]
mod tests;
