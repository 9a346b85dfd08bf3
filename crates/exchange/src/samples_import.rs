//! Makes a profile of blocks from LLVM's sample profile; `llvm_samples.rs` does the reverse.
//!
//! Input: the text form, the image and its DWARF. `llvm-profdata` converts the binary forms.
//! Output: counts of blocks, and of the edges and calls that follow from them. As in LLVM, a block
//! has the highest count of the lines of its instructions. The sample profile lacks some facts:
//! which of several blocks on a line without discriminators ran, jumps through pointers, where the
//! kernel was entered, and which blocks miss together.

use super::branches::sampled;
use super::llvm_samples::source::{Discriminators, LineOffset, LocatedCode, SourceFrame};
use super::{ImageCode, ask_llvm};
use anyhow::{Context, Result, bail, ensure};
use image::address::LinkAddr;
use image::{BlockEnd, BlockIndex, Image};
use md5::{Digest, Md5};
use profile::Profile;
use profile::noise::blocks_only;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The functions from the outermost to the innermost, each with the place where the next one was
/// inlined. The last place is the line itself.
type InlineChain = Vec<(String, LineOffset)>;

/// Counts by source line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SourceSamples {
    lines: BTreeMap<InlineChain, SampledLine>,
    /// How often each function was entered.
    heads: BTreeMap<String, u64>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct SampledLine {
    count: u64,
    /// Callees by name, with counts.
    callees: BTreeMap<String, u64>,
}

/// A profile from samples, and how many of the samples it contains.
pub struct ImportedSamples {
    /// The profile.
    pub profile: Profile,
    /// All lines with counts.
    pub lines: usize,
    /// Lines from which an instruction of the image comes.
    pub lines_used: usize,
}

/// Whether a text is a sample profile: its first line is `function:TOTAL:HEAD`.
pub fn is_text(text: &str) -> bool {
    text.lines().find(|line| !line.trim().is_empty()).and_then(header).is_some()
}

/// Whether a file begins with "SPROF42" and the number of a form, encoded in LEB128 (`SPMagic` of
/// LLVM's `SampleProf.h`). Every form is accepted.
pub fn is_binary(file: &[u8]) -> bool {
    let magic = u64::from_be_bytes(*b"SPROF42\0");
    let sevens = |at: u32| (magic >> (7 * at) & 0x7f) as u8;
    // The form is in the lowest eight bits: all bits of the first byte, and one bit of the second.
    file.len() >= 9
        && (2..9).all(|at| file[at as usize] & 0x7f == sevens(at))
        && file[1] & 0x7e == sevens(1) & 0x7e
}

/// Reads a binary sample profile.
///
/// # Errors
/// The file is damaged, or is of a kind without lines (pseudo probes, contexts). `llvm-profdata` is
/// missing, or refuses it.
pub fn binary(bytes: &[u8]) -> Result<SourceSamples> {
    parse(&text_of(bytes)?)
}

/// The text form of a binary sample profile.
///
/// # Errors
/// `llvm-profdata` is missing, or refuses the file.
pub fn text_of(bytes: &[u8]) -> Result<String> {
    let arguments = ["merge", "--sample", "--text", "-o", "-"];
    ask_llvm("llvm-profdata", &arguments, Path::new("-"), bytes)
}

impl SourceSamples {
    /// Whether discriminators also tell the copies of a block apart (flow-sensitive
    /// discriminators, which LLVM reads with `-profile-isfs`).
    pub fn tells_copies_apart(&self) -> bool {
        let mut places = self.lines.keys().flatten();
        places.any(|(_, (_, discriminator))| *discriminator != block_of(*discriminator))
    }

    /// The share of these counts that are on lines which `other` also has. Lines are compared by
    /// their innermost function, so inlining makes no difference, and copies of a block are one. 0
    /// if there are no counts.
    pub fn share_known_to(&self, other: &SourceSamples) -> f64 {
        let innermost = |chain: &InlineChain| {
            let (function, (line, discriminator)) = chain.last()?;
            Some((function.clone(), *line, block_of(*discriminator)))
        };
        let known: BTreeSet<_> = other.lines.keys().filter_map(innermost).collect();
        let (mut all, mut found) = (0.0, 0.0);
        for (chain, line) in &self.lines {
            all += line.count as f64;
            if innermost(chain).is_some_and(|place| known.contains(&place)) {
                found += line.count as f64;
            }
        }
        if all > 0.0 { found / all } else { 0.0 }
    }
}

