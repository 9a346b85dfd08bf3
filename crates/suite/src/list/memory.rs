//! Address spaces and page faults by kind.
//!
//! An operation of `fault/…` maps memory, touches `PAGES` pages and unmaps it; the process's count
//! of faults says whether they happened.

use crate::benchmark::{Benchmark, Place, Prepared, Source, each, each_then};
use crate::list::files::{filled, pattern, refusal};
use crate::sys::{Done, Failure, Fd, Map, call, is, wrong};
use libc::*;
use std::cell::Cell;
use std::mem::zeroed;
use std::rc::Rc;

pub(super) const LIST: &[Benchmark] = &[
    Benchmark::new(
        "memory/mmap-4k",
        "mapping and unmapping one page that is never touched",
        Source::NellansTable4,
        MAP,
        map_and_unmap,
        4096,
    ),
    Benchmark::new(
        "memory/mmap-1m",
        "mapping and unmapping 1 MB that is never touched",
        Source::Lmbench,
        MAP,
        map_and_unmap,
        1 << 20,
    ),
    Benchmark::new(
        "memory/mprotect",
        "making a touched page unwritable and writable again",
        Source::NellansTable4,
        &[SYS_mprotect],
        mprotect,
        0,
    ),
    Benchmark::new(
        "memory/mprotect-split",
        "splitting a mapping in three and merging it again",
        Source::Own,
        &[SYS_mprotect],
        mprotect_split,
        0,
    ),
    Benchmark::new(
        "memory/brk-grow",
        "growing the heap by a page, and shrinking it",
        Source::NellansTable4,
        &[SYS_brk],
        |_, _| {
            let end = call!(SYS_brk, 0)?;
            each(move || {
                is("the heap's end", call!(SYS_brk, end + 4096)?, end + 4096)?;
                is("the heap's end", call!(SYS_brk, end)?, end)
            })
        },
        0,
    ),
    Benchmark::new(
        "memory/mremap-grow",
        "growing a mapping of 64 KB to 128 KB, and cutting it",
        Source::Own,
        &[SYS_mremap],
        mremap_grow,
        0,
    ),
    Benchmark::new(
        "fault/anonymous",
        "first stores to 64 new pages",
        Source::Own,
        MAP,
        |_, _| faults(Kind::Anonymous, MAP_PRIVATE | MAP_ANONYMOUS, None),
        0,
    ),
    Benchmark::new(
        "fault/zero-page",
        "first loads of 64 new pages",
        Source::Own,
        MAP,
        |_, _| faults(Kind::Zero, MAP_PRIVATE | MAP_ANONYMOUS, None),
        0,
    ),
    Benchmark::new(
        "fault/shared",
        "first stores to 64 pages of shared memory",
        Source::Own,
        MAP,
        |_, _| faults(Kind::Anonymous, MAP_SHARED | MAP_ANONYMOUS, None),
        0,
    ),
    Benchmark::new(
        "fault/file-read",
        "loads of 64 pages of a file in the cache, faults around included",
        Source::Lmbench,
        MAP,
        |place, _| {
            let file = filled(place, "file", PAGES * PAGE)?;
            faults(Kind::File, MAP_SHARED, Some(file))
        },
        0,
    ),
    Benchmark::new(
        "fault/file-private-write",
        "stores to 64 pages of a file that is mapped privately: a copy of each",
        Source::Own,
        MAP,
        |place, _| {
            let file = filled(place, "file", PAGES * PAGE)?;
            faults(Kind::FileCopy, MAP_PRIVATE, Some(file))
        },
        0,
    ),
    Benchmark::new(
        "fault/after-dontneed",
        "giving back 64 pages, and storing to them again",
        Source::Own,
        &[SYS_madvise],
        after_dontneed,
        0,
    ),
    Benchmark::new(
        "fault/huge",
        "the first store to 2 MB that may be one huge page",
        Source::Own,
        &[SYS_mmap, SYS_madvise],
        |_, _| each(huge),
        0,
    ),
];

const MAP: &[i64] = &[SYS_mmap, SYS_munmap];
const PAGE: usize = 4096;
const PAGES: usize = 64;
const READ_WRITE: i32 = PROT_READ | PROT_WRITE;

/// Behind each slice, the last page must be gone.
fn map_and_unmap(_: &Place, size: usize) -> Prepared {
    let last = Rc::new(Cell::new(0));
    let seen = Rc::clone(&last);
    each_then(
        move || {
            let at = call!(SYS_mmap, 0, size, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)?;
            if at == 0 {
                return wrong("mmap's address", at, PAGE);
            }
            last.set(at);
            call!(SYS_munmap, at, size).map(drop)
        },
        move || gone(seen.get()),
    )
}

/// Whether nothing is mapped at an address.
fn gone(at: usize) -> Done {
    let mut resident = [0u8];
    refusal(call!(SYS_mincore, at, PAGE, resident.as_mut_ptr()), ENOMEM)
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Anonymous,
    Zero,
    File,
    FileCopy,
}

/// Faults of this process that needed no device.
fn minor_faults() -> Result<i64, Failure> {
    // SAFETY: a plain structure.
    let mut usage: rusage = unsafe { zeroed() };
    call!(SYS_getrusage, RUSAGE_SELF, &raw mut usage)?;
    Ok(usage.ru_minflt)
}

