//! `kernlane import`: branches that others sampled become a profile.

use crate::command::profile::vmlinux_path;
use crate::exchange::branches::{self, Branches, Imported};
use crate::exchange::perf;
use crate::image::vmlinux;
use crate::output;
use anyhow::{Context, Result, bail};
use clap::Args;
use object::{Object, ObjectSymbol};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Make a profile of branches that perf sampled
///
/// Takes a perf.data file of `perf record -b`, or what `perf script -F brstack` prints. Counts are of samples, and know nothing of where
/// the kernel was entered; a recording knows both.
#[derive(Args)]
#[command(after_help = "Example:\n  perf record -b -a -e cycles:k -- sleep 10\n  kernlane import perf.data --kernel ~/linux -o perf.klp")]
pub struct ImportArgs {
    /// A perf.data file, or text of `perf script -F brstack`
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The kernel that ran: its build tree, or its vmlinux
    #[arg(long, short, value_name = "TREE|VMLINUX")]
    pub kernel: PathBuf,

    /// How far above its link addresses the kernel ran (KASLR), in hex; perf.data says it itself
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
    u64::from_str_radix(digits, 16).map_err(|_| format!("\"{text}\" is no hexadecimal number"))
}

pub fn run(args: &ImportArgs) -> Result<ExitCode> {
    let path = vmlinux_path(&args.kernel);
    let image = vmlinux::read(&path)?;
    let (branches, slide) = read(args, &path).with_context(|| args.file.display().to_string())?;
    let name = args.file.file_name().unwrap_or_default().to_string_lossy();
    let imported = branches::profile(&branches, &image, slide, &name);
    if imported.branches_used == 0 {
        bail!(
            "{}: none of its {} branches is one of {}: another kernel, or another slide than {slide:#x}",
            args.file.display(),
            imported.branches,
            path.display()
        );
    }
    output::write(&args.output, imported.profile.to_json().as_bytes())?;
    print(args, &imported, slide)?;
    Ok(ExitCode::SUCCESS)
}

fn read(args: &ImportArgs, kernel: &Path) -> Result<(Branches, u64)> {
    let bytes = std::fs::read(&args.file)?;
    if !bytes.starts_with(b"PERFILE2") {
        let text = std::str::from_utf8(&bytes).context("neither a perf.data file nor text")?;
        return Ok((perf::script(text)?, args.slide.unwrap_or(0)));
    }
    let samples = perf::data(&bytes)?;
    let slide = match (args.slide, samples.kernel) {
        (Some(slide), _) => slide,
        (None, None) => 0,
        (None, Some((symbol, ran_at))) => ran_at.wrapping_sub(link_address(kernel, &symbol)?),
    };
    Ok((samples.branches, slide))
}

fn link_address(kernel: &Path, symbol: &str) -> Result<u64> {
    let named = || kernel.display().to_string();
    let bytes = std::fs::read(kernel).with_context(named)?;
    let elf = object::File::parse(&*bytes).with_context(named)?;
    let found = elf.symbol_by_name(symbol).map(|found| found.address());
    found.with_context(|| {
        format!(
            "{}: has no symbol {symbol}, by which perf says where the kernel ran",
            kernel.display()
        )
    })
}

fn print(args: &ImportArgs, imported: &Imported, slide: u64) -> Result<()> {
    let profile = &imported.profile;
    if args.json {
        let summary = serde_json::json!({
            "kernel": profile.build_id,
            "slide": format!("{slide:x}"),
            "branches": imported.branches,
            "branches_used": imported.branches_used,
            "blocks": profile.blocks.len(),
            "edges": profile.edges.len(),
            "calls": profile.calls.len(),
        });
        println!("{}", serde_json::to_string_pretty(&summary)?);
        return Ok(());
    }
    println!(
        "{}: {} of {} branches (slide {slide:#x}); {} blocks, {} edges, {} calls",
        args.output.display(),
        imported.branches_used,
        imported.branches,
        profile.blocks.len(),
        profile.edges.len(),
        profile.calls.len()
    );
    Ok(())
}