/// The part of a discriminator that tells the blocks of a line apart. With flow-sensitive
/// discriminators the others tell its copies apart; without, there are no others.
fn block_of(discriminator: u32) -> u32 {
    discriminator & 0xff
}

/// Parses `function:TOTAL:HEAD` at the beginning of a line.
fn header(line: &str) -> Option<(&str, u64)> {
    let (rest, head) = line.rsplit_once(':')?;
    let (name, total) = rest.rsplit_once(':')?;
    let _: u64 = total.parse().ok()?;
    (!name.is_empty() && !name.starts_with(char::is_whitespace))
        .then_some((name, head.trim_end().parse().ok()?))
}

/// Reads the text form.
///
/// # Errors
/// A line does not follow the format. The error names the line.
pub fn parse(text: &str) -> Result<SourceSamples> {
    let mut samples = SourceSamples::default();
    // The chain above the next line. Its last place is not known yet.
    let mut names: Vec<String> = Vec::new();
    let mut places: Vec<LineOffset> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at = || format!("line {}", number + 1);
        let depth = line.len() - line.trim_start_matches(' ').len();
        if depth == 0 {
            ensure!(
                !line.starts_with('['),
                "{}: this is a profile with contexts: convert it with `llvm-profdata-22 merge \
                 --sample --text --gen-cs-nested-profile`",
                at()
            );
            let (name, head) = header(line)
                .with_context(|| format!("{}: neither `function:TOTAL:HEAD` nor indented", at()))?;
            (names, places) = (vec![name.to_owned()], Vec::new());
            let heads = samples.heads.entry(name.to_owned()).or_insert(0);
            *heads = heads.saturating_add(head);
            continue;
        }
        ensure!(depth <= names.len(), "{}: indented deeper than the line that it belongs to", at());
        let body = line.trim();
        if let Some(metadata) = body.strip_prefix('!') {
            ensure!(
                !metadata.starts_with("CFGChecksum"),
                "{}: this is a profile of pseudo probes, which have no lines: make one without \
                 `-fpseudo-probe-for-profiling`",
                at()
            );
            continue;
        }
        names.truncate(depth);
        places.truncate(depth - 1);
        let entry = entry(body).with_context(|| {
            format!("{}: neither `OFFSET: COUNT` nor `OFFSET: function:TOTAL`", at())
        })?;
        match entry {
            ProfileEntry::Inlined(place, name) => {
                names.push(name.to_owned());
                places.push(place);
            }
            ProfileEntry::SampledLine(place, line) => {
                let places = places.iter().copied().chain([place]);
                let chain = names.iter().cloned().zip(places).collect();
                samples.lines.entry(chain).or_default().add(line);
            }
        }
    }
    Ok(samples)
}

enum ProfileEntry<'a> {
    SampledLine(LineOffset, SampledLine),
    Inlined(LineOffset, &'a str),
}

fn entry(body: &str) -> Option<ProfileEntry<'_>> {
    let (place, rest) = body.split_once(": ")?;
    let (offset, discriminator) = place.split_once('.').unwrap_or((place, "0"));
    let place = (offset.parse().ok()?, discriminator.parse().ok()?);
    let mut words = rest.split(' ');
    let first = words.next()?;
    let Ok(count) = first.parse() else {
        let (name, total) = rest.rsplit_once(':')?;
        let _: u64 = total.parse().ok()?;
        return Some(ProfileEntry::Inlined(place, name));
    };
    let mut line = SampledLine { count, callees: BTreeMap::new() };
    for word in words.filter(|word| !word.is_empty()) {
        let (callee, count) = word.rsplit_once(':')?;
        line.callees.insert(callee.to_owned(), count.parse().ok()?);
    }
    Some(ProfileEntry::SampledLine(place, line))
}

impl SampledLine {
    fn add(&mut self, other: SampledLine) {
        self.count = self.count.saturating_add(other.count);
        for (callee, count) in other.callees {
            let sum = self.callees.entry(callee).or_insert(0);
            *sum = sum.saturating_add(count);
        }
    }
}

