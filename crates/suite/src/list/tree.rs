//! Names: making, linking, renaming, listing and removing files and directories, after McKusick.

use crate::benchmark::{Benchmark, Place, Prepared, Source, each};
use crate::list::files::{directory, filled, refusal};
use crate::sys::{Fd, c_path, call, is, open, wrong};
use libc::*;

pub(super) const LIST: &[Benchmark] = &[
    Benchmark::new(
        "tree/creat-close",
        "opening with creat a file that exists, and closing it",
        Source::Kbx,
        &[SYS_creat],
        |place, _| {
            filled(place, "file", 100)?;
            let path = c_path(&place.directory.join("file"));
            each(move || {
                let file = open!(SYS_creat, path.as_ptr(), 0o777)?;
                is("a file's size", call!(SYS_lseek, &file, 0, SEEK_END)?, 0)
            })
        },
        0,
    ),
    Benchmark::new(
        "tree/create-remove",
        "making an empty file and removing it",
        Source::McKusick,
        &[SYS_openat, SYS_unlinkat],
        create_remove,
        0,
    ),
    Benchmark::new(
        "tree/create-remove-4k",
        "making a file of 4 KB and removing it",
        Source::McKusick,
        &[SYS_openat, SYS_write, SYS_unlinkat],
        create_remove,
        4096,
    ),
    Benchmark::new(
        "tree/create-remove-64k",
        "making a file of 64 KB and removing it",
        Source::McKusick,
        &[SYS_openat, SYS_write, SYS_unlinkat],
        create_remove,
        64 << 10,
    ),
    Benchmark::new(
        "tree/directory",
        "making a directory and removing it",
        Source::McKusick,
        &[SYS_mkdirat, SYS_unlinkat],
        |place, _| {
            let here = directory(place)?;
            each(move || {
                call!(SYS_mkdirat, &here, c"sub".as_ptr(), 0o755)?;
                exists(&here, c"sub", true)?;
                call!(SYS_unlinkat, &here, c"sub".as_ptr(), AT_REMOVEDIR).map(drop)
            })
        },
        0,
    ),
    Benchmark::new(
        "tree/rename",
        "giving a file another name",
        Source::McKusick,
        &[SYS_renameat],
        |place, _| {
            filled(place, "a", 10)?;
            let here = directory(place)?;
            each(move || {
                call!(SYS_renameat, &here, c"a".as_ptr(), &here, c"b".as_ptr())?;
                exists(&here, c"b", true)?;
                call!(SYS_renameat, &here, c"b".as_ptr(), &here, c"a".as_ptr()).map(drop)
            })
        },
        0,
    ),
    Benchmark::new(
        "tree/link-unlink",
        "giving a file a second name, and taking it away",
        Source::McKusick,
        &[SYS_linkat, SYS_unlinkat],
        |place, _| {
            filled(place, "a", 10)?;
            let here = directory(place)?;
            each(move || {
                call!(SYS_linkat, &here, c"a".as_ptr(), &here, c"b".as_ptr(), 0)?;
                exists(&here, c"b", true)?;
                call!(SYS_unlinkat, &here, c"b".as_ptr(), 0).map(drop)
            })
        },
        0,
    ),
    Benchmark::new(
        "tree/symlink-open",
        "opening a file by a symbolic link",
        Source::Own,
        &[SYS_openat],
        |place, _| {
            filled(place, "file", 10)?;
            let here = directory(place)?;
            call!(SYS_symlinkat, c"file".as_ptr(), &here, c"link".as_ptr())?;
            each(move || {
                let file = open!(SYS_openat, &here, c"link".as_ptr(), O_RDONLY, 0)?;
                is("a file's size", call!(SYS_lseek, &file, 0, SEEK_END)?, 10)
            })
        },
        0,
    ),
    Benchmark::new(
        "tree/list-200",
        "listing a directory of 200 files",
        Source::NellansTable4,
        &[SYS_getdents64],
        |place, _| {
            for number in 0..200 {
                filled(place, &format!("file-{number}"), 0)?;
            }
            let here = directory(place)?;
            let mut buffer = vec![0u8; 32 << 10];
            each(move || {
                call!(SYS_lseek, &here, 0, SEEK_SET)?;
                let mut names = 0;
                loop {
                    let got = call!(SYS_getdents64, &here, buffer.as_mut_ptr(), buffer.len())?;
                    if got == 0 {
                        break;
                    }
                    names += entries(&buffer[..got]);
                }
                // `.` and `..` are also listed.
                is("names", names, 202)
            })
        },
        0,
    ),
    Benchmark::new(
        "tree/walk",
        "a tree of 40 directories and 120 files: made, walked by stat, and removed",
        Source::McKusick,
        &[SYS_mkdirat, SYS_openat, SYS_newfstatat, SYS_unlinkat],
        walk,
        40,
    ),
];

fn exists(here: &Fd, name: &std::ffi::CStr, expected: bool) -> Result<(), crate::sys::Failure> {
    let found = call!(SYS_faccessat, here, name.as_ptr(), F_OK);
    match expected {
        true => found.map(drop),
        false => refusal(found, ENOENT),
    }
}

/// The number of entries in what getdents64 gave (struct linux_dirent64: the length is at 16).
fn entries(bytes: &[u8]) -> usize {
    let mut count = 0;
    let mut at = 0;
    while at + 18 < bytes.len() {
        at += usize::from(u16::from_le_bytes([bytes[at + 16], bytes[at + 17]])).max(1);
        count += 1;
    }
    count
}

fn create_remove(place: &Place, size: usize) -> Prepared {
    let here = directory(place)?;
    let bytes = vec![3u8; size];
    each(move || {
        let flags = O_WRONLY | O_CREAT | O_EXCL;
        let file = open!(SYS_openat, &here, c"new".as_ptr(), flags, 0o644)?;
        if size > 0 {
            is("bytes written", crate::sys::write(&file, &bytes)?, size)?;
        }
        drop(file);
        call!(SYS_unlinkat, &here, c"new".as_ptr(), 0)?;
        exists(&here, c"new", false)
    })
}

fn walk(place: &Place, directories: usize) -> Prepared {
    let here = directory(place)?;
    let names: Vec<_> = (0..directories).map(|n| c_path(format!("d{n}").as_ref())).collect();
    let files: Vec<Vec<_>> = (0..directories)
        .map(|n| (0..3).map(|m| c_path(format!("d{n}/f{m}").as_ref())).collect())
        .collect();
    // SAFETY: a plain structure.
    let mut found: stat = unsafe { std::mem::zeroed() };
    each(move || {
        for (name, files) in names.iter().zip(&files) {
            call!(SYS_mkdirat, &here, name.as_ptr(), 0o755)?;
            for file in files {
                drop(open!(SYS_openat, &here, file.as_ptr(), O_WRONLY | O_CREAT | O_EXCL, 0o644)?);
            }
        }
        for file in files.iter().flatten() {
            found.st_nlink = 0;
            call!(SYS_newfstatat, &here, file.as_ptr(), &raw mut found, 0)?;
            if found.st_nlink != 1 {
                return wrong("a file's links", found.st_nlink, 1);
            }
        }
        for (name, files) in names.iter().zip(&files) {
            for file in files {
                call!(SYS_unlinkat, &here, file.as_ptr(), 0)?;
            }
            call!(SYS_unlinkat, &here, name.as_ptr(), AT_REMOVEDIR)?;
        }
        exists(&here, &names[0], false)
    })
}
