//! Which sets of a cache which code may use.
//!
//! Takes the line of an address; gives the set, and what tells the line from others of that set. A
//! cache whose sets are divided behaves as several caches of fewer sets, also of numbers that are
//! no power of two, which a [`sim::Geometry`] alone cannot describe.

use sim::Mode;
use std::collections::BTreeMap;

/// How the sets of a cache are divided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Division {
    /// All code may lie in all sets.
    #[default]
    Whole,
    /// The first half is the kernel's, the second the user's.
    Halves,
    /// The first `sets` are for the lines named only, by address / bytes of a line: each has its
    /// set. All else shares the rest, a line's number modulo their number choosing the set.
    Reserved { sets: u32, lines: BTreeMap<u64, u32> },
}

/// Where a line lies: in `set`, told from all others of that set by `tag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub set: u32,
    pub tag: Tag,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tag {
    /// Number of the line / number of sets that it may lie in.
    Shared(u64),
    /// Number of the line.
    Reserved(u64),
}

impl Division {
    /// Where the line with this number lies; `sets`: all of the cache, more than are reserved, and
    /// a power of two.
    pub fn place(&self, line: u64, mode: Mode, sets: u32) -> Place {
        let among = |first: u32, sets: u32| Place {
            set: first + (line % u64::from(sets)) as u32,
            tag: Tag::Shared(line / u64::from(sets)),
        };
        match self {
            Division::Whole => among(0, sets),
            Division::Halves if mode == Mode::Kernel => among(0, sets / 2),
            Division::Halves => among(sets / 2, sets / 2),
            Division::Reserved { sets: own, lines } => match lines.get(&line) {
                Some(&set) => Place { set, tag: Tag::Reserved(line) },
                None => among(*own, sets - own),
            },
        }
    }

    /// Whether a cache of so many sets can be divided so.
    pub fn fits(&self, sets: u32) -> bool {
        match self {
            Division::Whole => true,
            Division::Halves => sets >= 2,
            Division::Reserved { sets: own, lines } => {
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
        let reserved = Division::Reserved { sets: 2, lines: BTreeMap::from([(700, 0), (713, 1)]) };
        for line in 0..1000 {
            let set = |division: &Division, mode| division.place(line, mode, 16).set;
            assert!(set(&Division::Halves, Mode::Kernel) < 8);
            assert!((8..16).contains(&set(&Division::Halves, Mode::User)));
            assert_eq!(set(&Division::Whole, Mode::User), (line % 16) as u32);
            let expected = match line {
                700 => 0,
                713 => 1,
                _ => 2 + (line % 14) as u32,
            };
            assert_eq!(set(&reserved, Mode::Kernel), expected);
        }
    }

    #[test]
    fn no_two_lines_have_the_same_place() {
        let reserved = Division::Reserved { sets: 2, lines: BTreeMap::from([(700, 0), (713, 0)]) };
        for division in [Division::Whole, Division::Halves, reserved] {
            let places: HashSet<_> = (0..1000)
                .map(|line| division.place(line, Mode::Kernel, 16))
                .map(|place| (place.set, place.tag))
                .collect();
            assert_eq!(places.len(), 1000);
        }
    }

    #[test]
    fn a_division_needs_sets() {
        let reserved = |set| Division::Reserved { sets: 4, lines: BTreeMap::from([(1, set)]) };
        assert!(Division::Whole.fits(1) && Division::Halves.fits(2) && reserved(3).fits(8));
        assert!(!Division::Halves.fits(1) && !reserved(3).fits(4) && !reserved(4).fits(8));
    }
}
