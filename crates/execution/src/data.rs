//! The data accesses of the recorded execution: the process of each, and its physical address.
//!
//! Input: the words of a stream and the accesses that belong to them. Output, for each execution:
//! the accesses to the data caches and the TLB of a simulated machine. They do not depend on a
//! layout, so a recording is turned into them once. This module never looks at code.

use crate::code::TranslatedCode;
use crate::per_cpu::PerCpu;
pub use sim::core::DataAccess;
use sim::{LineId, MachineModel, Mode, PhysAddr, Requester};
use std::collections::HashMap;
use std::sync::OnceLock;
use trace::{
    AccessPatterns, AccessSite, AccessWalk, Accesses, CpuId, Mapping, PageKind, RunAddr,
    StreamEvent, Task, TranslationId, events,
};

/// The number of words to follow at once in a recording with data accesses. Their accesses fit the
/// nearer caches.
pub const PIECE_WORDS: usize = 1 << 13;

/// The accesses that an observer needs.
///
/// An access to the line that was accessed just before changes no cache or TLB: the line is
/// present, and is the most recently used of its set. So machines without an out-of-order core and
/// with a separate L1D do not need all accesses. With more accesses than needed, they count the
/// same misses. In a unified cache, code that was fetched in between may have taken the line's
/// place. So observers of such caches also need the first access of each execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataWish {
    /// log2 of the bytes in the shortest line of an L1D.
    line_bits: u32,
    /// log2 of the sets of the largest TLB.
    set_bits: u32,
    repeated: Repeated,
}

/// Which accesses to the line of the access before are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Repeated {
    None,
    FirstOfExecution,
    All,
}

impl DataWish {
    /// Every access to memory.
    pub const EVERY_ACCESS: DataWish =
        DataWish { line_bits: 4, set_bits: 0, repeated: Repeated::All };

    /// What changes a cache or a TLB of these machines.
    pub fn of(machines: &[MachineModel]) -> DataWish {
        let memories = || machines.iter().filter_map(|machine| machine.memory.as_ref());
        let cores = || machines.iter().filter_map(|machine| machine.core.as_ref());
        let first = memories().filter_map(|memory| Some(memory.dtlb?.sets()));
        let second = cores().map(|core| core.memory.second_tlb.sets());
        let sets = first.chain(second).max().unwrap_or(1);
        let line = memories().map(|memory| memory.l1d.line).min().unwrap_or(16);
        DataWish {
            line_bits: line.trailing_zeros(),
            set_bits: sets.trailing_zeros(),
            repeated: all_if(machines.iter().any(|it| it.core.is_some() || it.coherence.is_some())),
        }
    }

    /// The same, without what out-of-order cores need.
    pub fn of_caches(machines: &[MachineModel]) -> DataWish {
        let repeated = all_if(machines.iter().any(|machine| machine.coherence.is_some()));
        DataWish { repeated, ..DataWish::of(machines) }
    }

    /// What changes a cache of data, or of data and code, with lines of at least `line` bytes.
    pub fn of_unified_caches(line: u32) -> DataWish {
        let line_bits = line.trailing_zeros();
        DataWish { line_bits, set_bits: 0, repeated: Repeated::FirstOfExecution }
    }

    /// The accesses that at least one of the two wants.
    pub fn and(self, other: DataWish) -> DataWish {
        DataWish {
            line_bits: self.line_bits.min(other.line_bits),
            set_bits: self.set_bits.max(other.set_bits),
            repeated: self.repeated.max(other.repeated),
        }
    }
}

fn all_if(condition: bool) -> Repeated {
    if condition { Repeated::All } else { Repeated::None }
}

