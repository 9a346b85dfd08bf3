//! The one translation of offsets from the old to the new `.text`.
//!
//! Input: the placed pieces. Output: for an old offset and its meaning, the new offset.
//! Relocations, symbols and ORC all use it. This module writes nothing.

use anyhow::{Context, Result};
use image::address::LinkAddr;
use image::object::KernelObject;
use image::object::tables::ReferenceMeaning;
use image::place::{BlockPlaces, GrowthSite};

/// The offsets of everything in the new `.text`.
pub(super) struct TextTranslation<'a> {
    object: &'a KernelObject<'a>,
    /// Per piece: the new offset of its first byte.
    pub new: Vec<u32>,
    /// Per piece: the new offset behind its own code, without the appended jump.
    pub code_end: Vec<u32>,
    /// Per piece: whether the padding in front of its lead kept its distance, because the same code
    /// is still in front of it.
    keeps_spare: Vec<bool>,
    /// The old offsets of places that grew, ascending, each with the number of gained bytes.
    grown: Vec<(u32, u32)>,
    /// The size of the new `.text`.
    pub size: u32,
}

impl<'a> TextTranslation<'a> {
    pub(super) fn new(
        object: &'a KernelObject<'a>,
        places: &BlockPlaces,
        growing: &[GrowthSite],
        base: LinkAddr,
        size: u32,
    ) -> TextTranslation<'a> {
        let grown = growing.iter().zip(&places.grown).filter(|&(_, &grown)| grown);
        let grown = grown.map(|(g, _)| ((g.at.0 - base.0) as u32, g.bytes())).collect();
        let new: Vec<u32> = places.new.iter().map(|a| (a.0 - base.0) as u32).collect();
        let mut translation = TextTranslation {
            object,
            keeps_spare: keeps_spare(object, places, &new),
            new,
            code_end: Vec::new(),
            grown,
            size,
        };
        translation.code_end = (0..object.pieces.len())
            .map(|i| {
                let p = &object.pieces[i];
                let tail = p.end() - u32::from(p.tail);
                // The branch at the end is not part of the code in front of it.
                let counter = if p.tail > 0 { translation.growth(tail, tail + 1) } else { 0 };
                translation.inside(i, tail) + counter + u32::from(places.tail[i])
            })
            .collect();
        translation
    }

    /// Whether the static-key site at this old offset grew.
    pub(super) fn grew(&self, at: u32) -> bool {
        self.grown.binary_search_by_key(&at, |&(at, _)| at).is_ok()
    }

    /// The new offset of a byte of piece `index`: a byte of its padding, or of its code up to the
    /// branch at its end. For padding that stayed behind, the result is the beginning of the
    /// padding that moved.
    pub(super) fn inside(&self, index: usize, at: u32) -> u32 {
        let piece = &self.object.pieces[index];
        if at < piece.at {
            let padding = piece.lead + if self.keeps_spare[index] { piece.spare } else { 0 };
            return self.new[index] - (piece.at - at).min(padding);
        }
        self.new[index] + (at - piece.at) + self.growth(piece.at, at)
    }

    /// The bytes gained in this range of old offsets.
    fn growth(&self, from: u32, to: u32) -> u32 {
        let from = self.grown.partition_point(|&(at, _)| at < from);
        let gained = self.grown[from..].iter().take_while(|&&(at, _)| at < to);
        gained.map(|&(_, bytes)| bytes).sum()
    }

    /// The new place of the instruction at `at`, or of a byte inside it. If `at` lies directly
    /// behind code and no code begins there, the result is the end of that code.
    pub(super) fn start(&self, at: u32) -> Result<u32> {
        let index = self.object.piece_at(at).with_context(|| self.lost(at))?;
        let piece = &self.object.pieces[index];
        if at < piece.end() || piece.size == 0 {
            return Ok(self.inside(index, at));
        }
        Ok(self.code_end[index])
    }

    /// The new end of the instruction that ends at `at`.
    pub(super) fn end(&self, at: u32) -> Result<u32> {
        let before = at.checked_sub(1).with_context(|| self.lost(at))?;
        let index = self.object.piece_at(before).with_context(|| self.lost(at))?;
        let piece = &self.object.pieces[index];
        if at == piece.end() {
            return Ok(self.code_end[index]);
        }
        Ok(self.inside(index, at))
    }

    pub(super) fn translate(&self, at: u32, meaning: ReferenceMeaning) -> Result<u32> {
        match meaning {
            ReferenceMeaning::End => self.end(at),
            _ => self.start(at),
        }
    }

    fn lost(&self, at: u32) -> String {
        format!(".text+{at:#x}: refers to padding between functions")
    }
}

/// Whether each piece still has its spare padding in front of it: because the same piece still
/// precedes it, or because both are at the beginning of the section.
fn keeps_spare(object: &KernelObject<'_>, places: &BlockPlaces, new: &[u32]) -> Vec<bool> {
    let stays = |i: usize| match i.checked_sub(1) {
        Some(before) => places.keeps_gap[before],
        None => new[0] == object.pieces[0].at,
    };
    (0..object.pieces.len()).map(stays).collect()
}
