//! Finds where an object's sections lie in the kernel that was linked from it.
//!
//! Input: the object, and the bytes of the `vmlinux`. Output: the addresses. They are returned only
//! if the two files belong together: every global function lies where the object says, and every
//! byte of code that the linker does not fill in is equal. This module never changes anything.

use super::KernelObject;
use super::elf::{Elf, ElfSymbol, SectionId};
use super::gap_fill;
use super::gathered::GatheredText;
use super::instructions;
use crate::BuildId;
use crate::address::LinkAddr;
use crate::forms::is_linker_fill;
use crate::ordinary;
use crate::place::Placement;
use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection, ObjectSymbol, Section, SymbolKind};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The beginnings of the names of sections that the linker's script may gather in a place of their
/// own (`include/asm-generic/vmlinux.lds.h`, `TEXT_TEXT`).
const GROUPS: [&str; 4] = [".text.hot", ".text.unlikely", ".text.unknown", ".text.split"];

/// The limit for sections of functions that do not lie beside `.text`. If there are more, a linker
/// script gathers them in a way that Kernlane does not know.
const MOST_OUTSIDE: usize = 64;

/// A larger stretch between two sections of functions holds something else.
const LARGEST_GAP: u64 = 64 << 10;

/// The addresses in a linked kernel of an object's symbols and sections.
pub struct LinkAddresses<'a> {
    elf: object::File<'a>,
    /// The kernel's build id.
    pub build_id: BuildId,
    /// Symbols whose name occurs exactly once.
    globals: HashMap<&'a str, GlobalSymbol>,
    /// Local functions whose name occurs exactly once.
    locals: HashMap<&'a str, u64>,
}

#[derive(Clone, Copy)]
struct GlobalSymbol {
    address: u64,
    weak: bool,
}

impl<'a> LinkAddresses<'a> {
    /// Reads a vmlinux.
    ///
    /// # Errors
    /// The bytes are not an ELF file, or it has no build id or no symbols.
    pub fn read(bytes: &'a [u8]) -> Result<LinkAddresses<'a>> {
        let elf = object::File::parse(bytes).context("not an ELF file")?;
        let id =
            elf.build_id().context("its notes cannot be read")?.context("it has no build id")?;
        let build_id = BuildId::from_bytes(id);
        let mut globals: HashMap<&str, Option<GlobalSymbol>> = HashMap::new();
        for symbol in elf.symbols().filter(|s| s.is_global()) {
            if let Ok(name) = symbol.name() {
                let global = GlobalSymbol { address: symbol.address(), weak: symbol.is_weak() };
                globals.entry(name).and_modify(|a| *a = None).or_insert(Some(global));
            }
        }
        ensure!(!globals.is_empty(), "it has no symbols (was it stripped?)");
        let globals =
            globals.into_iter().filter_map(|(name, global)| Some((name, global?))).collect();
        let mut locals: HashMap<&str, Option<u64>> = HashMap::new();
        for symbol in elf.symbols().filter(|s| s.kind() == SymbolKind::Text) {
            if let Ok(name) = symbol.name() {
                let local = Some(symbol.address()).filter(|_| symbol.is_local());
                locals.entry(name).and_modify(|a| *a = None).or_insert(local);
            }
        }
        let locals = locals.into_iter().filter_map(|(name, at)| Some((name, at?))).collect();
        Ok(LinkAddresses { elf, build_id, globals, locals })
    }

    /// The address of a global symbol of the object. `None` if the kernel does not have the symbol.
    /// Also `None` if another object's definition replaced a weak one, as the C library's `abort`
    /// replaces that of a kernel for User Mode Linux.
    fn address_of(&self, object: &Elf<'_>, symbol: &ElfSymbol) -> Option<u64> {
        let global = self.globals.get(object.name(symbol))?;
        (symbol.is_weak() == global.weak).then_some(global.address)
    }

    /// The kernel's sections of code, each from its first address to its end. Padding between the
    /// object's sections belongs to them.
    pub fn code(&self) -> Vec<Range<u64>> {
        (self.elf.sections())
            .filter(|section| section.kind() == object::SectionKind::Text)
            .map(|section| section.address()..section.address().saturating_add(section.size()))
            .collect()
    }

    /// The bytes of the kernel's BTF, if it has BTF.
    ///
    /// # Errors
    /// The section cannot be read.
    pub fn types(&self) -> Result<Option<&'a [u8]>> {
        let section = self.elf.section_by_name(".BTF");
        section
            .map(|section| section.data().context("vmlinux: its .BTF cannot be read"))
            .transpose()
    }