/// The data accesses of one execution of a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    /// The translation.
    pub translation: TranslationId,
    /// The number of loads.
    pub loads: u32,
    /// The number of stores.
    pub stores: u32,
    /// The number of [`DataFlow::accesses`] that belong to this execution.
    pub accesses: u32,
    /// The process that ran, or for which the kernel ran.
    pub process: Requester,
    /// The number of instructions reached when the translation was left midway, otherwise 0.
    pub left: u16,
    /// The CPU.
    pub cpu: CpuId,
}

impl Execution {
    /// An execution without accesses.
    pub const NONE: Execution = Execution {
        translation: TranslationId(0),
        loads: 0,
        stores: 0,
        accesses: 0,
        process: Requester::KERNEL,
        left: 0,
        cpu: CpuId(0),
    };
}

const NO_ACCESS: DataAccess = DataAccess {
    physical: PhysAddr(0),
    page: LineId::physical(0),
    instruction: 0,
    size: 1,
    is_store: false,
};

/// The accesses of a stream, and how many of them were followed.
pub struct AccessStream<'a> {
    walk: AccessWalk<'a>,
    addresses: &'a [u64],
    mappings: &'a [(u32, Mapping)],
}

impl<'a> AccessStream<'a> {
    /// Begins at the first execution of a stream.
    pub fn new(accesses: &'a Accesses, patterns: &'a AccessPatterns) -> AccessStream<'a> {
        AccessStream {
            walk: accesses.walk(patterns),
            addresses: &accesses.addresses,
            mappings: &accesses.mappings,
        }
    }
}

/// Where a page lies in physical memory.
#[derive(Clone, Copy, Debug)]
struct PagePlace {
    /// The physical address of the page's first byte.
    base: u64,
    page: LineId,
    device: bool,
}

/// The number of pages in the filter, which holds the pages found last by their low bits.
const FILTER: usize = 1024;
/// No address has this page, because it has more than 52 bits.
const NO_PAGE: u64 = u64::MAX;

/// No access lies in this line.
const NO_LINE: (u64, LineId) = (u64::MAX, LineId::physical(0));

/// What one CPU runs, and where its pages lie.
struct CpuView {
    process: Requester,
    pages: HashMap<u64, PagePlace>,
    filter: Box<[(u64, PagePlace); FILTER]>,
}

impl Default for CpuView {
    fn default() -> CpuView {
        let nowhere = PagePlace { base: 0, page: LineId::physical(0), device: false };
        CpuView {
            process: Requester::process(0),
            pages: HashMap::new(),
            filter: Box::new([(NO_PAGE, nowhere); FILTER]),
        }
    }
}

/// Follows the recorded accesses of a stream.
///
/// Gives loads and stores within one page. Leaves out accesses to devices, and accesses that no
/// observer needs ([`DataWish`]).
pub struct DataFlow {
    /// The executions that [`DataFlow::forget`] has not dropped.
    pub executions: Vec<Execution>,
    /// The first `made` elements are accesses. The others are free space.
    buffer: Vec<DataAccess>,
    made: usize,
    tasks: Vec<Requester>,
    /// The number of each process, by pid. A task without a known pid counts by its address.
    processes: HashMap<u64, u32>,
    /// By CPU.
    views: PerCpu<CpuView>,
    numbers: HashMap<(u64, u64), u32>,
    /// For each page number: the virtual address of the page, and log2 of its bytes.
    numbered: Vec<(u64, u32)>,
    /// The number of low bits of a page number that `set_bits` says equals those of the page's
    /// address.
    wish: DataWish,
    /// The line of the last access, and its page.
    last: (u64, LineId),
    /// The virtual address of the kernel's image minus its physical address.
    image: OnceLock<u64>,
}

impl DataFlow {
    /// A flow that gives at least the wanted accesses.
    pub fn new(wish: DataWish) -> DataFlow {
        DataFlow {
            wish,
            last: NO_LINE,
            executions: Vec::new(),
            buffer: Vec::new(),
            made: 0,
            tasks: Vec::new(),
            processes: HashMap::new(),
            views: PerCpu::default(),
            numbers: HashMap::new(),
            numbered: Vec::new(),
            image: OnceLock::new(),
        }
    }

