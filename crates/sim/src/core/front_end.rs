//! A decoupled front end: the branch predictor runs ahead of the fetch.
//!
//! Input: lines in the order of the program, and what the branches between them cost. Output: the
//! cycle in which each instruction is delivered to the dispatch.
//!
//! ```text
//! predictor: a fetch target a cycle → queue of fetch targets → uop cache, or L1I and decoders
//!            └─ requests the line (fetch-directed prefetch)     → queue of slots → dispatch
//! ```
//!
//! A fetch target is code within one line, up to a taken branch. Its line is requested in the cycle
//! in which the target is predicted. So a miss costs nothing when the predictor is far enough
//! ahead. Both queues limit how far it can be ahead. Each taken branch begins a new cycle of
//! delivery; lines that follow one another do not.
//!
//! If the uop cache has all entries of the code, it delivers the code, and the line is not
//! requested. Other code enters the uop cache. An entry holds slots of one line in the order in
//! which they first ran; entries of code that is entered elsewhere in the line are shared with it.
//!
//! A description can say that entries are read in pairs (`pair_interval`). Then an entry goes on
//! into the next line in sequence, and belongs to the line in which it begins.

use super::counters::CoreCounters;
use super::data_side::SharedMemory;
use super::description::FrontEndDescription;
use super::in_flight::InFlight;
use super::levels::Source;
use super::ring::Ring;
use super::translation::{FirstTlb, Translated};
use super::uop::{CoreInstruction, FetchRun};
use super::uop_cache::UopCache;
use crate::access::CacheAccess;
use crate::branches::CodeAddr;
use crate::cache::Cache;
use crate::geometry::CacheGeometry;
use crate::line::{LineId, PhysAddr};

/// The entries of the uop cache that are read in a cycle, where they are read by entries.
const ENTRIES: u32 = 2;

#[derive(Clone, Debug)]
pub(crate) struct FrontEnd {
    depth: u64,
    decode_stages: u64,
    decoders: u32,
    fetch_bytes: u32,
    uop_cache: Option<UopCache>,
    l1i: Cache,
    coming: InFlight,
    fill: u64,
    request_in_turn: bool,
    /// No line is requested before this cycle.
    next_fill: u64,
    tlb: Option<FirstTlb>,
    itlb_interval: Option<u32>,
    /// The earliest cycle of the next TLB miss.
    next_translation: u64,
    /// The cycle in which the present target was predicted, and the targets predicted in it.
    pub predicted: u64,
    predicted_in_cycle: u32,
    targets_in_a_cycle: u32,
    /// No target is predicted before this cycle.
    restart: u64,
    /// The cycles in which the fetch took the targets of the queue.
    targets: Ring<u64>,
    /// The cycles in which the slots of the queue were dispatched.
    queue: Ring<u64>,
    /// Where the code of the present target lies.
    at: FetchRun,
    /// The line of the present target, and the slots and entries of it so far.
    line: LineId,
    /// Where control arrived in it; when it came from the line before, the slots that an entry of
    /// that line holds.
    start: u32,
    /// Where control arrives next.
    next_start: u32,
    slots: u32,
    entries: u32,
    /// The slots that these entries, and one of the line before, hold.
    held: u32,
    decoding: bool,
    /// Whether what was delivered before came from the uop cache.
    behind_uop_cache: bool,
    /// Nothing of the target was delivered yet.
    fresh: bool,
    /// Whether the next code follows without a taken branch.
    sequential: bool,
    /// Whether the present target lies in another line than the one before.
    new_line: bool,
    /// Whether the uop cache was read for this target.
    visited: bool,
    /// Whether a taken branch came before the next delivery.
    jumped: bool,
    /// How many taken branches the uop cache can still follow in this cycle, and how many entries
    /// it can still read.
    left_jumps: u32,
    left_entries: u32,
    /// The cycle in which an entry was read.
    read: u64,
    /// The cycles that delivered from two lines since one could not.
    double_lines: u32,
    /// The cycle of delivery, and what is left of it.
    cycle: u64,
    left: u32,
    left_bytes: u32,
    /// Whether what is delivered had to wait for a line that the L1I lacked.
    pub waited_for_line: bool,
}

