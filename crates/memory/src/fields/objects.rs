//! The objects of slab caches in a recording: their sizes and structures; and those of new memory.
//!
//! Input: the accesses of a recording, and the structures that its code says. Output:
//! [`KnownObjects`]. The name of a cache often is that of its structure. Code that accesses objects
//! of the cache confirms that, or contradicts: the kernel merges caches of one size, and the caches
//! of `kmalloc` hold many structures. Then the cache has none.

use super::KernelCode;
use super::cleared::{ClearStudy, ClearedObjects};
use super::sites::{SitePlace, TypedSites};
use crate::misses::owners::{DataOwners, StructureClass, StructureId};
use crate::misses::uses::FrameUses;
use crate::objects::names::VariableTypes;
use crate::objects::slabs::{SlabObjects, SlabPlaces};
use anyhow::{Result, ensure};
use execution::code::TranslatedCode;
use execution::data::DataWish;
use execution::executions::NoDataAccesses;
use execution::walk::{Observer, Piece, Wants};
use image::btf::fields::TypeNumber;
use std::collections::HashMap;
use trace::{Accesses, RecordingHeader, Translation};

/// The number of lines in the filter of [`ObjectStudy`].
const FILTER: usize = 1 << 13;
const LINE: u64 = 64;

/// The places of instructions, for each translation block.
#[derive(Default)]
pub(super) struct BlockSites(Vec<Box<[Option<SitePlace>]>>);

impl BlockSites {
    pub(super) fn define(&mut self, translation: &Translation, sites: &TypedSites) {
        let places = translation.code_by_instruction().map(|(addr, _)| sites.get(&addr.0).copied());
        self.0.push(if translation.is_kernel() { places.collect() } else { Box::default() });
    }

    #[inline]
    pub(super) fn get(&self, translation: u32, instruction: u16) -> Option<SitePlace> {
        *self.0[translation as usize].get(usize::from(instruction))?
    }
}

/// Where the code believes that objects of one structure begin, in the slabs of one cache.
#[derive(Clone, Copy)]
struct Believed {
    first: u64,
    step: u64,
    count: u64,
}

/// The objects of a recording, as far as they are known before it is counted.
pub(super) struct KnownObjects {
    pub slabs: SlabObjects,
    pub cleared: ClearedObjects,
}

/// Looks at objects, as an observer of a recording.
pub(super) struct ObjectStudy<'a> {
    owners: DataOwners,
    uses: FrameUses,
    sites: &'a TypedSites,
    blocks: BlockSites,
    clears: ClearStudy,
    places: SlabPlaces,
    believed: HashMap<(StructureId, TypeNumber), Believed>,
    /// By the low bits of a line's number: the line that was accessed last.
    filter: Box<[u64; FILTER]>,
}

impl<'a> ObjectStudy<'a> {
    pub(super) fn new(owners: DataOwners, code: &'a KernelCode) -> ObjectStudy<'a> {
        ObjectStudy {
            owners,
            uses: FrameUses::default(),
            sites: &code.sites,
            blocks: BlockSites::default(),
            clears: ClearStudy::new(&code.clearing),
            places: SlabPlaces::default(),
            believed: HashMap::new(),
            filter: Box::new([u64::MAX; FILTER]),
        }
    }

    /// The caches, and what new memory became.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    pub(super) fn finish(mut self, types: &VariableTypes<'_>) -> Result<KnownObjects> {
        let cleared = std::mem::take(&mut self.clears).finish(types.btf())?;
        Ok(KnownObjects { slabs: self.slabs(types)?, cleared })
    }

