//! `kernlane dump` on a small recording, whole and cut off, against golden texts. `BLESS=1` writes
//! them anew.

mod golden;

use report::dump::{DumpForm, DumpSections, dump};
use std::process::Command;
use trace::{
    AccessSite, FrameUse, FrameUseChange, Mapping, ObservedAccesses, PageKind, RecordingHeader,
    RecordingReader, RecordingWriter, RunAddr, StreamEvent, Task, TaskId, TaskPointer, Translation,
    TranslationId,
};

const ALL: DumpSections = DumpSections { translations: true, stream: true, limit: None };

fn recording() -> Vec<u8> {
    let header = RecordingHeader {
        build_id: "00aea92ddb40c47d63853847ca25891e6796c7b0".into(),
        workload: "net".into(),
        seed: 7,
        conditions: vec![("qemu".into(), "10.0.2".into()), ("note".into(), "two\nlines".into())],
        ..RecordingHeader::default()
    };
    let translation = |id, addr, lengths: &[u8], code: &[u8]| Translation {
        id: TranslationId(id),
        addr: RunAddr(addr),
        lengths: lengths.into(),
        code: code.into(),
    };
    let task = |id, pid, name: &[u8; 16]| Task {
        id: TaskId(id),
        pointer: TaskPointer(0xffff_8880_0010_0000 + 0x1000 * u64::from(id)),
        pid,
        comm: *name,
    };
    let stream = |events: &[StreamEvent]| {
        let mut words = Vec::new();
        events.iter().for_each(|event| event.append_to(&mut words));
        words
    };
    let (user, kernel, patched) = (TranslationId(0), TranslationId(1), TranslationId(2));
    let mut writer = RecordingWriter::new(Vec::new(), &header).unwrap();
    writer.tasks(&[task(0, Some(1), b"init\0\0\0\0\0\0\0\0\0\0\0\0")]).unwrap();
    let user_code = [0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05];
    let kernel_code = [0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8b, 0x07, 0xc3];
    let translations = [
        translation(0, 0x40_1000, &[5, 2], &user_code),
        translation(1, 0xffff_ffff_8100_0040, &[4, 3, 1], &kernel_code),
    ];
    writer.translations(&translations).unwrap();
    let first = [
        StreamEvent::Task(TaskId(0)),
        StreamEvent::Executed(user),
        StreamEvent::Executed(kernel),
        StreamEvent::Marker(9),
    ];
    writer.stream(&stream(&first)).unwrap();
    writer.cut_stream().unwrap();
    writer.tasks(&[task(1, None, b"a\tname of 16 chr")]).unwrap();
    writer
        .translations(&[translation(
            2,
            0xffff_ffff_8100_0040,
            &[4, 2],
            &[0xf3, 0x0f, 0x1e, 0xfa, 0x66, 0x90],
        )])
        .unwrap();
    let left = StreamEvent::Left { translation: kernel, instructions: 2 };
    writer
        .stream(&stream(&[
            left,
            StreamEvent::Clock(1234),
            StreamEvent::Task(TaskId(1)),
            StreamEvent::Executed(patched),
        ]))
        .unwrap();
    writer.end().unwrap().0
}

fn dumped(bytes: &[u8], form: DumpForm, sections: DumpSections) -> (String, bool) {
    let mut out = Vec::new();
    let damage = dump(RecordingReader::new(bytes).unwrap(), form, sections, &mut out).unwrap();
    (String::from_utf8(out).unwrap(), damage.is_none())
}

/// Compares both forms of a dump with `NAME.txt` and `NAME.jsonl`.
fn compare_with_goldens(name: &str, bytes: &[u8]) {
    let (text, whole) = dumped(bytes, DumpForm::Text, ALL);
    assert!(whole);
    golden::compare(&format!("{name}.txt"), &text);
    let (json, whole) = dumped(bytes, DumpForm::Json, ALL);
    assert!(whole);
    for line in json.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
    golden::compare(&format!("{name}.jsonl"), &json);
}

#[test]
fn a_whole_recording() {
    compare_with_goldens("dump", &recording());
}

