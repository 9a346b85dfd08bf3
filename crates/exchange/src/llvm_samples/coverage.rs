//! What of the executed code a sample profile holds.
//!
//! Input: instructions with their source lines and counts. Output: counts and shares.

use super::Instruction;
use super::source::{Discriminators, Located, LocatedCode};
use image::BlockIndex;
use profile::Profile;
use serde::Serialize;
use std::collections::BTreeSet;

/// Executed instructions of the kernel by what the DWARF says about them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SampleCoverage {
    /// They have a line, and so has each function that was inlined around them.
    pub with_line: u64,
    /// The compiler gave them no line, but gave one to another instruction of their block.
    pub block_with_line: u64,
    /// The compiler gave no instruction of their block a line, so it has to guess the count.
    pub without_line: u64,
    /// They are in no function of the DWARF: assembly.
    pub assembly: u64,
    /// They are in no function of the symbol table.
    pub outside: u64,
    /// Calls, with jumps to other functions.
    pub calls: u64,
    /// Calls of a thunk for a function whose address is in a register: the profile does not say
    /// of which.
    pub through_thunks: u64,
    /// Discriminators tell the blocks of a line apart (`-fdebug-info-for-profiling`).
    pub discriminators: bool,
    /// The compiler that reads the profile reads discriminators: clang does, gcc does not.
    #[serde(skip)]
    pub reader_wants_discriminators: bool,
    /// The discriminators also tell the copies of a block apart
    /// (`-mllvm -enable-fs-discriminator`).
    pub flow_sensitive: bool,
    /// The counts were divided by this, because LLVM's weights have 32 bits.
    pub divided: u64,
}

impl SampleCoverage {
    pub(super) fn of(profile: &Profile, located: &LocatedCode) -> Self {
        SampleCoverage {
            with_line: 0,
            block_with_line: 0,
            without_line: 0,
            assembly: 0,
            outside: profile.outside.values().fold(0, |sum, &count| sum.saturating_add(count)),
            calls: 0,
            through_thunks: 0,
            discriminators: located.tells_blocks_apart(),
            reader_wants_discriminators: true,
            flow_sensitive: located.discriminators == Discriminators::FlowSensitive,
            divided: 1,
        }
    }

    pub(super) fn add_instructions(&mut self, instructions: &[Instruction], located: &[Located]) {
        let with_line = instructions.iter().zip(located);
        let with_line = with_line.filter(|(_, from)| matches!(from, Located::Line(_)));
        let blocks: BTreeSet<BlockIndex> = with_line.map(|(one, _)| one.block).collect();
        for (one, from) in instructions.iter().zip(located) {
            let sum = match from {
                Located::Line(_) => &mut self.with_line,
                Located::NoLine(_) if blocks.contains(&one.block) => &mut self.block_with_line,
                Located::NoLine(_) => &mut self.without_line,
                Located::NoFunction => &mut self.assembly,
            };
            *sum = sum.saturating_add(one.count);
        }
    }

    /// What a reader of the profile must know, as sentences.
    pub fn notes(&self) -> Vec<String> {
        let percent = |share: f64| 100.0 * share;
        let mut notes = vec![format!(
            "{:.1} % of the executed instructions of compiled functions have a source line, and \
             {:.1} % are in a block that has one; {:.1} % of all are assembly",
            percent(self.share_of_lines()),
            percent(self.share()),
            percent(self.share_of_assembly())
        )];
        if !self.discriminators && self.reader_wants_discriminators {
            notes.push(
                "the DWARF does not tell the blocks of a line apart: build the recorded kernel by \
                 clang, with KCFLAGS=-fdebug-info-for-profiling"
                    .to_owned(),
            );
        }
        if self.through_thunks > 0 {
            notes.push(format!(
                "{:.1} % of the calls go through thunks, so their callees are not known: a \
                 recording's profile knows them",
                percent(self.through_thunks as f64 / self.calls.max(1) as f64)
            ));
        }
        if self.flow_sensitive && self.reader_wants_discriminators {
            notes.push(
                "the discriminators are flow-sensitive: give clang -mllvm -profile-isfs, or \
                 convert the profile with llvm-profdata-22 merge --sample --extbinary \
                 --profile-isfs"
                    .to_owned(),
            );
        }
        if self.divided > 1 {
            notes.push(format!(
                "the counts are divided by {}, because LLVM's weights have 32 bits",
                self.divided
            ));
        }
        notes
    }

    /// The share of the executed instructions of compiled functions whose block has a line: 0 to 1.
    pub fn share(&self) -> f64 {
        let known = self.with_line.saturating_add(self.block_with_line);
        known as f64 / known.saturating_add(self.without_line).max(1) as f64
    }

    /// The share of the executed instructions of compiled functions with a line of their own: 0
    /// to 1.
    pub fn share_of_lines(&self) -> f64 {
        let without = self.block_with_line.saturating_add(self.without_line);
        self.with_line as f64 / self.with_line.saturating_add(without).max(1) as f64
    }

    /// The share of all executed instructions that are in no function of the DWARF: 0 to 1.
    pub fn share_of_assembly(&self) -> f64 {
        let all = [self.with_line, self.block_with_line, self.without_line, self.outside];
        let all = all.into_iter().fold(self.assembly, u64::saturating_add);
        self.assembly as f64 / all.max(1) as f64
    }
}
