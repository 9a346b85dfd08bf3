//! Where the objects of slab caches begin, and which fields lie in them.
//!
//! A recording says which slab cache a page belongs to, not where its objects begin. The size of
//! the objects of `kmalloc-192` is in the name. For other caches, the size is found from accesses:
//! most instructions, and most functions that lock, use one field of one type. So the places of
//! their accesses in a slab differ by multiples of the size. A user of several fields gives a
//! divisor of the size. A user with few places may give a multiple. So the size is the number that
//! more users give than any other number:
//!
//! * When BTF describes the structure, only sizes that the structure fits into count. Two places
//!   are enough.
//! * Otherwise, users with at least [`FEWEST`] places decide.
//!
//! Input: the places of accesses in slabs. Output: sizes of objects, structures, fields. This
//! module counts nothing.

use super::names::VariableTypes;
use crate::misses::owners::{DataOwners, Structure, StructureClass, StructureId};
use crate::misses::uses::FrameUses;
use anyhow::Result;
use image::btf::fields::{FieldPlace, TypeNumber};
use std::collections::{BTreeMap, HashMap};
use trace::Accesses;

/// The smallest number of places of one user that give a size without a structure.
const FEWEST: usize = 8;
/// The smallest objects of a slab cache whose name has no size.
const SMALLEST: u64 = 16;
/// The largest number of bytes that a slab cache adds to a structure: to align it, and for the CPU
/// masks behind `mm_struct`.
const MOST_PADDING: u64 = 128;
/// The bytes for registers of the FPU that BTF describes in `task_struct`.
const FPU_REGISTERS: u64 = 4096;

/// Slab caches whose name differs from that of their structure, and the structure.
const CACHES: [(&str, &str); 16] = [
    ("TCP", "tcp_sock"),
    ("UDP", "udp_sock"),
    ("UNIX", "unix_sock"),
    ("bdev_cache", "bdev_inode"),
    ("ext4_inode_cache", "ext4_inode_info"),
    ("files_cache", "files_struct"),
    ("filp", "file"),
    ("fs_cache", "fs_struct"),
    ("inode_cache", "inode"),
    ("proc_inode_cache", "proc_inode"),
    ("radix_tree_node", "xa_node"),
    ("shmem_inode_cache", "shmem_inode_info"),
    ("sighand_cache", "sighand_struct"),
    ("signal_cache", "signal_struct"),
    ("skbuff_head_cache", "sk_buff"),
    ("sock_inode_cache", "socket_alloc"),
];

/// The places in the slabs of a cache that one user accessed, in bytes from the slab's beginning.
#[derive(Clone, Debug)]
struct UsedPlaces {
    first: u64,
    /// The first few, without repetitions.
    places: Vec<u64>,
    /// The greatest common divisor of their distances; 0 when there is one place.
    step: u64,
}

impl UsedPlaces {
    fn add(&mut self, place: u64) {
        if self.places.len() < FEWEST && !self.places.contains(&place) {
            self.places.push(place);
        }
        let distance = place.abs_diff(self.first);
        if distance.checked_rem(self.step) != Some(0) {
            self.step = common(self.step, distance);
        }
    }
}

/// Where the objects of slab caches were accessed.
#[derive(Clone, Debug, Default)]
pub struct SlabPlaces {
    /// By cache and user.
    users: HashMap<(StructureId, u64), UsedPlaces>,
}

impl SlabPlaces {
    /// A user accesses an object. `user`: the number of an instruction or a function; `place`:
    /// bytes from the beginning of the slab.
    pub fn add(&mut self, cache: StructureId, user: u64, place: u64) {
        let new = || UsedPlaces { first: place, places: Vec::new(), step: 0 };
        self.users.entry((cache, user)).or_insert_with(new).add(place);
    }

