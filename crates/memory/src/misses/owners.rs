//! Finds the data structure of an address. Takes addresses and the use of page frames over time;
//! gives structures.
//!
//! The address decides (Documentation/arch/x86/x86_64/mm.rst); where all of memory is mapped, the
//! use of the frame decides. An allocated frame without a mark gets its name later, from the mark
//! that it gets before it is free again.

use super::variables::{Variable, Variables};
use serde::Serialize;
use std::collections::HashMap;
use std::ops::Range;
use trace::{FrameUse, FrameUseChange, RecordingHeader};

/// Kinds of data structures, in the order of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StructureClass {
    /// An object in the kernel's image, named by its symbol.
    Static,
    /// A per-CPU variable, named by its symbol.
    PerCpu,
    /// Objects of a slab cache, named by the cache.
    Slab,
    /// Stacks of tasks and of interrupts.
    KernelStack,
    /// Tables of page tables.
    PageTable,
    /// The contents of files, accessed at kernel addresses.
    PageCache,
    /// Memory at user addresses, and anonymous pages accessed at kernel addresses.
    User,
    /// The array of `struct page`.
    StructPage,
    /// Memory of `vmalloc`.
    Vmalloc,
    /// The address range of modules.
    Module,
    /// Entry stacks, descriptor tables.
    CpuEntryArea,
    /// Reserved when the kernel booted: its large hash tables.
    Boot,
    /// An allocated frame that never got a mark: pipes, socket buffers, large `kmalloc`.
    Held,
    /// Not in any of these classes.
    Other,
}

impl StructureClass {
    /// The name in reports.
    pub fn title(self) -> &'static str {
        match self {
            StructureClass::Static => "static",
            StructureClass::PerCpu => "per CPU",
            StructureClass::Slab => "slab",
            StructureClass::KernelStack => "kernel stack",
            StructureClass::PageTable => "page table",
            StructureClass::PageCache => "page cache",
            StructureClass::User => "user",
            StructureClass::StructPage => "struct page",
            StructureClass::Vmalloc => "vmalloc",
            StructureClass::Module => "module",
            StructureClass::CpuEntryArea => "CPU entry area",
            StructureClass::Boot => "set aside at boot",
            StructureClass::Held => "held, no mark",
            StructureClass::Other => "other",
        }
    }
}

/// A data structure: its class and its name, if it has one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Structure {
    /// Its class.
    pub class: StructureClass,
    /// Its name; empty without one.
    pub name: String,
}

/// The number of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StructureId(pub u32);

/// The data structure that a miss belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MissOwner {
    /// This structure.
    Known(StructureId),
    /// Not known yet: the next use of this frame will show it.
    Pending(u64),
}

/// What the accesses to a frame show about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FrameEvidence {
    #[default]
    Nothing,
    /// It was accessed in the `vmalloc` area.
    Vmalloc,
    /// The kernel's `push`, `call` or `ret` accessed it.
    Stack,
}

const IMAGE: Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_a000_0000;
const MODULES: Range<u64> = 0xffff_ffff_a000_0000..0xffff_ffff_ff00_0000;
const CPU_ENTRY_AREA: Range<u64> = 0xffff_fe00_0000_0000..0xffff_fe80_0000_0000;
const PAGE: u64 = 4096;

/// An object with a symbol of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedObject {
    /// The symbol, without the number that the compiler appends.
    pub name: String,
    /// The address of the object's first byte.
    pub start: u64,
    /// Its size.
    pub bytes: u64,
    /// The CPU of a per-CPU variable.
    pub cpu: Option<u8>,
}

/// Where an address lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPlace<'v> {
    /// In an object with a symbol, which begins at `start`.
    Object {
        /// The address of its first byte.
        start: u64,
        /// Its symbol.
        variable: &'v Variable,
        /// Whether each CPU has one.
        per_cpu: bool,
    },
    /// In a slab, whose first frame is `first`.
    Slab {
        /// The cache.
        cache: StructureId,
        /// The frame.
        first: u64,
    },
    /// In this frame, which is no slab.
    Frame(u64),
    /// Elsewhere, where the class is all that is known.
    Class(StructureClass),
}

