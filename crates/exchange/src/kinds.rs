//! Names files of profiles, layouts and programs by what they begin with, and says what to do
//! with them. So a reader that gets the wrong file gives a useful message.
//!
//! Input: the bytes of a file. Output: its kind. This module reads no more than it needs, and does
//! not check the contents: the file may be damaged.

use super::{bolt_import, perf, samples_import};

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// `perf.data`.
    PerfData,
    /// BOLT's pre-aggregated profile.
    PreAggregated,
    /// BOLT's fdata.
    Fdata,
    /// LLVM's sample profile as text.
    SampleText,
    /// One of LLVM's binary sample profiles.
    SampleBinary,
    /// BOLT's profile as YAML.
    BoltYaml,
    /// What `perf2bolt --generate-perf-script` writes.
    BoltPerfText,
    /// Counters of an instrumented program, of LLVM.
    LlvmCounters,
    /// Samples or counters of GCC.
    GccProfile,
    /// Propeller's clusters for clang.
    PropellerClusters,
    /// A list of symbols for a linker.
    SymbolOrder,
    /// Counts of calls for a linker.
    CallGraph,
    /// Kernlane's profile.
    Profile,
    /// Kernlane's layout.
    Layout,
    /// Kernlane's map of a relinked kernel.
    Map,
    /// Kernlane's recording.
    Recording,
    /// A table of Parquet.
    Parquet,
    /// A program, an object file or a kernel.
    Elf,
    /// Compressed by gzip, xz or zstd.
    Compressed,
}

impl FileKind {
    /// The kind of a file, if it is known.
    pub fn of(bytes: &[u8]) -> Option<FileKind> {
        by_magic(bytes).or_else(|| by_text(std::str::from_utf8(bytes).ok()?))
    }

    /// What the file is, and what to do with it, as a sentence without a stop.
    pub fn description(self) -> &'static str {
        match self {
            FileKind::PerfData => "this is perf.data: import it as a profile of Kernlane",
            FileKind::PreAggregated | FileKind::Fdata => {
                "this is a profile of BOLT: import it as a profile of Kernlane"
            }
            FileKind::SampleText | FileKind::SampleBinary => {
                "this is a sample profile of LLVM: import it as a profile of Kernlane"
            }
            FileKind::BoltYaml => {
                "this is BOLT's profile as YAML, which counts by BOLT's numbers of blocks: write \
                 it as text with `perf2bolt -p perf.data -o bolt.fdata vmlinux`, or import \
                 perf.data"
            }
            FileKind::BoltPerfText => {
                "this is what perf2bolt keeps of perf.data: import perf.data, or the text of \
                 `perf script -F brstack`"
            }
            FileKind::LlvmCounters => {
                "this holds the counters of a program that clang instrumented \
                 (`-fprofile-generate`), by functions without addresses: record the kernel, or \
                 import perf.data of `perf record -b`"
            }
            FileKind::GccProfile => {
                "this is a profile of GCC: import perf.data of `perf record -b`, or a profile that \
                 AutoFDO's `create_llvm_prof` makes of it"
            }
            FileKind::PropellerClusters => {
                "this is Propeller's list of clusters, an order without counts for `clang \
                 -fbasic-block-sections=list=FILE`: import the perf.data that it was made from"
            }
            FileKind::SymbolOrder => {
                "this is a list of symbols, an order without counts for `ld.lld \
                 --symbol-ordering-file=FILE`: import the perf.data that it was made from"
            }
            FileKind::CallGraph => {
                "this is a list of calls for `ld.lld --call-graph-ordering-file=FILE`, without \
                 blocks: import the perf.data that it was made from"
            }
            FileKind::Profile => "this is a profile of Kernlane",
            FileKind::Layout => "this is a layout of Kernlane",
            FileKind::Map => "this is the map of a relinked kernel",
            FileKind::Recording => {
                "this is a recording of Kernlane, or a part of one: make a profile of the \
                 recording's directory"
            }
            FileKind::Parquet => {
                "this is a table of Parquet: if it is a profile, import it as a profile of Kernlane"
            }
            FileKind::Elf => "this is a program or a kernel (ELF), not a profile of one",
            FileKind::Compressed => "this is compressed: unpack it first",
        }
    }
}

/// A file that does not hold what its reader takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableFile {
    /// The file is of this kind.
    #[error("{}", .0.description())]
    Kind(FileKind),
    /// The file is of no kind that is known.
    #[error("not perf.data, and no text of perf, BOLT or LLVM")]
    Unknown,
}

fn by_magic(bytes: &[u8]) -> Option<FileKind> {
    let begins = |magic: &[u8]| bytes.starts_with(magic);
    // LLVM writes its magic numbers as 64 bits: the last byte comes first in a raw profile of a
    // little-endian machine. GCC's are "gcda" and "gcno", and "adcg" for samples.
    let found = [
        (perf::is_perf_data(bytes), FileKind::PerfData),
        (samples_import::is_binary(bytes), FileKind::SampleBinary),
        (begins(b"\xfflprofi\x81") || begins(b"\x81rforpl\xff"), FileKind::LlvmCounters),
        (begins(b"\xfflprofr\x81") || begins(b"\x81Rforpl\xff"), FileKind::LlvmCounters),
        ([b"adcg", b"gcda", b"oncg", b"gcno"].iter().any(|m| begins(*m)), FileKind::GccProfile),
        (begins(b"PAR1"), FileKind::Parquet),
        (begins(b"\x7fELF"), FileKind::Elf),
        (begins(b"\x89KLT\r\n\x1a\n"), FileKind::Recording),
        (begins(b"\x1f\x8b") || begins(b"\xfd7zXZ\0"), FileKind::Compressed),
        (begins(b"\x28\xb5\x2f\xfd"), FileKind::Compressed),
    ];
    found.into_iter().find(|&(is, _)| is).map(|(_, kind)| kind)
}

