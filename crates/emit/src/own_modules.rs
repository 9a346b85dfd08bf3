//! A tree's own modules, which are kept while rewritten ones are in their place.
//!
//! Input: a tree. Output: the files that make linked, wherever they are now. `.kernlane/modules`
//! has them while a relink's are in the tree, and a list has the hashes of those. A module that
//! make linked again since is the tree's own again. If anything is interrupted, each module in the
//! tree is whole, and the tree's own one is in the tree or kept.

use crate::install::{HOME, copy_file, move_file, remove_directory, remove_file};
use anyhow::{Context, Result};
use host::output;
use image::sealed;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The list of a tree's modules, by the objects that they were linked from.
pub(crate) const ORDER: &str = "modules.order";
/// What is appended to a module's file name for its map.
const MAP_ENDING: &str = ".klm";
/// The directory of the tree's own modules, in the one that holds Kernlane's files.
const KEPT: &str = "modules";
/// The list of the modules that a relink put into the tree: a hash of each file, and its path.
const LIST: &str = "relinked-modules";
const LIST_KIND: &str = "kernlane-relinked-modules";

/// The modules of a tree, of which some may be a relink's.
pub(crate) struct OwnModules {
    tree: PathBuf,
    /// The files that a relink put there, or was about to.
    relinked: BTreeSet<(PathBuf, String)>,
}

impl OwnModules {
    /// Those of the tree at `tree`.
    ///
    /// # Errors
    /// The list is damaged: then no module may be replaced.
    pub(crate) fn of(tree: &Path) -> Result<OwnModules> {
        let path = tree.join(HOME).join(LIST);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(OwnModules { tree: tree.to_owned(), relinked: BTreeSet::new() });
            }
            read => read.with_context(|| path.display().to_string())?,
        };
        let lines = sealed::open(LIST_KIND, &text).with_context(|| {
            format!(
                "{}: says which modules were put into the tree. Build them again, and remove {}",
                path.display(),
                tree.join(HOME).display()
            )
        })?;
        let pair = |line: &str| {
            line.split_once(' ').map(|(hash, path)| (PathBuf::from(path), hash.to_owned()))
        };
        let relinked = lines.lines().filter_map(pair).collect();
        Ok(OwnModules { tree: tree.to_owned(), relinked })
    }

    /// The bytes of the tree's own module at a path.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(&self, path: &Path) -> Result<Vec<u8>> {
        let read = |file: PathBuf| fs::read(&file).with_context(|| file.display().to_string());
        let present = read(self.tree.join(path))?;
        match self.is_relinked(path, &present) {
            true => read(self.kept(path)),
            false => Ok(present),
        }
    }

    /// Whether all modules at these paths are a relink's.
    pub(crate) fn are_relinked<'a>(&self, mut paths: impl Iterator<Item = &'a Path>) -> bool {
        paths.all(|path| self.is_relinked_now(path))
    }

    /// Puts the modules at these paths below `directory`, which must be in the tree's file system,
    /// into the tree, and their maps into Kernlane's directory. Other modules of an earlier relink
    /// become the tree's own. If this fails, all of them do.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub(crate) fn install(mut self, directory: &Path, paths: &[PathBuf]) -> Result<()> {
        let done = self.put(directory, paths);
        if done.is_err() {
            self.restore()?;
        }
        done
    }

    fn put(&mut self, directory: &Path, paths: &[PathBuf]) -> Result<()> {
        for (path, _) in self.relinked.clone() {
            if !paths.contains(&path) {
                self.put_back(&path)?;
            }
        }
        for path in paths {
            if !self.is_relinked_now(path) {
                copy_file(&self.tree.join(path), &self.kept(path))?;
            }
            let new = directory.join(path);
            let bytes = fs::read(&new).with_context(|| new.display().to_string())?;
            self.relinked.insert((path.clone(), hash(&bytes)));
        }
        self.write()?;
        let home = self.tree.join(HOME);
        for path in paths {
            move_file(&map_of(&directory.join(path)), &map_of(&home.join(path)))?;
            move_file(&directory.join(path), &self.tree.join(path))?;
        }
        match paths.is_empty() {
            true => remove_file(&home.join(ORDER)),
            // Who reads the maps finds them by this list.
            false => copy_file(&self.tree.join(ORDER), &home.join(ORDER)),
        }
    }

    /// Puts the tree's own modules back, byte for byte. A module that make linked since stays.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub(crate) fn restore(&mut self) -> Result<()> {
        for (path, _) in self.relinked.clone() {
            self.put_back(&path)?;
        }
        self.write()?;
        remove_directory(&self.tree.join(HOME).join(KEPT))
    }

    /// Puts one module back, if a relink's is in its place or none is.
    fn put_back(&mut self, path: &Path) -> Result<()> {
        let present = self.tree.join(path);
        if self.is_relinked_now(path) || !present.exists() {
            let fresh = self.tree.join(HOME).join("restored.ko");
            copy_file(&self.kept(path), &fresh)?;
            move_file(&fresh, &present)?;
        }
        remove_file(&map_of(&self.tree.join(HOME).join(path)))?;
        self.relinked.retain(|(other, _)| other != path);
        Ok(())
    }

    fn write(&self) -> Result<()> {
        let list = self.tree.join(HOME).join(LIST);
        if self.relinked.is_empty() {
            return remove_file(&list);
        }
        let line = |(path, hash): &(PathBuf, String)| format!("{hash} {}\n", path.display());
        let lines: String = self.relinked.iter().map(line).collect();
        output::write(&list, sealed::text(LIST_KIND, &lines).as_bytes())
    }

    fn kept(&self, path: &Path) -> PathBuf {
        self.tree.join(HOME).join(KEPT).join(path)
    }

    fn is_relinked_now(&self, path: &Path) -> bool {
        fs::read(self.tree.join(path)).is_ok_and(|present| self.is_relinked(path, &present))
    }

    fn is_relinked(&self, path: &Path, bytes: &[u8]) -> bool {
        self.relinked.iter().any(|(other, _)| other == path)
            && self.relinked.contains(&(path.to_owned(), hash(bytes)))
    }
}

