//! A guest that executes what it is told, and QEMU's way of cutting that into translations: from
//! wherever control arrives up to a branch, or a limit.

use crate::{Asked, Layout, Replayed, replay_part};
use execution::part::PartFilter;
use image::place::Placement;
use sim::MachineModel;
use std::collections::{BTreeMap, HashMap};
use trace::{
    RecordingHeader, RecordingReader, RecordingWriter, RunAddr, StreamEvent, Translation,
    TranslationId,
};

/// What lies in the guest's memory: instructions by address.
#[derive(Clone, Debug, Default)]
pub struct Memory(pub BTreeMap<u64, Vec<u8>>);

impl Memory {
    /// Puts an instruction; gives the address behind it.
    pub fn put(&mut self, addr: u64, code: &[u8]) -> u64 {
        self.0.insert(addr, code.to_vec());
        addr + code.len() as u64
    }

    /// Whether a translation ends with this instruction, as far as these tests use them.
    fn ends_translation(code: &[u8]) -> bool {
        matches!(
            code,
            [0x70..=0x7f | 0xeb, _] | [0x0f, 0x80..=0x8f, ..] | [0xe8 | 0xe9, ..] | [0xc3]
        ) || matches!(code, [0x48, 0xcf] | [0x48, 0x0f, 0x07] | [0x0f, 0x05])
    }
}

/// Writes a recording of the execution: the addresses of the instructions, in order. A translation
/// holds at most `limit` instructions.
pub fn record(memory: &Memory, executed: &[u64], limit: usize) -> Vec<u8> {
    let mut writer = RecordingWriter::new(
        Vec::new(),
        &RecordingHeader {
            build_id: "0a".to_owned(),
            workload: "test".to_owned(),
            ..RecordingHeader::default()
        },
    )
    .unwrap();
    let mut known: HashMap<u64, (TranslationId, Vec<u64>)> = HashMap::new();
    let mut at = 0;
    while at < executed.len() {
        let next = TranslationId(known.len() as u32);
        let (id, addrs) = known.entry(executed[at]).or_insert_with(|| {
            let (translation, addrs) = translate(memory, executed[at], limit, next);
            writer.translations(&[translation]).unwrap();
            (next, addrs)
        });
        let reached = addrs
            .iter()
            .zip(&executed[at..])
            .take_while(|(translated, ran)| translated == ran)
            .count();
        let event = match reached == addrs.len() {
            true => StreamEvent::Executed(*id),
            false => StreamEvent::Left { translation: *id, instructions: reached as u32 },
        };
        let mut words = Vec::new();
        event.append_to(&mut words);
        writer.stream(&words).unwrap();
        at += reached;
    }
    writer.end().unwrap().0
}

fn translate(
    memory: &Memory,
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
        if Memory::ends_translation(bytes) {
            break;
        }
    }
    assert!(!addrs.is_empty(), "nothing lies at {start:x}");
    (Translation { id, addr: RunAddr(start), lengths: lengths.into(), code: code.into() }, addrs)
}

/// Replays a recording in memory over the original and `placement`.
pub fn replayed(recording: &[u8], placement: Placement, machines: &[MachineModel]) -> Replayed {
    let layouts =
        [Layout::original(), Layout { name: "moved".to_owned(), kernel: None, placement }];
    let reader = RecordingReader::new(recording).unwrap();
    replay_part(reader, &layouts, machines, Asked::Branches, &mut PartFilter::whole()).unwrap()
}