impl FrontEnd {
    pub(super) fn new(
        front: &FrontEndDescription,
        l1i: CacheGeometry,
        itlb: Option<CacheGeometry>,
    ) -> FrontEnd {
        FrontEnd {
            depth: front.depth.into(),
            decode_stages: front.decode_stages.into(),
            decoders: front.decoders,
            fetch_bytes: front.fetch_bytes,
            uop_cache: front.uop_cache.as_ref().map(UopCache::new),
            l1i: Cache::new(l1i),
            coming: InFlight::new(front.l1i_misses),
            fill: front.l1i_fill.into(),
            next_fill: 0,
            tlb: itlb.map(|geometry| FirstTlb::new(geometry, true)),
            itlb_interval: front.itlb_interval,
            next_translation: 0,
            predicted: 0,
            predicted_in_cycle: front.targets_in_a_cycle,
            targets_in_a_cycle: front.targets_in_a_cycle,
            restart: 0,
            targets: Ring::new(front.fetch_targets, 0),
            queue: Ring::new(front.queue, 0),
            at: FetchRun {
                line: LineId::NONE,
                page: LineId::NONE,
                physical: PhysAddr(0),
                instructions: 0,
                slots: 0,
                branch: 0,
            },
            line: LineId::NONE,
            start: 0,
            next_start: 0,
            slots: 0,
            entries: 0,
            held: 0,
            decoding: true,
            behind_uop_cache: false,
            request_in_turn: front.request_in_turn,
            fresh: true,
            sequential: false,
            new_line: true,
            visited: false,
            jumped: false,
            left_jumps: 0,
            left_entries: 0,
            read: 0,
            double_lines: 0,
            cycle: 0,
            left: 0,
            left_bytes: 0,
            waited_for_line: false,
        }
    }

    /// Control arrives at `addr`, if it does not come from the code before.
    #[inline]
    pub(super) fn arrives(&mut self, addr: CodeAddr) {
        self.next_start = (addr.0 & 63) as u32;
    }

    /// Goes on with `run`.
    #[inline]
    pub(super) fn run(
        &mut self,
        run: &FetchRun,
        shared: &mut SharedMemory,
        counters: &mut CoreCounters,
    ) {
        self.at = *run;
        self.waited_for_line = false;
        if self.sequential && run.line == self.line {
            return;
        }
        let alone = self.sequential && self.reads_entries();
        let full = alone || self.predicted_in_cycle == self.targets_in_a_cycle;
        let next = self.predicted + u64::from(full);
        let predicted = next.max(self.restart).max(self.targets.oldest());
        let same = predicted == self.predicted;
        self.predicted_in_cycle = if same { self.predicted_in_cycle + 1 } else { 1 };
        self.predicted = predicted;
        self.new_line = run.line != self.line;
        if self.visited && self.entries == 0 {
            self.ends_cycle();
        }
        self.visited = false;
        self.start = if self.sequential { self.goes_on() } else { self.next_start };
        self.held = if self.sequential { self.start } else { 0 };
        self.line = run.line;
        (self.slots, self.entries, self.fresh) = (0, 0, true);
        if self.uop_cache.is_none() {
            self.supply(true, shared, counters);
        }
    }

    /// Whether the uop cache is read by entries.
    fn reads_entries(&self) -> bool {
        self.uop_cache.as_ref().is_some_and(|cache| cache.pair_interval.is_some())
    }

    /// The slots of the next line in sequence that the last entry holds.
    fn goes_on(&self) -> u32 {
        if self.reads_entries() { self.held.saturating_sub(self.slots) } else { 0 }
    }

    /// Begins to deliver from the uop cache or, when it `asks` for the line, from the decoders.
    fn supply(&mut self, asks: bool, shared: &mut SharedMemory, counters: &mut CoreCounters) {
        let mut fetched = self.predicted;
        if !asks && self.itlb_interval.is_some() {
            fetched = self.translate(shared, counters);
        }
        let mut ready = fetched + self.depth - 1;
        if asks {
            let line = self.request(shared, counters);
            if line > ready && line + self.decode_stages > self.cycle {
                counters.l1i_late += 1;
                self.waited_for_line = true;
            }
            ready = ready.max(line) + self.decode_stages;
            fetched = fetched.max(line);
        }
        let ends = self.jumped && (self.decoding || self.left_jumps == 0);
        if ends || ready > self.cycle {
            self.begin_cycle(ready.max(self.cycle + u64::from(ends)));
        } else if self.jumped {
            self.left_jumps -= 1;
        }
        if self.fresh {
            // The fetch took the target when the line was there, and so late that the stages behind
            // it were not in the way.
            let stages = self.depth - 1 + if self.decoding { self.decode_stages } else { 0 };
            self.targets.push(fetched.max(self.cycle.saturating_sub(stages)));
        }
        (self.sequential, self.jumped, self.fresh) = (true, false, false);
    }

    /// Decides where an instruction of `slots` comes from, when it needs another entry of the uop
    /// cache than the one before.
    #[inline]
    fn find(&mut self, slots: u32, shared: &mut SharedMemory, counters: &mut CoreCounters) {
        self.slots += slots;
        if self.slots <= self.held && !self.fresh {
            return;
        }
        self.find_entries(shared, counters);
    }

