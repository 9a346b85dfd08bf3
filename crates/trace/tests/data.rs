//! Data accesses: a reader gives what was written. Damaged accesses give an error or accesses that
//! follow the rules. The writer refuses accesses that break a rule.

mod frames;
mod sample;

use frames::{DamageGenerator, RawChunk, file_of, pieces};
use kernlane_trace::{
    AccessPattern, AccessPatterns, AccessSite, Accesses, Chunk, FrameUse, FrameUseChange, Mapping,
    ObservedAccesses, ReadError, RecordingReader, RecordingWriter, StreamEvent, Translation,
    TranslationId, Violation, WriteError, events,
};

/// The executions of one stream with their accesses, and its mappings.
type StreamAccesses = (Vec<(StreamEvent, Vec<(AccessSite, u64)>)>, Accesses);

fn executions(words: &[u32], accesses: &Accesses, patterns: &AccessPatterns) -> StreamAccesses {
    let mut walk = accesses.walk(patterns);
    let executions_read = events(words).map(|event| {
        let (sites, first) = walk.event(event);
        let addresses = &accesses.addresses[first..first + sites.len()];
        (event, sites.iter().copied().zip(addresses.iter().copied()).collect())
    });
    (executions_read.collect(), accesses.clone())
}

fn read(bytes: &[u8]) -> (Vec<StreamAccesses>, Option<ReadError>) {
    let mut reader = match RecordingReader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut all = Vec::new();
    loop {
        match reader.next_chunk() {
            Ok(Some(Chunk::Stream(words))) => {
                // A damaged version number can say that there are no data accesses.
                if let Some((accesses, patterns)) = reader.accesses() {
                    all.push(executions(&words, accesses, patterns));
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => return (all, None),
            Err(error) => return (all, Some(error)),
        }
    }
}

#[test]
fn every_access_is_read_back() {
    let (bytes, totals) = sample::data_bytes();
    let (all, error) = read(&bytes);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(all.len(), 2);
    let (mut loads, mut stores, mut mappings) = (0, 0, 0);
    for ((executions_read, accesses), (words, observed)) in all.iter().zip(sample::data_streams()) {
        let of_executions: Vec<_> = executions_read
            .iter()
            .filter(|(event, _)| {
                matches!(event, StreamEvent::Executed(_) | StreamEvent::Left { .. })
            })
            .collect();
        assert_eq!(
            executions_read.iter().map(|(event, _)| *event).collect::<Vec<_>>(),
            events(&words).collect::<Vec<_>>()
        );
        assert_eq!(of_executions.len(), observed.starts.len());
        let mut at = 0;
        for ((_, accesses), start) in of_executions.iter().zip(&observed.starts) {
            assert_eq!(at, *start as usize);
            for &(site, addr) in accesses {
                assert_eq!(
                    (site, addr),
                    (observed.sites[at], observed.addresses[at]),
                    "access {at}"
                );
                *(if site.is_store() { &mut stores } else { &mut loads }) += 1;
                at += 1;
            }
        }
        assert_eq!(at, observed.addresses.len());
        assert_eq!(accesses.mappings, observed.mappings);
        mappings += observed.mappings.len() as u64;
    }
    let data = totals.data.unwrap();
    assert_eq!((data.loads, data.stores, data.mappings), (loads, stores, mappings));
}

#[test]
fn patterns_give_the_physical_addresses_of_code() {
    let (bytes, _) = sample::data_bytes();
    let mut reader = RecordingReader::new(&bytes[..]).unwrap();
    while let Some(chunk) = reader.next_chunk().unwrap() {
        if let Chunk::Stream(_) = chunk {
            let (_, patterns) = reader.accesses().unwrap();
            assert_eq!(patterns.physical(TranslationId(0)), [Some(0x100_0000), None]);
            assert_eq!(patterns.physical(TranslationId(1)), [Some(0xfff), Some(0x5000)]);
        }
    }
    assert_eq!(reader.accesses().unwrap().1.physical(TranslationId(2)), [None; 2]);
}

#[test]
fn a_reader_without_data_gives_the_same_streams() {
    let (bytes, totals) = sample::data_bytes();
    let mut reader = RecordingReader::new(&bytes[..]).unwrap().without_data();
    let mut streams = Vec::new();
    while let Some(chunk) = reader.next_chunk().unwrap() {
        assert!(reader.accesses().is_none());
        match chunk {
            Chunk::Stream(words) => streams.push(words),
            Chunk::End(end) => {
                assert_eq!(end, kernlane_trace::RecordingTotals { data: None, ..totals })
            }
            Chunk::Translations(_) | Chunk::Tasks(_) | Chunk::Modules(_) => {}
        }
    }
    assert_eq!(
        streams,
        sample::data_streams().into_iter().map(|(words, _)| words).collect::<Vec<_>>()
    );
}

/// The accesses of a repeated string instruction take a few bytes, for any number of repetitions.
#[test]
fn repeated_accesses_take_a_constant_number_of_bytes() {
    let (load, store) = (AccessSite::new(0, false, 3), AccessSite::new(0, true, 3));
    let size = |times: u64| {
        let mut writer = RecordingWriter::with_data(Vec::new(), &sample::header()).unwrap();
        writer.translations(&[sample::translation(0, 0xffff_ffff_8100_0000, &[3])]).unwrap();
        let mut observed = ObservedAccesses { starts: vec![0, 0], ..ObservedAccesses::default() };
        for i in 0..times {
            observed.addresses.extend([0x1000 + 8 * i, 0x9_0000_0000 + 8 * i]);
            observed.sites.extend([load, store]);
        }
        writer.stream_with_data(&[0, 0], &observed).unwrap();
        writer.end().unwrap().0.len()
    };
    assert!(size(100_000) < size(2) + 10, "{} {}", size(100_000), size(2));
}

fn violation(result: Result<(), WriteError>) -> Violation {
    match result {
        Err(WriteError::Violation(violation)) => violation,
        other => panic!("{other:?}"),
    }
}

fn used(used: FrameUse) -> FrameUseChange {
    FrameUseChange { frame: 5, frames: 1, used }
}

#[test]
fn accesses_that_do_not_match_the_words_are_refused() {
    let site = AccessSite::new(0, false, 0);
    let good = || ObservedAccesses {
        addresses: vec![1, 2],
        sites: vec![site, site],
        starts: vec![0, 1],
        ..ObservedAccesses::default()
    };
    let written = |change: &dyn Fn(&mut ObservedAccesses)| {
        let mut writer = RecordingWriter::with_data(Vec::new(), &sample::header()).unwrap();
        writer.translations(&[sample::translation(0, 0x1000, &[3])]).unwrap();
        let mut observed = good();
        change(&mut observed);
        writer.stream_with_data(&[0, 0], &observed)
    };
    assert!(written(&|_| {}).is_ok());
    type ObservedChange = fn(&mut ObservedAccesses);
    let changes: [(&str, ObservedChange); 10] = [
        ("a site less", |observed| observed.sites.truncate(1)),
        ("a start less", |observed| observed.starts.truncate(1)),
        ("no start", |observed| observed.starts.clear()),
        ("a start more", |observed| observed.starts.push(2)),
        ("starts late", |observed| observed.starts[0] = 1),
        ("starts behind the end", |observed| observed.starts[1] = 3),
        ("no such access", |observed| observed.mappings.push((3, Mapping::default()))),
        ("mappings descend", |observed| {
            observed.mappings.extend([(2, Mapping::default()), (1, Mapping::default())])
        }),
        ("uses descend", |observed| {
            observed.uses.extend([(2, used(FrameUse::Free)), (1, used(FrameUse::File))])
        }),
        ("a cache without a name", |observed| observed.uses.push((0, used(FrameUse::Slab(0))))),
    ];
    for (what, change) in changes {
        assert!(matches!(violation(written(&change)), Violation::Accesses { .. }), "{what}");
    }
    let beyond = violation(written(&|observed| observed.sites[0] = AccessSite::new(1, false, 0)));
    assert!(matches!(beyond, Violation::Site { of: 1, .. }), "{beyond}");

    let mut writer = RecordingWriter::with_data(Vec::new(), &sample::header()).unwrap();
    assert!(matches!(violation(writer.stream(&[])), Violation::Accesses { .. }));
    let mut writer = RecordingWriter::new(Vec::new(), &sample::header()).unwrap();
    assert!(matches!(
        violation(writer.stream_with_data(&[], &ObservedAccesses::default())),
        Violation::Accesses { .. }
    ));
}

#[test]
fn a_file_cut_off_anywhere_is_an_error_and_gives_the_streams_before() {
    let (bytes, _) = sample::data_bytes();
    let (whole, _) = read(&bytes);
    let mut longest = 0;
    for size in 0..bytes.len() {
        let (some, error) = read(&bytes[..size]);
        assert!(
            matches!(error, Some(ReadError::CutOff { .. } | ReadError::Magic)),
            "cut at {size}: {error:?}"
        );
        assert_eq!(some, whole[..some.len()], "cut at {size}");
        longest = longest.max(some.len());
    }
    assert_eq!(longest, whole.len());
}

#[test]
fn a_change_of_any_byte_is_an_error_and_gives_the_chunks_before() {
    let (bytes, _) = sample::data_bytes();
    let (whole, _) = read(&bytes);
    for at in 0..bytes.len() {
        for flip in [0x01, 0x03, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let (some, error) = read(&damaged);
            assert!(error.is_some(), "byte {at} ^ {flip:#x} was not noticed");
            assert_eq!(some, whole[..some.len()], "byte {at} ^ {flip:#x}");
        }
    }
}

/// The payload is damaged before the checksum is computed. The accesses that the reader gives must
/// still follow the rules.
#[test]
fn damaged_payloads_under_right_checksums_never_give_accesses_that_break_a_rule() {
    let (bytes, _) = sample::data_bytes();
    let good = pieces(&bytes);
    assert_eq!(file_of(14, &good).len(), file_of(14, &pieces(&file_of(14, &good))).len());
    let mut random = DamageGenerator(20_200_101);
    let (mut refused, mut given) = (0, 0);
    for _ in 0..5_000 {
        let mut damaged = good.clone();
        for _ in 0..=random.below(3) {
            // Half of the damage goes to the chunks of data accesses.
            let at = random.below(damaged.len());
            let at = if random.below(2) == 0 {
                at
            } else {
                (at..)
                    .find(|&at| {
                        [b"DATA", b"PATT"].iter().any(|kind| damaged[at % good.len()].0 == **kind)
                    })
                    .unwrap()
                    % good.len()
            };
            random.damage(&mut damaged[at].1);
        }
        let (all, error) = read(&file_of(14, &damaged));
        refused += u32::from(error.is_some());
        given += all.len();
        for (executions_read, accesses) in &all {
            let count: usize = executions_read.iter().map(|(_, accesses)| accesses.len()).sum();
            assert_eq!(count, accesses.addresses.len());
            assert!(
                accesses
                    .mappings
                    .iter()
                    .all(|(at, mapping)| *at as usize <= count && mapping.page >> 52 == 0)
            );
            assert!(accesses.mappings.is_sorted_by_key(|(at, _)| *at));
        }
    }
    assert!(
        refused > 4_000 && given > 1_500,
        "{refused} refused, {given} streams given: the damage tests too little"
    );
}

#[test]
fn chunks_out_of_place_are_refused() {
    let (bytes, _) = sample::data_bytes();
    let good = pieces(&bytes);
    let of_kind = |kind: &[u8]| good.iter().position(|piece| piece.0 == kind).unwrap();
    let refused = |pieces: &[RawChunk], version| match read(&file_of(version, pieces)).1 {
        Some(ReadError::Chunk { violation, .. }) => violation,
        other => panic!("{other:?}"),
    };
    let without = |kind: &[u8]| {
        let mut pieces = good.clone();
        pieces.remove(of_kind(kind));
        pieces
    };
    let twice = |kind: &[u8]| {
        let mut pieces = good.clone();
        pieces.insert(of_kind(kind), good[of_kind(kind)].clone());
        pieces
    };
    assert!(matches!(
        refused(&without(b"DATA"), 14),
        Violation::Misplaced { expected: "DATA", .. }
    ));
    assert!(matches!(
        refused(&without(b"STRM"), 14),
        Violation::Misplaced { expected: "STRM", .. }
    ));
    assert!(matches!(refused(&twice(b"DATA"), 14), Violation::Misplaced { expected: "STRM", .. }));
    assert!(matches!(refused(&twice(b"PATT"), 14), Violation::SecondPattern { .. }));
    assert!(matches!(refused(&good, 12), Violation::Misplaced { .. }));
    assert!(matches!(refused(&without(b"PATT"), 14), Violation::Surplus { .. }));
}

/// A group with the largest number of repetitions.
#[test]
fn false_counts_are_refused_without_allocating_them() {
    let mut damaged = pieces(&sample::data_bytes().0);
    let at = damaged.iter().position(|piece| &piece.0 == b"DATA").unwrap();
    let group = [&[0, 1][..], &[0xff; 9], &[1, 1, 0, 0, 0, 0]].concat();
    let sizes = [(group.len() as u32).to_le_bytes(), [0; 4], [0; 4]].concat();
    damaged[at].1 = [sizes, group].concat();
    match read(&file_of(14, &damaged)).1 {
        Some(ReadError::Chunk { violation, .. }) => {
            assert_eq!(violation, Violation::TooLong { what: "the accesses of a stream" })
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(AccessPattern::MAX_SITES, usize::from(u16::MAX));
}

#[test]
fn a_long_stream_is_cut_into_chunks_and_read_back() {
    let mut writer = RecordingWriter::with_data(Vec::new(), &sample::header()).unwrap();
    writer
        .translations(&[sample::translation(
            0,
            0xffff_ffff_8100_0000,
            &[3; Translation::MAX_INSTRUCTIONS],
        )])
        .unwrap();
    let sites: Vec<AccessSite> = (0..512).map(|i| AccessSite::new(i, i % 3 == 0, 3)).collect();
    let mut random = DamageGenerator(7);
    let mut expected = Vec::new();
    for _ in 0..40 {
        let mut observed = ObservedAccesses::default();
        for _ in 0..100 {
            observed.starts.push(observed.addresses.len() as u32);
            observed.sites.extend(&sites);
            observed
                .addresses
                .extend(sites.iter().map(|_| 0xff11_0000_0000_0000 | random.below(1 << 28) as u64));
        }
        expected.extend_from_slice(&observed.addresses);
        writer.stream_with_data(&[0; 100], &observed).unwrap();
    }
    let bytes = writer.end().unwrap().0;
    let (all, error) = read(&bytes);
    assert!(error.is_none() && all.len() > 1, "{error:?}, {} streams", all.len());
    let addresses: Vec<u64> =
        all.iter().flat_map(|(_, accesses)| accesses.addresses.iter().copied()).collect();
    assert!(addresses == expected);
}

#[test]
fn a_stream_with_too_many_accesses_is_cut() {
    let mut writer = RecordingWriter::with_data(Vec::new(), &sample::header()).unwrap();
    writer.translations(&[sample::translation(0, 0xffff_ffff_8100_0000, &[3])]).unwrap();
    // Repeated string instructions make many accesses of one execution, and few bytes of all.
    let (executions, each) = (150, 1 << 17);
    let all = (executions * each) as usize;
    let observed = ObservedAccesses {
        starts: (0..executions).map(|execution| execution * each).collect(),
        sites: vec![AccessSite::new(0, true, 3); all],
        addresses: vec![0xff11_0000_0000_0000; all],
        ..ObservedAccesses::default()
    };
    assert!(2 * observed.addresses.len() > Accesses::MAX);
    for _ in 0..2 {
        writer.stream_with_data(&vec![0; executions as usize], &observed).unwrap();
    }
    let bytes = writer.end().unwrap().0;
    let mut reader = RecordingReader::new(&bytes[..]).unwrap();
    let mut lengths = Vec::new();
    while let Some(chunk) = reader.next_chunk().unwrap() {
        if matches!(chunk, Chunk::Stream(_)) {
            lengths.push(reader.accesses().unwrap().0.addresses.len());
        }
    }
    assert_eq!(lengths, [observed.addresses.len(); 2]);
    // A caller that has room for fewer is told so; one that has room for as many gets them.
    let first = |most: usize| {
        let mut reader = RecordingReader::new(&bytes[..]).unwrap().with_most_accesses(most);
        loop {
            match reader.next_chunk().map(|chunk| matches!(chunk, Some(Chunk::Stream(_)))) {
                Ok(true) => return Ok(reader.accesses().unwrap().0.addresses.len()),
                Ok(false) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    };
    assert_eq!(first(all), Ok(all));
    let error = first(all - 1).unwrap_err();
    assert!(error.contains("the accesses of a stream"), "{error}");
}
