//! Counts of translation blocks and fragments become counts of basic blocks, edges and calls.
//!
//! Input: the counts of the walk over a recording. Output: counts, added to a profile. This module
//! never follows control itself.

use crate::translated::{BlockTransfer, TranslatedBlocks, WayOut};
use crate::{Process, Profile};
use execution::code::TranslatedCode;
use execution::flow::{ExecutionFlow, Fragment, FragmentExit};
use execution::per_cpu::PerCpu;
use image::{BlockIndex, Image};
use layout::graph::EdgeKind;
use trace::CpuId;

/// Where control went from translation blocks of the kernel that end with a return or an indirect
/// branch. A thunk stands in the place of an indirect branch, so what enters it counts as this
/// branch, and leads to where the thunk leads.
#[derive(Default)]
pub(super) struct IndirectTransfers {
    /// By translation block.
    ways: Vec<WayOut>,
    /// The translation block of the last fragment, if it leads anywhere; behind a thunk, that which
    /// entered the thunk.
    departed: PerCpu<Option<u32>>,
    /// By translation block. Most have few destinations; the most frequent is near the front.
    destinations: Vec<Vec<IndirectDestination>>,
}

#[derive(Clone, Copy)]
struct IndirectDestination {
    translation: u32,
    count: u64,
}

impl IndirectTransfers {
    /// Learns the next translation block.
    pub(crate) fn define(&mut self, way: WayOut) {
        self.ways.push(way);
        self.destinations.push(Vec::new());
    }

    /// The fragments of this CPU follow.
    pub(crate) fn turn_to(&mut self, cpu: CpuId) {
        self.departed.turn_to(cpu, || None);
    }

    /// A fragment ran, after the fragment of the previous call on this CPU.
    #[inline]
    pub(crate) fn ran(&mut self, fragment: &Fragment) {
        let translation = fragment.translation.0;
        let way = self.ways[translation as usize];
        if let Some(from) = self.departed.current.take() {
            if way == WayOut::OfThunk && self.ways[from as usize] == WayOut::IntoThunk {
                self.departed.current = Some(from);
                return;
            }
            self.count(from, translation);
        }
        if fragment.exit == FragmentExit::Taken && way != WayOut::Known {
            self.departed.current = Some(translation);
        }
    }

    fn count(&mut self, from: u32, to: u32) {
        let destinations = &mut self.destinations[from as usize];
        match destinations.iter().position(|destination| destination.translation == to) {
            Some(at) => {
                destinations[at].count += 1;
                if at > 0 && destinations[at].count > destinations[at - 1].count {
                    destinations.swap(at, at - 1);
                }
            }
            None => destinations.push(IndirectDestination { translation: to, count: 1 }),
        }
    }
}

/// The basic blocks of the translation blocks that ran.
pub(super) struct KernelBlocks<'a> {
    image: &'a Image,
    /// By translation block; `None` for user code.
    translated: Vec<Option<TranslatedBlocks>>,
}

impl<'a> KernelBlocks<'a> {
    pub(crate) fn new(image: &'a Image) -> KernelBlocks<'a> {
        KernelBlocks { image, translated: Vec::new() }
    }

    /// Learns the next translation block. Says how control leaves it.
    pub(crate) fn define(&mut self, code: &TranslatedCode) -> WayOut {
        let kernel = code.addr.is_kernel();
        let translated = kernel.then(|| TranslatedBlocks::new(self.image, code));
        let way = translated.as_ref().map_or(WayOut::Known, |it| it.way_out(code, self.image));
        self.translated.push(translated);
        way
    }

    /// The blocks of a translation block; `None` for user code.
    #[inline]
    pub(crate) fn of(&self, translation: usize) -> Option<&TranslatedBlocks> {
        self.translated[translation].as_ref()
    }

    /// The first `reached` instructions of a translation block ran `times` times.
    pub(crate) fn add_runs(
        &self,
        translation: usize,
        reached: u32,
        times: u64,
        process: &mut Process,
        profile: &mut Profile,
    ) {
        let instructions = u64::from(reached) * times;
        let Some(translated) = self.of(translation) else {
            process.user_instructions += instructions;
            return;
        };
        process.kernel_instructions += instructions;
        if translated.first.is_none() && instructions > 0 {
            *profile.outside.entry(translated.start).or_insert(0) += instructions;
        }
        let mut before = None;
        for &(block, _) in translated.blocks.iter().filter(|&&(_, at)| at < reached) {
            let addr = self.image.block(block).addr;
            *process.blocks.entry(addr).or_insert(0) += times;
            if let Some(before) = before.or(translated.first.filter(|&first| first != block)) {
                self.add_edge(before, block, EdgeKind::FallThrough, times, profile);
            }
            before = Some(block);
        }
    }

    /// Adds the edges and calls that the code itself shows.
    pub(crate) fn add_transfers(&self, flow: &ExecutionFlow, profile: &mut Profile) {
        for (fragment, &count) in flow.fragments.iter().zip(&flow.counts) {
            let translation = fragment.translation.0 as usize;
            let transfer = self.of(translation).and_then(|translated| {
                translated.transfer(&flow.codes[translation], fragment.exit, self.image)
            });
            self.add(transfer, count, profile);
        }
    }

    /// Adds the edges and calls that only the recording shows.
    pub(crate) fn add_indirect_transfers(
        &self,
        flow: &ExecutionFlow,
        transfers: &IndirectTransfers,
        profile: &mut Profile,
    ) {
        for (from, destinations) in transfers.destinations.iter().enumerate() {
            for &IndirectDestination { translation, count } in destinations {
                let ends = self.of(from).zip(self.of(translation as usize));
                let transfer = ends.and_then(|(from_blocks, to)| {
                    from_blocks.indirect_transfer(&flow.codes[from], to, self.image)
                });
                self.add(transfer, count, profile);
            }
        }
    }

    fn add(&self, transfer: Option<BlockTransfer>, count: u64, profile: &mut Profile) {
        match transfer {
            Some(BlockTransfer::Edge(from, to, kind)) => {
                self.add_edge(from, to, kind, count, profile)
            }
            Some(BlockTransfer::Call(from, to)) => {
                let ends = (self.image.block(from).addr, self.image.block(to).addr);
                *profile.calls.entry(ends).or_insert(0) += count;
            }
            None => {}
        }
    }

    fn add_edge(
        &self,
        from: BlockIndex,
        to: BlockIndex,
        kind: EdgeKind,
        count: u64,
        profile: &mut Profile,
    ) {
        let ends = (self.image.block(from).addr, self.image.block(to).addr);
        profile.edges.entry(ends).or_insert((kind, 0)).1 += count;
    }
}
