//! Kernel modules: objects of a kernel beside vmlinux.
//!
//! Input: the bytes of a module's file (`.ko`). Output: its functions and blocks. A module has link
//! addresses of its own, which only its name and the order of its sections decide. So a profile, a
//! layout or a map names the code of a module by addresses, wherever the kernel loads the module:
//!
//! ```text
//! 63 62 61            32 31    26 25              0
//!  1  0  hash of the name  section  offset in it       section: code sections count from 0
//! ```
//!
//! Bit 62 differs from bit 63, so no processor can execute such an address. This module changes no
//! file.

use crate::address::LinkAddr;
use crate::blocks::{self, Landmarks};
use crate::object::elf::{Elf, ElfRelocation, ElfSection, SectionId};
use crate::object::functions::{self, TextFunction};
use crate::object::instructions;
use crate::object::tables::{self, ReferenceMeaning};
use crate::ordinary::{self, ReservedCode};
use crate::place::CallPadding;
use crate::{Block, BlockEnd, BlockIndex, BuildId, Image, ImageFunction};
use anyhow::{Context, Result, bail, ensure};
use object::elf;
use std::collections::HashMap;

/// Bytes of addresses for each code section.
const SECTION_SPACE: u64 = 1 << 26;
/// The most code sections of a module. They lie within 2 GB, the reach of a branch. The space
/// behind them stands for the symbols of other objects.
const MOST_SECTIONS: usize = 31;
/// Bytes of addresses for each symbol of another object.
const STUB: u64 = 16;

/// The first link address of a module. `name`: with `_` for `-`, as the kernel names the module.
pub fn base_of(name: &str) -> LinkAddr {
    // FNV-1a (Fowler, Noll, Vo), folded to 30 bits.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    LinkAddr(1 << 63 | ((hash ^ hash >> 30) & ((1 << 30) - 1)) << 32)
}

/// Whether a link address is one of a module.
pub fn is_of_module(addr: LinkAddr) -> bool {
    addr.0 >> 62 == 0b10
}

/// Which build of a module.
#[derive(
    Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct ModuleIdentity {
    /// Its name, with `_` for `-`.
    pub name: String,
    /// Its GNU build id in lower-case hex; empty if it has none.
    pub build_id: String,
}

impl std::fmt::Display for ModuleIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let build_id = if self.build_id.is_empty() { "no build id" } else { &self.build_id };
        write!(f, "{} ({build_id})", self.name)
    }
}

/// A code section of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageModuleSection {
    /// Its name.
    pub name: String,
    /// Its link address.
    pub addr: LinkAddr,
    /// Bytes.
    pub size: u64,
}

/// A module of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageModule {
    /// Which module it is.
    pub identity: ModuleIdentity,
    /// Its code sections, in the order of its file.
    pub sections: Vec<ImageModuleSection>,
}

/// The code of a module.
#[derive(Debug)]
pub struct ModuleCode {
    /// The module.
    pub module: ImageModule,
    functions: Vec<ImageFunction>,
    blocks: Vec<Block>,
    /// The symbols of other objects, by the address that stands for them.
    others: HashMap<u64, String>,
}

/// The code sections of a module with their link addresses, in the order of the file.
///
/// # Errors
/// There are too many sections, or one is too large.
pub fn code_sections(elf: &Elf<'_>, name: &str) -> Result<Vec<(SectionId, LinkAddr)>> {
    let is_code = |s: &ElfSection| s.is_code() && s.flags.contains(elf::SHF_ALLOC) && s.size > 0;
    let all: Vec<SectionId> = elf.ids().filter(|&id| is_code(elf.section(id))).collect();
    ensure!(
        all.len() <= MOST_SECTIONS,
        "{} code sections; Kernlane supports modules with at most {MOST_SECTIONS}",
        all.len()
    );
    if let Some(large) = all.iter().map(|&id| elf.section(id)).find(|s| s.size > SECTION_SPACE) {
        bail!("{}: larger than 64 MB", large.name);
    }
    let base = base_of(name).0;
    let place = |rank: usize| LinkAddr(base + rank as u64 * SECTION_SPACE);
    Ok(all.into_iter().enumerate().map(|(rank, id)| (id, place(rank))).collect())
}

/// Which module a file is.
///
/// # Errors
/// The file does not say its name, or its notes are damaged.
pub fn identity(elf: &Elf<'_>) -> Result<ModuleIdentity> {
    let info = elf.by_name(".modinfo").context("no section .modinfo: not a kernel module")?;
    let entries = elf.bytes(info).split(|&byte| byte == 0);
    let mut names = entries.filter_map(|entry| entry.strip_prefix(b"name="));
    let name = names.next().context(".modinfo: does not say the module's name")?;
    let name = std::str::from_utf8(name).context(".modinfo: the name is not UTF-8")?.to_owned();
    let build_id = build_id(elf).map_or(Ok(String::new()), |id| id.map(|id| id.0))?;
    Ok(ModuleIdentity { name, build_id })
}

