//! A request to run a workload in a guest, and the conditions that decide what the guest does.
//!
//! Input: a workload, a kernel, a seed. Output: what QEMU boots, and the conditions in the form
//! that is written beside every result. This module runs nothing.

use crate::cache;
use crate::configuration::{Boot, CPU_OF_RECORDINGS, GuestClock};
use crate::initramfs::GuestContents;
use crate::kernel::GuestKernel;
use crate::own::{self, MainScript};
use crate::qemu::{self, Qemu};
use crate::refused::RefusedRequest;
use crate::state::GuestState;
use crate::workload::Workload;
use anyhow::{Context, Result, bail, ensure};
use host::scratch;
use machines::GuestProcessor;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use trace::CpuCount;

/// A workload to run on a kernel, and where to write the result.
pub struct RecordingRequest {
    /// The workload.
    pub workload: Workload,
    /// The kernel.
    pub kernel: GuestKernel,
    /// Additional files of the guest: path, permissions, content. Such a guest is not kept in the
    /// cache, but made beside the output (`OUTPUT.guest`).
    pub files: Vec<(String, u32, Vec<u8>)>,
    /// The directory to create, with its parents.
    pub output: PathBuf,
    /// The number from which all randomness of the guest comes.
    pub seed: u64,
    /// The guest's CPUs.
    pub cpus: CpuCount,
    /// The longest turn of a CPU while others wait, in instructions; `None` for QEMU's own: up to
    /// the next timer of the guest.
    pub turn: Option<u32>,
    /// What the guest's kernel shall see.
    pub processor: ProcessorRequest,
    /// Whether to record data accesses.
    pub data: bool,
    /// The guest's memory in MB; `None` for the workload's.
    pub memory_mb: Option<u32>,
    /// The time limit by the host's clock, after which the guest is ended.
    pub time_limit: Duration,
    /// Whether an existing result may be replaced.
    pub force: bool,
    /// Values to read at instructions while the guest runs. They change nothing in the guest.
    pub probes: Option<ProbeFiles>,
}

/// The files of probes (`trace::probe`, `trace::probe_file`).
#[derive(Clone, Debug)]
pub struct ProbeFiles {
    /// What is read where.
    pub program: PathBuf,
    /// Where the values are written.
    pub values: PathBuf,
}

/// What a guest's kernel shall see. By default, everything that QEMU emulates but fast strings.
#[derive(Clone, Debug, Default)]
pub struct ProcessorRequest {
    /// The processor. It is checked from within that the kernel chose what it would choose there.
    pub like: Option<GuestProcessor>,
    /// The value of QEMU's option `-cpu`, instead of the one that belongs to `like`.
    pub cpu_model: Option<String>,
    /// Further words of the kernel's command line.
    pub append: Vec<String>,
}

/// Everything that decides what the guest does. It contains no path and no time of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingConditions {
    /// The kernel's release.
    pub kernel_release: String,
    /// The kernel's build id, hex.
    pub kernel_build_id: String,
    /// The workload's name.
    pub workload: String,
    /// The SHA-256 of the workload's file, hex.
    pub workload_sha256: String,
    /// The SHA-256, hex, over path, kind, permissions and content of all files that were copied
    /// from the host, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_sha256: Option<String>,
    /// The SHA-256, hex, over the same of the image's files, and over its environment, if the guest
    /// was made from an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_sha256: Option<String>,
    /// The number of operations of the workload, if it counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations: Option<u64>,
    /// The guest's packages as `NAME_VERSION_ARCHITECTURE.deb`, sorted.
    pub packages: Vec<String>,
    /// The SHA-256 of the root file system, hex.
    pub initramfs_sha256: String,
    /// The number from which all randomness of the guest comes.
    pub seed: u64,
    /// The guest's memory in MB.
    pub memory_mb: u32,
    /// The guest's CPUs. Files from before several CPUs could be recorded do not say so.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub cpus: u8,
    /// The longest turn of a CPU while others wait, in instructions, if it was limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// The machine whose processor the guest's kernel saw, if one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like: Option<String>,
    /// QEMU's version.
    pub qemu: String,
    /// QEMU's arguments without files.
    pub qemu_arguments: Vec<String>,
}

