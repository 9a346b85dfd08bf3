//! The kernels that show what the compiler's profile and a layout bring, each alone and together.
//!
//! Input: the tree of the kernel for User Mode Linux that clang built with the line of each
//! instruction, and a directory. Output: kernels in the directory. What exists there is not made
//! again.
//!
//! ```text
//! original → counted ─┬→ ext-tsp
//!                     └→ profile by line → profiled → counted → profiled, ext-tsp
//! ```

use super::kernels::{KernelMaker, MeasuredKernel};
use anyhow::{Context, Result};
use emit::build::KernelBuild;
use emit::kbuild::BuildTree;
use emit::sources::clean_sources;
use exchange::ExportSubject;
use host::output;
use host::progress::Progress;
use image::vmlinux;
use kernlane_layout::Algorithm;
use lab::kernel::USER_MODE_OPTIONS;
use lab::made::make;
use road::ground::Ground;
use road::{export, rebuild};
use std::fs;
use std::path::{Path, PathBuf};

/// The layout that is measured alone and with the profile.
const LAYOUT: &str = "ext-tsp";
/// The kernel that has both, in the words of `kernlane optimize --rebuild`.
pub(super) const BOTH: &str = "profiled, ext-tsp";

/// The kernels in `directory`, the original first.
pub(super) fn kernels(tree: &Path, directory: &Path) -> Result<Vec<MeasuredKernel>> {
    let path = vmlinux::path(tree);
    let image = vmlinux::read(&path)?;
    let maker = KernelMaker { tree, image: &image, directory };
    let counts = maker.profile()?;
    let mut all = maker.controls()?.to_vec();
    let laid_out = maker.laid_out(&Ground::new(&image, &counts)?, LAYOUT)?;
    all.push(MeasuredKernel { name: LAYOUT, program: laid_out });

    let samples = directory.join("profile.prof");
    make(&samples, || {
        let subject = ExportSubject { image: &image, profile: &counts, path: &path };
        let text = export::counts(export::format("llvm-samples")?, &subject, Algorithm::default())?;
        output::write(&samples, text.as_bytes())
    })?;
    let rebuilt = built_with(&samples, tree, directory)?;

    let image = vmlinux::read(&vmlinux::path(&rebuilt))?;
    let home = directory.join(rebuild::PROFILED);
    fs::create_dir_all(&home).with_context(|| home.display().to_string())?;
    let maker = KernelMaker { tree: &rebuilt, image: &image, directory: &home };
    let counts = maker.profile()?;
    let laid_out = maker.laid_out(&Ground::new(&image, &counts)?, LAYOUT)?;
    all.push(MeasuredKernel { name: rebuild::PROFILED, program: rebuilt.join("vmlinux") });
    all.push(MeasuredKernel { name: BOTH, program: laid_out });
    Ok(all)
}

/// The directory in which the tree's kernel was built again with the profile `samples`.
fn built_with(samples: &Path, tree: &Path, directory: &Path) -> Result<PathBuf> {
    let built = directory.join(format!("{}.build", rebuild::PROFILED));
    let tree = BuildTree::open(tree, &[USER_MODE_OPTIONS.to_owned()])?;
    let sources = clean_sources(&tree.path, &directory.join("source"))?;
    let (compiler_options, variables) = rebuild::with_profile(&tree, samples, &[]);
    let build = KernelBuild {
        tree: &tree,
        sources: &sources,
        directory: &built,
        compiler_options: &compiler_options,
        variables: &variables,
        inputs: &[samples],
    };
    if !build.is_done() {
        let expected = build.expected_lines();
        let progress = Progress::of(expected, "building the kernel with the profile".to_owned());
        let mut printed = 0;
        build.run(&mut || {
            printed += 1;
            progress.advance(u64::from(printed < expected));
        })?;
    }
    Ok(built)
}
