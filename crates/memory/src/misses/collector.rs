//! Counts misses as they occur: by function, by range of kernel addresses, by data structure.
//!
//! Input: misses, one by one, with what missed. Output: counts. This module simulates nothing.

use super::hierarchy_walk::{DataMiss, MissObserver};
use super::owners::{DataOwners, MissOwner, Structure, StructureClass, StructureId};
use super::uses::FrameUses;
use execution::slices::{SliceClock, SliceStarts};
use iced_x86::{Decoder, DecoderOptions, OpKind};
use image::address::LinkAddr;
use services::functions::NAMELESS;
use services::symbols::KernelSymbols;
use sim::{MachineCounters, MissCause, MissCounts, MissedLevels, Mode, PerMode};
use std::collections::{BTreeMap, HashMap};
use trace::{Accesses, RunAddr, Translation, TranslationId};

/// The name of user mode among functions.
pub const USER_MODE: &str = "(user mode)";
/// Torrellas counts by ranges of 1 KB (1998, figures 1 and 2).
pub const RANGE: u64 = 1024;

pub(super) struct MissCollector<'a> {
    symbols: &'a KernelSymbols,
    memory: DataOwners,
    names: Vec<&'a str>,
    numbers: HashMap<&'a str, u32>,
    of: Vec<TranslationFacts>,
    current: TranslationId,
    machines: Vec<MachineMisses>,
    uses: FrameUses,
    clock: SliceClock,
    /// The slice of the current execution.
    slice: u32,
    /// Executed kernel instructions by address range.
    references: BTreeMap<u64, u64>,
}

/// What is known about a translation block.
struct TranslationFacts {
    function: u32,
    addr: RunAddr,
    lengths: Box<[u8]>,
    /// For each instruction, whether it accesses only a stack.
    stack: Box<[bool]>,
    runs: u64,
}

/// The counts of one machine.
#[derive(Default)]
pub(super) struct MachineMisses {
    /// By the number of the function.
    pub functions: Vec<MachineCounters>,
    /// L1I misses of the kernel by range.
    pub ranges: BTreeMap<u64, MissCounts>,
    /// By the number of the structure.
    pub structures: Vec<SlicedCounters>,
    /// The counts of frames whose use is not known yet.
    pending: HashMap<u64, SlicedCounters>,
}

/// Counters by slice and mode, in the order of the slices.
#[derive(Clone, Debug, Default)]
pub(super) struct SlicedCounters(pub Vec<(u32, PerMode<MachineCounters>)>);

impl SlicedCounters {
    /// The counters of a slice. Mostly it is the last one.
    fn of(&mut self, slice: u32) -> &mut PerMode<MachineCounters> {
        let at = match self.0.last() {
            Some((last, _)) if *last == slice => self.0.len() - 1,
            _ => match self.0.binary_search_by_key(&slice, |(slice, _)| *slice) {
                Ok(at) => at,
                Err(at) => {
                    self.0.insert(at, (slice, PerMode::default()));
                    at
                }
            },
        };
        &mut self.0[at].1
    }

    /// The counters of all slices together.
    pub(super) fn sum(&self) -> PerMode<MachineCounters> {
        let mut sum = PerMode::default();
        self.0.iter().for_each(|(_, counters)| sum += *counters);
        sum
    }
}

impl MachineMisses {
    fn structure(&mut self, id: StructureId) -> &mut SlicedCounters {
        let at = id.0 as usize;
        if at >= self.structures.len() {
            self.structures.resize(at + 1, SlicedCounters::default());
        }
        &mut self.structures[at]
    }

    fn settle(&mut self, frame: u64, id: StructureId) {
        if let Some(counters) = self.pending.remove(&frame) {
            let structure = self.structure(id);
            counters.0.into_iter().for_each(|(slice, of_slice)| *structure.of(slice) += of_slice);
        }
    }
}

