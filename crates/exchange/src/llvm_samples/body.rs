//! The counts of a function by its lines, and their text.
//!
//! Input: executions of instructions with their places. Output: the text of LLVM's sample profile.
//! This module knows no addresses and no DWARF.

use super::source::LineOffset;
use std::collections::BTreeMap;

/// The counts of a function, or of one place into which it was inlined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SampledBody {
    pub lines: BTreeMap<LineOffset, SampledLine>,
    pub inlined: BTreeMap<(LineOffset, String), SampledBody>,
    /// The bytes of code that ran here, without those of inlined functions.
    bytes: u64,
}

/// The counts of a line, or of one block on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SampledLine {
    pub count: u64,
    /// Counts of what it called, by name.
    pub callees: BTreeMap<String, u64>,
}

/// The executions of one instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Execution {
    /// How often it ran; 0 if the compiler should know that it did not.
    pub count: u64,
    /// How many executions of the source's code an execution stands for.
    pub duplication: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

impl SampledBody {
    /// The body of a function that is inlined at a place of this one.
    pub(crate) fn inlined(&mut self, place: LineOffset, function: &str) -> &mut SampledBody {
        self.inlined.entry((place, function.to_owned())).or_default()
    }

    /// Adds an instruction. A line has the count of its most executed instruction, as in
    /// `llvm-profgen`.
    pub(crate) fn add(&mut self, place: LineOffset, execution: Execution) {
        let line = self.lines.entry(place).or_default();
        line.count = line.count.max(execution.count.saturating_mul(execution.duplication));
        add(&mut self.bytes, execution.count.saturating_mul(execution.bytes));
    }

    /// Adds calls of a function from a place.
    pub(crate) fn add_call(&mut self, place: LineOffset, callee: &str, count: u64) {
        let callees = &mut self.lines.entry(place).or_default().callees;
        add(callees.entry(callee.to_owned()).or_default(), count);
    }

    /// Adds the counts of other code of the same name.
    pub(crate) fn merge(&mut self, other: SampledBody) {
        add(&mut self.bytes, other.bytes);
        for (place, other) in other.lines {
            let line = self.lines.entry(place).or_default();
            add(&mut line.count, other.count);
            for (callee, count) in other.callees {
                add(line.callees.entry(callee).or_default(), count);
            }
        }
        for (place, other) in other.inlined {
            self.inlined.entry(place).or_default().merge(other);
        }
    }

    /// The weight of the body by which LLVM decides whether a function is hot enough to be inlined
    /// again: the bytes that ran, as in `llvm-profgen`.
    pub(super) fn total(&self) -> u64 {
        self.inlined.values().map(SampledBody::total).fold(self.bytes, u64::saturating_add)
    }

    /// The highest count of a line.
    pub(super) fn highest(&self) -> u64 {
        let own = self.lines.values().map(|line| line.count);
        own.chain(self.inlined.values().map(SampledBody::highest)).max().unwrap_or(0)
    }

    /// Whether any code of the body ran.
    pub(super) fn ran(&self) -> bool {
        self.highest() > 0
    }

    /// Appends the lines. `scaled` gives the number to write for a count.
    pub(super) fn append(&self, depth: usize, scaled: &dyn Fn(u64) -> u64, text: &mut String) {
        let indent = " ".repeat(depth);
        let named = |&(offset, discriminator): &LineOffset| match discriminator {
            0 => offset.to_string(),
            _ => format!("{offset}.{discriminator}"),
        };
        for (place, line) in &self.lines {
            text.push_str(&format!("{indent}{}: {}", named(place), scaled(line.count)));
            for (callee, &count) in &line.callees {
                text.push_str(&format!(" {callee}:{}", scaled(count)));
            }
            text.push('\n');
        }
        for ((place, function), body) in &self.inlined {
            let total = scaled(body.total());
            text.push_str(&format!("{indent}{}: {function}:{total}\n", named(place)));
            body.append(depth + 1, scaled, text);
        }
    }
}

fn add(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count);
}
