//! Takes the packing off: gzip, zstd and xz are recognized by their first bytes.
//!
//! Input: a stream, or an archive. Output: the plain stream, or the plain archive, which can be
//! read at any place.

use anyhow::{Context, Result, bail, ensure};
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek, SeekFrom, Write};
use tempfile::SpooledTempFile;

/// The memory that unpacking xz may take; `xz -9` needs 65 MB.
const XZ_MEMORY: u64 = 128 << 20;
/// The largest window of zstd, as a power of two: `zstd --ultra -22` needs 27.
const ZSTD_WINDOW: u32 = 27;
/// Archives up to this size are unpacked in memory, larger ones into a file without a name.
const IN_MEMORY: usize = 16 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Packing {
    None,
    Gzip,
    Zstd,
    Xz,
}

impl Packing {
    fn of(start: &[u8]) -> Result<Packing> {
        Ok(match start {
            [0x1f, 0x8b, ..] => Packing::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Packing::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Packing::Xz,
            [b'B', b'Z', b'h', ..] => {
                bail!("it is packed by bzip2, which Kernlane does not read: unpack it, or use gzip")
            }
            _ => Packing::None,
        })
    }
}

/// The plain stream.
pub(super) fn plain<'a>(from: impl Read + 'a) -> Result<Box<dyn Read + 'a>> {
    let mut from = BufReader::new(from);
    // A short first read would hide the packing.
    let mut start = Vec::new();
    from.by_ref().take(6).read_to_end(&mut start)?;
    let packing = Packing::of(&start)?;
    decoder(packing, BufReader::new(Cursor::new(start).chain(from)))
}

fn decoder<'a>(packing: Packing, from: impl BufRead + 'a) -> Result<Box<dyn Read + 'a>> {
    Ok(match packing {
        Packing::None => Box::new(from),
        // Packers that work on several threads write several members.
        Packing::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(from)),
        Packing::Zstd => {
            let mut decoder = zstd::Decoder::with_buffer(from)?;
            decoder.window_log_max(ZSTD_WINDOW)?;
            Box::new(decoder)
        }
        Packing::Xz => {
            let stream = liblzma::stream::Stream::new_stream_decoder(
                XZ_MEMORY,
                liblzma::stream::CONCATENATED,
            )?;
            Box::new(liblzma::bufread::XzDecoder::new_stream(from, stream))
        }
    })
}

/// The plain archive.
pub(super) enum Plain<R> {
    AsItIs(R),
    Unpacked(SpooledTempFile),
}

/// The archive without its packing.
///
/// # Errors
/// It is damaged, or has more than `most` bytes.
pub(super) fn unpacked<R: Read + Seek>(mut archive: R, most: u64) -> Result<Plain<R>> {
    let mut start = Vec::new();
    archive.by_ref().take(6).read_to_end(&mut start)?;
    archive.rewind()?;
    let packing = Packing::of(&start)?;
    if packing == Packing::None {
        return Ok(Plain::AsItIs(archive));
    }
    let mut file = SpooledTempFile::new(IN_MEMORY);
    let mut from = decoder(packing, BufReader::new(archive))?;
    let bytes = io::copy(&mut from.by_ref().take(most.saturating_add(1)), &mut file)
        .context("unpacking the archive")?;
    ensure!(bytes <= most, "unpacked, the archive has more than {} MB", most >> 20);
    file.flush()?;
    file.rewind()?;
    Ok(Plain::Unpacked(file))
}

impl<R: Read> Read for Plain<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Plain::AsItIs(archive) => archive.read(buffer),
            Plain::Unpacked(file) => file.read(buffer),
        }
    }
}

impl<R: Seek> Seek for Plain<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Plain::AsItIs(archive) => archive.seek(to),
            Plain::Unpacked(file) => file.seek(to),
        }
    }
}