impl<'a> MissCollector<'a> {
    pub(super) fn new(
        symbols: &'a KernelSymbols,
        memory: DataOwners,
        machines: usize,
        starts: &SliceStarts,
    ) -> MissCollector<'a> {
        MissCollector {
            symbols,
            memory,
            names: Vec::new(),
            numbers: HashMap::new(),
            of: Vec::new(),
            current: TranslationId(0),
            machines: std::iter::repeat_with(MachineMisses::default).take(machines).collect(),
            uses: FrameUses::default(),
            clock: SliceClock::new(starts),
            slice: 0,
            references: BTreeMap::new(),
        }
    }

    /// Names the pending frames, and adds up executed instructions.
    pub(super) fn finish(&mut self) {
        for machine in &mut self.machines {
            let mut frames: Vec<u64> = machine.pending.keys().copied().collect();
            frames.sort_unstable();
            for frame in frames {
                let id = self.memory.settle(frame);
                machine.settle(frame, id);
            }
        }
        for of in self.of.iter().filter(|of| of.addr.is_kernel()) {
            refer(&mut self.references, of.addr, &of.lengths, of.runs);
        }
    }

    pub(super) fn machine(&self, number: usize) -> &MachineMisses {
        &self.machines[number]
    }

    pub(super) fn references(&self) -> &BTreeMap<u64, u64> {
        &self.references
    }

    pub(super) fn function_names(&self) -> &[&'a str] {
        &self.names
    }

    pub(super) fn structures(&self) -> &[Structure] {
        self.memory.structures()
    }

    fn mode(&self) -> Mode {
        if self.of[self.current.0 as usize].addr.is_kernel() { Mode::Kernel } else { Mode::User }
    }
}

/// The name of the function at an address, without what compilers append.
pub fn function_at(symbols: &KernelSymbols, addr: RunAddr) -> &str {
    if !addr.is_kernel() {
        return USER_MODE;
    }
    let symbol = symbols.containing(LinkAddr(addr.0));
    symbol.map_or(NAMELESS, |symbol| symbol.name.split('.').next().unwrap_or(&symbol.name))
}

fn refer(references: &mut BTreeMap<u64, u64>, addr: RunAddr, lengths: &[u8], times: u64) {
    let mut at = addr.0;
    for &length in lengths.iter().filter(|_| times > 0) {
        *references.entry(at / RANGE * RANGE).or_default() += times;
        at = at.wrapping_add(length.into());
    }
}

/// Whether the instruction accesses only a stack: `push %rax` and `ret`, not `push (%rax)`.
pub fn accesses_only_a_stack(code: &[u8]) -> bool {
    let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
    let elsewhere = (0..instruction.op_count()).any(|op| instruction.op_kind(op) == OpKind::Memory);
    instruction.stack_pointer_increment() != 0 && !elsewhere
}

