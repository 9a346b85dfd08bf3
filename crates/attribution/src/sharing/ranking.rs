//! The first pass: what coherence costs on each line.
//!
//! Input: a recording and a machine. Output: lines by cost. A line takes about 40 bytes. The map
//! holds [`MOST_LINES`] lines at most; the cost of all others is one sum.

use super::caches::{MovedRange, Request, SharedMachine, SharingObserver};
use super::counts::RequestCosts;
use anyhow::Result;
use sim::PerMode;
use sim::coherent::{CoherentAccess, CoreCounters};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Read;
use trace::RecordingReader;

/// The largest number of lines that are ranked: 512 MB of memory in lines of 64 bytes, of which
/// each byte is shared. They take less than 400 MB.
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
    /// By CPU.
    pub cpus: Vec<PerMode<CoreCounters>>,
}

struct LineCosts {
    costs: RequestCosts,
    line_log2: u32,
    lines: HashMap<u64, f64>,
    most: usize,
    cycles: f64,
    unranked: f64,
    end: u64,
}

impl SharingObserver for LineCosts {
    #[inline]
    fn served(&mut self, request: Request, by: CoherentAccess) {
        self.end = self.end.max(request.physical.0);
        let Some((_, cycles)) = self.costs.of_sharing(by.served) else { return };
        self.cycles += cycles;
        let number = request.physical.0 >> self.line_log2;
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

/// Ranks the lines of a recording, at most `most` of them.
///
/// # Errors
/// As [`SharedMachine::run`].
pub(super) fn rank<R: Read>(
    reader: &mut RecordingReader<R>,
    machine: &SharedMachine<'_>,
    moved: &[MovedRange],
    most: usize,
) -> Result<Ranking> {
    let mut ranked = LineCosts {
        costs: machine.costs,
        line_log2: machine.line_log2(),
        lines: HashMap::new(),
        most,
        cycles: 0.0,
        unranked: 0.0,
        end: 0,
    };
    let cpus = machine.run(reader, moved, &mut ranked)?;
    let LineCosts { lines, cycles, unranked, end, .. } = ranked;
    let mut lines: Vec<(u64, f64)> = lines.into_iter().collect();
    lines.sort_by(|(a, a_cycles), (b, b_cycles)| b_cycles.total_cmp(a_cycles).then(a.cmp(b)));
    Ok(Ranking { lines, cycles, unranked, end: end + 1, cpus })
}
