//! The structure and the object that an access belongs to.
//!
//! Input: accesses in their order, and what is known of slab caches and code. Output: for each
//! access its structure, the object's beginning and the place in it; or the class of memory without
//! a structure. An object of a slab cache with a structure comes first, then a variable with a type
//! in BTF, then what the code of the instruction says, then what code finds in memory after it was
//! cleared.

use super::cleared::{ClearRuns, ClearedObjects};
use super::objects::{BlockSites, KnownObjects};
use super::sites::TypedSites;
use crate::misses::owners::{DataOwners, DataPlace, StructureClass, StructureId};
use crate::misses::uses::FrameUses;
use crate::objects::names::VariableTypes;
use crate::objects::slabs::SlabObjects;
use anyhow::Result;
use execution::data::DataAccess;
use execution::walk::PieceData;
use image::btf::fields::TypeNumber;
use std::collections::HashMap;
use trace::{Accesses, Translation};

/// How an access got its structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum TypedBy {
    /// Its slab cache.
    Slab(StructureId),
    /// The variable at this address, or of each CPU at this offset.
    Variable(u64, bool),
    /// The array of `struct page`.
    Page,
    /// The code of the instruction; the class of the memory, and its slab cache.
    Code(StructureClass, Option<StructureId>),
    /// The code that accessed the memory after it was cleared; likewise.
    LaterCode(StructureClass, Option<StructureId>),
}

/// An object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Located {
    /// `None`: an object of a slab cache whose structure is not known.
    pub structure: Option<TypeNumber>,
    /// The address of its first byte.
    pub base: u64,
    pub offset: u64,
    pub by: TypedBy,
}

/// Where an access lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolved {
    /// In this object.
    In(Located),
    /// In memory of this class, whose structure is not known.
    Untyped(StructureClass, Option<StructureId>),
    /// In this frame, whose use will be known later.
    Pending(u64),
}

/// An access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub addr: u64,
    pub physical: u64,
    pub translation: u32,
    pub instruction: u16,
}

impl Asked {
    /// An access of a translation block.
    pub(super) fn of(data: &PieceData<'_>, access: &DataAccess, translation: u32) -> Asked {
        Asked {
            addr: data.flow.virtual_address(access),
            physical: access.physical.0,
            translation,
            instruction: access.instruction,
        }
    }
}

#[derive(Clone, Copy)]
struct CacheObjects {
    bytes: Option<u64>,
    structure: Option<(TypeNumber, u64)>,
}

/// Finds objects while a recording runs.
pub(super) struct Resolver<'a> {
    pub owners: DataOwners,
    uses: FrameUses,
    types: &'a VariableTypes<'a>,
    slabs: &'a SlabObjects,
    sites: &'a TypedSites,
    blocks: BlockSites,
    cleared: &'a ClearedObjects,
    runs: ClearRuns,
    /// By the number of the structure.
    caches: Vec<Option<CacheObjects>>,
    /// By the variable's address or offset, and whether each CPU has one.
    variables: HashMap<(u64, bool), Option<TypeNumber>>,
    page: Option<(TypeNumber, u64)>,
    /// The slab cache whose objects are wanted although they may have no structure.
    wanted: Option<String>,
}

