//! BOLT's pre-aggregated profile (`bolt/include/bolt/Profile/DataAggregator.h`,
//! `parsePreAggregated`): lines
//!
//! ```text
//! B FROM TO COUNT MISPREDICTED      a taken branch or call, by the address of the instruction
//! F FROM TO COUNT                   straight execution from one instruction to another
//! ```
//!
//! Input: a profile with its image. Output: text. Counts go out as they are.

use super::{ExportSubject, Format, ImageCode, Make};
use anyhow::Result;
use layout::graph::EdgeKind;
use std::fmt::Write;

/// The format.
pub(crate) const BOLT: Format = Format {
    name: "bolt",
    about: "BOLT's pre-aggregated branch profile (llvm-bolt -p FILE -pa)",
    make: Make::Counts(pre_aggregated),
};

/// The profile as text. Returns are left out: BOLT counts what is behind a call by the call.
///
/// # Errors
/// The profile belongs to another image.
pub(crate) fn pre_aggregated(subject: &ExportSubject) -> Result<String> {
    let code = ImageCode::read(subject.path)?;
    let image = subject.image;
    let mut text = String::new();
    for (&(from, to), &(kind, count)) in
        subject.profile.edges.iter().filter(|(_, (_, count))| *count > 0)
    {
        let (source, target) = (subject.block(from)?, subject.block(to)?);
        let leaves = code.last_instruction(image.block(source))?;
        match kind {
            EdgeKind::FallThrough => {
                let end = code.last_instruction(image.block(target))?;
                writeln!(text, "F {from} {end} {count}")?;
            }
            EdgeKind::Branch | EdgeKind::Jump | EdgeKind::Indirect => {
                writeln!(text, "B {leaves} {to} {count} 0")?
            }
        }
    }
    for (&(from, to), &count) in subject.profile.calls.iter().filter(|&(_, &count)| count > 0) {
        let leaves = code.last_instruction(image.block(subject.block(from)?))?;
        subject.block(to)?;
        writeln!(text, "B {leaves} {to} {count} 0")?;
    }
    Ok(text)
}
