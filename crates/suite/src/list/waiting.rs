//! Waiting for one of several files, and timers.

use crate::benchmark::{Benchmark, Place, Prepared, Source, each, each_then};
use crate::list::files::refusal;
use crate::sys::{Failure, Fd, call, is, open, read, write, wrong};
use libc::*;
use std::cell::Cell;
use std::mem::zeroed;
use std::rc::Rc;

pub(super) const LIST: &[Benchmark] = &[
    Benchmark::new(
        "poll/1",
        "poll of 1 file, which is ready",
        Source::Own,
        &[SYS_poll],
        poll_files,
        1,
    ),
    Benchmark::new(
        "poll/10",
        "poll of 10 files, the last of which is ready",
        Source::Own,
        &[SYS_poll],
        poll_files,
        10,
    ),
    Benchmark::new(
        "poll/100",
        "poll of 100 files, the last of which is ready",
        Source::Own,
        &[SYS_poll],
        poll_files,
        100,
    ),
    Benchmark::new(
        "poll/500",
        "poll of 500 files, the last of which is ready",
        Source::Own,
        &[SYS_poll],
        poll_files,
        500,
    ),
    Benchmark::new(
        "select/1-0",
        "select of 1 file, none ready",
        Source::Osbench,
        &[SYS_select],
        |_, _| select_files(1, 0),
        0,
    ),
    Benchmark::new(
        "select/10-5",
        "select of 10 files, 5 ready",
        Source::Osbench,
        &[SYS_select],
        |_, _| select_files(10, 5),
        0,
    ),
    Benchmark::new(
        "select/15-15",
        "select of 15 files, all ready",
        Source::Osbench,
        &[SYS_select],
        |_, _| select_files(15, 15),
        0,
    ),
    Benchmark::new(
        "epoll/wait-100",
        "epoll of 100 files, one of which is ready",
        Source::Own,
        &[SYS_epoll_wait],
        epoll_wait_files,
        100,
    ),
    Benchmark::new(
        "epoll/add-remove",
        "adding a file to an epoll of 100 and removing it",
        Source::Own,
        &[SYS_epoll_ctl],
        epoll_add_remove,
        100,
    ),
    Benchmark::new(
        "timer/nanosleep",
        "sleeping for 1 µs: timer, interrupt, wake-up",
        Source::Own,
        &[SYS_clock_nanosleep],
        |_, _| {
            // Else the kernel may wake a task 50 µs late (prctl(2)).
            call!(SYS_prctl, PR_SET_TIMERSLACK, 1)?;
            let time = timespec { tv_sec: 0, tv_nsec: 1000 };
            each(move || {
                let before = clock()?;
                call!(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &raw const time, 0)?;
                is("whether a microsecond went by", clock()? >= before + 1000, true)
            })
        },
        0,
    ),
    Benchmark::new(
        "timer/timerfd-set",
        "setting a timer that will not run out, and taking it back",
        Source::Own,
        &[SYS_timerfd_settime],
        |_, _| {
            let timer = open!(SYS_timerfd_create, CLOCK_MONOTONIC, 0)?;
            each(move || {
                let set = after(100, 0);
                let never = after(0, 0);
                let mut before = after(0, 0);
                call!(SYS_timerfd_settime, &timer, 0, &raw const set, 0)?;
                let old = &raw mut before;
                call!(SYS_timerfd_settime, &timer, 0, &raw const never, old)?;
                is("whether the timer was set", before.it_value.tv_sec >= 90, true)
            })
        },
        0,
    ),
    Benchmark::new(
        "timer/timerfd-wait",
        "a timer of 1 µs, waited for by read",
        Source::Own,
        &[SYS_timerfd_settime, SYS_read],
        |_, _| {
            let timer = open!(SYS_timerfd_create, CLOCK_MONOTONIC, 0)?;
            each(move || {
                let soon = after(0, 1000);
                call!(SYS_timerfd_settime, &timer, 0, &raw const soon, 0)?;
                let mut times = [0u8; 8];
                is("bytes read", read(&timer, &mut times)?, 8)?;
                is("how often the timer ran out", u64::from_le_bytes(times), 1)
            })
        },
        0,
    ),
    Benchmark::new(
        "timer/create-delete",
        "making a timer with a signal, and deleting it",
        Source::Own,
        &[SYS_timer_create, SYS_timer_delete],
        create_delete,
        0,
    ),
];

/// Nanoseconds of the monotonic clock, by a system call.
fn clock() -> Result<i64, Failure> {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    call!(SYS_clock_gettime, CLOCK_MONOTONIC, &raw mut time)?;
    Ok(time.tv_sec * 1_000_000_000 + time.tv_nsec)
}

