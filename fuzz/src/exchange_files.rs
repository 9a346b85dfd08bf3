//! Profiles of other tools: what the targets use of `kernlane-exchange`.

use exchange::kinds::FileKind;
use exchange::{bolt_import, branches, compressed, import_file, perf, samples_import};
use image::address::LinkAddr;
use std::io::Write;

pub fn perf_data(bytes: &[u8]) {
    if let Ok(samples) = perf::data(bytes) {
        samples.branches.total();
        import(&samples.branches);
    }
}

pub fn perf_text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(found) = perf::script(text) {
        found.branches.total();
        import(&found.branches);
    }
}

pub fn sample_profiles(bytes: &[u8]) {
    samples_import::is_binary(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if samples_import::parse(text).is_ok() {
        let named = samples_import::is_text(text) || text.trim().is_empty();
        assert!(named, "read, but not known as a sample profile");
    }
}

pub fn bolt_text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(found) = bolt_import::pre_aggregated(text) {
        assert!(bolt_import::is_pre_aggregated(text), "read, but not known");
        import(&found);
    }
    if let Ok(found) = bolt_import::fdata(text) {
        assert!(bolt_import::is_fdata(text) || text.trim().is_empty(), "read, but not known");
        let image = image::examples::caller_and_callee(LinkAddr(0x1000));
        let address = |name: &str| match name {
            "f" => Some(0x1000),
            "g" => Some(0x1020),
            _ => None,
        };
        let code = image::examples::caller_and_callee_code(LinkAddr(0x1000));
        let imported = found.profile_by(&image, &code, "sampled", &address);
        assert!(imported.branches_used <= imported.branches);
    }
}

/// The bytes to which an input may unpack.
const UNPACKED: u64 = 32 << 20;

/// Files of any kind, compressed or not.
pub fn import_files(bytes: &[u8]) {
    let Ok(unpacked) = compressed::unpacked(bytes, UNPACKED) else { return };
    assert!(unpacked.as_ref().is_none_or(|unpacked| unpacked.len() as u64 <= UNPACKED));
    let bytes = unpacked.as_deref().unwrap_or(bytes);
    if let Some(kind) = FileKind::of(bytes) {
        assert!(!kind.description().is_empty());
    }
    // A binary profile of LLVM is for LLVM's own tool.
    if !samples_import::is_binary(bytes) {
        drop(import_file::of_bytes(bytes));
    }
}

/// The branches of a small kernel at the addresses of the seeds.
fn import(found: &branches::Branches) {
    let image = image::examples::caller_and_callee(LinkAddr(0x1000));
    let code = image::examples::caller_and_callee_code(LinkAddr(0x1000));
    for slide in [0, 0x1000] {
        let imported = branches::profile(found, &image, &code, slide, "sampled");
        assert!(imported.branches_used <= imported.branches_inside);
        assert!(imported.branches_inside <= imported.branches);
        assert!(imported.stretches_used <= imported.stretches_inside);
    }
}

pub fn perf_data_seeds() -> Vec<Vec<u8>> {
    let kernel = [u64::from(u32::MAX), 0x9000_0000, 0x100_0000, 0x9000_0000];
    let name = b"[kernel.kallsyms]_text\0\0";
    let mapping = record(1, &[&words(&kernel)[..], name].concat());
    let mapping2 = record(10, &[&words(&kernel)[..], &words(&[0; 4]), name].concat());
    let stack = [0x1004, 0x1020, 1 << 24, 0x1000, 0x1004, 0];
    let sample = record(9, &[words(&[0x1000, 2]), words(&stack)].concat());
    let records = [&mapping[..], &sample].concat();
    let counted = record(9, &[words(&[0x1000, 1, 5, 7, 2]), words(&stack)].concat());
    // Bits of sample_type: address, counters, branch stack. A group of counters with ids.
    let (plain, group) = (event(1 | 1 << 11, 0), event(1 | 1 << 4 | 1 << 11, 0b1100));
    let pipe = [words(&[16]), record(64, &plain), record(66, &[1, 0, 0, 0, 9, 9, 9, 9])].concat();
    let packed = zstd::encode_all(&records[..], 1).expect("bytes can be compressed");
    let length = words(&[packed.len() as u64]);
    let packed = [record(81, &packed), record(83, &[length, packed].concat())].concat();
    let mut killed = perf_file(&plain, &records);
    killed[48..56].fill(0);
    vec![
        perf_file(&plain, &records),
        perf_file(&group, &[&mapping2[..], &counted].concat()),
        [&b"PERFILE2"[..], &pipe, &mapping2, &sample].concat(),
        perf_file(&plain, &packed),
        killed,
    ]
}