/// The section with a module's build id, and where the id lies in it.
pub fn build_id_place(elf: &Elf<'_>) -> Option<(SectionId, std::ops::Range<usize>)> {
    let id = elf.by_name(".note.gnu.build-id")?;
    let size = elf.bytes(id).get(4..8)?;
    let size = u32::from_le_bytes(size.try_into().ok()?) as usize;
    Some((id, 16..16_usize.checked_add(size)?))
}

fn build_id(elf: &Elf<'_>) -> Option<Result<BuildId>> {
    elf.by_name(".note.gnu.build-id")?;
    let bytes = build_id_place(elf).and_then(|(id, range)| elf.bytes(id).get(range));
    Some(bytes.map(BuildId::from_bytes).context(".note.gnu.build-id: cut short"))
}

impl ModuleCode {
    /// Reads a module.
    ///
    /// # Errors
    /// The bytes are not a module for x86-64, or contain something that Kernlane does not
    /// understand.
    pub fn parse(data: &[u8]) -> Result<ModuleCode> {
        let elf = Elf::parse(data)?;
        let identity = identity(&elf)?;
        let placed = code_sections(&elf, &identity.name)?;
        let relocations: Vec<Vec<ElfRelocation>> = elf
            .ids()
            .map(|id| {
                let mut list =
                    if elf.section(id).is_debug() { Vec::new() } else { elf.relocations(id)? };
                if elf.section(id).is_code() {
                    list.sort_by_key(|r| r.offset);
                }
                Ok(list)
            })
            .collect::<Result<_>>()?;
        let mut code = ModuleCode {
            module: ImageModule { identity, sections: Vec::new() },
            functions: Vec::new(),
            blocks: Vec::new(),
            others: HashMap::new(),
        };
        for &(id, addr) in &placed {
            let section = elf.section(id);
            let (name, size) = (section.name.clone(), section.size);
            code.add(&elf, id, &placed, &relocations).with_context(|| name.clone())?;
            code.module.sections.push(ImageModuleSection { name, addr, size });
        }
        Ok(code)
    }

    /// The functions in one of its sections: name, link address and bytes, ascending by address.
    pub fn functions_in(
        &self,
        section: &ImageModuleSection,
    ) -> impl Iterator<Item = (&str, LinkAddr, u64)> {
        let space = section.addr.0..section.addr.0 + section.size;
        let inside = self.functions.iter().filter(move |f| space.contains(&f.addr.0));
        inside.map(|function| (function.name.as_str(), function.addr, function.size))
    }

    fn add(
        &mut self,
        elf: &Elf<'_>,
        id: SectionId,
        placed: &[(SectionId, LinkAddr)],
        relocations: &[Vec<ElfRelocation>],
    ) -> Result<()> {
        let own = &relocations[id.0 as usize];
        let base = placed.iter().find(|(placed, _)| *placed == id).context("was not placed")?.1;
        let bytes = self.linked(elf, id, base, placed, own);
        let functions = functions::from_symbols(elf, id, CallPadding::Kept);
        let size = bytes.len() as u32;
        let decoded = instructions::decode(elf.bytes(id), 0, size, own);
        let starts: Vec<u32> = functions.iter().map(|f| f.at).collect();
        // The replacements of alternatives have no functions and are never executed in place.
        if functions.is_empty() {
            return Ok(());
        }
        let tables = tables::read(elf, id, relocations, &decoded, &starts)?;
        let at = |offset: u32| base.0 + u64::from(offset);
        let mut landmarks = Landmarks::default();
        let entered = tables.references.iter().filter(|r| {
            let table = elf.section(r.section).name.as_str();
            r.meaning == ReferenceMeaning::Control && matches!(table, "__ex_table" | "__jump_table")
        });
        landmarks.starts.extend(entered.map(|r| at(r.target)));
        landmarks.sites.extend(tables.static_keys.iter().map(|key| at(key.at)));
        let opaque = tables.alternatives.iter();
        landmarks.opaque.extend(opaque.map(|a| at(a.at)..at(a.at) + u64::from(a.len)));
        landmarks.sort();
        for TextFunction { symbol, at: from, end, .. } in functions {
            let Some(symbol) = symbol else { continue };
            let code = &bytes[from as usize..end as usize];
            let cut = blocks::cut(at(from), code, &landmarks);
            let Some(last) = cut.last() else { continue };
            let first = self.blocks.len() as u32;
            let name = elf.name(elf.symbol(symbol));
            self.functions.push(ImageFunction {
                name: format!("{name} [{}]", self.module.identity.name),
                addr: LinkAddr(at(from)),
                size: last.end_addr().0 - at(from),
                blocks: first..first + cut.len() as u32,
                section: elf.section(id).name.clone(),
                stays: (elf.section(id).name != ordinary::TEXT)
                    .then_some(ReservedCode::OtherSection),
            });
            self.blocks.extend(cut);
        }
        Ok(())
    }

