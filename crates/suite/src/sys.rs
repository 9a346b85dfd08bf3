//! System calls without the C library: the same instructions in every program that measures.
//!
//! Input: a number and arguments. Output: what the kernel returned, or a [`Failure`] with the
//! call's name. This module never retries and never caches.

use std::arch::asm;
use std::ffi::CString;
use std::fmt;
use std::path::Path;

/// Why an operation did not do what it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The kernel refused a system call.
    Refused { call: &'static str, errno: i32 },
    /// The kernel did something else than asked.
    Wrong(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused { call, errno } => {
                let call = call.trim_start_matches("SYS_");
                write!(f, "{call}: {}", std::io::Error::from_raw_os_error(*errno))?;
                // All connections of the benchmarks stay on the machine.
                if call == "connect" && *errno == libc::ENETUNREACH {
                    f.write_str("; the loopback interface is down")?;
                }
                Ok(())
            }
            Failure::Wrong(what) => f.write_str(what),
        }
    }
}

/// The result of an operation.
pub(crate) type Done = Result<(), Failure>;

/// Ends an operation whose result is wrong.
#[cold]
pub(crate) fn wrong<T>(
    what: &str,
    got: impl fmt::Debug,
    expected: impl fmt::Debug,
) -> Result<T, Failure> {
    Err(Failure::Wrong(format!("{what}: got {got:?}, expected {expected:?}")))
}

/// An operation is right if `got` is `expected`.
#[inline(always)]
pub(crate) fn is<T: PartialEq + fmt::Debug>(what: &str, got: T, expected: T) -> Done {
    if got == expected { Ok(()) } else { wrong(what, got, expected) }
}

/// A value that fits in a register of a system call.
pub(crate) trait Word {
    fn word(self) -> usize;
}

macro_rules! words {
    ($($integer:ty)*) => {
        $(impl Word for $integer {
            #[inline(always)]
            fn word(self) -> usize {
                self as usize
            }
        })*
    };
}
words!(i32 u32 i64 u64 isize usize);

impl<T> Word for *const T {
    #[inline(always)]
    fn word(self) -> usize {
        self as usize
    }
}

impl<T> Word for *mut T {
    #[inline(always)]
    fn word(self) -> usize {
        self as usize
    }
}

impl Word for &Fd {
    #[inline(always)]
    fn word(self) -> usize {
        self.0 as usize
    }
}

/// A descriptor that is closed when it is dropped. Its number is private, so that a closure that
/// uses the number takes all of it, and keeps it open.
#[derive(Debug)]
pub(crate) struct Fd(i32);

impl Fd {
    /// Takes over an open descriptor.
    pub(crate) fn of(number: i32) -> Fd {
        Fd(number)
    }

    pub(crate) fn number(&self) -> i32 {
        self.0
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        raw(libc::SYS_close, [self.0 as usize, 0, 0, 0, 0, 0]);
    }
}

/// Makes a system call.
#[inline(always)]
pub(crate) fn raw(number: i64, a: [usize; 6]) -> isize {
    let result;
    // SAFETY: callers give arguments that are valid for the call (`call!`). The instruction
    // clobbers rcx and r11 only.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a[0], in("rsi") a[1],
            in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// The arguments of a call, and zeros.
#[inline(always)]
pub(crate) fn six<const N: usize>(arguments: [usize; N]) -> [usize; 6] {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    all
}

/// The kernel's result, or its error.
#[inline(always)]
pub(crate) fn checked(call: &'static str, result: isize) -> Result<usize, Failure> {
    if (-4095..0).contains(&result) { refused(call, -result as i32) } else { Ok(result as usize) }
}

#[cold]
fn refused(call: &'static str, errno: i32) -> Result<usize, Failure> {
    Err(Failure::Refused { call, errno })
}

/// `call!(SYS_read, &fd, buffer.as_mut_ptr(), buffer.len())`: makes a system call, and gives its
/// result or a [`Failure`]. Pointers must be valid for the call.
macro_rules! call {
    ($name:ident $(, $argument:expr)* $(,)?) => {
        $crate::sys::checked(
            stringify!($name),
            $crate::sys::raw(
                libc::$name,
                $crate::sys::six([$($crate::sys::Word::word($argument)),*]),
            ),
        )
    };
}
pub(crate) use call;

/// As `call!`, for a call that gives a descriptor.
macro_rules! open {
    ($name:ident $(, $argument:expr)* $(,)?) => {
        $crate::sys::call!($name $(, $argument)*).map(|fd| $crate::sys::Fd::of(fd as i32))
    };
}
pub(crate) use open;

/// A path for the kernel.
pub(crate) fn c_path(path: &Path) -> CString {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).expect("paths of the suite have no zero byte")
}

/// Two ends: of a pipe, or of a pair of sockets.
pub(crate) fn pipe(flags: i32) -> Result<[Fd; 2], Failure> {
    let mut ends = [-1i32; 2];
    call!(SYS_pipe2, ends.as_mut_ptr(), flags)?;
    two(ends)
}

/// Takes over the two descriptors that the kernel wrote.
pub(crate) fn two(ends: [i32; 2]) -> Result<[Fd; 2], Failure> {
    match ends {
        [a, b] if a >= 0 && b > a => Ok(ends.map(Fd)),
        _ => wrong("two new descriptors", ends, [3, 4]),
    }
}