impl RecordingConditions {
    /// The request that makes the same recording again. `workload` and `kernel` must be those of
    /// the recording; [`RecordingRequest::makes`] compares them.
    ///
    /// # Errors
    /// The recording has no known command line, or is like a machine that does not exist.
    pub fn request(
        &self,
        workload: Workload,
        kernel: GuestKernel,
        like: Option<GuestProcessor>,
        output: PathBuf,
    ) -> Result<RecordingRequest> {
        let value = |option: &str| {
            let mut words = self.qemu_arguments.iter().skip_while(|word| *word != option);
            words.nth(1).map_or("", String::as_str)
        };
        let words: Vec<&str> = value("-append").split(' ').collect();
        let own = words.iter().rposition(|word| is_own(word));
        let further = &words[own.context("its command line is unknown")? + 1..];
        let of_machine = like.as_ref().map_or(&[][..], |it| &it.command_line);
        let append = further.get(of_machine.len()..).unwrap_or_default();
        Ok(RecordingRequest {
            workload,
            kernel,
            files: Vec::new(),
            output,
            seed: self.seed,
            cpus: CpuCount::new(self.cpus.into()).context("its number of CPUs")?,
            turn: self.turn,
            processor: ProcessorRequest {
                like,
                cpu_model: Some(value("-cpu").to_owned()),
                append: append.iter().map(|&word| word.to_owned()).collect(),
            },
            data: false,
            memory_mb: Some(self.memory_mb),
            time_limit: Duration::from_secs(900),
            force: false,
            probes: None,
        })
    }

    /// What differs in other conditions, in words. `None`: nothing.
    fn difference(&self, other: &RecordingConditions) -> Option<String> {
        let differs = |what: &str, one: &str, two: &str| {
            (one != two).then(|| format!("{what} is {two}, and was {one}"))
        };
        let packages = || {
            let gone = self.packages.iter().find(|package| !other.packages.contains(package));
            gone.map(|package| format!("the package {package} is not available any more"))
        };
        differs("the kernel's build id", &self.kernel_build_id, &other.kernel_build_id)
            .or_else(|| differs("QEMU's version", &self.qemu, &other.qemu))
            .or_else(|| {
                let [one, two] = [&self.workload_sha256, &other.workload_sha256];
                differs("the digest of the workload's file", one, two)
            })
            .or_else(packages)
            .or_else(|| {
                let [one, two] = [&self.qemu_arguments, &other.qemu_arguments];
                differs("QEMU's command line", &one.join(" "), &two.join(" "))
            })
            .or_else(|| (self != other).then(|| "the guest's files are others".to_owned()))
    }

    /// Whether the guest's processor and command line are those of a request.
    pub(crate) fn are_of_processor(&self, request: &RecordingRequest) -> bool {
        let value = |option: &str| {
            let mut words = self.qemu_arguments.iter().skip_while(|word| *word != option);
            words.nth(1).map_or("", String::as_str)
        };
        let ProcessorRequest { like, cpu_model, append } = &request.processor;
        let like = like.as_ref();
        let cpu_model = cpu_model.as_deref().or(like.map(|it| it.cpu_model.as_str()));
        let words = like.iter().flat_map(|it| &it.command_line).chain(append);
        let words = words.map(String::as_str).collect::<Vec<_>>().join(" ");
        self.like.as_ref() == like.map(|it| &it.name)
            && value("-cpu") == cpu_model.unwrap_or(CPU_OF_RECORDINGS)
            && value("-append")
                .strip_suffix(&words)
                .and_then(|own| own.trim_end().rsplit(' ').next())
                .is_some_and(is_own)
    }
}

/// Whether a word can be the last of Kernlane's own on a kernel's command line.
fn is_own(word: &str) -> bool {
    word == NO_RANDOM_MAPS || word.starts_with(own::INIT_WORD)
}

/// With address randomization, a kernel that draws one random number more or fewer would move all
/// user programs.
const NO_RANDOM_MAPS: &str = "norandmaps";

fn one() -> u8 {
    1
}

fn is_one(cpus: &u8) -> bool {
    *cpus == 1
}

/// A guest that was made and can be booted.
pub struct PreparedGuest {
    /// How to boot it.
    pub boot: Boot,
    /// The conditions under which it then runs.
    pub conditions: RecordingConditions,
    /// What may be wrong with it.
    pub warnings: Vec<String>,
    /// The directory of a guest that is not kept. It is removed with this value.
    _scratch: Option<tempfile::TempDir>,
}