/// Knows which data structure lies at an address, as far as the recording says.
pub struct DataOwners {
    variables: Variables,
    direct_map: Range<u64>,
    vmalloc: Range<u64>,
    struct_pages: Range<u64>,
    /// The areas of all CPUs, each including its dynamic part, and behind that memory that the
    /// kernel has given back. They lie one behind the other, in the order of the CPUs
    /// (`pcpu_build_alloc_info` in mm/percpu.c, all CPUs in one group).
    per_cpu: Range<u64>,
    /// The bytes of one CPU's area.
    per_cpu_unit: u64,
    unknown: Option<String>,
    frames: Vec<FrameUse>,
    /// What the accesses to each frame showed since it was allocated.
    seen: Vec<FrameEvidence>,
    slab_caches: Vec<StructureId>,
    structures: Vec<Structure>,
    numbers: HashMap<Structure, StructureId>,
    /// By class: the structure without a name.
    unnamed: [Option<StructureId>; StructureClass::Other as usize + 1],
}

impl DataOwners {
    /// `header`: the recording's header, which contains the addresses of the kernel's regions.
    pub fn new(header: &RecordingHeader, variables: Variables) -> DataOwners {
        let value = |name: &str| {
            let (_, text) = header
                .conditions
                .iter()
                .find(|(key, _)| key.strip_prefix("value.") == Some(name))?;
            u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
        };
        let direct_map = value("page_offset_base").unwrap_or(0xffff_8880_0000_0000);
        let vmalloc = value("vmalloc_base").unwrap_or(0xffff_c900_0000_0000);
        let struct_pages = value("vmemmap_base").unwrap_or(0xffff_ea00_0000_0000);
        let per_cpu = value("__per_cpu_offset").map_or(0, |offset| variables.area_at(offset));
        let per_cpu_unit = (value("pcpu_unit_pages").unwrap_or(0) & 0xffff_ffff) * PAGE;
        let areas = per_cpu_unit * u64::from(header.cpus.get());
        let reason = header.conditions.iter().find(|(key, _)| key == "frames_unknown");
        DataOwners {
            variables,
            direct_map: direct_map..vmalloc,
            vmalloc: vmalloc..struct_pages,
            struct_pages: struct_pages..struct_pages.saturating_add(1 << 40),
            per_cpu: per_cpu..per_cpu.saturating_add(areas),
            per_cpu_unit,
            unknown: reason.map(|(_, why)| why.clone()),
            frames: Vec::new(),
            seen: Vec::new(),
            slab_caches: Vec::new(),
            structures: Vec::new(),
            numbers: HashMap::new(),
            unnamed: [None; StructureClass::Other as usize + 1],
        }
    }

    /// The symbols of data.
    pub fn variables(&self) -> &Variables {
        &self.variables
    }

    /// Why the recording does not contain the use of frames; `None` when it does.
    pub fn unknown(&self) -> Option<&str> {
        self.unknown.as_deref()
    }

    /// All structures so far, by number.
    pub fn structures(&self) -> &[Structure] {
        &self.structures
    }

    /// Adds the slab caches whose names are new. `names`: those of all caches so far.
    pub fn slab_caches(&mut self, names: &[String]) {
        for name in &names[self.slab_caches.len().min(names.len())..] {
            let cache = self.structure(StructureClass::Slab, name);
            self.slab_caches.push(cache);
        }
    }

    /// Applies a change of the use of frames. For each frame on which misses can be pending, passes
    /// `settled` the frame and its structure.
    pub fn change(&mut self, change: &FrameUseChange, mut settled: impl FnMut(u64, StructureId)) {
        let end = change.frame + change.frames;
        let size = usize::try_from(end).unwrap_or(usize::MAX);
        if size > self.frames.len() {
            self.frames.resize(size, FrameUse::Free);
            self.seen.resize(size, FrameEvidence::Nothing);
        }
        for frame in change.frame..end {
            let at = frame as usize;
            let before = std::mem::replace(&mut self.frames[at], change.used);
            let unmarked = |used| matches!(used, FrameUse::Free | FrameUse::Unmarked);
            if unmarked(before) && (before, change.used) != (FrameUse::Free, FrameUse::Unmarked) {
                settled(frame, self.settle(frame));
            }
            if change.used == FrameUse::Free {
                self.seen[at] = FrameEvidence::Nothing;
            }
        }
    }

    /// The structure that the pending misses of this frame belong to.
    pub fn settle(&mut self, frame: u64) -> StructureId {
        let used = self.frames.get(frame as usize).copied().unwrap_or_default();
        let class = match (self.seen(frame), self.marked(used)) {
            (FrameEvidence::Stack, _) => StructureClass::KernelStack,
            (_, Some(marked)) => return marked,
            (FrameEvidence::Vmalloc, None) => StructureClass::Vmalloc,
            (FrameEvidence::Nothing, None) => StructureClass::Held,
        };
        self.structure(class, "")
    }

