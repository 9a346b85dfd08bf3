//! TCP and UDP by 127.0.0.1: one byte and its answer, bulk, connections; after netperf and KBX.
//!
//! Both ends run on the measured CPU, so that the protocol's code is measured, not wake-ups of
//! other CPUs.

use crate::benchmark::{Benchmark, Place, Prepared, Source, each};
use crate::list::pipes::{drain, echo, fill, through};
use crate::sys::{Done, Failure, Fd, Peer, call, is, open, read, read_all, write, write_all};
use libc::*;
use std::mem::size_of;

const SEND_RECEIVE: &[i64] = &[SYS_read, SYS_write];

/// A benchmark that sends `bytes` through a connection.
const fn through_connection(name: &'static str, stresses: &'static str, bytes: usize) -> Benchmark {
    Benchmark::new(name, stresses, Source::Kbx, SEND_RECEIVE, through_tcp, bytes)
}

/// A benchmark of one byte and its answer, between `pairs` pairs of processes.
const fn answers(
    name: &'static str,
    stresses: &'static str,
    prepare: fn(&Place, usize) -> Prepared,
    pairs: usize,
) -> Benchmark {
    Benchmark::new(name, stresses, Source::Netperf, SEND_RECEIVE, prepare, pairs)
}

pub(super) const LIST: &[Benchmark] = &[
    through_connection(
        "tcp/write-read-20",
        "20 bytes through a connection, within one process",
        20,
    ),
    through_connection(
        "tcp/write-read-1k",
        "1,024 bytes through a connection, within one process",
        1 << 10,
    ),
    through_connection(
        "tcp/write-read-8k",
        "8,192 bytes through a connection, within one process",
        8 << 10,
    ),
    answers(
        "tcp/request-response",
        "one byte and its one-byte answer, 1 pair of processes",
        by_tcp,
        1,
    ),
    answers(
        "tcp/request-response-4",
        "one byte and its answer on each of 4 connections, each with its own process",
        by_tcp,
        4,
    ),
    answers(
        "tcp/request-response-16",
        "one byte and its answer on each of 16 connections, each with its own process",
        by_tcp,
        16,
    ),
    answers(
        "udp/request-response",
        "one byte and its one-byte answer, 1 pair of processes",
        by_udp,
        1,
    ),
    answers(
        "udp/request-response-16",
        "one byte and its answer on each of 16 sockets, each with its own process",
        by_udp,
        16,
    ),
    Benchmark::new(
        "tcp/bulk-1m",
        "1 MB to another process by TCP, in pieces of 16 KB",
        Source::Netperf,
        SEND_RECEIVE,
        |_, size| {
            let [ours, theirs] = connected(SOCK_STREAM)?;
            let peer = Peer::start(|| drain(&theirs, &theirs, size, &mut vec![0u8; 64 << 10]))?;
            drop(theirs);
            let answer = open!(SYS_dup, &ours)?;
            fill(ours, answer, size, 16 << 10, peer)
        },
        1 << 20,
    ),
    Benchmark::new(
        "udp/bulk-64k",
        "64 datagrams of 1 KB, then read",
        Source::Netperf,
        SEND_RECEIVE,
        |_, _| {
            let [ours, theirs] = connected(SOCK_DGRAM)?;
            let bytes = [0x33u8; 1024];
            let mut buffer = [0u8; 2048];
            each(move || {
                for _ in 0..64 {
                    is("bytes sent", write(&ours, &bytes)?, 1024)?;
                }
                for _ in 0..64 {
                    buffer[1023] = 0;
                    is("bytes received", read(&theirs, &mut buffer)?, 1024)?;
                    is("the last byte", buffer[1023], 0x33)?;
                }
                Ok(())
            })
        },
        0,
    ),
    Benchmark::new(
        "tcp/connect-close",
        "a connection made, accepted, and reset",
        Source::Lmbench,
        &[SYS_socket, SYS_connect, SYS_accept4],
        |_, _| {
            let listener = listening()?;
            each(move || {
                let [_ours, theirs] = connection(&listener)?;
                // A reset leaves no connection that waits for its last packets.
                reset_on_close(&theirs)
            })
        },
        0,
    ),
    Benchmark::new(
        "tcp/socket-create",
        "making a socket and closing it",
        Source::Own,
        &[SYS_socket],
        |_, _| {
            let free = call!(SYS_socket, AF_INET, SOCK_STREAM, 0)?;
            call!(SYS_close, free)?;
            each(move || {
                is("socket", call!(SYS_socket, AF_INET, SOCK_STREAM, 0)?, free)?;
                call!(SYS_close, free).map(drop)
            })
        },
        0,
    ),
];

