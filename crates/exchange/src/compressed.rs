//! Compresses what is written, as the name of the file says: `.xz` and `.gz`.
//!
//! Input: the name of the file, and a function that writes. Output: bytes.

use anyhow::{Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use liblzma::write::XzEncoder;
use std::io::{BufWriter, Write};
use std::path::Path;

/// The level of xz: the fastest that still looks for repetitions over a megabyte.
const XZ_LEVEL: u32 = 1;
/// The bytes that are handed to a compressor at once.
const BUFFER: usize = 1 << 16;

/// Lets `work` write to `out`, compressed if the name of `path` ends in `.xz` or `.gz`.
///
/// # Errors
/// The name asks for another compression, `out` cannot be written, or what `work` gives.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

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
