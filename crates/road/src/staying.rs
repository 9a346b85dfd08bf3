//! What of a layout's promise cannot be kept: executed code that no layout moves, and hot code that
//! the linker of one build tree puts where it stays.
//!
//! Input: a kernel, its counts, a layout. Output: shares. This module changes nothing.

use anyhow::{Context, Result};
use emit::kbuild::BuildTree;
use emit::originals::Originals;
use image::Image;
use image::order::Layout;
use image::vmlinux;
use profile::Profile;
use profile::staying::{self, StayingCode};
use std::path::Path;

/// More of the hot code than this share is not placed: the numbers of a layout are not those that a
/// relink brings. In the kernels that Kernlane knows the share is 0.
const TOLERATED: f64 = 0.02;

/// The executed code of `kernel` (a tree, or a vmlinux) that stays.
///
/// ```
/// let home = road::examples::home();
/// let path = home.path().join("vmlinux");
/// let image = image::vmlinux::read(&path)?;
/// let profile = profile::Profile::empty(image.build_id.clone());
/// assert_eq!(road::staying::staying_code(&path, &image, &profile)?.share, 0.0);
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// The vmlinux cannot be read.
pub fn staying_code(kernel: &Path, image: &Image, profile: &Profile) -> Result<StayingCode> {
    let blocks = staying::counted(image, profile).map(|(block, _)| image.block(block));
    let instructions = vmlinux::instruction_counts(&vmlinux::path(kernel), blocks)?;
    Ok(staying::staying(image, profile, &instructions))
}

/// A sentence if a relink in the tree of `kernel` cannot move much of a layout's hot code; `None`
/// also if `kernel` is not in a build tree.
///
/// ```
/// let home = road::examples::home();
/// let image = image::vmlinux::read(&home.path().join("vmlinux"))?;
/// let layout = image::order::Layout::original(image.build_id);
/// assert_eq!(road::staying::hot_code_that_stays(home.path(), &layout)?, None);
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// The tree's vmlinux was not linked from its vmlinux.o, or a file cannot be read.
pub fn hot_code_that_stays(kernel: &Path, layout: &Layout) -> Result<Option<String>> {
    let vmlinux = vmlinux::path(kernel);
    let tree = vmlinux.parent().unwrap_or(Path::new(""));
    if !tree.join("vmlinux.o").is_file() {
        return Ok(None);
    }
    let tree = BuildTree::open(tree, &[]).context("the tree of the kernel")?;
    Ok(doubt(Originals::read(&tree)?.hot_share_that_stays(&layout.of_vmlinux())))
}

/// A sentence if this share of a layout's hot bytes stays and is more than is tolerated.
pub fn doubt(share: f64) -> Option<String> {
    (share > TOLERATED).then(|| {
        format!(
            "{:.0} % of the layout's hot code lies in sections that the kernel's linker script \
             keeps apart from .text, and stays where it is: a relinked kernel gains less than the \
             layout's score says",
            100.0 * share
        )
    })
}

/// A sentence if this share of a layout's hot bytes keeps its place inside of functions that stay
/// whole, and is more than is tolerated. `reason`: why most of their bytes do.
pub(crate) fn doubt_of_whole(share: f64, reason: &str) -> Option<String> {
    (share > TOLERATED).then(|| {
        format!(
            "{:.0} % of the layout's hot code lies in functions that stay whole (most of them for: \
             {reason}), and keeps its order there: a relinked kernel gains less than the layout's \
             score says",
            100.0 * share
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_much_hot_code_that_stays_is_a_doubt() {
        assert_eq!(doubt(0.0), None);
        assert_eq!(doubt(0.02), None);
        assert!(
            doubt(0.667).unwrap().starts_with("67 % of the layout's hot code lies in sections")
        );
        assert_eq!(doubt_of_whole(0.02, "odd"), None);
        let whole = doubt_of_whole(0.4, "odd").unwrap();
        assert!(whole.starts_with("40 % of") && whole.contains("for: odd"), "{whole}");
    }
}