/// The profile of an image from samples. `path` is the image's file, with DWARF.
///
/// # Errors
/// The file has no DWARF, or `llvm-symbolizer` cannot be run.
pub fn profile(
    samples: &SourceSamples,
    image: &Image,
    path: &Path,
    name: &str,
) -> Result<ImportedSamples> {
    let code = ImageCode::read(path)?;
    let mut names = ProfileNames::of(samples);
    // Clones and parts of a function have the function's name in the profile, without their suffix.
    let mut named = |function: &str| {
        let mut has = |name: &str| samples.heads.contains_key(names.of_function(name));
        has(function) || function.split('.').next().is_some_and(has)
    };
    let blocks = image.functions.iter().filter(|function| named(&function.name));
    let blocks: Vec<BlockIndex> =
        blocks.flat_map(|function| function.blocks.clone()).map(BlockIndex).collect();
    let mut addresses: Vec<(LinkAddr, BlockIndex)> = Vec::new();
    for &block in &blocks {
        let instructions = code.instructions(image.block(block))?;
        addresses.extend(instructions.into_iter().map(|addr| (addr, block)));
    }
    if addresses.is_empty() {
        bail!(
            "{}: has none of the functions of the samples: is the profile from another program?",
            path.display()
        );
    }
    let instruction_addresses: Vec<LinkAddr> = addresses.iter().map(|&(addr, _)| addr).collect();
    let mut placed = PlacedSamples::default();
    let located = LocatedCode::ask(path, &instruction_addresses)?;
    for (&(_, block), one) in addresses.iter().zip(located.instructions) {
        let chain = names.chain(&one.into_frames(), located.discriminators);
        placed.add(samples, image, block, chain);
    }
    let mut callees: BTreeMap<String, LinkAddr> = BTreeMap::new();
    for function in &image.functions {
        let name = names.of_function(&function.name);
        if let Some(&head) = samples.heads.get(name).filter(|&&head| head > 0) {
            placed.blocks.entry(function.addr).or_insert(head);
        }
        callees.entry(name.to_owned()).or_insert(function.addr);
    }
    let mut counted = Profile::empty(image.build_id.clone());
    counted.blocks = placed.blocks;
    let mut profile = blocks_only(&counted, image);
    for ((from, callee), count) in placed.calls {
        if let Some(&callee) = callees.get(&callee) {
            profile.calls.insert((from, callee), count);
        }
    }
    Ok(ImportedSamples {
        profile: sampled(profile, name),
        lines: samples.lines.len(),
        lines_used: placed.used.len(),
    })
}

/// The names of functions as a profile has them: as they are, or as the first 64 bits of their MD5
/// in decimal (`llvm-profdata merge --use-md5`; `MD5Hash` in LLVM's `MD5.h`).
struct ProfileNames {
    hashed: bool,
    known: BTreeMap<String, String>,
}

impl ProfileNames {
    fn of(samples: &SourceSamples) -> Self {
        // The name of a function in C does not begin with a digit.
        let mut names = samples.heads.keys();
        let hashed = names.next().is_some_and(|name| name.parse::<u64>().is_ok());
        ProfileNames { hashed, known: BTreeMap::new() }
    }

    fn of_function<'a>(&'a mut self, function: &'a str) -> &'a str {
        if !self.hashed {
            return function;
        }
        self.known.entry(function.to_owned()).or_insert_with(|| md5_name(function))
    }

    /// The chain of the source positions of an instruction, outermost last.
    fn chain(&mut self, frames: &[SourceFrame], discriminators: Discriminators) -> InlineChain {
        let mut chain = InlineChain::new();
        for frame in frames.iter().rev() {
            let name = self.of_function(&frame.function).to_owned();
            chain.push((name, frame.place(discriminators)));
        }
        chain
    }
}

fn md5_name(function: &str) -> String {
    let digest = Md5::digest(function);
    let first = digest.first_chunk().copied().map_or(0, u64::from_le_bytes);
    first.to_string()
}

/// The counts that samples give to blocks.
#[derive(Default)]
struct PlacedSamples {
    blocks: BTreeMap<LinkAddr, u64>,
    /// Counts of blocks that end with a call through a pointer, by the callee's name.
    calls: BTreeMap<(LinkAddr, String), u64>,
    used: BTreeSet<InlineChain>,
}

