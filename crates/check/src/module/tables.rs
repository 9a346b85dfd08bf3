//! Compares the side tables of a module of copies, entry by entry.
//!
//! Input: the module, and the offset of each copied instruction. Each table is compared with the
//! one that follows from the kernel's own table.

use super::{ABSOLUTE, NamedPlace, PC32, PC64, Prover, Sites, Walked, counters};
use anyhow::{Context, Result, bail, ensure};
use image::address::LinkAddr;
use image::linked::forms::PARAVIRT;
use image::linked::tables::{AlternativeEntry, within};
use object::{Object, ObjectSection};
use std::collections::BTreeMap;
use std::iter;

/// An entry of a table: the places that its fields refer to, and its other bytes.
type ResolvedEntry = (Vec<NamedPlace>, Vec<u8>);

impl Prover<'_> {
    /// Compares all tables.
    pub(super) fn tables(&self, walked: &Walked) -> Result<()> {
        let sites = &walked.sites;
        let all = &self.kernel.tables;
        let copy =
            |context: u32, site: u64| sites.get(&(context, site)).map(|&at| NamedPlace::Copy(at));
        for (name, list) in [
            (".return_sites", &all.returns),
            (".retpoline_sites", &all.retpolines),
            (".call_sites", &all.calls),
            (".smp_locks", &all.locks),
        ] {
            let expected = self
                .copied_entries(list, |&s| s)
                .filter_map(|(n, &site)| Some((vec![copy(n, site)?], Vec::new())));
            self.compare_table(name, 4, &[0], expected.collect())?;
        }
        for copied in &self.by_old {
            let (from, end) = (LinkAddr(copied.old.0), LinkAddr(copied.old_end()));
            if let Some(at) = all.site_of_read_only_key(from, end) {
                bail!("the key of {at} is read-only: loading the module would crash this kernel");
            }
        }
        let expected = self.copied_entries(&all.jumps, |e| e.site).filter_map(|(n, e)| {
            let target = self.control(n, e.target)?;
            Some((vec![copy(n, e.site)?, target, NamedPlace::Kernel(e.key)], Vec::new()))
        });
        self.compare_table("__jump_table", 16, &[0, 4, 8], expected.collect())?;
        let expected = self.copied_entries(&all.static_calls, |e| e.site).filter_map(|(n, e)| {
            Some((vec![copy(n, e.site)?, NamedPlace::Kernel(e.key)], Vec::new()))
        });
        self.compare_table(".static_call_sites", 8, &[0, 4], expected.collect())?;
        let expected = self.copied_entries(&all.exceptions, |e| e.site).filter_map(|(n, e)| {
            let fixup = self.control(n, e.fixup)?;
            Some((vec![copy(n, e.site)?, fixup], e.data.to_le_bytes().to_vec()))
        });
        self.compare_table("__ex_table", 12, &[0, 4], expected.collect())?;
        let expected = self.copied_entries(&all.bugs, |e| e.site).filter_map(|(n, e)| {
            let rest = [e.line.to_le_bytes(), e.flags.to_le_bytes()].concat();
            let texts = e.format.into_iter().chain([e.file]).map(NamedPlace::Kernel);
            Some((iter::once(copy(n, e.site)?).chain(texts).collect(), rest))
        });
        let form = all.forms.bug;
        let addresses: Vec<usize> = (0..form.addresses).map(|n| 4 * n).collect();
        self.compare_table("__bug_table", form.size, &addresses, expected.collect())?;
        let expected = self.copied_entries(&all.paravirt, |e| e.site).filter_map(|(n, e)| {
            Some((vec![copy(n, e.site)?], vec![e.operation, e.len, 0, 0, 0, 0, 0, 0]))
        });
        self.compare_table(".parainstructions", PARAVIRT, &[0], expected.collect())?;
        self.alternatives(sites)?;
        self.orc(walked)
    }

    /// The entries of one of the kernel's tables whose sites lie in a copied block, each with the
    /// block's context.
    fn copied_entries<'t, T>(
        &'t self,
        table: &'t [T],
        site: impl Fn(&T) -> u64 + Copy + 't,
    ) -> impl Iterator<Item = (u32, &'t T)> {
        self.by_old.iter().flat_map(move |c| {
            let (from, end) = (LinkAddr(c.old.0 + u64::from(c.skip)), LinkAddr(c.old_end()));
            within(table, site, from, end).iter().map(move |entry| (c.context, entry))
        })
    }

    /// The place to which a jump of a context must go that went to `old` in the kernel. `None` if
    /// it would leave inlined code.
    fn control(&self, context: u32, old: u64) -> Option<NamedPlace> {
        match self.start_of(context, old) {
            Some(claim) => Some(NamedPlace::Copy(claim.new)),
            None => (context == 0).then_some(NamedPlace::Kernel(old)),
        }
    }

    fn data(&self, name: &str) -> Result<Option<(usize, &[u8])>> {
        let Some(section) = self.reading.elf.section_by_name(name) else {
            return Ok(None);
        };
        Ok(Some((section.index().0, section.data().with_context(|| name.to_owned())?)))
    }

    /// The entries of a table. Each has `size` bytes and references at the offsets `fields`.
    fn entries(&self, name: &str, size: usize, fields: &[usize]) -> Result<Vec<ResolvedEntry>> {
        let Some((index, data)) = self.data(name)? else {
            return Ok(Vec::new());
        };
        ensure!(data.len().is_multiple_of(size), "{name} is not made of whole entries");
        let mut entries = Vec::new();
        for (n, bytes) in data.chunks_exact(size).enumerate() {
            let mut places = Vec::new();
            let mut rest = bytes.to_vec();
            for &field in fields.iter().rev() {
                let at = (n * size + field) as u64;
                let (place, kind) = self
                    .reading
                    .field(index, at)
                    .with_context(|| format!("{name}: entry {n} names nothing"))?;
                // Paravirtual calls are named by absolute addresses.
                let absolute = name == ".parainstructions";
                let known = if absolute { kind == ABSOLUTE } else { matches!(kind, PC32 | PC64) };
                ensure!(known, "{name}: a relocation of type {kind}");
                let width = if kind == PC32 { 4 } else { 8 };
                ensure!(
                    field + width <= rest.len(),
                    "{name}: entry {n} has no room for a field of {width} bytes at {field}"
                );
                rest.drain(field..field + width);
                places.insert(0, place);
            }
            entries.push((places, rest));
        }
        Ok(entries)
    }

    fn compare_table(
        &self,
        name: &str,
        size: usize,
        fields: &[usize],
        mut expected: Vec<ResolvedEntry>,
    ) -> Result<()> {
        let mut found = self.entries(name, size, fields)?;
        found.sort();
        expected.sort();
        ensure!(
            found == expected,
            "{name}: {} entries, {} expected, or they name other places",
            found.len(),
            expected.len()
        );
        Ok(())
    }

    /// Compares the table of alternatives and their replacements. The fields of replacements are
    /// compared by the places that they refer to, all other bytes as they are.
    fn alternatives(&self, sites: &Sites) -> Result<()> {
        let form = self.kernel.tables.forms.alternative;
        let found = self.entries(".altinstructions", form.size, &[0, 4])?;
        let all = self.copied_entries(&self.kernel.tables.alternatives, |e| e.site);
        let mut expected: BTreeMap<NamedPlace, Vec<(u32, &AlternativeEntry)>> = BTreeMap::new();
        for (context, e) in all {
            if let Some(&at) = sites.get(&(context, e.site)) {
                expected.entry(NamedPlace::Copy(at)).or_default().push((context, e));
            }
        }
        let count: usize = expected.values().map(Vec::len).sum();
        ensure!(
            found.len() == count,
            ".altinstructions: {} entries, {count} expected",
            found.len()
        );
        let mut seen: BTreeMap<NamedPlace, usize> = BTreeMap::new();
        for (places, rest) in &found {
            // The order of the entries of one site matters: the kernel applies them in turn.
            let n = seen.entry(places[0]).or_default();
            let &(context, e) = expected
                .get(&places[0])
                .and_then(|list| list.get(*n))
                .context(".altinstructions: an entry too many")?;
            *n += 1;
            let tail = [&e.flags.to_le_bytes()[..form.flags], &[e.len, e.replacement_len]].concat();
            ensure!(*rest == tail, ".altinstructions: the entry of {:x} differs", e.site);
            self.replacement(context, e.replacement, usize::from(e.replacement_len), places[1])
                .with_context(|| format!("the replacement of {:x}", e.site))?;
        }
        Ok(())
    }

    fn replacement(&self, context: u32, old: u64, len: usize, place: NamedPlace) -> Result<()> {
        let NamedPlace::Own(section, at) = place else {
            anyhow::bail!("is in no section of its own")
        };
        let theirs = self.kernel.bytes(LinkAddr(old), len).context("is not in the file")?;
        let index = object::SectionIndex(section);
        let data = self.reading.elf.section_by_index(index)?.data()?;
        let end = usize::try_from(at).ok().and_then(|at| Some(at..at.checked_add(len)?));
        let ours = end.and_then(|range| data.get(range)).context("is cut short")?;
        let mut decoder =
            iced_x86::Decoder::with_ip(64, theirs, old, iced_x86::DecoderOptions::NONE);
        while decoder.can_decode() {
            let start = decoder.position();
            let instruction = decoder.decode();
            let end = decoder.position();
            let offsets = decoder.get_constant_offsets(&instruction);
            let branch = instruction.op_count() > 0
                && instruction.op0_kind() == iced_x86::OpKind::NearBranch64;
            let inside = branch && (old..=old + len as u64).contains(&instruction.near_branch64());
            let (field, names) = match (branch, instruction.is_ip_rel_memory_operand()) {
                (true, _) if !inside => {
                    let context = if instruction.is_call_near() { 0 } else { context };
                    let to = self.control(context, instruction.near_branch64());
                    let to = to.with_context(|| format!("{instruction} leaves inlined code"))?;
                    (offsets.immediate_offset(), to)
                }
                (_, true) => (
                    offsets.displacement_offset(),
                    NamedPlace::Kernel(instruction.ip_rel_memory_address()),
                ),
                _ => {
                    let (a, b) = (&theirs[start..end], &ours[start..end]);
                    let moved = (0..=a.len().saturating_sub(4)).any(|f| {
                        let rest = a[..f] == b[..f]
                            && a[f + 4.min(a.len() - f)..] == b[f + 4.min(b.len() - f)..];
                        rest && a.len() >= f + 4 && !self.moved(a, b, f, 4).is_empty()
                    });
                    ensure!(a == b || moved, "{instruction} differs");
                    continue;
                }
            };
            let behind = (end - start - field) as u64;
            let found = self.reading.field(section, at + (start + field) as u64);
            let names_it = match found {
                Some((NamedPlace::Kernel(to), PC32)) => {
                    self.unslid(to.wrapping_add(behind)) == names
                }
                Some((NamedPlace::Copy(to), PC32)) => {
                    NamedPlace::Copy(to.wrapping_add(behind as u32)) == names
                }
                _ => false,
            };
            ensure!(names_it, "{instruction} names {found:x?}");
            ensure!(
                theirs[start..start + field] == ours[start..start + field],
                "{instruction} differs"
            );
        }
        Ok(())
    }

    /// Checks that the unwinder's state at every copied instruction is that of the original.
    fn orc(&self, walked: &Walked) -> Result<()> {
        let entries = self.entries(".orc_unwind_ip", 4, &[0])?;
        let (_, states) = self.data(".orc_unwind")?.context("the module has no .orc_unwind")?;
        ensure!(
            states.len() == entries.len() * 6,
            ".orc_unwind and .orc_unwind_ip do not fit together"
        );
        let mut table = BTreeMap::new();
        for ((places, _), state) in entries.iter().zip(states.chunks_exact(6)) {
            let NamedPlace::Copy(at) = places[0] else {
                anyhow::bail!(".orc_unwind_ip names {:x?}", places[0])
            };
            let before = table.insert(at, state);
            ensure!(before.is_none(), ".orc_unwind_ip names .text+{at:#x} twice");
        }
        let state_at =
            |new: u32| table.range(..=new).next_back().map_or(&[][..], |(_, &state)| state);
        let copied = walked.sites.iter().map(|(&(context, old), &new)| (context, old, new));
        for (context, old, new) in copied.chain(walked.added.iter().copied()) {
            ensure!(
                state_at(new) == self.expected_state(context, old)?,
                "the unwinder's state at {old:x} differs"
            );
        }
        let tables = &self.kernel.tables;
        for counter in &walked.counters {
            for (offset, state) in
                counters::unwinding(tables.orc_at(counter.old), tables.forms.orc)?
            {
                ensure!(
                    state_at(counter.new + offset) == state,
                    "the unwinder's state in the counter in front of {:x} differs",
                    counter.old
                );
            }
        }
        Ok(())
    }
}
