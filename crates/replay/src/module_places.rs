//! Where a recording has the code of modules.
//!
//! Layouts, maps and images name the code of a module by link addresses ([`image::module`]), and a
//! recording has it where the kernel loaded the module. Input: the places of sections. Output: link
//! addresses for places, and placements for the addresses of one recording. This module reads no
//! recording.

use image::address::LinkAddr;
use image::module::is_of_module;
use image::place::{PlacedBlock, Placement};
use trace::RunAddr;

/// Where a section of a module was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModulePlace {
    /// The address of its first byte in the recording.
    pub ran: RunAddr,
    /// Its link address.
    pub linked: LinkAddr,
    /// Bytes.
    pub size: u64,
    /// Only the module's initialisation needed it: the kernel then gave its memory to others.
    pub initial: bool,
}

/// Where a recording has the code of modules. A module that was loaded twice has two places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModulePlaces {
    /// Disjoint, ascending by `ran`.
    places: Vec<ModulePlace>,
}

impl ModulePlace {
    fn end(&self) -> u64 {
        self.ran.0.saturating_add(self.size)
    }

    fn overlaps(&self, other: &ModulePlace) -> bool {
        self.ran.0 < other.end() && other.ran.0 < self.end()
    }
}

impl ModulePlaces {
    /// The places of a recording. Where several sections were at different times, none has the
    /// place, or the only one that was not for initialisation.
    ///
    /// ```
    /// use image::address::LinkAddr;
    /// use kernlane_replay::module_places::{ModulePlace, ModulePlaces};
    /// use trace::RunAddr;
    ///
    /// let linked = image::module::base_of("veth");
    /// let ran = RunAddr(0xffff_ffff_a000_0000);
    /// let text = ModulePlace { ran, linked, size: 0x100, initial: false };
    /// let places = ModulePlaces::new(vec![text]);
    /// assert_eq!(places.linked(RunAddr(ran.0 + 8)), LinkAddr(linked.0 + 8));
    /// assert_eq!(places.linked(RunAddr(ran.0 - 8)), LinkAddr(ran.0 - 8), "not of a module");
    /// ```
    pub fn new(mut all: Vec<ModulePlace>) -> ModulePlaces {
        all.sort_by_key(|place| (place.ran, place.linked, place.size));
        all.dedup();
        let is_alone = |place: &&ModulePlace| {
            let mut others = all.iter().filter(|other| other != place && other.overlaps(place));
            place.size > 0 && others.all(|other| other.initial && !place.initial)
        };
        ModulePlaces { places: all.iter().filter(is_alone).copied().collect() }
    }

    /// The link address of a place: another number where a module was, the same elsewhere.
    pub fn linked(&self, addr: RunAddr) -> LinkAddr {
        let after = self.places.partition_point(|place| place.ran <= addr);
        let place = after.checked_sub(1).map(|at| &self.places[at]);
        match place.filter(|place| addr.0 < place.end()) {
            Some(place) => LinkAddr(place.linked.0 + (addr.0 - place.ran.0)),
            None => LinkAddr(addr.0),
        }
    }

    /// A placement with the code of modules where this recording has it. Code of modules that the
    /// recording does not have is left out. The new code of a module begins where the old one did.
    pub fn carried(&self, placement: &Placement) -> Placement {
        let (of_modules, kernel): (Vec<PlacedBlock>, Vec<PlacedBlock>) =
            placement.blocks.iter().partition(|block| is_of_module(block.old));
        let mut blocks = kernel;
        for place in &self.places {
            let space = place.linked.0..place.linked.0.saturating_add(place.size);
            let to = |addr: LinkAddr| {
                LinkAddr(addr.0.wrapping_sub(place.linked.0).wrapping_add(place.ran.0))
            };
            let inside = of_modules.iter().filter(|block| space.contains(&block.old.0));
            blocks.extend(inside.map(|block| PlacedBlock {
                old: to(block.old),
                new: to(block.new),
                ..*block
            }));
        }
        blocks.sort_by_key(|block| block.old);
        Placement { blocks, ..placement.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::module::base_of;
    use image::place::Ending;

    fn place(ran: u64, linked: LinkAddr, size: u64, initial: bool) -> ModulePlace {
        ModulePlace { ran: RunAddr(ran), linked, size, initial }
    }

    fn block(old: u64, new: u64) -> PlacedBlock {
        PlacedBlock {
            old: LinkAddr(old),
            old_size: 4,
            new: LinkAddr(new),
            new_size: 4,
            appended: 0,
            ending: Ending::Same,
        }
    }

    #[test]
    fn memory_of_an_initialisation_belongs_to_who_got_it_then() {
        let (a, b) = (base_of("a"), base_of("b"));
        let init = LinkAddr(a.0 + (1 << 26));
        let places = ModulePlaces::new(vec![
            place(0x1000, a, 0x100, false),
            place(0x3000, init, 0x100, true),
            place(0x3080, b, 0x100, false),
        ]);
        assert_eq!(places.linked(RunAddr(0x10ff)), LinkAddr(a.0 + 0xff));
        assert_eq!(places.linked(RunAddr(0x3080)), b);
        assert_eq!(places.linked(RunAddr(0x3000)), LinkAddr(0x3000));
        // Two modules at one place: nothing says which one ran.
        let both = [place(0x1000, a, 0x100, false), place(0x1080, b, 0x10, false)];
        assert_eq!(ModulePlaces::new(both.into()), ModulePlaces::default());
    }

    #[test]
    fn a_placement_is_carried_to_each_load_of_a_module() {
        let kernel = 0xffff_ffff_8100_0000;
        let (a, b) = (base_of("a").0, base_of("b").0);
        let mut blocks = vec![block(a, a + 4), block(a + 4, a), block(b, b + 8)];
        blocks.sort_by_key(|block| block.old);
        blocks.push(block(kernel, kernel + 16));
        let places = ModulePlaces::new(vec![
            place(0xffff_ffff_a000_1000, LinkAddr(a), 8, false),
            place(0xffff_ffff_a000_0000, LinkAddr(a), 8, false),
        ]);
        let carried = places.carried(&Placement { blocks, ..Placement::default() });
        let moves: Vec<(u64, u64)> =
            carried.blocks.iter().map(|block| (block.old.0, block.new.0)).collect();
        let expected = [
            (kernel, kernel + 16),
            (0xffff_ffff_a000_0000, 0xffff_ffff_a000_0004),
            (0xffff_ffff_a000_0004, 0xffff_ffff_a000_0000),
            (0xffff_ffff_a000_1000, 0xffff_ffff_a000_1004),
            (0xffff_ffff_a000_1004, 0xffff_ffff_a000_1000),
        ];
        assert_eq!(moves, expected);
    }
}
