//! Damaged recordings: the reader gives a named error or the right answer, and every chunk before
//! the damage.

mod frames;
mod sample;

use frames::{DamageGenerator, boundaries, file, file_of, framed, framed_as, pieces};
use kernlane_trace::{
    Chunk, ModuleChange, ReadError, RecordingReader, RecordingWriter, StreamEvent, Task, TaskId,
    Translation, TranslationId, Violation, events,
};

/// The chunks up to the first error, and the error.
fn read(bytes: &[u8]) -> (Vec<Chunk>, Option<ReadError>) {
    let mut reader = match RecordingReader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut chunks = Vec::new();
    loop {
        match reader.next_chunk() {
            Ok(Some(chunk)) => chunks.push(chunk),
            Ok(None) => return (chunks, None),
            Err(error) => {
                assert!(
                    matches!(reader.next_chunk(), Ok(None)),
                    "the reader went on after {error}"
                );
                return (chunks, Some(error));
            }
        }
    }
}

#[test]
fn a_file_cut_off_anywhere_gives_the_chunks_before_and_the_offset() {
    let (bytes, totals) = sample::bytes();
    let starts = boundaries(&bytes);
    let mut all = sample::chunks();
    all.push(Chunk::End(totals));
    assert_eq!(starts.len(), all.len() + 2, "a boundary for the header, every chunk and the end");
    for size in 0..bytes.len() {
        let (chunks, error) = read(&bytes[..size]);
        // Chunk 0 is the header.
        let whole = starts.iter().rposition(|&start| start <= size).unwrap_or(0);
        assert_eq!(chunks, all[..whole.saturating_sub(1)], "cut at {size}");
        match error {
            Some(ReadError::Magic) => assert_eq!(size, 0),
            Some(ReadError::CutOff { chunk, offset }) => {
                assert_eq!((chunk, offset), (whole as u64, size as u64))
            }
            other => panic!("cut at {size}: {other:?}"),
        }
    }
}

#[test]
fn a_change_of_any_byte_is_an_error_and_gives_the_chunks_before() {
    let (bytes, totals) = sample::bytes();
    let starts = boundaries(&bytes);
    let mut all = sample::chunks();
    all.push(Chunk::End(totals));
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let (chunks, error) = read(&damaged);
            let error = error.unwrap_or_else(|| panic!("byte {at} ^ {flip:#x} was not noticed"));
            let whole = starts.iter().rposition(|&start| start <= at).unwrap_or(0);
            assert_eq!(chunks, all[..whole.saturating_sub(1)], "byte {at} ^ {flip:#x}: {error}");
            match error {
                ReadError::Magic => assert!(at < 8),
                ReadError::Version { .. } => assert!((8..12).contains(&at)),
                ReadError::CutOff { chunk, .. }
                | ReadError::Kind { chunk, .. }
                | ReadError::Checksum { chunk, .. }
                | ReadError::Chunk { chunk, .. } => assert_eq!(chunk, whole as u64, "byte {at}"),
                other => panic!("byte {at} ^ {flip:#x}: {other}"),
            }
        }
    }
}

#[test]
fn a_chunk_removed_repeated_or_swapped_is_noticed() {
    let (bytes, _) = sample::bytes();
    let starts = boundaries(&bytes);
    let whole = sample::chunks();
    let pieces: Vec<&[u8]> = starts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
    let noticed = |pieces: &[&[u8]], what: String| {
        let file = [&bytes[..12], &pieces.concat()].concat();
        assert!(read(&file).1.is_some(), "{what} was not noticed");
    };
    for i in 0..pieces.len() {
        let mut removed = pieces.clone();
        removed.remove(i);
        noticed(&removed, format!("chunk {i} removed"));
        let mut repeated = pieces.clone();
        repeated.insert(i, pieces[i]);
        noticed(&repeated, format!("chunk {i} repeated"));
        for j in 0..i {
            let mut swapped = pieces.clone();
            swapped.swap(i, j);
            let (chunks, error) = read(&[&bytes[..12], &swapped.concat()].concat());
            // A definition that comes earlier than it must changes nothing.
            assert!(
                error.is_some() || meaning(&chunks) == meaning(&whole),
                "chunks {j} and {i} swapped: {chunks:?}"
            );
        }
    }
}

