//! The physical addresses of the guest's pages. Input: the page of each access. QEMU or the guest's
//! page tables are read only when a mapping may be new.
//!
//! A mapping that was used stays valid until the guest executes an instruction that drops it from
//! the TLB (Intel SDM volume 3, section 4.10.4). Between two such instructions, a filter with the
//! last pages answers nearly every access.

use crate::qemu::{self, AccessInfo, Register, read_memory};
use std::collections::HashMap;
use trace::{CpuCount, CpuId, Mapping, PageKind};

/// The number of pages in the filter.
const FILTER: usize = 1024;
/// A number that no page has.
const NONE: u64 = u64::MAX;
/// Bits 12 to 51 of an entry of a page table (Intel SDM volume 3, table 4-15 and the tables after
/// it).
const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// The mappings of each CPU. Several CPUs each translate by their own page tables and TLB.
pub(crate) struct CpuMappings {
    by_cpu: Vec<PageMappings>,
    current: usize,
}

impl CpuMappings {
    pub(crate) fn new(cpus: CpuCount, page_offset_base: Option<u64>) -> CpuMappings {
        let by_cpu = cpus.cpus().map(|_| PageMappings::new(page_offset_base)).collect();
        CpuMappings { by_cpu, current: 0 }
    }

    /// The CPU that executes from now on. A CPU that does not exist changes nothing.
    pub(crate) fn executes(&mut self, cpu: CpuId) {
        if usize::from(cpu.0) < self.by_cpu.len() {
            self.current = cpu.0.into();
        }
    }

    /// The mappings of the CPU that executes.
    #[inline]
    pub(crate) fn current(&mut self) -> &mut PageMappings {
        &mut self.by_cpu[self.current]
    }
}

pub(crate) struct PageMappings {
    /// Pages whose mapping was recorded, by their low bits.
    filter: Box<[u64; FILTER]>,
    recorded: HashMap<u64, Mapping>,
    /// The frames of pages of code, since mappings were last dropped.
    code: HashMap<u64, Option<u64>>,
    tables: Option<PageTables>,
    /// The address of the kernel's `page_offset_base`.
    page_offset_base: Option<u64>,
}

impl PageMappings {
    fn new(page_offset_base: Option<u64>) -> PageMappings {
        PageMappings {
            filter: Box::new([NONE; FILTER]),
            recorded: HashMap::new(),
            code: HashMap::new(),
            tables: None,
            page_offset_base,
        }
    }

    /// Whether the mapping of this page was recorded and is still valid. It can also be false when
    /// the mapping was recorded.
    #[inline]
    pub(crate) fn is_recorded(&self, page: u64) -> bool {
        self.filter[page as usize % FILTER] == page
    }

    /// The mapping of a page that was just accessed, if it is new.
    #[cold]
    pub(crate) fn learn(&mut self, page: u64, info: AccessInfo) -> Option<Mapping> {
        self.filter[page as usize % FILTER] = page;
        let physical = qemu::physical(info, page << 12)?;
        let frame = physical.addr >> 12;
        if self.recorded.get(&page).is_some_and(|recorded| recorded.frame == frame) {
            return None;
        }
        let kind = match physical.is_device {
            true => PageKind::Device,
            false => match self.walk(page << 12) {
                Some((walked, kind)) if walked >> 12 == frame => kind,
                _ => PageKind::Memory,
            },
        };
        let mapping = Mapping { page, frame, kind };
        self.recorded.insert(page, mapping);
        Some(mapping)
    }

    /// The guest is about to drop mappings.
    pub(crate) fn drop_all(&mut self) {
        self.filter.fill(NONE);
        self.code.clear();
    }

    /// The physical addresses of `size` bytes of code: of the first byte, and of the first byte in
    /// a second page.
    pub(crate) fn of_code(&mut self, addr: u64, size: u64) -> [Option<u64>; 2] {
        let last = addr.wrapping_add(size.saturating_sub(1)) & !0xfff;
        let first = self.code_page(addr & !0xfff).map(|frame| frame | addr & 0xfff);
        let second = if last == addr & !0xfff { None } else { self.code_page(last) };
        [first, second]
    }

