//! The build id of the kernel that perf sampled.
//!
//! Input: a `perf.data` file, or the text of `perf script --show-mmap-events`. Output: the build
//! id, if the file has it. `tools/perf/Documentation/perf.data-file-format.txt` and
//! `include/uapi/linux/perf_event.h` define the formats. This module refuses nothing: a damaged
//! file has no build id, and the reader of the samples says what is wrong with it.

use image::BuildId;

/// The feature HEADER_BUILD_ID (tools/perf/util/header.h).
const BUILD_IDS: u32 = 2;
const MMAP2: u32 = 10;
/// A `struct build_id_event` in the stream of a file that was written to a pipe.
const HEADER_BUILD_ID: u32 = 67;
/// The mode in which a record's addresses are valid.
const CPU_MODE: u16 = 7;
const KERNEL_MODE: u16 = 1;
/// A MMAP2 has a build id instead of a device and an inode.
const MMAP_BUILD_ID: u16 = 1 << 14;
/// A `struct build_id_event` says how many bytes its build id has.
const BUILD_ID_SIZE: u16 = 1 << 15;
/// Bytes of a build id without a size (SHA-1).
const LONGEST: usize = 20;

/// The build id of the kernel in a `perf.data` file.
pub(super) fn of_data(file: &[u8]) -> Option<BuildId> {
    if !file.starts_with(b"PERFILE2") {
        return None;
    }
    // struct perf_pipe_file_header has 16 bytes, and the records follow.
    const PIPE_HEADER: usize = 16;
    if number(file, 8)? == PIPE_HEADER as u64 {
        return records(file.get(PIPE_HEADER..)?).find_map(|record| of_record(&record));
    }
    let (data, features) = (40, 72);
    let mapped = records(section(file, data)?).find_map(|record| of_record(&record));
    let listed = || {
        let words = number(file, features)?;
        let before = (words & ((1 << BUILD_IDS) - 1)).count_ones() as usize;
        let table =
            usize::try_from(number(file, data)?.checked_add(number(file, data + 8)?)?).ok()?;
        let list = section(file, table.checked_add(16 * before)?)?;
        (words >> BUILD_IDS & 1 == 1)
            .then(|| records(list).find_map(|record| of_event(&record)))
            .flatten()
    };
    mapped.or_else(listed)
}

/// The build id of the kernel in the text of `perf script --show-mmap-events`: a mapping of
/// `[kernel.kallsyms]` with `<BUILD ID>`.
pub(super) fn of_script(text: &str) -> Option<BuildId> {
    let mappings = text
        .lines()
        .filter(|line| line.contains("PERF_RECORD_MMAP2") && line.contains("[kernel.kallsyms]"));
    mappings.flat_map(|line| line.split(['<', '>'])).find_map(|word| {
        let hex = !word.is_empty() && word.bytes().all(|b| b.is_ascii_hexdigit());
        (hex && word.len() == 2 * LONGEST).then(|| BuildId(word.to_ascii_lowercase()))
    })
}

/// `struct perf_event_header` and what follows.
struct PerfRecord<'a> {
    kind: u32,
    misc: u16,
    /// With the header.
    bytes: &'a [u8],
}

/// The records of a section, up to one that does not lie in it.
fn records(mut rest: &[u8]) -> impl Iterator<Item = PerfRecord<'_>> {
    std::iter::from_fn(move || {
        let [a, b, c, d, e, f, low, high] = *rest.first_chunk()?;
        let size = usize::from(u16::from_le_bytes([low, high]));
        let (bytes, behind) = (size >= 8).then(|| rest.split_at_checked(size)).flatten()?;
        rest = behind;
        let (kind, misc) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([e, f]));
        Some(PerfRecord { kind, misc, bytes })
    })
}

fn of_record(record: &PerfRecord<'_>) -> Option<BuildId> {
    match record.kind {
        HEADER_BUILD_ID => of_event(record),
        // pid, tid, addr, len, pgoff, the build id's size and bytes, prot, flags, the name.
        MMAP2 if record.misc & MMAP_BUILD_ID != 0 => {
            let length = usize::from(*record.bytes.get(40)?);
            build_id(record, length, record.bytes.get(44..64)?, record.bytes.get(72..)?)
        }
        _ => None,
    }
}

/// `struct build_id_event`: pid, the build id, its size, the name.
fn of_event(record: &PerfRecord<'_>) -> Option<BuildId> {
    let sized = record.misc & BUILD_ID_SIZE != 0;
    let length = if sized { usize::from(*record.bytes.get(32)?) } else { LONGEST };
    build_id(record, length, record.bytes.get(12..32)?, record.bytes.get(36..)?)
}

fn build_id(record: &PerfRecord<'_>, length: usize, bytes: &[u8], name: &[u8]) -> Option<BuildId> {
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let is_kernel = name.starts_with(b"[kernel.kallsyms]") || file.starts_with(b"vmlinux");
    let id = bytes.get(..length).filter(|id| id.iter().any(|&byte| byte != 0))?;
    (is_kernel && record.misc & CPU_MODE == KERNEL_MODE).then(|| BuildId::from_bytes(id))
}

