//! The corpora: a growing one below `target/fuzz`, and a small one in the project, which `cargo
//! test` replays.

use super::engine::Engine;
use anyhow::{Context, Result};
use kernlane_fuzz::targets::Target;
use std::fs;
use std::path::{Path, PathBuf};

/// Files of a target's corpus in the project, their bytes, and the bytes of each.
const FILES: usize = 100;
const KEPT: u64 = 64 << 10;
const FILE: u64 = 4 << 10;

/// A target's directory in the project, as bolero wants it.
fn kept(target: &Target) -> PathBuf {
    super::package().join("tests/__fuzz__").join(target.name).join("corpus")
}

/// Makes sure that the growing corpus has the seeds and what the project keeps.
pub(super) fn begin(engine: &Engine, target: &Target) -> Result<()> {
    let growing = engine.corpus(target);
    fs::create_dir_all(&growing)?;
    for (number, seed) in (target.seeds)().iter().enumerate() {
        fs::write(growing.join(format!("seed-{number}")), seed)?;
    }
    copy(&kept(target), &growing)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    for (path, _) in files(from)? {
        fs::copy(&path, to.join(path.file_name().context("a file has a name")?))?;
    }
    Ok(())
}

/// The files of a directory with their sizes, the small ones first. No files, where there is none.
fn files(directory: &Path) -> Result<Vec<(PathBuf, u64)>> {
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = fs::read_dir(directory)?
        .map(|entry| {
            let entry = entry?;
            Ok((entry.path(), entry.metadata()?.len()))
        })
        .collect::<Result<Vec<_>>>()?;
    found.sort_by(|(a, x), (b, y)| (x, a).cmp(&(y, b)));
    Ok(found)
}

/// Keeps of the growing corpus, in the project, the inputs that reach something that no smaller one
/// reaches: as many as there is room for, of all sizes. Gives files and bytes.
pub(super) fn keep(engine: &Engine, target: &Target) -> Result<(usize, u64)> {
    let (kept, growing) = (kept(target), engine.corpus(target));
    let candidates: Vec<(PathBuf, u64)> =
        files(&growing)?.into_iter().filter(|&(_, size)| size <= FILE).collect();
    let reaching = engine.reaching(target, &candidates)?;
    if kept.is_dir() {
        fs::remove_dir_all(&kept)?;
    }
    fs::create_dir_all(&kept)?;
    let (mut count, mut total) = (0, 0);
    for (path, size) in spread(&reaching).map(|&at| &candidates[at]) {
        if total + size <= KEPT {
            fs::copy(path, kept.join(path.file_name().context("a file has a name")?))?;
            (count, total) = (count + 1, total + size);
        }
    }
    Ok((count, total))
}

/// At most [`FILES`] of all, with equal distances.
fn spread<T>(all: &[T]) -> impl Iterator<Item = &T> {
    let taken = all.len().min(FILES);
    (0..taken).map(move |number| &all[number * all.len() / taken])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_of_many_have_equal_distances() {
        let few: Vec<usize> = (0..3).collect();
        assert!(spread(&few).eq(&few));
        let many: Vec<usize> = (0..250).collect();
        let taken: Vec<usize> = spread(&many).copied().collect();
        assert_eq!((taken.len(), &taken[..4], taken[99]), (100, &[0, 2, 5, 7][..], 247));
    }
}
