//! The source lines of instructions, as LLVM's sample profile names them.
//!
//! Input: addresses of an image with DWARF. Output: for each the functions that it comes from, with
//! their lines, by `llvm-symbolizer`. This module counts nothing.

use crate::ask_llvm;
use anyhow::{Context, Result, bail, ensure};
use image::address::LinkAddr;
use object::{Object, ObjectSection, ObjectSymbol};
use serde::Deserialize;
use std::path::Path;

/// What LLVM defines in a program whose discriminators are flow-sensitive
/// (`-mllvm -enable-fs-discriminator`).
const FLOW_SENSITIVE: &str = "__llvm_fs_discriminator__";

#[derive(Deserialize)]
struct SymbolizerAnswer {
    #[serde(rename = "Symbol", default)]
    frames: Vec<SourceFrame>,
}

/// One source position of an instruction. The innermost inlined function comes first.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SourceFrame {
    #[serde(rename = "FunctionName")]
    pub function: String,
    #[serde(rename = "Line", default)]
    pub line: u64,
    #[serde(rename = "StartLine", default)]
    pub start_line: u64,
    #[serde(rename = "Discriminator", default)]
    pub discriminator: u32,
    #[serde(rename = "FileName", default)]
    pub file: String,
    #[serde(rename = "StartFileName", default)]
    pub start_file: String,
}

/// The line, counted from the start of its function, and the discriminator of the block on that
/// line.
pub(crate) type LineOffset = (u64, u32);

/// How a program's discriminators are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discriminators {
    /// Three numbers with prefixes: the block on its line, how often the compiler duplicated the
    /// code, and which copy this is (`DILocation::encodeDiscriminator`).
    Encoded,
    /// As they are: the lowest eight bits tell the blocks of a line apart, the others the copies of
    /// a block. LLVM adds up the copies when it reads a profile.
    FlowSensitive,
    /// By another compiler, in a way that clang does not read.
    Foreign,
}

/// What the DWARF says about an instruction.
#[derive(Clone, Debug)]
pub(crate) enum Located {
    /// The functions that it comes from, the innermost first. Each has a line.
    Line(Vec<SourceFrame>),
    /// A function, the outermost of the instruction's, but the compiler gave the instruction no
    /// line: it stands for several, or for none.
    NoLine(String),
    /// No function: the code is from assembly, or its DWARF says nothing of functions.
    NoFunction,
}

/// Instructions with their source lines.
pub(crate) struct LocatedCode {
    /// In the order of the questions.
    pub instructions: Vec<Located>,
    /// How to read the discriminators.
    pub discriminators: Discriminators,
}

impl LocatedCode {
    /// Asks for the source lines of these addresses of a file.
    ///
    /// # Errors
    /// The file has no usable DWARF, or `llvm-symbolizer` cannot be run.
    pub(crate) fn ask(path: &Path, addresses: &[LinkAddr]) -> Result<Self> {
        let input: String = addresses.iter().map(|addr| format!("0x{addr}\n")).collect();
        let arguments = ["--output-style=JSON", "--functions=linkage", "--inlines"];
        let output_text = ask_llvm("llvm-symbolizer", &arguments, path, input.as_bytes())?;
        let answers: Result<Vec<SymbolizerAnswer>, _> =
            output_text.lines().map(serde_json::from_str).collect();
        let answers = answers.context("the output of llvm-symbolizer-22 cannot be read")?;
        if answers.len() != addresses.len() {
            bail!(
                "llvm-symbolizer-22 gave {} answers to {} questions",
                answers.len(),
                addresses.len()
            );
        }
        let frames = || answers.iter().flat_map(|answer| &answer.frames);
        ensure!(
            frames().any(|frame| frame.start_line > 0),
            "{}: {}",
            path.display(),
            match frames().any(|frame| frame.line > 0) {
                true =>
                    "its DWARF does not say where functions begin: build it with KCFLAGS=\
                     -fdebug-info-for-profiling",
                false =>
                    "has no DWARF, so no address has a source line: build it with \
                     CONFIG_DEBUG_INFO_DWARF5=y",
            }
        );
        let instructions = answers.into_iter().map(|answer| Located::from(answer.frames)).collect();
        Ok(Self { instructions, discriminators: Discriminators::of(path)? })
    }

    /// Whether a block on a line is told apart from the other blocks on it anywhere.
    pub(crate) fn tells_blocks_apart(&self) -> bool {
        self.instructions.iter().any(|located| {
            let Located::Line(frames) = located else { return false };
            frames.iter().any(|frame| frame.place(self.discriminators).1 > 0)
        })
    }
}

/// A function's name in the source. ThinLTO appends `.llvm.` and a number to the name of a static
/// function that other files use, also in its DWARF. The number is another one in the next build,
/// and the compiler looks for the name without it.
pub(super) fn source_name(name: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    name.rsplit_once(".llvm.")
        .filter(|(_, number)| is_number(number))
        .map_or(name, |(name, _)| name)
}

impl From<Vec<SourceFrame>> for Located {
    fn from(mut frames: Vec<SourceFrame>) -> Self {
        for frame in &mut frames {
            frame.function.truncate(source_name(&frame.function).len());
        }
        match frames.last() {
            Some(outermost) if outermost.start_line > 0 => {
                let known = |frame: &SourceFrame| frame.line > 0 && frame.start_line > 0;
                match frames.iter().all(known) && frames[0].is_within_its_function() {
                    true => Located::Line(frames),
                    false => Located::NoLine(outermost.function.clone()),
                }
            }
            _ => Located::NoFunction,
        }
    }
}

