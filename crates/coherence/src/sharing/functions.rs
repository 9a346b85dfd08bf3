//! What functions asked for outside of the L1: misses of the L2 by class, upgrades, and stalls.
//!
//! Input: who served each access, and the translation block that asked. Output: a row for each
//! function. Counts are kept by block, so that memory does not grow with the recording.

use super::caches::Request;
use super::counts::{LineCounts, RequestCosts};
use memory::misses::collector::function_at;
use serde::Serialize;
use services::symbols::KernelSymbols;
use sim::coherent::{CoherentAccess, MissClass, Served};
use std::collections::{BTreeMap, HashMap};
use trace::{RunAddr, Translation, TranslationId};

/// What a function asked for, including its fetches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionRow {
    /// The function's name, without what compilers append. All user code is one row.
    pub function: String,
    /// Misses of the L2 and upgrades.
    pub counts: LineCounts,
    /// The cycles for which caches and TLBs stop the CPU in the function: those of the counts, and
    /// of all other misses.
    pub stalls: f64,
}

struct BlockCounts {
    addr: RunAddr,
    counts: LineCounts,
    stalls: f64,
}

/// Counts by translation block.
#[derive(Default)]
pub(super) struct BlockMisses {
    blocks: Vec<BlockCounts>,
    /// The block that executes.
    current: usize,
    /// By line and CPU: the block of the last miss, if it counts as false sharing.
    open: HashMap<(u64, usize), usize>,
}

impl BlockMisses {
    pub(super) fn define(&mut self, translation: &Translation) {
        let counts = LineCounts::default();
        self.blocks.push(BlockCounts { addr: translation.addr, counts, stalls: 0.0 });
    }

    #[inline]
    pub(super) fn executed(&mut self, id: TranslationId) {
        self.current = id.0 as usize;
    }

    /// The block walks a page table.
    pub(super) fn walks(&mut self, costs: &RequestCosts) {
        if let Some(block) = self.blocks.get_mut(self.current) {
            block.stalls += costs.walk();
        }
    }

    /// An access of the block to `line`.
    pub(super) fn served(
        &mut self,
        request: Request,
        line: u64,
        by: CoherentAccess,
        costs: &RequestCosts,
    ) {
        if by.was_true
            && let Some(block) = self.open.remove(&(line, request.cpu))
        {
            self.blocks[block].counts.turn_true();
        }
        let Some(block) = self.blocks.get_mut(self.current) else { return };
        block.counts.count(by, costs);
        block.stalls += costs.cycles(by);
        match by.served {
            Served::Missed(MissClass::FalseSharing, _) => {
                self.open.insert((line, request.cpu), self.current);
            }
            Served::Missed(..) => {
                self.open.remove(&(line, request.cpu));
            }
            Served::L1 | Served::L2 | Served::Upgraded(_) => {}
        }
    }

    /// The functions that asked for anything, descending by the cycles of coherence misses and
    /// upgrades, then by stalls.
    pub(super) fn rows(&self, symbols: &KernelSymbols) -> Vec<FunctionRow> {
        let mut functions: BTreeMap<&str, (LineCounts, f64)> = BTreeMap::new();
        for BlockCounts { addr, counts, stalls } in self.blocks.iter().filter(|it| it.stalls > 0.0)
        {
            let (all, all_stalls) = functions.entry(function_at(symbols, *addr)).or_default();
            *all += *counts;
            *all_stalls += stalls;
        }
        let row = |(function, (counts, stalls)): (&str, _)| FunctionRow {
            function: function.to_owned(),
            counts,
            stalls,
        };
        let mut rows: Vec<FunctionRow> = functions.into_iter().map(row).collect();
        rows.sort_by(|a, b| {
            let by_cycles = b.counts.cycles.total_cmp(&a.counts.cycles);
            by_cycles.then(b.stalls.total_cmp(&a.stalls))
        });
        rows
    }
}