    fn code_page(&mut self, addr: u64) -> Option<u64> {
        if let Some(known) = self.code.get(&addr) {
            return *known;
        }
        let frame = self.walk(addr).map(|(physical, _)| physical);
        self.code.insert(addr, frame);
        frame
    }

    fn walk(&mut self, addr: u64) -> Option<(u64, PageKind)> {
        if self.tables.is_none() {
            self.tables = PageTables::find(self.page_offset_base?);
        }
        self.tables.as_ref()?.walk(addr)
    }
}

/// The guest's page tables. They are read through the kernel's direct map of all memory.
pub(crate) struct PageTables {
    cr3: Register,
    direct_map: u64,
    levels: u32,
}

impl PageTables {
    /// The tables of a kernel. Must be called in a callback that reads registers.
    pub(crate) fn find(page_offset_base: u64) -> Option<PageTables> {
        const LA57: u64 = 1 << 12;
        let cr4 = Register::find(c"cr4")?.value()?;
        Some(PageTables {
            cr3: Register::find(c"cr3")?,
            direct_map: u64::from_le_bytes(read_memory(page_offset_base)?),
            levels: if cr4 & LA57 != 0 { 5 } else { 4 },
        })
    }

    /// The physical address of a page's first byte, and the size of the page that maps it.
    pub(crate) fn walk(&self, addr: u64) -> Option<(u64, PageKind)> {
        walk(self.cr3.value()?, self.levels, addr, |physical| {
            read_memory(self.direct_map.wrapping_add(physical)).map(u64::from_le_bytes)
        })
    }
}

/// Walks the page tables (Intel SDM volume 3, section 4.5). `read` gives the entry at a physical
/// address.
fn walk(
    cr3: u64,
    levels: u32,
    addr: u64,
    read: impl Fn(u64) -> Option<u64>,
) -> Option<(u64, PageKind)> {
    const PRESENT: u64 = 1;
    const LARGE: u64 = 1 << 7;
    let mut table = cr3 & FRAME;
    for level in (0..levels).rev() {
        let shift = 12 + 9 * level;
        let entry = read(table + 8 * (addr >> shift & 0x1ff))?;
        if entry & PRESENT == 0 {
            return None;
        }
        let kind = match level {
            0 => PageKind::Small,
            1 if entry & LARGE != 0 => PageKind::Large,
            2 if entry & LARGE != 0 => PageKind::Huge,
            _ => {
                table = entry & FRAME;
                continue;
            }
        };
        let within = (1 << shift) - 1;
        return Some((entry & FRAME & !within | addr & within & !0xfff, kind));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables at 0x1000 (root), 0x2000, 0x3000 and 0x4000. Entry 1 of each points to the next.
    fn read(physical: u64) -> Option<u64> {
        Some(match physical {
            0x1008 => 0x2067,
            0x2008 => 0x3067,
            0x2010 => 0x8000_0000_4000_00e7, // 1 GB at 0x40000000, no execution
            0x3008 => 0x4067,
            0x3010 => 0x60_00e7, // 2 MB at 0x600000
            0x4008 => 0xabc_d067,
            0x4010 => 0xabc_e066, // not present
            _ => 0,
        })
    }

    #[test]
    fn every_size_of_page_is_found() {
        let addr =
            |indices: [u64; 4]| indices.iter().fold(0, |addr, index| addr << 9 | index) << 12;
        let walked = |indices| walk(0x1fff, 4, addr(indices), read);
        assert_eq!(walked([1, 1, 1, 1]), Some((0xabc_d000, PageKind::Small)));
        assert_eq!(walked([1, 1, 1, 2]), None);
        assert_eq!(walked([1, 1, 2, 3]), Some((0x60_3000, PageKind::Large)));
        assert_eq!(walked([1, 2, 5, 7]), Some((0x40a0_7000, PageKind::Huge)));
        assert_eq!(walked([2, 0, 0, 0]), None);
        assert_eq!(
            walk(0, 5, addr([1, 1, 1, 1]), |physical| if physical == 0 {
                Some(0x1001)
            } else {
                read(physical)
            }),
            Some((0xabc_d000, PageKind::Small))
        );
        assert_eq!(walk(0x1000, 4, 0, |_| None), None);
    }
}
