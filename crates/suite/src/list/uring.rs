//! io_uring: requests put into a ring that is shared with the kernel.

use crate::benchmark::{Benchmark, Place, Prepared, Source, each};
use crate::list::files::{filled, pattern};
use crate::sys::{Done, Failure, Fd, Map, call, is, open};
use libc::*;
use std::sync::atomic::{AtomicU32, Ordering};

pub(super) const LIST: &[Benchmark] = &[
    Benchmark::new(
        "uring/nop",
        "one request that does nothing",
        Source::Own,
        ENTER,
        |_, batch| nops(batch),
        1,
    ),
    Benchmark::new(
        "uring/nop-32",
        "32 requests that do nothing, by one system call",
        Source::Own,
        ENTER,
        |_, batch| nops(batch),
        32,
    ),
    Benchmark::new(
        "uring/read-4k",
        "4 KB of a file in the cache",
        Source::Own,
        ENTER,
        read_file,
        1,
    ),
    Benchmark::new(
        "uring/read-4k-16",
        "16 times 4 KB of a file in the cache, by one system call",
        Source::Own,
        ENTER,
        read_file,
        16,
    ),
];

const ENTER: &[i64] = &[SYS_io_uring_enter];
const ENTRIES: usize = 64;

/// struct io_uring_params (linux/io_uring.h): 10 words, then the offsets of the fields of both
/// rings, 10 words each.
#[derive(Default)]
#[repr(C)]
struct Params {
    head: [u32; 10],
    submission: [u32; 10],
    completion: [u32; 10],
}

/// struct io_uring_sqe.
#[derive(Clone, Copy)]
#[repr(C)]
struct Request {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    address: u64,
    length: u32,
    operation_flags: u32,
    user_data: u64,
    rest: [u64; 3],
}

/// struct io_uring_cqe.
#[derive(Clone, Copy)]
#[repr(C)]
struct Completion {
    user_data: u64,
    result: i32,
    flags: u32,
}

const NOP: u8 = 0;
const READ: u8 = 22;
const GET_EVENTS: u32 = 1;

/// A ring and its three pieces of shared memory.
struct Ring {
    fd: Fd,
    params: Params,
    submission: Map,
    completion: Map,
    requests: Map,
}

impl Ring {
    fn new() -> Result<Ring, Failure> {
        let mut params = Params::default();
        let fd = open!(SYS_io_uring_setup, ENTRIES, &raw mut params)?;
        let map = |len: usize, offset: usize| -> Result<Map, Failure> {
            let protection = PROT_READ | PROT_WRITE;
            let at = call!(SYS_mmap, 0, len, protection, MAP_SHARED | MAP_POPULATE, &fd, offset)?;
            Ok(Map::of(at, len))
        };
        // The offsets of the three pieces are IORING_OFF_… of linux/io_uring.h.
        let submission = map(params.submission[6] as usize + params.head[0] as usize * 4, 0)?;
        let completions = params.head[1] as usize * size_of::<Completion>();
        let completion = map(params.completion[5] as usize + completions, 0x800_0000)?;
        let requests = map(params.head[0] as usize * size_of::<Request>(), 0x1000_0000)?;
        Ok(Ring { fd, params, submission, completion, requests })
    }

    fn word(map: &Map, offset: u32) -> &AtomicU32 {
        // SAFETY: the kernel gave the offset of a word in this mapping; it writes it atomically.
        unsafe { AtomicU32::from_ptr(map.at().add(offset as usize).cast()) }
    }

    /// Submits the requests with one system call, waits for all, and gives each result to `check`.
    fn submit(
        &mut self,
        batch: usize,
        request: impl Fn(usize) -> Request,
        mut check: impl FnMut(usize, i32) -> Done,
    ) -> Done {
        let tail = Ring::word(&self.submission, self.params.submission[1]);
        let mask = Ring::word(&self.submission, self.params.submission[2]).load(Ordering::Relaxed);
        let mut at = tail.load(Ordering::Relaxed);
        for number in 0..batch {
            let slot = at & mask;
            // SAFETY: slots of the array and requests are in their mappings by the mask.
            unsafe {
                let array = self.submission.at().add(self.params.submission[6] as usize);
                array.cast::<u32>().add(slot as usize).write_volatile(slot);
                let requests = self.requests.at().cast::<Request>();
                requests.add(slot as usize).write_volatile(request(number));
            }
            at = at.wrapping_add(1);
        }
        tail.store(at, Ordering::Release);
        let entered = call!(SYS_io_uring_enter, &self.fd, batch, batch, GET_EVENTS, 0, 0)?;
        is("requests taken", entered, batch)?;
        let head = Ring::word(&self.completion, self.params.completion[0]);
        let tail = Ring::word(&self.completion, self.params.completion[1]);
        let mask = Ring::word(&self.completion, self.params.completion[2]).load(Ordering::Relaxed);
        let mut at = head.load(Ordering::Relaxed);
        is("completions", tail.load(Ordering::Acquire).wrapping_sub(at) as usize, batch)?;
        for _ in 0..batch {
            // SAFETY: the completion is in its mapping by the mask, and whole by the tail.
            let done = unsafe {
                let completions = self.completion.at().add(self.params.completion[5] as usize);
                completions.cast::<Completion>().add((at & mask) as usize).read_volatile()
            };
            check(done.user_data as usize, done.result)?;
            at = at.wrapping_add(1);
        }
        head.store(at, Ordering::Release);
        Ok(())
    }
}

fn request(opcode: u8, number: usize) -> Request {
    Request {
        opcode,
        flags: 0,
        priority: 0,
        fd: -1,
        offset: 0,
        address: 0,
        length: 0,
        operation_flags: 0,
        user_data: number as u64,
        rest: [0; 3],
    }
}

fn nops(batch: usize) -> Prepared {
    let mut ring = Ring::new()?;
    each(move || {
        ring.submit(batch, |number| request(NOP, number), |_, result| is("a nop", result, 0))
    })
}

fn read_file(place: &Place, batch: usize) -> Prepared {
    const PIECE: usize = 4096;
    let file = filled(place, "file", batch * PIECE)?;
    let mut ring = Ring::new()?;
    let mut buffer = vec![0u8; batch * PIECE];
    each(move || {
        let address = buffer.as_mut_ptr() as u64;
        for number in 0..batch {
            buffer[number * PIECE + 9] = 0;
        }
        let of = |number: usize| Request {
            fd: file.number(),
            offset: (number * PIECE) as u64,
            address: address + (number * PIECE) as u64,
            length: PIECE as u32,
            ..request(READ, number)
        };
        ring.submit(batch, of, |_, result| is("bytes read", result, PIECE as i32))?;
        for number in 0..batch {
            let at = number * PIECE + 9;
            is("a byte of the file", buffer[at], pattern(at))?;
        }
        Ok(())
    })
}
