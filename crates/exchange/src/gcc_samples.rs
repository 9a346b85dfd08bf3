//! GCC's sample profile: counts by source line in the binary form that `gcc -fauto-profile=FILE`
//! reads (`gcc/auto-profile.cc`, `gcc/gcov-io.cc`, since GCC 12).
//!
//! ```text
//! "gcda" VERSION 0
//! NAMES LENGTH count, and each name
//! FUNCTIONS LENGTH count, and each function: how often it was entered, its body
//! MODULES LENGTH 0
//!
//! body:  name lines callsites, each line, each callsite
//! line:  OFFSET << 16, targets, executions, each target: kind, name, executions
//! callsite: OFFSET << 16, the inlined function's body
//! ```
//!
//! A word has 32 bits, a count two words, the lower one first. Names are numbers of the table of
//! names. GCC compares the names without what it appended (`.isra.0`), and no discriminators.
//!
//! Input: a profile with its image. Output: bytes. Without DWARF there is an error.

use crate::llvm_samples::body::SampledBody;
use crate::llvm_samples::{SampledFunctions, Samples, sampled_functions};
use crate::{ExportSubject, Format, Make};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};

/// The format.
pub(crate) const GCC_SAMPLES: Format = Format {
    name: "gcc-samples",
    about: "GCC's sample profile (gcc -fauto-profile=FILE, since GCC 12); needs DWARF",
    make: Make::Samples(samples),
};

/// "gcda".
const MAGIC: u32 = 0x6763_6461;
/// AUTO_PROFILE_VERSION.
const VERSION: u32 = 2;
/// GCOV_TAG_AFDO_FILE_NAMES.
const NAMES: u32 = 0xaa00_0000;
/// GCOV_TAG_AFDO_FUNCTION.
const FUNCTIONS: u32 = 0xac00_0000;
/// GCOV_TAG_AFDO_MODULE_GROUPING.
const MODULES: u32 = 0xae00_0000;
/// HIST_TYPE_INDIR_CALL_TOPN: what a place called. GCC reads it where the call is indirect.
const TARGETS: u32 = 7;

fn samples(subject: &ExportSubject) -> Result<Samples> {
    let SampledFunctions { bodies, heads, mut coverage } = sampled_functions(subject)?;
    coverage.reader_wants_discriminators = false;
    let functions = by_written_names(bodies, &heads);
    let contents = written(&functions);
    Ok(Samples { contents, functions: functions.len() as u64, coverage })
}

/// A function, with how often it was entered.
type EnteredFunction = (u64, SampledBody);

/// The functions by the names that GCC compares. What it split off was not entered from outside.
fn by_written_names(
    bodies: BTreeMap<String, SampledBody>,
    heads: &BTreeMap<String, u64>,
) -> BTreeMap<String, EnteredFunction> {
    let mut functions: BTreeMap<String, EnteredFunction> = BTreeMap::new();
    for (name, body) in bodies {
        let (head, function) = functions.entry(written_name(&name).to_owned()).or_default();
        if !name.contains(".part.") {
            *head = head.saturating_add(heads.get(&name).copied().unwrap_or(0));
        }
        function.merge(body);
    }
    functions
}

/// A name without what GCC appends to those of copies and parts of a function.
fn written_name(name: &str) -> &str {
    name.split_once('.').filter(|(front, _)| !front.is_empty()).map_or(name, |(front, _)| front)
}

fn written(functions: &BTreeMap<String, EnteredFunction>) -> Vec<u8> {
    let mut names = BTreeSet::new();
    for (name, (_, body)) in functions {
        names.insert(name.as_str());
        add_names(body, &mut names);
    }
    let numbers: BTreeMap<&str, u32> = names.iter().copied().zip(0..).collect();

    let mut file = Words::default();
    for word in [MAGIC, VERSION, 0] {
        file.word(word);
    }
    let mut table = Words::default();
    table.word(names.len() as u32);
    names.iter().for_each(|name| table.text(name));
    file.section(NAMES, table);
    let mut table = Words::default();
    table.word(functions.len() as u32);
    for (name, (head, body)) in functions {
        table.count(*head);
        table.body(name, body, &numbers);
    }
    file.section(FUNCTIONS, table);
    let mut none = Words::default();
    none.word(0);
    file.section(MODULES, none);
    file.0
}

fn add_names<'a>(body: &'a SampledBody, names: &mut BTreeSet<&'a str>) {
    let called = body.lines.values().flat_map(|line| line.callees.keys());
    names.extend(called.map(|name| written_name(name)));
    for ((_, name), inlined) in &body.inlined {
        names.insert(written_name(name));
        add_names(inlined, names);
    }
}