/// The definitions in their order, and the events in their order.
fn meaning(
    chunks: &[Chunk],
) -> (Vec<Translation>, Vec<Task>, Vec<u32>, Vec<(usize, ModuleChange)>) {
    let mut meaning = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for chunk in chunks {
        match chunk {
            Chunk::Translations(translations) => meaning.0.extend_from_slice(translations),
            Chunk::Tasks(tasks) => meaning.1.extend_from_slice(tasks),
            Chunk::Modules(changes) => {
                meaning.3.extend(changes.iter().map(|c| (meaning.0.len(), c.clone())))
            }
            Chunk::Stream(words) => meaning.2.extend_from_slice(words),
            Chunk::End(_) => {}
        }
    }
    meaning
}

#[test]
fn bytes_after_the_clean_end_are_an_error() {
    let (mut bytes, _) = sample::bytes();
    let size = bytes.len() as u64;
    bytes.push(0);
    let (chunks, error) = read(&bytes);
    assert_eq!(chunks, sample::chunks());
    assert!(matches!(error, Some(ReadError::Trailing { offset, .. }) if offset == size));
}

#[test]
fn other_files_are_not_recordings() {
    assert!(matches!(read(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0").1, Some(ReadError::Magic)));
    assert!(matches!(read(b"x").1, Some(ReadError::Magic)));
    let (mut bytes, _) = sample::bytes();
    for found in [0, 2, 5] {
        bytes[8] = found;
        let error = read(&bytes).1;
        assert!(
            matches!(error, Some(ReadError::Version { found: said }) if said == u32::from(found)),
            "{error:?}"
        );
    }
}

/// The first versions of the format have no readings of the clock.
#[test]
fn versions_without_the_clock_are_read_and_have_none() {
    let read_as = |version: u32, words: &[u32]| {
        let mut writer = RecordingWriter::new(Vec::new(), &sample::header()).unwrap();
        writer.translations(&[sample::translation(0, 0x1000, &[1])]).unwrap();
        writer.stream(words).unwrap();
        let (mut bytes, _) = writer.end().unwrap();
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        read(&bytes)
    };
    let clock = sample::words(&[StreamEvent::Executed(TranslationId(0)), StreamEvent::Clock(3)]);
    assert!(read_as(1, &[0, 0]).1.is_none());
    assert!(read_as(4, &clock).1.is_none());
    match read_as(1, &clock).1 {
        Some(ReadError::Chunk { violation, .. }) => {
            assert_eq!(violation, Violation::UnknownWord { at: 1 })
        }
        other => panic!("{other:?}"),
    }
}

/// The payload of a header without build id, workload and conditions.
const EMPTY_HEADER: [u8; 20] = [0; 20];

/// The violation in a file that has this chunk after its header.
fn violation(kind: &[u8; 4], payload: &[u8]) -> Violation {
    match read(&file(4, &[framed(b"HEAD", &EMPTY_HEADER), framed(kind, payload)])).1 {
        Some(ReadError::Chunk { chunk: 1, violation, .. }) => violation,
        other => panic!("{other:?}"),
    }
}

#[test]
fn payloads_that_break_a_rule_are_refused_under_a_right_checksum() {
    let address = [0; 8];
    assert_eq!(violation(b"STRM", &[1, 2, 3, 4, 5]), Violation::Surplus { bytes: 1 });
    assert_eq!(
        violation(b"STRM", &[0; 4]),
        Violation::UndefinedTranslation { id: TranslationId(0) }
    );
    assert_eq!(
        violation(b"STRM", &0x9000_0000u32.to_le_bytes()),
        Violation::UndefinedTask { id: TaskId(0) }
    );
    assert_eq!(
        violation(b"STRM", &0xb000_0000u32.to_le_bytes()),
        Violation::UndefinedTask { id: TaskId(0) }
    );
    assert_eq!(violation(b"STRM", &0xd000_0000u32.to_le_bytes()), Violation::UnknownWord { at: 0 });
    assert_eq!(violation(b"TRAN", &[0; 9]), Violation::Short { what: "a translation" });
    assert_eq!(
        violation(b"TRAN", &[&address[..], &[0, 0]].concat()),
        Violation::TranslationSize { id: TranslationId(0), instructions: 0 }
    );
    assert_eq!(
        violation(b"TRAN", &[&address[..], &[1, 0, 2, 0x90]].concat()),
        Violation::Short { what: "a translation" }
    );
    assert_eq!(violation(b"TASK", &[&address[..], &[2], &[0; 20]].concat()), Violation::Flag(2));
    assert_eq!(violation(b"TASK", &[0; 28]), Violation::Short { what: "a task" });
    assert_eq!(violation(b"END ", &[0; 57]), Violation::Surplus { bytes: 1 });
    assert!(matches!(
        violation(b"END ", &[7; 56]),
        Violation::Totals { what: "kernel instructions", counted: 0, .. }
    ));
    assert!(matches!(violation(b"HEAD", &EMPTY_HEADER), Violation::Misplaced { .. }));
}

#[test]
fn headers_that_break_a_rule_are_refused() {
    let refused = |kind: &[u8; 4], payload: &[u8]| match read(&file(4, &[framed(kind, payload)])).1
    {
        Some(ReadError::Chunk { chunk: 0, offset: 12, violation, .. }) => violation,
        other => panic!("{other:?}"),
    };
    assert!(matches!(refused(b"TASK", &[]), Violation::Misplaced { expected: "HEAD", .. }));
    assert_eq!(refused(b"HEAD", &[0xff; 20]), Violation::Short { what: "the header" });
    let mut many = EMPTY_HEADER;
    many[16..].fill(0xff);
    assert_eq!(refused(b"HEAD", &many), Violation::Short { what: "the header" });
    assert_eq!(refused(b"HEAD", &[1, 0, 0, 0, 0xff]), Violation::NotText { what: "the header" });
    assert_eq!(refused(b"HEAD", &[0; 21]), Violation::Surplus { bytes: 1 });
}

#[test]
fn false_sizes_are_refused_without_allocating_them() {
    let refused = |chunk: Vec<u8>| match read(&file(4, &[framed(b"HEAD", &EMPTY_HEADER), chunk])).1
    {
        Some(ReadError::Chunk { chunk: 1, violation, .. }) => violation,
        other => panic!("{other:?}"),
    };
    let packed = zstd::bulk::compress(&[0; 400], 1).unwrap();
    assert!(matches!(
        refused(framed_as(b"STRM", &packed, u32::MAX)),
        Violation::ChunkSize { size: u32::MAX, .. }
    ));
    assert_eq!(
        refused(framed_as(b"STRM", &packed, 401)),
        Violation::UnpackedSize { unpacked: 400, recorded: 401 }
    );
    assert!(matches!(refused(framed_as(b"STRM", &packed, 399)), Violation::Unpack(_)));
    assert!(matches!(refused(framed_as(b"STRM", b"not zstd", 8)), Violation::Unpack(_)));
    let mut huge = framed_as(b"STRM", &packed, 400);
    huge[4..8].fill(0xff);
    assert!(matches!(refused(huge), Violation::ChunkSize { size: u32::MAX, .. }));
}

/// The payload is damaged before the checksum is computed. The records that the reader gives must
/// still follow the rules.
#[test]
fn damaged_payloads_under_right_checksums_never_give_records_that_break_a_rule() {
    let (bytes, _) = sample::bytes();
    let good = pieces(&bytes);
    let mut random = DamageGenerator(20_200_101);
    let (mut refused, mut given) = (0, 0);
    for _ in 0..5_000 {
        let mut damaged = good.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(damaged.len());
            random.damage(&mut damaged[at].1);
        }
        let (chunks, error) = read(&file_of(12, &damaged));
        refused += u32::from(error.is_some());
        given += chunks.len();
        check_that_ids_are_defined(&chunks);
    }
    assert!(
        refused > 4_000 && given > 5_000,
        "{refused} refused, {given} chunks given: the damage tests too little"
    );
}

/// Panics when a stream names a translation or a task that is not defined before it.
fn check_that_ids_are_defined(chunks: &[Chunk]) {
    let (mut sizes, mut tasks) = (Vec::new(), 0);
    for chunk in chunks {
        match chunk {
            Chunk::Translations(defined) => {
                for translation in defined {
                    assert_eq!(translation.id.0 as usize, sizes.len());
                    assert_eq!(
                        translation.code.len(),
                        translation
                            .code_by_instruction()
                            .map(|(_, code)| code.len())
                            .sum::<usize>()
                    );
                    sizes.push(translation.instructions());
                }
            }
            Chunk::Tasks(defined) => tasks += defined.len(),
            Chunk::Modules(_) => {}
            Chunk::Stream(words) => {
                for event in events(words) {
                    match event {
                        StreamEvent::Executed(id) => assert!((id.0 as usize) < sizes.len()),
                        StreamEvent::Left { translation, instructions } => {
                            assert!(instructions < sizes[translation.0 as usize])
                        }
                        StreamEvent::Task(id) | StreamEvent::Woken(id) => {
                            assert!((id.0 as usize) < tasks)
                        }
                        StreamEvent::Marker(_) | StreamEvent::Clock(_) | StreamEvent::Cpu(_) => {}
                    }
                }
            }
            Chunk::End(_) => {}
        }
    }
}
