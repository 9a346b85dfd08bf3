//! The misses of a recording: by cause, function, address and data structure, and by the size of
//! caches; and who uses which fields of the kernel's structures.
//!
//! Takes a recording with data accesses, its kernel and machines; gives tables. Prints nothing;
//! never asks the guest.

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod fields;
pub mod misses;
pub mod objects;
pub mod sizes;

use crate::misses::table::MissTable;
use anyhow::{Result, ensure};
use image::vmlinux;
use services::Attribution;
use std::path::Path;

/// The misses of a recording, one table for each machine. `kernel`: as for [`Attribution::open`].
///
/// # Errors
/// As [`Attribution::table`]. The recording has no data accesses, no machine is given, or a
/// machine has no data cache.
pub fn misses(
    attribution: &Attribution,
    recording: &Path,
    kernel: &Path,
) -> Result<Vec<MissTable>> {
    ensure!(
        !attribution.machines.is_empty(),
        "no machine is named to simulate misses on: name one, for example server-32k"
    );
    attribution.read(recording, "misses", |reader| {
        misses::misses(reader, &attribution.symbols, &vmlinux::path(kernel), &attribution.machines)
    })
}
