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
use image::linked::LinkedKernel;
use image::mapping::map_file;
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

/// Reads the running kernel's vmlinux and the running kernel itself, and works on both.
///
/// # Errors
/// There is no vmlinux, it is damaged or not that of the running kernel, or the running kernel
/// cannot be read; or the work fails.
fn on_running_kernel<T>(
    vmlinux: Option<&Path>,
    work: impl FnOnce(&LinkedKernel<'_>, &RunningKernel) -> Result<T>,
) -> Result<T> {
    let (path, bytes) = map_vmlinux(vmlinux)?;
    let kernel = LinkedKernel::parse(&bytes).with_context(|| path.display().to_string())?;
    let running = RunningKernel::open(&kernel)?;
    origin::vouch(&path, &bytes, &kernel)?;
    work(&kernel, &running)
}

/// Reads the modules that the running kernel has loaded, with their files below `directory`, or
/// where distributions install them.
///
/// # Errors
/// A directory or the list of modules cannot be read.
fn loaded_modules(
    kernel: &LinkedKernel<'_>,
    running: &RunningKernel,
    directory: Option<&Path>,
) -> Result<RunningModules> {
    let installed = Path::new("/lib/modules").join(live::origin::release()?);
    let directory = directory.unwrap_or(&installed);
    let files = module_files::below(directory)?;
    live::modules::read(kernel, running, &|name| {
        let path = files.get(name);
        let path = path.with_context(|| format!("its file is not in {}", directory.display()))?;
        module_files::read(path).with_context(|| path.display().to_string())
    })
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