    /// The addresses of the object's code sections that `is_wanted` names. The global symbols of a
    /// section must agree on its address. A section without such a symbol in the kernel is left
    /// out.
    ///
    /// # Errors
    /// The symbols of a section disagree: the kernel was not linked from this object.
    pub fn bases(
        &self,
        object: &Elf<'_>,
        is_wanted: impl Fn(SectionId) -> bool,
    ) -> Result<HashMap<SectionId, LinkAddr>> {
        let globals = object.symbols.iter().filter(|s| !s.is_local());
        let is_wanted = |id| object.section(id).is_code() && is_wanted(id);
        let code = globals.filter(|s| s.section().is_some_and(is_wanted));
        agreed(object, code, |symbol| self.address_of(object, symbol))
    }

    /// The sections of ordinary functions that lie beside the object's `.text` in the kernel, with
    /// only padding between them, as one section. `None` if `.text` lies alone.
    ///
    /// # Errors
    /// The kernel was not linked from this object.
    pub fn gathered_text(&self, object: &Elf<'_>) -> Result<Option<GatheredText>> {
        let Some(text) = object.by_name(ordinary::TEXT) else { return Ok(None) };
        let is_part = |&id: &SectionId| {
            let section = object.section(id);
            section.is_code() && section.size > 0 && ordinary::is_ordinary_section(&section.name)
        };
        let candidates: Vec<SectionId> = object.ids().filter(is_part).collect();
        if candidates.len() < 2 {
            return Ok(None);
        }
        let mut placed = self.placed(object, &candidates)?;
        placed.sort_by_key(|&(_, base)| base);
        placed.extend(self.in_gaps(object, &candidates, &placed));
        placed.sort_by_key(|&(_, base)| base);
        let Some(own) = placed.iter().position(|&(id, _)| id == text) else { return Ok(None) };
        let gaps: Vec<Option<&[u8]>> =
            gaps(object, &placed).map(|gap| self.padding(gap?)).collect();
        let from = gaps[..own].iter().rposition(Option::is_none).map_or(0, |gap| gap + 1);
        let to = gaps[own..].iter().position(Option::is_none).map_or(gaps.len(), |gap| own + gap);
        let outside = placed.len() - (to - from + 1);
        ensure!(
            outside <= MOST_OUTSIDE,
            "{outside} of {} sections of functions do not lie beside .text in vmlinux: Kernlane \
             does not support kernels that are linked so",
            placed.len()
        );
        if from == to {
            return Ok(None);
        }
        let between: Vec<&[u8]> = gaps[from..to].iter().flatten().copied().collect();
        GatheredText::new(object, text, &placed[from..=to], &between).map(Some)
    }

    /// The addresses of these sections of functions, which are ascending by number. A section
    /// whose symbols do not give its address may lie behind the one in front of it.
    fn placed(
        &self,
        object: &Elf<'_>,
        sections: &[SectionId],
    ) -> Result<Vec<(SectionId, LinkAddr)>> {
        let by_globals = self.bases(object, |_| true)?;
        let by_locals = self.bases_by_locals(object)?;
        let mut known: HashMap<SectionId, LinkAddr> =
            by_locals.into_iter().chain(by_globals).collect();
        self.follow_references(object, sections, &mut known)?;
        let taken: HashSet<LinkAddr> = known.values().copied().collect();
        let mut placed = Vec::with_capacity(sections.len());
        // The end of the last section of each group, and of the last of all.
        let mut ends: [Option<u64>; GROUPS.len() + 2] = [None; _];
        for &id in sections {
            let section = object.section(id);
            let group = GROUPS.iter().position(|group| section.name.starts_with(group));
            let group = group.unwrap_or(GROUPS.len());
            let follows = |end: Option<u64>| {
                let at = end?.checked_next_multiple_of(section.align.max(1))?;
                let fits = !taken.contains(&LinkAddr(at)) && self.may_lie_at(object, id, at);
                fits.then_some(LinkAddr(at))
            };
            let base = known.get(&id).copied().or_else(|| follows(ends[GROUPS.len() + 1]));
            let Some(base) = base.or_else(|| follows(ends[group])) else { continue };
            let end = base.0.checked_add(section.size);
            (ends[group], ends[GROUPS.len() + 1]) = (end, end);
            placed.push((id, base));
        }
        Ok(placed)
    }

