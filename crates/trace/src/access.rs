//! The data accesses of a recording: which instruction loaded or stored at which address, where the
//! pages lay in physical memory, and what page frames were used for. These are plain values. This
//! module does no input or output.

use crate::{StreamEvent, TranslationId};

/// One access that an instruction of a translation makes: the instruction, whether it loads or
/// stores, and how many bytes.
///
/// ```text
/// bits 12 … 10  9      8 … 0
///      log2 of  1: a   index of the instruction in its translation
///      bytes    store
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccessSite(pub(crate) u16);

impl AccessSite {
    /// The bits that a site can have.
    pub(crate) const BITS: u16 = 0x1fff;
    const STORE: u16 = 1 << 9;

    /// Packs the three values. `instruction` must be below
    /// [`Translation::MAX_INSTRUCTIONS`](crate::Translation::MAX_INSTRUCTIONS) and `size_log2` at
    /// most 7. Higher bits are dropped.
    #[inline]
    pub fn new(instruction: u16, store: bool, size_log2: u8) -> AccessSite {
        AccessSite(
            instruction & 0x1ff
                | if store { AccessSite::STORE } else { 0 }
                | u16::from(size_log2 & 7) << 10,
        )
    }

    /// The index of the instruction in its translation.
    #[inline]
    pub fn instruction(self) -> u16 {
        self.0 & 0x1ff
    }

    /// Whether the instruction stores; otherwise it loads.
    #[inline]
    pub fn is_store(self) -> bool {
        self.0 & AccessSite::STORE != 0
    }

    /// The number of bytes: a power of two from 1 to 128.
    #[inline]
    pub fn size(self) -> u32 {
        1 << (self.0 >> 10 & 7)
    }
}

/// What is known about a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PageKind {
    /// Memory, mapped by a page of unknown size.
    #[default]
    Memory,
    /// Memory, mapped by a page of 4 KB.
    Small,
    /// Memory, mapped by a page of 2 MB.
    Large,
    /// Memory, mapped by a page of 1 GB.
    Huge,
    /// A device, not memory.
    Device,
}

impl PageKind {
    pub(crate) const ALL: [PageKind; 5] =
        [PageKind::Memory, PageKind::Small, PageKind::Large, PageKind::Huge, PageKind::Device];

    /// log2 of the bytes that one page of this kind maps. A page of unknown size counts as 4 KB.
    pub fn size_log2(self) -> u32 {
        match self {
            PageKind::Memory | PageKind::Small | PageKind::Device => 12,
            PageKind::Large => 21,
            PageKind::Huge => 30,
        }
    }
}

/// The physical page frame of one 4 KB page of the running task's virtual memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// Virtual address / 4096.
    pub page: u64,
    /// Physical address / 4096.
    pub frame: u64,
    /// How large the page is, or that it belongs to a device.
    pub kind: PageKind,
}

/// What a page frame is used for, according to the kernel's `struct page` for that frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrameUse {
    /// No one holds the frame. Also: the frame was allocated as part of several frames that have no
    /// head page, or nothing is known about it.
    #[default]
    Free,
    /// The frame is held and has no mark: the kernel allocates such frames for stacks, pipes,
    /// socket buffers and `vmalloc`.
    Unmarked,
    /// The frame holds objects of the slab cache with this number.
    Slab(u32),
    /// One table of a page table.
    PageTable,
    /// The cache of a file's contents.
    File,
    /// A process's memory that belongs to no file.
    Anonymous,
    /// Reserved when the kernel booted.
    Reserved,
    /// Part of the compound page that begins at this frame, with the same use.
    PartOf(u64),
}

/// A range of frames gets another use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameUseChange {
    /// The first frame: physical address / 4096.
    pub frame: u64,
    /// The number of frames, at least 1.
    pub frames: u64,
    /// The use of each of these frames from now on.
    pub used: FrameUse,
}

/// The accesses that a translation usually makes when it is executed to its end, and the physical
/// addresses of its code. Executions that differ are recorded one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessPattern {
    /// The translation that the pattern describes.
    pub translation: TranslationId,
    /// Physical addresses of the translation's first byte, and of its first byte in a second page.
    /// `None`: the address is not known, or there is no second page.
    pub physical: [Option<u64>; 2],
    /// The sites, in the order of their accesses.
    pub sites: Box<[AccessSite]>,
}

impl AccessPattern {
    /// The largest number of sites in a pattern.
    pub const MAX_SITES: usize = u16::MAX as usize;
}

/// The patterns defined so far, by translation.
#[derive(Clone, Debug, Default)]
pub struct AccessPatterns {
    /// By translation. Every execution reads one, so the seldom used addresses are kept apart.
    spans: Vec<PatternSpan>,
    /// Physical addresses of the code, by translation. `None`: the translation has no pattern.
    physical: Vec<Option<[u64; 2]>>,
    /// The sites of all patterns, one pattern after the other.
    sites: Vec<AccessSite>,
}