impl RecordingRequest {
    /// Makes the guest, and ensures that it would run under these conditions.
    ///
    /// # Errors
    /// A condition is another, or the guest cannot be made.
    pub fn makes(&self, conditions: &RecordingConditions) -> Result<()> {
        let prepared = self.prepare(&Qemu::find()?, None)?;
        match conditions.difference(&prepared.conditions) {
            None => Ok(()),
            Some(difference) => bail!("{difference}"),
        }
    }

    /// Makes the guest of a recording.
    ///
    /// # Errors
    /// A package cannot be downloaded or unpacked, the cache cannot be written to, a program that
    /// the workload runs lacks a library, or the guest's memory is too small for its files.
    pub fn prepare(&self, qemu: &Qemu, state: Option<GuestState>) -> Result<PreparedGuest> {
        let main = MainScript::Recording { shows_mitigations: self.processor.like.is_some() };
        self.prepared(qemu, state, main)
    }

    /// As `prepare`, with another program that runs the workload.
    pub(crate) fn prepared(
        &self,
        qemu: &Qemu,
        state: Option<GuestState>,
        main: MainScript,
    ) -> Result<PreparedGuest> {
        let (workload, kernel) = (&self.workload, &self.kernel);
        let cache = cache::directory()?;
        let mut contents = GuestContents::of_main(&workload.on_cpus(self.cpus), kernel, main)?;
        for (path, permissions, content) in &self.files {
            contents.file(path, *permissions, content.as_slice());
        }
        // A user's own program changes with every build, so its guests would fill the cache.
        let is_kept = contents.is_kept() && matches!(main, MainScript::Recording { .. });
        let temporary = (!is_kept && self.files.is_empty())
            .then(|| {
                std::fs::create_dir_all(&cache)?;
                scratch::directory(&cache, ".guest-")
            })
            .transpose()?;
        let place = match &temporary {
            Some(directory) => directory.path().to_owned(),
            None if self.files.is_empty() => cache.join("guest"),
            None => self.output.with_extension("guest"),
        };
        let initramfs = contents.build(&cache, &place)?;
        let mut boot = Boot::new(kernel.boot_image.clone(), initramfs.path.clone());
        boot.clock = GuestClock::Instructions { seed: self.seed };
        boot.memory_mb = self.memory_mb.unwrap_or(workload.memory_mb);
        if let Some(unpacked) = initramfs.unpacked_mb.filter(|_| !is_kept) {
            // While the guest boots, the archive and the unpacked files are both in memory.
            ensure!(
                unpacked * 2 < boot.memory_mb.into(),
                RefusedRequest::TooLittleMemory {
                    files: unpacked,
                    memory: boot.memory_mb,
                    enough: (unpacked * 5 / 2 + 256).next_multiple_of(128),
                }
            );
        }
        boot.cpus = self.cpus.get().into();
        boot.turn = self.turn;
        boot.time_limit = self.time_limit;
        boot.state = state;
        boot.command_line.push(NO_RANDOM_MAPS.into());
        boot.command_line.extend(contents.kernel_words());
        if let Some(processor) = &self.processor.like {
            boot.cpu_model.clone_from(&processor.cpu_model);
            boot.command_line.extend(processor.command_line.iter().cloned());
        }
        if let Some(cpu_model) = &self.processor.cpu_model {
            boot.cpu_model.clone_from(cpu_model);
        }
        boot.command_line.extend(self.processor.append.iter().cloned());
        let brought = workload.brought()?;
        let conditions = RecordingConditions {
            kernel_release: kernel.release.clone(),
            kernel_build_id: kernel.build_id.0.clone(),
            workload: workload.name.clone(),
            workload_sha256: workload.sha256.clone(),
            copied_sha256: brought.copied_sha256.clone(),
            image_sha256: brought.image_sha256.clone(),
            operations: workload.operations,
            packages: initramfs.packages.iter().map(|package| package.file.clone()).collect(),
            initramfs_sha256: initramfs.sha256.clone(),
            seed: self.seed,
            memory_mb: boot.memory_mb,
            cpus: self.cpus.get(),
            turn: self.turn,
            like: self.processor.like.as_ref().map(|processor| processor.name.clone()),
            qemu: qemu.version.to_string(),
            qemu_arguments: qemu::arguments(&boot)?,
        };
        Ok(PreparedGuest { boot, conditions, warnings: initramfs.warnings, _scratch: temporary })
    }
}