    fn find_entries(&mut self, shared: &mut SharedMemory, counters: &mut CoreCounters) {
        let Some(cache) = &mut self.uop_cache else { return };
        let more = self.slots.saturating_sub(self.held).div_ceil(cache.slots);
        // If entries do not go on into the next line, each line has at least one.
        let more = if self.held == 0 { more.max(1) } else { more };
        let entries = self.entries..self.entries + more;
        let was_decoding = self.decoding && !self.fresh;
        self.behind_uop_cache = !self.decoding;
        if more > 0 {
            self.decoding = !cache.has(self.line, self.start, entries.clone());
        }
        self.held = self.held.saturating_add(more.saturating_mul(cache.slots));
        self.entries = entries.end;
        let (pair_interval, single_lines) = (cache.pair_interval, cache.single_lines);
        if self.fresh || self.decoding && !was_decoding {
            self.supply(self.decoding, shared, counters);
        }
        if let Some(interval) = pair_interval.filter(|_| !self.decoding) {
            self.visit(if more > 0 { single_lines } else { 0 });
            entries.for_each(|entry| self.read_entry(entry, interval));
        }
    }

    /// Reads the first entry of a line from the uop cache, or looks the line up although an entry
    /// of the line before holds its first slots.
    fn visit(&mut self, single_lines: u32) {
        if std::mem::replace(&mut self.visited, true) {
            return;
        }
        if self.read == self.cycle && (self.left_entries == 0 || self.line_waits(single_lines)) {
            self.begin_cycle(self.cycle + 1);
        }
        self.read = self.cycle;
        self.left_entries = self.left_entries.saturating_sub(1);
    }

    /// Whether the present target's line cannot be the second one of its cycle.
    fn line_waits(&mut self, single_lines: u32) -> bool {
        if !self.new_line || single_lines == 0 {
            return false;
        }
        self.double_lines = (self.double_lines + 1) % single_lines;
        self.double_lines == 0
    }

    /// Reads an entry of the uop cache, which is the `entry`th of its line, from 0.
    fn read_entry(&mut self, entry: u32, pair_interval: u64) {
        let earliest = match entry {
            0 => return,
            1 => self.read + u64::from(self.left_entries == 0),
            _ if entry.is_multiple_of(2) => self.read + pair_interval,
            _ => self.read,
        };
        if earliest > self.cycle {
            self.begin_cycle(earliest);
        }
        self.read = self.cycle;
        self.left_entries = self.left_entries.saturating_sub(1);
        if entry > 1 {
            self.ends_cycle();
        }
    }

    /// No other line's entry is read in this cycle.
    fn ends_cycle(&mut self) {
        (self.left_jumps, self.left_entries) = (0, 0);
    }

    /// The cycle in which the translation of the target's page is known.
    fn translate(&mut self, shared: &mut SharedMemory, counters: &mut CoreCounters) -> u64 {
        let Some(tlb) = &mut self.tlb else { return self.predicted };
        let (known, how) = tlb.translate(self.at.page, self.predicted, &mut shared.tlb);
        if how == Translated::First {
            return known;
        }
        counters.itlb_misses += 1;
        counters.itlb_walks += u64::from(how == Translated::Walked);
        let waits = self.next_translation.saturating_sub(self.predicted);
        let interval = self.itlb_interval.unwrap_or(0);
        self.next_translation = self.predicted + waits + u64::from(interval);
        known + waits
    }

    /// Requests the line of the target in the cycle in which the target was predicted. Returns the
    /// cycle in which the line is there.
    fn request(&mut self, shared: &mut SharedMemory, counters: &mut CoreCounters) -> u64 {
        let (mut asks, run) = (self.translate(shared, counters), self.at);
        if self.request_in_turn && self.behind_uop_cache {
            // The uop cache is looked up this long before it delivers.
            asks = asks.max(self.cycle.saturating_sub(self.decode_stages));
        }
        counters.l1i_requests += 1;
        if self.l1i.access(run.line) == CacheAccess::Hit {
            return self.coming.there(run.line, asks);
        }
        let asks = self.coming.free(asks).max(self.next_fill);
        self.next_fill = asks + self.fill;
        let (arrives, source) = shared.levels.request(run.physical, asks);
        self.coming.begin(run.line, arrives);
        counters.l1i_misses += 1;
        counters.l2_instruction_misses += u64::from(source > Source::L2);
        arrives
    }