/// Where a pattern stands in [`AccessPatterns::sites`], and how many of its sites store.
#[derive(Clone, Copy, Debug, Default)]
struct PatternSpan {
    first: u32,
    sites: u16,
    stores: u16,
}

/// The value of a physical address that is not known.
pub(crate) const UNKNOWN: u64 = u64::MAX;

impl AccessPatterns {
    /// Adds a pattern. Returns false, and changes nothing, if the translation already has one.
    pub(crate) fn define(&mut self, pattern: &AccessPattern) -> bool {
        let at = pattern.translation.0 as usize;
        if self.is_defined(pattern.translation) {
            return false;
        }
        if at >= self.spans.len() {
            self.spans.resize(at + 1, PatternSpan::default());
            self.physical.resize(at + 1, None);
        }
        self.spans[at] = PatternSpan {
            first: self.sites.len() as u32,
            sites: pattern.sites.len() as u16,
            stores: pattern.sites.iter().filter(|site| site.is_store()).count() as u16,
        };
        self.physical[at] = Some(pattern.physical.map(|addr| addr.unwrap_or(UNKNOWN)));
        self.sites.extend_from_slice(&pattern.sites);
        true
    }

    pub(crate) fn is_defined(&self, translation: TranslationId) -> bool {
        self.physical.get(translation.0 as usize).is_some_and(Option::is_some)
    }

    /// The sites of all patterns. [`AccessPatterns::range`] gives positions in this slice.
    pub(crate) fn sites(&self) -> &[AccessSite] {
        &self.sites
    }

    /// The translations that have a pattern, in ascending order.
    pub fn translations(&self) -> impl Iterator<Item = TranslationId> {
        let defined = self.physical.iter().enumerate().filter(|(_, physical)| physical.is_some());
        defined.map(|(id, _)| TranslationId(id as u32))
    }

    /// The position of the translation's pattern in [`AccessPatterns::sites`]. The range is empty
    /// when the translation has no pattern.
    #[inline]
    pub(crate) fn range(&self, translation: TranslationId) -> std::ops::Range<usize> {
        match self.spans.get(translation.0 as usize) {
            Some(span) => span.first as usize..span.first as usize + usize::from(span.sites),
            None => 0..0,
        }
    }

    /// The sites of the translation's pattern; empty when the translation has none.
    #[inline]
    pub fn of(&self, translation: TranslationId) -> &[AccessSite] {
        &self.sites[self.range(translation)]
    }

    /// The numbers of loads and stores in the translation's pattern.
    #[inline]
    pub(crate) fn loads_and_stores(&self, translation: TranslationId) -> (u64, u64) {
        match self.spans.get(translation.0 as usize) {
            Some(span) => (u64::from(span.sites - span.stores), span.stores.into()),
            None => (0, 0),
        }
    }

    /// Physical addresses of the translation's first byte, and of its first byte in a second page,
    /// where they are known.
    pub fn physical(&self, translation: TranslationId) -> [Option<u64>; 2] {
        match self.physical.get(translation.0 as usize) {
            Some(Some(physical)) => physical.map(|addr| (addr != UNKNOWN).then_some(addr)),
            _ => [None; 2],
        }
    }
}

/// The accesses that belong to the words of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Virtual addresses, in the order of the accesses.
    pub addresses: Vec<u64>,
    /// Mappings. Each holds from the access with the given number on.
    pub mappings: Vec<(u32, Mapping)>,
    /// Changes of the use of frames. Each holds from the execution with the given number on.
    pub uses: Vec<(u32, FrameUseChange)>,
    /// The names of slab caches by number, from all streams up to this one.
    pub slab_caches: Vec<String>,
    /// Irregular executions, which did not follow their pattern: the number of the execution in
    /// the stream, and where its sites begin in `irregular_sites`.
    pub(crate) irregular: Vec<(u32, u32)>,
    pub(crate) irregular_sites: Vec<AccessSite>,
}

impl Accesses {
    /// The largest number of accesses in a stream: a quarter of a gigabyte of addresses. A few
    /// bytes can stand for all of them
    /// ([`RecordingReader::with_most_accesses`](crate::RecordingReader::with_most_accesses)).
    pub const MAX: usize = 1 << 25;

    /// Begins a walk at the first execution of the stream. `patterns` are those of the same reader.
    pub fn walk<'a>(&'a self, patterns: &'a AccessPatterns) -> AccessWalk<'a> {
        AccessWalk { accesses: self, patterns, execution: 0, irregular: 0, access: 0 }
    }

    pub(crate) fn clear(&mut self) {
        self.addresses.clear();
        self.mappings.clear();
        self.uses.clear();
        self.irregular.clear();
        self.irregular_sites.clear();
    }

