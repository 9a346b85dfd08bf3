//! The division of a cache's sets between kinds of code.
//!
//! Input: the number of a line. Output: its set, and a tag that differs from those of other lines
//! in the set. A cache with divided sets behaves like several caches with fewer sets. Their numbers
//! of sets need not be powers of two, which a [`sim::CacheGeometry`] alone cannot describe.

use sim::Mode;
use std::collections::BTreeMap;

/// How the sets of a cache are divided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SetDivision {
    /// All code may use all sets.
    #[default]
    Whole,
    /// The kernel uses the first half, user code the second.
    Halves,
    /// The first `sets` are reserved for `lines`, which maps the number of a line (address / bytes
    /// of a line) to its set. All other lines share the remaining sets, by the line's number modulo
    /// the number of these sets.
    Reserved {
        /// The number of reserved sets.
        sets: u32,
        /// The set of each line that has a reserved one.
        lines: BTreeMap<u64, u32>,
    },
}

/// The place of a line in a divided cache: its set, and a tag that differs from all others in the
/// set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinePlace {
    /// The set.
    pub set: u32,
    /// The tag of the line in its set.
    pub tag: LineTag,
}

/// The tag of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LineTag {
    /// The number of the line / the number of sets in which such a line may lie.
    Shared(u64),
    /// The number of a line that has a reserved set.
    Reserved(u64),
}

impl SetDivision {
    /// The place of the line with this number. `sets` is the number of sets in the cache, a power
    /// of two, above the number of reserved sets.
    pub(crate) fn place(&self, line: u64, mode: Mode, sets: u32) -> LinePlace {
        let among = |first: u32, sets: u32| LinePlace {
            set: first + (line % u64::from(sets)) as u32,
            tag: LineTag::Shared(line / u64::from(sets)),
        };
        match self {
            SetDivision::Whole => among(0, sets),
            SetDivision::Halves if mode == Mode::Kernel => among(0, sets / 2),
            SetDivision::Halves => among(sets / 2, sets / 2),
            SetDivision::Reserved { sets: own, lines } => match lines.get(&line) {
                Some(&set) => LinePlace { set, tag: LineTag::Reserved(line) },
                None => among(*own, sets - own),
            },
        }
    }

    /// Whether a cache with this number of sets can be divided in this way.
    pub fn fits(&self, sets: u32) -> bool {
        match self {
            SetDivision::Whole => true,
            SetDivision::Halves => sets >= 2,
            SetDivision::Reserved { sets: own, lines } => {
                *own < sets && lines.values().all(|set| set < own)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_requester_keeps_to_its_sets() {
        let reserved =
            SetDivision::Reserved { sets: 2, lines: BTreeMap::from([(700, 0), (713, 1)]) };
        for line in 0..1000 {
            let set = |division: &SetDivision, mode| division.place(line, mode, 16).set;
            assert!(set(&SetDivision::Halves, Mode::Kernel) < 8);
            assert!((8..16).contains(&set(&SetDivision::Halves, Mode::User)));
            assert_eq!(set(&SetDivision::Whole, Mode::User), (line % 16) as u32);
            let expected = match line {
                700 => 0,
                713 => 1,
                _ => 2 + (line % 14) as u32,
            };
            assert_eq!(set(&reserved, Mode::Kernel), expected);
        }
    }

    #[test]
    fn two_lines_never_have_the_same_place() {
        let reserved =
            SetDivision::Reserved { sets: 2, lines: BTreeMap::from([(700, 0), (713, 0)]) };
        for division in [SetDivision::Whole, SetDivision::Halves, reserved] {
            let places: HashSet<_> = (0..1000)
                .map(|line| division.place(line, Mode::Kernel, 16))
                .map(|place| (place.set, place.tag))
                .collect();
            assert_eq!(places.len(), 1000);
        }
    }

    #[test]
    fn a_division_needs_enough_sets() {
        let reserved = |set| SetDivision::Reserved { sets: 4, lines: BTreeMap::from([(1, set)]) };
        assert!(SetDivision::Whole.fits(1) && SetDivision::Halves.fits(2) && reserved(3).fits(8));
        assert!(!SetDivision::Halves.fits(1) && !reserved(3).fits(4) && !reserved(4).fits(8));
    }
}
