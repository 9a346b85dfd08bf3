//! A reader gives what was written, and the writer refuses what breaks a rule.

mod sample;

use kernlane_trace::{
    Chunk, CpuCount, CpuId, ModuleChange, ModuleId, RecordingHeader, RecordingReader,
    RecordingTotals, RecordingWriter, RunAddr, StreamEvent, TaskId, Translation, TranslationId,
    Violation, WriteError, events,
};

#[test]
fn every_record_is_read_back() {
    let (bytes, totals) = sample::bytes();
    let mut reader = RecordingReader::new(&bytes[..]).unwrap();
    assert_eq!(*reader.header(), sample::header());
    for expected in sample::chunks() {
        assert_eq!(reader.next_chunk().unwrap(), Some(expected));
    }
    assert_eq!(reader.next_chunk().unwrap(), Some(Chunk::End(totals)));
    assert_eq!(reader.next_chunk().unwrap(), None);
    assert_eq!(reader.totals_so_far(), totals);
}

#[test]
fn totals_count_what_was_reached() {
    let (_, totals) = sample::bytes();
    let expected = RecordingTotals {
        kernel_instructions: 5 + 5 + 2 + 3,
        user_instructions: 3 + 3 + 1,
        executions: 7,
        left: 2,
        translations: 3,
        tasks: 2,
        hash: totals.hash,
        data: None,
    };
    assert_eq!(totals, expected);
}

#[test]
fn the_same_records_give_the_same_bytes() {
    assert_eq!(sample::bytes().0, sample::bytes().0);
}

#[test]
fn the_hash_tells_orders_and_definitions_apart_but_not_chunks() {
    let hash = |translations: &[Translation], streams: &[&[u32]]| {
        let mut writer = RecordingWriter::new(Vec::new(), &RecordingHeader::default()).unwrap();
        writer.translations(translations).unwrap();
        streams
            .iter()
            .for_each(|words| writer.stream(words).and_then(|()| writer.cut_stream()).unwrap());
        writer.end().unwrap().1.hash
    };
    let two = [sample::translation(0, 0x1000, &[1, 2]), sample::translation(1, 0x2000, &[3])];
    let moved = [sample::translation(0, 0x1000, &[1, 2]), sample::translation(1, 0x2001, &[3])];
    let base = hash(&two, &[&[0, 1, 1, 0]]);
    assert_eq!(hash(&two, &[&[0, 1], &[1, 0]]), base);
    assert_ne!(hash(&two, &[&[0, 1, 0, 1]]), base);
    assert_ne!(hash(&moved, &[&[0, 1, 1, 0]]), base);
}

#[test]
fn large_definitions_and_streams_are_read_back() {
    let lengths = [15; Translation::MAX_INSTRUCTIONS];
    let translations: Vec<_> =
        (0..3000).map(|id| sample::translation(id, u64::from(id) << 16, &lengths)).collect();
    let words: Vec<u32> = (0..1 << 21).map(|i: u32| i.wrapping_mul(2_654_435_761) % 3000).collect();
    let mut writer = RecordingWriter::new(Vec::new(), &RecordingHeader::default()).unwrap();
    writer.translations(&translations).unwrap();
    writer.stream(&words).unwrap();
    let (bytes, totals) = writer.end().unwrap();
    assert_eq!(totals.user_instructions, (1 << 21) * 512);

    let mut reader = RecordingReader::new(&bytes[..]).unwrap();
    let (mut read, mut streams) = (Vec::new(), Vec::new());
    while let Some(chunk) = reader.next_chunk().unwrap() {
        match chunk {
            Chunk::Translations(some) => read.extend(some),
            Chunk::Stream(words) => streams.push(words),
            Chunk::Tasks(_) | Chunk::Modules(_) | Chunk::End(_) => {}
        }
    }
    assert_eq!(read, translations);
    assert_eq!(streams, [words]);
}

