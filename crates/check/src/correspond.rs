//! Finds the new address of each thing of the old kernel.
//!
//! Input: both kernels and the map. Output: for an old address, the new address of the same thing.
//! The map places its blocks. Symbols place everything else: between two symbols, the distance from
//! old to new is that of the symbol in front. Both are claims. The other stages compare every byte,
//! so a wrong claim ends as a difference, not as a proof.

use super::address_words::AddressWords;
use super::intervals::{contains, intervals};
use super::kernel::{KernelFile, KernelSection, KernelSymbol, START_KERNEL_MAP, twin_of};
use super::padding::{
    FunctionPadding, PADDING_PREFIX, PaddingChange, is_compilers_label, is_label_in_padding,
    is_padding, paddings, patched_padding, prove_dropped,
};
use super::realign;
use super::verdict::Findings;
use image::place::{PlacedBlock, Placement};
use std::collections::{HashMap, HashSet};

/// A run of bytes outside the map that moved by one distance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShiftedRegion {
    pub old: u64,
    pub old_end: u64,
    pub new: u64,
    pub new_end: u64,
    pub executable: bool,
}

/// Facts about data that are known before the data is compared.
pub(crate) struct DataFacts<'f> {
    /// The addresses (old, new) behind the kallsyms tables. The tables grow with the names of moved
    /// parts, and no symbol follows them.
    pub behind_kallsyms: Option<(u64, u64)>,
    /// The words of the old and of the new kernel's data that are addresses, as far as both kernels
    /// say so.
    pub places: [&'f AddressWords; 2],
    /// Stretches of the old kernel that other stages compare, ascending.
    pub compared_elsewhere: &'f [(u64, u64)],
}

/// One instruction in both kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InstructionPair {
    pub old: u64,
    pub new: u64,
    pub old_len: u8,
    pub new_len: u8,
}

/// How well a new address corresponds to an old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Landing {
    /// The same byte of the same thing.
    Exact,
    /// The end of a thing where another thing begins, or a symbol of the linker's script.
    Boundary,
    /// An address in front of or behind a thing, at the same distance from it (a biased table
    /// address).
    Biased,
    /// Not the same thing.
    No,
}

/// The map from old to new addresses.
pub(crate) struct Correspondence<'k, 'd> {
    pub old: &'k KernelFile<'d>,
    pub new: &'k KernelFile<'d>,
    pub regions: Vec<ShiftedRegion>,
    /// Ascending by `old`; filled by the walk.
    pub pairs: Vec<InstructionPair>,
    /// The intervals of the old kernel that the map covers.
    covered: Vec<(u64, u64)>,
    /// Where the padding of a function is shorter in the new kernel: old → new address.
    shortened: HashMap<u64, u64>,
    /// Where the padding of a function was dropped: its old address → the new address of the
    /// function's entry.
    dropped: HashMap<u64, u64>,
    /// The padding in front of the functions of the map, in the old kernel.
    padding: Vec<(u64, u64)>,
    /// The linker script's labels in the padding of functions of the map.
    pub labels: Vec<PaddingLabel<'d>>,
    /// The old kernel's functions without their first bytes. The linker script's labels lie beside
    /// functions; a label in here is the function's own.
    inside_functions: Vec<(u64, u64)>,
}

