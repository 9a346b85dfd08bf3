//! The frame of a chunk: the bytes around its payload. This module does no input or output.
//!
//! ```text
//! file    MAGIC (8)  version (4)  chunk HEAD  chunk …  chunk END
//! chunk   kind (4)  packed size (4)  unpacked size (4)  CRC-32 (4)  packed payload
//!         The CRC-32 covers the 12 bytes before it and the packed payload.
//! ```
//!
//! All numbers are little-endian.

use std::fmt;

/// The first bytes of every recording. Bit 7 of the first byte is set, and the line ends change
/// when a program transfers the file as text.
pub const MAGIC: [u8; 8] = *b"\x89KLT\r\n\x1a\n";
/// The version of a recording of one CPU with data accesses. The number rises whenever an
/// old reader would misunderstand a new file.
pub const FORMAT_VERSION: u32 = 6;
/// The version of a recording without data accesses.
pub(crate) const VERSION_WITHOUT_DATA: u32 = 4;
/// Version of a recording of several CPUs, without data accesses.
pub(crate) const VERSION_OF_SEVERAL_CPUS: u32 = 8;
/// Version of a recording of several CPUs, with data accesses.
pub(crate) const VERSION_OF_SEVERAL_CPUS_WITH_DATA: u32 = 10;
/// What is added to a version when loads of modules are recorded.
pub(crate) const WITH_MODULES: u32 = 8;
/// The versions without readings of the clock: with data accesses, and without them.
pub(crate) const VERSIONS_WITHOUT_CLOCK: [u32; 2] = [3, 1];
/// The size of a frame in bytes. It stands before the chunk's payload.
pub(crate) const FRAME_SIZE: usize = 16;
/// The largest size of an unpacked payload in bytes.
pub(crate) const UNPACKED_LIMIT: u32 = 16 << 20;
/// The largest size of a packed payload in bytes. It is above zstd's bound for `UNPACKED_LIMIT`.
pub(crate) const PACKED_LIMIT: u32 = UNPACKED_LIMIT + (1 << 18);

/// The kind of records in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// The conditions of the recording.
    Header,
    /// Definitions of translations.
    Translations,
    /// Definitions of tasks.
    Tasks,
    /// Loads and unloads of kernel modules.
    Modules,
    /// Definitions of access patterns.
    Patterns,
    /// The data accesses of the next stream.
    Data,
    /// A stream of events.
    Stream,
    /// The totals at the clean end.
    End,
}

impl ChunkKind {
    const TAGS: [(ChunkKind, [u8; 4]); 8] = [
        (ChunkKind::Header, *b"HEAD"),
        (ChunkKind::Translations, *b"TRAN"),
        (ChunkKind::Tasks, *b"TASK"),
        (ChunkKind::Modules, *b"MODS"),
        (ChunkKind::Patterns, *b"PATT"),
        (ChunkKind::Data, *b"DATA"),
        (ChunkKind::Stream, *b"STRM"),
        (ChunkKind::End, *b"END "),
    ];

    fn tag(self) -> [u8; 4] {
        Self::TAGS[self as usize].1
    }

    fn from_tag(tag: [u8; 4]) -> Option<ChunkKind> {
        Self::TAGS.iter().find(|entry| entry.1 == tag).map(|entry| entry.0)
    }
}

impl fmt::Display for ChunkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(String::from_utf8_lossy(&self.tag()).trim_end())
    }
}

/// The 16 bytes before a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkFrame {
    pub kind: ChunkKind,
    pub packed: u32,
    pub unpacked: u32,
    pub checksum: u32,
}

impl ChunkFrame {
    /// Makes the frame of a packed payload.
    pub(crate) fn of(kind: ChunkKind, packed: &[u8], unpacked: u32) -> ChunkFrame {
        let mut frame = ChunkFrame { kind, packed: packed.len() as u32, unpacked, checksum: 0 };
        frame.checksum = frame.checksum_with(packed);
        frame
    }

    pub(crate) fn to_bytes(self) -> [u8; FRAME_SIZE] {
        let mut bytes = [0; FRAME_SIZE];
        bytes[0..4].copy_from_slice(&self.kind.tag());
        bytes[4..8].copy_from_slice(&self.packed.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.unpacked.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// Reads a frame. The error is a tag that no kind of chunk has.
    pub(crate) fn from_bytes(bytes: &[u8; FRAME_SIZE]) -> Result<ChunkFrame, [u8; 4]> {
        let word = |i: usize| [bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]];
        Ok(ChunkFrame {
            kind: ChunkKind::from_tag(word(0)).ok_or(word(0))?,
            packed: u32::from_le_bytes(word(4)),
            unpacked: u32::from_le_bytes(word(8)),
            checksum: u32::from_le_bytes(word(12)),
        })
    }

    /// The checksum of the frame together with this payload.
    pub(crate) fn checksum_with(&self, packed: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.to_bytes()[..12]);
        hasher.update(packed);
        hasher.finalize()
    }
}
