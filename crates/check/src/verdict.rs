//! The checker's result: how much was proved, by kind, and every difference.
//!
//! Input: counts and differences from the stages. Output: the same, sorted and limited in number,
//! as text or JSON. This module decides nothing.

use super::kernel::KernelFile;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// How many differences of a kind are kept. Further ones are only counted: a wrong map may give one
/// for each block.
const KEPT: u64 = 1000;

/// One thing in which the new kernel differs from the old program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelDifference {
    /// The kind of proof that failed, as in `Findings::proved`.
    pub kind: &'static str,
    /// The address in the old kernel.
    pub old: Option<u64>,
    /// The address in the new kernel.
    pub new: Option<u64>,
    /// What differs.
    pub what: String,
}

/// The result of one stage, or of all stages.
#[derive(Debug, Default)]
pub struct Findings {
    /// What was compared and found equal, by kind.
    pub proved: BTreeMap<&'static str, u64>,
    /// How many differences each kind has.
    pub differing: BTreeMap<&'static str, u64>,
    /// The first differences of each kind.
    pub differences: Vec<KernelDifference>,
}

impl Findings {
    /// Counts `count` proofs of a kind.
    pub(crate) fn prove(&mut self, kind: &'static str, count: u64) {
        *self.proved.entry(kind).or_default() += count;
    }

    /// Adds a difference.
    pub(crate) fn differ(
        &mut self,
        kind: &'static str,
        old: Option<u64>,
        new: Option<u64>,
        what: impl Into<String>,
    ) {
        let count = self.differing.entry(kind).or_default();
        *count += 1;
        if *count <= KEPT {
            let what = what.into();
            self.differences.push(KernelDifference { kind, old, new, what });
        }
    }

    /// Counts a proof if `equal`; otherwise adds the difference that `what` describes.
    pub(crate) fn expect(
        &mut self,
        equal: bool,
        kind: &'static str,
        old: u64,
        new: u64,
        what: impl FnOnce() -> String,
    ) {
        if equal {
            self.prove(kind, 1);
        } else {
            self.differ(kind, Some(old), Some(new), what());
        }
    }

    /// Adds the findings of another stage.
    pub(crate) fn absorb(&mut self, other: Findings) {
        for (kind, count) in other.proved {
            self.prove(kind, count);
        }
        for d in other.differences {
            if self.differing.get(d.kind).is_none_or(|&count| count < KEPT) {
                self.differ(d.kind, d.old, d.new, d.what);
            } else {
                *self.differing.entry(d.kind).or_default() += 1;
            }
        }
        for (kind, count) in other.differing {
            // These are the differences that `other` only counted.
            if count > KEPT {
                *self.differing.entry(kind).or_default() += count - KEPT;
            }
        }
    }

    /// Whether no difference was found.
    pub fn equal(&self) -> bool {
        self.differing.is_empty()
    }

    /// The number of differences.
    pub(crate) fn total(&self) -> u64 {
        self.differing.values().sum()
    }

    /// Text for a terminal, with the first `shown` differences of each kind.
    pub fn text(&self, old: &KernelFile, new: &KernelFile, shown: usize) -> String {
        let mut out = String::new();
        for (kind, count) in &self.proved {
            let _ = writeln!(out, "{count:>10}  {kind}");
        }
        for (&kind, count) in &self.differing {
            let _ = writeln!(out, "differs: {kind}: {count}");
            for d in self.differences.iter().filter(|d| d.kind == kind).take(shown) {
                let _ = writeln!(out, "    {}", line(d, old, new));
            }
        }
        match self.total() {
            0 => out.push_str("the new kernel is the old program\n"),
            n => {
                let _ = writeln!(out, "the new kernel is not the old program: {n} differences");
            }
        }
        out
    }

    /// The same content as JSON.
    pub fn json(&self, old: &KernelFile, new: &KernelFile, shown: usize) -> String {
        #[derive(Serialize)]
        struct JsonReport<'a> {
            equal: bool,
            proved: &'a BTreeMap<&'static str, u64>,
            differing: &'a BTreeMap<&'static str, u64>,
            total_differences: u64,
            differences: Vec<JsonDifference<'a>>,
        }
        #[derive(Serialize)]
        struct JsonDifference<'a> {
            kind: &'a str,
            old: Option<String>,
            old_symbol: Option<String>,
            new: Option<String>,
            new_symbol: Option<String>,
            what: &'a str,
        }
        let report = JsonReport {
            equal: self.equal(),
            proved: &self.proved,
            differing: &self.differing,
            total_differences: self.total(),
            differences: self
                .differences
                .iter()
                .take(shown)
                .map(|d| JsonDifference {
                    kind: d.kind,
                    old: d.old.map(|a| format!("{a:#x}")),
                    old_symbol: d.old.map(|a| old.describe(a)),
                    new: d.new.map(|a| format!("{a:#x}")),
                    new_symbol: d.new.map(|a| new.describe(a)),
                    what: &d.what,
                })
                .collect(),
        };
        serde_json::to_string_pretty(&report).expect("numbers and strings serialise") + "\n"
    }
}

fn line(d: &KernelDifference, old: &KernelFile, new: &KernelFile) -> String {
    let place = |kernel: &KernelFile, addr: Option<u64>| match addr {
        Some(addr) => format!("{addr:016x} {}", kernel.describe(addr)),
        None => "(none)".to_owned(),
    };
    format!("{} -> {}: {}", place(old, d.old), place(new, d.new), d.what)
}
