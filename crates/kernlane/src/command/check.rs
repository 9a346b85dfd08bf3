//! `kernlane check`: proves that a relinked kernel is the old program.
//!
//! Input: two kernels and a map. Output: the proof or the differences, printed.

use anyhow::Result;
use clap::Args;
use host::{out, outln};
use road::proof::{ProvedMap, prove};
use std::path::PathBuf;
use std::process::ExitCode;

/// Prove that a relinked kernel or module is the old program
///
/// Reads both kernels and follows the map block by block. Compares instructions, targets,
/// side-table entries, the unwinder's state at every instruction, and data. Prints how much was
/// proved, and the differences by kind. Exit status 0: proved. 1: there are differences. 2: the
/// comparison could not be made.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane check ~/old/vmlinux ~/linux --map ~/linux/net.klm")]
pub struct CheckArgs {
    /// The old kernel: its vmlinux, or its build tree; or a module of it
    #[arg(value_name = "TREE|VMLINUX|FILE.ko")]
    pub old: PathBuf,

    /// The new kernel, or the new module
    #[arg(value_name = "TREE|VMLINUX|FILE.ko")]
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
    let map = args.map.as_deref().map_or(ProvedMap::Unmoved, ProvedMap::File);
    let proof = prove(&args.old, &args.new, map, args.show)?;
    if args.json {
        out!("{}", proof.json)?;
    } else {
        if !proof.knows_addresses {
            outln!(
                "there is no vmlinux.relocs beside the kernels: every number in the kernel's \
                 address range counts as an address"
            )?;
        }
        out!("{}", proof.text)?;
    }
    Ok(if proof.holds { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