    /// The objects of all slab caches. `structures`: those of the recording, by their numbers.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    pub fn objects(
        &self,
        structures: &[Structure],
        types: &VariableTypes<'_>,
    ) -> Result<SlabObjects> {
        let mut users = HashMap::<StructureId, Vec<&UsedPlaces>>::new();
        for (&(cache, _), places) in &self.users {
            users.entry(cache).or_default().push(places);
        }
        let mut caches = BTreeMap::new();
        for (number, cache) in structures.iter().enumerate() {
            if cache.class != StructureClass::Slab {
                continue;
            }
            let structure = structure_of(&cache.name);
            let described = types.structure(structure)?;
            let users = users.get(&StructureId(number as u32));
            let users = users.map(Vec::as_slice).unwrap_or_default();
            let may_be = |bytes| described.is_some_and(|(_, least)| fits(structure, least, bytes));
            let bytes = size_in_name(&cache.name).or_else(|| size_of(users, may_be));
            let kind = described.filter(|_| bytes.is_some_and(may_be));
            let structure = structure.to_owned();
            caches.insert(cache.name.clone(), SlabCache { bytes, structure, kind });
        }
        Ok(SlabObjects { caches })
    }
}

/// What is known of the objects of a slab cache.
#[derive(Clone, Debug)]
pub struct SlabCache {
    /// The bytes of an object, with padding; `None`: not known.
    pub bytes: Option<u64>,
    /// The name of the structure that the objects should be.
    structure: String,
    /// The structure's type and bytes, when BTF describes it and it fits into an object.
    kind: Option<(TypeNumber, u64)>,
}

/// What is known of the objects of slab caches.
#[derive(Clone, Debug)]
pub struct SlabObjects {
    /// By the cache's name.
    caches: BTreeMap<String, SlabCache>,
}

impl SlabObjects {
    /// The bytes of an object of a cache; `None`: not known.
    pub fn bytes(&self, cache: &str) -> Option<u64> {
        self.caches.get(cache)?.bytes
    }

    /// The names of the caches.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.caches.keys().map(String::as_str)
    }

    /// The name, type and bytes of the structure of a cache's objects. `None`: not known.
    pub fn structure(&self, cache: &str) -> Option<(&str, TypeNumber, u64)> {
        let of = self.caches.get(cache)?;
        of.kind.map(|(kind, bytes)| (of.structure.as_str(), kind, bytes))
    }

    /// Takes another structure for the objects of a cache, or none.
    pub fn set_structure(&mut self, cache: &str, structure: Option<(String, TypeNumber, u64)>) {
        if let Some(of) = self.caches.get_mut(cache) {
            of.kind = structure.as_ref().map(|(_, kind, bytes)| (*kind, *bytes));
            of.structure = structure.map_or_else(|| cache.to_owned(), |(name, ..)| name);
        }
    }

    /// The structure of a cache's objects, and its field of `size` bytes at an offset. `None`: not
    /// known.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    pub fn field(
        &self,
        types: &VariableTypes<'_>,
        cache: &str,
        offset: u64,
        size: u64,
    ) -> Result<Option<(&str, FieldPlace)>> {
        let Some(of) = self.caches.get(cache) else { return Ok(None) };
        let Some((kind, _)) = of.kind.filter(|(_, bytes)| offset + size <= *bytes) else {
            return Ok(None);
        };
        Ok(types.field_at(kind, offset, size)?.map(|field| (of.structure.as_str(), field)))
    }

    /// The caches with this name, and those whose objects are structures of this name.
    pub fn named(&self, name: &str) -> impl Iterator<Item = (&str, &SlabCache)> {
        let is = move |&(cache, of): &(&String, &SlabCache)| cache == name || of.structure == name;
        self.caches.iter().filter(is).map(|(cache, of)| (cache.as_str(), of))
    }
}

impl SlabCache {
    /// The bytes of an object that the text behind its name stands for, as in
    /// [`VariableTypes::part`]. `bytes`: those of the object; `name`: for errors.
    ///
    /// # Errors
    /// The object has no such field or bytes, or its type is not known.
    pub fn part(
        &self,
        types: &VariableTypes<'_>,
        name: &str,
        bytes: u64,
        text: &str,
    ) -> Result<(u64, u64)> {
        types.part_of(name, bytes, self.kind.map(|(kind, _)| kind), text)
    }
}

