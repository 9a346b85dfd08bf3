//! Counts once more in the optimized code, as the paper does (Tamches 2001, section 2.1.3). Only
//! executions that come from a root count.
//!
//! Input: a group that has been laid out. Output: a profile. Copies in their new order, with
//! counters, are installed for a while, and only the roots are entered from outside. Calls of the
//! group's other functions from elsewhere go to the originals, and are not counted. In a group with
//! more blocks than counters, functions take turns, and the whole group is installed each time.

use crate::counters;
use crate::group::Group;
use crate::install::{self, Purpose};
use crate::turn::Turn;
use crate::watch::{Watch, Watched, add, empty, leave_out_derivable};
use anyhow::{Result, ensure};
use emit::module::counter::MOST_COUNTERS;
use image::address::LinkAddr;
use std::collections::{BTreeMap, BTreeSet};

impl Watch<'_, '_, '_> {
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
        let rounds = rounds(group, &places, MOST_COUNTERS)?;
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
            let mut prepared = install::prepare(
                group,
                self.running,
                order,
                Purpose::Count(&places),
                &install::free_name()?,
            )?;
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
/// time; otherwise its counts would not add up. `most`: the counters of a group.
fn rounds(
    group: &Group<'_, '_>,
    places: &[Option<LinkAddr>],
    most: usize,
) -> Result<Vec<BTreeSet<u32>>> {
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
            counters <= most,
            "{name}: {counters} blocks to count, and a group has at most {most} counters"
        );
        if counters > room || rounds.is_empty() {
            rounds.push(BTreeSet::new());
            room = most;
        }
        room -= counters;
        if let Some(round) = rounds.last_mut() {
            round.extend(functions);
        }
    }
    Ok(rounds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::FileMemory;
    use crate::test_elf::{TestSymbol, elf};
    use crate::test_kernel::{F, G, H, TEXT, at, near, tables, with};
    use image::linked::LinkedKernel;
    use image::linked::tables::LinkedTables;
    use image::sites::PatchSites;

    /// The rounds as lists, for the group of all functions of the test's kernel. f has three
    /// blocks, g and h one each.
    fn rounds_of(places: &[Option<LinkAddr>], most: usize) -> Result<Vec<Vec<u32>>, String> {
        with(tables(), |kernel| {
            let group = Group::new(kernel, &FileMemory(kernel), &[F, G, H]).unwrap();
            let rounds = rounds(&group, places, most).map_err(|error| error.to_string())?;
            Ok(rounds.into_iter().map(|round| round.into_iter().collect()).collect())
        })
    }

    #[test]
    fn functions_share_a_round_as_long_as_there_are_counters() {
        let all = [Some(at(0)); 5];
        assert_eq!(rounds_of(&all, 5), Ok(vec![vec![0, 1, 2]]));
        assert_eq!(rounds_of(&all, 4), Ok(vec![vec![0, 1], vec![2]]));
        assert_eq!(rounds_of(&all, 3), Ok(vec![vec![0], vec![1, 2]]));
        let message = "f: 3 blocks to count, and a group has at most 2 counters";
        assert_eq!(rounds_of(&all, 2), Err(message.to_owned()));
        // A block without a counter takes no room.
        let two = [Some(at(0)), None, Some(at(0)), Some(at(0)), Some(at(0))];
        assert_eq!(rounds_of(&two, 2), Ok(vec![vec![0], vec![1, 2]]));
        assert_eq!(rounds_of(&[None; 5], 0), Ok(vec![vec![0, 1, 2]]));
    }

    /// ```text
    /// 00 b: call __fentry__    20 a: call __fentry__    40 b.cold: mov %eax,%eax
    /// 05    test %edi,%edi     25    mov $1,%eax; ret   42         jmp d
    /// 07    jne b.cold
    /// 0d    ret
    /// ```
    #[test]
    fn the_parts_of_a_function_are_counted_together() {
        let mut text = vec![0xcc; 0x80];
        let mut put = |at: usize, bytes: &[u8]| text[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &near(0xe8, 0, 0x1000));
        put(5, &[0x85, 0xff, 0x0f, 0x85, 0x33, 0, 0, 0, 0xc3]);
        put(0x20, &near(0xe8, 0x20, 0x1000));
        put(0x25, &[0xb8, 1, 0, 0, 0, 0xc3]);
        put(0x40, &[0x89, 0xc0]);
        put(0x42, &near(0xe9, 0x42, 0x0d));
        let note = [&[4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &[0x5f; 20]].concat();
        let file = elf(
            &[(".text", TEXT, 6, text), (".notes", TEXT + 0x1000, 2, note)],
            &[
                TestSymbol("b", TEXT, 0xe),
                TestSymbol("a", TEXT + 0x20, 0xb),
                TestSymbol("b.cold", TEXT + 0x40, 7),
            ],
            0,
        );
        let mut kernel = LinkedKernel::parse(&file).unwrap();
        let tracer_sites = vec![TEXT, TEXT + 0x20];
        kernel.tables = LinkedTables { tracer_sites, ..LinkedTables::default() };
        kernel.sites = PatchSites::of(&kernel.tables);
        let group = Group::new(&kernel, &FileMemory(&kernel), &[0, 1]).unwrap();
        let functions: Vec<&str> = (0..3).map(|function| group.name(function)).collect();
        assert_eq!(functions, ["b", "a", "b.cold"]);
        let of: Vec<u32> = group.original.pieces.iter().map(|piece| piece.function).collect();
        assert_eq!(of, [0, 0, 1, 2]);
        let places = [Some(at(0)); 4];
        // In the order of the names: a, then b with its cold part.
        let found = rounds(&group, &places, 3).unwrap();
        assert_eq!(found, [BTreeSet::from([1]), BTreeSet::from([0, 2])]);
        let error = rounds(&group, &places, 2).unwrap_err().to_string();
        assert_eq!(error, "b: 3 blocks to count, and a group has at most 2 counters");
    }
}
