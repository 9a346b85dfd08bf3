//! The demo kernel as clang builds it with a profile: hot functions in `.text.hot.`, and the
//! weights of calls for the linker.
//!
//! Input: the demo kernel by clang. Output: a copy of its tree, in which the memory manager and
//! the file systems were compiled again with a profile. The profile is made up: what matters here
//! is where the compiler puts code, not how good the code is.

use crate::kernel::{self, Compiler};
use anyhow::Result;
use std::fmt::Write;
use std::path::PathBuf;

/// Functions of `mm/` and `fs/` that run often under the workload `files`.
const HOT: &[&str] = &[
    "unmap_page_range",
    "next_uptodate_folio",
    "vfs_read",
    "pipe_read",
    "handle_mm_fault",
    "atime_needs_update",
    "filemap_map_pages",
    "kmem_cache_alloc_noprof",
    "kmem_cache_free",
    "link_path_walk",
    "folios_put_refs",
    "free_pages_and_swap_cache",
    "ksys_read",
    "folio_add_file_rmap_ptes",
    "set_pte_range",
    "folio_remove_rmap_ptes",
    "copy_page_range",
    "fdget_pos",
    "__d_lookup_rcu",
    "folio_mark_accessed",
    "step_into",
    "free_unref_folios",
    "__check_object_size",
    "do_wp_page",
    "get_page_from_freelist",
    "generic_permission",
    "lookup_fast",
    "__alloc_pages_noprof",
    "pipe_write",
    "vfs_write",
    "touch_atime",
    "shmem_file_read_iter",
    "shmem_get_folio_gfp",
    "path_openat",
    "dput",
    "lock_vma_under_rcu",
    "path_init",
    "__dentry_kill",
];
/// How many lines of each function have a count.
const LINES: u32 = 60;
/// The count of each line.
const COUNT: u32 = 10_000;
/// The profile in the tree, as text (`SampleProfReader.h` of LLVM).
const PROFILE: &str = "kernlane.prof";

/// The built tree.
///
/// # Errors
/// As [`kernel::patched`].
pub fn tree() -> Result<PathBuf> {
    kernel::patched(Compiler::Clang, "profiled", &patch())
}

/// Adds the profile, and the compiler's option to both Makefiles.
fn patch() -> String {
    let mut patch = String::new();
    for directory in ["fs", "mm"] {
        let _ = write!(
            patch,
            "--- a/{directory}/Makefile\n+++ b/{directory}/Makefile\n@@ -1,2 +1,3 @@\n\
             +ccflags-y += -fprofile-sample-use={PROFILE} -Wno-backend-plugin\n \
             # SPDX-License-Identifier: GPL-2.0\n #\n"
        );
    }
    let profile = profile();
    let lines = profile.lines().count();
    let _ = write!(patch, "--- /dev/null\n+++ b/{PROFILE}\n@@ -0,0 +1,{lines} @@\n");
    profile.lines().for_each(|line| {
        let _ = writeln!(patch, "+{line}");
    });
    patch
}

/// For each function a line with its name, the sum of its counts and the count of its entry; then a
/// line for each of its lines, with the distance from its first one.
fn profile() -> String {
    let mut text = String::new();
    for function in HOT {
        let _ = writeln!(text, "{function}:{}:{COUNT}", LINES * COUNT);
        for line in 0..LINES {
            let _ = writeln!(text, " {line}: {COUNT}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patch_counts_its_lines() {
        let patch = patch();
        let header = format!("@@ -0,0 +1,{} @@", HOT.len() * (LINES as usize + 1));
        let (_, added) = patch.split_once(&header).expect("the profile is a new file");
        assert_eq!(added.lines().filter(|line| line.starts_with('+')).count(), 38 * 61);
        assert!(added.starts_with("\n+unmap_page_range:600000:10000\n+ 0: 10000\n+ 1: 10000\n"));
    }
}
