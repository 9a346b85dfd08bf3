//! Layouts and maps as files, and where they put the code.
//!
//! Input: the path of a layout or a map, and its kernel. Output: placements. This module makes no
//! layout.

use crate::input_file::text_of;
use anyhow::{Context, Result, bail, ensure};
use emit::kbuild::BuildTree;
use emit::{relink, tree_modules};
use exchange::kinds::FileKind;
use image::map::PlacementMap;
use image::order::Layout;
use image::place::{PlacedBlock, Placement};
use image::{Image, estimate, vmlinux};
use replay::ReplayLayout;
use replay::results::ORIGINAL;
use std::path::{Path, PathBuf};

/// Reads a layout (`*.kll`).
///
/// ```
/// let home = road::examples::home();
/// let path = home.path().join("damaged.kll");
/// std::fs::write(&path, "kernlane-layout 2\n")?;
/// assert!(road::layout_file::read_layout(&path).is_err());
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// The file cannot be read, is of another kind, or is damaged.
pub fn read_layout(path: &Path) -> Result<Layout> {
    let text = text_of(path, &[FileKind::Layout])?;
    Layout::from_text(&text).with_context(|| path.display().to_string())
}

/// Reads a map (`*.klm`).
///
/// ```
/// use image::map::PlacementMap;
/// use image::{BuildId, place::Placement};
///
/// let home = road::examples::home();
/// let path = home.path().join("vmlinux.klm");
/// let map = PlacementMap { build_id: BuildId("00ae".into()), placement: Placement::default() };
/// std::fs::write(&path, map.to_text())?;
/// assert_eq!(road::layout_file::read_map(&path)?, map);
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// As [`read_layout`].
pub fn read_map(path: &Path) -> Result<PlacementMap> {
    let text = text_of(path, &[FileKind::Map])?;
    PlacementMap::from_text(&text).with_context(|| path.display().to_string())
}

/// A layout or a map from a file, named like the file.
///
/// ```
/// use image::order::Layout;
/// use road::layout_file::LayoutFile;
///
/// let home = road::examples::home();
/// let image = image::vmlinux::read(&home.path().join("vmlinux"))?;
/// let path = home.path().join("same.kll");
/// std::fs::write(&path, Layout::original(image.build_id.clone()).to_text())?;
/// let file = LayoutFile::read(&path)?;
/// assert!(file.needs_kernel() && file.name() == "same");
/// let layout = file.placed(None, Some(&image))?;
/// assert_eq!(layout.kernel, Some(image.build_id));
/// # anyhow::Ok(())
/// ```
pub struct LayoutFile {
    path: PathBuf,
    name: String,
    content: LayoutContent,
}

enum LayoutContent {
    /// The map of a kernel, and those of modules beside it.
    Map(PlacementMap, Vec<PlacementMap>),
    Order(Layout),
}

