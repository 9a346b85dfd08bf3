//! A kernel in a layout's order, proved to be the old program.
//!
//! Input: a built tree, which is only read, and a layout. Output: a directory with the kernel, the
//! modules that the layout names, and maps. A kernel counts as made only when it is whole and every
//! file of it is proved.

use crate::layout_file::{read_map, with_modules};
use crate::proof::{ProvedMap, prove};
use crate::relink;
use crate::said::say;
use anyhow::{Context, Result, bail};
use emit::kbuild::BuildTree;
use emit::relink::{Destination, MAP, RelinkWork};
use emit::tree_modules;
use host::output;
use image::map::PlacementMap;
use image::order::Layout;
use image::place::Placement;
use std::fs;
use std::path::{Path, PathBuf};

/// A kernel that was relinked in a layout's order, and proved to be the old program.
pub struct ProvenKernel {
    /// The layout's algorithm.
    pub name: String,
    /// The directory with the kernel.
    pub directory: PathBuf,
    /// Where the code of vmlinux went.
    pub map: PlacementMap,
    /// The modules that were rewritten: the path below the directory, and where the code went.
    pub modules: Vec<(PathBuf, PlacementMap)>,
}

/// How many differences of each kind a message has.
const SHOWN: usize = 3;

impl ProvenKernel {
    /// Relinks a tree's kernel in a layout's order, and proves it. `path`: the tree. The kernel in
    /// `directory` is used again if it is in the same order.
    ///
    /// # Errors
    /// The kernel cannot be linked, or is not the old program.
    pub(crate) fn make(
        tree: &BuildTree,
        path: &Path,
        layout: &Layout,
        directory: &Path,
    ) -> Result<ProvenKernel> {
        let of = |map| -> Result<ProvenKernel> {
            let (name, directory) = (layout.algorithm.clone(), directory.to_owned());
            let modules = tree_modules::maps(&directory)?;
            Ok(ProvenKernel { name, directory, map, modules })
        };
        let (done, text) = (directory.join("layout.kll"), layout.to_text());
        if fs::read_to_string(&done).is_ok_and(|known| known == text) {
            say(&format!("using the existing kernel {}", directory.display()))?;
            return of(read_map(&directory.join(MAP))?);
        }
        say("relinking")?;
        match fs::remove_file(&done) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| done.display().to_string());
            }
            _ => {}
        }
        let (work, place) = (RelinkWork::Order(layout.clone()), Destination::Directory(directory));
        let made = relink::relink(tree, &work, &place)?;
        let made = of(made.map.context("nothing was linked")?)?;
        made.prove(path)?;
        // Written last, so that only a checked kernel is reused.
        output::write(&done, text.as_bytes())?;
        Ok(made)
    }

    /// Where the code went: of vmlinux by its addresses, of modules by link addresses.
    pub fn placement(&self) -> Placement {
        let modules: Vec<PlacementMap> = self.modules.iter().map(|(_, map)| map.clone()).collect();
        with_modules(self.map.placement.clone(), &modules)
    }

    fn prove(&self, tree: &Path) -> Result<()> {
        let ProvenKernel { name, directory, map, modules } = self;
        say("checking that the relinked kernel is the old program")?;
        let proof = prove(tree, directory, ProvedMap::Map(map), SHOWN)?;
        if !proof.holds {
            bail!(
                "the kernel relinked by {name} is not the old program; do not use the kernel in \
                 {}\n{}",
                directory.display(),
                proof.text
            );
        }
        if !modules.is_empty() {
            say(&format!("checking that {} modules are the old ones", modules.len()))?;
        }
        for (path, map) in modules {
            let [old, new] = [tree, directory].map(|home| home.join(path));
            let proof = prove(&old, &new, ProvedMap::Map(map), SHOWN)?;
            if !proof.holds {
                bail!(
                    "the module {} rewritten by {name} is not the old one; do not use the kernel \
                     in {}\n{}",
                    path.display(),
                    directory.display(),
                    proof.text
                );
            }
        }
        Ok(())
    }
}
