//! The data accesses of the recorded execution: who made each, and where in physical memory it
//! lies.
//!
//! Takes the words of a stream and the accesses that belong to them; gives, execution by execution,
//! what a simulated machine's data caches and TLB are asked for. Depends on no layout: the
//! recording is turned into this once. Never looks at code.

use crate::code::Code;
use sim::{Line, Machine, Mode, PhysAddr, Requester};
use std::collections::HashMap;
use trace::{
    Accesses, Event, Mapping, PageKind, Patterns, RunAddr, Site, Task, TranslationId, Walk, events,
};

/// Of a recording with data accesses, so many words are followed at once: what belongs to them fits
/// the nearer caches.
pub const PIECE: usize = 1 << 13;

/// What one execution of a translation did besides fetching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    pub translation: TranslationId,
    pub loads: u32,
    pub stores: u32,
    /// How many of [`DataFlow::accesses`] are its.
    pub accesses: u32,
    /// The process that ran; in the kernel, on whose behalf.
    pub process: Requester,
    /// How many of its instructions were reached, when it was left; else 0.
    pub left: u16,
}

impl Execution {
    /// Nothing.
    pub const NONE: Execution = Execution {
        translation: TranslationId(0),
        loads: 0,
        stores: 0,
        accesses: 0,
        process: Requester::KERNEL,
        left: 0,
    };
}

/// A load or store within one page that can change what is in a cache or TLB. One of a device
/// cannot, nor one of the line that was accessed just before: that is there, and the most recently
/// used of its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub physical: PhysAddr,
    /// Stands for the page that maps it, in the numbering of [`DataFlow`].
    pub page: Line,
    /// The index of the instruction in its translation.
    pub instruction: u16,
    /// Bytes; of an access across two pages, those in this page.
    pub size: u8,
}

impl Access {
    const NONE: Access =
        Access { physical: PhysAddr(0), page: Line::physical(0), instruction: 0, size: 1 };
}

/// The accesses of a stream, and how far they were followed.
pub struct Stream<'a> {
    walk: Walk<'a>,
    addresses: &'a [u64],
    mappings: &'a [(u32, Mapping)],
}

impl<'a> Stream<'a> {
    pub fn new(accesses: &'a Accesses, patterns: &'a Patterns) -> Stream<'a> {
        Stream {
            walk: accesses.walk(patterns),
            addresses: &accesses.addresses,
            mappings: &accesses.mappings,
        }
    }
}

/// Where a page lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The physical address of its first byte.
    base: u64,
    page: Line,
    device: bool,
}

/// Pages found last, by their low bits.
const FILTER: usize = 1024;
/// No address has this page: it has more than 52 bits.
const NO_PAGE: u64 = u64::MAX;

/// Follows the recorded accesses.
pub struct DataFlow {
    /// Not yet taken by [`DataFlow::forget`].
    pub executions: Vec<Execution>,
    /// The first `made` are accesses; what lies behind is room.
    room: Vec<Access>,
    made: usize,
    tasks: Vec<Requester>,
    /// By pid, or, where that is not known, by the task's address.
    processes: HashMap<u64, u32>,
    process: Requester,
    pages: HashMap<u64, Place>,
    filter: Box<[(u64, Place); FILTER]>,
    numbers: HashMap<(u64, u64), u32>,
    /// By these numbers: the virtual address of the page, and log2 of its bytes.
    numbered: Vec<(u64, u32)>,
    /// log2 of the bytes in the shortest line of an L1D.
    line_bits: u32,
    /// The line accessed last, and its page.
    last: (u64, Line),
    /// log2 of the sets of the largest TLB: so many low bits of a page's number are those of its
    /// address.
    set_bits: u32,
    /// Virtual address less physical address of the kernel's image.
    image: Option<u64>,
}

