//! Reads the values of probes: executes the run of a recording again, with the probes in it.
//!
//! Input: a recording, its kernel, and probes as text. Output: a file of values, in the cache, so
//! that the same question does not run again. The run is that of the recording, to the instruction:
//! the hashes of both are compared.

use crate::workload;
use anyhow::{Context, Result, bail, ensure};
use ask::probe::syntax::{AccessText, ProbePlace};
use ask::probe::{ProbeSet, ProbedPositions, RecordedProbes};
use ask::produce;
use ask::recording::AskedRecording;
use ask::sql::{AnswerColumn, AnswerSink, Database, SqlValueRef};
use guest::record::RecordingSummary;
use guest::{GuestKernel, ProbeFiles, RecordingRequest};
use host::note;
use host::recording::Recording;
use host::scratch;
use image::mapping::map_file;
use image::vmlinux;
use memory::fields::FieldStudy;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use trace::probe_file::ProbeReader;

/// Probes make a run slower.
const TIME_LIMIT: Duration = Duration::from_secs(4 * 3600);

/// What is missing to execute a run again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRepeatable {
    /// The workload, by its name.
    #[error("{0} is not the workload that was recorded: give the file of that one")]
    Workload(String),
    /// The boot image of the kernel with this release.
    #[error("its boot image vmlinuz-{0} is not found: name it")]
    BootImage(String),
}

/// Which probes are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Probing<'a> {
    /// The probes (`ask::probe`). With any, each recording's run is executed again, unless their
    /// values are at hand.
    pub texts: &'a [String],
    /// The file of the recordings' workload, if it is no shipped one.
    pub workload: Option<&'a Path>,
    /// The kernel's boot image, if it lies neither in a build tree nor where packages install it.
    pub boot_image: Option<&'a Path>,
}

/// Probes of a recording with their values.
///
/// # Errors
/// A probe is wrong. The run cannot be executed again: the workload, the kernel's boot image, QEMU
/// or a package is missing or another one. The run was another one.
pub fn probes(asked: &Arc<AskedRecording>, probing: &Probing<'_>) -> Result<RecordedProbes> {
    let (recording, kernel) = (&*asked.path, &*asked.kernel);
    let vmlinux = vmlinux::path(kernel);
    let bytes = map_file(&vmlinux).context("probes need the kernel's vmlinux")?;
    let set = ProbeSet::new(&bytes, probing.texts, &|place| positions(asked, place))?;
    drop(bytes);
    for note in set.probes.iter().flat_map(|probe| &probe.notes) {
        note!("note: {note}");
    }
    let summary = RecordingSummary::read(&Recording::at(recording))?;
    let cache = guest::writable_cache()?.join("probes");
    std::fs::create_dir_all(&cache).with_context(|| format!("making {}", cache.display()))?;
    let file = cache.join(format!("{}.klp", key(recording, &set)?));
    if is_whole(&file, &set, &summary) {
        return Ok(RecordedProbes { set, file });
    }
    let home = scratch::directory(&cache, ".again-")?;
    let values = run_again(recording, kernel, probing, &summary, &set, home.path())
        .with_context(|| format!("{} cannot be executed again", recording.display()))?;
    ensure!(is_whole(&values, &set, &summary), "the values of the probes were not written");
    std::fs::rename(&values, &file).with_context(|| format!("writing {}", file.display()))?;
    Ok(RecordedProbes { set, file })
}

/// The instructions that a question gives, or that access a field.
fn positions(asked: &Arc<AskedRecording>, place: &ProbePlace) -> Result<ProbedPositions> {
    match place {
        ProbePlace::Access(AccessText { structure, field, stores }) => {
            let study = FieldStudy::new(&asked.attribution, &asked.kernel)?;
            let accesses = study.accesses(&asked.path, structure, field)?;
            let wanted =
                accesses.iter().filter(|it| stores.is_none_or(|it_is| it.is_store == it_is));
            let (positions, addresses) = wanted.map(|it| (it.position, it.code.0)).unzip();
            Ok(ProbedPositions { positions, addresses })
        }
        ProbePlace::Rows(sql) => {
            let database = Database::open(vec![("main".to_owned(), asked.clone())], Vec::new())?;
            let mut positions = Positions::default();
            database.ask(sql, &[], &mut positions).context("the question for its positions")?;
            let mut positions = positions.0;
            positions.sort_unstable();
            let addresses = produce::addresses_at(asked, &positions)?;
            Ok(ProbedPositions { positions, addresses })
        }
        _ => Ok(ProbedPositions::default()),
    }
}

