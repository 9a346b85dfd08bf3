//! Files as each form of perf writes them, and what is read from them.

use super::*;
use layout::random::SplitMix64;

/// Bits of `sample_type`: an address, counters, an id in front, and a branch stack.
const IP: u64 = 1;
const READ: u64 = 1 << 4;
const IDENTIFIER: u64 = 1 << 16;
const BRANCH_STACK: u64 = 1 << 11;
/// `branch_sample_type`: all branches of the kernel.
const ANY_KERNEL: u64 = 8 | 2;
const TEXT: u64 = 0xffff_ffff_9000_0000;
const STACK: [(u64, u64); 2] = [(0x30, 0x40), (0x10, 0x20)];

fn words(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let size = body.len() as u16 + 8;
    [&kind.to_le_bytes()[..], &1_u16.to_le_bytes(), &size.to_le_bytes(), body].concat()
}

/// A mapping of the kernel as MMAP.
fn mapping() -> Vec<u8> {
    let place = [words(&[u64::from(u32::MAX), TEXT, 0x100_0000, TEXT])].concat();
    record(kind::MMAP, &[&place[..], b"[kernel.kallsyms]_text\0\0"].concat())
}

/// The same as MMAP2.
fn mapping2() -> Vec<u8> {
    let place = words(&[u64::from(u32::MAX), TEXT, 0x100_0000, TEXT, 0x14, 0, 0, 5]);
    record(kind::MMAP2, &[&place[..], b"[kernel.kallsyms]_text\0\0"].concat())
}

/// A sample: `front`, and a branch stack with flags.
fn sample(front: &[u64], stack: &[(u64, u64)], flags: u64) -> Vec<u8> {
    let mut body = words(front);
    body.extend(words(&[stack.len() as u64]));
    stack.iter().for_each(|&(from, to)| body.extend(words(&[from, to, flags])));
    record(kind::SAMPLE, &body)
}

/// The attributes of an event.
fn attribute(sample_type: u64, read_format: u64, branch_type: u64) -> Vec<u8> {
    let mut attribute = vec![0; 112];
    attribute[4] = 112;
    attribute[16] = 1;
    attribute[24..32].copy_from_slice(&sample_type.to_le_bytes());
    attribute[32..40].copy_from_slice(&read_format.to_le_bytes());
    attribute[72..80].copy_from_slice(&branch_type.to_le_bytes());
    attribute
}

/// A file of events with their ids, and of records. `written`: whether perf wrote the data's size.
fn file_of(events: &[(Vec<u8>, Vec<u64>)], records: &[u8], written: bool) -> Vec<u8> {
    let mut ids_at = 104;
    let ids: Vec<u8> = events.iter().flat_map(|(_, ids)| words(ids)).collect();
    let mut attributes = Vec::new();
    for (attribute, ids) in events {
        attributes.extend(attribute);
        attributes.extend(words(&[ids_at, 8 * ids.len() as u64]));
        ids_at += 8 * ids.len() as u64;
    }
    let size = attributes.len() as u64;
    let data = (ids_at + size, if written { records.len() as u64 } else { 0 });
    let mut file = b"PERFILE2".to_vec();
    file.extend(words(&[104, size / events.len() as u64, ids_at, size, data.0, data.1]));
    // No types of events. Feature 2, whose section is behind the data of a complete file.
    file.extend(words(&[0, 0, 4, 0, 0, 0]));
    file.extend([ids, attributes, records.to_vec()].concat());
    if written {
        file.extend(words(&[104, 0]));
    }
    file
}

fn ordinary() -> Vec<(Vec<u8>, Vec<u64>)> {
    vec![(attribute(IP | BRANCH_STACK, 0, ANY_KERNEL), vec![])]
}

/// A file with one event (samples of IP and branch stack), one kernel mapping and one sample.
fn file() -> Vec<u8> {
    file_of(&ordinary(), &[mapping(), sample(&[TEXT], &STACK, 0)].concat(), true)
}

