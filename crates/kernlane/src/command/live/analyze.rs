//! `kernlane live analyze`: the structure of the running kernel, and which of its functions can be
//! replaced.

use super::ModuleArgs;
use anyhow::{Context, Result};
use clap::Args;
use host::note;
use host::outln;
use host::progress::Progress;
use image::linked::LinkedKernel;
use live::memory::{FileMemory, TextMemory};
use live::modules::RunningModules;
use live::running::RunningKernel;
use live::survey::{Survey, survey};
use std::path::PathBuf;
use std::process::ExitCode;

/// Read the running kernel's structure and say which functions can be replaced
///
/// Compares the code in memory with the vmlinux of the same build id; every byte that differs must
/// be explained by a side table or by KASLR, or the function is left out. The exit status is 1 when
/// --prove refutes a copy.
#[derive(Args)]
#[command(
    after_help = "Example:\n  kernlane live analyze --reasons\n  kernlane live analyze --no-modules --prove"
)]
pub struct AnalyzeArgs {
    /// The running kernel's vmlinux; by default where distributions put it
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,

    /// Analyze the file alone, as if it ran unchanged; needs no root
    #[arg(long)]
    pub file_only: bool,

    #[command(flatten)]
    pub modules: ModuleArgs,

    /// Copy every function that can be replaced in its original order, and compare instruction by
    /// instruction
    #[arg(long)]
    pub prove: bool,

    /// List the functions that are left out, with the reason
    #[arg(long)]
    pub reasons: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &AnalyzeArgs) -> Result<ExitCode> {
    let (path, bytes) = super::map_vmlinux(args.vmlinux.as_deref())?;
    let kernel = LinkedKernel::parse(&bytes).with_context(|| path.display().to_string())?;
    let running = match args.file_only {
        true => None,
        false => Some(RunningKernel::open(&kernel)?),
    };
    if running.is_some() {
        super::origin::vouch(&path, &bytes, &kernel)?;
    }
    let modules = match &running {
        Some(running) => super::loaded_modules(&kernel, running, args.modules.with(None))?,
        None => RunningModules::default(),
    };
    let kernel = kernel.with_modules(&modules.read)?;
    let text = match &running {
        Some(running) => TextMemory::read(&kernel, running)?,
        None => TextMemory::read(&kernel, &FileMemory(&kernel))?,
    };
    let progress = Progress::of(kernel.functions.len() as u64, "analyzing functions");
    let mut found = survey(&kernel, &text, args.prove, &|done| progress.advance(done))?;
    drop(progress);
    found.left_out_modules = modules.left_out.clone();
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&found)?)?;
    } else {
        print(&found, args)?;
    }
    for line in modules.reasons() {
        note!("{line}");
    }
    Ok(if found.refuted.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn print(found: &Survey, args: &AnalyzeArgs) -> Result<()> {
    outln!("{:>8}  functions", found.functions)?;
    outln!("{:>8}  blocks, {} edges", found.blocks, found.edges)?;
    outln!(
        "{:>8}  direct calls, {} indirect calls and jumps",
        found.direct_calls,
        found.indirect_calls
    )?;
    outln!("{:>8}  functions with a site of the function tracer", found.traced_functions)?;
    let part = found.replaceable_percent();
    outln!("{:>8}  of these can be replaced ({part:.1} %); not:", found.replaceable)?;
    for (reason, count) in found.reasons_by_count() {
        outln!("{count:>8}    {reason}")?;
    }
    for (module, of) in &found.modules {
        outln!("{:>8}  of {} in the module {module}", of.replaceable, of.traced_functions)?;
    }
    if args.prove {
        outln!("{:>8}  copies proven equal, {} not", found.proven, found.refuted.len())?;
        for (name, difference) in &found.refuted {
            outln!("  {name}: {difference}")?;
        }
    }
    if args.reasons {
        for f in &found.left_out {
            outln!("{} {}: {}", f.address, f.name, f.reason)?;
        }
    }
    Ok(())
}
