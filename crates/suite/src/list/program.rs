//! Programs to start: a few instructions each, written to a file of the benchmark's directory, so
//! that what is measured is the kernel's work and is the same in every build of the suite.

use crate::benchmark::Place;
use crate::sys::{Failure, c_path, call, open, write_all};
use libc::*;
use std::arch::global_asm;
use std::ffi::CString;

global_asm!(
    ".pushsection .rodata",
    // Ends with the number of arguments.
    "kernlane_suite_exit:",
    "mov edi, [rsp]",
    "mov eax, 231",
    "syscall",
    "kernlane_suite_exit_end:",
    // Copies descriptor 200 to 201.
    "kernlane_suite_copy:",
    "sub rsp, 8192",
    "2:",
    "mov edi, 200",
    "mov rsi, rsp",
    "mov edx, 8192",
    "xor eax, eax",
    "syscall",
    "test rax, rax",
    "jle 3f",
    "mov rdx, rax",
    "mov edi, 201",
    "mov rsi, rsp",
    "mov eax, 1",
    "syscall",
    "cmp rax, rdx",
    "je 2b",
    "mov rax, -1",
    "3:",
    "mov rdi, rax",
    "neg rdi",
    "mov eax, 231",
    "syscall",
    "kernlane_suite_copy_end:",
    ".popsection",
);

unsafe extern "C" {
    static kernlane_suite_exit: u8;
    static kernlane_suite_exit_end: u8;
    static kernlane_suite_copy: u8;
    static kernlane_suite_copy_end: u8;
}

/// What `Code::Copy` reads.
pub(super) const COPY_FROM: i32 = 200;
/// What `Code::Copy` writes.
pub(super) const COPY_TO: i32 = 201;

#[derive(Clone, Copy)]
pub(super) enum Code {
    /// Ends with its number of arguments (the low byte), its name included.
    Exit,
    /// Copies descriptor `COPY_FROM` to `COPY_TO`, and ends with 0 if that worked.
    Copy,
}

impl Code {
    fn bytes(self) -> &'static [u8] {
        // SAFETY: both labels of a pair lie in one object, the end behind the start.
        unsafe {
            let (start, end) = match self {
                Code::Exit => (&raw const kernlane_suite_exit, &raw const kernlane_suite_exit_end),
                Code::Copy => (&raw const kernlane_suite_copy, &raw const kernlane_suite_copy_end),
            };
            std::slice::from_raw_parts(start, end.offset_from_unsigned(start))
        }
    }
}

const BASE: u64 = 0x40_0000;
const HEADERS: u64 = 64 + 56;

/// An ELF file with one segment: both headers, then `code` (System V ABI, chapters 4 and 5).
fn elf(code: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
    let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_le_bytes());
    let long = |file: &mut Vec<u8>, value: u64| file.extend(value.to_le_bytes());
    file.extend(*b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    half(&mut file, 2); // ET_EXEC
    half(&mut file, 62); // EM_X86_64
    word(&mut file, 1);
    long(&mut file, BASE + HEADERS);
    long(&mut file, 64);
    long(&mut file, 0);
    word(&mut file, 0);
    for size in [64, 56, 1, 0, 0, 0] {
        half(&mut file, size);
    }
    word(&mut file, 1); // PT_LOAD
    word(&mut file, 5); // read, execute
    long(&mut file, 0);
    long(&mut file, BASE);
    long(&mut file, BASE);
    let size = HEADERS + code.len() as u64;
    long(&mut file, size);
    long(&mut file, size);
    long(&mut file, 4096);
    file.extend(code);
    file
}

/// Writes a program to the benchmark's directory, and gives its path.
pub(super) fn install(place: &Place, code: Code) -> Result<CString, Failure> {
    let path = c_path(&place.directory.join("program"));
    let flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    let file = open!(SYS_openat, AT_FDCWD, path.as_ptr(), flags, 0o755)?;
    write_all(&file, &elf(code.bytes()))?;
    call!(SYS_fchmod, &file, 0o755)?;
    match call!(SYS_faccessat, AT_FDCWD, path.as_ptr(), X_OK) {
        Err(Failure::Refused { errno, .. }) => {
            Err(Failure::Refused { call: "starting programs in the directory", errno })
        }
        _ => Ok(path),
    }
}
