//! `kernlane live`: the commands that work on the kernel that is running.

mod analyze;
mod apply;
mod auto;
mod cache;
mod cycles;
mod guard;
mod keep;
mod learn;
mod origin;
mod restore;
mod roots;
mod status;
mod time;
mod undo;
mod watch;

pub(crate) use apply::percent;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use guest::module_files;
use host::note;
use image::linked::LinkedKernel;
use image::mapping::map_file;
use live::device::Device;
use live::modules::RunningModules;
use live::running::RunningKernel;
use memmap2::Mmap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Lay out functions of the running kernel anew, and take it back
///
/// Needs root and Kernlane's kernel module (`kmod/`, see docs/how-to/live.md). Functions are copied
/// in another order into a module, and entered by one jump and by aimed calls; `kernlane live undo`
/// restores every byte. The kernel's files are not touched: after a reboot everything is as before,
/// unless `kernlane live keep` was called.
#[derive(Args)]
#[command(
    after_help = "Example:\n  kernlane live apply --profile net.klp --root tcp_v4_rcv --dry-run"
)]
pub struct LiveArgs {
    #[command(subcommand)]
    pub command: LiveCommand,
}

#[derive(Subcommand)]
pub enum LiveCommand {
    Analyze(analyze::AnalyzeArgs),
    Watch(watch::WatchArgs),
    Apply(apply::ApplyArgs),
    Auto(auto::AutoArgs),
    Status(status::StatusArgs),
    Keep(keep::KeepArgs),
    Restore(restore::RestoreArgs),
    Learn(learn::LearnArgs),
    Undo(undo::UndoArgs),
    Count(watch::CountArgs),
    Time(time::TimeArgs),
}

pub(crate) fn run(args: &LiveArgs) -> Result<ExitCode> {
    match &args.command {
        LiveCommand::Analyze(args) => analyze::run(args),
        LiveCommand::Watch(args) => watch::watch(args),
        LiveCommand::Count(args) => watch::count(args),
        LiveCommand::Apply(args) => apply::run(args),
        LiveCommand::Auto(args) => auto::run(args),
        LiveCommand::Time(args) => time::run(args),
        LiveCommand::Status(args) => status::run(args),
        LiveCommand::Keep(args) => keep::run(args),
        LiveCommand::Restore(args) => restore::run(args),
        LiveCommand::Learn(args) => learn::run(args),
        LiveCommand::Undo(args) => undo::run(args),
    }
}

/// The modules whose functions a command works on.
#[derive(Args)]
pub struct ModuleArgs {
    /// Where the files of the loaded modules are; by default in /lib/modules. They are compared
    /// with what the kernel has made of them. A module whose file is not there is left alone
    #[arg(long, value_name = "DIRECTORY")]
    pub modules: Option<PathBuf>,

    /// Leave the functions of modules alone
    #[arg(long, conflicts_with = "modules")]
    pub no_modules: bool,
}

/// Which modules are read with the kernel.
enum ReadModules<'a> {
    None,
    /// `device`: they stay until it is closed, so that what was read can be replaced.
    Loaded {
        directory: Option<&'a Path>,
        device: Option<&'a Device>,
    },
}

impl ModuleArgs {
    fn with<'a>(&'a self, device: Option<&'a Device>) -> ReadModules<'a> {
        match self.no_modules {
            true => ReadModules::None,
            false => ReadModules::Loaded { directory: self.modules.as_deref(), device },
        }
    }
}

/// Reads the running kernel's vmlinux, the running kernel itself and its modules, and works on
/// them. Says which modules are left alone.
///
/// # Errors
/// There is no vmlinux, it is damaged or not that of the running kernel, or the running kernel
/// cannot be read; or the work fails.
fn on_running_kernel<T>(
    vmlinux: Option<&Path>,
    modules: ReadModules<'_>,
    work: impl FnOnce(&LinkedKernel<'_>, &RunningKernel) -> Result<T>,
) -> Result<T> {
    let (path, bytes) = map_vmlinux(vmlinux)?;
    let kernel = LinkedKernel::parse(&bytes).with_context(|| path.display().to_string())?;
    let running = RunningKernel::open(&kernel)?;
    origin::vouch(&path, &bytes, &kernel)?;
    let modules = loaded_modules(&kernel, &running, modules)?;
    for line in modules.reasons() {
        note!("{line}");
    }
    let kernel = kernel.with_modules(&modules.read)?;
    work(&kernel, &running)
}

/// Reads the modules that the running kernel has loaded.
///
/// # Errors
/// A directory or the list of modules cannot be read.
fn loaded_modules(
    kernel: &LinkedKernel<'_>,
    running: &RunningKernel,
    modules: ReadModules<'_>,
) -> Result<RunningModules> {
    let ReadModules::Loaded { directory, device } = modules else {
        return Ok(RunningModules::default());
    };
    let installed = Path::new("/lib/modules").join(live::origin::release()?);
    let directory = directory.unwrap_or(&installed);
    let files = module_files::below(directory)?;
    let file = |name: &str| {
        let path = files.get(name);
        let path = path.with_context(|| format!("its file is not in {}", directory.display()))?;
        module_files::read(path).with_context(|| path.display().to_string())
    };
    live::modules::read(kernel, running, &file, device)
}

/// Maps the vmlinux that was given, or that of the running kernel where distributions put it.
fn map_vmlinux(given: Option<&Path>) -> Result<(PathBuf, Mmap)> {
    let path = match given {
        Some(path) => path.to_path_buf(),
        None => origin::installed_vmlinux()?,
    };
    let bytes = map_file(&path)?;
    Ok((path, bytes))
}
