//! Recordings of several CPUs with data accesses, written by hand.

use crate::CpuOrder;
use crate::{ReplayLayout, ReplayTrial, Replayed, SimulationScope, replay_trials};
use anyhow::Result;
use trace::{
    AccessSite, CpuCount, CpuId, Mapping, ObservedAccesses, PageKind, RecordingHeader,
    RecordingReader, RecordingWriter, RunAddr, StreamEvent, Translation, TranslationId,
};

const KERNEL: u64 = 0xffff_ffff_8100_0000;
const PAGE: u64 = 0xf_fff8_8800_0200;
/// The first address of a page at physical address 0x20_0000.
pub(super) const DATA: u64 = PAGE << 12;

/// An execution of a translation.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    translation: TranslationId,
    /// Addresses of accesses to 8 bytes, and whether each is a store.
    accesses: Vec<(u64, bool)>,
}

const TWO_NOPS: TranslationId = TranslationId(0);
const HALT: TranslationId = TranslationId(1);

/// Two instructions.
pub(super) fn plain() -> Ran {
    Ran { translation: TWO_NOPS, accesses: Vec::new() }
}

/// Two instructions, one of which loads.
pub(super) fn load(addr: u64) -> Ran {
    Ran { translation: TWO_NOPS, accesses: vec![(addr, false)] }
}

/// Two instructions, one of which stores.
pub(super) fn store(addr: u64) -> Ran {
    Ran { translation: TWO_NOPS, accesses: vec![(addr, true)] }
}

/// Two instructions, one of which loads and stores.
pub(super) fn exchange(addr: u64) -> Ran {
    Ran { translation: TWO_NOPS, accesses: vec![(addr, false), (addr, true)] }
}

/// One instruction, `hlt`.
pub(super) fn halt() -> Ran {
    Ran { translation: HALT, accesses: Vec::new() }
}

/// `number` executions.
pub(super) fn times(number: usize, ran: Ran) -> Vec<Ran> {
    vec![ran; number]
}

/// A recording of these turns. All code lies in one line, at physical address 0x100_0000.
pub(super) fn recording(cpus: u32, turns: &[(u8, Vec<Ran>)]) -> Vec<u8> {
    let cpus = CpuCount::new(cpus).unwrap();
    let header = RecordingHeader { cpus, ..RecordingHeader::default() };
    let mut writer = RecordingWriter::with_data(Vec::new(), &header).unwrap();
    let translation = |id, addr, code: &[u8]| Translation {
        id,
        addr: RunAddr(addr),
        lengths: vec![1; code.len()].into(),
        code: code.into(),
    };
    let nops = translation(TWO_NOPS, KERNEL, &[0x90, 0x90]);
    writer.translations(&[nops, translation(HALT, KERNEL + 2, &[0xf4])]).unwrap();
    let (mut words, mut seen) = (Vec::new(), ObservedAccesses::default());
    seen.physical = vec![(TWO_NOPS, [Some(0x100_0000), None]), (HALT, [Some(0x100_0002), None])];
    let mut mapped = Vec::new();
    let mut executes = 0;
    for (cpu, turn) in turns {
        if *cpu != executes {
            StreamEvent::Cpu(CpuId(*cpu)).append_to(&mut words);
            executes = *cpu;
        }
        for ran in turn {
            if !mapped.contains(cpu) && !ran.accesses.is_empty() {
                mapped.push(*cpu);
                let mapping = Mapping { page: PAGE, frame: 0x200, kind: PageKind::Memory };
                seen.mappings.push((seen.addresses.len() as u32, mapping));
            }
            StreamEvent::Executed(ran.translation).append_to(&mut words);
            seen.starts.push(seen.addresses.len() as u32);
            for &(addr, is_store) in &ran.accesses {
                seen.addresses.push(addr);
                seen.sites.push(AccessSite::new(0, is_store, 3));
            }
        }
    }
    writer.stream_with_data(&words, &seen).unwrap();
    writer.end().unwrap().0
}

/// Replays these turns on a machine.
pub(super) fn replayed(
    machine: &str,
    order: CpuOrder,
    cpus: u32,
    turns: &[(u8, Vec<Ran>)],
) -> Result<Replayed> {
    let recording = recording(cpus, turns);
    let machines = [machines::find(machine)?.model];
    let original = ReplayLayout::original();
    let trial = ReplayTrial::new(&original, &machines, SimulationScope::Caches);
    let reader = RecordingReader::new(&recording[..])?;
    replay_trials(reader, &[ReplayTrial { order, ..trial }])
}