/// Memory from the kernel, unmapped when it is dropped. Its place is private, like the number of
/// `Fd`.
#[derive(Debug)]
pub(crate) struct Map {
    at: *mut u8,
    len: usize,
}

impl Map {
    /// Anonymous memory, shared with children or not.
    pub(crate) fn anonymous(len: usize, shared: bool) -> Result<Map, Failure> {
        let kind = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let at = call!(SYS_mmap, 0, len, protection, kind | libc::MAP_ANONYMOUS, -1, 0)?;
        match at {
            0 => wrong("mmap's address", at, 4096),
            at => Ok(Map::of(at, len)),
        }
    }

    /// Takes over what is mapped.
    pub(crate) fn of(at: usize, len: usize) -> Map {
        Map { at: at as *mut u8, len }
    }

    pub(crate) fn at(&self) -> *mut u8 {
        self.at
    }

    /// The kernel has moved the memory to another address.
    pub(crate) fn moved(&mut self, at: usize) {
        self.at = at as *mut u8;
    }

    /// The bytes. The mapping is this process's alone, or holds nothing but bytes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has `len` bytes, readable and writable, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        raw(libc::SYS_munmap, [self.at as usize, self.len, 0, 0, 0, 0]);
    }
}

/// Makes a child whose only act is one system call (`then`: its number and three arguments), and
/// gives the child's id. `thread_id`: the kernel writes 0 there when a thread ends.
///
/// The child may share memory and stack with its parent, since it never touches either.
#[inline(always)]
pub(crate) fn clone_and(
    flags: i32,
    thread_id: *mut u32,
    then: [usize; 4],
) -> Result<usize, Failure> {
    let result: isize;
    // SAFETY: between the call and the child's end, only registers of the child are written; the
    // child makes one system call and ends.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov rax, r12",
            "mov rdi, r13",
            "mov rsi, r14",
            "mov rdx, r15",
            "syscall",
            "mov edi, 127",
            "mov eax, 231",
            "syscall",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags as usize, in("rsi") 0, in("rdx") 0, in("r10") thread_id, in("r8") 0,
            in("r12") then[0], in("r13") then[1], in("r14") then[2], in("r15") then[3],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    checked("SYS_clone", result)
}

/// Waits until a child has ended, and gives its exit code.
#[inline(always)]
pub(crate) fn exit_code(child: usize) -> Result<i32, Failure> {
    let mut status = 0i32;
    call!(SYS_wait4, child, &raw mut status, 0, 0)?;
    if libc::WIFEXITED(status) {
        Ok(libc::WEXITSTATUS(status))
    } else {
        wrong("a child's end", status, 0)
    }
}

/// Seconds of the processor in user and in kernel mode, of all children that have ended.
pub(crate) fn children_seconds() -> Result<[f64; 2], Failure> {
    // SAFETY: a plain structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    call!(SYS_getrusage, libc::RUSAGE_CHILDREN, &raw mut usage)?;
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok([seconds(usage.ru_utime), seconds(usage.ru_stime)])
}

/// Another process that works with the measured one: killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Peer(usize);

impl Peer {
    /// Runs `work` in a child. It must neither print nor take locks. The child ends with its
    /// parent.
    pub(crate) fn start(work: impl FnOnce() -> Done) -> Result<Peer, Failure> {
        // SAFETY: the child uses system calls and memory of its own, and ends without returning.
        match unsafe { libc::fork() } {
            -1 => Err(Failure::Refused {
                call: "SYS_fork",
                errno: std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
            }),
            0 => {
                let code = match call!(SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                    Ok(_) => i32::from(work().is_err()),
                    Err(_) => 1,
                };
                let _ = call!(SYS_exit_group, code);
                unreachable!("exit_group returned")
            }
            child => Ok(Peer(child as usize)),
        }
    }

    pub(crate) fn id(&self) -> usize {
        self.0
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A child that cannot be killed ends with this process.
        if call!(SYS_kill, self.0, libc::SIGKILL).is_ok() {
            let mut status = 0i32;
            let _ = call!(SYS_wait4, self.0, &raw mut status, 0, 0);
        }
    }
}

#[inline(always)]
pub(crate) fn read(fd: &Fd, bytes: &mut [u8]) -> Result<usize, Failure> {
    call!(SYS_read, fd, bytes.as_mut_ptr(), bytes.len())
}

#[inline(always)]
pub(crate) fn write(fd: &Fd, bytes: &[u8]) -> Result<usize, Failure> {
    call!(SYS_write, fd, bytes.as_ptr(), bytes.len())
}

/// Writes all of `bytes`.
pub(crate) fn write_all(fd: &Fd, mut bytes: &[u8]) -> Done {
    while !bytes.is_empty() {
        match write(fd, bytes)? {
            0 => return wrong("bytes written", 0, bytes.len()),
            some => bytes = &bytes[some..],
        }
    }
    Ok(())
}

/// Reads until `bytes` is full. Returns false if the other end was closed before.
pub(crate) fn read_all(fd: &Fd, bytes: &mut [u8]) -> Result<bool, Failure> {
    let mut full = 0;
    while full < bytes.len() {
        match read(fd, &mut bytes[full..])? {
            0 => return Ok(false),
            some => full += some,
        }
    }
    Ok(true)
}