impl DataFlow {
    /// For these machines.
    pub fn new(machines: &[Machine]) -> DataFlow {
        let memories = || machines.iter().filter_map(|machine| machine.memory.as_ref());
        let sets = memories().filter_map(|memory| Some(memory.dtlb?.sets())).max().unwrap_or(1);
        let line = memories().map(|memory| memory.l1d.line).min().unwrap_or(16);
        DataFlow {
            line_bits: line.trailing_zeros(),
            last: (u64::MAX, Line::physical(0)),
            executions: Vec::new(),
            room: Vec::new(),
            made: 0,
            tasks: Vec::new(),
            processes: HashMap::new(),
            process: Requester::process(0),
            pages: HashMap::new(),
            filter: Box::new(
                [(NO_PAGE, Place { base: 0, page: Line::physical(0), device: false }); FILTER],
            ),
            numbers: HashMap::new(),
            numbered: Vec::new(),
            set_bits: sets.trailing_zeros(),
            image: None,
        }
    }

    pub fn define_tasks(&mut self, tasks: &[Task]) {
        for task in tasks {
            let next = self.processes.len() as u32;
            let key = task.pid.map_or(task.pointer.0, u64::from);
            let number = *self.processes.entry(key).or_insert(next);
            self.tasks.push(Requester::process(number));
        }
    }

    /// Of all executions, one after the other.
    pub fn accesses(&self) -> &[Access] {
        &self.room[..self.made]
    }