    fn slabs(self, types: &VariableTypes<'_>) -> Result<SlabObjects> {
        let mut objects = self.places.objects(self.owners.structures(), types)?;
        let Some(btf) = types.btf() else { return Ok(objects) };
        for (number, cache) in self.owners.structures().iter().enumerate() {
            let Some(bytes) = objects.bytes(&cache.name) else { continue };
            if cache.class != StructureClass::Slab {
                continue;
            }
            let id = StructureId(number as u32);
            // What is at one place of each object.
            let mut found: Vec<(TypeNumber, u64, u64)> = self
                .believed
                .iter()
                .filter(|((of, _), it)| *of == id && it.step % bytes == 0)
                .map(|((_, kind), it)| (*kind, it.first % bytes, it.count))
                .collect();
            found.sort_unstable();
            let all: u64 = found.iter().map(|(.., count)| count).sum();
            let agree = |kind: TypeNumber| -> Result<u64> {
                let mut sum = 0;
                for (other, offset, count) in &found {
                    let is_part = btf.places_within(kind, *other)?.contains(offset);
                    sum += if is_part { *count } else { 0 };
                }
                Ok(sum)
            };
            let named = objects.structure(&cache.name).map(|(_, kind, _)| kind);
            if let Some(kind) = named {
                if 2 * agree(kind)? < all {
                    objects.set_structure(&cache.name, None);
                }
                continue;
            }
            // Without a name: the largest structure that most code agrees with.
            let mut best = None;
            for (kind, ..) in found.iter().filter(|(_, offset, _)| *offset == 0) {
                let size = btf.size_of(*kind)?;
                if size <= bytes && 10 * agree(*kind)? > 9 * all {
                    best = best.max(Some((size, *kind)));
                }
            }
            let Some((size, kind)) = best else { continue };
            let is_general = cache.name.starts_with("kmalloc-");
            // A structure that fills less than half of the object is only its beginning.
            if !is_general && 2 * size > bytes {
                let name = btf.c_text(kind)?.trim_start_matches("struct ").to_owned();
                objects.set_structure(&cache.name, Some((name, kind, size)));
            }
        }
        Ok(objects)
    }
}

impl Observer for ObjectStudy<'_> {
    fn begin(&mut self, _: &RecordingHeader, has_data: bool) -> Result<Wants> {
        ensure!(has_data, NoDataAccesses);
        Ok(Wants { data: Some(DataWish::EVERY_ACCESS), ..Wants::default() })
    }

    fn define(&mut self, translations: &[Translation], _: &[TranslatedCode]) -> Result<()> {
        for translation in translations {
            self.blocks.define(translation, self.sites);
            self.clears.runs.define(translation);
        }
        Ok(())
    }

    fn stream(&mut self, accesses: &Accesses) {
        self.uses.stream(accesses, &mut self.owners, |_, _| {});
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        let Some(data) = &piece.data else { return Ok(()) };
        for (execution, accesses) in data.executed() {
            self.uses.executed(&mut self.owners, |_, _| {});
            let block = execution.translation.0;
            self.clears.runs.executed(block);
            let clears = self.clears.runs.clears(block);
            for access in accesses {
                let site = self.blocks.get(block, access.instruction);
                if clears && access.is_store {
                    self.clears.cleared(data.flow.virtual_address(access), access.size);
                } else if let Some(site) = site {
                    self.clears.typed(data.flow.virtual_address(access), site);
                }
                let physical = access.physical.0;
                let line = &mut self.filter[(physical / LINE) as usize % FILTER];
                if std::mem::replace(line, physical / LINE) == physical / LINE {
                    continue;
                }
                let Some((cache, first)) = self.owners.slab(physical >> 12) else { continue };
                let place = physical.saturating_sub(first << 12);
                let user = u64::from(block) << 16 | u64::from(access.instruction);
                self.places.add(cache, user, place);
                let Some(site) = site else { continue };
                let Some(base) = place.checked_sub(site.offset) else { continue };
                let new = Believed { first: base, step: 0, count: 0 };
                let known = self.believed.entry((cache, site.structure)).or_insert(new);
                known.count += 1;
                known.step = common(known.step, base.abs_diff(known.first));
            }
        }
        Ok(())
    }
}

/// The greatest common divisor.
fn common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common(b, a % b) }
}
