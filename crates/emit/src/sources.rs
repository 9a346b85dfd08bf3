//! Finds the sources of a built tree, for a build in another directory.
//!
//! kbuild refuses to build elsewhere (`make O=`) from sources that hold a build themselves. Then
//! the sources are mirrored: each source file gets a symbolic link in a directory of its own, and
//! what the build made gets none. The tree's own `.gitignore` files tell which is which.
//!
//! Input: a tree, which is only read. Output: a directory with clean sources.

use anyhow::{Context, Result, ensure};
use ignore::WalkBuilder;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The sources from which the kernel in `tree` was built, without a build among them. If need be,
/// `mirror` becomes a mirror of them; one that exists is completed.
///
/// # Errors
/// Nothing tells which files are sources, or a file cannot be read or linked to.
pub fn clean_sources(tree: &Path, mirror: &Path) -> Result<PathBuf> {
    let elsewhere = tree.join("source");
    if elsewhere.join("Makefile").exists() {
        return fs::canonicalize(&elsewhere)
            .with_context(|| format!("{}: cannot be read", elsewhere.display()));
    }
    ensure!(
        tree.join(".gitignore").exists(),
        "{}: the sources hold a build, and no .gitignore tells which files are sources; build the \
         kernel in a directory of its own (make O=DIRECTORY)",
        tree.display()
    );
    link_sources(tree, mirror)?;
    for file in named_by_configuration(tree) {
        link(tree, mirror, &file)?;
    }
    Ok(mirror.to_owned())
}

fn link_sources(tree: &Path, mirror: &Path) -> Result<()> {
    let made = made_by_builds(tree)?;
    let inside = fs::canonicalize(mirror.parent().unwrap_or(mirror)).ok();
    let named = || format!("{}: cannot be read", tree.display());
    for entry in fs::read_dir(tree).with_context(named)? {
        let top = entry.with_context(named)?.path();
        let made = made.clone();
        let is_source = move |path: &Path, is_dir: bool| {
            path.file_name().is_some_and(|name| name != ".git")
                && !made.matched(path, is_dir).is_ignore()
        };
        if !is_source(&top, top.is_dir()) || Some(&top) == inside.as_ref() {
            continue;
        }
        let mut walk = WalkBuilder::new(&top);
        // Nothing but the tree's own files decides, wherever the tree lies.
        walk.standard_filters(false).git_ignore(true).require_git(false).parents(false);
        let inside = inside.clone();
        walk.filter_entry(move |entry| {
            is_source(entry.path(), entry.file_type().is_some_and(|kind| kind.is_dir()))
                && Some(entry.path()) != inside.as_deref()
        });
        for entry in walk.build() {
            let entry = entry.with_context(named)?;
            if entry.file_type().is_some_and(|kind| !kind.is_dir()) {
                let relative = entry.path().strip_prefix(tree).context("not in the tree")?;
                link(tree, mirror, relative)?;
            }
        }
    }
    Ok(())
}

/// What the `.gitignore` at the top of a tree ignores. Debian's says at its end that git shall
/// ignore everything but the packaging.
fn made_by_builds(tree: &Path) -> Result<Gitignore> {
    let path = tree.join(".gitignore");
    let named = || format!("{}: cannot be read", path.display());
    let text = fs::read_to_string(&path).with_context(named)?;
    let mut patterns = GitignoreBuilder::new(tree);
    for line in text.lines().filter(|line| !matches!(line.trim(), "/*" | "*")) {
        patterns.add_line(None, line).with_context(named)?;
    }
    patterns.build().with_context(named)
}

/// Files of the tree that its configuration names, such as keys. They may be ignored by git.
fn named_by_configuration(tree: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(tree.join(".config")).unwrap_or_default();
    let values = text.lines().filter_map(|line| line.strip_prefix("CONFIG_")?.split_once('='));
    let quoted = values.filter_map(|(_, value)| value.strip_prefix('"')?.strip_suffix('"'));
    let words = quoted.flat_map(str::split_whitespace).map(Path::new);
    words
        .filter(|name| name.is_relative() && tree.join(name).is_file())
        .map(Path::to_owned)
        .collect()
}

