//! Recordings that are written down by hand, for tests of the formats that hold every instruction.

use host::recording::Recording;
use trace::{
    AccessSite, Mapping, ObservedAccesses, PageKind, RecordingHeader, RecordingWriter, RunAddr,
    StreamEvent, Task, TaskId, TaskPointer, Translation, TranslationId,
};

pub(crate) const KERNEL: u64 = 0xffff_ffff_8100_0000;
pub(crate) const KERNEL_PHYSICAL: u64 = 0x100_0000;
pub(crate) const USER: u64 = 0x40_0040;
pub(crate) const USER_PHYSICAL: u64 = 0x5040;
/// The data page that `MAPPINGS` has at frame 9, and a device.
pub(crate) const DATA: u64 = 0x1000;
pub(crate) const DATA_PHYSICAL: u64 = 0x9000;
pub(crate) const DEVICE: u64 = 0x7000;
const MAPPINGS: [(u32, Mapping); 2] = [
    (0, Mapping { page: DATA >> 12, frame: 9, kind: PageKind::Small }),
    (0, Mapping { page: DEVICE >> 12, frame: 10, kind: PageKind::Device }),
];

/// The tasks by their number.
const TASKS: [Task; 2] = [task(0, 7), task(1, 9)];

const fn task(id: u32, pid: u32) -> Task {
    let pointer = TaskPointer(0xffff_8880_0000_0000 + pid as u64);
    Task { id: TaskId(id), pointer, pid: Some(pid), comm: [0; 16] }
}

/// The translations by their number: address, lengths of the instructions, code.
pub(crate) const CODE: [(u64, &[u8], &[u8]); 9] = [
    // mov rax, [rbx]; jne KERNEL + 0x10
    (KERNEL, &[3, 2], &[0x48, 0x8b, 0x03, 0x75, 0x0b]),
    // rep movsb; jmp KERNEL
    (KERNEL + 5, &[2, 2], &[0xf3, 0xa4, 0xeb, 0xf7]),
    // ret
    (KERNEL + 0x10, &[1], &[0xc3]),
    // iretq
    (KERNEL + 0x100, &[2], &[0x48, 0xcf]),
    // call rax
    (USER, &[2], &[0xff, 0xd0]),
    // two no-ops
    (USER + 0x10, &[1, 1], &[0x90, 0x90]),
    // jmp KERNEL + 0x10
    (KERNEL + 0x20, &[2], &[0xeb, 0xee]),
    // mov rax, [rbx]; jmp KERNEL, across the end of a line
    (KERNEL + 0x3a, &[3, 5], &[0x48, 0x8b, 0x03, 0xe9, 0xbe, 0xff, 0xff, 0xff]),
    // a no-op, recorded where another process has it
    (USER + 0x3012, &[1], &[0x90]),
];

/// An access of an instruction: its index, whether it stores, the address.
pub(crate) type Access = (u16, bool, u64);

pub(crate) fn executed(number: u32) -> StreamEvent {
    StreamEvent::Executed(TranslationId(number))
}

pub(crate) fn left(number: u32, instructions: u32) -> StreamEvent {
    StreamEvent::Left { translation: TranslationId(number), instructions }
}

/// A directory with a recording of these events. Each access has 8 bytes.
pub(crate) fn recorded(
    header: &RecordingHeader,
    events: &[(StreamEvent, &[Access])],
) -> tempfile::TempDir {
    let mut writer = RecordingWriter::with_data(Vec::new(), header).unwrap();
    let translations = (0..).zip(CODE).map(|(id, (addr, lengths, code))| Translation {
        id: TranslationId(id),
        addr: RunAddr(addr),
        lengths: lengths.into(),
        code: code.into(),
    });
    writer.translations(&translations.collect::<Vec<_>>()).unwrap();
    writer.tasks(&TASKS).unwrap();
    let mut seen = ObservedAccesses { mappings: MAPPINGS.to_vec(), ..Default::default() };
    for (id, (addr, ..)) in (0..).zip(CODE) {
        let physical = match RunAddr(addr).is_kernel() {
            true => KERNEL_PHYSICAL + (addr - KERNEL),
            false => USER_PHYSICAL + (addr - USER),
        };
        seen.physical.push((TranslationId(id), [Some(physical), None]));
    }
    let mut words = Vec::new();
    for (event, accesses) in events {
        event.append_to(&mut words);
        if event.execution().is_some() {
            seen.starts.push(seen.addresses.len() as u32);
            seen.addresses.extend(accesses.iter().map(|access| access.2));
            let sites = accesses.iter().map(|access| AccessSite::new(access.0, access.1, 3));
            seen.sites.extend(sites);
        }
    }
    writer.stream_with_data(&words, &seen).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = Recording::at(directory.path()).trace();
    std::fs::write(path, writer.end().unwrap().0).unwrap();
    directory
}