/// The bytes of words.
#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn word(&mut self, word: u32) {
        self.0.extend(word.to_le_bytes());
    }

    fn count(&mut self, count: u64) {
        self.0.extend(count.to_le_bytes());
    }

    /// The length, the text, and the zero that ends it.
    fn text(&mut self, text: &str) {
        self.word(text.len() as u32 + 1);
        self.0.extend(text.bytes());
        self.0.push(0);
    }

    fn section(&mut self, tag: u32, contents: Words) {
        self.word(tag);
        self.word(contents.0.len() as u32);
        self.0.extend(contents.0);
    }

    fn body(&mut self, name: &str, body: &SampledBody, numbers: &BTreeMap<&str, u32>) {
        let lines = lines(body);
        let inlined = inlined(body);
        self.word(numbers[name]);
        self.word(lines.len() as u32);
        self.word(inlined.len() as u32);
        for (offset, (count, callees)) in lines {
            self.word(offset << 16);
            self.word(callees.len() as u32);
            self.count(count);
            for (callee, calls) in callees {
                self.word(TARGETS);
                self.count(u64::from(numbers[callee]));
                self.count(calls);
            }
        }
        for ((offset, name), body) in inlined {
            self.word(offset << 16);
            self.body(name, &body, numbers);
        }
    }
}

/// The executions of each line, and what it called. A line counts as often as its most executed
/// block.
fn lines(body: &SampledBody) -> BTreeMap<u32, (u64, BTreeMap<&str, u64>)> {
    let mut lines: BTreeMap<u32, (u64, BTreeMap<&str, u64>)> = BTreeMap::new();
    for (&(offset, _), line) in &body.lines {
        let (count, callees) = lines.entry(offset as u32).or_default();
        *count = line.count.max(*count);
        for (callee, &calls) in &line.callees {
            let sum = callees.entry(written_name(callee)).or_default();
            *sum = sum.saturating_add(calls);
        }
    }
    lines
}

/// The functions that were inlined at each line.
fn inlined(body: &SampledBody) -> BTreeMap<(u32, &str), SampledBody> {
    let mut inlined: BTreeMap<(u32, &str), SampledBody> = BTreeMap::new();
    for (((offset, _), name), body) in &body.inlined {
        inlined.entry((*offset as u32, written_name(name))).or_default().merge(body.clone());
    }
    inlined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llvm_samples::body::Execution;

    fn ran(count: u64) -> Execution {
        Execution { count, duplication: 1, bytes: 4 }
    }

    /// The words of a section's contents.
    fn words(bytes: &[u8]) -> Vec<u32> {
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn a_function_is_written_as_gcc_reads_it() {
        let mut f = SampledBody::default();
        f.add((1, 0), ran(5));
        f.add_call((1, 0), "g.constprop.0", 5);
        f.inlined((2, 3), "tiny").add((0, 0), ran(7));
        let mut part = SampledBody::default();
        part.add((4, 0), ran(2));
        let bodies = [("f".to_owned(), f), ("f.part.0".to_owned(), part)].into();
        let heads = [("f".to_owned(), 5), ("f.part.0".to_owned(), 2)].into();
        let functions = by_written_names(bodies, &heads);
        let bytes = written(&functions);

        assert_eq!(words(&bytes[..16]), [MAGIC, VERSION, 0, NAMES]);
        let names = u32::from_le_bytes(bytes[16..20].try_into().unwrap()) as usize;
        let expected = b"\x03\0\0\0\x02\0\0\0f\0\x02\0\0\0g\0\x05\0\0\0tiny\0";
        assert_eq!(&bytes[20..20 + names], expected);
        let rest = words(&bytes[20 + names..]);
        let body = [0, 2, 1, 1 << 16, 1, 5, 0, TARGETS, 1, 0, 5, 0, 4 << 16, 0, 2, 0];
        let tiny = [2 << 16, 2, 1, 0, 0, 0, 7, 0];
        let contents: Vec<u32> = [1, 5, 0].into_iter().chain(body).chain(tiny).collect();
        assert_eq!(rest[..2], [FUNCTIONS, 4 * contents.len() as u32]);
        assert_eq!(rest[2..2 + contents.len()], contents);
        assert_eq!(rest[2 + contents.len()..], [MODULES, 4, 0]);
    }

    #[test]
    fn blocks_of_a_line_are_one_line_to_gcc() {
        let mut f = SampledBody::default();
        f.add((1, 0), ran(5));
        f.add((1, 2), ran(9));
        f.inlined((2, 0), "g").add((1, 0), ran(1));
        f.inlined((2, 4), "g").add((1, 0), ran(2));
        assert_eq!(lines(&f)[&1].0, 9);
        assert_eq!(inlined(&f)[&(2, "g")].lines[&(1, 0)].count, 3);
        assert_eq!([".L1", "f.isra.0.cold", "f"].map(written_name), [".L1", "f", "f"]);
    }
}
