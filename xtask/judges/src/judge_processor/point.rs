//! A point: a function to time.
//!
//! This module has only data.

/// The memory that a point's function finds at its second argument. The numbers are those of `enum
/// memory` in `driver.c`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Memory {
    None,
    /// A cycle of pointers in random order. The run returns to the first one.
    Chain {
        count: u64,
        stride: u64,
        skew: u64,
    },
    /// Random bytes, 0 or 1. The run returns their sum.
    Pattern {
        count: u64,
    },
    /// Pointers to the function's targets, in random order.
    Targets {
        count: u64,
    },
    Scratch,
}

/// A function to time.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// The curve and the size, or the group and what is done: `btb/1024`, `latency/add`.
    pub name: String,
    /// `None`: the point stands for itself.
    pub size: Option<u64>,
    /// How often a run does what is timed.
    pub operations: u64,
    /// How often a run goes round its loop.
    pub iterations: u64,
    pub memory: Memory,
    /// The result of a run, where it does not depend on the memory.
    pub expected: u64,
    /// Before the loop, in it, and behind it. `%rdi` counts the iterations.
    pub before: String,
    pub body: String,
    pub after: String,
}

impl Point {
    /// The name without the size.
    pub(super) fn curve(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }
}

pub(super) fn repeated(times: u64, text: &str) -> String {
    format!(".rept {times}\n{text}\n.endr")
}
