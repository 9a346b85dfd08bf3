//! Counts the accesses to the fields of one structure: by field, instruction, service and CPU.
//!
//! Input: a recording, and what is known of its objects. Output: counts. This module makes no names
//! of fields: a field is a place and a size that instructions access.

use super::resolve::{Asked, Located, Resolved, Resolver, TypedBy};
use super::together::{ServiceTrack, Uses};
use crate::misses::collector::accesses_only_a_stack;
use crate::misses::hierarchy_walk::{DataMiss, MissObserver};
use crate::misses::owners::{StructureClass, StructureId};
use crate::objects::names::VariableTypes;
use anyhow::{Result, ensure};
use execution::code::TranslatedCode;
use execution::data::DataWish;
use execution::executions::NoDataAccesses;
use execution::walk::{Observer, Piece, Wants};
use image::btf::fields::TypeNumber;
use services::stretches::StretchesWalk;
use sim::MissedLevels;
use std::collections::HashMap;
use trace::{Accesses, RecordingHeader, RunAddr, Task, Translation, TranslationId};

/// A place in the structure, and how many bytes are accessed there.
pub(super) type Part = (u64, u8);

/// The structure whose fields are counted.
#[derive(Clone)]
pub(super) struct Wanted<'a> {
    types: &'a VariableTypes<'a>,
    /// `None`: the objects of a slab cache without a structure.
    structure: Option<TypeNumber>,
    bytes: u64,
    /// Where it lies in other structures.
    within: HashMap<TypeNumber, Box<[u64]>>,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(
        types: &'a VariableTypes<'a>,
        structure: Option<TypeNumber>,
        bytes: u64,
    ) -> Wanted<'a> {
        Wanted { types, structure, bytes, within: HashMap::new() }
    }

    /// The beginning of the object of this structure that holds an access, and the place in it.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    #[inline]
    pub(super) fn hit(&mut self, located: &Located) -> Result<Option<(u64, u64)>> {
        let (Some(wanted), Some(of)) = (self.structure, located.structure) else {
            let is_object = self.structure.is_none() && located.structure.is_none();
            return Ok(is_object.then_some((located.base, located.offset)));
        };
        if wanted == of {
            // A slab cache may use bytes behind the structure.
            let is_object = matches!(located.by, TypedBy::Slab(_));
            let is_inside = is_object || located.offset < self.bytes;
            return Ok(is_inside.then_some((located.base, located.offset)));
        }
        if !self.within.contains_key(&of) {
            let places = match self.types.btf() {
                Some(btf) => btf.places_within(of, wanted)?,
                None => Vec::new(),
            };
            self.within.insert(of, places.into_boxed_slice());
        }
        let places = &self.within[&of];
        let before = places.partition_point(|&at| at <= located.offset);
        let found = before.checked_sub(1).map(|at| places[at]);
        let found = found.filter(|at| located.offset - at < self.bytes);
        Ok(found.map(|at| (located.base + at, located.offset - at)))
    }
}

/// The counts of one part of the structure.
#[derive(Clone, Debug, Default)]
pub(super) struct PartUses {
    pub part: Part,
    pub uses: Uses,
    /// Reads and writes by another CPU than the one that wrote last.
    pub from_other: Uses,
}

/// The kernel's accesses, by how their structure is known.
#[derive(Clone, Debug, Default)]
pub(super) struct TypedCounts {
    pub by: HashMap<TypedBy, u64>,
    /// By class, slab cache and translation block.
    pub untyped: HashMap<(StructureClass, Option<StructureId>, Option<u32>), u64>,
    pending: HashMap<u64, u64>,
    /// The frame of the last access to a pending frame, and how many there were since.
    last: (u64, u64),
}

impl TypedCounts {
    #[inline]
    fn pending(&mut self, frame: u64) {
        if self.last.0 != frame {
            self.flush();
            self.last.0 = frame;
        }
        self.last.1 += 1;
    }

    fn flush(&mut self) {
        if self.last.1 > 0 {
            *self.pending.entry(self.last.0).or_default() += std::mem::take(&mut self.last.1);
        }
    }
}

