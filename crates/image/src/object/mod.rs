//! A kernel's `vmlinux.o` with everything that moving its code requires.
//!
//! Input: the bytes of the object as objtool left it, and which of its sections lie beside `.text`
//! in the linked kernel. Output: its sections, symbols and relocations, with these sections as one
//! `.text`, which is cut into pieces. Reading fails with the section's name if something
//! refers to the inside of code in a way that Kernlane does not understand. This module never
//! changes anything.

pub mod elf;
pub mod flow;
pub mod functions;
mod gap_fill;
pub mod gathered;
pub mod instructions;
pub mod linked;
mod marks;
pub mod orc;
pub mod pieces;
pub mod tables;
mod whole;

use crate::place::CallPadding;
use anyhow::{Context, Result, bail, ensure};
use elf::{Elf, ElfRelocation, SectionId};
use functions::{TextFunction, WholeReason};
use gathered::GatheredText;
use instructions::{DecodedInstruction, InstructionKind, NOWHERE};
use pieces::{CodeSite, CutCode, CuttingFacts, Piece};
use rayon::prelude::*;
use std::collections::HashSet;
use tables::{AlternativeSite, CodeReference, ReferenceMeaning, SideTables};

/// The object, and its `.text` in pieces.
pub struct KernelObject<'a> {
    /// Sections, symbols and relocations.
    pub elf: Elf<'a>,
    /// The section `.text`.
    pub text: SectionId,
    /// The relocations of every section, by the section's number. Those of code are ascending by
    /// offset.
    pub relocations: Vec<Vec<ElfRelocation>>,
    /// What refers to `.text`.
    pub references: Vec<CodeReference>,
    /// Code that the kernel replaces as a whole, ascending.
    pub alternatives: Vec<AlternativeSite>,
    /// The functions of `.text`, ascending and disjoint.
    pub functions: Vec<TextFunction>,
    /// Ascending and disjoint. With their leads and gaps the pieces cover `.text`.
    pub pieces: Vec<Piece>,
    /// Places whose bytes depend on their target, ascending.
    pub sites: Vec<CodeSite>,
    /// What becomes of the call padding of functions that move.
    pub call_padding: CallPadding,
    /// The sections that `text` stands for, if it stands for several.
    pub gathered: Option<&'a GatheredText>,
}

/// Facts that the object itself does not contain.
#[derive(Default)]
pub struct ObjectHints {
    /// Names of functions that do not return.
    pub noreturn: HashSet<String>,
    /// Offsets in `.text`, ascending, at which a layout wants to cut.
    pub cuts: Vec<u32>,
    /// What becomes of the call padding of functions that move.
    pub call_padding: CallPadding,
}

impl<'a> KernelObject<'a> {
    /// Reads an object and cuts its section `.text` into pieces. Its other sections of code stay.
    ///
    /// # Errors
    /// The bytes are not a relocatable kernel object, or contain something that Kernlane does not
    /// understand.
    pub fn read(data: &'a [u8], hints: &ObjectHints) -> Result<KernelObject<'a>> {
        Self::read_gathered(data, None, hints)
    }

    /// The same as `read`, with several sections as one `.text`.
    ///
    /// # Errors
    /// The same errors as `read`, or the sections are those of another object.
    pub fn read_gathered(
        data: &'a [u8],
        gathered: Option<&'a GatheredText>,
        hints: &ObjectHints,
    ) -> Result<KernelObject<'a>> {
        let mut elf = Elf::parse(data)?;
        gathered.map_or(Ok(()), |gathered| gathered.join(&mut elf))?;
        let text = elf.by_name(".text").context("no .text section")?;
        ensure!(
            elf.section(text).is_code() && elf.section(text).size < u64::from(u32::MAX),
            ".text is not code, or larger than 4 GB"
        );
        let relocations = read_relocations(&elf)?;
        let mut functions = functions::from_symbols(&elf, text, hints.call_padding);
        ensure!(
            !functions.is_empty(),
            ".text has no functions: the object was stripped of its symbols"
        );
        let code = decode_text(&elf, text, &mut functions, &relocations[text.0 as usize]);
        refuse_unaimed(&elf, text, &code)?;
        let starts: Vec<u32> = functions.iter().map(|f| f.at).collect();
        let mut tables = tables::read(&elf, text, &relocations, &code, &starts)?;
        name_referenced_gaps(&elf, text, &mut functions, &tables);
        trim_nameless(&code, &mut functions, &tables);
        let dead_calls = dead_calls(
            &elf,
            text,
            &code,
            &functions,
            &relocations[text.0 as usize],
            &hints.noreturn,
        );
        let tracer_sites = sites_of(&elf, &tables, "__mcount_loc");
        let facts = CuttingFacts {
            tables: &tables,
            tracer_sites: &tracer_sites,
            dead_calls: &dead_calls,
            cuts: &hints.cuts,
        };
        let CutCode { functions, pieces, sites } =
            pieces::cut(elf.section(text).size as u32, &code, functions, &facts);
        let references = std::mem::take(&mut tables.references);
        let alternatives = std::mem::take(&mut tables.alternatives);
        Ok(KernelObject {
            elf,
            text,
            relocations,
            references,
            alternatives,
            functions,
            pieces,
            sites,
            call_padding: hints.call_padding,
            gathered,
        })
    }

