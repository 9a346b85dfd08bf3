//! Sections that lie in the gaps between placed sections.
//!
//! Input: gaps, each with its bounds, and the sections that have no address yet. Output: the
//! sections that fill a gap in the only possible way. This module reads no file.

use super::elf::SectionId;
use crate::address::LinkAddr;
use std::collections::HashMap;
use std::ops::Range;

/// A gap with more ways to fill it than this many steps can try stays open.
const MOST_STEPS: u32 = 10_000;

/// What a section needs to lie somewhere.
pub(super) trait Room {
    /// The section's end, if it may begin at `at` or, aligned, behind it: its first byte and the
    /// byte behind its last.
    fn fits(&self, id: SectionId, at: u64) -> Option<Range<u64>>;
    /// Whether only padding lies here.
    fn is_padding(&self, range: Range<u64>) -> bool;
}

/// The sections that fill a gap, where there is one way to do so and no other gap could take them.
pub(super) fn fill(
    room: &impl Room,
    gaps: &[Range<u64>],
    missing: &[SectionId],
) -> Vec<(SectionId, LinkAddr)> {
    let mut filled = Vec::new();
    let mut uses: HashMap<SectionId, u32> = HashMap::new();
    for gap in gaps {
        let mut search = Search { room, gap, missing, ways: Vec::new(), steps: 0 };
        search.from(gap.start, &mut Vec::new());
        let mut used: Vec<SectionId> = search.ways.iter().flatten().map(|&(id, _)| id).collect();
        used.sort_unstable();
        used.dedup();
        used.into_iter().for_each(|id| *uses.entry(id).or_default() += 1);
        if search.steps <= MOST_STEPS && search.ways.len() == 1 {
            filled.push(search.ways.remove(0));
        }
    }
    filled.retain(|way| way.iter().all(|(id, _)| uses[id] == 1));
    filled.concat()
}

struct Search<'a, R> {
    room: &'a R,
    gap: &'a Range<u64>,
    missing: &'a [SectionId],
    ways: Vec<Vec<(SectionId, LinkAddr)>>,
    steps: u32,
}

impl<R: Room> Search<'_, R> {
    /// Fills the gap from `at` on, behind the sections of `way`.
    fn from(&mut self, at: u64, way: &mut Vec<(SectionId, LinkAddr)>) {
        self.steps += 1;
        if self.ways.len() > 1 || self.steps > MOST_STEPS {
            return;
        }
        if !way.is_empty() && self.room.is_padding(at..self.gap.end) {
            self.ways.push(way.clone());
            return;
        }
        for &id in self.missing {
            if way.iter().any(|&(used, _)| used == id) {
                continue;
            }
            let Some(range) = self.room.fits(id, at) else { continue };
            if range.end <= self.gap.end && self.room.is_padding(at..range.start) {
                way.push((id, LinkAddr(range.start)));
                self.from(range.end, way);
                way.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel of letters: a section is its text, `.` is padding.
    struct Letters(&'static str, &'static [&'static str]);

    impl Room for Letters {
        fn fits(&self, id: SectionId, at: u64) -> Option<Range<u64>> {
            let from = at.next_multiple_of(4) as usize;
            let section = self.1[id.0 as usize];
            let found = self.0.get(from..)?.starts_with(section);
            found.then_some(from as u64..(from + section.len()) as u64)
        }

        fn is_padding(&self, range: Range<u64>) -> bool {
            let text = self.0.get(range.start as usize..range.end as usize);
            text.is_some_and(|text| text.bytes().all(|byte| byte == b'.'))
        }
    }

    fn filled(
        kernel: &'static str,
        sections: &'static [&'static str],
        gaps: &[(u64, u64)],
    ) -> String {
        let gaps: Vec<Range<u64>> = gaps.iter().map(|&(from, to)| from..to).collect();
        let missing: Vec<SectionId> = (0..sections.len() as u32).map(SectionId).collect();
        let found = fill(&Letters(kernel, sections), &gaps, &missing);
        let words = found.iter().map(|(id, at)| format!("{} {}", sections[id.0 as usize], at.0));
        words.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn sections_fill_a_gap_one_behind_the_other() {
        assert_eq!(filled("X...ab..cde.Y", &["cde", "ab", "zz"], &[(1, 12)]), "ab 4, cde 8");
    }

    #[test]
    fn a_gap_with_something_else_in_it_stays_open() {
        assert_eq!(filled("X...ab..??..Y", &["ab"], &[(1, 12)]), "");
    }

    #[test]
    fn sections_that_could_change_places_get_none() {
        assert_eq!(filled("X...ab..ab..Y", &["ab", "ab"], &[(1, 12)]), "");
        assert_eq!(filled("X...ab..Y...ab..", &["ab"], &[(1, 8), (9, 16)]), "");
        assert_eq!(filled("X...ab..Y...cd..", &["cd", "ab"], &[(1, 8), (9, 16)]), "ab 4, cd 12");
    }
}
