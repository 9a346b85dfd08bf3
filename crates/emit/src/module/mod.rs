//! A module with copies of functions of the running kernel. The kernel's own loader loads it.
//!
//! Input: a group's functions as they stand in the kernel, and an order of their pieces. Output:
//! the module's bytes, and where everything lies in it. This module reads and writes no file.
//!
//! The emitted module has side tables like any other module, so that the kernel patches the copies
//! as it patches the originals: static keys, static calls, alternatives, returns and retpolines,
//! exception fixups, warnings, unwinding. The copies refer to the kernel by one exported symbol and
//! a distance, since KASLR moves the kernel's image as a whole.

mod contexts;
pub mod counter;
mod elf;
mod holders;
mod inlinable;
mod inline;
mod inlined_table;
mod lift;
mod pairs;
mod promote;
mod side_tables;

pub use contexts::{GUARD, InPlace, IndirectCall, InlinedCall, Inlining};
pub(crate) use inlinable::composed;
pub use inlinable::{CallerFrame, InlinableBody, Obstacle};
pub use inlined_table::{INLINED_MAGIC, INLINED_SECTION};
pub use lift::Original;
pub use pairs::NUMBER;

use anyhow::{Context, Result, ensure};
use elf::{ModuleRelocation, ModuleSection, ModuleSymbol, RelocationBase};
use image::address::LinkAddr;
use image::linked::exports::{ExportedSymbol, ModuleStructure};
use image::place::{self, BlockPlaces, MovableBlock, MovableExit};
use lift::{Fixup, Lifted, LiftedExit, ReferenceTarget};
use object::elf::{R_X86_64_PC32, SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, SectionFlags};
use std::collections::BTreeMap;

/// How to write a group.
pub struct ModulePlan<'a> {
    /// The module's name.
    pub name: &'a str,
    /// The module's number, drawn at random, so that no other module has it.
    pub number: [u8; NUMBER],
    /// A permutation of the pieces.
    pub order: &'a [u32],
    /// Per piece: the old address of the instruction in front of which its counter stands. Pieces
    /// behind the end of this list have no counter.
    pub counters: &'a [Option<LinkAddr>],
    /// Bytes of no-ops in front of each function's entry, for call-depth tracking; 0 for none.
    pub padding: u32,
    /// The pages that the text will lie in. It fills whole pages.
    pub page: TextPage,
}

/// The size of the pages in which a module's text lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub enum TextPage {
    /// 4 KB, as the kernel's loader allocates them.
    #[default]
    Small,
    /// 2 MB, as the kernel's image has them.
    Large,
}

impl TextPage {
    /// The bytes of a page.
    pub const fn bytes(self) -> usize {
        match self {
            TextPage::Small => 4 << 10,
            TextPage::Large => 2 << 20,
        }
    }
}

/// Facts about the kernel that its loader expects in the module.
pub struct LoaderFacts<'a> {
    /// The kernel's version magic, as in `.modinfo`.
    pub magic: &'a str,
    /// The size of `struct module`, and where the name lies in it.
    pub structure: ModuleStructure,
    /// The symbol that all references to the kernel go through.
    pub base: ExportedSymbol,
    /// The symbol `module_layout`, for its checksum; `None` in kernels without
    /// `CONFIG_MODVERSIONS`.
    pub layout: Option<ExportedSymbol>,
}

/// An emitted module. Offsets count bytes from the start of its `.text`.
pub struct EmittedModule {
    /// The module's file.
    pub bytes: Vec<u8>,
    /// Per function of the group: the offset at which its copy is entered.
    pub entries: Vec<u32>,
    /// Calls of five bytes from a copy to the entry of a copy: offset and number of the called
    /// function. Ascending.
    pub calls: Vec<(u32, u32)>,
    /// Each inlined function with each function whose copy runs its code without a call of it.
    /// Ascending.
    pub holders: Vec<(u32, u32)>,
    /// Per piece: the offset of its copy and the size in bytes, appended jumps included.
    pub pieces: Vec<(u32, u32)>,
    /// The numbers of the pieces that have a counter, in the order of their counters.
    pub counted: Vec<u32>,
    /// The size of `.text` in bytes.
    pub text_size: u32,
    /// What the new order changed.
    pub summary: ModuleSummary,
}