impl<'k, 'd> Correspondence<'k, 'd> {
    /// Divides everything outside the map into regions.
    pub(crate) fn new(
        old: &'k KernelFile<'d>,
        new: &'k KernelFile<'d>,
        map: &Placement,
        data: &DataFacts,
        findings: &mut Findings,
    ) -> Self {
        let placed_new = intervals(
            map.blocks.iter().map(|b| (b.new.0, u64::from(b.new_size) + u64::from(b.appended))),
        );
        let covered = intervals(map.blocks.iter().map(|b| (b.old.0, u64::from(b.old_size))));
        let mut anchors = SectionAnchors::new(old, new, map, &covered, &placed_new);
        if let Some((at, new_at)) = data.behind_kallsyms
            && let Some(section) = old.section_index(at)
        {
            let anchor = SymbolAnchor { old: at, new: new_at, size: 0 };
            anchors.by_section.entry(section).or_default().push(anchor);
        }
        if !anchors.shortened.is_empty() {
            findings.prove("call padding cut to what is patched", anchors.shortened.len() as u64);
        }
        prove_dropped(old, new, &anchors.dropped, &placed_new, findings);
        let mut regions = Vec::new();
        for (index, section) in old.sections.iter().enumerate() {
            if old.is_inlined(section) {
                // The map says where all of it went: there is nothing to pair it with.
                let free = section_regions(section, &map.blocks, &[], &anchors.cut, old, findings);
                debug_assert!(free.is_empty(), "regions begin at anchors");
                continue;
            }
            let Some(twin) = twin_of(old, new, index) else {
                findings.differ(
                    "sections",
                    Some(section.addr),
                    None,
                    format!("section {} is missing", section.name),
                );
                continue;
            };
            let cut = &anchors.cut;
            let anchors = anchors.of(index, section, twin, &covered);
            let mut of_section =
                section_regions(section, &map.blocks, &anchors, cut, old, findings);
            if !section.executable {
                close_data_regions(&mut of_section, twin);
                of_section = cut_realigned_data(of_section, &anchors, old, new, data);
            }
            regions.append(&mut of_section);
        }
        Correspondence {
            old,
            new,
            regions,
            pairs: Vec::new(),
            covered,
            shortened: anchors.shortened,
            dropped: anchors.dropped,
            padding: anchors.padding,
            labels: anchors.labels,
            inside_functions: intervals(
                old.symbols
                    .iter()
                    .filter(|s| s.function && s.size > 0)
                    .map(|s| (s.addr.0.saturating_add(1), s.size - 1)),
            ),
        }
    }

    /// Whether `name` names padding at `old` that the new kernel no longer has.
    pub(crate) fn is_dropped_padding(&self, name: &str, old: u64) -> bool {
        name.starts_with(PADDING_PREFIX) && self.dropped.contains_key(&old)
    }

    /// The pair whose old instruction contains `old`.
    pub(crate) fn pair_at(&self, old: u64) -> Option<&InstructionPair> {
        let pair = &self.pairs[self.pairs.partition_point(|p| p.old <= old).checked_sub(1)?];
        (old < pair.old + u64::from(pair.old_len)).then_some(pair)
    }

    /// The new address of the thing at `old`, if exactly one thing is there.
    pub(crate) fn image(&self, old: u64) -> Option<u64> {
        if let Some(pair) = self.pair_at(old) {
            let within = old - pair.old;
            return (within == 0 || pair.old_len == pair.new_len)
                .then_some(pair.new.wrapping_add(within));
        }
        self.region_at(old).map(|r| r.new.wrapping_add(old - r.old))
    }

    /// The region that holds `old`.
    pub(crate) fn region_at(&self, old: u64) -> Option<&ShiftedRegion> {
        let region =
            &self.regions[self.regions.partition_point(|r| r.old <= old).checked_sub(1)?];
        (old < region.old_end).then_some(region)
    }

    /// Whether the map, not a region, says where `old` went.
    pub(crate) fn in_map(&self, old: u64) -> bool {
        contains(&self.covered, old)
    }

    /// Whether `old` goes with a function of the map: it is in the map, or in the padding in front
    /// of such a function.
    pub(crate) fn goes_with_map(&self, old: u64) -> bool {
        self.in_map(old) || contains(&self.padding, old)
    }

    /// How well the place `new` corresponds to the place `old`.
    pub(crate) fn lands(&self, old: u64, new: u64) -> Landing {
        match (self.virtual_address(old), self.virtual_address(new)) {
            (Some(old), Some(new)) => self.lands_virtual(old, new),
            _ => self.lands_virtual(old, new),
        }
    }

