//! A machine with Debian 12 that boots by its boot loader: its disk, and its console.

pub(crate) mod console;
pub(crate) mod disk;
