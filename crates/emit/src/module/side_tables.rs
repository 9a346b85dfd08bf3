//! The side tables of the copies, and the sections that the loader itself reads.
//!
//! Each entry of the kernel's tables with a site in a copied block gets an equal entry for the
//! copy. No entry points into a dropped jump: the cutter pins such jumps.
//!
//! Input: the kernel's tables and the places of the copies. Output: sections. This module never
//! changes code.

use super::elf::{ModuleRelocation, ModuleSection, RelocationBase};
use super::{ModuleWriter, READ_ONLY, REPLACEMENTS, ReferenceTarget, TEXT, counter, section};
use anyhow::{Context, Result, ensure};
use image::address::LinkAddr;
use image::linked::forms::PARAVIRT;
use image::linked::tables::within;
use image::object::orc::OrcState;
use object::elf::{R_X86_64_64, R_X86_64_PC32, R_X86_64_PC64, SHF_WRITE};

/// Room for a module's name in `struct module` and for a symbol's in `__versions`:
/// `MODULE_NAME_LEN`.
const NAME: usize = 56;

impl ModuleWriter<'_, '_, '_> {
    /// Appends every side table that has an entry.
    pub(super) fn side_tables(
        &self,
        sections: &mut Vec<ModuleSection>,
        order: &[u32],
    ) -> Result<()> {
        let mut tables = vec![
            self.jump_table()?,
            self.static_calls()?,
            self.exceptions()?,
            self.bugs()?,
            self.alternatives(&mut sections[REPLACEMENTS])?,
            self.paravirt()?,
        ];
        let all = &self.original.kernel.tables;
        for (name, sites) in [
            (".return_sites", &all.returns),
            (".retpoline_sites", &all.retpolines),
            (".call_sites", &all.calls),
            (".smp_locks", &all.locks),
        ] {
            tables.push(self.sites(name, sites)?);
        }
        tables.retain(|t| !t.data.is_empty());
        sections.extend(tables);
        sections.extend(self.orc(order)?);
        Ok(())
    }

    /// The ranges of old code that are copied, with the number of their piece: without what entries
    /// leave out, without inlined calls and the returns of inlined code.
    fn stretches(&self) -> impl Iterator<Item = (usize, LinkAddr, LinkAddr)> + '_ {
        let original = self.original;
        original.pieces.iter().enumerate().map(move |(n, p)| {
            let skip = if p.entry { original.skip[p.function as usize] } else { 0 };
            let end = original.kernel.link_address(original.kept_end(n));
            (n, original.kernel.link_address(p.at + skip), end)
        })
    }

    /// The entries of a table whose sites are copied, each with the number of the piece.
    pub(super) fn entries_of<'t, T>(
        &'t self,
        table: &'t [T],
        site: impl Fn(&T) -> u64 + Copy + 't,
    ) -> impl Iterator<Item = (usize, &'t T)> {
        self.stretches().flat_map(move |(piece, from, to)| {
            within(table, site, from, to).iter().map(move |entry| (piece, entry))
        })
    }

    fn sites(&self, name: &'static str, sites: &[u64]) -> Result<ModuleSection> {
        let mut table = section(name, READ_ONLY, 4, Vec::new());
        for (piece, &site) in self.entries_of(sites, |&s| s) {
            self.push_site(&mut table, piece, site)?;
        }
        Ok(table)
    }

    /// Appends a 32-bit field, relative to itself, that refers to the copy of an instruction.
    fn push_site(&self, table: &mut ModuleSection, piece: usize, site: u64) -> Result<()> {
        let at = self.new_address(piece, LinkAddr(site)).with_context(|| table.name)?;
        let addend = i64::from(at);
        self.push_field(table, RelocationBase::Section(TEXT), addend);
        Ok(())
    }

    fn push_field(&self, table: &mut ModuleSection, base: RelocationBase, addend: i64) {
        table.relocations.push(ModuleRelocation {
            offset: table.data.len() as u64,
            kind: R_X86_64_PC32,
            base,
            addend,
        });
        table.data.extend([0; 4]);
    }

    /// Likewise for an address of the kernel.
    fn push_kernel(&self, table: &mut ModuleSection, at: u64) {
        let relocation =
            self.relocation(table.data.len() as u32, 0, ReferenceTarget::Kernel(LinkAddr(at)));
        table.relocations.push(relocation);
        table.data.extend([0; 4]);
    }

    /// Likewise for a target of control from a piece: its copy where there is one.
    fn push_control(&self, table: &mut ModuleSection, piece: usize, at: u64) -> Result<()> {
        match self.original.branch_target(self.original.inlining.context(piece), at) {
            ReferenceTarget::Piece(piece) => self.push_field(
                table,
                RelocationBase::Section(TEXT),
                i64::from(self.place_of(piece as usize)),
            ),
            ReferenceTarget::Kernel(at) => self.push_kernel(table, at.0),
            ReferenceTarget::Absolute(at) => {
                anyhow::bail!("{}: names {at:x}, outside of the kernel", table.name)
            }
        }
        Ok(())
    }

    fn jump_table(&self) -> Result<ModuleSection> {
        let mut table = section("__jump_table", SHF_WRITE, 8, Vec::new());
        for (piece, e) in self.entries_of(&self.original.kernel.tables.jumps, |e| e.site) {
            self.push_site(&mut table, piece, e.site)?;
            self.push_control(&mut table, piece, e.target)?;
            let mut key = self.relocation(
                table.data.len() as u32,
                0,
                ReferenceTarget::Kernel(LinkAddr(e.key)),
            );
            key.kind = R_X86_64_PC64;
            table.relocations.push(key);
            table.data.extend([0; 8]);
        }
        Ok(table)
    }

    fn static_calls(&self) -> Result<ModuleSection> {
        let mut table = section(".static_call_sites", SHF_WRITE, 8, Vec::new());
        for (piece, e) in self.entries_of(&self.original.kernel.tables.static_calls, |e| e.site) {
            self.push_site(&mut table, piece, e.site)?;
            self.push_kernel(&mut table, e.key);
        }
        Ok(table)
    }

    fn exceptions(&self) -> Result<ModuleSection> {
        let mut table = section("__ex_table", SHF_WRITE, 4, Vec::new());
        for (piece, e) in self.entries_of(&self.original.kernel.tables.exceptions, |e| e.site) {
            self.push_site(&mut table, piece, e.site)?;
            self.push_control(&mut table, piece, e.fixup)?;
            table.data.extend(e.data.to_le_bytes());
        }
        Ok(table)
    }

    fn bugs(&self) -> Result<ModuleSection> {
        let mut table = section("__bug_table", SHF_WRITE, 4, Vec::new());
        for (piece, e) in self.entries_of(&self.original.kernel.tables.bugs, |e| e.site) {
            self.push_site(&mut table, piece, e.site)?;
            if let Some(format) = e.format {
                self.push_kernel(&mut table, format);
            }
            self.push_kernel(&mut table, e.file);
            table.data.extend(e.line.to_le_bytes());
            table.data.extend(e.flags.to_le_bytes());
        }
        Ok(table)
    }

    /// The table of alternatives. The replacements go into a section of their own, which the kernel
    /// frees after use.
    fn alternatives(&self, replacements: &mut ModuleSection) -> Result<ModuleSection> {
        let mut table = section(".altinstructions", READ_ONLY, 1, Vec::new());
        let form = self.original.kernel.tables.forms.alternative;
        for (piece, e) in self.entries_of(&self.original.kernel.tables.alternatives, |e| e.site) {
            let context = self.original.inlining.context(piece);
            let (bytes, fixups) = self.original.lift_replacement(
                context,
                LinkAddr(e.replacement),
                e.replacement_len,
            )?;
            let start = replacements.data.len() as u32;
            for f in fixups {
                replacements.relocations.push(self.relocation(start + f.at, f.behind, f.target));
            }
            replacements.data.extend(bytes);
            self.push_site(&mut table, piece, e.site)?;
            self.push_field(&mut table, RelocationBase::Section(REPLACEMENTS), i64::from(start));
            table.data.extend(&e.flags.to_le_bytes()[..form.flags]);
            table.data.extend([e.len, e.replacement_len]);
        }
        Ok(table)
    }

    /// The calls through `pv_ops`, by absolute addresses.
    fn paravirt(&self) -> Result<ModuleSection> {
        let mut table = section(".parainstructions", READ_ONLY, 8, Vec::new());
        for (piece, e) in self.entries_of(&self.original.kernel.tables.paravirt, |e| e.site) {
            let at = self.new_address(piece, LinkAddr(e.site)).with_context(|| table.name)?;
            table.relocations.push(ModuleRelocation {
                offset: table.data.len() as u64,
                kind: R_X86_64_64,
                base: RelocationBase::Section(TEXT),
                addend: i64::from(at),
            });
            table.data.extend([0; 8]);
            table.data.extend([e.operation, e.len]);
            table.data.resize(table.data.len().next_multiple_of(PARAVIRT), 0);
        }
        Ok(table)
    }

    /// The unwinder's state at every instruction, ascending by new address, and "undefined" behind
    /// the last one.
    fn orc(&self, order: &[u32]) -> Result<[ModuleSection; 2]> {
        let tables = &self.original.kernel.tables;
        let mut states: Vec<(u32, OrcState)> = Vec::new();
        let mut push = |at: u32, state: OrcState| {
            // A piece without bytes has the address of the next one.
            states.pop_if(|&mut (last, _)| last == at);
            if states.last().is_none_or(|&(_, last)| last != state) {
                states.push((at, state));
            }
        };
        for &i in order {
            let (start, lifted) = (self.place_of(i as usize), &self.lifted[i as usize]);
            let context = self.original.inlining.context(i as usize);
            for &(old, at) in &lifted.instructions {
                let state = self.original.state_in(context, old)?;
                if let Some(code) = lifted.counter
                    && code + counter::CODE.len() as u32 == at
                {
                    let pushed = counter::pushed(state, tables.forms.orc)
                        .with_context(|| format!("no counter can stand in front of {old}"))?;
                    push(start + code, state);
                    push(start + code + counter::BEHIND_PUSH, pushed);
                }
                push(start + at, state);
            }
        }
        states.push((self.places.end.0 as u32, [0; 6]));
        let mut ip = section(".orc_unwind_ip", READ_ONLY, 4, Vec::new());
        let mut unwind = section(".orc_unwind", READ_ONLY, 2, Vec::new());
        for (at, state) in states {
            self.push_field(&mut ip, RelocationBase::Section(TEXT), i64::from(at));
            unwind.data.extend(state);
        }
        Ok([ip, unwind])
    }

    /// `.modinfo`, `__versions`, `struct module`.
    pub(super) fn loader_sections(&self, name: &str) -> Result<Vec<ModuleSection>> {
        ensure!(name.len() < NAME, "{name}: a module's name has fewer than {NAME} characters");
        let magic = self.loading.magic;
        let info = [
            "license=GPL".to_owned(),
            "description=Functions of the kernel in another order".to_owned(),
            "retpoline=Y".to_owned(),
            "depends=".to_owned(),
            format!("name={name}"),
            format!("vermagic={magic}"),
        ];
        let info: Vec<u8> = info.iter().flat_map(|line| line.bytes().chain([0])).collect();
        let mut versions = Vec::new();
        for export in self.loading.layout.iter().chain([&self.loading.base]) {
            let Some(crc) = export.crc else { continue };
            ensure!(export.name.len() < NAME, "{}: too long a name", export.name);
            versions.extend(u64::from(crc).to_le_bytes());
            versions.extend(export.name.as_bytes());
            versions.resize(versions.len().next_multiple_of(64), 0);
        }
        let structure = self.loading.structure;
        let at = usize::try_from(structure.name)?;
        let mut module = vec![0; usize::try_from(structure.size)?];
        let room =
            module.get_mut(at..at + NAME).context("struct module is smaller than its name")?;
        room[..name.len()].copy_from_slice(name.as_bytes());
        let mut found = vec![
            section(".modinfo", READ_ONLY, 1, info),
            section(".gnu.linkonce.this_module", SHF_WRITE, 64, module),
        ];
        if !versions.is_empty() {
            found.push(section("__versions", READ_ONLY, 32, versions));
        }
        Ok(found)
    }
}
