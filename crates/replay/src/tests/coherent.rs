//! Recordings of two CPUs with data accesses, by hand.

use crate::{ReplayLayout, Replayed, replay};
use anyhow::Result;
use sim::coherent::ClassCounts;
use trace::{
    AccessSite, CpuCount, CpuId, Mapping, ObservedAccesses, PageKind, RecordingHeader,
    RecordingReader, RecordingWriter, RunAddr, StreamEvent, Translation, TranslationId,
};

const KERNEL: u64 = 0xffff_ffff_8100_0000;
const PAGE: u64 = 0xf_fff8_8800_0200;
const DATA: u64 = PAGE << 12;

/// Turns of CPUs: the CPU, and the addresses at which its executions store 8 bytes.
fn replayed(machine: &str, cpus: u32, turns: &[(u8, &[u64])]) -> Result<Replayed> {
    let cpus = CpuCount::new(cpus).unwrap();
    let header = RecordingHeader { cpus, ..RecordingHeader::default() };
    let mut writer = RecordingWriter::with_data(Vec::new(), &header).unwrap();
    writer
        .translations(&[Translation {
            id: TranslationId(0),
            addr: RunAddr(KERNEL),
            lengths: [1, 1].into(),
            code: [0x90, 0x90].into(),
        }])
        .unwrap();
    let (mut words, mut seen) = (Vec::new(), ObservedAccesses::default());
    seen.physical = vec![(TranslationId(0), [Some(0x100_0000), None])];
    let mut mapped = Vec::new();
    let mut executes = 0;
    for &(cpu, addresses) in turns {
        if cpu != executes {
            StreamEvent::Cpu(CpuId(cpu)).append_to(&mut words);
            executes = cpu;
        }
        for &addr in addresses {
            if !mapped.contains(&cpu) {
                mapped.push(cpu);
                let mapping = Mapping { page: PAGE, frame: 0x200, kind: PageKind::Memory };
                seen.mappings.push((seen.addresses.len() as u32, mapping));
            }
            StreamEvent::Executed(TranslationId(0)).append_to(&mut words);
            seen.starts.push(seen.addresses.len() as u32);
            seen.addresses.push(addr);
            seen.sites.push(AccessSite::new(0, true, 3));
        }
    }
    writer.stream_with_data(&words, &seen).unwrap();
    let recording = writer.end().unwrap().0;
    let machines = [execution::machine::find(machine)?];
    replay(RecordingReader::new(&recording[..])?, &[ReplayLayout::original()], &machines)
}

/// Also the last execution of a turn stores before the other CPU's turn.
#[test]
fn cpus_take_a_line_from_each_other_in_the_order_of_the_recording() {
    let turns: &[(u8, &[u64])] =
        &[(0, &[DATA]), (1, &[DATA + 8]), (0, &[DATA, DATA]), (1, &[DATA + 8, DATA + 64])];
    let replayed = replayed("server-8", 2, turns).unwrap();
    let coherence = replayed.layouts[0].machines[0].coherence.as_ref().unwrap();
    let class = |cold, false_sharing| ClassCounts { cold, false_sharing, ..Default::default() };
    let (first, second) = (coherence.cpus[0].kernel, coherence.cpus[1].kernel);
    assert_eq!((first.l2_data, second.l2_data), (class(1, 1), class(2, 1)));
    assert_eq!((first.stores, second.stores), (3, 3));
    assert_eq!((first.instructions, second.instructions), (6, 6));
    assert_eq!((first.l2_instructions, second.l2_instructions), (class(1, 0), class(1, 0)));
    assert_eq!(coherence.lines.len(), 1);
    assert_eq!(coherence.lines[0].physical.0, 0x200 << 12);
    assert_eq!(coherence.lines[0].counts.kernel.false_sharing, 2);
}

#[test]
fn one_cpu_has_no_coherence() {
    let replayed = replayed("server-8", 1, &[(0, &[DATA])]).unwrap();
    let machine = &replayed.layouts[0].machines[0];
    assert!(machine.coherence.is_none() && machine.memory.is_some());
}

#[test]
fn a_machine_with_one_core_counts_no_data_of_several_cpus() {
    let replayed = replayed("server-32k", 2, &[(0, &[DATA]), (1, &[DATA])]).unwrap();
    let machine = &replayed.layouts[0].machines[0];
    assert!(machine.coherence.is_none() && machine.memory.is_none());
    assert_eq!(machine.l1i.kernel.cold, 2, "each CPU has its own L1I");
}

#[test]
fn too_few_cores_are_refused() {
    let text = include_str!("../../../../machines/server-8.toml");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("two.toml");
    let two = text.replace("cores = { value = 8", "cores = { value = 2");
    std::fs::write(&path, two).unwrap();
    let message = replayed(path.to_str().unwrap(), 3, &[(2, &[DATA])]).unwrap_err().to_string();
    assert!(message.contains("has 2 cores, and the recording 3 CPUs"), "{message}");
}
