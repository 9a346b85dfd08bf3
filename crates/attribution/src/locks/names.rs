//! Names locks: by symbol and field, or by slab cache and the place in its objects.
//!
//! A recording says which slab cache a page belongs to, not where its objects begin. The size of
//! the objects of `kmalloc-192` is in the name. Of other caches it is found from the locks
//! themselves: most functions take one field of one type, so the places of their locks in a slab
//! differ by multiples of the size. At least [`FEWEST`] places are needed. A function that takes
//! several fields gives a divisor of the size, one with few places perhaps a multiple. So the size
//! is what more functions give than any other.
//!
//! Input: locks with their addresses and owners. Output: names. This module counts nothing.

use super::book::LockUses;
use super::functions::LockKind;
use crate::misses::memory::{DataOwners, MissOwner, Structure, StructureClass};
use crate::sharing::names::VariableTypes;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};

/// The number of places from which a size is found.
const FEWEST: usize = 8;
/// The smallest objects of a slab cache with a lock.
const SMALLEST: u64 = 16;
/// `sizeof(struct page)` on x86-64 without debugging options.
const STRUCT_PAGE: u64 = 64;
/// The largest number of bytes that a slab cache adds to a structure to align it.
const MOST_PADDING: u64 = 128;

/// Slab caches whose name is not that of their structure.
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

/// The last parts of a field that only say how the kernel makes a lock of a number.
const INSIDE: [&str; 11] = [
    "rlock", "raw_lock", "val", "counter", "owner", "count", "cnts", "seqcount", "sequence", "rw",
    "locked",
];

/// The name of a lock. Locks with equal names are one row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LockName {
    pub kind: LockKind,
    pub class: StructureClass,
    /// The object and the field.
    pub name: String,
}

pub(super) struct LockNames<'a> {
    owners: &'a DataOwners,
    types: &'a VariableTypes<'a>,
    /// By slab cache: the bytes of its objects.
    sizes: BTreeMap<String, u64>,
    /// Names that were found, by slab cache or symbol, offset and bytes.
    known: BTreeMap<(StructureClass, String, u64, u64), String>,
}

impl<'a> LockNames<'a> {
    /// `uses`: all locks of a recording.
    pub(super) fn new(
        owners: &'a DataOwners,
        types: &'a VariableTypes<'a>,
        uses: &[LockUses],
    ) -> LockNames<'a> {
        let mut places = BTreeMap::<&str, BTreeMap<(LockKind, u32), BTreeSet<u64>>>::new();
        for lock in uses.iter().filter(|lock| !lock.was_pending) {
            let of = structure(owners, lock).filter(|of| of.class == StructureClass::Slab);
            let (Some(of), Some(&(function, _))) = (of, lock.functions.first()) else { continue };
            let of_function = places.entry(&of.name).or_default();
            let place = lock.physical.saturating_sub(lock.pages);
            of_function.entry((lock.kind, function)).or_default().insert(place);
        }
        let sizes = places.into_iter().filter_map(|(cache, of)| {
            Some((cache.to_owned(), size_in_name(cache).or_else(|| size_of(of.values()))?))
        });
        LockNames { owners, types, sizes: sizes.collect(), known: BTreeMap::new() }
    }

    /// The name of a lock.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    pub(super) fn name(&mut self, lock: &LockUses) -> Result<LockName> {
        let kind = lock.kind;
        let Some(of) = structure(self.owners, lock) else {
            return Ok(LockName { kind, class: StructureClass::Other, name: String::new() });
        };
        let bytes = if kind.sleeps() { 8 } else { 4 };
        let object = match of.class {
            StructureClass::Static | StructureClass::PerCpu => self.owners.object(lock.addr),
            _ => None,
        };
        let size = self.sizes.get(&of.name).filter(|_| of.class == StructureClass::Slab);
        let offset = match (&object, size) {
            (Some(object), _) => lock.addr - object.start,
            (None, Some(size)) if !lock.was_pending => {
                (lock.physical.saturating_sub(lock.pages)) % size
            }
            _ if of.class == StructureClass::StructPage => lock.addr % STRUCT_PAGE,
            _ => 0,
        };
        let key = (of.class, of.name.clone(), offset, bytes);
        if let Some(name) = self.known.get(&key) {
            return Ok(LockName { kind, class: of.class, name: name.clone() });
        }
        let name = match (&object, size) {
            (Some(object), _) => {
                let field = self.types.field(object, offset, bytes)?;
                let field = field.map(|field| outside(&field.path).to_owned());
                of.name.clone() + &field.unwrap_or_else(|| at(offset))
            }
            (None, Some(&size)) if !lock.was_pending => {
                self.in_slab(&of.name, size, offset, bytes)?
            }
            _ => of.name.clone() + &at(offset),
        };
        self.known.insert(key, name.clone());
        Ok(LockName { kind, class: of.class, name })
    }

    fn in_slab(&self, cache: &str, size: u64, offset: u64, bytes: u64) -> Result<String> {
        let renamed = CACHES.iter().find(|(known, _)| *known == cache);
        let structure = renamed.map_or(cache, |(_, structure)| structure);
        let fits = |known: u64| (known..known + MOST_PADDING).contains(&size);
        let field = self.types.structure_field(structure, offset, bytes, fits)?;
        Ok(match field {
            None => format!("{cache}{}", at(offset)),
            Some(field) => format!("{structure}{}", outside(&field.path)),
        })
    }
}