    /// Bytes at the beginning of `text` that are not code of the object.
    pub fn head(&self) -> u32 {
        self.gathered.map_or(0, |gathered| gathered.head)
    }

    /// The piece whose padding or code contains `at`, or whose code ends at `at`.
    pub fn piece_at(&self, at: u32) -> Option<usize> {
        let index =
            self.pieces.partition_point(|p| p.at - p.lead - p.spare <= at).checked_sub(1)?;
        (at <= self.pieces[index].end()).then_some(index)
    }

    /// The sites of a piece.
    pub fn sites_in(&self, piece: &Piece) -> &[CodeSite] {
        let from = self.sites.partition_point(|s| s.at < piece.at);
        let to = self.sites.partition_point(|s| s.at < piece.end());
        &self.sites[from..to]
    }

    /// A function's name, or "(nameless)".
    pub fn function_name(&self, function: &TextFunction) -> &'a str {
        function.symbol.map_or("(nameless)", |id| self.elf.name(self.elf.symbol(id)))
    }

    /// The number and the bytes of the functions that stay whole, by reason.
    pub fn whole_by_reason(&self) -> Vec<(WholeReason, usize, u64)> {
        let mut found: Vec<(WholeReason, usize, u64)> = Vec::new();
        for f in &self.functions {
            let Some(reason) = f.whole else { continue };
            let bytes = u64::from(f.end - f.at);
            match found.iter_mut().find(|(r, _, _)| *r == reason) {
                Some(entry) => {
                    entry.1 += 1;
                    entry.2 += bytes;
                }
                None => found.push((reason, 1, bytes)),
            }
        }
        found.sort_unstable();
        found
    }
}

fn read_relocations(elf: &Elf<'_>) -> Result<Vec<Vec<ElfRelocation>>> {
    let ids: Vec<SectionId> = elf.ids().collect();
    ids.into_par_iter()
        .map(|id| {
            if elf.section(id).is_debug() {
                return Ok(Vec::new());
            }
            let mut list = elf.relocations(id)?;
            if elf.section(id).is_code() {
                list.sort_by_key(|r| r.offset);
            }
            Ok(list)
        })
        .collect()
}

/// Decodes all of `.text`. If a gap between functions holds more than padding, the gap becomes a
/// function without a name that stays whole.
fn decode_text(
    elf: &Elf<'_>,
    text: SectionId,
    functions: &mut Vec<TextFunction>,
    relocations: &[ElfRelocation],
) -> Vec<DecodedInstruction> {
    let bytes = elf.bytes(text);
    let size = bytes.len() as u32;
    let mut stretches: Vec<(u32, u32, bool)> = Vec::with_capacity(functions.len() * 2);
    let mut at = 0;
    for f in functions.iter() {
        stretches.push((at, f.at - f.lead - f.spare, false));
        stretches.push((f.at - f.lead - f.spare, f.at, true));
        stretches.push((f.at, f.end, true));
        at = f.end;
    }
    stretches.push((at, size, false));
    stretches.retain(|(from, to, _)| from < to);
    let decoded: Vec<Vec<DecodedInstruction>> = stretches
        .par_iter()
        .map(|&(from, to, _)| {
            instructions::decode(&bytes[from as usize..to as usize], from, size, relocations)
        })
        .collect();
    for (&(from, to, named), code) in stretches.iter().zip(&decoded) {
        if !named && !code.iter().all(|i| i.is_padding() && !i.linked) {
            functions.push(TextFunction::nameless(from, to));
        }
    }
    functions.sort_by_key(|f| f.at);
    decoded.into_iter().flatten().collect()
}

