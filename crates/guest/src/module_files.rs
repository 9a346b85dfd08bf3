//! The files of a kernel's modules.
//!
//! Input: a build tree, or a vmlinux. Output: paths and bytes. This module never changes a file.

use anyhow::{Context, Result};
use image::module::{ModuleCode, ModuleIdentity};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The modules of a kernel by name, with `_` for `-`. Empty if none are found. `kernel` is a build
/// tree, its vmlinux, or the vmlinux of a Debian kernel (`usr/lib/debug/boot/vmlinux-R` below the
/// root that has `lib/modules/R`).
///
/// # Errors
/// A directory cannot be read.
pub fn of_kernel(kernel: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let tree = if kernel.is_dir() { Some(kernel) } else { kernel.parent() };
    if let Some(tree) = tree.filter(|tree| tree.join("modules.order").is_file()) {
        return of_tree(tree);
    }
    let file = kernel.file_name().unwrap_or_default().to_string_lossy();
    let root = kernel.parent().filter(|parent| parent.ends_with("usr/lib/debug/boot"));
    match (root.and_then(|boot| boot.ancestors().nth(4)), file.strip_prefix("vmlinux-")) {
        (Some(root), Some(release)) => installed(root, release),
        _ => Ok(BTreeMap::new()),
    }
}

/// The modules of a build tree. A tree without modules has no file that lists them.
pub(crate) fn of_tree(tree: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let order = tree.join("modules.order");
    let text = match std::fs::read_to_string(&order) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("reading {}", order.display())),
    };
    // The file names the objects of the modules.
    let paths = text.lines().map(|line| tree.join(line).with_extension("ko"));
    Ok(paths.map(|path| (module_name(&path), path)).collect())
}

/// The modules of an installed kernel: `lib/modules/R/**/*.ko` below `root`. If they are not there,
/// the kernel has no modules.
pub(crate) fn installed(root: &Path, release: &str) -> Result<BTreeMap<String, PathBuf>> {
    below(&root.join("lib/modules").join(release).join("kernel"))
}

/// The modules in a directory and in those below it. Of two files for one module the one counts
/// that `depmod` takes: in `updates`, else in `extra`, else in another directory.
///
/// # Errors
/// A directory cannot be read.
pub fn below(directory: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut modules = BTreeMap::new();
    let mut pending = vec![directory.to_owned()];
    let rank = |path: &Path| {
        let inside = |name: &str| path.starts_with(directory.join(name));
        if inside("updates") { 2 } else { u8::from(inside("extra")) }
    };
    while let Some(directory) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries {
            let entry = entry.with_context(|| format!("reading {}", directory.display()))?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                pending.push(path);
            } else if path.file_name().is_some_and(|name| name.to_string_lossy().contains(".ko")) {
                let name = module_name(&path);
                let better = |known: &PathBuf| (rank(known), &path) < (rank(&path), known);
                if modules.get(&name).is_none_or(better) {
                    modules.insert(name, path);
                }
            }
        }
    }
    Ok(modules)
}

/// What would be a module in another kernel and is built into this one. `directory` is a build tree
/// or `lib/modules/R`; without a list there is nothing.
pub(crate) fn built_in(directory: &Path) -> BTreeSet<String> {
    let list = std::fs::read_to_string(directory.join("modules.builtin")).unwrap_or_default();
    list.lines().map(|line| module_name(Path::new(line))).collect()
}

/// The module's name, for example `dummy` for `drivers/net/dummy.ko.xz`.
pub(crate) fn module_name(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    file.split(".ko").next().unwrap_or_default().replace('-', "_")
}

/// The bytes of a module's file, decompressed.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = std::fs::read(path)?;
    let mut data = Vec::new();
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => liblzma::read::XzDecoder::new(&*bytes).read_to_end(&mut data)?,
        Some("gz") => flate2::read::GzDecoder::new(&*bytes).read_to_end(&mut data)?,
        Some("zst") => zstd::stream::read::Decoder::new(&*bytes)?.read_to_end(&mut data)?,
        _ => return Ok(bytes),
    };
    Ok(data)
}

/// The code of a kernel's module.
///
/// # Errors
/// The kernel has no such module, has another build of it, or the file is damaged.
pub fn code_of(files: &BTreeMap<String, PathBuf>, wanted: &ModuleIdentity) -> Result<ModuleCode> {
    let path = files.get(&wanted.name).context("its file was not found beside the kernel")?;
    let named = || path.display().to_string();
    let code = read(path).and_then(|data| ModuleCode::parse(&data)).with_context(named)?;
    let found = &code.module.identity;
    anyhow::ensure!(
        found == wanted,
        "{}: is another build of the module, {found}: the module was built again",
        path.display()
    );
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_names_come_from_file_names() {
        assert_eq!(
            module_name(Path::new("samples/livepatch/livepatch-sample.ko")),
            "livepatch_sample"
        );
        assert_eq!(module_name(Path::new("a/veth.ko.xz")), "veth");
    }

    #[test]
    fn of_two_files_for_a_module_the_one_counts_that_depmod_takes() {
        let home = tempfile::tempdir().unwrap();
        for path in ["kernel/fs/xfs.ko.xz", "extra/xfs.ko", "kernel/a.ko", "kernel/b/a.ko"] {
            let path = home.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let found = |name: &str| below(home.path()).unwrap().remove(name);
        assert_eq!(found("xfs"), Some(home.path().join("extra/xfs.ko")));
        assert_eq!(found("a"), Some(home.path().join("kernel/a.ko")));
        std::fs::create_dir_all(home.path().join("updates/dkms")).unwrap();
        std::fs::write(home.path().join("updates/dkms/xfs.ko.zst"), "").unwrap();
        assert_eq!(found("xfs"), Some(home.path().join("updates/dkms/xfs.ko.zst")));
        assert!(below(&home.path().join("absent")).unwrap().is_empty());
    }

    #[test]
    fn modules_are_found_beside_their_kernel() {
        let home = tempfile::tempdir().unwrap();
        let (tree, root) = (home.path().join("tree"), home.path().join("root"));
        std::fs::create_dir_all(&tree).unwrap();
        std::fs::write(tree.join("modules.order"), "drivers/net/veth.o\nx/a-b.o\n").unwrap();
        let of_tree = [("a_b", "x/a-b.ko"), ("veth", "drivers/net/veth.ko")]
            .map(|(name, path)| (name.to_owned(), tree.join(path)));
        for kernel in [tree.clone(), tree.join("vmlinux")] {
            assert_eq!(of_kernel(&kernel).unwrap(), BTreeMap::from(of_tree.clone()));
        }
        let modules = root.join("lib/modules/6.12/kernel/fs");
        std::fs::create_dir_all(&modules).unwrap();
        std::fs::write(modules.join("xfs.ko.xz"), "").unwrap();
        let installed = of_kernel(&root.join("usr/lib/debug/boot/vmlinux-6.12")).unwrap();
        assert_eq!(installed, BTreeMap::from([("xfs".to_owned(), modules.join("xfs.ko.xz"))]));
        assert!(of_kernel(&home.path().join("vmlinux")).unwrap().is_empty());
        let wanted = ModuleIdentity { name: "xfs".into(), build_id: String::new() };
        let error = format!("{:#}", code_of(&installed, &wanted).unwrap_err());
        assert!(error.contains("xfs.ko.xz"), "{error}");
    }
}
