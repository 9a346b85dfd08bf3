//! Traces of recordings that are written down by hand.

use super::record::{RECORD_BYTES, Record, file, kind, marker};
use super::{SERIAL, WHOLE_SYSTEM, instructions};
use crate::recorded::{
    Access, CODE, DATA, DATA_PHYSICAL, DEVICE, KERNEL, KERNEL_PHYSICAL, USER, USER_PHYSICAL,
    executed, left, recorded,
};
use crate::walk::TracedAmounts;
use execution::part::RecordingPart;
use host::recording::Recording;
use iced_x86::{Decoder, DecoderOptions};
use trace::{
    CpuCount, CpuId, RecordingHeader, RecordingWriter, RunAddr, StreamEvent, TaskId, Translation,
    TranslationId,
};

type Events<'a> = [(StreamEvent, &'a [Access])];

fn traced(events: &Events, part: &RecordingPart) -> (Vec<Record>, TracedAmounts) {
    let directory = recorded(&RecordingHeader::default(), events);
    let mut bytes = Vec::new();
    let amounts = instructions(directory.path(), part, &WHOLE_SYSTEM, &mut bytes).unwrap();
    let records: Vec<_> = bytes.chunks(RECORD_BYTES).map(record).collect();
    assert_eq!(amounts.records, records.len() as u64);
    (records, amounts)
}

fn record(bytes: &[u8]) -> Record {
    let half = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap());
    Record::new(half(0), half(2), u64::from_le_bytes(bytes[4..].try_into().unwrap()))
}

/// Records without those of encodings and physical addresses, behind the header.
fn story(records: &[Record]) -> Vec<Record> {
    let begin = records.iter().position(|it| (it.kind, it.size) == (kind::MARKER, marker::CPU));
    let physical = [marker::PHYSICAL_ADDRESS, marker::VIRTUAL_ADDRESS];
    let told = records[begin.unwrap() + 1..].iter().filter(|it| {
        it.kind != kind::ENCODING && !(it.kind == kind::MARKER && physical.contains(&it.size))
    });
    told.copied().collect()
}

fn marked(kind: u16, value: u64) -> Record {
    Record::new(kind::MARKER, kind, value)
}

fn event(value: u64) -> Record {
    marked(marker::HARDWARE_EVENT, value)
}

fn back(value: u64) -> Record {
    marked(marker::HARDWARE_RETURN, value)
}

fn target(value: u64) -> Record {
    marked(marker::BRANCH_TARGET, value)
}

fn ran(kind: u16, length: u16, at: u64) -> Record {
    Record::new(kind, length, at)
}

const END: Record = Record { kind: kind::FOOTER, size: 0, value: 0 };

