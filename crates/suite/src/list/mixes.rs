//! Work whose time a user waits for: many services in the proportions of real programs.
//!
//! Everything is in this program: no compiler, shell, database or web server need be installed.
//! User mode also computes, so that the kernel's code and data leave the caches as in real use.

use crate::benchmark::{Benchmark, Place, Prepared, Source, each};
use crate::list::files::{directory, filled, pattern, refusal};
use crate::list::network::{connect, listening, reset_on_close};
use crate::list::pipes::sockets;
use crate::list::processes::VFORK;
use crate::list::program::{COPY_FROM, COPY_TO, Code, install};
use crate::sys::{Done, Failure, Fd, Peer, c_path, call, clone_and, exit_code, is, open, pipe};
use crate::sys::{read, read_all, write, write_all};
use libc::*;
use std::ffi::{CStr, CString};
use std::hint::black_box;
use std::mem::zeroed;

pub(super) const LIST: &[Benchmark] = &[
    Benchmark::new(
        "mix/compile",
        "3 sources compiled: searching and reading 12 headers each, computing, two programs",
        Source::Own,
        &[SYS_openat, SYS_clone, SYS_execve],
        compile,
        3,
    ),
    Benchmark::new(
        "mix/shell",
        "4 command lines of a shell: searching PATH, fork, exec, redirections, a pipeline",
        Source::McKusick,
        &[SYS_clone, SYS_execve, SYS_pipe2],
        shell,
        4,
    ),
    Benchmark::new(
        "mix/database",
        "10 transactions by a local socket: lock, 3 pages read, 1 written, a log",
        Source::Own,
        &[SYS_read, SYS_write],
        database,
        10,
    ),
    Benchmark::new(
        "mix/web",
        "8 files fetched by TCP, a connection each, from a server with epoll and sendfile",
        Source::Own,
        &[SYS_connect, SYS_read],
        web,
        8,
    ),
];

/// Computes for some microseconds a kilobyte, as a parser would: a table and branches.
fn compute(bytes: &[u8], table: &mut [u32]) -> u32 {
    let mut state = 1u32;
    for byte in bytes {
        let slot = (state ^ u32::from(*byte)) as usize % table.len();
        state = match table[slot] & 3 {
            0 => state.rotate_left(5) ^ u32::from(*byte),
            1 => state.wrapping_mul(0x0100_0193),
            _ => state.wrapping_add(table[slot]),
        };
        table[slot] = table[slot].wrapping_add(u32::from(*byte) | 1);
    }
    black_box(state)
}

/// A program that copies, with its input and output redirected as a shell does it.
struct Copier {
    program: CString,
    arguments: [*const c_char; 2],
}

impl Copier {
    fn new(place: &Place) -> Result<Copier, Failure> {
        let program = install(place, Code::Copy)?;
        // The string stays where it is when the structure moves.
        let arguments = [program.as_ptr(), std::ptr::null()];
        Ok(Copier { program, arguments })
    }

    /// Starts the program; `flags` say by fork or vfork.
    fn start(&self, flags: i32, from: &Fd, to: &Fd) -> Result<usize, Failure> {
        let redirected = [open!(SYS_dup3, from, COPY_FROM, 0)?, open!(SYS_dup3, to, COPY_TO, 0)?];
        let arguments = self.arguments.as_ptr() as usize;
        let nothing = &raw const self.arguments[1] as usize;
        let then = [SYS_execve as usize, self.program.as_ptr() as usize, arguments, nothing];
        let child = clone_and(flags, std::ptr::null_mut(), then);
        drop(redirected);
        child
    }
}

fn opened(here: &Fd, name: &CStr, flags: i32) -> Result<Fd, Failure> {
    open!(SYS_openat, here, name.as_ptr(), flags | O_CLOEXEC, 0o644)
}

fn size(file: &Fd) -> Result<i64, Failure> {
    // SAFETY: a plain structure.
    let mut found: stat = unsafe { zeroed() };
    call!(SYS_fstat, file, &raw mut found)?;
    Ok(found.st_size)
}