/// The counts, as an observer of a recording.
pub(super) struct FieldsWalk<'a> {
    resolver: Resolver<'a>,
    wanted: Wanted<'a>,
    pub stretches: StretchesWalk<'a, ServiceTrack>,
    /// By translation block: for each instruction, whether it accesses only a stack. Empty: user
    /// code.
    stack: Vec<Box<[bool]>>,
    /// By translation block: its address.
    pub addresses: Vec<RunAddr>,
    numbers: HashMap<Part, u32>,
    pub parts: Vec<PartUses>,
    pub sources: HashMap<TypedBy, Uses>,
    pub typed: TypedCounts,
    /// With several CPUs: which CPU wrote a part of an object last.
    writers: Option<HashMap<(u64, u32), u8>>,
    position: u64,
}

impl<'a> FieldsWalk<'a> {
    pub(super) fn new(
        resolver: Resolver<'a>,
        wanted: Wanted<'a>,
        stretches: StretchesWalk<'a, ServiceTrack>,
        cpus: u8,
    ) -> FieldsWalk<'a> {
        FieldsWalk {
            resolver,
            wanted,
            stretches,
            stack: Vec::new(),
            addresses: Vec::new(),
            numbers: HashMap::new(),
            parts: Vec::new(),
            sources: HashMap::new(),
            typed: TypedCounts::default(),
            writers: (cpus > 1).then(HashMap::new),
            position: 0,
        }
    }

    /// Names what is still pending. Returns the resolver, for names.
    pub(super) fn finish(&mut self) {
        self.typed.flush();
        let mut frames: Vec<(u64, u64)> = self.typed.pending.drain().collect();
        frames.sort_unstable();
        for (frame, count) in frames {
            let id = self.resolver.owners.settle(frame);
            settled(&self.resolver, &mut self.typed.untyped, id, count);
        }
    }

    pub(super) fn resolver(&self) -> &Resolver<'a> {
        &self.resolver
    }

    fn settle(&mut self, found: &mut Vec<(u64, StructureId)>) {
        self.typed.flush();
        for (frame, id) in found.drain(..) {
            if let Some(count) = self.typed.pending.remove(&frame) {
                settled(&self.resolver, &mut self.typed.untyped, id, count);
            }
        }
    }

    fn count(&mut self, located: &Located, hit: (u64, u64), access: &CountedAccess) {
        let part = (hit.1, access.size);
        let next = self.parts.len() as u32;
        let number = *self.numbers.entry(part).or_insert(next);
        if number == next {
            self.parts.push(PartUses { part, ..PartUses::default() });
        }
        let counted = &mut self.parts[number as usize];
        counted.uses.add(access.is_store, 1);
        if let Some(writers) = &mut self.writers {
            let last = match access.is_store {
                true => writers.insert((hit.0, number), access.cpu),
                false => writers.get(&(hit.0, number)).copied(),
            };
            if last.is_some_and(|last| last != access.cpu) {
                counted.from_other.add(access.is_store, 1);
            }
        }
        self.sources.entry(located.by).or_default().add(access.is_store, 1);
        let track = self.stretches.track_mut();
        track.accessed(access.position, number, hit, access.size, (access.code, access.is_store));
    }
}

fn settled(
    resolver: &Resolver<'_>,
    untyped: &mut HashMap<(StructureClass, Option<StructureId>, Option<u32>), u64>,
    id: StructureId,
    count: u64,
) {
    let class = resolver.owners.structures()[id.0 as usize].class;
    let cache = (class == StructureClass::Slab).then_some(id);
    *untyped.entry((class, cache, None)).or_default() += count;
}

struct CountedAccess {
    size: u8,
    is_store: bool,
    cpu: u8,
    code: u64,
    position: u64,
}