impl PlacedSamples {
    /// Adds one instruction of a block, with the functions and lines that it comes from.
    fn add(
        &mut self,
        samples: &SourceSamples,
        image: &Image,
        block: BlockIndex,
        chain: InlineChain,
    ) {
        let block = image.block(block);
        let Some(line) = samples.lines.get(&chain) else { return };
        if line.count > 0 {
            let count = self.blocks.entry(block.addr).or_insert(0);
            *count = line.count.max(*count);
        }
        if block.end == BlockEnd::Call(None) {
            let calls =
                line.callees.iter().map(|(callee, &count)| ((block.addr, callee.clone()), count));
            self.calls.extend(calls);
        }
        self.used.insert(chain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::random::SplitMix64;

    const TEXT: &str = "f:100:7\n 1: 10\n 2.3: 7 g:4 h.llvm.1:3\n 4: tiny:20\n  0: 5\n  1: \
        less:15\n   2: 15\n 9: 1\n !Attributes: 1\ng:5:5\n 0: 5\n";

    fn chain(chain: &[(&str, LineOffset)]) -> InlineChain {
        chain.iter().map(|&(name, place)| (name.to_owned(), place)).collect()
    }

    #[test]
    fn lines_callees_and_inlined_functions_are_read() {
        let samples = parse(TEXT).unwrap();
        let count = |wanted: &[(&str, LineOffset)]| samples.lines[&chain(wanted)].count;
        assert_eq!(samples.lines.len(), 6);
        assert_eq!(count(&[("f", (1, 0))]), 10);
        assert_eq!(count(&[("f", (4, 0)), ("tiny", (0, 0))]), 5);
        assert_eq!(count(&[("f", (4, 0)), ("tiny", (1, 0)), ("less", (2, 0))]), 15);
        assert_eq!(count(&[("f", (9, 0))]), 1);
        let callees = &samples.lines[&chain(&[("f", (2, 3))])].callees;
        assert_eq!(*callees, BTreeMap::from([("g".to_owned(), 4), ("h.llvm.1".to_owned(), 3)]));
        assert_eq!(samples.heads, BTreeMap::from([("f".to_owned(), 7), ("g".to_owned(), 5)]));
    }

    #[test]
    fn the_share_that_another_profile_knows_does_not_depend_on_inlining() {
        let here = parse(TEXT).unwrap();
        assert_eq!(here.share_known_to(&here), 1.0);
        // Of 43 counts: line 1 of f, line 0 of tiny, and no line of less.
        let there = parse("f:1:1\n 1: 3\n 2: 1\ntiny:1:1\n 0: 8\n").unwrap();
        assert_eq!(here.share_known_to(&there), 15.0 / 43.0);
        assert_eq!(SourceSamples::default().share_known_to(&here), 0.0);
    }

    #[test]
    fn copies_of_a_block_are_one_block_of_its_line() {
        let copies = parse("f:9:1\n 2.515: 3\n 2.259: 2\n 2.4: 4\n").unwrap();
        let blocks = parse("f:9:1\n 2.3: 3\n").unwrap();
        assert!(copies.tells_copies_apart() && !blocks.tells_copies_apart());
        assert_eq!(copies.share_known_to(&blocks), 5.0 / 9.0);
        assert_eq!(blocks.share_known_to(&copies), 1.0);
    }

    #[test]
    fn functions_are_found_by_the_md5_of_their_names() {
        // As `llvm-profdata merge --use-md5` of LLVM 22 writes them.
        assert_eq!(md5_name("vfs_read"), "15984156945393099997");
        assert_eq!(md5_name("__x64_sys_read"), "5376114957941209743");
        let name =
            |text: &str| ProfileNames::of(&parse(text).unwrap()).of_function("vfs_read").to_owned();
        assert_eq!(name("15984156945393099997:1:1\n"), "15984156945393099997");
        assert_eq!(name("vfs_read:1:1\n"), "vfs_read");
    }

    #[test]
    fn the_error_names_the_line_that_is_not_a_sample_profile() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert!(error("f:1:1\n   2: 3\n").contains("line 2: indented deeper"));
        assert!(error("f:1:1\n 2 3\n").contains("line 2: neither"));
        assert!(error("f:1\n").contains("line 1: neither"));
        assert!(error("[main:3 @ f]:1:1\n").contains("contexts"));
        assert!(
            error(" !Attributes: 5\n").contains("line 1: indented deeper than the line"),
            "metadata without a function"
        );
        assert!(
            error("f:1:1\n 1: 1\n !CFGChecksum: 5\n")
                .contains("line 3: this is a profile of pseudo probes")
        );
        assert!(is_text("\nf:1:1\n 1: 1\n") && !is_text("0x1/0x2/P/-/-/0\n"));
        assert!(!is_binary(b"PERFILE2\0\0"));
    }

    #[test]
    fn damaged_profiles_are_refused_or_read_and_never_panic() {
        let mut random = SplitMix64::new(3);
        for _ in 0..5000 {
            let mut bytes = TEXT.as_bytes().to_vec();
            for _ in 0..1 + random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = b" :.\n19fg!["[random.below(10) as usize];
            }
            bytes.truncate(1 + random.below(bytes.len() as u64) as usize);
            is_binary(&bytes);
            let _ = std::str::from_utf8(&bytes).map(parse);
        }
    }
}