pub fn bolt_text_seeds() -> Vec<Vec<u8>> {
    let by_address = "E cycles\nB 1004 1020 2 1\nF 1000 1004 5\nT 1000 1009 100a 4\nS 1000 3\n\
        R 1004 1020 ffffffffffffffff 1\nB X:0 1000 3 0\n";
    let by_name = "1 f 2 1 f 4 0 5\n1 f 2 1 f 9 1 2\n1 f 4 1 g/file.c/1 0 0 5\n\
        0 [unknown] 0 1 f 0 0 9\n4 f 4 4 data 10 3\n";
    vec![by_address.into(), by_name.into()]
}

pub fn import_file_seeds() -> Vec<Vec<u8>> {
    let text = &perf_text_seeds()[0];
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(text).expect("a vector can be written");
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
    xz.write_all(text).expect("a vector can be written");
    let mut seeds = vec![
        gz.finish().expect("a vector can be written"),
        xz.finish().expect("a vector can be written"),
        zstd::encode_all(&text[..], 1).expect("bytes can be compressed"),
        b"v1\nf f\nc 0 2\n".to_vec(),
        b"f g 12\n".to_vec(),
        b"f\ng.__part.1\n".to_vec(),
    ];
    seeds.extend([perf_data_seeds(), bolt_text_seeds(), sample_profile_seeds()].concat());
    seeds
}

/// The attributes of an event: struct perf_event_attr with its size, period, sample_type,
/// read_format and branch_sample_type.
fn event(sample_type: u64, read_format: u64) -> Vec<u8> {
    let mut event = vec![0; 112];
    event[4] = 112;
    event[16] = 1;
    event[24..32].copy_from_slice(&sample_type.to_le_bytes());
    event[32..40].copy_from_slice(&read_format.to_le_bytes());
    event[72] = 8;
    event
}

/// A perf.data file with one event (tools/perf/Documentation/perf.data-file-format.txt).
fn perf_file(event: &[u8], data: &[u8]) -> Vec<u8> {
    let event = [event, &words(&[0, 0])].concat();
    let (head, events) = (104, event.len() as u64);
    let sections = [head, events, head, events, head + events, data.len() as u64];
    [&b"PERFILE2"[..], &words(&sections), &words(&[0; 6]), &event, data].concat()
}

fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let size = body.len() as u16 + 8;
    [&kind.to_le_bytes()[..], &1_u16.to_le_bytes(), &size.to_le_bytes(), body].concat()
}

fn words(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

pub fn perf_text_seeds() -> Vec<Vec<u8>> {
    let stacks = "  0x1004/0x1020/P/-/-/2/COND/-  0x1000/0x1004/P/-/-/0\n\n 0x10/0x20/M/-/-/0\n";
    let mapping = "PERF_RECORD_MMAP2 -1/0: [0x1000(0x1000) @ 0x1000 00:00 0 0]: ---p \
        [kernel.kallsyms]_text\n";
    let others = "sh 1 [0] 5.2: 7 c: 1000 0x1000/0x1004/P/-/-/0//SPEC_WRONG_PATH\n";
    vec![stacks.into(), [mapping, others, stacks].concat().into()]
}

pub fn sample_profile_seeds() -> Vec<Vec<u8>> {
    let lines =
        "f:100:7\n 1: 10\n 2.3: 7 g:4 h.llvm.1:3\n 4: tiny:20\n  0: 5\n  1: less:15\n   2: 15\n";
    vec![format!("{lines} 9: 1\n !Attributes: 1\ng:5:5\n 0: 5\n").into_bytes()]
}
