//! Pipes and pairs of sockets: within one process, and between two.

use crate::benchmark::{Benchmark, Place, Prepared, Source, each};
use crate::sys::{Done, Fd, Peer, call, is, pipe, read, read_all, write};
use crate::sys::{Failure, two, write_all};
use libc::*;

const READ_WRITE: &[i64] = &[SYS_read, SYS_write];

pub(super) const LIST: &[Benchmark] = &[
    Benchmark::new(
        "pipe/create",
        "making a pipe and closing both ends",
        Source::Kbx,
        &[SYS_pipe2],
        |_, _| each(|| pipe(0).map(drop)),
        0,
    ),
    Benchmark::new(
        "pipe/write-read-20",
        "20 bytes through a pipe, within one process",
        Source::Kbx,
        READ_WRITE,
        through_pipe,
        20,
    ),
    Benchmark::new(
        "pipe/write-read-1k",
        "1,024 bytes through a pipe, within one process",
        Source::Kbx,
        READ_WRITE,
        through_pipe,
        1 << 10,
    ),
    Benchmark::new(
        "pipe/write-read-8k",
        "8,192 bytes through a pipe, within one process",
        Source::Kbx,
        READ_WRITE,
        through_pipe,
        8 << 10,
    ),
    Benchmark::new(
        "pipe/switch",
        "20 bytes to another process and back: two switches of processes",
        Source::Kbx,
        READ_WRITE,
        |_, _| {
            let ([from, to_us], [to_them, into]) = (pipe(0)?, pipe(0)?);
            round_trip([from, into], [to_them, to_us], 20)
        },
        0,
    ),
    Benchmark::new(
        "pipe/bulk-1m",
        "1 MB to another process, in pieces of 64 KB",
        Source::Lmbench,
        READ_WRITE,
        bulk,
        1 << 20,
    ),
    Benchmark::new(
        "unix/write-read-20",
        "20 bytes through a pair of local sockets, within one process",
        Source::Kbx,
        READ_WRITE,
        through_sockets,
        20,
    ),
    Benchmark::new(
        "unix/write-read-1k",
        "1,024 bytes through a pair of local sockets, within one process",
        Source::Kbx,
        READ_WRITE,
        through_sockets,
        1 << 10,
    ),
    Benchmark::new(
        "unix/write-read-8k",
        "8,192 bytes through a pair of local sockets, within one process",
        Source::Kbx,
        READ_WRITE,
        through_sockets,
        8 << 10,
    ),
    Benchmark::new(
        "unix/request-response",
        "one byte to another process and back by local sockets",
        Source::Lmbench,
        READ_WRITE,
        |_, _| {
            let [ours, theirs] = sockets(SOCK_STREAM)?;
            let (ours_too, theirs_too) = (duplicate(&ours)?, duplicate(&theirs)?);
            round_trip([ours, ours_too], [theirs, theirs_too], 1)
        },
        0,
    ),
    Benchmark::new(
        "unix/pass-descriptor",
        "an open file sent by a local socket, and closed",
        Source::Own,
        &[SYS_sendmsg, SYS_recvmsg],
        pass_descriptor,
        0,
    ),
    Benchmark::new(
        "pipe/eventfd",
        "a counter written and read",
        Source::Own,
        READ_WRITE,
        |_, _| {
            let counter = crate::sys::open!(SYS_eventfd2, 0, EFD_NONBLOCK)?;
            each(move || {
                is("bytes written", write(&counter, &7u64.to_le_bytes())?, 8)?;
                let mut value = [0u8; 8];
                is("bytes read", read(&counter, &mut value)?, 8)?;
                is("the counter", u64::from_le_bytes(value), 7)
            })
        },
        0,
    ),
];

fn duplicate(fd: &Fd) -> Result<Fd, Failure> {
    crate::sys::open!(SYS_dup, fd)
}

/// A pair of connected local sockets.
pub(super) fn sockets(kind: i32) -> Result<[Fd; 2], Failure> {
    let mut ends = [-1i32; 2];
    call!(SYS_socketpair, AF_UNIX, kind, 0, ends.as_mut_ptr())?;
    two(ends)
}