    /// Learns tasks. They come in the order of their ids.
    pub fn define_tasks(&mut self, tasks: &[Task]) {
        for task in tasks {
            let next = self.processes.len() as u32;
            let key = task.pid.map_or(task.pointer.0, u64::from);
            let number = *self.processes.entry(key).or_insert(next);
            self.tasks.push(Requester::process(number));
        }
    }

    /// The numbers of executions and accesses that are not forgotten.
    pub fn kept(&self) -> (usize, usize) {
        (self.executions.len(), self.made)
    }

    /// The accesses of all executions, one execution after the other.
    pub fn accesses(&self) -> &[DataAccess] {
        &self.buffer[..self.made]
    }

    /// Appends the accesses of the executions in these words, which are the next of the stream.
    pub fn follow(&mut self, words: &[u32], stream: &mut AccessStream<'_>) {
        let next_mapping = |stream: &AccessStream<'_>| {
            stream.mappings.first().map_or(usize::MAX, |(from, _)| *from as usize)
        };
        let mut mapped = next_mapping(stream);
        for event in events(words) {
            let (translation, left) = match event {
                StreamEvent::Executed(id) => (id, 0),
                StreamEvent::Left { translation, instructions } => {
                    (translation, instructions as u16)
                }
                StreamEvent::Task(id) => {
                    let process = self.tasks.get(id.0 as usize).copied();
                    self.views.current.process = process.unwrap_or(self.views.current.process);
                    continue;
                }
                StreamEvent::Cpu(cpu) => {
                    self.views.turn_to(cpu, CpuView::default);
                    continue;
                }
                StreamEvent::Marker(_) | StreamEvent::Woken(_) | StreamEvent::Clock(_) => continue,
            };
            let (sites, first) = stream.walk.execution(translation, left != 0);
            let addresses = &stream.addresses[first..first + sites.len()];
            let before = self.made;
            // An access across two pages becomes two.
            if self.buffer.len() < before + 2 * sites.len() {
                self.buffer.resize(2 * (before + 2 * sites.len()), NO_ACCESS);
            }
            if self.wish.repeated == Repeated::FirstOfExecution {
                self.last = NO_LINE;
            }
            let (mut stores, mut instruction) = (0, 0);
            for (at, (site, addr)) in (first..).zip(sites.iter().zip(addresses)) {
                while mapped <= at {
                    self.next_mapping(stream);
                    mapped = next_mapping(stream);
                }
                stores += u32::from(site.is_store());
                // An execution that only continued a string instruction began with it.
                instruction = site.instruction().max(instruction);
                self.access(*site, instruction, *addr);
            }
            self.executions.push(Execution {
                translation,
                loads: sites.len() as u32 - stores,
                stores,
                accesses: (self.made - before) as u32,
                process: self.views.current.process,
                left,
                cpu: self.views.cpu(),
            });
        }
    }

    /// Ends the stream. The remaining mappings hold for the next one.
    pub fn finish(&mut self, mut stream: AccessStream<'_>) {
        while !stream.mappings.is_empty() {
            self.next_mapping(&mut stream);
        }
    }

    #[cold]
    fn next_mapping(&mut self, stream: &mut AccessStream<'_>) {
        if let Some(((_, mapping), rest)) = stream.mappings.split_first() {
            self.map(mapping);
            stream.mappings = rest;
        }
    }

    /// Drops the first `executions` and their accesses.
    pub fn forget(&mut self, executions: usize) {
        let accesses: usize = match executions == self.executions.len() {
            true => self.made,
            false => self.executions[..executions]
                .iter()
                .map(|execution| execution.accesses as usize)
                .sum(),
        };
        self.executions.drain(..executions);
        self.buffer.copy_within(accesses..self.made, 0);
        self.made -= accesses;
    }

    #[inline]
    fn access(&mut self, site: AccessSite, instruction: u16, addr: u64) {
        let size = site.size();
        let left_in_page = 4096 - (addr as u32 & 0xfff);
        if size <= left_in_page {
            self.part(site, instruction, addr, size);
        } else {
            self.part(site, instruction, addr, left_in_page);
            self.part(
                site,
                instruction,
                addr.wrapping_add(left_in_page.into()),
                size - left_in_page,
            );
        }
    }

    /// Branches on whether an access is kept are hard to predict. So the access is always written,
    /// and then kept or not.
    #[inline]
    fn part(&mut self, site: AccessSite, instruction: u16, addr: u64, size: u32) {
        let place = self.place(addr >> 12);
        let physical = place.base | addr & 0xfff;
        let (first, last) = (
            physical >> self.wish.line_bits,
            (physical + u64::from(size) - 1) >> self.wish.line_bits,
        );
        self.buffer[self.made] = DataAccess {
            physical: PhysAddr(physical),
            page: place.page,
            instruction,
            size: size as u8,
            is_store: site.is_store(),
        };
        let again = (first == self.last.0) & (last == self.last.0) & (place.page == self.last.1);
        self.made += usize::from(!(again & (self.wish.repeated != Repeated::All) | place.device));
        if !place.device {
            self.last = (last, place.page);
        }
    }

    #[inline]
    fn place(&mut self, page: u64) -> PagePlace {
        match self.views.current.filter[page as usize % FILTER] {
            (known, place) if known == page => place,
            _ => self.find(page),
        }
    }

    #[cold]
    fn find(&mut self, page: u64) -> PagePlace {
        if !self.views.current.pages.contains_key(&page) {
            // QEMU could not give the physical address. Any place that no other page has serves as
            // well.
            self.map(&Mapping { page, frame: page & 0xff_ffff, kind: PageKind::Memory });
        }
        let place = self.views.current.pages[&page];
        self.views.current.filter[page as usize % FILTER] = (page, place);
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
        let index =
            u64::from(number) << self.wish.set_bits | unit & ((1 << self.wish.set_bits) - 1);
        let place = PagePlace {
            base: mapping.frame << 12,
            page: LineId::new(mode, index.min(LineId::MAX_INDEX.into()) as u32)
                .expect("the index is in range"),
            device: mapping.kind == PageKind::Device,
        };
        self.views.current.pages.insert(mapping.page, place);
        self.views.current.filter[mapping.page as usize % FILTER] = (mapping.page, place);
    }

    /// The virtual address of an access.
    pub fn virtual_address(&self, access: &DataAccess) -> u64 {
        let number = (access.page.index() >> self.wish.set_bits) as usize;
        let (page, size_log2) = self.numbered.get(number).copied().unwrap_or((0, 0));
        page | access.physical.0 & ((1 << size_log2) - 1)
    }

    /// The physical address of code that is fetched from `addr`. The address is in `code`, or where
    /// a layout put that code.
    pub fn code(
        &self,
        addr: RunAddr,
        code: &TranslatedCode,
        id: TranslationId,
        patterns: &AccessPatterns,
    ) -> PhysAddr {
        let of_code = patterns.physical(id);
        if let Some(physical) = of_code[0].filter(|_| in_image(code.addr)) {
            self.image.get_or_init(|| code.addr.0.wrapping_sub(physical));
        }
        if let Some(offset) = self.image.get().filter(|_| in_image(addr)) {
            return PhysAddr(addr.0.wrapping_sub(*offset));
        }
        let second_page = addr.0 >> 12 != code.addr.0 >> 12;
        match of_code[usize::from(second_page)] {
            Some(physical) => PhysAddr(physical & !0xfff | addr.0 & 0xfff),
            // The translation was never executed to its end.
            None => DataFlow::stand_in(addr),
        }
    }

    /// A physical address for code whose place is not known, behind all memory of a guest. Code at
    /// other virtual addresses has other ones.
    pub fn stand_in(addr: RunAddr) -> PhysAddr {
        PhysAddr(1 << 36 | addr.0 & 0xf_ffff_ffff)
    }
}

