//! Files by size and by depth of their path, in the page cache.
//!
//! `kernlane bench --directory` chooses the file system. Benchmarks that wait for a disk have
//! `sync` in their names.

use crate::benchmark::{Benchmark, Place, Prepared, Source, each, each_then};
use crate::sys::{Failure, Fd, c_path, call, is, open, read, write, write_all, wrong};
use libc::*;
use std::ffi::CString;
use std::mem::zeroed;

pub(super) const LIST: &[Benchmark] = &[
    Benchmark::new(
        "file/open-close",
        "looking up one name, making and closing an open file",
        Source::Osbench,
        &[SYS_openat, SYS_close],
        open_close,
        1,
    ),
    Benchmark::new(
        "file/open-close-depth-4",
        "looking up a path of 4 names",
        Source::Own,
        &[SYS_openat, SYS_close],
        open_close,
        4,
    ),
    Benchmark::new(
        "file/open-close-depth-16",
        "looking up a path of 16 names",
        Source::Own,
        &[SYS_openat, SYS_close],
        open_close,
        16,
    ),
    Benchmark::new(
        "file/open-missing",
        "looking up a name that is not there",
        Source::Own,
        &[SYS_openat],
        |place, _| {
            let path = c_path(&place.directory.join("missing"));
            each(move || refusal(call!(SYS_openat, AT_FDCWD, path.as_ptr(), O_RDONLY, 0), ENOENT))
        },
        0,
    ),
    Benchmark::new("file/stat", "a path's attributes", Source::Lmbench, STAT, stat_path, 1),
    Benchmark::new(
        "file/stat-depth-4",
        "the attributes of a path of 4 names",
        Source::Own,
        STAT,
        stat_path,
        4,
    ),
    Benchmark::new(
        "file/stat-depth-16",
        "the attributes of a path of 16 names",
        Source::Own,
        STAT,
        stat_path,
        16,
    ),
    Benchmark::new(
        "file/fstat",
        "an open file's attributes",
        Source::NellansTable4,
        &[SYS_fstat],
        |place, _| {
            let file = filled(place, "file", 1234)?;
            // SAFETY: a plain structure.
            let mut found: stat = unsafe { zeroed() };
            each(move || {
                found.st_size = 0;
                call!(SYS_fstat, &file, &raw mut found)?;
                is("a file's size", found.st_size, 1234)
            })
        },
        0,
    ),
    Benchmark::new(
        "file/access",
        "whether a file may be read, and one that is not there",
        Source::Own,
        &[SYS_faccessat],
        |place, _| {
            filled(place, "file", 0)?;
            let here = directory(place)?;
            each(move || {
                call!(SYS_faccessat, &here, c"file".as_ptr(), R_OK)?;
                refusal(call!(SYS_faccessat, &here, c"missing".as_ptr(), R_OK), ENOENT)
            })
        },
        0,
    ),
    Benchmark::new("file/read-20", "20 bytes from the cache", Source::Kbx, READ, read_again, 20),
    Benchmark::new(
        "file/read-1k",
        "1,024 bytes from the cache",
        Source::Kbx,
        READ,
        read_again,
        1 << 10,
    ),
    Benchmark::new(
        "file/read-8k",
        "8,192 bytes from the cache",
        Source::Kbx,
        READ,
        read_again,
        8 << 10,
    ),
    Benchmark::new(
        "file/read-64k",
        "64 KB from the cache, mostly copying",
        Source::Osbench,
        READ,
        read_again,
        64 << 10,
    ),
    Benchmark::new(
        "file/read-1m",
        "1 MB from the cache, beyond the first caches",
        Source::Osbench,
        READ,
        read_again,
        1 << 20,
    ),
    Benchmark::new(
        "file/read-random-4k",
        "4 KB at random places of a file of 4 MB",
        Source::Own,
        READ,
        |place, _| {
            const PAGES: u64 = 1024;
            let file = filled(place, "file", PAGES as usize * 4096)?;
            let mut buffer = vec![0u8; 4096];
            let mut state = 1u64;
            each(move || {
                // A full cycle through all pages (Hull and Dobell).
                state = state.wrapping_mul(421).wrapping_add(1663) % PAGES;
                let at = state * 4096;
                buffer[17] = 0;
                let got = call!(SYS_pread64, &file, buffer.as_mut_ptr(), 4096, at)?;
                is("bytes read", got, 4096)?;
                is("a byte of the file", buffer[17], pattern(at as usize + 17))
            })
        },
        0,
    ),
    Benchmark::new(
        "file/write-20",
        "20 bytes into a cached page",
        Source::Osbench,
        WRITE,
        write_again,
        20,
    ),
    Benchmark::new(
        "file/write-1k",
        "1,024 bytes into a cached page",
        Source::Osbench,
        WRITE,
        write_again,
        1 << 10,
    ),
    Benchmark::new(
        "file/write-8k",
        "8,192 bytes into cached pages",
        Source::Osbench,
        WRITE,
        write_again,
        8 << 10,
    ),
    Benchmark::new(
        "file/write-64k",
        "64 KB into cached pages",
        Source::Osbench,
        WRITE,
        write_again,
        64 << 10,
    ),
    Benchmark::new(
        "file/append-truncate",
        "growing a file by 16 times 4 KB, and cutting it to nothing",
        Source::Own,
        &[SYS_write, SYS_ftruncate],
        append_truncate,
        0,
    ),
    Benchmark::new(
        "file/lseek",
        "moving the place in an open file",
        Source::Own,
        &[SYS_lseek],
        |place, _| {
            let file = filled(place, "file", 4096)?;
            let mut at = 1usize;
            each(move || {
                at ^= 513;
                is("lseek", call!(SYS_lseek, &file, at, SEEK_SET)?, at)
            })
        },
        0,
    ),
    Benchmark::new(
        "file/sendfile-64k",
        "64 KB from a file into a pipe, and read out of it",
        Source::Own,
        &[SYS_sendfile],
        |place, _| copy_to_pipe(place, true),
        0,
    ),
    Benchmark::new(
        "file/splice-64k",
        "64 KB from a file into a pipe by moving pages, and read out of it",
        Source::Own,
        &[SYS_splice],
        |place, _| copy_to_pipe(place, false),
        0,
    ),
    Benchmark::new(
        "file/copy-range-64k",
        "64 KB from file to file inside the kernel",
        Source::Own,
        &[SYS_copy_file_range],
        |place, _| {
            let from = filled(place, "from", 64 << 10)?;
            let to = filled(place, "to", 0)?;
            let mut seen = [0u8; 64];
            each_then_copy(from, to, move |to| {
                let got = call!(SYS_pread64, to, seen.as_mut_ptr(), seen.len(), 4096)?;
                is("bytes of the copy", got, seen.len())?;
                is("a byte of the copy", seen[5], pattern(4096 + 5))
            })
        },
        0,
    ),
    Benchmark::new(
        "file/write-sync-4k",
        "4 KB written and waited for until the device has them",
        Source::Own,
        &[SYS_pwrite64, SYS_fdatasync],
        |place, _| {
            let file = filled(place, "file", 4096)?;
            let page = vec![9u8; 4096];
            each(move || {
                let written = call!(SYS_pwrite64, &file, page.as_ptr(), page.len(), 0)?;
                is("bytes written", written, page.len())?;
                call!(SYS_fdatasync, &file).map(drop)
            })
        },
        0,
    ),
    Benchmark::new(
        "file/lock",
        "taking and leaving a lock on a range of a file",
        Source::Own,
        &[SYS_fcntl],
        lock,
        0,
    ),
];

