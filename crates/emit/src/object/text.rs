//! Makes the bytes of the new `.text`.
//!
//! Input: the old bytes, and the place of each piece. Output: the new bytes, with branches and
//! static-key sites of their new length. This module never decides where a piece goes.

use super::RewritePlan;
use super::counters::{self, BlockCounter};
use super::translate::TextTranslation;
use crate::branch::{condition_of, write_branch, write_jump};
use anyhow::{Context, Result, ensure};
use image::object::KernelObject;
use image::object::pieces::{CodeSite, Piece, PieceExit, SiteKind};
use image::place::{BlockPlaces, Ending};

/// The byte between pieces: `int3`, as in the kernel's own linker script.
const FILL: u8 = 0xcc;

/// Writes every piece at its new place. The first `head` bytes, in front of the first piece, stay.
pub(super) fn write(
    object: &KernelObject<'_>,
    places: &BlockPlaces,
    translation: &TextTranslation<'_>,
    plan: &RewritePlan<'_>,
    head: u32,
) -> Result<Vec<u8>> {
    let old = object.elf.bytes(object.text);
    let mut out = Vec::with_capacity(translation.size as usize);
    out.extend_from_slice(&old[..head as usize]);
    for &i in plan.order {
        let i = i as usize;
        let piece = &object.pieces[i];
        let start = (translation.new[i] - piece.lead) as usize;
        ensure!(out.len() <= start, "two pieces lie at .text+{start:#x}");
        out.resize(start, FILL);
        out.extend_from_slice(&old[(piece.at - piece.lead) as usize..piece.at as usize]);
        write_body(object, translation, piece, plan.counters, old, &mut out)?;
        write_end(object, places, translation, i, old, &mut out)?;
        if places.keeps_gap[i] {
            out.extend_from_slice(&old[piece.end() as usize..(piece.end() + piece.gap) as usize]);
        }
    }
    ensure!(out.len() <= translation.size as usize, ".text is larger than its placement");
    out.resize(translation.size as usize, FILL);
    Ok(out)
}

/// Writes a piece without the branch at its end: its bytes, its sites with their new targets, and
/// its counters.
fn write_body(
    object: &KernelObject<'_>,
    translation: &TextTranslation<'_>,
    piece: &Piece,
    counters: &[BlockCounter],
    old: &[u8],
    out: &mut Vec<u8>,
) -> Result<()> {
    let mut from = piece.at;
    let mut counters = counters::within(counters, piece).iter().peekable();
    let mut copy = |from: u32, to: u32, out: &mut Vec<u8>| {
        let mut from = from;
        while let Some(counter) = counters.next_if(|c| c.at <= to) {
            out.extend_from_slice(&old[from as usize..counter.at as usize]);
            out.extend_from_slice(counter.code());
            from = counter.at;
        }
        out.extend_from_slice(&old[from as usize..to as usize]);
    };
    for site in object.sites_in(piece) {
        copy(from, site.at, out);
        write_site(translation, site, old, out)?;
        from = site.at + u32::from(site.len);
    }
    copy(from, piece.end() - u32::from(piece.tail), out);
    Ok(())
}

fn write_site(
    translation: &TextTranslation<'_>,
    site: &CodeSite,
    old: &[u8],
    out: &mut Vec<u8>,
) -> Result<()> {
    let here = out.len() as u32;
    let target = translation.start(site.target)?;
    let bytes = &old[site.at as usize..site.at as usize + usize::from(site.len)];
    match site.kind {
        SiteKind::Displacement(field) => {
            let field = usize::from(field);
            let displacement = target.wrapping_sub(here + u32::from(site.len));
            out.extend_from_slice(&bytes[..field]);
            out.extend_from_slice(&displacement.to_le_bytes());
            out.extend_from_slice(
                bytes.get(field + 4..).context("a displacement of fewer than 32 bits")?,
            );
        }
        SiteKind::StaticKey { jumps } => {
            let len = if site.len == 5 || translation.grew(site.at) { 5 } else { 2 };
            match (jumps, len) {
                (true, len) => write_jump(out, target, len)?,
                // x86_nops[2] and [5], arch/x86/kernel/alternative.c. The kernel expects exactly
                // these bytes.
                (false, 2) => out.extend_from_slice(&[0x66, 0x90]),
                (false, _) => out.extend_from_slice(&[0x0f, 0x1f, 0x44, 0x00, 0x00]),
            }
        }
    }
    Ok(())
}

/// Writes the branch at a piece's end, and the jump behind it.
fn write_end(
    object: &KernelObject<'_>,
    places: &BlockPlaces,
    translation: &TextTranslation<'_>,
    i: usize,
    old: &[u8],
    out: &mut Vec<u8>,
) -> Result<()> {
    let piece = &object.pieces[i];
    match piece.exit {
        PieceExit::Stop | PieceExit::Runs => {}
        PieceExit::Jump(_) if places.ending[i] == Ending::JumpDropped => {}
        PieceExit::Jump(to) => write_jump(out, translation.start(to)?, places.tail[i])?,
        PieceExit::Branch(to) => {
            let tail = &old[(piece.end() - u32::from(piece.tail)) as usize..piece.end() as usize];
            let condition = condition_of(tail);
            let (condition, to) = match places.ending[i] {
                Ending::Inverted => (condition ^ 1, translation.new[i + 1]),
                _ => (condition, translation.start(to)?),
            };
            write_branch(out, condition, to, places.tail[i])?;
        }
    }
    if places.appended[i] > 0 {
        write_jump(out, translation.new[i + 1], places.appended[i])?;
    }
    Ok(())
}