#[test]
fn words_of_many_calls_become_few_chunks_behind_their_definitions() {
    let write = |words_a_call: usize| {
        let mut writer = RecordingWriter::new(Vec::new(), &RecordingHeader::default()).unwrap();
        for id in 0..4 {
            writer.translations(&[sample::translation(id, 0x1000, &[1])]).unwrap();
            let words = vec![id; RecordingWriter::<Vec<u8>>::CHUNK / 2];
            words.chunks(words_a_call).for_each(|words| writer.stream(words).unwrap());
        }
        writer.end().unwrap().0
    };
    let bytes = write(1 << 16);
    assert!(bytes == write(1 << 12), "chunks are cut by the number of words");
    let mut reader = RecordingReader::new(&bytes[..]).unwrap();
    let mut kinds = Vec::new();
    while let Some(chunk) = reader.next_chunk().unwrap() {
        kinds.push(match chunk {
            Chunk::Translations(_) => 't',
            Chunk::Stream(words) if words.len() == RecordingWriter::<Vec<u8>>::CHUNK => 's',
            Chunk::End(_) => 'e',
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(kinds, ['t', 't', 's', 't', 't', 's', 'e']);
}

#[test]
fn the_top_bit_tells_kernel_from_user_addresses() {
    assert!(RunAddr(0x8000_0000_0000_0000).is_kernel());
    assert!(!RunAddr(0x7fff_ffff_ffff_ffff).is_kernel());
}

#[test]
fn instructions_have_their_own_address_and_bytes() {
    let translation = sample::translation(1, 0xffff_ffff_ffff_fffe, &[1, 3]);
    let parts: Vec<_> = translation.code_by_instruction().collect();
    assert_eq!(
        parts,
        [
            (RunAddr(0xffff_ffff_ffff_fffe), &[1][..]),
            (RunAddr(0xffff_ffff_ffff_ffff), &[36, 75, 110])
        ]
    );
}

fn violation(result: Result<(), WriteError>) -> Violation {
    match result {
        Err(WriteError::Violation(violation)) => violation,
        other => panic!("{other:?} instead of a violation"),
    }
}

#[test]
fn definitions_that_break_a_rule_are_refused() {
    let refuse = |translation: Translation| {
        violation(
            RecordingWriter::new(Vec::new(), &RecordingHeader::default())
                .unwrap()
                .translations(&[translation]),
        )
    };
    let id = TranslationId(0);
    let good = sample::translation(0, 0x1000, &[1, 2]);
    assert_eq!(
        refuse(sample::translation(1, 0, &[1])),
        Violation::TranslationOutOfOrder { id: TranslationId(1), expected: 0 }
    );
    assert_eq!(
        refuse(sample::translation(0, 0, &[])),
        Violation::TranslationSize { id, instructions: 0 }
    );
    assert_eq!(
        refuse(sample::translation(0, 0, &[1; 513])),
        Violation::TranslationSize { id, instructions: 513 }
    );
    assert_eq!(
        refuse(sample::translation(0, 0, &[1, 0])),
        Violation::InstructionSize { id, length: 0 }
    );
    assert_eq!(
        refuse(sample::translation(0, 0, &[16])),
        Violation::InstructionSize { id, length: 16 }
    );
    assert_eq!(
        refuse(Translation { code: [9; 4].into(), ..good }),
        Violation::CodeSize { id, code: 4, lengths: 3 }
    );
}

#[test]
fn streams_that_break_a_rule_are_refused() {
    let refuse = |stream: &[u32]| {
        let mut writer = RecordingWriter::new(Vec::new(), &RecordingHeader::default()).unwrap();
        writer.translations(&[sample::translation(0, 0x1000, &[1, 2, 3])]).unwrap();
        violation(writer.stream(stream))
    };
    let (id, unknown) = (TranslationId(0), TranslationId(1));
    let left = |translation, instructions| {
        sample::words(&[StreamEvent::Left { translation, instructions }])
    };
    assert_eq!(refuse(&[0, 1]), Violation::UndefinedTranslation { id: unknown });
    assert_eq!(refuse(&left(unknown, 1)), Violation::UndefinedTranslation { id: unknown });
    assert_eq!(refuse(&left(id, 0)), Violation::LeftOutOfRange { id, instructions: 0, of: 3 });
    assert_eq!(refuse(&left(id, 3)), Violation::LeftOutOfRange { id, instructions: 3, of: 3 });
    assert_eq!(
        refuse(&sample::words(&[StreamEvent::Task(TaskId(0))])),
        Violation::UndefinedTask { id: TaskId(0) }
    );
    assert_eq!(refuse(&left(id, 1)[..1]), Violation::UnknownWord { at: 0 });
    assert_eq!(refuse(&[0, 0, 0xf000_0000]), Violation::UnknownWord { at: 2 });
    assert_eq!(refuse(&vec![0; (1 << 21) + 1]), Violation::TooLong { what: "a stream" });
}

#[test]
fn a_full_disk_is_an_error_and_not_a_recording() {
    /// Takes `left` bytes, then reports a full disk.
    struct FullDisk {
        left: usize,
    }
    impl std::io::Write for FullDisk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let taken = bytes.len().min(self.left);
            self.left -= taken;
            match taken {
                0 => Err(std::io::ErrorKind::StorageFull.into()),
                taken => Ok(taken),
            }
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let write = |room| {
        let mut writer = RecordingWriter::new(FullDisk { left: room }, &sample::header())?;
        writer.translations(&[sample::translation(0, 0x1000, &[1, 2, 3])])?;
        writer.stream(&[0, 0, 0])?;
        writer.end().map(|_| ())
    };
    let size = (0..).find(|&room| write(room).is_ok()).unwrap();
    assert!(size > 100, "a recording of {size} bytes");
    for room in 0..size {
        assert!(matches!(write(room), Err(WriteError::Io(_))), "room for {room} bytes");
    }
}

#[test]
fn events_and_their_words_agree_with_the_chunks() {
    let streams: Vec<StreamEvent> = sample::chunks()
        .iter()
        .filter_map(|chunk| match chunk {
            Chunk::Stream(words) => Some(events(words).collect::<Vec<_>>()),
            _ => None,
        })
        .flatten()
        .collect();
    assert_eq!(streams.len(), 12);
    assert_eq!(streams[8], StreamEvent::Task(TaskId(1)));
}

fn of_cpus(cpus: u32) -> RecordingHeader {
    RecordingHeader { cpus: CpuCount::new(cpus).unwrap(), ..sample::header() }
}

#[test]
fn several_cpus_are_read_back() {
    let (bytes, _) = sample::several_cpus();
    let mut reader = RecordingReader::new(&bytes[..]).unwrap();
    assert_eq!((reader.header().clone(), reader.version()), (of_cpus(3), 16));
    assert!(reader.header().one_cpu().unwrap_err().to_string().contains("3 CPUs"));
    let mut read = Vec::new();
    while let Some(chunk) = reader.next_chunk().unwrap() {
        if let Chunk::Stream(words) = chunk {
            read.extend(events(&words));
        }
    }
    assert_eq!(read, sample::several_cpus_events());
}

#[test]
fn a_cpu_that_the_machine_does_not_have_is_refused() {
    let switched_to = |cpus, cpu| {
        let mut words = Vec::new();
        StreamEvent::Cpu(CpuId(cpu)).append_to(&mut words);
        RecordingWriter::new(Vec::new(), &of_cpus(cpus)).unwrap().stream(&words)
    };
    assert!(switched_to(2, 1).is_ok());
    let refused = switched_to(2, 2);
    assert!(
        matches!(refused, Err(WriteError::Violation(Violation::UnknownCpu { .. }))),
        "{refused:?}"
    );
    let refused = switched_to(1, 0);
    assert!(
        matches!(refused, Err(WriteError::Violation(Violation::UnknownWord { at: 0 }))),
        "{refused:?}"
    );
    assert!(CpuCount::new(0).is_none() && CpuCount::new(9).is_none());
}

#[test]
fn data_accesses_of_several_cpus_have_their_own_version() {
    for (cpus, version) in [(1, 14), (2, 18), (8, 18)] {
        let writer = RecordingWriter::with_data(Vec::new(), &of_cpus(cpus)).unwrap();
        let bytes = writer.end().unwrap().0;
        let reader = RecordingReader::new(&bytes[..]).unwrap();
        assert_eq!((reader.header().clone(), reader.version()), (of_cpus(cpus), version));
        assert!(reader.accesses().is_some());
    }
}

#[test]
fn a_wrong_number_of_cpus_in_the_header_is_refused() {
    let bytes = RecordingWriter::new(Vec::new(), &of_cpus(2)).unwrap().end().unwrap().0;
    let mut one = RecordingWriter::new(Vec::new(), &of_cpus(1)).unwrap().end().unwrap().0;
    assert_eq!((bytes[8], one[8]), (16, 12), "the version");
    one[8] = 16;
    let refused = RecordingReader::new(&one[..]).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("ends early"), "{refused}");
}

#[test]
fn changes_of_modules_follow_the_rules() {
    let with_modules = RecordingHeader { modules: true, ..RecordingHeader::default() };
    let write = |header: &RecordingHeader, changes: &[ModuleChange]| {
        let mut writer = RecordingWriter::new(Vec::new(), header).unwrap();
        writer.modules(changes).map_err(|error| error.to_string())
    };
    let unloaded = |id| ModuleChange::Unloaded(ModuleId(id));
    let veth = |id| sample::module(id, "veth", 0x1000);
    assert_eq!(write(&with_modules, &[veth(0), unloaded(0), veth(1)]), Ok(()));
    for (changes, expected) in [
        (vec![veth(1)], "load 1 of a module is defined when 0 is next"),
        (vec![unloaded(0)], "load 0 of a module ends, but the module is not loaded"),
        (vec![veth(0), unloaded(0), unloaded(0)], "load 0 of a module ends"),
    ] {
        let error = write(&with_modules, &changes).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    let error = write(&RecordingHeader::default(), &[veth(0)]).unwrap_err();
    assert!(error.contains("a recording without modules"), "{error}");
}

#[test]
fn the_version_says_whether_modules_are_recorded() {
    for (cpus, version) in [(1, 4), (2, 8)] {
        for (modules, version) in [(false, version), (true, version + 8)] {
            let cpus = CpuCount::new(cpus).unwrap();
            let header = RecordingHeader { modules, cpus, ..RecordingHeader::default() };
            let bytes = RecordingWriter::new(Vec::new(), &header).unwrap().end().unwrap().0;
            let reader = RecordingReader::new(&bytes[..]).unwrap();
            assert_eq!((reader.version(), reader.header()), (version, &header));
        }
    }
    let mut bytes =
        RecordingWriter::new(Vec::new(), &RecordingHeader::default()).unwrap().end().unwrap().0;
    for unknown in [0, 2, 5, 7, 9, 11, 13, 15, 17, 19, 20, 26] {
        bytes[8] = unknown;
        assert!(RecordingReader::new(&bytes[..]).is_err(), "{unknown}");
    }
}