#[test]
fn every_byte_of_a_trace() {
    let (records, amounts) = traced(
        &[
            (StreamEvent::Task(TaskId(0)), &[]),
            (executed(1), &[(0, false, DATA), (0, true, DATA + 0xff8)]),
        ],
        &RecordingPart::WHOLE,
    );
    let physical = |at: u64, virt: u64| {
        [marked(marker::PHYSICAL_ADDRESS, at), marked(marker::VIRTUAL_ADDRESS, virt)]
    };
    let file = file::WHOLE_SYSTEM | file::CORE | file::X86_64 | file::ENCODINGS;
    let expected = [
        &[Record::new(kind::HEADER, 0, 6), marked(marker::VERSION, 6)][..],
        &[marked(marker::FILE_TYPE, file | file::DATA_FILTERED)],
        &[Record::new(kind::THREAD, 0, 7), Record::new(kind::PROCESS, 0, 7)],
        &[marked(marker::CACHE_LINE_SIZE, 64), marked(marker::PAGE_SIZE, 4096)],
        &[marked(marker::WINDOW, 0), marked(marker::TIMESTAMP, 1), marked(marker::CPU, 0)],
        // The kernel runs, for something that nobody has seen.
        &[event(KERNEL + 5)],
        &physical(KERNEL_PHYSICAL + 5, KERNEL + 5),
        &[Record::new(kind::ENCODING, 2, 0xa4f3), ran(kind::INSTRUCTION, 2, KERNEL + 5)],
        &physical(DATA_PHYSICAL, DATA),
        &[Record::new(kind::READ, 8, DATA), Record::new(kind::WRITE, 8, DATA + 0xff8)],
        &[Record::new(kind::ENCODING, 2, 0xf7eb), ran(kind::JUMP, 2, KERNEL + 7), END],
    ];
    assert_eq!(records, expected.concat());
    let expected = TracedAmounts { instructions: 2, records: 22, interrupted_branches: 1 };
    assert_eq!(amounts, expected);
    assert_eq!(records[0].to_bytes(), [25, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn interrupts_and_their_returns_are_marked() {
    let (records, amounts) = traced(
        &[
            // A page fault at the first no-op.
            (left(5, 1), &[]),
            (executed(3), &[]),
            (executed(5), &[]),
            // An interrupt behind the second, and one at once behind its return.
            (executed(3), &[]),
            (executed(3), &[]),
            (executed(8), &[]),
        ],
        &RecordingPart::WHOLE,
    );
    let handler = |to: u64| [target(to), ran(kind::RETURN, 2, KERNEL + 0x100), back(to)];
    let expected = [
        &[ran(kind::INSTRUCTION, 1, USER + 0x10), event(USER + 0x10)][..],
        &handler(USER + 0x10),
        &[ran(kind::INSTRUCTION, 1, USER + 0x10), ran(kind::INSTRUCTION, 1, USER + 0x11)],
        &[event(USER + 0x12)],
        &handler(USER + 0x12),
        &[event(USER + 0x12)],
        &handler(USER + 0x12),
        // Another process has this no-op elsewhere.
        &[ran(kind::INSTRUCTION, 1, USER + 0x12), END],
    ];
    assert_eq!(story(&records), expected.concat());
    assert_eq!(amounts.interrupted_branches, 0);
    let at = records.iter().rposition(|it| it.size == marker::VIRTUAL_ADDRESS).unwrap();
    assert_eq!(records[at - 1].value, USER_PHYSICAL + 0x3012);
}

#[test]
fn an_interrupt_behind_an_indirect_branch_shows_by_its_entry() {
    let events: [(StreamEvent, &[Access]); 6] = [
        (executed(2), &[]),
        (executed(3), &[]),
        (executed(6), &[]),
        (executed(2), &[]),
        (executed(0), &[]),
        (executed(3), &[]),
    ];
    let (records, _) = traced(&events, &RecordingPart::WHOLE);
    let interrupted = [
        target(KERNEL + 0x20),
        ran(kind::RETURN, 1, KERNEL + 0x10),
        event(KERNEL + 0x20),
        target(KERNEL + 0x20),
        ran(kind::RETURN, 2, KERNEL + 0x100),
        back(KERNEL + 0x20),
        ran(kind::JUMP, 2, KERNEL + 0x20),
        target(KERNEL),
    ];
    assert_eq!(story(&records)[1..9], interrupted);
    // Nothing else is entered there: the `ret` went there.
    let (records, _) = traced(&events[..5], &RecordingPart::WHOLE);
    assert_eq!(story(&records)[1], target(KERNEL + 0x100));
}

#[test]
fn branches_have_the_outcome_that_shows_later() {
    let outcome = |next: u32| {
        let (records, amounts) = traced(
            &[(executed(0), &[]), (executed(3), &[]), (executed(next), &[]), (executed(2), &[])],
            &RecordingPart::WHOLE,
        );
        let story = story(&records);
        let jump = story.iter().position(|it| it.value == KERNEL + 3).unwrap();
        let before = (story[jump + 1].size == marker::WINDOW).then_some(());
        let event = story[jump + 1 + usize::from(before.is_some())];
        (story[jump].kind, before.is_some(), event, amounts.interrupted_branches)
    };
    // The last return's target does not show, and what runs before it may not lead to it.
    assert_eq!(outcome(1), (kind::UNTAKEN, false, event(KERNEL + 5), 3));
    assert_eq!(outcome(2), (kind::TAKEN, false, event(KERNEL + 0x10), 2));
    // The kernel goes on elsewhere: at a fixup.
    assert_eq!(outcome(6), (kind::UNTAKEN, true, event(KERNEL + 0x20), 2));
}

#[test]
fn tasks_have_their_own_contexts() {
    let switch = |task: u32| (StreamEvent::Task(TaskId(task)), &[][..]);
    let (records, _) = traced(
        &[
            switch(0),
            (executed(5), &[]),
            // Task 0 is interrupted twice, then task 1 runs, which nobody has seen.
            (executed(6), &[]),
            (left(0, 1), &[]),
            (executed(3), &[]),
            switch(1),
            (executed(2), &[]),
            (executed(6), &[]),
            switch(0),
            (executed(2), &[]),
        ],
        &RecordingPart::WHOLE,
    );
    let depths = story(&records);
    let threads: Vec<_> = depths.iter().filter(|it| it.kind == kind::THREAD).collect();
    assert_eq!(threads.iter().map(|it| it.value).collect::<Vec<_>>(), [9, 7]);
    let (mut depth, mut at_switch) = (0, Vec::new());
    for (index, record) in depths.iter().enumerate() {
        match (record.kind, record.size) {
            (kind::MARKER, marker::HARDWARE_EVENT) => depth += 1,
            (kind::MARKER, marker::HARDWARE_RETURN) => depth -= 1,
            (kind::INSTRUCTION.., _) if index > 0 && depths[index - 1].kind == kind::MARKER => {
                at_switch.push(depth)
            }
            _ => {}
        }
    }
    assert!(at_switch.iter().all(|&depth| (0..=3).contains(&depth)), "{at_switch:?}");
}

#[test]
fn repetitions_fetch_nothing_and_devices_are_left_out() {
    let accesses =
        [(0, false, DATA), (0, true, DATA + 8), (0, false, DATA + 1), (0, true, DATA + 9)];
    let (records, _) = traced(
        &[(executed(1), &accesses), (executed(0), &[(0, false, DEVICE)])],
        &RecordingPart::WHOLE,
    );
    let at = KERNEL + 5;
    let expected = [
        event(at),
        ran(kind::INSTRUCTION, 2, at),
        ran(kind::READ, 8, DATA),
        ran(kind::WRITE, 8, DATA + 8),
        ran(kind::REPETITION, 2, at),
        ran(kind::READ, 8, DATA + 1),
        ran(kind::WRITE, 8, DATA + 9),
        ran(kind::JUMP, 2, KERNEL + 7),
        ran(kind::INSTRUCTION, 3, KERNEL),
        ran(kind::UNTAKEN, 2, KERNEL + 3),
        END,
    ];
    assert_eq!(story(&records), expected);
}

#[test]
fn the_parts_of_a_recording_make_up_the_whole() {
    let accesses: Vec<[Access; 1]> = (0..8).map(|at| [(0, false, DATA + 64 * at)]).collect();
    let events: Vec<(StreamEvent, &[Access])> =
        accesses.iter().map(|own| (executed(5), &own[..])).collect();
    let part = |from, until| {
        // The code before does not lead to the next execution: windows tell that.
        let mut all = story(&traced(&events, &RecordingPart { from, until }).0);
        all.retain(|record| record.kind < kind::FOOTER);
        all
    };
    let whole = part(0.0, 1.0);
    assert_eq!(whole.len(), 24);
    assert_eq!([part(0.0, 0.25), part(0.25, 1.0)].concat(), whole);
    // A part that begins in the kernel says so, and where the kernel goes back to.
    let events: [(StreamEvent, &[Access]); 4] =
        [(executed(5), &[]), (executed(6), &[]), (executed(3), &[]), (executed(8), &[])];
    let behind = story(&traced(&events, &RecordingPart { from: 0.5, until: 1.0 }).0);
    assert_eq!(behind[0], event(USER + 0x3012));
}

/// What DynamoRIO's checker says about the way of control: an instruction leads to the next one,
/// unless a marker stands between. Returns go where their event says.
fn continues(records: &[Record]) {
    let (mut before, mut marked, mut goal): (Option<(Record, Vec<u8>, u64)>, _, _) = (None, 0, 0);
    let mut bytes = std::collections::HashMap::new();
    let (mut encoding, mut open, mut returned) = (Vec::new(), Vec::new(), None);
    for record in records {
        match (record.kind, record.size) {
            (kind::ENCODING, size) => {
                encoding.extend(&record.value.to_le_bytes()[..usize::from(size)]);
            }
            (kind::THREAD, _) => {
                before = None;
                open.clear();
            }
            (kind::MARKER, marker::BRANCH_TARGET) => goal = record.value,
            (kind::MARKER, marker::WINDOW) => before = None,
            (kind::MARKER, marker::HARDWARE_EVENT) => {
                if let Some((last, code, goal)) = before.take()
                    && marked == 0
                {
                    let to = record.value;
                    assert!(to == last.value || leads(&last, &code, goal, to), "{last:?} {to:x}");
                }
                (returned, marked) = (None, marked + 1);
                open.push(record.value);
            }
            (kind::MARKER, marker::HARDWARE_RETURN) => {
                returned = open.pop();
                marked += 1;
            }
            (kind::INSTRUCTION..=kind::RETURN | kind::TAKEN | kind::UNTAKEN, _) => {
                if !encoding.is_empty() {
                    bytes.insert(record.value, std::mem::take(&mut encoding));
                }
                let code = bytes[&record.value].clone();
                assert_eq!(code.len(), usize::from(record.size));
                match before.take() {
                    Some((last, code, goal)) if marked == 0 => {
                        assert!(leads(&last, &code, goal, record.value), "{last:?} {record:?}");
                    }
                    _ => {}
                }
                if let Some(value) = returned.take() {
                    assert_eq!(value, record.value);
                }
                before = Some((*record, code, std::mem::take(&mut goal)));
                marked = 0;
            }
            _ => {}
        }
    }
}

fn leads(last: &Record, code: &[u8], goal: u64, to: u64) -> bool {
    let decoded = Decoder::with_ip(64, code, last.value, DecoderOptions::NONE).decode();
    match last.kind {
        kind::INSTRUCTION | kind::UNTAKEN => decoded.next_ip() == to,
        kind::JUMP | kind::CALL | kind::TAKEN => decoded.near_branch_target() == to,
        _ => goal == to,
    }
}

#[test]
fn control_goes_from_each_instruction_to_the_next() {
    // Whatever runs after what: also what no processor does.
    let translations = CODE.len() as u32;
    let step = |choice: u32| match choice % (translations + 4) {
        all if all < translations => executed(all),
        task if task < translations + 2 => StreamEvent::Task(TaskId(task - translations)),
        part => left([0, 7][(part - translations - 2) as usize], 1),
    };
    let mut random = 1u64;
    for length in (1..15).cycle().take(400) {
        let events: Vec<(StreamEvent, &[Access])> = (0..length)
            .map(|_| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (step((random >> 33) as u32), &[][..])
            })
            .chain([(executed(0), &[][..])])
            .collect();
        let (records, amounts) = traced(&events, &RecordingPart::WHOLE);
        let instructions: u32 = events.iter().filter_map(|(event, _)| count(event)).sum();
        assert_eq!(amounts.instructions, u64::from(instructions));
        continues(&records);
    }
}

fn count(event: &StreamEvent) -> Option<u32> {
    let (id, reached) = event.execution()?;
    Some(reached.unwrap_or(CODE[id.0 as usize].1.len() as u32))
}

#[test]
fn several_cpus_are_refused_and_recordings_without_accesses_are_not() {
    let header = RecordingHeader { cpus: CpuCount::new(2).unwrap(), ..Default::default() };
    let several = recorded(&header, &[(StreamEvent::Cpu(CpuId(1)), &[]), (executed(5), &[])]);
    let failed =
        instructions(several.path(), &RecordingPart::WHOLE, &WHOLE_SYSTEM, &mut Vec::new());
    let message = format!("{:#}", failed.unwrap_err());
    assert!(message.contains("a trace of DynamoRIO is written of one CPU"), "{message}");

    let mut writer = RecordingWriter::new(Vec::new(), &RecordingHeader::default()).unwrap();
    let (id, addr) = (TranslationId(0), RunAddr(KERNEL));
    let code = [0x90].into();
    writer.translations(&[Translation { id, addr, lengths: [1].into(), code }]).unwrap();
    let mut words = Vec::new();
    executed(0).append_to(&mut words);
    writer.stream(&words).unwrap();
    let without = tempfile::tempdir().unwrap();
    std::fs::write(Recording::at(without.path()).trace(), writer.end().unwrap().0).unwrap();
    let mut bytes = Vec::new();
    instructions(without.path(), &RecordingPart::WHOLE, &SERIAL, &mut bytes).unwrap();
    let records: Vec<_> = bytes.chunks(RECORD_BYTES).map(record).collect();
    let kept = file::X86_64 | file::ENCODINGS | file::CORE;
    let lacks = file::DATA_FILTERED | file::INSTRUCTIONS_ONLY;
    assert_eq!(records[2], marked(marker::FILE_TYPE, kept | lacks));
    let event = marked(marker::KERNEL_EVENT, KERNEL);
    assert_eq!(story(&records), [event, ran(kind::INSTRUCTION, 1, KERNEL), END]);
}

#[test]
fn damaged_recordings_are_refused() {
    let whole = recorded(&RecordingHeader::default(), &[(executed(5), &[]), (executed(3), &[])]);
    let path = Recording::at(whole.path()).trace();
    let bytes = std::fs::read(&path).unwrap();
    for at in (0..bytes.len()).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x55;
        for damaged in [&damaged[..], &bytes[..at]] {
            std::fs::write(&path, damaged).unwrap();
            let part = &RecordingPart::WHOLE;
            let failed = instructions(whole.path(), part, &WHOLE_SYSTEM, &mut Vec::new());
            assert!(failed.is_err(), "byte {at}");
        }
    }
}