    /// The virtual address at which the kernel maps physical address `addr`, if the address can
    /// mean nothing else.
    fn virtual_address(&self, addr: u64) -> Option<u64> {
        let physical = addr < 1 << 31
            && self.old.section_at(addr).is_none()
            && self.new.section_at(addr).is_none();
        let address = addr.wrapping_add(START_KERNEL_MAP);
        let in_image =
            |kernel: &KernelFile| (kernel.image().start..=kernel.image().end).contains(&address);
        (physical && (in_image(self.old) || in_image(self.new))).then_some(address)
    }

    fn lands_virtual(&self, old: u64, new: u64) -> Landing {
        if self.image(old) == Some(new) || self.shortened.get(&old) == Some(&new) {
            return Landing::Exact;
        }
        if self.is_linker_symbol(old, new) || self.is_end(old, new) {
            return Landing::Boundary;
        }
        let at = self.regions.partition_point(|r| r.old <= old);
        let shift = new.wrapping_sub(old);
        let neighbours =
            self.regions[at.saturating_sub(2)..(at + 2).min(self.regions.len())].iter();
        let near = |r: &&ShiftedRegion| !r.executable && distance(old, r) <= BIAS;
        if self.pair_at(old).is_none()
            && neighbours.filter(near).any(|r| r.new.wrapping_sub(r.old) == shift)
        {
            return Landing::Biased;
        }
        if self.is_near_linker_symbol(old, new) {
            return Landing::Biased;
        }
        // Neither kernel has anything there: the value is a number, such as the address of a fixed
        // mapping.
        let nothing = |kernel: &KernelFile, addr| {
            kernel.section_at(addr).is_none() && !kernel.image().contains(&addr)
        };
        if old == new && nothing(self.old, old) && nothing(self.new, new) {
            Landing::Exact
        } else {
            Landing::No
        }
    }

    /// Whether the address is `_text` rounded up to a page, `_end` rounded up to a large page, or
    /// the last byte in front of `__end_rodata`.
    fn is_near_linker_symbol(&self, old: u64, new: u64) -> bool {
        ROUNDINGS
            .iter()
            .any(|&by| self.is_linker_symbol(old.wrapping_sub(by), new.wrapping_sub(by)))
    }

    /// Whether both kernels have a symbol with the same name there that only marks a place
    /// (`_etext`, `__stop_…`).
    fn is_linker_symbol(&self, old: u64, new: u64) -> bool {
        if contains(&self.inside_functions, old) {
            return false;
        }
        let marks = |s: &&KernelSymbol| !s.function && s.size == 0;
        self.old
            .symbols_at(old)
            .iter()
            .filter(marks)
            .any(|s| self.new.symbols_at(new).iter().filter(marks).any(|t| t.name == s.name))
    }

    /// Whether `old` lies directly behind a thing, and `new` directly behind the same thing.
    fn is_end(&self, old: u64, new: u64) -> bool {
        let Some(before) = old.checked_sub(1) else { return false };
        if self.pair_at(old).is_some() {
            return false;
        }
        match self.pair_at(before) {
            Some(pair) => pair.new + u64::from(pair.new_len) == new,
            None => self.region_at(before).is_some_and(|r| r.new.wrapping_add(old - r.old) == new),
        }
    }
}

/// How far a biased address may lie outside of the thing that it refers to. Compilers fold small
/// constant indices into table addresses.
const BIAS: u64 = 1 << 16;

/// The numbers that are added to a symbol to round it up or to get its last byte.
const ROUNDINGS: [u64; 3] = [0xfff, 0x1f_ffff, u64::MAX];

fn distance(addr: u64, region: &ShiftedRegion) -> u64 {
    if addr < region.old { region.old - addr } else { addr.saturating_sub(region.old_end) }
}

