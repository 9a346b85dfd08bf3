//! `kernlane check`: proves that a relinked kernel is the old program.
//!
//! Input: two kernels and a map. Output: the proof or the differences, printed.

use crate::command::text_file::text_of;
use anyhow::{Context, Result, ensure};
use check::kernel::KernelFile;
use check::{KernelBuild, check};
use clap::Args;
use exchange::kinds::FileKind;
use host::out;
use host::outln;
use host::progress::Progress;
use image::map::PlacementMap;
use image::place::Placement;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Prove that a relinked kernel is the old program
///
/// Reads both kernels and follows the map block by block. Compares instructions, targets,
/// side-table entries, the unwinder's state at every instruction, and data. Prints how much was
/// proved, and the differences by kind. Exit status 0: proved. 1: there are differences. 2: the
/// comparison could not be made.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane check ~/old/vmlinux ~/linux --map ~/linux/net.klm")]
pub struct CheckArgs {
    /// The old kernel: its vmlinux, or its build tree
    #[arg(value_name = "TREE|VMLINUX")]
    pub old: PathBuf,

    /// The new kernel
    #[arg(value_name = "TREE|VMLINUX")]
    pub new: PathBuf,

    /// The map that relinking wrote. Without a map no code may have moved
    #[arg(long, value_name = "FILE.klm")]
    pub map: Option<PathBuf>,

    /// How many differences of each kind to print
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub show: usize,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let progress = Progress::new("reading the kernels");
    let (old, new) = (KernelBuild::read(&args.old)?, KernelBuild::read(&args.new)?);
    let (old, new) = (old.kernel()?, new.kernel()?);
    let map = match &args.map {
        Some(path) => read_map(path, &old.kernel)?,
        None => Placement::default(),
    };
    progress.say("comparing the kernels block by block");
    let findings = check(&old, &new, &map)?;
    drop(progress);
    if args.json {
        out!("{}", findings.json(&old.kernel, &new.kernel, args.show))?;
    } else {
        if old.relocs.is_none() {
            outln!(
                "there is no vmlinux.relocs beside the kernels: every number in the kernel's \
                 address range counts as an address"
            )?;
        }
        out!("{}", findings.text(&old.kernel, &new.kernel, args.show))?;
    }
    Ok(if findings.equal() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn read_map(path: &Path, old: &KernelFile) -> Result<Placement> {
    let text = text_of(path, &[FileKind::Map])?;
    let map = PlacementMap::from_text(&text).with_context(|| path.display().to_string())?;
    let build_id = old.build_id().unwrap_or_default();
    ensure!(
        map.build_id.0 == build_id,
        "{}: the map belongs to the kernel with build id {}, but the old kernel has build id \
         {build_id}",
        path.display(),
        map.build_id.0
    );
    let code: Vec<Range<u64>> =
        old.sections.iter().filter(|s| s.executable).map(|s| s.addr..s.end()).collect();
    map.ensure_within(&code).with_context(|| path.display().to_string())?;
    Ok(map.placement)
}
