//! Names locks: by symbol and field, or by slab cache and the place in its objects.
//!
//! The locks themselves show where the objects of a slab cache begin, through the functions that
//! take them ([`crate::sharing::slabs`]).
//!
//! Input: locks with their addresses and owners. Output: names. This module counts nothing.

use super::book::LockUses;
use super::functions::LockKind;
use anyhow::Result;
use memory::misses::owners::{DataOwners, MissOwner, Structure, StructureClass};
use memory::objects::names::VariableTypes;
use memory::objects::slabs::{SlabObjects, SlabPlaces};
use std::collections::BTreeMap;

/// `sizeof(struct page)` on x86-64 without debugging options.
const STRUCT_PAGE: u64 = 64;
/// The last parts of a field's path that lie within a lock and say nothing more about the field.
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
    slabs: SlabObjects,
    /// Names that were found, by slab cache or symbol, offset and bytes.
    known: BTreeMap<(StructureClass, String, u64, u64), String>,
}

impl<'a> LockNames<'a> {
    /// `uses`: all locks of a recording.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    pub(super) fn new(
        owners: &'a DataOwners,
        types: &'a VariableTypes<'a>,
        uses: &[LockUses],
    ) -> Result<LockNames<'a>> {
        let mut places = SlabPlaces::default();
        for lock in uses.iter().filter(|lock| !lock.was_pending) {
            if let (MissOwner::Known(id), Some(&(function, _))) =
                (lock.owner, lock.functions.first())
            {
                let user = (lock.kind as u64) << 32 | u64::from(function);
                places.add(id, user, lock.physical.saturating_sub(lock.pages));
            }
        }
        let slabs = places.objects(owners.structures(), types)?;
        Ok(LockNames { owners, types, slabs, known: BTreeMap::new() })
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
        let is_slab = of.class == StructureClass::Slab && !lock.was_pending;
        let size = self.slabs.bytes(&of.name).filter(|_| is_slab);
        let offset = match (&object, size) {
            (Some(object), _) => lock.addr - object.start,
            (None, Some(size)) => lock.physical.saturating_sub(lock.pages) % size,
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
            (None, Some(_)) => self.in_slab(&of.name, offset, bytes)?,
            _ => of.name.clone() + &at(offset),
        };
        self.known.insert(key, name.clone());
        Ok(LockName { kind, class: of.class, name })
    }

    fn in_slab(&self, cache: &str, offset: u64, bytes: u64) -> Result<String> {
        let field = self.slabs.field(self.types, cache, offset, bytes)?;
        Ok(match field {
            None => format!("{cache}{}", at(offset)),
            Some((structure, field)) => format!("{structure}{}", outside(&field.path)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_end_before_the_lock() {
        assert_eq!(outside(".__lock.raw_lock.val.counter"), ".__lock");
        assert_eq!(outside(".d_lockref.lock.rlock.raw_lock"), ".d_lockref.lock");
        assert_eq!(outside(".i_rwsem.count.counter"), ".i_rwsem");
        assert_eq!(outside(".rlock.raw_lock.val.counter"), "");
        assert_eq!(outside(""), "");
    }
}