/// A label of the linker script in the padding of a function of the map, in both kernels.
pub(crate) struct PaddingLabel<'d> {
    pub name: &'d str,
    pub old: u64,
    pub new: u64,
}

/// A place outside the map for which both kernels have a symbol.
#[derive(Clone, Copy)]
struct SymbolAnchor {
    old: u64,
    new: u64,
    /// The size of the old symbol in bytes.
    size: u64,
}

/// Whether the symbol names the padding in front of a function.
fn is_padding_name(symbol: &KernelSymbol) -> bool {
    symbol.name.starts_with(PADDING_PREFIX) && symbol.size > 0
}

/// The anchors of each old section.
struct SectionAnchors<'d> {
    by_section: HashMap<usize, Vec<SymbolAnchor>>,
    /// The paddings of functions that became shorter and are not anchors: old → new address.
    shortened: HashMap<u64, u64>,
    /// The old addresses of the paddings that were dropped, and the new addresses of the entries.
    dropped: HashMap<u64, u64>,
    /// The padding in front of the functions of the map, in the old kernel.
    padding: Vec<(u64, u64)>,
    /// The padding that became shorter or was dropped, by its end: where it begins.
    cut: HashMap<u64, u64>,
    /// The labels in this padding.
    labels: Vec<PaddingLabel<'d>>,
}

impl<'d> SectionAnchors<'d> {
    /// Pairs symbols with the same name in one section in the order of their addresses. Both
    /// kernels must have the same number of them outside the map.
    ///
    /// The linker script's labels may lie in front of a function, and so in its padding. The
    /// padding goes with the function, the labels do not. They are no anchors, because other bytes
    /// follow them in the new kernel; `kept_apart` compares what they divide. Of the labels around
    /// code that is sorted by how often it runs, this holds for those too that lie behind the end
    /// of a function of the map.
    fn new(
        old: &KernelFile<'d>,
        new: &KernelFile,
        map: &Placement,
        covered: &[(u64, u64)],
        placed: &[(u64, u64)],
    ) -> Self {
        let mut found = SectionAnchors::of_paddings(old, new, map);
        let mut done: HashSet<(&str, usize)> = HashSet::new();
        for symbol in &old.symbols {
            let Some(section) = symbol.section else { continue };
            let says_nothing = is_padding_name(symbol) || is_compilers_label(symbol);
            if says_nothing || !done.insert((symbol.name, section)) {
                continue;
            }
            let name = old.sections[section].name;
            let all: Vec<&KernelSymbol> =
                old.named(symbol.name).filter(|s| s.section == Some(section)).collect();
            let all_new: Vec<&KernelSymbol> = new
                .named(symbol.name)
                .filter(|s| s.section.is_some_and(|i| new.sections[i].name == name))
                .collect();
            let is_label = |s: &KernelSymbol| is_label_in_padding(old, covered, &found.padding, s);
            if all.iter().any(|s| is_label(s)) {
                // If one is missing in the new kernel, the comparison of the names finds it.
                let pairs = all.iter().zip(&all_new).filter(|(a, _)| is_label(a));
                let name = symbol.name;
                found.labels.extend(pairs.map(|(a, b)| PaddingLabel {
                    name,
                    old: a.addr.0,
                    new: b.addr.0,
                }));
                continue;
            }
            let outside: Vec<_> = all.iter().filter(|s| !contains(covered, s.addr.0)).collect();
            let twins: Vec<_> = all_new.iter().filter(|s| !contains(placed, s.addr.0)).collect();
            if outside.len() == twins.len() {
                let pairs = outside.iter().zip(&twins).map(|(a, b)| SymbolAnchor {
                    old: a.addr.0,
                    new: b.addr.0,
                    size: a.size,
                });
                found.by_section.entry(section).or_default().extend(pairs);
            }
        }
        found
    }