/// Whether the address is in the kernel's image. x86-64 Linux maps it in one piece of physical
/// memory (Documentation/arch/x86/x86_64/mm.rst).
fn in_image(addr: RunAddr) -> bool {
    (0xffff_ffff_8000_0000..0xffff_ffff_a000_0000).contains(&addr.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::chunks;
    use std::ops::ControlFlow;
    use trace::{Chunk, ObservedAccesses, RecordingHeader, RecordingReader, RecordingWriter};

    /// Runs one translation block (`xor eax, eax; rep stosq`) as often as there are lists of
    /// `stores`, each an instruction and an address. Returns the flow behind all of them.
    fn followed(wish: DataWish, stores: &[&[(u16, u64)]]) -> DataFlow {
        let header = RecordingHeader::default();
        let mut writer = RecordingWriter::with_data(Vec::new(), &header).unwrap();
        let translation = trace::Translation {
            id: TranslationId(0),
            addr: RunAddr(0x1000),
            lengths: [2, 3].into(),
            code: [0x31, 0xc0, 0xf3, 0x48, 0xab].into(),
        };
        writer.translations(&[translation]).unwrap();
        let mut words = Vec::new();
        let mut seen = ObservedAccesses {
            physical: vec![(TranslationId(0), [Some(0x1000), None])],
            ..Default::default()
        };
        for execution in stores {
            StreamEvent::Executed(TranslationId(0)).append_to(&mut words);
            seen.starts.push(seen.sites.len() as u32);
            for &(instruction, addr) in *execution {
                seen.sites.push(AccessSite::new(instruction, true, 3));
                seen.addresses.push(addr);
            }
        }
        writer.stream_with_data(&words, &seen).unwrap();
        let file = writer.end().unwrap().0;
        let mut reader = RecordingReader::new(&file[..]).unwrap();
        let mut flow = DataFlow::new(wish);
        let read = chunks(&mut reader, |chunk, state| {
            if let (Chunk::Stream(words), Some((accesses, patterns))) = (chunk, state.accesses) {
                flow.follow(&words, &mut AccessStream::new(accesses, patterns));
            }
            anyhow::Ok(ControlFlow::Continue(()))
        });
        read.unwrap().unwrap();
        flow
    }

    /// A string instruction behind another instruction is entered again by itself. Its accesses
    /// then have the number 0.
    #[test]
    fn a_repeated_string_instruction_makes_all_its_accesses() {
        let stores = [(1, 0x2000), (0, 0x2008), (0, 0x2010)];
        let flow = followed(DataWish::EVERY_ACCESS, &[&stores]);
        let instructions: Vec<u16> =
            flow.accesses().iter().map(|access| access.instruction).collect();
        assert_eq!(instructions, [1; 3]);
    }

    #[test]
    fn each_wish_leaves_out_what_changes_none_of_its_caches() {
        let stores: &[&[(u16, u64)]] = &[
            &[(1, 0x2000), (1, 0x2008), (1, 0x2020)],
            &[(1, 0x2030), (1, 0x2038)],
            &[(1, 0x2030)],
        ];
        let counts = |wish| -> Vec<u32> {
            followed(wish, stores).executions.iter().map(|it| it.accesses).collect()
        };
        let unified = DataWish::of_unified_caches(32);
        assert_eq!(counts(DataWish::EVERY_ACCESS), [3, 2, 1]);
        assert_eq!(counts(unified), [2, 1, 1]);
        assert_eq!(counts(DataWish { repeated: Repeated::None, ..unified }), [2, 0, 0]);
        assert_eq!(counts(unified.and(DataWish::EVERY_ACCESS)), [3, 2, 1]);
    }
}
