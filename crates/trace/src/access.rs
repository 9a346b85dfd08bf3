//! The data accesses of a recording: which instruction loaded or stored what, and where its pages
//! lay. Plain values; nothing here reads or writes.

use crate::{Event, TranslationId};

/// One access that an instruction of a translation makes: the instruction, load or store, and how
/// many bytes.
///
/// ```text
/// bits 12 … 10  9      8 … 0
///      log2 of  1: a   index of the instruction in its translation
///      bytes    store
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site(pub(crate) u16);

impl Site {
    /// The bits that a site can have.
    pub(crate) const BITS: u16 = 0x1fff;
    const STORE: u16 = 1 << 9;

    /// `instruction` is below
    /// [`Translation::MAX_INSTRUCTIONS`](crate::Translation::MAX_INSTRUCTIONS), `size_log2` at most
    /// 7: what lies above is cut off.
    #[inline]
    pub fn new(instruction: u16, store: bool, size_log2: u8) -> Site {
        Site(
            instruction & 0x1ff
                | if store { Site::STORE } else { 0 }
                | u16::from(size_log2 & 7) << 10,
        )
    }

    /// The index of the instruction in its translation.
    #[inline]
    pub fn instruction(self) -> u16 {
        self.0 & 0x1ff
    }

    #[inline]
    pub fn is_store(self) -> bool {
        self.0 & Site::STORE != 0
    }

    /// Bytes: a power of two from 1 to 128.
    #[inline]
    pub fn size(self) -> u32 {
        1 << (self.0 >> 10 & 7)
    }
}

/// What is known of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PageKind {
    /// Memory; how large a page the guest maps there is not known.
    #[default]
    Memory,
    /// Memory, mapped by a page of 4 KB, 2 MB or 1 GB.
    Small,
    Large,
    Huge,
    /// Not memory: a device.
    Device,
}

impl PageKind {
    pub(crate) const ALL: [PageKind; 5] =
        [PageKind::Memory, PageKind::Small, PageKind::Large, PageKind::Huge, PageKind::Device];

    /// log2 of the bytes that one page of this kind maps; a page of unknown size counts as small.
    pub fn size_log2(self) -> u32 {
        match self {
            PageKind::Memory | PageKind::Small | PageKind::Device => 12,
            PageKind::Large => 21,
            PageKind::Huge => 30,
        }
    }
}

/// Where 4 KB of the running task's virtual memory lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// Virtual address / 4096.
    pub page: u64,
    /// Physical address / 4096.
    pub frame: u64,
    pub kind: PageKind,
}

/// What a page frame is used for, as the kernel's `struct page` of it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrameUse {
    /// Nobody holds it; or it was taken as part of several without a head, or nothing is known of
    /// it.
    #[default]
    Free,
    /// Somebody holds it, and it has no mark: what the kernel takes for its stacks, pipes, socket
    /// buffers, `vmalloc`.
    Unmarked,
    /// Objects of the slab cache with this number.
    Slab(u32),
    /// A table of a page table.
    PageTable,
    /// The cache of a file's contents.
    File,
    /// A process's memory that belongs to no file.
    Anonymous,
    /// Set aside when the kernel booted.
    Reserved,
    /// Part of what begins at this frame, and used as that is.
    PartOf(u64),
}

/// From an execution on, these frames are used so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UseChange {
    pub frame: u64,
    /// At least one.
    pub frames: u64,
    pub used: FrameUse,
}

/// What a translation does to memory whenever it is executed to its end, short of exceptions to it;
/// and where its code lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    pub translation: TranslationId,
    /// Physical addresses of its first byte, and of its first byte in a second page; `None` where
    /// not known or not there.
    pub physical: [Option<u64>; 2],
    /// In the order in which the accesses happen.
    pub sites: Box<[Site]>,
}

impl Pattern {
    pub const MAX_SITES: usize = u16::MAX as usize;
}

/// The patterns that were defined so far, by translation.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
    /// By translation; read for every execution, so what is seldom wanted stands apart.
    entries: Vec<Entry>,
    /// By translation; `None`: it has no pattern.
    physical: Vec<Option<[u64; 2]>>,
    /// Of all patterns, one after the other.
    sites: Vec<Site>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    first: u32,
    sites: u16,
    stores: u16,
}

/// Stands for a physical address that is not known.
pub(crate) const UNKNOWN: u64 = u64::MAX;

