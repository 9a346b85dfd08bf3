//! Lays one layer of an image over the layers below it.
//!
//! Input: a plain tar stream, and the tree of the layers below. Output: the tree with this layer. A
//! file `.wh.NAME` hides NAME of the layers below; `.wh..wh..opq` hides everything in its directory
//! that comes from them (OCI image specification, layer.md). Neither hides files of the same layer.

use crate::rootfs::{Budget, RootFs, entry_node, entry_path};
use anyhow::{Context, Result, ensure};
use host::interrupt;
use std::collections::BTreeSet;
use std::io::Read;

const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";
/// aufs kept its own files under such names.
const OF_AUFS: &str = ".wh..wh.";

/// What an entry of a layer does, by its name.
#[derive(Debug, PartialEq, Eq)]
enum Meaning<'a> {
    File,
    /// Hides this name in the entry's directory.
    Hides(&'a str),
    HidesDirectory,
    Nothing,
}

fn meaning(name: &str) -> Meaning<'_> {
    match name.strip_prefix(WHITEOUT) {
        _ if name == OPAQUE => Meaning::HidesDirectory,
        _ if name.starts_with(OF_AUFS) => Meaning::Nothing,
        Some(hidden) => Meaning::Hides(hidden),
        None => Meaning::File,
    }
}

/// Lays a layer over `tree`.
///
/// # Errors
/// The stream is not a tar archive, or an entry leaves the tree. The message has the entry's path.
pub(super) fn apply(from: impl Read, tree: &mut RootFs, budget: &mut Budget) -> Result<()> {
    unpack(from, tree, budget, true)
}

/// Unpacks a tarball of a root file system, in which no name hides anything.
///
/// # Errors
/// As `apply`.
pub(super) fn root_file_system(
    from: impl Read,
    tree: &mut RootFs,
    budget: &mut Budget,
) -> Result<()> {
    unpack(from, tree, budget, false)
}

fn unpack(from: impl Read, tree: &mut RootFs, budget: &mut Budget, is_layer: bool) -> Result<()> {
    let mut layer = BTreeSet::new();
    let mut archive = tar::Archive::new(from);
    for entry in archive.entries().context("reading the tar archive")? {
        interrupt::check()?;
        let mut entry = entry.context("reading the tar archive")?;
        let path = entry_path(&entry)?;
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", &path));
        let meaning = if is_layer { meaning(name) } else { Meaning::File };
        match meaning {
            _ if path.is_empty() => {}
            Meaning::Nothing => {}
            Meaning::File => {
                if let Some(node) = entry_node(&mut entry, &path, tree, budget)? {
                    layer.insert(tree.replace(&path, node)?);
                }
            }
            Meaning::HidesDirectory => {
                budget.entry(&path)?;
                tree.hide(&tree.real_directory(parent)?, false, &layer);
            }
            Meaning::Hides(hidden) => {
                budget.entry(&path)?;
                ensure!(
                    !matches!(hidden, "" | "." | ".."),
                    "/{path}: a whiteout that hides its own directory or the one above"
                );
                let parent = tree.real_directory(parent)?;
                let hidden = format!("{parent}/{hidden}");
                tree.hide(hidden.trim_start_matches('/'), true, &layer);
            }
        }
    }
    Ok(())
}