impl Observer for FieldsWalk<'_> {
    fn begin(&mut self, header: &RecordingHeader, has_data: bool) -> Result<Wants> {
        ensure!(has_data, NoDataAccesses);
        self.stretches.begin(header, has_data)?;
        Ok(Wants { data: Some(DataWish::EVERY_ACCESS), ..Wants::default() })
    }

    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()> {
        for translation in translations {
            self.resolver.define(translation);
            self.addresses.push(translation.addr);
            let stack =
                translation.code_by_instruction().map(|(_, code)| accesses_only_a_stack(code));
            self.stack.push(if translation.is_kernel() { stack.collect() } else { Box::default() });
        }
        self.stretches.define(translations, codes)
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.stretches.define_tasks(tasks);
    }

    fn stream(&mut self, accesses: &Accesses) {
        let mut found = Vec::new();
        self.resolver.stream(accesses, |frame, id| found.push((frame, id)));
        self.settle(&mut found);
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        let Some(data) = &piece.data else { return self.stretches.piece(piece) };
        let mut found = Vec::new();
        for (execution, accesses) in data.executed() {
            self.resolver.executed(execution.translation.0, |frame, id| found.push((frame, id)));
            if !found.is_empty() {
                self.settle(&mut found);
            }
            let translation = execution.translation.0;
            let code = &piece.codes[translation as usize];
            let start = self.position;
            let left = u64::from(execution.left);
            self.position += if left > 0 { left } else { code.lengths.len() as u64 };
            if self.stack[translation as usize].is_empty() {
                continue;
            }
            for access in accesses {
                let asked = Asked::of(data, access, translation);
                let stack = self.stack[translation as usize].get(usize::from(access.instruction));
                if stack == Some(&true) {
                    self.resolver.owners.is_a_stack(asked.addr, asked.physical >> 12);
                }
                match self.resolver.resolve(&asked)? {
                    Resolved::Untyped(class, cache) => {
                        let key = (class, cache, Some(translation));
                        *self.typed.untyped.entry(key).or_default() += 1;
                    }
                    Resolved::Pending(frame) => self.typed.pending(frame),
                    Resolved::In(located) => {
                        *self.typed.by.entry(located.by).or_default() += 1;
                        if let Some(hit) = self.wanted.hit(&located)? {
                            let counted = CountedAccess {
                                size: access.size,
                                is_store: access.is_store,
                                cpu: execution.cpu.0,
                                code: code.addr_of(access.instruction).0,
                                position: start + u64::from(access.instruction),
                            };
                            self.count(&located, hit, &counted);
                        }
                    }
                }
            }
        }
        self.stretches.piece(piece)
    }
}

/// Counts misses on a machine, by part of the structure.
pub(super) struct FieldMisses<'a> {
    pub resolver: Resolver<'a>,
    pub wanted: Wanted<'a>,
    current: u32,
    kernel: Vec<bool>,
    /// Misses of the L1D, and those that the L2 missed.
    pub misses: HashMap<Part, [u64; 2]>,
    pub sources: HashMap<TypedBy, u64>,
    /// Those of the kernel on all data.
    pub all: [u64; 2],
}

impl<'a> FieldMisses<'a> {
    pub(super) fn new(resolver: Resolver<'a>, wanted: Wanted<'a>) -> FieldMisses<'a> {
        FieldMisses {
            resolver,
            wanted,
            current: 0,
            kernel: Vec::new(),
            misses: HashMap::new(),
            sources: HashMap::new(),
            all: [0; 2],
        }
    }
}

impl MissObserver for FieldMisses<'_> {
    fn define(&mut self, translation: &Translation) {
        self.resolver.define(translation);
        self.kernel.push(translation.is_kernel());
    }

    fn stream(&mut self, accesses: &Accesses) {
        self.resolver.stream(accesses, |_, _| {});
    }

    fn executed(&mut self, translation: TranslationId, _: Option<u32>) {
        self.current = translation.0;
        self.resolver.executed(translation.0, |_, _| {});
    }

    fn fetch_missed(&mut self, _: usize, _: RunAddr, _: MissedLevels) {}

    fn data_missed(&mut self, _: usize, miss: &DataMiss, levels: MissedLevels) {
        if !self.kernel[self.current as usize] {
            return;
        }
        let counted = [1, u64::from(levels.l2.is_some())];
        let add =
            |sum: &mut [u64; 2]| (sum[0], sum[1]) = (sum[0] + counted[0], sum[1] + counted[1]);
        add(&mut self.all);
        // An access across a line's end belongs to its first byte. Its last line may be in the next
        // page, of another frame.
        let before = miss.addr - miss.start;
        let asked = Asked {
            addr: miss.start,
            physical: miss.physical.0 - before,
            translation: self.current,
            instruction: miss.instruction,
        };
        // Damaged BTF ends the walk that counts accesses.
        let Ok(Resolved::In(located)) = self.resolver.resolve(&asked) else { return };
        if let Ok(Some((_, offset))) = self.wanted.hit(&located) {
            add(self.misses.entry((offset, miss.size)).or_default());
            *self.sources.entry(located.by).or_default() += 1;
        }
    }
}
