//! What the checker found: how much was proved, by kind, and every difference.
//!
//! Takes counts and differences from the stages; gives them sorted and bounded, for a person or as
//! JSON. Judges nothing.

use super::kernel::Kernel;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// More than this many differences of a kind are counted, not kept: a wrong map gives one a block.
const KEPT: u64 = 1000;

/// One thing in which the new kernel is not the old one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The kind of proof that failed, as in `Findings::proved`.
    pub kind: &'static str,
    pub old: Option<u64>,
    pub new: Option<u64>,
    pub what: String,
}

/// The result of one stage, or of all.
#[derive(Debug, Default)]
pub struct Findings {
    /// What was compared and found equal, by kind.
    pub proved: BTreeMap<&'static str, u64>,
    /// How many differences each kind has.
    pub differing: BTreeMap<&'static str, u64>,
    /// The first ones of each kind.
    pub differences: Vec<Difference>,
}

impl Findings {
    pub fn prove(&mut self, kind: &'static str, count: u64) {
        *self.proved.entry(kind).or_default() += count;
    }

    pub fn differ(
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
            self.differences.push(Difference { kind, old, new, what });
        }
    }

    /// Proved if `equal`, else a difference that `what` words.
    pub fn expect(
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

    pub fn absorb(&mut self, other: Findings) {
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
            // Those that `other` did not keep.
            if count > KEPT {
                *self.differing.entry(kind).or_default() += count - KEPT;
            }
        }
    }

    pub fn equal(&self) -> bool {
        self.differing.is_empty()
    }

    pub fn total(&self) -> u64 {
        self.differing.values().sum()
    }

    /// Text for a terminal, with the first `shown` differences of each kind.
    pub fn text(&self, old: &Kernel, new: &Kernel, shown: usize) -> String {
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

    /// The same for programs.
    pub fn json(&self, old: &Kernel, new: &Kernel, shown: usize) -> String {
        #[derive(Serialize)]
        struct Report<'a> {
            equal: bool,
            proved: &'a BTreeMap<&'static str, u64>,
            differing: &'a BTreeMap<&'static str, u64>,
            total_differences: u64,
            differences: Vec<Entry<'a>>,
        }
        #[derive(Serialize)]
        struct Entry<'a> {
            kind: &'a str,
            old: Option<String>,
            old_symbol: Option<String>,
            new: Option<String>,
            new_symbol: Option<String>,
            what: &'a str,
        }
        let report = Report {
            equal: self.equal(),
            proved: &self.proved,
            differing: &self.differing,
            total_differences: self.total(),
            differences: self
                .differences
                .iter()
                .take(shown)
                .map(|d| Entry {
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

fn line(d: &Difference, old: &Kernel, new: &Kernel) -> String {
    let place = |kernel: &Kernel, addr: Option<u64>| match addr {
        Some(addr) => format!("{addr:016x} {}", kernel.describe(addr)),
        None => "(none)".to_owned(),
    };
    format!("{} -> {}: {}", place(old, d.old), place(new, d.new), d.what)
}
