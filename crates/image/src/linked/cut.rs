//! Cuts functions of a linked kernel into pieces that can be moved.
//!
//! Input: the numbers of functions. Output: their pieces, cut by the same rules as the pieces of an
//! object (`image::object::pieces`). Where an object has relocations, this module uses the linked
//! tables and the displacements in the code.

use super::LinkedKernel;
use super::tables::{self, BUGFLAG_WARNING};
use crate::address::LinkAddr;
use crate::linked::sites::PatchKind;
use crate::object::elf::SectionId;
use crate::object::functions::TextFunction;
use crate::object::instructions::{self, DecodedInstruction, InstructionKind, NOWHERE};
use crate::object::pieces::{self, CutCode, CuttingFacts, PieceExit};
use crate::object::tables::{
    AlternativeSite, CodeReference, ReferenceMeaning, SideTables, StaticKey,
};
use iced_x86::{Decoder, DecoderOptions, OpKind};
use std::collections::HashSet;

impl LinkedKernel<'_> {
    /// The instructions of a function, by offsets in `.text`.
    pub fn instructions(&self, function: &TextFunction) -> Vec<DecodedInstruction> {
        let code = self.code(function.at, function.end);
        instructions::decode(code, function.at, self.code_end(), &[])
    }

    /// The pieces of functions, given by ascending numbers. A function that falls through into the
    /// next one is joined with it. Static keys end pieces. A branch ends no piece if its target
    /// lies in front of the first function or behind the last one, or in another section.
    pub fn cut(&self, chosen: &[usize]) -> CutCode {
        let area = |&index: &usize| {
            let at = self.link_address(self.functions[index].at).0;
            self.areas().position(|area| area.contains(&at))
        };
        let mut cut = CutCode::default();
        for chosen in chosen.chunk_by(|a, b| area(a) == area(b)) {
            let mut part = self.cut_in_area(chosen);
            let before = cut.functions.len() as u32;
            part.pieces.iter_mut().for_each(|piece| piece.function += before);
            cut.functions.append(&mut part.functions);
            cut.pieces.append(&mut part.pieces);
            cut.sites.append(&mut part.sites);
        }
        cut
    }

    /// Likewise for functions in one section.
    fn cut_in_area(&self, chosen: &[usize]) -> CutCode {
        let (Some(&first), Some(&last)) = (chosen.first(), chosen.last()) else {
            return CutCode::default();
        };
        // The cutter keeps a mark for every byte. It gets only the bytes from the first function to
        // the last.
        let base = self.functions[first].at;
        let size = self.functions[last].end - base;
        let mut functions: Vec<TextFunction> =
            chosen.iter().map(|&i| self.functions[i].clone()).collect();
        let mut code: Vec<DecodedInstruction> =
            functions.iter().flat_map(|f| self.instructions(f)).collect();
        let tables = self.side_tables(&functions, base, size);
        let sites = functions.iter().flat_map(|f| {
            let (from, to) = (self.link_address(f.at), self.link_address(f.end));
            tables::within(&self.tables.tracer_sites, |&s| s, from, to)
        });
        let tracer_sites: Vec<u32> =
            sites.map(|&site| (site - self.text.start) as u32 - base).collect();
        for f in &mut functions {
            (f.at, f.end) = (f.at - base, f.end - base);
        }
        for i in &mut code {
            i.at -= base;
            i.target = i.target.checked_sub(base).filter(|&to| to <= size).unwrap_or(NOWHERE);
        }
        let mut cuts: Vec<u32> = Vec::new();
        for key in &tables.static_keys {
            let index = code.partition_point(|i| i.at < key.at);
            cuts.extend(code.get(index).map(|i| i.end()));
        }
        let facts = CuttingFacts {
            tables: &tables,
            tracer_sites: &tracer_sites,
            dead_calls: &HashSet::new(),
            cuts: &cuts,
        };
        let mut cut = pieces::cut(size, &code, functions, &facts);
        move_by(&mut cut, base);
        cut
    }

    /// What the linked tables say about these functions, in the form that the cutter needs: by
    /// offsets from `base`, limited to `size` bytes.
    fn side_tables(&self, functions: &[TextFunction], base: u32, size: u32) -> SideTables {
        let mut found = SideTables::default();
        for f in functions {
            self.add_side_tables(f, base, size, &mut found);
        }
        found.alternatives.sort_unstable();
        found.alternatives.dedup();
        found.static_keys.sort_unstable();
        found
    }

    fn add_side_tables(
        &self,
        function: &TextFunction,
        base: u32,
        size: u32,
        found: &mut SideTables,
    ) {
        let (from, to) = (self.link_address(function.at), self.link_address(function.end));
        let start = self.text.start + u64::from(base);
        let offset = |at: u64| at.wrapping_sub(start) as u32;
        let in_text = |at: u64| at >= start && at < start + u64::from(size);
        let mut refer = |at: u64, meaning: ReferenceMeaning| {
            if in_text(at) {
                found.references.push(CodeReference {
                    section: SectionId(0),
                    relocation: 0,
                    target: offset(at),
                    meaning,
                });
            }
        };
        let tables = &self.tables;
        for site in self.sites.beginning_in(from.0, to.0) {
            match site.kind {
                // A constant lies inside an instruction.
                PatchKind::Constant => continue,
                PatchKind::StaticKey { target } => {
                    refer(target, ReferenceMeaning::Control);
                    found
                        .static_keys
                        .push(StaticKey { at: offset(site.at), target: offset(target) });
                }
                PatchKind::Alternative { replacement, replacement_len, .. } => {
                    for target in self.branch_targets(LinkAddr(replacement), replacement_len) {
                        refer(target, ReferenceMeaning::Control);
                    }
                    found.alternatives.push(AlternativeSite { at: offset(site.at), len: site.len });
                }
                _ => {}
            }
            refer(site.at, ReferenceMeaning::Instruction);
        }
        for e in tables::within(&tables.exceptions, |e| e.site, from, to) {
            refer(e.site, ReferenceMeaning::Instruction);
            refer(e.fixup, ReferenceMeaning::Control);
        }
        for e in tables::within(&tables.bugs, |e| e.site, from, to) {
            refer(e.site, ReferenceMeaning::Instruction);
        }
        for e in tables::within(&tables.bugs, |e| e.site, from, to) {
            if e.flags & BUGFLAG_WARNING != 0 {
                found.warnings.insert(offset(e.site));
            }
        }
    }

    /// The targets of the direct branches in a replacement.
    fn branch_targets(&self, at: LinkAddr, len: u8) -> Vec<u64> {
        let Some(code) = self.bytes(at, usize::from(len)) else {
            return Vec::new();
        };
        let mut decoder = Decoder::with_ip(64, code, at.0, DecoderOptions::NONE);
        let branches =
            decoder.iter().filter(|i| i.op_count() > 0 && i.op0_kind() == OpKind::NearBranch64);
        branches.map(|i| i.near_branch64()).collect()
    }

    /// The targets of a function's branches that lie outside the function, by offsets in `.text`.
    pub fn branches_out(&self, function: &TextFunction) -> Vec<u32> {
        let code = self.instructions(function);
        let branches = code.iter().filter(|i| {
            i.target != NOWHERE
                && matches!(
                    i.kind,
                    InstructionKind::Jump | InstructionKind::Branch | InstructionKind::Call
                )
        });
        let out = branches.filter(|i| !(function.at..function.end).contains(&i.target));
        out.map(|i| i.target).collect()
    }
}

/// Turns offsets in a stretch into offsets in `.text`.
fn move_by(cut: &mut CutCode, base: u32) {
    for f in &mut cut.functions {
        (f.at, f.end) = (f.at + base, f.end + base);
    }
    for p in &mut cut.pieces {
        p.at += base;
        if let PieceExit::Jump(to) | PieceExit::Branch(to) = &mut p.exit {
            *to += base;
        }
    }
    for s in &mut cut.sites {
        s.at += base;
        s.target = s.target.wrapping_add(base);
    }
}