/// What a new order changed in the code of a group.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct ModuleSummary {
    /// Pieces of the group.
    pub pieces: usize,
    /// Conditional branches with the opposite condition.
    pub branches_inverted: usize,
    /// Jumps that became unnecessary.
    pub jumps_dropped: usize,
    /// Pieces with an added jump at their end.
    pub jumps_added: usize,
    /// Calls whose callee's code stands in their place.
    pub calls_inlined: usize,
    /// Indirect calls that compare the pointer first, inlined ones included.
    pub calls_promoted: usize,
}

/// The numbers of the first sections.
const TEXT: usize = 0;
const REPLACEMENTS: usize = 1;
const COOKIES: usize = 2;
/// The flags of a section that is data and never written.
const READ_ONLY: SectionFlags = SectionFlags(0);
/// The fill: `int3` between pieces, `nop` in front of entries.
const FILL: u8 = 0xcc;
const NOP: u8 = 0x90;
/// The symbol of the code that only fills the last page.
const FILLING: &str = "kernlane_filling";
/// Bytes between pieces at the old addresses that the placer sees. Those addresses need only be
/// distinct.
const ROOM: u64 = 64;

/// Writes the module.
///
/// # Errors
/// An instruction cannot be copied, a side table refers to code that is not copied, or the order is
/// not a permutation of the pieces. The message holds the address.
pub fn emit(
    original: &Original<'_, '_>,
    plan: &ModulePlan<'_>,
    loading: &LoaderFacts<'_>,
) -> Result<EmittedModule> {
    let calls = original.inlining.calls();
    ensure!(
        calls.is_empty() || plan.counters.iter().all(Option::is_none),
        "counters cannot stand in inlined code"
    );
    let lifted: Vec<Lifted> = (0..original.pieces.len())
        .map(|i| original.lift(i, plan.counters.get(i).copied().flatten()))
        .collect::<Result<_>>()?;
    let leads: Vec<u32> = original.pieces.iter().map(|p| lead(original, p, plan.padding)).collect();
    let movables = movables(&lifted, &leads);
    let places = place::place(&movables, &[], plan.order, LinkAddr(0))?;
    let text = write_text(&lifted, &leads, &places, plan.order)?;
    let writer = ModuleWriter { original, lifted: &lifted, places: &places, loading };
    let mut sections = vec![
        section(".text", SHF_EXECINSTR, 64, text),
        section(".altinstr_replacement", SHF_EXECINSTR, 1, Vec::new()),
        section(".data", SHF_WRITE, 16, Vec::new()),
    ];
    let counted = writer.relocate_text(&mut sections[TEXT]);
    sections[COOKIES].data = counter::section(counted.len());
    writer.side_tables(&mut sections, plan.order)?;
    let filling = fill_last_page(&mut sections, plan.page);
    let holders = writer.holders()?;
    sections.push(writer.pairs(plan.number, &holders));
    let text_size = sections[TEXT].data.len();
    sections.extend(writer.inlined_table(plan.number, text_size));
    sections.extend(writer.loader_sections(plan.name)?);
    let mut symbols = writer.symbols(plan.order);
    symbols.extend(filling);
    let bytes = elf::write(&sections, &symbols, &loading.base.name)?;
    Ok(EmittedModule {
        bytes,
        entries: writer.entries(),
        calls: writer.calls(),
        holders,
        pieces: writer.extents(),
        counted,
        text_size: text_size as u32,
        summary: summary(original, &places),
    })
}