/// The positions that a question gives, in its first column.
#[derive(Default)]
struct Positions(Vec<u64>);

impl AnswerSink for Positions {
    fn columns(&mut self, columns: &[AnswerColumn]) -> Result<()> {
        ensure!(columns.len() == 1, "it has {} columns, and needs one, as `start`", columns.len());
        Ok(())
    }

    fn row(&mut self, row: &[SqlValueRef<'_>]) -> Result<()> {
        match row {
            [SqlValueRef::Integer(position)] if *position >= 0 => self.0.push(*position as u64),
            // Such as the end of a service that the recording does not show.
            [SqlValueRef::Null] => {}
            other => bail!("{other:?} is no position"),
        }
        Ok(())
    }
}

/// The name of the file of values: it belongs to one recording and one program.
fn key(recording: &Path, set: &ProbeSet) -> Result<String> {
    let path = Recording::at(recording).summary();
    let conditions = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut hash = Sha256::new();
    hash.update(conditions);
    hash.update(set.program.to_string());
    Ok(hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

/// Whether a file has all values of these probes in this recording.
fn is_whole(path: &Path, set: &ProbeSet, summary: &RecordingSummary) -> bool {
    let read = || -> Result<bool> {
        let mut reader = ProbeReader::new(BufReader::new(File::open(path)?))?;
        while reader.next_hit()?.is_some() {}
        let hash = reader.totals().map(|totals| format!("{:016x}", totals.hash));
        Ok(*reader.program() == set.program && hash.as_ref() == Some(&summary.totals.hash))
    };
    read().unwrap_or(false)
}

fn run_again(
    recording: &Path,
    kernel: &Path,
    probing: &Probing<'_>,
    summary: &RecordingSummary,
    set: &ProbeSet,
    home: &Path,
) -> Result<PathBuf> {
    ensure!(
        summary.checkpoint_sha256.is_none(),
        "it was recorded from a checkpoint; record it from the guest's boot"
    );
    let files = ProbeFiles { program: home.join("program.txt"), values: home.join("probes.klp") };
    std::fs::write(&files.program, set.program.to_string()).context("writing the probes")?;
    let request = request(recording, kernel, probing, summary, home)?;
    request.makes(&summary.conditions)?;
    let request = RecordingRequest {
        data: summary.totals.data.is_some(),
        probes: Some(files.clone()),
        time_limit: TIME_LIMIT,
        ..request
    };
    note!("executing the run again, for the values of the probes");
    let again = crate::record::record(&request, None)?;
    ensure!(
        again.summary.totals.hash == summary.totals.hash,
        "the run was another one: its hash is {}, and that of the recording {}",
        again.summary.totals.hash,
        summary.totals.hash
    );
    Ok(files.values)
}

/// The request that makes the recording again.
fn request(
    recording: &Path,
    kernel: &Path,
    probing: &Probing<'_>,
    summary: &RecordingSummary,
    home: &Path,
) -> Result<RecordingRequest> {
    let conditions = &summary.conditions;
    let name = match (probing.workload, conditions.operations) {
        (Some(file), _) => file.to_string_lossy().into_owned(),
        (None, Some(operations)) => format!("{}:{operations}", conditions.workload),
        (None, None) => conditions.workload.clone(),
    };
    let opened = workload::open(&name);
    let other = || NotRepeatable::Workload(conditions.workload.clone());
    let opened = opened.with_context(other)?;
    ensure!(opened.sha256 == conditions.workload_sha256, other());
    let like = match &conditions.like {
        None => None,
        Some(machine) => Some(
            machines::guest_like(machine)
                .with_context(|| format!("{} is of a guest like {machine}", recording.display()))?,
        ),
    };
    let kernel = bootable(kernel, probing.boot_image, &conditions.kernel_release)?;
    conditions.request(opened, kernel, like, home.join("again.rec"))
}

/// The kernel with its boot image: that of the build tree, the one that was named, or the one that
/// a package installed below the same root as the vmlinux.
fn bootable(kernel: &Path, boot_image: Option<&Path>, release: &str) -> Result<GuestKernel> {
    if let Some(boot_image) = boot_image {
        return GuestKernel::open(boot_image, Some(&vmlinux::path(kernel)));
    }
    if kernel.is_dir() {
        return GuestKernel::open(kernel, None);
    }
    let name = Path::new("boot").join(format!("vmlinuz-{release}"));
    let installed = kernel.ancestors().map(|root| root.join(&name)).find(|path| path.is_file());
    let installed = installed.ok_or_else(|| NotRepeatable::BootImage(release.to_owned()))?;
    GuestKernel::open(&installed, Some(kernel))
}