    pub(crate) fn irregular_sites_of(&self, number: usize) -> &[AccessSite] {
        let end = self
            .irregular
            .get(number + 1)
            .map_or(self.irregular_sites.len(), |next| next.1 as usize);
        &self.irregular_sites[self.irregular[number].1 as usize..end]
    }
}

/// Goes through the executions of a stream and gives the accesses of each.
#[derive(Clone, Debug)]
pub struct AccessWalk<'a> {
    accesses: &'a Accesses,
    patterns: &'a AccessPatterns,
    /// The number of the next execution.
    execution: u32,
    /// How many irregular executions are behind.
    irregular: usize,
    /// The number of the next access.
    access: usize,
}

impl<'a> AccessWalk<'a> {
    /// The accesses of the next execution: its sites, and the number of its first access in
    /// [`Accesses::addresses`]. There is one address for each site.
    ///
    /// The execution must be the stream's next [`StreamEvent::Executed`] or [`StreamEvent::Left`].
    #[inline]
    pub fn execution(
        &mut self,
        translation: TranslationId,
        left: bool,
    ) -> (&'a [AccessSite], usize) {
        let sites = match self.accesses.irregular.get(self.irregular) {
            Some(irregular) if irregular.0 == self.execution => {
                self.irregular += 1;
                self.accesses.irregular_sites_of(self.irregular - 1)
            }
            _ if left => &[],
            _ => self.patterns.of(translation),
        };
        let first = self.access;
        self.access += sites.len();
        self.execution += 1;
        (sites, first)
    }

    /// The same as [`AccessWalk::execution`] for any event. Events that are not executions have no
    /// accesses.
    #[inline]
    pub fn event(&mut self, event: StreamEvent) -> (&'a [AccessSite], usize) {
        match event.execution() {
            Some((translation, reached)) => self.execution(translation, reached.is_some()),
            None => (&[], self.access),
        }
    }
}

/// The accesses that a recorder observed while the executions in a run of words happened. The
/// [`RecordingWriter`](crate::RecordingWriter) takes them together with these words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedAccesses {
    /// Virtual addresses, in the order of the accesses.
    pub addresses: Vec<u64>,
    /// The site of each access; as long as `addresses`.
    pub sites: Vec<AccessSite>,
    /// For each execution in the words: the number of accesses before it.
    pub starts: Vec<u32>,
    /// Mappings. Each holds from the access with the given number on. The numbers ascend.
    pub mappings: Vec<(u32, Mapping)>,
    /// Changes of the use of frames. Each holds from the execution with the given number on. The
    /// numbers ascend.
    pub uses: Vec<(u32, FrameUseChange)>,
    /// The names of slab caches that are new, in the order of their numbers.
    pub slab_caches: Vec<String>,
    /// Physical addresses of translations, as in [`AccessPattern::physical`]. A translation's
    /// addresses come before its first execution.
    pub physical: Vec<(TranslationId, [Option<u64>; 2])>,
}

impl ObservedAccesses {
    /// Empties all lists and keeps their memory.
    pub fn clear(&mut self) {
        self.addresses.clear();
        self.sites.clear();
        self.starts.clear();
        self.mappings.clear();
        self.uses.clear();
        self.slab_caches.clear();
        self.physical.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_gives_back_the_values_it_was_made_from() {
        for instruction in [0, 1, 511] {
            for store in [false, true] {
                for size_log2 in 0..8 {
                    let site = AccessSite::new(instruction, store, size_log2);
                    assert_eq!(
                        (site.instruction(), site.is_store(), site.size()),
                        (instruction, store, 1 << size_log2)
                    );
                    assert_eq!(site.0 & !AccessSite::BITS, 0);
                }
            }
        }
    }

    #[test]
    fn a_translation_has_one_pattern() {
        let pattern = |id, sites: &[AccessSite]| AccessPattern {
            translation: TranslationId(id),
            physical: [Some(0x1000), None],
            sites: sites.into(),
        };
        let (load, store) = (AccessSite::new(1, false, 3), AccessSite::new(1, true, 3));
        let mut patterns = AccessPatterns::default();
        assert!(patterns.define(&pattern(4, &[load, store])));
        assert!(patterns.define(&pattern(1, &[])));
        assert!(!patterns.define(&pattern(4, &[load])));
        assert_eq!(patterns.of(TranslationId(4)), [load, store]);
        assert_eq!(patterns.loads_and_stores(TranslationId(4)), (1, 1));
        assert_eq!(patterns.physical(TranslationId(1)), [Some(0x1000), None]);
        for unknown in [0, 2, 5] {
            assert!(patterns.of(TranslationId(unknown)).is_empty());
            assert_eq!(patterns.physical(TranslationId(unknown)), [None; 2]);
        }
    }
}