/// The file as it comes through a pipe.
fn piped() -> Vec<u8> {
    let event = attribute(IP | BRANCH_STACK, 0, ANY_KERNEL);
    let described = record(kind::HEADER_ATTR, &[event, words(&[7])].concat());
    let traces = record(kind::TRACING_DATA, &[5, 0, 0, 0]);
    let head = [&b"PERFILE2"[..], &words(&[16])].concat();
    let sample = sample(&[TEXT], &STACK, 0);
    [head, described, traces, vec![255; 8], mapping2(), sample].concat()
}

/// Asserts that the two branches of [`STACK`], the stretch between them and the kernel's place
/// were read, `times` times.
fn assert_read(samples: &PerfSamples, times: u64) {
    let taken = STACK.into_iter().map(|branch| (branch, times));
    assert_eq!(samples.branches.taken, taken.collect());
    assert_eq!(samples.branches.straight, [((0x20, 0x30), times)].into());
    assert_eq!(samples.kernel, Some(("_text".to_owned(), TEXT)));
}

fn refused(file: &[u8]) -> String {
    format!("{:#}", data(file).unwrap_err())
}

#[test]
fn branch_stacks_are_read_from_a_file() {
    let samples = data(&file()).unwrap();
    assert_read(&samples, 1);
    assert!(samples.notes.is_empty(), "{:?}", samples.notes);
}

#[test]
fn the_kernel_s_place_is_read_from_each_kind_of_mapping() {
    let records = |mapping: Vec<u8>| [mapping, sample(&[TEXT], &STACK, 0)].concat();
    let samples = data(&file_of(&ordinary(), &records(mapping2()), true)).unwrap();
    assert_read(&samples, 1);
    // A program's mapping of that name, and a place that perf could not see.
    for (byte, value) in [(4, 2), (32, 0), (33, 0), (34, 0), (35, 0)] {
        let mut mapping = mapping();
        mapping[byte] = value;
        if byte == 32 {
            mapping[32..40].fill(0);
        }
        let samples = data(&file_of(&ordinary(), &records(mapping), true)).unwrap();
        assert_eq!(samples.kernel.is_none(), byte <= 32, "{byte}");
    }
}

#[test]
fn what_came_through_a_pipe_is_read() {
    assert_read(&data(&piped()).unwrap(), 1);
    // perf was killed within a record.
    let whole = [piped(), sample(&[TEXT], &STACK, 0)].concat();
    let samples = data(&whole[..whole.len() - 1]).unwrap();
    assert_read(&samples, 1);
    assert!(samples.notes[0].contains("within a record: the 1 samples"), "{:?}", samples.notes);
    // A record that says nothing of a sample's fields.
    let head = &piped()[..16];
    let error = refused(&[head, &sample(&[TEXT], &STACK, 0)].concat());
    assert!(error.contains("before the description of its event"), "{error}");
}

#[test]
fn samples_with_counters_are_read() {
    let stack = |read_format: u64, counters: &[u64]| {
        let event = attribute(IP | READ | BRANCH_STACK, read_format, ANY_KERNEL);
        let records = [mapping(), sample(&[&[TEXT], counters].concat(), &STACK, 0)].concat();
        data(&file_of(&[(event, vec![])], &records, true)).unwrap()
    };
    // One counter; with times, an id and lost events; a group of two.
    assert_read(&stack(0, &[9]), 1);
    assert_read(&stack(0b1_0111, &[9, 1, 1, 7, 0]), 1);
    assert_read(&stack(0b1_1111, &[2, 1, 1, 9, 7, 0, 9, 8, 0]), 1);
    assert_read(&stack(0b0_1000, &[3, 9, 9, 9]), 1);
}