const STAT: &[i64] = &[SYS_newfstatat];
const READ: &[i64] = &[SYS_pread64];
const WRITE: &[i64] = &[SYS_pwrite64];

/// The byte at a place of every file of the suite.
pub(super) fn pattern(at: usize) -> u8 {
    (at % 251) as u8 + 1
}

/// A file of `size` bytes, opened to be read and written, at its beginning.
pub(super) fn filled(place: &Place, name: &str, size: usize) -> Result<Fd, Failure> {
    let path = c_path(&place.directory.join(name));
    let flags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC;
    let file = open!(SYS_openat, AT_FDCWD, path.as_ptr(), flags, 0o644)?;
    let bytes: Vec<u8> = (0..size).map(pattern).collect();
    write_all(&file, &bytes)?;
    call!(SYS_lseek, &file, 0, SEEK_SET)?;
    Ok(file)
}

/// An operation is right if the kernel refuses it with `errno`.
pub(super) fn refusal(result: Result<usize, Failure>, errno: i32) -> Result<(), Failure> {
    match result {
        Err(Failure::Refused { errno: got, .. }) if got == errno => Ok(()),
        Err(failure) => Err(failure),
        Ok(got) => wrong("a call that must fail", got, -errno),
    }
}

/// The path of a file below `depth - 1` directories, from the benchmark's directory on.
fn deep(place: &Place, depth: usize) -> Result<CString, Failure> {
    let mut directory = place.directory.clone();
    for _ in 1..depth {
        directory.push("d");
        call!(SYS_mkdirat, AT_FDCWD, c_path(&directory).as_ptr(), 0o755)?;
    }
    let deepest = Place { directory };
    filled(&deepest, "file", 1234)?;
    Ok(c_path(deepest.directory.join("file").strip_prefix(&place.directory).expect("it is below")))
}