fn structure<'a>(owners: &'a DataOwners, lock: &LockUses) -> Option<&'a Structure> {
    match lock.owner {
        MissOwner::Known(id) => owners.structures().get(id.0 as usize),
        MissOwner::Pending(_) => None,
    }
}

fn at(offset: u64) -> String {
    if offset == 0 { String::new() } else { format!("+{offset:#x}") }
}

/// The field without the parts within a lock: `.__lock` of `.__lock.raw_lock.val.counter`.
fn outside(path: &str) -> &str {
    let mut path = path;
    while let Some((before, last)) = path.rsplit_once('.')
        && (INSIDE.contains(&last) || last.is_empty())
    {
        path = before;
    }
    path
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

/// The size of objects from the places of their locks, one set for each function. `None`: no size
/// has more functions than any other.
fn size_of<'a>(places: impl Iterator<Item = &'a BTreeSet<u64>>) -> Option<u64> {
    let many = places.filter(|places| places.len() >= FEWEST);
    let sizes = many.map(|places| {
        let first = places.first().copied().unwrap_or(0);
        places.iter().fold(0, |size, place| common(size, place - first))
    });
    let mut votes = BTreeMap::<u64, usize>::new();
    sizes.filter(|&size| size >= SMALLEST).for_each(|size| *votes.entry(size).or_default() += 1);
    let most = votes.values().copied().max()?;
    let mut sizes = votes.into_iter().filter(|(_, votes)| *votes == most);
    let (size, _) = sizes.next()?;
    sizes.next().is_none().then_some(size)
}

/// The greatest common divisor.
fn common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_objects() {
        assert_eq!(size_in_name("kmalloc-192"), Some(192));
        assert_eq!(size_in_name("kmalloc-cg-2k"), Some(2048));
        assert_eq!(size_in_name("kmalloc-rnd-03-64"), Some(64));
        for other in ["dentry", "kmalloc-", "kmalloc-0", "kmalloc-99999999999999999999k"] {
            assert_eq!(size_in_name(other), None, "{other}");
        }
        let places = |size: u64, offset: u64, of: &[u64]| -> BTreeSet<u64> {
            of.iter().map(|number| number * size + offset).collect()
        };
        let many = [0, 1, 3, 4, 7, 8, 11, 20];
        let of = |sets: &[BTreeSet<u64>]| size_of(sets.iter());
        assert_eq!(of(&[places(192, 88, &many)]), Some(192));
        assert_eq!(of(&[places(192, 88, &many), places(192, 8, &many)]), Some(192));
        assert_eq!(of(&[places(192, 88, &many[..7])]), None, "too few");
        let twice = places(384, 8, &many);
        assert_eq!(of(&[places(192, 88, &many), places(192, 0, &many), twice]), Some(192));
        // A function takes fields at 0x58 and 0x78.
        let both = &places(192, 88, &many) | &places(192, 120, &many);
        let one_field = [places(192, 88, &many), places(192, 0, &many)];
        assert_eq!(of(&[both.clone(), one_field[0].clone(), one_field[1].clone()]), Some(192));
        assert_eq!(of(&[both, one_field[0].clone()]), None, "one says 32, one 192");
        let close = &places(192, 88, &many) | &places(192, 92, &many);
        assert_eq!(of(&[close]), None, "no objects have 4 bytes");
        let apart = [places(192, 88, &many), places(200, 8, &many)];
        assert_eq!(of(&apart), None, "they disagree");
    }

    #[test]
    fn fields_end_before_the_lock() {
        assert_eq!(outside(".__lock.raw_lock.val.counter"), ".__lock");
        assert_eq!(outside(".d_lockref.lock.rlock.raw_lock"), ".d_lockref.lock");
        assert_eq!(outside(".i_rwsem.count.counter"), ".i_rwsem");
        assert_eq!(outside(".rlock.raw_lock.val.counter"), "");
        assert_eq!(outside(""), "");
    }
}
