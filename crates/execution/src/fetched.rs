//! The cache lines, or the pages, that pieces of code fetch.
//!
//! A piece of code is a translation block as it was recorded, or a fragment under a layout. Its
//! units are computed once; every execution then walks through this list.
//!
//! Input: pieces of code, in the order of their numbers, and where they lie. Output: the units of a
//! piece, or of its first bytes. This module simulates nothing.

use crate::code::TranslatedCode;
use crate::division::SetDivision;
use crate::moved::Fetch;
use crate::numbering::{FetchUnit, NumberedUnit, Numbering};
use anyhow::{Context, Result};
use sim::{LineId, PerMode, PhysAddr};
use std::ops::Range;
use trace::{RunAddr, Translation};

/// The units of all pieces of code so far. A direct repetition of a unit is left out.
#[derive(Clone, Debug)]
pub struct FetchedUnits {
    numbering: Numbering,
    spans: Vec<UnitSpan>,
    ids: Vec<LineId>,
    /// For each of `ids`, the old address of the first byte fetched from it.
    addrs: Vec<RunAddr>,
    /// The physical address of each of `ids`; none while they are not known.
    physical: Vec<PhysAddr>,
    /// Whether `locate` gave a piece its addresses.
    located: Vec<bool>,
    /// The units of one fetch.
    found: Vec<NumberedUnit>,
}

/// The units of a piece of code. Most executions need no more to see that nothing changes.
#[derive(Clone, Copy, Debug)]
pub struct UnitSpan {
    /// The first unit. Without units, as `last`, any unit.
    pub first: LineId,
    /// The last unit.
    pub last: LineId,
    at: u32,
    /// The number of units.
    pub count: u32,
}

impl UnitSpan {
    /// The indices of the units.
    #[inline]
    pub fn all(self) -> Range<usize> {
        self.at as usize..(self.at + self.count) as usize
    }
}

impl FetchedUnits {
    /// For caches of up to `sets` sets, a power of two.
    pub fn new(unit: FetchUnit, sets: u32) -> FetchedUnits {
        FetchedUnits::divided(unit, sets, &SetDivision::Whole)
    }

    /// For a cache with exactly `sets` sets. Lines are divided by `division`, pages are not.
    pub fn divided(unit: FetchUnit, sets: u32, division: &SetDivision) -> FetchedUnits {
        let division = match unit {
            FetchUnit::Lines(_) => division.clone(),
            FetchUnit::Pages { .. } => SetDivision::Whole,
        };
        FetchedUnits {
            numbering: Numbering::divided(unit, sets, division),
            spans: Vec::new(),
            ids: Vec::new(),
            addrs: Vec::new(),
            physical: Vec::new(),
            located: Vec::new(),
            found: Vec::new(),
        }
    }

