//! The digest of a tree: SHA-256 over path, kind, permissions and content of every file, in byte
//! order of the paths.
//!
//! Input: a tree. Output: hex. Owners and times are not part of the digest, because the guest has
//! none.

use super::{FileNode, RootFs};
use sha2::{Digest, Sha256};

impl RootFs {
    /// The digest, hex. Equal trees have equal digests, however they were packed.
    pub(crate) fn digest(&self) -> String {
        let mut hash = Sha256::new();
        let mut add = |kind: &[u8], path: &str, mode: [u32; 3], content: &[u8]| {
            hash.update(kind);
            hash.update((path.len() as u64).to_le_bytes());
            hash.update(path);
            mode.iter().for_each(|number| hash.update(number.to_le_bytes()));
            hash.update((content.len() as u64).to_le_bytes());
            hash.update(content);
        };
        for (path, node) in self.nodes() {
            match node {
                FileNode::Directory { permissions } => add(b"d", path, [*permissions, 0, 0], &[]),
                FileNode::File { permissions, data } => add(b"f", path, [*permissions, 0, 0], data),
                FileNode::Symlink { target } => add(b"l", path, [0; 3], target.as_bytes()),
                FileNode::Special { mode, major, minor } => {
                    add(b"s", path, [*mode, *major, *minor], &[]);
                }
            }
        }
        image::sealed::hex(&hash.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_permissions_kind_and_content_decide() {
        let digest = |path: &str, permissions, text: &[u8]| {
            let mut root = RootFs::default();
            root.file(path, permissions, text).unwrap();
            root.digest()
        };
        let one = digest("a", 0o644, b"x");
        assert_eq!(one, digest("a", 0o644, b"x"));
        for other in [digest("b", 0o644, b"x"), digest("a", 0o755, b"x"), digest("a", 0o644, b"y")]
        {
            assert_ne!(one, other);
        }
        let mut link = RootFs::default();
        link.symlink("a", "x").unwrap();
        assert_ne!(link.digest(), digest("a", 0, b"x"));
        // printf 'f\1\0\0\0\0\0\0\0a\244\1\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0x' | sha256sum
        assert_eq!(one, "8c267a55f84061006327b1623b16411e7972e0328d4466e65bc42bde62a24593");
    }
}
