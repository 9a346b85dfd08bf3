//! The first pass: what coherence costs on each line.
//!
//! Input: a recording and a machine. Output: lines by cost, what each translation block asked for,
//! and where slab objects were accessed. A line takes about 40 bytes. The map holds [`MOST_LINES`]
//! lines at most; the cost of all others is one sum.

use super::caches::{DataUse, Request, SharedMachine, SharingObserver};
use super::counts::RequestCosts;
use super::functions::BlockMisses;
use super::moved::MovedPlaces;
use super::names::VariableTypes;
use super::slabs::{SlabFrames, SlabObjects, SlabPlaces};
use anyhow::Result;
use execution::executions::Executed;
use memory::misses::owners::{DataOwners, Structure};
use sim::PerMode;
use sim::coherent::{CoherentAccess, CoreCounters, Served};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Read;
use trace::{Accesses, RecordingReader, Translation};

/// The largest number of lines that are ranked: as many as 512 MB of shared memory have, with lines
/// of 64 bytes. These lines take less than 400 MB.
pub(super) const MOST_LINES: usize = 1 << 23;

/// What coherence costs.
pub(crate) struct Ranking {
    /// The numbers of lines, with the cycles of their coherence misses and upgrades; descending by
    /// cycles. A line's number is its physical address divided by its size.
    pub lines: Vec<(u64, f64)>,
    /// The cycles of all lines.
    pub cycles: f64,
    /// The cycles of lines that were not ranked.
    pub unranked: f64,
    /// A physical address behind all data.
    pub end: u64,
    /// The counters of each CPU.
    pub cpus: Vec<PerMode<CoreCounters>>,
    /// What translation blocks asked for.
    pub(super) blocks: BlockMisses,
    /// Where slab objects were accessed, by instruction.
    places: SlabPlaces,
    /// The data structures of the recording, by their numbers.
    structures: Vec<Structure>,
}

impl Ranking {
    /// What the recording says about the objects of slab caches.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    pub(super) fn slab_objects(&self, types: &VariableTypes<'_>) -> Result<SlabObjects> {
        self.places.objects(&self.structures, types)
    }
}

/// Where instructions miss objects of slab caches. A miss is enough: every object misses once.
struct SlabMisses {
    frames: SlabFrames,
    places: SlabPlaces,
    /// The instruction that accesses data, and the physical address.
    current: (u64, u64),
}

impl SlabMisses {
    fn missed(&mut self) {
        let (instruction, physical) = self.current;
        if let Some((cache, place)) = self.frames.place(physical) {
            self.places.add(cache, instruction, place);
        }
    }
}

struct LineCosts {
    costs: RequestCosts,
    line_log2: u32,
    lines: HashMap<u64, f64>,
    most: usize,
    cycles: f64,
    unranked: f64,
    end: u64,
    blocks: BlockMisses,
    /// `None`: the pass does not look for objects of slab caches.
    slabs: Option<SlabMisses>,
}

impl SharingObserver for LineCosts {
    fn define(&mut self, translation: &Translation) {
        self.blocks.define(translation);
    }

    fn stream(&mut self, accesses: &Accesses) {
        self.slabs.iter_mut().for_each(|slabs| slabs.frames.stream(accesses));
    }

    #[inline]
    fn executed(&mut self, executed: &Executed<'_>) {
        self.blocks.executed(executed.execution.translation);
        self.slabs.iter_mut().for_each(|slabs| slabs.frames.executed());
    }

    #[inline]
    fn uses(&mut self, used: &DataUse<'_>) {
        if let Some(slabs) = &mut self.slabs {
            let (block, access) = (used.executed.execution.translation, used.access);
            let instruction = u64::from(block.0) << 16 | u64::from(access.instruction);
            slabs.current = (instruction, access.physical.0);
        }
    }

    #[inline]
    fn served(&mut self, request: Request, by: CoherentAccess) {
        self.end = self.end.max(request.physical.0);
        if let Some(slabs) = &mut self.slabs
            && !request.is_fetch
            && !matches!(by.served, Served::L1 | Served::L2)
        {
            slabs.missed();
        }
        let number = request.physical.0 >> self.line_log2;
        self.blocks.served(request, number, by, &self.costs);
        let Some((_, cycles)) = self.costs.of_sharing(by.served) else { return };
        self.cycles += cycles;
        let has_room = self.lines.len() < self.most;
        match self.lines.entry(number) {
            Entry::Occupied(mut cost) => *cost.get_mut() += cycles,
            Entry::Vacant(place) if has_room => {
                place.insert(cycles);
            }
            Entry::Vacant(_) => self.unranked += cycles,
        }
    }
}

/// Ranks the lines of a recording, at most `most` of them. `owners`: to look for objects of slab
/// caches.
///
/// # Errors
/// As [`SharedMachine::run`].
pub(super) fn rank<R: Read>(
    reader: RecordingReader<R>,
    machine: &SharedMachine<'_>,
    moved: &mut MovedPlaces,
    most: usize,
    owners: Option<DataOwners>,
) -> Result<Ranking> {
    let slabs = owners.map(|owners| SlabMisses {
        frames: SlabFrames::new(owners),
        places: SlabPlaces::default(),
        current: (0, 0),
    });
    let mut ranked = LineCosts {
        costs: machine.costs,
        line_log2: machine.line_log2(),
        lines: HashMap::new(),
        most,
        cycles: 0.0,
        unranked: 0.0,
        end: 0,
        blocks: BlockMisses::default(),
        slabs,
    };
    let cpus = machine.run_with(reader, moved, &mut ranked)?;
    let LineCosts { lines, cycles, unranked, end, blocks, slabs, .. } = ranked;
    let (places, structures) = match slabs {
        Some(slabs) => (slabs.places, slabs.frames.structures().to_vec()),
        None => (SlabPlaces::default(), Vec::new()),
    };
    let mut lines: Vec<(u64, f64)> = lines.into_iter().collect();
    lines.sort_by(|(a, a_cycles), (b, b_cycles)| b_cycles.total_cmp(a_cycles).then(a.cmp(b)));
    Ok(Ranking { lines, cycles, unranked, end: end + 1, cpus, blocks, places, structures })
}