    /// What becomes of the padding of each function of the map.
    fn of_paddings(old: &KernelFile, new: &KernelFile, map: &Placement) -> Self {
        let mut by_section: HashMap<usize, Vec<SymbolAnchor>> = HashMap::new();
        let (mut shortened, mut dropped) = (HashMap::new(), HashMap::new());
        let (mut padding, mut cut) = (Vec::new(), HashMap::new());
        let patched = patched_padding(old);
        let mut done: HashSet<(&str, usize)> = HashSet::new();
        for symbol in old.symbols.iter().filter(|s| is_padding_name(s)) {
            let Some(section) = symbol.section else { continue };
            if !done.insert((symbol.name, section)) {
                continue;
            }
            for of_function in paddings(symbol.name, section, old, new, patched, map) {
                let FunctionPadding { old, size, new, change } = of_function;
                padding.push((old, size));
                if change != PaddingChange::Kept {
                    cut.insert(old + size, old);
                }
                match change {
                    PaddingChange::Kept => {
                        let anchor = SymbolAnchor { old, new, size };
                        by_section.entry(section).or_default().push(anchor);
                    }
                    PaddingChange::Shortened => {
                        shortened.insert(old, new);
                    }
                    PaddingChange::Dropped => {
                        dropped.insert(old, new);
                    }
                }
            }
        }
        let padding = intervals(padding.into_iter());
        SectionAnchors { by_section, shortened, dropped, padding, cut, labels: Vec::new() }
    }

    /// The anchors of one section, ascending, one for each address. If several symbols share an
    /// address, a symbol with a size is used, because it describes the bytes that follow. Otherwise
    /// the symbol that lies last in the new kernel is used, because an end lies in front of the
    /// next beginning.
    fn of(
        &self,
        index: usize,
        section: &KernelSection,
        twin: &KernelSection,
        covered: &[(u64, u64)],
    ) -> Vec<SymbolAnchor> {
        let inside = |a: &&SymbolAnchor| {
            (section.addr..section.end()).contains(&a.old)
                && (twin.addr..=twin.end()).contains(&a.new)
        };
        let mut all: Vec<SymbolAnchor> =
            self.by_section.get(&index).into_iter().flatten().filter(inside).copied().collect();
        if !contains(covered, section.addr) && !contains(&self.padding, section.addr) {
            all.push(SymbolAnchor { old: section.addr, new: twin.addr, size: 0 });
        }
        all.sort_unstable_by_key(|a| (a.old, a.size > 0, a.new));
        let mut anchors: Vec<SymbolAnchor> = Vec::new();
        for anchor in all {
            match anchors.last_mut() {
                Some(last) if last.old == anchor.old => {
                    last.new = anchor.new;
                    last.size = last.size.max(anchor.size);
                }
                _ => anchors.push(anchor),
            }
        }
        anchors
    }
}

/// The regions of one section: its stretches between blocks of the map, cut where the distance
/// changes. Padding that became shorter is in no region: it went with its function.
fn section_regions(
    section: &KernelSection,
    blocks: &[PlacedBlock],
    anchors: &[SymbolAnchor],
    cut: &HashMap<u64, u64>,
    old: &KernelFile,
    findings: &mut Findings,
) -> Vec<ShiftedRegion> {
    let from = blocks.partition_point(|b| b.old.0 < section.addr);
    let to = blocks.partition_point(|b| b.old.0 < section.end());
    let mut regions = Vec::new();
    let mut free = section.addr;
    for edge in blocks[from..to.max(from)]
        .iter()
        .map(|b| (b.old.0, b.old.0.saturating_add(b.old_size.into())))
        .chain([(section.end(), section.end())])
    {
        let end = cut.get(&edge.0).map_or(edge.0, |&begin| begin.max(free));
        if free < end {
            free_stretch(free, end, section.executable, anchors, old, findings, &mut regions);
        }
        if end < edge.0 && !old.bytes(end, edge.0 - end).is_some_and(is_padding) {
            let what = "the padding of a function became shorter, but it was no padding";
            findings.differ("coverage", Some(end), None, what);
        }
        free = free.max(edge.1);
    }
    regions
}