    /// The bytes of a section with branches to the places that they go to. Symbols of other objects
    /// get addresses that stand for them.
    fn linked(
        &mut self,
        elf: &Elf<'_>,
        id: SectionId,
        base: LinkAddr,
        placed: &[(SectionId, LinkAddr)],
        relocations: &[ElfRelocation],
    ) -> Vec<u8> {
        let stubs = base_of(&self.module.identity.name).0 + MOST_SECTIONS as u64 * SECTION_SPACE;
        let mut bytes = elf.bytes(id).to_vec();
        for r in relocations.iter().filter(|r| r.is_relative()) {
            let symbol = elf.symbol(r.symbol);
            let value = match symbol.section() {
                Some(section) => match placed.iter().find(|(placed, _)| *placed == section) {
                    Some((_, at)) => at.0.wrapping_add(symbol.value),
                    None => continue,
                },
                None => {
                    let stub = stubs.wrapping_add(u64::from(r.symbol.0) * STUB);
                    self.others.insert(stub, elf.name(symbol).to_owned());
                    stub
                }
            };
            let target = value.wrapping_add_signed(r.addend);
            let here = base.0.wrapping_add(r.offset);
            let field = (target.wrapping_sub(here) as u32).to_le_bytes();
            if let Some(place) = bytes.get_mut(r.offset as usize..).and_then(|b| b.get_mut(..4)) {
                place.copy_from_slice(&field);
            }
        }
        bytes
    }
}

impl Image {
    /// Adds modules to the image of their kernel.
    ///
    /// # Errors
    /// Two modules have the same link addresses: their names have the same hash, or are equal.
    pub fn attach(&mut self, modules: Vec<ModuleCode>) -> Result<()> {
        if modules.is_empty() {
            return Ok(());
        }
        let mut named: HashMap<&str, Option<LinkAddr>> = HashMap::new();
        for function in &self.functions {
            let one = named.entry(&function.name);
            one.and_modify(|addr| *addr = None).or_insert(Some(function.addr));
        }
        let mut added: Vec<(ImageFunction, Vec<Block>)> = Vec::new();
        let mut bases: HashMap<LinkAddr, String> = HashMap::new();
        let known = self.modules.iter().map(|module| &module.identity);
        for identity in known.chain(modules.iter().map(|code| &code.module.identity)) {
            let base = base_of(&identity.name);
            if let Some(other) = bases.insert(base, identity.name.clone()) {
                bail!(
                    "the modules {other} and {} have the same link addresses: leave one of them out",
                    identity.name
                );
            }
        }
        for code in &modules {
            let real = |target: LinkAddr| match code.others.get(&target.0) {
                Some(name) => named.get(name.as_str()).copied().flatten(),
                None => Some(target),
            };
            for function in &code.functions {
                let blocks =
                    &code.blocks[function.blocks.start as usize..function.blocks.end as usize];
                let blocks =
                    blocks.iter().map(|block| Block { end: aimed(block.end, &real), ..*block });
                added.push((function.clone(), blocks.collect()));
            }
        }
        drop(named);
        let own = std::mem::take(&mut self.functions);
        let of_own = own.into_iter().map(|function| {
            let blocks =
                self.blocks[function.blocks.start as usize..function.blocks.end as usize].to_vec();
            (function, blocks)
        });
        added.extend(of_own);
        added.sort_by_key(|(function, _)| function.addr);
        let mut all = Vec::new();
        for (function, blocks) in added {
            let first = all.len() as u32;
            all.extend(blocks);
            self.functions.push(ImageFunction { blocks: first..all.len() as u32, ..function });
        }
        self.blocks = all;
        self.modules.extend(modules.into_iter().map(|code| code.module));
        Ok(())
    }

    /// The module that holds a block; `None` for a block of vmlinux.
    pub fn module_of(&self, block: BlockIndex) -> Option<&ImageModule> {
        let addr = self.block(block).addr;
        let holds = |module: &&ImageModule| base_of(&module.identity.name).0 >> 32 == addr.0 >> 32;
        is_of_module(addr).then(|| self.modules.iter().find(holds)).flatten()
    }
}

/// The end of a block, with targets in other objects at their own addresses.
fn aimed(end: BlockEnd, real: &impl Fn(LinkAddr) -> Option<LinkAddr>) -> BlockEnd {
    match end {
        BlockEnd::Call(Some(to)) => BlockEnd::Call(real(to)),
        BlockEnd::Jump(to) => real(to).map_or(BlockEnd::Stop, BlockEnd::Jump),
        BlockEnd::Branch(to) => BlockEnd::Branch(real(to).unwrap_or(to)),
        end => end,
    }
}

#[cfg(test)]
mod tests;
