//! `kernlane import`: makes a profile from samples of other tools.
//!
//! Input: a file of another tool and the kernel. Output: a profile.

use anyhow::Result;
use clap::Args;
use host::outln;
use host::output;
use road::import::{Imported, SampledUnit, import};
use std::path::PathBuf;
use std::process::ExitCode;

/// Make a profile from branches that perf sampled, or from a profile of BOLT or LLVM
///
/// Takes what `perf record -b` writes (a file, what came through a pipe, the directory of
/// `--threads`), the output of `perf script -F brstack` (with `--show-mmap-events` it says where
/// the kernel ran), BOLT's fdata and pre-aggregated profiles, or a sample profile by source lines
/// from llvm-profgen or create_llvm_prof (AutoFDO), as text or binary. Each may be compressed (.gz,
/// .xz, .zst). The sample profile needs a kernel with DWARF. The counts are sampled, and do not say
/// where the kernel was entered; a recording has exact counts and entries.
#[derive(Args)]
#[command(after_help = "Example:\n  perf record -b -a -e cycles:k -- sleep 10\n  \
                  kernlane import perf.data --kernel ~/linux -o perf.klp")]
pub struct ImportArgs {
    /// perf.data, text of `perf script -F brstack`, or a profile of BOLT or LLVM
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The kernel that ran: its build tree, or its vmlinux
    #[arg(long, short, value_name = "TREE|VMLINUX")]
    pub kernel: PathBuf,

    /// How far above its link addresses the kernel ran (KASLR), in hex; perf's files say it
    #[arg(long, value_name = "HEX", value_parser = parse_hex)]
    pub slide: Option<u64>,

    /// Where to write the profile
    #[arg(long, short, value_name = "FILE.klp")]
    pub output: PathBuf,

    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

fn parse_hex(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|_| format!("\"{text}\" is not a hexadecimal number"))
}

pub(crate) fn run(args: &ImportArgs) -> Result<ExitCode> {
    let imported = import(&args.file, &args.kernel, args.slide)?;
    output::write(&args.output, imported.profile.to_json().as_bytes())?;
    print(args, &imported)?;
    Ok(ExitCode::SUCCESS)
}

fn print(args: &ImportArgs, imported: &Imported) -> Result<()> {
    let (profile, counts) = (&imported.profile, imported.unit.name());
    if args.json {
        let mut summary = serde_json::json!({
            "kernel": profile.build_id,
            counts: imported.all,
            format!("{counts}_used"): imported.used,
            "blocks": profile.blocks.len(),
            "edges": profile.edges.len(),
            "calls": profile.calls.len(),
        });
        if let Some(slide) = imported.slide {
            summary["slide"] = format!("{slide:x}").into();
        }
        if imported.unit == SampledUnit::Branches {
            summary["branches_outside"] = imported.outside.into();
        }
        outln!("{}", serde_json::to_string_pretty(&summary)?)?;
        return Ok(());
    }
    let slide = imported.slide.map(|slide| format!(" (slide {slide:#x})")).unwrap_or_default();
    outln!(
        "{}: {} of {} {counts}{slide}; {} blocks, {} edges, {} calls",
        args.output.display(),
        imported.used,
        imported.all,
        profile.blocks.len(),
        profile.edges.len(),
        profile.calls.len()
    )?;
    if imported.outside > 0 {
        outln!(
            "{} more {counts} begin or end outside of the kernel's code, in user programs, modules \
             or BPF programs, or in functions whose names are not unique",
            imported.outside
        )?;
    }
    Ok(())
}