#[test]
fn samples_of_several_events_are_told_apart_by_their_ids() {
    let stacks = attribute(IDENTIFIER | IP | BRANCH_STACK, 0, ANY_KERNEL);
    let plain = attribute(IDENTIFIER | IP, 0, 0);
    let of = |events: &[(Vec<u8>, Vec<u64>)]| {
        let other = record(kind::SAMPLE, &words(&[50, TEXT]));
        let records = [mapping(), other, sample(&[60, TEXT], &STACK, 0)].concat();
        data(&file_of(events, &records, true))
    };
    assert_read(&of(&[(plain.clone(), vec![50, 51]), (stacks.clone(), vec![60])]).unwrap(), 1);
    let samples = of(&[(stacks.clone(), vec![60]), (plain, vec![51])]).unwrap();
    assert_read(&samples, 1);
    assert_eq!(samples.notes, ["1 samples are of no event of the file: left out"]);
    let odd = attribute(IP, 0, 0);
    let error = of(&[(stacks, vec![60]), (odd, vec![50])]).unwrap_err().to_string();
    assert!(error.contains("do not agree where"), "{error}");
    // Equal events without ids.
    let events = [ordinary(), ordinary()].concat();
    let records = [mapping(), sample(&[TEXT], &STACK, 0)].concat();
    assert_read(&data(&file_of(&events, &records, true)).unwrap(), 1);
}

#[test]
fn what_a_killed_perf_left_is_read_and_noted() {
    let records = [mapping(), sample(&[TEXT], &STACK, 0)].concat();
    let samples = data(&file_of(&ordinary(), &records, false)).unwrap();
    assert_read(&samples, 1);
    assert!(samples.notes[0].contains("perf was killed"), "{:?}", samples.notes);
    // Within the next record.
    let more = [records, sample(&[TEXT], &STACK, 0)].concat();
    let file = file_of(&ordinary(), &more, false);
    assert_read(&data(&file[..file.len() - 1]).unwrap(), 1);
    let error = refused(&file_of(&ordinary(), &mapping(), false));
    assert!(error.contains("perf was killed before it wrote a sample"), "{error}");
    // Complete, and without data: perf was not killed.
    let error = refused(&file_of(&ordinary(), &[], true));
    assert!(error.contains("it has no samples"), "{error}");
}

#[test]
fn compressed_records_are_read() {
    let sample = sample(&[TEXT], &STACK, 0);
    let plain = [mapping(), sample.repeat(50_000)].concat();
    // One stream, whose parts end anywhere.
    let mut packed = Vec::new();
    let mut stream = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    for (part, bytes) in plain.chunks(100_001).enumerate() {
        std::io::Write::write_all(&mut stream, bytes).unwrap();
        std::io::Write::flush(&mut stream).unwrap();
        let part_packed = std::mem::take(stream.get_mut());
        let length = words(&[part_packed.len() as u64]);
        packed.push(match part % 2 {
            0 => record(kind::COMPRESSED, &part_packed),
            _ => record(kind::COMPRESSED2, &[length, part_packed, vec![0; 3]].concat()),
        });
    }
    let parts = packed.len();
    assert!(parts > 30);
    assert_read(&data(&file_of(&ordinary(), &packed.concat(), true)).unwrap(), 50_000);
    let error = refused(&file_of(&ordinary(), &packed[..parts - 1].concat(), true));
    assert!(error.contains("has no end"), "{error}");
    let error = refused(&file_of(&ordinary(), &record(kind::COMPRESSED, &[1; 9]), true));
    assert!(error.contains("cannot be decompressed"), "{error}");
    let error = refused(&file_of(&ordinary(), &record(kind::COMPRESSED2, &words(&[9])), true));
    assert!(error.contains("is damaged"), "{error}");
}

#[test]
fn a_directory_of_threads_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: Vec<u8>| {
        std::fs::write(directory.path().join(name), bytes).unwrap();
    };
    write("data", file_of(&ordinary(), &mapping(), true));
    write("data.0", sample(&[TEXT], &STACK, 0));
    write("data.10", sample(&[TEXT], &STACK, 0));
    write("data.old", b"not read".to_vec());
    assert_read(&super::directory(directory.path()).unwrap(), 2);
    write("data.2", sample(&[TEXT], &STACK, 0)[..20].to_vec());
    let error = format!("{:#}", super::directory(directory.path()).unwrap_err());
    assert!(error.contains("data.2: the record at byte 0 of the data has no end"), "{error}");
}

