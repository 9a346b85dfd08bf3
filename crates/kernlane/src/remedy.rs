//! How a user types what an error asks for.
//!
//! Input: an error of a library, which says in words of its own what to do. Output: the error with
//! the command or option behind it, in parentheses. Other errors stay as they are. To add one: give
//! the library's error a type, and add its words to `typed`.

use anyhow::{Error, anyhow};
use ask::named::UnknownQuestion;
use ask::probe::NoProbes;
use emit::NotPutBack;
use emit::counting::NoCounts;
use exchange::kinds::{FileKind, UnusableFile};
use execution::executions::NoDataAccesses;
use guest::{OtherMitigations, RefusedRequest};
use live::device::PartlyInstalled;
use profile::ProfileError;
use replay::bound::TooManyFetches;
use replay::results::UnknownResultFormat;
use road::counts::OtherBuild;
use road::inlined::Livepatched;
use road::optimize_live::NoHeaders;
use road::probed::NotRepeatable;
use road::workload::UnknownBenchmark;

/// Adds the command or option to an error that asks for something.
pub(crate) fn add(error: Error) -> Error {
    match typed(&error) {
        Some(words) => anyhow!("{error:#} ({words})"),
        None => error,
    }
}

/// The command or option, if the error is one of those that are known.
fn typed(error: &Error) -> Option<&'static str> {
    if let Some(refused) = error.downcast_ref::<RefusedRequest>() {
        return Some(of_request(refused));
    }
    if let Some(&file) = error.downcast_ref::<UnusableFile>() {
        return of_file(file);
    }
    if let Some(ProfileError::Format(_)) = error.downcast_ref() {
        return Some("`kernlane profile`");
    }
    if let Some(missing) = error.downcast_ref::<NotRepeatable>() {
        return Some(match missing {
            NotRepeatable::Workload(_) => "--workload FILE.toml",
            NotRepeatable::BootImage(_) => "--boot-image FILE",
        });
    }
    [
        error.is::<NoProbes>().then_some("--probe"),
        error.is::<NoDataAccesses>().then_some("`kernlane record --data`"),
        error.is::<NoHeaders>().then_some("--headers"),
        error.is::<NoCounts>().then_some("`kernlane relink --count`"),
        error.is::<Livepatched>().then_some("--despite-livepatch"),
        error.is::<NotPutBack>().then_some("`kernlane relink --restore`"),
        error.is::<PartlyInstalled>().then_some("`kernlane live undo`"),
        error.is::<TooManyFetches>().then_some("--from, --until"),
        error
            .is::<OtherBuild>()
            .then_some("`kernlane profile OLD.klp --carry --kernel TREE -o NEW.klp`"),
        error.is::<UnknownQuestion>().then_some("`kernlane ask --list`"),
        error.is::<UnknownBenchmark>().then_some("`kernlane bench --list`"),
        error.is::<OtherMitigations>().then_some(
            "--like takes another machine or host; `kernlane optimize` with --cpu-model max records \
             a guest like none",
        ),
        error.is::<UnknownResultFormat>().then_some("`kernlane replay --json`"),
    ]
    .into_iter()
    .flatten()
    .next()
}

fn of_request(refused: &RefusedRequest) -> &'static str {
    match refused {
        RefusedRequest::OutputNotEmpty(_) => "--force",
        RefusedRequest::NoKernel(_) => "--kernel",
        RefusedRequest::TreeAndVmlinux => "--kernel, --vmlinux",
        RefusedRequest::NoVmlinux { .. } => "--vmlinux",
        RefusedRequest::TurnsOfOneCpu(_) => "--cpus, --turn",
        RefusedRequest::CheckpointOfOneCpu => "--cpus, --from",
        RefusedRequest::TooLittleMemory { .. } => "--memory, or `memory` in the workload's file",
    }
}

/// The commands that take a file.
fn of_file(file: UnusableFile) -> Option<&'static str> {
    match file {
        UnusableFile::Unknown => Some("see `kernlane import --help`"),
        UnusableFile::Kind(kind) => match kind {
            FileKind::PerfData
            | FileKind::PreAggregated
            | FileKind::Fdata
            | FileKind::SampleText
            | FileKind::Parquet
            | FileKind::SampleBinary => Some("`kernlane import FILE --kernel TREE -o PROFILE.klp`"),
            FileKind::LlvmCounters => Some("`kernlane record`, `kernlane import`"),
            FileKind::Profile => Some(
                "`kernlane profile` prints it, and `kernlane layout` and `kernlane export` take it",
            ),
            FileKind::Layout => Some("`kernlane relink` and `kernlane replay` take it"),
            FileKind::Map => Some("`kernlane replay` and `kernlane check` take it"),
            FileKind::Recording => {
                Some("`kernlane profile`; `kernlane layout` also takes the directory")
            }
            FileKind::BoltYaml
            | FileKind::BoltPerfText
            | FileKind::GccProfile
            | FileKind::PropellerClusters
            | FileKind::SymbolOrder
            | FileKind::CallGraph
            | FileKind::Elf
            | FileKind::Compressed => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, Result};

    fn message<E: Into<Error>>(error: E) -> String {
        let failed: Result<()> = Err(error.into());
        format!("{:#}", add(failed.context("net.rec").unwrap_err()))
    }

    #[test]
    fn an_error_names_what_to_type() {
        for (found, expected) in [
            (
                message(NoDataAccesses),
                "net.rec: the recording has no data accesses: record the workload with them \
                 (`kernlane record --data`)",
            ),
            (
                message(TooManyFetches),
                "net.rec: more than 268435456 blocks ran, too many for a lower bound: take a part \
                 of the recording (--from, --until)",
            ),
            (
                message(OtherBuild { profile: "5f".into(), kernel: "77".into() }),
                "net.rec: the profile is of the kernel with build id 5f, but the kernel has build \
                 id 77; its counts can be carried to this kernel (`kernlane profile OLD.klp --carry \
                 --kernel TREE -o NEW.klp`)",
            ),
            (
                message(UnusableFile::Kind(FileKind::Layout)),
                "net.rec: this is a layout of Kernlane (`kernlane relink` and `kernlane replay` \
                 take it)",
            ),
            (
                message(UnusableFile::Kind(FileKind::Compressed)),
                "net.rec: this is compressed: unpack it first",
            ),
            (
                message(ProfileError::Format(3)),
                "net.rec: a profile of format 3; this version reads formats 4 to 7: make it again \
                 (`kernlane profile`)",
            ),
            (message(UnknownQuestion("tops".into())), "or SQL (`kernlane ask --list`)"),
            (message(UnknownBenchmark("call/no".into())), "(`kernlane bench --list`)"),
            (message(UnknownResultFormat(9)), "make them again (`kernlane replay --json`)"),
            (message(NoCounts::NoCounters), "not a counting kernel (`kernlane relink --count`)"),
            (message(RefusedRequest::CheckpointOfOneCpu), "(--cpus, --from)"),
            (message(anyhow!("the disk is full")), "net.rec: the disk is full"),
        ] {
            assert!(found.ends_with(expected), "{found}");
        }
    }

    /// The last error is the cause, and the words stand behind it.
    #[test]
    fn an_error_around_another_names_what_to_type() {
        let failed: Result<()> = Err(anyhow!("vmlinux: cannot be written"));
        let found = add(failed.context(NotPutBack).unwrap_err()).to_string();
        assert_eq!(
            found,
            "after another failure; put the original kernel back when the cause is gone: vmlinux: \
             cannot be written (`kernlane relink --restore`)"
        );
    }
}