impl Located {
    /// The function whose code the instruction is in.
    pub(crate) fn function(&self) -> Option<&str> {
        match self {
            Located::Line(frames) => frames.last().map(|frame| frame.function.as_str()),
            Located::NoLine(function) => Some(function),
            Located::NoFunction => None,
        }
    }

    /// The functions from the innermost; none where a line is missing.
    pub(crate) fn into_frames(self) -> Vec<SourceFrame> {
        match self {
            Located::Line(frames) => frames,
            Located::NoLine(_) | Located::NoFunction => Vec::new(),
        }
    }
}

impl SourceFrame {
    /// Whether the line can be one of the function's. Inline assembly that writes into another
    /// section first (`LOCK_PREFIX`) loses its line to that section: the assembler of clang gives
    /// the instruction the line of the instruction in front of it.
    fn is_within_its_function(&self) -> bool {
        let same_file = self.file == self.start_file || self.start_file.is_empty();
        same_file && self.line >= self.start_line
    }

    /// The position in the profile. LLVM keeps 16 bits of an offset.
    pub(crate) fn place(&self, discriminators: Discriminators) -> LineOffset {
        let discriminator = match discriminators {
            Discriminators::Encoded => base_discriminator(self.discriminator),
            Discriminators::FlowSensitive => self.discriminator,
            Discriminators::Foreign => 0,
        };
        (self.line.wrapping_sub(self.start_line) & 0xffff, discriminator)
    }

    /// By how much the compiler unrolled or widened the code of this line: what one execution of
    /// it stands for.
    pub(crate) fn duplication(&self, discriminators: Discriminators) -> u64 {
        match discriminators {
            Discriminators::Encoded => duplication_factor(self.discriminator),
            Discriminators::FlowSensitive | Discriminators::Foreign => 1,
        }
    }
}

impl Discriminators {
    /// Those of a program.
    fn of(path: &Path) -> Result<Self> {
        let named = || path.display().to_string();
        let bytes = image::mapping::map_file(path)?;
        let elf = object::File::parse(&*bytes).with_context(named)?;
        if elf.symbols().any(|symbol| symbol.name() == Ok(FLOW_SENSITIVE)) {
            return Ok(Discriminators::FlowSensitive);
        }
        // The compilers' names and versions. gcc numbers the blocks of a line in its own way.
        let comment = elf.section_by_name(".comment");
        let comment = comment.map(|comment| comment.data()).transpose().with_context(named)?;
        let clang = |comment: &[u8]| comment.windows(5).any(|word| word == b"clang");
        Ok(match comment {
            Some(comment) if !clang(comment) => Discriminators::Foreign,
            _ => Discriminators::Encoded,
        })
    }
}

/// The part of a discriminator that distinguishes blocks on one line
/// (`DILocation::getBaseDiscriminatorFromDiscriminator`).
fn base_discriminator(discriminator: u32) -> u32 {
    prefix_decoded(discriminator)
}

/// The part of a discriminator that says how often the code was duplicated
/// (`DILocation::getDuplicationFactorFromDiscriminator`). A first part of zero takes one bit,
/// others take 7 or 14.
fn duplication_factor(discriminator: u32) -> u64 {
    let behind = match (discriminator & 1, discriminator & 0x40) {
        (1, _) => discriminator >> 1,
        (_, 0) => discriminator >> 7,
        _ => discriminator >> 14,
    };
    u64::from(prefix_decoded(behind).max(1))
}

/// A number that is encoded in one bit (zero), in 5 bits, or in 12 bits if the sixth bit is set
/// (`getUnsignedFromPrefixEncoding`).
fn prefix_decoded(number: u32) -> u32 {
    if number & 1 != 0 {
        return 0;
    }
    let bits = number >> 1;
    match bits & 0x20 {
        0 => bits & 0x1f,
        _ => ((bits >> 1) & 0xfe0) | (bits & 0x1f),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_thinlto_appends_is_cut() {
        let names = ["g.llvm.77", "g.llvm.", "g.llvm.x", "g.isra.0", "g.llvm.1.llvm.2", ""];
        let expected = ["g", "g.llvm.", "g.llvm.x", "g.isra.0", "g.llvm.1", ""];
        assert_eq!(names.map(source_name), expected);
    }

    #[test]
    fn discriminators_are_decoded_as_llvm_encodes_them() {
        assert_eq!([0, 2, 4, 62, 1].map(base_discriminator), [0, 1, 2, 31, 0]);
        // 32 is 0b1_00000: its low five bits, the bit that announces more, and the rest.
        assert_eq!(base_discriminator((0x20 | (1 << 6)) << 1), 32);
        // Block 0 takes one bit, block 3 seven, block 32 fourteen. Behind it is the factor 5.
        let factor = 5 << 1;
        let words = [1 | (factor << 1), (3 << 1) | (factor << 7), 0xc0 | (factor << 14), 6, 0, 1];
        assert_eq!(words.map(duplication_factor), [5, 5, 5, 1, 1, 1]);
        assert_eq!(words.map(base_discriminator)[..3], [0, 3, 32]);
        assert_eq!((base_discriminator(33), duplication_factor(33)), (0, 8), "clang 22 writes 33");
    }
}