/// A socket on a free port of 127.0.0.1, and its address.
fn bound(kind: i32) -> Result<(Fd, sockaddr_in), Failure> {
    let socket = open!(SYS_socket, AF_INET, kind | SOCK_CLOEXEC, 0)?;
    let mut address = sockaddr_in {
        sin_family: AF_INET as sa_family_t,
        sin_port: 0,
        sin_addr: in_addr { s_addr: u32::to_be(0x7f00_0001) },
        sin_zero: [0; 8],
    };
    let mut length = size_of::<sockaddr_in>() as u32;
    call!(SYS_bind, &socket, &raw const address, length)?;
    call!(SYS_getsockname, &socket, &raw mut address, &raw mut length)?;
    Ok((socket, address))
}

/// A socket that waits for connections, and where.
pub(super) struct Listener {
    pub socket: Fd,
    pub address: sockaddr_in,
}

pub(super) fn listening() -> Result<Listener, Failure> {
    let (socket, address) = bound(SOCK_STREAM)?;
    call!(SYS_listen, &socket, 16)?;
    Ok(Listener { socket, address })
}

/// Connects to an address.
pub(super) fn connect(address: &sockaddr_in) -> Result<Fd, Failure> {
    let socket = open!(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)?;
    call!(SYS_connect, &socket, &raw const *address, size_of::<sockaddr_in>())?;
    Ok(socket)
}

/// Both ends of a new connection.
fn connection(listener: &Listener) -> Result<[Fd; 2], Failure> {
    let ours = connect(&listener.address)?;
    let theirs = open!(SYS_accept4, &listener.socket, 0, 0, SOCK_CLOEXEC)?;
    Ok([ours, theirs])
}

/// Closing ends the connection at once, and nothing of it stays behind.
pub(super) fn reset_on_close(socket: &Fd) -> Done {
    let now = linger { l_onoff: 1, l_linger: 0 };
    let length = size_of::<linger>();
    call!(SYS_setsockopt, socket, SOL_SOCKET, SO_LINGER, &raw const now, length).map(drop)
}

/// Small packets are sent at once.
fn without_delay(socket: &Fd) -> Done {
    let yes = 1i32;
    call!(SYS_setsockopt, socket, IPPROTO_TCP, TCP_NODELAY, &raw const yes, 4).map(drop)
}

/// Both ends of a connection, or two sockets for datagrams that know each other.
fn connected(kind: i32) -> Result<[Fd; 2], Failure> {
    if kind == SOCK_STREAM {
        let ends = connection(&listening()?)?;
        ends.iter().try_for_each(without_delay)?;
        reset_on_close(&ends[0])?;
        return Ok(ends);
    }
    let ((ours, our_address), (theirs, their_address)) = (bound(kind)?, bound(kind)?);
    let length = size_of::<sockaddr_in>();
    call!(SYS_connect, &ours, &raw const their_address, length)?;
    call!(SYS_connect, &theirs, &raw const our_address, length)?;
    Ok([ours, theirs])
}

fn through_tcp(_: &Place, size: usize) -> Prepared {
    let [into, out] = connected(SOCK_STREAM)?;
    through(into, out, size)
}

fn by_tcp(place: &Place, pairs: usize) -> Prepared {
    request_response(place, pairs, SOCK_STREAM)
}

fn by_udp(place: &Place, pairs: usize) -> Prepared {
    request_response(place, pairs, SOCK_DGRAM)
}

/// One byte to each of `pairs` processes, then one answer from each.
fn request_response(_: &Place, pairs: usize, kind: i32) -> Prepared {
    let mut ours = Vec::new();
    for _ in 0..pairs {
        let [our_end, their_end] = connected(kind)?;
        let peer = Peer::start(|| echo(&their_end, &their_end, 1))?;
        ours.push((our_end, peer));
    }
    let mut count = 0u8;
    each(move || {
        count = count.wrapping_add(1);
        for (socket, _) in &ours {
            write_all(socket, &[count])?;
        }
        for (socket, _) in &ours {
            let mut answer = [!count];
            is("bytes received", read_all(socket, &mut answer)?, true)?;
            is("the answer", answer[0], count)?;
        }
        Ok(())
    })
}
