//! Signals: installed, blocked, sent and handled.

use crate::benchmark::{Benchmark, Place, Prepared, Source, each};
use crate::sys::{Done, Failure, Map, Peer, call, is};
use libc::*;
use std::mem::zeroed;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

pub(super) const LIST: &[Benchmark] = &[
    Benchmark::new(
        "signal/sigaction",
        "asking for a signal's handler",
        Source::NellansTable4,
        &[SYS_rt_sigaction],
        |_, _| {
            install(SIGUSR1, count)?;
            let mut action = [0u64; 4];
            each(move || {
                action[0] = 0;
                call!(SYS_rt_sigaction, SIGUSR1, 0, action.as_mut_ptr(), 8)?;
                is("whether there is a handler", action[0] != 0, true)
            })
        },
        0,
    ),
    Benchmark::new(
        "signal/sigprocmask",
        "blocking a signal and letting it through again",
        Source::NellansTable4,
        &[SYS_rt_sigprocmask],
        |_, _| {
            let mask = 1u64 << (SIGUSR2 - 1);
            each(move || {
                let mut before = mask;
                call!(SYS_rt_sigprocmask, SIG_BLOCK, &raw const mask, &raw mut before, 8)?;
                is("whether it was blocked before", before & mask, 0)?;
                call!(SYS_rt_sigprocmask, SIG_UNBLOCK, &raw const mask, &raw mut before, 8)?;
                is("whether it was blocked", before & mask, mask)
            })
        },
        0,
    ),
    Benchmark::new(
        "signal/handle",
        "a signal to oneself: sent, handled, returned from",
        Source::Lmbench,
        &[SYS_kill],
        |_, _| {
            install(SIGUSR1, count)?;
            let us = call!(SYS_getpid)?;
            each(move || {
                let before = HANDLED.load(SeqCst);
                call!(SYS_kill, us, SIGUSR1)?;
                is("signals handled", HANDLED.load(SeqCst) - before, 1)
            })
        },
        0,
    ),
    Benchmark::new(
        "signal/protection-fault",
        "a store to a page that may only be read: fault, signal, handler",
        Source::Lmbench,
        &[SYS_mprotect],
        protection_fault,
        0,
    ),
    Benchmark::new(
        "signal/other-process",
        "a signal to another process and one back",
        Source::Own,
        &[SYS_kill, SYS_rt_sigtimedwait],
        other_process,
        0,
    ),
];

/// Signals that `count` has handled.
static HANDLED: AtomicU64 = AtomicU64::new(0);
/// The address of the page that `make_writable` opens.
static PAGE: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: i32) {
    HANDLED.fetch_add(1, SeqCst);
}

extern "C" fn make_writable(_: i32) {
    HANDLED.fetch_add(1, SeqCst);
    let page = PAGE.load(SeqCst);
    if call!(SYS_mprotect, page, 4096, PROT_READ | PROT_WRITE).is_err() {
        // Returning would fault again, for ever.
        let _ = call!(SYS_exit_group, 1);
    }
}

fn install(signal: i32, handler: extern "C" fn(i32)) -> Done {
    // SAFETY: the handlers use atomics and system calls only.
    let result = unsafe {
        let mut action: sigaction = zeroed();
        action.sa_sigaction = handler as *const () as usize;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut())
    };
    match result {
        0 => Ok(()),
        _ => Err(Failure::Refused {
            call: "sigaction",
            errno: std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
        }),
    }
}

fn protection_fault(_: &Place, _: usize) -> Prepared {
    let page = Map::anonymous(4096, false)?;
    PAGE.store(page.at() as usize, SeqCst);
    install(SIGSEGV, make_writable)?;
    let mut value = 0u8;
    each(move || {
        value = value.wrapping_add(1);
        call!(SYS_mprotect, page.at(), 4096, PROT_READ)?;
        let before = HANDLED.load(SeqCst);
        // SAFETY: the page is mapped; the handler makes it writable.
        unsafe { page.at().write_volatile(value) };
        is("faults handled", HANDLED.load(SeqCst) - before, 1)
    })
}

/// Two processes that wait for signals instead of handling them.
fn other_process(_: &Place, _: usize) -> Prepared {
    let mask = 1u64 << (SIGUSR1 - 1);
    call!(SYS_rt_sigprocmask, SIG_BLOCK, &raw const mask, 0, 8)?;
    let us = call!(SYS_getpid)?;
    let peer = Peer::start(|| {
        loop {
            call!(SYS_rt_sigtimedwait, &raw const mask, 0, 0, 8)?;
            call!(SYS_kill, us, SIGUSR1)?;
        }
    })?;
    each(move || {
        call!(SYS_kill, peer.id(), SIGUSR1)?;
        let mut from = [0u32; 32];
        let got = call!(SYS_rt_sigtimedwait, &raw const mask, from.as_mut_ptr(), 0, 8)?;
        is("the signal", got, SIGUSR1 as usize)?;
        // struct siginfo: the sender's id is at 16.
        is("its sender", from[4] as usize, peer.id())
    })
}