    /// The sections that have no address yet and fill the gaps between `placed`, which are
    /// ascending.
    fn in_gaps(
        &self,
        object: &Elf<'_>,
        sections: &[SectionId],
        placed: &[(SectionId, LinkAddr)],
    ) -> Vec<(SectionId, LinkAddr)> {
        let known: HashSet<SectionId> = placed.iter().map(|&(id, _)| id).collect();
        let missing: Vec<SectionId> =
            sections.iter().copied().filter(|id| !known.contains(id)).collect();
        if missing.is_empty() {
            return Vec::new();
        }
        let open: Vec<Range<u64>> = gaps(object, placed)
            .flatten()
            .filter(|gap| gap.end - gap.start <= LARGEST_GAP && self.padding(gap.clone()).is_none())
            .collect();
        gap_fill::fill(&ObjectRoom { kernel: self, object }, &open, &missing)
    }

    /// Adds the addresses of those `sections` that code with a known address refers to: the linker
    /// wrote there where they lie. Local functions of one name cannot be told apart otherwise, and
    /// with LTO each has a section, which the linker may put anywhere.
    fn follow_references(
        &self,
        object: &Elf<'_>,
        sections: &[SectionId],
        known: &mut HashMap<SectionId, LinkAddr>,
    ) -> Result<()> {
        let mut missing: HashSet<SectionId> =
            sections.iter().copied().filter(|id| !known.contains_key(id)).collect();
        let mut sources: Vec<SectionId> =
            known.keys().copied().filter(|&id| object.section(id).is_code()).collect();
        sources.sort_unstable();
        while !missing.is_empty()
            && let Some(source) = sources.pop()
        {
            let base = known[&source].0;
            for r in object.relocations(source)?.iter().filter(|r| r.is_relative()) {
                let Some(symbol) = object.symbols.get(r.symbol.0 as usize) else { continue };
                let Some(id) = symbol.section().filter(|id| missing.contains(id)) else { continue };
                let field = base.wrapping_add(r.offset);
                let Some(bytes) = self.code_at(field, 4) else { continue };
                let distance = i32::from_le_bytes(bytes.try_into().expect("four bytes"));
                let referred = field.wrapping_add_signed(distance.into());
                let at = referred.wrapping_add_signed(-r.addend).wrapping_sub(symbol.value);
                if self.may_lie_at(object, id, at) {
                    missing.remove(&id);
                    known.insert(id, LinkAddr(at));
                    sources.push(id);
                }
            }
        }
        Ok(())
    }

    /// Whether the kernel has the bytes of a section at `at`, but for the fields that the linker
    /// fills in.
    fn may_lie_at(&self, object: &Elf<'_>, id: SectionId, at: u64) -> bool {
        let ours = object.bytes(id);
        let (Some(theirs), Ok(relocations)) =
            (self.code_at(at, ours.len()), object.relocations(id))
        else {
            return false;
        };
        let mut fields = vec![false; ours.len()];
        for r in &relocations {
            let from = (r.offset as usize).min(ours.len());
            let to = from.saturating_add(r.width()).min(ours.len());
            fields[from..to].fill(true);
        }
        let differs = |(i, field): (usize, &bool)| !field && ours[i] != theirs[i];
        !fields.iter().enumerate().any(differs)
    }