fn link(tree: &Path, mirror: &Path, file: &Path) -> Result<()> {
    let (from, to) = (tree.join(file), mirror.join(file));
    if fs::read_link(&to).is_ok_and(|known| known == from) {
        return Ok(());
    }
    let made = to.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| symlink(&from, &to));
    made.with_context(|| format!("{}: cannot be made", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(directory: &Path, files: &[(&str, &str)]) {
        for (file, text) in files {
            let path = directory.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn what_a_build_made_is_not_mirrored_and_keys_are() {
        let home = tempfile::tempdir().unwrap();
        let tree = home.path().join("linux");
        with(
            &tree,
            &[
                // The last two lines are Debian's.
                (".gitignore", ".*\n!.gitignore\n*.o\n/include/config/\n/keys/\n/*\n!/debian/\n"),
                (".config", "CONFIG_X=y\nCONFIG_KEYS=\"keys/key.pem\"\nCONFIG_VERSION=\"-1\"\n"),
                (".git/HEAD", ""),
                ("Makefile", "all:\n"),
                ("fs/.gitignore", "made.c\n"),
                ("fs/open.c", "open"),
                ("fs/open.o", ""),
                ("fs/made.c", ""),
                ("include/config/auto.conf", ""),
                ("keys/key.pem", "key"),
                ("keys/other.pem", "key"),
                ("tools/objtool/.gitignore", "objtool\n"),
                ("tools/objtool/objtool", ""),
                ("tools/objtool/main.c", ""),
            ],
        );
        let mirror = home.path().join("mirror");
        // Twice: what is there is completed.
        for _ in 0..2 {
            assert_eq!(clean_sources(&tree, &mirror).unwrap(), mirror);
        }
        let there = |file: &str| mirror.join(file).exists();
        assert!(
            ["Makefile", "fs/open.c", "tools/objtool/main.c", ".gitignore", "keys/key.pem"]
                .iter()
                .all(|f| there(f))
        );
        let made = [
            "keys/other.pem",
            "tools/objtool/objtool",
            "fs/open.o",
            "fs/made.c",
            "include/config/auto.conf",
            ".config",
            ".git/HEAD",
        ];
        assert!(!made.iter().any(|f| there(f)));
        assert_eq!(fs::read_to_string(mirror.join("fs/open.c")).unwrap(), "open");
    }

    #[test]
    fn a_mirror_inside_of_the_tree_does_not_hold_itself() {
        let home = tempfile::tempdir().unwrap();
        with(home.path(), &[(".gitignore", "*.o\n"), ("Makefile", ""), ("out/first.rec", "")]);
        let mirror = home.path().join("out/source");
        fs::create_dir_all(&mirror).unwrap();
        clean_sources(home.path(), &mirror).unwrap();
        assert!(mirror.join("Makefile").exists());
        assert!(!mirror.join("out").exists());
    }

    #[test]
    fn a_build_elsewhere_has_clean_sources_already() {
        let home = tempfile::tempdir().unwrap();
        with(home.path(), &[("linux/Makefile", ""), ("build/Makefile", "")]);
        let (tree, sources) = (home.path().join("build"), home.path().join("linux"));
        symlink(&sources, tree.join("source")).unwrap();
        let found = clean_sources(&tree, &home.path().join("mirror")).unwrap();
        assert_eq!(found, fs::canonicalize(sources).unwrap());
        assert!(!home.path().join("mirror").exists());
    }

    #[test]
    fn sources_that_nothing_tells_from_the_build_are_refused() {
        let home = tempfile::tempdir().unwrap();
        with(home.path(), &[("Makefile", ""), ("fs/open.o", "")]);
        let error = clean_sources(home.path(), &home.path().join("mirror")).unwrap_err();
        assert!(error.to_string().contains("make O="), "{error}");
    }
}