impl LayoutFile {
    /// Reads a layout or a map.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn read(path: &Path) -> Result<LayoutFile> {
        let named = || path.display().to_string();
        let text = text_of(path, &[FileKind::Layout, FileKind::Map])?;
        let name = path.file_stem().with_context(named)?.to_string_lossy().into_owned();
        let content = match PlacementMap::is_map(&text) {
            true => {
                let map = PlacementMap::from_text(&text).with_context(named)?;
                ensure!(
                    map.placement.inlined.is_empty(),
                    "{}: is the map of a kernel with inlined calls, which executes other \
                     instructions than the old one: record that kernel itself",
                    path.display()
                );
                LayoutContent::Map(map, beside(path)?)
            }
            false => LayoutContent::Order(Layout::from_text(&text).with_context(named)?),
        };
        Ok(LayoutFile { path: path.to_owned(), name, content })
    }

    /// Reads several.
    ///
    /// # Errors
    /// As [`LayoutFile::read`]; or two of them, or one of them and the original, have one name.
    pub fn read_all(paths: &[PathBuf]) -> Result<Vec<LayoutFile>> {
        let mut files: Vec<LayoutFile> = Vec::new();
        for path in paths {
            let file = LayoutFile::read(path)?;
            if file.name() == ORIGINAL || files.iter().any(|known| known.name() == file.name()) {
                bail!("{}: two layouts have the name {}", path.display(), file.name());
            }
            files.push(file);
        }
        Ok(files)
    }

    /// The name of the file without its ending.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the kernel is needed to find out where the file puts the code: the file is a layout,
    /// not a map.
    pub fn needs_kernel(&self) -> bool {
        matches!(self.content, LayoutContent::Order(_))
    }

    /// Where the file puts the code. `kernel`: a build tree or a vmlinux; `image`: its contents.
    ///
    /// # Errors
    /// The file names code that the kernel does not have; or a layout has no kernel.
    pub fn placed(self, kernel: Option<&Path>, image: Option<&Image>) -> Result<ReplayLayout> {
        let LayoutFile { path, name, content } = self;
        let named = || path.display().to_string();
        match content {
            LayoutContent::Map(map, modules) => {
                // Another kernel's map gets a message of its own, see `replayed::trials_of`.
                if let (Some(kernel), Some(image)) = (kernel, image)
                    && image.build_id == map.build_id
                {
                    let code = vmlinux::code_ranges(&vmlinux::path(kernel))?;
                    map.ensure_within(&code).with_context(named)?;
                }
                let placement = with_modules(map.placement, &modules);
                Ok(ReplayLayout::predicted(name, map.build_id, placement))
            }
            LayoutContent::Order(order) => {
                let placement = placed(&order, kernel, image).with_context(named)?;
                Ok(ReplayLayout::predicted(name, order.build_id, placement))
            }
        }
    }
}

/// The maps of the modules beside the map of a kernel that was relinked into a directory.
fn beside(map: &Path) -> Result<Vec<PlacementMap>> {
    let directory = map.parent().filter(|_| map.ends_with(relink::MAP));
    let maps = directory.map(tree_modules::maps).transpose()?.unwrap_or_default();
    Ok(maps.into_iter().map(|(_, map)| map).collect())
}

/// The placement of a kernel and of its modules, by their maps.
pub(crate) fn with_modules(kernel: Placement, modules: &[PlacementMap]) -> Placement {
    let mut blocks: Vec<PlacedBlock> =
        modules.iter().flat_map(|module| module.placement.blocks.clone()).collect();
    blocks.extend(kernel.blocks);
    blocks.sort_by_key(|block| block.old);
    Placement { blocks, ..kernel }
}

/// Where a layout puts the code: as relinking would, if `kernel` is a tree; nearly so, if there is
/// only its image.
///
/// ```
/// use image::order::Layout;
///
/// let home = road::examples::home();
/// let image = image::vmlinux::read(&home.path().join("vmlinux"))?;
/// let original = Layout::original(image.build_id.clone());
/// let placement = road::layout_file::placed(&original, None, Some(&image))?;
/// assert!(placement.blocks.iter().all(|block| block.old == block.new));
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// There is neither a kernel nor an image, or the layout names code that the kernel does not have.
pub fn placed(layout: &Layout, kernel: Option<&Path>, image: Option<&Image>) -> Result<Placement> {
    match (kernel, image) {
        (Some(tree), _) if tree.join("vmlinux.o").exists() => {
            relink::predicted_placement(&BuildTree::open(tree, &[])?, layout)
        }
        (_, Some(image)) => estimate::placement(image, layout),
        _ => bail!("a layout names blocks of its kernel: give the kernel"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::BuildId;
    use image::address::LinkAddr;
    use image::place::{InPlaceOfCall, InlinedCall};

    #[test]
    fn a_recording_is_not_carried_to_a_kernel_with_inlined_calls() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("net.klm");
        let read = |inlined: Vec<InlinedCall>| {
            let placement = Placement { inlined, ..Placement::default() };
            let map = PlacementMap { build_id: BuildId("ab".into()), placement };
            std::fs::write(&path, map.to_text()).unwrap();
            LayoutFile::read(&path).map_err(|error| format!("{error:#}"))
        };
        assert!(read(Vec::new()).is_ok());
        let code = InPlaceOfCall::Code(vec![(LinkAddr(0x1005), 8)]);
        let call = InlinedCall { site: LinkAddr(0x1100), at: InlinedCall::BASE, code };
        let refused = read(vec![call]).err().unwrap();
        assert!(refused.contains("net.klm") && refused.contains("inlined calls"), "{refused}");
    }
}