fn number(file: &[u8], at: usize) -> Option<u64> {
    let bytes = file.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// The section whose offset and size stand at `at`.
fn section(file: &[u8], at: usize) -> Option<&[u8]> {
    let from = usize::try_from(number(file, at)?).ok()?;
    let size = usize::try_from(number(file, at.checked_add(8)?)?).ok()?;
    file.get(from..from.checked_add(size)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: [u8; 20] = *b"\x01\x23\x45\x67\x89\xab\xcd\xefKERNELKERNEL";
    const OTHER: [u8; 20] = [0xee; 20];

    fn kernel() -> Option<BuildId> {
        Some(BuildId("0123456789abcdef4b45524e454c4b45524e454c".to_owned()))
    }

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let size = (body.len() as u16 + 8).to_le_bytes();
        [&kind.to_le_bytes()[..], &misc.to_le_bytes(), &size, body].concat()
    }

    fn event(misc: u16, id: [u8; 20], size: u8, name: &str) -> Vec<u8> {
        let body = [&[0xff; 4][..], &id, &[size, 0, 0, 0], name.as_bytes(), &[0]].concat();
        record(HEADER_BUILD_ID, misc, &body)
    }

    fn mapping(misc: u16, id: [u8; 20], name: &str) -> Vec<u8> {
        let body = [&[0; 32][..], &[20, 0, 0, 0], &id, &[0; 8], name.as_bytes(), &[0]].concat();
        record(MMAP2, misc, &body)
    }

    /// A file with these records and, as its third feature, these build ids.
    fn file(data: &[u8], build_ids: &[u8]) -> Vec<u8> {
        let words = |numbers: &[u64]| {
            numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>()
        };
        let table = 104 + data.len() as u64;
        let header = words(&[104, 128, 104, 0, 104, data.len() as u64, 0, 0, 0b110, 0, 0, 0]);
        let features = words(&[0, 0, table + 32, build_ids.len() as u64]);
        [b"PERFILE2", &header[..], data, &features, build_ids].concat()
    }

    #[test]
    fn the_list_of_build_ids_has_the_kernels() {
        let module = event(KERNEL_MODE, OTHER, 0, "/lib/modules/6.12/kernel/fs/ext4.ko");
        let user = event(2, OTHER, 0, "/usr/bin/vmlinux-to-elf");
        let sized = event(KERNEL_MODE | BUILD_ID_SIZE, ID, 20, "[kernel.kallsyms]");
        let path = event(KERNEL_MODE, ID, 0, "/usr/lib/debug/boot/vmlinux-6.12.117");
        for kernel_event in [sized, path] {
            let list = [&module[..], &user, &kernel_event].concat();
            assert_eq!(of_data(&file(&[], &list)), kernel());
        }
        assert_eq!(of_data(&file(&[], &[module, user].concat())), None);
        assert_eq!(of_data(b"no perf.data"), None);
    }

    #[test]
    fn the_kernels_mapping_has_its_build_id() {
        let own = mapping(KERNEL_MODE | MMAP_BUILD_ID, ID, "[kernel.kallsyms]_text");
        let by_inode = mapping(KERNEL_MODE, ID, "[kernel.kallsyms]_text");
        assert_eq!(of_data(&file(&own, &[])), kernel());
        assert_eq!(of_data(&file(&by_inode, &[])), None);
    }

    #[test]
    fn a_file_from_a_pipe_has_the_kernels_build_id_among_its_records() {
        let header = [&b"PERFILE2"[..], &16_u64.to_le_bytes()].concat();
        let listed = event(KERNEL_MODE | BUILD_ID_SIZE, ID, 20, "[kernel.kallsyms]");
        assert_eq!(of_data(&[&header[..], &record(9, 1, &[0; 8]), &listed].concat()), kernel());
    }

    #[test]
    fn damaged_files_have_no_build_id_and_never_panic() {
        let list = event(KERNEL_MODE, ID, 0, "[kernel.kallsyms]");
        let whole = file(&mapping(KERNEL_MODE, OTHER, "[vdso]"), &list);
        for end in 0..whole.len() {
            let _ = of_data(&whole[..end]);
        }
        for at in 8..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] = 0xff;
            let _ = of_data(&bytes);
        }
    }

    #[test]
    fn text_with_mappings_has_the_kernels_build_id() {
        let text = "swapper 0 [000] 0.0: PERF_RECORD_MMAP2 -1/0: \
                    [0xffffffff81000000(0x1000000) @ 0xffffffff81000000 \
                    <0123456789abcdef4b45524e454c4b45524e454c>]: x [kernel.kallsyms]_text\n";
        assert_eq!(of_script(text), kernel());
        assert_eq!(of_script(&text.replace("kernel.kallsyms", "vdso")), None);
        assert_eq!(of_script("0x1/0x2/P"), None);
    }
}
