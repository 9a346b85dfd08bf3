//! The memory that a target may use: an allocator that refuses to give more.
//!
//! A refused allocation ends the process (`handle_alloc_error`), which a fuzzer and `cargo test`
//! both report.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a target may have at once under a fuzzer. `cargo test` runs several targets at once,
/// and lets a stream of a recording have as many accesses as the format allows: 320 MB.
pub const MEMORY: usize = if cfg!(fuzzing) { 256 << 20 } else { 768 << 20 };

/// The system's allocator, which never has more than [`MEMORY`] bytes out.
pub struct Bounded;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

impl Bounded {
    fn take(size: usize) -> bool {
        if IN_USE.fetch_add(size, Ordering::Relaxed).saturating_add(size) <= MEMORY {
            return true;
        }
        Self::give_back(size);
        false
    }

    fn give_back(size: usize) {
        IN_USE.fetch_sub(size, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on to `System` with the layout that the caller gave, or answered
// with a null pointer, which an allocator may always do. Counting touches no memory of the caller.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !Self::take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the contract of `alloc`, which is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !Self::take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        Self::give_back(layout.size());
        // SAFETY: `block` came from `System` with this layout, because every allocation does.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !Self::take(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: `block` came from `System` with this layout, and the caller keeps the contract of
        // `realloc`.
        let new = unsafe { System.realloc(block, layout, size) };
        Self::give_back(if new.is_null() { size } else { layout.size() });
        new
    }
}