    /// Appends the next piece of code. `lies` gives the physical address of its code, if known.
    ///
    /// # Errors
    /// There are more units than a simulation can number.
    pub fn push<'f>(
        &mut self,
        fetches: impl IntoIterator<Item = &'f Fetch>,
        lies: &mut impl FnMut(RunAddr) -> Option<PhysAddr>,
    ) -> Result<()> {
        let begin = self.ids.len();
        let mut found = std::mem::take(&mut self.found);
        for fetch in fetches {
            found.clear();
            let code = (fetch.start, fetch.bytes);
            self.numbering.units(code, fetch.large_page, lies, &mut found)?;
            for unit in &found {
                if self.ids.len() == begin || self.ids.last() != Some(&unit.id) {
                    self.ids.push(unit.id);
                    self.physical.extend(unit.physical);
                    let inside = unit.addr.0.wrapping_sub(fetch.start.0);
                    self.addrs.push(RunAddr(fetch.origin.0.wrapping_add(inside)));
                }
            }
        }
        self.found = found;
        let at = u32::try_from(self.ids.len()).ok().map(|_| begin as u32);
        let own = &self.ids[begin..];
        let (first, last) = (own.first(), own.last());
        let none = LineId::physical(0);
        self.spans.push(UnitSpan {
            first: *first.unwrap_or(&none),
            last: *last.unwrap_or(&none),
            at: at.context("too much code for a simulation: its cache lines cannot be numbered")?,
            count: own.len() as u32,
        });
        Ok(())
    }

    /// Appends the next translation block, which lies where it was recorded.
    ///
    /// # Errors
    /// As [`FetchedUnits::push`].
    pub fn push_recorded(
        &mut self,
        translation: &Translation,
        code: &TranslatedCode,
    ) -> Result<()> {
        let (start, bytes) = (translation.addr, translation.code.len() as u32);
        let large_page = code.large_page;
        self.push(&[Fetch { start, bytes, origin: start, large_page }], &mut |_| None)
    }

    /// Gives the units of a recorded translation block their physical addresses, and the numbers
    /// that these have. Does nothing if the block has them.
    ///
    /// # Errors
    /// As [`FetchedUnits::push`].
    #[inline]
    pub fn locate(&mut self, piece: u32, lies: impl Fn(RunAddr) -> PhysAddr) -> Result<()> {
        if self.is_located(piece) { Ok(()) } else { self.locate_first(piece, lies) }
    }

    /// Whether the units of a piece have their physical addresses.
    #[inline]
    pub fn is_located(&self, piece: u32) -> bool {
        self.located.get(piece as usize).copied().unwrap_or(false)
    }

    #[cold]
    fn locate_first(&mut self, piece: u32, lies: impl Fn(RunAddr) -> PhysAddr) -> Result<()> {
        self.located.resize(self.spans.len(), false);
        self.located[piece as usize] = true;
        self.physical.resize(self.ids.len(), PhysAddr::default());
        let all = self.spans[piece as usize].all();
        for at in all.clone() {
            let physical = lies(self.addrs[at]);
            self.ids[at] = self.numbering.number(self.addrs[at], false, Some(physical))?;
            self.physical[at] = physical;
        }
        let span = &mut self.spans[piece as usize];
        if let [first, .., last] | [first @ last] = self.ids[all] {
            (span.first, span.last) = (first, last);
        }
        Ok(())
    }

    /// The number of pieces.
    pub fn pieces(&self) -> usize {
        self.spans.len()
    }

    /// The units of a piece.
    #[inline]
    pub fn span(&self, piece: u32) -> UnitSpan {
        self.spans[piece as usize]
    }

    /// The indices of the units that an execution of a recorded translation block fetches. `left`:
    /// the instructions after which it was left midway, otherwise 0.
    #[inline]
    pub fn executed(&self, piece: u32, code: &TranslatedCode, left: u32) -> Range<usize> {
        match left {
            0 => self.span(piece).all(),
            left => self.of_first(piece, code.bytes_of(left)),
        }
    }

    /// The indices of the units from which the first `bytes` of a recorded translation block are
    /// fetched.
    pub fn of_first(&self, piece: u32, bytes: u64) -> Range<usize> {
        let all = self.span(piece).all();
        let start = self.addrs.get(all.start).copied().unwrap_or_default();
        let addrs = &self.addrs[all.clone()];
        let reached = addrs.iter().take_while(|addr| addr.0.wrapping_sub(start.0) < bytes).count();
        all.start..all.start + reached
    }

    /// The numbers of all units.
    #[inline]
    pub fn ids(&self) -> &[LineId] {
        &self.ids
    }

    /// For each unit, the old address of the first byte that is fetched from it.
    pub fn addrs(&self) -> &[RunAddr] {
        &self.addrs
    }

    /// The physical address of each unit; empty when they are not known.
    #[inline]
    pub fn physical(&self) -> &[PhysAddr] {
        &self.physical
    }

    /// The different units.
    pub fn touched(&self) -> PerMode<u64> {
        let mut ids = self.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        let mut touched = PerMode::default();
        ids.iter().for_each(|id| *touched.get_mut(id.mode()) += 1);
        touched
    }
}