/// Each source: 12 headers, each looked for in two other directories first; the text is computed
/// on, goes through a program by a pipe ("assembler") into an object, which is renamed.
fn compile(place: &Place, sources: usize) -> Prepared {
    const HEADERS: usize = 12;
    const HEADER: usize = 6000;
    let here = directory(place)?;
    for name in [c"local", c"other", c"include"] {
        call!(SYS_mkdirat, &here, name.as_ptr(), 0o755)?;
    }
    let include = Place { directory: place.directory.join("include") };
    for number in 0..HEADERS {
        filled(&include, &format!("h{number}.h"), HEADER)?;
    }
    let searched: Vec<[CString; 3]> = (0..HEADERS)
        .map(|n| ["local", "other", "include"].map(|d| c_path(format!("{d}/h{n}.h").as_ref())))
        .collect();
    let assembler = Copier::new(place)?;
    let mut text = vec![0u8; HEADER];
    let mut table = vec![7u32; 1 << 14];
    let object: Vec<u8> = (0..16 << 10).map(pattern).collect();
    each(move || {
        for _ in 0..sources {
            for [local, other, found] in &searched {
                for missing in [local, other] {
                    refusal(call!(SYS_openat, &here, missing.as_ptr(), O_RDONLY, 0), ENOENT)?;
                }
                let header = opened(&here, found, O_RDONLY)?;
                is("a header's size", size(&header)?, HEADER as i64)?;
                text[HEADER - 1] = 0;
                is("bytes read", read(&header, &mut text)?, HEADER)?;
                is("the last byte", text[HEADER - 1], pattern(HEADER - 1))?;
                compute(&text, &mut table);
            }
            let [from, into] = pipe(O_CLOEXEC)?;
            let temporary = opened(&here, c"object.tmp", O_WRONLY | O_CREAT | O_TRUNC)?;
            let child = assembler.start(VFORK, &from, &temporary)?;
            write_all(&into, &object)?;
            drop((from, into));
            is("the assembler's exit code", exit_code(child)?, 0)?;
            is("the object's size", size(&temporary)?, object.len() as i64)?;
            let [old, new] = [c"object.tmp", c"object.o"].map(CStr::as_ptr);
            call!(SYS_renameat, &here, old, &here, new)?;
        }
        // The linker.
        let object = opened(&here, c"object.o", O_RDONLY)?;
        let linked = opened(&here, c"linked", O_WRONLY | O_CREAT | O_TRUNC)?;
        let child = assembler.start(VFORK, &object, &linked)?;
        is("the linker's exit code", exit_code(child)?, 0)?;
        is("the program's size", size(&linked)?, size(&object)?)
    })
}

/// Half of the lines are `copy <input >output`, the others `copy <input | copy >output`.
fn shell(place: &Place, lines: usize) -> Prepared {
    const SIZE: usize = 3000;
    filled(place, "input", SIZE)?;
    let here = directory(place)?;
    let path = ["/usr/local/kernlane/copy", "/usr/kernlane/copy"].map(|p| c_path(p.as_ref()));
    let copier = Copier::new(place)?;
    let children = 1u64 << (SIGCHLD - 1);
    let mut buffer = vec![0u8; 4096];
    each(move || {
        for line in 0..lines {
            call!(SYS_getcwd, buffer.as_mut_ptr(), buffer.len())?;
            for missing in &path {
                let answer = call!(SYS_faccessat, AT_FDCWD, missing.as_ptr(), X_OK);
                refusal(answer, ENOENT)?;
            }
            call!(SYS_rt_sigprocmask, SIG_BLOCK, &raw const children, 0, 8)?;
            let input = opened(&here, c"input", O_RDONLY)?;
            let output = opened(&here, c"output", O_RDWR | O_CREAT | O_TRUNC)?;
            if line % 2 == 0 {
                let child = copier.start(SIGCHLD, &input, &output)?;
                is("a command's exit code", exit_code(child)?, 0)?;
            } else {
                let [from, into] = pipe(O_CLOEXEC)?;
                let first = copier.start(SIGCHLD, &input, &into)?;
                let second = copier.start(SIGCHLD, &from, &output)?;
                drop((from, into));
                is("a command's exit code", exit_code(first)?, 0)?;
                is("a command's exit code", exit_code(second)?, 0)?;
            }
            call!(SYS_rt_sigprocmask, SIG_UNBLOCK, &raw const children, 0, 8)?;
            let got = call!(SYS_pread64, &output, buffer.as_mut_ptr(), buffer.len(), 0)?;
            is("bytes of the output", got, SIZE)?;
            is("the last byte", buffer[SIZE - 1], pattern(SIZE - 1))?;
            call!(SYS_unlinkat, &here, c"output".as_ptr(), 0)?;
        }
        Ok(())
    })
}

const ROWS: u64 = 512;
const ROW: usize = 8192;

/// A server process with a file of 4 MB; it answers each request with how often the row was
/// changed, which the client also knows.
fn database(place: &Place, transactions: usize) -> Prepared {
    let data = filled(place, "data", 0)?;
    call!(SYS_ftruncate, &data, ROWS as usize * ROW)?;
    let log = filled(place, "log", 0)?;
    let [ours, theirs] = sockets(SOCK_STREAM)?;
    let mut page = vec![0u8; ROW];
    let server = Peer::start(|| serve_rows(&theirs, &data, &log, &mut page))?;
    drop(theirs);
    let mut changed = vec![0u64; ROWS as usize];
    let mut row = 1u64;
    each(move || {
        let _ = &server;
        for _ in 0..transactions {
            // A full cycle through all rows (Hull and Dobell).
            row = (row * 421 + 1663) % ROWS;
            is("bytes written", write(&ours, &row.to_le_bytes())?, 8)?;
            let mut answer = [0u8; 8];
            is("bytes read", read_all(&ours, &mut answer)?, true)?;
            changed[row as usize] += 1;
            is("changes of a row", u64::from_le_bytes(answer), changed[row as usize])?;
        }
        Ok(())
    })
}