    /// The cycle in which an instruction is delivered.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        instruction: &CoreInstruction,
        shared: &mut SharedMemory,
        counters: &mut CoreCounters,
    ) -> u64 {
        let slots = u32::from(instruction.slots);
        self.find(slots, shared, counters);
        let bytes = u32::from(instruction.bytes);
        let decoding = self.decoding;
        let units = if decoding { slots.min(1) } else { slots };
        if units > self.left || decoding && bytes > self.left_bytes {
            // Fetched bytes wait until they are decoded. An instruction can lie in the bytes of two
            // cycles.
            let waiting = if decoding { self.left_bytes.min(self.fetch_bytes) } else { 0 };
            self.begin_cycle(self.cycle + 1);
            self.left_bytes += waiting;
        }
        let room = self.queue.oldest();
        if room > self.cycle {
            self.begin_cycle(room);
        }
        let delivered = self.cycle;
        // An instruction of more slots than fit into a cycle also takes the next cycles.
        let mut more = slots.saturating_sub(self.width());
        while more > 0 {
            self.begin_cycle(self.cycle + 1);
            more = more.saturating_sub(self.width());
        }
        self.left = self.left.saturating_sub(units);
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
        *match decoding {
            true => &mut counters.decoded_slots,
            false => &mut counters.uop_cache_slots,
        } += u64::from(slots);
        delivered
    }

    /// A slot was dispatched in `cycle`.
    #[inline]
    pub(super) fn dispatched(&mut self, cycle: u64) {
        self.queue.push(cycle);
    }

    /// A branch was taken, and the predictor knew it after `bubble` cycles.
    #[inline]
    pub(super) fn taken(&mut self, bubble: u32) {
        (self.sequential, self.jumped) = (false, true);
        if bubble > 0 {
            self.predicted += u64::from(bubble);
            self.predicted_in_cycle = self.targets_in_a_cycle;
        }
    }

    /// Goes on with `run` without time: the uop cache, the L1I, the TLBs and the levels behind them
    /// are as if its code had been delivered.
    #[inline]
    pub(super) fn warm(
        &mut self,
        run: &FetchRun,
        shared: &mut SharedMemory,
        counters: &mut CoreCounters,
    ) {
        self.at = *run;
        if !(self.sequential && run.line == self.line) {
            self.start = if self.sequential { self.goes_on() } else { self.next_start };
            self.held = if self.sequential { self.start } else { 0 };
            self.line = run.line;
            (self.slots, self.entries, self.fresh) = (0, 0, true);
        }
        if run.instructions == 0 {
            return;
        }
        self.slots += u32::from(run.slots);
        if self.slots <= self.held && !self.fresh {
            return;
        }
        let was_decoding = self.decoding && !self.fresh;
        let Some(cache) = &mut self.uop_cache else {
            return self.warm_line(true, shared, counters);
        };
        let more = self.slots.saturating_sub(self.held).div_ceil(cache.slots);
        let more = if self.held == 0 { more.max(1) } else { more };
        let entries = self.entries..self.entries + more;
        if more > 0 {
            self.decoding = !cache.has(self.line, self.start, entries.clone());
        }
        self.held = self.held.saturating_add(more.saturating_mul(cache.slots));
        self.entries = entries.end;
        if self.fresh || self.decoding && !was_decoding {
            self.warm_line(self.decoding, shared, counters);
        }
    }

    /// The code that comes next does not follow in sequence.
    #[inline]
    pub(super) fn warm_taken(&mut self) {
        (self.sequential, self.jumped) = (false, true);
    }

    /// The present target is delivered from the uop cache or, when it `asks` for the line, by the
    /// decoders.
    fn warm_line(&mut self, asks: bool, shared: &mut SharedMemory, counters: &mut CoreCounters) {
        (self.sequential, self.fresh) = (true, false);
        if let Some(tlb) = &mut self.tlb
            && (asks || self.itlb_interval.is_some())
        {
            let how = tlb.warm(self.at.page, &mut shared.tlb);
            counters.itlb_misses += u64::from(how != Translated::First);
            counters.itlb_walks += u64::from(how == Translated::Walked);
        }
        if asks {
            counters.l1i_requests += 1;
            if self.l1i.access(self.at.line) != CacheAccess::Hit {
                let source = shared.levels.warm(self.at.physical);
                counters.l1i_misses += 1;
                counters.l2_instruction_misses += u64::from(source > Source::L2);
            }
        }
    }

    /// Prediction begins again, so that the next code can be dispatched in `dispatch` at the
    /// earliest.
    pub(super) fn restart(&mut self, dispatch: u64) {
        (self.sequential, self.jumped) = (false, true);
        self.restart = self.restart.max(dispatch.saturating_sub(self.depth));
    }

    fn begin_cycle(&mut self, cycle: u64) {
        (self.cycle, self.left, self.left_bytes) = (cycle, self.width(), self.fetch_bytes);
        self.left_jumps = self.targets_in_a_cycle - 1;
        self.left_entries = ENTRIES;
    }

    /// The instructions decoded, or the slots delivered by the uop cache, in a cycle.
    #[inline]
    fn width(&self) -> u32 {
        match &self.uop_cache {
            Some(cache) if !self.decoding => cache.width,
            _ => self.decoders,
        }
    }
}

#[cfg(test)]
mod tests;