/// Fills the module's code up to a whole page, and returns the symbol of what it added. The loader
/// puts `.text` and `.altinstr_replacement` one behind the other. It would leave zeros in the last
/// page, which are executable as instructions. For kallsyms a function reaches to the next symbol,
/// or to the end of the pages, and a kprobe in it decodes all of that (`can_optimize()` in
/// arch/x86/kernel/kprobes/opt.c). So the filling has a symbol of its own.
fn fill_last_page(sections: &mut [ModuleSection], page: TextPage) -> Option<ModuleSymbol> {
    let begin = sections[REPLACEMENTS].data.len();
    let size = sections[TEXT].data.len() + begin;
    let added = size.next_multiple_of(page.bytes()) - size;
    sections[REPLACEMENTS].data.resize(begin + added, FILL);
    (added > 0).then(|| ModuleSymbol {
        name: FILLING.into(),
        section: REPLACEMENTS,
        offset: begin as u64,
        size: added as u64,
    })
}

fn summary(original: &Original<'_, '_>, places: &BlockPlaces) -> ModuleSummary {
    let (inlining, calls) = (&original.inlining, original.inlining.calls());
    let count = |ending| places.ending.iter().filter(|&&e| e == ending).count();
    ModuleSummary {
        pieces: places.new.len(),
        branches_inverted: count(place::Ending::Inverted),
        jumps_dropped: count(place::Ending::JumpDropped),
        jumps_added: places.appended.iter().filter(|&&a| a > 0).count(),
        calls_inlined: calls.iter().filter(|call| call.inlined().is_some()).count(),
        calls_promoted: (0..calls.len() as u32).filter(|&n| inlining.unlikely(n).is_some()).count(),
    }
}

fn lead(original: &Original<'_, '_>, piece: &image::object::pieces::Piece, padding: u32) -> u32 {
    let called = piece.entry && original.skip[piece.function as usize] > 0;
    if called { padding } else { 0 }
}

/// The lifted pieces as the placer sees them: at distinct old addresses, in their old order.
fn movables(lifted: &[Lifted], leads: &[u32]) -> Vec<MovableBlock> {
    let mut at = 0;
    let starts: Vec<LinkAddr> = lifted
        .iter()
        .zip(leads)
        .map(|(l, &lead)| {
            let start = at + u64::from(lead);
            at = start + l.bytes.len() as u64 + ROOM;
            LinkAddr(start)
        })
        .collect();
    let exit = |exit| match exit {
        LiftedExit::Stop => MovableExit::Stop,
        LiftedExit::Runs => MovableExit::Runs,
        LiftedExit::Jump(to) => MovableExit::Jump(starts[to as usize]),
        LiftedExit::Branch(to) => MovableExit::Branch(starts[to as usize]),
    };
    lifted
        .iter()
        .enumerate()
        .map(|(i, l)| MovableBlock {
            at: starts[i],
            size: l.bytes.len() as u32 + u32::from(l.tail),
            lead: leads[i],
            lead_named: false,
            gap: 0,
            align: 1,
            residue: 0,
            exit: exit(l.exit),
            tail: l.tail,
            pinned: l.pinned,
        })
        .collect()
}

fn write_text(
    lifted: &[Lifted],
    leads: &[u32],
    places: &BlockPlaces,
    order: &[u32],
) -> Result<Vec<u8>> {
    use crate::branch::{write_branch, write_jump};
    use place::Ending;
    let new = |piece: usize| places.new[piece].0 as u32;
    let mut out = Vec::with_capacity(places.end.0 as usize);
    for &i in order {
        let i = i as usize;
        let l = &lifted[i];
        let start = (new(i) - leads[i]) as usize;
        ensure!(out.len() <= start, "two blocks at {start:#x} of the module's .text");
        out.resize(start, FILL);
        out.resize(start + leads[i] as usize, NOP);
        out.extend_from_slice(&l.bytes);
        match l.exit {
            LiftedExit::Jump(to) if places.ending[i] != Ending::JumpDropped => {
                write_jump(&mut out, new(to as usize), places.tail[i])?
            }
            LiftedExit::Branch(to) => {
                let (condition, to) = match places.ending[i] {
                    Ending::Inverted => (l.condition ^ 1, new(i + 1)),
                    _ => (l.condition, new(to as usize)),
                };
                write_branch(&mut out, condition, to, places.tail[i])?;
            }
            _ => {}
        }
        if places.appended[i] > 0 {
            write_jump(&mut out, new(i + 1), places.appended[i])?;
        }
    }
    Ok(out)
}