/// Writes to one end, reads from the other.
pub(super) fn through(into: Fd, out: Fd, size: usize) -> Prepared {
    let bytes: Vec<u8> = (0..size).map(super::files::pattern).collect();
    let mut buffer = vec![0u8; size];
    each(move || {
        is("bytes written", write(&into, &bytes)?, size)?;
        buffer[size - 1] = 0;
        is("bytes read", read_all(&out, &mut buffer)?, true)?;
        is("the last byte", buffer[size - 1], bytes[size - 1])
    })
}

fn through_pipe(_: &Place, size: usize) -> Prepared {
    let [out, into] = pipe(0)?;
    through(into, out, size)
}

fn through_sockets(_: &Place, size: usize) -> Prepared {
    let [into, out] = sockets(SOCK_STREAM)?;
    through(into, out, size)
}

/// Sends back all that arrives, `size` bytes at a time, until the other end is closed.
pub(super) fn echo(from: &Fd, to: &Fd, size: usize) -> Done {
    let mut buffer = [0u8; 4096];
    while read_all(from, &mut buffer[..size])? {
        write_all(to, &buffer[..size])?;
    }
    Ok(())
}

/// `size` bytes to another process and back: `ours` and `theirs` are what each reads and writes.
pub(super) fn round_trip(ours: [Fd; 2], theirs: [Fd; 2], size: usize) -> Prepared {
    let [from, to] = &theirs;
    let peer = Peer::start(|| echo(from, to, size))?;
    drop(theirs);
    let [from, into] = ours;
    let mut bytes = vec![0u8; size];
    let mut count = 0u8;
    each(move || {
        let _ = &peer;
        count = count.wrapping_add(1);
        bytes.fill(count);
        is("bytes written", write(&into, &bytes)?, size)?;
        bytes.fill(!count);
        is("bytes read", read_all(&from, &mut bytes)?, true)?;
        is("the answer", bytes[size - 1], count)
    })
}

/// The other process answers each megabyte with a byte: the sum of what it read.
fn bulk(_: &Place, size: usize) -> Prepared {
    const PIECE: usize = 64 << 10;
    let ([out, into], [answer, reply]) = (pipe(0)?, pipe(0)?);
    let peer = Peer::start(|| drain(&out, &reply, size, &mut vec![0u8; PIECE]))?;
    drop((out, reply));
    fill(into, answer, size, PIECE, peer)
}

/// Reads `size` bytes again and again, and answers each time with the sum of the last bytes of
/// what each call gave.
pub(super) fn drain(from: &Fd, to: &Fd, size: usize, buffer: &mut [u8]) -> Done {
    loop {
        let mut left = size;
        let mut sound = true;
        while left > 0 {
            let most = left.min(buffer.len());
            match read(from, &mut buffer[..most])? {
                0 => return Ok(()),
                some => {
                    sound &= buffer[some - 1] == 0x5a;
                    left -= some;
                }
            }
        }
        write_all(to, &[u8::from(sound)])?;
    }
}

/// Sends `size` bytes in pieces, and waits for the answer.
pub(super) fn fill(into: Fd, answer: Fd, size: usize, piece: usize, peer: Peer) -> Prepared {
    let bytes = vec![0x5au8; piece];
    each(move || {
        let _ = &peer;
        for _ in 0..size / piece {
            write_all(&into, &bytes)?;
        }
        let mut sound = [0u8];
        is("bytes read", read(&answer, &mut sound)?, 1)?;
        is("whether the bytes arrived", sound[0], 1)
    })
}

fn pass_descriptor(_: &Place, _: usize) -> Prepared {
    let [into, out] = sockets(SOCK_DGRAM)?;
    let file = crate::sys::open!(SYS_openat, AT_FDCWD, c"/dev/null".as_ptr(), O_RDONLY, 0)?;
    each(move || {
        let mut byte = [1u8];
        let mut part = iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        // A control message: length, level, type, one descriptor (struct cmsghdr).
        let mut control = [20u64, (SOL_SOCKET as u64) | (SCM_RIGHTS as u64) << 32, 0];
        control[2] = file.number() as u64;
        // SAFETY: a plain structure.
        let mut message: msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = 24;
        is("bytes sent", call!(SYS_sendmsg, &into, &raw const message, 0)?, 1)?;
        control[2] = u64::MAX;
        message.msg_controllen = 24;
        is("bytes received", call!(SYS_recvmsg, &out, &raw mut message, 0)?, 1)?;
        let received = Fd::of(control[2] as i32);
        is("a descriptor that is new", received.number() > file.number(), true)
    })
}
