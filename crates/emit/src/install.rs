//! Installs the results of a relink.
//!
//! Input: the scratch tree of a finished link. The results go to a directory of their own, or into
//! the build tree. In the build tree the old files are kept first, and `restore` puts them back
//! byte for byte. Every file appears under its name only when it is complete. If installing is
//! interrupted at any point, the tree has its old files or their copies.

use crate::relative_words::relative_words;
use anyhow::{Context, Result, bail, ensure};
use host::output;
use image::BuildId;
use image::forms::LINKS_WITH_RELOCATIONS;
use image::{relative_words, sealed};
use std::fs;
use std::path::{Path, PathBuf};

/// The results of linking a kernel that a machine boots, by their paths in a tree. `vmlinux` comes
/// first.
pub(crate) const BOOTABLE: [&str; 4] =
    ["vmlinux", "System.map", "arch/x86/boot/bzImage", "arch/x86/boot/compressed/vmlinux.relocs"];
/// The results of linking a kernel that is a program (User Mode Linux).
pub(crate) const PROGRAM: [&str; 2] = ["vmlinux", "System.map"];
/// The paths of the results of one kind of kernel.
pub(crate) type ResultFiles = &'static [&'static str];
/// The name of the map beside the results.
pub(crate) const MAP: &str = "vmlinux.klm";
/// The directory in a tree that holds Kernlane's files.
pub(crate) const HOME: &str = ".kernlane";
const ORIGINAL: &str = "original";
/// The file with the build id of the kernel that was put into the tree, and its kind.
const RELINKED: &str = "relinked";
const RELINKED_KIND: &str = "kernlane-relinked";

/// A tree holds a part of a relinked kernel, because neither the new kernel nor the original could
/// be put into it. The original is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("after another failure; put the original kernel back when the cause is gone")]
pub struct NotPutBack;

/// Moves the results from `scratch` into `directory`, to the same paths as in a tree. The files
/// with relocations, by which `check` finds the words that are addresses, stay behind: the
/// directory gets the list of its relative words. `new` is the build id of the new vmlinux.
pub(crate) fn into_directory(
    scratch: &Path,
    directory: &Path,
    results: ResultFiles,
    new: &BuildId,
    map: &str,
) -> Result<()> {
    // An earlier version kept the whole link.
    for name in LINKS_WITH_RELOCATIONS.into_iter().chain([relative_words::FILE]) {
        remove_file(&directory.join(name))?;
    }
    let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
    for name in LINKS_WITH_RELOCATIONS.iter().filter(|name| scratch.join(name).exists()) {
        let (linked, vmlinux) = (read(&scratch.join(name))?, read(&scratch.join("vmlinux"))?);
        if let Some(words) = relative_words(&linked, &vmlinux, new)? {
            output::write(&directory.join(relative_words::FILE), words.to_text().as_bytes())?;
            break;
        }
    }
    for name in results {
        move_file(&scratch.join(name), &directory.join(name))?;
    }
    output::write(&directory.join(MAP), map.as_bytes())
}

/// Moves all of a scratch tree into `directory`, which is empty but for that tree: with its links
/// into the build tree it is a tree itself. What Kernlane keeps in the build tree stays there. An
/// earlier tree, which has the file `report`, is removed.
pub(crate) fn tree_into_directory(scratch: &Path, directory: &Path, report: &str) -> Result<()> {
    let named = || format!("{}: cannot be moved", scratch.display());
    let is_ours = directory.join(report).exists();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let entry = entry?;
        let path = entry.path();
        if path == scratch {
            continue;
        }
        ensure!(
            is_ours,
            "{}: is there already; give a new directory, or remove this one",
            path.display()
        );
        // Links into the build tree are removed, and not what they lead to.
        let removed = match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.with_context(|| format!("{}: cannot be removed", path.display()))?;
    }
    for entry in fs::read_dir(scratch).with_context(named)? {
        let entry = entry.with_context(named)?;
        let name = entry.file_name();
        let is_ours = name.to_string_lossy().trim_start_matches('.').starts_with("kernlane");
        if !is_ours {
            move_file(&entry.path(), &directory.join(&name))?;
        }
    }
    Ok(())
}

/// The results that exist. The files with relocations are included if they exist: kbuild makes
/// `vmlinux` and `vmlinux.relocs` of `vmlinux.unstripped`.
fn existing(root: &Path, results: ResultFiles) -> impl Iterator<Item = &'static str> + use<> {
    let there: Vec<_> =
        LINKS_WITH_RELOCATIONS.into_iter().filter(|name| root.join(name).exists()).collect();
    results.iter().copied().chain(there)
}