fn after(seconds: i64, nanoseconds: i64) -> itimerspec {
    // SAFETY: a plain structure.
    let mut time: itimerspec = unsafe { zeroed() };
    time.it_value = timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    time
}

/// Counters that can be waited for; the last `ready` of them are ready.
fn counters(count: usize, ready: usize) -> Result<Vec<Fd>, Failure> {
    let files = (0..count)
        .map(|_| open!(SYS_eventfd2, 0, EFD_NONBLOCK | EFD_CLOEXEC))
        .collect::<Result<Vec<Fd>, _>>()?;
    for file in &files[count - ready..] {
        write(file, &1u64.to_le_bytes())?;
    }
    Ok(files)
}

fn poll_files(_: &Place, count: usize) -> Prepared {
    let files = counters(count, 1)?;
    let mut wanted: Vec<pollfd> =
        files.iter().map(|file| pollfd { fd: file.number(), events: POLLIN, revents: 0 }).collect();
    each(move || {
        let _ = &files;
        wanted[count - 1].revents = 0;
        is("files ready", call!(SYS_poll, wanted.as_mut_ptr(), count, 0)?, 1)?;
        is("events of the last file", wanted[count - 1].revents, POLLIN)
    })
}

fn select_files(count: usize, ready: usize) -> Prepared {
    let files = counters(count, ready)?;
    let mut wanted = [0u64; 16];
    let mut expected = [0u64; 16];
    let mut most = 0;
    for (at, file) in files.iter().enumerate() {
        let number = file.number() as usize;
        if number >= 1024 {
            return wrong("a descriptor's number for select", number, 1023);
        }
        wanted[number / 64] |= 1 << (number % 64);
        if at >= count - ready {
            expected[number / 64] |= 1 << (number % 64);
        }
        most = most.max(number + 1);
    }
    each(move || {
        let _ = &files;
        let mut set = wanted;
        let mut now = timeval { tv_sec: 0, tv_usec: 0 };
        let answer = call!(SYS_select, most, set.as_mut_ptr(), 0, 0, &raw mut now)?;
        is("files ready", answer, ready)?;
        is("the files that are ready", set, expected)
    })
}

/// An epoll over files.
fn epoll_of(files: &[Fd]) -> Result<Fd, Failure> {
    let epoll = open!(SYS_epoll_create1, EPOLL_CLOEXEC)?;
    for (at, file) in files.iter().enumerate() {
        let event = epoll_event { events: EPOLLIN as u32, u64: at as u64 };
        call!(SYS_epoll_ctl, &epoll, EPOLL_CTL_ADD, file, &raw const event)?;
    }
    Ok(epoll)
}

fn epoll_wait_files(_: &Place, count: usize) -> Prepared {
    let files = counters(count, 1)?;
    let epoll = epoll_of(&files)?;
    each(move || {
        let _ = &files;
        let mut events = [epoll_event { events: 0, u64: u64::MAX }; 16];
        is("files ready", call!(SYS_epoll_wait, &epoll, events.as_mut_ptr(), 16, 0)?, 1)?;
        let which = events[0].u64;
        is("the file that is ready", which, count as u64 - 1)
    })
}

/// Behind each slice, the file must not be there.
fn epoll_add_remove(_: &Place, count: usize) -> Prepared {
    let files = counters(count, 0)?;
    let epoll = epoll_of(&files)?;
    let more = counters(1, 0)?;
    // An epoll knows a file by its descriptor, which the first closure keeps open.
    let (epoll_again, number) = (open!(SYS_dup, &epoll)?, more[0].number());
    each_then(
        move || {
            let _ = &files;
            let event = epoll_event { events: EPOLLIN as u32, u64: 0 };
            call!(SYS_epoll_ctl, &epoll, EPOLL_CTL_ADD, &more[0], &raw const event)?;
            // Refused if the file were not there.
            call!(SYS_epoll_ctl, &epoll, EPOLL_CTL_DEL, &more[0], 0).map(drop)
        },
        move || refusal(call!(SYS_epoll_ctl, &epoll_again, EPOLL_CTL_DEL, number, 0), ENOENT),
    )
}

/// Behind each slice, the last timer must be gone.
fn create_delete(_: &Place, _: usize) -> Prepared {
    let last = Rc::new(Cell::new(-1i32));
    let seen = Rc::clone(&last);
    each_then(
        move || {
            let mut timer = -1i32;
            call!(SYS_timer_create, CLOCK_MONOTONIC, 0, &raw mut timer)?;
            is("whether the timer has a number", timer >= 0, true)?;
            last.set(timer);
            call!(SYS_timer_delete, timer).map(drop)
        },
        move || refusal(call!(SYS_timer_delete, seen.get()), EINVAL),
    )
}
