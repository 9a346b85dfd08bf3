//! The modules of a build tree beside a relinked kernel.
//!
//! Input: a tree, and a layout that names code of its modules. Output: the tree's modules below
//! another directory, at the same paths: those that the layout names rewritten, each with its map
//! beside it, and the others as they are. A module that was signed is signed again with the tree's
//! own program and key. This module never writes to the tree.

use crate::install;
use crate::kbuild::BuildTree;
use crate::loadable::{ModuleObject, unsigned};
use crate::object::RewriteSummary;
use crate::own_modules::{ORDER, OwnModules, map_of};
use anyhow::{Context, Result, bail, ensure};
use host::{interrupt, output};
use image::map::PlacementMap;
use image::module::{self, ModuleIdentity};
use image::object::elf::Elf;
use image::order::Layout;
use image::place::PlacedBlock;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The list of what would be a module in another kernel.
const BUILT_IN: &str = "modules.builtin";

/// A module that was rewritten.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct RelinkedModule {
    /// The old module.
    pub old: ModuleIdentity,
    /// The new module.
    pub new: ModuleIdentity,
    /// Its path in the tree and in the directory.
    pub path: PathBuf,
    /// What the rewrite did.
    pub summary: RewriteSummary,
    /// What became of its signature.
    pub signature: SignatureChange,
}

/// What became of a module's signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SignatureChange {
    /// The module was not signed. `make modules_install` signs it, if the kernel wants that.
    None,
    /// The module is signed with the tree's key.
    Renewed,
    /// The module was signed, and the tree has no key to sign it with.
    Lost,
}

/// The paths of the tree's modules, relative to it, in the order of the build.
fn paths(tree: &Path) -> Result<Vec<PathBuf>> {
    let text = match fs::read_to_string(tree.join(ORDER)) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => {
            return Err(error).with_context(|| tree.join(ORDER).display().to_string());
        }
    };
    Ok(text.lines().map(|line| Path::new(line).with_extension("ko")).collect())
}

/// Writes the modules into `directory`. Returns what was rewritten.
///
/// # Errors
/// The layout names a module that the tree does not have, or has another build of. A module cannot
/// be read, rewritten or written.
pub fn write(tree: &BuildTree, layout: &Layout, directory: &Path) -> Result<Vec<RelinkedModule>> {
    // What an earlier relink left there is not of this kernel.
    install::remove_file(&directory.join(ORDER))?;
    if layout.modules.is_empty() {
        return Ok(Vec::new());
    }
    let made = write_each(tree, layout, directory, Unnamed::Copied)?;
    for list in [ORDER, BUILT_IN] {
        match fs::read(tree.file(list)) {
            Ok(text) => output::write(&directory.join(list), &text)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| tree.file(list).display().to_string()),
        }
    }
    Ok(made)
}

/// Writes only the modules that the layout names into `directory`.
///
/// # Errors
/// As [`write`].
pub(crate) fn write_named(
    tree: &BuildTree,
    layout: &Layout,
    directory: &Path,
) -> Result<Vec<RelinkedModule>> {
    write_each(tree, layout, directory, Unnamed::LeftOut)
}

/// What to do with modules that the layout does not name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unnamed {
    Copied,
    LeftOut,
}

fn write_each(
    tree: &BuildTree,
    layout: &Layout,
    directory: &Path,
    unnamed: Unnamed,
) -> Result<Vec<RelinkedModule>> {
    let mut missing = named_by(layout);
    let own = OwnModules::of(&tree.path)?;
    let mut made = Vec::new();
    for path in paths(&tree.path)?.into_iter().take_while(|_| !layout.modules.is_empty()) {
        interrupt::check()?;
        if unnamed == Unnamed::LeftOut && !missing.contains_key(&*module_name(&path)) {
            continue;
        }
        let from = tree.file(&path.display().to_string());
        let named = || from.display().to_string();
        let data = own.read(&path)?;
        let (bare, signed) = unsigned(&data).with_context(named)?;
        let identity = Elf::parse(bare).and_then(|elf| module::identity(&elf));
        let wanted = identity.as_ref().ok().and_then(|it| missing.remove(it.name.as_str()));
        let to = directory.join(&path);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        install::remove_file(&map_of(&to))?;
        let Some(old) = wanted else {
            if unnamed == Unnamed::Copied {
                output::write(&to, &data)?;
            }
            continue;
        };
        let (module, order, hot) =
            ModuleObject::laid_out(bare, &layout.of_module(old)).with_context(named)?;
        let rewritten = module.rewrite(&order, hot).with_context(named)?;
        output::write(&to, &rewritten.bytes)?;
        let signature = if signed { sign(tree, &to)? } else { SignatureChange::None };
        output::write(&map_of(&to), rewritten.map.to_text().as_bytes())?;
        made.push(RelinkedModule {
            old: old.clone(),
            new: rewritten.identity,
            path,
            summary: rewritten.summary,
            signature,
        });
    }
    ensure_found(&missing)?;
    Ok(made)
}

