//! The first pass: what coherence costs on each line.
//!
//! Input: a recording and a machine. Output: lines by cost, the log of all requests, and where slab
//! objects are accessed. A line takes about 40 bytes. The map holds [`MOST_LINES`] lines at most;
//! the cost of all others is one sum.

use super::caches::SharedMachine;
use super::costs::{self, LineCosts, OrderedTotals};
use anyhow::Result;
use execution::coherent_walk::StepEditor;
use execution::data::{DataAccess, DataFlow, Execution};
use execution::served_log::ServedLog;
use memory::misses::owners::{DataOwners, Structure};
use memory::objects::names::VariableTypes;
use memory::objects::slabs::{SlabFrames, SlabObjects, SlabPlaces};
use std::io::Read;
use trace::{Accesses, RecordingReader};

/// The largest number of lines that are ranked: as many as 512 MB of shared memory have, with lines
/// of 64 bytes. These lines take less than 400 MB.
pub(super) const MOST_LINES: usize = 1 << 23;

/// What coherence costs.
pub(crate) struct Ranking {
    /// The numbers of lines, with the cycles of their coherence misses and upgrades; descending by
    /// cycles. A line's number is its physical address divided by its size.
    pub lines: Vec<(u64, f64)>,
    /// The cycles of lines that were not ranked.
    pub unranked: f64,
    /// A physical address behind all data.
    pub end: u64,
    /// What all lines cost.
    pub totals: OrderedTotals,
    /// The requests of all executions.
    pub log: ServedLog,
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

/// The number of lines in the filter of [`SlabUses`].
const FILTER: usize = 1 << 13;

/// Where instructions access objects of slab caches. An access to a line that was accessed not long
/// ago tells little, and is left out.
struct SlabUses {
    frames: SlabFrames,
    places: SlabPlaces,
    /// By the low bits of a line's number: the line that was accessed last.
    filter: Box<[u64; FILTER]>,
    line_log2: u32,
}

impl StepEditor for SlabUses {
    fn stream(&mut self, accesses: &Accesses) {
        self.frames.stream(accesses);
    }

    #[inline]
    fn executed(&mut self, execution: &Execution, accesses: &mut [DataAccess], _: &DataFlow) {
        self.frames.executed();
        for access in accesses {
            let line = access.physical.0 >> self.line_log2;
            let last = &mut self.filter[line as usize % FILTER];
            if std::mem::replace(last, line) != line
                && let Some((cache, place)) = self.frames.place(access.physical.0)
            {
                let block = u64::from(execution.translation.0);
                self.places.add(cache, block << 16 | u64::from(access.instruction), place);
            }
        }
    }
}

/// Ranks the lines of a recording, at most `most` of them. `owners`: to look for objects of slab
/// caches.
///
/// # Errors
/// As [`SharedMachine::simulate`].
pub(super) fn rank<R: Read>(
    reader: RecordingReader<R>,
    machine: &SharedMachine<'_>,
    most: usize,
    owners: DataOwners,
) -> Result<Ranking> {
    let slabs = SlabUses {
        frames: SlabFrames::new(owners),
        places: SlabPlaces::default(),
        filter: Box::new([u64::MAX; FILTER]),
        line_log2: machine.line_log2(),
    };
    let (totals, costs, slabs) = costs::run(reader, machine, slabs, most, true)?;
    let LineCosts { lines, unkept, end, log, .. } = costs;
    let mut lines: Vec<(u64, f64)> = lines.into_iter().collect();
    lines.sort_by(|(a, a_cycles), (b, b_cycles)| b_cycles.total_cmp(a_cycles).then(a.cmp(b)));
    Ok(Ranking {
        lines,
        unranked: unkept,
        end: end + 1,
        totals,
        log: log.unwrap_or_default(),
        structures: slabs.frames.structures().to_vec(),
        places: slabs.places,
    })
}
