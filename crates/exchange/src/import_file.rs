//! Reads a file of another tool, whatever its format and compression.
//!
//! Input: a path. Output: branches by address or by function, or counts by source line. A file
//! without branches or lines gets an error that says what it is.

use super::bolt_import::{self, NamedBranches};
use super::compressed;
use super::kinds::{FileKind, UnusableFile};
use super::perf::{self, PerfSamples};
use super::profile_table;
use super::samples_import::{self, SourceSamples};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// What a file holds.
pub enum ImportFile {
    /// Branches by run-time address.
    Branches(PerfSamples),
    /// Branches by function.
    Named(NamedBranches),
    /// Counts by source line.
    Lines(SourceSamples),
    /// Tables of profiles, in these files.
    Tables(Vec<PathBuf>),
}

/// The bytes to which a compressed file may unpack.
const LARGEST: u64 = 16 << 30;

/// Reads a file, or the directory of `perf record --threads`.
///
/// # Errors
/// The file cannot be read, is damaged, or is of a kind that holds no branches and no lines.
pub fn read(path: &Path) -> Result<ImportFile> {
    if path.is_dir() {
        if path.join("trace.klt").is_file() {
            bail!(UnusableFile::Kind(FileKind::Recording));
        }
        let tables = profile_table::files(path)?;
        if !tables.is_empty() {
            return Ok(ImportFile::Tables(tables));
        }
        if !path.join("data").is_file() {
            bail!(
                "this is not a directory of `perf record --threads`: it has no file `data`, and \
                 no Parquet tables either"
            );
        }
        return Ok(ImportFile::Branches(perf::directory(path)?));
    }
    // The header of a directory: its samples lie beside it.
    let directory = path.parent().filter(|_| path.file_name().is_some_and(|name| name == "data"));
    if let Some(directory) = directory.filter(|directory| directory.join("data.0").is_file()) {
        return Ok(ImportFile::Branches(perf::directory(directory)?));
    }
    let bytes = std::fs::read(path)?;
    if FileKind::of(&bytes) == Some(FileKind::Parquet) {
        return Ok(ImportFile::Tables(vec![path.to_owned()]));
    }
    let unpacked = compressed::unpacked(&bytes, LARGEST)?;
    let bytes = unpacked.as_deref().unwrap_or(&bytes);
    match samples_import::is_binary(bytes) {
        true => Ok(ImportFile::Lines(samples_import::binary(bytes)?)),
        false => of_bytes(bytes),
    }
}

/// Reads the bytes of a file that is not compressed, and not binary of LLVM.
///
/// # Errors
/// As [`read`].
pub fn of_bytes(bytes: &[u8]) -> Result<ImportFile> {
    let kind = FileKind::of(bytes);
    // perf leaves an empty file if it ends early.
    if bytes.is_empty() || kind == Some(FileKind::PerfData) {
        return Ok(ImportFile::Branches(perf::data(bytes)?));
    }
    let text = std::str::from_utf8(bytes);
    match (kind, text) {
        (Some(FileKind::PreAggregated), Ok(text)) => {
            let branches = bolt_import::pre_aggregated(text)?;
            Ok(ImportFile::Branches(PerfSamples { branches, ..PerfSamples::default() }))
        }
        (Some(FileKind::Fdata), Ok(text)) => Ok(ImportFile::Named(bolt_import::fdata(text)?)),
        (Some(FileKind::SampleText), Ok(text)) => {
            Ok(ImportFile::Lines(samples_import::parse(text)?))
        }
        (Some(kind), _) => bail!(UnusableFile::Kind(kind)),
        (None, text) => {
            let text = text.context(UnusableFile::Unknown)?;
            Ok(ImportFile::Branches(perf::script(text)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(bytes: &[u8]) -> String {
        of_bytes(bytes).err().map(|error| format!("{error:#}")).unwrap_or_default()
    }

    #[test]
    fn each_format_is_read_and_others_are_named() {
        let branches = |text: &str| match of_bytes(text.as_bytes()) {
            Ok(ImportFile::Branches(found)) => found.branches.total(),
            _ => 0,
        };
        assert_eq!(branches("0x1/0x2/P/-/-/0\n"), 1);
        assert_eq!(branches("B 1 2 3 0\n"), 3);
        assert!(matches!(of_bytes(b"1 f 0 1 g 0 0 1\n"), Ok(ImportFile::Named(_))));
        assert!(matches!(of_bytes(b"f:1:1\n 1: 1\n"), Ok(ImportFile::Lines(_))));
        assert!(error(b"v1\nf f\nc 0\n").contains("Propeller"));
        assert!(error(b"kernlane-layout 2\n").contains("a layout of Kernlane"));
        assert!(error(b"\xff\xfe").contains("no text of perf"));
        assert!(error(b"").contains("it is empty"));
        assert!(error(b"some words\n").contains("perf script -F brstack"));
    }

    #[test]
    fn compressed_files_and_directories_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let text = b"0x1/0x2/P/-/-/0\n";
        for name in ["a.txt.gz", "a.txt.xz", "a.txt"] {
            let path = directory.path().join(name);
            let mut bytes = Vec::new();
            let write = |out: &mut dyn std::io::Write| Ok(out.write_all(text)?);
            compressed::write_compressed(&path, &mut bytes, write).unwrap();
            std::fs::write(&path, bytes).unwrap();
            assert!(matches!(read(&path), Ok(ImportFile::Branches(found))
                if found.branches.total() == 1));
        }
        let error = |path: &Path| read(path).err().unwrap().to_string();
        assert!(error(directory.path()).contains("has no file `data`"));
        std::fs::write(directory.path().join("trace.klt"), "").unwrap();
        assert!(error(directory.path()).contains("a recording of Kernlane"));
    }
}
