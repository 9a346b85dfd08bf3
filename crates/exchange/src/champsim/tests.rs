//! Traces of recordings that are written down by hand.

use super::instructions;
use super::record::{InstructionRecord, RECORD_BYTES, TracedRegisters};
use crate::recorded::{
    Access, DATA, DATA_PHYSICAL, DEVICE, KERNEL, KERNEL_PHYSICAL, USER_PHYSICAL, executed, left,
    recorded,
};
use crate::walk::TracedAmounts;
use execution::part::RecordingPart;
use host::recording::Recording;
use trace::{
    CpuCount, CpuId, RecordingHeader, RecordingWriter, RunAddr, StreamEvent, Translation,
    TranslationId,
};

/// The fields of a record.
fn record(bytes: &[u8]) -> InstructionRecord {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    InstructionRecord {
        ip: number(0),
        is_branch: bytes[8] == 1,
        taken: bytes[9] == 1,
        registers: TracedRegisters::new(&bytes[12..16], &bytes[10..12]),
        stores: [16, 24].map(number),
        loads: [32, 40, 48, 56].map(number),
    }
}

fn traced(
    events: &[(StreamEvent, &[Access])],
    part: &RecordingPart,
) -> (Vec<InstructionRecord>, TracedAmounts) {
    let directory = recorded(&RecordingHeader::default(), events);
    let mut bytes = Vec::new();
    let amounts = instructions(directory.path(), part, &mut bytes).unwrap();
    let records: Vec<_> = bytes.chunks(RECORD_BYTES).map(record).collect();
    assert_eq!(amounts.records, records.len() as u64);
    (records, amounts)
}

/// The address of each record, whether it is a branch, and whether that is taken.
fn way(records: &[InstructionRecord]) -> Vec<(u64, bool, bool)> {
    records.iter().map(|record| (record.ip, record.is_branch, record.taken)).collect()
}

#[test]
fn every_instruction_has_a_record_with_physical_addresses() {
    let (records, amounts) = traced(
        &[
            (executed(0), &[(0, false, DATA + 8)]),
            (executed(1), &[]),
            (executed(0), &[(0, false, DEVICE)]),
            (executed(2), &[(0, false, DATA)]),
            (executed(6), &[]),
        ],
        &RecordingPart::WHOLE,
    );
    let at = KERNEL_PHYSICAL;
    let expected = [
        (at, false, false),
        (at + 3, true, false),
        (at + 5, false, false),
        (at + 7, true, true),
        (at, false, false),
        (at + 3, true, true),
        (at + 0x10, true, true),
        (at + 0x20, true, true),
    ];
    assert_eq!(way(&records), expected);
    assert_eq!(amounts, TracedAmounts { instructions: 8, records: 8, interrupted_branches: 0 });
    let loads: Vec<_> = records.iter().map(|record| record.loads[0]).collect();
    assert_eq!(loads, [DATA_PHYSICAL + 8, 0, 0, 0, 0, 0, DATA_PHYSICAL, 0]);
}

#[test]
fn many_accesses_make_more_records() {
    // Lines of 64 bytes: the loads touch lines 0 (twice), 1 and, across its end, 2.
    let accesses = [
        (0, false, DATA),
        (0, true, DATA + 0x200),
        (0, false, DATA + 8),
        (0, true, DATA + 0x240),
        (0, false, DATA + 0x7c),
        (0, true, DATA + 0x280),
    ];
    let (records, amounts) =
        traced(&[(executed(1), &accesses), (executed(0), &[])], &RecordingPart::WHOLE);
    assert_eq!(amounts, TracedAmounts { instructions: 4, records: 5, interrupted_branches: 1 });
    let at = |offset| DATA_PHYSICAL + offset;
    assert_eq!(records[0].loads, [at(0), at(0x7c), at(0x80), 0]);
    assert_eq!(records[0].stores, [at(0x200), at(0x240)]);
    assert_eq!(records[0].registers, TracedRegisters::default());
    assert_eq!((records[1].ip, records[1].stores), (records[0].ip, [at(0x280), 0]));
    assert_ne!(records[1].registers, TracedRegisters::default());
}

