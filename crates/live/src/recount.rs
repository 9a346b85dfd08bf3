//! Counts once more in the optimized code, as the paper does (Tamches 2001, section 2.1.3). Only
//! executions that come from a root count.
//!
//! Input: a group that has been laid out. Output: a profile. Copies in their new order, with
//! counters, are installed for a while, and only the roots are entered from outside. Calls of the
//! group's other functions from elsewhere go to the originals, and are not counted. In a group with
//! more blocks than counters, functions take turns, and the whole group is installed each time.

use crate::counters;
use crate::group::Group;
use crate::install;
use crate::turn::Turn;
use crate::watch::{Watch, Watched, add, empty, leave_out_derivable};
use anyhow::{Result, ensure};
use emit::module::counter::MOST_COUNTERS;
use image::address::LinkAddr;
use std::collections::{BTreeMap, BTreeSet};

impl Watch<'_, '_> {
    /// Counts the blocks of a group in this order, entered by the roots alone.
    ///
    /// # Errors
    /// A function has more blocks than a group has counters; the group cannot be installed or
    /// undone; or Ctrl-C came.
    pub fn again(
        &mut self,
        group: &Group<'_, '_>,
        order: &[u32],
        roots: &[usize],
    ) -> Result<Watched> {
        let mut places = counters::places(group);
        leave_out_derivable(group, &mut places);
        let rounds = rounds(group, &places)?;
        let mut counts = vec![None; places.len()];
        for (number, round) in (1..).zip(&rounds) {
            (self.told)(&format!(
                "counting once more, in the optimized code: part {number} of {} for {} s",
                rounds.len(),
                self.time.as_secs_f32()
            ));
            let pieces = places.iter().zip(&group.original.pieces);
            let places: Vec<Option<LinkAddr>> = pieces
                .map(|(place, piece)| place.filter(|_| round.contains(&piece.function)))
                .collect();
            let turn = Turn::wait(self.told)?;
            let mut prepared =
                install::prepare(group, self.running, order, &places, &install::free_name()?)?;
            prepared.enter_only(self.kernel, roots)?;
            self.read(group, &prepared, turn, &mut counts)?;
        }
        let mut watched = empty(self.kernel.build_id.clone());
        watched.levels.push(group.members.len());
        add(group, counts, &mut watched);
        Ok(watched)
    }
}

/// Sets of functions that can be counted together. All parts of a function are counted at the same
/// time; otherwise its counts would not add up.
fn rounds(group: &Group<'_, '_>, places: &[Option<LinkAddr>]) -> Result<Vec<BTreeSet<u32>>> {
    let mut wanted: BTreeMap<&str, (BTreeSet<u32>, usize)> = BTreeMap::new();
    for (place, piece) in places.iter().zip(&group.original.pieces) {
        let name = group.name(piece.function).split(".cold").next().unwrap_or_default();
        let (functions, counters) = wanted.entry(name).or_default();
        functions.insert(piece.function);
        *counters += usize::from(place.is_some());
    }
    let mut rounds: Vec<BTreeSet<u32>> = Vec::new();
    let mut room = 0;
    for (name, (functions, counters)) in wanted {
        ensure!(
            counters <= MOST_COUNTERS,
            "{name}: {counters} blocks to count, and a group has at most {MOST_COUNTERS} counters"
        );
        if counters > room || rounds.is_empty() {
            rounds.push(BTreeSet::new());
            room = MOST_COUNTERS;
        }
        room -= counters;
        if let Some(round) = rounds.last_mut() {
            round.extend(functions);
        }
    }
    Ok(rounds)
}
