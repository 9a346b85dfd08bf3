//! Reads the root file system of a container image, of a directory, or of a tarball.
//!
//! Input: what `docker save` writes, an OCI layout (as a directory or a tar archive, packed or
//! not), a directory, or a tarball of a root file system. Output: the tree, and the environment and
//! working directory that the image gives its programs. Every digest in the image is compared. This
//! module runs nothing of the image and unpacks nothing onto the host.
//!
//! To add a kind of image: a function beside `docker` and `oci` in `manifest.rs`.

mod bag;
mod layer;
mod manifest;
mod packing;

use crate::host_files;
use crate::rootfs::{Budget, FileNode, RootFs};
use anyhow::{Context, Result, ensure};
use bag::{ArchiveBag, DirectoryBag};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

/// An image that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContainerImage {
    pub tree: RootFs,
    /// Names and values, in the image's order.
    pub environment: Vec<(String, String)>,
    /// Where the image's program starts, if the image says so.
    pub working_directory: Option<String>,
}

/// The most bytes of files in an image. A guest needs twice the memory.
const MOST_BYTES: u64 = 32 << 30;

impl ContainerImage {
    /// Reads the image at `path`.
    ///
    /// # Errors
    /// The file is not an image, is for another processor, or has a part that is damaged or leaves
    /// the image. The message has the path in the image.
    pub(crate) fn open(path: &Path) -> Result<ContainerImage> {
        let read = || {
            let mut budget = Budget::of(MOST_BYTES);
            if path.is_dir() {
                return match manifest::read(&mut DirectoryBag::new(path)?, &mut budget)? {
                    Some(image) => Ok(image),
                    None => Ok(ContainerImage {
                        tree: host_files::tree(path, &mut budget)?,
                        ..ContainerImage::default()
                    }),
                };
            }
            ContainerImage::of_archive(File::open(path)?, &mut budget)
        };
        let image: Result<ContainerImage> = read();
        image.with_context(|| format!("the image {}", path.display()))
    }

    /// Reads an image that is an archive.
    ///
    /// # Errors
    /// As `open`.
    pub(crate) fn of_archive(
        archive: impl Read + Seek,
        budget: &mut Budget,
    ) -> Result<ContainerImage> {
        let mut plain = packing::unpacked(archive, budget.bytes_left())?;
        let mut bag = ArchiveBag::new(&mut plain)?;
        if let Some(image) = manifest::read(&mut bag, budget)? {
            return Ok(image);
        }
        let mut tree = RootFs::default();
        plain.rewind()?;
        layer::root_file_system(&mut plain, &mut tree, budget)?;
        ensure!(
            tree.nodes().next().is_some(),
            "it is neither an image of `docker save`, nor an OCI layout, nor a tarball of a root \
             file system"
        );
        Ok(ContainerImage { tree, ..ContainerImage::default() })
    }

    /// The SHA-256, hex, of everything in the image that a guest sees. It does not depend on how
    /// the image was packed, nor on its layers.
    pub(crate) fn digest(&self) -> String {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        add(&self.tree.digest());
        for (name, value) in &self.environment {
            add(name);
            add(value);
        }
        image::sealed::hex(&hash.finalize())
    }

    /// The image's tree with what a container gets from its runtime: mount points, and the files
    /// that name the guest and its addresses, if the image has none.
    ///
    /// # Errors
    /// The image has files where Kernlane's are.
    pub(crate) fn guest_tree(&self) -> Result<RootFs> {
        let mut tree = self.tree.clone();
        ensure!(
            !tree.contains("kernlane"),
            "the image has /kernlane, where Kernlane's own files are: rename it in the image"
        );
        for (path, node) in RootFs::debian().nodes() {
            match node {
                FileNode::Directory { .. }
                    if NEEDED.contains(&path) && tree.resolve(path).is_none() =>
                {
                    tree.insert(path, node.clone())?;
                }
                // `docker build` leaves an empty /etc/hosts.
                FileNode::File { .. }
                    if tree.read(path).is_none_or(<[u8]>::is_empty)
                        && matches!(
                            tree.resolve(path),
                            None | Some((_, FileNode::File { .. }))
                        ) =>
                {
                    tree.replace(path, node.clone())?;
                }
                _ => {}
            }
        }
        Ok(tree)
    }
}

/// Directories of the skeleton that the guest's own scripts need.
const NEEDED: [&str; 6] = ["dev", "proc", "root", "run", "sys", "tmp"];

/// Reads an image that is an archive, and lays the bytes as a layer over a small tree, with at most
/// this number of bytes each. For a fuzzer: damaged layers of an image have a wrong digest.
///
/// # Errors
/// The bytes are not an image, or break a rule.
#[doc(hidden)]
pub fn try_image(bytes: &[u8], limit: u64) -> Result<()> {
    let mut tree = RootFs::default();
    tree.file("a/b/c", 0o644, b"below")?;
    tree.symlink("l", "a/b")?;
    if layer::apply(bytes, &mut tree, &mut Budget::of(limit)).is_ok() {
        tree.write(std::io::sink())?;
    }
    let image = ContainerImage::of_archive(std::io::Cursor::new(bytes), &mut Budget::of(limit))?;
    image.guest_tree()?.write(std::io::sink())?;
    image.digest();
    Ok(())
}

#[cfg(any(test, feature = "examples"))]
pub mod examples;
#[cfg(test)]
mod tests;