/// Moves a file within one file system, and creates the directory.
pub(crate) fn move_file(from: &Path, to: &Path) -> Result<()> {
    let named = || format!("{}: cannot be written", to.display());
    fs::create_dir_all(to.parent().unwrap_or(Path::new("."))).with_context(named)?;
    fs::rename(from, to).with_context(named)
}

/// The original link of a tree, which is kept while a relinked kernel is in its place.
pub(crate) struct OriginalLink {
    tree: PathBuf,
    results: ResultFiles,
}

impl OriginalLink {
    /// The original link of the tree at `tree`, whose results are `results`.
    pub(crate) fn of(tree: &Path, results: ResultFiles) -> OriginalLink {
        let tree = tree.to_owned();
        OriginalLink { tree, results }
    }

    /// The directory in the tree that holds Kernlane's files.
    pub(crate) fn home(&self) -> PathBuf {
        self.tree.join(HOME)
    }

    fn original(&self) -> PathBuf {
        self.home().join(ORIGINAL)
    }

    /// The path of an original result: the tree's own file, or the kept file if a relinked kernel
    /// is in its place.
    ///
    /// `build_id` is that of the tree's vmlinux as it is now.
    ///
    /// # Errors
    /// As [`OriginalLink::is_relinked`].
    pub(crate) fn original_of(&self, name: &str, build_id: &BuildId) -> Result<PathBuf> {
        let root = if self.is_relinked(build_id)? { self.original() } else { self.tree.clone() };
        Ok(root.join(name))
    }

    /// Whether the kernel of that build id is one that `install` put there.
    ///
    /// # Errors
    /// The file that says so is damaged: then the kept original must not be replaced.
    pub(crate) fn is_relinked(&self, build_id: &BuildId) -> Result<bool> {
        let path = self.home().join(RELINKED);
        if !path.exists() || !self.original().is_dir() {
            return Ok(false);
        }
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        // Once it held nothing but the build id.
        let is_bare = text.trim_end().bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = match is_bare {
            true => text.trim_end(),
            false => sealed::open(RELINKED_KIND, &text)
                .with_context(|| {
                    format!(
                        "{}: says which kernel was put into the tree. If vmlinux is as \
                         make left it, \
                         remove {}; if not, run make",
                        path.display(),
                        self.home().display()
                    )
                })?
                .trim_end(),
        };
        Ok(id == build_id.0)
    }

    /// Puts the results from `scratch`, which must be in the tree's file system, into the tree. If
    /// this fails, the tree is unchanged.
    ///
    /// `present` is the build id of the vmlinux that is in the tree now; `new` is the build id of
    /// the new one.
    pub(crate) fn install(
        &self,
        scratch: &Path,
        present: &BuildId,
        new: &BuildId,
        map: &str,
    ) -> Result<()> {
        if !self.is_relinked(present)? {
            self.keep_original()?;
        }
        let text = sealed::text(RELINKED_KIND, &format!("{}\n", new.0));
        output::write(&self.home().join(RELINKED), text.as_bytes())?;
        let moved = existing(scratch, self.results)
            .try_for_each(|name| move_file(&scratch.join(name), &self.tree.join(name)));
        let done = moved.and_then(|()| output::write(&self.home().join(MAP), map.as_bytes()));
        if let Err(error) = done {
            self.put_back().context(NotPutBack)?;
            return Err(error);
        }
        Ok(())
    }

    /// Copies the original results.
    fn keep_original(&self) -> Result<()> {
        let partial = self.home().join("original.partial");
        remove_directory(&partial)?;
        for name in existing(&self.tree, self.results) {
            copy_file(&self.tree.join(name), &partial.join(name))?;
        }
        remove_directory(&self.original())?;
        fs::rename(&partial, self.original())
            .with_context(|| format!("{}: cannot be made", self.original().display()))
    }

    /// Puts the original link back and removes Kernlane's files. `present` is the build id of the
    /// vmlinux that is in the tree now.
    ///
    /// Returns whether files were put back. A tree that was built again since has its own link
    /// already.
    pub(crate) fn restore(&self, present: Option<&BuildId>) -> Result<bool> {
        ensure!(
            self.original().is_dir(),
            "{}: there is nothing to restore, because no relinked kernel was installed",
            self.tree.display()
        );
        let interrupted = present.is_none();
        let is_relinked = present.map_or(Ok(false), |id| self.is_relinked(id));
        let ours = interrupted || present == self.original_id().as_ref() || is_relinked?;
        if ours {
            self.put_back()?;
        }
        remove_directory(&self.home())?;
        Ok(ours)
    }