/// The benchmark's directory, from which paths of a known depth begin.
pub(super) fn directory(place: &Place) -> Result<Fd, Failure> {
    let path = c_path(&place.directory);
    open!(SYS_openat, AT_FDCWD, path.as_ptr(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)
}

fn open_close(place: &Place, depth: usize) -> Prepared {
    let path = deep(place, depth)?;
    let directory = directory(place)?;
    let free = call!(SYS_dup, &directory)?;
    call!(SYS_close, free)?;
    each(move || {
        is("openat", call!(SYS_openat, &directory, path.as_ptr(), O_RDONLY, 0)?, free)?;
        call!(SYS_close, free).map(drop)
    })
}

fn stat_path(place: &Place, depth: usize) -> Prepared {
    let path = deep(place, depth)?;
    let directory = directory(place)?;
    // SAFETY: a plain structure.
    let mut found: stat = unsafe { zeroed() };
    each(move || {
        found.st_size = 0;
        call!(SYS_newfstatat, &directory, path.as_ptr(), &raw mut found, 0)?;
        is("a file's size", found.st_size, 1234)
    })
}

fn read_again(place: &Place, size: usize) -> Prepared {
    let file = filled(place, "file", size)?;
    let mut buffer = vec![0u8; size];
    let last = pattern(size - 1);
    each(move || {
        buffer[size - 1] = 0;
        is("bytes read", call!(SYS_pread64, &file, buffer.as_mut_ptr(), size, 0)?, size)?;
        is("the last byte", buffer[size - 1], last)
    })
}

fn write_again(place: &Place, size: usize) -> Prepared {
    let file = filled(place, "file", size)?;
    let path = c_path(&place.directory.join("file"));
    let buffer = vec![0xa5u8; size];
    each_then(
        move || is("bytes written", call!(SYS_pwrite64, &file, buffer.as_ptr(), size, 0)?, size),
        move || {
            let file = open!(SYS_openat, AT_FDCWD, path.as_ptr(), O_RDONLY, 0)?;
            let mut found = vec![0u8; size];
            is("bytes read back", read(&file, &mut found)?, size)?;
            is("bytes that were written", found.iter().all(|byte| *byte == 0xa5), true)
        },
    )
}

/// Moves 64 KB of a file into a pipe, by sendfile or splice, and reads the pipe empty.
fn copy_to_pipe(place: &Place, by_sendfile: bool) -> Prepared {
    const SIZE: usize = 64 << 10;
    let file = filled(place, "file", SIZE)?;
    let [out, into] = crate::sys::pipe(0)?;
    call!(SYS_fcntl, &into, F_SETPIPE_SZ, 2 * SIZE)?;
    let mut buffer = vec![0u8; SIZE];
    each(move || {
        let mut at = 0i64;
        let place = &raw mut at;
        let moved = match by_sendfile {
            true => call!(SYS_sendfile, &into, &file, place, SIZE)?,
            false => call!(SYS_splice, &file, place, &into, 0, SIZE, 0)?,
        };
        is("bytes moved", moved, SIZE)?;
        buffer[SIZE - 1] = 0;
        is("bytes read", crate::sys::read_all(&out, &mut buffer)?, true)?;
        is("the last byte", buffer[SIZE - 1], pattern(SIZE - 1))
    })
}

fn each_then_copy(
    from: Fd,
    to: Fd,
    mut check: impl FnMut(&Fd) -> Result<(), Failure> + 'static,
) -> Prepared {
    each(move || {
        let (mut at, mut onto) = (0i64, 0i64);
        let moved =
            call!(SYS_copy_file_range, &from, &raw mut at, &to, &raw mut onto, 64 << 10, 0)?;
        is("bytes copied", moved, 64 << 10)?;
        check(&to)
    })
}

/// Behind each slice, the file must be empty.
fn append_truncate(place: &Place, _: usize) -> Prepared {
    let file = filled(place, "file", 0)?;
    let here = directory(place)?;
    let page = vec![7u8; 4096];
    each_then(
        move || {
            for _ in 0..16 {
                is("bytes written", write(&file, &page)?, page.len())?;
            }
            is("the place in the file", call!(SYS_lseek, &file, 0, SEEK_END)?, 16 * 4096)?;
            call!(SYS_ftruncate, &file, 0)?;
            call!(SYS_lseek, &file, 0, SEEK_SET).map(drop)
        },
        move || {
            let file = open!(SYS_openat, &here, c"file".as_ptr(), O_RDONLY, 0)?;
            is("the size of a file that was cut", call!(SYS_lseek, &file, 0, SEEK_END)?, 0)
        },
    )
}

/// A request for a lock on 100 bytes.
fn of_kind(kind: i32) -> flock {
    flock { l_type: kind as i16, l_whence: SEEK_SET as i16, l_start: 0, l_len: 100, l_pid: 0 }
}

/// Behind each slice, another open file must see a lock.
fn lock(place: &Place, _: usize) -> Prepared {
    let file = filled(place, "file", 4096)?;
    let here = directory(place)?;
    let again = open!(SYS_dup, &file)?;
    let set = |file: &Fd, kind| {
        let request = of_kind(kind);
        call!(SYS_fcntl, file, F_SETLK, &raw const request)
    };
    each_then(
        move || {
            set(&file, F_WRLCK)?;
            set(&file, F_UNLCK).map(drop)
        },
        move || {
            set(&again, F_WRLCK)?;
            let other = open!(SYS_openat, &here, c"file".as_ptr(), O_RDWR, 0)?;
            let mut found = of_kind(F_RDLCK);
            call!(SYS_fcntl, &other, F_OFD_GETLK, &raw mut found)?;
            is("the lock", found.l_type, F_WRLCK as i16)?;
            // Closing any descriptor of the file takes the lock away (fcntl(2)).
            Ok(())
        },
    )
}