#[test]
fn stacks_that_do_not_hold_every_branch_are_refused_with_what_to_record() {
    let only = |branch_type: u64| {
        let event = attribute(IP | BRANCH_STACK, 0, branch_type);
        refused(&file_of(&[(event, vec![])], &sample(&[TEXT], &STACK, 0), true))
    };
    // call_stack, any_call and any_ret, in_tx of any, user mode.
    for (branch_type, what) in [
        (1 << 11 | 8, "calls that did not return yet (`--call-graph lbr`)"),
        (1 << 4 | 1 << 5 | 2, "branches of some kinds (`-j any_call,any_ret`)"),
        (1 << 8 | 8, "branches of some kinds (`-j in_tx`)"),
        (8 | 1, "branches of user programs (`:u`, or `-j any,u`)"),
    ] {
        let error = only(branch_type);
        assert!(error.contains(what) && error.contains("perf record -b -a -e cycles:k"), "{error}");
    }
    // A trace of the processor, from which perf made stacks: HW_INDEX alone.
    let event = attribute(IP | BRANCH_STACK, 0, 1 << 17);
    let mut body = words(&[TEXT, 2, 0]);
    STACK.iter().for_each(|&(from, to)| body.extend(words(&[from, to, 0])));
    let records = [mapping(), record(kind::SAMPLE, &body)].concat();
    assert_read(&data(&file_of(&[(event, vec![])], &records, true)).unwrap(), 1);
    // `-b` takes the modes of the event.
    let mut event = attribute(IP | BRANCH_STACK, 0, 8);
    let file = |event: &[u8]| {
        let records = [mapping(), sample(&[TEXT], &STACK, 0)].concat();
        file_of(&[(event.to_vec(), vec![])], &records, true)
    };
    assert_read(&data(&file(&event)).unwrap(), 1);
    event[40] = 1 << 5;
    assert!(refused(&file(&event)).contains("user programs"));
}

#[test]
fn stacks_of_another_event_that_holds_every_branch_are_used() {
    let any = attribute(IDENTIFIER | BRANCH_STACK, 0, ANY_KERNEL);
    let calls = attribute(IDENTIFIER | BRANCH_STACK, 0, 1 << 4);
    let call = sample(&[60], &[(0x50, 0x60)], 0);
    let records = [mapping(), call, sample(&[50], &STACK, 0)].concat();
    let samples = data(&file_of(&[(calls, vec![60]), (any, vec![50])], &records, true)).unwrap();
    assert_read(&samples, 1);
    let note = "1 samples have stacks that hold only branches of some kinds (`-j any_call`)";
    assert!(samples.notes[0].starts_with(note), "{:?}", samples.notes);
}

#[test]
fn entries_of_wrong_paths_are_left_out_and_do_not_break_a_stretch() {
    // SPEC_WRONG_PATH is 1 of the two bits from 24 on. 3: speculative, and right.
    let mut body = words(&[TEXT, 3]);
    for (from, to, spec) in [(0x30, 0x40, 3), (0x28, 0x90, 1), (0x10, 0x20, 2_u64)] {
        body.extend(words(&[from, to, spec << 24]));
    }
    let records = [mapping(), record(kind::SAMPLE, &body)].concat();
    let samples = data(&file_of(&ordinary(), &records, true)).unwrap();
    assert_read(&samples, 1);
    assert!(samples.notes[0].starts_with("1 of 3 entries of the branch stacks are of wrong paths"));
}

#[test]
fn without_branches_the_reason_is_named() {
    let plain = [(attribute(IP, 0, 0), vec![])];
    let error = refused(&file_of(&plain, &record(kind::SAMPLE, &words(&[TEXT])), true));
    assert!(error.contains("none of its 1 samples has a branch stack"), "{error}");
    let error = refused(&file_of(&ordinary(), &sample(&[TEXT], &[], 0), true));
    assert!(error.contains("all of its 1 branch stacks are empty"), "{error}");
}

