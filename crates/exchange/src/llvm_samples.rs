//! LLVM's sample profile as text (`llvm/include/llvm/ProfileData/SampleProfReader.h`): counts by
//! source line, with nested inlined functions.
//!
//! ```text
//! function:TOTAL:HEAD
//!  OFFSET[.DISCRIMINATOR]: COUNT
//!  OFFSET[.DISCRIMINATOR]: COUNT callee:COUNT
//!  OFFSET[.DISCRIMINATOR]: inlined:TOTAL
//!   OFFSET: COUNT
//! ```
//!
//! Offsets are lines from the start of the function. The numbers mean what they mean in the
//! profiles of `llvm-profgen` (`ProfileGenerator.cpp`), but no count is a sample.
//!
//! Input: a profile with its image. Output: text. Without DWARF there is an error.

pub(crate) mod body;
mod coverage;
mod functions;
pub(super) mod source;
#[cfg(test)]
mod tests;

pub use coverage::SampleCoverage;

use super::{ExportSubject, Format, ImageCode, Make};
use anyhow::Result;
use body::{Execution, SampledBody};
use functions::{NamedFunctions, Wholes, whole};
use image::address::LinkAddr;
use image::{BlockIndex, Image};
use layout::graph::EdgeKind;
use profile::Profile;
use source::{Discriminators, Located, LocatedCode};
use std::collections::{BTreeMap, BTreeSet};

/// The highest count that is written. LLVM's branch weights have 32 bits, and a profile may be
/// added to others, with a weight.
const HIGHEST: u64 = 1 << 30;

/// What the thunks are called that jump to an address in a register
/// (`arch/x86/lib/retpoline.S`).
const THUNK: &str = "__x86_indirect_thunk_";

/// The format.
pub(crate) const LLVM_SAMPLES: Format = Format {
    name: "llvm-samples",
    about: "LLVM's sample profile as text (clang -fprofile-sample-use=FILE); needs DWARF",
    make: Make::Samples(samples),
};

/// A sample profile.
#[derive(Debug)]
pub struct Samples {
    /// The file: text for clang, binary for gcc.
    pub contents: Vec<u8>,
    /// How many functions have a profile.
    pub functions: u64,
    /// What of the executed code it holds.
    pub coverage: SampleCoverage,
}

/// The counts by source line, of whichever compiler they are for.
pub(crate) struct SampledFunctions {
    /// The functions that ran, by name.
    pub bodies: BTreeMap<String, SampledBody>,
    /// How often functions were entered, by name.
    pub heads: BTreeMap<String, u64>,
    pub coverage: SampleCoverage,
}

/// One instruction of a function that ran.
struct Instruction {
    addr: LinkAddr,
    bytes: u64,
    block: BlockIndex,
    count: u64,
}

/// The profile as text.
///
/// # Errors
/// The image has no DWARF, or `llvm-symbolizer` cannot be run.
pub(crate) fn samples(subject: &ExportSubject) -> Result<Samples> {
    Ok(written(sampled_functions(subject)?))
}

/// The counts by source line.
///
/// # Errors
/// Those of [`samples`].
pub(crate) fn sampled_functions(subject: &ExportSubject) -> Result<SampledFunctions> {
    let instructions = instructions(subject)?;
    let addresses: Vec<LinkAddr> = instructions.iter().map(|one| one.addr).collect();
    let located = LocatedCode::ask(subject.path, &addresses)?;
    gathered(subject.image, subject.profile, &instructions, located)
}

/// The instructions of every function that ran, with those that did not run themselves. Where a
/// function in a profile has a line without a count, the compiler has to guess.
fn instructions(subject: &ExportSubject) -> Result<Vec<Instruction>> {
    let code = ImageCode::read(subject.path)?;
    let counts: BTreeMap<BlockIndex, u64> = subject.blocks()?.into_iter().collect();
    let wholes = Wholes::of(subject.image);
    let ran: BTreeSet<LinkAddr> = counts.keys().map(|&one| wholes.entry_of_block(one)).collect();
    let mut instructions = Vec::new();
    for part in subject.image.functions.iter().filter(|part| ran.contains(&wholes.entry(part))) {
        for block in part.blocks.clone().map(BlockIndex) {
            let count = counts.get(&block).copied().unwrap_or(0);
            let addresses = code.instructions(subject.image.block(block))?;
            let ends = addresses.iter().skip(1).copied();
            let ends = ends.chain([subject.image.block(block).end_addr()]);
            instructions.extend(addresses.iter().zip(ends).map(|(&addr, end)| Instruction {
                addr,
                bytes: end.0 - addr.0,
                block,
                count,
            }));
        }
    }
    Ok(instructions)
}