fn by_text(text: &str) -> Option<FileKind> {
    let begins = |word: &str| text.starts_with(word);
    let found = [
        (begins("{\"kernlane_profile\""), FileKind::Profile),
        (begins("kernlane-layout "), FileKind::Layout),
        (begins("kernlane-map "), FileKind::Map),
        (begins("PERFTEXT;"), FileKind::BoltPerfText),
        (begins("---") && text.contains("profile-version:"), FileKind::BoltYaml),
        (begins(":ir\n") || begins(":fe\n") || begins(":csir\n"), FileKind::LlvmCounters),
        (bolt_import::is_pre_aggregated(text), FileKind::PreAggregated),
        (bolt_import::is_fdata(text), FileKind::Fdata),
        (samples_import::is_text(text), FileKind::SampleText),
        (is_clusters(text), FileKind::PropellerClusters),
        (is_call_graph(text), FileKind::CallGraph),
        (is_order(text), FileKind::SymbolOrder),
    ];
    found.into_iter().find(|&(is, _)| is).map(|(_, kind)| kind)
}

/// Whether a text is in version 1 (`v1`, then `f NAME` or `m MODULE`) or version 0 (`!NAME`, then
/// `!!0 1 2`) of Propeller's format.
fn is_clusters(text: &str) -> bool {
    let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '@']));
    let (first, second) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
    let version1 = first == "v1" && ["f ", "m ", "c "].iter().any(|word| second.starts_with(word));
    version1 || first.starts_with('!') && !first.starts_with("!!") && second.starts_with("!!")
}

fn is_name(word: &str) -> bool {
    let of_name = |c: char| c.is_ascii_alphanumeric() || "_.$@".contains(c);
    word.chars().all(of_name) && word.starts_with(|c: char| c.is_alphabetic() || "_.$".contains(c))
}

fn is_call_graph(text: &str) -> bool {
    let call = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        matches!(words[..], [from, to, count]
            if is_name(from) && is_name(to) && count.parse::<u64>().is_ok())
    };
    !text.is_empty() && text.lines().all(call)
}

fn is_order(text: &str) -> bool {
    let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.next().is_some_and(is_name) && lines.all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_known_by_what_it_begins_with() {
        let of = |text: &str| FileKind::of(text.as_bytes());
        assert_eq!(of("PERFILE2\0"), Some(FileKind::PerfData));
        assert_eq!(of("B 30 40 2 1\n"), Some(FileKind::PreAggregated));
        assert_eq!(of("1 f 0 1 g 0 0 15\n"), Some(FileKind::Fdata));
        assert_eq!(of("f:1:1\n 1: 1\n"), Some(FileKind::SampleText));
        assert_eq!(of("---\nheader:\n  profile-version: 1\n"), Some(FileKind::BoltYaml));
        assert_eq!(of("PERFTEXT;MMAP=9;\n"), Some(FileKind::BoltPerfText));
        assert_eq!(of(":ir\nmain\n"), Some(FileKind::LlvmCounters));
        assert_eq!(FileKind::of(b"\xfflprofi\x81\x0c"), Some(FileKind::LlvmCounters));
        assert_eq!(of("adcg"), Some(FileKind::GccProfile));
        assert_eq!(of("v1\nf f\nc 0 2\n"), Some(FileKind::PropellerClusters));
        assert_eq!(of("#x\n!f\n!!0 2\n"), Some(FileKind::PropellerClusters));
        assert_eq!(of("f\ng.__part.1\n"), Some(FileKind::SymbolOrder));
        assert_eq!(of("f g 12\nf h 3\n"), Some(FileKind::CallGraph));
        assert_eq!(of("{\"kernlane_profile\":5"), Some(FileKind::Profile));
        assert_eq!(of("kernlane-layout 2\n"), Some(FileKind::Layout));
        assert_eq!(of("kernlane-map 2\n"), Some(FileKind::Map));
        assert_eq!(FileKind::of(b"\x89KLT\r\n\x1a\n"), Some(FileKind::Recording));
        assert_eq!(FileKind::of(b"\x7fELF"), Some(FileKind::Elf));
        assert_eq!(FileKind::of(b"\x1f\x8b\x08"), Some(FileKind::Compressed));
        for other in ["", "\n", "0x1/0x2/P/-/-/0\n", " ffffffff90000010 0x1/0x2/P/-/-/0\n", "v1"] {
            let kind = of(other);
            assert!(matches!(kind, None | Some(FileKind::SymbolOrder)), "{other:?}: {kind:?}");
        }
        assert_eq!(of("0x1/0x2/P/-/-/0\n"), None);
    }
}
