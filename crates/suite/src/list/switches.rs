//! Switches between processes and threads, by working set, and the futexes that order them.

use crate::benchmark::{Benchmark, Place, Prepared, Source, Work, each};
use crate::sys::{Done, Failure, Fd, Map, Peer, call, is, pipe, read, write};
use libc::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread::JoinHandle;

const READ_WRITE: &[i64] = &[SYS_read, SYS_write];

/// A benchmark that passes a token round processes, each with a working set of `bytes`.
const fn token(
    name: &'static str,
    stresses: &'static str,
    prepare: fn(&Place, usize) -> Prepared,
    bytes: usize,
) -> Benchmark {
    Benchmark::new(name, stresses, Source::Lmbench, READ_WRITE, prepare, bytes)
}

pub(super) const LIST: &[Benchmark] = &[
    token("switch/processes-2", "a token round 2 processes that touch nothing else", ring_of_2, 0),
    token(
        "switch/processes-2-16k",
        "a token round 2 processes, each of which reads 16 KB of its own",
        ring_of_2,
        16 << 10,
    ),
    token(
        "switch/processes-2-256k",
        "a token round 2 processes, each of which reads 256 KB of its own",
        ring_of_2,
        256 << 10,
    ),
    token("switch/processes-8", "a token round 8 processes that touch nothing else", ring_of_8, 0),
    token(
        "switch/processes-8-64k",
        "a token round 8 processes, each of which reads 64 KB of its own",
        ring_of_8,
        64 << 10,
    ),
    Benchmark::new(
        "switch/threads",
        "a token between 2 threads by a futex: two switches",
        Source::NellansFigure1,
        &[SYS_futex],
        |_, _| threads(),
        0,
    ),
    Benchmark::new(
        "futex/wake-nobody",
        "waking a futex on which nobody waits",
        Source::Own,
        &[SYS_futex],
        |_, _| {
            let word = AtomicU32::new(0);
            each(move || is("tasks woken", wake(&word)?, 0))
        },
        0,
    ),
    Benchmark::new(
        "futex/wait-changed",
        "waiting on a futex whose value has changed",
        Source::Own,
        &[SYS_futex],
        |_, _| {
            let word = AtomicU32::new(7);
            each(move || {
                let answer = call!(SYS_futex, word.as_ptr(), PRIVATE_WAIT, 6, 0, 0, 0);
                super::files::refusal(answer, EAGAIN)
            })
        },
        0,
    ),
];

const PRIVATE_WAIT: i32 = FUTEX_WAIT | FUTEX_PRIVATE_FLAG;
const PRIVATE_WAKE: i32 = FUTEX_WAKE | FUTEX_PRIVATE_FLAG;

fn wake(word: &AtomicU32) -> Result<usize, Failure> {
    call!(SYS_futex, word.as_ptr(), PRIVATE_WAKE, 1, 0, 0, 0)
}

/// Reads a byte of each cache line of 64 bytes, and adds them up.
fn touch(memory: &[u8]) -> u32 {
    memory.iter().step_by(64).fold(0, |sum, byte| sum.wrapping_add(u32::from(*byte)))
}

fn ring_of_2(_: &Place, bytes: usize) -> Prepared {
    ring(2, bytes)
}

fn ring_of_8(_: &Place, bytes: usize) -> Prepared {
    ring(8, bytes)
}

/// `count` processes in a ring of pipes, this one among them; an operation is one round of the
/// token, which every process raises by one.
fn ring(count: usize, working_set: usize) -> Prepared {
    let mut pipes: Vec<[Fd; 2]> = (0..count).map(|_| pipe(0)).collect::<Result<_, _>>()?;
    let mut peers = Vec::new();
    let mut memory = Map::anonymous(working_set.max(4096), false)?;
    for at in 1..count {
        let (from, to) = (&pipes[at - 1][0], &pipes[at][1]);
        // What is written after the fork is the child's own memory.
        peers.push(Peer::start(|| pass_on(from, to, &mut memory.bytes()[..working_set]))?);
    }
    memory.bytes().fill(1);
    let (to, from) = (pipes.remove(0), pipes.pop().expect("a ring has two or more"));
    let ([_, to], [from, _]) = (to, from);
    let lines = (working_set / 64) as u32;
    each(move || {
        let _ = &peers;
        is("bytes written", write(&to, &[1])?, 1)?;
        let mut token = [0u8];
        is("bytes read", read(&from, &mut token)?, 1)?;
        is("the token", usize::from(token[0]), count)?;
        is("the working set", touch(&memory.bytes()[..working_set]), lines)
    })
}

fn pass_on(from: &Fd, to: &Fd, memory: &mut [u8]) -> Done {
    memory.fill(1);
    let lines = (memory.len() / 64) as u32;
    let mut token = [0u8];
    while read(from, &mut token)? == 1 {
        is("the working set", touch(memory), lines)?;
        token[0] += 1;
        write(to, &token)?;
    }
    Ok(())
}

const OURS: u32 = 0;
const THEIRS: u32 = 1;
const ENDED: u32 = 2;

/// Two threads of one process that hand a token to each other.
struct Threads {
    token: Arc<AtomicU32>,
    other: Option<JoinHandle<()>>,
}

/// Waits while the token is `value`.
fn wait_while(token: &AtomicU32, value: u32) -> Result<u32, Failure> {
    loop {
        match token.load(SeqCst) {
            now if now == value => {
                match call!(SYS_futex, token.as_ptr(), PRIVATE_WAIT, value, 0, 0, 0) {
                    Ok(_) | Err(Failure::Refused { errno: EAGAIN | EINTR, .. }) => {}
                    Err(failure) => return Err(failure),
                }
            }
            now => return Ok(now),
        }
    }
}

fn threads() -> Prepared {
    let token = Arc::new(AtomicU32::new(OURS));
    let theirs = Arc::clone(&token);
    let hand_back = move || {
        while wait_while(&theirs, OURS) == Ok(THEIRS) {
            theirs.store(OURS, SeqCst);
            if wake(&theirs).is_err() {
                return;
            }
        }
    };
    let other = std::thread::Builder::new().spawn(hand_back).map_err(|error| Failure::Refused {
        call: "clone",
        errno: error.raw_os_error().unwrap_or(EAGAIN),
    })?;
    Ok(Box::new(Threads { token, other: Some(other) }))
}

impl Work for Threads {
    fn run(&mut self, times: u64) -> Done {
        for _ in 0..times {
            self.token.store(THEIRS, SeqCst);
            wake(&self.token)?;
            is("the token's holder", wait_while(&self.token, THEIRS)?, OURS)?;
        }
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.token.store(ENDED, SeqCst);
        // A thread that cannot be woken ends with the process.
        if wake(&self.token).is_ok()
            && let Some(other) = self.other.take()
        {
            let _ = other.join();
        }
    }
}