fn serve_rows(client: &Fd, data: &Fd, log: &Fd, page: &mut [u8]) -> Done {
    let mut request = [0u8; 8];
    let mut table = [3u32; 1024];
    let mut logged = 0usize;
    while read_all(client, &mut request)? {
        let row = u64::from_le_bytes(request);
        let mut lock = flock {
            l_type: F_WRLCK as i16,
            l_whence: SEEK_SET as i16,
            l_start: row as i64 * ROW as i64,
            l_len: ROW as i64,
            l_pid: 0,
        };
        call!(SYS_fcntl, data, F_SETLK, &raw const lock)?;
        // Two pages of an index, then the row.
        for at in [row / 64, row / 8, row] {
            let place = at as usize * ROW;
            is("a page", call!(SYS_pread64, data, page.as_mut_ptr(), ROW, place)?, ROW)?;
            compute(&page[..512], &mut table);
        }
        let mut count = [0u8; 8];
        count.copy_from_slice(&page[..8]);
        let count = u64::from_le_bytes(count) + 1;
        page[..8].copy_from_slice(&count.to_le_bytes());
        let place = row as usize * ROW;
        is("a page", call!(SYS_pwrite64, data, page.as_ptr(), ROW, place)?, ROW)?;
        is("a log's record", call!(SYS_pwrite64, log, page.as_ptr(), 200, logged)?, 200)?;
        logged = (logged + 200) % (1 << 20);
        lock.l_type = F_UNLCK as i16;
        call!(SYS_fcntl, data, F_SETLK, &raw const lock)?;
        write_all(client, &count.to_le_bytes())?;
    }
    Ok(())
}

const PAGES: usize = 4;
const HEADER: &[u8] = b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n";

/// The size of the file with this number: 600 bytes to 27 KB.
fn page_size(number: usize) -> usize {
    [600, 2000, 9000, 27_000][number % PAGES]
}

fn web(place: &Place, fetches: usize) -> Prepared {
    for number in 0..PAGES {
        filled(place, &number.to_string(), page_size(number))?;
    }
    let files = directory(place)?;
    let listener = listening()?;
    let server = Peer::start(|| serve_files(&listener.socket, &files))?;
    let mut buffer = vec![0u8; 32 << 10];
    each(move || {
        let _ = &server;
        for number in 0..fetches {
            let socket = connect(&listener.address)?;
            reset_on_close(&socket)?;
            let name = b'0' + (number % PAGES) as u8;
            write_all(&socket, &[b'G', b'E', b'T', b' ', b'/', name, b'\r', b'\n'])?;
            let expected = HEADER.len() + page_size(number);
            let whole = read_all(&socket, &mut buffer[..expected])?;
            is("whether the page is whole", whole, true)?;
            is("the end of the page", read(&socket, &mut buffer[expected..])?, 0)?;
            let last = buffer[expected - 1];
            is("the last byte", last, pattern(page_size(number) - 1))?;
        }
        Ok(())
    })
}

fn serve_files(listener: &Fd, files: &Fd) -> Done {
    let epoll = open!(SYS_epoll_create1, 0)?;
    let add = |fd: &Fd| {
        let event = epoll_event { events: EPOLLIN as u32, u64: fd.number() as u64 };
        call!(SYS_epoll_ctl, &epoll, EPOLL_CTL_ADD, fd, &raw const event)
    };
    add(listener)?;
    loop {
        let mut events = [epoll_event { events: 0, u64: 0 }; 16];
        let ready = call!(SYS_epoll_wait, &epoll, events.as_mut_ptr(), 16, -1)?;
        for event in &events[..ready] {
            if event.u64 == listener.number() as u64 {
                let client = open!(SYS_accept4, listener, 0, 0, SOCK_CLOEXEC)?;
                add(&client)?;
                std::mem::forget(client);
            } else {
                // Closed, and so taken out of the epoll, when it is dropped.
                let client = Fd::of(event.u64 as i32);
                let mut request = [0u8; 256];
                if read(&client, &mut request)? >= 6 {
                    answer(&client, files, request[5])?;
                }
            }
        }
    }
}

fn answer(client: &Fd, files: &Fd, name: u8) -> Done {
    let name = [name, 0];
    let file = open!(SYS_openat, files, name.as_ptr(), O_RDONLY, 0)?;
    let mut left = size(&file)? as usize;
    let flags = MSG_MORE | MSG_NOSIGNAL;
    call!(SYS_sendto, client, HEADER.as_ptr(), HEADER.len(), flags, 0, 0)?;
    while left > 0 {
        left -= call!(SYS_sendfile, client, &file, 0, left)?;
    }
    Ok(())
}