    /// The link addresses of the code that a layout can move: of the gathered sections, or of
    /// `.text`. Empty if the object has no `.text`.
    ///
    /// # Errors
    /// The kernel was not linked from this object.
    pub fn moving_code(
        &self,
        object: &Elf<'_>,
        gathered: Option<&GatheredText>,
    ) -> Result<Range<u64>> {
        if let Some(gathered) = gathered {
            return Ok(gathered.linked.clone());
        }
        let Some(text) = object.by_name(ordinary::TEXT) else { return Ok(0..0) };
        let base = self.bases(object, |id| id == text)?.get(&text).map_or(0, |base| base.0);
        Ok(base..base.saturating_add(object.section(text).size))
    }

    /// The addresses of the code sections by their local functions, as far as these have a name of
    /// their own.
    fn bases_by_locals(&self, object: &Elf<'_>) -> Result<HashMap<SectionId, LinkAddr>> {
        let functions = || object.symbols.iter().filter(|s| s.kind() == object::elf::STT_FUNC);
        let mut uses: HashMap<&str, u32> = HashMap::new();
        functions().for_each(|s| *uses.entry(object.name(s)).or_insert(0) += 1);
        agreed(object, functions().filter(|s| s.is_local()), |symbol| {
            let name = object.name(symbol);
            self.locals.get(name).copied().filter(|_| uses.get(name) == Some(&1))
        })
    }

    /// The bytes of a stretch of the kernel; `None` if they are not padding, or not in one section
    /// of the file.
    fn padding(&self, range: Range<u64>) -> Option<&'a [u8]> {
        let len = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        let bytes = self.code_at(range.start, len)?;
        let code = instructions::decode(bytes, 0, len as u32, &[]);
        (code.iter().all(|i| i.is_padding()) || is_linker_fill(bytes)).then_some(bytes)
    }

    /// The `len` bytes of code at `at`; `None` if they are not in one section of the file.
    fn code_at(&self, at: u64, len: usize) -> Option<&'a [u8]> {
        let end = at.checked_add(len as u64)?;
        let section = self.elf.sections().find(|s| {
            s.kind() == object::SectionKind::Text
                && s.address() <= at
                && end <= s.address().saturating_add(s.size())
        })?;
        let from = usize::try_from(at - section.address()).ok()?;
        section.data().ok()?.get(from..from.checked_add(len)?)
    }

    /// How far behind `base`, the address that `text_base` gives, the linker will put the object's
    /// `.text`: 0, or once its alignment if other code ends behind `base`.
    pub fn expected_shift(&self, object: &KernelObject<'_>, base: LinkAddr) -> u64 {
        let head = base.0..base.0.saturating_add(object.head().into());
        if self.padding(head).is_some() { 0 } else { object.elf.section(object.text).align }
    }

    /// How far the linker put a rewritten `.text` from the expected address. `placement` was made
    /// for a `.text` at `base`. The result is 0 as long as the code in front of `.text` has not
    /// changed.
    ///
    /// # Errors
    /// A global symbol does not lie where the placement says.
    pub fn text_shift(
        &self,
        object: &KernelObject<'_>,
        placement: &Placement,
        base: LinkAddr,
    ) -> Result<u64> {
        let mut shift = None;
        for symbol in
            object.elf.symbols.iter().filter(|s| !s.is_local() && s.section() == Some(object.text))
        {
            let Some(address) = self.address_of(&object.elf, symbol) else { continue };
            let name = object.elf.name(symbol);
            let Some(expected) = placement.new_address(LinkAddr(base.0 + symbol.value)) else {
                continue;
            };
            let here = address.wrapping_sub(expected.0);
            let agreed = *shift.get_or_insert(here);
            ensure!(
                agreed == here,
                "{name} lies at {address:x} in the new kernel, not where it was put: {expected}"
            );
        }
        shift.context("no symbol of .text is in the new kernel")
    }

    /// The address of the object's `.text`, after every byte was compared with the kernel's.
    ///
    /// # Errors
    /// The kernel was not linked from this object.
    pub fn text_base(&self, object: &KernelObject<'_>) -> Result<LinkAddr> {
        let base = self
            .bases(&object.elf, |id| id == object.text)?
            .get(&object.text)
            .copied()
            .context("no symbol of vmlinux.o's .text is in vmlinux")?;
        // What the object does not have in front of its code belongs to other code.
        let first = LinkAddr(base.0.saturating_add(object.head().into()));
        let holds =
            |s: &Section<'_, '_>| s.address() <= first.0 && first.0 < s.address() + s.size();
        let section = self.elf.sections().find(holds);
        let section = section
            .with_context(|| format!("vmlinux has no section at {first}, where .text should be"))?;
        let all = section.uncompressed_data().context("vmlinux: its .text cannot be read")?;
        let ours = object.elf.bytes(object.text).get(object.head() as usize..).unwrap_or_default();
        let theirs = (first.0 - section.address()) as usize;
        let theirs = all
            .get(theirs..theirs.saturating_add(ours.len()))
            .context("vmlinux's .text is shorter than vmlinux.o's")?;
        let mut from = 0;
        for r in &object.relocations[object.text.0 as usize] {
            let field = (r.offset as usize).saturating_sub(object.head() as usize);
            compare(ours, theirs, from, field)?;
            from = (field + r.width()).min(ours.len());
        }
        compare(ours, theirs, from, ours.len())?;
        Ok(base)
    }
}

