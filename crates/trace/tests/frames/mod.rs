//! Takes the frames of a recording's chunks apart and puts them together, from the description of
//! the format alone. Also a generator of damage.

#![allow(dead_code, reason = "each test uses a part of this module")]

use kernlane_trace::MAGIC;

/// Kind and unpacked payload.
pub(crate) type RawChunk = ([u8; 4], Vec<u8>);

/// The offsets at which the chunks begin and the file ends.
pub(crate) fn boundaries(bytes: &[u8]) -> Vec<usize> {
    let mut all = vec![12];
    while let Some(&at) = all.last().filter(|&&at| at < bytes.len()) {
        let packed = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap());
        all.push(at + 16 + packed as usize);
    }
    all
}

pub(crate) fn pieces(bytes: &[u8]) -> Vec<RawChunk> {
    let piece = |pair: &[usize]| {
        let kind = bytes[pair[0]..pair[0] + 4].try_into().unwrap();
        (kind, zstd::bulk::decompress(&bytes[pair[0] + 16..pair[1]], 1 << 20).unwrap())
    };
    boundaries(bytes).windows(2).map(piece).collect()
}

pub(crate) fn framed(kind: &[u8; 4], payload: &[u8]) -> Vec<u8> {
    let packed = zstd::bulk::compress(payload, 1).unwrap();
    framed_as(kind, &packed, payload.len() as u32)
}

pub(crate) fn framed_as(kind: &[u8; 4], packed: &[u8], unpacked: u32) -> Vec<u8> {
    let mut chunk =
        [&kind[..], &(packed.len() as u32).to_le_bytes(), &unpacked.to_le_bytes()].concat();
    let checksum = crc32fast::hash(&[&chunk[..], packed].concat());
    chunk.extend(checksum.to_le_bytes());
    chunk.extend(packed);
    chunk
}

/// A file of framed chunks.
pub(crate) fn file(version: u32, chunks: &[Vec<u8>]) -> Vec<u8> {
    [&MAGIC[..], &version.to_le_bytes(), &chunks.concat()].concat()
}

/// A file of pieces, with right checksums.
pub(crate) fn file_of(version: u32, pieces: &[RawChunk]) -> Vec<u8> {
    let chunks: Vec<Vec<u8>> = pieces.iter().map(|(kind, payload)| framed(kind, payload)).collect();
    file(version, &chunks)
}

/// xorshift64* (Vigna 2016), so that the damage is the same on every run.
pub(crate) struct DamageGenerator(pub u64);

impl DamageGenerator {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    /// Cuts a payload, puts a byte into it, or changes a bit.
    pub(crate) fn damage(&mut self, payload: &mut Vec<u8>) {
        match self.below(4) {
            0 => payload.truncate(self.below(payload.len() + 1)),
            1 => payload.insert(self.below(payload.len() + 1), self.below(256) as u8),
            _ if payload.is_empty() => {}
            _ => {
                let at = self.below(payload.len());
                payload[at] ^= 1 << self.below(8);
            }
        }
    }
}