/// The path of the map of the module at `path`.
pub(crate) fn map_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(MAP_ENDING);
    PathBuf::from(name)
}

fn hash(bytes: &[u8]) -> String {
    sealed::hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: [&str; 2] = ["fs/a.ko", "net/b.ko"];

    /// A tree with two modules.
    fn tree() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join(ORDER), "fs/a.o\nnet/b.o\n").unwrap();
        for path in PATHS {
            write(tree.path(), path, &format!("own {path}"));
        }
        tree
    }

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
    }

    /// Puts new modules into the tree.
    fn install(tree: &Path, paths: &[&str], word: &str) -> Result<()> {
        let scratch = tree.join(HOME).join("scratch");
        for path in paths {
            write(&scratch, path, &format!("{word} {path}"));
            write(&scratch, &format!("{path}{MAP_ENDING}"), "map");
        }
        let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
        OwnModules::of(tree).unwrap().install(&scratch, &paths)
    }

    fn words(tree: &Path) -> Vec<String> {
        let word = |path| {
            let text = fs::read_to_string(tree.join(path)).unwrap();
            text.split(' ').next().unwrap().to_owned()
        };
        PATHS.map(word).into()
    }

    #[test]
    fn modules_that_were_put_into_a_tree_are_taken_out_again() {
        let tree = tree();
        let time = || fs::metadata(tree.path().join(PATHS[0])).unwrap().modified().unwrap();
        let before = time();
        install(tree.path(), &PATHS, "new").unwrap();
        assert_eq!(words(tree.path()), ["new", "new"]);
        let mut own = OwnModules::of(tree.path()).unwrap();
        assert_eq!(own.read(PATHS[1].as_ref()).unwrap(), b"own net/b.ko");
        assert!(own.are_relinked(PATHS.iter().map(Path::new)));
        own.restore().unwrap();
        assert_eq!(words(tree.path()), ["own", "own"]);
        assert_eq!(time(), before);
        assert!(!own.are_relinked(PATHS.iter().map(Path::new)));
    }

    #[test]
    fn a_second_layout_of_fewer_modules_gives_the_others_back() {
        let tree = tree();
        install(tree.path(), &PATHS, "new").unwrap();
        install(tree.path(), &PATHS[1..], "newer").unwrap();
        assert_eq!(words(tree.path()), ["own", "newer"]);
        assert!(!tree.path().join(HOME).join("fs/a.ko.klm").exists());
        assert!(tree.path().join(HOME).join("net/b.ko.klm").exists());
        OwnModules::of(tree.path()).unwrap().restore().unwrap();
        assert_eq!(words(tree.path()), ["own", "own"]);
    }

    #[test]
    fn what_make_linked_since_is_the_trees_own() {
        let tree = tree();
        install(tree.path(), &PATHS, "new").unwrap();
        write(tree.path(), PATHS[0], "again fs/a.ko");
        let mut own = OwnModules::of(tree.path()).unwrap();
        assert_eq!(own.read(PATHS[0].as_ref()).unwrap(), b"again fs/a.ko");
        own.restore().unwrap();
        assert_eq!(words(tree.path()), ["again", "own"]);
        // And it is what the next relink keeps.
        install(tree.path(), &PATHS, "new").unwrap();
        OwnModules::of(tree.path()).unwrap().restore().unwrap();
        assert_eq!(words(tree.path()), ["again", "own"]);
    }

    #[test]
    fn after_a_failure_all_modules_are_the_trees_own() {
        let tree = tree();
        let scratch = tree.path().join(HOME).join("scratch");
        for path in PATHS {
            write(&scratch, path, "new");
        }
        write(&scratch, "fs/a.ko.klm", "map");
        // The map of the second one is missing.
        let paths: Vec<PathBuf> = PATHS.iter().map(PathBuf::from).collect();
        assert!(OwnModules::of(tree.path()).unwrap().install(&scratch, &paths).is_err());
        assert_eq!(words(tree.path()), ["own", "own"]);
    }

    #[test]
    fn a_damaged_list_is_refused() {
        let tree = tree();
        install(tree.path(), &PATHS, "new").unwrap();
        let list = tree.path().join(HOME).join(LIST);
        let text = fs::read_to_string(&list).unwrap();
        for at in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[at] ^= 1;
            fs::write(&list, damaged).unwrap();
            assert!(OwnModules::of(tree.path()).is_err(), "byte {at}");
        }
    }
}