/// Refuses a branch or operand that the assembler resolved to a place outside `.text`: it would
/// become wrong.
fn refuse_unaimed(elf: &Elf<'_>, text: SectionId, code: &[DecodedInstruction]) -> Result<()> {
    let is_aimed = |i: &DecodedInstruction| i.field == 0 || i.linked || i.target != NOWHERE;
    match code.iter().find(|i| !is_aimed(i)) {
        None => Ok(()),
        Some(i) => bail!(
            "{}+{:#x}: refers to a place outside its section without a relocation",
            elf.section(text).name,
            i.at
        ),
    }
}

/// Keeps padding like code if a side table refers to it.
fn name_referenced_gaps(
    elf: &Elf<'_>,
    text: SectionId,
    functions: &mut Vec<TextFunction>,
    tables: &SideTables,
) {
    let size = elf.section(text).size as u32;
    let mut found: Vec<TextFunction> = Vec::new();
    for r in &tables.references {
        let next = functions.partition_point(|f| f.at - f.lead - f.spare <= r.target);
        let from = next.checked_sub(1).map_or(0, |i| functions[i].end);
        let to = functions.get(next).map_or(size, |f| f.at - f.lead - f.spare);
        let behind_code = r.target == from
            && matches!(
                r.meaning,
                ReferenceMeaning::End | ReferenceMeaning::Control | ReferenceMeaning::Regenerated
            );
        if r.meaning != ReferenceMeaning::Regenerated
            && r.target >= from
            && r.target < to
            && !behind_code
        {
            found.push(TextFunction::nameless(from, to));
        }
    }
    functions.extend(found);
    functions.sort_by_key(|f| (f.at, f.symbol.is_none()));
    functions.dedup_by_key(|f| f.at);
}

/// Removes the padding at the end of nameless stretches that nothing refers to.
fn trim_nameless(code: &[DecodedInstruction], functions: &mut [TextFunction], tables: &SideTables) {
    let mut referenced: Vec<u32> = tables
        .references
        .iter()
        .filter(|r| r.meaning != ReferenceMeaning::Regenerated)
        .map(|r| r.target)
        .collect();
    referenced.sort_unstable();
    for f in functions.iter_mut().filter(|f| f.symbol.is_none()) {
        let from = code.partition_point(|i| i.at < f.at);
        let to = code.partition_point(|i| i.at < f.end);
        let used = |i: &DecodedInstruction| {
            let next = referenced.partition_point(|&r| r < i.at);
            !i.is_padding() || referenced.get(next).is_some_and(|&r| r < i.end())
        };
        if let Some(last) = code[from..to].iter().rev().find(|i| used(i)) {
            f.end = last.end();
        }
    }
}

fn sites_of(elf: &Elf<'_>, tables: &SideTables, name: &str) -> Vec<u32> {
    let Some(id) = elf.by_name(name) else { return Vec::new() };
    tables.references.iter().filter(|r| r.section == id).map(|r| r.target).collect()
}

/// Offsets of the calls to functions with the given names. That the code of another function never
/// returns does not count, because a livepatch may replace that function by one that returns.
fn dead_calls(
    elf: &Elf<'_>,
    text: SectionId,
    code: &[DecodedInstruction],
    functions: &[TextFunction],
    relocations: &[ElfRelocation],
    names: &HashSet<String>,
) -> HashSet<u32> {
    let named =
        |f: &&TextFunction| f.symbol.is_some_and(|id| names.contains(elf.name(elf.symbol(id))));
    let by_address: HashSet<u32> = functions.iter().filter(named).map(|f| f.at).collect();
    let mut next = 0;
    let mut found = HashSet::new();
    for i in code.iter().filter(|i| i.kind == InstructionKind::Call) {
        if !i.linked {
            if by_address.contains(&i.target) {
                found.insert(i.at);
            }
            continue;
        }
        while next < relocations.len() && relocations[next].offset < u64::from(i.at) {
            next += 1;
        }
        let Some(r) = relocations.get(next).filter(|r| r.offset < u64::from(i.end())) else {
            continue;
        };
        let symbol = elf.symbol(r.symbol);
        let in_text = symbol.section() == Some(text) && {
            let target = (symbol.value as i64).wrapping_add(r.addend).wrapping_add(4);
            u32::try_from(target).is_ok_and(|t| by_address.contains(&t))
        };
        if in_text || (r.addend == -4 && names.contains(elf.name(symbol))) {
            found.insert(i.at);
        }
    }
    found
}
