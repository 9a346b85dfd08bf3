//! A guest that executes given addresses, and cuts them into translation blocks as QEMU does: from
//! where control arrives up to a branch or a limit.

use crate::{ReplayLayout, ReplayTrial, Replayed, SamplePlan, SimulationScope, replay_trials};
use image::BuildId;
use image::place::Placement;
use sim::MachineModel;
use std::collections::{BTreeMap, HashMap};
use trace::{
    CpuCount, CpuId, RecordingHeader, RecordingReader, RecordingWriter, RunAddr, StreamEvent,
    Translation, TranslationId,
};

/// The guest's memory: instructions by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuestMemory(pub BTreeMap<u64, Vec<u8>>);

impl GuestMemory {
    /// Stores an instruction; returns the address behind it.
    pub(crate) fn put(&mut self, addr: u64, code: &[u8]) -> u64 {
        self.0.insert(addr, code.to_vec());
        addr + code.len() as u64
    }

    /// Whether a translation block ends with this instruction. Knows only the instructions of these
    /// tests.
    fn ends_translation(code: &[u8]) -> bool {
        matches!(
            code,
            [0x70..=0x7f | 0xeb, _] | [0x0f, 0x80..=0x8f, ..] | [0xe8 | 0xe9, ..] | [0xc3]
        ) || matches!(code, [0x48, 0xcf] | [0x48, 0x0f, 0x07] | [0x0f, 0x05])
    }
}

/// Writes a recording of an execution: the addresses of the instructions, in order. A translation
/// block holds at most `limit` instructions.
pub(crate) fn record(memory: &GuestMemory, executed: &[u64], limit: usize) -> Vec<u8> {
    record_on_cpus(memory, &[executed], limit, || 0)
}

/// The same of several CPUs, each with an execution. `next_cpu` says which one is next; one that
/// has ended is passed over.
pub(crate) fn record_on_cpus(
    memory: &GuestMemory,
    executed: &[&[u64]],
    limit: usize,
    mut next_cpu: impl FnMut() -> usize,
) -> Vec<u8> {
    let header = RecordingHeader {
        build_id: "0a".to_owned(),
        workload: "test".to_owned(),
        cpus: CpuCount::new(executed.len() as u32).unwrap(),
        ..RecordingHeader::default()
    };
    let mut writer = RecordingWriter::new(Vec::new(), &header).unwrap();
    let mut known: HashMap<u64, (TranslationId, Vec<u64>)> = HashMap::new();
    let mut left = executed.to_vec();
    let mut last = 0;
    while left.iter().any(|rest| !rest.is_empty()) {
        let cpu = next_cpu();
        let Some(&first) = left[cpu].first() else { continue };
        let next = TranslationId(known.len() as u32);
        let (id, addrs) = known.entry(first).or_insert_with(|| {
            let (translation, addrs) = translate(memory, first, limit, next);
            writer.translations(&[translation]).unwrap();
            (next, addrs)
        });
        let both = addrs.iter().zip(left[cpu]);
        let reached = both.take_while(|(translated, ran)| translated == ran).count();
        let mut words = Vec::new();
        if std::mem::replace(&mut last, cpu) != cpu {
            StreamEvent::Cpu(CpuId(cpu as u8)).append_to(&mut words);
        }
        let event = match reached == addrs.len() {
            true => StreamEvent::Executed(*id),
            false => StreamEvent::Left { translation: *id, instructions: reached as u32 },
        };
        event.append_to(&mut words);
        writer.stream(&words).unwrap();
        left[cpu] = &left[cpu][reached..];
    }
    writer.end().unwrap().0
}

fn translate(
    memory: &GuestMemory,
    start: u64,
    limit: usize,
    id: TranslationId,
) -> (Translation, Vec<u64>) {
    let (mut addr, mut addrs, mut lengths, mut code) = (start, Vec::new(), Vec::new(), Vec::new());
    while let Some(bytes) = memory.0.get(&addr).filter(|_| addrs.len() < limit) {
        addrs.push(addr);
        lengths.push(bytes.len() as u8);
        code.extend(bytes);
        addr += bytes.len() as u64;
        if GuestMemory::ends_translation(bytes) {
            break;
        }
    }
    assert!(!addrs.is_empty(), "nothing lies at {start:x}");
    (Translation { id, addr: RunAddr(start), lengths: lengths.into(), code: code.into() }, addrs)
}

/// Replays a recording in memory over the original and `placement`.
pub(crate) fn replayed(
    recording: &[u8],
    placement: Placement,
    machines: &[MachineModel],
) -> Replayed {
    replayed_by(None, recording, placement, machines)
}

/// The same with samples at the places of a plan.
pub(crate) fn replayed_by(
    plan: Option<SamplePlan>,
    recording: &[u8],
    placement: Placement,
    machines: &[MachineModel],
) -> Replayed {
    let layouts = [
        ReplayLayout::original(),
        ReplayLayout::predicted("moved", BuildId("00".into()), placement),
    ];
    let reader = RecordingReader::new(recording).unwrap();
    let scope = SimulationScope::CachesAndBranches;
    let trials = layouts
        .each_ref()
        .map(|layout| ReplayTrial { plan, ..ReplayTrial::new(layout, machines, scope) });
    replay_trials(reader, &trials).unwrap()
}