fn free_stretch(
    start: u64,
    end: u64,
    executable: bool,
    anchors: &[SymbolAnchor],
    old: &KernelFile,
    findings: &mut Findings,
    regions: &mut Vec<ShiftedRegion>,
) {
    let inside = &anchors
        [anchors.partition_point(|a| a.old < start)..anchors.partition_point(|a| a.old < end)];
    let anchored = inside.first().map_or(end, |a| a.old);
    if start < anchored && !old.bytes(start, anchored - start).is_some_and(is_padding) {
        let what = format!(
            "{} bytes lie outside the map, and both kernels have no common symbol in front of them",
            anchored - start
        );
        findings.differ("coverage", Some(start), None, what);
    }
    for (i, &SymbolAnchor { old: at, new, .. }) in inside.iter().enumerate() {
        let until = inside.get(i + 1).map_or(end, |a| a.old);
        let shift = new.wrapping_sub(at);
        match regions.last_mut() {
            Some(last)
                if last.old_end == at
                    && last.new.wrapping_sub(last.old) == shift
                    && at != start =>
            {
                last.old_end = until;
                last.new_end = until.wrapping_add(shift);
            }
            _ => regions.push(ShiftedRegion {
                old: at,
                old_end: until,
                new,
                new_end: until.wrapping_add(shift),
                executable,
            }),
        }
    }
}

/// Extends each data region to the next one in the new kernel. The additional bytes of either
/// kernel must be padding.
fn close_data_regions(regions: &mut [ShiftedRegion], twin: &KernelSection) {
    for i in 0..regions.len() {
        regions[i].new_end =
            regions.get(i + 1).map_or(twin.end(), |next| next.new).max(regions[i].new);
    }
}

/// Cuts a region whose length changed where its data without symbols was aligned differently. The
/// data of a symbol with a size stays in one piece.
fn cut_realigned_data(
    regions: Vec<ShiftedRegion>,
    anchors: &[SymbolAnchor],
    old: &KernelFile,
    new: &KernelFile,
    data: &DataFacts,
) -> Vec<ShiftedRegion> {
    let mut all = Vec::with_capacity(regions.len());
    for region in regions {
        let changes = realigned(&region, anchors, old, new, data);
        let mut rest = region;
        for (at, new_at) in changes {
            all.push(ShiftedRegion { old_end: at, new_end: new_at, ..rest });
            rest = ShiftedRegion { old: at, new: new_at, ..rest };
        }
        all.push(rest);
    }
    all
}

/// The places behind the last symbol of `region` at which the distance from old to new changes.
fn realigned(
    region: &ShiftedRegion,
    anchors: &[SymbolAnchor],
    old: &KernelFile,
    new: &KernelFile,
    data: &DataFacts,
) -> Vec<(u64, u64)> {
    if region.old_end - region.old == region.new_end - region.new {
        return Vec::new();
    }
    let inside = &anchors[anchors.partition_point(|a| a.old < region.old)
        ..anchors.partition_point(|a| a.old < region.old_end)];
    let named = inside.iter().map(|a| a.old.saturating_add(a.size)).max().unwrap_or(region.old);
    let start = named.clamp(region.old, region.old_end);
    let new_start = region.new.wrapping_add(start - region.old);
    if start == region.old_end
        || new_start > region.new_end
        || contains(data.compared_elsewhere, start)
    {
        return Vec::new();
    }
    let before = realign::DataStretch::of(old, start, region.old_end);
    let after = realign::DataStretch::of(new, new_start, region.new_end);
    let Some((before, after)) = before.zip(after) else {
        return Vec::new();
    };
    let in_old = |addr| data.places[0].byte_of_address(addr);
    let in_new = |addr| data.places[1].byte_of_address(addr);
    realign::changes(before, after, [&in_old, &in_new])
}