    /// Appends what the executions of these words did, the next of the stream.
    pub fn follow(&mut self, words: &[u32], stream: &mut Stream<'_>) {
        let next_mapping = |stream: &Stream<'_>| {
            stream.mappings.first().map_or(usize::MAX, |(from, _)| *from as usize)
        };
        let mut mapped = next_mapping(stream);
        for event in events(words) {
            let (translation, left) = match event {
                Event::Executed(id) => (id, 0),
                Event::Left { translation, instructions } => (translation, instructions as u16),
                Event::Task(id) => {
                    self.process = self.tasks.get(id.0 as usize).copied().unwrap_or(self.process);
                    continue;
                }
                Event::Marker(_) | Event::Woken(_) | Event::Clock(_) => continue,
            };
            let (sites, first) = stream.walk.execution(translation, left != 0);
            let addresses = &stream.addresses[first..first + sites.len()];
            let before = self.made;
            // An access across two pages becomes two.
            if self.room.len() < before + 2 * sites.len() {
                self.room.resize(2 * (before + 2 * sites.len()), Access::NONE);
            }
            let mut stores = 0;
            for (at, (site, addr)) in (first..).zip(sites.iter().zip(addresses)) {
                while mapped <= at {
                    self.next_mapping(stream);
                    mapped = next_mapping(stream);
                }
                stores += u32::from(site.is_store());
                self.access(*site, *addr);
            }
            self.executions.push(Execution {
                translation,
                loads: sites.len() as u32 - stores,
                stores,
                accesses: (self.made - before) as u32,
                process: self.process,
                left,
            });
        }
    }

    /// The stream is done with.
    pub fn finish(&mut self, mut stream: Stream<'_>) {
        while !stream.mappings.is_empty() {
            self.next_mapping(&mut stream);
        }
    }

    #[cold]
    fn next_mapping(&mut self, stream: &mut Stream<'_>) {
        if let Some(((_, mapping), rest)) = stream.mappings.split_first() {
            self.map(mapping);
            stream.mappings = rest;
        }
    }

    /// Drops executions that are done with, and their accesses.
    pub fn forget(&mut self, executions: usize) {
        let accesses: usize = match executions == self.executions.len() {
            true => self.made,
            false => self.executions[..executions]
                .iter()
                .map(|execution| execution.accesses as usize)
                .sum(),
        };
        self.executions.drain(..executions);
        self.room.copy_within(accesses..self.made, 0);
        self.made -= accesses;
    }

    #[inline]
    fn access(&mut self, site: Site, addr: u64) {
        let size = site.size();
        let left_in_page = 4096 - (addr as u32 & 0xfff);
        if size <= left_in_page {
            self.part(site, addr, size);
        } else {
            self.part(site, addr, left_in_page);
            self.part(site, addr.wrapping_add(left_in_page.into()), size - left_in_page);
        }
    }

    /// Whether it is kept is seldom foreseen, so it is written in any case.
    #[inline]
    fn part(&mut self, site: Site, addr: u64, size: u32) {
        let place = self.place(addr >> 12);
        let physical = place.base | addr & 0xfff;
        let (first, last) =
            (physical >> self.line_bits, (physical + u64::from(size) - 1) >> self.line_bits);
        self.room[self.made] = Access {
            physical: PhysAddr(physical),
            page: place.page,
            instruction: site.instruction(),
            size: size as u8,
        };
        let again = (first == self.last.0) & (last == self.last.0) & (place.page == self.last.1);
        self.made += usize::from(!(again | place.device));
        if !place.device {
            self.last = (last, place.page);
        }
    }

    #[inline]
    fn place(&mut self, page: u64) -> Place {
        match self.filter[page as usize % FILTER] {
            (known, place) if known == page => place,
            _ => self.find(page),
        }
    }

    #[cold]
    fn find(&mut self, page: u64) -> Place {
        if !self.pages.contains_key(&page) {
            // QEMU could not say where it lies: as good as any other place of its own.
            self.map(&Mapping { page, frame: page & 0xff_ffff, kind: PageKind::Memory });
        }
        let place = self.pages[&page];
        self.filter[page as usize % FILTER] = (page, place);
        place
    }

    fn map(&mut self, mapping: &Mapping) {
        let above = mapping.kind.size_log2() - 12;
        let (unit, physical) = (mapping.page >> above, mapping.frame >> above);
        let next = self.numbers.len() as u32;
        let number = *self.numbers.entry((unit, physical)).or_insert(next);
        if number == next {
            self.numbered.push((unit << above << 12, above + 12));
        }
        let mode = if mapping.page >> 51 == 1 { Mode::Kernel } else { Mode::User };
        let index = u64::from(number) << self.set_bits | unit & ((1 << self.set_bits) - 1);
        let place = Place {
            base: mapping.frame << 12,
            page: Line::new(mode, index.min(Line::MAX_INDEX.into()) as u32)
                .expect("the index is in range"),
            device: mapping.kind == PageKind::Device,
        };
        self.pages.insert(mapping.page, place);
        self.filter[mapping.page as usize % FILTER] = (mapping.page, place);
    }

    /// The virtual address of an access.
    pub fn virtual_address(&self, access: &Access) -> u64 {
        let number = (access.page.index() >> self.set_bits) as usize;
        let (page, size_log2) = self.numbered.get(number).copied().unwrap_or((0, 0));
        page | access.physical.0 & ((1 << size_log2) - 1)
    }

    /// Where code lies that is fetched from `addr`, which is in `code`, or where a layout put it.
    pub fn code(
        &mut self,
        addr: RunAddr,
        code: &Code,
        id: TranslationId,
        patterns: &Patterns,
    ) -> PhysAddr {
        let of_code = patterns.physical(id);
        if self.image.is_none() && in_image(code.addr) {
            self.image = of_code[0].map(|physical| code.addr.0.wrapping_sub(physical));
        }
        if let Some(offset) = self.image.filter(|_| in_image(addr)) {
            return PhysAddr(addr.0.wrapping_sub(offset));
        }
        let second_page = addr.0 >> 12 != code.addr.0 >> 12;
        match of_code[usize::from(second_page)] {
            Some(physical) => PhysAddr(physical & !0xfff | addr.0 & 0xfff),
            // Never executed to its end: as good as any other place of its own.
            None => PhysAddr(addr.0 & 0xf_ffff_ffff),
        }
    }
}

/// Where x86-64 Linux maps the kernel's image, one piece of physical memory
/// (Documentation/arch/x86/x86_64/mm.rst).
fn in_image(addr: RunAddr) -> bool {
    (0xffff_ffff_8000_0000..0xffff_ffff_a000_0000).contains(&addr.0)
}