impl Patterns {
    /// False when the translation has one already.
    pub(crate) fn define(&mut self, pattern: &Pattern) -> bool {
        let at = pattern.translation.0 as usize;
        if self.is_defined(pattern.translation) {
            return false;
        }
        if at >= self.entries.len() {
            self.entries.resize(at + 1, Entry::default());
            self.physical.resize(at + 1, None);
        }
        self.entries[at] = Entry {
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

    /// Of all patterns together: what [`Patterns::range`] points into.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// The translations that have a pattern, ascending.
    pub fn translations(&self) -> impl Iterator<Item = TranslationId> {
        let defined = self.physical.iter().enumerate().filter(|(_, physical)| physical.is_some());
        defined.map(|(id, _)| TranslationId(id as u32))
    }

    /// Where the translation's pattern stands in [`Patterns::sites`]; empty when it has none.
    #[inline]
    pub fn range(&self, translation: TranslationId) -> std::ops::Range<usize> {
        match self.entries.get(translation.0 as usize) {
            Some(entry) => entry.first as usize..entry.first as usize + usize::from(entry.sites),
            None => 0..0,
        }
    }

    #[inline]
    pub fn of(&self, translation: TranslationId) -> &[Site] {
        &self.sites[self.range(translation)]
    }

    /// Loads and stores of the translation's pattern.
    #[inline]
    pub(crate) fn amounts(&self, translation: TranslationId) -> (u64, u64) {
        match self.entries.get(translation.0 as usize) {
            Some(entry) => (u64::from(entry.sites - entry.stores), entry.stores.into()),
            None => (0, 0),
        }
    }

    /// Physical addresses of the translation's first byte, and of its first byte in a second page.
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
    /// Virtual addresses, in the order in which they happened.
    pub addresses: Vec<u64>,
    /// Mappings that hold from the access with this number on.
    pub mappings: Vec<(u32, Mapping)>,
    /// What frames are used for from the execution with this number on.
    pub uses: Vec<(u32, UseChange)>,
    /// The names of slab caches, by number; of all streams up to this one.
    pub slab_caches: Vec<String>,
    /// Executions that did not follow their pattern, by their number among the executions of the
    /// stream; and where their sites begin in `other_sites`.
    pub(crate) others: Vec<(u32, u32)>,
    pub(crate) other_sites: Vec<Site>,
}

impl Accesses {
    /// No stream has more: a quarter of a gigabyte of addresses. A few bytes can stand for all of
    /// them, so a fuzzer gets a lower limit, and with that through more inputs.
    pub const MAX: usize = if cfg!(fuzzing) { 1 << 16 } else { 1 << 25 };

    /// Begins at the first execution of the stream.
    pub fn walk<'a>(&'a self, patterns: &'a Patterns) -> Walk<'a> {
        Walk { accesses: self, patterns, execution: 0, others: 0, at: 0 }
    }

    pub(crate) fn clear(&mut self) {
        self.addresses.clear();
        self.mappings.clear();
        self.uses.clear();
        self.others.clear();
        self.other_sites.clear();
    }

    fn other(&self, number: usize) -> &[Site] {
        let end =
            self.others.get(number + 1).map_or(self.other_sites.len(), |next| next.1 as usize);
        &self.other_sites[self.others[number].1 as usize..end]
    }
}

/// Goes through the executions of a stream and tells what each accessed.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    accesses: &'a Accesses,
    patterns: &'a Patterns,
    execution: u32,
    others: usize,
    at: usize,
}

impl<'a> Walk<'a> {
    /// The accesses of the next execution, which must be the next [`Event::Executed`] or
    /// [`Event::Left`] of the stream: its sites, and the number of the first of its accesses. The
    /// same number of addresses follows.
    #[inline]
    pub fn execution(&mut self, translation: TranslationId, left: bool) -> (&'a [Site], usize) {
        let sites = match self.accesses.others.get(self.others) {
            Some(other) if other.0 == self.execution => {
                self.others += 1;
                self.accesses.other(self.others - 1)
            }
            _ if left => &[],
            _ => self.patterns.of(translation),
        };
        let first = self.at;
        self.at += sites.len();
        self.execution += 1;
        (sites, first)
    }

    /// As [`Walk::execution`], for any event; nothing for one that is no execution.
    #[inline]
    pub fn event(&mut self, event: Event) -> (&'a [Site], usize) {
        match event {
            Event::Executed(id) => self.execution(id, false),
            Event::Left { translation, .. } => self.execution(translation, true),
            Event::Task(_) | Event::Marker(_) | Event::Woken(_) | Event::Clock(_) => (&[], self.at),
        }
    }
}

/// What a recorder saw, as it saw it: to be given to the [`Writer`](crate::Writer) with the words
/// it belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenAccesses {
    pub addresses: Vec<u64>,
    /// As long as `addresses`.
    pub sites: Vec<Site>,
    /// For each execution in the words: how many of the accesses stand before it.
    pub starts: Vec<u32>,
    /// Mappings that hold from the access with this number on, ascending.
    pub mappings: Vec<(u32, Mapping)>,
    /// What frames are used for from the execution with this number on, ascending.
    pub uses: Vec<(u32, UseChange)>,
    /// The names of slab caches, in the order of their numbers; those that are new.
    pub slab_caches: Vec<String>,
    /// Translations' physical addresses, as in [`Pattern::physical`]; for each before it is first
    /// executed.
    pub physical: Vec<(TranslationId, [Option<u64>; 2])>,
}

impl SeenAccesses {
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
    fn a_site_keeps_what_it_is_made_of() {
        for instruction in [0, 1, 511] {
            for store in [false, true] {
                for size_log2 in 0..8 {
                    let site = Site::new(instruction, store, size_log2);
                    assert_eq!(
                        (site.instruction(), site.is_store(), site.size()),
                        (instruction, store, 1 << size_log2)
                    );
                    assert_eq!(site.0 & !Site::BITS, 0);
                }
            }
        }
    }

    #[test]
    fn a_translation_has_one_pattern() {
        let pattern = |id, sites: &[Site]| Pattern {
            translation: TranslationId(id),
            physical: [Some(0x1000), None],
            sites: sites.into(),
        };
        let (load, store) = (Site::new(1, false, 3), Site::new(1, true, 3));
        let mut patterns = Patterns::default();
        assert!(patterns.define(&pattern(4, &[load, store])));
        assert!(patterns.define(&pattern(1, &[])));
        assert!(!patterns.define(&pattern(4, &[load])));
        assert_eq!(patterns.of(TranslationId(4)), [load, store]);
        assert_eq!(patterns.amounts(TranslationId(4)), (1, 1));
        assert_eq!(patterns.physical(TranslationId(1)), [Some(0x1000), None]);
        for unknown in [0, 2, 5] {
            assert!(patterns.of(TranslationId(unknown)).is_empty());
            assert_eq!(patterns.physical(TranslationId(unknown)), [None; 2]);
        }
    }
}