impl MissObserver for MissCollector<'_> {
    fn define(&mut self, translation: &Translation) {
        let name = function_at(self.symbols, translation.addr);
        let next = self.names.len() as u32;
        let function = *self.numbers.entry(name).or_insert(next);
        if function == next {
            self.names.push(name);
        }
        let stack = translation
            .code_by_instruction()
            .map(|(_, code)| translation.is_kernel() && accesses_only_a_stack(code));
        self.of.push(TranslationFacts {
            function,
            addr: translation.addr,
            lengths: translation.lengths.clone(),
            stack: stack.collect(),
            runs: 0,
        });
    }

    fn stream(&mut self, accesses: &Accesses) {
        let machines = &mut self.machines;
        let settled = |frame, id| machines.iter_mut().for_each(|machine| machine.settle(frame, id));
        self.uses.stream(accesses, &mut self.memory, settled);
    }

    #[inline]
    fn executed(&mut self, translation: TranslationId, instructions: Option<u32>) {
        self.current = translation;
        let machines = &mut self.machines;
        let settled = |frame, id| machines.iter_mut().for_each(|machine| machine.settle(frame, id));
        self.uses.executed(&mut self.memory, settled);
        let of = &mut self.of[translation.0 as usize];
        let ran = instructions.map_or(of.lengths.len() as u64, u64::from);
        self.slice = self.clock.run(ran);
        match instructions {
            None => of.runs += 1,
            Some(count) if of.addr.is_kernel() => {
                let reached = &of.lengths[..of.lengths.len().min(count as usize)];
                refer(&mut self.references, of.addr, reached, 1);
            }
            Some(_) => {}
        }
    }

    fn fetch_missed(&mut self, machine: usize, addr: RunAddr, missed: MissedLevels) {
        let function = self.of[self.current.0 as usize].function as usize;
        let machine = &mut self.machines[machine];
        count(function_counters(machine, function), missed, true);
        if addr.is_kernel() {
            machine.ranges.entry(addr.0 / RANGE * RANGE).or_default().count(missed.l1);
        }
    }

    fn data_missed(&mut self, machine: usize, miss: &DataMiss, missed: MissedLevels) {
        let mode = self.mode();
        let of = &self.of[self.current.0 as usize];
        let frame = miss.physical.0 >> 12;
        if of.stack.get(usize::from(miss.instruction)).copied().unwrap_or(false) {
            self.memory.is_a_stack(miss.addr, frame);
        }
        let machine = &mut self.machines[machine];
        count(function_counters(machine, of.function as usize), missed, false);
        let counters = match self.memory.owner(miss.addr, frame) {
            MissOwner::Known(id) => machine.structure(id),
            MissOwner::Pending(frame) => machine.pending.entry(frame).or_default(),
        };
        count(counters.of(self.slice).get_mut(mode), missed, false);
    }
}

fn function_counters(machine: &mut MachineMisses, function: usize) -> &mut MachineCounters {
    if function >= machine.functions.len() {
        machine.functions.resize(function + 1, MachineCounters::default());
    }
    &mut machine.functions[function]
}

fn count(counters: &mut MachineCounters, missed: MissedLevels, fetch: bool) {
    let below = |misses: &mut MissCounts, cause: Option<MissCause>| {
        cause.into_iter().for_each(|cause| misses.count(cause))
    };
    match fetch {
        true => {
            counters.l1i.count(missed.l1);
            below(&mut counters.l2i, missed.l2);
            below(&mut counters.l3i, missed.l3);
        }
        false => {
            counters.l1d.count(missed.l1);
            below(&mut counters.l2d, missed.l2);
            below(&mut counters.l3d, missed.l3);
        }
    }
}

/// Whether a class says nothing about what the data is.
pub fn says_nothing(class: StructureClass) -> bool {
    matches!(class, StructureClass::Held | StructureClass::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_that_access_only_a_stack() {
        for (code, expected) in [
            (&[0x50][..], true),             // push %rax
            (&[0xc3], true),                 // ret
            (&[0xe8, 0, 0, 0, 0], true),     // call
            (&[0xff, 0x30], false),          // push (%rax)
            (&[0x48, 0x8b, 0x00], false),    // mov (%rax),%rax
            (&[0x48, 0x83, 0xec, 8], false), // sub $8,%rsp
        ] {
            assert_eq!(accesses_only_a_stack(code), expected, "{code:x?}");
        }
    }

    /// A frame's misses wait until its use is known, which may be slices later.
    #[test]
    fn misses_of_a_frame_stay_in_their_slices() {
        let one = PerMode {
            kernel: MachineCounters { loads: 1, ..MachineCounters::default() },
            user: MachineCounters::default(),
        };
        let mut machine = MachineMisses::default();
        for slice in [1, 3, 3, 6] {
            *machine.structure(StructureId(2)).of(slice) += one;
        }
        for slice in [0, 3, 7] {
            *machine.pending.entry(9).or_default().of(slice) += one;
        }
        machine.settle(9, StructureId(2));
        machine.settle(9, StructureId(2));
        let slices = machine.structures[2].0.iter();
        let found: Vec<(u32, u64)> =
            slices.map(|(slice, counters)| (*slice, counters.kernel.loads)).collect();
        assert_eq!(found, [(0, 1), (1, 1), (3, 3), (6, 1), (7, 1)]);
        assert_eq!(machine.structures[2].sum().kernel.loads, 7);
    }
}
