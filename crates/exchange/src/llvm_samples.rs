//! LLVM's sample profile as text (`llvm/include/llvm/ProfileData/SampleProfReader.h`): counts by
//! source line, with nested inlined functions.
//!
//! ```text
//! function:TOTAL:HEAD
//!  OFFSET[.DISCRIMINATOR]: COUNT
//!  OFFSET[.DISCRIMINATOR]: inlined:TOTAL
//!   OFFSET: COUNT
//! ```
//!
//! Offsets are lines from the start of the function. A line's count is the count of its most
//! executed instruction. `llvm-symbolizer` finds the lines in the image's DWARF.
//!
//! Input: a profile with its image. Output: text. Without DWARF there is an error.

use super::{ExportSubject, Format, ImageCode, Make, ask_llvm};
use anyhow::{Context, Result, bail};
use image::address::LinkAddr;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Deserialize)]
struct SymbolizerAnswer {
    #[serde(rename = "Symbol", default)]
    frames: Vec<SourceFrame>,
}

/// One source position of an instruction. The innermost inlined function comes first.
#[derive(Deserialize)]
pub(super) struct SourceFrame {
    #[serde(rename = "FunctionName")]
    pub function: String,
    #[serde(rename = "Line", default)]
    line: u64,
    #[serde(rename = "StartLine", default)]
    start_line: u64,
    #[serde(rename = "Discriminator", default)]
    discriminator: u32,
}

/// The line, counted from the start of its function, and the discriminator of the block on that
/// line.
pub(super) type LineOffset = (u64, u32);

/// The counts of a function, or of one place into which it was inlined.
#[derive(Default)]
struct SampledBody {
    lines: BTreeMap<LineOffset, u64>,
    calls: BTreeMap<(LineOffset, String), u64>,
    inlined: BTreeMap<(LineOffset, String), SampledBody>,
}

/// The format.
pub(crate) const LLVM_SAMPLES: Format = Format {
    name: "llvm-samples",
    about: "LLVM's sample profile as text (clang -fprofile-sample-use=FILE); needs DWARF",
    make: Make::Counts(sample_profile),
};

/// The profile as text.
///
/// # Errors
/// The image has no DWARF, or `llvm-symbolizer` cannot be run.
pub(crate) fn sample_profile(subject: &ExportSubject) -> Result<String> {
    let code = ImageCode::read(subject.path)?;
    let mut addresses: Vec<(LinkAddr, u64)> = Vec::new();
    let mut callees: BTreeMap<LinkAddr, Vec<(&str, u64)>> = BTreeMap::new();
    let mut heads: BTreeMap<&str, u64> = BTreeMap::new();
    for (block, count) in subject.blocks()? {
        let instructions = code.instructions(subject.image.block(block))?;
        addresses.extend(instructions.into_iter().map(|addr| (addr, count)));
        let function = subject.image.function_of(block);
        if function.addr == subject.image.block(block).addr {
            heads.insert(&function.name, count);
        }
    }
    for (&(from, to), &count) in &subject.profile.calls {
        let leaves = code.last_instruction(subject.image.block(subject.block(from)?))?;
        let callee = &subject.image.function_of(subject.block(to)?).name;
        callees.entry(leaves).or_default().push((callee, count));
    }
    let instruction_addresses: Vec<LinkAddr> = addresses.iter().map(|&(addr, _)| addr).collect();
    let frames = frames(subject.path, &instruction_addresses)?;
    let mut functions: BTreeMap<String, SampledBody> = BTreeMap::new();
    for ((addr, count), mut frames) in addresses.into_iter().zip(frames) {
        let Some(outermost) = frames.pop() else { continue };
        let mut body = functions.entry(outermost.function.clone()).or_default();
        let mut place = outermost.place();
        for inlined in frames.into_iter().rev() {
            let next = inlined.place();
            body = body.inlined.entry((place, inlined.function)).or_default();
            place = next;
        }
        let line = body.lines.entry(place).or_insert(0);
        *line = count.max(*line);
        for &(callee, count) in callees.get(&addr).into_iter().flatten() {
            *body.calls.entry((place, callee.to_owned())).or_insert(0) += count;
        }
    }
    let mut text = String::new();
    for (name, body) in &functions {
        let head = heads.get(name.as_str()).copied().unwrap_or(0);
        text.push_str(&format!("{name}:{}:{head}\n", body.total()));
        body.append(1, &mut text);
    }
    Ok(text)
}