impl<'a> Resolver<'a> {
    /// `wanted`: a slab cache whose objects are found although they have no structure.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    pub(super) fn new(
        owners: DataOwners,
        types: &'a VariableTypes<'a>,
        known: &'a KnownObjects,
        sites: &'a TypedSites,
        wanted: Option<String>,
    ) -> Result<Resolver<'a>> {
        Ok(Resolver {
            owners,
            uses: FrameUses::default(),
            page: types.structure("page")?,
            types,
            slabs: &known.slabs,
            sites,
            blocks: BlockSites::default(),
            cleared: &known.cleared,
            runs: ClearRuns::new(&known.cleared.code),
            caches: Vec::new(),
            variables: HashMap::new(),
            wanted,
        })
    }

    pub(super) fn define(&mut self, translation: &Translation) {
        self.blocks.define(translation, self.sites);
        self.runs.define(translation);
    }

    /// A stream begins. `settled`: as for [`DataOwners::change`].
    pub(super) fn stream(&mut self, accesses: &Accesses, settled: impl FnMut(u64, StructureId)) {
        self.uses.stream(accesses, &mut self.owners, settled);
    }

    /// The next execution begins, of this translation block.
    #[inline]
    pub(super) fn executed(&mut self, translation: u32, settled: impl FnMut(u64, StructureId)) {
        self.runs.executed(translation);
        self.uses.executed(&mut self.owners, settled);
    }

    fn cache(&mut self, id: StructureId) -> CacheObjects {
        let at = id.0 as usize;
        if self.caches.len() <= at {
            self.caches.resize(at + 1, None);
        }
        if let Some(known) = self.caches[at] {
            return known;
        }
        let name = &self.owners.structures()[at].name;
        let structure = self.slabs.structure(name).map(|(_, kind, bytes)| (kind, bytes));
        let found = CacheObjects { bytes: self.slabs.bytes(name), structure };
        self.caches[at] = Some(found);
        found
    }

    /// Where an access of the kernel lies.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    #[inline]
    pub(super) fn resolve(&mut self, asked: &Asked) -> Result<Resolved> {
        let (class, cache) = match self.owners.place(asked.addr, asked.physical >> 12) {
            DataPlace::Slab { cache, first } => {
                let place = asked.physical.saturating_sub(first << 12);
                let of = self.cache(cache);
                if let Some(bytes) = of.bytes {
                    let offset = place % bytes;
                    let located = Located {
                        structure: of.structure.map(|(kind, _)| kind),
                        base: asked.addr - offset,
                        offset,
                        by: TypedBy::Slab(cache),
                    };
                    let is_wanted = self.wanted.is_some()
                        && self.wanted.as_ref()
                            == self.owners.structures().get(cache.0 as usize).map(|it| &it.name);
                    if is_wanted || of.structure.is_some() {
                        return Ok(Resolved::In(located));
                    }
                }
                (StructureClass::Slab, Some(cache))
            }
            DataPlace::Object { start, variable, per_cpu } => {
                let key = (variable.0, per_cpu);
                let known = match self.variables.get(&key) {
                    Some(known) => *known,
                    None => {
                        let found = self.types.of_variable(&variable.2)?;
                        self.variables.insert(key, found);
                        found
                    }
                };
                if known.is_some() {
                    let by = TypedBy::Variable(key.0, key.1);
                    let offset = asked.addr - start;
                    return Ok(Resolved::In(Located { structure: known, base: start, offset, by }));
                }
                (if per_cpu { StructureClass::PerCpu } else { StructureClass::Static }, None)
            }
            DataPlace::Class(StructureClass::StructPage) => {
                if let Some((kind, bytes)) = self.page {
                    let offset = asked.physical % bytes.max(1);
                    let (structure, base) = (Some(kind), asked.addr - offset);
                    return Ok(Resolved::In(Located {
                        structure,
                        base,
                        offset,
                        by: TypedBy::Page,
                    }));
                }
                (StructureClass::StructPage, None)
            }
            DataPlace::Class(class) => (class, None),
            DataPlace::Frame(frame) => match self.owners.class_of_frame(frame) {
                Some(class) => (class, None),
                None => match self.by_code(asked, StructureClass::Held, None) {
                    Some(located) => return Ok(Resolved::In(located)),
                    None => return Ok(Resolved::Pending(frame)),
                },
            },
        };
        let located = self.by_code(asked, class, cache);
        Ok(located.map_or(Resolved::Untyped(class, cache), Resolved::In))
    }

    #[inline]
    fn by_code(
        &self,
        asked: &Asked,
        class: StructureClass,
        cache: Option<StructureId>,
    ) -> Option<Located> {
        let Some(site) = self.blocks.get(asked.translation, asked.instruction) else {
            return self.by_later_code(asked, class, cache);
        };
        Some(Located {
            structure: Some(site.structure),
            base: asked.addr.wrapping_sub(site.offset),
            offset: site.offset,
            by: TypedBy::Code(class, cache),
        })
    }

    fn by_later_code(
        &self,
        asked: &Asked,
        class: StructureClass,
        cache: Option<StructureId>,
    ) -> Option<Located> {
        if !self.runs.clears(asked.translation) {
            return None;
        }
        let (structure, base) = self.cleared.structure(&self.runs, asked.addr)?;
        Some(Located {
            structure: Some(structure),
            base,
            offset: asked.addr - base,
            by: TypedBy::LaterCode(class, cache),
        })
    }

    /// The name of what gave the structure, and its class.
    pub(super) fn source(&self, by: TypedBy) -> (&'static str, String) {
        let cache = |id: StructureId| self.owners.structures()[id.0 as usize].name.clone();
        match by {
            TypedBy::Slab(id) => (StructureClass::Slab.title(), cache(id)),
            TypedBy::Variable(at, per_cpu) => {
                let variables = self.owners.variables();
                let found = match per_cpu {
                    true => variables.per_cpu_variable(at),
                    false => variables.image_variable(at),
                };
                let class = if per_cpu { StructureClass::PerCpu } else { StructureClass::Static };
                (class.title(), found.map(|(.., name)| name.clone()).unwrap_or_default())
            }
            TypedBy::Page => (StructureClass::StructPage.title(), String::new()),
            TypedBy::Code(class, id) | TypedBy::LaterCode(class, id) => {
                (class.title(), id.map(cache).unwrap_or_default())
            }
        }
    }
}
