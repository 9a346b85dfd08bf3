//! The simulated places of data that moves to lines of its own.
//!
//! Input: ranges of virtual addresses, and fields of slab objects. Output: the physical address at
//! which an access is simulated. The fields of objects get their lines at their first use, one
//! behind the other. This module knows no names but those of slab caches.

use execution::coherent_walk::StepEditor;
use execution::data::{DataAccess, DataFlow, Execution};
use memory::misses::owners::{StructureClass, StructureId};
use memory::objects::slabs::SlabFrames;
use sim::PhysAddr;
use std::collections::HashMap;
use std::ops::Range;
use trace::Accesses;

/// The bytes of a word. Data moves by a multiple of it.
pub(super) const WORD: u64 = 8;

/// Virtual addresses whose data is simulated at other physical addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MovedRange {
    pub from: Range<u64>,
    /// The physical address of the first byte.
    pub to: u64,
}

/// A field of all objects of a slab cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MovedField {
    pub cache: String,
    /// The bytes of an object.
    pub object: u64,
    /// Where the field lies in the object.
    pub field: Range<u64>,
}

/// A field that moves, and the objects whose field has moved.
struct FieldLines {
    moved: MovedField,
    /// The number of the cache; `None` until the recording names the cache.
    cache: Option<StructureId>,
    /// The new physical address of the field, by the physical address of the object.
    lines: HashMap<u64, u64>,
}

/// The simulated places of data that does not stay at its place.
pub(super) struct MovedPlaces {
    ranges: Vec<MovedRange>,
    fields: Vec<FieldLines>,
    /// `None`: no field of slab objects moves.
    frames: Option<SlabFrames>,
    line_bytes: u64,
    /// The physical address behind all that has moved.
    end: u64,
}

impl MovedPlaces {
    /// `end`: a physical address at a line's beginning, behind all data and all `ranges`.
    pub(super) fn new(
        ranges: Vec<MovedRange>,
        fields: Vec<MovedField>,
        frames: SlabFrames,
        line_bytes: u64,
        end: u64,
    ) -> MovedPlaces {
        let frames = (!fields.is_empty()).then_some(frames);
        let fields = fields.into_iter();
        let fields = fields.map(|moved| FieldLines { moved, cache: None, lines: HashMap::new() });
        MovedPlaces { ranges, fields: fields.collect(), frames, line_bytes, end }
    }

    /// The number of objects whose field has moved, by field.
    pub(super) fn objects(&self) -> impl Iterator<Item = u64> {
        self.fields.iter().map(|field| field.lines.len() as u64)
    }

    /// The physical address at which an access is simulated.
    #[inline]
    fn place(&mut self, addr: u64, physical: u64) -> u64 {
        if let Some(moved) = self.ranges.iter().find(|moved| moved.from.contains(&addr)) {
            return moved.to + (addr - moved.from.start);
        }
        self.in_slab(physical).unwrap_or(physical)
    }

    fn in_slab(&mut self, physical: u64) -> Option<u64> {
        let (cache, place) = self.frames.as_ref()?.place(physical)?;
        for FieldLines { moved, cache: of, lines } in &mut self.fields {
            let offset = place % moved.object;
            if *of != Some(cache) || !moved.field.contains(&offset) {
                continue;
            }
            let before = moved.field.start % WORD;
            let bytes = moved.field.end - moved.field.start + before;
            let bytes = bytes.next_multiple_of(self.line_bytes);
            let start = *lines.entry(physical - offset).or_insert_with(|| {
                self.end += bytes;
                self.end - bytes
            });
            return Some(start + before + (offset - moved.field.start));
        }
        None
    }
}

impl StepEditor for MovedPlaces {
    fn stream(&mut self, accesses: &Accesses) {
        let Some(frames) = &mut self.frames else { return };
        frames.stream(accesses);
        for field in self.fields.iter_mut().filter(|field| field.cache.is_none()) {
            let known = frames.structures().iter().position(|structure| {
                structure.class == StructureClass::Slab && structure.name == field.moved.cache
            });
            field.cache = known.map(|number| StructureId(number as u32));
        }
    }

    fn executed(&mut self, _: &Execution, accesses: &mut [DataAccess], flow: &DataFlow) {
        if let Some(frames) = &mut self.frames {
            frames.executed();
        }
        for access in accesses {
            let place = self.place(flow.virtual_address(access), access.physical.0);
            access.physical = PhysAddr(place);
        }
    }
}