/// Where a rewrite would put the code of the modules that the layout names, at link addresses,
/// ascending by old address.
///
/// # Errors
/// As [`write`].
pub(crate) fn predicted(tree: &BuildTree, layout: &Layout) -> Result<Vec<PlacedBlock>> {
    let mut missing = named_by(layout);
    let own = OwnModules::of(&tree.path)?;
    let mut blocks = Vec::new();
    for path in paths(&tree.path)?.into_iter().take_while(|_| !layout.modules.is_empty()) {
        interrupt::check()?;
        let from = tree.file(&path.display().to_string());
        if !missing.contains_key(&*module_name(&path)) {
            continue;
        }
        let named = || from.display().to_string();
        let data = own.read(&path)?;
        let (bare, _) = unsigned(&data).with_context(named)?;
        let identity =
            Elf::parse(bare).and_then(|elf| module::identity(&elf)).with_context(named)?;
        let Some(old) = missing.remove(identity.name.as_str()) else { continue };
        let (module, order, hot) =
            ModuleObject::laid_out(bare, &layout.of_module(old)).with_context(named)?;
        blocks.extend(module.rewrite(&order, hot).with_context(named)?.map.placement.blocks);
    }
    ensure_found(&missing)?;
    blocks.sort_by_key(|block| block.old);
    Ok(blocks)
}

/// The maps of the modules in a directory that [`write`] wrote: each module's path, relative to the
/// directory, and where its code went.
///
/// # Errors
/// The directory or a map cannot be read.
pub fn maps(directory: &Path) -> Result<Vec<(PathBuf, PlacementMap)>> {
    let mut maps = Vec::new();
    for path in paths(directory)? {
        let map = map_of(&directory.join(&path));
        let text = match fs::read_to_string(&map) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| map.display().to_string()),
        };
        let read = PlacementMap::from_text(&text).with_context(|| map.display().to_string())?;
        maps.push((path, read));
    }
    Ok(maps)
}

fn named_by(layout: &Layout) -> BTreeMap<&str, &ModuleIdentity> {
    layout.modules.iter().map(|module| (module.name.as_str(), module)).collect()
}

/// The name of the module in a file, as the kernel has it.
fn module_name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().replace('-', "_")
}

fn ensure_found(missing: &BTreeMap<&str, &ModuleIdentity>) -> Result<()> {
    match missing.values().next() {
        None => Ok(()),
        Some(module) => bail!(
            "the layout names code of the module {module}, which {ORDER} of the tree does not list"
        ),
    }
}

/// Signs a module as `make modules_install` does (scripts/Makefile.modinst).
fn sign(tree: &BuildTree, module: &Path) -> Result<SignatureChange> {
    let [program, key, certificate] =
        ["scripts/sign-file", "certs/signing_key.pem", "certs/signing_key.x509"]
            .map(|name| tree.file(name));
    if ![&program, &key, &certificate].iter().all(|file| file.is_file()) {
        return Ok(SignatureChange::Lost);
    }
    let hash = tree.option("CONFIG_MODULE_SIG_HASH").unwrap_or_else(|| "sha256".to_owned());
    let mut command = Command::new(program);
    command.arg(hash).args([&key, &certificate, module]).stdin(Stdio::null());
    let done = command.output().context("the tree's scripts/sign-file cannot be run")?;
    ensure!(
        done.status.success(),
        "{}: the tree's scripts/sign-file failed: {}",
        module.display(),
        String::from_utf8_lossy(&done.stderr).trim_end()
    );
    Ok(SignatureChange::Renewed)
}
