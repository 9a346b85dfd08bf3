//! The original object and kernel of a build tree, and the object's code in a layout's order.
//!
//! Input: a tree, and a layout. Output: the files' bytes, the object with its sections of ordinary
//! functions as one, and the order of its pieces. This module writes nothing.

use crate::install::OriginalLink;
use crate::kbuild::BuildTree;
use crate::object::{cuts_of, order_of};
use anyhow::{Context, Result};
use image::BuildId;
use image::address::LinkAddr;
use image::object::elf::Elf;
use image::object::gathered::GatheredText;
use image::object::linked::LinkAddresses;
use image::object::{KernelObject, ObjectHints};
use image::order::{Layout, Run};
use std::collections::HashSet;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;

/// The tree's original object and kernel.
pub struct Originals {
    /// The bytes of the original vmlinux.o.
    pub object: Vec<u8>,
    /// The bytes of the original vmlinux.
    pub vmlinux: Vec<u8>,
    /// The build id of the vmlinux that is in the tree now. It differs from the original's if the
    /// tree was relinked in place.
    pub(crate) present: BuildId,
    /// The sections of ordinary functions as one, if there are several.
    gathered: Option<GatheredText>,
    /// The link addresses of the code that a layout can move.
    moves: Range<u64>,
    /// The path of the object, for messages.
    pub(crate) name: String,
}

impl Originals {
    /// Reads the files of a tree.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(tree: &BuildTree) -> Result<Originals> {
        let read = |path: PathBuf| {
            fs::read(&path).with_context(|| format!("{}: cannot be read", path.display()))
        };
        let now = read(tree.file("vmlinux"))?;
        let present = LinkAddresses::read(&now)
            .with_context(|| tree.file("vmlinux").display().to_string())?
            .build_id;
        let kept = OriginalLink::of(&tree.path, tree.machine().results());
        let vmlinux = if kept.is_relinked(&present)? {
            read(kept.original_of("vmlinux", &present)?)?
        } else {
            now
        };
        let object = read(tree.file("vmlinux.o"))?;
        let name = tree.file("vmlinux.o").display().to_string();
        let linked = LinkAddresses::read(&vmlinux)
            .with_context(|| tree.file("vmlinux").display().to_string())?;
        let sections = || {
            let elf = Elf::parse(&object)?;
            let gathered = linked.gathered_text(&elf)?;
            let moves = linked.moving_code(&elf, gathered.as_ref())?;
            Ok((gathered, moves))
        };
        let read: Result<_> = sections();
        let (gathered, moves) = read.with_context(|| name.clone())?;
        Ok(Originals { object, vmlinux, present, gathered, moves, name })
    }

    /// The build id of the original vmlinux.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn build_id(&self) -> Result<BuildId> {
        Ok(LinkAddresses::read(&self.vmlinux)?.build_id)
    }

    /// The object, with its sections of ordinary functions as one.
    ///
    /// # Errors
    /// The object is damaged, or contains something that Kernlane does not understand.
    pub fn read_object(&self, hints: &ObjectHints) -> Result<KernelObject<'_>> {
        self.read_with(self.gathered.as_ref(), hints)
    }

    /// The sections of ordinary functions as one, if there are several.
    pub(crate) fn gathered(&self) -> Option<&GatheredText> {
        self.gathered.as_ref()
    }

    /// The share of the bytes of a layout's hot runs that lie in code that stays in this tree: 0
    /// unless the linker puts hot code where Kernlane does not expect it.
    pub fn hot_share_that_stays(&self, layout: &Layout) -> f64 {
        hot_share_outside(layout, &self.moves)
    }

    fn read_with<'a>(
        &'a self,
        sections: Option<&'a GatheredText>,
        hints: &ObjectHints,
    ) -> Result<KernelObject<'a>> {
        KernelObject::read_gathered(&self.object, sections, hints)
            .with_context(|| self.name.clone())
    }
}

/// An object, and the order of its pieces that a layout gives.
pub(crate) struct LaidOutObject<'a> {
    pub object: KernelObject<'a>,
    /// The link address of its `.text`.
    pub base: LinkAddr,
    pub order: Vec<u32>,
    /// How many pieces at the front of the order are hot.
    pub hot: usize,
}

impl<'a> LaidOutObject<'a> {
    /// `sections`: what becomes one `.text`; `None` keeps all sections.
    pub(crate) fn new(
        originals: &'a Originals,
        sections: Option<&'a GatheredText>,
        linked: &LinkAddresses<'_>,
        layout: &Layout,
        noreturn: &HashSet<String>,
    ) -> Result<LaidOutObject<'a>> {
        let mut hints = ObjectHints {
            noreturn: noreturn.clone(),
            call_padding: layout.call_padding,
            ..ObjectHints::default()
        };
        let object = originals.read_with(sections, &hints)?;
        let base = linked.text_base(&object).with_context(|| originals.name.clone())?;
        hints.cuts = cuts_of(layout, base, object.elf.section(object.text).size);
        let object = originals.read_with(sections, &hints)?;
        let (order, hot) = order_of(layout, &object, base);
        Ok(LaidOutObject { object, base, order, hot })
    }
}

/// The share of the bytes of a layout's hot runs that begin outside of `moves`.
fn hot_share_outside(layout: &Layout, moves: &Range<u64>) -> f64 {
    let hot = layout.runs.get(..layout.hot).unwrap_or(&layout.runs);
    let stays = |run: &&Run| !moves.contains(&run.start.0);
    let staying: u64 = hot.iter().filter(stays).map(|run| run.size).sum();
    let all: u64 = hot.iter().map(|run| run.size).sum();
    staying as f64 / (all as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hot_runs_outside_of_the_code_that_moves_count() {
        let run = |start, size| Run { start: LinkAddr(start), size, name: String::new() };
        let layout = Layout {
            hot: 3,
            runs: vec![run(0x100, 0x30), run(0x80, 0x10), run(0x1ff, 0x40), run(0x300, 0x1000)],
            ..Layout::original(BuildId("00".into()))
        };
        assert_eq!(hot_share_outside(&layout, &(0x100..0x200)), 0x10 as f64 / 0x80 as f64);
        assert_eq!(hot_share_outside(&layout, &(0..0)), 1.0);
        let nothing = Layout::original(BuildId("00".into()));
        assert_eq!(hot_share_outside(&nothing, &(0..0)), 0.0);
    }
}
