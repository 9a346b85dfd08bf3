//! What a workload brings into its guest from the host: copied files and directories, an image.
//!
//! Input: what the workload names. Output: trees in memory, and their digests. The digests are part
//! of a recording's conditions, so the host's files can change afterwards.

use crate::container::ContainerImage;
use crate::host_files::{self, Copy, Sources};
use crate::rootfs::{Budget, RootFs};
use anyhow::{Context, Result};
use std::path::Path;

/// The most bytes of copied files. A guest needs twice the memory.
const MOST_BYTES: u64 = 32 << 30;

/// Everything that was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Brought {
    /// By the guest's paths.
    pub copied: RootFs,
    pub image: Option<ContainerImage>,
    /// The SHA-256, hex, over path, kind, permissions and content of all copied files; `None` if
    /// nothing was copied.
    pub copied_sha256: Option<String>,
    /// The SHA-256, hex, of the image's files and environment.
    pub image_sha256: Option<String>,
}

impl Brought {
    /// Reads the sources of `copies` and the image, without what is left out.
    ///
    /// # Errors
    /// Something cannot be read, or leaves its directory. The message has the path.
    pub(crate) fn read(
        base: &Path,
        sources: Sources,
        copies: &[Copy],
        image: Option<&str>,
        leave_out: &[String],
    ) -> Result<Brought> {
        let mut copied = RootFs::default();
        let mut budget = Budget::of(MOST_BYTES);
        for copy in copies {
            copy.read(base, sources, &mut copied, &mut budget).context("copy")?;
        }
        let image = image
            .map(|image| {
                let path = host_files::source(base, image, sources).context("image")?;
                ContainerImage::open(&path)
            })
            .transpose()?
            .map(|mut image| {
                leave_out.iter().for_each(|path| image.tree.leave_out(path));
                image
            });
        leave_out.iter().for_each(|path| copied.leave_out(path));
        Ok(Brought {
            copied_sha256: (!copies.is_empty()).then(|| copied.digest()),
            image_sha256: image.as_ref().map(ContainerImage::digest),
            copied,
            image,
        })
    }

    /// The guest's memory, in MB, that is enough for what was brought. While the guest boots, the
    /// archive and the unpacked files are in memory at the same time.
    pub(crate) fn memory_mb(&self) -> u32 {
        const LEAST_MB: u64 = 512;
        const STEP_MB: u64 = 128;
        let bytes = self.copied.bytes() + self.image.as_ref().map_or(0, |image| image.tree.bytes());
        let needed = (LEAST_MB / 2 + (bytes >> 20) * 5 / 2).max(LEAST_MB);
        u32::try_from(needed.next_multiple_of(STEP_MB)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), "x").unwrap();
        let read = |leave_out: &[String]| {
            let copies = [Copy::parse(".:/opt/app").unwrap()];
            Brought::read(directory.path(), Sources::Any, &copies, None, leave_out).unwrap()
        };
        let one = read(&[]);
        std::fs::write(directory.path().join("b"), "y").unwrap();
        assert_ne!(one.copied_sha256, read(&[]).copied_sha256);
        assert_eq!(one.copied_sha256, read(&["opt/app/b".into()]).copied_sha256);
        assert_eq!(one.image_sha256, None);
    }

    #[test]
    fn memory_grows_with_the_files() {
        let mut brought = Brought::default();
        assert_eq!(brought.memory_mb(), 512);
        brought.copied.file("x", 0o644, &vec![1; 400 << 20]).unwrap();
        assert_eq!(brought.memory_mb(), 1280);
    }
}