fn section(name: &'static str, flags: SectionFlags, align: u64, data: Vec<u8>) -> ModuleSection {
    ModuleSection { name, flags: SHF_ALLOC | flags, align, data, relocations: Vec::new() }
}

/// Writes the sections of a placed group.
struct ModuleWriter<'a, 'k, 'd> {
    original: &'a Original<'k, 'd>,
    lifted: &'a [Lifted],
    places: &'a BlockPlaces,
    loading: &'a LoaderFacts<'a>,
}

impl ModuleWriter<'_, '_, '_> {
    fn place_of(&self, piece: usize) -> u32 {
        self.places.new[piece].0 as u32
    }

    /// The offset in `.text` of the copy, in a piece, of the instruction at `old`.
    fn new_address(&self, piece: usize, old: LinkAddr) -> Result<u32> {
        let at = self.lifted[piece].instructions.iter().find(|&&(at, _)| at == old);
        let &(_, at) = at.with_context(|| format!("no instruction begins at {old}"))?;
        Ok(self.place_of(piece) + at)
    }

    /// The relocation of a 32-bit field that is relative to the instruction's end. `behind` is the
    /// number of bytes from the field to that end.
    fn relocation(&self, offset: u32, behind: u32, target: ReferenceTarget) -> ModuleRelocation {
        let import = self.loading.base.addr.0;
        let (base, addend) = match target {
            ReferenceTarget::Piece(piece) => {
                (RelocationBase::Section(TEXT), i64::from(self.place_of(piece as usize)))
            }
            ReferenceTarget::Kernel(at) => {
                (RelocationBase::Import, at.0.wrapping_sub(import) as i64)
            }
            ReferenceTarget::Absolute(at) => (
                RelocationBase::Import,
                at.wrapping_sub(import.wrapping_add(self.original.slide)) as i64,
            ),
        };
        ModuleRelocation {
            offset: u64::from(offset),
            kind: R_X86_64_PC32,
            base,
            addend: addend.wrapping_sub(i64::from(behind)),
        }
    }

    /// Fills in the fields that name a place in `.text`, and adds relocations for the others.
    /// Returns the pieces that have a counter.
    fn relocate_text(&self, text: &mut ModuleSection) -> Vec<u32> {
        let mut counted = Vec::new();
        for (i, l) in self.lifted.iter().enumerate() {
            let start = self.place_of(i);
            for &Fixup { at, behind, target } in &l.fixups {
                let at = start + at;
                match target {
                    ReferenceTarget::Piece(to) => {
                        let displacement = self.place_of(to as usize).wrapping_sub(at + behind);
                        text.data[at as usize..at as usize + 4]
                            .copy_from_slice(&displacement.to_le_bytes());
                    }
                    _ => text.relocations.push(self.relocation(at, behind, target)),
                }
            }
            if let Some(code) = l.counter {
                let (code, number) = (start + code, counted.len());
                text.relocations.push(ModuleRelocation {
                    offset: u64::from(code + counter::COOKIE_FIELD),
                    kind: R_X86_64_PC32,
                    base: RelocationBase::Section(COOKIES),
                    addend: counter::cookie_addend(number),
                });
                let field = (code + counter::DISPLACEMENT_FIELD) as usize;
                text.data[field..field + 4].copy_from_slice(&counter::displacement(number));
                counted.push(i as u32);
            }
        }
        counted
    }

    fn entries(&self) -> Vec<u32> {
        let mut entries = vec![0; self.original.functions.len()];
        for (i, piece) in self.original.pieces.iter().enumerate().filter(|(_, p)| p.entry) {
            entries[piece.function as usize] = self.place_of(i);
        }
        entries
    }

    fn calls(&self) -> Vec<(u32, u32)> {
        let mut calls = Vec::new();
        for (i, l) in self.lifted.iter().enumerate() {
            for fixup in &l.fixups {
                if let Some(function) = self.called(l, fixup) {
                    calls.push((self.place_of(i) + fixup.at - 1, function));
                }
            }
        }
        calls.sort_unstable();
        calls
    }

    /// The function whose copy a field of a piece calls, with a call that can be aimed elsewhere.
    fn called(&self, lifted: &Lifted, fixup: &Fixup) -> Option<u32> {
        let ReferenceTarget::Piece(to) = fixup.target else { return None };
        let callee = &self.original.pieces[to as usize];
        let opcode = fixup.at.checked_sub(1).map(|at| lifted.bytes[at as usize]);
        let is_entry = callee.entry && self.original.skip[callee.function as usize] > 0;
        (is_entry && opcode == Some(0xe8)).then_some(callee.function)
    }

    fn extents(&self) -> Vec<(u32, u32)> {
        let size = |i: usize| {
            self.lifted[i].bytes.len() as u32
                + u32::from(self.places.tail[i])
                + u32::from(self.places.appended[i])
        };
        (0..self.lifted.len()).map(|i| (self.place_of(i), size(i))).collect()
    }

    /// A symbol for every contiguous part of a function: `f.kernlane` for the part with the entry,
    /// `f.kernlane.N` for the others. Inlined code belongs to the function that it was inlined
    /// into, as a compiler's does.
    fn symbols(&self, order: &[u32]) -> Vec<ModuleSymbol> {
        let extents = self.extents();
        let mut stretches: Vec<(u32, u64, u64, bool)> = Vec::new();
        for &i in order {
            let piece = &self.original.pieces[i as usize];
            let function = self.original.copy_of(i as usize);
            let (at, size) = extents[i as usize];
            let end = u64::from(at + size);
            match stretches.last_mut() {
                Some(last) if last.0 == function => {
                    last.2 = end;
                    last.3 |= piece.entry;
                }
                _ => stretches.push((function, u64::from(at), end, piece.entry)),
            }
        }
        let mut parts: BTreeMap<u32, u32> = BTreeMap::new();
        let mut symbols = Vec::new();
        for (function, at, end, entry) in stretches.into_iter().filter(|s| s.1 < s.2) {
            let name =
                self.original.kernel.function_name(&self.original.functions[function as usize]);
            let part = parts.entry(function).or_default();
            *part += u32::from(!entry);
            symbols.push(ModuleSymbol {
                name: if entry {
                    format!("{name}.kernlane")
                } else {
                    format!("{name}.kernlane.{part}")
                },
                section: TEXT,
                offset: at,
                size: end - at,
            });
        }
        symbols
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_ends_with_a_page() {
        let large = TextPage::Large.bytes();
        for (text, replacements, page) in [
            (1, 0, TextPage::Small),
            (4095, 0, TextPage::Small),
            (4096, 0, TextPage::Small),
            (4000, 96, TextPage::Small),
            (4000, 97, TextPage::Small),
            (4000, 97, TextPage::Large),
            (large - 1, 2, TextPage::Large),
        ] {
            let code = |size| section("x", SHF_EXECINSTR, 1, vec![NOP; size]);
            let mut sections = [code(text), code(replacements)];
            let symbol = fill_last_page(&mut sections, page);
            let size = text + sections[REPLACEMENTS].data.len();
            assert_eq!(size, (text + replacements).next_multiple_of(page.bytes()));
            let (kept, filled) = sections[REPLACEMENTS].data.split_at(replacements);
            assert!(kept.iter().all(|&byte| byte == NOP));
            assert!(filled.iter().all(|&byte| byte == FILL));
            // No function reaches into the filling.
            let named = symbol.map(|symbol| (symbol.section, symbol.offset, symbol.size));
            let filling = (REPLACEMENTS, replacements as u64, filled.len() as u64);
            assert_eq!(named, (!filled.is_empty()).then_some(filling));
        }
    }
}