/// Which slab cache the frames of memory belong to, while a recording runs.
pub struct SlabFrames {
    owners: DataOwners,
    uses: FrameUses,
}

impl SlabFrames {
    /// No frames yet.
    pub fn new(owners: DataOwners) -> SlabFrames {
        SlabFrames { owners, uses: FrameUses::default() }
    }

    /// A stream begins.
    pub fn stream(&mut self, accesses: &Accesses) {
        self.uses.stream(accesses, &mut self.owners, |_, _| {});
    }

    /// The next execution begins.
    #[inline]
    pub fn executed(&mut self) {
        self.uses.executed(&mut self.owners, |_, _| {});
    }

    /// The slab cache of a physical address, and the address in the slab.
    #[inline]
    pub fn place(&self, physical: u64) -> Option<(StructureId, u64)> {
        let (cache, first) = self.owners.slab(physical >> 12)?;
        Some((cache, physical.saturating_sub(first << 12)))
    }

    /// The structures of the recording so far, by their numbers.
    pub fn structures(&self) -> &[Structure] {
        self.owners.structures()
    }
}

/// The name of the structure of a cache's objects.
fn structure_of(cache: &str) -> &str {
    let renamed = CACHES.iter().find(|(known, _)| *known == cache);
    renamed.map_or(cache, |(_, structure)| structure)
}

/// Whether objects of `bytes` bytes can be structures that have `described` bytes in BTF.
fn fits(structure: &str, described: u64, bytes: u64) -> bool {
    let end = described.saturating_add(MOST_PADDING);
    // The structure ends with the registers of the FPU, and has room only for those that the CPU
    // saves (`fpu__init_task_struct_size` in arch/x86/kernel/fpu/init.c).
    let least = match structure {
        "task_struct" => described.saturating_sub(FPU_REGISTERS),
        _ => described,
    };
    (least..end).contains(&bytes) && bytes >= SMALLEST && bytes.is_multiple_of(8)
}

/// The size in the name of a cache of `kmalloc`: 192 of `kmalloc-192`, 2048 of `kmalloc-cg-2k`.
fn size_in_name(cache: &str) -> Option<u64> {
    let text = cache.strip_prefix("kmalloc-")?.rsplit('-').next()?;
    match text.strip_suffix('k') {
        Some(kilobytes) => kilobytes.parse::<u64>().ok()?.checked_mul(1024),
        None => text.parse().ok(),
    }
    .filter(|&bytes| bytes > 0)
}

/// The size of objects from the places of their users. `may_be`: whether the structure fits into
/// objects of a size. `None`: no size has more users than any other.
fn size_of(users: &[&UsedPlaces], may_be: impl Fn(u64) -> bool) -> Option<u64> {
    let fitting = users.iter().map(|user| user.step).filter(|&step| may_be(step));
    let many = users.iter().filter(|user| user.places.len() >= FEWEST);
    let likely = many.map(|user| user.step).filter(|&step| step >= SMALLEST);
    most_frequent(fitting).or_else(|| most_frequent(likely))
}

/// The number that comes more often than any other.
fn most_frequent(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    let mut votes = BTreeMap::<u64, usize>::new();
    numbers.for_each(|number| *votes.entry(number).or_default() += 1);
    let most = votes.values().copied().max()?;
    let mut numbers = votes.into_iter().filter(|(_, votes)| *votes == most);
    let (number, _) = numbers.next()?;
    numbers.next().is_none().then_some(number)
}

