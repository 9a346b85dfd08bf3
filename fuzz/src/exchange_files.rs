//! Profiles of other tools: what the targets use of `kernlane-exchange`.

use exchange::{branches, perf, perf_build_id, samples_import};
use image::address::LinkAddr;

pub fn perf_data(bytes: &[u8]) {
    perf_build_id::of_data(bytes);
    if let Ok(samples) = perf::data(bytes) {
        samples.branches.total();
        import(&samples.branches);
    }
}

pub fn perf_text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    perf_build_id::of_script(text);
    if let Ok(found) = perf::script(text) {
        found.total();
        import(&found);
    }
}

pub fn sample_profiles(bytes: &[u8]) {
    let named = samples_import::is_sample_profile(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if samples_import::parse(text).is_ok() {
        assert!(named || text.trim().is_empty(), "read, but not known as a sample profile");
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
    let mut mapping = [u32::MAX.to_le_bytes(), [0; 4]].concat();
    mapping.extend(words(&[0x9000_0000, 0x100_0000, 0x9000_0000]));
    mapping.extend(b"[kernel.kallsyms]_text\0\0");
    let stack = [0x1004, 0x1020, 0, 0x1000, 0x1004, 0];
    let sample = [words(&[0x1000, 2]), words(&stack)].concat();
    vec![perf_file(&[record(1, &mapping), record(9, &sample)].concat())]
}

/// A perf.data file with one event, whose samples have an address and a branch stack
/// (tools/perf/Documentation/perf.data-file-format.txt).
fn perf_file(data: &[u8]) -> Vec<u8> {
    // struct perf_event_attr: its size, period, sample_type and branch_sample_type.
    let mut event = vec![0; 112];
    event[4] = 112;
    event[16] = 1;
    event[24..26].copy_from_slice(&(1_u16 | 1 << 11).to_le_bytes());
    event[72] = 8;
    event.extend(words(&[0, 0]));
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
    vec![b"  0x1004/0x1020/P/-/-/2/COND/-  0x1000/0x1004/P/-/-/0\n\n 0x10/0x20/M/-/-/0\n".to_vec()]
}

pub fn sample_profile_seeds() -> Vec<Vec<u8>> {
    let lines =
        "f:100:7\n 1: 10\n 2.3: 7 g:4 h.llvm.1:3\n 4: tiny:20\n  0: 5\n  1: less:15\n   2: 15\n";
    vec![format!("{lines} 9: 1\n !Attributes: 1\ng:5:5\n 0: 5\n").into_bytes()]
}
