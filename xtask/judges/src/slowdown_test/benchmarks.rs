//! The suite's benchmarks that run here: one process each, in a kernel for User Mode Linux.
//!
//! Benchmarks that start processes are left out. In them a process of the guest is one of the host,
//! whose kernel does most of the work.

/// Groups, and benchmarks of other groups.
const TAKEN: [&str; 18] = [
    "cpu/",
    "call/",
    "file/",
    "tree/",
    "pipe/create",
    "pipe/write-read",
    "pipe/eventfd",
    "unix/write-read",
    "unix/pass-descriptor",
    "tcp/write-read",
    "tcp/connect-close",
    "tcp/socket-create",
    "signal/sig",
    "signal/handle",
    "futex/",
    "memory/",
    "poll",
    "uring/",
];
/// An operation of these takes milliseconds, so that a start would take minutes.
const LONG: [&str; 3] = ["tree/walk", "file/read-1m", "tree/list-200"];

/// The names of the benchmarks.
pub(super) fn chosen() -> impl Iterator<Item = &'static str> {
    suite::list::all().into_iter().map(|benchmark| benchmark.name).filter(|name| takes(name))
}

fn takes(name: &str) -> bool {
    TAKEN.iter().any(|taken| name.starts_with(taken)) && !LONG.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowed_call_is_one_of_many() {
        let chosen: Vec<&str> = chosen().collect();
        assert!(chosen.contains(&super::super::SLOWED) && chosen.len() >= 50);
        assert!(!chosen.iter().any(|name| name.starts_with("process/")));
    }
}