    fn original_id(&self) -> Option<BuildId> {
        let bytes = fs::read(self.original().join("vmlinux")).ok()?;
        image::object::linked::LinkAddresses::read(&bytes).ok().map(|linked| linked.build_id)
    }

    fn put_back(&self) -> Result<()> {
        let fresh = self.home().join("restoring");
        remove_directory(&fresh)?;
        for name in existing(&self.original(), self.results) {
            copy_file(&self.original().join(name), &fresh.join(name))?;
        }
        existing(&self.original(), self.results)
            .try_for_each(|name| move_file(&fresh.join(name), &self.tree.join(name)))?;
        remove_directory(&fresh)
    }
}

/// Removes a file, if there is one.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            bail!("{}: cannot be removed: {error}", path.display())
        }
        _ => Ok(()),
    }
}

/// Copies a file with its time and permissions.
pub(crate) fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let named = || format!("{}: cannot be copied to {}", from.display(), to.display());
    fs::create_dir_all(to.parent().unwrap_or(Path::new("."))).with_context(named)?;
    fs::copy(from, to).with_context(named)?;
    let time = fs::metadata(from).and_then(|m| m.modified()).with_context(named)?;
    fs::File::options().write(true).open(to).and_then(|f| f.set_modified(time)).with_context(named)
}