/// Maps, touches each page, unmaps. Behind each slice: a page must fault, and a page that was
/// unmapped must not be there. A file's pages may come with one fault for several.
fn faults(kind: Kind, flags: i32, file: Option<Fd>) -> Prepared {
    let mut operations = 0i64;
    let mut faults_before = minor_faults()?;
    let descriptor = file.as_ref().map_or(-1, |file| file.number());
    let shared = Rc::new(Cell::new((0i64, 0usize)));
    let seen = Rc::clone(&shared);
    each_then(
        move || {
            let _ = &file;
            let at = call!(SYS_mmap, 0, PAGES * PAGE, READ_WRITE, flags, descriptor, 0)?;
            if at == 0 {
                return wrong("mmap's address", at, PAGE);
            }
            // The kernel shall not use huge pages here, where it may.
            if kind != Kind::File && descriptor < 0 {
                let _ = call!(SYS_madvise, at, PAGES * PAGE, MADV_NOHUGEPAGE);
            }
            let map = Map::of(at, PAGES * PAGE);
            for page in 0..PAGES {
                // SAFETY: the byte lies in the mapping, which is this function's alone.
                let found = unsafe {
                    let byte = map.at().add(page * PAGE + 3);
                    if matches!(kind, Kind::Anonymous | Kind::FileCopy) {
                        byte.write_volatile(0x77);
                    }
                    byte.read_volatile()
                };
                let expected = match kind {
                    Kind::Anonymous | Kind::FileCopy => 0x77,
                    Kind::Zero => 0,
                    Kind::File => pattern(page * PAGE + 3),
                };
                is("a byte of a page", found, expected)?;
            }
            let at = map.at() as usize;
            std::mem::forget(map);
            seen.set((seen.get().0 + 1, at));
            call!(SYS_munmap, at, PAGES * PAGE).map(drop)
        },
        move || {
            let now = minor_faults()?;
            let least = match kind {
                Kind::File => 1,
                _ => PAGES as i64,
            };
            let (count, last) = shared.get();
            let done = count - operations;
            let happened = now - faults_before;
            operations = count;
            faults_before = now;
            gone(last)?;
            is("whether each page faulted", happened >= least * done, true)
        },
    )
}

/// Whether the kernel refuses to write to a page that has been made unwritable.
fn can_be_protected(page: *mut u8) -> Done {
    call!(SYS_mprotect, page, PAGE, PROT_READ)?;
    refusal(call!(SYS_getrandom, page, 1, 0), EFAULT)?;
    call!(SYS_mprotect, page, PAGE, READ_WRITE).map(drop)
}

fn mprotect(_: &Place, _: usize) -> Prepared {
    let mut page = Map::anonymous(PAGE, false)?;
    let at = page.at();
    let mut value = 0u8;
    each_then(
        move || {
            value = value.wrapping_add(1);
            page.bytes()[0] = value;
            call!(SYS_mprotect, page.at(), PAGE, PROT_READ)?;
            is("the page's byte", page.bytes()[0], value)?;
            call!(SYS_mprotect, page.at(), PAGE, READ_WRITE).map(drop)
        },
        move || can_be_protected(at),
    )
}

fn mprotect_split(_: &Place, _: usize) -> Prepared {
    let map = Map::anonymous(3 * PAGE, false)?;
    let middle = map.at().wrapping_add(PAGE);
    each_then(
        move || {
            let middle = map.at().wrapping_add(PAGE);
            call!(SYS_mprotect, middle, PAGE, PROT_READ)?;
            call!(SYS_mprotect, middle, PAGE, READ_WRITE).map(drop)
        },
        move || can_be_protected(middle),
    )
}

fn mremap_grow(_: &Place, _: usize) -> Prepared {
    const SMALL: usize = 64 << 10;
    let mut map = Map::anonymous(SMALL, false)?;
    map.bytes()[SMALL - 1] = 0x42;
    each(move || {
        let moved = call!(SYS_mremap, map.at(), SMALL, 2 * SMALL, MREMAP_MAYMOVE)?;
        if moved == 0 {
            return wrong("mremap's address", moved, PAGE);
        }
        map.moved(moved);
        is("the last byte", map.bytes()[SMALL - 1], 0x42)?;
        call!(SYS_mremap, map.at(), 2 * SMALL, SMALL, 0).map(drop)
    })
}

fn after_dontneed(_: &Place, _: usize) -> Prepared {
    let mut map = Map::anonymous(PAGES * PAGE, false)?;
    let _ = call!(SYS_madvise, map.at(), PAGES * PAGE, MADV_NOHUGEPAGE);
    each(move || {
        map.bytes()[5] = 1;
        call!(SYS_madvise, map.at(), PAGES * PAGE, MADV_DONTNEED)?;
        for page in 0..PAGES {
            let byte = &mut map.bytes()[page * PAGE + 5];
            is("a byte of a new page", *byte, 0)?;
            *byte = 1;
        }
        Ok(())
    })
}

/// 4 MB hold 2 MB at an address that a huge page may have.
fn huge() -> Done {
    const HUGE: usize = 2 << 20;
    let map = Map::anonymous(2 * HUGE, false)?;
    if map.at().is_null() {
        return wrong("mmap's address", 0, PAGE);
    }
    let at = (map.at() as usize).next_multiple_of(HUGE);
    call!(SYS_madvise, at, HUGE, MADV_HUGEPAGE)?;
    let byte = at as *mut u8;
    // SAFETY: the byte lies in the mapping, which is this function's alone.
    let found = unsafe {
        byte.write_volatile(1);
        byte.add(HUGE - 1).read_volatile()
    };
    is("the last byte", found, 0)
}