#[test]
fn damaged_files_are_refused_or_read_and_never_panic() {
    let mut random = SplitMix64::new(1);
    for whole in [file(), piped(), file_of(&ordinary(), &file()[..], false)] {
        for _ in 0..3000 {
            let mut bytes = whole.clone();
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next_u64() as u8;
            bytes.truncate(bytes.len() - (random.below(4) * random.below(60)) as usize);
            if let Ok(samples) = data(&bytes) {
                assert!(samples.branches.total() <= 4);
            }
        }
    }
    assert!(refused(b"no perf.data").contains("not a perf.data file"));
    assert!(refused(b"").contains("it is empty"));
    assert!(refused(b"2ELIFREP\0\0\0\0").contains("big-endian"));
    assert!(refused(&file()[..50]).contains("within its header"));
    // The sizes of the header and of the attributes, the data's place, and that of the ids.
    for (at, value, what) in [
        (8, 105, "its header has 105 bytes"),
        (16, 0, "attributes have the size"),
        (40, 255, "a section lies outside"),
        (48, 255, "a section lies outside"),
        (104 + 112, 255, "a section lies outside"),
        (104 + 4, 63, "the attributes of an event"),
        (32, 0, "it has no events"),
    ] {
        let mut bytes = file();
        bytes[at + 1] = 0;
        bytes[at] = value;
        if value == 255 {
            bytes[at + 3] = 9;
        }
        let error = refused(&bytes);
        assert!(error.contains(what), "{at}: {error}");
    }
    let short = file_of(&ordinary(), &[9, 0, 0, 0, 0, 0, 7, 0], true);
    assert!(refused(&short).contains("a record of 7 bytes is too short"));
    // A stack that says to have more entries than the sample holds.
    let mut records = sample(&[TEXT], &STACK, 0);
    records[16] = 3;
    assert!(refused(&file_of(&ordinary(), &records, true)).contains("a sample ends too early"));
    // A trace of a processor that is longer than the file.
    let trace = record(kind::AUXTRACE, &words(&[u64::MAX, 0]));
    assert!(refused(&file_of(&ordinary(), &trace, true)).contains("has no end"));
}

#[test]
fn branch_stacks_are_read_from_the_output_of_perf_script() {
    let text = "  0x30/0x40/P/-/-/2/COND/-  0x10/0x20/P/-/-/0\n\n 0x10/0x20/M/-/-/0\n";
    let samples = script(text).unwrap();
    assert_eq!(samples.branches.taken, [((0x10, 0x20), 2), ((0x30, 0x40), 1)].into());
    assert_eq!(samples.branches.straight, [((0x20, 0x30), 1)].into());
    assert_eq!(samples.kernel, None);
    assert!(script("").is_err());
    let error = script("0x1/0x2/P\n0x1/here").unwrap_err();
    assert!(error.to_string().starts_with("line 2: \"0x1/here\""), "{error}");
    let error = script("f+0x1/g+0x2/P/-/-/0").unwrap_err();
    assert!(error.to_string().contains("`perf script -F brstack`"), "{error}");
}

#[test]
fn the_output_of_perf_script_may_have_other_fields_and_mappings() {
    let first = "PERF_RECORD_MMAP -1/0: [0xffffffff90000000(0x1400000) @ 0xffffffff90000000]: x \
        [kernel.kallsyms]_text\n";
    let second = "  swapper  0  0.000: PERF_RECORD_MMAP2 -1/0: [0xffffffff90000000(0x1400000) @ \
        0xffffffff90000000 <1111>]: ---p [kernel.kallsyms]_text\n";
    let third = "PERF_RECORD_MMAP2 -1/0: [0x90(0x14) @ 0xffffffff90000000 00:00 0 0]: ---p \
        [kernel.kallsyms]_text\n";
    let stacks = "kworker/0:1-ev 12 [001] 5.2: 7 cycles: ffffffff90000010 f+0x1 (/lib/m.ko) \
        0x30/0x40/P/-/-/0//-  0x28/0x90/P/-/-/0//SPEC_WRONG_PATH  0x10/0x20/P/-/-/0//-\n";
    for mapping in [first, second, third] {
        let other = "PERF_RECORD_MMAP 1/1: [0x1(0x2) @ 0]: x /bin/sh\n";
        let samples = script(&[other, mapping, stacks].concat()).unwrap();
        assert_read(&samples, 1);
        assert!(samples.notes[0].starts_with("1 of 3 entries"), "{:?}", samples.notes);
    }
}