/// The source positions of each instruction, outermost last. Empty if the DWARF does not say.
pub(super) fn frames(path: &Path, addresses: &[LinkAddr]) -> Result<Vec<Vec<SourceFrame>>> {
    let input: String = addresses.iter().map(|addr| format!("0x{addr}\n")).collect();
    let arguments = ["--output-style=JSON", "--functions=linkage", "--inlines"];
    let output_text = ask_llvm("llvm-symbolizer", &arguments, path, input.as_bytes())?;
    let answers: Result<Vec<SymbolizerAnswer>, _> =
        output_text.lines().map(serde_json::from_str).collect();
    let answers = answers.context("the output of llvm-symbolizer-22 cannot be read")?;
    if answers.len() != addresses.len() {
        bail!("llvm-symbolizer-22 gave {} answers to {} questions", answers.len(), addresses.len());
    }
    let known = |frame: &SourceFrame| frame.line > 0 && frame.start_line > 0;
    if !answers.iter().flat_map(|answer| &answer.frames).any(known) {
        bail!(
            "{}: has no DWARF, so no address has a source line: build it with \
             CONFIG_DEBUG_INFO_DWARF5=y",
            path.display()
        );
    }
    let lines = |answer: SymbolizerAnswer| match answer.frames.iter().all(known) {
        true => answer.frames,
        false => Vec::new(),
    };
    Ok(answers.into_iter().map(lines).collect())
}

impl SourceFrame {
    /// The position in the profile. LLVM keeps 16 bits of an offset.
    pub(crate) fn place(&self) -> LineOffset {
        (self.line.wrapping_sub(self.start_line) & 0xffff, base_discriminator(self.discriminator))
    }
}

/// The part of a discriminator that distinguishes blocks on one line
/// (`DILocation::getBaseDiscriminatorFromDiscriminator`). It is prefix-encoded in 5 bits, or in 12
/// bits if the sixth bit is set.
fn base_discriminator(discriminator: u32) -> u32 {
    if discriminator & 1 != 0 {
        return 0;
    }
    let bits = discriminator >> 1;
    match bits & 0x20 {
        0 => bits & 0x1f,
        _ => ((bits >> 1) & 0xfe0) | (bits & 0x1f),
    }
}

impl SampledBody {
    fn total(&self) -> u64 {
        let inlined: u64 = self.inlined.values().map(SampledBody::total).sum();
        self.lines.values().sum::<u64>().saturating_add(inlined)
    }

    fn append(&self, depth: usize, text: &mut String) {
        let indent = " ".repeat(depth);
        let named = |&(offset, discriminator): &LineOffset| match discriminator {
            0 => offset.to_string(),
            _ => format!("{offset}.{discriminator}"),
        };
        for (place, count) in &self.lines {
            text.push_str(&format!("{indent}{}: {count}", named(place)));
            for ((_, callee), count) in
                self.calls.range((*place, String::new())..).take_while(|((at, _), _)| at == place)
            {
                text.push_str(&format!(" {callee}:{count}"));
            }
            text.push('\n');
        }
        for ((place, function), body) in &self.inlined {
            text.push_str(&format!("{indent}{}: {function}:{}\n", named(place), body.total()));
            body.append(depth + 1, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discriminators_are_decoded_as_llvm_encodes_them() {
        assert_eq!([0, 2, 4, 62, 1].map(base_discriminator), [0, 1, 2, 31, 0]);
        // 32 is 0b1_00000: its low five bits, the bit that announces more, and the rest.
        assert_eq!(base_discriminator((0x20 | (1 << 6)) << 1), 32);
    }

    #[test]
    fn inlined_functions_are_nested() {
        let mut body = SampledBody::default();
        body.lines.insert((1, 0), 10);
        body.lines.insert((2, 3), 7);
        body.calls.insert(((2, 3), "callee".to_owned()), 7);
        body.inlined.entry(((4, 0), "tiny".to_owned())).or_default().lines.insert((0, 0), 5);
        let mut text = String::new();
        body.append(1, &mut text);
        assert_eq!(text, " 1: 10\n 2.3: 7 callee:7\n 4: tiny:5\n  0: 5\n");
        assert_eq!(body.total(), 22);
    }
}