    fn seen(&self, frame: u64) -> FrameEvidence {
        self.seen.get(frame as usize).copied().unwrap_or_default()
    }

    /// The kernel uses this address, which lies in `frame`, as a stack.
    pub fn is_a_stack(&mut self, addr: u64, frame: u64) {
        let may_be = self.vmalloc.contains(&addr)
            || self.direct_map.contains(&addr) && !self.is_per_cpu(addr, frame);
        if let Some(seen) = self.seen.get_mut(frame as usize).filter(|_| may_be) {
            *seen = FrameEvidence::Stack;
        }
    }

    /// The data structure of an address in this frame.
    pub fn owner(&mut self, addr: u64, frame: u64) -> MissOwner {
        if addr >> 63 == 0 {
            return MissOwner::Known(self.structure(StructureClass::User, ""));
        }
        if IMAGE.contains(&addr) {
            let name = self.variables.in_image(addr).unwrap_or("(no symbol)").to_owned();
            return MissOwner::Known(self.structure(StructureClass::Static, &name));
        }
        if self.is_per_cpu(addr, frame) {
            let offset = (addr - self.per_cpu.start) % self.per_cpu_unit;
            let name = self.variables.per_cpu(offset).unwrap_or("(allocated)").to_owned();
            return MissOwner::Known(self.structure(StructureClass::PerCpu, &name));
        }
        if self.direct_map.contains(&addr) {
            return self.in_frame(frame);
        }
        if self.vmalloc.contains(&addr) {
            if let Some(seen @ FrameEvidence::Nothing) = self.seen.get_mut(frame as usize) {
                *seen = FrameEvidence::Vmalloc;
            }
            if self.is_mapped_stack(frame) {
                return MissOwner::Known(self.structure(StructureClass::KernelStack, ""));
            }
            return self.in_frame(frame);
        }
        let class = match addr {
            _ if self.struct_pages.contains(&addr) => StructureClass::StructPage,
            _ if MODULES.contains(&addr) => StructureClass::Module,
            _ if CPU_ENTRY_AREA.contains(&addr) => StructureClass::CpuEntryArea,
            _ => StructureClass::Other,
        };
        MissOwner::Known(self.structure(class, ""))
    }