/// The profile of instructions, in the order of their addresses, whose source lines are known.
fn gathered(
    image: &Image,
    profile: &Profile,
    instructions: &[Instruction],
    located: LocatedCode,
) -> Result<SampledFunctions> {
    let wholes = Wholes::of(image);
    let functions = NamedFunctions::of(image, profile, instructions, &located.instructions);
    let mut coverage = SampleCoverage::of(profile, &located);
    coverage.add_instructions(instructions, &located.instructions);
    let callees = callees(image, profile, &functions, &mut coverage);
    // By name and entry, because several functions may have the same name.
    let mut bodies: BTreeMap<(String, LinkAddr), SampledBody> = BTreeMap::new();
    for (number, (one, from)) in instructions.iter().zip(located.instructions).enumerate() {
        let Some(name) = from.function().map(str::to_owned) else { continue };
        let body = bodies.entry((name, wholes.entry_of_block(one.block))).or_default();
        let ends = instructions.get(number + 1).is_none_or(|next| next.block != one.block);
        let called = callees.get(&one.block).filter(|_| ends);
        add(body, one, from, called.map_or(&[], Vec::as_slice), located.discriminators);
    }
    let mut named: BTreeMap<String, SampledBody> = BTreeMap::new();
    for ((name, _), body) in bodies {
        named.entry(name).or_default().merge(body);
    }
    named.retain(|_, body| body.ran());
    let heads = named.keys().map(|name| (name.clone(), functions.head(name))).collect();
    Ok(SampledFunctions { bodies: named, heads, coverage })
}

/// Adds an instruction, and what it called, to the function that it is in.
fn add(
    function: &mut SampledBody,
    one: &Instruction,
    from: Located,
    callees: &[(&str, u64)],
    discriminators: Discriminators,
) {
    let mut frames = from.into_frames().into_iter().rev().peekable();
    let mut body = function;
    while let Some(frame) = frames.next() {
        let place = frame.place(discriminators);
        match frames.peek() {
            Some(inlined) => body = body.inlined(place, &inlined.function),
            None => {
                let duplication = frame.duplication(discriminators);
                body.add(place, Execution { count: one.count, duplication, bytes: one.bytes });
                for &(callee, count) in callees {
                    body.add_call(place, callee, count);
                }
            }
        }
    }
}

/// What the last instruction of each block called, by the names in the source. A jump to the entry
/// of another function is a call (tail call).
fn callees<'a>(
    image: &'a Image,
    profile: &Profile,
    functions: &'a NamedFunctions,
    coverage: &mut SampleCoverage,
) -> BTreeMap<BlockIndex, Vec<(&'a str, u64)>> {
    let calls = profile.calls.iter().map(|(&ends, &count)| (ends, count, true));
    let edges = profile.edges.iter().filter(|(_, (kind, _))| *kind != EdgeKind::FallThrough);
    let jumps = edges.map(|(&ends, &(_, count))| (ends, count, false));
    let mut callees: BTreeMap<BlockIndex, Vec<(&str, u64)>> = BTreeMap::new();
    for ((from, to), count, is_call) in calls.chain(jumps) {
        let Some((from, callee)) = image.block_at(from).zip(image.block_at(to)) else { continue };
        let callee = image.function_of(callee);
        let leaves = callee.addr == to && image.function_of(from).addr != to;
        if whole(&callee.name).is_some() || !(is_call || leaves) {
            continue;
        }
        coverage.calls = coverage.calls.saturating_add(count);
        if callee.name.starts_with(THUNK) {
            coverage.through_thunks = coverage.through_thunks.saturating_add(count);
        } else {
            callees.entry(from).or_default().push((functions.name(callee), count));
        }
    }
    callees
}

fn written(functions: SampledFunctions) -> Samples {
    let SampledFunctions { bodies, heads, mut coverage } = functions;
    let highest = bodies.values().map(SampledBody::highest).max().unwrap_or(0);
    while highest / coverage.divided > HIGHEST {
        coverage.divided *= 2;
    }
    // What ran once must not become what did not run.
    let scaled = |count: u64| (count / coverage.divided).max(count.min(1));
    let mut text = String::new();
    for (name, body) in &bodies {
        let (total, head) = (scaled(body.total()), scaled(heads[name]));
        text.push_str(&format!("{name}:{total}:{head}\n"));
        body.append(1, &scaled, &mut text);
    }
    Samples { contents: text.into_bytes(), functions: bodies.len() as u64, coverage }
}
