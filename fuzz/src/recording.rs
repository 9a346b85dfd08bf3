//! Recordings: what the targets use of `kernlane-trace`.

use crate::source::{ByteSource, stretch};
use kernlane_trace as trace;
use trace::{Chunk, RecordingReader, StreamEvent, events};

#[path = "../../crates/trace/tests/frames/mod.rs"]
mod frames;
#[path = "../../crates/trace/tests/sample/mod.rs"]
mod sample;

const VERSIONS: [u32; 5] = [6, 4, 3, 1, 8];
const KINDS: [&[u8; 4]; 7] = [b"HEAD", b"TRAN", b"TASK", b"PATT", b"DATA", b"STRM", b"END "];

/// The accesses of a stream under a fuzzer, which then gets through more inputs. `cargo test` runs
/// the same inputs with the limit of the format.
const FUZZED_ACCESSES: usize = 1 << 16;

/// A recording, byte by byte.
pub fn recordings(bytes: &[u8]) {
    follows_the_rules(bytes, true);
    follows_the_rules(bytes, false);
}

/// Payloads in right frames: one byte for the version, then for each chunk a byte for its kind and
/// a stretch.
pub fn recording_payloads(bytes: &[u8]) {
    let mut source = ByteSource::new(bytes);
    let version = VERSIONS[source.below(VERSIONS.len())];
    let mut chunks = Vec::new();
    while !source.is_empty() {
        let kind = KINDS[source.below(KINDS.len())];
        let payload = source.stretch();
        chunks.push(frames::framed_as(kind, &raw_frame(payload), payload.len() as u32));
    }
    follows_the_rules(&frames::file(version, &chunks), true);
}

/// A zstd frame that holds a payload of less than 64 KB as it is (RFC 8878): magic number, a
/// descriptor of a single segment with a size of four bytes, one raw block.
fn raw_frame(payload: &[u8]) -> Vec<u8> {
    let size = payload.len() as u32;
    let block = (size << 3 | 1).to_le_bytes();
    let head = [&[0x28, 0xb5, 0x2f, 0xfd, 0xa0][..], &size.to_le_bytes(), &block[..3]];
    [&head.concat(), payload].concat()
}

/// Panics when the reader gives what breaks a rule of the format.
fn follows_the_rules(bytes: &[u8], with_data: bool) {
    let Ok(mut reader) = RecordingReader::new(bytes) else { return };
    if cfg!(fuzzing) {
        reader = reader.with_most_accesses(FUZZED_ACCESSES);
    }
    if !with_data {
        reader = reader.without_data();
    }
    let (mut sizes, mut tasks) = (Vec::new(), 0);
    while let Ok(Some(chunk)) = reader.next_chunk() {
        match chunk {
            Chunk::Translations(defined) => {
                for translation in defined {
                    assert_eq!(translation.id.0 as usize, sizes.len());
                    let code = translation.code_by_instruction().map(|(_, code)| code.len());
                    assert_eq!(translation.code.len(), code.sum::<usize>());
                    sizes.push(translation.instructions());
                }
            }
            Chunk::Tasks(defined) => tasks += defined.len(),
            Chunk::Modules(_) => {}
            Chunk::Stream(words) => stream_follows(&reader, &words, &sizes, tasks),
            Chunk::End(totals) => assert_eq!(totals, reader.totals_so_far()),
        }
    }
    assert!(matches!(reader.next_chunk(), Ok(None)), "the reader goes on behind the end");
}

fn stream_follows(reader: &RecordingReader<&[u8]>, words: &[u32], sizes: &[u32], tasks: usize) {
    let mut accesses =
        reader.accesses().map(|(accesses, patterns)| (accesses, accesses.walk(patterns)));
    for event in events(words) {
        match event {
            StreamEvent::Executed(id) => assert!((id.0 as usize) < sizes.len()),
            StreamEvent::Left { translation, instructions } => {
                assert!(instructions < sizes[translation.0 as usize])
            }
            StreamEvent::Task(id) | StreamEvent::Woken(id) => assert!((id.0 as usize) < tasks),
            StreamEvent::Cpu(cpu) => assert!(cpu.0 < reader.header().cpus.get()),
            StreamEvent::Marker(_) | StreamEvent::Clock(_) => {}
        }
        if let Some((accesses, walk)) = &mut accesses {
            let (sites, first) = walk.event(event);
            assert!(first + sites.len() <= accesses.addresses.len(), "a site without an address");
        }
    }
}

pub fn recording_seeds() -> Vec<Vec<u8>> {
    vec![sample::bytes().0, sample::data_bytes().0, sample::several_cpus().0]
}

pub fn payload_seeds() -> Vec<Vec<u8>> {
    let of = |version: u8, file: &[u8]| {
        let mut seed = vec![version];
        for (kind, payload) in frames::pieces(file) {
            seed.extend(KINDS.iter().position(|known| **known == kind).map(|kind| kind as u8));
            seed.extend(stretch(&payload));
        }
        seed
    };
    vec![
        of(1, &sample::bytes().0),
        of(0, &sample::data_bytes().0),
        of(4, &sample::several_cpus().0),
    ]
}