/// A recording with data accesses: a page that is first seen, a load and a store, and a string
/// instruction that stores twice.
fn recording_with_data() -> Vec<u8> {
    let mut writer = RecordingWriter::with_data(Vec::new(), &RecordingHeader::default()).unwrap();
    let translation = |id, code: &[u8], lengths: &[u8]| Translation {
        id: TranslationId(id),
        addr: RunAddr(0xffff_ffff_8100_0ffe),
        lengths: lengths.into(),
        code: code.into(),
    };
    // mov (%rdi),%rax; push %rax. rep stosq.
    let translations = [
        translation(0, &[0x48, 0x8b, 0x07, 0x50], &[3, 1]),
        translation(1, &[0xf3, 0x48, 0xab], &[3]),
    ];
    writer.translations(&translations).unwrap();
    let (load, push, fill) =
        (AccessSite::new(0, false, 3), AccessSite::new(1, true, 3), AccessSite::new(0, true, 3));
    let mapping = |page: u64, frame, kind| Mapping { page: page >> 12, frame, kind };
    let used = |frame, frames, used| FrameUseChange { frame, frames, used };
    let seen = ObservedAccesses {
        addresses: vec![0x7000, 0x7ff8, 0x7008, 0x7ff0, 0x7100, 0x7108, 0x7200],
        sites: vec![load, push, load, push, fill, fill, fill],
        starts: vec![0, 2, 4, 6],
        mappings: vec![
            (0, mapping(0x7000, 0x123, PageKind::Small)),
            (4, mapping(0xff11_0000_0000_0000, 5, PageKind::Large)),
        ],
        physical: vec![(TranslationId(0), [Some(0x100_0ffe), Some(0x100_1000)])],
        uses: vec![
            (0, used(0x123, 1, FrameUse::Slab(0))),
            (1, used(5, 3, FrameUse::PartOf(4))),
            (1, used(0x123, 1, FrameUse::Free)),
            (3, used(0x200, 512, FrameUse::Unmarked)),
        ],
        slab_caches: vec!["a\tcache".into()],
    };
    writer.stream_with_data(&[0, 0, 1, 1], &seen).unwrap();
    writer.end().unwrap().0
}

#[test]
fn a_recording_with_data_accesses() {
    compare_with_goldens("dump-data", &recording_with_data());
    let (brief, _) = dumped(&recording_with_data(), DumpForm::Text, DumpSections::default());
    assert!(
        brief.contains("\nloads              2\nstores             5\nmappings           2\n"),
        "{brief}"
    );
}

#[test]
fn sections_and_limits_leave_the_rest_alone() {
    let (all, _) = dumped(&recording(), DumpForm::Text, ALL);
    let (brief, _) = dumped(&recording(), DumpForm::Text, DumpSections::default());
    let expected: Vec<&str> = all
        .lines()
        .filter(|line| {
            !["translation ", "executed ", "left  ", "switch ", "marker ", "clock "]
                .iter()
                .any(|start| line.starts_with(start))
        })
        .collect();
    assert_eq!(brief.lines().collect::<Vec<_>>(), expected);
    let (limited, whole) =
        dumped(&recording(), DumpForm::Text, DumpSections { limit: Some(2), ..ALL });
    assert!(whole, "the rest is read and checked all the same");
    assert_eq!(limited.lines().filter(|line| line.starts_with("executed")).count(), 1);
    assert!(limited.contains("switch             0 init\n"));
    assert!(!limited.contains("marker"));
}

#[test]
fn cut_off_anywhere_it_prints_what_is_good_and_says_so() {
    let bytes = recording();
    let (whole, _) = dumped(&bytes, DumpForm::Text, ALL);
    let records = |text: &str| {
        text.lines()
            .take_while(|line| !line.starts_with("instructions"))
            .map(String::from)
            .collect::<Vec<_>>()
    };
    let whole = records(&whole);
    let mut longest = 0;
    for size in 0..bytes.len() {
        let Ok(reader) = RecordingReader::new(&bytes[..size]) else { continue };
        let mut out = Vec::new();
        let damage =
            dump(reader, DumpForm::Text, ALL, &mut out).unwrap().expect("the end is missing");
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with(&format!("end                {damage}\n")));
        let good = records(&text);
        assert_eq!(good, whole[..good.len()], "cut at {size}");
        longest = longest.max(good.len());
    }
    assert_eq!(longest, whole.len(), "cut in the clean end, every record is printed");
}

#[test]
fn the_exit_code_tells_whole_from_cut_off_from_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let run = |bytes: &[u8]| {
        std::fs::write(directory.path().join("trace.klt"), bytes).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_kernlane"))
            .arg("dump")
            .arg(directory.path())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let bytes = recording();
    assert_eq!(run(&bytes), (Some(0), String::new()));
    let (code, message) = run(&bytes[..bytes.len() - 1]);
    assert_eq!(code, Some(1));
    assert!(message.contains("trace.klt: cut off in chunk 7 at offset"), "{message}");
    let (code, message) = run(b"no recording");
    assert_eq!(code, Some(2));
    assert!(message.contains("not a recording"), "{message}");
}