/// The stretches between sections, which are ascending; `None` where two overlap.
fn gaps<'s>(
    object: &'s Elf<'_>,
    placed: &'s [(SectionId, LinkAddr)],
) -> impl Iterator<Item = Option<Range<u64>>> + 's {
    placed.windows(2).map(|pair| {
        let end = pair[0].1.0.checked_add(object.section(pair[0].0).size)?;
        (end <= pair[1].1.0).then_some(end..pair[1].1.0)
    })
}

/// An object's sections, and the kernel in which they lie.
struct ObjectRoom<'a, 'k, 'o> {
    kernel: &'a LinkAddresses<'k>,
    object: &'a Elf<'o>,
}

impl gap_fill::Room for ObjectRoom<'_, '_, '_> {
    fn fits(&self, id: SectionId, at: u64) -> Option<Range<u64>> {
        let section = self.object.section(id);
        let from = at.checked_next_multiple_of(section.align.max(1))?;
        let end = from.checked_add(section.size)?;
        self.kernel.may_lie_at(self.object, id, from).then_some(from..end)
    }

    fn is_padding(&self, range: Range<u64>) -> bool {
        self.kernel.padding(range).is_some()
    }
}

/// The addresses of sections, on which those of their symbols agree whose address is known.
fn agreed<'s>(
    object: &Elf<'_>,
    symbols: impl Iterator<Item = &'s ElfSymbol>,
    address_of: impl Fn(&ElfSymbol) -> Option<u64>,
) -> Result<HashMap<SectionId, LinkAddr>> {
    let mut bases = HashMap::new();
    for symbol in symbols {
        let (Some(section), Some(address)) = (symbol.section(), address_of(symbol)) else {
            continue;
        };
        let here = LinkAddr(address.wrapping_sub(symbol.value));
        ensure!(
            *bases.entry(section).or_insert(here) == here,
            "{} does not lie where vmlinux.o says: vmlinux was not linked from this vmlinux.o. Run \
             make in the tree. If that changes nothing, the kernel is linked from vmlinux.a, as \
             kernels without CONFIG_X86_KERNEL_IBT are, and code that begins a page, such as that \
             of CONFIG_KEXEC, lies otherwise there: set CONFIG_X86_KERNEL_IBT",
            object.name(symbol)
        );
    }
    Ok(bases)
}

fn compare(ours: &[u8], theirs: &[u8], from: usize, to: usize) -> Result<()> {
    let equal = from >= to || ours[from..to] == theirs[from..to];
    ensure!(
        equal,
        "vmlinux differs from vmlinux.o near .text+{from:#x}: vmlinux was not linked from this \
         vmlinux.o; run make in the tree"
    );
    Ok(())
}