pub(crate) fn remove_directory(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            bail!("{}: cannot be removed: {error}", path.display())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree whose results contain `content`, and a scratch tree inside it whose results contain
    /// `new`.
    fn tree(content: &str, new: &str) -> (tempfile::TempDir, PathBuf) {
        let tree = tempfile::tempdir().unwrap();
        let scratch = tree.path().join(HOME).join("scratch");
        for name in BOOTABLE {
            for (root, text) in [(tree.path(), content), (scratch.as_path(), new)] {
                fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
                fs::write(root.join(name), format!("{text} {name}")).unwrap();
            }
        }
        (tree, scratch)
    }

    fn has_content(tree: &Path, content: &str) -> bool {
        BOOTABLE
            .iter()
            .all(|name| fs::read_to_string(tree.join(name)).unwrap() == format!("{content} {name}"))
    }

    fn id(text: &str) -> BuildId {
        BuildId(text.to_owned())
    }

    #[test]
    fn an_earlier_tree_is_replaced_and_what_its_links_lead_to_stays() {
        let home = tempfile::tempdir().unwrap();
        let kept = tempfile::tempdir().unwrap();
        fs::write(kept.path().join("source.c"), "").unwrap();
        let scratch = |name: &str| {
            let scratch = home.path().join(name);
            fs::create_dir(&scratch).unwrap();
            std::os::unix::fs::symlink(kept.path(), scratch.join("kernel")).unwrap();
            fs::write(scratch.join("vmlinux"), name).unwrap();
            fs::write(scratch.join(".kernlane.mk"), "").unwrap();
            tree_into_directory(&scratch, home.path(), "report.json")
        };
        let vmlinux = || fs::read_to_string(home.path().join("vmlinux")).unwrap();
        scratch("first").unwrap();
        assert!(home.path().join("kernel/source.c").exists() && vmlinux() == "first");
        assert!(!home.path().join(".kernlane.mk").exists());
        // Without a report it is somebody's directory.
        let refused = format!("{:#}", scratch("second").unwrap_err());
        assert!(refused.contains("is there already") && vmlinux() == "first", "{refused}");
        fs::write(home.path().join("report.json"), "{}").unwrap();
        scratch("third").unwrap();
        assert!(kept.path().join("source.c").exists() && vmlinux() == "third");
    }

    #[test]
    fn restoring_removes_an_installed_kernel() {
        let (tree, scratch) = tree("old", "new");
        let kept = OriginalLink::of(tree.path(), &BOOTABLE);
        let time = |name: &str| fs::metadata(tree.path().join(name)).unwrap().modified().unwrap();
        let before = time("vmlinux");
        kept.install(&scratch, &id("aa"), &id("bb"), "map").unwrap();
        assert!(has_content(tree.path(), "new"));
        assert!(kept.is_relinked(&id("bb")).unwrap() && !kept.is_relinked(&id("aa")).unwrap());
        assert_eq!(
            fs::read_to_string(kept.original_of("vmlinux", &id("bb")).unwrap()).unwrap(),
            "old vmlinux"
        );
        assert!(kept.restore(Some(&id("bb"))).unwrap());
        assert!(has_content(tree.path(), "old"));
        assert_eq!(time("vmlinux"), before);
        assert!(!kept.home().exists());
        assert!(kept.restore(Some(&id("aa"))).is_err());
    }

    #[test]
    fn a_program_without_a_boot_image_is_installed_and_restored() {
        let (tree, scratch) = tree("old", "new");
        for name in BOOTABLE.into_iter().filter(|name| !PROGRAM.contains(name)) {
            fs::remove_file(tree.path().join(name)).unwrap();
            fs::remove_file(scratch.join(name)).unwrap();
        }
        let kept = OriginalLink::of(tree.path(), &PROGRAM);
        kept.install(&scratch, &id("aa"), &id("bb"), "map").unwrap();
        assert_eq!(fs::read_to_string(tree.path().join("vmlinux")).unwrap(), "new vmlinux");
        assert!(kept.restore(Some(&id("bb"))).unwrap());
        assert_eq!(fs::read_to_string(tree.path().join("System.map")).unwrap(), "old System.map");
    }

    /// kbuild makes `vmlinux` and its relocations of `vmlinux.unstripped`: the two stay together.
    #[test]
    fn the_kernel_before_it_is_stripped_is_installed_and_restored() {
        let (tree, scratch) = tree("old", "new");
        for name in LINKS_WITH_RELOCATIONS {
            fs::write(tree.path().join(name), format!("old {name}")).unwrap();
            fs::write(scratch.join(name), format!("new {name}")).unwrap();
        }
        let read = |name: &str| fs::read_to_string(tree.path().join(name)).unwrap();
        let kept = OriginalLink::of(tree.path(), &BOOTABLE);
        kept.install(&scratch, &id("aa"), &id("bb"), "map").unwrap();
        assert_eq!(read("vmlinux.unstripped"), "new vmlinux.unstripped");
        assert!(kept.restore(Some(&id("bb"))).unwrap());
        assert_eq!(read("vmlinux.unstripped"), "old vmlinux.unstripped");
        assert_eq!(read(".tmp_vmlinux2"), "old .tmp_vmlinux2");
    }

    #[test]
    fn a_second_relink_keeps_the_first_original() {
        let (tree, scratch) = tree("old", "new");
        let kept = OriginalLink::of(tree.path(), &BOOTABLE);
        kept.install(&scratch, &id("aa"), &id("bb"), "map").unwrap();
        for name in BOOTABLE {
            fs::write(scratch.join(name), format!("newer {name}")).unwrap();
        }
        kept.install(&scratch, &id("bb"), &id("cc"), "map").unwrap();
        assert!(has_content(tree.path(), "newer"));
        assert!(kept.restore(Some(&id("cc"))).unwrap());
        assert!(has_content(tree.path(), "old"));
    }

    #[test]
    fn an_original_is_never_replaced_when_it_is_not_known_whose_kernel_is_there() {
        let (tree, scratch) = tree("old", "new");
        let kept = OriginalLink::of(tree.path(), &BOOTABLE);
        kept.install(&scratch, &id("aa"), &id("bb"), "map").unwrap();
        let path = kept.home().join(RELINKED);
        let text = fs::read_to_string(&path).unwrap();
        for at in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert!(kept.install(&scratch, &id("bb"), &id("cc"), "map").is_err(), "byte {at}");
        }
        assert_eq!(fs::read_to_string(kept.original().join("vmlinux")).unwrap(), "old vmlinux");
        fs::write(&path, "bb\n").unwrap();
        assert!(kept.is_relinked(&id("bb")).unwrap(), "as it was once written");
    }

    #[test]
    fn a_failure_midway_leaves_the_tree_as_it_was() {
        let (tree, scratch) = tree("old", "new");
        fs::remove_file(scratch.join(BOOTABLE[2])).unwrap();
        let kept = OriginalLink::of(tree.path(), &BOOTABLE);
        assert!(kept.install(&scratch, &id("aa"), &id("bb"), "map").is_err());
        assert!(has_content(tree.path(), "old"));
    }

    #[test]
    fn a_tree_that_was_built_again_keeps_its_own_link() {
        let (tree, scratch) = tree("old", "new");
        let kept = OriginalLink::of(tree.path(), &BOOTABLE);
        kept.install(&scratch, &id("aa"), &id("bb"), "map").unwrap();
        for name in BOOTABLE {
            fs::write(tree.path().join(name), format!("rebuilt {name}")).unwrap();
        }
        assert!(!kept.restore(Some(&id("dd"))).unwrap());
        assert!(has_content(tree.path(), "rebuilt"));
        assert!(!kept.home().exists());
    }
}
