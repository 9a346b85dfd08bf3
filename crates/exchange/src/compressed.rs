//! Compresses output if the name of the file ends in `.xz` or `.gz`. Unpacks input whose first
//! bytes are those of a compressed file.
//!
//! Input: the name of the file and a function that writes, or bytes. Output: bytes.

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use liblzma::write::XzEncoder;
use std::io::{BufWriter, Read, Write};
use std::path::Path;

/// The level of xz: the fastest that still looks for repetitions over a megabyte.
const XZ_LEVEL: u32 = 1;
/// The bytes that are handed to a compressor at once.
const BUFFER: usize = 1 << 16;

/// Lets `work` write to `out`, compressed if the name of `path` ends in `.xz` or `.gz`.
///
/// # Errors
/// The name asks for another compression, `out` cannot be written, or `work` fails.
pub fn write_compressed<T>(
    path: &Path,
    out: &mut dyn Write,
    work: impl FnOnce(&mut dyn Write) -> Result<T>,
) -> Result<T> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("xz") => {
            let mut out = BufWriter::with_capacity(BUFFER, XzEncoder::new(out, XZ_LEVEL));
            let made = work(&mut out)?;
            out.into_inner().map_err(|error| error.into_error())?.finish()?;
            Ok(made)
        }
        Some("gz") => {
            let compressor = GzEncoder::new(out, Compression::fast());
            let mut out = BufWriter::with_capacity(BUFFER, compressor);
            let made = work(&mut out)?;
            out.into_inner().map_err(|error| error.into_error())?.finish()?;
            Ok(made)
        }
        Some(other @ ("bz2" | "zst" | "lz4")) => {
            bail!("a file of this format is compressed as .xz or .gz, not as .{other}")
        }
        _ => work(out),
    }
}

/// The memory that a decoder of xz may take, which its highest level needs.
const XZ_MEMORY: u64 = 128 << 20;

/// The content of compressed bytes, if they are compressed by gzip, xz or zstd.
///
/// # Errors
/// The bytes are damaged, unpack to more than `limit` bytes, or are compressed by another tool.
pub fn unpacked(bytes: &[u8], limit: u64) -> Result<Option<Vec<u8>>> {
    let mut reader: Box<dyn Read + '_> = match bytes {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(bytes)),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            let flags = liblzma::stream::CONCATENATED;
            let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, flags)?;
            Box::new(liblzma::read::XzDecoder::new_stream(bytes, stream))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::Decoder::with_buffer(bytes)?),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => bail!("it is compressed: unpack it with bunzip2"),
        [0x04, 0x22, 0x4d, 0x18, ..] => bail!("it is compressed: unpack it with unlz4"),
        _ => return Ok(None),
    };
    let mut unpacked = Vec::new();
    let read = (&mut reader).take(limit).read_to_end(&mut unpacked);
    read.context("its compressed bytes are damaged or cut off")?;
    if unpacked.len() as u64 == limit && reader.read(&mut [0]).is_ok_and(|more| more > 0) {
        bail!("it unpacks to more than {} MB: unpack it first", limit >> 20);
    }
    Ok(Some(unpacked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_say_how_a_file_is_unpacked() {
        let text = b"again and again ".repeat(100_000);
        let mut packed = Vec::new();
        for name in ["a.gz", "a.xz"] {
            let mut bytes = Vec::new();
            write_compressed(Path::new(name), &mut bytes, |out| Ok(out.write_all(&text)?)).unwrap();
            packed.push(bytes);
        }
        packed.push(zstd::encode_all(&text[..], 1).unwrap());
        for bytes in packed {
            assert_eq!(unpacked(&bytes, 1 << 30).unwrap().unwrap(), text);
            // Two, one behind the other.
            let twice = unpacked(&[&bytes[..], &bytes].concat(), 1 << 30).unwrap().unwrap();
            assert_eq!(twice.len(), 2 * text.len());
            assert_eq!(unpacked(&bytes, text.len() as u64).unwrap().unwrap(), text);
            let error = unpacked(&bytes, 1 << 20).unwrap_err().to_string();
            assert!(error.contains("more than 1 MB"), "{error}");
            let error = unpacked(&bytes[..bytes.len() - 9], 1 << 30).unwrap_err().to_string();
            assert!(error.contains("damaged or cut off"), "{error}");
        }
        assert_eq!(unpacked(b"PERFILE2", 1).unwrap(), None);
        assert!(unpacked(b"BZh9", 1).unwrap_err().to_string().contains("bunzip2"));
        assert!(unpacked(&[4, 0x22, 0x4d, 0x18], 1).unwrap_err().to_string().contains("unlz4"));
    }

    #[test]
    fn the_name_says_how_a_file_is_compressed() {
        let text = b"again and again ".repeat(100);
        let written = |name: &str| {
            let mut bytes = Vec::new();
            write_compressed(Path::new(name), &mut bytes, |out| Ok(out.write_all(&text)?))
                .map(|()| bytes)
        };
        let unpacked = |mut from: Box<dyn Read>| {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).unwrap();
            bytes
        };
        let (xz, gz) = (written("a.trace.xz").unwrap(), written("a.gz").unwrap());
        assert!(xz.len() < 200 && gz.len() < 200, "{} {}", xz.len(), gz.len());
        let xz = std::io::Cursor::new(xz);
        assert_eq!(unpacked(Box::new(liblzma::read::XzDecoder::new(xz))), text);
        let gz = std::io::Cursor::new(gz);
        assert_eq!(unpacked(Box::new(flate2::read::GzDecoder::new(gz))), text);
        assert_eq!(written("a.trace").unwrap(), text);
        assert!(written("a.zst").unwrap_err().to_string().contains("not as .zst"));
    }
}