#[test]
fn interrupted_branches_are_no_branches() {
    let (records, amounts) = traced(
        &[
            // The conditional jump goes on behind the interruption: nothing runs again.
            (executed(0), &[]),
            (executed(3), &[]),
            (executed(2), &[]),
            // A page fault: of the translation only the load is reached.
            (left(0, 1), &[]),
            (executed(3), &[]),
            // The direct jump.
            (executed(6), &[]),
            (executed(3), &[]),
            // User code's call.
            (executed(4), &[(0, true, DATA)]),
            (executed(3), &[]),
            (executed(4), &[(0, true, DATA)]),
            (executed(5), &[]),
        ],
        &RecordingPart::WHOLE,
    );
    let branches: Vec<_> = records.iter().map(|record| (record.ip, record.is_branch)).collect();
    let (kernel, user) = (KERNEL_PHYSICAL, USER_PHYSICAL);
    let expected = [
        (kernel, false),
        (kernel + 3, false),
        (kernel + 0x100, false),
        (kernel + 0x10, true),
        (kernel, false),
        (kernel + 0x100, false),
        (kernel + 0x20, false),
        (kernel + 0x100, false),
        (user, false),
        (kernel + 0x100, false),
        (user, true),
        (user + 0x10, false),
        (user + 0x11, false),
    ];
    assert_eq!(branches, expected);
    assert_eq!(amounts.interrupted_branches, 3);
    assert_eq!(records[10].stores, [DATA_PHYSICAL, 0]);
}

#[test]
fn a_branch_across_the_end_of_a_line_has_the_address_of_its_last_byte() {
    let (records, _) = traced(&[(executed(7), &[]), (executed(0), &[])], &RecordingPart::WHOLE);
    let at = KERNEL_PHYSICAL;
    assert_eq!(
        way(&records)[..3],
        [(at + 0x3a, false, false), (at + 0x41, true, true), (at, false, false)]
    );
}

#[test]
fn the_parts_of_a_recording_make_up_the_whole() {
    let accesses: Vec<[Access; 1]> = (0..8).map(|at| [(0, false, DATA + 64 * at)]).collect();
    let events: Vec<(StreamEvent, &[Access])> =
        accesses.iter().map(|own| (executed(5), &own[..])).collect();
    let part = |from, until| traced(&events, &RecordingPart { from, until }).0;
    let whole = part(0.0, 1.0);
    assert_eq!(whole.len(), 16);
    assert_eq!([part(0.0, 0.25), part(0.25, 1.0)].concat(), whole);
    assert_eq!(part(0.5, 0.75), whole[8..12]);
}

#[test]
fn recordings_that_lack_something_are_refused() {
    let header = RecordingHeader { cpus: CpuCount::new(2).unwrap(), ..Default::default() };
    let events: [(StreamEvent, &[Access]); 2] =
        [(StreamEvent::Cpu(CpuId(1)), &[]), (executed(5), &[])];
    let several = recorded(&header, &events);
    let message = |directory: &tempfile::TempDir| {
        let failed = instructions(directory.path(), &RecordingPart::WHOLE, &mut Vec::new());
        format!("{:#}", failed.unwrap_err())
    };
    assert!(message(&several).contains("a trace of ChampSim has one CPU"), "{}", message(&several));

    let mut writer = RecordingWriter::new(Vec::new(), &RecordingHeader::default()).unwrap();
    let code = [0x90].into();
    let addr = RunAddr(KERNEL);
    writer
        .translations(&[Translation { id: TranslationId(0), addr, lengths: [1].into(), code }])
        .unwrap();
    let mut words = Vec::new();
    executed(0).append_to(&mut words);
    writer.stream(&words).unwrap();
    let without = tempfile::tempdir().unwrap();
    std::fs::write(Recording::at(without.path()).trace(), writer.end().unwrap().0).unwrap();
    assert!(message(&without).contains("has no data accesses"), "{}", message(&without));
}