    /// Where an address in this frame lies. Makes no names, and takes less time than
    /// [`DataOwners::owner`].
    #[inline]
    pub fn place(&mut self, addr: u64, frame: u64) -> DataPlace<'_> {
        let in_map = self.direct_map.contains(&addr) && !self.is_per_cpu(addr, frame);
        if in_map || self.vmalloc.contains(&addr) {
            if !in_map
                && let Some(seen @ FrameEvidence::Nothing) = self.seen.get_mut(frame as usize)
            {
                *seen = FrameEvidence::Vmalloc;
            }
            if !in_map && self.is_mapped_stack(frame) {
                return DataPlace::Class(StructureClass::KernelStack);
            }
            return match self.slab(frame) {
                Some((cache, first)) => DataPlace::Slab { cache, first },
                None => DataPlace::Frame(self.head(frame)),
            };
        }
        let object = |start, variable, per_cpu| DataPlace::Object { start, variable, per_cpu };
        if IMAGE.contains(&addr) {
            let found = self.variables.image_variable(addr);
            let nothing = DataPlace::Class(StructureClass::Static);
            return found.map_or(nothing, |found| object(found.0, found, false));
        }
        if self.per_cpu.contains(&addr) {
            let offset = addr - self.per_cpu.start;
            let area = addr - offset % self.per_cpu_unit;
            let found = self.variables.per_cpu_variable(offset % self.per_cpu_unit);
            let nothing = DataPlace::Class(StructureClass::PerCpu);
            return found.map_or(nothing, |found| object(area + found.0, found, true));
        }
        DataPlace::Class(match addr {
            _ if addr >> 63 == 0 => StructureClass::User,
            _ if self.struct_pages.contains(&addr) => StructureClass::StructPage,
            _ if MODULES.contains(&addr) => StructureClass::Module,
            _ if CPU_ENTRY_AREA.contains(&addr) => StructureClass::CpuEntryArea,
            _ => StructureClass::Other,
        })
    }

    /// Whether an address in this frame belongs to a CPU's area. An area is as long as a large
    /// page, and the kernel gives back what it does not use of it (`pcpu_embed_first_chunk`,
    /// mm/percpu.c): what it keeps stays reserved.
    #[inline]
    fn is_per_cpu(&self, addr: u64, frame: u64) -> bool {
        self.per_cpu.contains(&addr)
            && (self.frames.is_empty()
                || self.used(frame) == FrameUse::Reserved
                || self.variables.is_per_cpu((addr - self.per_cpu.start) % self.per_cpu_unit))
    }

    /// Whether a frame that was reserved at boot and is mapped again is used as a stack. The stacks
    /// of interrupts are (`map_irq_stack` in arch/x86/kernel/irq_64.c).
    fn is_mapped_stack(&self, frame: u64) -> bool {
        self.used(frame) == FrameUse::Reserved && self.seen(frame) == FrameEvidence::Stack
    }

    /// The class of a frame that is no slab, if it is known now.
    pub fn class_of_frame(&mut self, frame: u64) -> Option<StructureClass> {
        let marked = self.marked(self.used(frame))?;
        Some(self.structures[marked.0 as usize].class)
    }

    /// The object with a symbol that holds an address: static, or a CPU's own.
    pub fn object(&self, addr: u64) -> Option<NamedObject> {
        let named = |(start, bytes, name): &Variable, area: u64, cpu| NamedObject {
            name: name.clone(),
            start: area + start,
            bytes: *bytes,
            cpu,
        };
        if IMAGE.contains(&addr) {
            return self.variables.image_variable(addr).map(|found| named(found, 0, None));
        }
        if !self.per_cpu.contains(&addr) {
            return None;
        }
        let offset = addr - self.per_cpu.start;
        let cpu = offset / self.per_cpu_unit;
        let found = self.variables.per_cpu_variable(offset % self.per_cpu_unit)?;
        Some(named(found, self.per_cpu.start + cpu * self.per_cpu_unit, u8::try_from(cpu).ok()))
    }

    /// The addresses of all objects with this symbol: one, or that of each CPU.
    pub fn objects(&self, symbol: &str) -> Vec<NamedObject> {
        let cpus = self.per_cpu.clone().step_by((self.per_cpu_unit as usize).max(1));
        let of_image = self.variables.image_named(symbol).filter_map(|addr| self.object(addr));
        let of_cpus = self.variables.per_cpu_named(symbol);
        let of_cpus = of_cpus.flat_map(|offset| cpus.clone().map(move |area| area + offset));
        of_image.chain(of_cpus.filter_map(|addr| self.object(addr))).collect()
    }

    fn used(&self, frame: u64) -> FrameUse {
        self.frames.get(frame as usize).copied().unwrap_or_default()
    }

    /// The first of the frames that were allocated together with this one.
    pub fn head(&self, frame: u64) -> u64 {
        match self.used(frame) {
            FrameUse::PartOf(head) => head,
            _ => frame,
        }
    }

    /// The slab cache whose objects lie in a frame, and the first of the frames that were allocated
    /// together with it. `None`: the frame has another use, or one that is not known yet.
    #[inline]
    pub fn slab(&self, frame: u64) -> Option<(StructureId, u64)> {
        let first = self.head(frame);
        match self.used(first) {
            FrameUse::Slab(cache) => Some((*self.slab_caches.get(cache as usize)?, first)),
            _ => None,
        }
    }

    fn in_frame(&mut self, frame: u64) -> MissOwner {
        let frame = self.head(frame);
        match self.marked(self.used(frame)) {
            Some(structure) => MissOwner::Known(structure),
            None => MissOwner::Pending(frame),
        }
    }

    fn marked(&mut self, used: FrameUse) -> Option<StructureId> {
        let class = match used {
            FrameUse::Free | FrameUse::Unmarked | FrameUse::PartOf(_) => return None,
            FrameUse::Slab(cache) => return self.slab_caches.get(cache as usize).copied(),
            FrameUse::PageTable => StructureClass::PageTable,
            FrameUse::File => StructureClass::PageCache,
            FrameUse::Anonymous => StructureClass::User,
            FrameUse::Reserved => StructureClass::Boot,
        };
        Some(self.structure(class, ""))
    }

    fn structure(&mut self, class: StructureClass, name: &str) -> StructureId {
        let unnamed = class as usize;
        if let Some(known) = self.unnamed[unnamed].filter(|_| name.is_empty()) {
            return known;
        }
        let structure = Structure { class, name: name.to_owned() };
        if let Some(&known) = self.numbers.get(&structure) {
            return known;
        }
        let id = StructureId(self.structures.len() as u32);
        if name.is_empty() {
            self.unnamed[unnamed] = Some(id);
        }
        self.structures.push(structure.clone());
        self.numbers.insert(structure, id);
        id
    }
}

#[cfg(test)]
mod tests;