/// The greatest common divisor.
fn common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(places: &[u64]) -> UsedPlaces {
        let mut user = UsedPlaces { first: places[0], places: Vec::new(), step: 0 };
        places.iter().for_each(|&place| user.add(place));
        user
    }

    fn places(size: u64, offset: u64, objects: &[u64]) -> Vec<u64> {
        objects.iter().map(|number| number * size + offset).collect()
    }

    fn size(users: &[Vec<u64>], may_be: impl Fn(u64) -> bool) -> Option<u64> {
        let users: Vec<UsedPlaces> = users.iter().map(|places| user(places)).collect();
        size_of(&users.iter().collect::<Vec<_>>(), may_be)
    }

    /// Out of order, and with a place twice.
    const OBJECTS: [u64; 9] = [3, 0, 1, 4, 7, 8, 3, 11, 20];

    #[test]
    fn sizes_in_names() {
        assert_eq!(size_in_name("kmalloc-192"), Some(192));
        assert_eq!(size_in_name("kmalloc-cg-2k"), Some(2048));
        assert_eq!(size_in_name("kmalloc-rnd-03-64"), Some(64));
        for other in ["dentry", "kmalloc-", "kmalloc-0", "kmalloc-99999999999999999999k"] {
            assert_eq!(size_in_name(other), None, "{other}");
        }
    }

    #[test]
    fn most_users_decide() {
        let of = |users: &[Vec<u64>]| size(users, |_| false);
        let [field, other] = [places(192, 88, &OBJECTS), places(192, 0, &OBJECTS)];
        assert_eq!(of(std::slice::from_ref(&field)), Some(192));
        assert_eq!(of(&[field.clone(), places(192, 8, &OBJECTS)]), Some(192));
        assert_eq!(of(&[places(192, 88, &OBJECTS[..8])]), None, "seven places are too few");
        assert_eq!(of(&[field.clone(), other.clone(), places(384, 8, &OBJECTS)]), Some(192));
        // A user of the fields at 0x58 and 0x78.
        let two_fields = [field.clone(), places(192, 120, &OBJECTS)].concat();
        assert_eq!(of(&[two_fields.clone(), field.clone(), other.clone()]), Some(192));
        assert_eq!(of(&[two_fields, field.clone()]), None, "one says 32, one 192");
        let close = [field.clone(), places(192, 92, &OBJECTS)].concat();
        assert_eq!(of(&[close]), None, "no objects have 4 bytes");
        assert_eq!(of(&[field, places(200, 8, &OBJECTS)]), None, "they disagree");
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_structure_decides_with_fewer_places() {
        let may_be = |bytes| fits("dentry", 190, bytes);
        // Seven objects in a slab: too few without a structure.
        assert_eq!(size(&[places(192, 88, &OBJECTS[..5])], may_be), Some(192));
        assert_eq!(size(&[vec![88, 280]], may_be), Some(192), "two objects");
        assert_eq!(size(&[vec![88, 472]], may_be), None, "twice the size does not fit");
        assert_eq!(size(&[vec![88]], may_be), None, "one place has no distance");
        // Three users of several fields give 64; the structure is larger.
        let steps = places(64, 0, &OBJECTS);
        let users = [steps.clone(), steps.clone(), steps, places(192, 8, &OBJECTS)];
        assert_eq!(size(&users, may_be), Some(192));
        assert_eq!(size(&users, |_| false), Some(64));
        assert_eq!(size(&[places(64, 0, &OBJECTS)], may_be), Some(64), "of another structure");
    }

    #[test]
    fn structures_fit_with_padding() {
        for (structure, described, bytes, expected) in [
            ("dentry", 192, 192, true),
            ("dentry", 192, 184, false),
            ("mm_struct", 1200, 1280, true),
            ("mm_struct", 1200, 1284, false),
            ("mm_struct", 1200, 1344, false),
            ("task_struct", 6976, 3456, true),
            ("task_struct", 6976, 2816, false),
            ("inode", 6976, 3456, false),
        ] {
            assert_eq!(fits(structure, described, bytes), expected, "{structure} {bytes}");
        }
        assert_eq!((structure_of("filp"), structure_of("mm_struct")), ("file", "mm_struct"));
    }
}
